//! The rows of one append, from reservation to its end.

use crate::error::{Error, Result};
use crate::room::Room;
use crate::sequence::{SeqId, Sequence, Sequences};
use crate::table::{NONE, SpanValues, Values};
use device::RowClass;
use memory::pages::pages_for;
use memory::{PageId, SlotId};
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Inside a span, parts begin at multiples of this many rows: the grid on which rows of class Many are computed, and
/// where their recurrent state is kept.
pub const PART_ROWS: u32 = 64;

/// Rows that one sequence takes.
#[derive(Copy, Clone, Debug)]
pub struct Span<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// Token ids, one a row.
    pub ids: &'a [u32],
}

/// Appends of a kind are under way one at a time; a segment lasts while steps come and go.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Step,
    Segment,
}

/// Rows that were reserved and whose fate is open. It ends in [`commit`](crate::State::commit) or
/// [`rollback`](crate::State::rollback); one that is dropped instead (say, by a failed step) is rolled back by the next
/// call that changes its state.
#[derive(Debug)]
#[must_use = "an append ends in commit or rollback"]
pub struct Append {
    pub(crate) token: Arc<()>,
    pub(crate) kind: Kind,
    pub(crate) class: RowClass,
    /// First row of each span, and one behind the last row.
    bounds: Vec<u32>,
}

impl Append {
    /// Role of the rows.
    pub fn class(&self) -> RowClass {
        self.class
    }
    /// Rows of all spans.
    pub fn n(&self) -> u32 {
        self.bounds.last().copied().unwrap_or(0)
    }
    /// Spans, in the order in which they were given.
    pub fn seqs(&self) -> u32 {
        self.bounds.len() as u32 - 1
    }
    /// The rows of a span, `None` beyond the last.
    pub fn span(&self, i: u32) -> Option<Range<u32>> {
        let end = *self.bounds.get(i as usize + 1)?;
        Some(self.bounds[i as usize]..end)
    }
    /// Whether the rows may be run as a part of their own, and whether they continue a span.
    ///
    /// # Errors
    /// [`Error::Part`].
    pub(crate) fn cut(&self, part: &Range<u32>) -> Result<bool> {
        let no = |why| Err(Error::Part { start: part.start, end: part.end, why });
        if part.start >= part.end || part.end > self.n() {
            return no("a part is not empty and lies inside the append");
        }
        let whole = |row: &u32| self.bounds.binary_search(row).is_ok();
        if whole(&part.start) && whole(&part.end) {
            return Ok(false);
        }
        if self.seqs() > 1 || self.class == RowClass::Few {
            return no("only a single span of class Many may be cut; other parts are whole spans");
        }
        let on_grid = |row: u32| row.is_multiple_of(PART_ROWS);
        if !on_grid(part.start) || !(on_grid(part.end) || part.end == self.n()) {
            return no("parts of a span begin and end at multiples of 64 rows");
        }
        Ok(part.start > 0)
    }
}

/// What a span holds until its append ends.
#[derive(Debug)]
struct Held {
    seq: SeqId,
    rows: u32,
    /// Pages beyond those of the sequence.
    pages: Vec<PageId>,
    /// Few: the slot of the state after each row. Many: after the last. None where no layer is recurrent.
    next: Vec<SlotId>,
    /// The rings that a segment writes in place of its sequence's own.
    ring: Option<SlotId>,
}

/// An append as its state sees it.
#[derive(Debug)]
pub(crate) struct Pending {
    token: Weak<()>,
    class: RowClass,
    spans: Vec<Held>,
}

