//! Formats that have two scales per group of 32, or several planes. Layouts and formulas are with
//! [`checkpoint::Format`] and the block types; kernels are `planes` in the files of the instruction sets.

use super::side::Side;
use super::tile32::E2M1_CODES;
use super::{TILE, Weights};
use checkpoint::block::{BlockNvfp4, BlockQ2K};
use checkpoint::float8::e4m3;

/// A row of a tile.
#[derive(Copy, Clone, Debug)]
pub struct Row {
    pub codes: *const u8,
    pub scales: *const u8,
    pub mins: *const u8,
    /// Number of the row in its part of the plane of zeros.
    pub nth: u32,
}

/// The rows of a tile; the last one again where there are fewer.
#[inline(always)]
pub fn rows(w: &Weights) -> [Row; TILE] {
    std::array::from_fn(|i| {
        let i = i.min(w.n - 1);
        let (scales, mins) = (w.side.scales.at(i), w.side.mins.at(i));
        Row { codes: w.at(i), scales, mins, nth: (i % w.side.mins.rows) as u32 }
    })
}

/// The numbers of one group of 32 weights, for each sixteen: `w = scale * (code - OFFSET) + min`. Where a format has no
/// `HALVES`, the first count for all.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Steps {
    pub scale: [f32; 2],
    /// Read only if the format has `MIN`.
    pub min: [f32; 2],
}

impl Steps {
    #[inline(always)]
    fn scale(s: f32) -> Self {
        Steps { scale: [s; 2], min: [0.0; 2] }
    }
}

/// A decoder of 32 weights at a time to unsigned bytes and steps. Codes are at most 63 unless the format is `WIDE`.
pub trait Planes {
    /// What is subtracted from a code.
    const OFFSET: i32;
    /// Whether `min` counts.
    const MIN: bool = false;
    /// Whether the sixteens of a group have numbers of their own.
    const HALVES: bool = false;
    /// Whether codes may be any byte.
    const WIDE: bool = false;

    /// Codes of group `g` of a row, in element order.
    ///
    /// # Safety
    /// The group is readable.
    unsafe fn codes(row: *const u8, g: usize) -> [u8; 32];

    /// Steps of group `g` of a row.
    ///
    /// # Safety
    /// The row's numbers for it are readable.
    unsafe fn steps(s: &Side, row: &Row, g: usize) -> Steps;
}

/// Nibbles of the sixteen bytes of group `g`, low one first.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn adjacent(row: *const u8, g: usize) -> [u8; 32] {
    // SAFETY: the caller's promise.
    let b = unsafe { row.add(16 * g).cast::<[u8; 16]>().read() };
    std::array::from_fn(|i| b[i / 2] >> (4 * (i % 2)) & 15)
}

/// MLX's affine codes of `BITS` bits.
pub struct Affine<const BITS: usize>;

impl<const BITS: usize> Planes for Affine<BITS> {
    const OFFSET: i32 = 0;
    const MIN: bool = true;
    const WIDE: bool = BITS == 8;
    #[inline(always)]
    unsafe fn codes(row: *const u8, g: usize) -> [u8; 32] {
        // SAFETY: the caller's promise: a group is 4 BITS bytes, and no code reaches behind it.
        let byte = |i: usize| unsafe { *row.add(4 * BITS * g + i) } as u32;
        std::array::from_fn(|i| {
            let (at, shift) = (i * BITS / 8, i * BITS % 8);
            let next = if shift + BITS > 8 { byte(at + 1) << 8 } else { 0 };
            ((byte(at) | next) >> shift & ((1 << BITS) - 1)) as u8
        })
    }
    #[inline(always)]
    unsafe fn steps(s: &Side, row: &Row, g: usize) -> Steps {
        let at = g / s.per;
        // SAFETY: the caller's promise.
        unsafe { Steps { scale: [s.scale.get(row.scales, at); 2], min: [s.scale.get(row.mins, at); 2] } }
    }
}

/// E2M1 codes with a power of two per group. Codes are twice the values, so the scale is half.
pub struct Mxfp4;

impl Planes for Mxfp4 {
    const OFFSET: i32 = 12;
    #[inline(always)]
    unsafe fn codes(row: *const u8, g: usize) -> [u8; 32] {
        // SAFETY: the caller's promise.
        unsafe { adjacent(row, g) }.map(|q| E2M1_CODES[q as usize])
    }
    #[inline(always)]
    unsafe fn steps(_: &Side, row: &Row, g: usize) -> Steps {
        // SAFETY: the caller's promise.
        Steps::scale(half_power(unsafe { *row.scales.add(g) }))
    }
}

/// `2^(e - 128)`, NaN for 255. Below 2 the result is subnormal.
#[inline(always)]
fn half_power(e: u8) -> f32 {
    match e {
        255 => f32::NAN,
        2.. => f32::from_bits((e as u32 - 1) << 23),
        _ => f32::from_bits(0x0020_0000 << e),
    }
}

/// E2M1 codes with an E4M3 scale per sixteen and one for the matrix.
pub struct Nvfp4;

