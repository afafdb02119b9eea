//! Random scripts on a device where rows really run and everything uncommitted is poisoned, against one plain list of
//! rows per sequence that is replayed from scratch.

use super::model::Row;
use super::rig::{Rig, joined};
use crate::{Append, Beginning, Decl, Error, Limits, PART_ROWS, Park, SeqId, Snapshot, Span, Stream};
use device::RowClass::{self, Few, Many};
use memory::pages::pages_for;
use memory::{KvFormat, KvSpec, PageId};
use proptest::prelude::*;
use std::ops::Range;

const LIMITS: Limits = Limits { context: 530, parallel: 3, pages: 9, rows: 200, few: 6, slab_pages: 2, segment: 330 };

/// How an append ends.
#[derive(Clone, Debug)]
enum End {
    /// Accepts this share (of 255) of each span, rounded.
    Share(u8),
    All,
    Nothing,
    Rollback,
    Drop,
}

#[derive(Clone, Debug)]
enum Step {
    Open,
    Close(usize),
    /// Lets idle slabs go, all but so many.
    Trim(u32),
    /// Keeps what a sequence has: its pages, and a snapshot of the rest.
    Keep(usize),
    /// Opens a sequence that begins with something that was kept.
    Fork(usize),
    Append {
        class: RowClass,
        picks: Vec<(usize, u32)>,
        parts: u32,
        layer_outer: bool,
        end: End,
    },
    /// Begins a segment of so many rows.
    Segment(usize, u32),
    /// Takes the segment through one more layer, in parts of at most so many grids; behind the last it ends so.
    Layer(u32, End),
}

fn rows_of(class: RowClass) -> BoxedStrategy<u32> {
    match class {
        Few => (1u32..4).boxed(),
        Many => prop_oneof![1u32..4, 60u32..70, Just(128), 150u32..=200, 1u32..200].boxed(),
    }
}

fn append() -> impl Strategy<Value = Step> {
    let end = prop_oneof![
        2 => any::<u8>().prop_map(End::Share),
        5 => Just(End::All),
        1 => Just(End::Nothing),
        2 => Just(End::Rollback),
        1 => Just(End::Drop)
    ];
    prop_oneof![Just(Few), Just(Many)]
        .prop_flat_map(|class| prop::collection::vec((0usize..8, rows_of(class)), 1..4).prop_map(move |p| (class, p)))
        .prop_flat_map(move |(class, picks)| (Just((class, picks)), 1u32..4, any::<bool>(), end.clone()))
        .prop_map(|((class, picks), parts, layer_outer, end)| Step::Append { class, picks, parts, layer_outer, end })
}

fn script() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => Just(Step::Open),
        1 => (0usize..8).prop_map(Step::Close),
        1 => (0u32..3).prop_map(Step::Trim),
        2 => (0usize..8).prop_map(Step::Keep),
        2 => (0usize..8).prop_map(Step::Fork),
        7 => append(),
        2 => (0usize..8, prop_oneof![1u32..331, 320u32..340]).prop_map(|(i, n)| Step::Segment(i, n)),
        6 => (1u32..4, prop_oneof![3 => Just(End::All), 1 => Just(End::Rollback), 1 => Just(End::Drop)])
            .prop_map(|(grids, end)| Step::Layer(grids, end))
    ];
    prop::collection::vec(step, 1..32)
}

/// A segment under way.
struct Segment {
    append: Append,
    seq: SeqId,
    rows: Vec<Row>,
    /// Outputs of the layers that are done.
    got: Vec<Vec<Vec<f32>>>,
}

struct Seq {
    id: SeqId,
    tag: u64,
    rows: Vec<Row>,
}

/// What was kept of a sequence, whatever became of it.
struct Kept {
    tag: u64,
    rows: Vec<Row>,
    pages: Vec<PageId>,
    snapshot: Snapshot,
}