impl Pending {
    /// Whether the append is still in somebody's hands.
    pub fn alive(&self) -> bool {
        self.token.strong_count() > 0
    }
    pub fn is(&self, a: &Append) -> bool {
        std::ptr::eq(self.token.as_ptr(), Arc::as_ptr(&a.token))
    }
    /// Pages that the spans need beyond those of their sequences.
    pub fn pages_wanted(spans: &[Span], seqs: &Sequences) -> Result<u32> {
        spans.iter().try_fold(0u32, |n, s| Ok(n.saturating_add(Held::pages_wanted(s, seqs.get(s.seq)?))))
    }
    /// Takes what the spans need, or nothing. The spans are known to fit the limits.
    pub fn take(
        spans: &[Span],
        (kind, class): (Kind, RowClass),
        seqs: &Sequences,
        room: &mut Room,
    ) -> Result<(Append, Pending)> {
        let token = Arc::new(());
        let mut p = Pending { token: Arc::downgrade(&token), class, spans: Vec::with_capacity(spans.len()) };
        let mut bounds = vec![0];
        for s in spans {
            match Held::take(s, (kind, class), seqs, room) {
                Ok(held) => {
                    bounds.push(bounds[bounds.len() - 1] + held.rows);
                    p.spans.push(held);
                }
                Err(e) => {
                    p.give_back(room);
                    return Err(e);
                }
            }
        }
        Ok((Append { token, kind, class, bounds }, p))
    }
    /// What the step's arrays hold.
    pub fn values(&self, spans: &[Span], seqs: &Sequences) -> Result<Values> {
        let mut v = Values::default();
        for (i, (held, span)) in self.spans.iter().zip(spans).enumerate() {
            let seq = seqs.get(held.seq)?;
            v.spans.push(held.values(seq));
            for (row, &id) in (0..held.rows).zip(span.ids) {
                // An id beyond i32 is in no vocabulary; neither is -1.
                v.ids.push(i32::try_from(id).unwrap_or(-1));
                v.pos.push((seq.len + row) as i32);
                v.seq_of.push(i as i32);
                v.rec_to.push(held.rec_to(row, self.class, self.spans.len() == 1));
            }
            v.last.push(v.ids.len() as i32 - 1);
        }
        Ok(v)
    }
    /// Whether these counts may be accepted.
    pub fn check(&self, accepted: &[u32]) -> Result<()> {
        if accepted.len() != self.spans.len() {
            return Err(Error::Counts { given: accepted.len(), spans: self.spans.len() });
        }
        for (span, (held, &accepted)) in self.spans.iter().zip(accepted).enumerate() {
            let rows = held.rows;
            if accepted > rows {
                return Err(Error::Accepted { span, accepted, rows });
            }
            let divides = self.class == RowClass::Few || held.next.is_empty();
            if !divides && accepted != 0 && accepted != rows {
                return Err(Error::Indivisible { span, accepted, rows });
            }
        }
        Ok(())
    }
    /// Makes the first `accepted` rows (which were [checked](Self::check)) of each span part of its sequence and gives
    /// the rest back. The only place where a sequence's length, pages or slot change.
    pub fn accept(self, accepted: &[u32], seqs: &mut Sequences, room: &mut Room) {
        for (held, &n) in self.spans.into_iter().zip(accepted) {
            match seqs.get_mut(held.seq) {
                Ok(seq) => held.accept(n, self.class, seq, room),
                Err(_) => held.give_back(room),
            }
        }
    }
    /// Gives everything back.
    pub fn give_back(self, room: &mut Room) {
        self.spans.into_iter().for_each(|s| s.give_back(room));
    }
    /// Whether the sequence has a span in this append.
    pub fn has(&self, seq: SeqId) -> bool {
        self.spans.iter().any(|s| s.seq == seq)
    }
    pub fn pages(&self) -> impl Iterator<Item = PageId> {
        self.spans.iter().flat_map(|s| s.pages.iter().copied())
    }
    pub fn slots(&self) -> impl Iterator<Item = SlotId> {
        self.spans.iter().flat_map(|s| s.next.iter().copied())
    }
    /// Sequences with the rows they take.
    #[cfg(test)]
    pub fn rows(&self) -> impl Iterator<Item = (SeqId, u32)> {
        self.spans.iter().map(|s| (s.seq, s.rows))
    }
    pub fn rings(&self) -> impl Iterator<Item = SlotId> {
        self.spans.iter().filter_map(|s| s.ring)
    }
}

impl Held {
    fn take(s: &Span, (kind, class): (Kind, RowClass), seqs: &Sequences, room: &mut Room) -> Result<Held> {
        let seq = seqs.get(s.seq)?;
        let rows = s.ids.len() as u32;
        let mut held = Held { seq: s.seq, rows, pages: Vec::new(), next: Vec::new(), ring: None };
        let taken = held.fill(Self::pages_wanted(s, seq), (kind, class), room);
        match taken {
            Ok(()) => Ok(held),
            Err(e) => {
                held.give_back(room);
                Err(e)
            }
        }
    }
    fn fill(&mut self, pages: u32, (kind, class): (Kind, RowClass), room: &mut Room) -> Result<()> {
        self.pages = room.take_pages(pages)?;
        let wanted = match class {
            _ if room.slots.total() == 0 => 0,
            RowClass::Few => self.rows,
            RowClass::Many => 1,
        };
        self.next = room.take_slots(wanted)?;
        if kind == Kind::Segment {
            self.ring = Some(room.take_ring()?);
        }
        Ok(())
    }
    fn pages_wanted(s: &Span, seq: &Sequence) -> u32 {
        pages_for(seq.len.saturating_add(s.ids.len() as u32)).saturating_sub(seq.pages.len() as u32)
    }
    fn values(&self, seq: &Sequence) -> SpanValues {
        SpanValues {
            seq_slot: self.ring.unwrap_or(seq.ring).0 as i32,
            rec_from: slot(seq.rec.as_ref()),
            rec_mid: slot(self.next.last()),
            pages: seq.pages.iter().chain(&self.pages).map(|p| p.0 as i32).collect(),
        }
    }
    /// Few: every row has a slot. Many: the last row, and the last row of every part that a single span may be cut to.
    fn rec_to(&self, row: u32, class: RowClass, single: bool) -> i32 {
        let part_ends = single && (row + 1).is_multiple_of(PART_ROWS);
        match class {
            RowClass::Few => slot(self.next.get(row as usize)),
            RowClass::Many if part_ends || row + 1 == self.rows => slot(self.next.first()),
            RowClass::Many => NONE,
        }
    }
    fn accept(mut self, n: u32, class: RowClass, seq: &mut Sequence, room: &mut Room) {
        seq.len += n;
        seq.pages.append(&mut self.pages);
        let spare = seq.pages.split_off((pages_for(seq.len) as usize).min(seq.pages.len()));
        room.give_pages(spare);
        let kept = match class {
            _ if n == 0 || self.next.is_empty() => None,
            RowClass::Few => Some(self.next.swap_remove(n as usize - 1)),
            RowClass::Many => Some(self.next.swap_remove(0)),
        };
        if kept.is_some() {
            room.give_slots(std::mem::replace(&mut seq.rec, kept));
        }
        room.give_slots(self.next);
        if n > 0 {
            self.ring = self.ring.map(|written| std::mem::replace(&mut seq.ring, written));
        }
        self.ring.into_iter().for_each(|r| room.rings.give(r));
    }
    fn give_back(self, room: &mut Room) {
        room.give_pages(self.pages);
        room.give_slots(self.next);
        self.ring.into_iter().for_each(|r| room.rings.give(r));
    }
}

fn slot(s: Option<&SlotId>) -> i32 {
    s.map_or(NONE, |s| s.0 as i32)
}
