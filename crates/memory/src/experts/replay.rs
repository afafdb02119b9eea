//! What a policy would have found in memory, had it decoded a recorded trace: the same calls as decoding makes, without
//! any reading.

use super::trace::Trace;
use super::{DecayedLfu, ExpertId, Lfu, Lru, Policy, PoolSize, Scope, SegmentedLru, SlotState, Visit};
use std::collections::{BTreeSet, HashMap};

/// Uses of experts, and how many of them found theirs in memory.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Uses.
    pub uses: u64,
    /// Found.
    pub hits: u64,
}

impl Hits {
    /// The share that was found; 0 where nothing was used.
    pub fn rate(&self) -> f64 {
        if self.uses == 0 { 0.0 } else { self.hits as f64 / self.uses as f64 }
    }
}

/// A policy and whose entries it may choose from.
#[derive(Debug)]
pub struct Contender {
    /// Its name in tables.
    pub name: String,
    /// Whose entries make room.
    pub scope: Scope,
    /// The policy, knowing nothing yet.
    pub policy: Box<dyn Policy>,
}

/// The pool that a trace's model has with so many slots, of which an eighth, at most 16, are for passing.
pub fn pool(trace: &Trace, slots: u32) -> PoolSize {
    let layers = trace.layers.iter().max().map_or(0, |l| l + 1);
    PoolSize { layers, experts: trace.experts, slots, passing: (slots / 8).clamp(1, 16) }
}

/// Half-lives that are tried, in tokens.
pub const HALF_LIVES: [u64; 4] = [16, 32, 64, 256];

/// All policies, each over a pool of every layer's and with a share for each layer.
pub fn contenders(trace: &Trace, size: &PoolSize) -> Vec<Contender> {
    let layers = trace.layers.len().max(1) as u64;
    // Half of an even share stays with its layer, as long as a row's experts fit in that.
    let share = (size.slots - size.passing.min(size.slots)) / trace.layers.len().max(1) as u32;
    let scopes = [
        ("layer", Scope::PerLayer),
        ("pool", Scope::Pool { floor: 0 }),
        ("floors", Scope::Pool { floor: (share / 2).min(trace.top_k) }),
    ];
    let mut all = Vec::new();
    for (where_, scope) in scopes {
        let mut add = |name: &str, policy: Box<dyn Policy>| {
            all.push(Contender { name: format!("{name} {where_}"), scope, policy });
        };
        add("lru", Box::<Lru>::default());
        add("lfu", Box::<Lfu>::default());
        add("segmented-lru", Box::<SegmentedLru>::default());
        for tokens in HALF_LIVES {
            add(&format!("decayed-lfu {tokens}"), Box::new(DecayedLfu::new(tokens * layers)));
        }
    }
    all
}

/// Replays all streams one after the other, from empty slots. Only decoded rows count; of a prompt its last row is visited
/// without counting, as its experts are kept for what follows.
pub fn replay(trace: &Trace, size: PoolSize, how: Contender) -> Hits {
    let mut state = SlotState::new(size, how.scope, how.policy);
    let mut all = Hits::default();
    for s in &trace.streams {
        for row in s.prompt.saturating_sub(1)..trace.rows(s) {
            for (ids, &layer) in trace.row(s, row).zip(&trace.layers) {
                let ids: Vec<u32> = ids.iter().map(|&e| e.into()).collect();
                let hits = visit(&mut state, layer, &ids);
                if row >= s.prompt {
                    all.uses += ids.len() as u64;
                    all.hits += hits;
                }
            }
        }
    }
    all
}

/// One visit in which everything arrives at once; returns how many were here.
fn visit(s: &mut SlotState, layer: u32, ids: &[u32]) -> u64 {
    s.begin(layer, ids, Visit::Decode);
    let (mut rest, mut hits) = (ids.to_vec(), 0);
    while !rest.is_empty() {
        let plan = s.place(layer, &rest, Visit::Decode);
        hits += plan.hits.len() as u64;
        plan.fetch.iter().for_each(|f| s.arrived(f.1));
        s.release_all();
        if plan.later.len() == rest.len() {
            break;
        }
        rest = plan.later;
    }
    hits
}

