//! The gated delta rule: what both row classes share.

use super::runs::{Run, Runs};
use super::{chunk, step};
use crate::cpu::Cx;
use crate::cpu::lanes::{Lanes, square_sum};
use crate::cpu::ptr::Ptr;
use crate::cpu::span::{Span, vector, vector_mut};
use crate::device::Caps;
use crate::error::{Error, Result};
use crate::op::{GdnShape, KeyHeadRule, RecView, RowClass, Rows};
use crate::view::{Buf, View};

/// What the op reads and writes besides states.
pub struct Operands<'a> {
    pub out: &'a View,
    pub qkv: &'a View,
    pub a: &'a View,
    pub b: &'a View,
    pub decay: &'a Buf,
    pub dt: &'a Buf,
}

/// The op with addresses.
#[derive(Copy, Clone)]
pub struct Delta<'a> {
    pub out: Span<f32>,
    qkv: Span<f32>,
    a: Span<f32>,
    b: Span<f32>,
    decay: Ptr<f32>,
    dt: Ptr<f32>,
    pub g: GdnShape,
    states: Ptr<f32>,
    pub runs: &'a Runs,
}

impl Delta<'_> {
    pub fn d_k(&self) -> usize {
        self.g.d_k as usize
    }
    pub fn d_v(&self) -> usize {
        self.g.d_v as usize
    }
    /// `[d_k, d_v]` of a value head in a slot.
    pub fn state(&self, slot: usize, head: usize) -> *mut f32 {
        let heads = self.g.n_v as usize;
        self.states.raw().wrapping_add((slot * heads + head) * self.d_k() * self.d_v())
    }
    /// Address of a row's values of a head.
    pub fn value(&self, row: usize, head: usize) -> *const f32 {
        let keys = 2 * self.g.n_k as usize * self.d_k();
        self.qkv.at(row, 0).wrapping_add(keys + head * self.d_v())
    }
    /// Query (scaled by `d_k^-0.5`) and key of unit length that serve a value head.
    ///
    /// # Safety
    /// `d_k` floats may be written at `q` and at `k`.
    #[inline(always)]
    pub unsafe fn units<L: Lanes>(&self, row: usize, head: usize, q: *mut f32, k: *mut f32) {
        let (d, n_k) = (self.d_k(), self.g.n_k as usize);
        let kh = match self.g.rule {
            KeyHeadRule::Div => head / (self.g.n_v as usize / n_k),
            KeyHeadRule::Mod => head % n_k,
        };
        let x = self.qkv.at(row, 0).cast_const();
        // SAFETY: d_k of the row's channels each.
        unsafe {
            unit::<L>(x.add(kh * d), q, d, 1.0 / (d as f32).sqrt());
            unit::<L>(x.add((n_k + kh) * d), k, d, 1.0);
        }
    }
    /// `(beta, log decay)` of a row's head.
    pub fn gates(&self, row: usize, head: usize) -> (f32, f32) {
        // SAFETY: head < n_v of checked views and vectors.
        let (a, b, decay, dt) = unsafe {
            (
                *self.a.at(row, 0).add(head),
                *self.b.at(row, 0).add(head),
                *self.decay.raw().add(head),
                *self.dt.raw().add(head),
            )
        };
        (1.0 / (1.0 + (-b).exp()), decay * softplus(a + dt))
    }
}

/// `ln(1 + e^x)`, which is x to the last bit of an f32 from 20 on.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

#[inline(always)]
unsafe fn unit<L: Lanes>(x: *const f32, to: *mut f32, d: usize, scale: f32) {
    // SAFETY: d floats each.
    unsafe {
        let by = L::splat(scale / (square_sum::<L>(x, d) + 1e-6).sqrt());
        let mut i = 0;
        while i < d {
            L::get(x.add(i), d - i).mul(by).put(to.add(i), d - i);
            i += L::N;
        }
    }
}

/// Floats of scratch of one thread.
fn floats(g: &GdnShape, class: RowClass) -> usize {
    let (d_k, d_v) = (g.d_k as usize, g.d_v as usize);
    match class {
        RowClass::Few => step::floats(d_k),
        RowClass::Many => chunk::floats(d_k, d_v),
    }
}

/// Bytes of scratch.
pub fn scratch(g: &GdnShape, rows: &Rows, caps: &Caps) -> u64 {
    floats(g, rows.class) as u64 * caps.threads as u64 * 4
}

pub fn gated_delta(cx: &Cx, o: &Operands, g: &GdnShape, st: &RecView, rows: &Rows) -> Result<()> {
    let (n_v, floats) = (g.n_v as usize, floats(g, rows.class));
    let runs = Runs::new(cx.mem, rows, st.slots)?;
    if rows.class == RowClass::Few && runs.to.iter().any(Option::is_none) {
        return Err(Error::BadBuf);
    }
    let delta = Delta {
        out: Span::floats(cx.mem, o.out)?,
        qkv: Span::floats(cx.mem, o.qkv)?,
        a: Span::floats(cx.mem, o.a)?,
        b: Span::floats(cx.mem, o.b)?,
        decay: vector(cx.mem, o.decay, n_v)?,
        dt: vector(cx.mem, o.dt, n_v)?,
        g: *g,
        states: vector_mut(cx.mem, &st.state, st.slots as usize * st.state_elems as usize)?,
        runs: &runs,
    };
    let room = vector_mut(cx.mem, &cx.scratch, floats * cx.pool.width())?;
    let longest = runs.runs.iter().map(|r| r.rows.len()).max().unwrap_or(0);
    let ns = longest * delta.d_k() * delta.d_v() / 6;
    cx.each(runs.runs.len() * n_v, ns, |worker, i| {
        let (run, head): (&Run, usize) = (&runs.runs[i / n_v], i % n_v);
        let scratch = room.raw().wrapping_add(worker * floats);
        match rows.class {
            RowClass::Few => step::run(cx.isa, delta, run, head, scratch),
            RowClass::Many => chunk::run(cx.isa, delta, run, head, scratch),
        }
    })
}
