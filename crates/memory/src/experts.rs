//! Which routed experts are in memory: a pool of equal slots, as pure data.
//!
//! A slot holds one expert of one layer, and is *live* or *passing*. Live ones are what the [`Policy`] decided to keep.
//! Passing ones are reused first in, first out: experts that a prompt's sweep reads once, experts that were fetched ahead
//! of their need, and what the policy let go of, which stays readable until its slot is needed. So neither a sweep nor a
//! wrong guess ever pushes out what decoding keeps, and every read has a slot as long as not all are in use at once.
//!
//! [`plan_experts`] says what a visit finds, what it must fetch and where to; the caller carries that out and reports
//! [`arrived`](SlotState::arrived) or [`failed`](SlotState::failed). The same calls without any reading replay a trace.

mod ahead;
mod policies;
mod policy;
pub mod replay;
pub mod trace;

pub use ahead::{Ahead, Guessed, Lookahead};
pub use policies::{DecayedLfu, Lfu, SegmentedLru};
pub use policy::{Candidate, Lru, Policy, usual};

use crate::SlotId;
use std::collections::VecDeque;

/// An expert of a layer.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertId {
    /// Layer.
    pub layer: u32,
    /// Its number in the layer.
    pub expert: u32,
}

/// A pool of slots.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// Layers, counted from 0; those without experts in this pool cost nothing.
    pub layers: u32,
    /// Experts of a layer.
    pub experts: u32,
    /// Slots, at least one.
    pub slots: u32,
    /// Of these, how many are never live: what sweeps and guesses pass through. At least one and less than all.
    pub passing: u32,
}

/// Whose entries make room for a layer's.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every layer has the same share of the live slots; beyond it, its own entries go.
    PerLayer,
    /// Any layer's entries go, but of a layer that has no more than `floor` live ones only for its own.
    Pool {
        /// Live entries that other layers leave alone.
        floor: u32,
    },
}

/// What a visit is for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Visit {
    /// A step of decoding: what it touches counts and is kept.
    Decode,
    /// A prompt that goes through many experts once: nothing counts, nothing is kept beyond its passing.
    Sweep,
}

/// What a visit finds and what it needs. Experts in the order in which they were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpertPlan {
    /// Here and readable.
    pub hits: Vec<(u32, SlotId)>,
    /// Being read already, because they were foreseen.
    pub coming: Vec<(u32, SlotId)>,
    /// To be read, and where to. Their slots are theirs from now on.
    pub fetch: Vec<(u32, SlotId)>,
    /// Whose bytes are overwritten by these reads.
    pub evict: Vec<ExpertId>,
    /// No slot is left for these until some of the others are [released](SlotState::release).
    pub later: Vec<u32>,
}

#[derive(Copy, Clone, Debug, Default)]
struct Entry {
    held: Option<ExpertId>,
    ready: bool,
    live: bool,
    /// In use by the visit under way: neither reused nor let go of.
    pinned: bool,
}

/// The slots of one pool and what is in them.
#[derive(Debug)]
pub struct SlotState {
    size: PoolSize,
    scope: Scope,
    policy: Box<dyn Policy>,
    entries: Vec<Entry>,
    /// Slots that are not live, the next to be reused in front.
    passing: VecDeque<SlotId>,
    /// By layer and expert.
    slot_of: Vec<Option<SlotId>>,
    /// Live entries of each layer.
    live_of: Vec<u32>,
    live: u32,
    /// Layers that have ever been visited, which shares are cut by.
    seen: Vec<bool>,
    now: u64,
}

/// Plans a decoding visit of `layer` to `ids`, each of them once.
pub fn plan_experts(layer: u32, ids: &[u32], s: &mut SlotState) -> ExpertPlan {
    s.begin(layer, ids, Visit::Decode);
    s.place(layer, ids, Visit::Decode)
}

