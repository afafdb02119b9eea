//! Who waits, in the order of arrival.

use super::{Ask, Id};
use std::collections::VecDeque;

#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub id: Id,
    pub ask: Ask,
    /// Pages it needs before it can begin.
    pub pages: u32,
    /// Later ones that began before it while it did not fit.
    pub passed: u32,
    /// Where slices of its prompt end.
    pub marks: Box<[u32]>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Queue(VecDeque<Waiting>);

impl Queue {
    pub fn len(&self) -> u32 {
        self.0.len() as u32
    }
    pub fn push(&mut self, w: Waiting) {
        self.0.push_back(w);
    }
    /// Whether it was there.
    pub fn remove(&mut self, id: Id) -> bool {
        let before = self.0.len();
        self.0.retain(|w| w.id != id);
        self.0.len() < before
    }
    /// Takes out the first that needs at most `free` pages. Those before it were passed; one that was passed `most` times
    /// is not passed again.
    pub fn take(&mut self, free: u32, most: u32) -> Option<Waiting> {
        let mut at = None;
        for (i, w) in self.0.iter().enumerate() {
            if w.pages <= free {
                at = Some(i);
                break;
            }
            if w.passed >= most {
                break;
            }
        }
        let at = at?;
        self.0.iter_mut().take(at).for_each(|w| w.passed += 1);
        self.0.remove(at)
    }
    pub fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.0.iter()
    }
}
