//! Pages and snapshots as bytes, to be kept elsewhere and taken up again.

use crate::error::{Error, Result};
use crate::park::Park;
use crate::share::Snapshot;
use crate::store::State;
use device::kv::fingerprint;
use device::{Buf, Device, StreamView};
use memory::{Class, PageId, Tier};
use std::fmt::Write;

/// Fills bytes from wherever they were kept; `false` where they are not there.
pub type Fill<'a> = &'a mut dyn FnMut(&mut [u8]) -> bool;

impl State {
    /// Bytes of a page over all histories, a multiple of 4 KiB.
    pub fn page_bytes(&self) -> u64 {
        self.layers.page_bytes(1)
    }

    /// What fixes the meaning of those bytes and of a snapshot's: layers, shapes, formats, their signs. Bytes of a state
    /// with another one cannot be taken up.
    pub fn format(&self) -> String {
        let mut all = String::new();
        for (l, v) in self.layers.histories() {
            let beside = [v.own, v.sink].map(|s| s.map(|s| (fingerprint(s.fmt), s.page_bytes, s.ring)));
            let shape = (v.heads, v.d, v.page_bytes, v.ring);
            // Writing to a string cannot fail.
            let _ = writeln!(all, "{l}: {} {shape:?} {beside:?}", fingerprint(v.fmt));
        }
        for ((l, r), cols) in self.layers.states().zip(self.state_rows()) {
            let _ = writeln!(all, "{l}: state {} {} {cols}", r.state_elems, r.conv_elems);
        }
        all
    }

    /// Copies a page's bytes, layer by layer, in place of what `to` holds.
    ///
    /// # Errors
    /// [`Error::Beginning`] for a page that nobody owns; what the device says.
    pub fn read_page(&self, dev: &mut dyn Device, page: PageId, to: &mut Vec<u8>) -> Result<()> {
        self.owned(&[page])?;
        to.resize(self.page_bytes() as usize, 0);
        let mut at = 0;
        for v in self.full_histories() {
            let bytes = v.page_bytes as usize;
            dev.read(of(&v, page)?, &mut to[at..at + bytes])?;
            at += bytes;
        }
        Ok(())
    }

    /// Takes a page for bytes that were [read](Self::read_page) from one; the caller is its owner and ends that with
    /// [`let_go`](Self::let_go).
    ///
    /// # Errors
    /// [`Error::Beginning`] for bytes that are no page of this state; [`Error::NoRoom`], [`Error::OverBudget`]; what the
    /// device says.
    pub fn adopt_page(&mut self, dev: &mut dyn Device, bytes: &[u8]) -> Result<PageId> {
        self.settle()?;
        if bytes.len() as u64 != self.page_bytes() {
            return Err(Error::Beginning("it is another model's page"));
        }
        self.back(dev, 1)?;
        let taken = self.room.take_pages(1)?;
        let page = taken[0];
        let mut put = || -> Result<()> {
            let mut rest = bytes;
            for v in self.full_histories() {
                let (own, others) = rest.split_at(v.page_bytes as usize);
                dev.write(of(&v, page)?, own)?;
                rest = others;
            }
            Ok(())
        };
        put().inspect_err(|_| self.room.give_pages(taken))?;
        *self.kept.entry(page).or_default() += 1;
        Ok(page)
    }

    /// Takes up a snapshot at `at` positions, whose [parts](Snapshot::parts) `fill` gives in their order. `None` where it
    /// could not.
    ///
    /// # Errors
    /// [`Error::OverBudget`] where the ledger has no room for it.
    pub fn adopt_snapshot(&self, at: u32, park: Park, fill: Fill) -> Result<Option<Snapshot>> {
        let paid = self.ledger.reserve(Tier::Host, Class::State, "a snapshot", self.snapshot_bytes(park))?;
        let mut take = |bytes: usize| {
            let mut part = vec![0; bytes];
            fill(&mut part).then_some(part)
        };
        let mut states = Vec::new();
        for ((_, v), cols) in self.layers.states().zip(self.state_rows()) {
            let rows = v.state_elems as usize / cols.max(1);
            let (state, conv) = (take(park.bytes(rows, cols)), take(v.conv_elems as usize * 4));
            let (Some(state), Some(conv)) = (state, conv) else { return Ok(None) };
            states.push([state, conv]);
        }
        let rings: Option<Vec<_>> = self.rings().map(|v| take((v.page_bytes * v.ring as u64) as usize)).collect();
        Ok(rings.map(|rings| Snapshot::new(at, park, states, rings, paid)))
    }

    fn full_histories(&self) -> impl Iterator<Item = StreamView> {
        self.layers.histories().map(|(_, v)| v).filter(|v| v.ring == 0)
    }
}

/// A page of a history.
fn of(v: &StreamView, page: PageId) -> Result<Buf> {
    let at = v.buf.slice(page.0 as u64 * v.page_bytes, v.page_bytes);
    at.ok_or(Error::Device(device::Error::BadBuf))
}
