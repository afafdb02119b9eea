//! Where parameters lie on a device that wants formats split: whole tensors in one allocation, matrices as rows of them.

use crate::bound::{Bound, Data, Role};
use checkpoint::{ByteRange, Format};
use device::{Layout, split};
use std::collections::HashSet;

/// Bytes that each parameter takes when it is loaded in these layouts: those of its file, and what keeps planes aligned,
/// which the first parameter of a tensor pays.
pub fn placed_bytes(bounds: &[Bound], layout: impl Fn(&Format) -> Layout) -> Vec<u64> {
    let mut seen = HashSet::new();
    let mut padding = |b: &Bound| {
        if b.role == Role::Vector || layout(&b.format()) == Layout::File {
            return 0;
        }
        let rows = match &b.data {
            Data::Whole { range, .. } if !seen.insert(*range) => return 0,
            data => stored_rows(b, data),
        };
        let placed = split::place(&b.format(), rows, b.k).map_or(0, |(_, bytes)| bytes);
        placed.saturating_sub(rows * row_bytes(b))
    };
    bounds.iter().map(|b| b.loaded_bytes() + padding(b)).collect()
}

/// Bytes of a stored row of a format with one plane.
pub fn row_bytes(b: &Bound) -> u64 {
    b.format().bytes(1, b.k.into()).max(1)
}

/// Rows of the tensors that a parameter lies in.
pub fn stored_rows(b: &Bound, data: &Data) -> u64 {
    let bytes = |r: &ByteRange| r.len;
    let all = match data {
        Data::Whole { range, .. } | Data::Turned { range, .. } => range.len,
        Data::Each(ranges) => ranges.iter().map(bytes).sum(),
        Data::Values(_) => 0,
    };
    all / row_bytes(b)
}
