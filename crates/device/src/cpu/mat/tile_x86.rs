//! How 256-bit vectors read the codes of each block format. AVX2 is enough for all of them, so the AVX-512 kernels use
//! the same.

use super::tile::{Half, Tile};
use super::tile32::{self, E2M1_CODES, IQ4_CODES};
use super::tile256;
use super::{TILE, Weights};
use checkpoint::block;
use std::arch::x86_64::*;
use std::mem::offset_of;

const _: () = assert!(
    offset_of!(block::BlockQ4K, dmin) == offset_of!(block::BlockQ4K, d) + 2
        && offset_of!(block::BlockQ4K, scales) == offset_of!(block::BlockQ4K, d) + 4
        && offset_of!(block::BlockQ5K, dmin) == offset_of!(block::BlockQ5K, d) + 2
        && offset_of!(block::BlockQ5K, scales) == offset_of!(block::BlockQ5K, d) + 4,
    "`Scales::Six` says where they are"
);

/// Least distance of what is asked for ahead: small tiles are over before memory answers.
const AHEAD: usize = 16 << 10;

/// Asks for bytes `from .. to` behind the tile or a little further, which as a rule belong to the tiles that are next.
/// Kernels read many rows at a time and nothing that prefetches by itself makes sense of that; bytes asked for in their
/// order it does.
#[inline(always)]
pub fn prefetch(w: &Weights, from: usize, to: usize) {
    let ahead = (TILE * w.row).max(AHEAD);
    for at in (from..to).step_by(64) {
        // SAFETY: every x86-64 CPU has it, and prefetching reads nothing, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(w.base.wrapping_add(ahead + at).cast()) }
    }
}

/// Where the steps of a block lie, for kernels that read those of sixteen rows at a time: byte offsets in the block.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Scales {
    /// Blocks of 32 with an f16 scale at `d`, and an f16 offset at `m` where the format has one.
    F16 { d: usize, m: usize },
    /// Blocks of 32 with a scale of `2^(e - 128)`, a byte, 255 for NaN.
    HalfPower { e: usize },
    /// Blocks of 256: f16 scale and offset at `d`, behind them eight packed pairs of six bits that they multiply
    /// (`checkpoint::block::unpack_scales`).
    Six { d: usize },
    /// Blocks of 256 with an f16 scale at `d` and sixteen signed bytes at `sub`.
    Sub { d: usize, sub: usize },
    /// Only [`Tile::steps`] and [`TileX86::eight`] know.
    Other,
}

/// A tile decoder for vectors.
pub trait TileX86: Tile {
    /// Where steps lie.
    const SCALES: Scales = Scales::Other;

    /// Whether a block is 32 codes in sixteen bytes, code i below and code i + 16 above: such bytes are transposed before
    /// they are taken apart.
    const PACKED: bool = false;

    /// The codes of a block that is [`PACKED`](Self::PACKED).
    fn bytes(_: &Self::Block) -> &[u8; 16] {
        &[0; 16]
    }

    /// Lower and upper codes of every one of them.
    ///
    /// # Safety
    /// AVX2 is available.
    unsafe fn split(v: __m256i) -> [__m256i; 2] {
        [v; 2]
    }

    /// [`Tile::codes`] in a register.
    ///
    /// # Safety
    /// AVX2 is available.
    unsafe fn vector(b: &Self::Block, g: usize) -> __m256i;

    /// [`Tile::steps`] of the groups of a block, lane g for group g.
    ///
    /// # Safety
    /// AVX2 and F16C are available.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    unsafe fn eight(b: &Self::Block) -> Eight {
        let (mut scale, mut min, mut sub) = ([0f32; 8], [0f32; 8], [[0i32; 8]; 2]);
        for g in 0..Self::GROUPS {
            // SAFETY: the caller has F16C.
            let steps = unsafe { Self::steps::<F16c>(b, g) };
            (scale[g], min[g], sub[0][g], sub[1][g]) = (steps.scale, steps.min, steps.sub[0], steps.sub[1]);
        }
        // SAFETY: eight elements each; the loads take any alignment.
        unsafe {
            let sub = [_mm256_loadu_si256(sub[0].as_ptr().cast()), _mm256_loadu_si256(sub[1].as_ptr().cast())];
            Eight { scale: _mm256_loadu_ps(scale.as_ptr()), min: _mm256_loadu_ps(min.as_ptr()), sub }
        }
    }
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

