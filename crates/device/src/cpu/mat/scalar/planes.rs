//! Formats of several planes, or of two scales a group.

use crate::cpu::mat::planes::{Planes, rows};
use crate::cpu::mat::quant::{self, GROUP};
use crate::cpu::mat::{TILE, Weights};

/// See [`crate::cpu::mat::TileFn`].
pub unsafe fn planes<T: Planes>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    acc.fill([0.0; TILE]);
    for (n, row) in rows(w).iter().enumerate().take(w.n) {
        for g in 0..w.k / GROUP {
            // SAFETY: the promise of `TileFn`.
            let (codes, steps) = unsafe { (T::codes(row.codes, g), T::steps(&w.side, row, g)) };
            for (&x, acc) in x.iter().zip(acc.iter_mut()) {
                // SAFETY: the promise of `TileFn`.
                let (high, low, of) = unsafe {
                    let plane = |first: usize| *x.add(first + g * GROUP).cast::<[i8; GROUP]>();
                    (plane(0), plane(w.k), quant::get_group(x, w.k, g))
                };
                let q = |i: usize| ((high[i] as i32) << quant::SHIFT) + low[i] as i32;
                let half = |h: usize| (16 * h..16 * h + 16).map(|i| (codes[i] as i32 - T::OFFSET) * q(i)).sum::<i32>();
                let mut sum = acc[n];
                if T::HALVES {
                    for h in [0, 1] {
                        sum = (half(h) as f32).mul_add(steps.scale[h] * of.d, sum);
                    }
                } else {
                    sum = ((half(0) + half(1)) as f32).mul_add(steps.scale[0] * of.d, sum);
                }
                if T::MIN && T::HALVES {
                    for h in [0, 1] {
                        sum = steps.min[h].mul_add(of.d * of.sums[h] as f32, sum);
                    }
                } else if T::MIN {
                    sum = steps.min[0].mul_add(of.dsum, sum);
                }
                acc[n] = sum;
            }
        }
    }
}
