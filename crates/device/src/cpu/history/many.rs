//! Attention of prompt rows: tiles of rows of one sequence against tiles of keys, each decoded once for all the query
//! heads that share it. A row's sums run over key tiles in ascending order, and what is masked adds nothing to them, so
//! they do not depend on which rows share its tile.

use super::attention::{Attention, Sight, TILE};
use super::pages::{PAGE, Trouble};
use super::stored::{Stored, WithFormat, pick};
use super::tile::soften;
use crate::cpu::Cx;
use crate::cpu::chain::Product;
use crate::cpu::lanes::{Lanes, Work, dispatch};
use crate::error::Result;
use crate::op::StreamView;
use crate::view::View;
use memory::KvFormat;
use std::marker::PhantomData;
use std::ops::Range;

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

/// Some rows of one sequence and one key head.
struct Tile<'a, S> {
    a: Attention,
    rows: Range<usize>,
    kv: usize,
    scratch: *mut f32,
    trouble: &'a Trouble,
    _format: PhantomData<S>,
}

impl<S: Stored> Work for Tile<'_, S> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        // SAFETY: `scratch` is this thread's own, as large as `Room` says.
        unsafe {
            self.begin();
            let (Some(first), Some(last)) = (self.a.sight(self.rows.start), self.a.sight(self.rows.end - 1)) else {
                return self.trouble.note();
            };
            for tile in first.first / TILE..last.last / TILE + 1 {
                let keys = first.first.max(tile * TILE)..(last.last + 1).min((tile + 1) * TILE);
                let at = self.a.pages.at(first.seq, tile * TILE, self.kv);
                let Some((k, v)) = self.trouble.unless(at) else { return };
                self.decode::<L>(keys.clone(), k, v);
                let Some(rows) = self.trouble.unless(self.seeing(tile)) else { return };
                self.step::<L>(tile, keys, rows);
            }
            self.end::<L>();
        }
    }
}

impl<S: Stored> Tile<'_, S> {
    fn room(&self) -> Room {
        Room::of(self.a.group(), self.a.d())
    }
    fn at(&self, place: usize) -> *mut f32 {
        self.scratch.wrapping_add(place)
    }
    /// Gathers the queries, row by row, head by head.
    #[inline(always)]
    unsafe fn begin(&self) {
        let (group, d, room) = (self.a.group(), self.a.d(), self.room());
        for (i, row) in self.rows.clone().enumerate() {
            for g in 0..group {
                let m = i * group + g;
                // SAFETY: query m of the tile, d columns of a checked view.
                unsafe {
                    let q = self.a.q.at(row, self.kv * group + g).cast_const();
                    std::ptr::copy_nonoverlapping(q, self.at(room.q + m * d), d);
                    self.at(room.acc + m * d).write_bytes(0, d);
                    self.at(room.sums + 2 * m).write(NOTHING);
                    self.at(room.sums + 2 * m + 1).write(0.0);
                }
            }
        }
    }
    /// The keys transposed, the values as they lie. Only positions that some row looks at are read.
    #[inline(always)]
    unsafe fn decode<L: Lanes>(&self, keys: Range<usize>, k: *const u8, v: *const u8) {
        let (d, room, vector) = (self.a.d(), self.room(), self.a.pages.vector);
        for p in keys {
            let (from, j) = (p % PAGE * vector, p % TILE);
            let mut i = 0;
            while i < d {
                let n = (d - i).min(L::N);
                // SAFETY: elements i .. i + n of vectors inside the page, to column j of the keys and row j of the values.
                unsafe {
                    let (key, value) = (k.add(from), v.add(from));
                    let (key, value): (L, L) = if n < L::N {
                        (S::load_part(key, i, n), S::load_part(value, i, n))
                    } else {
                        (S::load(key, i), S::load(value, i))
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

/// Row tiles: at most `size` rows of one sequence. `None` where a sequence's positions do not ascend.
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
            Some(tile) if same.is_some() && tile.len() < size => tile.end += 1,
            _ => all.push(row..row + 1),
        }
        before = Some(sight);
    }
    Some(all)
}

struct Run<'a, 'b> {
    cx: &'a Cx<'b>,
    a: Attention,
    floats: usize,
}

impl WithFormat for Run<'_, '_> {
    type Out = Result<()>;
    fn with<S: Stored>(self) -> Result<()> {
        let Run { cx, a, floats } = self;
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
            dispatch(cx.isa, Tile { a, rows, kv, scratch, trouble: &trouble, _format: PhantomData::<S> });
        })?;
        trouble.end()
    }
}

pub fn attention(cx: &Cx, a: Attention, fmt: KvFormat, floats: usize) -> Result<()> {
    pick(fmt, Run { cx, a, floats })
}
