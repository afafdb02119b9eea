//! Several answers at once are the answers alone, token by token; what was read before is not read again, and changes no
//! token in exact mode.

use device::CpuOptions;
use engine::batch::{Batch, Ended, Job, Keeping, STAGING_PAGES, Sharing, Sink, Told};
use engine::disk::Where;
use engine::open::On;
use engine::plan::Predictor;
use engine::prefix::{Miss, Owner, Role};
use engine::{Ask, Context, Error, Finish, Model, OpenOptions, Request, Sampling, generate};
use state::Park;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

fn open(path: std::path::PathBuf, parallel: u32, draft: u32) -> Model {
    // Half of the models go layer by layer beside answers.
    let stops_between_layers = draft == 0;
    open_with(path, Ask { parallel, draft, stops_between_layers, ..Ask::default() })
}

fn open_with(path: std::path::PathBuf, ask: Ask) -> Model {
    let ask = Ask { few: 8, context: Context::Exactly(1024), ..ask };
    let how = OpenOptions { ask, on: On::Cpu(CpuOptions::default()), ..OpenOptions::default() };
    Model::open(path, &how, &mut |_| {}).unwrap()
}

fn default_model() -> std::path::PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/snug-tiny-moe.gguf").into()
}

const OFF: Keeping = Keeping { snapshots: 0, park: Park::F32, exact: false };
const EXACT: Keeping = Keeping { snapshots: 64 << 20, park: Park::F32, exact: true };

fn sharing(keeping: Keeping) -> Sharing {
    Sharing { places: 16, patience: 2.0, keeping }
}

/// What a request was told.
#[derive(Default, Debug)]
struct Heard {
    ids: Vec<u32>,
    cached: Option<(u32, Miss)>,
    places: Vec<u32>,
    read: Vec<(u32, u32)>,
    done: Vec<Ended>,
    failed: Vec<String>,
}

#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Heard>>, Arc<AtomicBool>);

impl Ear {
    fn heard(&self) -> std::sync::MutexGuard<'_, Heard> {
        self.0.lock().unwrap()
    }
    fn leave(&self) {
        self.1.store(true, Ordering::Relaxed);
    }
}

impl Sink for Ear {
    fn tell(&self, what: Told) {
        let mut h = self.heard();
        match what {
            Told::Queued(n) => h.places.push(n),
            Told::Started { cached, miss } => h.cached = Some((cached, miss)),
            Told::Prefill { done, total } => h.read.push((done, total)),
            Told::PromptToken(_) => {}
            Told::Token(c) => h.ids.push(c.id),
            Told::Done(e) => h.done.push(e),
            Told::Failed(e) => h.failed.push(e.to_string()),
        }
    }
    fn gone(&self) -> bool {
        self.1.load(Ordering::Relaxed)
    }
}

fn job(prompt: Vec<u32>, sampling: Sampling, n: u32) -> Job {
    Job { max_tokens: Some(n), ..Job::new(prompt, sampling) }
}

/// Ids that look like a text: drawn, with repetitions.
fn text(seed: u32, n: u32, vocab: u32) -> Vec<u32> {
    (0..n).map(|i| (seed.wrapping_mul(2_654_435_761) ^ (i / 3).wrapping_mul(40_503)).wrapping_mul(97) % vocab).collect()
}

fn alone(model: &mut Model, prompt: &[u32], sampling: &Sampling, n: u32) -> Vec<u32> {
    let seq = model.exec.open().unwrap();
    let req =
        Request { prompt: prompt.to_vec(), sampling: sampling.clone(), max_tokens: Some(n), ..Request::default() };
    let made = generate(&mut model.exec, None, seq, &req, &AtomicBool::new(false), &mut |_| {}).unwrap();
    model.exec.close(seq).unwrap();
    made.ids
}

fn samplings() -> [Sampling; 3] {
    let drawn = |seed| Sampling { temperature: 0.9, top_k: 20, seed, ..Sampling::default() };
    [Sampling::greedy(), drawn(7), Sampling { repetition_penalty: 1.2, ..drawn(8) }]
}