/// The device, and what must be on it.
struct World {
    rig: Rig,
    recurrent: bool,
    open: Vec<Seq>,
    closed: Vec<SeqId>,
    kept: Vec<Kept>,
    segment: Option<Segment>,
    tags: u64,
    ids: u32,
}

impl World {
    fn new(recurrent: bool) -> Self {
        let f32 = Some(KvFormat::F32);
        let beside = KvSpec { main: KvFormat::F32, own_page: f32, sink_page: f32 };
        let mut decls = vec![
            Decl { layer: 0, stream: Stream::History { heads: 2, d: 2, kv: KvSpec::of(KvFormat::F32) } },
            // Own pages and page 0 beside a history of the same format: the same numbers from other places.
            Decl { layer: 2, stream: Stream::History { heads: 1, d: 2, kv: beside } },
            Decl { layer: 3, stream: Stream::Ring { window: 40, heads: 1, d: 2, fmt: KvFormat::Bf16 } },
        ];
        if recurrent {
            decls.push(Decl { layer: 1, stream: Stream::Recurrent { state: [2, 2, 3], conv: [2, 10] } });
        }
        let (open, closed, kept) = (Vec::new(), Vec::new(), Vec::new());
        let rig = Rig::new(&decls, LIMITS);
        World { rig, recurrent, open, closed, kept, segment: None, tags: 0, ids: 0 }
    }

    fn step(&mut self, s: &Step) -> Result<(), TestCaseError> {
        match s {
            Step::Open => self.open()?,
            Step::Close(i) => self.close(*i)?,
            Step::Trim(keep) => self.trim(*keep)?,
            Step::Keep(i) => self.keep(*i),
            Step::Fork(i) => self.fork(*i)?,
            Step::Append { class, picks, parts, layer_outer, end } => {
                self.append(*class, picks, *parts, *layer_outer, end)?;
            }
            Step::Segment(i, n) => self.begin(*i, *n)?,
            Step::Layer(grids, end) => self.layer(*grids, end)?,
        }
        self.rig.poison();
        self.look()
    }

    fn open(&mut self) -> Result<(), TestCaseError> {
        match self.rig.st.open() {
            Ok(id) => {
                self.tags += 1;
                prop_assert!(!self.closed.contains(&id) && self.open.iter().all(|s| s.id != id));
                self.open.push(Seq { id, tag: self.tags, rows: Vec::new() });
            }
            Err(e) => {
                let full = matches!(e, Error::NoRoom { what: "sequences", .. });
                prop_assert!(full && self.open.len() == LIMITS.parallel as usize);
            }
        }
        Ok(())
    }

    fn close(&mut self, i: usize) -> Result<(), TestCaseError> {
        if !self.open.is_empty() {
            let i = i % self.open.len();
            if self.in_segment(i) {
                prop_assert!(matches!(self.rig.st.close(self.open[i].id), Err(Error::Pending)));
                return Ok(());
            }
            let s = self.open.remove(i);
            self.rig.st.close(s.id).unwrap();
            self.closed.push(s.id);
        }
        Ok(())
    }

    fn in_segment(&self, i: usize) -> bool {
        self.segment.as_ref().is_some_and(|s| s.seq == self.open[i].id)
    }

    fn begin(&mut self, i: usize, n: u32) -> Result<(), TestCaseError> {
        if self.open.is_empty() {
            return Ok(());
        }
        let (i, ids) = (i % self.open.len(), self.fresh(n));
        let Seq { id: seq, tag, rows: ref past } = self.open[i];
        let allowed = n <= LIMITS.segment && past.len() as u32 + n <= LIMITS.context;
        let rows = self.rig.next(seq, tag, &ids);
        self.make_room(pages_for(n) + 1);
        match self.rig.st.reserve_segment(&mut self.rig.dev, Span { seq, ids: &ids }) {
            Ok(append) => {
                prop_assert!(allowed && self.segment.is_none());
                self.rig.poison_segment_pages();
                let one = [Span { seq, ids: &ids[..1] }];
                let step = self.rig.st.reserve(&mut self.rig.dev, Few, &one);
                let refused = matches!(step, Err(Error::Pending | Error::ContextFull { .. }));
                prop_assert!(refused);
                self.segment = Some(Segment { append, seq, rows, got: Vec::new() });
            }
            Err(e) => prop_assert!(!allowed || self.segment.is_some(), "{}", e),
        }
        Ok(())
    }

