//! History that nobody computed: seeded random keys, values and states, to measure at a depth without reading a prompt
//! of that length first.

use crate::append::{Pending, Span};
use crate::error::{Error, Result};
use crate::sequence::SeqId;
use crate::store::State;
use device::{Buf, Device, RecView, RowClass, StreamView};
use memory::{KvFormat, PAGE_POSITIONS};
use std::ops::Range;

impl State {
    /// Makes `n` more positions part of a sequence, with keys, values and recurrent states drawn evenly from -1 to 1.
    /// The values of a position depend on seed, layer and position alone, so filling in pieces gives the same history.
    ///
    /// # Errors
    /// [`Error::NotOpen`], [`Error::ContextFull`], [`Error::NoRoom`], [`Error::OverBudget`]; [`Error::Pending`] while an append is under way;
    /// what the device says to writes. The sequence is as long as before then.
    pub fn fill(&mut self, dev: &mut dyn Device, seq: SeqId, n: u32, seed: u64) -> Result<()> {
        self.settle()?;
        let (len, context) = (self.seqs.get(seq)?.len, self.limits.context);
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
        let (_append, pending) = Pending::take(&spans, RowClass::Many, &self.seqs, &mut self.room)?;
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
        for (layer, st) in self.layers.histories() {
            let page_of = |i: u32| match st.ring {
                0 => span.pages.get(i as usize).copied().unwrap_or_default() as u64,
                ring => span.seq_slot as u64 * ring as u64 + (i % ring) as u64,
            };
            for (i, part) in by_page(&at) {
                // A ring keeps its last pages only.
                let overwritten = st.ring > 0 && (i as u64 + st.ring as u64) * (PAGE_POSITIONS as u64) < at.end as u64;
                if !overwritten {
                    page(dev, &st, page_of(i), &part, Key::new(seed, layer))?;
                }
            }
        }
        for (layer, st) in self.layers.states() {
            state(dev, &st, span.rec_mid as u64, Key::new(seed, layer).and(at.end as u64))?;
        }
        Ok(())
    }
}

/// Positions cut at the edges of pages, each part with the index of its page.
fn by_page(at: &Range<u32>) -> impl Iterator<Item = (u32, Range<u32>)> {
    let at = at.clone();
    (at.start / PAGE_POSITIONS..at.end.div_ceil(PAGE_POSITIONS)).map(move |i| {
        let first = i * PAGE_POSITIONS;
        (i, at.start.max(first)..at.end.min(first + PAGE_POSITIONS))
    })
}

/// Writes keys and values of some positions of one page.
fn page(dev: &mut dyn Device, st: &StreamView, page: u64, at: &Range<u32>, key: Key) -> Result<()> {
    let bytes = (at.end - at.start) as u64 * st.fmt.vector_bytes(st.d);
    for (plane, head) in (0..2).flat_map(|p| (0..st.heads).map(move |h| (p, h))) {
        let mut out = Vec::with_capacity(bytes as usize);
        for pos in at.clone() {
            let mut draw = key.and(((plane * st.heads + head) as u64) << 32 | pos as u64);
            (0..st.d).for_each(|_| encode(draw.next(), st.fmt, &mut out));
        }
        let first = page * st.page_bytes + st.vector_at(plane, head, at.start % PAGE_POSITIONS);
        dev.write(part(st.buf, first, bytes)?, &out)?;
    }
    Ok(())
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
        KvFormat::F32 => out.extend(b),
        // Any bf16 is as random as another, so the lower half is just dropped.
        KvFormat::Bf16 => out.extend(&b[2..]),
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
