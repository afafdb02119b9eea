//! Block formats times activations of fifteen bits.

use super::steps::Steps;
use crate::cpu::mat::avx2;
use crate::cpu::mat::quant::{self, GROUP};
use crate::cpu::mat::tile::{CHUNK_GROUPS, chunk_bytes};
use crate::cpu::mat::tile_avx512::{Sixteen, TileX512};
use crate::cpu::mat::tile_x86::{TileX86, prefetch};
use crate::cpu::mat::{TILE, Weights};
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// Sixteen weight rows, group by group.
pub trait Walk {
    /// The block format whose arithmetic it is.
    type Tile: TileX86;
    /// Calls `f(g, codes, steps)` for every group; vector j of `codes` holds codes 4 j to 4 j + 3, a 32-bit lane per row.
    ///
    /// # Safety
    /// AVX-512 as in the file's kernels; the tile is whole and its rows are readable.
    unsafe fn each_group(w: &Weights, f: impl FnMut(usize, &[__m512i; 8], &Group16));
}

/// Blocks as they lie in the file.
pub struct Filed<T>(PhantomData<T>);

/// See [`crate::cpu::mat::TileFn`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub unsafe fn blocks<T: TileX512>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    // SAFETY: the promise of `TileFn`; a machine with AVX-512 has AVX2.
    unsafe {
        // The last rows of a matrix. The result is the same to the bit.
        if w.n < TILE { avx2::blocks::<T>(w, x, acc) } else { product::<Filed<T>>(w, x, acc) }
    }
}

impl<T: TileX512> Walk for Filed<T> {
    type Tile = T;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn each_group(w: &Weights, mut f: impl FnMut(usize, &[__m512i; 8], &Group16)) {
        let groups = w.k / GROUP;
        let mut steps = Steps::new();
        for first in (0..groups).step_by(CHUNK_GROUPS) {
            let here = CHUNK_GROUPS.min(groups - first);
            prefetch(w, TILE * w.row * first / groups, TILE * w.row * (first + here) / groups);
            let rows = Sixteen { base: w.base.wrapping_add(first / CHUNK_GROUPS * chunk_bytes::<T>()), row: w.row };
            // SAFETY: the caller's promise; steps were read for the same groups.
            unsafe {
                steps.read::<T>(rows, here);
                let of =
                    |g: usize| Group16 { scale: steps.scale::<T>(g), min: steps.min::<T>(g), sub: steps.sub::<T>(g) };
                // Some groups at a time: large blocks keep them in parts of the same bytes.
                if T::FOURS {
                    for g in (0..here).step_by(4) {
                        for (i, codes) in T::four_columns(rows, g).iter().enumerate() {
                            f(first + g + i, codes, &of(g + i));
                        }
                    }
                    continue;
                }
                for g in (0..here / 2 * 2).step_by(2) {
                    let two = T::two_columns(rows, g);
                    f(first + g, &two[0], &of(g));
                    f(first + g + 1, &two[1], &of(g + 1));
                }
                if here % 2 == 1 {
                    f(first + here - 1, &T::columns(rows, here - 1), &of(here - 1));
                }
            }
        }
    }
}

/// The steps of a group, a lane per row.
pub struct Group16 {
    pub scale: __m512,
    pub min: __m512,
    pub sub: [__m512i; 2],
}

/// Any number of activation rows.
///
/// # Safety
/// The promise of `TileFn`, with a whole tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub unsafe fn product<W: Walk>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    // SAFETY: the caller's promise.
    unsafe {
        match *x {
            [a] => few::<W, 1>(w, [a], acc),
            [a, b] => few::<W, 2>(w, [a, b], acc),
            [a, b, c, d] => few::<W, 4>(w, [a, b, c, d], acc),
            _ => many::<W>(w, x, acc),
        }
    }
}

/// A few of them: sums stay in registers.
///
/// # Safety
/// As [`product`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn few<W: Walk, const R: usize>(w: &Weights, x: [*const u8; R], acc: &mut [[f32; TILE]]) {
    let mut sums = [_mm512_setzero_ps(); R];
    // SAFETY: the caller's promise.
    unsafe {
        W::each_group(w, |g, codes, of| {
            for (x, sum) in x.iter().zip(&mut sums) {
                *sum = add::<W::Tile>(*sum, codes, of, *x, w.k, g);
            }
        });
        for (sum, acc) in sums.iter().zip(acc) {
            _mm512_storeu_ps(acc.as_mut_ptr(), *sum);
        }
    }
}

