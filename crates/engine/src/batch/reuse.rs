//! Pages and snapshots of what was read before.

use super::session::{Job, Session};
use crate::error::Result;
use crate::executor::Executor;
use crate::prefix::{Anchor, Found, Kind, Miss, SnapId, Tree, thin};
use state::{Beginning, PART_ROWS, Park, SeqId, Snapshot};
use std::collections::BTreeMap;

/// What is kept of what was read.
#[derive(Copy, Clone, Debug)]
pub struct Keeping {
    /// Most bytes of snapshots, as long as the ledger has room for them; 0 where nothing is kept at all.
    pub snapshots: u64,
    /// How they are kept.
    pub park: Park,
    /// Whether answers must be those that are made without reuse, to the bit: only what was read as a prompt is used
    /// then, on its grid.
    pub exact: bool,
}

/// Snapshots of one conversation.
const ANCHORS: usize = 16;

pub(super) struct Reuse {
    how: Keeping,
    tree: Tree,
    anchored: bool,
    snaps: BTreeMap<SnapId, (Snapshot, Kind)>,
    next: u64,
}

impl Reuse {
    pub fn new(how: Keeping, anchored: bool) -> Self {
        Reuse { how, tree: Tree::new(anchored), anchored, snaps: BTreeMap::new(), next: 0 }
    }
    fn off(&self) -> bool {
        self.how.snapshots == 0
    }

    /// Opens a sequence with as much of the prompt as is known, to which `pages` pages are promised.
    pub fn begin(&mut self, exec: &mut Executor, job: &Job, pages: u32) -> Result<(SeqId, u32, Miss)> {
        if self.off() || job.prompt_logprobs {
            return Ok((exec.open_at(Beginning::default(), pages)?, 0, Miss::Unknown));
        }
        let found = self.tree.find(&job.prompt);
        let found = self.on_grid(found);
        // The copy of the tail; what was found was used last and goes last.
        self.make_room(exec, job, 1)?;
        let snapshot = found.snap.and_then(|s| self.snaps.get(&s)).map(|(s, _)| s);
        let lost = found.resume > 0 && self.anchored && snapshot.is_none();
        let gone = found.pages.iter().chain(&found.tail).any(|p| !self.tree.pages().any(|q| q == *p));
        if found.resume == 0 || lost || gone {
            return Ok((exec.open_at(Beginning::default(), pages)?, 0, found.miss));
        }
        let from = Beginning { len: found.resume, pages: &found.pages, tail: found.tail, snapshot };
        Ok((exec.open_at(from, pages)?, found.resume, found.miss))
    }

    /// In exact mode rows must lie on the grid on which they would be read from the beginning.
    fn on_grid(&self, f: Found) -> Found {
        if !self.how.exact || self.anchored {
            return f;
        }
        let resume = f.resume / PART_ROWS * PART_ROWS;
        let whole = (resume / memory::PAGE_POSITIONS) as usize;
        let tail = f.pages.get(whole).copied().or(f.tail).filter(|_| !resume.is_multiple_of(memory::PAGE_POSITIONS));
        Found { resume, pages: f.pages[..whole.min(f.pages.len())].to_vec(), tail, ..f }
    }

    /// A sequence has read its prompt up to `len`. At a mark that is kept.
    pub fn passed(&mut self, exec: &mut Executor, s: &Session, len: u32) {
        if self.off() || !s.job.marks.contains(&len) {
            return;
        }
        let kind = if s.job.marks.first() == Some(&len) { Kind::Root } else { Kind::Message };
        if let Some(seq) = s.seq {
            self.keep(exec, s, seq, len, kind);
        }
    }

