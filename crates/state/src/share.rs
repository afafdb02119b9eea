//! Sequences that begin where others were: shared pages, copied pages, snapshots.
//!
//! A full page is shared as it is: nothing of it is ever written again. The page of the positions behind the last full
//! one is copied. What is overwritten as a sequence goes on (recurrent states, rings, own and sink pages) is kept in
//! [`Snapshot`]s, taken at the length that a sequence has and good for any sequence with the same ids.
//!
//! Pages can have an owner beside sequences, who [keeps](State::keep_pages) them after these are closed.

use crate::append::{Append, Span};
use crate::error::{Error, Result};
use crate::fill::with_sides;
use crate::park::Park;
use crate::sequence::SeqId;
use crate::store::{Recurrent, State};
use device::{Buf, Device, StreamView};
use memory::pages::pages_for;
use memory::{Class, PAGE_POSITIONS, PageId, Reservation, SlotId, Tier};

/// What of a sequence's state later positions overwrite, as it was at one length. In host memory, paid for.
#[derive(Debug)]
pub struct Snapshot {
    at: u32,
    park: Park,
    /// State and convolution window of each recurrent layer, in their order.
    states: Vec<[Vec<u8>; 2]>,
    /// The rings of each layer that has some, own and sink pages among them.
    rings: Vec<Vec<u8>>,
    _paid: Reservation,
}

impl Snapshot {
    /// Positions before it.
    pub fn at(&self) -> u32 {
        self.at
    }
    /// One of these parts, read elsewhere.
    pub(crate) fn new(at: u32, park: Park, states: Vec<[Vec<u8>; 2]>, rings: Vec<Vec<u8>>, paid: Reservation) -> Self {
        Snapshot { at, park, states, rings, _paid: paid }
    }
    /// How it is kept.
    pub fn park(&self) -> Park {
        self.park
    }
    /// All its bytes, in an order that follows from the model.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let states = self.states.iter().flatten();
        states.chain(&self.rings).map(Vec::as_slice)
    }
    /// Bytes it holds.
    pub fn bytes(&self) -> u64 {
        self.parts().map(|p| p.len() as u64).sum()
    }
}

/// A snapshot of a segment's sequence at a place within the segment, taken as each layer passes it.
#[derive(Debug)]
pub struct Taking(Snapshot);

/// What a sequence may begin with.
#[derive(Copy, Clone, Debug, Default)]
pub struct Beginning<'a> {
    /// Positions.
    pub len: u32,
    /// The pages of as many whole pages as these have.
    pub pages: &'a [PageId],
    /// The page whose first positions are the rest of them; `None` where there is no rest.
    pub tail: Option<PageId>,
    /// State at that length, for models that [need one](State::needs_snapshots).
    pub snapshot: Option<&'a Snapshot>,
}

impl State {
    /// Whether a sequence can only begin where a snapshot was taken: something of it is overwritten as it goes on.
    pub fn needs_snapshots(&self) -> bool {
        self.layers.recurrent() || self.rings().next().is_some()
    }
    /// The pages of a sequence, by position.
    ///
    /// # Errors
    /// [`Error::NotOpen`].
    pub fn pages(&self, s: SeqId) -> Result<&[PageId]> {
        Ok(&self.seqs.get(s)?.pages)
    }
    /// Pages that nobody owns.
    pub fn free_pages(&self) -> u32 {
        self.room.pages.free()
    }
    /// Makes the caller an owner of pages that have one.
    ///
    /// # Errors
    /// [`Error::Beginning`] for a page that is free; nothing is kept then.
    pub fn keep_pages(&mut self, pages: &[PageId]) -> Result<()> {
        self.owned(pages)?;
        for &p in pages {
            self.room.pages.share(p);
            *self.kept.entry(p).or_default() += 1;
        }
        Ok(())
    }
    /// Ends what [`keep_pages`](Self::keep_pages) began; pages that were not kept are passed over.
    pub fn let_go(&mut self, pages: &[PageId]) {
        for p in pages {
            let Some(n) = self.kept.get_mut(p) else { continue };
            *n -= 1;
            if *n == 0 {
                self.kept.remove(p);
            }
            self.room.pages.give(*p);
        }
    }

    /// Opens a sequence that has positions already, with a promise of `pages` pages in all.
    ///
    /// # Errors
    /// [`Error::Beginning`] for pages and snapshots that do not belong to such a length, and those of
    /// [`open`](Self::open) and of growing. No sequence is open then.
    pub fn open_at(&mut self, dev: &mut dyn Device, from: Beginning, pages: u32) -> Result<SeqId> {
        self.settle()?;
        self.check_beginning(&from)?;
        let seq = self.open_with(pages)?;
        self.fill_from(dev, seq, from).inspect_err(|_| {
            // It was opened a moment ago and nothing is under way on it.
            let _ = self.close(seq);
        })?;
        Ok(seq)
    }

