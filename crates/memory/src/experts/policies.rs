//! Policies beside plain LRU. Each ranks by what it was told of touches and of what is kept; ties go to the lower slot.

use super::{Candidate, ExpertId, Policy};
use crate::SlotId;
use std::collections::HashMap;

/// The least often used one goes, over the life of the process; of several, the one used longest ago.
///
/// It never forgets: what an earlier conversation used much stays until another has used its own experts as often.
#[derive(Clone, Debug, Default)]
pub struct Lfu {
    /// Touches so far, and the last one.
    seen: HashMap<ExpertId, (u64, u64)>,
}

impl Policy for Lfu {
    fn name(&self) -> &'static str {
        "lfu"
    }
    fn touch(&mut self, id: ExpertId, now: u64) {
        let (count, last) = self.seen.entry(id).or_default();
        (*count, *last) = (*count + 1, now);
    }
    fn victim(&mut self, _: ExpertId, candidates: &[Candidate], _: u64) -> Option<SlotId> {
        let rank = |c: &&Candidate| self.seen.get(&c.id).copied().unwrap_or_default();
        candidates.iter().min_by_key(rank).map(|c| c.slot)
    }
}

/// The one with the least uses goes, where a use counts half as much after every half-life: LRU where that is short, LFU
/// where it is long.
#[derive(Clone, Debug)]
pub struct DecayedLfu {
    half_life: f64,
    /// The weight of all uses as of some visit, and that visit.
    weights: HashMap<ExpertId, (f64, u64)>,
}

impl DecayedLfu {
    /// `half_life` in visits, at least one: tokens times layers.
    pub fn new(half_life: u64) -> Self {
        DecayedLfu { half_life: half_life.max(1) as f64, weights: HashMap::new() }
    }
    /// The logarithm of a weight, up to what is the same for all experts at a time: so that no weight has to be aged to be
    /// compared.
    fn rank(&self, id: &ExpertId) -> f64 {
        self.weights.get(id).map_or(f64::NEG_INFINITY, |&(w, at)| w.log2() + at as f64 / self.half_life)
    }
}

impl Policy for DecayedLfu {
    fn name(&self) -> &'static str {
        "decayed-lfu"
    }
    fn touch(&mut self, id: ExpertId, now: u64) {
        let (weight, at) = self.weights.entry(id).or_insert((0.0, now));
        let age = now.saturating_sub(*at) as f64;
        (*weight, *at) = (1.0 + *weight * (-age / self.half_life).exp2(), now);
    }
    fn victim(&mut self, _: ExpertId, candidates: &[Candidate], _: u64) -> Option<SlotId> {
        let ranked = candidates.iter().map(|c| (self.rank(&c.id), c.slot));
        ranked.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, slot)| slot)
    }
}

/// Entries are on probation until they are used again while they are kept; four fifths of what is kept may be past it.
/// Of those on probation the least recently used one goes, so that what is used once makes room for its like.
#[derive(Clone, Debug, Default)]
pub struct SegmentedLru {
    last: HashMap<ExpertId, u64>,
    /// What is kept, and whether it is past probation.
    kept: HashMap<ExpertId, bool>,
    protected: usize,
    /// Most that were kept at once.
    most: usize,
}

impl SegmentedLru {
    fn last(&self, id: &ExpertId) -> u64 {
        self.last.get(id).copied().unwrap_or(0)
    }
    /// Sends the least recently used protected entry back where there are too many.
    fn demote(&mut self) {
        if self.protected * 5 <= self.most * 4 {
            return;
        }
        let oldest =
            self.kept.iter().filter(|(_, past)| **past).map(|(id, _)| *id).min_by_key(|id| (self.last(id), *id));
        if let Some(past) = oldest.and_then(|id| self.kept.get_mut(&id)) {
            *past = false;
            self.protected -= 1;
        }
    }
}