fn run(batch: &mut Batch) {
    assert!((0..100_000).any(|_| !batch.turn()), "it never ends");
}

/// Everything is given back: pages but for those that are kept, and all sequences.
fn settled(batch: &mut Batch) {
    assert_eq!(batch.load(), (0, 0));
    let exec = batch.executor();
    let places = exec.plan().parallel;
    let open: Vec<_> = (0..places).map(|_| exec.open().unwrap()).collect();
    open.into_iter().for_each(|s| exec.close(s).unwrap());
}

fn together_and_alone(path: std::path::PathBuf, draft: u32) {
    let mut model = open(path.clone(), 1, 0);
    let vocab = model.exec.family().spec().vocab;
    let prompts: Vec<Vec<u32>> = [5u32, 200, 70, 333].iter().zip(1..).map(|(&n, seed)| text(seed, n, vocab)).collect();
    let how = samplings();
    let want: Vec<Vec<u32>> =
        prompts.iter().enumerate().map(|(i, p)| alone(&mut model, p, &how[i % 3], 12 + i as u32)).collect();
    drop(model);
    let mut batch = Batch::new(open(path, 3, draft).exec, sharing(OFF));
    let mut ears = Vec::new();
    for (i, p) in prompts.iter().enumerate() {
        let ear = Ear::default();
        batch.submit(job(p.clone(), how[i % 3].clone(), 12 + i as u32), Box::new(ear.clone())).unwrap();
        ears.push(ear);
        // They come one after the other, and one comes and goes.
        (0..2 + i).for_each(|_| _ = batch.turn());
        if i == 1 {
            let gone = Ear::default();
            batch.submit(job(text(9, 150, vocab), Sampling::greedy(), 50), Box::new(gone.clone())).unwrap();
            (0..3).for_each(|_| _ = batch.turn());
            gone.leave();
        }
    }
    run(&mut batch);
    for (ear, want) in ears.iter().zip(&want) {
        let h = ear.heard();
        assert_eq!((&h.ids, h.done.len(), h.failed.len()), (want, 1, 0));
        assert_eq!(h.done[0].finish, Finish::Length);
    }
    settled(&mut batch);
}

#[test]
fn answers_made_together_are_those_made_alone() {
    for name in ["llama_a", "qwen3_5_moe_a"] {
        let name = testkit::NAMES.iter().find(|n| n.starts_with(&name[..name.len() - 2])).unwrap();
        let dir = testkit::materialise(name).unwrap();
        together_and_alone(dir.path().to_path_buf(), 0);
    }
    together_and_alone(default_model(), 0);
}

/// Six pages for three sequences of up to four: they wait for each other, and miss nothing.
#[test]
fn answers_share_a_pool_of_pages() {
    let path = default_model();
    let mut model = open(path.clone(), 1, 0);
    let vocab = model.exec.family().spec().vocab;
    let prompts: Vec<Vec<u32>> =
        [500u32, 480, 20, 30, 470].iter().zip(1..).map(|(&n, seed)| text(seed, n, vocab)).collect();
    let want: Vec<Vec<u32>> = prompts.iter().map(|p| alone(&mut model, p, &Sampling::greedy(), 24)).collect();
    drop(model);
    let pool = |guard| Ask { parallel: 3, share: 256, guard, ..Ask::default() };
    let all = open_with(path.clone(), pool(u64::MAX)).exec.plan().clone();
    let page = all.kv_bytes / u64::from(all.pages);
    let model = open_with(path, pool(all.total_bytes() - 6 * page));
    assert!((6..8).contains(&model.exec.plan().pages), "{} pages", model.exec.plan().pages);
    let mut batch = Batch::new(model.exec, sharing(OFF));
    let ears: Vec<Ear> = prompts
        .iter()
        .map(|p| {
            let ear = Ear::default();
            batch.submit(job(p.clone(), Sampling::greedy(), 24), Box::new(ear.clone())).unwrap();
            ear
        })
        .collect();
    let mut most = 0;
    while batch.turn() {
        most = most.max(batch.load().0);
        batch.executor().check_integrity().unwrap();
    }
    assert!(most >= 2, "they could have run beside each other");
    for (ear, want) in ears.iter().zip(&want) {
        let h = ear.heard();
        assert_eq!((&h.ids, h.failed.len()), (want, 0), "{:?}", h.failed);
    }
    assert_eq!(batch.executor().free_pages(), batch.executor().total_pages());
}

