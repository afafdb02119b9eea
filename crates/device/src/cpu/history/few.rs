//! Attention of decoded rows: the history of a row is cut into at most 32 partitions of whole pages, which different
//! threads may read, and whose sums meet in a fixed tree. The cut follows from the row's own position, and so do its bits.

use super::attention::{Attention, Sight, TILE, exp1};
use super::pages::{PAGE, Trouble};
use super::stored::{Stored, WithFormat, pick};
use super::tile::{HEADS, Tile, soften};
use crate::cpu::Cx;
use crate::cpu::lanes::{Lanes, Work, dispatch};
use crate::error::Result;
use crate::op::{Rows, StreamView};
use crate::view::View;
use memory::KvFormat;
use std::marker::PhantomData;
use std::ops::Range;

/// Most partitions of a row.
const PARTS: u32 = 32;

/// Most partitions that a row of this stream can have.
pub fn parts(st: &StreamView, rows: &Rows) -> u64 {
    let pages = if st.ring > 0 { st.ring } else { rows.page_table.cols };
    pages.clamp(1, PARTS) as u64
}

/// Floats of scratch: of each partition of each (row, head) the maximum, the sum of weights and the weighted values.
pub fn floats(q: &View, st: &StreamView, rows: &Rows) -> u64 {
    rows.n as u64 * q.heads as u64 * parts(st, rows) * (q.cols as u64 + 2)
}

/// Pages of a partition, and how many partitions there are.
#[derive(Copy, Clone, Debug, PartialEq)]
struct Cut {
    pages: usize,
    parts: usize,
}

impl Cut {
    fn of(s: &Sight) -> Cut {
        let pages = s.last / PAGE - s.first / PAGE + 1;
        let each = pages.div_ceil(PARTS as usize).next_power_of_two();
        Cut { pages: each, parts: pages.div_ceil(each) }
    }
    /// Positions of partition `i`.
    fn part(&self, s: &Sight, i: usize) -> Range<usize> {
        let page = s.first / PAGE + i * self.pages;
        s.first.max(page * PAGE)..(s.last + 1).min((page + self.pages) * PAGE)
    }
}

#[derive(Copy, Clone)]
struct Few<'a> {
    a: Attention,
    /// Partitions there is room for.
    room: usize,
    trouble: &'a Trouble,
}

impl Few<'_> {
    /// Where a partition's maximum, sum and values lie.
    fn held(&self, row: usize, head: usize, part: usize) -> *mut f32 {
        let at = (row * self.a.q.heads + head) * self.room + part;
        self.a.scratch.raw().wrapping_add(at * (self.a.d() + 2))
    }
    fn cut(&self, row: usize) -> Option<(Sight, Cut)> {
        let sight = self.trouble.unless(self.a.sight(row))?;
        let cut = Cut::of(&sight);
        self.trouble.unless((cut.parts <= self.room).then_some((sight, cut)))
    }
}

/// One partition of one row, for all query heads of a key head.
struct Part<'a, S> {
    few: Few<'a>,
    row: usize,
    kv: usize,
    part: usize,
    _format: PhantomData<S>,
}

impl<S: Stored> Work for Part<'_, S> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (few, a) = (&self.few, &self.few.a);
        let Some((sight, cut)) = few.cut(self.row) else { return };
        if self.part >= cut.parts {
            return;
        }
        let (group, d) = (a.group(), a.d());
        for head in 0..group {
            // SAFETY: scratch has room for d + 2 floats here, which belong to this partition.
            unsafe {
                let held = few.held(self.row, self.kv * group + head, self.part);
                held.write(f32::NEG_INFINITY);
                held.add(1).write_bytes(0, d + 1);
            }
        }
        let Range { mut start, end } = cut.part(&sight, self.part);
        while start < end {
            let n = (start / TILE * TILE + TILE).min(end) - start;
            let Some((keys, values)) = few.trouble.unless(a.pages.at(sight.seq, start, self.kv)) else { return };
            let place = start % PAGE * a.pages.vector;
            for first in (0..group).step_by(HEADS) {
                let heads = self.kv * group + first..self.kv * group + group.min(first + HEADS);
                // SAFETY: n vectors from `place` on lie in the page; a tile never leaves it.
                unsafe { self.tile::<L>(heads, keys.add(place), values.add(place), n) };
            }
            start += n;
        }
    }
}