    fn layer(&mut self, grids: u32, end: &End) -> Result<(), TestCaseError> {
        let Some(mut s) = self.segment.take() else { return Ok(()) };
        let (l, most) = (s.got.len(), grids * PART_ROWS);
        let mut out = Vec::new();
        for start in (0..s.append.n()).step_by(most as usize) {
            let part = start..s.append.n().min(start + most);
            out.extend(self.rig.run_part(l, &s.append, &s.rows, &part));
        }
        s.got.push(out);
        if s.got.len() < self.rig.layers() {
            self.segment = Some(s);
            return Ok(());
        }
        let seq = self.open.iter_mut().find(|o| o.id == s.seq).unwrap();
        let history = [&seq.rows[..], &s.rows].concat();
        let got = joined(&s.got);
        self.rig.compare(&history, &got, &sample(got.len())).map_err(TestCaseError::fail)?;
        match end {
            End::All => {
                self.rig.st.commit(s.append, &[s.rows.len() as u32]).unwrap();
                seq.rows = history;
            }
            End::Rollback => self.rig.st.rollback(s.append).unwrap(),
            // What was dropped is rolled back by the next call.
            _ => {
                drop(s.append);
                self.rig.st.settle().unwrap();
            }
        }
        Ok(())
    }

    fn trim(&mut self, keep: u32) -> Result<(), TestCaseError> {
        self.rig.st.trim(&mut self.rig.dev, keep).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let idle = self.rig.st.room.pages.idle().len();
        prop_assert!(idle <= keep as usize);
        Ok(())
    }

    fn keep(&mut self, i: usize) {
        if i >= self.open.len() || self.in_segment(i) {
            return;
        }
        let s = &self.open[i];
        let pages = self.rig.st.pages(s.id).unwrap().to_vec();
        let snapshot = self.rig.st.snapshot(&mut self.rig.dev, s.id, Park::F32).unwrap();
        assert!(snapshot.at() as usize == s.rows.len());
        assert!(s.rows.is_empty() || snapshot.bytes() == self.rig.st.snapshot_bytes(Park::F32));
        self.rig.st.keep_pages(&pages).unwrap();
        self.kept.push(Kept { tag: s.tag, rows: s.rows.clone(), pages, snapshot });
        self.rig.kept = self.kept.iter().map(|k| (k.pages.clone(), k.rows.len() as u32)).collect();
    }

    fn fork(&mut self, i: usize) -> Result<(), TestCaseError> {
        if self.kept.is_empty() {
            return Ok(());
        }
        // The copy of a page that is not full.
        self.make_room(1);
        let Some(k) = self.kept.get(i % self.kept.len().max(1)) else { return Ok(()) };
        let len = k.rows.len() as u32;
        let (pages, tail) = k.pages.split_at((len / 256) as usize);
        let from = Beginning { len, pages, tail: tail.first().copied(), snapshot: Some(&k.snapshot) };
        match self.rig.st.open_at(&mut self.rig.dev, from, 3) {
            Ok(id) => self.open.push(Seq { id, tag: k.tag, rows: k.rows.clone() }),
            Err(e) => {
                let full = matches!(e, Error::NoRoom { what: "sequences", .. });
                prop_assert!(full && self.open.len() == LIMITS.parallel as usize, "{}", e);
            }
        }
        Ok(())
    }

    /// Lets kept pages go until `n` are free, or none is kept.
    fn make_room(&mut self, n: u32) {
        while self.rig.st.free_pages() < n && !self.kept.is_empty() {
            let k = self.kept.remove(0);
            self.rig.st.let_go(&k.pages);
        }
        self.rig.kept = self.kept.iter().map(|k| (k.pages.clone(), k.rows.len() as u32)).collect();
    }

