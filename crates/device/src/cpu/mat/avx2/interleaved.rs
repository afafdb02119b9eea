//! Interleaved blocks times activations of fifteen bits, on halves of a tile.

use super::{Steps, add};
use crate::cpu::mat::interleaved::{Chunk, Codes, Q5K_HIGH, Q6K_HIGH, SIX, SUB, ask_ahead, groups_from};
use crate::cpu::mat::planes_x86::PlanesX86;
use crate::cpu::mat::quant::GROUP;
use crate::cpu::mat::side::Scale;
use crate::cpu::mat::tile::CHUNK_GROUPS;
use crate::cpu::mat::tile_x86::{Scales, TileX86, both, look_both_up};
use crate::cpu::mat::tile32::{E2M1_CODES, IQ4_CODES};
use crate::cpu::mat::{TILE, Weights, tile32, tile256};
use std::arch::x86_64::*;

/// Codes of eight of sixteen interleaved rows.
pub trait Interleaved256: TileX86 + Codes {
    /// Codes of group `g` of rows `side ..`: vector j holds codes 4 j to 4 j + 3, a 32-bit lane per row; made signed where
    /// the offset is 128.
    ///
    /// # Safety
    /// AVX2 is available; the chunk is readable.
    unsafe fn columns(c: Chunk, g: usize, side: usize) -> [__m256i; 8];
}

/// Word `i` of rows `side ..`.
///
/// # Safety
/// AVX2; readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn word(p: *const u8, i: usize, side: usize) -> __m256i {
    // SAFETY: the caller's promise; the load takes any alignment.
    unsafe { _mm256_loadu_si256(p.wrapping_add(64 * i + 4 * side).cast()) }
}

/// The bits of `MASK` of every byte, shifted down by `n` first.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bits<const MASK: i8>(v: __m256i, n: usize) -> __m256i {
    _mm256_and_si256(_mm256_srl_epi16(v, _mm_cvtsi32_si128(n as i32)), _mm256_set1_epi8(MASK))
}

/// A format of sixteen bytes a group, code i below and code i + 16 above.
pub trait Packed256: TileX86 {
    /// Lower and upper codes.
    ///
    /// # Safety
    /// AVX2 is available.
    unsafe fn decode(v: __m256i) -> [__m256i; 2];
}

/// The codes of rows `side ..` of the group at `p`.
///
/// # Safety
/// AVX2; 256 bytes are readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn packed<T: Packed256>(p: *const u8, side: usize) -> [__m256i; 8] {
    let signed = |v: __m256i| if T::OFFSET == 128 { _mm256_xor_si256(v, _mm256_set1_epi8(-128)) } else { v };
    let mut all = [_mm256_setzero_si256(); 8];
    for j in 0..4 {
        // SAFETY: the caller's promise.
        let [low, high] = unsafe { T::decode(word(p, j, side)) };
        (all[j], all[4 + j]) = (signed(low), signed(high));
    }
    all
}

macro_rules! packed {
    ($tile:ty, $decode:expr) => {
        impl Packed256 for $tile {
            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn decode(v: __m256i) -> [__m256i; 2] {
                $decode(v)
            }
        }
        impl Interleaved256 for $tile {
            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn columns(c: Chunk, g: usize, side: usize) -> [__m256i; 8] {
                // SAFETY: the caller's promise.
                unsafe { packed::<Self>(c.field(Self::CODES.0, Self::CODES.1, g), side) }
            }
        }
    };
}

packed!(tile32::Q4_0, both);
packed!(tile32::Q4_1, both);
packed!(tile32::Iq4Nl, |v| look_both_up(&IQ4_CODES, v));
packed!(tile32::Mxfp4, |v| look_both_up(&E2M1_CODES, v));

/// Rows `side ..` of a chunk.
struct Half {
    c: Chunk,
    side: usize,
}

impl Half {
    /// Word `i` of a block's field.
    ///
    /// # Safety
    /// AVX2; readable.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn word(&self, (at, bytes): (usize, usize), block: usize, i: usize) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { word(self.c.field(at, bytes, block), i, self.side) }
    }
}

