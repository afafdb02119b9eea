//! Attention of decoded rows: the history of a row is cut into at most 32 partitions of whole pages, which different
//! threads may read, and whose sums meet in a fixed tree. The cut follows from the row's own position, and so do its bits.

use super::attention::{Attention, Sources, TILE, exp1};
use super::packed::Keys;
use super::pages::{PAGE, Pages, Trouble};
use super::stored::{Stored, WithFormat, pick, pick_beside};
use super::tile::{HEADS, Query, Tile, soften, soften_all};
use crate::cpu::Cx;
use crate::cpu::lanes::{Lanes, Work, dispatch};
use crate::error::Result;
use crate::kv::rotation::MAX_WIDTH;
use crate::op::{Rows, StreamView};
use crate::view::View;
use memory::KvFormat;
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::ints::{self, Block, Head};

/// Most partitions of a row.
const PARTS: u32 = 32;

/// Floats behind a rotated query: what 1 stands for where it was rounded to integers, and a gap that keeps queries on
/// lines of 64 bytes.
const UNIT: u64 = 16;

/// Most partitions that a row of this stream can have.
pub fn parts(st: &StreamView, rows: &Rows) -> u64 {
    let pages = if st.ring > 0 { st.ring } else { rows.page_table.cols };
    pages.clamp(1, PARTS) as u64
}

/// Floats of scratch: of each partition of each (row, head), and of what is read beside the history, the maximum, the
/// sum of weights and the weighted values; then the rotated queries.
pub fn floats(q: &View, st: &StreamView, rows: &Rows) -> u64 {
    let beside = (st.own.is_some() || st.sink.is_some()) as u64;
    let turned = if st.fmt.rotated() { q.cols as u64 + UNIT } else { 0 };
    rows.n as u64 * q.heads as u64 * ((parts(st, rows) + beside) * (q.cols as u64 + 2) + turned)
}

/// Pages of a partition, and how many partitions there are.
#[derive(Copy, Clone, Debug, PartialEq)]
struct Cut {
    pages: usize,
    parts: usize,
}

impl Cut {
    fn of(seen: &Range<usize>) -> Cut {
        if seen.is_empty() {
            return Cut { pages: 1, parts: 0 };
        }
        let pages = (seen.end - 1) / PAGE - seen.start / PAGE + 1;
        let each = pages.div_ceil(PARTS as usize).next_power_of_two();
        Cut { pages: each, parts: pages.div_ceil(each) }
    }
    /// Positions of partition `i`.
    fn part(&self, seen: &Range<usize>, i: usize) -> Range<usize> {
        let page = seen.start / PAGE + i * self.pages;
        seen.start.max(page * PAGE)..seen.end.min((page + self.pages) * PAGE)
    }
}

/// What a row looks at, and how it is cut.
struct Looks {
    seq: usize,
    sources: Sources,
    cut: Cut,
}

#[derive(Copy, Clone)]
struct Few<'a> {
    a: Attention,
    /// Rotated queries, where the history is rotated: `f32[rows, heads, d + UNIT]`.
    turned: *mut f32,
    /// Partitions there is room for, behind which comes what is read beside the history.
    room: usize,
    trouble: &'a Trouble,
}

// SAFETY: scratch is written in disjoint pieces, as every method that hands out a piece says.
unsafe impl Sync for Few<'_> {}
// SAFETY: as above.
unsafe impl Send for Few<'_> {}

impl Few<'_> {
    /// Where the rotated query of (row, head) lies.
    fn turned(&self, row: usize, head: usize) -> *mut f32 {
        self.turned.wrapping_add((row * self.a.q.heads + head) * (self.a.d() + UNIT as usize))
    }
    /// Where a partition's maximum, sum and values lie.
    fn held(&self, row: usize, head: usize, part: usize) -> *mut f32 {
        let at = (row * self.a.q.heads + head) * (self.room + self.a.beside() as usize) + part;
        self.a.scratch.raw().wrapping_add(at * (self.a.d() + 2))
    }
    fn looks(&self, row: usize) -> Option<Looks> {
        let sight = self.trouble.unless(self.a.sight(row))?;
        let sources = self.a.sources(&sight);
        let cut = Cut::of(&sources.main);
        self.trouble.unless((cut.parts <= self.room).then_some(Looks { seq: sight.seq, sources, cut }))
    }
    /// Nothing seen yet.
    fn begin(&self, row: usize, kv: usize, part: usize) {
        let (group, d) = (self.a.group(), self.a.d());
        for head in 0..group {
            // SAFETY: scratch has room for d + 2 floats here, which belong to this partition.
            unsafe {
                let held = self.held(row, kv * group + head, part);
                held.write(f32::NEG_INFINITY);
                held.add(1).write_bytes(0, d + 1);
            }
        }
    }
}

