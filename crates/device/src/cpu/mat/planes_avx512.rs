//! How 512-bit vectors read four rows of the formats of [`super::planes`] at once: in each 128-bit lane sixteen codes
//! of one row.

use super::planes;
use super::planes_x86::PlanesX86;
use super::tile32::E2M1_CODES;
use std::arch::x86_64::*;

/// A decoder for four rows.
pub trait PlanesX512: PlanesX86 {
    /// Codes 0 to 15 and 16 to 31 of group `g` of rows of codes, a row per 128-bit lane.
    ///
    /// # Safety
    /// AVX-512 F and BW; the rows' groups are readable.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx2")]
    unsafe fn quad(rows: &[*const u8; 4], g: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let (a, b, c, d) = (
                Self::vector(rows[0], g),
                Self::vector(rows[1], g),
                Self::vector(rows[2], g),
                Self::vector(rows[3], g),
            );
            let pair = |a: __m256i, b: __m256i| _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b);
            let (ab, cd) = (pair(a, b), pair(c, d));
            [_mm512_shuffle_i64x2::<0b10_00_10_00>(ab, cd), _mm512_shuffle_i64x2::<0b11_01_11_01>(ab, cd)]
        }
    }
}

/// Sixteen bytes `at` of each row.
///
/// # Safety
/// AVX-512 F; they are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load(rows: &[*const u8; 4], at: usize) -> __m512i {
    // SAFETY: the caller's promise; the loads take any alignment.
    unsafe {
        let v = _mm512_castsi128_si512(_mm_loadu_si128(rows[0].add(at).cast()));
        let v = _mm512_inserti32x4::<1>(v, _mm_loadu_si128(rows[1].add(at).cast()));
        let v = _mm512_inserti32x4::<2>(v, _mm_loadu_si128(rows[2].add(at).cast()));
        _mm512_inserti32x4::<3>(v, _mm_loadu_si128(rows[3].add(at).cast()))
    }
}

/// Adjacent nibbles in element order.
///
/// # Safety
/// AVX-512 F and BW; the groups are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn adjacent(rows: &[*const u8; 4], g: usize) -> [__m512i; 2] {
    // SAFETY: the caller's promise.
    let v = unsafe { load(rows, 16 * g) };
    let low = _mm512_set1_epi8(15);
    let (even, odd) = (_mm512_and_si512(v, low), _mm512_and_si512(_mm512_srli_epi16::<4>(v), low));
    [_mm512_unpacklo_epi8(even, odd), _mm512_unpackhi_epi8(even, odd)]
}

/// `E2M1_CODES` of adjacent nibbles.
///
/// # Safety
/// As [`adjacent`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn e2m1(rows: &[*const u8; 4], g: usize) -> [__m512i; 2] {
    // SAFETY: the caller's promise, and sixteen bytes of the table.
    unsafe {
        let table = _mm512_broadcast_i32x4(_mm_loadu_si128(E2M1_CODES.as_ptr().cast()));
        let [a, b] = adjacent(rows, g);
        [_mm512_shuffle_epi8(table, a), _mm512_shuffle_epi8(table, b)]
    }
}

macro_rules! quad {
    ($format:ty, $codes:expr) => {
        impl PlanesX512 for $format {
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw,avx2")]
            unsafe fn quad(rows: &[*const u8; 4], g: usize) -> [__m512i; 2] {
                // SAFETY: the caller's promise.
                unsafe { $codes(rows, g) }
            }
        }
    };
}

/// # Safety
/// As [`adjacent`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn bytes(rows: &[*const u8; 4], g: usize) -> [__m512i; 2] {
    // SAFETY: the caller's promise.
    unsafe { [load(rows, 32 * g), load(rows, 32 * g + 16)] }
}

quad!(planes::Affine<4>, adjacent);
quad!(planes::Affine<8>, bytes);
quad!(planes::Int4, adjacent);
quad!(planes::Int4Zero, adjacent);
quad!(planes::Mxfp4, e2m1);
quad!(planes::Nvfp4, e2m1);
impl PlanesX512 for planes::Affine<2> {}
impl PlanesX512 for planes::Affine<3> {}
impl PlanesX512 for planes::Affine<5> {}
impl PlanesX512 for planes::Affine<6> {}
impl PlanesX512 for planes::Nvfp4Blocks {}
impl PlanesX512 for planes::Q2K {}
