//! Small f32 products inside other kernels: tiles of attention and of the gated delta rule.

use super::lanes::{Lanes, Work};

/// `c[m, n] (+)= a[m, k] b[k, n]`. Every element is one chain of `fma` over ascending k, starting from 0 or from itself,
/// wherever it lies in the tile: cutting the rows or columns differently does not change a bit.
#[derive(Copy, Clone)]
pub struct Product {
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub a: *const f32,
    /// Elements from row to row and from column to column of a.
    pub a_step: [usize; 2],
    pub b: *const f32,
    pub b_row: usize,
    pub c: *mut f32,
    pub c_row: usize,
    /// Whether the chains start from c.
    pub add: bool,
}

impl Product {
    /// # Safety
    /// The CPU has the set of `L`; a and b may be read and c written in the shapes given, and c is neither.
    #[inline(always)]
    pub unsafe fn go<L: Lanes>(self) {
        // SAFETY: the caller's promise.
        unsafe { L::enter(self) }
    }

    #[inline(always)]
    unsafe fn columns<L: Lanes, const R: usize>(&self, i: usize) {
        let mut j = 0;
        // SAFETY: rows i .. i + R, columns below n.
        unsafe {
            while L::N == 16 && j + 4 * L::N <= self.n {
                self.block::<L, R, 4>(i, j);
                j += 4 * L::N;
            }
            while j + 2 * L::N <= self.n {
                self.block::<L, R, 2>(i, j);
                j += 2 * L::N;
            }
            while j < self.n {
                self.edge::<L, R>(i, j);
                j += L::N;
            }
        }
    }

    #[inline(always)]
    unsafe fn block<L: Lanes, const R: usize, const C: usize>(&self, i: usize, j: usize) {
        let [row, col] = self.a_step;
        // SAFETY: R rows from i, C vectors from column j, all inside.
        unsafe {
            let (a, c) = (self.a.add(i * row), self.c.add(i * self.c_row + j));
            let mut acc = [[L::zero(); C]; R];
            if self.add {
                for (r, acc) in acc.iter_mut().enumerate() {
                    for (v, acc) in acc.iter_mut().enumerate() {
                        *acc = L::load(c.add(r * self.c_row + v * L::N));
                    }
                }
            }
            for k in 0..self.k {
                let b: [L; C] = load_all(self.b.add(k * self.b_row + j));
                for (r, acc) in acc.iter_mut().enumerate() {
                    let x = L::splat(*a.add(r * row + k * col));
                    for (acc, b) in acc.iter_mut().zip(b) {
                        *acc = x.fma(b, *acc);
                    }
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                for (v, acc) in acc.iter().enumerate() {
                    acc.store(c.add(r * self.c_row + v * L::N));
                }
            }
        }
    }

    /// One vector of at most N columns.
    #[inline(always)]
    unsafe fn edge<L: Lanes, const R: usize>(&self, i: usize, j: usize) {
        let ([row, col], n) = (self.a_step, self.n - j);
        // SAFETY: R rows from i, columns j .. n.
        unsafe {
            let (a, c) = (self.a.add(i * row), self.c.add(i * self.c_row + j));
            let mut acc = [L::zero(); R];
            if self.add {
                for (r, acc) in acc.iter_mut().enumerate() {
                    *acc = L::get(c.add(r * self.c_row), n);
                }
            }
            for k in 0..self.k {
                let b = L::get(self.b.add(k * self.b_row + j), n);
                for (r, acc) in acc.iter_mut().enumerate() {
                    *acc = L::splat(*a.add(r * row + k * col)).fma(b, *acc);
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                acc.put(c.add(r * self.c_row), n);
            }
        }
    }
}

#[inline(always)]
unsafe fn load_all<L: Lanes, const C: usize>(p: *const f32) -> [L; C] {
    let mut v = [L::zero(); C];
    for (i, v) in v.iter_mut().enumerate() {
        // SAFETY: C vectors from p.
        *v = unsafe { L::load(p.add(i * L::N)) };
    }
    v
}

impl Work for Product {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let mut i = 0;
        // SAFETY: rows below m; the rest is the promise of `go`.
        unsafe {
            while i + 4 <= self.m {
                self.columns::<L, 4>(i);
                i += 4;
            }
            while i < self.m {
                self.columns::<L, 1>(i);
                i += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Isa;
    use crate::cpu::lanes::dispatch;

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32)
            .map(|i| ((i * 7 + seed).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32 - 0.5)
            .collect()
    }

    #[test]
    fn every_element_is_its_own_chain() {
        for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
            for (m, k, n) in [(1, 1, 1), (4, 8, 64), (7, 5, 131), (9, 33, 17), (3, 0, 8), (6, 64, 40)] {
                for (a_step, add) in [([k, 1], false), ([1, m], true)] {
                    let (a, b, c0) = (numbers(m * k, 1), numbers(k * n, 2), numbers(m * n, 3));
                    let mut c = c0.clone();
                    let (a_ptr, b_ptr) = (a.as_ptr(), b.as_ptr());
                    let whole =
                        Product { m, k, n, a: a_ptr, a_step, b: b_ptr, b_row: n, c: c.as_mut_ptr(), c_row: n, add };
                    dispatch(isa, whole);
                    for i in 0..m {
                        for j in 0..n {
                            let terms = (0..k).map(|t| (a[i * a_step[0] + t * a_step[1]] * b[t * n + j]) as f64);
                            let want = terms.sum::<f64>() + if add { c0[i * n + j] as f64 } else { 0.0 };
                            assert!((c[i * n + j] as f64 - want).abs() < 1e-5, "{} {m} {k} {n}", isa.name());
                            let mut one = c0[i * n + j];
                            let a = a_ptr.wrapping_add(i * a_step[0]);
                            let b = b_ptr.wrapping_add(j);
                            dispatch(isa, Product { m: 1, n: 1, a, b, c: &mut one, ..whole });
                            assert_eq!(one.to_bits(), c[i * n + j].to_bits(), "{} {m} {k} {n}", isa.name());
                        }
                    }
                }
            }
        }
    }
}
