//! How 256-bit vectors read the formats of [`super::planes`].

use super::planes::{self, Planes, Row, Steps};
use super::side::{Scale, Side};
use super::tile32::E2M1_CODES;
use checkpoint::block::BlockQ2K;
use std::arch::x86_64::*;

/// Steps of eight groups, lane g for group g, for each sixteen; what a format does not have is arbitrary.
#[derive(Copy, Clone)]
#[repr(C)]
pub struct Eight {
    pub scale: [__m256; 2],
    pub min: [__m256; 2],
}

impl Eight {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn zero() -> Self {
        Eight::new(_mm256_setzero_ps(), _mm256_setzero_ps())
    }
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new(scale: __m256, min: __m256) -> Self {
        Eight { scale: [scale; 2], min: [min; 2] }
    }
    /// From steps one by one, of the first `n` groups behind `first`.
    ///
    /// # Safety
    /// AVX2; the row's numbers for these groups are readable.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub unsafe fn one_by_one<T: Planes>(s: &Side, row: &Row, first: usize, n: usize) -> Self {
        let mut all = [[0f32; 8]; 4];
        for (g, at) in (first..first + n).enumerate() {
            // SAFETY: the caller's promise.
            let Steps { scale, min } = unsafe { T::steps(s, row, at) };
            (all[0][g], all[1][g], all[2][g], all[3][g]) = (scale[0], scale[1], min[0], min[1]);
        }
        // SAFETY: eight floats each; the loads take any alignment.
        let load = |i: usize| unsafe { _mm256_loadu_ps(all[i].as_ptr()) };
        Eight { scale: [load(0), load(1)], min: [load(2), load(3)] }
    }
}

/// A decoder for vectors.
pub trait PlanesX86: Planes + Sized {
    /// [`Planes::codes`] in a register.
    ///
    /// # Safety
    /// AVX2; the group is readable.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn vector(row: *const u8, g: usize) -> __m256i {
        // SAFETY: the caller's promise; 32 readable bytes.
        unsafe { _mm256_loadu_si256(Self::codes(row, g).as_ptr().cast()) }
    }

    /// [`Planes::steps`] of the eight groups from `first`, a multiple of eight, on.
    ///
    /// # Safety
    /// AVX2 and F16C; the row's numbers for all eight are readable.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn eight(s: &Side, row: &Row, first: usize) -> Eight {
        // SAFETY: the caller's promise.
        unsafe { Eight::one_by_one::<Self>(s, row, first, 8) }
    }
}

/// Nibbles of the sixteen bytes at `p`: those of even elements, those of odd ones.
///
/// # Safety
/// AVX2; the bytes are readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn even_odd(p: *const u8) -> [__m128i; 2] {
    // SAFETY: the caller's promise; the load takes any alignment.
    let b = unsafe { _mm_loadu_si128(p.cast()) };
    let low = _mm_set1_epi8(15);
    [_mm_and_si128(b, low), _mm_and_si128(_mm_srli_epi16::<4>(b), low)]
}

/// Elements in order from even and odd ones.
#[inline]
#[target_feature(enable = "avx2")]
fn zipped([even, odd]: [__m128i; 2]) -> __m256i {
    _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd))
}

/// `E2M1_CODES` of nibbles.
#[inline]
#[target_feature(enable = "avx2")]
fn e2m1(nibbles: __m256i) -> __m256i {
    // SAFETY: sixteen readable bytes; the load takes any alignment.
    let table = unsafe { _mm_loadu_si128(E2M1_CODES.as_ptr().cast()) };
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), nibbles)
}