impl Policy for SegmentedLru {
    fn name(&self) -> &'static str {
        "segmented-lru"
    }
    fn touch(&mut self, id: ExpertId, now: u64) {
        self.last.insert(id, now);
        if let Some(past @ false) = self.kept.get_mut(&id) {
            *past = true;
            self.protected += 1;
            self.demote();
        }
    }
    fn kept(&mut self, _: SlotId, id: ExpertId, _: u64) {
        self.kept.insert(id, false);
        self.most = self.most.max(self.kept.len());
    }
    fn dropped(&mut self, _: SlotId, id: ExpertId) {
        if self.kept.remove(&id) == Some(true) {
            self.protected -= 1;
        }
    }
    fn victim(&mut self, _: ExpertId, candidates: &[Candidate], _: u64) -> Option<SlotId> {
        let rank = |c: &&Candidate| (self.kept.get(&c.id).copied().unwrap_or(false), self.last(&c.id));
        candidates.iter().min_by_key(rank).map(|c| c.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Lru, PoolSize, Scope, SlotState, plan_experts};
    use super::*;
    use proptest::prelude::*;

    /// A plain list of everything that happened, from which a rank is worked out anew every time.
    #[derive(Debug, Default)]
    struct Log {
        touched: Vec<(ExpertId, u64)>,
        /// Least recently used first.
        probation: Vec<ExpertId>,
        protected: Vec<ExpertId>,
        most: usize,
    }

    impl Log {
        fn times(&self, id: ExpertId) -> impl Iterator<Item = u64> {
            self.touched.iter().filter(move |t| t.0 == id).map(|t| t.1)
        }
        fn last(&self, id: ExpertId) -> u64 {
            self.times(id).last().unwrap_or(0)
        }
        /// Smaller goes first.
        fn rank(&self, policy: &str, half_life: f64, id: ExpertId, now: u64) -> f64 {
            let recency = self.last(id) as f64;
            match policy {
                "lru" => recency,
                "lfu" => self.times(id).count() as f64 * 1e6 + recency,
                "decayed-lfu" => self.times(id).map(|t| (-((now - t) as f64) / half_life).exp2()).sum(),
                _ => recency + if self.protected.contains(&id) { 1e6 } else { 0.0 },
            }
        }
        fn use_again(&mut self, id: ExpertId) {
            let on = |list: &mut Vec<ExpertId>| list.iter().position(|&e| e == id).map(|i| list.remove(i));
            if on(&mut self.probation).is_some() {
                self.protected.push(id);
                if self.protected.len() * 5 > self.most * 4 {
                    self.probation.push(self.protected.remove(0));
                }
            } else if on(&mut self.protected).is_some() {
                self.protected.push(id);
            }
        }
    }

    /// Compares every choice of a policy with the log's.
    #[derive(Debug)]
    struct Checked {
        inner: Box<dyn Policy>,
        half_life: f64,
        log: Log,
    }

    impl Policy for Checked {
        fn name(&self) -> &'static str {
            self.inner.name()
        }
        fn touch(&mut self, id: ExpertId, now: u64) {
            self.inner.touch(id, now);
            self.log.touched.push((id, now));
            self.log.use_again(id);
        }
        fn kept(&mut self, slot: SlotId, id: ExpertId, now: u64) {
            self.inner.kept(slot, id, now);
            self.log.probation.push(id);
            self.log.most = self.log.most.max(self.log.probation.len() + self.log.protected.len());
        }
        fn dropped(&mut self, slot: SlotId, id: ExpertId) {
            self.inner.dropped(slot, id);
            self.log.probation.retain(|&e| e != id);
            self.log.protected.retain(|&e| e != id);
        }
        fn victim(&mut self, id: ExpertId, candidates: &[Candidate], now: u64) -> Option<SlotId> {
            let got = self.inner.victim(id, candidates, now);
            let rank = |c: &Candidate| self.log.rank(self.inner.name(), self.half_life, c.id, now);
            let least = candidates.iter().map(rank).fold(f64::INFINITY, f64::min);
            match candidates.iter().find(|c| Some(c.slot) == got) {
                Some(c) => assert!(rank(c) <= least + 1e-9, "{}: {c:?} goes, {candidates:?}", self.name()),
                None => assert!(candidates.is_empty()),
            }
            got
        }
    }

    fn policies(half_life: u64) -> Vec<Box<dyn Policy>> {
        vec![
            Box::<Lru>::default(),
            Box::<Lfu>::default(),
            Box::new(DecayedLfu::new(half_life)),
            Box::<SegmentedLru>::default(),
        ]
    }

    fn visits() -> impl Strategy<Value = Vec<(u32, Vec<u32>)>> {
        let ids = prop::collection::btree_set(0u32..12, 1..4).prop_map(|s| s.into_iter().collect());
        prop::collection::vec((0u32..3, ids), 1..120)
    }

    proptest! {
        #[test]
        fn every_choice_is_the_one_that_the_whole_history_gives(
            visits in visits(), slots in 4u32..20, half_life in 1u64..60, floor in 0u32..3, per_layer in any::<bool>()
        ) {
            let scope = if per_layer { Scope::PerLayer } else { Scope::Pool { floor } };
            for inner in policies(half_life) {
                let policy = Box::new(Checked { inner, half_life: half_life as f64, log: Log::default() });
                let size = PoolSize { layers: 3, experts: 12, slots, passing: 1 };
                let mut s = SlotState::new(size, scope, policy);
                for (layer, ids) in &visits {
                    let plan = plan_experts(*layer, ids, &mut s);
                    plan.fetch.iter().for_each(|f| s.arrived(f.1));
                }
            }
        }
    }

    /// Tokens until all six experts of a second conversation are hits, behind a long first one.
    fn haunted(policy: Box<dyn Policy>) -> u32 {
        let mut s = SlotState::new(PoolSize { layers: 1, experts: 16, slots: 6, passing: 1 }, Scope::PerLayer, policy);
        let mut token = |ids: [u32; 4]| {
            let plan = plan_experts(0, &ids, &mut s);
            plan.fetch.iter().for_each(|f| s.arrived(f.1));
            plan.fetch.len()
        };
        for _ in 0..300 {
            token([0, 1, 2, 3]);
        }
        let mut in_a_row = 0;
        let all_here = |i: &u32| {
            in_a_row = if token([8 + i % 3, 11, 12, 13]) == 0 { in_a_row + 1 } else { 0 };
            in_a_row == 3
        };
        (0..600).find(all_here).unwrap_or(600)
    }

    #[test]
    fn a_new_conversation_is_not_haunted_by_the_last() {
        let aged = haunted(Box::new(DecayedLfu::new(16)));
        let never = haunted(Box::<Lfu>::default());
        assert!(aged < 40, "{aged}");
        assert!(never > 4 * aged, "{never} against {aged}");
    }
}
