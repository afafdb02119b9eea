//! Matrices that are stored over several planes, as sources.

use super::{encode, rearrange};
use anyhow::{Result, bail};
use checkpoint::{ByteRange, Checkpoint, DType, Format, MatrixInfo, PLANES};
use model::want::Export;
use weights::{Bound, Data, Role};

/// Matrices of one format, one behind the other.
#[derive(Clone, Debug)]
pub struct Source {
    fmt: Format,
    /// Where each matrix's planes begin.
    matrices: Vec<[Option<ByteRange>; PLANES]>,
    /// Rows of one matrix, stored rows from one to the next, elements of a row.
    rows: u64,
    row_step: u64,
    k: usize,
}

impl Source {
    /// Of a parameter, `None` where it has one plane.
    ///
    /// # Errors
    /// A parameter without bytes in a file.
    pub fn of(b: &Bound) -> Result<Option<Self>> {
        let Some(side) = &b.side else { return Ok(None) };
        let count = if let Role::Experts { count, .. } = b.role { count as usize } else { 1 };
        let mut matrices = vec![[None; PLANES]; count];
        for i in 0..PLANES {
            let Some(data) = b.plane(i) else { continue };
            for (e, m) in matrices.iter_mut().enumerate() {
                m[i] = Some(match data {
                    Data::Whole { range, first, step } => behind(*range, first + step * e as u64),
                    Data::Each(ranges) if e < ranges.len() => ranges[e],
                    _ => bail!("{} has no bytes of its own", b.name),
                });
            }
        }
        let (rows, row_step, k) = (b.n.into(), side.row_step.into(), b.k as usize);
        Ok(Some(Source { fmt: side.fmt, matrices, rows, row_step, k }))
    }

    /// Of a logical tensor.
    pub fn found(m: &MatrixInfo) -> Self {
        let one = |e: u64| std::array::from_fn(|i| m.planes[i].as_ref().map(|t| behind(t.at, e * m.step(i))));
        let matrices = (0..m.count()).map(one).collect();
        Source { fmt: m.format, matrices, rows: m.n(), row_step: 1, k: m.k() as usize }
    }

    /// Streams all rows in another type, a few MiB at a time.
    ///
    /// # Errors
    /// Those of the file, and values that the type cannot hold.
    pub fn write(
        &self,
        ck: &Checkpoint,
        to: DType,
        export: Export,
        put: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut new = Vec::new();
        let batch = ((2 << 20) / self.k.max(1) as u64).max(1);
        let in_order = self.row_step == 1 && !matches!(export, Export::TileRows { .. } | Export::AdjacentRope { .. });
        for planes in &self.matrices {
            for first in (0..self.rows).step_by(batch as usize) {
                let n = batch.min(self.rows - first);
                let mut old = vec![0.0; n as usize * self.k];
                if in_order {
                    ck.read_rows(self.fmt, *planes, first, self.k, &mut old)?;
                } else {
                    for (i, row) in (first..).zip(old.chunks_exact_mut(self.k.max(1))) {
                        let at = rearrange::row_of(export, i, self.rows) * self.row_step;
                        ck.read_rows(self.fmt, *planes, at, self.k, row)?;
                    }
                }
                let mut values = Vec::with_capacity(old.len());
                for line in old.chunks_exact(self.k.max(1)) {
                    rearrange::cols(export, line, &mut new);
                    values.extend_from_slice(&new);
                }
                put(&encode::rows(to, self.k, &values)?)?;
            }
        }
        Ok(())
    }
}

fn behind(r: ByteRange, by: u64) -> ByteRange {
    ByteRange { off: r.off + by, len: r.len.saturating_sub(by), ..r }
}
