//! Interleaved blocks times activations of fifteen bits: what the kernels of file layout have after they transposed lies in
//! memory.

use super::blocks::{Group16, Walk, product};
use super::steps::{half_powers, halves, sixes};
use crate::cpu::mat::interleaved::{Chunk, Codes, Q5K_HIGH, Q6K_HIGH, SIX, SUB, ask_ahead, groups_from};
use crate::cpu::mat::planes_avx512::PlanesX512;
use crate::cpu::mat::quant::GROUP;
use crate::cpu::mat::side::Scale;
use crate::cpu::mat::tile::CHUNK_GROUPS;
use crate::cpu::mat::tile_avx512::{bits, each_half, lookup, nibbles};
use crate::cpu::mat::tile_x86::{Scales, TileX86};
use crate::cpu::mat::tile32::{E2M1_CODES, IQ4_CODES};
use crate::cpu::mat::{TILE, Weights, avx2, tile32, tile256};
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// Codes of interleaved rows.
pub trait Interleaved512: TileX86 + Codes {
    /// Codes of group `g`: vector j holds codes 4 j to 4 j + 3, a 32-bit lane per row.
    ///
    /// # Safety
    /// AVX-512 F and BW are available; the chunk is readable.
    unsafe fn columns(c: Chunk, g: usize) -> [__m512i; 8];

    /// [`columns`](Self::columns) of the even group `g` and of the one behind it.
    ///
    /// # Safety
    /// As there, for both.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn two_columns(c: Chunk, g: usize) -> [[__m512i; 8]; 2] {
        // SAFETY: the caller's promise.
        unsafe { [Self::columns(c, g), Self::columns(c, g + 1)] }
    }
}

/// Word `i` of sixteen rows.
///
/// # Safety
/// AVX-512 F; readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn word(p: *const u8, i: usize) -> __m512i {
    // SAFETY: the caller's promise; the load takes any alignment.
    unsafe { _mm512_loadu_si512(p.wrapping_add(64 * i).cast()) }
}

/// A format of sixteen bytes a group, code i below and code i + 16 above.
pub trait Packed512: TileX86 {
    /// Lower and upper codes.
    ///
    /// # Safety
    /// AVX-512 F and BW are available.
    unsafe fn decode(v: __m512i) -> [__m512i; 2];
}

/// The codes of the group at `p`.
///
/// # Safety
/// AVX-512 F and BW; 256 bytes are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn packed<T: Packed512>(p: *const u8) -> [__m512i; 8] {
    // SAFETY: the caller's promise.
    unsafe {
        let (a, b) = (T::decode(word(p, 0)), T::decode(word(p, 1)));
        let (c, d) = (T::decode(word(p, 2)), T::decode(word(p, 3)));
        [a[0], b[0], c[0], d[0], a[1], b[1], c[1], d[1]]
    }
}

macro_rules! packed {
    ($tile:ty, $decode:expr) => {
        impl Packed512 for $tile {
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw")]
            unsafe fn decode(v: __m512i) -> [__m512i; 2] {
                $decode(v)
            }
        }
        impl Interleaved512 for $tile {
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw")]
            unsafe fn columns(c: Chunk, g: usize) -> [__m512i; 8] {
                // SAFETY: the caller's promise.
                unsafe { packed::<Self>(c.field(Self::CODES.0, Self::CODES.1, g)) }
            }
        }
    };
}

packed!(tile32::Q4_0, nibbles);
packed!(tile32::Q4_1, nibbles);
packed!(tile32::Iq4Nl, |v| lookup(&IQ4_CODES, v));
packed!(tile32::Mxfp4, |v| lookup(&E2M1_CODES, v));

impl Interleaved512 for tile32::Q8_0 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn columns(c: Chunk, g: usize) -> [__m512i; 8] {
        let p = c.field(Self::CODES.0, Self::CODES.1, g);
        let mut all = [_mm512_setzero_si512(); 8];
        for (i, v) in all.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *v = _mm512_xor_si512(unsafe { word(p, i) }, _mm512_set1_epi8(-128));
        }
        all
    }
}

/// [`Interleaved512::columns`] from pairs.
macro_rules! in_pairs {
    () => {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw")]
        unsafe fn columns(c: Chunk, g: usize) -> [__m512i; 8] {
            // SAFETY: the caller's promise: blocks of 256 have both groups.
            unsafe { Self::two_columns(c, g / 2 * 2)[g % 2] }
        }
    };
}

