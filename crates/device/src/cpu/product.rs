//! Activation rows times tiles of a matrix: what linear layers and experts share. Formats are behind [`MatKernel`].

use super::Cx;
use super::mat::quant::row_bytes as quant_bytes;
use super::mat::{self, MatKernel, Operand, Side, TILE, Weights};
use super::ptr::Ptr;
use crate::error::{Error, Result};
use crate::op;
use crate::view::{Mat, View};
use std::ops::Range;

/// Most activation rows of one kernel call.
pub const BLOCK: usize = 128;
/// Rows for which no room for [`BLOCK`] of them is made: clearing it would be a twentieth of the time of one row.
const FEW: usize = 4;
/// Bytes of activations that one block may have, to stay in a core's own cache while weights pass by.
const BLOCK_BYTES: usize = 512 << 10;
/// Multiplications below which waking threads costs more than it gains.
pub const SMALL: usize = 1 << 15;

/// A matrix in memory and how to multiply with it.
#[derive(Copy, Clone)]
pub struct Matrix {
    kernel: MatKernel,
    base: Ptr<u8>,
    row: usize,
    side: Side,
    pub n: usize,
    pub k: usize,
}

impl Matrix {
    /// # Errors
    /// [`Error::NoKernel`] naming `op`, [`Error::BadBuf`].
    pub fn new(cx: &Cx, op: &'static str, m: &Mat) -> Result<Self> {
        let none = || Error::NoKernel { op, fmt: m.fmt.to_string() };
        let kernel = mat::pick(&m.fmt, m.layout, cx.isa).ok_or_else(none)?;
        let row = op::row_stride(m).ok_or_else(none)?;
        let all = op::extents(m).and_then(|e| e[0]).ok_or_else(none)?;
        // Slots of a set share the length of the whole: only the matrix itself is looked up.
        let bytes = m.planes[0].ok_or(Error::BadBuf)?.slice(0, all).ok_or(Error::BadBuf)?;
        let base = Ptr::of(cx.mem.ptr(&bytes)?);
        let side = Side::new(cx.mem, op, m)?;
        Ok(Matrix { kernel, base, row: row as usize, side, n: m.n as usize, k: m.k as usize })
    }
    /// Tiles of its rows.
    pub fn tiles(&self) -> usize {
        self.n.div_ceil(TILE)
    }
    /// Multiplies rows `0 .. rows` of `x` (row `i` is `x.row(of(i))`) with the given tiles; `put(i, column, values)`
    /// takes a row's results, at most [`TILE`] at a time.
    ///
    /// # Safety
    /// `x` holds rows of `self.k` elements at all `of(i)`, and nobody writes them meanwhile.
    pub unsafe fn product(
        &self,
        x: &Acts,
        rows: usize,
        of: impl Fn(usize) -> usize,
        tiles: Range<usize>,
        put: impl FnMut(usize, usize, &[f32]),
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            if rows <= FEW {
                self.in_blocks::<FEW>(x, rows, of, tiles, put)
            } else {
                self.in_blocks::<BLOCK>(x, rows, of, tiles, put)
            }
        }
    }
    /// [`product`](Self::product) with at most `B` rows in a kernel call.
    ///
    /// # Safety
    /// As there.
    #[inline]
    unsafe fn in_blocks<const B: usize>(
        &self,
        x: &Acts,
        rows: usize,
        of: impl Fn(usize) -> usize,
        tiles: Range<usize>,
        mut put: impl FnMut(usize, usize, &[f32]),
    ) {
        let from = x.of(self.kernel.operand);
        let block = (BLOCK_BYTES / from.stride.max(1)).clamp(8, BLOCK).min(B);
        let mut acc = [[0.0; TILE]; B];
        let mut x = [std::ptr::null(); B];
        for first in (0..rows).step_by(block) {
            let here = block.min(rows - first);
            x[..here].iter_mut().enumerate().for_each(|(i, p)| *p = from.row(of(first + i)));
            for tile in tiles.clone() {
                let (column, base) = (tile * TILE, self.base.raw().wrapping_add(tile * TILE * self.row));
                let n = TILE.min(self.n - column);
                let w = Weights { base, row: self.row, n, k: self.k, side: self.side.from(column) };
                // SAFETY: `pick` gave a kernel of an available instruction set; the matrix holds rows
                // `column .. column + n`; the activations are the caller's promise, in the form the kernel asks for.
                unsafe { (self.kernel.tile)(&w, &x[..here], &mut acc[..here]) }
                acc[..here].iter().enumerate().for_each(|(i, y)| put(first + i, column, &y[..n]));
            }
        }
    }
}