    fn check_beginning(&self, b: &Beginning) -> Result<()> {
        let no = |what| Err(Error::Beginning(what));
        if b.len > self.limits.context {
            return no("it is longer than the context");
        }
        let whole = (b.len / PAGE_POSITIONS) as usize;
        if b.pages.len() != whole || b.tail.is_some() == b.len.is_multiple_of(PAGE_POSITIONS) {
            return no("its pages are not as many as its positions need");
        }
        self.owned(b.pages)?;
        self.owned(b.tail.as_slice())?;
        match b.snapshot {
            None if b.len > 0 && self.needs_snapshots() => no("this model needs a snapshot"),
            Some(s) if s.at != b.len => no("the snapshot was taken at another length"),
            // Before the first position there are no states.
            Some(s)
                if b.len > 0
                    && (s.states.len() != self.layers.states().count() || s.rings.len() != self.rings().count()) =>
            {
                no("the snapshot is another model's")
            }
            _ => Ok(()),
        }
    }
    pub(crate) fn owned(&self, pages: &[PageId]) -> Result<()> {
        let is = |p: &PageId| p.0 < self.room.pages.total() && self.room.pages.owners(*p) > 0;
        if pages.iter().all(is) { Ok(()) } else { Err(Error::Beginning("a page of it is free")) }
    }

    fn fill_from(&mut self, dev: &mut dyn Device, seq: SeqId, from: Beginning) -> Result<()> {
        // The copy of the tail counts among the pages of rows that follow.
        let copy = match from.tail {
            Some(tail) => {
                self.grow(dev, &[Span { seq, ids: &[0] }])?;
                let to = self.room.take_pages(1)?;
                self.copy_page(dev, tail, to[0]).inspect_err(|_| self.room.give_pages(to.iter().copied()))?;
                to
            }
            None => Vec::new(),
        };
        let slot = match from.snapshot {
            Some(s) if from.len > 0 => self.restore(dev, seq, s),
            _ => Ok(None),
        };
        let slot = slot.inspect_err(|_| self.room.give_pages(copy.iter().copied()))?;
        from.pages.iter().for_each(|&p| self.room.pages.share(p));
        let s = self.seqs.get_mut(seq)?;
        s.len = from.len;
        s.pages = from.pages.iter().copied().chain(copy).collect();
        s.rec = slot;
        debug_assert_eq!(s.pages.len() as u32, pages_for(s.len));
        Ok(())
    }

    fn copy_page(&self, dev: &mut dyn Device, from: PageId, to: PageId) -> Result<()> {
        for (_, v) in self.layers.histories().filter(|(_, v)| v.ring == 0) {
            let at = |p: PageId| cut(v.buf, p.0 as u64 * v.page_bytes, v.page_bytes);
            copy(dev, at(from)?, at(to)?)?;
        }
        Ok(())
    }

    /// Keeps what of a sequence is overwritten as it goes on. Two of the same state are equal to the bit in f32; the
    /// smaller formats err as [`Park`] says.
    ///
    /// # Errors
    /// [`Error::NotOpen`]; [`Error::Pending`] while an append is under way; [`Error::OverBudget`] where the ledger has no
    /// room for it; what the device says.
    pub fn snapshot(&mut self, dev: &mut dyn Device, seq: SeqId, park: Park) -> Result<Snapshot> {
        self.settle()?;
        let at = self.seqs.get(seq)?.len;
        let recurrent = self.recurrent(seq)?;
        let rows = self.state_rows();
        let paid = self.ledger.reserve(Tier::Host, Class::State, "a snapshot", self.snapshot_bytes(park))?;
        let states = recurrent.iter().zip(rows).map(|(r, row)| park_layer(dev, r, row, park)).collect::<Result<_>>()?;
        let own = self.seqs.get(seq)?.ring;
        let rings = self.rings().map(|v| read(dev, ring(&v, own)?)).collect::<Result<_>>()?;
        Ok(Snapshot { at, park, states, rings, _paid: paid })
    }

    /// Begins a snapshot at `at` positions, to be taken layer by layer.
    ///
    /// # Errors
    /// [`Error::OverBudget`] where the ledger has no room for it.
    pub fn begin_snapshot(&self, at: u32, park: Park) -> Result<Taking> {
        let paid = self.ledger.reserve(Tier::Host, Class::State, "a snapshot", self.snapshot_bytes(park))?;
        Ok(Taking(Snapshot { at, park, states: Vec::new(), rings: Vec::new(), _paid: paid }))
    }

