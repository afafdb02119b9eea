//! Root-mean-square norm.

use crate::cpu::Cx;
use crate::cpu::lanes::{Lanes, Work, dispatch, square_sum};
use crate::cpu::ptr::Ptr;
use crate::cpu::span::{Span, vector};
use crate::error::Result;
use crate::view::{Buf, View};
use std::ops::Range;

struct Norm {
    out: Span<f32>,
    x: Span<f32>,
    w: Option<Ptr<f32>>,
    eps: f32,
    /// Runs of columns, counted row by row, head by head.
    runs: Range<usize>,
}

impl Work for Norm {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for i in self.runs.clone() {
            let (row, head) = (i / self.x.heads, i % self.x.heads);
            // SAFETY: checked views; runs are disjoint and each belongs to one task. `out` may be `x`: sums come first.
            unsafe { normalise::<L>(self.out.at(row, head), self.x.at(row, head), self.x.cols, self.w, self.eps) };
        }
    }
}

#[inline(always)]
unsafe fn normalise<L: Lanes>(out: *mut f32, x: *const f32, d: usize, w: Option<Ptr<f32>>, eps: f32) {
    // SAFETY: d readable columns.
    let mean = unsafe { square_sum::<L>(x, d) } / d as f32;
    let scale = L::splat(1.0 / (mean + eps).sqrt());
    let mut at = 0;
    while at < d {
        // SAFETY: d columns of each; w has d floats.
        unsafe {
            let mut v = L::get(x.add(at), d - at).mul(scale);
            if let Some(w) = w {
                v = v.mul(L::get(w.raw().add(at), d - at));
            }
            v.put(out.add(at), d - at);
        }
        at += L::N;
    }
}

pub fn rms_norm(cx: &Cx, out: &View, x: &View, w: Option<&Buf>, eps: f32) -> Result<()> {
    let d = x.cols as usize;
    let w = w.map(|w| vector(cx.mem, w, d)).transpose()?;
    let (out, x) = (Span::floats(cx.mem, out)?, Span::floats(cx.mem, x)?);
    cx.share(x.rows * x.heads, 20 + d / 8, |runs| dispatch(cx.isa, Norm { out, x, w, eps, runs }))
}