impl Interleaved512 for tile256::Q4K {
    in_pairs!();
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn two_columns(c: Chunk, g: usize) -> [[__m512i; 8]; 2] {
        let p = c.field(Self::CODES.0, Self::CODES.1, 0);
        // SAFETY: the caller's promise: both groups are halves of the same 32 bytes.
        unsafe { each_half(|j| nibbles(word(p, 4 * g + j)), |j| nibbles(word(p, 4 * g + 4 + j))) }
    }
}

impl Interleaved512 for tile256::Q5K {
    in_pairs!();
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn two_columns(c: Chunk, g: usize) -> [[__m512i; 8]; 2] {
        let (p, q) = (c.field(Self::CODES.0, Self::CODES.1, 0), c.field(Q5K_HIGH.0, Q5K_HIGH.1, 0));
        // SAFETY: the caller's promise, as above; one byte holds the fifth bits of all eight groups.
        let with = |j: usize| unsafe {
            let ([a, b], high) = (nibbles(word(p, 4 * g + j)), word(q, j));
            let fifth = |g: usize| _mm512_slli_epi16::<4>(bits::<1>(high, g));
            [_mm512_or_si512(a, fifth(g)), _mm512_or_si512(b, fifth(g + 1))]
        };
        each_half(with, |j| with(4 + j))
    }
}

impl Interleaved512 for tile256::Q6K {
    in_pairs!();
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn two_columns(c: Chunk, g: usize) -> [[__m512i; 8]; 2] {
        // 64 bytes of each row for four groups, of which the first two are the lower halves; 32 bytes of upper bits.
        let (side, upper) = (g / 4, g % 4 / 2);
        let (p, q) = (c.field(Self::CODES.0, Self::CODES.1, 0), c.field(Q6K_HIGH.0, Q6K_HIGH.1, 0));
        // SAFETY: the caller's promise.
        let one = |half: usize, j: usize| unsafe {
            let low = bits::<15>(word(p, 16 * side + 8 * half + j), 4 * upper);
            let high = bits::<3>(word(q, 8 * side + j), 4 * upper + 2 * half);
            _mm512_or_si512(low, _mm512_slli_epi16::<4>(high))
        };
        each_half(|j| [one(0, j), one(1, j)], |j| [one(0, 4 + j), one(1, 4 + j)])
    }
}

/// What the groups of a chunk share.
struct Shared {
    /// Scale and offset of a block of 256.
    d: [__m512; 2],
    /// Its packed scales and offsets (two words each), or its sub-scales.
    bytes: [__m512i; 4],
}

/// Reads it.
///
/// # Safety
/// AVX-512 as in the file's kernels; the chunk is readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn shared<T: TileX86>(c: Chunk) -> Shared {
    let none = Shared { d: [_mm512_setzero_ps(); 2], bytes: [_mm512_setzero_si512(); 4] };
    // SAFETY: the caller's promise.
    unsafe {
        match T::SCALES {
            Scales::Six { d } => {
                let p = c.field(d + 4, SIX, 0);
                let [scales, mins] = sixes(word(p, 0), word(p, 1), word(p, 2));
                let minus = _mm512_xor_ps(halves(c.field(d + 2, 2, 0).cast()), _mm512_set1_ps(-0.0));
                Shared { d: [halves(c.field(d, 2, 0).cast()), minus], bytes: [scales[0], scales[1], mins[0], mins[1]] }
            }
            Scales::Sub { d, sub } => {
                let p = c.field(sub, SUB, 0);
                let bytes = [word(p, 0), word(p, 1), word(p, 2), word(p, 3)];
                Shared { d: [halves(c.field(d, 2, 0).cast()), none.d[1]], bytes }
            }
            _ => none,
        }
    }
}

