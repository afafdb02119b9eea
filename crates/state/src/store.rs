//! The state of all sequences: the memory, who owns what of it, and the append under way.

use crate::append::{Append, Kind, Pending, Span};
use crate::decl::{self, Bytes, Decl, Limits, Stream};
use crate::error::{Error, Result};
use crate::layers::{Layers, Made};
use crate::room::Room;
use crate::sequence::{SeqId, Sequences};
use crate::table::{Lengths, Tables};
use device::{Buf, Device, RecView, RowClass, Rows, StreamView, View};
use memory::{Class, Ledger, PageId, Reservation, SlotId, Tier};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

/// What sequences own on a device. One step's append is under way at a time, and one segment beside it.
///
/// A failed call leaves every sequence as it was.
pub struct State {
    pub(crate) limits: Limits,
    pub(crate) layers: Layers,
    pub(crate) seqs: Sequences,
    pub(crate) room: Room,
    steps: Lane,
    /// Where the plan has segments.
    segments: Option<Lane>,
    made: Made,
    /// Pages with owners beside sequences, and how many each has.
    pub(crate) kept: BTreeMap<PageId, u32>,
    /// Elements of a row of each recurrent layer's state.
    state_cols: Vec<usize>,
    /// Pays for slabs as they come.
    pub(crate) ledger: Ledger,
    /// Whose memory they take.
    tier: Tier,
}

/// Appends of one kind.
struct Lane {
    tables: Tables,
    pending: Option<Pending>,
}

impl Lane {
    /// Rolls back an append that was dropped.
    fn settle(&mut self, room: &mut Room) -> Result<()> {
        if self.pending.as_ref().is_some_and(Pending::alive) {
            return Err(Error::Pending);
        }
        if let Some(p) = self.pending.take() {
            p.give_back(room);
        }
        Ok(())
    }
}

/// The recurrent state of one layer and sequence.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Recurrent {
    /// The layer.
    pub layer: u32,
    /// `f32[heads, d_k, d_v]`.
    pub state: Buf,
    /// `f32[kernel - 1, channels]`: the last inputs of the convolution before it.
    pub conv: Buf,
}

impl State {
    /// What a full state holds, to the byte. Pages of history come and go; all else is there from the start.
    pub fn bytes(decls: &[Decl], limits: Limits) -> Bytes {
        decl::bytes(decls, &limits)
    }

    /// Reserves and allocates the memory of rings, states and row arrays, for the life of the plan, and addresses for
    /// histories, whose pages `ledger` is asked to pay for when sequences need them.
    ///
    /// # Errors
    /// [`Error::Decl`] and [`Error::Limits`] for streams and limits that cannot be, [`Error::OverBudget`], and what
    /// the device says. Nothing stays reserved or allocated then.
    pub fn new(decls: &[Decl], limits: Limits, ledger: &Ledger, dev: &mut dyn Device) -> Result<Self> {
        decl::check(decls, &limits)?;
        let bytes = Self::bytes(decls, limits);
        let tier = dev.tier();
        let reserve = |class, who, n| ledger.reserve_planned(tier, class, who, n);
        let rings = reserve(Class::Kv, "key/value rings", decl::ring_bytes(decls, &limits))?;
        let state = reserve(Class::State, "recurrent states", bytes.state)?;
        let rows = reserve(Class::Workspace, "row arrays", bytes.rows)?;
        let mut made = Made::default();
        let built = Self::build(decls, limits, [rings, state, rows], dev, &mut made);
        match built {
            Ok((layers, steps, segments)) => {
                let (seqs, room) = (Sequences::new(limits.parallel), Room::new(&limits, layers.recurrent()));
                let of = |d: &Decl| match d.stream {
                    Stream::Recurrent { state, .. } => Some((d.layer, state[2] as usize)),
                    _ => None,
                };
                let cols: BTreeMap<u32, usize> = decls.iter().filter_map(of).collect();
                let (kept, state_cols, ledger) = (BTreeMap::new(), cols.into_values().collect(), ledger.clone());
                Ok(State { limits, layers, seqs, room, steps, segments, made, kept, state_cols, ledger, tier })
            }
            Err(e) => {
                // The first error is the one to tell; a device that cannot free has nothing to add.
                let _ = free_all(dev, &made);
                Err(e)
            }
        }
    }

