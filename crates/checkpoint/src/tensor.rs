//! Where a tensor is and what it looks like.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{DType, Error, Result};

/// Sizes of the dimensions, slowest first: `[out, in]`, `[experts, out, in]`. Empty for a scalar.
pub type Dims = SmallVec<[u64; 4]>;

/// One of the files of a checkpoint, in the order they were opened.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u32);

/// A run of bytes of one file. Ranges that come from a [`TensorInfo`] were checked against the file's size when it was opened.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ByteRange {
    /// Which file.
    pub file: FileId,
    /// First byte.
    pub off: u64,
    /// Number of bytes.
    pub len: u64,
}

/// A tensor's name, type, shape and place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: Arc<str>,
    /// How elements are stored.
    pub dtype: DType,
    /// Dimensions, slowest first. A row (the last dimension) is a whole number of blocks.
    pub shape: Dims,
    /// Where the data is.
    pub at: ByteRange,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elems(&self) -> u64 {
        self.shape.iter().product()
    }

    /// The bytes of `n` slices from `first` along the slowest dimension: rows of a matrix, experts of a stack.
    ///
    /// # Errors
    /// [`Error::Slice`] when the slices are not all inside the tensor or (in one dimension) are not whole blocks.
    pub fn slice0(&self, first: u64, n: u64) -> Result<ByteRange> {
        let bad = || Error::Slice { tensor: self.name.to_string(), shape: self.shape.to_vec(), first, n };
        let (have, inner) = self.shape.split_first().ok_or_else(bad)?;
        let end = first.checked_add(n).filter(|end| end <= have).ok_or_else(bad)?;
        // The products cannot overflow: they are at most the element count, which was checked when the file was opened.
        let inner: u64 = inner.iter().product();
        let off = self.dtype.row_bytes(first * inner).map_err(|_| bad())?;
        let end = self.dtype.row_bytes(end * inner).map_err(|_| bad())?;
        Ok(ByteRange { file: self.at.file, off: self.at.off + off, len: end - off })
    }
}

/// Elements and bytes of a shape (slowest first), with checked arithmetic; the reason if it cannot be.
pub(crate) fn measure(dtype: DType, shape: &[u64]) -> Result<u64, String> {
    let elems = shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d)).filter(|n| *n <= i64::MAX as u64);
    let row = shape.last().copied().unwrap_or(1);
    if !row.is_multiple_of(dtype.elems() as u64) {
        return Err(format!("rows of {row} elements are not whole {dtype} blocks of {}", dtype.elems()));
    }
    elems
        .and_then(|n| dtype.row_bytes(n).ok())
        .filter(|n| *n <= i64::MAX as u64)
        .ok_or_else(|| format!("shape {shape:?} of {dtype} is larger than any file"))
}
