//! Logical matrices: the tensors that together are one `[n, k]`, or a stack of them.
//!
//! Who wants a matrix asks for it by the name an unquantised checkpoint has for it. What is there under this and the related names says how it is stored;
//! what the tensors cannot say (bits and groups of MLX files, tiles of FP8) is in the configuration, resolved once as a [`Scheme`]. Modules that a
//! configuration leaves out of quantisation are those whose tensors are plain.

mod find;
mod scheme;

use std::collections::HashSet;
use std::sync::Arc;

use crate::{ByteRange, Checkpoint, Dims, Error, Format, PLANES, Result, TensorInfo};

pub(crate) use scheme::Scheme;

/// One logical matrix `[n, k]`, or a stack `[e, n, k]`, or any tensor without companions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MatrixInfo {
    /// The name it was asked for by.
    pub name: Arc<str>,
    /// How it is stored.
    pub format: Format,
    /// Logical dimensions, slowest first.
    pub shape: Dims,
    /// The tensor of each plane. Sizes were checked: a plane holds all rows of all matrices, or (plane 3) one number for the stack or for each matrix.
    pub planes: [Option<TensorInfo>; PLANES],
}

impl MatrixInfo {
    /// Matrices in the stack; 1 for a matrix.
    pub fn count(&self) -> u64 {
        self.shape.iter().rev().skip(2).product()
    }
    /// Rows of one matrix.
    pub fn n(&self) -> u64 {
        self.shape.iter().rev().nth(1).copied().unwrap_or(1)
    }
    /// Elements of a row.
    pub fn k(&self) -> u64 {
        self.shape.last().copied().unwrap_or(1)
    }
    /// Bytes of plane `i` from matrix to matrix of the stack: 0 where all share one number, or where there is no such plane.
    pub fn step(&self, i: usize) -> u64 {
        let Some(t) = &self.planes[i] else { return 0 };
        if i == 3 && t.at.len == 4 { 0 } else { t.at.len / self.count().max(1) }
    }
    /// Bytes over all planes.
    pub fn bytes(&self) -> u64 {
        self.planes.iter().flatten().map(|t| t.at.len).sum()
    }
}

impl Checkpoint {
    /// The matrix (or stack, or plain tensor) that goes by `name` in an unquantised checkpoint of the model, however it is stored here.
    ///
    /// # Errors
    /// [`Error::Tensor`] naming the tensor when its companions are missing or do not fit, or when it is in a scheme that is not supported.
    pub fn matrix(&self, name: &str) -> Result<Option<MatrixInfo>> {
        find::matrix(self, name)
    }

    /// Everything in the checkpoint as logical tensors, in the order of the data; a companion is part of its matrix. A matrix whose parts do not fit is listed
    /// as the tensors it has.
    pub fn matrices(&self) -> Vec<MatrixInfo> {
        let mut seen: HashSet<ByteRange> = HashSet::new();
        let mut out = Vec::new();
        let found: Vec<_> = self.tensors().map(|t| (t, self.matrix(&find::logical(&t.name)).ok().flatten())).collect();
        for m in found.iter().filter_map(|(_, m)| m.as_ref()).filter(|m| m.planes[1..].iter().any(Option::is_some)) {
            seen.extend(m.planes[1..].iter().flatten().map(|t| t.at));
        }
        for (t, m) in found {
            if seen.contains(&t.at) {
                continue;
            }
            let main = m.filter(|m| m.planes[0].as_ref().is_some_and(|p| p.name == t.name));
            out.push(main.unwrap_or_else(|| find::plain(t)));
        }
        out
    }

    /// Reads and decodes rows `first .. first + dst.len() / k` of a matrix whose planes begin at `planes`.
    ///
    /// # Errors
    /// [`Error::Plane`] when rows cannot be of `k` elements, [`Error::Undecodable`], and as [`Checkpoint::read_at`].
    pub fn read_rows(
        &self,
        format: Format,
        planes: [Option<ByteRange>; PLANES],
        first: u64,
        k: usize,
        dst: &mut [f32],
    ) -> Result<()> {
        let rows = (dst.len() / k.max(1)) as u64;
        let cuts = format.planes(k as u64).map_err(|why| Error::Plane { format, why })?;
        let mut bytes: [Vec<u8>; PLANES] = Default::default();
        // Rows are counted from one that begins a cut of every plane, so that what is read can be decoded as a matrix of its own.
        let align = cuts.iter().flatten().map(|c| u64::from(c.rows.max(1))).fold(1, lcm);
        let start = first / align * align;
        for (i, (range, cut)) in planes.iter().zip(cuts).enumerate() {
            let (Some(range), Some(cut)) = (range, cut) else { continue };
            let from = cut.at(start);
            let len = cut.total(first.saturating_add(rows) - start);
            if from.saturating_add(len) > range.len {
                let why = format!("rows up to {} are beyond the end of plane {i}", first.saturating_add(rows));
                return Err(Error::Plane { format, why });
            }
            bytes[i] = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
            self.read_at(ByteRange { file: range.file, off: range.off + from, len }, &mut bytes[i])?;
        }
        let parts: [&[u8]; PLANES] = std::array::from_fn(|i| &bytes[i][..]);
        for (row, dst) in (first - start..).zip(dst.chunks_exact_mut(k.max(1))) {
            format.decode_row(parts, row, dst)?;
        }
        Ok(())
    }
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}
