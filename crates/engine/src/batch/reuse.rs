//! Pages and snapshots of what was read before.

use super::kept::Disk;
use super::session::{Job, Session};
use crate::disk::Where;
use crate::error::Result;
use crate::executor::{Executor, Segment};
use crate::prefix::{Anchor, Found, Kind, Miss, Role, SnapId, Tree, thin};
use memory::{Order, PageId};
use state::{Beginning, PART_ROWS, Park, SeqId, Snapshot};
use std::collections::BTreeMap;
use std::sync::Arc;

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
    snaps: BTreeMap<SnapId, (Arc<Snapshot>, Kind)>,
    next: u64,
    /// Where things are kept beyond the process.
    pub disk: Option<Disk>,
}

/// A snapshot or a page more is worth reading from disk for so many positions.
const WORTH: u32 = PART_ROWS;
/// Tries to find a way into a prompt whose files are all there and whole.
const TRIES: u32 = 8;

impl Reuse {
    pub fn new(how: Keeping, anchored: bool) -> Self {
        Reuse { how, tree: Tree::new(anchored), anchored, snaps: BTreeMap::new(), next: 0, disk: None }
    }
    /// Keeps things on disk as well, for a model that `of` tells from all others.
    pub fn keep_on_disk(&mut self, at: &Where, of: &[&str], exec: &mut Executor) -> Result<()> {
        let how = format!("exact {}", self.how.exact);
        self.disk = Some(Disk::open(at, &[of, &[&how]].concat(), exec, self.how.park)?);
        Ok(())
    }
    /// Whether parts of prompts end on the grid, as they do when the whole of it is read.
    pub fn exact(&self) -> bool {
        self.how.exact
    }
    fn off(&self) -> bool {
        self.how.snapshots == 0
    }

    /// Opens a sequence with as much of the prompt as is known, to which `pages` pages are promised.
    pub fn begin(&mut self, exec: &mut Executor, job: &Job, pages: u32) -> Result<(SeqId, u32, Miss)> {
        if self.off() || job.prompt_logprobs {
            return Ok((exec.open_at(Beginning::default(), pages)?, 0, Miss::Off));
        }
        let found = self.tree.find(&job.prompt);
        let mut found = self.on_grid(found);
        if self.take_from_disk(exec, job, found.resume)? {
            found = self.tree.find(&job.prompt);
            found = self.on_grid(found);
        }
        // The copy of the tail; what was found was used last and goes last.
        self.make_room(exec, job, 1)?;
        let snapshot = found.snap.and_then(|s| self.snaps.get(&s)).map(|(s, _)| s.as_ref());
        let lost = found.resume > 0 && self.anchored && snapshot.is_none();
        let gone = found.pages.iter().chain(&found.tail).any(|p| !self.tree.pages().any(|q| q == *p));
        if lost || gone {
            return Ok((exec.open_at(Beginning::default(), pages)?, 0, Miss::NoAnchor { same: found.resume }));
        }
        if found.resume == 0 {
            return Ok((exec.open_at(Beginning::default(), pages)?, 0, found.miss));
        }
        let from = Beginning { len: found.resume, pages: &found.pages, tail: found.tail, snapshot };
        Ok((exec.open_at(from, pages)?, found.resume, found.miss))
    }

    /// Takes up what the disk has of a prompt beyond its first `have` positions; whether something was.
    fn take_from_disk(&mut self, exec: &mut Executor, job: &Job, have: u32) -> Result<bool> {
        let Some(disk) = &mut self.disk else { return Ok(false) };
        // Where memory has most of it others have hardly written more.
        if have < job.prompt.len() as u32 / 2 {
            disk.shelf.look();
        }
        for _ in 0..TRIES {
            let Some(disk) = &mut self.disk else { break };
            let known = self.tree.whole(&job.prompt);
            let route = disk.shelf.find(&job.prompt, known.len(), self.anchored);
            let Some(route) = route.filter(|r| r.resume >= have + WORTH) else { break };
            let n = route.pages.len() as u32;
            self.make_room(exec, job, n)?;
            if let Some(name) = route.state {
                debug_assert_eq!(name.at, route.resume);
                if !self.room_for(exec, job, exec.snapshot_bytes(self.how.park)) {
                    break;
                }
            }
            // What gave way may have been a part of it.
            if exec.free_pages() < n || self.tree.whole(&job.prompt).len() < known.len() {
                break;
            }
            let Some(disk) = &mut self.disk else { break };
            match disk.take_up(exec, &job.prompt, &route, self.how.park) {
                Ok(Some(found)) => {
                    let before = known
                        .into_iter()
                        .take(memory::pages::pages_for(found.ids.len() as u32) as usize - found.pages.len());
                    self.insert(
                        exec,
                        job,
                        found.ids,
                        before.chain(found.pages.iter().copied()).collect(),
                        &found.pages,
                    );
                    if let Some(s) = found.state {
                        self.anchor(&job.prompt, s, Kind::End);
                    }
                    return Ok(true);
                }
                Ok(None) => {}
                // No room after all, or a device that the next step will say more about: the prompt is read.
                Err(_) => break,
            }
        }
        Ok(false)
    }

