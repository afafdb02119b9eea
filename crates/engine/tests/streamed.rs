//! Models whose experts are read from their file: the same bits as with all of them in memory, whatever arrives when and
//! whatever goes wrong with reading.

use engine::open::Opened;
use engine::plan::{Refusal, Slots, StreamAsk};
use engine::{Ask, Executor, Model, OpenOptions, Wanted};
use memory::experts::Lookahead;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weights::io::{Access, Fault, Files, Pool, RangeReader, Scripted};

const MIXTURES: [&str; 8] = [
    "qwen3_moe-a",
    "qwen3_moe-b",
    "qwen3_next-a",
    "qwen3_5_moe-a",
    "qwen3_5_moe-b",
    "gemma4_moe-a",
    "gemma4_moe-b",
    "glm4_moe-a",
];

fn how(stream: StreamAsk) -> OpenOptions {
    let ask = Ask { logit_rows: 64, few: 8, stream, ..Ask::default() };
    OpenOptions { ask, ..OpenOptions::default() }
}

fn few() -> StreamAsk {
    // Fewer than one layer has: the plan takes as few as it can live with.
    StreamAsk { slots: Slots::Fewest, ..StreamAsk::default() }
}

fn open(dir: &Path, stream: StreamAsk) -> Executor {
    Model::open(dir.to_path_buf(), &how(stream), &mut |_| {}).unwrap().exec
}

/// Logits of a prompt in two parts, of single steps, and of several rows at once.
fn everything(exec: &mut Executor) -> engine::Result<Vec<u32>> {
    let vocab = exec.family().spec().vocab;
    let ids: Vec<u32> = (0..90).map(|i| (i * 37 + 11) % vocab).collect();
    let seq = exec.open()?;
    let made = (|| {
        let no = AtomicBool::new(false);
        let mut all = exec.prefill(seq, &ids[..64], Wanted::All, &no, &mut |_| {})?;
        all.extend(exec.prefill(seq, &ids[64..70], Wanted::All, &no, &mut |_| {})?);
        for &id in &ids[70..84] {
            all.extend(exec.decode(&[(seq, id)])?);
        }
        all.extend(exec.verify(seq, &ids[84..90], |_| 6)?);
        Ok(all.into_iter().map(f32::to_bits).collect())
    })();
    exec.close(seq)?;
    made
}

fn step(exec: &mut Executor, id: u32) -> engine::Result<Vec<f32>> {
    let seq = exec.open()?;
    let logits = exec.decode(&[(seq, id)]);
    exec.close(seq)?;
    logits
}

fn stream_with(exec: &mut Executor, dir: &Path, make: impl Fn(&Files) -> Box<dyn RangeReader>) {
    let opened = Opened::open(dir.to_path_buf()).unwrap();
    exec.stream_with(&opened.ck, &opened.bounds, &|files| Ok(make(files))).unwrap();
}

#[test]
fn bits_are_those_of_resident_experts_in_any_order_of_arrival() {
    for name in MIXTURES {
        let dir = testkit::materialise(name).unwrap();
        let want = everything(&mut open(dir.path(), StreamAsk::default())).unwrap();
        let mut exec = open(dir.path(), few());
        let slots = exec.plan().slots.clone().unwrap();
        assert!(slots.slots() < slots.experts(), "{name}");
        assert_eq!(everything(&mut exec).unwrap(), want, "{name}");
        let s = exec.cache().unwrap();
        assert!(s.misses > 0 && s.read.bytes > 0, "{name}: {s:?}");
        stream_with(&mut exec, dir.path(), |f| Box::new(Pool::new(f, 3).unwrap()));
        assert_eq!(everything(&mut exec).unwrap(), want, "{name}, threads");
        for seed in 0..3 {
            stream_with(&mut exec, dir.path(), |f| Box::new(Scripted::new(f, seed, Box::new(|_| None))));
            assert_eq!(everything(&mut exec).unwrap(), want, "{name}, order {seed}");
        }
        let mut exec = open(dir.path(), StreamAsk { lookahead: Lookahead::On, ..few() });
        assert_eq!(everything(&mut exec).unwrap(), want, "{name}, with guesses");
        assert!(exec.cache().unwrap().guessed[0] > 0);
        let all = StreamAsk {
            slots: Slots::AtMost(u32::MAX),
            page_cache: true,
            away: true,
            verify: true,
            lookahead: Lookahead::On,
        };
        let mut exec = open(dir.path(), all);
        assert_eq!(everything(&mut exec).unwrap(), want, "{name}, room for all");
        let before = exec.cache().unwrap();
        assert_eq!(everything(&mut exec).unwrap(), want, "{name}, all there");
        assert_eq!(exec.cache().unwrap().misses, before.misses, "{name}");
    }
}

