//! Files: GGUF and safetensors, their configs, every tensor's name, dtype, shape and byte range, block formats with a scalar decoder and encoder each, and the streaming writer. No devices, no threads, no family names.
//!
//! * [`DType`] and [`Block`] say how numbers are stored; each block format has one file under `block/` with its byte layout, its scalar decoder and,
//!   where a writer exists, its encoder. The scalar decoders are the oracle for every kernel elsewhere.
//! * [`Format`] describes one logical matrix, which may be spread over several planes (codes, scales, zeros). Only `Format::Plain` is decoded here.

pub mod block;
mod dtype;
mod error;

pub use block::{Block, Unwritable};
pub use dtype::{DType, Format, Opaque};
pub use error::{Error, Result};
