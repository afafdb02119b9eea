//! An embedding that stays in its file: the same bits as with all of it in memory, and a row that cannot be read is the
//! error of whoever asked for it.

use engine::batch::{Batch, Job, Keeping, Sharing, Sink, Told};
use engine::open::Opened;
use engine::plan::{Slots, StreamAsk, embed_by_rows};
use engine::{Ask, Context, Executor, Model, OpenOptions, Sampling, SeqId, Wanted, argmax};
use memory::{Class, Component, Residency, Tier};
use state::Park;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use weights::Bound;
use weights::io::{Fault, Files, Outcome, Piece, RangeReader, Scripted};

/// Families whose head is a matrix of its own, with and without experts and a predictor.
const UNTIED: [&str; 7] =
    ["qwen3-a", "llama-b", "qwen3_moe-a", "qwen3_next-a", "qwen3_5_moe-a", "gpt_oss-a", "glm4_moe-a"];

const ROWS: StreamAsk = StreamAsk { away: true, ..WHOLE };
const WHOLE: StreamAsk = StreamAsk {
    slots: Slots::AsFit,
    page_cache: false,
    lookahead: memory::experts::Lookahead::Off,
    away: false,
    verify: false,
};

fn how(ask: Ask) -> OpenOptions {
    OpenOptions { ask: Ask { chunk: 64, few: 8, logit_rows: 64, ..ask }, ..OpenOptions::default() }
}

fn open(dir: &Path, stream: StreamAsk, draft: u32) -> Executor {
    let ask = Ask { stream, draft, ..Ask::default() };
    Model::open(dir.to_path_buf(), &how(ask), &mut |_| {}).unwrap().exec
}

fn ids(exec: &Executor, n: u32) -> Vec<u32> {
    let vocab = exec.family().spec().vocab;
    (0..n).map(|i| (i * 37 + i * i / 5 + 11) % vocab).collect()
}

/// Logits of a prompt in three parts, of single steps, and of several rows at once.
fn everything(exec: &mut Executor) -> engine::Result<Vec<u32>> {
    let (ids, no) = (ids(exec, 190), AtomicBool::new(false));
    let seq = exec.open()?;
    let made = (|| {
        let mut all = exec.prefill(seq, &ids[..150], Wanted::All, &no, &mut |_| {})?;
        for &id in ids[150..170].iter().chain(&ids[..4]) {
            all.extend(exec.decode(&[(seq, id)])?);
        }
        all.extend(exec.verify(seq, &ids[170..176], |_| 6)?);
        Ok(all.into_iter().map(f32::to_bits).collect())
    })();
    exec.close(seq)?;
    made
}

/// Has files read as a script says.
fn scripted(
    exec: &mut Executor,
    dir: &Path,
    seed: u64,
    script: impl Fn(&Piece) -> Option<Fault> + Send + Clone + 'static,
) {
    let opened = Opened::open(dir.to_path_buf()).unwrap();
    let make = |files: &Files| -> std::io::Result<Box<dyn RangeReader>> {
        Ok(Box::new(Scripted::new(files, seed, Box::new(script.clone()))))
    };
    exec.stream_with(&opened.ck, &opened.bounds, &make).unwrap();
}

fn embedding(opened: &Opened) -> &Bound {
    opened.bounds.iter().find(|b| b.component == Component::Embed).unwrap()
}

/// Fails pieces of the embedding that have a byte of this row; of none where it is `u64::MAX`.
fn breaks(opened: &Opened, row: &Arc<AtomicU64>) -> impl Fn(&Piece) -> Option<Fault> + Send + Clone + 'static {
    let b = embedding(opened);
    let weights::Data::Whole { range, .. } = b.data else { panic!("a single tensor") };
    let (bytes, row) = (b.matrix_bytes() / u64::from(b.n), row.clone());
    move |p| {
        let at = range.off + row.load(Ordering::Relaxed).checked_mul(bytes)?;
        (p.off < at + bytes && at < p.off + u64::from(p.len)).then_some(Fault::Io)
    }
}

fn held(exec: &Executor) -> u64 {
    exec.ledger().usage()[&Tier::Host].by_class[&Class::Weights]
}

