//! Views and vectors as addresses, and rows shared out to threads.

use super::Cx;
use super::ptr::Ptr;
use crate::error::{Error, Result};
use crate::host::HostMemory;
use crate::view::{Buf, View};
use std::ops::Range;

/// A checked view as an address. Copies of it may be held by all threads of a job.
#[derive(Copy, Clone)]
pub struct Span<T> {
    base: Ptr<T>,
    pub rows: usize,
    pub heads: usize,
    pub cols: usize,
    stride: [usize; 2],
}

impl<T: Copy> Span<T> {
    fn new(base: *mut T, v: &View) -> Result<Self> {
        let [row, head] = v.stride.map(|s| s as usize);
        let (rows, heads, cols) = (v.rows as usize, v.heads as usize, v.cols as usize);
        let s = Span { base: Ptr::new(base), rows, heads, cols, stride: [row, head] };
        if base.is_aligned() { Ok(s) } else { Err(Error::BadBuf) }
    }
    /// Address of the first column of (`row`, `head`); inside the view for rows and heads inside it.
    pub fn at(&self, row: usize, head: usize) -> *mut T {
        self.base.raw().wrapping_add(row * self.stride[0] + head * self.stride[1])
    }
    /// Elements from row to row.
    pub fn pitch(&self) -> usize {
        self.stride[0]
    }
    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.heads * self.cols
    }
}

impl Span<f32> {
    pub fn floats(mem: &HostMemory, v: &View) -> Result<Self> {
        Span::new(mem.f32(v)?, v)
    }
}

impl Span<i32> {
    pub fn ints(mem: &HostMemory, v: &View) -> Result<Self> {
        Span::new(mem.i32(v)?, v)
    }
    /// Column `col` of `row`, `None` outside the view.
    pub fn get(&self, row: usize, col: usize) -> Option<i32> {
        // SAFETY: inside a checked view, which no kernel writes while it is an input.
        (row < self.rows && col < self.cols).then(|| unsafe { *self.at(row, 0).add(col) })
    }
}

/// Address of `n` floats that are only read.
pub fn vector(mem: &HostMemory, b: &Buf, n: usize) -> Result<Ptr<f32>> {
    let p: *const f32 = mem.ptr(b)?.cast();
    if b.bytes() >= n as u64 * 4 && p.is_aligned() { Ok(Ptr::of(p)) } else { Err(Error::BadBuf) }
}

/// Address of `n` floats of state.
pub fn vector_mut(mem: &HostMemory, b: &Buf, n: usize) -> Result<Ptr<f32>> {
    let p: *mut f32 = mem.ptr_mut(b)?.cast();
    if b.bytes() >= n as u64 * 4 && p.is_aligned() { Ok(Ptr::new(p)) } else { Err(Error::BadBuf) }
}

/// Below this a job is over before another thread has woken up.
const ALONE_NS: usize = 20_000;
/// A task shorter than this costs more to hand out than to run.
const TASK_NS: usize = 4_000;

impl Cx<'_> {
    /// Runs `f` on ranges that cover `0 .. n`, on the calling thread where all of it is short. `ns` is a guess of what
    /// one item costs; it decides who computes what, never what is computed.
    pub fn share(&self, n: usize, ns: usize, f: impl Fn(Range<usize>) + Sync) -> Result<()> {
        let all = n.saturating_mul(ns);
        let width = self.pool.width();
        if width == 1 || n <= 1 || all < ALONE_NS {
            return self.pool.run_on(1, n.min(1), &|_, _| f(0..n));
        }
        let tasks = n.min(width * 8).min(all / TASK_NS).max(1);
        self.pool.run(tasks, &|t| f(t * n / tasks..(t + 1) * n / tasks))
    }
    /// Runs `f(worker, item)` for `0 .. n`, one item at a time, on the calling thread where all of it is short.
    pub fn each(&self, n: usize, ns: usize, f: impl Fn(usize, usize) + Sync) -> Result<()> {
        let width = if n.saturating_mul(ns) < ALONE_NS { 1 } else { self.pool.width() };
        self.pool.run_on(width, n, &f)
    }
}
