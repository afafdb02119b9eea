//! History that nobody computed: seeded random keys, values and states, to measure at a depth without reading a prompt
//! of that length first.

use crate::append::{Kind, Pending, Span};
use crate::error::{Error, Result};
use crate::sequence::SeqId;
use crate::store::State;
use device::kv::{self, Pieces};
use device::{Buf, Device, RecView, RowClass, StreamView};
use memory::{KvFormat, PAGE_POSITIONS};
use std::ops::Range;

impl State {
    /// Makes `n` more positions part of a sequence, with keys, values and recurrent states drawn evenly from -1 to 1, in
    /// rotated formats codes drawn evenly under scales that make their elements about as large. The values of a position depend on seed, layer and position alone, so filling in pieces gives the same history.
    ///
    /// # Errors
    /// [`Error::NotOpen`], [`Error::ContextFull`], [`Error::NoRoom`], [`Error::OverBudget`]; [`Error::Pending`] while an append is under way;
    /// what the device says to writes. The sequence is as long as before then.
    pub fn fill(&mut self, dev: &mut dyn Device, seq: SeqId, n: u32, seed: u64) -> Result<()> {
        self.settle()?;
        let (len, context) = (self.seqs.get(seq)?.len, self.limits.context);
        if self.in_segment(seq) {
            return Err(Error::Pending);
        }
        if n > context - len {
            return Err(Error::ContextFull { len, asked: n, context });
        }
        if n == 0 {
            return Ok(());
        }
        // No op runs, so neither the limits of an append's rows nor its arrays matter.
        let ids = vec![0; n as usize];
        let spans = [Span { seq, ids: &ids }];
        self.grow(dev, &spans)?;
        let (_append, pending) = Pending::take(&spans, (Kind::Step, RowClass::Many), &self.seqs, &mut self.room)?;
        match self.write(dev, &pending, &spans, len..len + n, seed) {
            Ok(()) => {
                pending.accept(&[n], &mut self.seqs, &mut self.room);
                Ok(())
            }
            Err(e) => {
                pending.give_back(&mut self.room);
                Err(e)
            }
        }
    }

    fn write(&self, dev: &mut dyn Device, p: &Pending, spans: &[Span], at: Range<u32>, seed: u64) -> Result<()> {
        let values = p.values(spans, &self.seqs)?;
        let Some(span) = values.spans.first() else { return Ok(()) };
        for (layer, part, st) in self.layers.histories().flat_map(with_sides) {
            let page_of = |i: u32| match st.ring {
                0 => span.pages.get(i as usize).copied().unwrap_or_default() as u64,
                ring => span.seq_slot as u64 * ring as u64 + (i % ring) as u64,
            };
            let pages: Vec<_> = by_page(&at).filter(|(i, _)| part.keeps(*i, &st, at.end)).collect();
            let key = Key::new(seed, layer).and(part as u64);
            for some in pages.chunks(drawers()) {
                for ((i, at), drawn) in some.iter().zip(drawn(&st, some, key)) {
                    page(dev, &st, page_of(*i), at.start % PAGE_POSITIONS, &drawn)?;
                }
            }
        }
        for (layer, st) in self.layers.states() {
            state(dev, &st, span.rec_mid as u64, Key::new(seed, layer).and(at.end as u64))?;
        }
        Ok(())
    }
}

/// What of a history pages hold.
#[derive(Copy, Clone, PartialEq)]
pub(crate) enum Of {
    Main,
    Own,
    Sink,
}

impl Of {
    /// Whether page `i` of a sequence of `len` positions is there to be read.
    fn keeps(self, i: u32, st: &StreamView, len: u32) -> bool {
        // A ring keeps its last pages only.
        let overwritten = st.ring > 0 && (i as u64 + st.ring as u64) * (PAGE_POSITIONS as u64) < len as u64;
        if self == Of::Sink { i == 0 } else { !overwritten }
    }
}

/// A layer's pages and those beside them.
pub(crate) fn with_sides((layer, st): (u32, StreamView)) -> impl Iterator<Item = (u32, Of, StreamView)> {
    let beside = [(Of::Own, st.own), (Of::Sink, st.sink)];
    let beside = beside.into_iter().filter_map(move |(of, s)| Some((layer, of, st.beside(&s?))));
    std::iter::once((layer, Of::Main, st)).chain(beside)
}

/// Positions cut at the edges of pages, each part with the index of its page.
fn by_page(at: &Range<u32>) -> impl Iterator<Item = (u32, Range<u32>)> {
    let at = at.clone();
    (at.start / PAGE_POSITIONS..at.end.div_ceil(PAGE_POSITIONS)).map(move |i| {
        let first = i * PAGE_POSITIONS;
        (i, at.start.max(first)..at.end.min(first + PAGE_POSITIONS))
    })
}

/// Pages that are drawn at a time, each by a thread of its own.
fn drawers() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(16))
}

/// Codes and scales of neighbouring vectors of one head.
struct Drawn {
    plane: u32,
    head: u32,
    codes: Vec<u8>,
    scales: Vec<u8>,
}

