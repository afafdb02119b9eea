//! Days of a scheduler, simulated: random arrivals, lengths, cancels, failures, memory sizes and costs, against a driver
//! that owns real pages and knows nothing of the scheduler's reasons.

use super::{Ask, Id, Limits, Outcome, Refused, Room, Schedule, Step};
use memory::pages::pages_for;
use memory::{PAGE_POSITIONS, PageId, PagePool};
use std::collections::BTreeMap;
use std::time::Duration;

/// SplitMix64: the whole script follows from its seed.
pub(super) struct Draw(pub u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u32) -> u32 {
        (self.next() % n.max(1) as u64) as u32
    }
    fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }
}

/// A request as the outside sees it.
#[derive(Debug)]
struct Seen {
    ask: Ask,
    marks: Vec<u32>,
    /// Tokens after which its model ends by itself.
    ends_at: u32,
    pages: Vec<PageId>,
    len: u32,
    made: u32,
    open: bool,
    /// Layers of the slice under way that are done, and its rows.
    slice: Option<(u32, u32)>,
    cancelled: bool,
    over: bool,
    closed: bool,
    /// Those that came later and began earlier.
    passed_by: u32,
}

struct Sim {
    limits: Limits,
    s: Schedule,
    pool: PagePool,
    all: BTreeMap<Id, Seen>,
    draw: Draw,
    now: f64,
    /// Seconds of a decode step, of a row of a prompt, of a draft.
    costs: [f64; 3],
    refused: u32,
}

impl Sim {
    fn new(seed: u64) -> Self {
        let mut draw = Draw(seed);
        let context = 256 * (1 + draw.below(24));
        let limits = Limits {
            parallel: 1 + draw.below(5),
            pages: 1 + draw.below(40),
            context,
            guarantee: 1 + draw.below(1024),
            places: draw.below(12),
            bypass: draw.below(9),
            chunk: 64 * (1 + draw.below(8)),
            few: 1 + draw.below(6),
            layers: 1 + draw.below(40),
            drafts: draw.below(4),
            patience: 1.0 + draw.below(30) as f64 / 10.0,
        };
        let costs = [0.001 + draw.below(100) as f64 / 1e3, 1e-5 * (1 + draw.below(500)) as f64, 1e-4];
        let mut pool = PagePool::new(limits.pages, 1);
        (0..limits.pages).for_each(|i| pool.back(memory::SlabId(i)));
        Sim { limits, s: Schedule::new(limits), pool, all: BTreeMap::new(), draw, now: 0.0, costs, refused: 0 }
    }

    fn arrive(&mut self, id: Id) {
        let most = (!self.draw.one_in(3)).then(|| 1 + self.draw.below(600));
        let prompt = if self.draw.one_in(3) { 1 + self.draw.below(8000) } else { 1 + self.draw.below(400) };
        let ask = Ask { prompt, most, drafts: self.draw.one_in(2) };
        let mut marks: Vec<u32> = (0..self.draw.below(4)).map(|_| 64 * (1 + self.draw.below(40))).collect();
        marks.sort_unstable();
        match self.s.arrive(id, ask, &marks) {
            Ok(place) => {
                assert!(place == 0 || self.s.waiting().any(|w| w == (id, place)));
                let ends_at = 1 + self.draw.below(700);
                let (pages, slice) = (Vec::new(), None);
                let (len, made, passed_by) = (0, 0, 0);
                let [open, cancelled, over, closed] = [false; 4];
                let seen =
                    Seen { ask, marks, ends_at, pages, len, made, open, slice, cancelled, over, closed, passed_by };
                self.all.insert(id, seen);
            }
            Err(Refused::Full { places }) => {
                assert!(places == self.limits.places && self.s.waiting().count() as u32 >= places);
                self.refused += 1;
            }
            Err(Refused::Never { most_prompt }) => {
                self.refused += 1;
                assert!(most_prompt < prompt);
                if most_prompt > 0 {
                    // What is said to fit is taken by an empty scheduler, and one more is not.
                    let mut empty = Schedule::new(self.limits);
                    assert!(empty.arrive(Id(0), Ask { prompt: most_prompt, ..ask }, &[]).is_ok());
                    assert!(empty.arrive(Id(1), Ask { prompt: most_prompt + 1, ..ask }, &[]).is_err());
                }
            }
        }
    }