impl SlotState {
    /// Empty slots. Sizes that make no sense are mended: there is at least one live and one passing slot where there
    /// are two, and one passing slot where there is one.
    pub fn new(size: PoolSize, scope: Scope, policy: Box<dyn Policy>) -> Self {
        let slots = size.slots.max(1);
        let size = PoolSize { slots, passing: size.passing.clamp(1, (slots - 1).max(1)), ..size };
        let layers = size.layers as usize;
        SlotState {
            size,
            scope,
            policy,
            entries: vec![Entry::default(); slots as usize],
            passing: (0..slots).map(SlotId).collect(),
            slot_of: vec![None; layers * size.experts as usize],
            live_of: vec![0; layers],
            live: 0,
            seen: vec![false; layers],
            now: 0,
        }
    }
    /// Its sizes.
    pub fn size(&self) -> PoolSize {
        self.size
    }
    fn at(&self, e: ExpertId) -> Option<usize> {
        let inside = e.layer < self.size.layers && e.expert < self.size.experts;
        inside.then(|| e.layer as usize * self.size.experts as usize + e.expert as usize)
    }
    /// Where an expert is, or will be once it arrived.
    pub fn slot_of(&self, e: ExpertId) -> Option<SlotId> {
        self.slot_of.get(self.at(e)?).copied().flatten()
    }
    /// What a slot holds, or will hold.
    pub fn held(&self, s: SlotId) -> Option<ExpertId> {
        self.entries.get(s.0 as usize)?.held
    }
    /// Whether a slot's bytes are there.
    pub fn is_ready(&self, s: SlotId) -> bool {
        self.entries.get(s.0 as usize).is_some_and(|e| e.ready)
    }
    /// Experts that are kept.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// Begins a visit: the slots of the one before are free to be reused, and the policy learns of the ids.
    pub fn begin(&mut self, layer: u32, ids: &[u32], kind: Visit) {
        self.release_all();
        self.now += 1;
        if let Some(seen) = self.seen.get_mut(layer as usize) {
            *seen = true;
        }
        if kind == Visit::Decode {
            for &expert in ids {
                self.policy.touch(ExpertId { layer, expert }, self.now);
            }
        }
    }

    /// Keeps what is here, or on its way, of these experts from making room for others of the same visit.
    pub fn hold(&mut self, layer: u32, ids: &[u32]) {
        for &expert in ids {
            if let Some(slot) = self.slot_of(ExpertId { layer, expert }) {
                self.entries[slot.0 as usize].pinned = true;
            }
        }
    }

    /// Finds slots for experts of the visit that was begun; also for those that had to wait.
    pub fn place(&mut self, layer: u32, ids: &[u32], kind: Visit) -> ExpertPlan {
        let mut plan = ExpertPlan::default();
        // What is here must not make room for what is not.
        self.hold(layer, ids);
        for &expert in ids {
            let id = ExpertId { layer, expert };
            if let Some(slot) = self.slot_of(id) {
                self.entries[slot.0 as usize].pinned = true;
                let into = if self.is_ready(slot) { &mut plan.hits } else { &mut plan.coming };
                into.push((expert, slot));
                self.keep(slot, kind);
                continue;
            }
            match self.claim(id, &mut plan.evict) {
                Some(slot) => {
                    self.entries[slot.0 as usize].pinned = true;
                    plan.fetch.push((expert, slot));
                    self.keep(slot, kind);
                }
                None => plan.later.push(expert),
            }
        }
        plan
    }

    /// Slots for experts that may be needed soon: only such as hold nothing that is kept or in use. What is here already
    /// is left out.
    pub fn foresee(&mut self, layer: u32, ids: &[u32]) -> ExpertPlan {
        let mut plan = ExpertPlan::default();
        // What was just fetched ahead must not give way to the next guess.
        let most = self.passing.len() / 2;
        for &expert in ids {
            let id = ExpertId { layer, expert };
            if self.slot_of(id).is_some() || self.at(id).is_none() {
                continue;
            }
            let slot = if plan.fetch.len() < most { self.claim(id, &mut plan.evict) } else { None };
            match slot {
                Some(slot) => plan.fetch.push((expert, slot)),
                None => plan.later.push(expert),
            }
        }
        plan
    }