/// The most that any policy could find with so many slots, knowing what comes: Belady's rule, which lets go of what is
/// used again latest and does not keep what is used later than all that is kept.
pub fn bound(trace: &Trace, slots: u32) -> Hits {
    let uses: Vec<(ExpertId, bool)> = trace.uses().collect();
    let never = uses.len();
    let (mut next, mut seen) = (vec![never; uses.len()], HashMap::new());
    for (i, (id, _)) in uses.iter().enumerate().rev() {
        next[i] = seen.insert(*id, i).unwrap_or(never);
    }
    let mut kept: BTreeSet<(usize, ExpertId)> = BTreeSet::new();
    let mut all = Hits::default();
    for (i, &(id, counts)) in uses.iter().enumerate() {
        let hit = kept.remove(&(i, id));
        all.uses += u64::from(counts);
        all.hits += u64::from(counts && hit);
        if next[i] < never {
            kept.insert((next[i], id));
        }
        if kept.len() > slots as usize {
            kept.pop_last();
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::trace::Stream;
    use super::*;
    use proptest::prelude::*;

    fn trace(rows: &[Vec<[u16; 2]>]) -> Trace {
        let ids = rows.iter().flatten().flatten().copied().collect();
        Trace { layers: vec![0, 1], experts: 6, top_k: 2, streams: vec![Stream { prompt: 0, ids }] }
    }

    fn rows(most: usize) -> impl Strategy<Value = Vec<Vec<[u16; 2]>>> {
        let two = (0u16..6, 1u16..6).prop_map(|(a, by)| [a, (a + by) % 6]);
        prop::collection::vec(prop::collection::vec(two, 2..=2), 1..most)
    }

    /// The best of all ways to keep entries, tried one by one.
    fn best(uses: &[ExpertId], kept: &BTreeSet<ExpertId>, slots: usize) -> u64 {
        let Some((first, rest)) = uses.split_first() else { return 0 };
        let hit = u64::from(kept.contains(first));
        let mut with = kept.clone();
        with.insert(*first);
        let ways = if with.len() <= slots {
            vec![with]
        } else {
            with.iter().map(|gone| with.iter().copied().filter(|e| e != gone).collect()).collect()
        };
        hit + ways.iter().map(|k| best(rest, k, slots)).max().unwrap_or(0)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_bound_is_the_best_of_all_ways(rows in rows(3), slots in 1usize..4) {
            let t = trace(&rows);
            let uses: Vec<_> = t.uses().map(|u| u.0).collect();
            prop_assert_eq!(bound(&t, slots as u32).hits, best(&uses, &BTreeSet::new(), slots));
        }

        #[test]
        fn no_policy_finds_more_than_the_bound_and_all_count_every_use(rows in rows(40), slots in 2u32..14) {
            let t = trace(&rows);
            let most = bound(&t, slots);
            prop_assert_eq!(most.uses, 4 * rows.len() as u64);
            let size = pool(&t, slots);
            for c in contenders(&t, &size) {
                let name = c.name.clone();
                let got = replay(&t, size, c);
                prop_assert_eq!(got.uses, most.uses);
                prop_assert!(got.hits <= most.hits, "{}: {} beyond {}", name, got.hits, most.hits);
            }
        }
    }

    #[test]
    fn with_room_for_all_only_first_uses_miss() {
        let t = trace(&[vec![[0, 1], [2, 3]], vec![[1, 0], [3, 4]], vec![[0, 1], [4, 2]]]);
        let size = pool(&t, 16);
        for c in contenders(&t, &size) {
            let name = c.name.clone();
            assert_eq!(replay(&t, size, c), Hits { uses: 12, hits: 7 }, "{name}");
        }
        assert_eq!(bound(&t, 16).hits, 7);
    }

    #[test]
    fn prompts_do_not_count_but_their_last_rows_are_kept() {
        let mut t = trace(&[vec![[0, 1], [2, 3]], vec![[4, 5], [4, 5]], vec![[4, 5], [4, 0]]]);
        t.streams[0].prompt = 2;
        let size = pool(&t, 16);
        let lru = Contender { name: String::new(), scope: Scope::PerLayer, policy: Box::<Lru>::default() };
        assert_eq!(replay(&t, size, lru), Hits { uses: 4, hits: 3 });
        assert_eq!(bound(&t, 16), Hits { uses: 4, hits: 3 });
    }
}
