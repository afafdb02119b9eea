//! Where the fields of interleaved blocks lie: see [`crate::interleave`].

use super::TILE;
use super::tile::{CHUNK_GROUPS, Tile};
use super::{Weights, tile32, tile256};
use checkpoint::block;
use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
use std::mem::offset_of;

/// A chunk of sixteen interleaved rows.
#[derive(Copy, Clone, Debug)]
pub struct Chunk {
    base: *const u8,
    /// Blocks of each row.
    blocks: usize,
}

impl Chunk {
    /// The chunk of groups `first ..` of a tile, of which it holds `here`.
    #[inline(always)]
    pub fn new<T: Tile>(w: &Weights, first: usize, here: usize) -> Self {
        let at = first / T::GROUPS * size_of::<T::Block>() * TILE;
        Chunk { base: w.base.wrapping_add(at), blocks: here / T::GROUPS }
    }
    /// The sixteen rows' bytes of block `i` in the field of `bytes` bytes at byte `at` of a block.
    #[inline(always)]
    pub fn field(self, at: usize, bytes: usize, i: usize) -> *const u8 {
        self.base.wrapping_add(TILE * (self.blocks * at + i * bytes))
    }
    /// Asks for what it has beside codes, further on.
    #[inline(always)]
    pub fn ask_beside<T: Codes>(self) {
        let (codes, end) = (TILE * self.blocks * T::CODES.0, TILE * self.blocks * (T::CODES.0 + T::CODES.1));
        ask_ahead(self.base, codes);
        ask_ahead(self.base.wrapping_add(end), TILE * self.blocks * size_of::<T::Block>() - end);
    }
    /// Asks for as many codes as group `g` has, further on.
    #[inline(always)]
    pub fn ask_codes<T: Codes>(self, g: usize) {
        let (first, group) = (TILE * self.blocks * T::CODES.0, TILE * T::CODES.1 / T::GROUPS);
        ask_ahead(self.base.wrapping_add(first + g * group), group);
    }
}

/// Distances at which [`ask_ahead`] asks.
const AHEAD: [usize; 2] = [12 << 10, 6 << 10];

/// Asks for `bytes` bytes that lie behind `p` by each distance of [`AHEAD`], into the second cache: in the first one they would
/// take the few places that loads on their way need, and halve what a thread reads. Twice, because what is asked for while too
/// much is under way is forgotten (`docs/experiments.md`, E23).
#[inline(always)]
pub fn ask_ahead(p: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(64) {
        for ahead in AHEAD {
            // SAFETY: every x86-64 CPU has it, and prefetching reads nothing, wherever it points.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(p.wrapping_add(ahead + at).cast()) }
        }
    }
}

/// Where the codes of a format are: byte of a block, and bytes.
pub trait Codes: Tile {
    const CODES: (usize, usize);
}

macro_rules! codes {
    ($($tile:ty: $block:ident.$field:ident, $bytes:expr;)*) => {
        $(impl Codes for $tile {
            const CODES: (usize, usize) = (offset_of!(block::$block, $field), $bytes);
        })*
    };
}

codes! {
    tile32::Q4_0: BlockQ4_0.qs, 16;
    tile32::Q4_1: BlockQ4_1.qs, 16;
    tile32::Iq4Nl: BlockIq4Nl.qs, 16;
    tile32::Mxfp4: BlockMxfp4.qs, 16;
    tile32::Q8_0: BlockQ8_0.qs, 32;
    tile256::Q4K: BlockQ4K.qs, 128;
    tile256::Q5K: BlockQ5K.qs, 128;
    tile256::Q6K: BlockQ6K.ql, 128;
}

/// Where the upper bits of codes are.
pub const Q5K_HIGH: (usize, usize) = (offset_of!(block::BlockQ5K, qh), 32);
/// As [`Q5K_HIGH`].
pub const Q6K_HIGH: (usize, usize) = (offset_of!(block::BlockQ6K, qh), 64);

/// Groups of a chunk that starts at group `first` of `groups`.
#[inline(always)]
pub fn groups_from(first: usize, groups: usize) -> usize {
    CHUNK_GROUPS.min(groups - first)
}

/// Bytes of `Scales::Six` and `Scales::Sub`.
pub const SIX: usize = 12;
/// As [`SIX`].
pub const SUB: usize = 16;
