//! How 512-bit vectors read four weight rows at once: in each 128-bit lane sixteen codes of one row.
//!
//! That is how files hold them, so nothing is shuffled; sums are put in order only once a group.

use super::tile::{Tile, locate};
use super::tile_x86::TileX86;
use super::tile32::{self, E2M1_CODES, IQ4_CODES};
use super::tile256;
use checkpoint::block;
use std::arch::x86_64::*;
use std::mem::offset_of;

/// The chunks of sixteen weight rows, at one distance from each other: as an address and a distance they stay in
/// registers, where sixteen addresses do not.
#[derive(Copy, Clone, Debug)]
pub struct Sixteen {
    /// The first row's chunk.
    pub base: *const u8,
    /// Bytes from row to row.
    pub row: usize,
}

/// Every fourth of them.
#[derive(Copy, Clone, Debug)]
pub struct Quad {
    base: *const u8,
    step: usize,
}

impl Sixteen {
    /// The chunk of row `n`.
    #[inline(always)]
    pub fn at(self, n: usize) -> *const u8 {
        self.base.wrapping_add(n * self.row)
    }
    /// Rows q, q + 4, q + 8, q + 12: in the lanes of four such vectors, transposing puts the rows in order.
    #[inline(always)]
    pub fn quad(self, q: usize) -> Quad {
        Quad { base: self.at(q), step: 4 * self.row }
    }
}

impl Quad {
    #[inline(always)]
    fn at(self, i: usize) -> *const u8 {
        self.base.wrapping_add(i * self.step)
    }
}

/// A tile decoder for four rows.
pub trait TileX512: TileX86 {
    /// Codes 0 to 15 and 16 to 31 of group `g` of the chunks at `rows`, a row per 128-bit lane.
    ///
    /// # Safety
    /// AVX-512 F and BW are available; the rows' groups are readable.
    unsafe fn quad(rows: Quad, g: usize) -> [__m512i; 2];

    /// Codes of group `g` of sixteen rows: vector j holds codes 4 j to 4 j + 3, a 32-bit lane per row.
    ///
    /// # Safety
    /// As [`quad`](Self::quad).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn columns(rows: Sixteen, g: usize) -> [__m512i; 8] {
        // SAFETY: the caller's promise.
        let [a, b, c, d] = unsafe {
            [
                Self::quad(rows.quad(0), g),
                Self::quad(rows.quad(1), g),
                Self::quad(rows.quad(2), g),
                Self::quad(rows.quad(3), g),
            ]
        };
        join(in_lanes([a[0], b[0], c[0], d[0]]), in_lanes([a[1], b[1], c[1], d[1]]))
    }

    /// [`columns`](Self::columns) of the even group `g` and of the one behind it.
    ///
    /// # Safety
    /// As there, for both.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn two_columns(rows: Sixteen, g: usize) -> [[__m512i; 8]; 2] {
        // SAFETY: the caller's promise.
        unsafe { [Self::columns(rows, g), Self::columns(rows, g + 1)] }
    }

    /// Whether [`four_columns`](Self::four_columns) is less work than two pairs.
    const FOURS: bool = false;

    /// [`columns`](Self::columns) of group `g`, a multiple of four, and of the three behind it.
    ///
    /// # Safety
    /// As there, for all of them.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn four_columns(rows: Sixteen, g: usize) -> [[__m512i; 8]; 4] {
        // SAFETY: the caller's promise.
        let ([a, b], [c, d]) = unsafe { (Self::two_columns(rows, g), Self::two_columns(rows, g + 2)) };
        [a, b, c, d]
    }
}

/// Sixteen bytes at `at` of every row, transposed: vector j holds bytes 4 j to 4 j + 3 of each.
///
/// # Safety
/// AVX-512 F and BW are available; the bytes are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub unsafe fn sixteen_bytes(rows: Sixteen, at: usize) -> [__m512i; 4] {
    // SAFETY: the caller's promise; bytes have no alignment.
    unsafe {
        let row = |n: usize| &*rows.at(n).add(at).cast::<[u8; 16]>();
        let quad = |q: usize| load([row(q), row(4 + q), row(8 + q), row(12 + q)]);
        in_lanes([quad(0), quad(1), quad(2), quad(3)])
    }
}

