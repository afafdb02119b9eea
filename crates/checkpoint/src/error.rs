//! What can go wrong with a checkpoint. Every message names the file, the key or the tensor, and what was expected.

use std::io;
use std::sync::Arc;

use crate::{DType, Format, Unwritable};

/// A file's path (or what stands for it when the bytes are in memory), as messages show it.
pub type FileName = Arc<str>;

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
    /// A matrix over several planes cannot be decoded or encoded.
    #[error("{format}: {why}")]
    Plane {
        /// Format.
        format: Format,
        /// What does not fit.
        why: String,
    },
    /// The tensors of a matrix do not fit each other.
    #[error("{0}")]
    Matrix(String),
    /// The values cannot be written in this type.
    #[error(transparent)]
    Unwritable(#[from] Unwritable),
    /// The operating system refused.
    #[error("{file}: cannot {action}: {source}")]
    Io {
        /// File or directory.
        file: FileName,
        /// What was tried, e.g. "open".
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The path holds something else than a checkpoint.
    #[error("{file}: {what}")]
    NotACheckpoint {
        /// File or directory.
        file: FileName,
        /// What it seems to be, and what to do.
        what: String,
    },
    /// The file ends inside its header.
    #[error(
        "{file}: it is cut short: up to byte {need} is needed for {at}, and the file has {have}; download it again"
    )]
    Truncated {
        /// File.
        file: FileName,
        /// "GGUF" or "safetensors".
        container: &'static str,
        /// What was being read.
        at: String,
        /// Bytes needed so far.
        need: u64,
        /// Bytes there are.
        have: u64,
    },
    /// A tensor's data is not wholly in the file.
    #[error(
        "{file}: it is cut short: up to byte {want} is needed for tensor {tensor:?}, and the file has {have}; download it again"
    )]
    DataCut {
        /// File.
        file: FileName,
        /// Tensor.
        tensor: String,
        /// End of the tensor's data.
        want: u64,
        /// Bytes there are.
        have: u64,
    },
    /// A file became shorter after it was opened, or a range reaches beyond it.
    #[error(
        "{file}: reading {want} bytes at {off} gave only {have}: the file became shorter since it was opened; put it back whole and start again"
    )]
    Shrunk {
        /// File.
        file: FileName,
        /// Offset of the read.
        off: u64,
        /// Bytes asked for.
        want: u64,
        /// Bytes there were.
        have: u64,
    },
    /// The header as a whole makes no sense.
    #[error("{file}: {why}")]
    Header {
        /// File.
        file: FileName,
        /// What is wrong.
        why: String,
    },
    /// A metadata key makes no sense.
    #[error("{file}: key {key:?}: {why}")]
    Key {
        /// File.
        file: FileName,
        /// Key.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// A metadata value has another type than needed.
    #[error("{file}: key {key:?} is {have}, but {want} is needed")]
    WrongType {
        /// File.
        file: FileName,
        /// Key.
        key: String,
        /// Type needed.
        want: &'static str,
        /// Type stored.
        have: String,
    },
    /// Metadata that is needed is not there.
    #[error("{file}: missing {}: the file is incomplete or was converted for another program", .keys.join(", "))]
    MissingKeys {
        /// File.
        file: FileName,
        /// All the keys that are missing.
        keys: Vec<String>,
    },
    /// A tensor's description makes no sense.
    #[error("{file}: tensor {tensor:?}: {why}")]
    Tensor {
        /// File.
        file: FileName,
        /// Tensor.
        tensor: String,
        /// What is wrong.
        why: String,
    },
    /// Parts of a split checkpoint are not there.
    #[error("{file}: parts are missing: {}", .missing.join(", "))]
    MissingParts {
        /// The file that says how many parts there are.
        file: FileName,
        /// Names of the files that were not found.
        missing: Vec<String>,
    },
    /// A writer was given more or fewer bytes than it planned for a tensor.
    #[error("{file}: tensor {tensor:?} takes {want} bytes, but {have} were written")]
    WrongSize {
        /// File being written.
        file: FileName,
        /// Tensor.
        tensor: String,
        /// Planned bytes.
        want: u64,
        /// Bytes given.
        have: u64,
    },
    /// Slices that are not inside a tensor.
    #[error("tensor {tensor:?} has shape {shape:?}: there are no {n} whole slices from {first}")]
    Slice {
        /// Tensor.
        tensor: String,
        /// Its dimensions, slowest first.
        shape: Vec<u64>,
        /// First slice asked for.
        first: u64,
        /// Number of slices asked for.
        n: u64,
    },
}
