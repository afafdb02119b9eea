//! Formats of several planes, or of two scales a group: as [`blocks`](super::blocks), with decoders that know a row by
//! more than one address.

use super::transpose;
use crate::cpu::mat::planes::{Row, rows};
use crate::cpu::mat::planes_x86::{Eight, PlanesX86};
use crate::cpu::mat::quant::{self, GROUP, Group};
use crate::cpu::mat::tile::CHUNK_GROUPS;
use crate::cpu::mat::tile_x86::prefetch;
use crate::cpu::mat::{TILE, Weights};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// A decoded chunk of eight rows.
#[repr(C, align(64))]
struct Panel {
    /// `[group][j]`: codes 4j .. 4j + 4 of each row, less 128 where the format is `WIDE`.
    codes: [[__m256i; 8]; CHUNK_GROUPS],
    /// `[sixteen][group]`.
    scale: [[__m256i; CHUNK_GROUPS]; 2],
    min: [[__m256i; CHUNK_GROUPS]; 2],
}

/// Decodes `n` groups behind `first`.
///
/// # Safety
/// AVX2, FMA, F16C; the rows' groups are readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn decode<T: PlanesX86>(w: &Weights, rows: &[Row], first: usize, n: usize, to: &mut MaybeUninit<Panel>) {
    let to = to.as_mut_ptr();
    // SAFETY: the caller's promise; fields of `to`.
    unsafe {
        for g in 0..n {
            (*to).codes[g] = transpose(|i| {
                let v = T::vector(rows[i].codes, first + g);
                if T::WIDE { _mm256_xor_si256(v, _mm256_set1_epi8(-128)) } else { v }
            });
        }
        let mut eight = [Eight::zero(); 8];
        for (e, row) in eight.iter_mut().zip(rows) {
            *e = if n == CHUNK_GROUPS {
                T::eight(&w.side, row, first)
            } else {
                Eight::one_by_one::<T>(&w.side, row, first, n)
            };
        }
        for h in 0..if T::HALVES { 2 } else { 1 } {
            (*to).scale[h] = transpose(|i| _mm256_castps_si256(eight[i].scale[h]));
            if T::MIN {
                (*to).min[h] = transpose(|i| _mm256_castps_si256(eight[i].min[h]));
            }
        }
    }
}

/// The dot products of sixteen codes, `4 first ..`, of eight rows with one activation row, exact.
///
/// # Safety
/// AVX2; the sixteen bytes are readable in both planes `x` (high, low).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn half<T: PlanesX86>(y: &[__m256i; 8], x: [*const u8; 2], first: usize, sum: i32) -> __m256i {
    // SAFETY: the caller's promise.
    let four = |x: *const u8, j: usize| unsafe {
        let x = _mm256_set1_epi32(x.add(4 * j).cast::<i32>().read_unaligned());
        // Pairs of products must stay inside 16 bits: 2 * 128 * 127 do, 2 * 255 * 127 would not.
        let pairs = if T::WIDE {
            _mm256_maddubs_epi16(_mm256_abs_epi8(y[j]), _mm256_sign_epi8(x, y[j]))
        } else {
            _mm256_maddubs_epi16(y[j], x)
        };
        _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
    };
    let chain =
        |x: *const u8, start: __m256i| (first..first + 4).fold(start, |acc, j| _mm256_add_epi32(acc, four(x, j)));
    let less = if T::WIDE { 128 } else { 0 };
    // The high plane counts 128 times the low one, which carries the offset.
    let high = chain(x[0], _mm256_setzero_si256());
    let low = chain(x[1], _mm256_set1_epi32((less - T::OFFSET) * sum));
    _mm256_add_epi32(_mm256_slli_epi32::<{ quant::SHIFT as i32 }>(high), low)
}

/// Adds what group `g` contributes to eight sums.
///
/// # Safety
/// AVX2, FMA; [`decode`] wrote the group; `acc` has eight floats, and `x` as [`half`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add<T: PlanesX86>(acc: *mut f32, panel: *const Panel, g: usize, x: [*const u8; 2], of: Group) {
    // SAFETY: the caller's promise.
    unsafe {
        let y = &(*panel).codes[g];
        let (a, b) = (half::<T>(y, x, 0, of.sums[0]), half::<T>(y, x, 4, of.sums[1]));
        let step = |s: &[[__m256i; CHUNK_GROUPS]; 2], h: usize| _mm256_castsi256_ps(s[h][g]);
        let d = _mm256_set1_ps(of.d);
        let mut sum = _mm256_loadu_ps(acc);
        if T::HALVES {
            for (h, dot) in [a, b].into_iter().enumerate() {
                sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(step(&(*panel).scale, h), d), sum);
            }
        } else {
            let dot = _mm256_cvtepi32_ps(_mm256_add_epi32(a, b));
            sum = _mm256_fmadd_ps(dot, _mm256_mul_ps(step(&(*panel).scale, 0), d), sum);
        }
        if T::MIN && T::HALVES {
            for h in [0, 1] {
                sum = _mm256_fmadd_ps(step(&(*panel).min, h), _mm256_set1_ps(of.d * of.sums[h] as f32), sum);
            }
        } else if T::MIN {
            sum = _mm256_fmadd_ps(step(&(*panel).min, 0), _mm256_set1_ps(of.dsum), sum);
        }
        _mm256_storeu_ps(acc, sum);
    }
}

/// See [`crate::cpu::mat::TileFn`].
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn planes<T: PlanesX86>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    acc.fill([0.0; TILE]);
    let groups = w.k / GROUP;
    let rows = rows(w);
    let mut panel = MaybeUninit::uninit();
    for first in (0..groups).step_by(CHUNK_GROUPS) {
        let here = CHUNK_GROUPS.min(groups - first);
        prefetch(w, TILE * w.row * first / groups, TILE * w.row * (first + here) / groups);
        for side in [0, 8] {
            // SAFETY: the promise of `TileFn`. What is read of the panel was written by `decode` for the same groups.
            unsafe {
                decode::<T>(w, &rows[side..side + 8], first, here, &mut panel);
                for g in 0..here {
                    for (&x, acc) in x.iter().zip(acc.iter_mut()) {
                        let of = quant::get_group(x, w.k, first + g);
                        let high = x.add((first + g) * GROUP);
                        add::<T>(acc.as_mut_ptr().add(side), panel.as_ptr(), g, [high, high.add(w.k)], of);
                    }
                }
            }
        }
    }
}
