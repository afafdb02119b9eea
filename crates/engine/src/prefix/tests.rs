use super::*;
use memory::PageId;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const ME: Owner = Owner(1);

fn ids(from: u32, n: u32) -> Vec<u32> {
    (from..from + n).collect()
}

fn pages(from: u32, n: u32) -> Vec<PageId> {
    (from..from + n.div_ceil(256)).map(PageId).collect()
}

#[test]
fn a_prompt_that_goes_on_shares_whole_pages_and_copies_the_last() {
    let mut t = Tree::new(false);
    let old = ids(0, 600);
    assert_eq!(t.insert(&old, &pages(0, 600), Role::Main, ME), Taken { new: pages(0, 600), old: vec![] });
    let mut new = old.clone();
    new.extend([9, 9, 9]);
    let found = t.find(&new);
    assert_eq!((found.resume, found.pages, found.tail), (600, pages(0, 512), Some(PageId(2))));
    assert_eq!(found.miss, Miss::Grows { at: 600 });
    assert_eq!(
        (t.find(&ids(0, 300)).miss, t.find(&[&ids(0, 512)[..], &[9]].concat()).miss),
        (Miss::Nothing, Miss::Differs { at: 512 })
    );
    assert_eq!(t.find(&[&ids(0, 550)[..], &[9]].concat()).miss, Miss::Differs { at: 550 });
    // The last id is read again, for its logits.
    let again = t.find(&old);
    assert_eq!((again.resume, again.miss), (599, Miss::Nothing));
    let whole = t.find(&old[..512]);
    assert_eq!((whole.resume, whole.pages, whole.tail), (511, pages(0, 256), Some(PageId(1))));
    assert_eq!(t.find(&[7, 7]).miss, Miss::Unknown);
    // A page that was read further takes the place of the one with its beginning.
    assert_eq!(t.insert(&new, &pages(3, 603), Role::Main, ME), Taken { new: vec![PageId(5)], old: vec![PageId(2)] });
    assert_eq!(t.find(&new).tail, Some(PageId(5)));
}

#[test]
fn with_states_reading_goes_on_at_the_deepest_anchor() {
    let mut t = Tree::new(true);
    let old = ids(0, 900);
    t.insert(&old, &pages(0, 900), Role::Main, ME);
    for (at, s) in [(64, 1), (256, 2), (640, 3), (900, 4)] {
        assert_eq!(t.anchor(&old, at, SnapId(s)), None);
    }
    assert_eq!(t.anchor(&ids(5, 10), 3, SnapId(9)), Some(SnapId(9)), "ids it does not know");
    let mut edited = old.clone();
    edited[700] = 0;
    let found = t.find(&edited);
    assert_eq!((found.resume, found.snap, found.miss), (640, Some(SnapId(3)), Miss::NoAnchor { same: 700 }));
    assert_eq!((found.pages, found.tail), (pages(0, 512), Some(PageId(2))));
    let mut grown = old.clone();
    grown.push(1);
    assert_eq!((t.find(&grown).resume, t.find(&grown).snap), (900, Some(SnapId(4))));
    // At a page's end nothing is copied.
    edited[300] = 0;
    let found = t.find(&edited);
    assert_eq!((found.resume, found.tail, found.pages), (256, None, pages(0, 256)));
    assert_eq!(t.anchors(&old).len(), 4);
    t.drop_anchor(SnapId(3));
    assert_eq!(t.find(&old).snap, Some(SnapId(2)));
}

#[test]
fn a_title_goes_before_the_conversation_it_is_about_and_the_old_before_the_new() {
    let mut t = Tree::new(true);
    let main = ids(0, 512);
    t.insert(&main, &pages(0, 512), Role::Main, ME);
    t.anchor(&main, 512, SnapId(1));
    let other = ids(10_000, 256);
    t.insert(&other, &pages(10, 256), Role::Main, Owner(2));
    let mut title = main[..256].to_vec();
    title.extend(ids(5_000, 300));
    assert_eq!(t.insert(&title, &pages(20, 556), Role::Side, ME).new, [PageId(21), PageId(22)]);
    t.anchor(&title, 556, SnapId(2));
    let mut order = Vec::new();
    while let (p, _) = t.evict(Some(Owner(2)), |p, _| p.len() == 1)
        && let Some(p) = p.first()
    {
        order.push(p.0);
    }
    // The title's own pages, then the conversation that is not at work, from its end.
    assert_eq!(order, [22, 21, 1, 0, 10]);
}

