//! The multi-token predictor: its logits are those of transformers' modules, and speculation with it is greedy decoding.

use device::CpuOptions;
use engine::draft::speculate;
use engine::open::On;
use engine::{Ask, Executor, Model, OpenOptions, Wanted, argmax};
use std::sync::atomic::AtomicBool;
use testkit::Expected;

const TOLERANCE: f32 = 1e-4;

fn drafting() -> impl Iterator<Item = &'static str> {
    testkit::NAMES.iter().copied().filter(|n| testkit::expected(n).unwrap().mtp.is_some())
}

fn open(path: std::path::PathBuf, on: On, draft: u32) -> Model {
    let ask = Ask { logit_rows: 256, few: 8, draft, ..Ask::default() };
    Model::open(path, &OpenOptions { ask, on, ..OpenOptions::default() }, &mut |_| {}).unwrap()
}

fn tiny(name: &str, on: On) -> (Model, Expected, tempfile::TempDir) {
    let dir = testkit::materialise(name).unwrap();
    (open(dir.path().to_path_buf(), on, 4), testkit::expected(name).unwrap(), dir)
}

fn cpu() -> On {
    On::Cpu(CpuOptions::default())
}

fn prefill(exec: &mut Executor, ids: &[u32]) -> (engine::SeqId, Vec<f32>) {
    let seq = exec.open().unwrap();
    let logits = exec.prefill(seq, ids, Wanted::Last, &AtomicBool::new(false), &mut |_| {}).unwrap();
    (seq, logits)
}

/// Row t of the expected numbers has token t + 1, so it is row t + 1 of the `n` here.
fn check_rows(got: &[f32], want: &testkit::Expected, n: usize, name: &str) {
    let mtp = want.mtp.as_ref().unwrap();
    let vocab = mtp.logits[0].values.len();
    let row = |t: usize| &got[(t + 1) * vocab..(t + 2) * vocab];
    for r in mtp.logits.iter().filter(|r| r.position + 1 < n) {
        let off = row(r.position).iter().zip(&r.values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < TOLERANCE, "{name}: the predictor's logits of row {} are off by {off}", r.position);
    }
    for (t, (&best, &gap)) in mtp.argmax.iter().zip(&mtp.top2_gap).enumerate().take(n - 1) {
        let ours = argmax(row(t)).unwrap();
        assert!(ours == best || gap < 2.0 * TOLERANCE, "{name}: row {t} prefers {ours}, not {best}");
    }
}

#[test]
fn the_predictors_logits_are_those_of_transformers() {
    let mut seen = 0;
    for name in drafting() {
        // The reference is slow: two chunks of it.
        for (on, n) in [(On::Reference, 130), (cpu(), usize::MAX)] {
            let (mut model, want, _dir) = tiny(name, on);
            let seq = model.exec.open().unwrap();
            let n = n.min(want.ids.len());
            let (_, ahead) = model.exec.foretell(seq, &want.ids[..n]).unwrap();
            check_rows(&ahead, &want, n, name);
        }
        seen += 1;
    }
    assert!(seen >= 4, "only {seen} tiny models have a predictor");
}

#[test]
fn drafts_are_those_of_transformers_and_leave_no_trace() {
    for name in drafting() {
        let (mut model, want, _dir) = tiny(name, cpu());
        let (exec, mtp) = (&mut model.exec, want.mtp.unwrap());
        let (seq, logits) = prefill(exec, &want.ids[..want.greedy.prompt]);
        assert_eq!(argmax(&logits), Some(mtp.draft_first), "{name}");
        let before = exec.len(seq).unwrap();
        for n in [1, 4] {
            let drafts = exec.draft(seq, mtp.draft_first, n, &mut |l| argmax(l)).unwrap();
            assert_eq!(drafts, mtp.draft[..n as usize], "{name}");
        }
        assert_eq!(exec.len(seq).unwrap(), before);
        let next = exec.decode(&[(seq, mtp.draft_first)]).unwrap();
        assert_eq!(argmax(&next), Some(want.greedy.ids[1]), "{name}");
    }
}