    /// The bytes of a slot are there.
    pub fn arrived(&mut self, s: SlotId) {
        if let Some(e) = self.entries.get_mut(s.0 as usize) {
            e.ready = e.held.is_some();
        }
    }
    /// They will not come: the slot is empty, and the next to be used.
    pub fn failed(&mut self, s: SlotId) {
        let Some(e) = self.entries.get(s.0 as usize).copied() else { return };
        let Some(id) = e.held else { return };
        self.forget(id);
        if e.live {
            self.uncount(id, s);
        } else {
            self.passing.retain(|&p| p != s);
        }
        self.passing.push_front(s);
        self.entries[s.0 as usize] = Entry::default();
    }
    /// Lets a readable slot's expert go at once: the slot is empty, and the next to be used.
    pub fn drop_now(&mut self, s: SlotId) {
        if self.is_ready(s) {
            self.failed(s);
        }
    }
    /// The visit is done with a slot.
    pub fn release(&mut self, s: SlotId) {
        if let Some(e) = self.entries.get_mut(s.0 as usize) {
            e.pinned = false;
        }
    }
    /// The visit is done with all of them.
    pub fn release_all(&mut self) {
        self.entries.iter_mut().for_each(|e| e.pinned = false);
    }

    fn forget(&mut self, id: ExpertId) {
        if let Some(at) = self.at(id) {
            self.slot_of[at] = None;
        }
    }

    /// Takes the first passing slot that nobody uses or waits for.
    fn claim(&mut self, id: ExpertId, evict: &mut Vec<ExpertId>) -> Option<SlotId> {
        let at = self.at(id)?;
        let free = |s: &SlotId| {
            let e = &self.entries[s.0 as usize];
            !e.pinned && (e.ready || e.held.is_none())
        };
        let i = self.passing.iter().position(free)?;
        let slot = self.passing.remove(i)?;
        if let Some(old) = self.entries[slot.0 as usize].held {
            self.forget(old);
            evict.push(old);
        }
        self.slot_of[at] = Some(slot);
        self.entries[slot.0 as usize] = Entry { held: Some(id), ..Entry::default() };
        self.passing.push_back(slot);
        Some(slot)
    }

    /// Makes an entry live, if this kind of visit keeps what it touches and the policy finds room.
    fn keep(&mut self, s: SlotId, kind: Visit) {
        let e = self.entries[s.0 as usize];
        let Some(id) = e.held.filter(|_| !e.live && kind == Visit::Decode) else { return };
        if !self.make_room(id) {
            return;
        }
        self.passing.retain(|&p| p != s);
        self.entries[s.0 as usize].live = true;
        self.live_of[id.layer as usize] += 1;
        self.live += 1;
        self.policy.kept(s, id, self.now);
    }

    /// Whether one more entry of the layer may be live, once the policy's choice has been let go of.
    fn make_room(&mut self, id: ExpertId) -> bool {
        let most = self.size.slots - self.size.passing;
        let share = (most / self.seen.iter().filter(|s| **s).count().max(1) as u32).max(1);
        let own = self.live_of[id.layer as usize];
        let only_own = self.scope == Scope::PerLayer && own >= share;
        if self.live < most && !only_own {
            return true;
        }
        let goes = |other: ExpertId| match self.scope {
            Scope::PerLayer if only_own => other.layer == id.layer,
            // A layer below its share takes from those above theirs.
            Scope::PerLayer => self.live_of[other.layer as usize] > share,
            Scope::Pool { floor } => other.layer == id.layer || self.live_of[other.layer as usize] > floor,
        };
        let candidates: Vec<Candidate> = (0..self.size.slots)
            .filter_map(|i| {
                let e = &self.entries[i as usize];
                let id = e.held.filter(|&other| e.live && !e.pinned && goes(other))?;
                Some(Candidate { slot: SlotId(i), id })
            })
            .collect();
        let Some(victim) = self.policy.victim(id, &candidates, self.now) else { return false };
        let Some(held) = self.entries.get(victim.0 as usize).filter(|e| e.live && !e.pinned).and_then(|e| e.held)
        else {
            return false;
        };
        self.entries[victim.0 as usize].live = false;
        self.uncount(held, victim);
        self.passing.push_back(victim);
        true
    }

    fn uncount(&mut self, id: ExpertId, s: SlotId) {
        self.live_of[id.layer as usize] -= 1;
        self.live -= 1;
        self.policy.dropped(s, id);
    }
}

#[cfg(test)]
mod tests;
