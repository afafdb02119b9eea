//! What the command line does that no other crate should hold.

pub mod quantize;
pub mod synth;
