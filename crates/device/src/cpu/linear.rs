//! Linear layers.

use super::Cx;
use super::product::{Acts, Matrix, SMALL, Scratch, acts_bytes, tiles_per_task};
use super::share::share_out;
use crate::error::Result;
use crate::view::{Buf, Mat, View};

/// Scratch bytes.
pub fn scratch(x: &View, w: &Mat) -> u64 {
    acts_bytes(x.rows as u64, x.cols, &[w])
}

/// `out = x w^T (+ bias)`, or `out += ...`. One arithmetic for both row classes: see [`super::mat`].
pub fn linear(cx: &Cx, out: &View, x: &View, w: &Mat, bias: Option<&Buf>, add: bool) -> Result<()> {
    let m = Matrix::new(cx, "linear", w)?;
    let rows = x.rows as usize;
    let mut scratch = Scratch::new(cx)?;
    let x = Acts::new(cx, x, &[&m], &mut scratch, rows, |i| i)?;
    debug_assert!(scratch.used_up());
    let (y, stride) = (cx.f32(out)?, out.stride[0] as usize);
    let bias = bias.map(|b| cx.floats(b)).transpose()?;
    let per = tiles_per_task(m.tiles(), cx.pool.width());
    let width = if rows * m.n * m.k < SMALL { 1 } else { cx.pool.width() };
    share_out(cx.pool, width, m.tiles(), per, &|tiles| {
        let put = |row: usize, column: usize, values: &[f32]| {
            // SAFETY: inside a checked view, and no other task has these columns.
            let y = unsafe { y.slice_mut(row * stride + column, values.len()) };
            for (i, (y, v)) in y.iter_mut().zip(values).enumerate() {
                // SAFETY: a checked bias has an element per column.
                let v = v + bias.map_or(0.0, |b| unsafe { b.raw().add(column + i).read_unaligned() });
                *y = if add { *y + v } else { v };
            }
        };
        // SAFETY: all rows of x are there, and nobody writes them: `out` is apart from `x`.
        unsafe { m.product(&x, rows, |i| i, tiles, put) }
    })
}
