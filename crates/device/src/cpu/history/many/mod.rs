//! Attention of prompt rows: tiles of rows of one sequence against tiles of keys, each decoded once for all the query
//! heads that share it. A row's sums run over key tiles in ascending order, and what is masked adds nothing to them, so
//! they do not depend on which rows share its tile.

use crate::cpu::Cx;
use crate::cpu::chain::Product;
use crate::cpu::history::attention::{Attention, Sight, Sources, TILE};
use crate::cpu::history::packed::{Keys, outside};
use crate::cpu::history::pages::{PAGE, Pages, Trouble};
use crate::cpu::history::stored::{Stored, WithFormat, pick, pick_beside};
use crate::cpu::history::tile::{by_scales, soften};
use crate::cpu::lanes::{Lanes, Work, dispatch};
use crate::error::Result;
use crate::op::StreamView;
use crate::view::View;
use memory::KvFormat;
use std::marker::PhantomData;
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use crate::cpu::history::ints;
#[cfg(target_arch = "x86_64")]
mod integers;

/// A maximum before any key was seen: finite, so that a tile with nothing for a row leaves the row as it is.
const NOTHING: f32 = -1e30;

/// Rows of a tile whose query heads per key head are `group`: about 64 queries in all.
fn tile_rows(group: usize) -> usize {
    (64 / group.max(1)).max(1)
}

/// Floats of scratch of one thread: see [`Room`].
pub fn floats(q: &View, st: &StreamView) -> u64 {
    let group = (q.heads / st.heads.max(1)) as usize;
    Room::of(group, q.cols as usize).end as u64
}

/// Where a thread's tiles lie in its scratch, each but the last `[queries, d]`, `[d, TILE]`, `[TILE, d]` or
/// `[queries, TILE]`; the last holds maximum and sum of each query.
struct Room {
    q: usize,
    acc: usize,
    keys: usize,
    values: usize,
    scores: usize,
    sums: usize,
    end: usize,
}

impl Room {
    fn of(group: usize, d: usize) -> Room {
        let m = tile_rows(group) * group;
        let sizes = [m * d, m * d, d * TILE, TILE * d, m * TILE, 2 * m];
        let mut at = [0; 7];
        for (i, size) in sizes.into_iter().enumerate() {
            at[i + 1] = at[i] + size.next_multiple_of(16);
        }
        let [q, acc, keys, values, scores, sums, end] = at;
        Room { q, acc, keys, values, scores, sums, end }
    }
}

/// Some rows of one sequence and one key head. Where anything is read beside the history, they lie in one page.
struct Tile<'a> {
    a: Attention,
    rows: Range<usize>,
    kv: usize,
    scratch: *mut f32,
    trouble: &'a Trouble,
    /// Format of what lies beside the history.
    side: KvFormat,
}

/// A tile over a history in a format.
struct Over<'a, S> {
    tile: Tile<'a>,
    stored: S,
}

impl<S: Stored> Work for Over<'_, S> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Over { tile, stored } = self;
        let (Some(first), Some(last)) = (tile.a.sight(tile.rows.start), tile.a.sight(tile.rows.end - 1)) else {
            return tile.trouble.note();
        };
        // Positions that any of the rows looks at; where there are pages beside the history, all rows have the same ones.
        let Sources { sink, main, own } = tile.a.sources(&Sight { first: first.first, ..last });
        // SAFETY: `scratch` is this thread's own, as large as `Room` says.
        unsafe {
            tile.begin();
            tile.beside::<L>(&tile.a.sink, first.seq, sink);
            if !main.is_empty() {
                tile.main::<L, S>(stored, first.seq, main);
            }
            tile.beside::<L>(&tile.a.own, first.seq, own);
            tile.end::<L>();
        }
    }
}

/// The key tiles of some positions in a format. Compiled once for each, however it is reached.
struct Walk<'a, 'b, T> {
    tile: &'a Tile<'b>,
    stored: T,
    pages: &'a Pages,
    seq: usize,
    seen: Range<usize>,
}

impl<T: Stored> Work for Walk<'_, '_, T> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        // SAFETY: as in `Over::run`.
        unsafe { self.tile.walk::<L, T>(self.stored, self.pages, self.seq, self.seen) }
    }
}

/// The same in a format that was found out at run time.
struct Beside<'a, 'b, L> {
    tile: &'a Tile<'b>,
    pages: &'a Pages,
    seq: usize,
    seen: Range<usize>,
    _lanes: PhantomData<L>,
}

