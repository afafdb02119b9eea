//! How 256-bit vectors read the codes of each block format. AVX2 is enough for all of them, so the AVX-512 kernels use
//! the same.

use super::tile::{Half, Tile};
use super::tile32::{self, E2M1_CODES, IQ4_CODES};
use super::tile256;
use std::arch::x86_64::*;

/// A tile decoder for vectors.
pub trait TileX86: Tile {
    /// [`Tile::codes`] in a register.
    ///
    /// # Safety
    /// AVX2 is available.
    unsafe fn vector(b: &Self::Block, g: usize) -> __m256i;
}

/// f16 by F16C.
pub struct F16c;

impl Half for F16c {
    #[inline]
    #[target_feature(enable = "f16c")]
    unsafe fn f32(bits: [u8; 2]) -> f32 {
        _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(u16::from_le_bytes(bits) as i32)))
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load16(b: &[u8; 16]) -> __m128i {
    // SAFETY: sixteen readable bytes; the load takes any alignment.
    unsafe { _mm_loadu_si128(b.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load32(b: &[u8]) -> __m256i {
    let b: &[u8; 32] = b.first_chunk().expect("a slice of at least 32 bytes");
    // SAFETY: 32 readable bytes; the load takes any alignment.
    unsafe { _mm256_loadu_si256(b.as_ptr().cast()) }
}

/// The nibbles of 16 bytes, all low ones first.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles(qs: &[u8; 16]) -> __m256i {
    let q = load16(qs);
    let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(q), _mm_srli_epi16::<4>(q));
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// `table[nibble]` of 16 bytes, all low nibbles first.
#[inline]
#[target_feature(enable = "avx2")]
fn lookup(table: &[u8; 16], qs: &[u8; 16]) -> __m256i {
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load16(table)), nibbles(qs))
}

/// 16 in byte i where bit i is set, else 0.
#[inline]
#[target_feature(enable = "avx2")]
fn fifth_bits(qh: [u8; 4]) -> __m256i {
    let word = _mm256_set1_epi32(i32::from_le_bytes(qh));
    // Byte i / 8 of the word into byte i, then its bit i % 8.
    let spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    let bit = _mm256_set1_epi64x(0x8040201008040201u64 as i64);
    let hit = _mm256_and_si256(_mm256_shuffle_epi8(word, spread), bit);
    _mm256_and_si256(_mm256_cmpeq_epi8(hit, bit), _mm256_set1_epi8(16))
}

/// `v >> n` in every 16-bit lane, of which the caller masks away what crossed a byte.
#[inline]
#[target_feature(enable = "avx2")]
fn shift(v: __m256i, n: usize) -> __m256i {
    _mm256_srl_epi16(v, _mm_cvtsi32_si128(n as i32))
}

macro_rules! vector {
    ($tile:ty, |$b:ident, $g:ident| $body:expr) => {
        impl TileX86 for $tile {
            #[inline]
            #[target_feature(enable = "avx2")]
            unsafe fn vector($b: &Self::Block, $g: usize) -> __m256i {
                $body
            }
        }
    };
}

vector!(tile32::Q4_0, |b, _g| nibbles(&b.qs));
vector!(tile32::Q4_1, |b, _g| nibbles(&b.qs));
vector!(tile32::Q5_0, |b, _g| _mm256_or_si256(nibbles(&b.qs), fifth_bits(b.qh)));
vector!(tile32::Q5_1, |b, _g| _mm256_or_si256(nibbles(&b.qs), fifth_bits(b.qh)));
vector!(tile32::Q8_0, |b, _g| {
    // SAFETY: 32 readable bytes; the load takes any alignment.
    let q = unsafe { _mm256_loadu_si256(b.qs.as_ptr().cast()) };
    _mm256_xor_si256(q, _mm256_set1_epi8(-128))
});
vector!(tile32::Iq4Nl, |b, _g| lookup(&IQ4_CODES, &b.qs));
vector!(tile32::Mxfp4, |b, _g| lookup(&E2M1_CODES, &b.qs));
vector!(tile256::Iq4Xs, |b, g| lookup(&IQ4_CODES, &b.qs[g]));
vector!(tile256::Q4K, |b, g| _mm256_and_si256(shift(load32(&b.qs[g / 2]), 4 * (g % 2)), _mm256_set1_epi8(15)));
vector!(tile256::Q5K, |b, g| {
    let low = _mm256_and_si256(shift(load32(&b.qs[g / 2]), 4 * (g % 2)), _mm256_set1_epi8(15));
    let high = _mm256_and_si256(shift(load32(&b.qh), g), _mm256_set1_epi8(1));
    _mm256_or_si256(low, _mm256_slli_epi16::<4>(high))
});
vector!(tile256::Q6K, |b, g| {
    let (half, quarter) = (g / 4, g % 4);
    let low = load32(&b.ql[64 * half + 32 * (quarter % 2)..]);
    let low = _mm256_and_si256(shift(low, 4 * (quarter / 2)), _mm256_set1_epi8(15));
    let high = _mm256_and_si256(shift(load32(&b.qh[32 * half..]), 2 * quarter), _mm256_set1_epi8(3));
    _mm256_or_si256(low, _mm256_slli_epi16::<4>(high))
});