    fn append(
        &mut self,
        class: RowClass,
        picks: &[(usize, u32)],
        parts: u32,
        layer_outer: bool,
        end: &End,
    ) -> Result<(), TestCaseError> {
        let mut chosen: Vec<(usize, u32)> = Vec::new();
        for &(i, n) in picks.iter().filter(|_| !self.open.is_empty()) {
            let i = i % self.open.len();
            if !self.in_segment(i) && chosen.iter().all(|&(j, _)| i != j) {
                chosen.push((i, n));
            }
        }
        let ids: Vec<Vec<u32>> = chosen.iter().map(|&(_, n)| self.fresh(n)).collect();
        let wanted = chosen.iter().map(|&(i, n)| pages_for(n) + u32::from(!self.open[i].rows.is_empty())).sum();
        self.make_room(wanted);
        let spans: Vec<Span> =
            chosen.iter().zip(&ids).map(|(&(i, _), ids)| Span { seq: self.open[i].id, ids }).collect();
        let a = match self.rig.st.reserve(&mut self.rig.dev, class, &spans) {
            Ok(a) => a,
            Err(e) => return self.expected(class, &chosen, &e),
        };
        prop_assert!(self.refusal(class, &chosen).is_none(), "an append was taken that must be refused");
        self.rig.st.check_integrity().map_err(TestCaseError::fail)?;
        // Slabs that came with this append read as zero, which would hide a row that looks too far.
        self.rig.poison();
        let rows: Vec<Vec<Row>> = chosen
            .iter()
            .zip(&ids)
            .map(|(&(i, _), ids)| self.rig.next(self.open[i].id, self.open[i].tag, ids))
            .collect();
        let got = self.rig.run(&a, &rows.concat(), &cuts(&a, parts), layer_outer);
        for (span, (&(i, _), rows)) in chosen.iter().zip(&rows).enumerate() {
            let range = a.span(span as u32).unwrap();
            let history = [&self.open[i].rows[..], rows].concat();
            let got = &got[range.start as usize..range.end as usize];
            self.rig.compare(&history, got, &sample(got.len())).map_err(TestCaseError::fail)?;
        }
        self.end(a, class, &chosen, &rows, end)
    }

    fn fresh(&mut self, n: u32) -> Vec<u32> {
        self.ids += n;
        (self.ids - n..self.ids).collect()
    }