#[test]
fn a_layer_is_read_no_more_often_than_it_has_to_be() {
    let dir = testkit::materialise("qwen3_moe-a").unwrap();
    let mut exec = open(dir.path(), few());
    let seq = exec.open().unwrap();
    let ids: Vec<u32> = (0..64).collect();
    exec.prefill(seq, &ids, Wanted::Last, &AtomicBool::new(false), &mut |_| {}).unwrap();
    let (s, slots) = (exec.cache().unwrap(), exec.plan().slots.clone().unwrap());
    assert!(s.misses <= slots.experts(), "each expert once: {s:?}");
    assert!(s.hits + s.misses + s.foreseen <= slots.experts());
    // What is read around records is at most the alignment of each.
    assert!(s.read.bytes <= s.missed_bytes + s.misses * 3 * 2 * 4096, "{s:?}");
}

#[test]
fn what_passes_changes_nothing_and_what_does_not_fails_the_one_that_asked() {
    let dir = testkit::materialise("qwen3_5_moe-a").unwrap();
    let want = everything(&mut open(dir.path(), StreamAsk::default())).unwrap();
    let mut exec = open(dir.path(), few());
    let n = Arc::new(AtomicUsize::new(0));
    let counter = n.clone();
    stream_with(&mut exec, dir.path(), move |f| {
        let counter = counter.clone();
        let mut failed = std::collections::HashSet::new();
        let script = move |p: &weights::io::Piece| match counter.fetch_add(1, Ordering::Relaxed) % 11 {
            1 => Some(Fault::Short(700)),
            3 => Some(Fault::Interrupted),
            6 if failed.insert(p.off) => Some(Fault::Io),
            9 => Some(Fault::Stall(Duration::from_millis(1))),
            _ => None,
        };
        Box::new(Scripted::new(f, 5, Box::new(script)))
    });
    assert_eq!(everything(&mut exec).unwrap(), want);
    assert!(exec.cache().unwrap().read.retries > 0 && n.load(Ordering::Relaxed) > 100);

    let broken = Arc::new(AtomicBool::new(true));
    let flag = broken.clone();
    stream_with(&mut exec, dir.path(), move |f| {
        let flag = flag.clone();
        Box::new(Scripted::new(f, 6, Box::new(move |_| flag.load(Ordering::Relaxed).then_some(Fault::Io))))
    });
    let said = step(&mut exec, 1).unwrap_err().to_string();
    for part in ["expert ", "layer 0", "model.safetensors", "at byte ", "the disk cannot read it"] {
        assert!(said.contains(part), "{said}");
    }
    broken.store(false, Ordering::Relaxed);
    assert_eq!(everything(&mut exec).unwrap(), want, "the next one is answered");
}

#[test]
fn a_stall_is_waited_for() {
    let dir = testkit::materialise("qwen3_moe-a").unwrap();
    let mut exec = open(dir.path(), few());
    let (once, begun) = (Arc::new(AtomicBool::new(true)), std::time::Instant::now());
    stream_with(&mut exec, dir.path(), |f| {
        let once = once.clone();
        let stall = move |_: &weights::io::Piece| {
            once.swap(false, Ordering::Relaxed).then_some(Fault::Stall(Duration::from_secs(2)))
        };
        Box::new(Scripted::new(f, 8, Box::new(stall)))
    });
    let want = step(&mut open(dir.path(), StreamAsk::default()), 3).unwrap();
    assert_eq!(step(&mut exec, 3).unwrap(), want);
    assert!(begun.elapsed() >= Duration::from_secs(2));
}

#[test]
fn bytes_that_changed_are_found_where_somebody_asked_for_it() {
    let dir = testkit::materialise("qwen3_moe-a").unwrap();
    let mut exec = open(dir.path(), StreamAsk { verify: true, ..few() });
    let wrong = Arc::new(Mutex::new(false));
    let flag = wrong.clone();
    stream_with(&mut exec, dir.path(), move |f| {
        let flag = flag.clone();
        Box::new(Scripted::new(f, 9, Box::new(move |_| flag.lock().unwrap().then_some(Fault::Wrong))))
    });
    let want = everything(&mut exec).unwrap();
    *wrong.lock().unwrap() = true;
    let said = everything(&mut exec).unwrap_err().to_string();
    assert!(said.contains("others than when it was read first"), "{said}");
    *wrong.lock().unwrap() = false;
    assert_eq!(everything(&mut exec).unwrap(), want);
}