    fn build(
        decls: &[Decl],
        limits: Limits,
        [rings, state, rows]: [Reservation; 3],
        dev: &mut dyn Device,
        made: &mut Made,
    ) -> Result<(Layers, Lane, Option<Lane>)> {
        let layers = Layers::new(decls, &limits, rings, state, dev, made)?;
        let arrays = dev.alloc(rows)?;
        made.allocs.push(arrays);
        let mut at = 0;
        let mut lane = |l: Lengths| {
            let part = arrays.slice(at, l.bytes()).ok_or(device::Error::BadBuf)?;
            at += l.bytes();
            Ok::<_, Error>(Lane { tables: Tables::new(part, &l)?, pending: None })
        };
        let (steps, segments) = Lengths::of(&limits);
        Ok((layers, lane(steps)?, segments.map(lane).transpose()?))
    }

    /// Gives all memory back to the device it came from.
    ///
    /// # Errors
    /// What the device says; it is asked to free everything in any case.
    pub fn free(self, dev: &mut dyn Device) -> Result<()> {
        free_all(dev, &self.made)
    }

    /// Backs the slabs that the spans' new pages need. Slabs that were backed before a refusal stay, idle, until
    /// [`trim`](Self::trim). Where the pool has not so many pages at all, taking them says so.
    pub(crate) fn grow(&mut self, dev: &mut dyn Device, spans: &[Span]) -> Result<()> {
        self.back(dev, Pending::pages_wanted(spans, &self.seqs)?)
    }

    /// Backs slabs until so many pages can be taken.
    pub(crate) fn back(&mut self, dev: &mut dyn Device, wanted: u32) -> Result<()> {
        for slab in self.room.pages.missing(wanted).unwrap_or_default() {
            let pages = self.room.pages.pages_of(slab);
            let bytes = self.layers.page_bytes(pages.len() as u32);
            let paid = self.ledger.reserve_promised(self.tier, Class::Kv, "key/value pages", bytes)?;
            self.layers.commit(dev, &pages, paid)?;
            self.room.pages.back(slab);
        }
        Ok(())
    }

    /// Lets slabs go in which no page is owned, the highest first, all but `keep` of them.
    ///
    /// # Errors
    /// What the device says; its slab may not be used again then.
    pub fn trim(&mut self, dev: &mut dyn Device, keep: u32) -> Result<()> {
        let idle = self.room.pages.idle();
        for &slab in &idle[..idle.len().saturating_sub(keep as usize)] {
            // Out of the pool first, so that a device that fails half-way costs room and never a wrong page.
            self.room.pages.unback(slab);
            self.layers.release(dev, &self.room.pages.pages_of(slab))?;
        }
        Ok(())
    }

    /// What the memory is laid out for.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// A sequence without positions, which may grow to the context: the ledger promises the bytes of its pages.
    ///
    /// # Errors
    /// [`Error::NoRoom`] when as many as planned are open, [`Error::OverBudget`] where the ledger cannot promise so much
    /// beside other sequences.
    pub fn open(&mut self) -> Result<SeqId> {
        self.open_with(self.limits.pages_per_seq())
    }

