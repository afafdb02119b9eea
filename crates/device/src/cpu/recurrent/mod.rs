//! Recurrent mixers: what a sequence keeps is a state of fixed size.

mod chunk;
mod conv;
mod delta;
mod runs;
mod shift;
mod step;

pub use conv::{conv_silu, scratch as conv_scratch};
pub use delta::{Operands, gated_delta, scratch as delta_scratch};
pub use shift::shift;