/// A predictor that comes and goes between answers alone and answers together.
#[test]
fn a_leased_predictor_is_there_for_one_answer_and_not_for_two() {
    let path = default_model();
    let ask = |predictor| Ask { parallel: 2, draft: 3, predictor, ..Ask::default() };
    let mut plain = open(path.clone(), 1, 0);
    let vocab = plain.exec.family().spec().vocab;
    let (one, two) = (text(1, 40, vocab), text(2, 30, vocab));
    let want = [alone(&mut plain, &one, &Sampling::greedy(), 200), alone(&mut plain, &two, &Sampling::greedy(), 20)];
    let mut batch = Batch::new(open_with(path, ask(Predictor::Leased)).exec, sharing(OFF));
    let ears = [Ear::default(), Ear::default()];
    batch.submit(job(one, Sampling::greedy(), 200), Box::new(ears[0].clone())).unwrap();
    let here = |b: &mut Batch| b.executor().leased().unwrap().here;
    assert!((0..60).any(|_| batch.turn() && here(&mut batch)), "alone it is brought");
    batch.submit(job(two, Sampling::greedy(), 20), Box::new(ears[1].clone())).unwrap();
    while ears[1].heard().ids.len() < 3 {
        batch.turn();
    }
    assert!(!here(&mut batch), "two answers have no use for it");
    run(&mut batch);
    assert_eq!([ears[0].heard().ids.clone(), ears[1].heard().ids.clone()], want);
    assert!(ears[0].heard().done[0].drafts.drafted > 0);
    settled(&mut batch);
}

#[test]
fn with_drafts_too() {
    let drafting = testkit::NAMES.iter().filter(|n| testkit::expected(n).unwrap().mtp.is_some());
    for name in drafting.take(2) {
        let dir = testkit::materialise(name).unwrap();
        together_and_alone(dir.path().to_path_buf(), 3);
    }
}

/// A conversation of turns, each of which has all before it and something new.
struct Talk {
    prompt: Vec<u32>,
    turn: u32,
}

impl Talk {
    fn new(vocab: u32) -> Self {
        Talk { prompt: text(1, 130, vocab), turn: 0 }
    }
    /// The next turn: its answer, what was known of its prompt, and its prompt's length.
    fn next(&mut self, batch: &mut Batch) -> (Vec<u32>, u32, u32) {
        let vocab = batch.executor().family().spec().vocab;
        let (ear, len) = (Ear::default(), self.prompt.len() as u32);
        let marks = vec![64, len - 20];
        batch.submit(Job { marks, ..job(self.prompt.clone(), Sampling::greedy(), 10) }, Box::new(ear.clone())).unwrap();
        run(batch);
        let h = ear.heard();
        assert_eq!(h.done.len(), 1, "{h:?}");
        self.prompt.extend(&h.ids);
        self.turn += 1;
        self.prompt.extend(text(self.turn + 1, 60, vocab));
        (h.ids.clone(), h.cached.unwrap().0, len)
    }
}

fn turns(batch: &mut Batch, vocab: u32, n: u32) -> Vec<(Vec<u32>, u32, u32)> {
    let mut talk = Talk::new(vocab);
    (0..n).map(|_| talk.next(batch)).collect()
}