    fn cancel(&mut self) {
        let alive: Vec<Id> = self.all.iter().filter(|(_, r)| !r.closed && !r.cancelled).map(|(&id, _)| id).collect();
        if alive.is_empty() {
            return;
        }
        let id = alive[self.draw.below(alive.len() as u32) as usize];
        self.s.cancel(id);
        let r = self.all.get_mut(&id).unwrap();
        r.cancelled = true;
        // One that waits is gone without a step.
        r.closed |= !r.open;
    }

    /// Takes pages so that a sequence holds `len` positions; the pool must have them.
    fn hold(&mut self, id: Id, len: u32) {
        let r = self.all.get_mut(&id).unwrap();
        let more = pages_for(len).saturating_sub(r.pages.len() as u32);
        let got = self.pool.take(more).expect("a step needs more pages than there are");
        r.pages.extend(got);
        assert!(len <= self.limits.context, "beyond the context");
    }

    /// Adds tokens to an answer; whether it is over.
    fn make(&mut self, id: Id, n: u32) -> bool {
        let r = self.all.get_mut(&id).unwrap();
        r.made += n;
        let over = r.made >= r.ends_at || r.ask.most.is_some_and(|m| r.made >= m);
        r.over |= over;
        over
    }

    /// Carries a step out; `None` when there is nothing to do.
    fn step(&mut self) -> Option<()> {
        let step = self.s.step();
        let fails = self.draw.one_in(200);
        let [decode, row, draft] = self.costs;
        let (outcome, took) = match step.clone() {
            Step::Idle => return None,
            Step::Open(id) => {
                let begun = self.all.keys().filter(|k| **k < id).count();
                let waits: Vec<Id> = self.s.waiting().map(|w| w.0).filter(|w| *w < id).collect();
                for w in waits {
                    let w = self.all.get_mut(&w).unwrap();
                    w.passed_by += 1;
                    assert!(w.passed_by <= self.limits.bypass, "passed more often than allowed ({begun} before it)");
                }
                let open = self.all.values().filter(|r| r.open && !r.closed).count();
                assert!(open < self.limits.parallel as usize);
                let prompt = self.all[&id].ask.prompt;
                let kept = if self.draw.one_in(3) { self.draw.below(prompt) } else { 0 };
                self.hold(id, kept);
                let r = self.all.get_mut(&id).unwrap();
                assert!(!r.open && !r.closed, "opened twice, or after its end");
                (r.open, r.len) = (true, kept);
                (Outcome::Opened { kept }, 1e-4)
            }
            Step::Read { id, rows, layers } => {
                let l = self.limits;
                assert!((1..=l.chunk).contains(&rows) && layers >= 1);
                let r = self.all.get_mut(&id).unwrap();
                assert!(r.open && !r.over && r.made == 0);
                let (done, of) = r.slice.unwrap_or((0, rows));
                assert_eq!(of, rows, "a slice keeps its rows");
                assert!(done + layers <= l.layers.max(1) && r.len + rows <= r.ask.prompt);
                r.slice = Some((done + layers, rows));
                let (len, prompt, all_layers) = (r.len, r.ask.prompt, done + layers == l.layers.max(1));
                self.hold(id, len + rows);
                let mut ended = false;
                if all_layers {
                    let r = self.all.get_mut(&id).unwrap();
                    (r.slice, r.len) = (None, len + rows);
                    assert!(!r.marks.iter().any(|&m| len < m && m < len + rows), "a slice across a mark");
                    // On the grid, but for the end and where the prompt began elsewhere.
                    assert!(rows.is_multiple_of(64) || len + rows == prompt || r.marks.contains(&(len + rows)));
                    ended = len + rows == prompt && self.make(id, 1);
                }
                (Outcome::Read { ended }, row * rows as f64 * layers as f64 / l.layers.max(1) as f64)
            }
            Step::Decode(ids) => {
                assert!(!ids.is_empty() && ids.len() <= self.limits.few.max(1) as usize);
                let mut ended = Vec::new();
                for &id in &ids {
                    let r = &self.all[&id];
                    assert!(r.open && !r.over && r.len >= r.ask.prompt);
                    let len = r.len + 1;
                    self.hold(id, len);
                    self.all.get_mut(&id).unwrap().len = len;
                    if self.make(id, 1) {
                        ended.push(id);
                    }
                }
                let n = ids.len() as f64;
                (Outcome::Decoded { ended }, decode * (1.0 + 0.3 * (n - 1.0)))
            }
            Step::Speculate { id, drafts } => {
                let r = &self.all[&id];
                assert!(r.open && !r.over && r.ask.drafts && drafts <= self.limits.drafts && drafts > 0);
                let others = self.all.values().filter(|o| o.open && !o.closed && !o.over && o.len >= o.ask.prompt);
                assert_eq!(others.filter(|o| !o.cancelled).count(), 1, "drafts beside other answers");
                let len = r.len;
                self.hold(id, len + drafts + 1);
                let made = 1 + (0..drafts).take_while(|_| !self.draw.one_in(3)).count() as u32;
                let r = self.all.get_mut(&id).unwrap();
                r.len = len + made;
                let spare = r.pages.split_off(pages_for(r.len) as usize);
                spare.into_iter().for_each(|p| self.pool.give(p));
                let ended = self.make(id, made);
                (Outcome::Speculated { drafted: drafts, made, ended }, decode + (draft + 1e-3) * drafts as f64)
            }
            Step::Stop(id, room) => {
                let r = self.all.get_mut(&id).unwrap();
                assert!(r.open && !r.over);
                match room {
                    Room::Context => assert_eq!(r.len, self.limits.context),
                    // No promise was broken: it had all that was set aside for it.
                    Room::Pages => {
                        let aside = r.ask.most.unwrap_or(u32::MAX).min(self.limits.guarantee);
                        assert!(r.len >= r.ask.prompt.saturating_add(aside).min(self.limits.context));
                        assert!(r.len.is_multiple_of(PAGE_POSITIONS));
                    }
                }
                r.over = true;
                (Outcome::Done, 0.0)
            }
            Step::Close(id) => {
                let r = self.all.get_mut(&id).unwrap();
                assert!(r.open && !r.closed, "closed twice");
                assert!(r.over || r.cancelled, "closed before its end");
                r.closed = true;
                std::mem::take(&mut r.pages).into_iter().for_each(|p| self.pool.give(p));
                (Outcome::Done, 1e-4)
            }
        };
        self.now += took;
        let outcome = if fails { self.fail(&step, outcome) } else { outcome };
        self.s.done((outcome, Duration::from_secs_f64(took)));
        let held: usize = self.all.values().map(|r| r.pages.len()).sum();
        assert!(held as u32 <= self.s.pages() && self.s.pages() <= self.limits.pages);
        assert_eq!(self.pool.free() + held as u32, self.limits.pages);
        Some(())
    }

