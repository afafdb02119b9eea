//! Interleaved rows in plain Rust: they are put together again.

use crate::cpu::mat::planes::Planes;
use crate::cpu::mat::quant::GROUP;
use crate::cpu::mat::side::{Plane, Scale, Side};
use crate::cpu::mat::tile::Tile;
use crate::cpu::mat::{TILE, Weights, tile32, tile256};
use crate::cpu::ptr::Ptr;
use crate::interleave::{Part, take_row};
use checkpoint::Block;

/// A tile decoder that knows its format's name.
pub trait Named: Tile {
    const BLOCK: Block;
}

macro_rules! named {
    ($($tile:ty: $block:ident;)*) => {
        $(impl Named for $tile {
            const BLOCK: Block = Block::$block;
        })*
    };
}

named! {
    tile32::Q4_0: Q4_0;
    tile32::Q4_1: Q4_1;
    tile32::Iq4Nl: Iq4Nl;
    tile32::Mxfp4: Mxfp4;
    tile32::Q8_0: Q8_0;
    tile256::Q4K: Q4K;
    tile256::Q5K: Q5K;
    tile256::Q6K: Q6K;
}

/// The rows of a tile of rows of `bytes` bytes, as in the file.
///
/// # Safety
/// The tile is readable.
unsafe fn rows(part: Part, base: *const u8, bytes: usize) -> Vec<u8> {
    // SAFETY: the caller's promise: sixteen rows, one behind the other.
    let tile = unsafe { std::slice::from_raw_parts(base, TILE * bytes) };
    let mut rows = vec![0; TILE * bytes];
    rows.chunks_exact_mut(bytes.max(1)).enumerate().for_each(|(r, row)| take_row(part, tile, r, row));
    rows
}

/// See [`crate::cpu::mat::TileFn`], for interleaved rows of blocks.
pub unsafe fn interleaved<T: Named>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    // SAFETY: the promise of `TileFn`; the last rows of a matrix lie as in the file.
    unsafe {
        if w.n < TILE {
            return super::blocks::<T>(w, x, acc);
        }
        let rows = rows(Part::Blocks(T::BLOCK), w.base, w.row);
        super::blocks::<T>(&Weights { base: rows.as_ptr(), ..*w }, x, acc)
    }
}

/// The same for planes of nibbles and numbers. `T` has the arithmetic of the other instruction sets, `P` does the work.
pub unsafe fn interleaved_planes<T: Tile, P: Planes>(w: &Weights, x: &[*const u8], acc: &mut [[f32; TILE]]) {
    // SAFETY: the promise of `TileFn`; the last rows of a matrix lie as in the file.
    unsafe {
        if w.n < TILE {
            return super::planes::<P>(w, x, acc);
        }
        let unit = match w.side.scale {
            Scale::F32 => 4,
            Scale::F16 | Scale::BF16 => 2,
            Scale::E8M0 => 1,
        };
        let codes = rows(Part::Nibbles, w.base, w.row);
        let numbers = |p: &Plane| rows(Part::Units(unit), p.base.raw(), w.k / GROUP / w.side.per * unit);
        let scales = numbers(&w.side.scales);
        let mins = if T::MIN { numbers(&w.side.mins) } else { Vec::new() };
        let at = |p: &Plane, v: &[u8]| Plane { base: Ptr::of(v.as_ptr()), ..*p };
        let side = Side { scales: at(&w.side.scales, &scales), mins: at(&w.side.mins, &mins), ..w.side };
        super::planes::<P>(&Weights { base: codes.as_ptr(), side, ..*w }, x, acc)
    }
}