/// Where prompts stop between layers, slices may end right before a message begins: always beside an answer, where they have 64
/// rows, and otherwise where as many new ids came as a slice has. The state is kept there.
#[test]
fn a_message_that_begins_where_a_slice_ends_is_kept() {
    let ask = Ask { parallel: 2, segment: Some(256), ..Ask::default() };
    let mut batch = Batch::new(open_with(default_model(), ask).exec, sharing(Keeping { exact: false, ..EXACT }));
    let vocab = batch.executor().family().spec().vocab;
    for (beside, seed) in [(false, 20), (true, 40)] {
        let other = Ear::default();
        if beside {
            batch.submit(job(text(9, 30, vocab), Sampling::greedy(), 900), Box::new(other.clone())).unwrap();
            (0..20).for_each(|_| _ = batch.turn());
        }
        let mut prompt = text(seed, 300, vocab);
        for turn in 1..4u32 {
            let (ear, len) = (Ear::default(), prompt.len() as u32);
            // The last message of each turn is another one in the next.
            let marks = vec![len - 40, len - 10];
            batch.submit(Job { marks, ..job(prompt.clone(), Sampling::greedy(), 2) }, Box::new(ear.clone())).unwrap();
            while ear.heard().done.is_empty() {
                batch.turn();
            }
            let known = ear.heard().cached.unwrap().0;
            let before = if turn == 1 { 0 } else { len - 256 - 40 };
            assert!(
                known + 64 > before && known <= before,
                "turn {turn}: {known} of {len}, beside an answer: {beside}"
            );
            prompt.truncate(len as usize - 30);
            prompt.extend(text(seed + turn, 286, vocab));
        }
        other.leave();
        run(&mut batch);
    }
}

/// Models whose layers keep their whole history, states, and rings.
fn kinds() -> Vec<tempfile::TempDir> {
    let named = |f: &&str| testkit::NAMES.iter().find(|n| n.starts_with(f));
    ["llama", "qwen3_5_moe", "gemma3"].iter().filter_map(named).map(|n| testkit::materialise(n).unwrap()).collect()
}

/// A batch that keeps what it read in a directory as well.
fn kept_in(dir: &std::path::Path, model: &std::path::Path, exact: bool, parallel: u32) -> Batch {
    let keeping = Keeping { exact, ..EXACT };
    let mut batch = Batch::new(open(model.to_path_buf(), parallel, 0).exec, sharing(keeping));
    let at = Where { dir: dir.to_path_buf(), most: 1 << 30 };
    batch.keep_on_disk(&at, &["the tests' model"]).unwrap();
    batch
}

#[test]
fn pages_on_their_way_to_disk_are_in_the_plan() {
    for model in kinds() {
        let [without, with] = [0, STAGING_PAGES].map(|staged| {
            let ask = Ask { parallel: 2, staged, ..Ask::default() };
            let exec = open_with(model.path().into(), ask).exec;
            (exec.plan().reserved_bytes(), exec.page_bytes())
        });
        assert!(without.1 > 0);
        assert_eq!(with.0, without.0 + STAGING_PAGES * without.1);
    }
}

#[test]
fn another_process_goes_on_where_one_ended() {
    for model in kinds() {
        for exact in [false, true] {
            let mut warm = Batch::new(open(model.path().into(), 2, 0).exec, sharing(Keeping { exact, ..EXACT }));
            let vocab = warm.executor().family().spec().vocab;
            let want = turns(&mut warm, vocab, 5);
            let dir = tempfile::tempdir().unwrap();
            let mut talk = Talk::new(vocab);
            for (i, want) in want.iter().enumerate() {
                // A new one for every turn.
                let mut batch = kept_in(dir.path(), model.path(), exact, 2);
                assert_eq!(&talk.next(&mut batch), want, "turn {i}, exact {exact}");
                batch.save_all();
                settled(&mut batch);
                assert_eq!(batch.disk().unwrap().trouble(), None);
            }
            // Another model, or one that keeps other things, finds nothing.
            let mut other = kept_in(dir.path(), model.path(), !exact, 2);
            assert_eq!(Talk::new(vocab).next(&mut other).1, 0);
        }
    }
}