/// Rotates the queries of some (row, head)s into scratch, as f32 or as integers, as the kernels want them.
struct Turn<'a, S> {
    few: Few<'a>,
    of: Range<usize>,
    stored: S,
}

impl<S: Stored> Work for Turn<'_, S> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (a, d) = (&self.few.a, self.few.a.d());
        for i in self.of.clone() {
            let (row, head) = (i / a.q.heads, i % a.q.heads);
            let mut turned = [0.0; MAX_WIDTH];
            let (turned, to) = (&mut turned[..d], self.few.turned(row, head));
            // SAFETY: d columns of a checked view, and d + UNIT floats of scratch that this task alone writes.
            unsafe {
                turned.copy_from_slice(std::slice::from_raw_parts(a.q.at(row, head).cast_const(), d));
                a.signs(0, head / a.group()).rotate(turned);
                #[cfg(target_arch = "x86_64")]
                if ints::suit::<L>() {
                    let pairs = std::slice::from_raw_parts_mut(to.cast::<i32>(), d / 2);
                    to.add(d).write(self.stored.codes(d).query(turned, pairs));
                    continue;
                }
                std::ptr::copy_nonoverlapping(turned.as_ptr(), to, d);
            }
        }
    }
}

/// A tile in its page.
#[derive(Clone)]
struct Place {
    /// Its first vector.
    base: usize,
    /// Those of it that count.
    seen: Range<usize>,
    /// Bytes of one.
    vector: usize,
}

/// One partition of one row, for all query heads of a key head.
struct Part<'a, S> {
    few: Few<'a>,
    row: usize,
    kv: usize,
    part: usize,
    stored: S,
}

impl<S: Stored> Work for Part<'_, S> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Some(looks) = self.few.looks(self.row) else { return };
        if self.part < looks.cut.parts {
            self.few.begin(self.row, self.kv, self.part);
            let seen = looks.cut.part(&looks.sources.main, self.part);
            self.walk::<L>(&self.few.a.pages, looks.seq, seen);
        }
    }
}

/// What one row reads beside the history, for all query heads of a key head.
struct Beside<'a, S>(Part<'a, S>);

impl<S: Stored> Work for Beside<'_, S> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (part, a) = (&self.0, &self.0.few.a);
        let Some(looks) = part.few.looks(part.row) else { return };
        part.few.begin(part.row, part.kv, part.part);
        for (pages, seen) in [(a.sink, looks.sources.sink), (a.own, looks.sources.own)] {
            if let Some(pages) = pages {
                part.walk::<L>(&pages, looks.seq, seen);
            }
        }
    }
}

