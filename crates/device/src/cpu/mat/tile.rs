//! What a block format says to the kernels.

use checkpoint::block;

/// Elements that one step along k takes: eight groups of 32, one block of the large formats.
pub const CHUNK_GROUPS: usize = 8;

/// The numbers of one group of 32 weights: `w = scale * (code - OFFSET) + min`, or with two sub-scales
/// `w = scale * sub[i / 16] * (code - OFFSET)`.
#[derive(Copy, Clone, Debug)]
pub struct Steps {
    pub scale: f32,
    /// Read only if the format has `MIN`.
    pub min: f32,
    /// Read only if the format has `SUB`.
    pub sub: [i32; 2],
}

impl Steps {
    #[inline(always)]
    pub fn scale(scale: f32) -> Self {
        Steps { scale, min: 0.0, sub: [1; 2] }
    }
}

/// How stored f16 become f32.
pub trait Half {
    /// # Safety
    /// The instructions it is made of are available.
    unsafe fn f32(bits: [u8; 2]) -> f32;
}

/// A block format: a decoder of 32 weights at a time to unsigned bytes and steps. Codes are at most 63 unless `OFFSET`
/// is 128, where they are any byte.
pub trait Tile {
    /// The block as it lies in the file, alignment 1.
    type Block;
    /// Groups of 32 in a block: 1, or [`CHUNK_GROUPS`].
    const GROUPS: usize;
    /// What is subtracted from a code.
    const OFFSET: i32;
    /// The largest code, where `OFFSET` is not 128.
    const MOST: i32 = 63;
    /// Whether `min` counts.
    const MIN: bool = false;
    /// Whether `sub` counts. Codes less their offset are then at most 32 and `sub` at most 128 in magnitude, so that the
    /// sum of both halves, 2 * 128 * 16 * 32 * 16256 at most, stays below 2^31.
    const SUB: bool = false;

    /// Steps of group `g` of a block.
    ///
    /// # Safety
    /// Those of `H`.
    unsafe fn steps<H: Half>(b: &Self::Block, g: usize) -> Steps;

    /// Codes of group `g`, in element order.
    fn codes(b: &Self::Block, g: usize) -> [u8; 32];
}

/// (block, group in it) of group `g` of the chunk that starts at `chunk`.
///
/// # Safety
/// The blocks up to that group are readable.
#[inline(always)]
pub unsafe fn locate<'a, T: Tile>(chunk: *const u8, g: usize) -> (&'a T::Block, usize) {
    // SAFETY: readable by the caller's promise; block types have alignment 1 (checked below for every format).
    unsafe { (&*chunk.cast::<T::Block>().add(g / T::GROUPS), g % T::GROUPS) }
}

/// Bytes from chunk to chunk.
pub const fn chunk_bytes<T: Tile>() -> usize {
    size_of::<T::Block>() * (CHUNK_GROUPS / T::GROUPS)
}

const _: () = assert!(
    align_of::<block::BlockQ4_0>() == 1
        && align_of::<block::BlockQ4_1>() == 1
        && align_of::<block::BlockQ5_0>() == 1
        && align_of::<block::BlockQ5_1>() == 1
        && align_of::<block::BlockQ8_0>() == 1
        && align_of::<block::BlockIq4Nl>() == 1
        && align_of::<block::BlockMxfp4>() == 1
        && align_of::<block::BlockQ2K>() == 1
        && align_of::<block::BlockQ3K>() == 1
        && align_of::<block::BlockIq3S>() == 1
        && align_of::<block::BlockNvfp4>() == 1
        && align_of::<block::BlockQ4K>() == 1
        && align_of::<block::BlockQ5K>() == 1
        && align_of::<block::BlockQ6K>() == 1
        && align_of::<block::BlockIq4Xs>() == 1
);
