//! Ops that treat every element by itself.

use crate::cpu::Cx;
use crate::cpu::lanes::{Lanes, Work, dispatch};
use crate::cpu::ptr::Ptr;
use crate::cpu::span::{Span, vector};
use crate::error::Result;
use crate::op::ActFn;
use crate::view::{Buf, Glu, View};
use std::ops::Range;

/// Columns of one item: a single long row is shared out too.
const PIECE: usize = 2048;

/// What becomes of an element.
trait Element: Copy + Sync {
    /// From an element of each operand.
    fn of<L: Lanes>(self, a: L, b: L) -> L;
}

/// `a * act(b)`.
#[derive(Copy, Clone)]
struct Gated(ActFn);
impl Element for Gated {
    #[inline(always)]
    fn of<L: Lanes>(self, a: L, b: L) -> L {
        a.mul(match self.0 {
            ActFn::Sigmoid => b.sigmoid(),
            ActFn::Silu => b.silu(),
        })
    }
}

/// `act(a) * b`.
#[derive(Copy, Clone)]
struct Unit(Glu);
impl Element for Unit {
    #[inline(always)]
    fn of<L: Lanes>(self, a: L, b: L) -> L {
        a.glu(self.0, b)
    }
}

/// `cap * tanh(a / cap)`.
#[derive(Copy, Clone)]
struct Capped(f32);
impl Element for Capped {
    #[inline(always)]
    fn of<L: Lanes>(self, a: L, _: L) -> L {
        let cap = L::splat(self.0);
        cap.mul(a.div(cap).tanh())
    }
}

/// `a + b`.
#[derive(Copy, Clone)]
struct Sum;
impl Element for Sum {
    #[inline(always)]
    fn of<L: Lanes>(self, a: L, b: L) -> L {
        a.add(b)
    }
}

struct Each<E> {
    e: E,
    out: Span<f32>,
    a: Span<f32>,
    b: Span<f32>,
    pieces: Range<usize>,
}

impl<E: Element> Work for Each<E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (heads, per_run) = (self.a.heads, self.a.cols.div_ceil(PIECE));
        // One column of b serves the whole run.
        let broadcast = self.b.cols == 1 && self.a.cols > 1;
        for i in self.pieces.clone() {
            let (run, first) = (i / per_run, i % per_run * PIECE);
            let (row, head) = (run / heads, run % heads);
            let (out, a, b) = (self.out.at(row, head), self.a.at(row, head), self.b.at(row, head));
            let end = self.a.cols.min(first + PIECE);
            let mut at = first;
            while at < end {
                // SAFETY: columns below `end` of checked views of one shape; pieces are disjoint. `out` may be an operand,
                // read before it is written.
                unsafe {
                    let y = if broadcast { L::splat(*b) } else { L::get(b.add(at), end - at) };
                    self.e.of(L::get(a.add(at), end - at), y).put(out.add(at), end - at);
                }
                at += L::N;
            }
        }
    }
}

fn each<E: Element>(cx: &Cx, e: E, ns_per_1024: usize, out: &View, a: &View, b: &View) -> Result<()> {
    let (out, a, b) = (Span::floats(cx.mem, out)?, Span::floats(cx.mem, a)?, Span::floats(cx.mem, b)?);
    let pieces = a.rows * a.heads * a.cols.div_ceil(PIECE);
    let ns = 2 + a.cols.min(PIECE) * ns_per_1024 / 1024;
    cx.share(pieces, ns, |pieces| dispatch(cx.isa, Each { e, out, a, b, pieces }))
}

pub fn gate(cx: &Cx, x: &View, g: &View, act: ActFn) -> Result<()> {
    each(cx, Gated(act), 400, x, x, g)
}

pub fn glu(cx: &Cx, out: &View, gate: &View, up: &View, glu: Glu) -> Result<()> {
    each(cx, Unit(glu), 400, out, gate, up)
}

pub fn add(cx: &Cx, x: &View, y: &View) -> Result<()> {
    each(cx, Sum, 100, x, x, y)
}

pub fn softcap(cx: &Cx, x: &View, cap: f32) -> Result<()> {
    each(cx, Capped(cap), 400, x, x, x)
}

struct Scaled {
    x: Span<f32>,
    by: Ptr<f32>,
    /// Whether `by` is one number.
    one: bool,
    runs: Range<usize>,
}

