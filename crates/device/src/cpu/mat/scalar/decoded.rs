//! E4M3 codes with scales per tile: decoded, then multiplied as f32 weights are.

use super::{F32, floats};
use crate::cpu::mat::{TILE, Weights};
use checkpoint::float8::e4m3;

/// See [`crate::cpu::mat::TileFn`].
pub unsafe fn fp8(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    let mut row = vec![0f32; w.k];
    for n in 0..w.n {
        let (codes, scales) = (w.at(n), w.side.scales.at(n));
        for (i, y) in row.iter_mut().enumerate() {
            // SAFETY: the promise of `TileFn`.
            *y = unsafe { e4m3(*codes.add(i)) * w.side.scale.get(scales, i / w.side.per) };
        }
        let one = Weights { base: row.as_ptr().cast(), row: 4 * w.k, n: 1, ..*w };
        let mut sums = vec![[0.0; TILE]; x.len()];
        // SAFETY: one row of k floats, and the activations of `TileFn`.
        unsafe { floats::<F32>(&one, x, &mut sums) }
        acc.iter_mut().zip(&sums).for_each(|(acc, s)| acc[n] = s[0]);
    }
}
