//! Open sequences, by generational id.

use crate::error::{Error, Result};
use memory::{PageId, Promise, SlotId, Slots};

/// A sequence of one [`State`](crate::State). The id of a closed sequence is an error, never another sequence.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct SeqId {
    place: u32,
    serial: u64,
}

impl SeqId {
    /// Its place among the open sequences.
    #[cfg(test)]
    pub(crate) fn place(self) -> u32 {
        self.place
    }
}

/// What a sequence owns between appends.
#[derive(Debug)]
pub(crate) struct Sequence {
    serial: u64,
    /// Positions committed.
    pub len: u32,
    /// `ceil(len / 256)` pages.
    pub pages: Vec<PageId>,
    /// Slot of the recurrent state after position `len - 1`; none for a sequence that has no past.
    pub rec: Option<SlotId>,
    /// Which of each layer's rings is its own.
    pub ring: SlotId,
    /// What keeps its pages' bytes free until it needs them.
    _promise: Promise,
}

/// All places for sequences.
pub(crate) struct Sequences {
    places: Slots,
    held: Vec<Option<Sequence>>,
    serials: u64,
}

impl Sequences {
    pub fn new(most: u32) -> Self {
        Sequences { places: Slots::new(most), held: (0..most).map(|_| None).collect(), serials: 0 }
    }
    /// `ring` gives its ring; `promise` sees whether this is the first open sequence.
    pub fn open(
        &mut self,
        ring: impl FnOnce() -> Result<SlotId>,
        promise: impl FnOnce(bool) -> Result<Promise>,
    ) -> Result<SeqId> {
        let full = Error::NoRoom { what: "sequences", asked: 1, free: 0 };
        let first = self.iter().next().is_none();
        let SlotId(place) = self.places.take().ok_or(full)?;
        let made = promise(first).and_then(|promise| Ok((promise, ring()?)));
        let (promise, ring) = made.inspect_err(|_| self.places.give(SlotId(place)))?;
        self.serials += 1;
        let new = Sequence { serial: self.serials, len: 0, pages: Vec::new(), rec: None, ring, _promise: promise };
        self.held[place as usize] = Some(new);
        Ok(SeqId { place, serial: self.serials })
    }
    pub fn get(&self, id: SeqId) -> Result<&Sequence> {
        let held = self.held.get(id.place as usize).and_then(Option::as_ref);
        held.filter(|s| s.serial == id.serial).ok_or(Error::NotOpen(id))
    }
    pub fn get_mut(&mut self, id: SeqId) -> Result<&mut Sequence> {
        let held = self.held.get_mut(id.place as usize).and_then(Option::as_mut);
        held.filter(|s| s.serial == id.serial).ok_or(Error::NotOpen(id))
    }
    /// Takes a sequence out.
    pub fn remove(&mut self, id: SeqId) -> Result<Sequence> {
        self.get(id)?;
        self.places.give(SlotId(id.place));
        self.held[id.place as usize].take().ok_or(Error::NotOpen(id))
    }
    /// The open sequences.
    pub fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.held.iter().flatten()
    }
}