#[test]
fn what_is_broken_on_disk_is_read_as_if_it_were_not_there() {
    for model in kinds() {
        let dir = tempfile::tempdir().unwrap();
        let mut batch = kept_in(dir.path(), model.path(), true, 2);
        let vocab = batch.executor().family().spec().vocab;
        let want = turns(&mut batch, vocab, 4);
        batch.save_all();
        drop(batch);
        let mut files: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .flat_map(|d| std::fs::read_dir(d.unwrap().path()).unwrap())
            .map(|f| f.unwrap().path())
            .collect();
        files.sort();
        assert!(files.len() > 3, "{files:?}");
        let whole: Vec<Vec<u8>> = files.iter().map(|f| std::fs::read(f).unwrap()).collect();
        for i in 0..files.len() {
            files.iter().zip(&whole).for_each(|(f, b)| std::fs::write(f, b).unwrap());
            let mut bytes = whole[i].clone();
            match i % 3 {
                0 => bytes.truncate(bytes.len() / 2),
                1 => *bytes.last_mut().unwrap() ^= 1,
                _ => bytes.clear(),
            }
            std::fs::write(&files[i], &bytes).unwrap();
            let mut batch = kept_in(dir.path(), model.path(), true, 2);
            let mut talk = Talk { prompt: prompt_of(&want, vocab), turn: 3 };
            assert_eq!(talk.next(&mut batch).0, want[3].0, "{} is broken", files[i].display());
            settled(&mut batch);
        }
    }
}

/// The last of these turns' prompts.
fn prompt_of(turns: &[(Vec<u32>, u32, u32)], vocab: u32) -> Vec<u32> {
    let mut talk = Talk::new(vocab);
    for (turn, t) in turns[..turns.len() - 1].iter().enumerate() {
        talk.prompt.extend(&t.0);
        talk.prompt.extend(text(turn as u32 + 2, 60, vocab));
    }
    talk.prompt
}

#[test]
fn turns_go_on_where_the_last_one_ended_and_in_exact_mode_with_the_same_answers() {
    let dirs = kinds();
    for path in dirs.iter().map(|d| d.path().to_path_buf()).chain([default_model()]) {
        let mut without = Batch::new(open(path.clone(), 2, 0).exec, sharing(OFF));
        let vocab = without.executor().family().spec().vocab;
        let want = turns(&mut without, vocab, 5);
        assert!(want.iter().all(|t| t.1 == 0));
        let mut exact = Batch::new(open(path.clone(), 2, 0).exec, sharing(EXACT));
        let got = turns(&mut exact, vocab, 5);
        for (t, (w, g)) in want.iter().zip(&got).enumerate() {
            assert_eq!(w.0, g.0, "turn {t} of {}", path.display());
        }
        // Everything but the last answer, what is new, and what lies beside the grid.
        assert!(
            got[1..].iter().all(|t| t.1 + 10 + 60 + 64 >= t.2),
            "{:?}",
            got.iter().map(|t| (t.1, t.2)).collect::<Vec<_>>()
        );
        let mut usual = Batch::new(open(path, 2, 0).exec, sharing(Keeping { exact: false, ..EXACT }));
        let got = turns(&mut usual, vocab, 5);
        // Everything but what is new, and the last id of the answer, which was never fed.
        assert!(got[1..].iter().all(|t| t.1 + 61 == t.2), "{:?}", got.iter().map(|t| (t.1, t.2)).collect::<Vec<_>>());
        [&mut exact, &mut usual].into_iter().for_each(settled);
    }
}

