//! Free pages, free recurrent slots and free rings.

use crate::decl::Limits;
use crate::error::{Error, Result};
use memory::{PageId, PagePool, SlotId, Slots};
use std::collections::{BTreeMap, HashSet};

/// What sequences and appends draw on.
pub(crate) struct Room {
    pub pages: PagePool,
    /// No slots where no layer is recurrent.
    pub slots: Slots,
    /// A place here is a ring in every layer that has rings.
    pub rings: Slots,
}

impl Room {
    pub fn new(l: &Limits, recurrent: bool) -> Self {
        Room {
            pages: PagePool::new(l.pages, l.slab_pages),
            slots: Slots::new(if recurrent { l.rec_slots() } else { 0 }),
            rings: Slots::new(l.ring_places()),
        }
    }
    pub fn take_pages(&mut self, n: u32) -> Result<Vec<PageId>> {
        let full = Error::NoRoom { what: "pages", asked: n, free: self.pages.free() };
        self.pages.take(n).ok_or(full)
    }
    /// `n` slots or none at all.
    pub fn take_slots(&mut self, n: u32) -> Result<Vec<SlotId>> {
        let free = self.slots.free();
        if n > free {
            return Err(Error::NoRoom { what: "recurrent slots", asked: n, free });
        }
        Ok((0..n).map_while(|_| self.slots.take()).collect())
    }
    /// A ring of every layer.
    pub fn take_ring(&mut self) -> Result<SlotId> {
        self.rings.take().ok_or(Error::NoRoom { what: "rings", asked: 1, free: 0 })
    }
    pub fn give_pages(&mut self, pages: impl IntoIterator<Item = PageId>) {
        pages.into_iter().for_each(|p| self.pages.give(p));
    }
    pub fn give_slots(&mut self, slots: impl IntoIterator<Item = SlotId>) {
        slots.into_iter().for_each(|s| self.slots.give(s));
    }
    /// Whether exactly these pages, slots and rings are taken: a page as often as it is named, the others once.
    pub fn owned_by(&self, pages: &[PageId], slots: &[SlotId], rings: &[SlotId]) -> Result<(), String> {
        let mut owners: BTreeMap<PageId, u32> = BTreeMap::new();
        pages.iter().for_each(|p| *owners.entry(*p).or_default() += 1);
        let other = owners.iter().find(|&(&p, &n)| self.pages.owners(p) != n);
        if let Some((p, n)) = other {
            return Err(format!("{p:?} has {} owners of whom {n} are known", self.pages.owners(*p)));
        }
        for (of, what) in [(slots, "a recurrent slot"), (rings, "a ring")] {
            if of.iter().collect::<HashSet<_>>().len() != of.len() {
                return Err(format!("{what} is held twice"));
            }
        }
        let all = |free, held, total, what| {
            let ok = free + held as u32 == total;
            if ok { Ok(()) } else { Err(format!("{free} {what} free and {held} held of {total}")) }
        };
        all(self.pages.free(), owners.len(), self.pages.total(), "pages")?;
        all(self.slots.free(), slots.len(), self.slots.total(), "recurrent slots")?;
        all(self.rings.free(), rings.len(), self.rings.total(), "rings")
    }
}