/// The steps of group `g`.
///
/// # Safety
/// As [`shared`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn steps<T: TileX86>(c: Chunk, s: &Shared, g: usize) -> Group16 {
    let mut of = Group16 { scale: _mm512_setzero_ps(), min: _mm512_setzero_ps(), sub: [_mm512_setzero_si512(); 2] };
    let by = |i: usize, bytes: __m512i| {
        let byte = _mm512_srl_epi32(bytes, _mm_cvtsi32_si128(8 * (g % 4) as i32));
        _mm512_mul_ps(s.d[i], _mm512_cvtepi32_ps(_mm512_and_si512(byte, _mm512_set1_epi32(0xFF))))
    };
    // SAFETY: the caller's promise.
    unsafe {
        match T::SCALES {
            Scales::F16 { d, m } => {
                of.scale = halves(c.field(d, 2, g).cast());
                if T::MIN {
                    of.min = halves(c.field(m, 2, g).cast());
                }
            }
            Scales::HalfPower { e } => {
                of.scale = half_powers(_mm512_cvtepu8_epi32(_mm_loadu_si128(c.field(e, 1, g).cast())));
            }
            Scales::Six { .. } => (of.scale, of.min) = (by(0, s.bytes[g / 4]), by(1, s.bytes[2 + g / 4])),
            Scales::Sub { .. } => {
                let signed = |at: usize| {
                    let up = _mm512_sll_epi32(s.bytes[g / 2], _mm_cvtsi32_si128(24 - 8 * at as i32));
                    _mm512_srai_epi32::<24>(up)
                };
                (of.scale, of.sub) = (s.d[0], [signed(g % 2 * 2), signed(g % 2 * 2 + 1)]);
            }
            Scales::Other => {}
        }
    }
    of
}

/// One plane of blocks.
pub struct Blocks<T>(PhantomData<T>);

impl<T: Interleaved512> Walk for Blocks<T> {
    type Tile = T;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn each_group(w: &Weights, mut f: impl FnMut(usize, &[__m512i; 8], &Group16)) {
        let groups = w.k / GROUP;
        for first in (0..groups).step_by(CHUNK_GROUPS) {
            let here = groups_from(first, groups);
            let c = Chunk::new::<T>(w, first, here);
            c.ask_beside::<T>();
            // SAFETY: the caller's promise.
            unsafe {
                let s = shared::<T>(c);
                if T::GROUPS == 1 {
                    for g in 0..here {
                        c.ask_codes::<T>(g);
                        f(first + g, &T::columns(c, g), &steps::<T>(c, &s, g));
                    }
                    continue;
                }
                for g in (0..here).step_by(2) {
                    c.ask_codes::<T>(g);
                    c.ask_codes::<T>(g + 1);
                    let two = T::two_columns(c, g);
                    f(first + g, &two[0], &steps::<T>(c, &s, g));
                    f(first + g + 1, &two[1], &steps::<T>(c, &s, g + 1));
                }
            }
        }
    }
}

/// Planes of nibbles, of scales and, where `T` has them, of offsets.
struct Nibbles<T>(PhantomData<T>);

impl<T: Packed512> Walk for Nibbles<T> {
    type Tile = T;
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn each_group(w: &Weights, mut f: impl FnMut(usize, &[__m512i; 8], &Group16)) {
        let none = _mm512_setzero_si512();
        for g in 0..w.k / GROUP {
            let p = w.base.wrapping_add(16 * TILE * g);
            ask_ahead(p, 16 * TILE);
            // SAFETY: the caller's promise.
            unsafe {
                let scale = numbers(w.side.scale, w.side.scales.base.raw(), g / w.side.per);
                let min = if T::MIN { numbers(w.side.scale, w.side.mins.base.raw(), g / w.side.per) } else { scale };
                f(g, &packed::<T>(p), &Group16 { scale, min, sub: [none; 2] });
            }
        }
    }
}

/// Number `i` of sixteen rows.
///
/// # Safety
/// AVX-512 as in the file's kernels; readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn numbers(scale: Scale, p: *const u8, i: usize) -> __m512 {
    // SAFETY: the caller's promise; the loads take any alignment.
    unsafe {
        match scale {
            Scale::F32 => _mm512_castsi512_ps(word(p, i)),
            Scale::F16 => halves(p.wrapping_add(32 * i).cast()),
            Scale::BF16 => {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.wrapping_add(32 * i).cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
            Scale::E8M0 => half_powers(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.wrapping_add(16 * i).cast()))),
        }
    }
}

/// See [`crate::cpu::mat::TileFn`], for interleaved rows of blocks.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub unsafe fn interleaved<T: Interleaved512>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    // SAFETY: the promise of `TileFn`; a machine with AVX-512 has AVX2.
    unsafe {
        // The last rows of a matrix lie as in the file. The result is the same to the bit.
        if w.n < TILE { avx2::blocks::<T>(w, x, acc) } else { product::<Blocks<T>>(w, x, acc) }
    }
}

/// The same for planes of nibbles and numbers, whose arithmetic is that of `T`. `P` knows them as in the file.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub unsafe fn interleaved_planes<T: Packed512, P: PlanesX512>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    // SAFETY: the promise of `TileFn`.
    unsafe { if w.n < TILE { super::planes::<P>(w, x, acc) } else { product::<Nibbles<T>>(w, x, acc) } }
}
