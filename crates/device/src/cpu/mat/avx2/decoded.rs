//! E4M3 codes with scales per tile: decoded piece by piece, then multiplied as f32 weights are, to the bit.

use super::sum;
use crate::cpu::mat::planes_x86::{E4M3_SCALE, e4m3_small};
use crate::cpu::mat::tile_x86::prefetch;
use crate::cpu::mat::{TILE, Weights};
use std::arch::x86_64::*;

/// Columns decoded at a time: two rows stay in the first cache.
const PIECE: usize = 1024;
/// Activation rows that wait for their next piece at a time.
const WAITING: usize = 64;

/// Columns `from .. to` of row `n`, decoded, zeros behind them up to a multiple of sixteen.
///
/// # Safety
/// AVX2 and F16C; they are readable, and `from` begins sixteen elements of one scale.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn decode(w: &Weights, n: usize, from: usize, to: usize, out: &mut [f32; PIECE]) {
    let (codes, scales) = (w.at(n), w.side.scales.at(n.min(w.n - 1)));
    for at in (from..to).step_by(16) {
        let have = (to - at).min(16);
        // SAFETY: the caller's promise; at most PIECE floats are written.
        unsafe {
            let mut part = [0u8; 16];
            let b = if have == 16 {
                _mm_loadu_si128(codes.add(at).cast())
            } else {
                std::ptr::copy_nonoverlapping(codes.add(at), part.as_mut_ptr(), have);
                _mm_loadu_si128(part.as_ptr().cast())
            };
            let by = _mm256_set1_ps(w.side.scale.get(scales, at / w.side.per) * E4M3_SCALE);
            let to = out.as_mut_ptr().add(at - from);
            _mm256_storeu_ps(to, _mm256_mul_ps(e4m3_small(b), by));
            _mm256_storeu_ps(to.add(8), _mm256_mul_ps(e4m3_small(_mm_srli_si128::<8>(b)), by));
        }
    }
}

/// Two decoded rows times an activation row, added to lanes that wait.
///
/// # Safety
/// AVX2 and FMA; `x` has elements `from .. to`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn piece(rows: &[[f32; PIECE]; 2], x: *const f32, (from, to): (usize, usize), lanes: &mut [[__m256; 2]; 2]) {
    let mut acc = *lanes;
    for at in (from..to).step_by(16) {
        let mut part = [0f32; 16];
        // SAFETY: the caller's promise; decoded rows are whole sixteens.
        unsafe {
            let mut x = x.add(at);
            if to - at < 16 {
                std::ptr::copy_nonoverlapping(x, part.as_mut_ptr(), to - at);
                x = part.as_ptr();
            }
            for half in [0, 1] {
                let x = _mm256_loadu_ps(x.add(8 * half));
                for (acc, row) in acc.iter_mut().zip(rows) {
                    let w = _mm256_loadu_ps(row.as_ptr().add(at - from + 8 * half));
                    acc[half] = _mm256_fmadd_ps(w, x, acc[half]);
                }
            }
        }
    }
    *lanes = acc;
}

/// See [`crate::cpu::mat::TileFn`].
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn fp8(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    for n in (0..w.n).step_by(2) {
        for (x, acc) in x.chunks(WAITING).zip(acc.chunks_mut(WAITING)) {
            let mut lanes = [[[_mm256_setzero_ps(); 2]; 2]; WAITING];
            let mut rows = [[0f32; PIECE]; 2];
            for from in (0..w.k).step_by(PIECE) {
                let to = w.k.min(from + PIECE);
                prefetch(w, n * w.row + from * 2, n * w.row + to * 2);
                // SAFETY: the promise of `TileFn`.
                unsafe {
                    for (i, row) in rows.iter_mut().enumerate() {
                        decode(w, n + i, from, to, row);
                    }
                    for (x, lanes) in x.iter().zip(&mut lanes) {
                        piece(&rows, x.cast(), (from, to), lanes);
                    }
                }
            }
            for (acc, lanes) in acc.iter_mut().zip(lanes) {
                acc[n..n + 2].copy_from_slice(&[sum(lanes[0]), sum(lanes[1])]);
            }
        }
    }
}