/// Scales of the eight groups from `first`, a multiple of eight, on, of which `per` share one.
///
/// # Safety
/// AVX2 and F16C; they are readable.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn spread(scale: Scale, p: *const u8, first: usize, per: usize) -> __m256 {
    let at = first / per;
    // SAFETY: the caller's promise: of 8 / per scales, no more bytes than they have are read.
    unsafe {
        match per {
            1 => eight_of(scale, p, at),
            2 => {
                let v = match scale {
                    Scale::F32 => _mm_loadu_ps(p.cast::<f32>().add(at)),
                    Scale::F16 => _mm_cvtph_ps(_mm_loadl_epi64(p.cast::<u16>().add(at).cast())),
                    Scale::BF16 => {
                        let v = _mm_loadl_epi64(p.cast::<u16>().add(at).cast());
                        _mm_castsi128_ps(_mm_slli_epi32::<16>(_mm_cvtepu16_epi32(v)))
                    }
                    Scale::E8M0 => return one_by_one(scale, p, first, per),
                };
                let twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
                _mm256_permutevar8x32_ps(_mm256_castps128_ps256(v), twice)
            }
            4 => {
                let (a, b) = (_mm_set1_ps(scale.get(p, at)), _mm_set1_ps(scale.get(p, at + 1)));
                _mm256_set_m128(b, a)
            }
            _ if per.is_multiple_of(8) => _mm256_set1_ps(scale.get(p, at)),
            _ => one_by_one(scale, p, first, per),
        }
    }
}

/// Eight scales from the one numbered `at` on.
///
/// # Safety
/// AVX2 and F16C; they are readable.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn eight_of(scale: Scale, p: *const u8, at: usize) -> __m256 {
    // SAFETY: the caller's promise; the loads take any alignment.
    unsafe {
        match scale {
            Scale::F32 => _mm256_loadu_ps(p.cast::<f32>().add(at)),
            Scale::F16 => _mm256_cvtph_ps(_mm_loadu_si128(p.cast::<u16>().add(at).cast())),
            Scale::BF16 => {
                let v = _mm_loadu_si128(p.cast::<u16>().add(at).cast());
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(v)))
            }
            Scale::E8M0 => one_by_one(scale, p, at, 1),
        }
    }
}

/// # Safety
/// As [`spread`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn one_by_one(scale: Scale, p: *const u8, first: usize, per: usize) -> __m256 {
    // SAFETY: the caller's promise; eight floats.
    unsafe {
        let all: [f32; 8] = std::array::from_fn(|g| scale.get(p, (first + g) / per));
        _mm256_loadu_ps(all.as_ptr())
    }
}

/// The low eight bytes as E4M3, times 2^-8: its bits are those of an f16 with another bias.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub fn e4m3_small(bytes: __m128i) -> __m256 {
    let wide = _mm_cvtepi8_epi16(bytes);
    let bits = _mm_and_si128(_mm_slli_epi16::<7>(wide), _mm_set1_epi16(0xBF80u16 as i16));
    let all = _mm_set1_epi16(0x7F);
    let nan = _mm_cmpeq_epi16(_mm_and_si128(wide, all), all);
    _mm256_cvtph_ps(_mm_or_si128(bits, _mm_and_si128(nan, _mm_set1_epi16(0x7FFF))))
}

/// What [`e4m3_small`] leaves out.
pub const E4M3_SCALE: f32 = 256.0;

macro_rules! affine {
    ($($bits:literal: $vector:expr;)*) => {
        $(impl PlanesX86 for planes::Affine<$bits> {
            #[inline]
            #[target_feature(enable = "avx2")]
            unsafe fn vector(row: *const u8, g: usize) -> __m256i {
                let vector: unsafe fn(*const u8, usize) -> __m256i = $vector;
                // SAFETY: the caller's promise.
                unsafe { vector(row, g) }
            }
            #[inline]
            #[target_feature(enable = "avx2,f16c")]
            unsafe fn eight(s: &Side, row: &Row, first: usize) -> Eight {
                // SAFETY: the caller's promise.
                unsafe {
                    Eight::new(spread(s.scale, row.scales, first, s.per), spread(s.scale, row.mins, first, s.per))
                }
            }
        })*
    };
}

/// Adjacent nibbles of a group.
///
/// # Safety
/// AVX2; the group is readable.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn adjacent(row: *const u8, g: usize) -> __m256i {
    // SAFETY: the caller's promise.
    zipped(unsafe { even_odd(row.add(16 * g)) })
}

/// # Safety
/// As [`adjacent`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn bytes(row: *const u8, g: usize) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_si256(row.add(32 * g).cast()) }
}

