//! Architectures: config to weight names to the halves of one layer, written once over `Device`.
//! No loop order, no batching, no I/O.
//!
//! A [`Family`] reads its config from either kind of file ([`keys`]), lists the parameters it needs ([`want`]), says
//! what a sequence keeps, and writes its forward pass as plain calls on a [`Cx`]. One file per family: [`llama`] (also
//! Qwen2), [`qwen3`], [`qwen3_moe`], [`qwen3_next`], [`qwen3_5`], [`qwen3_5_moe`], [`gpt_oss`], [`gemma3`], [`gemma4`],
//! [`glm4_moe`]. Those of Qwen3 and later are a [`decoder`] of blocks whose mixers ([`gqa`], [`gdn`]) and feed-forwards
//! ([`sparse`]) are shared.

mod bind;
mod cx;
pub mod decoder;
mod drafter;
mod error;
mod family;
pub mod gdn;
pub mod gemma;
pub mod gemma3;
pub mod gemma4;
pub mod glm4_moe;
pub mod gpt_oss;
pub mod gqa;
pub mod hybrid;
pub mod keys;
pub mod llama;
pub mod moe;
pub mod mtp;
mod planes;
pub mod qwen3;
pub mod qwen3_5;
pub mod qwen3_5_moe;
pub mod qwen3_moe;
pub mod qwen3_next;
pub mod rope;
pub mod sparse;
pub mod want;

pub use bind::bind;
pub use cx::Cx;
pub use drafter::Drafter;
pub use error::{Error, Result};
pub use family::{Carry, CarrySpec, Family, SideTable, Spec, open, supported};
