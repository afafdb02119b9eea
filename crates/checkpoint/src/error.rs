//! What can go wrong with a checkpoint. Every message names the file, the key or the tensor, and what was expected.

use crate::{DType, Unwritable};

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that opening, reading, decoding or writing a checkpoint can report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A row of `k` elements cannot be stored in this type, because it is not a whole number of blocks or because its size overflows.
    #[error(
        "a row of {k} elements does not fit {dtype}: it must be a multiple of {elems} and its size must fit 64 bits"
    )]
    Row {
        /// Storage type.
        dtype: DType,
        /// Elements of the row.
        k: u64,
        /// Elements of one block.
        elems: usize,
    },
    /// A decoder or encoder was given slices that do not belong together.
    #[error("{dtype}: {elems} elements take {want} bytes, but {have} were given")]
    Length {
        /// Storage type.
        dtype: DType,
        /// Elements on the f32 side.
        elems: usize,
        /// Bytes that this many elements take.
        want: u64,
        /// Bytes given.
        have: usize,
    },
    /// The type is known by name and size, but there is no decoder for it.
    #[error("weights of type {dtype} are not supported: use a file quantised to one of F32, F16, BF16, {supported}", supported = crate::block::NAMES)]
    Undecodable {
        /// Storage type.
        dtype: DType,
    },
    /// The values cannot be written in this type.
    #[error(transparent)]
    Unwritable(#[from] Unwritable),
}
