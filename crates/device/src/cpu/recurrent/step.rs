//! The gated delta rule row by row: the state is read twice and written once, a strip of columns at a time, and every
//! row's state goes where the step wants it.

use super::delta::Delta;
use super::runs::Run;
use crate::cpu::Isa;
use crate::cpu::lanes::{Lanes, Work, dispatch};

/// Floats of scratch of one thread: a query and a key.
pub fn floats(d_k: usize) -> usize {
    2 * d_k.next_multiple_of(16)
}

struct Steps<'a> {
    delta: Delta<'a>,
    run: &'a Run,
    head: usize,
    scratch: *mut f32,
}

pub fn run(isa: Isa, delta: Delta, run: &Run, head: usize, scratch: *mut f32) {
    dispatch(isa, Steps { delta, run, head, scratch });
}

impl Work for Steps<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (d, head) = (&self.delta, self.head);
        let (q, k) = (self.scratch, self.scratch.wrapping_add(d.d_k().next_multiple_of(16)));
        let mut from = self.run.from.map(|slot| d.state(slot, head));
        for row in self.run.rows.clone() {
            let Some(to) = d.runs.to[row].map(|slot| d.state(slot, head)) else { return };
            // SAFETY: scratch is this thread's, and this head of the slots and outputs is this task's.
            unsafe {
                if from.is_none() {
                    to.write_bytes(0, d.d_k() * d.d_v());
                }
                d.units::<L>(row, head, q, k);
                let (beta, log) = d.gates(row, head);
                let at = At {
                    from: from.unwrap_or(to),
                    to,
                    q,
                    k,
                    v: d.value(row, head),
                    out: d.out.at(row, head),
                    beta,
                    keep: log.exp(),
                    d_k: d.d_k(),
                    d_v: d.d_v(),
                };
                at.row::<L>();
            }
            from = Some(to);
        }
    }
}

/// One row of one head.
struct At {
    from: *const f32,
    /// May be `from`.
    to: *mut f32,
    q: *const f32,
    k: *const f32,
    v: *const f32,
    out: *mut f32,
    beta: f32,
    keep: f32,
    d_k: usize,
    d_v: usize,
}

impl At {
    #[inline(always)]
    unsafe fn row<L: Lanes>(&self) {
        let mut j = 0;
        // SAFETY: columns below d_v.
        unsafe {
            // Where registers are enough, rows of the state are read whole, as memory likes it.
            while L::N >= 16 && j + 8 * L::N <= self.d_v {
                self.strip::<L, 8>(j, 8 * L::N);
                j += 8 * L::N;
            }
            while j + 4 * L::N <= self.d_v {
                self.strip::<L, 4>(j, 4 * L::N);
                j += 4 * L::N;
            }
            while j < self.d_v {
                self.strip::<L, 1>(j, self.d_v - j);
                j += L::N;
            }
        }
    }
    /// Columns `j ..` of the state, `n` of them at most: what the key sees, then the new state and what the query sees.
    /// `from` is read before `to` is written, element by element.
    #[inline(always)]
    unsafe fn strip<L: Lanes, const C: usize>(&self, j: usize, n: usize) {
        let left = |c: usize| n - c * L::N;
        let keep = L::splat(self.keep);
        let (mut seen, mut y) = ([L::zero(); C], [L::zero(); C]);
        // SAFETY: C vectors (or what is left of one) of d_k rows of the state, of v and of out.
        unsafe {
            for i in 0..self.d_k {
                let (k, s) = (L::splat(*self.k.add(i)), self.from.add(i * self.d_v + j));
                for (c, seen) in seen.iter_mut().enumerate() {
                    *seen = k.fma(L::get(s.add(c * L::N), left(c)), *seen);
                }
            }
            for (c, seen) in seen.iter_mut().enumerate() {
                let v = L::get(self.v.add(j + c * L::N), left(c));
                *seen = v.sub(seen.mul(keep)).mul(L::splat(self.beta));
            }
            for i in 0..self.d_k {
                let (k, q, at) = (L::splat(*self.k.add(i)), L::splat(*self.q.add(i)), i * self.d_v + j);
                for c in 0..C {
                    let s = L::get(self.from.add(at + c * L::N), left(c));
                    let s = k.fma(seen[c], s.mul(keep));
                    s.put(self.to.add(at + c * L::N), left(c));
                    y[c] = q.fma(s, y[c]);
                }
            }
            for (c, y) in y.iter().enumerate() {
                y.put(self.out.add(j + c * L::N), left(c));
            }
        }
    }
}
