//! The gated delta rule for many rows (arXiv 2412.06464, section 3.3), 64 at a time from the run's first row. With
//! `c` the running sum of log decays, `D_ij = e^(c_i - c_j)` for `i >= j` and S the state before the chunk:
//!
//! ```text
//! (I + tril(beta K K^T o D, -1)) R = beta (V - e^c (K S))
//! O = e^c (Q S) + tril(Q K^T o D) R
//! S <- e^c_last S + (e^(c_last - c) K)^T R
//! ```
//!
//! Only differences of `c` with `i >= j` are ever exponentiated, so nothing overflows however strong the decay is, and
//! they are taken in f64, so that a strong decay does not blur the weak ones after it. Row i uses rows up to i alone, each
//! element being one chain over them in order, so the state after any row has the bits that a call ending there gives.

use super::delta::Delta;
use super::runs::Run;
use crate::cpu::Isa;
use crate::cpu::chain::Product;
use crate::cpu::lanes::{Lanes, Work, dispatch};

/// Rows of a chunk.
const CHUNK: usize = 64;
/// Rows solved together.
const BLOCK: usize = 16;

/// Where the tiles of a thread lie in its scratch: `[d_k, d_v]`, thrice `CHUNK * d_k`, `[CHUNK, d_v]`, twice
/// `[CHUNK, CHUNK]`.
struct Room {
    state: usize,
    q: usize,
    k: usize,
    /// Keys, transposed.
    kt: usize,
    r: usize,
    /// `-tril(beta K K^T o D, -1)`.
    a: usize,
    /// `tril(Q K^T o D)`.
    p: usize,
    end: usize,
}

impl Room {
    fn of(d_k: usize, d_v: usize) -> Room {
        let sizes = [d_k * d_v, CHUNK * d_k, CHUNK * d_k, CHUNK * d_k, CHUNK * d_v, CHUNK * CHUNK, CHUNK * CHUNK];
        let mut at = [0; 8];
        for (i, size) in sizes.into_iter().enumerate() {
            at[i + 1] = at[i] + size.next_multiple_of(16);
        }
        let [state, q, k, kt, r, a, p, end] = at;
        Room { state, q, k, kt, r, a, p, end }
    }
}

/// Floats of scratch of one thread.
pub fn floats(d_k: usize, d_v: usize) -> usize {
    Room::of(d_k, d_v).end
}

struct Chunks<'a> {
    delta: Delta<'a>,
    run: &'a Run,
    head: usize,
    scratch: *mut f32,
}

pub fn run(isa: Isa, delta: Delta, run: &Run, head: usize, scratch: *mut f32) {
    dispatch(isa, Chunks { delta, run, head, scratch });
}

impl Work for Chunks<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let d = self.delta;
        let (d_k, d_v) = (d.d_k(), d.d_v());
        let Room { state, q, k, kt, r, a, p, .. } = Room::of(d_k, d_v);
        let at = |place: usize| self.scratch.wrapping_add(place);
        let mut chunk = Chunk {
            d,
            head: self.head,
            d_k,
            d_v,
            state: at(state),
            q: at(q),
            k: at(k),
            kt: at(kt),
            r: at(r),
            a: at(a),
            p: at(p),
            first: 0,
            n: 0,
            c: [0.0; CHUNK],
            beta: [0.0; CHUNK],
        };
        // SAFETY: scratch is this thread's, as large as `Room` says; this head of slots and outputs is this task's.
        unsafe {
            match self.run.from {
                Some(slot) => std::ptr::copy_nonoverlapping(d.state(slot, self.head), chunk.state, d_k * d_v),
                None => chunk.state.write_bytes(0, d_k * d_v),
            }
            for first in self.run.rows.clone().step_by(CHUNK) {
                (chunk.first, chunk.n) = (first, CHUNK.min(self.run.rows.end - first));
                chunk.advance::<L>();
            }
        }
    }
}

