//! Causal attention: what both row classes share, and how much scratch they take.

use super::pages::Pages;
use super::{few, many};
use crate::cpu::Cx;
use crate::cpu::lanes::Lanes;
use crate::cpu::ptr::Ptr;
use crate::cpu::span::{Span, vector, vector_mut};
use crate::device::Caps;
use crate::error::Result;
use crate::op::{RowClass, Rows, StreamView};
use crate::view::{Buf, View};

/// Keys of a tile. Tiles are aligned to positions, so a row meets its keys in the same order in any company.
pub const TILE: usize = 64;

/// The operands.
#[derive(Copy, Clone)]
pub struct Attention {
    pub out: Span<f32>,
    pub q: Span<f32>,
    pub pages: Pages,
    pub scale: f32,
    pub window: Option<usize>,
    pub since: usize,
    pub sinks: Option<Ptr<f32>>,
    pub scratch: Ptr<f32>,
}

/// What a row looks at: its sequence and positions `first ..= last`.
#[derive(Copy, Clone, Debug)]
pub struct Sight {
    pub seq: usize,
    pub first: usize,
    pub last: usize,
}

impl Attention {
    /// Width of a head.
    pub fn d(&self) -> usize {
        self.q.cols
    }
    /// Query heads of a key head.
    pub fn group(&self) -> usize {
        self.q.heads / self.pages.heads
    }
    pub fn sight(&self, row: usize) -> Option<Sight> {
        let (seq, last) = self.pages.row(row)?;
        let first = self.window.map_or(0, |w| (last + 1).saturating_sub(w)).max(self.since.min(last));
        Some(Sight { seq, first, last })
    }
    /// Divides the weighted sum of values by the sum of weights, the sink's included, into the output of (`row`, `head`).
    ///
    /// # Safety
    /// `acc` has `d` floats; nobody else writes this output.
    #[inline(always)]
    pub unsafe fn finish<L: Lanes>(&self, row: usize, head: usize, max: f32, sum: f32, acc: *const f32) {
        // SAFETY: `heads` sinks.
        let sink = self.sinks.map(|s| unsafe { *s.raw().add(head) });
        let m = sink.map_or(max, |s| s.max(max));
        let own = exp1::<L>(max - m);
        let total = sum * own + sink.map_or(0.0, |s| exp1::<L>(s - m));
        let (by, out, d) = (L::splat(own / total), self.out.at(row, head), self.d());
        let mut i = 0;
        while i < d {
            // SAFETY: d columns of a checked view.
            unsafe { L::get(acc.add(i), d - i).mul(by).put(out.add(i), d - i) };
            i += L::N;
        }
    }
}

/// `e^x` of one number, the same bits as in a vector.
#[inline(always)]
pub fn exp1<L: Lanes>(x: f32) -> f32 {
    L::splat(x).exp().first()
}

fn scratch_floats(q: &View, st: &StreamView, rows: &Rows, threads: u64) -> u64 {
    match rows.class {
        RowClass::Few => few::floats(q, st, rows),
        RowClass::Many => many::floats(q, st) * threads,
    }
}

/// Bytes of scratch.
pub fn scratch(q: &View, st: &StreamView, rows: &Rows, caps: &Caps) -> u64 {
    scratch_floats(q, st, rows, caps.threads as u64) * 4
}

#[expect(clippy::too_many_arguments, reason = "the op's operands")]
pub fn attention(
    cx: &Cx,
    out: &View,
    q: &View,
    st: &StreamView,
    rows: &Rows,
    scale: f32,
    (window, since): (Option<u32>, u32),
    sinks: Option<&Buf>,
) -> Result<()> {
    let floats = scratch_floats(q, st, rows, cx.pool.width() as u64);
    let a = Attention {
        out: Span::floats(cx.mem, out)?,
        q: Span::floats(cx.mem, q)?,
        pages: Pages::new(cx.mem, st, rows)?,
        scale,
        window: window.map(|w| w.max(1) as usize),
        since: since as usize,
        sinks: sinks.map(|s| vector(cx.mem, s, q.heads as usize)).transpose()?,
        scratch: vector_mut(cx.mem, &cx.scratch, floats as usize)?,
    };
    match rows.class {
        RowClass::Few => few::attention(cx, a, st.fmt, few::parts(st, rows) as usize),
        RowClass::Many => many::attention(cx, a, st.fmt, many::floats(q, st) as usize),
    }
}