/// The steps of eight groups; what a format does not have is arbitrary.
#[derive(Copy, Clone)]
#[repr(C)]
pub struct Eight {
    pub scale: __m256,
    pub min: __m256,
    pub sub: [__m256i; 2],
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
        Eight { scale, min, sub: [_mm256_setzero_si256(); 2] }
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

/// Both nibbles of every byte.
#[inline]
#[target_feature(enable = "avx2")]
pub fn both(v: __m256i) -> [__m256i; 2] {
    let low = _mm256_set1_epi8(15);
    [_mm256_and_si256(v, low), _mm256_and_si256(_mm256_srli_epi16::<4>(v), low)]
}

/// `table` at both nibbles of every byte.
#[inline]
#[target_feature(enable = "avx2")]
pub fn look_both_up(table: &[u8; 16], v: __m256i) -> [__m256i; 2] {
    let (table, [low, high]) = (_mm256_broadcastsi128_si256(load16(table)), both(v));
    [_mm256_shuffle_epi8(table, low), _mm256_shuffle_epi8(table, high)]
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

/// Blocks of 32.
macro_rules! small {
    ($tile:ty, $scales:expr, |$b:ident| $codes:expr $(, packed |$v:ident| $split:expr)?) => {
        impl TileX86 for $tile {
            const SCALES: Scales = $scales;
            $(
                const PACKED: bool = true;
                #[inline(always)]
                fn bytes(b: &Self::Block) -> &[u8; 16] {
                    &b.qs
                }
                #[inline]
                #[target_feature(enable = "avx2")]
                unsafe fn split($v: __m256i) -> [__m256i; 2] {
                    $split
                }
            )?
            #[inline]
            #[target_feature(enable = "avx2")]
            unsafe fn vector($b: &Self::Block, _: usize) -> __m256i {
                $codes
            }
        }
    };
}

/// Blocks of 256.
macro_rules! large {
    ($tile:ty, $scales:expr, |$b:ident, $g:ident| $codes:expr, |$whole:ident| $eight:expr) => {
        impl TileX86 for $tile {
            const SCALES: Scales = $scales;
            #[inline]
            #[target_feature(enable = "avx2")]
            unsafe fn vector($b: &Self::Block, $g: usize) -> __m256i {
                $codes
            }
            #[inline]
            #[target_feature(enable = "avx2,f16c")]
            unsafe fn eight($whole: &Self::Block) -> Eight {
                $eight
            }
        }
    };
}

/// Where a block type has its f16 numbers.
macro_rules! f16_at {
    ($block:ident, $d:ident) => {
        Scales::F16 { d: offset_of!(block::$block, $d), m: 0 }
    };
    ($block:ident, $d:ident, $m:ident) => {
        Scales::F16 { d: offset_of!(block::$block, $d), m: offset_of!(block::$block, $m) }
    };
}

/// A stored f16 in every lane.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn splat(bits: [u8; 2]) -> __m256 {
    _mm256_cvtph_ps(_mm_set1_epi16(i16::from_le_bytes(bits)))
}

/// The six-bit scales and minimums of all eight groups (`checkpoint::block::unpack_scales`), times the block's.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn pairs(d: [u8; 2], dmin: [u8; 2], s: &[u8; 12]) -> Eight {
    let word = |i: usize| u32::from_le_bytes([s[i], s[i + 1], s[i + 2], s[i + 3]]);
    let (a, b, c) = (word(0), word(4), word(8));
    let high = |nibbles: u32, top: u32| (nibbles & 0x0F0F_0F0F | (top >> 6 & 0x0303_0303) << 4) as u64;
    let scales = (a & 0x3F3F_3F3F) as u64 | high(c, a) << 32;
    let mins = (b & 0x3F3F_3F3F) as u64 | high(c >> 4, b) << 32;
    let wide = |bytes: u64| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64)));
    let minus = _mm256_xor_ps(splat(dmin), _mm256_set1_ps(-0.0));
    Eight::new(_mm256_mul_ps(splat(d), wide(scales)), _mm256_mul_ps(minus, wide(mins)))
}