impl<S: Stored> Part<'_, S> {
    #[inline(always)]
    fn walk<L: Lanes>(&self, pages: &Pages, seq: usize, seen: Range<usize>) {
        let (few, group) = (&self.few, self.few.a.group());
        let Range { mut start, end } = seen;
        while start < end {
            let n = (start / TILE * TILE + TILE).min(end) - start;
            let Some(at) = few.trouble.unless(pages.at(seq, start, self.kv)) else { return };
            // The tile that follows is asked for while this one is at work.
            let next = pages.at(seq, (start + n).min(end - 1), self.kv).unwrap_or(at);
            let place = (start + n) % PAGE / TILE * TILE;
            #[cfg(target_arch = "x86_64")]
            if S::ROTATED {
                for block in [next.0, next.1] {
                    ints::ask_scales(block.wrapping_add(pages.scales + 2 * place));
                }
            }
            let next = (next.0.wrapping_add(place * pages.vector), next.1.wrapping_add(place * pages.vector));
            for first in (0..group).step_by(HEADS) {
                let heads = self.kv * group + first..self.kv * group + group.min(first + HEADS);
                // SAFETY: n vectors from `start` on lie in the page; a tile never leaves it.
                unsafe {
                    if S::ROTATED {
                        self.rotated::<L>(pages, heads, [at, next], start % PAGE, n);
                    } else {
                        self.tile::<L>(pages, heads, at, start % PAGE, n);
                    }
                }
            }
            start += n;
        }
    }

    /// `n` keys and values from `place` on of the page at `at`.
    #[inline(always)]
    unsafe fn tile<L: Lanes>(
        &self,
        pages: &Pages,
        heads: Range<usize>,
        at: (*mut u8, *mut u8),
        place: usize,
        n: usize,
    ) {
        let (a, s) = (&self.few.a, self.stored);
        let mut scores = [[f32::NEG_INFINITY; TILE]; HEADS];
        let mut kept = [1.0; HEADS];
        let elements = |block: *mut u8| block.wrapping_add(place * pages.vector).cast_const();
        let mut tile = Tile {
            q: [a.q.at(self.row, heads.start).cast_const(); HEADS],
            acc: [std::ptr::null_mut(); HEADS],
            keys: elements(at.0),
            values: elements(at.1),
            vector: pages.vector,
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
                    4 => tile.score::<L, S, 4>(s, at, &mut scores),
                    3 => tile.score::<L, S, 3>(s, at, &mut scores),
                    2 => tile.score::<L, S, 2>(s, at, &mut scores),
                    _ => tile.score::<L, S, 1>(s, at, &mut scores),
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
                    4 => tile.weigh::<L, S, 4>(s, at, &scores, &kept),
                    3 => tile.weigh::<L, S, 3>(s, at, &scores, &kept),
                    2 => tile.weigh::<L, S, 2>(s, at, &scores, &kept),
                    _ => tile.weigh::<L, S, 1>(s, at, &scores, &kept),
                }
            }
        }
    }
}

