//! Embedding rows: decoded one by one, whatever the format.

use super::Cx;
use super::product::SMALL;
use super::ptr::Ptr;
use crate::error::{Error, Result};
use crate::op::{extent_bytes, row_bytes, row_stride};
use crate::view::{Mat, View};
use checkpoint::Format;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// `out[i] = scale * table[ids[i]]`, zeros for an id outside the table.
pub fn embed(cx: &Cx, out: &View, table: &Mat, ids: &View, scale: f32) -> Result<()> {
    let none = || Error::NoKernel { op: "embed", fmt: table.fmt.to_string() };
    let Format::Plain(dtype) = table.fmt else { return Err(none()) };
    let (row, step) = (row_bytes(table).ok_or_else(none)? as usize, row_stride(table).ok_or_else(none)? as usize);
    let all = extent_bytes(table).ok_or_else(none)?;
    let bytes = table.planes[0].ok_or(Error::BadBuf)?.slice(0, all).ok_or(Error::BadBuf)?;
    let from = Ptr::of(cx.mem.ptr(&bytes)?);
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
                // SAFETY: row `id` lies inside the table, which nobody writes.
                let codes = unsafe { from.slice(id * step, row) };
                if dtype.decode(codes, to).is_err() {
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
