//! What is there, by name, and where a prompt meets it.

use super::file::{Kind, Name, Opened};
use super::key::Chain;
use super::{Unusable, Where};
use memory::PAGE_POSITIONS;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const PAGE: usize = PAGE_POSITIONS as usize;

/// The files of one fingerprint.
#[derive(Debug)]
pub struct Shelf {
    dir: PathBuf,
    of: u128,
    page_bytes: u64,
    state_bytes: u64,
    /// Positions at which something ends, by kind, and how many files do.
    ends: BTreeMap<(Kind, u32), u32>,
    all: HashSet<Name>,
    /// When the directory was looked through last.
    seen: Option<SystemTime>,
}

/// A way into a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Positions that need not be read.
    pub resume: u32,
    /// The pages before that which are not in memory, with their places in the prompt, rising. Those before the first
    /// are in memory.
    pub pages: Vec<(usize, Name)>,
    /// The snapshot, for models that need one.
    pub state: Option<Name>,
}

impl Shelf {
    /// The files of this fingerprint; its directory is made where it is missing. For one model all pages have the same
    /// size, and all snapshots.
    ///
    /// # Errors
    /// A directory that cannot be made or read.
    pub fn open(at: &Where, of: u128, page_bytes: u64, state_bytes: u64) -> Result<Shelf, Unusable> {
        let dir = at.dir.join(format!("{of:032x}"));
        let no = |source| Unusable { dir: at.dir.clone(), source };
        // They say what was asked and answered, which is nobody else's business.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(no)?;
        std::fs::read_dir(&dir).map_err(no)?;
        let (ends, all) = (BTreeMap::new(), HashSet::new());
        Ok(Shelf { dir, of, page_bytes, state_bytes, ends, all, seen: None })
    }
    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
    /// Its fingerprint.
    pub fn of(&self) -> u128 {
        self.of
    }

    /// Looks through the directory again if something came or went.
    pub fn look(&mut self) {
        let now = std::fs::metadata(&self.dir).and_then(|m| m.modified()).ok();
        // What changes within the clock's step is seen the next time.
        if now.is_some() && now == self.seen {
            return;
        }
        self.seen = now.filter(|t| t.elapsed().is_ok_and(|e| e.as_millis() > 50));
        (self.ends, self.all) = (BTreeMap::new(), HashSet::new());
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            if let Some(name) = entry.file_name().to_str().and_then(Name::parse) {
                self.add(name);
            }
        }
    }
    /// Says that a file is being written.
    pub fn add(&mut self, name: Name) {
        if self.all.insert(name) {
            *self.ends.entry((name.kind, name.at)).or_default() += 1;
        }
    }
    /// Whether a file of this name is there, as far as is known.
    pub fn has(&self, name: &Name) -> bool {
        self.all.contains(name)
    }
    /// Forgets a file that turned out not to be there.
    pub fn forget(&mut self, name: &Name) {
        if self.all.remove(name)
            && let Some(n) = self.ends.get_mut(&(name.kind, name.at))
        {
            *n -= 1;
        }
    }
    /// Opens a file; one that is not there or broken is forgotten.
    pub fn read(&mut self, name: Name) -> Option<Opened> {
        let bytes = match name.kind {
            Kind::Page => self.page_bytes,
            Kind::State => self.state_bytes,
        };
        let opened = Opened::open(&self.dir, name, self.of, bytes);
        if opened.is_none() {
            self.forget(&name);
        }
        opened
    }

    /// The way deepest into a prompt, whose first `known` whole pages are in memory; `anchored` for models that need a
    /// snapshot. The last id is never skipped.
    pub fn find(&mut self, ids: &[u32], known: usize, anchored: bool) -> Option<Route> {
        let chain = Chain::of(ids);
        let most = ids.len().saturating_sub(1);
        let page = |i: usize| Name { kind: Kind::Page, key: chain.before(i + 1), at: ((i + 1) * PAGE) as u32 };
        let whole = (0..ids.len() / PAGE).take_while(|&i| i < known || self.has(&page(i))).count();
        let pages = |n: usize| (known..n).map(|i| (i, page(i))).collect::<Vec<_>>();
        if anchored {
            return self.anchor(&chain, most, whole, pages);
        }
        let ends = self.ends_within(Kind::Page, whole * PAGE + 1, ids.len().min(whole * PAGE + PAGE));
        let named = |&at: &usize| Name { kind: Kind::Page, key: chain.at(at), at: at as u32 };
        let tail = ends.iter().rev().map(named).find(|n| self.has(n));
        let mut all = pages(whole);
        let resume = tail.map_or(whole * PAGE, |n| n.at as usize).min(most);
        all.extend(tail.map(|n| (whole, n)));
        (!all.is_empty() && resume > 0).then_some(Route { resume: resume as u32, pages: all, state: None })
    }

    fn anchor(
        &mut self,
        chain: &Chain,
        most: usize,
        whole: usize,
        pages: impl Fn(usize) -> Vec<(usize, Name)>,
    ) -> Option<Route> {
        for at in self.ends_within(Kind::State, 1, most.min(whole * PAGE + PAGE)).into_iter().rev() {
            let state = Name { kind: Kind::State, key: chain.at(at), at: at as u32 };
            if !self.has(&state) {
                continue;
            }
            let mut all = pages(at / PAGE);
            if !at.is_multiple_of(PAGE) {
                let Some(tail) = self.read(state).map(|o| o.head.page).filter(|p| self.has(p)) else { continue };
                all.push((at / PAGE, tail));
            } else if at / PAGE > whole {
                continue;
            }
            return Some(Route { resume: at as u32, pages: all, state: Some(state) });
        }
        None
    }

    fn ends_within(&self, kind: Kind, from: usize, to: usize) -> BTreeSet<usize> {
        if from > to {
            return BTreeSet::new();
        }
        let range = (kind, from as u32)..=(kind, to as u32);
        self.ends.range(range).filter(|(_, n)| **n > 0).map(|((_, at), _)| *at as usize).collect()
    }
}
