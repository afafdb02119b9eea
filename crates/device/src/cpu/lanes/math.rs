//! Transcendental functions over any vector.

use super::Lanes;
use crate::view::Glu;

/// ln 2 cut so that its product with any exponent of an f32 is exact, and what is missing.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Where `e^x` leaves the normal numbers.
const LOW: f32 = -87.336_54;
const HIGH: f32 = 88.722_84;

/// `e^x = 2^n e^r` with `|r| <= ln 2 / 2`, where the Taylor sum to `r^7` is off by less than 6e-9 of it.
#[inline(always)]
pub fn exp<L: Lanes>(x: L) -> L {
    // The limits come first: `min` and `max` then hand on a NaN of x. The upper one overflows to infinity below.
    let c = L::splat(HIGH + 0.1).min(L::splat(LOW).max(x));
    let n = c.mul(L::splat(std::f32::consts::LOG2_E)).round();
    let r = n.fma(L::splat(-LN2_LOW), n.fma(L::splat(-LN2_HIGH), c));
    let mut y = L::splat(1.0 / 5040.0);
    for k in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        y = y.fma(r, L::splat(k));
    }
    // 2^128 is no f32: two factors. n is -126 ..= 128.
    let half = n.mul(L::splat(0.5)).round();
    y.mul(half.pow2()).mul(n.sub(half).pow2()).zero_where_below(x, L::splat(LOW))
}

#[inline(always)]
pub fn sigmoid<L: Lanes>(x: L) -> L {
    let one = L::splat(1.0);
    one.div(one.add(exp(L::zero().sub(x))))
}

/// Where `tanh` changes from a polynomial to exponentials.
const TANH_NEAR: f32 = 0.625;

/// Near zero the odd polynomial of the Cephes library (`x + x z P(z)`, `z = x^2`, off by less than 1e-7 of it), where
/// `1 - 2 / (1 + e^2x)` would cancel.
#[inline(always)]
pub fn tanh<L: Lanes>(x: L) -> L {
    let (one, z) = (L::splat(1.0), x.mul(x));
    let mut p = L::splat(-5.704_988_7e-3);
    for k in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = p.fma(z, L::splat(k));
    }
    let near = p.mul(z).fma(x, x);
    let far = one.sub(L::splat(2.0).div(one.add(exp(x.add(x)))));
    // Zeros in one of the two: `near` from the limit on, `far` below it.
    let size = x.max(L::zero().sub(x));
    let below = L::splat(-f32::from_bits(TANH_NEAR.to_bits() - 1));
    near.zero_where_below(L::zero().sub(size), below).add(far.zero_where_below(size, L::splat(TANH_NEAR)))
}

/// One element of a gated linear unit.
#[inline(always)]
pub fn glu<L: Lanes>(gate: L, glu: Glu, up: L) -> L {
    match glu {
        Glu::Swiglu => gate.silu().mul(up),
        Glu::GegluTanh => gelu_tanh(gate).mul(up),
        Glu::SwigluClamped { limit, alpha } => {
            // The limits come first, so that a NaN of the operand is handed on.
            let (top, bottom) = (L::splat(limit), L::splat(-limit));
            let (gate, up) = (top.min(gate), bottom.max(top.min(up)));
            up.add(L::splat(1.0)).mul(gate).mul(sigmoid(gate.mul(L::splat(alpha))))
        }
    }
}

/// `(1 + tanh(y)) / 2 = sigmoid(2 y)`, which keeps its digits for large negative y.
#[inline(always)]
fn gelu_tanh<L: Lanes>(x: L) -> L {
    const TWICE_ROOT: f32 = 1.595_769_2;
    let inner = x.mul(x).mul(L::splat(0.044715)).fma(x, x);
    x.mul(sigmoid(inner.mul(L::splat(TWICE_ROOT))))
}