    /// A failure ends the step's requests, unless it was a close or a stop.
    fn fail(&mut self, step: &Step, instead_of: Outcome) -> Outcome {
        if instead_of == Outcome::Done {
            return instead_of;
        }
        for id in super::machine::ids(step) {
            self.all.get_mut(&id).unwrap().over = true;
        }
        Outcome::Failed
    }
}

fn day(seed: u64) {
    let mut sim = Sim::new(seed);
    let events = 5 + sim.draw.below(60);
    let mut next = 0;
    for _ in 0..events {
        match sim.draw.below(10) {
            0..=5 => {
                sim.arrive(Id(next));
                next += 1;
            }
            6 => sim.cancel(),
            _ => {
                let some = sim.draw.below(200);
                (0..some).try_for_each(|_| sim.step());
            }
        }
    }
    // Nobody comes any more: everything ends.
    let bound = 2_000_000;
    assert!((0..bound).try_for_each(|_| sim.step()).is_none(), "it never ends");
    let left: Vec<_> = sim.all.iter().filter(|(_, r)| !r.closed).collect();
    assert!(left.is_empty(), "{left:?} never ended");
    assert_eq!((sim.s.running(), sim.s.pages(), sim.s.waiting().count()), (0, 0, 0));
    assert_eq!(sim.pool.free(), sim.limits.pages);
    assert_eq!(sim.all.len() as u32 + sim.refused, next as u32);
}

/// Runs days; the seed of one that fails is in the message.
fn days(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        if let Err(e) = std::panic::catch_unwind(|| day(seed)) {
            let why = e.downcast_ref::<String>().cloned();
            let why = why.or_else(|| e.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default();
            panic!("the day with seed {seed}: {why}");
        }
    }
}

#[test]
fn budgets_hold_and_every_request_ends_once_on_random_days() {
    days(0..2_000);
}

mod long {
    #[test]
    fn budgets_hold_and_every_request_ends_once_on_twenty_thousand_days() {
        super::days(2_000..22_000);
    }
}

