//! Causal attention: what both row classes share, and how much scratch they take.

use super::pages::{PAGE, Pages};
use super::{few, many};
use crate::cpu::Cx;
use crate::cpu::lanes::Lanes;
use crate::cpu::ptr::Ptr;
use crate::cpu::span::{Span, vector, vector_mut};
use crate::device::Caps;
use crate::error::Result;
use crate::kv::Signs;
use crate::op::{RowClass, Rows, Side, StreamView};
use crate::view::{Buf, View};
use memory::KvFormat;
use std::ops::Range;

/// Keys of a tile. Tiles are aligned to positions, so a row meets its keys in the same order in any company.
pub const TILE: usize = 64;

/// The operands.
#[derive(Copy, Clone)]
pub struct Attention {
    pub out: Span<f32>,
    pub q: Span<f32>,
    pub pages: Pages,
    /// Pages in another format that rows read their own page from, and page 0.
    pub own: Option<Pages>,
    pub sink: Option<Pages>,
    /// What the signs of a rotated history follow from.
    pub layer: u32,
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

/// Where a row reads what it looks at: positions of page 0 beside the history, of the history, of its own page beside it.
#[derive(Clone, Debug)]
pub struct Sources {
    pub sink: Range<usize>,
    pub main: Range<usize>,
    pub own: Range<usize>,
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
    /// Whether any positions are read beside the history.
    pub fn beside(&self) -> bool {
        self.own.is_some() || self.sink.is_some()
    }
    pub fn sources(&self, s: &Sight) -> Sources {
        let (first, end) = (s.first, s.last + 1);
        let sink = if self.sink.is_some() { PAGE.clamp(first, end) } else { first };
        let own = if self.own.is_some() { (s.last / PAGE * PAGE).clamp(sink, end) } else { end };
        Sources { sink: first..sink, main: sink..own, own: own..end }
    }
    /// Signs of the keys (`plane` 0) or values (`plane` 1) of a key head.
    pub fn signs(&self, plane: u32, kv: usize) -> Signs {
        Signs::new(self.layer, plane, kv as u32)
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
    let pages = |side: Option<Side>| side.map(|s| Pages::new(cx.mem, &st.beside(&s), rows)).transpose();
    let a = Attention {
        out: Span::floats(cx.mem, out)?,
        q: Span::floats(cx.mem, q)?,
        pages: Pages::new(cx.mem, st, rows)?,
        own: pages(st.own)?,
        sink: pages(st.sink)?,
        layer: st.layer,
        scale,
        window: window.map(|w| w.max(1) as usize),
        since: since as usize,
        sinks: sinks.map(|s| vector(cx.mem, s, q.heads as usize)).transpose()?,
        scratch: vector_mut(cx.mem, &cx.scratch, floats as usize)?,
    };
    // Pages beside a history have one format; where there are none, their code is never reached.
    let side = st.own.or(st.sink).map_or(KvFormat::F32, |s| s.fmt);
    match rows.class {
        RowClass::Few => few::attention(cx, a, st.fmt, side, few::parts(st, rows) as usize),
        RowClass::Many => many::attention(cx, a, st.fmt, side, many::floats(q, st) as usize),
    }
}
