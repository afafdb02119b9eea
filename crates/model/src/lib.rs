//! Architectures: config to weight names to the halves of one layer, written once over `Device`.
//! No loop order, no batching, no I/O.
//!
//! A [`Family`] reads its config from either kind of file ([`keys`]), lists the parameters it needs ([`want`]), says
//! what a sequence keeps, and writes its forward pass as plain calls on a [`Cx`]. One file per family:
//! [`llama`] (also Qwen2), [`qwen3_5_moe`], [`gpt_oss`], [`gemma3`], [`gemma4`], [`glm4_moe`].

mod bind;
mod cx;
mod error;
mod family;
pub mod gemma;
pub mod gemma3;
pub mod gemma4;
pub mod glm4_moe;
pub mod gpt_oss;
pub mod keys;
pub mod llama;
pub mod moe;
pub mod qwen3_5_moe;
pub mod rope;
pub mod want;

pub use bind::bind;
pub use cx::Cx;
pub use error::{Error, Result};
pub use family::{Carry, CarrySpec, Family, SideTable, Spec, open, supported};