/// More of them.
///
/// # Safety
/// As [`product`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn many<W: Walk>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    acc.fill([0.0; TILE]);
    // SAFETY: the caller's promise.
    unsafe { W::each_group(w, |g, codes, of| each_row::<W::Tile>((g, codes, of), (x, w.k), acc)) }
}

/// Adds what group `g` contributes to the sums of activation rows of `k` elements.
///
/// # Safety
/// AVX-512 as in the file's kernels; `x` are rows of `k` elements.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub unsafe fn each_row<T: TileX86>(
    (g, codes, of): (usize, &[__m512i; 8], &Group16),
    (x, k): (&[*const u8], usize),
    acc: &mut [[f32; TILE]],
) {
    for (x, acc) in x.iter().zip(acc.iter_mut()) {
        // SAFETY: the caller's promise.
        unsafe {
            let sum = add::<T>(_mm512_loadu_ps(acc.as_ptr()), codes, of, *x, k, g);
            _mm512_storeu_ps(acc.as_mut_ptr(), sum);
        }
    }
}

/// Adds what group `g` contributes to the sums of activation row `x`.
///
/// # Safety
/// AVX-512 as in the file's kernels; `x` is a row of `k` elements.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn add<T: TileX86>(sum: __m512, z: &[__m512i; 8], s: &Group16, x: *const u8, k: usize, g: usize) -> __m512 {
    // SAFETY: the caller's promise.
    let (of, dot) = unsafe {
        let of = quant::get_group(x, k, g);
        let high = x.add(g * GROUP);
        let dot = dots::<T>(z, &s.sub, [high, high.add(k)], of.sums);
        (of, dot)
    };
    scaled::<T>(sum, dot, s, of)
}

/// Adds a group's exact dot products, times their scales.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn scaled<T: TileX86>(sum: __m512, dot: __m512i, s: &Group16, of: quant::Group) -> __m512 {
    let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(s.scale, _mm512_set1_ps(of.d)), sum);
    if T::MIN { _mm512_fmadd_ps(s.min, _mm512_set1_ps(of.dsum), sum) } else { sum }
}

/// Adds the dot products of a group whose planes' products (high, low) are known and whose codes' offset is still in them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub fn offset_and_scaled<T: TileX86>(sum: __m512, [high, low]: [__m512i; 2], s: &Group16, of: quant::Group) -> __m512 {
    let dot = _mm512_add_epi32(_mm512_slli_epi32::<{ quant::SHIFT }>(high), low);
    let dot = _mm512_sub_epi32(dot, _mm512_set1_epi32(T::OFFSET * (of.sums[0] + of.sums[1])));
    scaled::<T>(sum, dot, s, of)
}

/// The dot products of one group with one activation row, exact.
///
/// # Safety
/// AVX-512 as in the file's kernels; 32 bytes are readable in both planes `x` (high, low).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn dots<T: TileX86>(z: &[__m512i; 8], sub: &[__m512i; 2], x: [*const u8; 2], sums: [i32; 2]) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let quad = |x: *const u8, j: usize| _mm512_set1_epi32(x.add(4 * j).cast::<i32>().read_unaligned());
        let start = |sum: i32| _mm512_set1_epi32(-T::OFFSET * sum);
        let chain = |x: *const u8, first: usize, start: __m512i| {
            (first..first + 4).fold(start, |acc, j| _mm512_dpbusd_epi32(acc, z[j], quad(x, j)))
        };
        // The high plane counts 128 times the low one, which carries the offset.
        let both = |high: __m512i, low: __m512i| _mm512_add_epi32(_mm512_slli_epi32::<{ quant::SHIFT }>(high), low);
        let zero = _mm512_setzero_si512();
        if T::SUB {
            let half = |first: usize, sum: i32| both(chain(x[0], first, zero), chain(x[1], first, start(sum)));
            let (a, b) = (half(0, sums[0]), half(4, sums[1]));
            _mm512_add_epi32(_mm512_mullo_epi32(a, sub[0]), _mm512_mullo_epi32(b, sub[1]))
        } else {
            let high = chain(x[0], 4, chain(x[0], 0, zero));
            let low = chain(x[1], 4, chain(x[1], 0, start(sums[0] + sums[1])));
            both(high, low)
        }
    }
}
