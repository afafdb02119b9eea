//! Rotary position embedding.

use crate::cpu::Cx;
use crate::cpu::lanes::{Lanes, Work, dispatch};
use crate::cpu::ptr::Ptr;
use crate::cpu::span::{Span, vector};
use crate::error::Result;
use crate::op::{Pairing, Rope};
use crate::view::View;
use std::ops::Range;

/// Pairs whose angles are held at once.
const BLOCK: usize = 64;

struct Rotate {
    x: Span<f32>,
    pos: Span<i32>,
    pairing: Pairing,
    pairs: usize,
    freq: Ptr<f32>,
    factor: f32,
    rows: Range<usize>,
}

impl Work for Rotate {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (mut cos, mut sin) = ([0f32; BLOCK], [0f32; BLOCK]);
        for row in self.rows.clone() {
            let p = self.pos.get(row, 0).unwrap_or(0) as f32;
            for first in (0..self.pairs).step_by(BLOCK) {
                let n = BLOCK.min(self.pairs - first);
                // SAFETY: `pairs` frequencies, which nobody writes.
                let freq = unsafe { self.freq.slice(first, n) };
                angles(p, freq, self.factor, &mut cos[..n], &mut sin[..n]);
                for head in 0..self.x.heads {
                    // SAFETY: 2 * pairs <= columns of a checked view; rows are disjoint.
                    unsafe { turn::<L>(self.x.at(row, head), self.pairing, first, self.pairs, &cos[..n], &sin[..n]) };
                }
            }
        }
    }
}

/// Cosine and sine of the f32 products `p * freq`, which all heads of a row share. The angle is taken to within a
/// quarter turn of 0 in f64, where positions in the millions leave it exact to f32.
#[inline(always)]
fn angles(p: f32, freq: &[f32], factor: f32, cos: &mut [f32], sin: &mut [f32]) {
    for ((f, c), s) in freq.iter().zip(cos).zip(sin) {
        let angle = (p * f) as f64;
        // The low bits of 1.5 * 2^52 + n are n.
        let big = angle * std::f64::consts::FRAC_2_PI + 6_755_399_441_055_744.0;
        let quarter = big.to_bits() as u32 & 3;
        let r = (angle - (big - 6_755_399_441_055_744.0) * std::f64::consts::FRAC_PI_2) as f32;
        let (s0, c0) = near_zero(r);
        let (a, b) = if quarter & 1 == 0 { (s0, c0) } else { (c0, s0) };
        let (a, b) = (if quarter & 2 == 0 { a } else { -a }, if (quarter + 1) & 2 == 0 { b } else { -b });
        (*s, *c) = (a * factor, b * factor);
    }
}

/// Sine and cosine of `|r| <= pi / 4`: Taylor sums to r^11 and r^10, off by less than 2e-11.
#[inline(always)]
fn near_zero(r: f32) -> (f32, f32) {
    let z = r * r;
    let s = -1.0 / 39_916_800.0;
    let s = s * z + 1.0 / 362_880.0;
    let s = s * z - 1.0 / 5040.0;
    let s = s * z + 1.0 / 120.0;
    let s = s * z - 1.0 / 6.0;
    let c = -1.0 / 3_628_800.0;
    let c = c * z + 1.0 / 40_320.0;
    let c = c * z - 1.0 / 720.0;
    let c = c * z + 1.0 / 24.0;
    let c = c * z - 0.5;
    (s * z * r + r, c * z + 1.0)
}

#[inline(always)]
unsafe fn turn<L: Lanes>(x: *mut f32, pairing: Pairing, first: usize, pairs: usize, cos: &[f32], sin: &[f32]) {
    match pairing {
        Pairing::Half => {
            let (n, lo, hi) = (cos.len(), x.wrapping_add(first), x.wrapping_add(first + pairs));
            let mut at = 0;
            while at < n {
                // SAFETY: columns first + at .. of either half, `n` of them.
                unsafe {
                    let (c, s) = (L::get(cos.as_ptr().add(at), n - at), L::get(sin.as_ptr().add(at), n - at));
                    let (a, b) = (L::get(lo.add(at), n - at), L::get(hi.add(at), n - at));
                    a.mul(c).sub(b.mul(s)).put(lo.add(at), n - at);
                    b.mul(c).add(a.mul(s)).put(hi.add(at), n - at);
                }
                at += L::N;
            }
        }
        Pairing::Adjacent => {
            for (i, (c, s)) in cos.iter().zip(sin).enumerate() {
                // SAFETY: columns 2 (first + i) and the next, below 2 * pairs.
                unsafe {
                    let pair = x.add(2 * (first + i)).cast::<[f32; 2]>();
                    let [a, b] = *pair;
                    *pair = [a * c - b * s, b * c + a * s];
                }
            }
        }
    }
}

pub fn rope(cx: &Cx, x: &View, pos: &View, rope: &Rope) -> Result<()> {
    let pairs = rope.dims as usize / 2;
    let freq = vector(cx.mem, &rope.inv_freq, pairs)?;
    let (x, pos) = (Span::floats(cx.mem, x)?, Span::ints(cx.mem, pos)?);
    let (pairing, factor) = (rope.pairing, rope.factor);
    let ns = 20 + pairs * 3 + x.heads * pairs / 4;
    cx.share(x.rows, ns, |rows| dispatch(cx.isa, Rotate { x, pos, pairing, pairs, freq, factor, rows }))
}

#[cfg(test)]
mod tests {
    use super::angles;

    #[test]
    fn angles_of_a_quarter_million_positions_are_exact_to_the_last_bits() {
        let freqs: Vec<f32> = (0..32).map(|i| 10_000f32.powf(-i as f32 / 32.0)).chain([1.0, 0.0, 3.0]).collect();
        let (mut cos, mut sin) = (vec![0.0; freqs.len()], vec![0.0; freqs.len()]);
        for p in (0..262_144).step_by(37).chain([1, 2, 3, 262_143]) {
            angles(p as f32, &freqs, 1.0, &mut cos, &mut sin);
            for ((f, c), s) in freqs.iter().zip(&cos).zip(&sin) {
                let want = ((p as f32 * f) as f64).sin_cos();
                assert!((want.0 - *s as f64).abs() < 1.2e-7 && (want.1 - *c as f64).abs() < 1.2e-7, "{p} * {f}");
            }
        }
    }
}