#[test]
fn what_is_kept_gives_way_to_who_needs_the_room() {
    let mut batch = Batch::new(open(default_model(), 1, 0).exec, sharing(Keeping { snapshots: 4 << 20, ..EXACT }));
    let vocab = batch.executor().family().spec().vocab;
    // One sequence of 1,024 positions fits: every one of these takes all pages.
    for seed in 0..6 {
        let ear = Ear::default();
        batch.submit(job(text(seed, 1_000, vocab), Sampling::greedy(), 3), Box::new(ear.clone())).unwrap();
        run(&mut batch);
        assert_eq!(ear.heard().ids.len(), 3, "{:?}", ear.heard());
    }
    settled(&mut batch);
}

#[test]
fn who_cannot_be_taken_is_told_so_and_the_others_go_on() {
    let mut batch = Batch::new(open(default_model(), 1, 0).exec, Sharing { places: 1, ..sharing(OFF) });
    let vocab = batch.executor().family().spec().vocab;
    let submit = |batch: &mut Batch, prompt: Vec<u32>| {
        let ear = Ear::default();
        batch.submit(job(prompt, Sampling::greedy(), 4), Box::new(ear.clone())).map(|()| ear)
    };
    let long = submit(&mut batch, text(1, 1_024, vocab)).map(|_| ());
    assert!(matches!(long, Err(Error::PromptTooLong { prompt: 1_024, context: 1_024, .. })), "{long:?}");
    assert!(matches!(submit(&mut batch, vec![]).map(|_| ()), Err(Error::EmptyPrompt)));
    assert!(matches!(submit(&mut batch, vec![vocab]).map(|_| ()), Err(Error::BadToken { .. })));
    let first = submit(&mut batch, text(2, 10, vocab)).unwrap();
    batch.turn();
    let second = submit(&mut batch, text(3, 10, vocab)).unwrap();
    assert!(matches!(submit(&mut batch, text(4, 10, vocab)).map(|_| ()), Err(Error::QueueFull { places: 1 })));
    run(&mut batch);
    assert_eq!((first.heard().ids.len(), second.heard().ids.len()), (4, 4));
    assert_eq!(second.heard().places, [1]);
    settled(&mut batch);
}

mod long {
    use super::*;

    /// A generator of numbers (Knuth's MMIX).
    struct Draw(u64);