#[cfg(unix)]
#[test]
fn a_file_that_is_cut_or_replaced_ends_no_process() {
    let dir = testkit::materialise("qwen3_moe-a").unwrap();
    let path = dir.path().join("model.safetensors");
    let mut exec = open(dir.path(), few());
    let want = everything(&mut exec).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    // Another file in its place: what was opened is still read.
    let beside = dir.path().join("other");
    std::fs::write(&beside, vec![0; bytes.len()]).unwrap();
    let kept = dir.path().join("kept");
    std::fs::hard_link(&path, &kept).unwrap();
    std::fs::rename(&beside, &path).unwrap();
    assert_eq!(everything(&mut exec).unwrap(), want);
    std::fs::OpenOptions::new().write(true).open(&kept).unwrap().set_len(4096).unwrap();
    let said = everything(&mut exec).unwrap_err().to_string();
    assert!(said.contains("the file ends before it"), "{said}");
    std::fs::write(&kept, bytes).unwrap();
    assert_eq!(everything(&mut exec).unwrap(), want);
}

/// Two programs, one file.
#[test]
fn a_file_may_be_streamed_twice_at_once() {
    let dir = testkit::materialise("qwen3_moe-a").unwrap();
    let want = everything(&mut open(dir.path(), few())).unwrap();
    std::thread::scope(|s| {
        let both = [0, 1].map(|_| s.spawn(|| everything(&mut open(dir.path(), few())).unwrap()));
        both.into_iter().for_each(|t| assert_eq!(t.join().unwrap(), want));
    });
}

#[test]
fn a_limit_below_the_whole_model_gives_experts_what_is_left_of_it() {
    let dir = testkit::materialise("qwen3_moe-a").unwrap();
    let opened = Opened::open(dir.path().to_path_buf()).unwrap();
    let whole = opened.plan(&how(StreamAsk::default())).unwrap();
    assert!(whole.slots.is_none());
    let experts: u64 = whole.weights.iter().filter(|w| w.residency == memory::Residency::Cached).map(|w| w.bytes).sum();
    let limited = |guard: u64| {
        let mut how = how(StreamAsk::default());
        (how.ask.guard, how.ask.context) = (guard, engine::Context::Exactly(whole.context));
        opened.plan(&how)
    };
    assert!(limited(whole.total_bytes()).unwrap().slots.is_none());
    let mut last = u64::MAX;
    for part in [8, 6, 4] {
        let guard = whole.total_bytes() - experts + experts * part / 10;
        let p = limited(guard).unwrap();
        let slots = p.slots.as_ref().unwrap();
        assert!(p.fits() && p.total_bytes() + 2 * slots.pools[0].slot_bytes > guard, "all of it is used: {p:?}");
        assert!(slots.slots() < last);
        last = slots.slots();
    }
    let e = limited(whole.total_bytes() - experts).unwrap_err().to_string();
    assert!(e.contains("what would help"), "{e}");
}

/// The reader's choice is not the file's: what refuses direct reads is read through the page cache.
#[test]
fn files_are_opened_past_the_page_cache_where_that_is_possible() {
    let dir = testkit::materialise("qwen3_moe-a").unwrap();
    let opened = Opened::open(dir.path().to_path_buf()).unwrap();
    let direct = Files::open(&opened.ck, Access::Direct).unwrap();
    let cached = Files::open(&opened.ck, Access::PageCache).unwrap();
    assert!(!cached.is_direct() && cached.align() == 1);
    assert!(if direct.is_direct() { [512, 4096].contains(&direct.align()) } else { direct.align() == 1 });
}

