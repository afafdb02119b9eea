//! Block formats of 32 elements. Layouts and formulas are with the block types in `checkpoint`.

use super::tile::{Half, Steps, Tile};
use checkpoint::block::{self, IQ4_VALUES};

/// Element j is the low nibble of byte j, element j + 16 the high one.
#[inline(always)]
pub fn nibbles(qs: &[u8; 16]) -> [u8; 32] {
    std::array::from_fn(|i| if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 })
}

#[inline(always)]
fn fifth(qh: [u8; 4], i: usize) -> u8 {
    ((u32::from_le_bytes(qh) >> i & 1) << 4) as u8
}

/// A format with a scale only.
macro_rules! scaled {
    ($name:ident, $block:ty, $offset:expr, $codes:expr $(, most $most:expr)?) => {
        #[doc = concat!("See [`", stringify!($block), "`].")]
        pub struct $name;
        impl Tile for $name {
            type Block = $block;
            const GROUPS: usize = 1;
            const OFFSET: i32 = $offset;
            $(const MOST: i32 = $most;)?
            #[inline(always)]
            unsafe fn steps<H: Half>(b: &Self::Block, _: usize) -> Steps {
                // SAFETY: the caller's promise.
                Steps::scale(unsafe { H::f32(b.d) })
            }
            #[inline(always)]
            fn codes(b: &Self::Block, _: usize) -> [u8; 32] {
                let codes: fn(&Self::Block) -> [u8; 32] = $codes;
                codes(b)
            }
        }
    };
}

/// A format with a scale and an offset of its own.
macro_rules! shifted {
    ($name:ident, $block:ty, $codes:expr $(, most $most:expr)?) => {
        #[doc = concat!("See [`", stringify!($block), "`].")]
        pub struct $name;
        impl Tile for $name {
            type Block = $block;
            const GROUPS: usize = 1;
            const OFFSET: i32 = 0;
            $(const MOST: i32 = $most;)?
            const MIN: bool = true;
            #[inline(always)]
            unsafe fn steps<H: Half>(b: &Self::Block, _: usize) -> Steps {
                // SAFETY: the caller's promise.
                unsafe { Steps { min: H::f32(b.m), ..Steps::scale(H::f32(b.d)) } }
            }
            #[inline(always)]
            fn codes(b: &Self::Block, _: usize) -> [u8; 32] {
                let codes: fn(&Self::Block) -> [u8; 32] = $codes;
                codes(b)
            }
        }
    };
}

scaled!(Q4_0, block::BlockQ4_0, 8, |b| nibbles(&b.qs), most 15);
shifted!(Q4_1, block::BlockQ4_1, |b| nibbles(&b.qs), most 15);
scaled!(Q5_0, block::BlockQ5_0, 16, |b| {
    let low = nibbles(&b.qs);
    std::array::from_fn(|i| low[i] | fifth(b.qh, i))
}, most 31);
shifted!(Q5_1, block::BlockQ5_1, |b| {
    let low = nibbles(&b.qs);
    std::array::from_fn(|i| low[i] | fifth(b.qh, i))
}, most 31);
scaled!(Q8_0, block::BlockQ8_0, 128, |b| b.qs.map(|q| q as u8 ^ 0x80));
scaled!(Iq4Nl, block::BlockIq4Nl, 128, |b| nibbles(&b.qs).map(iq4));

/// A level of the IQ4 formats as a code.
#[inline(always)]
pub fn iq4(nibble: u8) -> u8 {
    IQ4_CODES[nibble as usize]
}

/// The levels of the IQ4 formats as codes with offset 128.
pub const IQ4_CODES: [u8; 16] = {
    let mut t = [0; 16];
    let mut i = 0;
    while i < 16 {
        t[i] = IQ4_VALUES[i] as u8 ^ 0x80;
        i += 1;
    }
    t
};

/// Twice the E2M1 values, with offset 12.
pub const E2M1_CODES: [u8; 16] = {
    let mut t = [0; 16];
    let mut i = 0;
    while i < 16 {
        t[i] = (block::E2M1_VALUES[i] * 2.0 + 12.0) as u8;
        i += 1;
    }
    t
};

/// See [`block::BlockMxfp4`]. Codes are twice the values, so the scale is half.
pub struct Mxfp4;

impl Tile for Mxfp4 {
    type Block = block::BlockMxfp4;
    const GROUPS: usize = 1;
    const OFFSET: i32 = 12;
    const MOST: i32 = 24;
    #[inline(always)]
    unsafe fn steps<H: Half>(b: &Self::Block, _: usize) -> Steps {
        // 2^(e - 128): below 2 the result is subnormal.
        Steps::scale(match b.e {
            255 => f32::NAN,
            e @ 2.. => f32::from_bits((e as u32 - 1) << 23),
            e => f32::from_bits(0x0020_0000 << e),
        })
    }
    #[inline(always)]
    fn codes(b: &Self::Block, _: usize) -> [u8; 32] {
        nibbles(&b.qs).map(|q| E2M1_CODES[q as usize])
    }
}
