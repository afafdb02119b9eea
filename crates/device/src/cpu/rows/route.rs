//! Router logits to experts.

use crate::cpu::Cx;
use crate::cpu::lanes::{Lanes, MAX_LANES, Work, dispatch};
use crate::cpu::span::Span;
use crate::error::Result;
use crate::op::{Router, RouterScore, Routing};
use crate::view::View;
use std::ops::Range;

struct Route {
    ids: Span<i32>,
    w: Span<f32>,
    logits: Span<f32>,
    router: Router,
    rows: Range<usize>,
}

impl Work for Route {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for row in self.rows.clone() {
            // SAFETY: checked views; rows are disjoint and the outputs are no inputs.
            let (x, ids, w) = unsafe {
                let x = std::slice::from_raw_parts(self.logits.at(row, 0).cast_const(), self.logits.cols);
                let ids = std::slice::from_raw_parts_mut(self.ids.at(row, 0), self.ids.cols);
                (x, ids, std::slice::from_raw_parts_mut(self.w.at(row, 0), self.w.cols))
            };
            top(x, ids);
            match self.router.score {
                RouterScore::Softmax => softmax::<L>(x, ids, w, self.router.renormalise),
            }
        }
    }
}

/// The greatest of `x` by falling value, ties to the lower id. NaN has a place in the order too, so it cannot panic.
#[inline(always)]
fn top(x: &[f32], ids: &mut [i32]) {
    let k = ids.len();
    let mut held = 0;
    for (i, v) in x.iter().enumerate() {
        let above = |id: i32| x[id as usize].total_cmp(v).is_ge();
        if held == k && above(ids[k - 1]) {
            continue;
        }
        let mut at = held.min(k - 1);
        while at > 0 && !above(ids[at - 1]) {
            ids[at] = ids[at - 1];
            at -= 1;
        }
        ids[at] = i as i32;
        held = k.min(held + 1);
    }
}

/// Probabilities of `ids`, less the maximum so that nothing overflows; over the chosen only, with `renormalise`.
#[inline(always)]
fn softmax<L: Lanes>(x: &[f32], ids: &[i32], w: &mut [f32], renormalise: bool) {
    let max = x[ids[0] as usize];
    for (w, &id) in w.iter_mut().zip(ids) {
        *w = x[id as usize] - max;
    }
    for part in w.chunks_mut(L::N) {
        // SAFETY: a slice of at most N elements.
        unsafe { L::get(part.as_ptr(), part.len()).exp().put(part.as_mut_ptr(), part.len()) };
    }
    let sum = if renormalise { w.iter().sum() } else { exp_sum::<L>(x, max) };
    w.iter_mut().for_each(|w| *w /= sum);
}

#[inline(always)]
fn exp_sum<L: Lanes>(x: &[f32], max: f32) -> f32 {
    let mut sum = L::zero();
    for part in x.chunks(L::N) {
        let mut padded = [f32::NEG_INFINITY; MAX_LANES];
        padded[..part.len()].copy_from_slice(part);
        // SAFETY: at least N elements.
        sum = sum.add(unsafe { L::load(padded.as_ptr()) }.sub(L::splat(max)).exp());
    }
    sum.sum()
}

pub fn route(cx: &Cx, out: &Routing, logits: &View, router: &Router) -> Result<()> {
    let (ids, w) = (Span::ints(cx.mem, &out.ids)?, Span::floats(cx.mem, &out.w)?);
    let (logits, router) = (Span::floats(cx.mem, logits)?, *router);
    cx.share(logits.rows, 50 + 2 * logits.cols, |rows| dispatch(cx.isa, Route { ids, w, logits, router, rows }))
}
