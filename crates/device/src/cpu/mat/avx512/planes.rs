//! Formats of several planes, or of two scales a group: as [`blocks`](super::blocks), with decoders that know a row by
//! more than one address.

use super::{gather, transpose};
use crate::cpu::mat::planes::{Row, rows};
use crate::cpu::mat::planes_avx512::PlanesX512;
use crate::cpu::mat::planes_x86::Eight;
use crate::cpu::mat::quant::{self, GROUP, Group};
use crate::cpu::mat::tile::CHUNK_GROUPS;
use crate::cpu::mat::tile_x86::prefetch;
use crate::cpu::mat::{TILE, Weights};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Activation rows up to which transposing codes costs more than it saves.
const IN_PLACE: usize = 4;

/// The steps of a chunk, a lane per row; those of second sixteens only where a format has them.
#[repr(C, align(64))]
struct Steps {
    scale: [[__m512i; CHUNK_GROUPS]; 2],
    min: [[__m512i; CHUNK_GROUPS]; 2],
}

/// The steps of one group.
#[derive(Copy, Clone)]
struct Of {
    scale: [__m512; 2],
    min: [__m512; 2],
}

/// Decodes the steps of `n` groups behind `first`.
///
/// # Safety
/// AVX-512 as in the kernels; the rows' numbers for them are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn steps_of<T: PlanesX512>(
    w: &Weights,
    rows: &[Row; TILE],
    first: usize,
    n: usize,
    to: &mut MaybeUninit<Steps>,
) {
    let to = to.as_mut_ptr();
    let mut eight = [Eight::zero(); TILE];
    for (e, row) in eight.iter_mut().zip(rows) {
        // SAFETY: the caller's promise.
        *e = unsafe {
            if n == CHUNK_GROUPS {
                T::eight(&w.side, row, first)
            } else {
                Eight::one_by_one::<T>(&w.side, row, first, n)
            }
        };
    }
    for h in 0..if T::HALVES { 2 } else { 1 } {
        // SAFETY: fields of `to`.
        unsafe {
            (*to).scale[h] = transpose(|n| _mm256_castps_si256(eight[n].scale[h]));
            if T::MIN {
                (*to).min[h] = transpose(|n| _mm256_castps_si256(eight[n].min[h]));
            }
        }
    }
}

/// Of group `g`.
///
/// # Safety
/// AVX-512 as in the kernels; [`steps_of`] wrote the group for the same format.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn of<T: PlanesX512>(steps: &MaybeUninit<Steps>, g: usize) -> Of {
    let s = steps.as_ptr();
    let second = T::HALVES as usize;
    // SAFETY: the caller's promise.
    unsafe {
        let scale = [_mm512_castsi512_ps((*s).scale[0][g]), _mm512_castsi512_ps((*s).scale[second][g])];
        let min = if T::MIN {
            [_mm512_castsi512_ps((*s).min[0][g]), _mm512_castsi512_ps((*s).min[second][g])]
        } else {
            scale
        };
        Of { scale, min }
    }
}

/// Adds what a group contributes: `dot` of each sixteen, or all of it in the first.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn add<T: PlanesX512>(acc: &mut [f32; TILE], dot: [__m512i; 2], s: &Of, of: Group) {
    // SAFETY: sixteen floats are read.
    let mut sum = unsafe { _mm512_loadu_ps(acc.as_ptr()) };
    let d = _mm512_set1_ps(of.d);
    sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[0]), _mm512_mul_ps(s.scale[0], d), sum);
    if T::HALVES {
        sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[1]), _mm512_mul_ps(s.scale[1], d), sum);
    }
    if T::MIN && T::HALVES {
        let part = |h: usize| _mm512_set1_ps(of.d * of.sums[h] as f32);
        sum = _mm512_fmadd_ps(s.min[0], part(0), sum);
        sum = _mm512_fmadd_ps(s.min[1], part(1), sum);
    } else if T::MIN {
        sum = _mm512_fmadd_ps(s.min[0], _mm512_set1_ps(of.dsum), sum);
    }
    // SAFETY: sixteen floats are written.
    unsafe { _mm512_storeu_ps(acc.as_mut_ptr(), sum) }
}

