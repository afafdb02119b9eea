//! GGUF versions 2 and 3 (specification: ggml's `docs/gguf.md`).
//!
//! Everything in a file is doubted: arithmetic is checked, counts are compared with the bytes that are left before anything is allocated for them, duplicate
//! keys and tensors, odd alignments, overlapping tensors and data beyond the end are refused. Types that are known but not decoded are listed (see
//! [`crate::Opaque`]) and refused by name when used; ids that are not known at all are refused when the file is opened, since their size is not known.

mod beside;
mod cursor;
mod header;
mod split;
mod types;
mod write;

pub use beside::is_companion;
pub(crate) use beside::{Set, vision, with_predictor};
pub(crate) use header::parse;
pub(crate) use split::{SplitName, open_set};
pub use write::{NewTensor, TensorWriter, write_gguf, write_gguf_hole, write_gguf_to};
pub(crate) use write::{Plan, atomically, write_error};

/// Alignment of tensor data when the file does not say.
pub(crate) const ALIGNMENT: u64 = 32;
/// Alignments above this are refused; real files use 32 to 4096.
pub(crate) const MAX_ALIGNMENT: u64 = 1 << 20;

/// Why an alignment cannot be used.
pub(crate) fn check_alignment(a: u64) -> Result<u64, String> {
    if a.is_power_of_two() && a <= MAX_ALIGNMENT {
        Ok(a)
    } else {
        Err(format!("is {a}, but must be a power of two from 1 to {MAX_ALIGNMENT}"))
    }
}