pub(super) fn limits() -> Limits {
    Limits {
        parallel: 4,
        pages: 100,
        context: 8_192,
        guarantee: 256,
        places: 8,
        bypass: 8,
        chunk: 256,
        few: 4,
        layers: 30,
        drafts: 0,
        patience: 2.0,
    }
}

#[test]
fn a_blocked_request_is_passed_eight_times_and_no_more() {
    let mut s = Schedule::new(Limits { parallel: 16, places: 64, ..limits() });
    let small = Ask { prompt: 100, most: Some(1), drafts: false };
    s.arrive(Id(0), Ask { prompt: 8_000, most: Some(1), drafts: false }, &[]).unwrap();
    assert_eq!(s.step(), Step::Open(Id(0)));
    s.done((Outcome::Opened { kept: 7_999 }, Duration::ZERO));
    let mut s2 = s.clone();
    // 100 pages, 32 taken, so of the next four two fit beside it.
    for i in 1..=3 {
        let big = Ask { prompt: 8_000, most: Some(1), drafts: false };
        s.arrive(Id(i), big, &[]).unwrap();
    }
    for i in 10..30 {
        s.arrive(Id(i), small, &[]).unwrap();
    }
    let mut opened = Vec::new();
    while let Step::Open(id) = s.step() {
        opened.push(id.0);
        s.done((Outcome::Opened { kept: 0 }, Duration::ZERO));
    }
    // Id 3 does not fit: four small ones fit into the four pages that are left.
    assert_eq!(opened, [1, 2, 10, 11, 12, 13]);
    // Without other bounds it is passed eight times.
    s2.limits_for_tests().pages = 32 + 20;
    s2.arrive(Id(3), Ask { prompt: 8_000, most: Some(1), drafts: false }, &[]).unwrap();
    (10..30).for_each(|i| assert!(s2.arrive(Id(i), small, &[]).is_ok()));
    let mut opened = Vec::new();
    while let Step::Open(id) = s2.step() {
        opened.push(id.0);
        s2.done((Outcome::Opened { kept: 0 }, Duration::ZERO));
    }
    assert_eq!(opened, (10..18).collect::<Vec<_>>());
}

#[test]
fn what_never_fits_is_refused_with_what_would() {
    let mut s = Schedule::new(Limits { pages: 4, ..limits() });
    let ask = |prompt, most| Ask { prompt, most, drafts: false };
    assert_eq!(s.arrive(Id(1), ask(2_000, None), &[]), Err(Refused::Never { most_prompt: 768 }));
    assert_eq!(s.arrive(Id(2), ask(769, None), &[]), Err(Refused::Never { most_prompt: 768 }));
    assert_eq!(s.arrive(Id(3), ask(768, None), &[]), Ok(0));
    let mut s = Schedule::new(limits());
    assert_eq!(s.arrive(Id(1), ask(8_192, Some(1)), &[]), Err(Refused::Never { most_prompt: 8_191 }));
}

#[test]
fn drafting_stops_where_it_does_not_pay_and_deepens_where_it_does() {
    let run = |accept: u32, draft_cost: f64| {
        let mut s = Schedule::new(Limits { drafts: 3, context: 1 << 20, pages: 1 << 12, ..limits() });
        s.arrive(Id(1), Ask { prompt: 64, most: None, drafts: true }, &[]).unwrap();
        let mut draw = Draw(7);
        let mut last = Vec::new();
        for i in 0..600 {
            let (outcome, took) = match s.step() {
                Step::Open(_) => (Outcome::Opened { kept: 0 }, 0.0),
                Step::Read { .. } => (Outcome::Read { ended: false }, 0.01),
                Step::Decode(_) => {
                    last.push(0);
                    (Outcome::Decoded { ended: vec![] }, 0.01)
                }
                Step::Speculate { drafts, .. } => {
                    last.push(drafts);
                    let made = 1 + (0..drafts).take_while(|_| draw.below(100) < accept).count() as u32;
                    (Outcome::Speculated { drafted: drafts, made, ended: false }, 0.01 + draft_cost * drafts as f64)
                }
                other => panic!("{i}: {other:?}"),
            };
            s.done((outcome, Duration::from_secs_f64(took)));
        }
        let tail = &last[last.len() - 100..];
        tail.iter().sum::<u32>() as f64 / tail.len() as f64
    };
    assert!(run(90, 0.001) > 2.5, "cheap drafts that are right");
    assert!(run(10, 0.008) < 0.5, "dear drafts that are wrong");
}
