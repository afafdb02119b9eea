//! Pages of 256 positions, by id, with reference counts, in slabs that come and go. The bytes behind an id belong to
//! the device; what is decided here is which slabs must be backed by memory, and which need not be any more.

use std::collections::BTreeSet;
use std::ops::Range;

/// Positions a page covers.
pub const PAGE_POSITIONS: u32 = 256;

/// Pages that hold `positions` positions.
pub const fn pages_for(positions: u32) -> u32 {
    positions.div_ceil(PAGE_POSITIONS)
}

/// A page of the pool. The same id names that page in every layer's history.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// Neighbouring pages that are backed by memory together.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlabId(pub u32);

#[derive(Copy, Clone, Debug, Default)]
struct Slab {
    backed: bool,
    /// Pages of it that have an owner.
    used: u32,
}

/// Which pages are free, how many owners each other one has, and which slabs are backed.
///
/// The lowest free page of a backed slab is handed out first, so that the high slabs drain and can be let go.
#[derive(Clone, Debug)]
pub struct PagePool {
    owners: Vec<u32>,
    /// Free pages of backed slabs.
    ready: BTreeSet<u32>,
    slabs: Vec<Slab>,
    per_slab: u32,
}

impl PagePool {
    /// `n` pages in slabs of `per_slab` (the last one may be shorter). No slab is backed yet.
    pub fn new(n: u32, per_slab: u32) -> Self {
        let per_slab = per_slab.clamp(1, n.max(1));
        let slabs = vec![Slab::default(); n.div_ceil(per_slab) as usize];
        PagePool { owners: vec![0; n as usize], ready: BTreeSet::new(), slabs, per_slab }
    }
    /// The slabs, lowest first, that must be backed before `n` pages can be taken; `None` when the pool has not so many
    /// free pages at all.
    pub fn missing(&self, n: u32) -> Option<Vec<SlabId>> {
        let mut ready = self.ready.len() as u32;
        let mut slabs = Vec::new();
        let mut unbacked = (0..).zip(&self.slabs).filter(|(_, s)| !s.backed).map(|(i, _)| SlabId(i));
        while ready < n {
            let s = unbacked.next()?;
            ready += self.pages_of(s).len() as u32;
            slabs.push(s);
        }
        Some(slabs)
    }
    /// The pages of a slab; none beyond the last slab.
    pub fn pages_of(&self, s: SlabId) -> Range<u32> {
        let total = self.total();
        let at = |slab: u32| slab.saturating_mul(self.per_slab).min(total);
        at(s.0)..at(s.0.saturating_add(1))
    }
    /// From now on the pages of a slab can be taken. Backing it twice changes nothing.
    pub fn back(&mut self, s: SlabId) {
        let pages = self.pages_of(s);
        if let Some(slab) = self.slabs.get_mut(s.0 as usize).filter(|s| !s.backed) {
            slab.backed = true;
            self.ready.extend(pages);
        }
    }
    /// Backed slabs without an owned page, the highest first.
    pub fn idle(&self) -> Vec<SlabId> {
        let idle = (0..).zip(&self.slabs).filter(|(_, s)| s.backed && s.used == 0).map(|(i, _)| SlabId(i));
        let mut idle: Vec<SlabId> = idle.collect();
        idle.reverse();
        idle
    }
    /// Takes an idle slab's pages out of use, so that its memory may go. False, and nothing changes, for any other.
    pub fn unback(&mut self, s: SlabId) -> bool {
        let pages = self.pages_of(s);
        let Some(slab) = self.slabs.get_mut(s.0 as usize).filter(|s| s.backed && s.used == 0) else { return false };
        slab.backed = false;
        pages.for_each(|p| {
            self.ready.remove(&p);
        });
        true
    }
    /// Backed slabs, lowest first.
    pub fn backed(&self) -> impl Iterator<Item = SlabId> {
        (0..).zip(&self.slabs).filter(|(_, s)| s.backed).map(|(i, _)| SlabId(i))
    }
    /// Takes the `n` lowest free pages of backed slabs with one owner each, or none at all when fewer are there.
    pub fn take(&mut self, n: u32) -> Option<Vec<PageId>> {
        if n as usize > self.ready.len() {
            return None;
        }
        let got: Vec<PageId> = (0..n).map_while(|_| self.ready.pop_first()).map(PageId).collect();
        for p in &got {
            self.owners[p.0 as usize] = 1;
            self.slabs[(p.0 / self.per_slab) as usize].used += 1;
        }
        Some(got)
    }
    /// Adds an owner to a page that has one.
    pub fn share(&mut self, p: PageId) {
        debug_assert!(self.owners[p.0 as usize] > 0, "a free page cannot be shared");
        self.owners[p.0 as usize] += 1;
    }
    /// Takes an owner away; the page is free when the last one goes.
    pub fn give(&mut self, p: PageId) {
        let o = &mut self.owners[p.0 as usize];
        debug_assert!(*o > 0, "a free page has no owner to give it back");
        if *o > 0 {
            *o -= 1;
            if *o == 0 {
                self.ready.insert(p.0);
                self.slabs[(p.0 / self.per_slab) as usize].used -= 1;
            }
        }
    }
    /// Owners of a page.
    pub fn owners(&self, p: PageId) -> u32 {
        self.owners[p.0 as usize]
    }
    /// Pages that nobody owns, whether backed or not.
    pub fn free(&self) -> u32 {
        self.total() - self.slabs.iter().map(|s| s.used).sum::<u32>()
    }
    /// All pages.
    pub fn total(&self) -> u32 {
        self.owners.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// What a pool must be, from nothing but the list of owners and of backed slabs.
    struct Model {
        pages: u32,
        per_slab: u32,
        owners: BTreeMap<u32, u32>,
        backed: BTreeSet<u32>,
    }

    impl Model {
        fn slab_pages(&self, s: u32) -> Vec<u32> {
            (0..self.pages).filter(|p| p / self.per_slab == s).collect()
        }
        fn slabs(&self) -> u32 {
            self.pages.div_ceil(self.per_slab)
        }
        fn takeable(&self) -> Vec<u32> {
            let free = |p: &u32| self.backed.contains(&(p / self.per_slab)) && !self.owners.contains_key(p);
            (0..self.pages).filter(free).collect()
        }
        fn idle(&self) -> Vec<u32> {
            let owned = |s: u32| self.slab_pages(s).iter().any(|p| self.owners.contains_key(p));
            (0..self.slabs()).rev().filter(|&s| self.backed.contains(&s) && !owned(s)).collect()
        }
        /// The fewest slabs, from the lowest on, that make `n` pages takeable.
        fn missing(&self, n: u32) -> Option<Vec<u32>> {
            let unbacked: Vec<u32> = (0..self.slabs()).filter(|s| !self.backed.contains(s)).collect();
            (0..=unbacked.len()).map(|k| unbacked[..k].to_vec()).find(|more| {
                let grown = more.iter().map(|&s| self.slab_pages(s).len()).sum::<usize>();
                self.takeable().len() + grown >= n as usize
            })
        }
    }

    fn ids(v: &[SlabId]) -> Vec<u32> {
        v.iter().map(|s| s.0).collect()
    }

    proptest! {
        /// No page is lost, none is owned while free or unbacked, the lowest go first, only idle slabs go.
        #[test]
        fn the_pool_agrees_with_an_independent_model(
            pages in 1u32..40,
            per_slab in 1u32..9,
            script in prop::collection::vec((0u8..6, 0u32..12), 1..300),
        ) {
            let mut pool = PagePool::new(pages, per_slab);
            let mut m = Model { pages, per_slab: per_slab.min(pages), owners: BTreeMap::new(), backed: BTreeSet::new() };
            for (what, n) in script {
                let held: Vec<u32> = m.owners.keys().copied().collect();
                let pick = held.get(n as usize % held.len().max(1)).copied();
                match (what, pick) {
                    (0, _) => {
                        let want = m.takeable();
                        match pool.take(n) {
                            Some(got) => {
                                prop_assert_eq!(got.iter().map(|p| p.0).collect::<Vec<_>>(), &want[..n as usize]);
                                got.iter().for_each(|p| { m.owners.insert(p.0, 1); });
                            }
                            None => prop_assert!(n as usize > want.len()),
                        }
                    }
                    (1, Some(p)) => { pool.share(PageId(p)); *m.owners.get_mut(&p).unwrap() += 1; }
                    (2, Some(p)) => {
                        pool.give(PageId(p));
                        let o = m.owners.get_mut(&p).unwrap();
                        *o -= 1;
                        if *o == 0 { m.owners.remove(&p); }
                    }
                    (3, _) => {
                        let want = m.missing(n);
                        let got = pool.missing(n);
                        prop_assert_eq!(got.as_deref().map(ids), want.clone());
                        for s in want.unwrap_or_default() { pool.back(SlabId(s)); m.backed.insert(s); }
                        prop_assert!(n as usize > pages as usize - m.owners.len() || m.takeable().len() >= n as usize);
                    }
                    (4, _) => {
                        let s = n % (m.slabs() + 1);
                        prop_assert_eq!(pool.unback(SlabId(s)), m.idle().contains(&s));
                        if m.idle().contains(&s) { m.backed.remove(&s); }
                    }
                    (5, _) => { let s = n % m.slabs(); pool.back(SlabId(s)); m.backed.insert(s); }
                    _ => {}
                }
                prop_assert_eq!(ids(&pool.idle()), m.idle());
                prop_assert_eq!(ids(&pool.backed().collect::<Vec<_>>()), m.backed.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(pool.free() as usize, pages as usize - m.owners.len());
                for p in 0..pages { prop_assert_eq!(pool.owners(PageId(p)), m.owners.get(&p).copied().unwrap_or(0)); }
            }
            let all: Vec<u32> = (0..m.slabs()).flat_map(|s| pool.pages_of(SlabId(s))).collect();
            prop_assert_eq!(all, (0..pages).collect::<Vec<_>>());
        }
    }

    #[test]
    fn high_slabs_drain_when_low_pages_come_back() {
        let mut p = PagePool::new(8, 2);
        for s in p.missing(5).unwrap() {
            p.back(s);
        }
        let first = p.take(3).unwrap();
        let long = p.take(2).unwrap();
        first.into_iter().for_each(|x| p.give(x));
        assert_eq!(p.idle(), [SlabId(0)], "slab 1 has a page of the second one");
        let next = p.take(1).unwrap();
        assert_eq!(next, [PageId(0)]);
        long.into_iter().for_each(|x| p.give(x));
        assert_eq!(p.idle(), [SlabId(2), SlabId(1)]);
    }
}
