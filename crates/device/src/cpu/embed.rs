//! Embedding rows: decoded one by one, whatever the format.

use super::Cx;
use super::product::SMALL;
use super::ptr::Ptr;
use crate::error::{Error, Result};
use crate::interleave::{self, ROWS};
use crate::op::extents;
use crate::view::{Layout, Mat, View};
use checkpoint::PLANES;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// `out[i] = scale * table[ids[i]]`, zeros for an id outside the table.
pub fn embed(cx: &Cx, out: &View, table: &Mat, ids: &View, scale: f32) -> Result<()> {
    let none = || Error::NoKernel { op: "embed", fmt: table.fmt.to_string() };
    let mut planes = [(Ptr::NULL, 0); PLANES];
    for (i, bytes) in extents(table).ok_or_else(none)?.into_iter().enumerate() {
        let Some(bytes) = bytes else { continue };
        let buf = table.planes[i].and_then(|b| b.slice(0, bytes)).ok_or(Error::BadBuf)?;
        planes[i] = (Ptr::of(cx.mem.ptr(&buf)?), bytes as usize);
    }
    let (to, stride, k) = (cx.f32(out)?, out.stride[0] as usize, table.k as usize);
    let (ids, id_stride) = (cx.i32(ids)?, ids.stride[0] as usize);
    let rows = out.rows as usize;
    let failed = AtomicBool::new(false);
    let width = if rows * k < SMALL { 1 } else { cx.pool.width() };
    cx.pool.run_on(width, rows, &|_, i| {
        // SAFETY: rows of checked views; nobody writes ids, and row i of `out` is this task's own.
        let (id, to) = unsafe { (ids.slice(i * id_stride, 1)[0], to.slice_mut(i * stride, k)) };
        match usize::try_from(id) {
            Ok(id) if id < table.n as usize => {
                let bytes = |i: usize| match planes[i] {
                    (_, 0) => &[][..],
                    // SAFETY: the plane's bytes, which nobody writes.
                    (from, len) => unsafe { from.slice(0, len) },
                };
                let row = id as u64 * table.row_step as u64;
                let decoded = match row_of_tile(table, bytes, id) {
                    Some(row) => table.fmt.decode_row(row.each_ref().map(|r| &r[..]), 0, to),
                    None => table.fmt.decode_row([bytes(0), bytes(1), bytes(2), bytes(3)], row, to),
                };
                if decoded.is_err() {
                    failed.store(true, Relaxed);
                }
                if scale != 1.0 {
                    to.iter_mut().for_each(|x| *x *= scale);
                }
            }
            _ => to.fill(0.0),
        }
    })?;
    if failed.into_inner() { Err(none()) } else { Ok(()) }
}

/// The parts of row `i` of an interleaved matrix as they are in the file; `None` for rows that lie so.
fn row_of_tile(m: &Mat, plane: impl Fn(usize) -> &'static [u8], i: usize) -> Option<[Vec<u8>; PLANES]> {
    let whole = m.n as usize / ROWS * ROWS;
    let parts = interleave::parts(&m.fmt).filter(|_| m.layout == Layout::Interleaved && i < whole)?;
    let cuts = m.fmt.planes(m.k.into()).ok()?;
    let mut rows = [const { Vec::new() }; PLANES];
    for (p, row) in rows.iter_mut().enumerate() {
        let (Some(part), Some(cut)) = (parts[p], cuts[p]) else { continue };
        *row = vec![0; cut.bytes as usize];
        let tile = plane(p).get(i / ROWS * ROWS * row.len()..)?.get(..ROWS * row.len())?;
        interleave::take_row(part, tile, i % ROWS, row);
    }
    Some(rows)
}
