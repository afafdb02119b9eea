//! Pages of 256 positions, by id, with reference counts. The bytes behind an id belong to the device.

/// Positions a page covers.
pub const PAGE_POSITIONS: u32 = 256;

/// Pages that hold `positions` positions.
pub const fn pages_for(positions: u32) -> u32 {
    positions.div_ceil(PAGE_POSITIONS)
}

/// A page of the pool. The same id names that page in every layer's history.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// Which pages are free, and how many owners each other one has.
#[derive(Clone, Debug)]
pub struct PagePool {
    owners: Vec<u32>,
    free: Vec<PageId>,
}

impl PagePool {
    /// `n` free pages.
    pub fn new(n: u32) -> Self {
        PagePool { owners: vec![0; n as usize], free: (0..n).rev().map(PageId).collect() }
    }
    /// Takes `n` pages with one owner each, or none at all when fewer are free.
    pub fn take(&mut self, n: u32) -> Option<Vec<PageId>> {
        let keep = self.free.len().checked_sub(n as usize)?;
        let mut got = self.free.split_off(keep);
        got.reverse();
        for p in &got {
            self.owners[p.0 as usize] = 1;
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
                self.free.push(p);
            }
        }
    }
    /// Owners of a page.
    pub fn owners(&self, p: PageId) -> u32 {
        self.owners[p.0 as usize]
    }
    /// Free pages.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
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
    use std::collections::HashMap;

    proptest! {
        /// Against an independent count of owners: no page is lost, none is owned while free.
        #[test]
        fn the_pool_agrees_with_a_count_of_owners(script in prop::collection::vec((0u8..3, 0u32..6), 1..300)) {
            let mut pool = PagePool::new(16);
            let mut model: HashMap<PageId, u32> = HashMap::new();
            for (what, n) in script {
                let held: Vec<PageId> = { let mut v: Vec<_> = model.keys().copied().collect(); v.sort(); v };
                let pick = held.get(n as usize % held.len().max(1)).copied();
                match (what, pick) {
                    (0, _) => match pool.take(n) {
                        Some(got) => for p in got { prop_assert!(model.insert(p, 1).is_none()); },
                        None => prop_assert!(n as usize > 16 - model.len()),
                    },
                    (1, Some(p)) => { pool.share(p); *model.get_mut(&p).unwrap() += 1; }
                    (2, Some(p)) => { pool.give(p); let o = model.get_mut(&p).unwrap(); *o -= 1; if *o == 0 { model.remove(&p); } }
                    _ => {}
                }
                prop_assert_eq!(pool.free() as usize, 16 - model.len());
                for (p, o) in &model { prop_assert_eq!(pool.owners(*p), *o); }
            }
        }
    }
}
