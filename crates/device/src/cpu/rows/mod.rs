//! Ops on rows without history, each row by itself.

mod norm;
mod pointwise;
mod rope;
mod route;

pub use norm::rms_norm;
pub use pointwise::{add, combine, gate, gather_rows, glu, likeliest, scale, softcap, zero};
pub use rope::rope;
pub use route::{route, route_scratch};