impl<L: Lanes> WithFormat for Beside<'_, '_, L> {
    type Out = ();
    #[inline(always)]
    fn with<T: Stored>(self, stored: T) {
        let Beside { tile, pages, seq, seen, .. } = self;
        // SAFETY: the CPU has the set, being in code for it.
        unsafe { L::enter(Walk { tile, stored, pages, seq, seen }) }
    }
}

impl Tile<'_> {
    fn room(&self) -> Room {
        Room::of(self.a.group(), self.a.d())
    }
    fn at(&self, place: usize) -> *mut f32 {
        self.scratch.wrapping_add(place)
    }
    /// Query m of the tile belongs to this row and head.
    fn queries(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let (group, kv) = (self.a.group(), self.kv);
        let rows = self.rows.clone().enumerate();
        rows.flat_map(move |(i, row)| (0..group).map(move |g| (i * group + g, row, kv * group + g)))
    }
    /// Nothing seen yet.
    #[inline(always)]
    unsafe fn begin(&self) {
        let (d, room) = (self.a.d(), self.room());
        for (m, ..) in self.queries() {
            // SAFETY: accumulator and sums of query m.
            unsafe {
                self.at(room.acc + m * d).write_bytes(0, d);
                self.at(room.sums + 2 * m).write(NOTHING);
                self.at(room.sums + 2 * m + 1).write(0.0);
            }
        }
    }
    /// The queries, row by row, head by head, as they are or rotated.
    #[inline(always)]
    unsafe fn gather(&self, rotated: bool) {
        let (d, room, signs) = (self.a.d(), self.room(), self.a.signs(0, self.kv));
        for (m, row, head) in self.queries() {
            // SAFETY: query m of the tile, d columns of a checked view.
            unsafe {
                let to = std::slice::from_raw_parts_mut(self.at(room.q + m * d), d);
                to.copy_from_slice(std::slice::from_raw_parts(self.a.q.at(row, head).cast_const(), d));
                if rotated {
                    signs.rotate(to);
                }
            }
        }
    }
    /// Positions of the history itself.
    #[inline(always)]
    unsafe fn main<L: Lanes, S: Stored>(&self, stored: S, seq: usize, seen: Range<usize>) {
        // SAFETY: as in `run`.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if S::ROTATED && ints::suit::<L>() {
                return self.main_in_integers::<L>(stored.codes(self.a.d()), stored.unit(), seq, seen);
            }
            self.gather(S::ROTATED);
            self.turn(S::ROTATED, true);
            L::enter(Walk { tile: self, stored, pages: &self.a.pages, seq, seen });
            self.turn(S::ROTATED, false);
        }
    }
    /// Turns the accumulators into rotated space or back.
    #[inline(always)]
    unsafe fn turn(&self, rotated: bool, forth: bool) {
        // Before the first key there is nothing to turn.
        if !rotated || (forth && self.a.sink.is_none()) {
            return;
        }
        let (d, room, signs) = (self.a.d(), self.room(), self.a.signs(1, self.kv));
        for (m, ..) in self.queries() {
            // SAFETY: accumulator of query m.
            let acc = unsafe { std::slice::from_raw_parts_mut(self.at(room.acc + m * d), d) };
            if forth { signs.rotate(acc) } else { signs.unrotate(acc) }
        }
    }
    /// Positions that are read beside the history.
    #[inline(always)]
    unsafe fn beside<L: Lanes>(&self, pages: &Option<Pages>, seq: usize, seen: Range<usize>) {
        if let Some(pages) = pages.as_ref().filter(|_| !seen.is_empty()) {
            // SAFETY: as in `run`.
            unsafe { self.gather(false) };
            pick_beside(self.side, Beside::<L> { tile: self, pages, seq, seen, _lanes: PhantomData });
        }
    }
    #[inline(always)]
    unsafe fn walk<L: Lanes, T: Stored>(&self, stored: T, pages: &Pages, seq: usize, seen: Range<usize>) {
        for tile in seen.start / TILE..(seen.end - 1) / TILE + 1 {
            let keys = seen.start.max(tile * TILE)..seen.end.min((tile + 1) * TILE);
            let at = pages.at(seq, tile * TILE, self.kv);
            let Some(at) = self.trouble.unless(at) else { return };
            let Some(rows) = self.trouble.unless(self.seeing(tile)) else { return };
            // SAFETY: as in `run`; the tile lies in the page.
            unsafe {
                self.decode::<L, T>(stored, pages, keys.clone(), at);
                self.step::<L>(tile, keys, rows);
            }
        }
    }
    /// The keys transposed, the values as they lie. Only positions that some row looks at are used.
    #[inline(always)]
    unsafe fn decode<L: Lanes, T: Stored>(&self, s: T, pages: &Pages, keys: Range<usize>, at: (*mut u8, *mut u8)) {
        let (d, room, vector) = (self.a.d(), self.room(), pages.vector);
        if T::ROTATED {
            // SAFETY: as in `run`.
            return unsafe { self.decode_rotated::<L, T>(s, pages, keys, at) };
        }
        for p in keys {
            let (from, j) = (p % PAGE * vector, p % TILE);
            let mut i = 0;
            while i < d {
                let n = (d - i).min(L::N);
                // SAFETY: elements i .. i + n of vectors inside the page, to column j of the keys and row j of the values.
                unsafe {
                    let (key, value) = (at.0.add(from), at.1.add(from));
                    let (key, value): (L, L) = if n < L::N {
                        (s.load_part(key, i, n), s.load_part(value, i, n))
                    } else {
                        (s.load(key, i), s.load(value, i))
                    };
                    value.put(self.at(room.values + j * d + i), n);
                    let mut each = [0.0; TILE];
                    key.store(each.as_mut_ptr());
                    for (l, &x) in each[..n].iter().enumerate() {
                        *self.at(room.keys + (i + l) * TILE + j) = x;
                    }
                }
                i += L::N;
            }
        }
    }
    /// Interleaved keys lie transposed already.
    #[inline(always)]
    unsafe fn decode_rotated<L: Lanes, T: Stored>(
        &self,
        s: T,
        pages: &Pages,
        keys: Range<usize>,
        at: (*mut u8, *mut u8),
    ) {
        let (d, room) = (self.a.d(), self.room());
        let base = keys.start / TILE * TILE;
        let seen = keys.start - base..keys.end - base;
        let base = base % PAGE;
        let mut scales = [[1.0; TILE]; 2];
        // SAFETY: the tile lies in the page, with its scales.
        unsafe {
            for (to, block) in scales.iter_mut().zip([at.0, at.1]) {
                let from = block.wrapping_add(pages.scales).cast::<u16>().wrapping_add(base);
                by_scales::<L>(to, TILE, from, s.unit());
                outside(to, &seen, 0.0);
            }
            Keys { stored: s, block: at.0, base, seen: seen.clone(), d }
                .transposed::<L>(&scales[0], self.at(room.keys));
            for j in seen {
                let (value, by) = (at.1.add((base + j) * pages.vector).cast_const(), L::splat(scales[1][j]));
                for i in (0..d).step_by(L::N) {
                    let x: L = s.load(value, i);
                    x.mul(by).store(self.at(room.values + j * d + i));
                }
            }
        }
    }
    /// The rows that look at a key tile: positions ascend, so they are neighbours.
    fn seeing(&self, tile: usize) -> Option<Range<usize>> {
        let mut rows = self.rows.clone();
        while rows.start < rows.end && self.a.sight(rows.start)?.last < tile * TILE {
            rows.start += 1;
        }
        while rows.start < rows.end && self.a.sight(rows.end - 1)?.first >= (tile + 1) * TILE {
            rows.end -= 1;
        }
        Some(rows)
    }
    #[inline(always)]
    unsafe fn step<L: Lanes>(&self, tile: usize, keys: Range<usize>, rows: Range<usize>) {
        let (group, d, room) = (self.a.group(), self.a.d(), self.room());
        let (from, to) = (keys.start - tile * TILE, keys.end - tile * TILE);
        let (first, m) = ((rows.start - self.rows.start) * group, rows.len() * group);
        let (q, scores) = (self.at(room.q + first * d), self.at(room.scores + first * TILE));
        let (keys, values, acc) = (self.at(room.keys), self.at(room.values), self.at(room.acc + first * d));
        // SAFETY: shapes as in `Room`.
        unsafe {
            let product = Product {
                m,
                k: d,
                n: to,
                a: q,
                a_step: [d, 1],
                b: keys,
                b_row: TILE,
                c: scores,
                c_row: TILE,
                add: false,
            };
            product.go::<L>();
            for (i, row) in rows.enumerate() {
                let Some(sight) = self.trouble.unless(self.a.sight(row)) else { return };
                let seen = sight.first.max(tile * TILE) - tile * TILE..(sight.last + 1 - tile * TILE).min(to);
                for g in 0..group {
                    self.weights::<L>(first + i * group + g, seen.clone());
                }
            }
            let (a, b) = (scores.add(from), values.add(from * d));
            let product =
                Product { m, k: to - from, n: d, a, a_step: [TILE, 1], b, b_row: d, c: acc, c_row: d, add: true };
            product.go::<L>();
        }
    }
    /// Scores of query m to weights, with what it has so far rescaled.
    #[inline(always)]
    unsafe fn weights<L: Lanes>(&self, m: usize, seen: Range<usize>) {
        let (d, room) = (self.a.d(), self.room());
        // SAFETY: row m of the scores, sums and accumulators.
        unsafe {
            let s = &mut *self.at(room.scores + m * TILE).cast::<[f32; TILE]>();
            s[..seen.start].fill(f32::NEG_INFINITY);
            s[seen.end..].fill(f32::NEG_INFINITY);
            s[seen.clone()].iter_mut().for_each(|s| *s *= self.a.scale);
            let sums = self.at(room.sums + 2 * m);
            let (max, kept, sum) = soften::<L>(s, TILE, *sums);
            *sums = max;
            *sums.add(1) = *sums.add(1) * kept + sum;
            if kept != 1.0 {
                scale::<L>(self.at(room.acc + m * d), d, kept);
            }
        }
    }
    #[inline(always)]
    unsafe fn end<L: Lanes>(&self) {
        let (group, d, room) = (self.a.group(), self.a.d(), self.room());
        for (i, row) in self.rows.clone().enumerate() {
            for g in 0..group {
                let m = i * group + g;
                // SAFETY: sums and accumulator of query m.
                unsafe {
                    let (sums, acc) = (self.at(room.sums + 2 * m), self.at(room.acc + m * d));
                    self.a.finish::<L>(row, self.kv * group + g, *sums, *sums.add(1), acc);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn scale<L: Lanes>(x: *mut f32, d: usize, by: f32) {
    let mut i = 0;
    while i < d {
        // SAFETY: d floats.
        unsafe { L::get(x.add(i), d - i).mul(L::splat(by)).put(x.add(i), d - i) };
        i += L::N;
    }
}

/// Row tiles: at most `size` rows of one sequence, of one page where anything is read beside the history. `None` where a
/// sequence's positions do not ascend.
fn tiles(a: &Attention, size: usize) -> Option<Vec<Range<usize>>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    let mut before: Option<Sight> = None;
    for row in 0..a.q.rows {
        let sight = a.sight(row)?;
        let same = before.filter(|b| b.seq == sight.seq);
        if same.is_some_and(|b| b.last >= sight.last) {
            return None;
        }
        match all.last_mut() {
            Some(tile) if tile.len() < size && same.is_some_and(|b| together(a, &b, &sight)) => tile.end += 1,
            _ => all.push(row..row + 1),
        }
        before = Some(sight);
    }
    Some(all)
}

fn together(a: &Attention, x: &Sight, y: &Sight) -> bool {
    !a.beside() || x.last / PAGE == y.last / PAGE
}

struct Run<'a, 'b> {
    cx: &'a Cx<'b>,
    a: Attention,
    side: KvFormat,
    floats: usize,
}

impl WithFormat for Run<'_, '_> {
    type Out = Result<()>;
    fn with<S: Stored>(self, stored: S) -> Result<()> {
        let Run { cx, a, side, floats } = self;
        let trouble = Trouble::default();
        let tiles = trouble.unless(tiles(&a, tile_rows(a.group()))).unwrap_or_default();
        trouble.end()?;
        let heads = a.pages.heads;
        let (items, all) = (tiles.len() * heads, &tiles);
        let keys = tiles.last().and_then(|t| a.sight(t.end - 1)).map_or(0, |s| s.last + 1 - s.first);
        cx.each(items, keys * a.d(), |worker, i| {
            // Late rows see the most keys: they go first.
            let (rows, kv) = (all[all.len() - 1 - i / heads].clone(), i % heads);
            let scratch = a.scratch.raw().wrapping_add(worker * floats);
            let tile = Tile { a, rows, kv, scratch, trouble: &trouble, side };
            dispatch(cx.isa, Over { tile, stored });
        })?;
        trouble.end()
    }
}

pub fn attention(cx: &Cx, a: Attention, fmt: KvFormat, side: KvFormat, floats: usize) -> Result<()> {
    pick(fmt, a.d(), Run { cx, a, side, floats })
}