    /// Why an append must be refused.
    fn refusal(&self, class: RowClass, chosen: &[(usize, u32)]) -> Option<&'static str> {
        let rows: u32 = chosen.iter().map(|&(_, n)| n).sum();
        if rows == 0 {
            return Some("empty");
        }
        if rows > if class == Few { LIMITS.few } else { LIMITS.rows } {
            return Some("rows");
        }
        let past = |&(i, n): &(usize, u32)| self.open[i].rows.len() as u32 + n > LIMITS.context;
        chosen.iter().any(past).then_some("context")
    }

    fn expected(&self, class: RowClass, chosen: &[(usize, u32)], e: &Error) -> Result<(), TestCaseError> {
        let why = match e {
            Error::Empty => "empty",
            Error::TooManyRows { .. } => "rows",
            Error::ContextFull { .. } => "context",
            _ => "something else",
        };
        prop_assert_eq!(Some(why), self.refusal(class, chosen), "{}", e);
        Ok(())
    }

    fn end(
        &mut self,
        a: Append,
        class: RowClass,
        chosen: &[(usize, u32)],
        rows: &[Vec<Row>],
        end: &End,
    ) -> Result<(), TestCaseError> {
        let share = match *end {
            End::Rollback => {
                self.rig.st.rollback(a).unwrap();
                return Ok(());
            }
            End::Drop => return Ok(()),
            End::Nothing => 0,
            End::All => 255,
            End::Share(s) => s as usize,
        };
        let accepted: Vec<usize> = rows.iter().map(|r| (r.len() * share + 127) / 255).collect();
        let torn = rows.iter().zip(&accepted).any(|(r, &n)| n != 0 && n != r.len());
        let counts: Vec<u32> = accepted.iter().map(|&n| n as u32).collect();
        match self.rig.st.commit(a, &counts) {
            Ok(()) => {
                prop_assert!(!(torn && class == Many && self.recurrent));
                for ((&(i, _), rows), n) in chosen.iter().zip(rows).zip(accepted) {
                    self.open[i].rows.extend(&rows[..n]);
                }
            }
            Err(e) => {
                prop_assert!(matches!(e, Error::Indivisible { .. }), "{}", e);
                prop_assert!(torn && class == Many && self.recurrent);
            }
        }
        Ok(())
    }

    /// Looks at all committed state through one more row of every sequence, which leaves no trace.
    fn look(&mut self) -> Result<(), TestCaseError> {
        for id in &self.closed {
            prop_assert!(matches!(self.rig.st.len(*id), Err(Error::NotOpen(_))));
        }
        for s in &self.open {
            prop_assert_eq!(self.rig.st.len(s.id).unwrap() as usize, s.rows.len());
        }
        let seen: Vec<usize> =
            (0..self.open.len()).filter(|&i| self.open[i].rows.len() < LIMITS.context as usize).collect();
        let seen: Vec<usize> = seen.into_iter().filter(|&i| !self.in_segment(i)).collect();
        let id = self.fresh(1);
        self.make_room(seen.len() as u32);
        let spans: Vec<Span> = seen.iter().map(|&i| Span { seq: self.open[i].id, ids: &id }).collect();
        if !spans.is_empty() {
            let a = self.rig.st.reserve(&mut self.rig.dev, Few, &spans).unwrap();
            let rows: Vec<Row> =
                seen.iter().flat_map(|&i| self.rig.next(self.open[i].id, self.open[i].tag, &id)).collect();
            let got = self.rig.run(&a, &rows, std::slice::from_ref(&(0..a.n())), false);
            self.rig.st.rollback(a).unwrap();
            self.rig.poison();
            for ((&i, row), got) in seen.iter().zip(rows).zip(got) {
                let history = [&self.open[i].rows[..], &[row]].concat();
                self.rig.compare(&history, &[got], &[0]).map_err(TestCaseError::fail)?;
            }
        }
        self.rig.pays().map_err(TestCaseError::fail)?;
        self.rig.st.check_integrity().map_err(TestCaseError::fail)
    }
}

/// An append cut in about `parts`: between spans, or on the grid where it is one span of class Many.
fn cuts(a: &Append, parts: u32) -> Vec<Range<u32>> {
    let mut ends: Vec<u32> = (0..a.seqs()).filter_map(|i| a.span(i)).map(|s| s.end).collect();
    if a.seqs() == 1 && a.class() == Many {
        let step = (a.n() / parts).next_multiple_of(PART_ROWS).max(PART_ROWS);
        ends = (1..).map(|i| i * step).take_while(|&e| e < a.n()).chain([a.n()]).collect();
    } else if parts == 1 {
        ends = vec![a.n()];
    }
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(ends.iter().copied()).map(|(s, e)| s..e).collect()
}

/// Rows that are compared: the edges, the grid, and some between.
fn sample(n: usize) -> Vec<usize> {
    let edge = |i: &usize| matches!(i % PART_ROWS as usize, 0 | 63) || i % 37 == 5 || *i + 1 == n;
    (0..n).filter(edge).collect()
}

fn play(recurrent: bool, script: &[Step]) -> Result<(), TestCaseError> {
    let mut w = World::new(recurrent);
    script.iter().try_for_each(|s| w.step(s))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_script_leaves_what_a_replay_from_scratch_has(script in script()) {
        play(true, &script)?;
    }

    /// Here any number of Many rows may be accepted.
    #[test]
    fn any_script_without_recurrent_layers_does_too(script in script()) {
        play(false, &script)?;
    }
}