/// A dense model below its size: layers take turns in two buffers, and the bits are those of all of them in memory.
#[test]
fn whole_layers_are_read_where_there_are_no_experts_to_leave_out() {
    for name in ["qwen3_5-b", "gemma3-a"] {
        let dir = testkit::materialise(name).unwrap();
        let want = everything(&mut open(dir.path(), StreamAsk::default())).unwrap();
        let opened = Opened::open(dir.path().to_path_buf()).unwrap();
        let mut how = how(StreamAsk::default());
        let whole = opened.plan(&how).unwrap();
        (how.ask.context, how.ask.guard) = (engine::Context::Exactly(whole.context), whole.total_bytes() - 1);
        let plan = opened.plan(&how).unwrap();
        let layers = plan.layers.clone().unwrap();
        assert!(
            plan.fits() && layers.layers.len() > 2 && layers.bytes > 2 * layers.buffer_bytes,
            "{name}: {whole:?} {plan:?}"
        );
        let mut exec = Model::load(opened, &how, &mut |_| {}).unwrap().exec;
        assert_eq!(everything(&mut exec).unwrap(), want, "{name}");
        let before = exec.cache().unwrap().read.bytes;
        step(&mut exec, 1).unwrap();
        assert!(exec.cache().unwrap().read.bytes >= before + layers.bytes - layers.buffer_bytes, "{name}");
        let path = dir.path().join("model.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let said = everything(&mut exec).unwrap_err().to_string();
        assert!(said.contains("layer ") && said.contains("model.safetensors"), "{said}");
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(everything(&mut exec).unwrap(), want, "{name}");
    }
}

const LAYERS: usize = 7;

/// Beside a plan, so that what a test's process holds refuses nobody.
const ROOMY: u64 = 256 << 20;

/// A dense model of more layers than the tiny ones have.
fn many_layers() -> tempfile::TempDir {
    let mut model = testkit::model("llama-b").unwrap();
    let (first, mut all): (Vec<_>, Vec<_>) = model.tensors.into_iter().partition(|t| t.name.contains(".layers.0."));
    all.retain(|t| !t.name.contains(".layers."));
    for l in 0..LAYERS {
        let named = |t: &testkit::Tensor| t.name.replace(".layers.0.", &format!(".layers.{l}."));
        all.extend(first.iter().map(|t| testkit::Tensor { name: named(t), ..t.clone() }));
    }
    (model.tensors, model.config["num_hidden_layers"]) = (all, LAYERS.into());
    let dir = tempfile::tempdir().unwrap();
    testkit::write_checkpoint(&model, dir.path()).unwrap();
    dir
}

/// With a byte less than a plan takes one layer more is read, not two; each once a token; and where not even all of them
/// would do, the refusal says what they take.
#[test]
fn as_few_layers_are_read_as_have_to_be_and_a_refusal_names_the_least() {
    let dir = many_layers();
    let want = everything(&mut open(dir.path(), StreamAsk::default())).unwrap();
    let mut how = OpenOptions { more: ROOMY, ..how(StreamAsk::default()) };
    let plan = |how: &OpenOptions| Opened::open(dir.path().to_path_buf()).unwrap().plan(how);
    how.ask.context = engine::Context::Exactly(256);
    let (mut last, mut counts) = (plan(&how).unwrap(), Vec::new());
    let whole = last.total_bytes();
    let e = loop {
        how.ask.guard = last.total_bytes() - 1;
        match plan(&how) {
            Ok(p) => last = p,
            Err(e) => break e,
        }
        let Some(layers) = &last.layers else { continue };
        counts.push(layers.layers.len());
        let opened = Opened::open(dir.path().to_path_buf()).unwrap();
        let mut exec = Model::load(opened, &how, &mut |_| {}).unwrap().exec;
        assert_eq!(everything(&mut exec).unwrap(), want, "{} layers", layers.layers.len());
        let before = exec.cache().unwrap();
        (0..4).for_each(|id| drop(step(&mut exec, id).unwrap()));
        let after = exec.cache().unwrap().since(&before).missed_bytes;
        assert_eq!(after, 4 * layers.read_bytes, "{layers:?}");
    };
    // The last of them gives up segments of prompts.
    counts.dedup();
    assert_eq!(counts, (3..=LAYERS).collect::<Vec<_>>());
    let engine::Error::Refused(Refusal::TooLarge { parts, .. }) = &e else { panic!("{e}") };
    assert_eq!(parts.total(), last.total_bytes());
    assert!(parts.left_out && parts.total() < whole - (1 << 20));
    assert!(e.to_string().contains("however much is read from disk"), "{e}");
    how.ask.guard = parts.total().next_multiple_of(1 << 20);
    assert!(e.to_string().contains(&format!("--memory {}MiB", how.ask.guard >> 20)) && plan(&how).is_ok(), "{e}");
}

#[test]
fn layers_that_changed_are_found_where_somebody_asked_for_it() {
    let dir = many_layers();
    let mut how = OpenOptions { more: ROOMY, ..how(StreamAsk { verify: true, ..StreamAsk::default() }) };
    how.ask.context = engine::Context::Exactly(256);
    let opened = || Opened::open(dir.path().to_path_buf()).unwrap();
    how.ask.guard = opened().plan(&how).unwrap().total_bytes() - (1 << 20);
    let plan = opened().plan(&how).unwrap();
    // The buffers are made twice here.
    let plan = memory::Plan { guard: plan.guard + ROOMY, ..plan };
    let mut exec = Model::load_as(opened(), &how, plan, &mut |_| {}).unwrap().exec;
    assert!(exec.plan().layers.is_some());
    let wrong = Arc::new(AtomicBool::new(false));
    let flag = wrong.clone();
    stream_with(&mut exec, dir.path(), move |f| {
        let flag = flag.clone();
        Box::new(Scripted::new(f, 9, Box::new(move |_| flag.load(Ordering::Relaxed).then_some(Fault::Wrong))))
    });
    let want = everything(&mut exec).unwrap();
    wrong.store(true, Ordering::Relaxed);
    let said = everything(&mut exec).unwrap_err().to_string();
    assert!(said.contains("layer ") && said.contains("others than when it was read first"), "{said}");
    wrong.store(false, Ordering::Relaxed);
    assert_eq!(everything(&mut exec).unwrap(), want);
}

/// What cannot be done is refused with what can, and the least that is named is really had.
#[test]
fn fewer_slots_than_a_token_needs_are_refused_with_the_fewest() {
    for name in ["qwen3_moe-a", "gemma4_moe-a"] {
        let dir = testkit::materialise(name).unwrap();
        let opened = Opened::open(dir.path().to_path_buf()).unwrap();
        let with = |n| opened.plan(&how(StreamAsk { slots: Slots::AtMost(n), ..StreamAsk::default() }));
        let e = with(0).unwrap_err();
        let engine::Error::Refused(Refusal::TooFewSlots { asked: 0, least, top_k }) = e else { panic!("{e}") };
        assert!(least > 1 && top_k > 0 && e.to_string().contains(&format!("take --slots {least} or more")), "{e}");
        assert!(with(least - 1).is_err());
        let p = with(least).unwrap();
        assert_eq!(p.slots.unwrap().pools.iter().map(|p| p.slots).max(), Some(least), "{name}");
        assert!(open(dir.path(), few()).plan().slots.as_ref().unwrap().pools.iter().all(|p| p.slots <= least));
    }
}

/// History takes nothing from slots that were asked for, so that they are no reason for a shorter context.
#[test]
fn slots_that_are_asked_for_do_not_shorten_the_context() {
    let dir = testkit::materialise("qwen3_moe-a").unwrap();
    let opened = Opened::open(dir.path().to_path_buf()).unwrap();
    let mut how = how(few());
    let all = opened.plan(&how).unwrap();
    assert_eq!(all.context, opened.family.spec().context);
    assert!(all.kv_bytes > all.slots.as_ref().unwrap().bytes() / 3, "history is most of it");
    assert!(!opened.has_room_for_more(&how, &all).unwrap(), "that is all the model has");
    // Where memory is the reason, it is one.
    how.ask.guard = all.total_bytes() - all.kv_bytes / 2;
    let less = opened.plan(&how).unwrap();
    assert!(less.context < all.context && !opened.has_room_for_more(&how, &less).unwrap());
}

/// Where experts would have to make room, more would fit.
#[test]
fn a_context_that_leaves_experts_their_room_says_that_more_would_fit() {
    let dir = testkit::materialise("qwen3_moe-a").unwrap();
    let opened = Opened::open(dir.path().to_path_buf()).unwrap();
    let mut how = how(StreamAsk::default());
    let whole = opened.plan(&how).unwrap();
    let mut seen = 0;
    for less in 1..20 {
        how.ask.guard = whole.total_bytes() - less * whole.total_bytes() / 200;
        let Ok(p) = opened.plan(&how) else { break };
        let most =
            opened.plan(&OpenOptions { ask: Ask { context: engine::Context::Most, ..how.ask.clone() }, ..how.clone() });
        assert_eq!(opened.has_room_for_more(&how, &p).unwrap(), most.unwrap().context > p.context, "{less}");
        seen += u32::from(p.context < whole.context);
    }
    assert!(seen > 0);
}