/// # Safety
/// As [`adjacent`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn stream<const BITS: usize>(row: *const u8, g: usize) -> __m256i {
    // SAFETY: the caller's promise; 32 bytes.
    unsafe { _mm256_loadu_si256(planes::Affine::<BITS>::codes(row, g).as_ptr().cast()) }
}

affine! {
    2: stream::<2>;
    3: stream::<3>;
    4: adjacent;
    5: stream::<5>;
    6: stream::<6>;
    8: bytes;
}

impl PlanesX86 for planes::Mxfp4 {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn vector(row: *const u8, g: usize) -> __m256i {
        // SAFETY: the caller's promise.
        e2m1(unsafe { adjacent(row, g) })
    }
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn eight(_: &Side, row: &Row, first: usize) -> Eight {
        // SAFETY: the caller's promise: eight bytes.
        let e = _mm256_cvtepu8_epi32(unsafe { _mm_loadl_epi64(row.scales.add(first).cast()) });
        let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
        // Below 2 the result is subnormal.
        let tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
        let bits = _mm256_blendv_epi8(normal, tiny, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e));
        let nan = _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255));
        let nan = _mm256_and_si256(nan, _mm256_set1_epi32(0x7FC0_0000));
        let scale = _mm256_castsi256_ps(_mm256_or_si256(bits, nan));
        Eight::new(scale, scale)
    }
}

impl PlanesX86 for planes::Nvfp4 {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn vector(row: *const u8, g: usize) -> __m256i {
        // SAFETY: the caller's promise.
        e2m1(unsafe { adjacent(row, g) })
    }
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn eight(s: &Side, row: &Row, first: usize) -> Eight {
        // SAFETY: the caller's promise: sixteen bytes.
        let b = unsafe { _mm_loadu_si128(row.scales.add(2 * first).cast()) };
        // Those of first sixteens, then those of second ones.
        let halves = _mm_shuffle_epi8(b, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
        let by = _mm256_set1_ps(E4M3_SCALE * (0.5 * s.global));
        let of = |b: __m128i| _mm256_mul_ps(e4m3_small(b), by);
        let scale = [of(halves), of(_mm_srli_si128::<8>(halves))];
        Eight { scale, ..Eight::zero() }
    }
}

impl PlanesX86 for planes::Int4 {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn vector(row: *const u8, g: usize) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { adjacent(row, g) }
    }
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn eight(s: &Side, row: &Row, first: usize) -> Eight {
        // SAFETY: the caller's promise.
        let scale = unsafe { spread(s.scale, row.scales, first, s.per) };
        Eight::new(scale, scale)
    }
}

impl PlanesX86 for planes::Int4Zero {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn vector(row: *const u8, g: usize) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { adjacent(row, g) }
    }
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn eight(s: &Side, row: &Row, first: usize) -> Eight {
        // SAFETY: the caller's promise. Words of zeros are as wide as f32 scales, and are moved as such.
        unsafe {
            let scale = spread(s.scale, row.scales, first, s.per);
            let words = _mm256_castps_si256(spread(Scale::F32, row.mins, first, s.per));
            let zeros = _mm256_srl_epi32(words, _mm_cvtsi32_si128(4 * row.nth as i32));
            let zeros = _mm256_cvtepi32_ps(_mm256_and_si256(zeros, _mm256_set1_epi32(15)));
            let min = _mm256_xor_ps(_mm256_mul_ps(scale, zeros), _mm256_set1_ps(-0.0));
            Eight::new(scale, min)
        }
    }
}

impl PlanesX86 for planes::Nvfp4Blocks {}

impl PlanesX86 for planes::Q2K {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn vector(row: *const u8, g: usize) -> __m256i {
        // SAFETY: the caller's promise: 32 bytes of the group's block.
        let q = unsafe {
            let b = row.cast::<BlockQ2K>().add(g / 8);
            _mm256_loadu_si256((&raw const (*b).qs).cast::<u8>().add(32 * (g % 8 / 4)).cast())
        };
        let q = _mm256_srl_epi16(q, _mm_cvtsi32_si128(2 * (g % 4) as i32));
        _mm256_and_si256(q, _mm256_set1_epi8(3))
    }
}