/// The dot products of one transposed group with one activation row, exact.
///
/// # Safety
/// AVX-512 as in the kernels; 32 bytes are readable in both planes `x` (high, low).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn dots<T: PlanesX512>(z: &[__m512i; 8], x: [*const u8; 2], sums: [i32; 2]) -> [__m512i; 2] {
    let zero = _mm512_setzero_si512();
    let start = |sum: i32| _mm512_set1_epi32(-T::OFFSET * sum);
    // SAFETY: the caller's promise.
    let quad = |x: *const u8, j: usize| unsafe { _mm512_set1_epi32(x.add(4 * j).cast::<i32>().read_unaligned()) };
    let chain = |x: *const u8, first: usize, start: __m512i| {
        (first..first + 4).fold(start, |acc, j| _mm512_dpbusd_epi32(acc, z[j], quad(x, j)))
    };
    // The high plane counts 128 times the low one, which carries the offset.
    let both = |high: __m512i, low: __m512i| _mm512_add_epi32(_mm512_slli_epi32::<{ quant::SHIFT }>(high), low);
    if T::HALVES {
        let half = |first: usize, sum: i32| both(chain(x[0], first, zero), chain(x[1], first, start(sum)));
        [half(0, sums[0]), half(4, sums[1])]
    } else {
        let (high, low) = (chain(x[0], 0, zero), chain(x[1], 0, start(sums[0] + sums[1])));
        let (high, low) = (_mm512_add_epi32(high, chain(x[0], 4, zero)), _mm512_add_epi32(low, chain(x[1], 4, zero)));
        [both(high, low), zero]
    }
}

/// The dot products of one group that lies as in the file, a row per 128-bit lane, with one activation row, exact.
///
/// # Safety
/// AVX-512 as in the kernels; 32 bytes are readable in both planes `x` (high, low).
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn dots_in_place<T: PlanesX512>(quads: &[[__m512i; 2]; 4], x: [*const u8; 2], sums: [i32; 2]) -> [__m512i; 2] {
    let zero = _mm512_setzero_si512();
    // SAFETY: the caller's promise.
    let half = |x: *const u8, i: usize| unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(x.add(16 * i).cast())) };
    let less = |dot: __m512i, sum: i32| {
        if T::OFFSET == 0 { dot } else { _mm512_sub_epi32(dot, _mm512_set1_epi32(T::OFFSET * sum)) }
    };
    // The high plane counts 128 times the low one.
    let shifted = |high: __m512i| _mm512_slli_epi32::<{ quant::SHIFT }>(high);
    if T::HALVES {
        let one = |h: usize| {
            let (high, low) = (half(x[0], h), half(x[1], h));
            let dot =
                |q: usize| _mm512_dpbusd_epi32(shifted(_mm512_dpbusd_epi32(zero, quads[q][h], high)), quads[q][h], low);
            less(gather(dot(0), dot(1), dot(2), dot(3)), sums[h])
        };
        [one(0), one(1)]
    } else {
        let (high, low) = ([half(x[0], 0), half(x[0], 1)], [half(x[1], 0), half(x[1], 1)]);
        let dot = |q: usize| {
            let sum = _mm512_dpbusd_epi32(zero, quads[q][0], high[0]);
            let sum = shifted(_mm512_dpbusd_epi32(sum, quads[q][1], high[1]));
            let sum = _mm512_dpbusd_epi32(sum, quads[q][0], low[0]);
            _mm512_dpbusd_epi32(sum, quads[q][1], low[1])
        };
        [less(gather(dot(0), dot(1), dot(2), dot(3)), sums[0] + sums[1]), zero]
    }
}

/// See [`crate::cpu::mat::TileFn`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub unsafe fn planes<T: PlanesX512>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    acc.fill([0.0; TILE]);
    let groups = w.k / GROUP;
    let rows = rows(w);
    // Lane l of quad q is row 4 l + q, as `gather` wants it.
    let quad = |q: usize| [rows[q].codes, rows[4 + q].codes, rows[8 + q].codes, rows[12 + q].codes];
    let quads = [quad(0), quad(1), quad(2), quad(3)];
    let mut steps = MaybeUninit::uninit();
    for first in (0..groups).step_by(CHUNK_GROUPS) {
        let here = CHUNK_GROUPS.min(groups - first);
        prefetch(w, TILE * w.row * first / groups, TILE * w.row * (first + here) / groups);
        // SAFETY: the promise of `TileFn`. What is read of the steps was written by `steps_of` for the same groups.
        unsafe {
            steps_of::<T>(w, &rows, first, here, &mut steps);
            for g in 0..here {
                let (s, at) = (of::<T>(&steps, g), first + g);
                let planes = |x: *const u8| {
                    let high = x.add(at * GROUP);
                    [high, high.add(w.k)]
                };
                if x.len() <= IN_PLACE {
                    let codes = [
                        T::quad(&quads[0], at),
                        T::quad(&quads[1], at),
                        T::quad(&quads[2], at),
                        T::quad(&quads[3], at),
                    ];
                    for (&x, acc) in x.iter().zip(acc.iter_mut()) {
                        let of = quant::get_group(x, w.k, at);
                        add::<T>(acc, dots_in_place::<T>(&codes, planes(x), of.sums), &s, of);
                    }
                } else {
                    let codes = transpose(|n| T::vector(rows[n].codes, at));
                    for (&x, acc) in x.iter().zip(acc.iter_mut()) {
                        let of = quant::get_group(x, w.k, at);
                        add::<T>(acc, dots::<T>(&codes, planes(x), of.sums), &s, of);
                    }
                }
            }
        }
    }
}