/// The rows `first .. first + n` of a head.
struct Chunk<'a> {
    d: Delta<'a>,
    head: usize,
    d_k: usize,
    d_v: usize,
    state: *mut f32,
    q: *mut f32,
    k: *mut f32,
    kt: *mut f32,
    r: *mut f32,
    a: *mut f32,
    p: *mut f32,
    first: usize,
    n: usize,
    /// Running sum of log decays.
    c: [f64; CHUNK],
    beta: [f32; CHUNK],
}

impl Chunk<'_> {
    #[inline(always)]
    unsafe fn advance<L: Lanes>(&mut self) {
        // SAFETY: see `Chunks::run`.
        unsafe {
            self.gather::<L>();
            self.couple::<L>();
            self.solve::<L>();
            self.output::<L>();
            for t in 0..self.n {
                let slot = self.d.runs.to[self.first + t].map(|slot| self.d.state(slot, self.head));
                if t + 1 == self.n {
                    self.state_after::<L>(t, self.state);
                    if let Some(to) = slot {
                        std::ptr::copy_nonoverlapping(self.state, to, self.d_k * self.d_v);
                    }
                } else if let Some(to) = slot {
                    self.state_after::<L>(t, to);
                }
            }
        }
    }

    /// Queries, keys and gates.
    #[inline(always)]
    unsafe fn gather<L: Lanes>(&mut self) {
        let mut c = 0.0;
        for t in 0..self.n {
            let row = self.first + t;
            let (beta, log) = self.d.gates(row, self.head);
            c += log as f64;
            (self.beta[t], self.c[t]) = (beta, c);
            // SAFETY: row t of the tiles.
            unsafe {
                let k = self.k.add(t * self.d_k);
                self.d.units::<L>(row, self.head, self.q.add(t * self.d_k), k);
                for i in 0..self.d_k {
                    *self.kt.add(i * CHUNK + t) = *k.add(i);
                }
            }
        }
    }

    /// `e^(c_t - c_j)` for `j <= t`, 0 behind.
    #[inline(always)]
    fn decays<L: Lanes>(&self, t: usize) -> [f32; CHUNK] {
        let mut e = [f32::NEG_INFINITY; CHUNK];
        for (e, c) in e.iter_mut().zip(&self.c[..t + 1]) {
            *e = (self.c[t] - c) as f32;
        }
        for part in e.chunks_exact_mut(L::N) {
            // SAFETY: N elements.
            unsafe { L::load(part.as_ptr()).exp().store(part.as_mut_ptr()) };
        }
        e
    }

    /// The two triangles that couple rows.
    #[inline(always)]
    unsafe fn couple<L: Lanes>(&self) {
        let n = self.n;
        let with = |a: *mut f32, c: *mut f32| Product {
            m: n,
            k: self.d_k,
            n,
            a,
            a_step: [self.d_k, 1],
            b: self.kt,
            b_row: CHUNK,
            c,
            c_row: CHUNK,
            add: false,
        };
        // SAFETY: n rows of the tiles.
        unsafe {
            with(self.k, self.a).go::<L>();
            with(self.q, self.p).go::<L>();
            for t in 0..n {
                let (a, p) = (self.a.add(t * CHUNK), self.p.add(t * CHUNK));
                let (a, p) = (std::slice::from_raw_parts_mut(a, n), std::slice::from_raw_parts_mut(p, n));
                for (j, d) in self.decays::<L>(t)[..n].iter().enumerate() {
                    a[j] = if j < t { -self.beta[t] * a[j] * d } else { 0.0 };
                    p[j] = if j <= t { p[j] * d } else { 0.0 };
                }
            }
        }
    }

    /// `R`, by forward substitution: a block takes what earlier blocks give it, then its rows one after the other.
    #[inline(always)]
    unsafe fn solve<L: Lanes>(&self) {
        let (n, d_k, d_v) = (self.n, self.d_k, self.d_v);
        // SAFETY: n rows of the tiles.
        unsafe {
            let state = Product {
                m: n,
                k: d_k,
                n: d_v,
                a: self.k,
                a_step: [d_k, 1],
                b: self.state,
                b_row: d_v,
                c: self.r,
                c_row: d_v,
                add: false,
            };
            state.go::<L>();
            for t in 0..n {
                let (r, v) = (self.r.add(t * d_v), self.d.value(self.first + t, self.head));
                let (beta, past) = (L::splat(self.beta[t]), L::splat(self.c[t] as f32).exp());
                let mut j = 0;
                while j < d_v {
                    let seen = L::get(r.add(j), d_v - j).mul(past);
                    L::get(v.add(j), d_v - j).sub(seen).mul(beta).put(r.add(j), d_v - j);
                    j += L::N;
                }
            }
            for first in (0..n).step_by(BLOCK) {
                let rows = BLOCK.min(n - first);
                if first > 0 {
                    self.take::<L>(first, rows, 0, first);
                }
                for t in first + 1..first + rows {
                    self.take::<L>(t, 1, first, t - first);
                }
            }
        }
    }
    /// Rows `t .. t + m` of R take `a` times its rows `from .. from + k`.
    #[inline(always)]
    unsafe fn take<L: Lanes>(&self, t: usize, m: usize, from: usize, k: usize) {
        let d_v = self.d_v;
        // SAFETY: rows `from ..` end before row t, so the product reads no row that it writes.
        unsafe {
            let product = Product {
                m,
                k,
                n: d_v,
                a: self.a.add(t * CHUNK + from),
                a_step: [CHUNK, 1],
                b: self.r.add(from * d_v),
                b_row: d_v,
                c: self.r.add(t * d_v),
                c_row: d_v,
                add: true,
            };
            product.go::<L>();
        }
    }

    #[inline(always)]
    unsafe fn output<L: Lanes>(&self) {
        let (n, d_k, d_v, pitch) = (self.n, self.d_k, self.d_v, self.d.out.pitch());
        let out = |t: usize| self.d.out.at(self.first + t, self.head);
        // SAFETY: rows of this head's output, which is no input.
        unsafe {
            let state = Product {
                m: n,
                k: d_k,
                n: d_v,
                a: self.q,
                a_step: [d_k, 1],
                b: self.state,
                b_row: d_v,
                c: out(0),
                c_row: pitch,
                add: false,
            };
            state.go::<L>();
            for t in 0..n {
                scale::<L>(out(t), out(t), d_v, (self.c[t] as f32, 1.0));
            }
            for first in (0..n).step_by(BLOCK) {
                let (m, a, c) = (BLOCK.min(n - first), self.p.add(first * CHUNK), out(first));
                let k = first + m;
                let (b, b_row) = (self.r, d_v);
                Product { m, k, n: d_v, a, a_step: [CHUNK, 1], b, b_row, c, c_row: pitch, add: true }.go::<L>();
            }
        }
    }

    /// The state after row `t`, into `to`: the chunk's own state or a slot. Queries are no longer needed; their tile
    /// takes the decayed keys.
    #[inline(always)]
    unsafe fn state_after<L: Lanes>(&self, t: usize, to: *mut f32) {
        let (d_k, d_v) = (self.d_k, self.d_v);
        let decays = self.decays::<L>(t);
        // SAFETY: rows up to t of the tiles, a state in `to`.
        unsafe {
            for (j, d) in decays[..t + 1].iter().enumerate() {
                scale::<L>(self.k.add(j * d_k), self.q.add(j * d_k), d_k, (0.0, *d));
            }
            scale::<L>(self.state, to, d_k * d_v, (self.c[t] as f32, 1.0));
            let product = Product {
                m: d_k,
                k: t + 1,
                n: d_v,
                a: self.q,
                a_step: [1, d_k],
                b: self.r,
                b_row: d_v,
                c: to,
                c_row: d_v,
                add: true,
            };
            product.go::<L>();
        }
    }
}

/// `to = x * e^log * by`; `to` may be `x`.
#[inline(always)]
unsafe fn scale<L: Lanes>(x: *const f32, to: *mut f32, n: usize, (log, by): (f32, f32)) {
    let by = L::splat(log).exp().mul(L::splat(by));
    let mut i = 0;
    while i < n {
        // SAFETY: n floats each.
        unsafe { L::get(x.add(i), n - i).mul(by).put(to.add(i), n - i) };
        i += L::N;
    }
}