/// Greedy tokens one by one, and by rounds of speculation, with how many of the drafts were right.
fn both_ways(model: &mut Model, prompt: &[u32], n: usize, draft: u32) -> (Vec<u32>, Vec<u32>, usize, usize) {
    let exec = &mut model.exec;
    let (seq, logits) = prefill(exec, prompt);
    let mut plain = vec![argmax(&logits).unwrap()];
    while plain.len() < n {
        let logits = exec.decode(&[(seq, plain[plain.len() - 1])]).unwrap();
        plain.push(argmax(&logits).unwrap());
    }
    exec.close(seq).unwrap();
    let (seq, logits) = prefill(exec, prompt);
    let mut fast = vec![argmax(&logits).unwrap()];
    let (mut drafted, mut right) = (0, 0);
    while fast.len() < n {
        let round = speculate(exec, seq, fast[fast.len() - 1], draft).unwrap();
        drafted += round.drafted;
        right += round.ids.len() - 1;
        fast.extend(round.ids);
    }
    exec.close(seq).unwrap();
    fast.truncate(n);
    (plain, fast, drafted, right)
}

#[test]
fn speculation_gives_the_tokens_of_greedy_decoding() {
    for name in drafting() {
        let (mut model, want, _dir) = tiny(name, cpu());
        for draft in [1, 3, 4] {
            // Across a page of 256 positions and a chunk of 64.
            for prompt in [1, 41, 250] {
                let (plain, fast, ..) = both_ways(&mut model, &want.ids[..prompt], 24, draft);
                assert_eq!(plain, fast, "{name}: {prompt} tokens of prompt, {draft} drafted");
            }
        }
    }
}

/// What a predictor keeps is the same whether rows came as a prompt, one by one, or were drafted and rejected in between.
#[test]
fn drafts_do_not_depend_on_how_rows_came() {
    for name in drafting() {
        let (mut model, want, _dir) = tiny(name, cpu());
        let exec = &mut model.exec;
        let ids = &want.ids[..70];
        let drafts = |exec: &mut Executor, seq| exec.draft(seq, want.ids[70], 4, &mut |l| argmax(l)).unwrap();
        let (seq, _) = prefill(exec, ids);
        let whole = drafts(exec, seq);
        exec.close(seq).unwrap();
        let (seq, _) = prefill(exec, &ids[..64]);
        for &id in &ids[64..67] {
            exec.decode(&[(seq, id)]).unwrap();
        }
        exec.draft(seq, 5, 4, &mut |l| argmax(l)).unwrap();
        exec.verify(seq, &[ids[67], ids[68], ids[69], 7, 9], |_| 3).unwrap();
        assert_eq!(drafts(exec, seq), whole, "{name}");
        exec.close(seq).unwrap();
    }
}

#[test]
fn the_ledger_holds_the_predictor_and_a_real_draft_takes_the_metered_workspace() {
    for name in drafting() {
        let (mut model, want, _dir) = tiny(name, cpu());
        let (plan, usage) = (model.exec.plan().clone(), model.exec.ledger().usage());
        let empty = plan.reserved_bytes() - plan.kv_bytes;
        assert_eq!(usage[&memory::Tier::Host].reserved(), empty, "{name}: pages come with positions");
        let (seq, _) = prefill(&mut model.exec, &want.ids[..300]);
        speculate(&mut model.exec, seq, 3, 4).unwrap();
        assert!(model.exec.device().arena().high_water(device::Region::Step) <= plan.workspace.step, "{name}");
    }
    let dir = testkit::materialise("qwen3_5-a").unwrap();
    let mut plain = open(dir.path().to_path_buf(), cpu(), 0);
    let seq = plain.exec.open().unwrap();
    assert!(matches!(plain.exec.draft(seq, 1, 1, &mut |_| None), Err(engine::Error::NoDrafter)));
    let dir = testkit::materialise("qwen3-a").unwrap();
    assert_eq!(open(dir.path().to_path_buf(), cpu(), 4).exec.plan().draft, 0, "nothing drafts in Qwen3");
}

/// The trained model in the repository accepts most of what its predictor proposes.
#[test]
fn the_built_in_models_predictor_is_mostly_right() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/snug-tiny-moe.gguf");
    let mut model = open(path.into(), cpu(), 4);
    let t = model.tokenizer().unwrap();
    let text = "<|im_start|>user\nTell me a story about a lighthouse<|im_end|>\n<|im_start|>assistant\n";
    let ids = t.encode(text, text::Specials::Parse).unwrap();
    let (plain, fast, drafted, right) = both_ways(&mut model, &ids, 96, 1);
    assert_eq!(plain, fast);
    let share = right as f64 / drafted as f64;
    println!("{right} of {drafted} drafts were right");
    assert!(share > 0.7, "{right} of {drafted}");
}