/// Rows of activations in one form.
#[derive(Copy, Clone)]
struct Form {
    base: Ptr<u8>,
    stride: usize,
}

impl Form {
    fn row(&self, i: usize) -> *const u8 {
        self.base.raw().wrapping_add(i * self.stride)
    }
}

/// Rows of activations in the forms that kernels ask for.
pub struct Acts {
    plain: Form,
    quantised: Option<Form>,
}

/// Scratch bytes of [`Acts`] for `rows` rows of `k` elements that meet these matrices.
pub fn acts_bytes(rows: u64, k: u32, mats: &[&Mat]) -> u64 {
    let quantised = mats.iter().any(|m| mat::operand(&m.fmt) == Some(Operand::Q15));
    if quantised { rows * quant_bytes(k as usize) as u64 } else { 0 }
}

impl Acts {
    /// The rows of `x`, of which `of(0 .. rows)` are needed, for products with these matrices. Takes its bytes
    /// ([`acts_bytes`] of all rows of `x`) from `scratch`.
    ///
    /// # Errors
    /// [`Error::BadBuf`], [`Error::Panicked`].
    pub fn new(
        cx: &Cx,
        x: &View,
        mats: &[&Matrix],
        scratch: &mut Scratch,
        rows: usize,
        of: impl Fn(usize) -> usize + Sync,
    ) -> Result<Self> {
        let base = cx.f32(x)?;
        let (k, step) = (x.cols as usize, x.stride[0] as usize);
        let plain = Form { base: Ptr::new(base.raw().cast()), stride: step * 4 };
        if mats.iter().all(|m| m.kernel.operand == Operand::F32) {
            return Ok(Acts { plain, quantised: None });
        }
        let stride = quant_bytes(k);
        let to = scratch.take(x.rows as usize * stride)?;
        let quantise = mat::quantiser(cx.isa);
        let each = |i: usize| {
            let row = of(i);
            // SAFETY: rows of a checked view; every needed row is named once, so each task writes a row of its own. The
            // instruction set is available, and k is whole groups because a block format has rows of k elements.
            unsafe { quantise(base.slice(row * step, k), to.slice_mut(row * stride, stride)) }
        };
        let width = if rows * k < SMALL { 1 } else { cx.pool.width() };
        // Several rows a task: one is often less work than taking it.
        let per = (SMALL / 4 / k.max(1)).max(1);
        cx.pool.run_on(width, rows.div_ceil(per), &|_, t| (t * per..rows.min((t + 1) * per)).for_each(&each))?;
        Ok(Acts { plain, quantised: Some(Form { base: to, stride }) })
    }
    fn of(&self, o: Operand) -> Form {
        match (o, self.quantised) {
            (Operand::Q15, Some(q)) => q,
            _ => self.plain,
        }
    }
}

/// An op's scratch, taken piece by piece.
pub struct Scratch {
    at: Ptr<u8>,
    left: usize,
}

impl Scratch {
    /// # Errors
    /// [`Error::BadBuf`].
    pub fn new(cx: &Cx) -> Result<Self> {
        Ok(Scratch { at: Ptr::new(cx.mem.ptr_mut(&cx.scratch)?), left: cx.scratch.bytes() as usize })
    }
    fn take(&mut self, bytes: usize) -> Result<Ptr<u8>> {
        let at = self.at;
        self.left = self.left.checked_sub(bytes).ok_or(Error::BadBuf)?;
        self.at = Ptr::new(at.raw().wrapping_add(bytes));
        Ok(at)
    }
    /// Whether every byte was used: the scratch function asked for exactly what the op takes.
    pub fn used_up(&self) -> bool {
        self.left == 0
    }
}

/// How many tiles a thread takes at a time: few enough for threads to even out, enough to keep activations in cache.
pub fn tiles_per_task(tiles: usize, threads: usize) -> usize {
    (tiles / (threads * 8)).clamp(1, 8)
}