/// Sum of squares of `d` floats: four running sums over columns `4 N` apart, then a fixed tree, so the order is the same
/// wherever they lie.
///
/// # Safety
/// They may be read.
#[inline(always)]
pub unsafe fn square_sum<L: Lanes>(x: *const f32, d: usize) -> f32 {
    let mut s = [L::zero(); 4];
    let mut at = 0;
    while at < d {
        for (i, s) in s.iter_mut().enumerate() {
            let from = at + i * L::N;
            if from < d {
                // SAFETY: at most the d floats.
                let v = unsafe { L::get(x.add(from), d - from) };
                *s = v.fma(v, *s);
            }
        }
        at += 4 * L::N;
    }
    s[0].add(s[1]).add(s[2].add(s[3])).sum()
}

#[cfg(test)]
mod tests {
    use crate::cpu::Isa;
    use crate::cpu::lanes::{Lanes, Work, dispatch};

    struct Exp<'a>(&'a [f32], &'a mut [f32]);
    impl Work for Exp<'_> {
        #[inline(always)]
        fn run<L: Lanes>(self) {
            for (x, y) in self.0.chunks(L::N).zip(self.1.chunks_mut(L::N)) {
                // SAFETY: chunks of at most N elements.
                unsafe { L::get(x.as_ptr(), x.len()).exp().put(y.as_mut_ptr(), y.len()) };
            }
        }
    }

    #[test]
    fn exp_is_close_everywhere_and_the_same_in_every_lane() {
        let mut xs: Vec<f32> = (0..40_000).map(|i| -90.0 + i as f32 * 0.00447).collect();
        xs.extend([0.0, -0.0, f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -1e30, 1e30, 88.7, 88.8, -87.3, 1e-30]);
        for isa in Isa::ALL.into_iter().filter(|i| i.available()) {
            let mut ys = vec![0.0; xs.len()];
            dispatch(isa, Exp(&xs, &mut ys));
            for (&x, &y) in xs.iter().zip(&ys) {
                let want = (x as f64).exp();
                let ok = if x.is_nan() {
                    y.is_nan()
                } else if want > f32::MAX as f64 || want < f32::MIN_POSITIVE as f64 * 1.01 {
                    y as f64 == (want as f32) as f64 || y == 0.0
                } else {
                    ((y as f64 - want) / want).abs() < 2.5e-7
                };
                assert!(ok, "{}: exp({x}) = {y}, not {want}", isa.name());
            }
            assert_eq!(ys[40_000].to_bits(), 1f32.to_bits());
            for first in 1..17 {
                let mut part = vec![0.0; 23];
                dispatch(isa, Exp(&xs[first * 100..][..23], &mut part));
                let same = part.iter().zip(&ys[first * 100..]).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{}: bits depend on the lane", isa.name());
            }
        }
    }

    struct Sums<'a>(&'a [f32], &'a mut [f32; 6]);
    impl Work for Sums<'_> {
        #[inline(always)]
        fn run<L: Lanes>(self) {
            // SAFETY: the caller hands in 64 floats, four vectors of any set.
            let v: [L; 4] = std::array::from_fn(|i| unsafe { L::load(self.0.as_ptr().add(i * 7)) });
            let four = L::sum4(v);
            self.1[..4].copy_from_slice(&four);
            assert!(v.iter().zip(four).all(|(v, s)| v.sum().to_bits() == s.to_bits()));
            self.1[4] = v[2].greatest();
            // SAFETY: as above.
            self.1[5] = unsafe { L::load_part(self.0.as_ptr(), 3) }.sum();
        }
    }

    #[test]
    fn reductions_see_every_lane_once() {
        let xs: Vec<f32> = (0..64).map(|i| ((i * 37) % 64) as f32).collect();
        for (isa, n) in Isa::ALL.into_iter().zip([8, 8, 16, 16]).filter(|(i, _)| i.available()) {
            let mut got = [0.0; 6];
            dispatch(isa, Sums(&xs, &mut got));
            for i in 0..4 {
                assert_eq!(got[i], xs[i * 7..][..n].iter().sum::<f32>(), "{}", isa.name());
            }
            assert_eq!(got[4], xs[14..][..n].iter().copied().fold(0.0, f32::max));
            assert_eq!(got[5], xs[..3].iter().sum::<f32>());
        }
    }
}
