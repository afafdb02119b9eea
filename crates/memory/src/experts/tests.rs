use super::*;
use proptest::prelude::*;

fn pool(slots: u32, passing: u32, scope: Scope) -> SlotState {
    SlotState::new(PoolSize { layers: 3, experts: 16, slots, passing }, scope, Box::new(Lru::default()))
}

fn visit(s: &mut SlotState, layer: u32, ids: &[u32]) -> ExpertPlan {
    let plan = plan_experts(layer, ids, s);
    plan.fetch.iter().for_each(|f| s.arrived(f.1));
    plan
}

fn found(plan: &ExpertPlan) -> Vec<u32> {
    plan.hits.iter().map(|h| h.0).collect()
}

#[test]
fn the_least_recently_used_goes_and_is_readable_until_its_slot_is_needed() {
    let mut s = pool(4, 1, Scope::Pool { floor: 0 });
    assert_eq!(visit(&mut s, 0, &[1, 2]).fetch.len(), 2);
    assert_eq!(found(&visit(&mut s, 0, &[1])), [1]);
    visit(&mut s, 0, &[3]);
    // Three are live; 2 is let go of, but nothing was written over it.
    let p = visit(&mut s, 0, &[4]);
    assert!(p.evict.is_empty());
    assert_eq!(found(&visit(&mut s, 0, &[2])), [2], "a second chance");
    // That made 1 pass, which the next read overwrites.
    assert_eq!(visit(&mut s, 0, &[5]).evict, [ExpertId { layer: 0, expert: 1 }]);
}

#[test]
fn a_sweep_and_a_guess_leave_what_is_kept_alone() {
    let mut s = pool(6, 2, Scope::Pool { floor: 0 });
    visit(&mut s, 0, &[0, 1, 2, 3]);
    s.begin(1, &[], Visit::Sweep);
    let p = s.place(1, &[4, 5, 6, 7], Visit::Sweep);
    assert_eq!((p.fetch.len(), p.later.as_slice()), (2, &[6, 7][..]));
    p.fetch.iter().for_each(|f| s.arrived(f.1));
    p.fetch.iter().for_each(|f| s.release(f.1));
    assert_eq!(s.place(1, &p.later, Visit::Sweep).fetch.len(), 2);
    // Those are being read, so nothing is free for a guess.
    s.release_all();
    assert_eq!(s.foresee(2, &[1]).later, [1]);
    assert_eq!(found(&visit(&mut s, 0, &[0, 1, 2, 3])), [0, 1, 2, 3]);
}

#[test]
fn a_guess_that_comes_true_is_coming_and_then_kept() {
    let mut s = pool(6, 2, Scope::Pool { floor: 0 });
    let guess = s.foresee(0, &[7, 8]);
    assert_eq!((guess.fetch.len(), guess.later.len()), (2, 0));
    let p = plan_experts(0, &[7, 9], &mut s);
    assert_eq!((p.coming.len(), p.fetch.len(), s.live()), (1, 1, 2));
}

#[test]
fn a_failed_read_leaves_its_slot_empty_and_is_asked_for_again() {
    let mut s = pool(4, 1, Scope::PerLayer);
    let p = plan_experts(0, &[1], &mut s);
    s.failed(p.fetch[0].1);
    assert_eq!((s.live(), s.slot_of(ExpertId { layer: 0, expert: 1 })), (0, None));
    assert_eq!(visit(&mut s, 0, &[1]).fetch, p.fetch);
}

#[test]
fn shares_are_equal_and_floors_are_kept() {
    let mut s = pool(7, 1, Scope::PerLayer);
    for layer in 0..3 {
        visit(&mut s, layer, &[0, 1]);
    }
    visit(&mut s, 0, &[2, 3]);
    assert_eq!(s.live_of, [2, 2, 2]);
    let mut s = pool(7, 1, Scope::Pool { floor: 1 });
    for layer in 0..3 {
        visit(&mut s, layer, &[0, 1]);
    }
    for e in 2..12 {
        visit(&mut s, 0, &[e, e + 1]);
    }
    assert_eq!(s.live_of, [4, 1, 1]);
}

#[test]
fn one_slot_is_enough_for_anything() {
    let mut s = pool(1, 5, Scope::PerLayer);
    let mut left = vec![1, 2, 3];
    s.begin(0, &left, Visit::Decode);
    let mut met = Vec::new();
    while !left.is_empty() {
        let p = s.place(0, &left, Visit::Decode);
        assert_eq!(p.fetch.len(), 1);
        met.push(p.fetch[0].0);
        s.arrived(p.fetch[0].1);
        s.release(p.fetch[0].1);
        left = p.later;
    }
    assert_eq!(met, [1, 2, 3]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever is visited, swept, guessed and lost: maps agree, every expert asked for has a slot or waits, and no more is
    /// live than may be.
    #[test]
    fn the_maps_agree(
        slots in 1u32..12, passing in 1u32..6, per_layer: bool,
        visits in proptest::collection::vec((0u32..3, proptest::collection::btree_set(0u32..16, 1..8), 0u32..4), 1..60),
    ) {
        let scope = if per_layer { Scope::PerLayer } else { Scope::Pool { floor: 1 } };
        let mut s = pool(slots, passing, scope);
        for (layer, ids, what) in visits {
            let ids: Vec<u32> = ids.into_iter().collect();
            let p = match what {
                0 => { s.begin(layer, &ids, Visit::Sweep); s.place(layer, &ids, Visit::Sweep) }
                1 => s.foresee(layer, &ids),
                _ => plan_experts(layer, &ids, &mut s),
            };
            if what != 1 {
                let all = p.hits.len() + p.coming.len() + p.fetch.len() + p.later.len();
                prop_assert_eq!(all, ids.len());
                prop_assert!(p.later.len() < ids.len());
            }
            for (i, f) in p.fetch.iter().chain(&p.coming).enumerate() {
                if what == 3 && i % 2 == 0 { s.failed(f.1) } else { s.arrived(f.1) }
            }
            let held: Vec<_> = (0..s.size().slots).filter_map(|i| Some((s.held(SlotId(i))?, SlotId(i)))).collect();
            for &(id, slot) in &held {
                prop_assert_eq!(s.slot_of(id), Some(slot));
            }
            let mapped = s.slot_of.iter().flatten().count();
            prop_assert_eq!(mapped, held.len());
            prop_assert_eq!(s.live, s.live_of.iter().sum::<u32>());
            prop_assert_eq!(s.live as usize + s.passing.len(), s.entries.len());
            let most = s.size.slots - s.size.passing;
            prop_assert!(s.live <= most.max(1));
        }
    }
}