/// Keys and values of some positions of each of these pages.
fn drawn(st: &StreamView, pages: &[(u32, Range<u32>)], key: Key) -> Vec<Vec<Drawn>> {
    let heads = || (0..2).flat_map(|plane| (0..st.heads).map(move |head| (plane, head)));
    let one = |at: &Range<u32>| -> Vec<Drawn> {
        let head = |(plane, head)| {
            let (mut codes, mut scales) = (Vec::new(), Vec::new());
            for pos in at.clone() {
                let mut draw = key.and(((plane * st.heads + head) as u64) << 32 | pos as u64);
                vector(&mut draw, st, &mut codes, &mut scales);
            }
            Drawn { plane, head, codes, scales }
        };
        heads().map(head).collect()
    };
    let one = &one;
    std::thread::scope(|s| {
        let (first, rest) = match pages.split_first() {
            Some(((_, at), rest)) => (at, rest),
            None => return Vec::new(),
        };
        let begin = |at| std::thread::Builder::new().spawn_scoped(s, move || one(at)).ok();
        let others: Vec<_> = rest.iter().map(|(_, at)| begin(at)).collect();
        // What no thread drew, because the system has none to spare, is left to this one.
        let joined =
            others.into_iter().zip(rest).map(|(t, (_, at))| t.and_then(|t| t.join().ok()).unwrap_or_else(|| one(at)));
        std::iter::once(one(first)).chain(joined).collect()
    })
}

/// Writes what was drawn for one page, from position `place` in it on.
fn page(dev: &mut dyn Device, st: &StreamView, page: u64, place: u32, drawn: &[Drawn]) -> Result<()> {
    let first = page * st.page_bytes;
    for Drawn { plane, head, codes, scales } in drawn {
        vectors(dev, st, first + st.block_at(*plane, *head), *plane, place, codes)?;
        if !scales.is_empty() {
            let to = part(st.buf, first + st.scale_at(*plane, *head, place), scales.len() as u64)?;
            dev.write(to, scales)?;
        }
    }
    Ok(())
}

/// Writes the elements of neighbouring vectors of the block at `first`.
fn vectors(dev: &mut dyn Device, st: &StreamView, first: u64, plane: u32, place: u32, codes: &[u8]) -> Result<()> {
    let bytes = st.fmt.code_bytes(st.d) as usize;
    let of = |at: u32| Pieces::of(st.fmt, plane, st.d, at);
    if of(place).count == 1 {
        dev.write(part(st.buf, first + of(place).first as u64, codes.len() as u64)?, codes)?;
        return Ok(());
    }
    let (group, mut rest, mut at) = (kv::KEYS as usize * bytes, codes, place);
    while !rest.is_empty() {
        if at.is_multiple_of(kv::KEYS) && rest.len() >= group {
            // A whole group of interleaved keys at once.
            let mut block = vec![0; group];
            for (i, codes) in (0..).zip(rest[..group].chunks_exact(bytes)) {
                of(i).scatter(codes, &mut block);
            }
            dev.write(part(st.buf, first + of(at).first as u64, group as u64)?, &block)?;
            (rest, at) = (&rest[group..], at + kv::KEYS);
        } else {
            let pieces = of(at);
            for (off, piece) in pieces.offsets().zip(rest.chunks_exact(pieces.len)) {
                dev.write(part(st.buf, first + off as u64, pieces.len as u64)?, piece)?;
            }
            (rest, at) = (&rest[bytes..], at + 1);
        }
    }
    Ok(())
}

/// Draws one vector as it is stored.
fn vector(draw: &mut Key, st: &StreamView, codes: &mut Vec<u8>, scales: &mut Vec<u8>) {
    let words = 0..st.fmt.code_bytes(st.d) / 8;
    match st.fmt {
        KvFormat::F32 | KvFormat::Bf16 => (0..st.d).for_each(|_| encode(draw.next(), st.fmt, codes)),
        KvFormat::Q8 => {
            let eight = |draw: &mut Key| draw.mix().to_le_bytes().map(|b| (b as i8).max(-127) as u8);
            words.for_each(|_| codes.extend(eight(draw)));
            // Even codes up to 1 have the deviation of even numbers up to 1.
            scales.extend(kv::scale(1.0 + 0.25 * draw.next()).to_le_bytes());
        }
        KvFormat::Tq4 => {
            words.for_each(|_| codes.extend(draw.mix().to_le_bytes()));
            // The root mean square of the centroids is 1.4, that of even numbers up to 1 is 0.58.
            let norm = 0.41 * (st.d as f32).sqrt();
            scales.extend(kv::scale(norm * (1.0 + 0.25 * draw.next())).to_le_bytes());
        }
    }
}

/// Writes the state and the convolution window of one slot.
fn state(dev: &mut dyn Device, st: &RecView, slot: u64, key: Key) -> Result<()> {
    for (i, buf, elems) in [(0, st.state, st.state_elems as u64), (1, st.conv, st.conv_elems as u64)] {
        let mut draw = key.and(i);
        let mut out = Vec::with_capacity(elems as usize * 4);
        (0..elems).for_each(|_| encode(draw.next(), KvFormat::F32, &mut out));
        dev.write(part(buf, slot * elems * 4, elems * 4)?, &out)?;
    }
    Ok(())
}

fn part(b: Buf, off: u64, len: u64) -> Result<Buf> {
    b.slice(off, len).ok_or(Error::Device(device::Error::BadBuf))
}

fn encode(x: f32, fmt: KvFormat, out: &mut Vec<u8>) {
    let b = x.to_le_bytes();
    match fmt {
        // Any bf16 is as random as another, so the lower half is just dropped.
        KvFormat::Bf16 => out.extend(&b[2..]),
        _ => out.extend(b),
    }
}

/// SplitMix64: a number that was mixed from everything that names a vector, and the draws that follow from it.
#[derive(Copy, Clone)]
struct Key(u64);

impl Key {
    fn new(seed: u64, layer: u32) -> Self {
        Key(seed).and(layer as u64)
    }
    fn and(self, more: u64) -> Self {
        let mut k = Key(self.0 ^ more.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Key(k.mix())
    }
    fn mix(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// From -1 to 1.
    fn next(&mut self) -> f32 {
        (self.mix() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}
