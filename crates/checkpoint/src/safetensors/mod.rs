//! Safetensors: a u64 length, a JSON header, the data (the format's README). One file, or shards listed by an `index.json`.
//!
//! The data of a file must be covered exactly: tensors may neither overlap nor leave gaps, and bytes after the last one are refused, since each of these means
//! that header and data do not belong together.

mod header;
mod index;
mod write;

pub(crate) use header::{TYPES, parse};
pub(crate) use index::{INDEX, open_shards};
pub use write::{write_safetensors, write_safetensors_hole, write_safetensors_to};
