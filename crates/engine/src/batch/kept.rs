//! What goes to disk and comes back from there.

use crate::disk::{Chain, Figures, Head, Kind, Name, Route, Shelf, Where, Work, Writer, fingerprint};
use crate::error::Result;
use crate::executor::Executor;
use crate::prefix::Anchor;
use memory::{Class, PAGE_POSITIONS, PageId, Reservation, Tier};
use state::{Park, Snapshot};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// Pages on their way to the disk at a time.
const STAGED: u64 = 4;
/// Pages that there is room for beside history: those, and the one that is being read.
pub const STAGING_PAGES: u64 = STAGED + 1;
/// Snapshots at the end of a request that are written: most others are thinned out soon.
const LAST: usize = 2;

/// A page or a snapshot that waits to be written, or those that one request used.
enum Want {
    Page(Head, PageId),
    State(Head, Arc<Snapshot>),
    Used(Vec<Name>),
}

/// The directory, the thread that writes to it, and what waits for it.
pub(super) struct Disk {
    pub shelf: Shelf,
    writer: Writer,
    queue: VecDeque<Want>,
    /// What the thread had no room for.
    held: Option<Work>,
    queued: HashSet<Name>,
    /// For pages that are read.
    pub buffer: Vec<u8>,
    _staging: Reservation,
}

/// What was taken from the disk.
pub(super) struct Found {
    /// Ids of all pages: those of the prompt, and what else the last page has.
    pub ids: Vec<u32>,
    /// Pages that were taken for it, with their places.
    pub pages: Vec<PageId>,
    /// The snapshot.
    pub state: Option<Snapshot>,
}

impl Disk {
    /// What is kept there by an executor like this one, for a model that `of` tells from all others.
    pub fn open(at: &Where, of: &[&str], exec: &mut Executor, park: Park) -> Result<Self> {
        let caps = exec.device().caps().clone();
        let format = exec.format();
        let how = format!("{} {} {} {park:?}", env!("CARGO_PKG_VERSION"), caps.name, caps.isa);
        let of = fingerprint(&[of, &[&format, &how]].concat());
        let shelf = Shelf::open(at, of, exec.page_bytes(), exec.snapshot_bytes(park))?;
        // Whoever keeps things on disk says so when the plan is made (`Ask::staged`).
        let staging = STAGING_PAGES * exec.page_bytes();
        let paid = exec.ledger().reserve_planned(Tier::Host, Class::Kv, "pages on their way to disk", staging);
        let paid = paid.map_err(state::Error::from)?;
        let no = |source| crate::disk::Unusable { dir: at.dir.clone(), source };
        let writer = Writer::start(at, shelf.dir(), STAGED as usize).map_err(no)?;
        let (queue, queued, buffer) = (VecDeque::new(), HashSet::new(), Vec::new());
        Ok(Disk { shelf, writer, queue, held: None, queued, buffer, _staging: paid })
    }
    /// What was done.
    pub fn figures(&self) -> &Arc<Figures> {
        self.writer.figures()
    }
    /// Whether something waits to be written.
    pub fn busy(&self) -> bool {
        self.held.is_some() || !self.queue.is_empty()
    }

    /// Queues what of these ids is not there yet: `pages`, each with its ids, and `anchors`, each with its position.
    pub fn save(
        &mut self,
        exec: &mut Executor,
        ids: &[u32],
        pages: &[(Vec<u32>, PageId)],
        anchors: &[(Anchor, Arc<Snapshot>)],
    ) {
        let (chain, of) = (Chain::of(ids), self.shelf.of());
        let mut used = Vec::new();
        for (i, (ids, page)) in pages.iter().enumerate() {
            let head = Head::page(of, chain.before(i), i as u32 * PAGE_POSITIONS, ids, exec.page_bytes());
            used.push(head.name());
            if self.is_new(&head.name()) && exec.keep_pages(&[*page]).is_ok() {
                self.queue.push_back(Want::Page(head, *page));
            }
        }
        for (i, (anchor, snapshot)) in anchors.iter().enumerate() {
            let page = (anchor.at.max(1) - 1) / PAGE_POSITIONS;
            let (Some(&name), true) = (used.get(page as usize), worth(anchors, i)) else { continue };
            let page = page as usize;
            let ids = chain.part(page, anchor.at as usize).to_vec();
            let (kind, bytes) = (Kind::State, snapshot.bytes());
            let head = Head { kind, of, before: chain.before(page), at: anchor.at, ids, page: name, bytes };
            used.push(head.name());
            if self.is_new(&head.name()) {
                self.queue.push_back(Want::State(head, Arc::clone(snapshot)));
            }
        }
        self.queue.push_back(Want::Used(used));
    }