    /// A sequence without positions, to which the ledger promises the bytes of `pages` pages. It may grow beyond them as
    /// long as the pool has pages and the ledger bytes.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(&mut self, pages: u32) -> Result<SeqId> {
        let bytes = self.layers.page_bytes(pages.min(self.limits.pages_per_seq()));
        let promise = |first| Ok(self.ledger.promise(self.tier, Class::Kv, "a sequence's pages", bytes, first)?);
        self.seqs.open(|| self.room.take_ring(), promise)
    }

    /// Gives back everything a sequence owns. Its id is an error from then on.
    ///
    /// # Errors
    /// [`Error::NotOpen`]; [`Error::Pending`] while an append with a span of it is under way.
    pub fn close(&mut self, id: SeqId) -> Result<()> {
        self.seqs.get(id)?;
        for lane in std::iter::once(&mut self.steps).chain(&mut self.segments) {
            if lane.pending.as_ref().is_some_and(|p| p.has(id)) {
                lane.settle(&mut self.room)?;
            }
        }
        let seq = self.seqs.remove(id)?;
        self.room.give_pages(seq.pages);
        self.room.give_slots(seq.rec);
        self.room.rings.give(seq.ring);
        Ok(())
    }

    /// Positions committed.
    ///
    /// # Errors
    /// [`Error::NotOpen`].
    pub fn len(&self, id: SeqId) -> Result<u32> {
        Ok(self.seqs.get(id)?.len)
    }

    /// Takes room for the spans' rows (pages, places in rings, next recurrent slots) and writes the arrays that ops
    /// read about them. No sequence changes until [`commit`](Self::commit).
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::Twice`], [`Error::TooManyRows`], [`Error::NotOpen`], [`Error::ContextFull`],
    /// [`Error::NoRoom`], [`Error::OverBudget`] where the ledger cannot pay for more pages; [`Error::Pending`] while
    /// another append is under way; what the device says to writes.
    pub fn reserve(&mut self, dev: &mut dyn Device, class: RowClass, spans: &[Span]) -> Result<Append> {
        self.begin(dev, (Kind::Step, class), spans)
    }

    /// Takes room for the rows of a segment: rows of class Many of one sequence, run layer by layer, each layer in parts
    /// of at most as many rows as a step may have. Other sequences may take steps until it ends. It writes rings of its
    /// own, which begin as copies of the sequence's.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve); [`Error::TooManyRows`] where there are no segments.
    pub fn reserve_segment(&mut self, dev: &mut dyn Device, span: Span) -> Result<Append> {
        self.begin(dev, (Kind::Segment, RowClass::Many), &[span])
    }

    fn begin(&mut self, dev: &mut dyn Device, of: (Kind, RowClass), spans: &[Span]) -> Result<Append> {
        self.settle()?;
        if of.0 == Kind::Segment {
            self.settle_segment()?;
        }
        self.check(of, spans)?;
        self.grow(dev, spans)?;
        let (append, pending) = Pending::take(spans, of, &self.seqs, &mut self.room)?;
        let shown = self.show(dev, of.0, &pending, spans);
        if let Err(e) = shown {
            pending.give_back(&mut self.room);
            return Err(e);
        }
        self.lane(of.0)?.pending = Some(pending);
        Ok(append)
    }

    /// Writes what ops read about an append, and what is in the rings that it goes on with.
    fn show(&mut self, dev: &mut dyn Device, kind: Kind, p: &Pending, spans: &[Span]) -> Result<()> {
        let values = p.values(spans, &self.seqs)?;
        self.lane(kind)?.tables.upload(dev, &values)?;
        for (ring, span) in p.rings().zip(spans) {
            let seq = self.seqs.get(span.seq)?;
            if seq.len > 0 {
                self.layers.copy_rings(dev, seq.ring, ring)?;
            }
        }
        Ok(())
    }

    fn check(&self, (kind, class): (Kind, RowClass), spans: &[Span]) -> Result<()> {
        if spans.is_empty() || spans.iter().any(|s| s.ids.is_empty()) {
            return Err(Error::Empty);
        }
        let asked = spans.iter().map(|s| s.ids.len() as u64).sum();
        let most = match (kind, class) {
            (Kind::Segment, _) => self.limits.segment,
            (_, RowClass::Few) => self.limits.few,
            (_, RowClass::Many) => self.limits.rows,
        };
        if asked > most as u64 {
            return Err(Error::TooManyRows { class, asked, most });
        }
        let mut seen = HashSet::new();
        for s in spans {
            let (len, asked, context) = (self.seqs.get(s.seq)?.len, s.ids.len() as u32, self.limits.context);
            if asked > context - len {
                return Err(Error::ContextFull { len, asked, context });
            }
            if !seen.insert(s.seq) {
                return Err(Error::Twice(s.seq));
            }
            if self.in_segment(s.seq) {
                return Err(Error::Pending);
            }
        }
        Ok(())
    }

    /// The rows `part` of an append, for one pass over the layers. The whole append is `0..a.n()`; other parts are
    /// whole spans, or, where the append is a single span of class Many, ranges that begin at multiples of
    /// [`PART_ROWS`](crate::PART_ROWS) and end there or with the span. The parts of a span are run in order.
    ///
    /// # Errors
    /// [`Error::Part`] for other ranges, [`Error::Foreign`].
    pub fn rows(&self, a: &Append, part: Range<u32>) -> Result<Rows> {
        let mid = a.cut(&part)?;
        Ok(self.own(a)?.tables.rows(a.class, a.seqs(), &part, mid))
    }

    /// `i32[seqs, 1]`: index of each span's last row in the append, to pick the rows whose logits are wanted.
    ///
    /// # Errors
    /// [`Error::Foreign`].
    pub fn last_rows(&self, a: &Append) -> Result<View> {
        Ok(self.own(a)?.tables.last_rows(a.seqs()))
    }

    /// Makes the first `accepted[i]` rows of span i part of its sequence and gives back the room of the others.
    ///
    /// # Errors
    /// [`Error::Counts`], [`Error::Accepted`]; [`Error::Indivisible`] for a part of a span of class Many in a model
    /// with recurrent layers; [`Error::Foreign`]. The append is rolled back then.
    pub fn commit(&mut self, a: Append, accepted: &[u32]) -> Result<()> {
        let pending = self.end(&a)?;
        let checked = pending.check(accepted);
        match checked {
            Ok(()) => pending.accept(accepted, &mut self.seqs, &mut self.room),
            Err(_) => pending.give_back(&mut self.room),
        }
        checked
    }

    /// Ends an append without a trace.
    ///
    /// # Errors
    /// [`Error::Foreign`].
    pub fn rollback(&mut self, a: Append) -> Result<()> {
        self.end(&a)?.give_back(&mut self.room);
        Ok(())
    }

    /// History or ring of a layer.
    ///
    /// # Errors
    /// [`Error::NoStream`].
    pub fn view(&self, layer: u32) -> Result<StreamView> {
        self.layers.view(layer)
    }

    /// Recurrent state of a layer.
    ///
    /// # Errors
    /// [`Error::NoStream`].
    pub fn rec(&self, layer: u32) -> Result<RecView> {
        self.layers.rec(layer)
    }

    /// Where the recurrent states of a sequence lie, by layer; none before its first row.
    ///
    /// # Errors
    /// [`Error::NotOpen`].
    pub fn recurrent(&self, seq: SeqId) -> Result<Vec<Recurrent>> {
        let Some(slot) = self.seqs.get(seq)?.rec else { return Ok(Vec::new()) };
        self.layers.states().map(|(layer, r)| recurrent_at(layer, &r, slot)).collect()
    }

    /// Where the recurrent state of a layer lies after the rows of a single span of class Many that were run so far; `None`
    /// for a layer without one.
    ///
    /// # Errors
    /// [`Error::Foreign`].
    pub fn recurrent_of(&self, a: &Append, layer: u32) -> Result<Option<Recurrent>> {
        let lane = self.own(a)?;
        let slot = lane.pending.as_ref().and_then(|p| p.slots().next());
        let Some((_, r)) = self.layers.states().find(|(l, _)| *l == layer) else { return Ok(None) };
        slot.map(|s| recurrent_at(layer, &r, s)).transpose()
    }

    /// The rings that an append of a single span writes.
    pub(crate) fn ring_of(&self, a: &Append) -> Result<Option<SlotId>> {
        let lane = self.own(a)?;
        Ok(lane.pending.as_ref().and_then(|p| p.rings().next()))
    }

    /// Whether every page has as many owners as there are sequences and others that say so, every slot one, and every
    /// sequence exactly what its length needs.
    ///
    /// # Errors
    /// What is wrong: a fault of this crate.
    pub fn check_integrity(&self) -> Result<(), String> {
        let recurrent = self.room.slots.total() > 0;
        for s in self.seqs.iter() {
            let held = s.pages.len() as u32;
            if held != memory::pages::pages_for(s.len) {
                return Err(format!("{} positions in {held} pages", s.len));
            }
            if s.rec.is_some() != (recurrent && s.len > 0) {
                return Err(format!("{} positions with recurrent slot {:?}", s.len, s.rec));
            }
        }
        let under_way = self.lanes().filter_map(|l| l.pending.as_ref());
        let pages = self.seqs.iter().flat_map(|s| s.pages.iter().copied());
        let kept = self.kept.iter().flat_map(|(&p, &n)| std::iter::repeat_n(p, n as usize));
        let pages: Vec<_> = pages.chain(under_way.clone().flat_map(Pending::pages)).chain(kept).collect();
        let slots = self.seqs.iter().filter_map(|s| s.rec);
        let slots: Vec<_> = slots.chain(under_way.clone().flat_map(Pending::slots)).collect();
        let rings: Vec<_> = self.seqs.iter().map(|s| s.ring).chain(under_way.flat_map(Pending::rings)).collect();
        self.room.owned_by(&pages, &slots, &rings)
    }

    /// Elements of a row of each recurrent layer's state, by layer.
    pub(crate) fn state_rows(&self) -> Vec<usize> {
        self.state_cols.clone()
    }

    /// Rolls back a step's append that was dropped, and a segment that was.
    pub(crate) fn settle(&mut self) -> Result<()> {
        if self.segments.as_ref().and_then(|l| l.pending.as_ref()).is_some_and(|p| !p.alive()) {
            self.settle_segment()?;
        }
        self.steps.settle(&mut self.room)
    }

    fn settle_segment(&mut self) -> Result<()> {
        self.segments.as_mut().map_or(Ok(()), |l| l.settle(&mut self.room))
    }

    /// Whether a segment of the sequence is under way.
    pub(crate) fn in_segment(&self, id: SeqId) -> bool {
        self.segments.as_ref().and_then(|l| l.pending.as_ref()).is_some_and(|p| p.has(id))
    }

    /// The segment under way.
    #[cfg(test)]
    pub(crate) fn segment(&self) -> Option<&Pending> {
        self.segments.as_ref()?.pending.as_ref()
    }

    fn lanes(&self) -> impl Iterator<Item = &Lane> + Clone {
        std::iter::once(&self.steps).chain(&self.segments)
    }

    fn lane(&mut self, kind: Kind) -> Result<&mut Lane> {
        match kind {
            Kind::Step => Ok(&mut self.steps),
            Kind::Segment => self.segments.as_mut().ok_or(Error::Foreign),
        }
    }

    /// The lane of an append of this state.
    fn own(&self, a: &Append) -> Result<&Lane> {
        let lane = match a.kind {
            Kind::Step => Some(&self.steps),
            Kind::Segment => self.segments.as_ref(),
        };
        lane.filter(|l| l.pending.as_ref().is_some_and(|p| p.is(a))).ok_or(Error::Foreign)
    }

    fn end(&mut self, a: &Append) -> Result<Pending> {
        self.own(a)?;
        self.lane(a.kind)?.pending.take().ok_or(Error::Foreign)
    }
}

fn recurrent_at(layer: u32, r: &RecView, slot: SlotId) -> Result<Recurrent> {
    let cut = |b: Buf, elems: u32| {
        let bytes = elems as u64 * 4;
        b.slice(slot.0 as u64 * bytes, bytes).ok_or(Error::Device(device::Error::BadBuf))
    };
    Ok(Recurrent { layer, state: cut(r.state, r.state_elems)?, conv: cut(r.conv, r.conv_elems)? })
}

fn free_all(dev: &mut dyn Device, made: &Made) -> Result<()> {
    let freed: Vec<_> = made.allocs.iter().map(|&b| dev.free(b).map(drop)).collect();
    let ranges: Vec<_> = made.ranges.iter().map(|&b| dev.free_range(b)).collect();
    freed.into_iter().chain(ranges).collect::<device::Result<()>>().map_err(Error::Device)
}