impl Planes for Nvfp4 {
    const OFFSET: i32 = 12;
    const HALVES: bool = true;
    #[inline(always)]
    unsafe fn codes(row: *const u8, g: usize) -> [u8; 32] {
        // SAFETY: the caller's promise.
        unsafe { adjacent(row, g) }.map(|q| E2M1_CODES[q as usize])
    }
    #[inline(always)]
    unsafe fn steps(s: &Side, row: &Row, g: usize) -> Steps {
        // SAFETY: the caller's promise.
        let half = |h: usize| unsafe { e4m3(*row.scales.add(2 * g + h)) } * (0.5 * s.global);
        Steps { scale: [half(0), half(1)], ..Steps::scale(0.0) }
    }
}

/// Nibbles around 8.
pub struct Int4;

impl Planes for Int4 {
    const OFFSET: i32 = 8;
    #[inline(always)]
    unsafe fn codes(row: *const u8, g: usize) -> [u8; 32] {
        // SAFETY: the caller's promise.
        unsafe { adjacent(row, g) }
    }
    #[inline(always)]
    unsafe fn steps(s: &Side, row: &Row, g: usize) -> Steps {
        // SAFETY: the caller's promise.
        Steps::scale(unsafe { s.scale.get(row.scales, g / s.per) })
    }
}

/// Nibbles around a stored zero, which is made an offset: exact for scales of half precision.
pub struct Int4Zero;

impl Planes for Int4Zero {
    const OFFSET: i32 = 0;
    const MIN: bool = true;
    #[inline(always)]
    unsafe fn codes(row: *const u8, g: usize) -> [u8; 32] {
        // SAFETY: the caller's promise.
        unsafe { adjacent(row, g) }
    }
    #[inline(always)]
    unsafe fn steps(s: &Side, row: &Row, g: usize) -> Steps {
        let at = g / s.per;
        // SAFETY: the caller's promise.
        let (scale, zeros) = unsafe { (s.scale.get(row.scales, at), row.mins.cast::<u32>().add(at).read_unaligned()) };
        Steps { scale: [scale; 2], min: [-(scale * (zeros >> (4 * row.nth) & 15) as f32); 2] }
    }
}

/// See [`BlockNvfp4`].
pub struct Nvfp4Blocks;

/// The block of group `g`, two groups a block.
///
/// # Safety
/// It is readable.
#[inline(always)]
unsafe fn nvfp4<'a>(row: *const u8, g: usize) -> &'a BlockNvfp4 {
    // SAFETY: the caller's promise; the type consists of bytes.
    unsafe { &*row.cast::<BlockNvfp4>().add(g / 2) }
}

impl Planes for Nvfp4Blocks {
    const OFFSET: i32 = 12;
    const HALVES: bool = true;
    #[inline(always)]
    unsafe fn codes(row: *const u8, g: usize) -> [u8; 32] {
        // SAFETY: the caller's promise.
        let b = unsafe { nvfp4(row, g) };
        std::array::from_fn(|i| {
            let q = b.qs[2 * (g % 2) + i / 16][i % 8] >> (4 * (i / 8 % 2));
            E2M1_CODES[(q & 15) as usize]
        })
    }
    #[inline(always)]
    unsafe fn steps(s: &Side, row: &Row, g: usize) -> Steps {
        // SAFETY: the caller's promise.
        let b = unsafe { nvfp4(row.codes, g) };
        let half = |h: usize| b.scale(2 * (g % 2) + h) * (0.5 * s.global);
        Steps { scale: [half(0), half(1)], ..Steps::scale(0.0) }
    }
}

/// See [`BlockQ2K`].
pub struct Q2K;

/// The block of group `g`, eight groups a block.
///
/// # Safety
/// It is readable.
#[inline(always)]
unsafe fn q2k<'a>(row: *const u8, g: usize) -> &'a BlockQ2K {
    // SAFETY: the caller's promise; the type consists of bytes.
    unsafe { &*row.cast::<BlockQ2K>().add(g / 8) }
}

impl Planes for Q2K {
    const OFFSET: i32 = 0;
    const MIN: bool = true;
    const HALVES: bool = true;
    #[inline(always)]
    unsafe fn codes(row: *const u8, g: usize) -> [u8; 32] {
        // SAFETY: the caller's promise.
        let b = unsafe { q2k(row, g) };
        let (half, quarter) = (g % 8 / 4, g % 4);
        std::array::from_fn(|l| b.qs[32 * half + l] >> (2 * quarter) & 3)
    }
    #[inline(always)]
    unsafe fn steps(_: &Side, row: &Row, g: usize) -> Steps {
        // SAFETY: the caller's promise.
        let b = unsafe { q2k(row.codes, g) };
        let half = |h: usize| b.scales[2 * (g % 8) + h];
        let (d, dmin) = (half::f16::from_le_bytes(b.d).to_f32(), half::f16::from_le_bytes(b.dmin).to_f32());
        let of = |s: u8| (d * f32::from(s & 15), -(dmin * f32::from(s >> 4)));
        let (a, b) = (of(half(0)), of(half(1)));
        Steps { scale: [a.0, b.0], min: [a.1, b.1] }
    }
}