    fn is_new(&mut self, name: &Name) -> bool {
        !self.shelf.has(name) && self.queued.insert(*name)
    }

    /// Hands one thing over, if there is one and room for it: at most one page is copied. Whether something was done.
    pub fn pump(&mut self, exec: &mut Executor) -> bool {
        if let Some(work) = self.held.take() {
            self.held = self.writer.give(work);
            return self.held.is_none();
        }
        let Some(want) = self.queue.pop_front() else { return false };
        let work = match want {
            Want::Page(head, page) => {
                let Some(mut buffer) = self.writer.buffer() else {
                    self.queue.push_front(Want::Page(head, page));
                    return false;
                };
                let read = exec.read_page(page, &mut buffer);
                exec.let_go(&[page]);
                if read.is_err() {
                    // The next step will say what is wrong with the device.
                    self.writer.unused(buffer);
                    return true;
                }
                Work::Page(head, buffer)
            }
            Want::State(head, snapshot) => Work::State(head, snapshot),
            Want::Used(names) => {
                for n in &names {
                    self.queued.remove(n);
                    self.shelf.add(*n);
                }
                Work::Used(names)
            }
        };
        self.held = self.writer.give(work);
        true
    }

    /// Forgets what waits, because its pages are needed.
    pub fn give_up(&mut self, exec: &mut Executor) {
        self.queued.clear();
        for want in self.queue.drain(..) {
            if let Want::Page(_, page) = want {
                exec.let_go(&[page]);
            }
        }
    }

    /// Takes a route's pages and snapshot into memory, for which there is room. `Ok(None)`: something of it was not there
    /// or not what it should be, and is forgotten.
    pub fn take_up(&mut self, exec: &mut Executor, prompt: &[u32], route: &Route, park: Park) -> Result<Option<Found>> {
        let mut pages = Vec::new();
        match self.read_all(exec, prompt, route, park, &mut pages) {
            Ok(Some((ids, state))) => Ok(Some(Found { ids, pages, state })),
            other => {
                exec.let_go(&pages);
                other.map(|_| None)
            }
        }
    }

    fn read_all(
        &mut self,
        exec: &mut Executor,
        prompt: &[u32],
        route: &Route,
        park: Park,
        pages: &mut Vec<PageId>,
    ) -> Result<Option<(Vec<u32>, Option<Snapshot>)>> {
        let chain = Chain::of(prompt);
        let first = route.pages.first().map_or(route.resume / PAGE_POSITIONS, |(i, _)| *i as u32);
        let mut ids = prompt[..(first * PAGE_POSITIONS) as usize].to_vec();
        for &(i, name) in &route.pages {
            let Some(mut file) = self.shelf.read(name) else { return Ok(None) };
            let want = chain.part(i, route.resume as usize);
            let head = &file.head;
            if head.before != chain.before(i) || !head.ids.starts_with(want) {
                self.shelf.forget(&name);
                return Ok(None);
            }
            ids.extend(&head.ids);
            self.buffer.resize(exec.page_bytes() as usize, 0);
            if !file.fill(&mut self.buffer) || !file.finish() {
                self.shelf.forget(&name);
                return Ok(None);
            }
            pages.push(exec.adopt_page(&self.buffer)?);
        }
        let Some(name) = route.state else { return Ok(Some((ids, None))) };
        let Some(mut file) = self.shelf.read(name) else { return Ok(None) };
        let i = (route.resume as usize - 1) / PAGE_POSITIONS as usize;
        let same = file.head.before == chain.before(i) && file.head.ids == chain.part(i, route.resume as usize);
        let state = if same { exec.adopt_snapshot(route.resume, park, &mut |b| file.fill(b))? } else { None };
        if state.is_none() || !file.finish() {
            self.shelf.forget(&name);
            return Ok(None);
        }
        Ok(Some((ids, state)))
    }
}

/// Whether an anchor is written: where every conversation of an agent begins to differ, and where this one ends. What was
/// written of its earlier turns is still there.
fn worth(anchors: &[(Anchor, Arc<Snapshot>)], i: usize) -> bool {
    i + LAST >= anchors.len() || anchors[i].0.kind == crate::prefix::Kind::Root
}
