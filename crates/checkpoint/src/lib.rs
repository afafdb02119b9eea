//! Files: GGUF and safetensors, their configs, every tensor's name, dtype, shape and byte range, block formats with a scalar decoder and encoder each, and the streaming writer. No devices, no threads, no family names.
//!
//! * [`DType`] and [`Block`] say how numbers are stored; each block format has one file under `block/` with its byte layout, its scalar decoder and,
//!   where a writer exists, its encoder. The scalar decoders are the oracle for every kernel elsewhere.
//! * [`Format`] describes one logical matrix, which may be spread over several planes (codes, scales, zeros), with its scalar decoder and, for planes, an
//!   encoder. [`Checkpoint::matrix`] finds the tensors that make one.
//! * [`Checkpoint`] opens a GGUF (or a split set), a safetensors file, or a Hugging Face directory, from a path or from memory: [`Meta`] says what the model is,
//!   [`TensorInfo`] where each tensor lies. Weights are read at positions; nothing is mapped.
//! * [`write_gguf`] and [`write_safetensors`] stream announced tensors into a file that appears only when it is whole.
//!
//! A file is never trusted: no input makes this crate panic, allocate more than a small multiple of the file's size, or read outside it.

#![forbid(unsafe_code)]

pub mod block;
mod checkpoint;
mod dtype;
mod error;
pub mod float8;
mod format;
#[doc(hidden)]
pub mod fuzzing;
mod gguf;
mod locate;
mod matrix;
mod meta;
mod safetensors;
mod source;
mod tensor;

pub use block::{Block, Unwritable};
pub use checkpoint::{Checkpoint, Files, Reader};
pub use dtype::{DType, Opaque};
pub use error::{Error, FileName, Result};
pub use format::{Format, Global, PLANES, Plane};
pub use gguf::{NewTensor, TensorWriter, is_companion, write_gguf, write_gguf_hole, write_gguf_to};
pub use matrix::MatrixInfo;
pub use meta::{Array, Container, Hf, Kind, Meta, ToMeta, Value};
pub use safetensors::{write_safetensors, write_safetensors_hole, write_safetensors_to};
pub use source::{FileIds, FileStamp, Source, read_once};
pub use tensor::{ByteRange, Dims, FileId, TensorInfo};
