//! E4M3 codes with scales per tile: decoded piece by piece, then multiplied as f32 weights are, to the bit.

use super::sum;
use crate::cpu::mat::tile_x86::prefetch;
use crate::cpu::mat::{TILE, Weights};
use std::arch::x86_64::*;

/// Columns decoded at a time where several activation rows use them: four rows stay in the first cache.
const PIECE: usize = 1024;
/// Activation rows that wait for their next piece at a time.
const WAITING: usize = 64;
/// What [`small`] leaves out.
const LEFT_OUT: f32 = 256.0;

/// Sixteen codes times 2^-8: the bits of E4M3 are those of an f16 with another bias.
///
/// # Safety
/// AVX-512 as in the kernels; the codes of `mask` are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn small(p: *const u8, mask: u16) -> __m512 {
    // SAFETY: the caller's promise; masked-off codes are not touched.
    let codes = unsafe { _mm_maskz_loadu_epi8(mask, p.cast()) };
    let wide = _mm256_cvtepi8_epi16(codes);
    let bits = _mm256_and_si256(_mm256_slli_epi16::<7>(wide), _mm256_set1_epi16(0xBF80u16 as i16));
    let all = _mm_set1_epi8(0x7F);
    let nan = _mm_cmpeq_epi8_mask(_mm_and_si128(codes, all), all);
    _mm512_mask_mov_ps(_mm512_cvtph_ps(bits), nan, _mm512_set1_ps(f32::NAN))
}

/// The scale of column `at` of a row, with what [`small`] left out.
///
/// # Safety
/// AVX-512 as in the kernels; it is readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn scale(w: &Weights, scales: *const u8, at: usize) -> __m512 {
    // SAFETY: the caller's promise.
    _mm512_set1_ps(unsafe { w.side.scale.get(scales, at / w.side.per) } * LEFT_OUT)
}

/// Which of sixteen elements at `at` are before `end`.
#[inline(always)]
fn mask(at: usize, end: usize) -> u16 {
    if end - at >= 16 { u16::MAX } else { (1 << (end - at)) - 1 }
}

/// Four weight rows times one activation row, decoded on the way.
///
/// # Safety
/// AVX-512 as in the kernels; the rows and `x` have `w.k` elements.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn on_the_way(w: &Weights, n: usize, x: *const f32) -> [f32; 4] {
    let (codes, scales): ([_; 4], [_; 4]) =
        (std::array::from_fn(|i| w.at(n + i)), std::array::from_fn(|i| w.side.scales.at((n + i).min(w.n - 1))));
    let mut acc = [_mm512_setzero_ps(); 4];
    for from in (0..w.k).step_by(w.side.per) {
        let to = w.k.min(from + w.side.per);
        // SAFETY: the caller's promise.
        unsafe {
            let by = [
                scale(w, scales[0], from),
                scale(w, scales[1], from),
                scale(w, scales[2], from),
                scale(w, scales[3], from),
            ];
            for at in (from..to).step_by(16) {
                let m = mask(at, to);
                prefetch(w, n * w.row + at * 4, n * w.row + (at + 16) * 4);
                let x = _mm512_maskz_loadu_ps(m, x.add(at));
                for i in 0..4 {
                    let v = _mm512_mul_ps(small(codes[i].add(at), m), by[i]);
                    acc[i] = _mm512_fmadd_ps(v, x, acc[i]);
                }
            }
        }
    }
    [sum(acc[0]), sum(acc[1]), sum(acc[2]), sum(acc[3])]
}

/// Columns `from .. to` of row `n`, decoded, zeros behind them up to a multiple of sixteen.
///
/// # Safety
/// AVX-512 as in the kernels; they are readable, and `from` begins sixteen elements of one scale.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn decode(w: &Weights, n: usize, from: usize, to: usize, out: &mut [f32; PIECE]) {
    let (codes, scales) = (w.at(n), w.side.scales.at(n.min(w.n - 1)));
    for at in (from..to).step_by(16) {
        // SAFETY: the caller's promise; at most PIECE floats are written.
        unsafe {
            let v = _mm512_mul_ps(small(codes.add(at), mask(at, to)), scale(w, scales, at));
            _mm512_storeu_ps(out.as_mut_ptr().add(at - from), v);
        }
    }
}

/// Four decoded rows times `R` activation rows, added to lanes that wait.
///
/// # Safety
/// AVX-512 as in the kernels; all of `x` have elements `from .. to`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn piece<const R: usize>(
    rows: &[[f32; PIECE]; 4],
    x: [*const u8; R],
    (from, to): (usize, usize),
    lanes: &mut [[__m512; 4]],
) {
    let mut acc: [[__m512; 4]; R] = std::array::from_fn(|r| lanes[r]);
    for at in (from..to).step_by(16) {
        // SAFETY: the caller's promise; decoded rows are whole sixteens.
        unsafe {
            let w: [__m512; 4] = [
                _mm512_loadu_ps(rows[0].as_ptr().add(at - from)),
                _mm512_loadu_ps(rows[1].as_ptr().add(at - from)),
                _mm512_loadu_ps(rows[2].as_ptr().add(at - from)),
                _mm512_loadu_ps(rows[3].as_ptr().add(at - from)),
            ];
            for (acc, x) in acc.iter_mut().zip(x) {
                let x = _mm512_maskz_loadu_ps(mask(at, to), x.cast::<f32>().add(at));
                for (acc, w) in acc.iter_mut().zip(w) {
                    *acc = _mm512_fmadd_ps(w, x, *acc);
                }
            }
        }
    }
    lanes[..R].copy_from_slice(&acc);
}

/// See [`crate::cpu::mat::TileFn`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub unsafe fn fp8(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    for n in (0..w.n).step_by(4) {
        if let [x] = *x {
            // SAFETY: the promise of `TileFn`.
            acc[0][n..n + 4].copy_from_slice(&unsafe { on_the_way(w, n, x.cast()) });
            continue;
        }
        for (x, acc) in x.chunks(WAITING).zip(acc.chunks_mut(WAITING)) {
            let mut lanes = [[_mm512_setzero_ps(); 4]; WAITING];
            let mut rows = [[0f32; PIECE]; 4];
            for from in (0..w.k).step_by(PIECE) {
                let to = w.k.min(from + PIECE);
                // SAFETY: the promise of `TileFn`.
                unsafe {
                    for (i, row) in rows.iter_mut().enumerate() {
                        decode(w, n + i, from, to, row);
                    }
                    let (fours, rest) = x.as_chunks::<4>();
                    for (x, lanes) in fours.iter().zip(lanes.chunks_mut(4)) {
                        piece::<4>(&rows, *x, (from, to), lanes);
                    }
                    for (x, lanes) in rest.iter().zip(lanes[4 * fours.len()..].chunks_mut(1)) {
                        piece::<1>(&rows, [*x], (from, to), lanes);
                    }
                }
            }
            for (acc, lanes) in acc.iter_mut().zip(lanes) {
                acc[n..n + 4].copy_from_slice(&[sum(lanes[0]), sum(lanes[1]), sum(lanes[2]), sum(lanes[3])]);
            }
        }
    }
}