/// Transposes 32-bit elements of four vectors inside their 128-bit lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn in_lanes([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (ab2, cd2) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(ab2, cd2),
        _mm512_unpackhi_epi64(ab2, cd2),
    ]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn join([a, b, c, d]: [__m512i; 4], [e, f, g, h]: [__m512i; 4]) -> [__m512i; 8] {
    [a, b, c, d, e, f, g, h]
}

/// Columns of two groups, of which `a` gives codes 4 j to 4 j + 3 and `b` those sixteen further.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub fn each_half(a: impl Fn(usize) -> [__m512i; 2], b: impl Fn(usize) -> [__m512i; 2]) -> [[__m512i; 8]; 2] {
    let mut all = [[_mm512_setzero_si512(); 8]; 2];
    for j in 0..4 {
        ([all[0][j], all[1][j]], [all[0][4 + j], all[1][4 + j]]) = (a(j), b(j));
    }
    all
}

/// Columns of a format whose bytes hold code i below and code i + 16 above: half as many vectors are transposed when they
/// are still packed.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn split(packed: [__m512i; 4], decode: impl Fn(__m512i) -> [__m512i; 2]) -> [__m512i; 8] {
    let [a, b, c, d] = in_lanes(packed);
    let (a, b, c, d) = (decode(a), decode(b), decode(c), decode(d));
    [a[0], b[0], c[0], d[0], a[1], b[1], c[1], d[1]]
}

/// Sixteen bytes of each row.
///
/// # Safety
/// AVX-512 F; they are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load(rows: [&[u8; 16]; 4]) -> __m512i {
    // SAFETY: sixteen readable bytes each; the loads take any alignment.
    unsafe {
        let row = |i: usize| _mm_loadu_si128(rows[i].as_ptr().cast());
        // Joining halves twice costs less than inserting quarters three times.
        let two = |a: usize, b: usize| _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(row(a)), row(b));
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(two(0, 1)), two(2, 3))
    }
}

/// The bits of `MASK` of every byte, shifted down by `n` first.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub fn bits<const MASK: i8>(v: __m512i, n: usize) -> __m512i {
    _mm512_and_si512(_mm512_srl_epi16(v, _mm_cvtsi32_si128(n as i32)), _mm512_set1_epi8(MASK))
}

/// Both nibbles of every byte.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub fn nibbles(v: __m512i) -> [__m512i; 2] {
    [bits::<15>(v, 0), bits::<15>(v, 4)]
}

/// `table[nibble]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub fn lookup(table: &[u8; 16], v: __m512i) -> [__m512i; 2] {
    // SAFETY: sixteen readable bytes; the load takes any alignment.
    let table = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(table.as_ptr().cast()) });
    let [low, high] = nibbles(v);
    [_mm512_shuffle_epi8(table, low), _mm512_shuffle_epi8(table, high)]
}

/// Adds 16 where the row's word has a bit: bits 0 to 15 to the first vector, 16 to 31 to the second.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn with_fifth([low, high]: [__m512i; 2], qh: [[u8; 4]; 4]) -> [__m512i; 2] {
    let word = |i: usize, at: usize| (u16::from_le_bytes([qh[i][at], qh[i][at + 1]]) as u64) << (16 * i);
    let mask = |at: usize| word(0, at) | word(1, at) | word(2, at) | word(3, at);
    let sixteen = _mm512_set1_epi8(16);
    [_mm512_mask_add_epi8(low, mask(0), low, sixteen), _mm512_mask_add_epi8(high, mask(2), high, sixteen)]
}

/// The first sixteen bytes behind `at`.
#[inline(always)]
fn sixteen(bytes: &[u8], at: usize) -> &[u8; 16] {
    bytes[at..].first_chunk().expect("a field of the block that is long enough")
}

