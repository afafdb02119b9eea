//! From views and buffers to kernel arguments and launches.

use super::args;
use super::driver::{Kernel, Ptr};
use super::kernels::{aux, number, planes};
use super::{Cuda, Result};
use crate::error::Error;
use crate::op;
use crate::view::{Buf, Mat, MatSet, View};
use memory::KvFormat;

/// Threads of kernels that have a thread per element.
const EACH: u32 = 256;

/// Blocks of `each` that cover `n`.
pub fn blocks(n: u64, each: u64) -> u32 {
    n.div_ceil(each).min(u32::MAX as u64) as u32
}

impl Cuda {
    /// Enqueues a kernel, unless there is nothing to do.
    pub(super) fn launch<A>(&self, k: Kernel, grid: [u32; 3], block: u32, shared: u32, a: &A) -> Result<()> {
        if grid.contains(&0) { Ok(()) } else { self.cx.launch(k, grid, block, shared, a) }
    }
    /// A thread per item.
    pub(super) fn each<A>(&self, name: &str, items: u64, a: &A) -> Result<()> {
        self.launch(self.kernels.get(name)?, [blocks(items, EACH as u64), 1, 1], EACH, 0, a)
    }
    /// A view as an argument.
    pub(super) fn view(&self, v: &View) -> Result<args::View> {
        let [s0, s1] = v.stride.map(|s| s as i32);
        let (rows, heads, cols) = (v.rows as i32, v.heads as i32, v.cols as i32);
        Ok(args::View { p: self.at(&v.buf)?, rows, heads, cols, s0, s1, pad: 0 })
    }
    /// A dense `[rows, heads, cols]` at an address.
    pub(super) fn dense(p: Ptr, rows: u64, heads: u32, cols: u32) -> args::View {
        let (heads, cols) = (heads as i32, cols as i32);
        args::View { p, rows: rows as i32, heads, cols, s0: heads * cols, s1: cols, pad: 0 }
    }
    /// An optional vector of floats, 0 where there is none. Kernels read words, so it must lie at one.
    pub(super) fn vector(&self, b: Option<&Buf>) -> Result<Ptr> {
        let p = b.map_or(Ok(0), |b| self.at(b))?;
        if p.is_multiple_of(4) { Ok(p) } else { Err(Error::BadBuf) }
    }
    pub(super) fn rows(&self, r: &op::Rows) -> Result<args::Rows> {
        Ok(args::Rows {
            pos: self.view(&r.pos)?,
            seq_of: self.view(&r.seq_of)?,
            page_table: self.view(&r.page_table)?,
            seq_slot: self.view(&r.seq_slot)?,
            rec_from: self.view(&r.rec_from)?,
            rec_to: self.view(&r.rec_to)?,
            n: r.n as i32,
            seqs: r.seqs as i32,
        })
    }
    pub(super) fn mat(&self, m: &Mat) -> Result<args::Mat> {
        let mut p = [0; 3];
        for (p, i) in p.iter_mut().zip(planes(&m.fmt)) {
            *p = i.and_then(|i| m.planes[i].as_ref()).map_or(Ok(0), |b| self.at(b))?;
        }
        // Codes are read sixteen bytes at a time, floats one by one.
        let float = matches!(number(&m.fmt), Some(0..=2));
        let width = if float { crate::op::row_bytes(m).unwrap_or(0) / m.k.max(1) as u64 } else { 16 };
        if !p[0].is_multiple_of(width.max(1)) {
            return Err(Error::BadBuf);
        }
        let (n, k, step) = (m.n as i32, m.k as i32, m.row_step as i32);
        Ok(args::Mat { q: p[0], h: p[1], s: p[2], n, k, step, aux: aux(&m.fmt) })
    }
    pub(super) fn set(&self, s: &MatSet) -> Result<args::MatSet> {
        let step = planes(&s.first.fmt).map(|i| i.map_or(0, |i| s.step[i]));
        Ok(args::MatSet { first: self.mat(&s.first)?, step, slots: s.slots as i32, pad: 0 })
    }
    pub(super) fn stream(&self, st: &op::StreamView) -> Result<args::Stream> {
        let fmt = match st.fmt {
            KvFormat::F32 => 0,
            KvFormat::Bf16 => 1,
            KvFormat::Q8 => 2,
            KvFormat::Tq4 => 3,
        };
        if st.own.is_some() || st.sink.is_some() {
            return Err(Error::NoKernel { op: "attention", fmt: "pages beside a history".into() });
        }
        let (heads, d, ring) = (st.heads as i32, st.d as i32, st.ring as i32);
        let layer = st.layer as i32;
        Ok(args::Stream { p: self.at(&st.buf)?, page_bytes: st.page_bytes, fmt, heads, d, ring, layer, pad: 0 })
    }
}
