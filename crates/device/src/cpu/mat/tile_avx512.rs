//! How 512-bit vectors read four weight rows at once: in each 128-bit lane sixteen codes of one row.
//!
//! That is how files hold them, so nothing is shuffled; sums are put in order only once a group.

use super::tile::{Tile, locate};
use super::tile_x86::TileX86;
use super::tile32::{self, E2M1_CODES, IQ4_CODES};
use super::tile256;
use std::arch::x86_64::*;

/// A tile decoder for four rows.
pub trait TileX512: TileX86 {
    /// Codes 0 to 15 and 16 to 31 of group `g` of the chunks at `rows`, a row per 128-bit lane.
    ///
    /// # Safety
    /// AVX-512 F and BW are available; the rows' groups are readable.
    unsafe fn quad(rows: &[*const u8; 4], g: usize) -> [__m512i; 2];
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
        let v = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(row(0)), row(1));
        _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(v, row(2)), row(3))
    }
}

/// The bits of `MASK` of every byte, shifted down by `n` first.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn bits<const MASK: i8>(v: __m512i, n: usize) -> __m512i {
    _mm512_and_si512(_mm512_srl_epi16(v, _mm_cvtsi32_si128(n as i32)), _mm512_set1_epi8(MASK))
}

/// Both nibbles of every byte.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn nibbles(v: __m512i) -> [__m512i; 2] {
    [bits::<15>(v, 0), bits::<15>(v, 4)]
}

/// `table[nibble]`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn lookup(table: &[u8; 16], v: __m512i) -> [__m512i; 2] {
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
    ($tile:ty, |$b:ident, $g:ident| $codes:expr) => {
        impl TileX512 for $tile {
            #[inline]
            #[target_feature(enable = "avx512f,avx512bw")]
            unsafe fn quad(rows: &[*const u8; 4], g: usize) -> [__m512i; 2] {
                // SAFETY: the caller's promise, also below.
                let ($b, $g) = unsafe {
                    let block = |i: usize| locate::<Self>(rows[i], g).0;
                    ([block(0), block(1), block(2), block(3)], locate::<Self>(rows[0], g).1)
                };
                // SAFETY: as above.
                unsafe { $codes }
            }
        }
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

quad!(tile32::Q4_0, |b, _g| nibbles(load(each!(b, |b| &b.qs))));
quad!(tile32::Q4_1, |b, _g| nibbles(load(each!(b, |b| &b.qs))));
quad!(tile32::Q5_0, |b, _g| with_fifth(nibbles(load(each!(b, |b| &b.qs))), each!(b, |b| b.qh)));
quad!(tile32::Q5_1, |b, _g| with_fifth(nibbles(load(each!(b, |b| &b.qs))), each!(b, |b| b.qh)));
quad!(tile32::Iq4Nl, |b, _g| lookup(&IQ4_CODES, load(each!(b, |b| &b.qs))));
quad!(tile32::Mxfp4, |b, _g| lookup(&E2M1_CODES, load(each!(b, |b| &b.qs))));
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
quad!(tile256::Iq4Xs, |b, g| lookup(&IQ4_CODES, load(each!(b, |b| &b.qs[g]))));
quad!(tile256::Q4K, |b, g| {
    let half = |at: usize| bits::<15>(load(each!(b, |b| sixteen(&b.qs[g / 2], at))), 4 * (g % 2));
    [half(0), half(16)]
});
quad!(tile256::Q5K, |b, g| {
    let half = |at: usize| {
        let low = bits::<15>(load(each!(b, |b| sixteen(&b.qs[g / 2], at))), 4 * (g % 2));
        let high = bits::<1>(load(each!(b, |b| sixteen(&b.qh, at))), g);
        _mm512_or_si512(low, _mm512_slli_epi16::<4>(high))
    };
    [half(0), half(16)]
});
quad!(tile256::Q6K, |b, g| {
    let (side, quarter) = (g / 4, g % 4);
    let half = |at: usize| {
        let low = load(each!(b, |b| sixteen(&b.ql, 64 * side + 32 * (quarter % 2) + at)));
        let low = bits::<15>(low, 4 * (quarter / 2));
        let high = bits::<3>(load(each!(b, |b| sixteen(&b.qh, 32 * side + at))), 2 * quarter);
        _mm512_or_si512(low, _mm512_slli_epi16::<4>(high))
    };
    [half(0), half(16)]
});
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