/// A format of which vector `j` of group `g` is an expression of a half's words.
macro_rules! words {
    ($tile:ty, |$half:ident, $g:ident, $j:ident| $codes:expr) => {
        impl Interleaved256 for $tile {
            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn columns(c: Chunk, $g: usize, side: usize) -> [__m256i; 8] {
                let ($half, mut all) = (Half { c, side }, [_mm256_setzero_si256(); 8]);
                for ($j, to) in all.iter_mut().enumerate() {
                    // SAFETY: the caller's promise.
                    *to = unsafe { $codes };
                }
                all
            }
        }
    };
}

words!(tile32::Q8_0, |h, g, j| h.word(Self::CODES, g, j));
words!(tile256::Q4K, |h, g, j| bits::<15>(h.word(Self::CODES, 0, g / 2 * 8 + j), g % 2 * 4));
words!(tile256::Q5K, |h, g, j| {
    let high = bits::<1>(h.word(Q5K_HIGH, 0, j), g);
    let low = bits::<15>(h.word(Self::CODES, 0, g / 2 * 8 + j), g % 2 * 4);
    _mm256_or_si256(low, _mm256_slli_epi16::<4>(high))
});
words!(tile256::Q6K, |h, g, j| {
    let low = bits::<15>(h.word(Self::CODES, 0, g / 4 * 16 + g % 2 * 8 + j), g % 4 / 2 * 4);
    let high = bits::<3>(h.word(Q6K_HIGH, 0, g / 4 * 8 + j), g % 4 * 2);
    _mm256_or_si256(low, _mm256_slli_epi16::<4>(high))
});

/// Reads the steps of rows `side ..` of a chunk of `here` groups.
///
/// # Safety
/// AVX2, FMA, F16C; the chunk is readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn read_steps<T: TileX86>(c: Chunk, here: usize, side: usize, to: &mut Steps) {
    // SAFETY: the caller's promise.
    unsafe {
        let halves = |at: usize, g: usize| {
            let p = c.field(at, 2, g).wrapping_add(2 * side);
            _mm256_cvtph_ps(_mm_loadu_si128(p.cast()))
        };
        match T::SCALES {
            Scales::F16 { d, m } => {
                for g in 0..here {
                    to.scale[g] = _mm256_castps_si256(halves(d, g));
                    if T::MIN {
                        to.min[g] = _mm256_castps_si256(halves(m, g));
                    }
                }
            }
            Scales::HalfPower { e } => {
                for g in 0..here {
                    let p = c.field(e, 1, g).wrapping_add(side);
                    to.scale[g] = half_powers(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())));
                }
            }
            Scales::Six { d } => {
                let p = c.field(d + 4, SIX, 0);
                let packed = sixes(word(p, 0, side), word(p, 1, side), word(p, 2, side));
                let minus = _mm256_xor_ps(halves(d + 2, 0), _mm256_set1_ps(-0.0));
                for ((bytes, by), to) in packed.iter().zip([halves(d, 0), minus]).zip([&mut to.scale, &mut to.min]) {
                    for (g, to) in to.iter_mut().enumerate() {
                        let byte = _mm256_srl_epi32(bytes[g / 4], _mm_cvtsi32_si128(8 * (g % 4) as i32));
                        let byte = _mm256_and_si256(byte, _mm256_set1_epi32(0xFF));
                        *to = _mm256_castps_si256(_mm256_mul_ps(by, _mm256_cvtepi32_ps(byte)));
                    }
                }
            }
            Scales::Sub { d, sub } => {
                to.scale = [_mm256_castps_si256(halves(d, 0)); CHUNK_GROUPS];
                for i in 0..2 * CHUNK_GROUPS {
                    let bytes = word(c.field(sub, SUB, 0), i / 4, side);
                    let up = _mm256_sll_epi32(bytes, _mm_cvtsi32_si128(24 - 8 * (i % 4) as i32));
                    to.sub[i % 2][i / 2] = _mm256_srai_epi32::<24>(up);
                }
            }
            Scales::Other => {}
        }
    }
}

/// `2^(e - 128)` of eight exponents, as bits; 255 is NaN.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn half_powers(e: __m256i) -> __m256i {
    let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
    // Below 2 the result is subnormal.
    let tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
    let bits = _mm256_blendv_epi8(normal, tiny, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e));
    let nan = _mm256_castps_si256(_mm256_set1_ps(f32::NAN));
    _mm256_blendv_epi8(bits, nan, _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255)))
}