/// The decoder of a format: codes from four blocks and the group in them. Arrays are made by `each!`, because
/// `array::map` is compiled without these instructions.
macro_rules! quad {
    ($tile:ty, |$b:ident, $g:ident| $codes:expr $(, { $($more:tt)* })?) => {
        impl TileX512 for $tile {
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw")]
            unsafe fn quad(rows: Quad, g: usize) -> [__m512i; 2] {
                // SAFETY: the caller's promise, also below.
                let ($b, $g) = unsafe { blocks::<Self>(rows, g) };
                // SAFETY: as above.
                unsafe { $codes }
            }
            $($($more)*)?
        }
    };
}

/// The blocks of group `g` and the group in them.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn blocks<'a, T: TileX86>(rows: Quad, g: usize) -> ([&'a T::Block; 4], usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let block = |i: usize| locate::<T>(rows.at(i), g).0;
        ([block(0), block(1), block(2), block(3)], locate::<T>(rows.at(0), g).1)
    }
}

/// A format whose group is sixteen bytes with two codes each, found by `packed` and decoded by `decode`.
macro_rules! packed {
    ($tile:ty, |$b:ident, $g:ident| $packed:expr, $decode:expr) => {
        quad!($tile, |$b, $g| $decode(load(each!($b, |$b| $packed))), {
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw")]
            unsafe fn columns(rows: Sixteen, g: usize) -> [__m512i; 8] {
                // SAFETY: the caller's promise.
                let quad = |q: usize| unsafe {
                    let ($b, $g) = blocks::<Self>(rows.quad(q), g);
                    load(each!($b, |$b| $packed))
                };
                split([quad(0), quad(1), quad(2), quad(3)], |v| $decode(v))
            }
        });
    };
}

/// An expression for each of the four blocks.
macro_rules! each {
    ($b:ident, |$x:ident| $e:expr) => {
        [
            {
                let $x = $b[0];
                $e
            },
            {
                let $x = $b[1];
                $e
            },
            {
                let $x = $b[2];
                $e
            },
            {
                let $x = $b[3];
                $e
            },
        ]
    };
}