    /// Tells the tree of pages of which the caller made `own` its own.
    fn insert(&mut self, exec: &mut Executor, job: &Job, ids: Vec<u32>, pages: Vec<PageId>, own: &[PageId]) {
        let (role, owner) = job.from;
        let taken = self.tree.insert(&ids, &pages, role, owner);
        let not_needed: Vec<PageId> = own.iter().copied().filter(|p| !taken.new.contains(p)).collect();
        exec.let_go(&not_needed);
        exec.let_go(&taken.old);
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

    /// A sequence has read its prompt up to `len`. At a mark that is kept. What goes layer by layer keeps states at multiples of
    /// 64 rows from where a slice begins, so a mark less than that behind the end of a slice has its state there.
    pub fn passed(&mut self, exec: &mut Executor, s: &Session, len: u32) {
        let layered = matches!(exec.plan().order, Order::LayerOuter { .. });
        let reach = if layered && self.anchored { PART_ROWS } else { 1 };
        let Some(mark) = s.job.marks.iter().position(|m| (len..len + reach).contains(m)).filter(|_| !self.off()) else {
            return;
        };
        let kind = if mark == 0 { Kind::Root } else { Kind::Message };
        if let Some(seq) = s.seq {
            self.keep(exec, s, seq, len, kind);
        }
    }

    /// Begins a segment that keeps states as its layers pass the places where messages begin: near the last multiple of
    /// 64 rows before each.
    pub fn segment(&mut self, exec: &mut Executor, job: &Job, seq: SeqId, ids: &[u32]) -> Result<Segment> {
        if self.off() || !self.anchored {
            return exec.segment(seq, ids, &[]);
        }
        let marks = self.marks_within(exec, job, exec.len(seq)?, ids.len() as u32);
        let mut g = exec.segment(seq, ids, &marks)?;
        exec.keep_at_marks(&mut g, seq, self.how.park)?;
        Ok(g)
    }

    /// Rows of a segment behind `len` positions at which states are kept, as many as there may be.
    fn marks_within(&mut self, exec: &mut Executor, job: &Job, len: u32, rows: u32) -> Vec<u32> {
        let inside = job.marks.iter().filter(|&&m| m > len && m <= len + rows);
        let mut all: Vec<u32> = inside.map(|m| (m - len) / PART_ROWS * PART_ROWS).filter(|&m| m > 0).collect();
        all.dedup();
        let bytes = exec.snapshot_bytes(self.how.park).max(1);
        let most = (self.how.snapshots / bytes).min(ANCHORS as u64) as usize;
        let anchors: Vec<Anchor> = all.iter().map(|&m| Anchor { at: len + m, kind: Kind::Message }).collect();
        for i in thin(&anchors, most).into_iter().rev() {
            all.remove(i);
        }
        if all.is_empty() || !self.room_for(exec, job, bytes * all.len() as u64) { Vec::new() } else { all }
    }

    /// A segment is a part of its sequence now, and these were kept in it.
    pub fn taken(&mut self, exec: &mut Executor, s: &Session, kept: Vec<Snapshot>) {
        for snapshot in kept {
            let at = snapshot.at();
            let Some(pages) = s.seq.and_then(|seq| exec.pages(seq).ok()) else { return };
            let ids = s.ids(at);
            self.own(exec, &s.job, &ids, &pages);
            if self.tree.anchors(&ids).iter().any(|(p, _)| *p == at) {
                continue;
            }
            self.thin(&ids);
            let first = s.job.marks.first().is_some_and(|m| m.abs_diff(at) < PART_ROWS);
            self.anchor(&ids, snapshot, if first { Kind::Root } else { Kind::Message });
        }
    }

    /// A request ended: what its sequence holds is kept.
    pub fn ended(&mut self, exec: &mut Executor, s: &Session, seq: SeqId) {
        self.keep_end(exec, s, seq);
        self.save(exec, s, seq);
    }

    /// Hands what is known of a request to the disk.
    fn save(&mut self, exec: &mut Executor, s: &Session, seq: SeqId) {
        // What was asked beside a conversation is not asked again.
        if self.disk.is_none() || self.off() || s.job.from.0 == Role::Side {
            return;
        }
        let Ok(len) = exec.len(seq) else { return };
        let known = self.known(&s.ids(len));
        let ids = s.ids(known);
        let pages = self.tree.along(&ids);
        let along = self.tree.anchors(&ids).into_iter();
        let anchors: Vec<_> = along
            .filter_map(|(at, id)| self.snaps.get(&id).map(|(s, kind)| (Anchor { at, kind: *kind }, Arc::clone(s))))
            .collect();
        if let Some(disk) = &mut self.disk {
            disk.save(exec, &ids, &pages, &anchors);
        }
    }
    /// How many of these ids the tree knows.
    fn known(&self, ids: &[u32]) -> u32 {
        self.tree.matched(ids)
    }

    /// A step ended: something may be handed to the disk. Whether it was.
    pub fn pump(&mut self, exec: &mut Executor) -> bool {
        self.disk.as_mut().is_some_and(|d| d.pump(exec))
    }

    fn keep_end(&mut self, exec: &mut Executor, s: &Session, seq: SeqId) {
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
        let ids = s.ids(len);
        self.own(exec, &s.job, &ids, &pages);
        if self.anchored && exec.len(seq).is_ok_and(|n| n == len) {
            self.snapshot(exec, s, &ids, seq, kind);
        }
    }

    /// Makes the tree an owner of those of a sequence's pages that it does not have yet.
    fn own(&mut self, exec: &mut Executor, job: &Job, ids: &[u32], pages: &[PageId]) {
        let (role, owner) = job.from;
        let taken = self.tree.insert(ids, pages, role, owner);
        if exec.keep_pages(&taken.new).is_err() {
            debug_assert!(false, "a page of an open sequence is free");
        }
        exec.let_go(&taken.old);
    }

    fn snapshot(&mut self, exec: &mut Executor, s: &Session, ids: &[u32], seq: SeqId, kind: Kind) {
        let at = ids.len() as u32;
        if self.tree.anchors(ids).iter().any(|(p, _)| *p == at) {
            return;
        }
        self.thin(ids);
        let bytes = exec.snapshot_bytes(self.how.park);
        if !self.room_for(exec, &s.job, bytes) {
            return;
        }
        // Where the ledger has no room for it there is one anchor less.
        let Ok(snap) = exec.snapshot(seq, self.how.park) else { return };
        self.anchor(ids, snap, kind);
    }

    /// Tells the tree of a snapshot of the first of these ids.
    fn anchor(&mut self, ids: &[u32], snap: Snapshot, kind: Kind) {
        self.next += 1;
        let (id, at) = (SnapId(self.next), snap.at());
        self.snaps.insert(id, (Arc::new(snap), kind));
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
    fn room_for(&mut self, exec: &mut Executor, job: &Job, bytes: u64) -> bool {
        if bytes > self.how.snapshots {
            return false;
        }
        let held: u64 = self.snaps.values().map(|(s, _)| s.bytes()).sum();
        let over = (held + bytes).saturating_sub(self.how.snapshots);
        let size =
            |snaps: &[SnapId]| snaps.iter().filter_map(|i| self.snaps.get(i)).map(|(s, _)| s.bytes()).sum::<u64>();
        let (pages, snaps) = self.tree.evict(Some(job.from.1), |_, gone| size(gone) >= over);
        self.forget(exec, &pages, &snaps);
        true
    }

    /// Lets pages go until `n` are free, or nothing is left to let go.
    pub fn make_room(&mut self, exec: &mut Executor, job: &Job, n: u32) -> Result<()> {
        if exec.free_pages() < n
            && let Some(disk) = &mut self.disk
        {
            disk.give_up(exec);
        }
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