impl<S: Stored> Part<'_, S> {
    #[inline(always)]
    unsafe fn tile<L: Lanes>(&self, heads: Range<usize>, keys: *const u8, values: *const u8, n: usize) {
        let a = &self.few.a;
        let mut scores = [[f32::NEG_INFINITY; TILE]; HEADS];
        let mut kept = [1.0; HEADS];
        let mut tile = Tile {
            q: [a.q.at(self.row, heads.start).cast_const(); HEADS],
            acc: [std::ptr::null_mut(); HEADS],
            keys,
            values,
            vector: a.pages.vector,
            n,
            d: a.d(),
            scale: a.scale,
        };
        for h in 0..heads.len() {
            tile.q[h] = a.q.at(self.row, heads.start + h);
            tile.acc[h] = self.few.held(self.row, heads.start + h, self.part).wrapping_add(2);
        }
        // As many heads at once as the registers hold sums of; a head's own arithmetic is the same in any block.
        let (most, h) = (if L::N == 16 { 4 } else { 2 }, heads.len());
        // SAFETY: n keys and values of d elements, queries of d columns; partitions as in `run`.
        unsafe {
            for at in (0..h).step_by(most) {
                match (h - at).min(most) {
                    4 => tile.score::<L, S, 4>(at, &mut scores),
                    3 => tile.score::<L, S, 3>(at, &mut scores),
                    2 => tile.score::<L, S, 2>(at, &mut scores),
                    _ => tile.score::<L, S, 1>(at, &mut scores),
                }
            }
            for h in 0..h {
                let (max, sum) = (tile.acc[h].sub(2), tile.acc[h].sub(1));
                let (m, kept_h, weights) = soften::<L>(&mut scores[h], n, *max);
                (*max, kept[h]) = (m, kept_h);
                *sum = *sum * kept_h + weights;
            }
            for at in (0..h).step_by(4) {
                match (h - at).min(4) {
                    4 => tile.weigh::<L, S, 4>(at, &scores, &kept),
                    3 => tile.weigh::<L, S, 3>(at, &scores, &kept),
                    2 => tile.weigh::<L, S, 2>(at, &scores, &kept),
                    _ => tile.weigh::<L, S, 1>(at, &scores, &kept),
                }
            }
        }
    }
}

/// Sums up the partitions of (row, head)s in a tree that their number alone decides.
struct Meet<'a> {
    few: Few<'a>,
    of: Range<usize>,
}

impl Work for Meet<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let a = &self.few.a;
        for i in self.of.clone() {
            let (row, head) = (i / a.q.heads, i % a.q.heads);
            let Some((_, cut)) = self.few.cut(row) else { return };
            let held = |part| self.few.held(row, head, part);
            let mut step = 1;
            while step < cut.parts {
                for part in (0..cut.parts - step).step_by(2 * step) {
                    // SAFETY: two partitions of this (row, head), all written before this job began.
                    unsafe { merge::<L>(held(part), held(part + step), a.d()) };
                }
                step *= 2;
            }
            // SAFETY: partition 0 holds the sum of all.
            unsafe { a.finish::<L>(row, head, *held(0), *held(0).add(1), held(0).add(2)) };
        }
    }
}

#[inline(always)]
unsafe fn merge<L: Lanes>(x: *mut f32, y: *const f32, d: usize) {
    // SAFETY: d + 2 floats each.
    unsafe {
        let m = (*x).max(*y);
        let (by_x, by_y) = (exp1::<L>(*x - m), exp1::<L>(*y - m));
        *x = m;
        let (by_x, by_y) = (L::splat(by_x), L::splat(by_y));
        let mut i = 1;
        while i < d + 2 {
            let n = d + 2 - i;
            let sum = L::get(y.add(i), n).fma(by_y, L::get(x.add(i), n).mul(by_x));
            sum.put(x.add(i), n);
            i += L::N;
        }
    }
}

struct Run<'a, 'b> {
    cx: &'a Cx<'b>,
    a: Attention,
    room: usize,
}

impl WithFormat for Run<'_, '_> {
    type Out = Result<()>;
    fn with<S: Stored>(self) -> Result<()> {
        let Run { cx, a, room } = self;
        let trouble = Trouble::default();
        let few = Few { a, room, trouble: &trouble };
        let (rows, heads) = (a.q.rows, a.pages.heads);
        let cuts = || (0..rows).filter_map(|r| few.cut(r));
        let most = cuts().map(|(_, c)| c.parts).max().unwrap_or(0);
        let keys: usize = cuts().map(|(s, _)| s.last + 1 - s.first).sum();
        trouble.end()?;
        let items = rows * heads * most;
        let ns = keys * heads * a.d() * (a.group() + 1) / 16 / items.max(1);
        cx.each(items, ns, |_, i| {
            // Neighbouring items read neighbouring pages.
            let (row, kv, part) = (i / most / heads, i / most % heads, i % most);
            dispatch(cx.isa, Part { few, row, kv, part, _format: PhantomData::<S> })
        })?;
        cx.share(rows * a.q.heads, most * (20 + a.d() / 8), |of| dispatch(cx.isa, Meet { few, of }))?;
        trouble.end()
    }
}

pub fn attention(cx: &Cx, a: Attention, fmt: KvFormat, room: usize) -> Result<()> {
    pick(fmt, Run { cx, a, room })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_covers_the_history_once_and_never_has_more_than_32_parts() {
        for last in (0..300_000usize).step_by(251).chain([255, 256, 8191, 8192, 8193]) {
            for first in [0, last / 3, last.saturating_sub(511), last] {
                let s = Sight { seq: 0, first, last };
                let cut = Cut::of(&s);
                assert!(cut.parts <= PARTS as usize && cut.pages.is_power_of_two());
                let mut next = first;
                for i in 0..cut.parts {
                    let part = cut.part(&s, i);
                    assert!(part.start == next && part.start < part.end, "{s:?} {cut:?} {i}");
                    next = part.end;
                }
                assert_eq!(next, last + 1);
            }
        }
    }
}
