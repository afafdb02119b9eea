//! A tile of prompt rows over rotated history with the integer kernels: some queries at a time against a tile of keys, whose
//! codes become integers in registers and are never written down. A query's sums do not depend on which others share its
//! tile: what it does not see has weight 0, and integers are exact.

use super::Tile;
use crate::cpu::history::attention::TILE;
use crate::cpu::history::ints::{self, Block, Codes, Head};
use crate::cpu::history::pages::PAGE;
use crate::cpu::history::tile::{HEADS, Query, soften_all};
use crate::cpu::lanes::Lanes;
use crate::kv::rotation::MAX_WIDTH;
use std::ops::Range;

impl Tile<'_> {
    /// Positions `seen` of the history.
    ///
    /// # Safety
    /// The CPU has AVX-512 with VNNI, and scratch is this thread's own.
    #[inline(always)]
    pub(super) unsafe fn main_in_integers<L: Lanes>(&self, codes: Codes, unit: f32, seq: usize, seen: Range<usize>) {
        let (d, room) = (self.a.d(), self.room());
        // SAFETY: the caller's promise; queries and accumulators of the tile.
        unsafe {
            self.gather(true);
            for (m, ..) in self.queries() {
                let mut q = [0.0; MAX_WIDTH];
                let at = self.at(room.q + m * d);
                std::ptr::copy_nonoverlapping(at, q.as_mut_ptr(), d);
                // Half as long as it was; behind it what 1 stands for.
                let one = codes.query(&q[..d], std::slice::from_raw_parts_mut(at.cast::<i32>(), d / 2));
                at.add(d / 2).write(one);
            }
            self.turn(true, true);
            self.reorder(codes, true);
            for tile in seen.start / TILE..(seen.end - 1) / TILE + 1 {
                let keys = seen.start.max(tile * TILE)..seen.end.min((tile + 1) * TILE);
                let Some(at) = self.trouble.unless(self.a.pages.at(seq, tile * TILE, self.kv)) else { return };
                let Some(rows) = self.trouble.unless(self.seeing(tile)) else { return };
                self.integers::<L>((codes, unit), tile, keys, rows, at);
            }
            self.reorder(codes, false);
            self.turn(true, false);
        }
    }

    /// Brings the accumulators into the order of the kernels' sums, or back.
    #[inline(always)]
    unsafe fn reorder(&self, codes: Codes, forth: bool) {
        let (d, room) = (self.a.d(), self.room());
        for (m, ..) in self.queries() {
            // SAFETY: accumulator of query m.
            let acc = unsafe { std::slice::from_raw_parts_mut(self.at(room.acc + m * d), d) };
            let mut was = [0.0; MAX_WIDTH];
            was[..d].copy_from_slice(acc);
            if forth {
                codes.elements(d, |i, element| acc[i] = was[element]);
            } else {
                codes.elements(d, |i, element| acc[element] = was[i]);
            }
        }
    }

    /// The queries of `rows` against a tile of keys and values, as many at once as the kernels hold sums of.
    #[inline(always)]
    unsafe fn integers<L: Lanes>(
        &self,
        (codes, unit): (Codes, f32),
        tile: usize,
        keys: Range<usize>,
        rows: Range<usize>,
        (keys_at, values_at): (*mut u8, *mut u8),
    ) {
        let (group, d, room, pages) = (self.a.group(), self.a.d(), self.room(), &self.a.pages);
        let base = tile * TILE % PAGE;
        let seen = keys.start - tile * TILE..keys.end - tile * TILE;
        // The queries of a tile share it, so nothing is gained by asking for the one after it: it asks for itself.
        let block = |at: *mut u8| {
            let (at, vector) = (at.cast_const(), pages.vector);
            Block { codes, at, base, seen: seen.clone(), d, vector, next: at.wrapping_add(base * vector) }
        };
        let scales = |at: *mut u8| at.wrapping_add(pages.scales + 2 * base).cast_const().cast::<u16>();
        let first = (rows.start - self.rows.start) * group;
        let nobody = Head { weights: [0; TILE], unit: 0.0, kept: 1.0, sums: std::ptr::null_mut() };
        let nothing = Query { by: 0.0, seen: [0, 0], state: std::ptr::null_mut() };
        for m0 in (first..first + rows.len() * group).step_by(ints::MOST) {
            let n = (first + rows.len() * group - m0).min(ints::MOST);
            let (mut scores, mut heads, mut of) = ([[0.0; TILE]; HEADS], [nobody; ints::MOST], [nothing; ints::MOST]);
            // SAFETY: queries m0 .. m0 + n with their sums and accumulators; the tile lies in the page.
            unsafe {
                let q: [*const i32; ints::MOST] =
                    std::array::from_fn(|i| self.at(room.q + (m0 + i.min(n - 1)) * d).cast::<i32>().cast_const());
                ints::score(&block(keys_at), &q[..n], &mut scores);
                for (i, of) in of[..n].iter_mut().enumerate() {
                    let m = m0 + i;
                    let Some(sight) = self.trouble.unless(self.a.sight(self.rows.start + m / group)) else { return };
                    let from = sight.first.saturating_sub(tile * TILE).clamp(seen.start, seen.end);
                    of.seen = [from, (sight.last + 1 - tile * TILE).min(seen.end).max(from)];
                    of.by = *self.at(room.q + m * d + d / 2) * unit * self.a.scale;
                    of.state = self.at(room.sums + 2 * m);
                }
                let kept = soften_all::<L>(&mut scores[..n], &of[..n], [scales(keys_at), scales(values_at)], unit);
                for (i, to) in heads[..n].iter_mut().enumerate() {
                    (to.kept, to.sums) = (kept[i], self.at(room.acc + (m0 + i) * d));
                    to.unit = codes.weights(&scores[i], &mut to.weights);
                }
                ints::weigh(&block(values_at), &heads[..n]);
            }
        }
    }
}
