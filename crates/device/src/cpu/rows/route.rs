//! Router logits to experts.

use crate::cpu::Cx;
use crate::cpu::lanes::{Lanes, MAX_LANES, Work, dispatch};
use crate::cpu::ptr::Ptr;
use crate::cpu::span::{Span, vector, vector_mut};
use crate::error::Result;
use crate::op::{Router, RouterScore, Routing};
use crate::view::{Buf, View};
use std::ops::Range;

struct Route {
    ids: Span<i32>,
    w: Span<f32>,
    logits: Span<f32>,
    router: Router,
    bias: Option<Ptr<f32>>,
    per_expert: Option<Ptr<f32>>,
    /// [`room`] floats per row of logits: scores, what is chosen by, sums of groups. Unused where logits order experts.
    scores: Ptr<f32>,
    rows: Range<usize>,
}

/// Whether experts are chosen by something that does not order like their logits.
fn by_scores(r: &Router) -> bool {
    r.score != RouterScore::Softmax || r.bias.is_some() || r.groups.is_some()
}

/// Floats of a row's scores: two for every expert, one for every group.
fn room(experts: usize, r: &Router) -> usize {
    if by_scores(r) { 2 * experts + r.groups.map_or(0, |g| g.n as usize) } else { 0 }
}

/// Scratch bytes.
pub fn route_scratch(logits: &View, r: &Router) -> u64 {
    4 * logits.rows as u64 * room(logits.cols as usize, r) as u64
}

impl Work for Route {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let n = self.logits.cols;
        for row in self.rows.clone() {
            // SAFETY: checked views; rows are disjoint and the outputs are no inputs.
            let (x, ids, w) = unsafe {
                let x = std::slice::from_raw_parts(self.logits.at(row, 0).cast_const(), n);
                let ids = std::slice::from_raw_parts_mut(self.ids.at(row, 0), self.ids.cols);
                (x, ids, std::slice::from_raw_parts_mut(self.w.at(row, 0), self.w.cols))
            };
            if by_scores(&self.router) {
                let room = room(n, &self.router);
                // SAFETY: the scratch function asked for this room for every row, and this row's is nobody else's.
                let (p, rest) = unsafe { self.scores.slice_mut(row * room, room) }.split_at_mut(n);
                self.choose::<L>(x, p, rest, ids);
                weigh(p, ids, w, &self.router);
            } else {
                top(x, ids);
                softmax::<L>(x, ids, w, self.router.renormalise);
            }
            self.finish(ids, w);
        }
    }
}

impl Route {
    /// Scores of all experts, and the ids that `score + bias` prefers.
    #[inline(always)]
    fn choose<L: Lanes>(&self, x: &[f32], p: &mut [f32], rest: &mut [f32], ids: &mut [i32]) {
        let (choice, sums) = rest.split_at_mut(p.len());
        match self.router.score {
            RouterScore::Softmax => softmax_all::<L>(x, p),
            RouterScore::Sigmoid => map::<L>(x, p, L::sigmoid),
        }
        match self.bias {
            Some(b) => {
                // SAFETY: a checked bias has a float per expert, and nobody writes it.
                let b = unsafe { b.slice(0, p.len()) };
                choice.iter_mut().zip(p.iter().zip(b)).for_each(|(c, (p, b))| *c = p + b);
            }
            None => choice.copy_from_slice(p),
        }
        if let Some(g) = self.router.groups {
            keep_best(choice, sums, g.keep);
        }
        top(choice, ids);
    }
    #[inline(always)]
    fn finish(&self, ids: &[i32], w: &mut [f32]) {
        let scale = self.router.scale;
        if scale != 1.0 {
            w.iter_mut().for_each(|w| *w *= scale);
        }
        if let Some(f) = self.per_expert {
            // SAFETY: a float per expert; ids are indices of logits.
            w.iter_mut().zip(ids).for_each(|(w, &id)| *w *= unsafe { f.slice(id as usize, 1)[0] });
        }
    }
}

/// Scores of the chosen, over their sum with `renormalise`.
#[inline(always)]
fn weigh(p: &[f32], ids: &[i32], w: &mut [f32], r: &Router) {
    w.iter_mut().zip(ids).for_each(|(w, &id)| *w = p[id as usize]);
    if r.renormalise {
        let least = if r.score == RouterScore::Sigmoid { 1e-20 } else { 0.0 };
        let sum = w.iter().sum::<f32>() + least;
        w.iter_mut().for_each(|w| *w /= sum);
    }
}

/// Sets what is not in one of the best groups to minus infinity.
fn keep_best(choice: &mut [f32], sums: &mut [f32], keep: u32) {
    let size = choice.len() / sums.len();
    for (sum, group) in sums.iter_mut().zip(choice.chunks(size)) {
        *sum = two_greatest(group);
    }
    for (i, group) in choice.chunks_mut(size).enumerate() {
        let before = |j: usize| sums[j].total_cmp(&sums[i]).then(i.cmp(&j)).is_gt();
        if (0..sums.len()).filter(|&j| before(j)).count() >= keep as usize {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

fn two_greatest(x: &[f32]) -> f32 {
    let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for &v in x {
        if v.total_cmp(&first).is_gt() {
            (first, second) = (v, first);
        } else if v.total_cmp(&second).is_gt() {
            second = v;
        }
    }
    if x.len() == 1 { first } else { first + second }
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

/// Softmax over all of `x`.
#[inline(always)]
fn softmax_all<L: Lanes>(x: &[f32], p: &mut [f32]) {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, |m, x| if x.total_cmp(&m).is_gt() { x } else { m });
    let sum = exp_sum::<L>(x, max);
    map::<L>(x, p, |x| x.sub(L::splat(max)).exp().div(L::splat(sum)));
}

#[inline(always)]
fn map<L: Lanes>(x: &[f32], y: &mut [f32], f: impl Fn(L) -> L) {
    for (x, y) in x.chunks(L::N).zip(y.chunks_mut(L::N)) {
        // SAFETY: slices of one length of at most N elements.
        unsafe { f(L::get(x.as_ptr(), x.len())).put(y.as_mut_ptr(), y.len()) };
    }
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
    let experts = logits.cols as usize;
    let (ids, w) = (Span::ints(cx.mem, &out.ids)?, Span::floats(cx.mem, &out.w)?);
    let each = |b: &Option<Buf>| b.map(|b| vector(cx.mem, &b, experts)).transpose();
    let (bias, per_expert) = (each(&router.bias)?, each(&router.per_expert)?);
    let scores = vector_mut(cx.mem, &cx.scratch, route_scratch(logits, router) as usize / 4)?;
    let (logits, router) = (Span::floats(cx.mem, logits)?, *router);
    let route = |rows| Route { ids, w, logits, router, bias, per_expert, scores, rows };
    cx.share(logits.rows, 50 + 2 * logits.cols, |rows| dispatch(cx.isa, route(rows)))
}