#[test]
fn bits_are_those_of_the_whole_table_in_any_order_and_through_what_passes() {
    for name in UNTIED {
        let dir = testkit::materialise(name).unwrap();
        let mut whole = open(dir.path(), WHOLE, 0);
        let want = everything(&mut whole).unwrap();
        let mut exec = open(dir.path(), ROWS, 0);
        let table =
            embed_by_rows(&Opened::open(dir.path().to_path_buf()).unwrap().bounds, exec.plan()).unwrap().loaded_bytes();
        assert_eq!(held(&whole) - held(&exec), table, "{name}: it is not in memory");
        assert_eq!(everything(&mut exec).unwrap(), want, "{name}");
        let s = exec.embed_rows().unwrap();
        assert!(s.missed > 0 && s.missed < s.asked && s.read.bytes > 0, "{name}: {s:?}");
        for seed in 0..3 {
            let n = Arc::new(AtomicU64::new(0));
            let passes = move |_: &Piece| match n.fetch_add(1, Ordering::Relaxed) % 7 {
                1 => Some(Fault::Short(600)),
                4 => Some(Fault::Interrupted),
                _ => None,
            };
            scripted(&mut exec, dir.path(), seed, passes);
            assert_eq!(everything(&mut exec).unwrap(), want, "{name}, order {seed}");
        }
        // Beside experts that are read, and in segments.
        let few = StreamAsk { slots: Slots::Fewest, ..ROWS };
        for segment in [None, Some(128)] {
            let ask = Ask { stream: few, segment, ..Ask::default() };
            let mut exec = Model::open(dir.path().to_path_buf(), &how(ask), &mut |_| {}).unwrap().exec;
            assert!(exec.embed_rows().is_some());
            assert_eq!(everything(&mut exec).unwrap(), want, "{name}, with slots and segments {segment:?}");
        }
    }
}

#[test]
fn a_head_that_is_the_embedding_keeps_it() {
    let dir = testkit::materialise("qwen3_moe-b").unwrap();
    let exec = open(dir.path(), StreamAsk { slots: Slots::Fewest, ..ROWS }, 0);
    assert!(exec.embed_rows().is_none() && exec.plan().slots.is_some());
    assert!(exec.plan().weights.iter().all(|w| w.residency != Residency::RowRead));
}

/// The predictor looks the same rows up, and those of its own drafts.
#[test]
fn drafts_are_the_same() {
    for name in ["qwen3_5-a", "qwen3_5_moe-a"] {
        let dir = testkit::materialise(name).unwrap();
        let drafted = |exec: &mut Executor| {
            let (ids, no) = (ids(exec, 150), AtomicBool::new(false));
            let seq = exec.open().unwrap();
            let logits = exec.prefill(seq, &ids, Wanted::Last, &no, &mut |_| {}).unwrap();
            let mut first = argmax(&logits).unwrap();
            let mut all = Vec::new();
            for _ in 0..6 {
                let (begin, guess) = (first, |l: &mut [f32], _| argmax(l));
                let choose = |l: &mut [f32], _| {
                    first = argmax(l).unwrap();
                    all.push(first);
                    Ok(Some(first))
                };
                engine::draft::round(exec, seq, (begin, 3), guess, choose).unwrap();
            }
            let foretold = exec.open().ok().map(|s| exec.foretell(s, &ids).unwrap());
            (all, foretold)
        };
        let want = drafted(&mut open(dir.path(), WHOLE, 4));
        let mut exec = open(dir.path(), ROWS, 4);
        assert_eq!(drafted(&mut exec), want, "{name}");
        assert!(exec.embed_rows().is_some());
        let segments = Ask { stream: ROWS, draft: 4, segment: Some(128), ..Ask::default() };
        let mut exec = Model::open(dir.path().to_path_buf(), &how(segments), &mut |_| {}).unwrap().exec;
        assert_eq!(drafted(&mut exec).0, want.0, "{name}, in segments");
    }
}