    impl Draw {
        fn below(&mut self, n: u32) -> u32 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 33) % u64::from(n)) as u32
        }
    }

    /// Pages of 4 KiB that the process holds.
    fn held() -> u64 {
        let all = std::fs::read_to_string("/proc/self/statm").unwrap();
        all.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Requests come and a third of them go, at any moment; `done` is told how many there were, once each has ended.
    fn soak(batch: &mut Batch, requests: u32, draw: &mut Draw) -> (u32, u32) {
        let vocab = batch.executor().family().spec().vocab;
        let (mut sent, mut ended, mut left, mut here) = (0, 0, 0, Vec::<(Ear, u32)>::new());
        while sent < requests || !here.is_empty() {
            if sent < requests && here.len() < 8 {
                let ear = Ear::default();
                // Some begin alike, so that there is something to use again.
                let mut prompt = text(draw.below(5), 64 + draw.below(100), vocab);
                prompt.extend(text(100 + sent, 1 + draw.below(60), vocab));
                let (n, marks) = (1 + draw.below(24), vec![64]);
                let sampling = Sampling { temperature: 0.8, top_k: 16, seed: sent.into(), ..Sampling::default() };
                let role = if draw.below(8) == 0 { Role::Side } else { Role::Main };
                let from = (role, Owner(draw.below(5).into()));
                batch.submit(Job { marks, from, ..job(prompt, sampling, n) }, Box::new(ear.clone())).unwrap();
                // A third leave, some before they begin.
                let leaves = if draw.below(3) == 0 { draw.below(40) } else { u32::MAX };
                here.push((ear, leaves));
                sent += 1;
            }
            for _ in 0..1 + draw.below(6) {
                batch.turn();
                here.iter_mut().for_each(|(ear, leaves)| {
                    *leaves = leaves.saturating_sub(u32::from(*leaves != u32::MAX));
                    if *leaves == 0 {
                        ear.leave();
                    }
                });
            }
            here.retain(|(ear, leaves)| {
                let h = ear.heard();
                assert!(h.failed.is_empty(), "{:?}", h.failed);
                left += u32::from(h.done.is_empty() && *leaves == 0);
                ended += u32::from(!h.done.is_empty());
                h.done.is_empty() && *leaves > 0
            });
        }
        run(batch);
        (ended, left)
    }

    /// 5,000 requests on the built-in model, of which a third leave: memory stays what it was, and everything comes back.
    #[test]
    fn a_soak_of_five_thousand_requests_leaves_nothing_behind() {
        for keeping in [OFF, Keeping { exact: false, ..EXACT }] {
            let ask = Ask { parallel: 4, draft: 3, stops_between_layers: true, ..Ask::default() };
            let mut batch = Batch::new(open_with(default_model(), ask).exec, sharing(keeping));
            let mut draw = Draw(7);
            // By then every buffer has been as large as it gets.
            soak(&mut batch, 1_500, &mut draw);
            let mut pages = vec![held()];
            for _ in 0..7 {
                let (ended, left) = soak(&mut batch, 500, &mut draw);
                assert_eq!(ended + left, 500);
                assert!(left > 500 / 8 && ended > 500 / 3, "{ended} ended, {left} left");
                pages.push(held());
                println!("{ended} ended, {left} left, {:.2} MiB", pages[pages.len() - 1] as f64 / 256.0);
            }
            let drift = pages[7] as f64 / pages[0] as f64 - 1.0;
            assert!(drift < 0.01, "{:.2}% more memory: {pages:?}", 100.0 * drift);
            batch.executor().check_integrity().unwrap();
            if keeping.snapshots == 0 {
                assert_eq!(batch.executor().free_pages(), batch.executor().total_pages());
            }
            settled(&mut batch);
        }
    }

    /// One to four requests, coming one after the other, some leaving, on the models that are really trained.
    fn staggered(path: std::path::PathBuf, draft: u32) {
        let mut model = open(path.clone(), 1, 0);
        let vocab = model.exec.family().spec().vocab;
        let prompt = |i: u32| text(i, 20 + 61 * (i % 7), vocab);
        let how = |i: u32| samplings()[i as usize % 3].clone();
        let want: Vec<_> = (0..24).map(|i| alone(&mut model, &prompt(i), &how(i), 30 + i)).collect();
        drop(model);
        let mut draw = Draw(3);
        for n in 1..=4u32 {
            let mut batch = Batch::new(open(path.clone(), n, draft).exec, sharing(OFF));
            let mut ears = Vec::new();
            for i in 0..6 * n {
                let ear = Ear::default();
                batch.submit(job(prompt(i), how(i), 30 + i), Box::new(ear.clone())).unwrap();
                (0..draw.below(30)).for_each(|_| _ = batch.turn());
                while batch.load().1 > 8 {
                    batch.turn();
                }
                if i % 5 == 4 {
                    ear.leave();
                }
                ears.push(ear);
            }
            run(&mut batch);
            for (i, (ear, want)) in ears.iter().zip(&want).enumerate() {
                let h = ear.heard();
                assert!(h.failed.is_empty(), "{:?}", h.failed);
                assert!(want.starts_with(&h.ids) && (h.ids.len() == want.len() || i % 5 == 4), "{n} at a time: {i}");
            }
            settled(&mut batch);
        }
    }

    #[test]
    fn staggered_answers_are_those_made_alone_on_the_built_in_model() {
        staggered(default_model(), 3);
    }

    /// Where `SNUG_SMOLLM2` names the file that `scripts/get-smollm2` brings.
    #[test]
    fn staggered_answers_are_those_made_alone_on_smollm2() {
        match std::env::var_os("SNUG_SMOLLM2") {
            Some(file) => staggered(file.into(), 0),
            None => println!("left out: SNUG_SMOLLM2 names no file"),
        }
    }
}