small!(tile32::Q4_0, f16_at!(BlockQ4_0, d), |b| nibbles(&b.qs), packed | v | both(v));
small!(tile32::Q4_1, f16_at!(BlockQ4_1, d, m), |b| nibbles(&b.qs), packed | v | both(v));
small!(tile32::Q5_0, f16_at!(BlockQ5_0, d), |b| _mm256_or_si256(nibbles(&b.qs), fifth_bits(b.qh)));
small!(tile32::Q5_1, f16_at!(BlockQ5_1, d, m), |b| _mm256_or_si256(nibbles(&b.qs), fifth_bits(b.qh)));
small!(tile32::Q8_0, f16_at!(BlockQ8_0, d), |b| {
    // SAFETY: 32 readable bytes; the load takes any alignment.
    let q = unsafe { _mm256_loadu_si256(b.qs.as_ptr().cast()) };
    _mm256_xor_si256(q, _mm256_set1_epi8(-128))
});
small!(tile32::Iq4Nl, f16_at!(BlockIq4Nl, d), |b| lookup(&IQ4_CODES, &b.qs), packed | v | look_both_up(&IQ4_CODES, v));
small!(
    tile32::Mxfp4,
    Scales::HalfPower { e: offset_of!(block::BlockMxfp4, e) },
    |b| lookup(&E2M1_CODES, &b.qs),
    packed | v | look_both_up(&E2M1_CODES, v)
);
large!(tile256::Iq4Xs, Scales::Other, |b, g| lookup(&IQ4_CODES, &b.qs[g]), |b| {
    let low = _mm256_set1_epi32(i32::from_le_bytes(b.scales_l));
    let high = _mm256_set1_epi32(u16::from_le_bytes(b.scales_h) as i32);
    let low = _mm256_srlv_epi32(low, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    let high = _mm256_srlv_epi32(high, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    let low = _mm256_and_si256(low, _mm256_set1_epi32(15));
    let high = _mm256_slli_epi32::<4>(_mm256_and_si256(high, _mm256_set1_epi32(3)));
    let s = _mm256_sub_epi32(_mm256_or_si256(low, high), _mm256_set1_epi32(32));
    let scale = _mm256_mul_ps(splat(b.d), _mm256_cvtepi32_ps(s));
    Eight::new(scale, scale)
});
impl TileX86 for tile256::Iq3S {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn vector(b: &Self::Block, g: usize) -> __m256i {
        load32(&Self::codes(b, g))
    }
}
impl TileX86 for tile256::Q3K {
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn vector(b: &Self::Block, g: usize) -> __m256i {
        let low = _mm256_and_si256(shift(load32(&b.qs[32 * (g / 4)..]), 2 * (g % 4)), _mm256_set1_epi8(3));
        let high = _mm256_and_si256(shift(load32(&b.hmask), g), _mm256_set1_epi8(1));
        _mm256_or_si256(low, _mm256_slli_epi16::<2>(high))
    }
}
large!(
    tile256::Q4K,
    Scales::Six { d: offset_of!(block::BlockQ4K, d) },
    |b, g| _mm256_and_si256(shift(load32(&b.qs[g / 2]), 4 * (g % 2)), _mm256_set1_epi8(15)),
    |b| pairs(b.d, b.dmin, &b.scales)
);
large!(
    tile256::Q5K,
    Scales::Six { d: offset_of!(block::BlockQ5K, d) },
    |b, g| {
        let low = _mm256_and_si256(shift(load32(&b.qs[g / 2]), 4 * (g % 2)), _mm256_set1_epi8(15));
        let high = _mm256_and_si256(shift(load32(&b.qh), g), _mm256_set1_epi8(1));
        _mm256_or_si256(low, _mm256_slli_epi16::<4>(high))
    },
    |b| pairs(b.d, b.dmin, &b.scales)
);
large!(
    tile256::Q6K,
    Scales::Sub { d: offset_of!(block::BlockQ6K, d), sub: offset_of!(block::BlockQ6K, scales) },
    |b, g| {
        let (half, quarter) = (g / 4, g % 4);
        let low = load32(&b.ql[64 * half + 32 * (quarter % 2)..]);
        let low = _mm256_and_si256(shift(low, 4 * (quarter / 2)), _mm256_set1_epi8(15));
        let high = _mm256_and_si256(shift(load32(&b.qh[32 * half..]), 2 * quarter), _mm256_set1_epi8(3));
        _mm256_or_si256(low, _mm256_slli_epi16::<4>(high))
    },
    |b| {
        // SAFETY: sixteen readable bytes; the load takes any alignment.
        let s = unsafe { _mm_loadu_si128(b.scales.as_ptr().cast()) };
        let even = _mm_srai_epi16::<8>(_mm_slli_epi16::<8>(s));
        let sub = [_mm256_cvtepi16_epi32(even), _mm256_cvtepi16_epi32(_mm_srai_epi16::<8>(s))];
        Eight { sub, ..Eight::new(splat(b.d), splat(b.d)) }
    }
);
