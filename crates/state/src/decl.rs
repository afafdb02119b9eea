//! What layers keep for a sequence, and how many bytes that is: shapes only, no memory.

use crate::error::{Error, Result};
use crate::table;
use device::StreamView;
use memory::pages::pages_for;
use memory::{KvFormat, KvSpec, PAGE_POSITIONS};
use std::collections::BTreeSet;

/// Layer-pages are a multiple of this, so that they can be written to disk as they are.
const PAGE_ALIGN: u64 = 4096;
const FLOAT: u64 = 4;
const MAX_INDEX: u64 = i32::MAX as u64;

/// What one layer keeps for a sequence.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Keys and values of every position, in pages of 256 positions.
    History {
        /// Key/value heads.
        heads: u32,
        /// Width of a head.
        d: u32,
        /// Formats of the stored vectors.
        kv: KvSpec,
    },
    /// Keys and values of the last positions, in a ring of pages. Its positions come and go, so it has no pages of
    /// other formats beside it.
    Ring {
        /// Positions a row sees, itself included.
        window: u32,
        /// Key/value heads.
        heads: u32,
        /// Width of a head.
        d: u32,
        /// Format of the stored vectors.
        fmt: KvFormat,
    },
    /// A state of fixed size, in f32.
    Recurrent {
        /// `[value heads, d_k, d_v]`.
        state: [u32; 3],
        /// `[kernel - 1, channels]` of the short convolution before it.
        conv: [u32; 2],
    },
}

/// The stream of a layer. A layer has one at most; one without keeps nothing.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Decl {
    /// The layer.
    pub layer: u32,
    /// What it keeps.
    pub stream: Stream,
}

/// What the memory is laid out for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most positions of a sequence.
    pub context: u32,
    /// Most open sequences.
    pub parallel: u32,
    /// Pages of history that all sequences share: at least those of a full one, at most those of as many full ones as may be
    /// open.
    pub pages: u32,
    /// Most rows of one append.
    pub rows: u32,
    /// Most rows of class Few in one append.
    pub few: u32,
    /// Pages that are backed by memory together: see [`slab_pages`].
    pub slab_pages: u32,
    /// Most rows of a segment; 0 where there are none. A segment is an append of one sequence that lasts while others
    /// take steps. It is run layer by layer, in parts of at most `rows`.
    pub segment: u32,
}

/// Bytes that a [`State`](crate::State) reserves when it is full.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// K: pages and rings. Rings are there from the start, pages as sequences grow.
    pub kv: u64,
    /// S: recurrent states.
    pub state: u64,
    /// Of the workspace X: what ops read about the rows of a step.
    pub rows: u64,
}

impl Bytes {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.kv.saturating_add(self.state).saturating_add(self.rows)
    }
}

impl Limits {
    /// Pages of a full sequence.
    pub(crate) fn pages_per_seq(&self) -> u32 {
        pages_for(self.context)
    }
    /// Pages of as many full sequences as may be open: more are of no use.
    pub fn most_pages(&self) -> u32 {
        self.pages_per_seq().saturating_mul(self.parallel)
    }
    /// Most rows of any append.
    pub(crate) fn most_rows(&self) -> u32 {
        self.rows.max(self.few)
    }
    /// A current slot per sequence, and next ones: Few rows have one each, Many rows one a sequence, and a segment has
    /// one beside them where there are sequences to take steps meanwhile.
    pub(crate) fn rec_slots(&self) -> u32 {
        let beside = (self.segment > 0 && self.parallel > 1) as u32;
        self.parallel.saturating_add(self.few.max(self.parallel)).saturating_add(beside)
    }
    /// Rings of a layer: one a sequence, and one that a segment writes, so that the sequence still has its own when the
    /// segment is rolled back.
    pub(crate) fn ring_places(&self) -> u32 {
        self.parallel.saturating_add((self.segment > 0) as u32)
    }
    fn check(&self) -> Result<()> {
        let that = |ok: bool, what| if ok { Ok(()) } else { Err(Error::Limits(what)) };
        let index = |n: u64| (1..=MAX_INDEX).contains(&n);
        that(index(self.context as u64), "the context must be 1 to 2^31 - 1 positions")?;
        that(index(self.parallel as u64), "at least one sequence must be possible, and at most 2^31 - 1")?;
        that(index(self.rows as u64), "an append must be able to have 1 to 2^31 - 1 rows")?;
        that(index(self.few as u64), "an append must be able to have 1 to 2^31 - 1 rows of class Few")?;
        let pages = self.pages as u64;
        that(self.pages >= self.pages_per_seq(), "the pages of all sequences must be enough for a full one")?;
        that(index(self.slab_pages as u64), "a slab must have 1 to 2^31 - 1 pages")?;
        that(index(pages), "there would be more than 2^31 - 1 pages")?;
        let slots = self.parallel as u64 + self.few.max(self.parallel) as u64 + 1;
        that(index(slots), "there would be more than 2^31 - 1 recurrent slots")?;
        that(self.segment as u64 <= MAX_INDEX, "a segment must have at most 2^31 - 1 rows")
    }
}