impl<S: Stored> Part<'_, S> {
    /// As [`tile`](Self::tile), of a rotated history; at `next` are the keys and values that come after.
    #[inline(always)]
    unsafe fn rotated<L: Lanes>(
        &self,
        pages: &Pages,
        heads: Range<usize>,
        [at, next]: [(*mut u8, *mut u8); 2],
        place: usize,
        n: usize,
    ) {
        let (few, s) = (&self.few, self.stored);
        let base = place / TILE * TILE;
        let seen = place - base..place - base + n;
        let tile = Place { base, seen: seen.clone(), vector: pages.vector };
        let mut scores = [[0.0; TILE]; HEADS];
        let mut q = [std::ptr::null_mut::<f32>(); HEADS];
        q.iter_mut().zip(heads.clone()).for_each(|(q, head)| *q = few.turned(self.row, head));
        let q = &q[..heads.len()];
        let scales = |block: *mut u8| block.wrapping_add(pages.scales + 2 * base).cast_const().cast::<u16>();
        // SAFETY: the tile lies in the page, queries and partitions are of d columns.
        unsafe {
            let by = self.scores::<L>(&tile, at.0, next.0, q, &mut scores);
            let mut of = [Query { by: 0.0, seen: [seen.start, seen.end], state: std::ptr::null_mut() }; HEADS];
            for (h, head) in heads.clone().enumerate() {
                of[h].by = by[h] * s.unit() * few.a.scale;
                of[h].state = few.held(self.row, head, self.part);
            }
            let n = heads.len();
            let kept = soften_all::<L>(&mut scores[..n], &of[..n], [scales(at.0), scales(at.1)], s.unit());
            self.weigh::<L>(&tile, at.1, next.1, heads, &mut scores, &kept);
        }
    }

    /// Products of queries with the keys of a tile; returns what 1 stands for in those of each head.
    #[inline(always)]
    unsafe fn scores<L: Lanes>(
        &self,
        tile: &Place,
        block: *mut u8,
        next: *mut u8,
        q: &[*mut f32],
        to: &mut [[f32; TILE]; HEADS],
    ) -> [f32; HEADS] {
        let (d, stored) = (self.few.a.d(), self.stored);
        let Place { base, seen, vector } = tile.clone();
        let mut by = [1.0; HEADS];
        #[cfg(target_arch = "x86_64")]
        if ints::suit::<L>() {
            let block = Block { codes: stored.codes(d), at: block, base, seen, d, vector, next };
            let mut pairs = [std::ptr::null::<i32>(); HEADS];
            for (h, q) in q.iter().enumerate() {
                pairs[h] = q.cast_const().cast();
                // SAFETY: `Turn` wrote it behind the query.
                by[h] = unsafe { *q.add(d) };
            }
            // SAFETY: sixteen lanes are those of AVX-512, which here comes with VNNI; the rest is the caller's promise.
            unsafe { ints::score(&block, &pairs[..q.len()], to) };
            return by;
        }
        let keys = Keys { stored, block, base, seen, d };
        let mut queries = [std::ptr::null::<f32>(); HEADS];
        queries.iter_mut().zip(q).for_each(|(to, q)| *to = q.cast_const());
        for first in (0..q.len()).step_by(4) {
            // SAFETY: the caller's promise.
            unsafe {
                match (q.len() - first).min(4) {
                    4 => keys.score::<L, 4>(&queries, first, to),
                    3 => keys.score::<L, 3>(&queries, first, to),
                    2 => keys.score::<L, 2>(&queries, first, to),
                    _ => keys.score::<L, 1>(&queries, first, to),
                }
            }
        }
        let _ = (vector, next);
        by
    }

    /// Adds the values of a tile by their weights.
    #[inline(always)]
    unsafe fn weigh<L: Lanes>(
        &self,
        tile: &Place,
        block: *mut u8,
        next: *mut u8,
        heads: Range<usize>,
        p: &mut [[f32; TILE]; HEADS],
        kept: &[f32; HEADS],
    ) {
        let (few, d, s) = (&self.few, self.few.a.d(), self.stored);
        let Place { base, seen, vector } = tile.clone();
        let sums = |head| few.held(self.row, head, self.part).wrapping_add(2);
        #[cfg(target_arch = "x86_64")]
        if ints::suit::<L>() {
            let codes = s.codes(d);
            let nobody = Head { weights: [0; TILE], unit: 0.0, kept: 1.0, sums: std::ptr::null_mut() };
            let mut all = [nobody; HEADS];
            for (h, head) in heads.clone().enumerate() {
                // SAFETY: sixteen lanes are those of AVX-512, which here comes with VNNI.
                all[h].unit = unsafe { codes.weights(&p[h], &mut all[h].weights) };
                (all[h].kept, all[h].sums) = (kept[h], sums(head));
            }
            let block = Block { codes, at: block, base, seen, d, vector, next };
            // SAFETY: as in `scores`.
            return unsafe { ints::weigh(&block, &all[..heads.len()]) };
        }
        let _ = next;
        let values = block.wrapping_add((base + seen.start) * vector).cast_const();
        let mut tile = Tile {
            q: [std::ptr::null(); HEADS],
            acc: [std::ptr::null_mut(); HEADS],
            keys: values,
            values,
            vector,
            n: seen.len(),
            d,
            scale: 1.0,
        };
        let h = heads.len();
        for (h, head) in heads.enumerate() {
            tile.acc[h] = sums(head);
            p[h].copy_within(seen.clone(), 0);
        }
        for at in (0..h).step_by(4) {
            // SAFETY: the caller's promise.
            unsafe {
                match (h - at).min(4) {
                    4 => tile.weigh::<L, S, 4>(s, at, p, kept),
                    3 => tile.weigh::<L, S, 3>(s, at, p, kept),
                    2 => tile.weigh::<L, S, 2>(s, at, p, kept),
                    _ => tile.weigh::<L, S, 1>(s, at, p, kept),
                }
            }
        }
    }
}

/// Sums up the partitions of (row, head)s in a tree that their number alone decides, turns the sum back where the history
/// is rotated, and adds what was read beside it.
struct Meet<'a, S> {
    few: Few<'a>,
    of: Range<usize>,
    stored: S,
}

impl<S: Stored> Meet<'_, S> {
    /// Turns `d` sums of rotated values back.
    #[inline(always)]
    unsafe fn back<L: Lanes>(&self, sums: *mut f32, head: usize) {
        let (a, d) = (&self.few.a, self.few.a.d());
        // SAFETY: d floats of a partition that this task alone touches.
        let sums = unsafe { std::slice::from_raw_parts_mut(sums, d) };
        #[cfg(target_arch = "x86_64")]
        if ints::suit::<L>() {
            let mut mixed = [0.0; MAX_WIDTH];
            mixed[..d].copy_from_slice(sums);
            self.stored.codes(d).elements(d, |i, element| sums[element] = mixed[i]);
        }
        a.signs(1, head / a.group()).unrotate(sums);
    }
}

