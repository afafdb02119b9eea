//! Tables that stay in the file: single rows are read and decoded when a step needs them.

use crate::bound::{Bound, Data};
use crate::error::{Error, Result};
use checkpoint::{ByteRange, Checkpoint, DType, Reader};
use std::sync::Arc;

/// Reads rows of one matrix.
#[derive(Clone, Debug)]
pub struct RowReader {
    file: Reader,
    name: Arc<str>,
    range: ByteRange,
    dtype: DType,
    rows: u32,
    cols: u32,
}

impl RowReader {
    /// A reader of a bound matrix.
    ///
    /// # Errors
    /// [`Error::Unusable`] for anything but one tensor, the checkpoint's for a range that is not its own.
    pub fn new(ck: &Checkpoint, b: &Bound) -> Result<Self> {
        let unusable = |what: &str| Error::Unusable { tensor: b.name.to_string(), what: what.into() };
        let Data::Whole { range, .. } = b.data else { return Err(unusable("rows are read of a single tensor only")) };
        if range.len < b.matrix_bytes() || b.matrix_bytes() == 0 {
            return Err(unusable("it has fewer bytes than its shape needs"));
        }
        let (file, name) = (ck.reader(range)?, b.name.clone());
        Ok(RowReader { file, name, range, dtype: b.dtype, rows: b.n, cols: b.k })
    }
    /// Columns of a row.
    pub fn cols(&self) -> u32 {
        self.cols
    }
    /// Decodes the rows `ids` into `out`, `f32[ids, cols]`. An id outside the table gives a row of zeros, as embeddings
    /// do.
    ///
    /// # Errors
    /// Those of the file, which may have become shorter; [`Error::Unusable`] for an `out` of another size.
    pub fn read(&self, ids: &[u32], out: &mut [f32]) -> Result<()> {
        let unusable = |what: String| Error::Unusable { tensor: self.name.to_string(), what };
        let cols = self.cols as usize;
        if out.len() != ids.len() * cols {
            return Err(unusable(format!("{} values for {} rows of {cols}", out.len(), ids.len())));
        }
        let bytes = self.dtype.row_bytes(self.cols as u64)?;
        let mut row = vec![0; bytes as usize];
        for (&id, out) in ids.iter().zip(out.chunks_exact_mut(cols.max(1))) {
            if id >= self.rows {
                out.fill(0.0);
                continue;
            }
            let at = ByteRange { off: self.range.off + id as u64 * bytes, len: bytes, ..self.range };
            self.file.read_at(at.off, &mut row)?;
            self.dtype.decode(&row, out)?;
        }
        Ok(())
    }
}