/// Least and most bytes of a slab over all layers, about.
const SLAB: [u64; 2] = [16 << 20, 128 << 20];
/// Bytes of a layer's part of a slab, about, where that is between them: most of it is whole large pages of 2 MiB.
const PART: u64 = 8 << 20;

/// Pages of a slab for these streams: about 8 MiB of each layer, but 16 to 128 MiB of all together; one page at least.
pub fn slab_pages(decls: &[Decl]) -> u32 {
    let pages = || decls.iter().filter_map(|d| d.stream.history_page());
    let slab = PART.saturating_mul(pages().count() as u64).clamp(SLAB[0], SLAB[1]);
    (slab / pages().fold(0, u64::saturating_add).max(1)).clamp(1, 1 << 16) as u32
}

/// Bytes of history that one more position takes, without what fills pages up to whole blocks of a disk.
pub fn position_bytes(decls: &[Decl]) -> u64 {
    let one = |s: &Stream| match *s {
        Stream::History { heads, d, kv } => product(&[2, heads as u64, kv.main.vector_bytes(d)]),
        Stream::Ring { .. } | Stream::Recurrent { .. } => 0,
    };
    decls.iter().map(|d| one(&d.stream)).fold(0, u64::saturating_add)
}

impl Stream {
    /// Bytes of one layer-page of a history.
    pub(crate) fn history_page(&self) -> Option<u64> {
        if matches!(self, Stream::History { .. }) { self.page_bytes() } else { None }
    }
    /// Bytes a row at position `len - 1` reads of this layer: keys and values up to itself, or one state and its window.
    pub fn read_bytes(&self, len: u32) -> u64 {
        let vectors =
            |heads: u32, d: u32, fmt: KvFormat, n: u32| product(&[2, heads as u64, fmt.vector_bytes(d), n as u64]);
        match *self {
            Stream::History { heads, d, kv } => {
                let sink = if kv.sink_page.is_some() { len.min(PAGE_POSITIONS) } else { 0 };
                let own = len.saturating_sub(1) / PAGE_POSITIONS * PAGE_POSITIONS;
                let own = if kv.own_page.is_some() { len.saturating_sub(own.max(sink)) } else { 0 };
                let part = |fmt: Option<KvFormat>, n| fmt.map_or(0, |f| vectors(heads, d, f, n));
                let main = vectors(heads, d, kv.main, len - sink - own);
                main.saturating_add(part(kv.sink_page, sink)).saturating_add(part(kv.own_page, own))
            }
            Stream::Ring { window, heads, d, fmt } => vectors(heads, d, fmt, len.min(window)),
            Stream::Recurrent { state: [h, k, v], conv: [taps, channels] } => {
                let floats = product(&[h as u64, k as u64, v as u64]).saturating_add(taps as u64 * channels as u64);
                floats.saturating_mul(FLOAT)
            }
        }
    }
    /// Bytes of one layer-page, `None` where there are no pages.
    pub(crate) fn page_bytes(&self) -> Option<u64> {
        match *self {
            Stream::History { heads, d, kv } => Some(page_bytes(heads, d, kv.main)),
            Stream::Ring { heads, d, fmt, .. } => Some(page_bytes(heads, d, fmt)),
            Stream::Recurrent { .. } => None,
        }
    }
    /// The pages beside a history, first those of rows' own pages, then those of page 0: format, bytes of a layer-page,
    /// pages of a sequence.
    pub(crate) fn sides(&self, l: &Limits) -> [Option<(KvFormat, u64, u32)>; 2] {
        let Stream::History { heads, d, kv } = *self else { return [None, None] };
        let of = |fmt: Option<KvFormat>, ring| fmt.map(|f| (f, page_bytes(heads, d, f), ring));
        [of(kv.own_page, StreamView::own_pages(l.most_rows())), of(kv.sink_page, 1)]
    }
    /// Bytes of these pages for all sequences.
    pub(crate) fn side_bytes(&self, l: &Limits) -> [u64; 2] {
        let all = |s: Option<(KvFormat, u64, u32)>| {
            s.map_or(0, |(_, page, ring)| product(&[page, ring as u64, l.ring_places() as u64]))
        };
        self.sides(l).map(all)
    }
    /// Pages of a sequence's ring, 0 where there is none: the window of the first of an append's rows, all its rows,
    /// and one page because neither starts at a page's start.
    pub(crate) fn ring_pages(&self, l: &Limits) -> u64 {
        match *self {
            Stream::Ring { window, .. } => {
                (window as u64 + l.most_rows() as u64).saturating_sub(1).div_ceil(memory::PAGE_POSITIONS as u64) + 1
            }
            _ => 0,
        }
    }
    /// Bytes of all pages or rings of the layer, without those beside a history.
    pub(crate) fn kv_bytes(&self, l: &Limits) -> u64 {
        let pages = match self {
            Stream::History { .. } => l.pages as u64,
            Stream::Ring { .. } => product(&[self.ring_pages(l), l.ring_places() as u64]),
            Stream::Recurrent { .. } => 0,
        };
        product(&[self.page_bytes().unwrap_or(0), pages])
    }
    /// Bytes of all states of the layer, and of all its convolution windows.
    pub(crate) fn rec_bytes(&self, l: &Limits) -> [u64; 2] {
        let Stream::Recurrent { state: [h, k, v], conv: [taps, channels] } = *self else { return [0, 0] };
        let slots = l.rec_slots() as u64;
        [product(&[slots, h as u64, k as u64, v as u64, FLOAT]), product(&[slots, taps as u64, channels as u64, FLOAT])]
    }
    /// Bytes of what a snapshot keeps of the layer, in f32.
    fn snapshot_bytes(&self, l: &Limits) -> u64 {
        match *self {
            Stream::Recurrent { state: [h, k, v], conv: [taps, channels] } => {
                let floats = product(&[h as u64, k as u64, v as u64]).saturating_add(taps as u64 * channels as u64);
                floats.saturating_mul(FLOAT)
            }
            Stream::Ring { .. } => product(&[self.ring_pages(l), self.page_bytes().unwrap_or(0)]),
            Stream::History { .. } => {
                let sides = self.sides(l).into_iter().flatten();
                sides.map(|(_, page, ring)| product(&[page, ring as u64])).fold(0, u64::saturating_add)
            }
        }
    }
    fn check(&self, l: &Limits) -> Result<(), &'static str> {
        let fits = |dims: &[u32]| product(&dims.iter().map(|&d| d as u64).collect::<Vec<_>>()) <= u32::MAX as u64;
        match *self {
            Stream::History { heads, d, .. } | Stream::Ring { heads, d, .. } if heads == 0 || d == 0 => {
                Err("keys and values need at least one head of at least one column")
            }
            Stream::History { d, kv: KvSpec { main: fmt, .. }, .. } | Stream::Ring { d, fmt, .. } if !fmt.fits(d) => {
                Err("the rotated formats, q8 and tq4, are for heads of 64, 128, 256 or 512 columns")
            }
            Stream::History { kv, .. } if kv.beside().any(KvFormat::rotated) => {
                Err("own and sink pages are f32 or bf16")
            }
            Stream::History { kv, .. } if kv.own_page.zip(kv.sink_page).is_some_and(|(a, b)| a != b) => {
                Err("own and sink pages have one format")
            }
            Stream::History { .. }
                if self
                    .sides(l)
                    .into_iter()
                    .flatten()
                    .any(|s| product(&[s.2 as u64, l.ring_places() as u64]) > MAX_INDEX) =>
            {
                Err("the own pages of all sequences together are more than 2^31 - 1")
            }
            Stream::Ring { window: 0, .. } => Err("a window of no positions"),
            Stream::Ring { .. } if self.ring_pages(l).saturating_mul(l.ring_places() as u64) > MAX_INDEX => {
                Err("the rings of all sequences together need more than 2^31 - 1 pages")
            }
            Stream::Recurrent { state, .. } if state.contains(&0) => Err("a recurrent state of no elements"),
            Stream::Recurrent { state, conv } if !fits(&state) || !fits(&conv) => {
                Err("a recurrent state of more than 2^32 - 1 elements")
            }
            _ => Ok(()),
        }
    }
}

