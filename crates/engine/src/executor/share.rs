//! Sequences that begin where others were, slices of prompts, and what those who schedule them ask.

use super::{Executor, Wanted};
use crate::error::Result;
use device::RowClass;
use memory::PageId;
use memory::pages::pages_for;
use state::{Beginning, Fill, Park, SeqId, Snapshot, Span};

impl Executor {
    /// Reads a slice of a prompt in one pass: at most a chunk of ids. Logits as `wanted`, none where that is `None`.
    ///
    /// # Errors
    /// Those of state and device; nothing is appended then.
    pub fn read(&mut self, seq: SeqId, ids: &[u32], wanted: Option<Wanted>) -> Result<Vec<f32>> {
        let (span, all) = ([Span { seq, ids }], [ids.len() as u32]);
        let logits = match wanted {
            Some(w) => self.step(RowClass::Many, &span, w, &all)?,
            None => self.step_silently(&span, &all)?,
        };
        Ok(logits.unwrap_or_default())
    }
    /// Bytes of a page over all layers.
    pub fn page_bytes(&self) -> u64 {
        self.state.page_bytes()
    }
    /// What fixes the meaning of bytes that are kept of sequences.
    pub fn format(&self) -> String {
        self.state.format()
    }
    /// Copies a page's bytes in place of what `to` holds.
    ///
    /// # Errors
    /// Those of state and device.
    pub fn read_page(&mut self, page: PageId, to: &mut Vec<u8>) -> Result<()> {
        Ok(self.state.read_page(self.dev.as_mut(), page, to)?)
    }
    /// Takes a page for bytes that were read from one. The caller is its owner.
    ///
    /// # Errors
    /// Those of state and device, also where there is no room.
    pub fn adopt_page(&mut self, bytes: &[u8]) -> Result<PageId> {
        self.giving_way(|e| e.state.adopt_page(e.dev.as_mut(), bytes))
    }
    /// Takes up a snapshot whose parts `fill` gives in their order; `None` where it could not.
    ///
    /// # Errors
    /// Where the ledger has no room for it.
    pub fn adopt_snapshot(&self, at: u32, park: Park, fill: Fill) -> Result<Option<Snapshot>> {
        Ok(self.state.adopt_snapshot(at, park, fill)?)
    }
    /// A new, empty sequence, to which the pages of so many positions are promised. It may grow beyond them, as long as there
    /// are pages: what is free meanwhile may serve others, who give way.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_for(&mut self, positions: u32) -> Result<SeqId> {
        self.open_at(Beginning::default(), pages_for(positions))
    }
    /// A new sequence, empty or with positions already, to which so many pages of history are promised.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and a beginning that does not belong to such a length.
    pub fn open_at(&mut self, from: Beginning, pages: u32) -> Result<SeqId> {
        self.watch.look();
        self.giving_way(|e| e.state.open_at(e.dev.as_mut(), from, pages))
    }
    /// The pages of a sequence, by position.
    ///
    /// # Errors
    /// Those of the state.
    pub fn pages(&self, s: SeqId) -> Result<Vec<PageId>> {
        Ok(self.state.pages(s)?.to_vec())
    }
    /// Makes the caller an owner of pages that have one.
    ///
    /// # Errors
    /// Those of the state.
    pub fn keep_pages(&mut self, pages: &[PageId]) -> Result<()> {
        Ok(self.state.keep_pages(pages)?)
    }
    /// Ends what [`keep_pages`](Self::keep_pages) began.
    pub fn let_go(&mut self, pages: &[PageId]) {
        self.state.let_go(pages);
    }
    /// Pages that nobody owns.
    pub fn free_pages(&self) -> u32 {
        self.state.free_pages()
    }
    /// Pages of history in all.
    pub fn total_pages(&self) -> u32 {
        self.state.limits().pages
    }
    /// Whether sequences can only begin where a snapshot was taken.
    pub fn needs_snapshots(&self) -> bool {
        self.state.needs_snapshots()
    }
    /// Bytes of a snapshot.
    pub fn snapshot_bytes(&self, park: Park) -> u64 {
        self.state.snapshot_bytes(park)
    }
    /// Keeps what of a sequence is overwritten as it goes on.
    ///
    /// # Errors
    /// Those of the state, also where the ledger has no room for it.
    pub fn snapshot(&mut self, s: SeqId, park: Park) -> Result<Snapshot> {
        self.giving_way(|e| e.state.snapshot(e.dev.as_mut(), s, park))
    }
    /// Whether everything is owned as often as somebody says that it is.
    ///
    /// # Errors
    /// What is wrong: a fault of this program.
    pub fn check_integrity(&self) -> Result<(), String> {
        self.state.check_integrity()
    }
}
