//! A tile of rotated vectors read where they lie, against one rotated query of each of several heads, in f32. Keys are
//! interleaved, so that a register holds one element of several of them and a score is a chain over elements.

use super::attention::TILE;
use super::stored::Stored;
use super::tile::HEADS;
use crate::cpu::lanes::Lanes;
use std::ops::Range;

/// Keys of a tile that is aligned in its page.
pub struct Keys<S> {
    pub stored: S,
    /// Keys of the head in the page.
    pub block: *const u8,
    /// The tile's first.
    pub base: usize,
    /// Those of the tile that count.
    pub seen: Range<usize>,
    pub d: usize,
}

impl<S: Stored> Keys<S> {
    /// Products of `H` queries with the keys of the registers that the seen ones lie in.
    ///
    /// # Safety
    /// The tile lies in the page; queries from head `first` on have d floats.
    #[inline(always)]
    pub unsafe fn score<L: Lanes, const H: usize>(
        &self,
        q: &[*const f32; HEADS],
        first: usize,
        to: &mut [[f32; TILE]; HEADS],
    ) {
        let from = self.seen.start / L::N * L::N;
        for j in (from..self.seen.end).step_by(L::N) {
            let mut acc = [L::zero(); H];
            // SAFETY: keys of the tile, d elements each.
            unsafe {
                for e in (0..self.d).step_by(8) {
                    for e in e..e + 8 {
                        let k: L = self.stored.keys(self.block, self.d, self.base + j, e);
                        for h in 0..H {
                            acc[h] = L::splat(*q[first + h].add(e)).fma(k, acc[h]);
                        }
                    }
                }
                for h in 0..H {
                    acc[h].store(to[first + h].as_mut_ptr().add(j));
                }
            }
        }
    }
    /// The keys' elements, `[d, TILE]`, each multiplied by its key's entry of `by`.
    ///
    /// # Safety
    /// The tile lies in the page; `to` may be written.
    #[inline(always)]
    pub unsafe fn transposed<L: Lanes>(&self, by: &[f32; TILE], to: *mut f32) {
        let from = self.seen.start / L::N * L::N;
        for j in (from..self.seen.end).step_by(L::N) {
            // SAFETY: keys of the tile; TILE is a multiple of N.
            unsafe {
                let by = L::load(by.as_ptr().add(j));
                for e in (0..self.d).step_by(8) {
                    for e in e..e + 8 {
                        let k: L = self.stored.keys(self.block, self.d, self.base + j, e);
                        k.mul(by).store(to.add(e * TILE + j));
                    }
                }
            }
        }
    }
}

/// What is not in `seen` becomes `x`.
#[inline(always)]
pub fn outside(s: &mut [f32; TILE], seen: &Range<usize>, x: f32) {
    s[..seen.start].fill(x);
    s[seen.end..].fill(x);
}