fn page_bytes(heads: u32, d: u32, fmt: KvFormat) -> u64 {
    let bytes = product(&[2, heads as u64, PAGE_POSITIONS as u64, fmt.vector_bytes(d)]);
    bytes.checked_next_multiple_of(PAGE_ALIGN).unwrap_or(u64::MAX)
}

/// Saturating: what is beyond `u64` is refused by any budget.
fn product(factors: &[u64]) -> u64 {
    if factors.contains(&0) { 0 } else { factors.iter().fold(1, |p, &f| p.saturating_mul(f)) }
}

/// Whether these streams can be kept under these limits.
pub(crate) fn check(decls: &[Decl], l: &Limits) -> Result<()> {
    l.check()?;
    let mut seen = BTreeSet::new();
    for d in decls {
        let fail = |what| Error::Decl { layer: d.layer, what };
        if !seen.insert(d.layer) {
            return Err(fail("two streams are declared; a layer has one at most"));
        }
        d.stream.check(l).map_err(fail)?;
    }
    Ok(())
}

/// Bytes of all streams and of the row arrays.
pub(crate) fn bytes(decls: &[Decl], l: &Limits) -> Bytes {
    let mut b = Bytes { rows: table::bytes(l), ..Bytes::default() };
    for d in decls {
        b.kv = d.stream.side_bytes(l).into_iter().fold(b.kv.saturating_add(d.stream.kv_bytes(l)), u64::saturating_add);
        b.state = d.stream.rec_bytes(l).into_iter().fold(b.state, u64::saturating_add);
    }
    b
}

/// Bytes of a snapshot of any sequence, in f32; 0 where sequences need none.
pub fn snapshot_bytes(decls: &[Decl], l: &Limits) -> u64 {
    decls.iter().map(|d| d.stream.snapshot_bytes(l)).fold(0, u64::saturating_add)
}

/// Bytes of all rings, and of all pages beside histories, which are rings too.
pub(crate) fn ring_bytes(decls: &[Decl], l: &Limits) -> u64 {
    let of = |s: &Stream| {
        let own = if matches!(s, Stream::Ring { .. }) { s.kv_bytes(l) } else { 0 };
        s.side_bytes(l).into_iter().fold(own, u64::saturating_add)
    };
    decls.iter().map(|d| of(&d.stream)).fold(0, u64::saturating_add)
}