#[test]
fn a_row_that_cannot_be_read_fails_who_asked_and_nobody_else() {
    let dir = testkit::materialise("qwen3_moe-a").unwrap();
    let opened = Opened::open(dir.path().to_path_buf()).unwrap();
    let want = everything(&mut open(dir.path(), WHOLE, 0)).unwrap();
    let mut exec = open(dir.path(), ROWS, 0);
    let row = Arc::new(AtomicU64::new(u64::MAX));
    scripted(&mut exec, dir.path(), 3, breaks(&opened, &row));
    let seq = exec.open().unwrap();
    exec.decode(&[(seq, 7)]).unwrap();
    row.store(250, Ordering::Relaxed);
    let said = exec.decode(&[(seq, 250)]).unwrap_err().to_string();
    let name = embedding(&opened).name.to_string();
    for part in ["row 250 of", &name, "model.safetensors", "at byte ", "the disk cannot read it"] {
        assert!(said.contains(part), "{said}");
    }
    // What is in its place is not read, and the sequence is as it was.
    exec.decode(&[(seq, 7)]).unwrap();
    assert_eq!(exec.len(seq).unwrap(), 2);
    // A prompt, and one in segments: nothing of it stays.
    let no = AtomicBool::new(false);
    assert!(exec.prefill(seq, &[1, 2, 250], Wanted::Last, &no, &mut |_| {}).is_err());
    assert_eq!(exec.len(seq).unwrap(), 2);
    exec.close(seq).unwrap();
    row.store(u64::MAX, Ordering::Relaxed);
    assert_eq!(everything(&mut exec).unwrap(), want, "the next one is answered");
    // A file that ends early ends nobody's process.
    let path = dir.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let mut exec = open(dir.path(), ROWS, 0);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    assert!(everything(&mut exec).is_err());
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(everything(&mut exec).unwrap(), want);
}

/// Cannot go on once where it is told so; what is under way stays so.
struct Halts(Scripted, Arc<AtomicBool>);

impl RangeReader for Halts {
    fn name(&self) -> &'static str {
        "halts"
    }
    fn submit(&mut self, p: Piece) {
        self.0.submit(p);
    }
    fn reap(&mut self, wait: bool, done: &mut Vec<Outcome>) -> std::io::Result<()> {
        if self.1.swap(false, Ordering::Relaxed) {
            return Err(std::io::Error::other("the system has no room"));
        }
        self.0.reap(wait, done)
    }
}

#[test]
fn what_a_reader_left_under_way_does_not_land_on_what_is_read_next() {
    let dir = testkit::materialise("qwen3_moe-a").unwrap();
    let want = everything(&mut open(dir.path(), WHOLE, 0)).unwrap();
    for seed in 0..8 {
        let (mut exec, halt) = (open(dir.path(), ROWS, 0), Arc::new(AtomicBool::new(false)));
        let opened = Opened::open(dir.path().to_path_buf()).unwrap();
        let make = |files: &Files| -> std::io::Result<Box<dyn RangeReader>> {
            Ok(Box::new(Halts(Scripted::new(files, seed, Box::new(|_| None)), halt.clone())))
        };
        exec.stream_with(&opened.ck, &opened.bounds, &make).unwrap();
        let (ids, no) = (ids(&exec, 9), AtomicBool::new(false));
        let seq = exec.open().unwrap();
        halt.store(true, Ordering::Relaxed);
        let said = exec.prefill(seq, &ids, Wanted::Last, &no, &mut |_| {}).unwrap_err().to_string();
        assert!(said.contains("the system has no room"), "{said}");
        exec.close(seq).unwrap();
        assert_eq!(everything(&mut exec).unwrap(), want, "{seed}");
    }
}

#[derive(Clone, Default)]
struct Ear(Arc<Mutex<(Vec<u32>, Vec<String>)>>);

impl Sink for Ear {
    fn tell(&self, what: Told) {
        match what {
            Told::Token(c) => self.0.lock().unwrap().0.push(c.id),
            Told::Failed(e) => self.0.lock().unwrap().1.push(e.to_string()),
            _ => {}
        }
    }
    fn gone(&self) -> bool {
        false
    }
}