    /// Takes what a layer has behind the rows of an append that were run so far. Layers come in their order.
    ///
    /// # Errors
    /// [`Error::Foreign`]; what the device says.
    pub fn take_layer(&self, dev: &mut dyn Device, a: &Append, layer: u32, t: &mut Taking) -> Result<()> {
        if let Some(r) = self.recurrent_of(a, layer)? {
            let rows = self.layers.states().map(|(l, _)| l).zip(self.state_rows());
            let cols = rows.into_iter().find(|(l, _)| *l == layer).map_or(1, |(_, cols)| cols);
            t.0.states.push(park_layer(dev, &r, cols, t.0.park)?);
        }
        let Some(own) = self.ring_of(a)? else { return Ok(()) };
        let of = self.layers.histories().filter(|(l, _)| *l == layer).flat_map(with_sides);
        for v in of.map(|(_, _, v)| v).filter(|v| v.ring > 0) {
            t.0.rings.push(read(dev, ring(&v, own)?)?);
        }
        Ok(())
    }

    /// Layers that keep something, from `first` on.
    pub fn layers_from(&self, first: u32) -> Vec<u32> {
        let states = self.layers.states().map(|(l, _)| l);
        let mut all: Vec<u32> = states.chain(self.layers.histories().map(|(l, _)| l)).filter(|&l| l >= first).collect();
        all.sort_unstable();
        all
    }

    /// Ends a snapshot; `None` where not all layers were taken.
    pub fn end_snapshot(&self, t: Taking) -> Option<Snapshot> {
        let all = t.0.states.len() == self.layers.states().count() && t.0.rings.len() == self.rings().count();
        all.then_some(t.0)
    }

    /// Bytes of a snapshot of any sequence that has positions.
    pub fn snapshot_bytes(&self, park: Park) -> u64 {
        let states = self.layers.states().zip(self.state_rows()).map(|((_, v), cols)| {
            let rows = v.state_elems as usize / cols.max(1);
            park.bytes(rows, cols) as u64 + v.conv_elems as u64 * 4
        });
        states.chain(self.rings().map(|v| v.page_bytes * v.ring as u64)).sum()
    }

    fn restore(&mut self, dev: &mut dyn Device, seq: SeqId, from: &Snapshot) -> Result<Option<SlotId>> {
        let own = self.seqs.get(seq)?.ring;
        for (v, bytes) in self.rings().zip(&from.rings) {
            dev.write(ring(&v, own)?, bytes)?;
        }
        if !self.layers.recurrent() {
            return Ok(None);
        }
        let slot = self.room.take_slots(1)?.pop();
        let Some(to) = slot else { return Ok(None) };
        let layers: Vec<_> = self.layers.states().map(|(_, v)| v).zip(self.state_rows()).collect();
        for ((v, cols), [state, conv]) in layers.into_iter().zip(&from.states) {
            let back = |this: &mut Self| this.room.give_slots([to]);
            let mut put = || -> Result<()> {
                let rows = v.state_elems as usize / cols.max(1);
                let values = from.park.decode(state, rows, cols);
                let values = values.map_err(|_| Error::Beginning("the snapshot is another model's"))?;
                let at = |b: Buf, elems: u32| cut(b, to.0 as u64 * elems as u64 * 4, elems as u64 * 4);
                dev.write(at(v.state, v.state_elems)?, &le(&values))?;
                dev.write(at(v.conv, v.conv_elems)?, conv)?;
                Ok(())
            };
            put().inspect_err(|_| back(self))?;
        }
        Ok(Some(to))
    }

    /// Rings of every kind: of layers with windows, and the pages beside histories.
    pub(crate) fn rings(&self) -> impl Iterator<Item = StreamView> {
        self.layers.histories().flat_map(with_sides).map(|(_, _, v)| v).filter(|v| v.ring > 0)
    }
}

/// One of a layer's rings.
fn ring(v: &StreamView, of: SlotId) -> Result<Buf> {
    let bytes = v.page_bytes * v.ring as u64;
    cut(v.buf, of.0 as u64 * bytes, bytes)
}

fn park_layer(dev: &mut dyn Device, r: &Recurrent, cols: usize, park: Park) -> Result<[Vec<u8>; 2]> {
    let state = read(dev, r.state)?;
    let values: Vec<f32> = state.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    Ok([park.encode(&values, cols), read(dev, r.conv)?])
}

fn cut(b: Buf, at: u64, bytes: u64) -> Result<Buf> {
    b.slice(at, bytes).ok_or(Error::Device(device::Error::BadBuf))
}

fn read(dev: &mut dyn Device, from: Buf) -> Result<Vec<u8>> {
    let mut bytes = vec![0; from.bytes() as usize];
    dev.read(from, &mut bytes)?;
    Ok(bytes)
}

fn copy(dev: &mut dyn Device, from: Buf, to: Buf) -> Result<()> {
    let bytes = read(dev, from)?;
    dev.write(to, &bytes)?;
    Ok(())
}

fn le(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}