impl Work for Scaled {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let width = self.x.cols;
        for run in self.runs.clone() {
            let x = self.x.at(run / self.x.heads, run % self.x.heads);
            let mut at = 0;
            while at < width {
                // SAFETY: columns below the width of a checked view; runs are disjoint; `by` has one or `width` floats.
                unsafe {
                    let by =
                        if self.one { L::splat(*self.by.raw()) } else { L::get(self.by.raw().add(at), width - at) };
                    L::get(x.add(at), width - at).mul(by).put(x.add(at), width - at);
                }
                at += L::N;
            }
        }
    }
}

pub fn scale(cx: &Cx, x: &View, by: &Buf) -> Result<()> {
    let one = by.bytes() == 4;
    let by = vector(cx.mem, by, if one { 1 } else { x.cols as usize })?;
    let x = Span::floats(cx.mem, x)?;
    cx.share(x.rows * x.heads, 5 + x.cols / 10, |runs| dispatch(cx.isa, Scaled { x, by, one, runs }))
}

struct Combine {
    out: Span<f32>,
    base: Span<f32>,
    parts: Span<f32>,
    w: Span<f32>,
    rows: Range<usize>,
}

impl Work for Combine {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let width = self.out.cols;
        for row in self.rows.clone() {
            let mut at = 0;
            while at < width {
                let n = width - at;
                let mut sum = L::zero();
                for rank in 0..self.w.cols {
                    // SAFETY: checked views, rank < k = the heads of `parts`.
                    let (part, w) =
                        unsafe { (L::get(self.parts.at(row, rank).add(at), n), *self.w.at(row, 0).add(rank)) };
                    sum = part.fma(L::splat(w), sum);
                }
                // SAFETY: rows are disjoint; `out` may be `base`, read first.
                unsafe { L::get(self.base.at(row, 0).add(at), n).add(sum).put(self.out.at(row, 0).add(at), n) };
                at += L::N;
            }
        }
    }
}

pub fn combine(cx: &Cx, out: &View, base: &View, parts: &View, w: &View) -> Result<()> {
    let ns = (1 + w.cols as usize) * out.cols as usize / 10;
    let (out, base) = (Span::floats(cx.mem, out)?, Span::floats(cx.mem, base)?);
    let (parts, w) = (Span::floats(cx.mem, parts)?, Span::floats(cx.mem, w)?);
    cx.share(out.rows, ns, |rows| dispatch(cx.isa, Combine { out, base, parts, w, rows }))
}

pub fn zero(cx: &Cx, x: &View) -> Result<()> {
    let x = Span::floats(cx.mem, x)?;
    cx.share(x.rows * x.heads, 2 + x.cols / 16, |runs| {
        for run in runs {
            // SAFETY: columns of a checked view; runs are disjoint. Bytes of zero are the float zero.
            unsafe { x.at(run / x.heads, run % x.heads).write_bytes(0, x.cols) };
        }
    })
}

/// An index outside `x` gives a row of zeros.
pub fn gather_rows(cx: &Cx, out: &View, x: &View, rows: &View) -> Result<()> {
    let (out, x) = (Span::floats(cx.mem, out)?, Span::floats(cx.mem, x)?);
    let rows = Span::ints(cx.mem, rows)?;
    cx.share(out.rows, 20 + out.cols / 8, |part| {
        for i in part {
            let from = rows.get(i, 0).and_then(|r| usize::try_from(r).ok()).filter(|&r| r < x.rows);
            // SAFETY: rows of checked views of one width; `out` is apart from `x` and its rows are disjoint.
            unsafe {
                match from {
                    Some(r) => std::ptr::copy_nonoverlapping(x.at(r, 0).cast_const(), out.at(i, 0), x.cols),
                    None => out.at(i, 0).write_bytes(0, x.cols),
                }
            }
        }
    })
}

/// A row at a time: rows are few, and what is asked for is little.
pub fn likeliest(cx: &Cx, out: &View, x: &View) -> Result<()> {
    let (out, x) = (Span::ints(cx.mem, out)?, Span::floats(cx.mem, x)?);
    let k = out.cols / 2;
    cx.share(x.rows, x.cols, |part| {
        for i in part {
            // SAFETY: rows of checked views; `out` is apart from `x` and its rows are disjoint.
            let (row, to) = unsafe {
                (
                    std::slice::from_raw_parts(x.at(i, 0).cast_const(), x.cols),
                    std::slice::from_raw_parts_mut(out.at(i, 0), out.cols),
                )
            };
            let best = crate::op::likeliest(row, k);
            for j in 0..k {
                let (id, logit) = best.get(j).map_or((-1, 0), |&(id, x)| (id as i32, x.to_bits() as i32));
                (to[j], to[k + j]) = (id, logit);
            }
        }
    })
}
