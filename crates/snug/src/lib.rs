//! What the command line does that no other crate should hold.

pub mod launch;
pub mod quantize;
pub mod synth;