/// Scales and offsets of eight groups, a byte each, from the three packed words (`checkpoint::block::unpack_scales`).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sixes(a: __m256i, b: __m256i, c: __m256i) -> [[__m256i; 2]; 2] {
    let (nibbles, six) = (_mm256_set1_epi32(0x0F0F_0F0F), _mm256_set1_epi32(0x3F3F_3F3F));
    // The upper two bits of the last four are at the top of the first four.
    let top = |v: __m256i| _mm256_and_si256(_mm256_srli_epi32::<2>(v), _mm256_set1_epi32(0x3030_3030));
    let high = |low: __m256i, v: __m256i| _mm256_or_si256(_mm256_and_si256(low, nibbles), top(v));
    [[_mm256_and_si256(a, six), high(c, a)], [_mm256_and_si256(b, six), high(_mm256_srli_epi32::<4>(c), b)]]
}

/// See [`crate::cpu::mat::TileFn`], for interleaved rows.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn interleaved<T: Interleaved256>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    if w.n < TILE {
        // The last rows of a matrix lie as in the file.
        // SAFETY: the promise of `TileFn`.
        return unsafe { super::blocks::<T>(w, x, acc) };
    }
    acc.fill([0.0; TILE]);
    let groups = w.k / GROUP;
    let mut to = Steps::zero();
    for first in (0..groups).step_by(CHUNK_GROUPS) {
        let here = groups_from(first, groups);
        let c = Chunk::new::<T>(w, first, here);
        c.ask_beside::<T>();
        (0..here).for_each(|g| c.ask_codes::<T>(g));
        for side in [0, 8] {
            // SAFETY: the promise of `TileFn`.
            unsafe {
                read_steps::<T>(c, here, side, &mut to);
                for g in 0..here {
                    let y = T::columns(c, g, side);
                    for (&x, acc) in x.iter().zip(acc.iter_mut()) {
                        add::<T>(&mut acc[side..side + 8], &y, &to, g, x, w.k, first + g);
                    }
                }
            }
        }
    }
}

/// Number `i` of rows `side ..`, as bits.
///
/// # Safety
/// AVX2, FMA, F16C; readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn numbers(scale: Scale, p: *const u8, i: usize, side: usize) -> __m256i {
    let at = |bytes: usize| p.wrapping_add(bytes * (TILE * i + side));
    // SAFETY: the caller's promise; the loads take any alignment.
    unsafe {
        match scale {
            Scale::F32 => _mm256_loadu_si256(at(4).cast()),
            Scale::F16 => _mm256_castps_si256(_mm256_cvtph_ps(_mm_loadu_si128(at(2).cast()))),
            Scale::BF16 => _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(at(2).cast()))),
            Scale::E8M0 => half_powers(_mm256_cvtepu8_epi32(_mm_loadl_epi64(at(1).cast()))),
        }
    }
}

/// See [`crate::cpu::mat::TileFn`], for interleaved planes of nibbles and numbers, whose arithmetic is that of `T`. `P` knows
/// them as in the file.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn interleaved_planes<T: Packed256, P: PlanesX86>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    if w.n < TILE {
        // SAFETY: the promise of `TileFn`.
        return unsafe { super::planes::<P>(w, x, acc) };
    }
    acc.fill([0.0; TILE]);
    let mut to = Steps::zero();
    for g in 0..w.k / GROUP {
        let p = w.base.wrapping_add(16 * TILE * g);
        ask_ahead(p, 16 * TILE);
        for side in [0, 8] {
            // SAFETY: the promise of `TileFn`.
            unsafe {
                to.scale[0] = numbers(w.side.scale, w.side.scales.base.raw(), g / w.side.per, side);
                if T::MIN {
                    to.min[0] = numbers(w.side.scale, w.side.mins.base.raw(), g / w.side.per, side);
                }
                let y = packed::<T>(p, side);
                for (&x, acc) in x.iter().zip(acc.iter_mut()) {
                    add::<T>(&mut acc[side..side + 8], &y, &to, 0, x, w.k, g);
                }
            }
        }
    }
}