packed!(tile32::Q4_0, |b, _g| &b.qs, nibbles);
packed!(tile32::Q4_1, |b, _g| &b.qs, nibbles);
packed!(tile32::Iq4Nl, |b, _g| &b.qs, |v| lookup(&IQ4_CODES, v));
packed!(tile32::Mxfp4, |b, _g| &b.qs, |v| lookup(&E2M1_CODES, v));
packed!(tile256::Iq4Xs, |b, g| &b.qs[g], |v| lookup(&IQ4_CODES, v));
quad!(tile32::Q5_0, |b, _g| with_fifth(nibbles(load(each!(b, |b| &b.qs))), each!(b, |b| b.qh)));
quad!(tile32::Q5_1, |b, _g| with_fifth(nibbles(load(each!(b, |b| &b.qs))), each!(b, |b| b.qh)));
quad!(tile32::Q8_0, |b, _g| {
    let half = |at: usize| {
        let v = load(each!(b, |b| {
            let bytes: &[i8; 16] = b.qs[at..].first_chunk().expect("half of a block");
            &*bytes.as_ptr().cast::<[u8; 16]>()
        }));
        _mm512_xor_si512(v, _mm512_set1_epi8(-128))
    };
    [half(0), half(16)]
});
quad!(
    tile256::Q4K,
    |b, g| {
        let half = |at: usize| bits::<15>(load(each!(b, |b| sixteen(&b.qs[g / 2], at))), 4 * (g % 2));
        [half(0), half(16)]
    },
    {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw")]
        unsafe fn two_columns(rows: Sixteen, g: usize) -> [[__m512i; 8]; 2] {
            let qs = offset_of!(block::BlockQ4K, qs) + 16 * g;
            // SAFETY: the caller's promise: both groups are halves of the same 32 bytes of the block.
            let [a, b] = unsafe { [sixteen_bytes(rows, qs), sixteen_bytes(rows, qs + 16)] };
            each_half(|j| nibbles(a[j]), |j| nibbles(b[j]))
        }
    }
);
quad!(
    tile256::Q5K,
    |b, g| {
        let half = |at: usize| {
            let low = bits::<15>(load(each!(b, |b| sixteen(&b.qs[g / 2], at))), 4 * (g % 2));
            let high = bits::<1>(load(each!(b, |b| sixteen(&b.qh, at))), g);
            _mm512_or_si512(low, _mm512_slli_epi16::<4>(high))
        };
        [half(0), half(16)]
    },
    {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw")]
        unsafe fn two_columns(rows: Sixteen, g: usize) -> [[__m512i; 8]; 2] {
            let (qs, qh) = (offset_of!(block::BlockQ5K, qs) + 16 * g, offset_of!(block::BlockQ5K, qh));
            // SAFETY: the caller's promise: both groups are halves of the same bytes of the block.
            let [a, b, c, d] = unsafe {
                [
                    sixteen_bytes(rows, qs),
                    sixteen_bytes(rows, qs + 16),
                    sixteen_bytes(rows, qh),
                    sixteen_bytes(rows, qh + 16),
                ]
            };
            let with = |low: [__m512i; 2], high: __m512i| {
                let fifth = |g: usize| _mm512_slli_epi16::<4>(bits::<1>(high, g));
                [_mm512_or_si512(low[0], fifth(g)), _mm512_or_si512(low[1], fifth(g + 1))]
            };
            each_half(|j| with(nibbles(a[j]), c[j]), |j| with(nibbles(b[j]), d[j]))
        }
    }
);
quad!(
    tile256::Q6K,
    |b, g| {
        let (side, quarter) = (g / 4, g % 4);
        let half = |at: usize| {
            let low = load(each!(b, |b| sixteen(&b.ql, 64 * side + 32 * (quarter % 2) + at)));
            let low = bits::<15>(low, 4 * (quarter / 2));
            let high = bits::<3>(load(each!(b, |b| sixteen(&b.qh, 32 * side + at))), 2 * quarter);
            _mm512_or_si512(low, _mm512_slli_epi16::<4>(high))
        };
        [half(0), half(16)]
    },
    {
        const FOURS: bool = true;
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw")]
        unsafe fn four_columns(rows: Sixteen, g: usize) -> [[__m512i; 8]; 4] {
            let (ql, qh) = (offset_of!(block::BlockQ6K, ql) + 16 * g, offset_of!(block::BlockQ6K, qh) + 8 * g);
            // SAFETY: the caller's promise: 64 bytes of the block hold the low bits of four groups, 32 the high ones.
            let ([a, b, c, d], [e, f]) = unsafe {
                (
                    [
                        sixteen_bytes(rows, ql),
                        sixteen_bytes(rows, ql + 16),
                        sixteen_bytes(rows, ql + 32),
                        sixteen_bytes(rows, ql + 48),
                    ],
                    [sixteen_bytes(rows, qh), sixteen_bytes(rows, qh + 16)],
                )
            };
            // Groups q and q + 2 share the low bytes.
            let two = |low: __m512i, high: __m512i, q: usize| {
                let [first, second] = nibbles(low);
                let top = |q: usize| _mm512_slli_epi16::<4>(bits::<3>(high, 2 * q));
                [_mm512_or_si512(first, top(q)), _mm512_or_si512(second, top(q + 2))]
            };
            let [first, third] = each_half(|j| two(a[j], e[j], 0), |j| two(b[j], f[j], 0));
            let [second, fourth] = each_half(|j| two(c[j], e[j], 1), |j| two(d[j], f[j], 1));
            [first, second, third, fourth]
        }
    }
);
quad!(tile256::Iq3S, |b, g| {
    let codes = each!(b, |b| tile256::Iq3S::codes(b, g));
    let rows = [&codes[0], &codes[1], &codes[2], &codes[3]];
    [load(each!(rows, |c| sixteen(c, 0))), load(each!(rows, |c| sixteen(c, 16)))]
});
quad!(tile256::Q3K, |b, g| {
    let (side, quarter) = (g / 4, g % 4);
    let half = |at: usize| {
        let low = bits::<3>(load(each!(b, |b| sixteen(&b.qs, 32 * side + at))), 2 * quarter);
        let high = bits::<1>(load(each!(b, |b| sixteen(&b.hmask, at))), g);
        _mm512_or_si512(low, _mm512_slli_epi16::<2>(high))
    };
    [half(0), half(16)]
});
