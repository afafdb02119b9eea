//! Ids of the parts of a prompt that stand between special tokens, kept so that a conversation that grows is not
//! tokenised again from its beginning.
//!
//! Special tokens cut a text before any rule looks at it, so the ids of a part follow from its text and from whether
//! the prompt begins with it.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Parts shorter than this are tokenised faster than they are looked up.
const SHORT: usize = 32;

/// Ids of parts that were tokenised before, up to a number of ids in all; those used longest ago go first. One for each
/// tokenizer.
#[derive(Debug)]
pub struct PartCache {
    most: usize,
    /// Two hashes with keys of this process: nobody can write two texts that are one to it.
    by: [RandomState; 2],
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    parts: HashMap<[u64; 2], Part>,
    ids: usize,
    clock: u64,
}

#[derive(Debug)]
struct Part {
    ids: Arc<[u32]>,
    used: u64,
}

impl PartCache {
    /// A cache of at most so many ids, of four bytes each.
    pub fn new(most: usize) -> Self {
        Self { most, by: [RandomState::new(), RandomState::new()], kept: Mutex::default() }
    }

    /// How many ids are kept.
    pub fn ids(&self) -> usize {
        self.lock().ids
    }

    /// The ids of a part, kept or made.
    pub(super) fn get<E>(
        &self,
        part: &str,
        first: bool,
        make: impl FnOnce() -> Result<Vec<u32>, E>,
    ) -> Result<Arc<[u32]>, E> {
        if part.len() < SHORT {
            return make().map(Into::into);
        }
        let key = [0, 1].map(|i| self.by[i].hash_one((first, part)));
        if let Some(ids) = self.lock().find(key) {
            return Ok(ids);
        }
        // Not under the lock: requests are tokenised beside each other.
        let ids: Arc<[u32]> = make()?.into();
        self.lock().keep(key, &ids, self.most);
        Ok(ids)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn find(&mut self, key: [u64; 2]) -> Option<Arc<[u32]>> {
        self.clock += 1;
        let part = self.parts.get_mut(&key)?;
        part.used = self.clock;
        Some(Arc::clone(&part.ids))
    }

    fn keep(&mut self, key: [u64; 2], ids: &Arc<[u32]>, most: usize) {
        if ids.len() > most / 2 {
            return;
        }
        let part = Part { ids: Arc::clone(ids), used: self.clock };
        self.ids += ids.len();
        self.ids -= self.parts.insert(key, part).map_or(0, |old| old.ids.len());
        if self.ids <= most {
            return;
        }
        // Half of it at a time, so that this is seldom.
        let mut all: Vec<([u64; 2], u64)> = self.parts.iter().map(|(k, p)| (*k, p.used)).collect();
        all.sort_unstable_by_key(|(_, used)| *used);
        for (key, _) in all {
            if self.ids <= most / 2 {
                break;
            }
            self.ids -= self.parts.remove(&key).map_or(0, |p| p.ids.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_made_once_and_what_was_used_longest_ago_goes_first() {
        let cache = PartCache::new(100);
        let made = std::cell::Cell::new(0);
        let get = |text: &str, first: bool| {
            let make = || {
                made.set(made.get() + 1);
                Ok::<_, ()>(vec![text.len() as u32; 20])
            };
            cache.get(text, first, make).unwrap()
        };
        let text = |i: usize| "x".repeat(SHORT + i);
        for i in 0..4 {
            assert_eq!(get(&text(i), false)[0] as usize, SHORT + i);
            get(&text(i), false);
        }
        assert_eq!((made.get(), cache.ids()), (4, 80));
        get(&text(0), true);
        assert_eq!(made.get(), 5, "the beginning of a prompt is another part");
        get("short", false);
        get("short", false);
        assert_eq!((made.get(), cache.ids()), (7, 100));
        get(&text(0), false);
        get(&text(9), false);
        assert!(cache.ids() <= 100);
        let before = made.get();
        get(&text(0), false);
        get(&text(9), false);
        assert_eq!(made.get(), before, "both were used last");
        get(&text(1), false);
        assert_eq!(made.get(), before + 1, "this was not");
    }
}