    /// A request ended: what its sequence holds is kept.
    pub fn ended(&mut self, exec: &mut Executor, s: &Session, seq: SeqId) {
        let Ok(len) = exec.len(seq) else { return };
        let read = (s.job.prompt.len() as u32).min(len);
        let len = if self.how.exact { read } else { len };
        // What was read in small pieces is on no grid.
        if self.off() || len == 0 || (self.how.exact && s.job.prompt_logprobs) {
            return;
        }
        if self.how.exact && self.anchored {
            // Behind the last mark there is nothing that could be used.
            return;
        }
        self.keep(exec, s, seq, len, Kind::End);
    }

    /// Keeps the first `len` positions, which are all the sequence has where it takes a snapshot.
    fn keep(&mut self, exec: &mut Executor, s: &Session, seq: SeqId, len: u32, kind: Kind) {
        let Ok(pages) = exec.pages(seq) else { return };
        let (ids, (role, owner)) = (s.ids(len), s.job.from);
        let taken = self.tree.insert(&ids, &pages, role, owner);
        if exec.keep_pages(&taken.new).is_err() {
            debug_assert!(false, "a page of an open sequence is free");
        }
        exec.let_go(&taken.old);
        if self.anchored && exec.len(seq).is_ok_and(|n| n == len) {
            self.snapshot(exec, s, &ids, seq, kind);
        }
    }

    fn snapshot(&mut self, exec: &mut Executor, s: &Session, ids: &[u32], seq: SeqId, kind: Kind) {
        let at = ids.len() as u32;
        if self.tree.anchors(ids).iter().any(|(p, _)| *p == at) {
            return;
        }
        self.thin(ids);
        let bytes = exec.snapshot_bytes(self.how.park);
        if !self.room_for(exec, s, bytes) {
            return;
        }
        // Where the ledger has no room for it there is one anchor less.
        let Ok(snap) = exec.snapshot(seq, self.how.park) else { return };
        self.next += 1;
        let id = SnapId(self.next);
        self.snaps.insert(id, (snap, kind));
        if let Some(old) = self.tree.anchor(ids, at, id) {
            self.snaps.remove(&old);
        }
    }

    /// Leaves room for one more anchor among those of a conversation.
    fn thin(&mut self, ids: &[u32]) {
        let along = self.tree.anchors(ids);
        let of =
            |(at, snap): &(u32, SnapId)| Anchor { at: *at, kind: self.snaps.get(snap).map_or(Kind::Message, |s| s.1) };
        let anchors: Vec<Anchor> = along.iter().map(of).collect();
        for i in thin(&anchors, ANCHORS - 1) {
            self.tree.drop_anchor(along[i].1);
            self.snaps.remove(&along[i].1);
        }
    }

    /// Lets snapshots go until there is room for so many bytes more.
    fn room_for(&mut self, exec: &mut Executor, s: &Session, bytes: u64) -> bool {
        if bytes > self.how.snapshots {
            return false;
        }
        let held: u64 = self.snaps.values().map(|(s, _)| s.bytes()).sum();
        let over = (held + bytes).saturating_sub(self.how.snapshots);
        let size =
            |snaps: &[SnapId]| snaps.iter().filter_map(|i| self.snaps.get(i)).map(|(s, _)| s.bytes()).sum::<u64>();
        let (pages, snaps) = self.tree.evict(Some(s.job.from.1), |_, gone| size(gone) >= over);
        self.forget(exec, &pages, &snaps);
        true
    }

    /// Lets pages go until `n` are free, or nothing is left to let go.
    pub fn make_room(&mut self, exec: &mut Executor, job: &Job, n: u32) -> Result<()> {
        while exec.free_pages() < n {
            // One after the other: a page that a sequence holds as well is not free when the tree lets it go.
            let (pages, snaps) = self.tree.evict(Some(job.from.1), |p, _| !p.is_empty());
            if pages.is_empty() {
                break;
            }
            self.forget(exec, &pages, &snaps);
        }
        Ok(())
    }

    fn forget(&mut self, exec: &mut Executor, pages: &[memory::PageId], snaps: &[SnapId]) {
        exec.let_go(pages);
        snaps.iter().for_each(|s| drop(self.snaps.remove(s)));
    }
}
