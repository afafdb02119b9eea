//! Block formats of 256 elements. Layouts and formulas are with the block types in `checkpoint`.

use super::tile::{Half, Steps, Tile};
use super::tile32::{iq4, nibbles};
use checkpoint::block;

/// The six-bit scale and minimum of group `g`: `checkpoint::block::unpack_scales` for one group.
#[inline(always)]
fn pair(s: &[u8; 12], g: usize) -> (f32, f32) {
    let (scale, min) = if g < 4 {
        (s[g] & 63, s[g + 4] & 63)
    } else {
        (s[g + 4] & 15 | s[g - 4] >> 6 << 4, s[g + 4] >> 4 | s[g] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

macro_rules! k_steps {
    () => {
        #[inline(always)]
        unsafe fn steps<H: Half>(b: &Self::Block, g: usize) -> Steps {
            let (scale, min) = pair(&b.scales, g);
            // SAFETY: the caller's promise.
            unsafe { Steps { min: -(H::f32(b.dmin) * min), ..Steps::scale(H::f32(b.d) * scale) } }
        }
    };
}

/// See [`block::BlockQ4K`].
pub struct Q4K;

impl Tile for Q4K {
    type Block = block::BlockQ4K;
    const GROUPS: usize = 8;
    const OFFSET: i32 = 0;
    const MOST: i32 = 15;
    const MIN: bool = true;
    k_steps!();
    #[inline(always)]
    fn codes(b: &Self::Block, g: usize) -> [u8; 32] {
        b.qs[g / 2].map(|q| q >> (4 * (g % 2)) & 15)
    }
}

/// See [`block::BlockQ5K`].
pub struct Q5K;

impl Tile for Q5K {
    type Block = block::BlockQ5K;
    const GROUPS: usize = 8;
    const OFFSET: i32 = 0;
    const MOST: i32 = 31;
    const MIN: bool = true;
    k_steps!();
    #[inline(always)]
    fn codes(b: &Self::Block, g: usize) -> [u8; 32] {
        std::array::from_fn(|l| b.qs[g / 2][l] >> (4 * (g % 2)) & 15 | (b.qh[l] >> g & 1) << 4)
    }
}

/// See [`block::BlockQ6K`].
pub struct Q6K;

impl Tile for Q6K {
    type Block = block::BlockQ6K;
    const GROUPS: usize = 8;
    const OFFSET: i32 = 32;
    const SUB: bool = true;
    #[inline(always)]
    unsafe fn steps<H: Half>(b: &Self::Block, g: usize) -> Steps {
        let sub = [b.scales[2 * g] as i32, b.scales[2 * g + 1] as i32];
        // SAFETY: the caller's promise.
        unsafe { Steps { sub, ..Steps::scale(H::f32(b.d)) } }
    }
    #[inline(always)]
    fn codes(b: &Self::Block, g: usize) -> [u8; 32] {
        let (half, quarter) = (g / 4, g % 4);
        std::array::from_fn(|l| {
            let low = b.ql[64 * half + 32 * (quarter % 2) + l] >> (4 * (quarter / 2)) & 15;
            low | (b.qh[32 * half + l] >> (2 * quarter) & 3) << 4
        })
    }
}

/// See [`block::BlockIq4Xs`].
pub struct Iq4Xs;

impl Tile for Iq4Xs {
    type Block = block::BlockIq4Xs;
    const GROUPS: usize = 8;
    const OFFSET: i32 = 128;
    #[inline(always)]
    unsafe fn steps<H: Half>(b: &Self::Block, g: usize) -> Steps {
        // SAFETY: the caller's promise.
        Steps::scale(unsafe { H::f32(b.d) } * f32::from(b.scale(g)))
    }
    #[inline(always)]
    fn codes(b: &Self::Block, g: usize) -> [u8; 32] {
        nibbles(&b.qs[g]).map(iq4)
    }
}

/// See [`block::BlockQ3K`].
pub struct Q3K;

impl Tile for Q3K {
    type Block = block::BlockQ3K;
    const GROUPS: usize = 8;
    const OFFSET: i32 = 4;
    const SUB: bool = true;
    #[inline(always)]
    unsafe fn steps<H: Half>(b: &Self::Block, g: usize) -> Steps {
        let sub = [b.scale(2 * g) as i32, b.scale(2 * g + 1) as i32];
        // SAFETY: the caller's promise.
        unsafe { Steps { sub, ..Steps::scale(H::f32(b.d)) } }
    }
    #[inline(always)]
    fn codes(b: &Self::Block, g: usize) -> [u8; 32] {
        let (half, quarter) = (g / 4, g % 4);
        std::array::from_fn(|l| b.qs[32 * half + l] >> (2 * quarter) & 3 | (b.hmask[l] >> g & 1) << 2)
    }
}

/// See [`block::BlockIq3S`].
pub struct Iq3S;

impl Tile for Iq3S {
    type Block = block::BlockIq3S;
    const GROUPS: usize = 8;
    const OFFSET: i32 = 16;
    #[inline(always)]
    unsafe fn steps<H: Half>(b: &Self::Block, g: usize) -> Steps {
        // SAFETY: the caller's promise.
        Steps::scale(unsafe { H::f32(b.d) } * f32::from(b.scale(g)))
    }
    #[inline(always)]
    fn codes(b: &Self::Block, g: usize) -> [u8; 32] {
        b.levels(g).map(|level| (level + 16) as u8)
    }
}
