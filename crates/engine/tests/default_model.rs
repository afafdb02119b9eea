//! The model that the binary carries, from its own file in the repository.

use engine::{Ask, Context, Model, OpenOptions, Request, Sampling, Wanted, generate};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use testkit::Tally;

fn path() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/snug-tiny-moe.gguf"))
}

fn open(ask: Ask) -> Model {
    Model::open(path(), &OpenOptions { ask, ..OpenOptions::default() }, &mut |_| {}).unwrap()
}

fn scored(model: &mut Model, windows: usize) -> Tally {
    let gate = testkit::gate("tiny_moe").unwrap();
    let vocab = model.exec.family().spec().vocab as usize;
    let mut tally = Tally::default();
    for w in &gate.windows[..windows.min(gate.windows.len())] {
        let seq = model.exec.open().unwrap();
        let no = AtomicBool::new(false);
        let all = model.exec.prefill(seq, &w.ids, Wanted::All, &no, &mut |_| {}).unwrap();
        model.exec.close(seq).unwrap();
        for (row, logits) in all.chunks_exact(vocab).enumerate().take(w.nll.len()) {
            tally.add(w, row, logits);
        }
    }
    tally
}

/// Four bits cost what they cost: 0.02 nats on its own kind of text, a token in eight on the rest.
#[test]
fn it_is_as_good_as_four_bits_let_it_be() {
    let mut model = open(Ask { logit_rows: 256, context: Context::Exactly(1024), ..Ask::default() });
    let tally = scored(&mut model, usize::MAX);
    assert!(tally.rows() > 4000);
    assert!(tally.delta_nll() < 0.05, "delta-NLL {}", tally.delta_nll());
    assert!(tally.top1_agreement() > 0.85, "top-1 agreement {}", tally.top1_agreement());
}

/// Used where it lies, as in the program, it costs what the plan says and nothing is copied.
#[test]
fn embedded_bytes_are_counted_and_used_in_place() {
    let bytes: &'static [u8] = std::fs::read(path()).unwrap().leak();
    let how = OpenOptions::default();
    let model = Model::open(checkpoint::Source::Embedded(bytes), &how, &mut |_| {}).unwrap();
    let (plan, usage) = (model.exec.plan(), model.exec.ledger().usage());
    let pages = plan.kv_bytes;
    assert_eq!(usage[&memory::Tier::Host].reserved(), plan.reserved_bytes() - pages, "pages come with positions");
}

#[test]
fn its_answers_follow_seed_and_defaults() {
    let mut model = open(Ask::default());
    assert_eq!((model.sampling.temperature, model.sampling.top_k), (0.8, 16));
    let t = model.tokenizer.as_ref().unwrap();
    let prompt =
        t.encode("<|im_start|>user\nTell me a story<|im_end|>\n<|im_start|>assistant\n", text::Specials::Parse);
    let prompt = prompt.unwrap();
    let mut ask = |seed, temperature| {
        let sampling = Sampling { seed, temperature, ..model.sampling.clone() };
        let req = Request { prompt: prompt.clone(), sampling, max_tokens: Some(24), ..Request::default() };
        let seq = model.exec.open().unwrap();
        let no = AtomicBool::new(false);
        let mut streamed = String::new();
        let mut on = |e: engine::Event| {
            if let engine::Event::Text(s) = e {
                streamed.push_str(s);
            }
        };
        let a = generate(&mut model.exec, model.tokenizer.as_ref(), seq, &req, &no, &mut on).unwrap();
        model.exec.close(seq).unwrap();
        assert_eq!(streamed, a.text, "what was streamed is the answer");
        a.ids
    };
    let first = ask(7, 0.8);
    assert_eq!(first.len(), 24);
    assert_eq!(ask(7, 0.8), first);
    assert_ne!(ask(8, 0.8), first);
    assert_eq!(ask(1, 0.0), ask(2, 0.0), "greedy ignores the seed");
}

/// A plan may not promise what the model was not trained for, and a prompt may not outgrow the plan.
#[test]
fn more_context_than_the_model_has_is_refused() {
    let ask = Ask { context: Context::Exactly(4096), ..Ask::default() };
    let how = OpenOptions { ask, ..OpenOptions::default() };
    let e = Model::open(path(), &how, &mut |_| {}).err().unwrap().to_string();
    assert!(e.contains("4096") && e.contains("2048"), "{e}");
    let mut model = open(Ask { context: Context::Exactly(256), ..Ask::default() });
    let seq = model.exec.open().unwrap();
    let req = Request { prompt: vec![5; 300], ..Request::default() };
    let e = generate(&mut model.exec, None, seq, &req, &AtomicBool::new(false), &mut |_| {}).unwrap_err().to_string();
    assert!(e.contains("300") && e.contains("256") && e.contains("2048"), "{e}");
}

#[test]
fn a_guard_too_small_refuses_before_reading_and_says_what_is_needed() {
    let ask = Ask { guard: 10 << 20, ..Ask::default() };
    let how = OpenOptions { ask, ..OpenOptions::default() };
    let e = Model::open(path(), &how, &mut |_| panic!("nothing may be read")).err().unwrap().to_string();
    assert!(e.contains("10 MiB may be used") && e.contains("a smaller model"), "{e}");
    // With room for the weights but not for the whole context, some experts stay on disk, or less context is taken.
    let kv = Some(memory::KvSpec::of(memory::KvFormat::Bf16));
    let all = open(Ask { kv, ..Ask::default() }).exec.plan().clone();
    let less = open(Ask { kv, guard: all.total_bytes() - all.kv_bytes / 2, ..Ask::default() }).exec.plan().clone();
    assert!(less.context < all.context || less.resident_bytes() < all.resident_bytes());
    assert!(less.total_bytes() <= less.guard);
}