#[test]
fn anchors_thin_out_with_their_distance_from_the_end() {
    let at = |at: u32, kind| Anchor { at, kind };
    let mut all: Vec<Anchor> = (1..=64).map(|i| at(i * 128, Kind::Message)).collect();
    all[1].kind = Kind::Root;
    let gone = thin(&all, 12);
    let left: Vec<u32> = (0..all.len()).filter(|i| !gone.contains(i)).map(|i| all[i].at).collect();
    assert_eq!((left.len(), gone.len()), (12, 52));
    assert!(left.contains(&256), "the root stays");
    assert!(left.ends_with(&[7_808, 7_936, 8_064, 8_192]), "the last four stay");
    // Between them no gap is much larger than the distance to the end.
    for w in left.windows(2) {
        assert!((w[1] - w[0]) as f64 <= 1.5 * (8_192 - w[0]) as f64, "{left:?}");
    }
    let distances: Vec<u32> = left.iter().map(|a| 8_192 - a).collect();
    assert!(distances.iter().filter(|d| **d <= 2_048).count() >= 7, "{distances:?}: dense only near the end");
    assert_eq!(thin(&all[..5], 9), Vec::<usize>::new());
    assert_eq!(thin(&[at(1, Kind::Root), at(2, Kind::Root)], 0), [0, 1]);
}

/// Everything that was inserted, whole.
#[derive(Default)]
struct Naive {
    read: Vec<Vec<u32>>,
    anchors: BTreeMap<Vec<u32>, SnapId>,
}

impl Naive {
    fn common(&self, prompt: &[u32]) -> usize {
        let same = |r: &Vec<u32>| r.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        self.read.iter().map(same).max().unwrap_or(0)
    }
    fn anchor(&self, prompt: &[u32]) -> (u32, Option<SnapId>) {
        let most = self.common(prompt).min(prompt.len() - 1);
        let fits = |k: &&Vec<u32>| k.len() <= most && prompt.starts_with(k);
        let best = self.anchors.keys().filter(fits).max_by_key(|k| k.len());
        best.map_or((0, None), |k| (k.len() as u32, Some(self.anchors[k])))
    }
}

/// Prompts that branch often: runs of one of two ids, which change at few positions.
fn prompt() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec((0u32..2, prop::sample::select(vec![1usize, 60, 128, 196, 256, 300])), 1..5)
        .prop_map(|runs| runs.into_iter().flat_map(|(id, n)| std::iter::repeat_n(id, n)).collect())
}

proptest! {
    #[test]
    fn finding_agrees_with_a_list_of_all_that_was_read(
        script in prop::collection::vec((prompt(), prop::collection::vec(0u32..100, 0..3)), 1..20),
        last in prompt(),
    ) {
        let (mut plain, mut anchored, mut naive) = (Tree::new(false), Tree::new(true), Naive::default());
        let (mut page, mut snap, mut held) = (0, 0, BTreeSet::new());
        let mut owned: BTreeMap<PageId, Vec<u32>> = BTreeMap::new();
        for (ids, marks) in script.iter().chain([&(last, vec![])]) {
            let found = plain.find(ids);
            prop_assert_eq!(found.resume as usize, naive.common(ids).min(ids.len() - 1));
            // A page that is shared or copied holds the prompt's own ids.
            for (i, p) in found.pages.iter().chain(&found.tail).enumerate() {
                let want = &ids[i * 256..ids.len().min(i * 256 + 256).min(found.resume as usize)];
                prop_assert!(owned[p].starts_with(want));
            }
            let stateful = anchored.find(ids);
            prop_assert_eq!((stateful.resume, stateful.snap), naive.anchor(ids));
            let fresh = pages(page, ids.len() as u32);
            page += fresh.len() as u32;
            for (p, part) in fresh.iter().zip(ids.chunks(256)) {
                owned.insert(*p, part.to_vec());
            }
            let taken = plain.insert(ids, &fresh, Role::Main, ME);
            // It owns what it names, and nothing else.
            held.extend(taken.new);
            taken.old.iter().for_each(|p| assert!(held.remove(p)));
            prop_assert_eq!(&held, &plain.pages().collect::<BTreeSet<_>>());
            anchored.insert(ids, &fresh, Role::Main, ME);
            naive.read.push(ids.clone());
            for percent in marks {
                let at = ids.len() as u32 * percent / 100;
                if at > 0 {
                    snap += 1;
                    let old = anchored.anchor(ids, at, SnapId(snap));
                    prop_assert_eq!(old, naive.anchors.insert(ids[..at as usize].to_vec(), SnapId(snap)));
                }
            }
        }
        // Every page is named once, and evicting gives each back once.
        let all: Vec<PageId> = plain.pages().collect();
        prop_assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        let (mut gone, _) = plain.evict(None, |_, _| false);
        gone.sort();
        let mut all = all;
        all.sort();
        prop_assert_eq!(gone, all);
        prop_assert_eq!(plain.pages().count(), 0);
    }
}