/// One of three answers asks for a row that is broken; the others go on, and so does the next request.
#[test]
fn of_answers_together_the_others_go_on() {
    let dir = testkit::materialise("qwen3_moe-a").unwrap();
    let opened = Opened::open(dir.path().to_path_buf()).unwrap();
    let sharing = || {
        let keeping = Keeping { snapshots: 0, park: Park::F32, exact: false };
        Sharing { places: 4, patience: 2.0, keeping }
    };
    let load = |stream| {
        let ask = Ask { stream, parallel: 3, context: Context::Exactly(512), ..Ask::default() };
        Model::open(dir.path().to_path_buf(), &how(ask), &mut |_| {}).unwrap().exec
    };
    let prompts: [Vec<u32>; 3] = [vec![3, 5, 8], vec![13, 21, 34], vec![55, 89, 144]];
    let answers = |batch: &mut Batch| {
        let ears: Vec<Ear> = prompts
            .iter()
            .map(|p| {
                let ear = Ear::default();
                let job = Job { max_tokens: Some(20), ..Job::new(p.clone(), Sampling::greedy()) };
                batch.submit(job, Box::new(ear.clone())).unwrap();
                ear
            })
            .collect();
        assert!((0..10_000).any(|_| !batch.turn()), "it never ends");
        ears.into_iter().map(|e| e.0.lock().unwrap().clone()).collect::<Vec<_>>()
    };
    let want = answers(&mut Batch::new(load(WHOLE), sharing()));
    // A token that one answer alone has.
    let alone = |id: &u32| !want[0].0.contains(id) && !want[2].0.contains(id) && !prompts.concat().contains(id);
    let Some(&broken) = want[1].0[..19].iter().find(|id| alone(id)) else { panic!("{want:?} share all tokens") };
    let mut exec = load(ROWS);
    let row = Arc::new(AtomicU64::new(broken.into()));
    scripted(&mut exec, dir.path(), 3, breaks(&opened, &row));
    let mut batch = Batch::new(exec, sharing());
    let got = answers(&mut batch);
    assert_eq!((&got[0], &got[2]), (&want[0], &want[2]));
    assert!(got[1].1.len() == 1 && got[1].1[0].contains(&format!("row {broken} of")), "{:?}", got[1]);
    row.store(u64::MAX, Ordering::Relaxed);
    assert_eq!(answers(&mut batch), want);
}

/// A mixture whose tables are most of it.
fn wide() -> tempfile::TempDir {
    const VOCAB: usize = 20_000;
    let mut model = testkit::model("qwen3_moe-a").unwrap();
    model.config["vocab_size"] = VOCAB.into();
    for t in model.tensors.iter_mut().filter(|t| t.shape.first() == Some(&256) && t.shape.len() == 2) {
        if t.name.contains("embed_tokens") || t.name == "lm_head.weight" {
            t.shape[0] = VOCAB;
        }
    }
    let dir = tempfile::tempdir().unwrap();
    testkit::write_checkpoint(&model, dir.path()).unwrap();
    dir
}

/// What the plan counts is what the ledger holds at most, and what memory the table leaves is used.
#[test]
fn a_plan_that_is_short_of_memory_leaves_the_table_in_its_file() {
    let dir = wide();
    let opened = Opened::open(dir.path().to_path_buf()).unwrap();
    let at = |guard, stream| {
        let mut how = how(Ask { guard, stream, context: Context::Exactly(256), ..Ask::default() });
        how.ask.logit_rows = 1;
        (opened.plan(&how), how)
    };
    let whole = at(u64::MAX, WHOLE).0.unwrap();
    let table = embedding(&opened).loaded_bytes();
    assert!(embed_by_rows(&opened.bounds, &whole).is_none(), "there is room for it");
    assert!(embed_by_rows(&opened.bounds, &at(whole.total_bytes(), WHOLE).0.unwrap()).is_none());
    let p = at(whole.total_bytes() - 1, WHOLE).0.unwrap();
    assert!(p.slots.is_none() && p.fits() && embed_by_rows(&opened.bounds, &p).is_some(), "it goes before any expert");
    let saved = whole.total_bytes() - p.total_bytes();
    assert!(saved < table && saved > table * 8 / 10, "{saved} of {table}");
    let (p, tight) = at(p.total_bytes() - 1, WHOLE);
    let p = p.unwrap();
    assert!(p.slots.is_some() && embed_by_rows(&opened.bounds, &p).is_some() && p.fits());
    let mut exec = Model::load(Opened::open(dir.path().to_path_buf()).unwrap(), &tight, &mut |_| {}).unwrap().exec;
    let seq: SeqId = exec.open().unwrap();
    let (ids, no) = (ids(&exec, 200), AtomicBool::new(false));
    exec.prefill(seq, &ids, Wanted::Last, &no, &mut |_| {}).unwrap();
    for &id in &ids[..40] {
        exec.decode(&[(seq, id)]).unwrap();
    }
    assert_eq!(exec.usage().reserved(), exec.plan().reserved_bytes(), "all pages are there, and no byte more");
}