impl<S: Stored> Work for Meet<'_, S> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (few, a, d) = (&self.few, &self.few.a, self.few.a.d());
        for i in self.of.clone() {
            let (row, head) = (i / a.q.heads, i % a.q.heads);
            let Some(Looks { cut, .. }) = few.looks(row) else { return };
            let held = |part| few.held(row, head, part);
            let mut step = 1;
            while step < cut.parts {
                for part in (0..cut.parts - step).step_by(2 * step) {
                    // SAFETY: two partitions of this (row, head), all written before this job began.
                    unsafe { merge::<L>(held(part), held(part + step), d) };
                }
                step *= 2;
            }
            // SAFETY: partition 0 holds the sum of all, where there is any; what was read beside it comes behind the last.
            unsafe {
                let mut all = held(0);
                if S::ROTATED && cut.parts > 0 {
                    self.back::<L>(all.add(2), head);
                }
                if a.beside() {
                    let beside = held(few.room);
                    if cut.parts > 0 { merge::<L>(all, beside, d) } else { all = beside }
                }
                a.finish::<L>(row, head, *all, *all.add(1), all.add(2));
            }
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

/// Reads what lies beside the history.
struct RunBeside<'a, 'b> {
    cx: &'a Cx<'b>,
    few: Few<'a>,
}

impl WithFormat for RunBeside<'_, '_> {
    type Out = Result<()>;
    fn with<S: Stored>(self, stored: S) -> Result<()> {
        let RunBeside { cx, few } = self;
        let heads = few.a.pages.heads;
        let ns = PAGE * few.a.d() * (few.a.group() + 1) / 16;
        cx.each(few.a.q.rows * heads, ns, |_, i| {
            let (row, kv, part) = (i / heads, i % heads, few.room);
            dispatch(cx.isa, Beside(Part { few, row, kv, part, stored }))
        })
    }
}

struct Run<'a, 'b> {
    cx: &'a Cx<'b>,
    a: Attention,
    room: usize,
    side: KvFormat,
}

impl WithFormat for Run<'_, '_> {
    type Out = Result<()>;
    fn with<S: Stored>(self, stored: S) -> Result<()> {
        let Run { cx, a, room, side } = self;
        let trouble = Trouble::default();
        let mut few = Few { a, turned: std::ptr::null_mut(), room, trouble: &trouble };
        let (rows, heads) = (a.q.rows, a.pages.heads);
        let looks = || (0..rows).filter_map(|r| few.looks(r));
        let most = looks().map(|l| l.cut.parts).max().unwrap_or(0);
        let keys: usize = looks().map(|l| l.sources.main.len()).sum();
        trouble.end()?;
        if S::ROTATED {
            few.turned = few.held(rows, 0, 0);
            cx.share(rows * a.q.heads, a.d(), |of| dispatch(cx.isa, Turn { few, of, stored }))?;
        }
        let items = rows * heads * most;
        let ns = keys * heads * a.d() * (a.group() + 1) / 16 / items.max(1);
        cx.each(items, ns, |_, i| {
            // Neighbouring items read neighbouring pages.
            let (row, kv, part) = (i / most / heads, i / most % heads, i % most);
            dispatch(cx.isa, Part { few, row, kv, part, stored })
        })?;
        if a.beside() {
            pick_beside(side, RunBeside { cx, few })?;
        }
        let ns = most * (20 + a.d() / 8) + if S::ROTATED { a.d() } else { 0 };
        cx.share(rows * a.q.heads, ns, |of| dispatch(cx.isa, Meet { few, of, stored }))?;
        trouble.end()
    }
}

pub fn attention(cx: &Cx, a: Attention, fmt: KvFormat, side: KvFormat, room: usize) -> Result<()> {
    pick(fmt, a.d(), Run { cx, a, room, side })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_covers_the_history_once_and_never_has_more_than_32_parts() {
        for last in (0..300_000usize).step_by(251).chain([255, 256, 8191, 8192, 8193]) {
            for first in [0, last / 3, last.saturating_sub(511), last] {
                let seen = first..last + 1;
                let cut = Cut::of(&seen);
                assert!(cut.parts <= PARTS as usize && cut.pages.is_power_of_two());
                let mut next = first;
                for i in 0..cut.parts {
                    let part = cut.part(&seen, i);
                    assert!(part.start == next && part.start < part.end, "{seen:?} {cut:?} {i}");
                    next = part.end;
                }
                assert_eq!(next, last + 1);
            }
        }
    }
}
