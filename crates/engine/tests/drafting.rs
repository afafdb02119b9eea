//! The multi-token predictor: its logits are those of transformers' modules, and speculation with it is greedy decoding.

use device::CpuOptions;
use engine::draft;
use engine::open::On;
use engine::plan::Predictor;
use engine::{
    Answer, Ask, Executor, Finish, Model, OpenOptions, Request, Sampler, Sampling, SeqId, Wanted, argmax, generate,
};
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

fn prefill(exec: &mut Executor, ids: &[u32]) -> (SeqId, Vec<f32>) {
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

/// One round of up to `n` drafts behind `last`, with what a sampler would draw: the tokens that came of it, and how many were
/// drafted.
fn speculate(exec: &mut Executor, seq: SeqId, last: u32, n: u32, sampler: &mut Sampler) -> (Vec<u32>, usize) {
    let (mut ids, mut guess) = (Vec::new(), sampler.guesser());
    let guess = |logits: &mut [f32], at| guess.sample(logits, at).ok().map(|c| c.id);
    let choose = |logits: &mut [f32], at| {
        let id = sampler.sample(logits, at)?.id;
        ids.push(id);
        Ok(Some(id))
    };
    let made = draft::round(exec, seq, (last, n), guess, choose).unwrap();
    assert_eq!(made.made as usize, ids.len());
    (ids, made.drafted as usize)
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
    let mut greedy = Sampler::new(Sampling::greedy(), prompt, exec.family().spec().vocab);
    let (mut drafted, mut right) = (0, 0);
    while fast.len() < n {
        let (ids, tried) = speculate(exec, seq, fast[fast.len() - 1], draft, &mut greedy);
        drafted += tried;
        right += ids.len() - 1;
        fast.extend(ids);
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
        let mut greedy = Sampler::new(Sampling::greedy(), &[], model.exec.family().spec().vocab);
        speculate(&mut model.exec, seq, 3, 4, &mut greedy);
        assert!(model.exec.device().arena().high_water(device::Region::Step) <= plan.workspace.step, "{name}");
    }
    let dir = testkit::materialise("qwen3_5-a").unwrap();
    let mut plain = open(dir.path().to_path_buf(), cpu(), 0);
    let seq = plain.exec.open().unwrap();
    assert!(matches!(plain.exec.draft(seq, 1, 1, &mut |_| None), Err(engine::Error::NoDrafter)));
    let dir = testkit::materialise("qwen3-a").unwrap();
    assert_eq!(open(dir.path().to_path_buf(), cpu(), 4).exec.plan().draft, 0, "nothing drafts in Qwen3");
}

fn built_in(draft: u32) -> Model {
    open(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/snug-tiny-moe.gguf").into(), cpu(), draft)
}

fn asked(model: &Model, question: &str) -> Vec<u32> {
    let text = format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n");
    model.tokenizer().unwrap().encode(&text, text::Specials::Parse).unwrap()
}

/// The trained model in the repository accepts most of what its predictor proposes.
#[test]
fn the_built_in_models_predictor_is_mostly_right() {
    let mut model = built_in(4);
    let ids = asked(&model, "Tell me a story about a lighthouse");
    let (plain, fast, drafted, right) = both_ways(&mut model, &ids, 96, 1);
    assert_eq!(plain, fast);
    let share = right as f64 / drafted as f64;
    println!("{right} of {drafted} drafts were right");
    assert!(share > 0.7, "{right} of {drafted}");
}

fn answer(m: &mut Model, req: &Request) -> (Answer, u32) {
    let seq = m.exec.open().unwrap();
    let t = m.tokenizer.as_ref();
    let a = generate(&mut m.exec, t, seq, req, &AtomicBool::new(false), &mut |_| {}).unwrap();
    let len = m.exec.len(seq).unwrap();
    m.exec.close(seq).unwrap();
    (a, len)
}

/// Greedy and drawn, with penalties, to a length, a stop text and a full context: the text, the reason of its end and what the
/// sequence holds are those without drafts.
#[test]
fn answers_with_drafts_are_those_without() {
    let (mut plain, mut fast) = (built_in(0), built_in(3));
    let prompt = asked(&plain, "Write a short story about a baker and a hedgehog.");
    let drawn = |seed| Sampling { temperature: 0.8, top_k: 16, seed, ..Sampling::default() };
    let req = |sampling, n| Request { prompt: prompt.clone(), sampling, max_tokens: Some(n), ..Request::default() };
    let long: Vec<u32> = prompt.iter().copied().cycle().take(2_048 - 9).collect();
    let all = [
        req(Sampling::greedy(), 1),
        req(Sampling::greedy(), 2),
        req(Sampling::greedy(), 61),
        req(drawn(1), 80),
        req(Sampling { logprobs: Some(2), ..drawn(2) }, 40),
        req(Sampling { repetition_penalty: 1.3, frequency_penalty: 0.5, ..drawn(3) }, 60),
        Request { stop: vec!["the".into()], ..req(drawn(4), 200) },
        Request { prompt: long, max_tokens: None, ignore_eos: true, ..req(Sampling::greedy(), 1) },
    ];
    let (mut drafted, mut ends) = (0, Vec::new());
    for (i, req) in all.iter().enumerate() {
        let (want, len) = answer(&mut plain, req);
        let (got, there) = answer(&mut fast, req);
        assert_eq!((&got.ids, &got.text, got.finish, there), (&want.ids, &want.text, want.finish, len), "request {i}");
        assert_eq!(got.choices, want.choices, "request {i}");
        assert_eq!((want.drafts.drafted, got.behind), (0, want.behind), "request {i}");
        drafted += got.drafts.drafted;
        ends.push(want.finish);
    }
    assert!(drafted > 20, "hardly anything was drafted: {drafted}");
    assert!([Finish::Length, Finish::Stop, Finish::ContextFull].iter().all(|f| ends.contains(f)), "{ends:?}");
}

/// Tokens that are drawn with drafts have the model's own distribution: `draws` pairs of tokens behind a prompt beside the
/// softmax of the logits that they were drawn from. The vocabulary is what top-k leaves.
fn draws_follow_the_model(draws: u64) {
    let (mut model, want, _dir) = tiny("qwen3_5-a", cpu());
    let (exec, prompt) = (&mut model.exec, &want.ids[..3]);
    let how = |seed| Sampling { temperature: 1.5, top_k: 6, seed, ..Sampling::default() };
    let vocab = exec.family().spec().vocab;
    let (mut first, mut second) = (Counts::default(), std::collections::BTreeMap::<u32, Counts>::new());
    let (mut drafted, mut right) = (0, 0);
    for seed in 0..draws {
        let seq = exec.open().unwrap();
        exec.verify(seq, &prompt[..2], |_| 2).unwrap();
        let mut sampler = Sampler::new(how(seed), prompt, vocab);
        let mut made = Vec::new();
        while made.len() < 2 {
            let last = made.last().copied().unwrap_or(prompt[2]);
            let (ids, tried) = speculate(exec, seq, last, 1, &mut sampler);
            (drafted, right) = (drafted + tried, right + ids.len() - 1);
            made.extend(ids);
        }
        exec.close(seq).unwrap();
        first.add(made[0]);
        second.entry(made[0]).or_default().add(made[1]);
    }
    println!("{right} of {drafted} drafts were right");
    assert!(right * 50 > drafted && right < drafted, "both ends of a round must be seen: {right} of {drafted}");
    let mut probabilities = |behind: &[u32]| {
        let seq = exec.open().unwrap();
        let rows = exec.verify(seq, behind, |_| 0).unwrap();
        exec.close(seq).unwrap();
        softmax_of_largest(&rows[rows.len() - vocab as usize..], 6, 1.5)
    };
    first.check(&probabilities(prompt));
    for (id, counts) in second {
        counts.check(&probabilities(&[prompt, &[id]].concat()));
    }
}

/// How often each token was drawn.
#[derive(Default)]
struct Counts(std::collections::BTreeMap<u32, u64>);

impl Counts {
    fn add(&mut self, id: u32) {
        *self.0.entry(id).or_default() += 1;
    }
    /// Pearson's test: the sum over tokens of `(seen - expected)^2 / expected`. A right sampler stays below mean + 5 standard
    /// deviations of chi-square but for once in some hundred thousands of seeds; a wrong one grows with the draws.
    fn check(&self, p: &[(u32, f64)]) {
        let n: u64 = self.0.values().sum();
        let of = |(id, p): &(u32, f64)| (*self.0.get(id).unwrap_or(&0) as f64, p * n as f64);
        let all: Vec<(f64, f64)> = p.iter().map(of).collect();
        assert_eq!(all.iter().map(|a| a.0).sum::<f64>(), n as f64, "a token that cannot be was drawn");
        // Tokens that are hardly ever expected are one cell.
        let (rare, usual): (Vec<_>, Vec<_>) = all.into_iter().partition(|a| a.1 < 5.0);
        let rare = rare.into_iter().fold((0.0, 0.0), |a: (f64, f64), b| (a.0 + b.0, a.1 + b.1));
        let cells: Vec<_> = usual.into_iter().chain((rare.1 > 0.0).then_some(rare)).collect();
        let (x2, df) = (cells.iter().map(|(o, e)| (o - e).powi(2) / e).sum::<f64>(), cells.len() as f64 - 1.0);
        assert!(x2 <= df + 5.0 * (2.0 * df).sqrt() + 8.0, "chi-square is {x2} at {df} degrees of freedom");
    }
}

/// The `k` likeliest tokens of a row with their probabilities among themselves.
fn softmax_of_largest(row: &[f32], k: usize, temperature: f64) -> Vec<(u32, f64)> {
    let mut all: Vec<(u32, f64)> = (0..).zip(row.iter().map(|&x| f64::from(x) / temperature)).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(k);
    let best = all[0].1;
    all.iter_mut().for_each(|a| a.1 = (a.1 - best).exp());
    let sum: f64 = all.iter().map(|a| a.1).sum();
    all.into_iter().map(|(id, w)| (id, w / sum)).collect()
}

#[test]
fn drawn_tokens_have_the_models_distribution() {
    draws_follow_the_model(3_000);
}

/// A predictor that is leased comes when it drafts, knows what was decoded while it was away, and gives way to history.
#[test]
fn a_leased_predictor_comes_goes_and_misses_nothing() {
    for name in drafting() {
        let dir = testkit::materialise(name).unwrap();
        let want = testkit::expected(name).unwrap();
        let load = |predictor, guard| {
            let ask =
                Ask { few: 8, draft: 4, predictor, guard, context: engine::Context::Exactly(512), ..Ask::default() };
            let how = OpenOptions { ask, on: cpu(), ..OpenOptions::default() };
            Model::open(dir.path().to_path_buf(), &how, &mut |_| {}).unwrap()
        };
        let mut resident = load(Predictor::Resident, u64::MAX);
        let mut leased = load(Predictor::Leased, u64::MAX);
        let held = |m: &Model| m.exec.ledger().usage()[&memory::Tier::Host].by_class[&memory::Class::Weights];
        let (away, all) = (held(&leased), held(&resident));
        assert_eq!(all - away, leased.exec.plan().leased_bytes(), "{name}");
        let first = |m: &mut Model| {
            let (seq, _) = prefill(&mut m.exec, &want.ids[..66]);
            want.ids[66..70].iter().for_each(|&id| drop(m.exec.decode(&[(seq, id)]).unwrap()));
            seq
        };
        let (a, b) = (first(&mut resident), first(&mut leased));
        let drafts = |m: &mut Model, seq| m.exec.draft(seq, want.ids[70], 4, &mut |l| argmax(l));
        assert!(matches!(drafts(&mut leased, b), Err(engine::Error::NoDrafter)), "{name}: it is away");
        assert!(leased.exec.may_draft());
        assert_eq!(held(&leased), all);
        assert_eq!(drafts(&mut leased, b).unwrap(), drafts(&mut resident, a).unwrap(), "{name}");
        leased.exec.release_drafter().unwrap();
        assert_eq!(held(&leased), away);
        // While it is away tokens are decoded; nothing is read again when it comes back.
        [&mut resident, &mut leased].into_iter().zip([a, b]).for_each(|(m, seq)| {
            drop(m.exec.decode(&[(seq, want.ids[70])]).unwrap());
        });
        assert!(leased.exec.may_draft());
        assert_eq!(drafts(&mut leased, b).unwrap(), drafts(&mut resident, a).unwrap(), "{name}");
        let l = leased.exec.leased().unwrap();
        assert_eq!((l.here, l.attached, l.refused), (true, 2, 0));
        assert!(l.attaching >= l.last && l.last > std::time::Duration::ZERO);
    }
}

/// Where memory holds either the predictor or a full history, history wins, and answers are those without drafts.
#[test]
fn a_leased_predictor_gives_way() {
    let (mut plain, dir) = (built_in(0), concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/snug-tiny-moe.gguf"));
    let load = |guard| {
        let predictor = Predictor::Leased;
        let ask = Ask { few: 8, draft: 3, predictor, guard, context: engine::Context::Exactly(2048), ..Ask::default() };
        Model::open(
            std::path::PathBuf::from(dir),
            &OpenOptions { ask, on: cpu(), ..OpenOptions::default() },
            &mut |_| {},
        )
    };
    let all = load(u64::MAX).unwrap().exec.plan().clone();
    let mut tight = load(all.total_bytes()).unwrap();
    let prompt = asked(&plain, "Tell me a story about a lighthouse");
    let req = Request { prompt, max_tokens: Some(120), sampling: Sampling::greedy(), ..Request::default() };
    let want = answer(&mut plain, &req).0;
    let got = answer(&mut tight, &req).0;
    assert_eq!(got.ids, want.ids);
    let l = tight.exec.leased().unwrap();
    assert!(l.bytes > all.kv_bytes && l.attached == 0 && l.refused > 0, "{l:?}: a full history is promised");
    // With room for it, it comes; whoever needs the room has it back.
    let mut roomy = load(1 << 40).unwrap();
    let seq = roomy.exec.open().unwrap();
    assert!(roomy.exec.may_draft());
    let ledger = roomy.exec.ledger().clone();
    let free = ledger.usage()[&memory::Tier::Host].free();
    let rest = ledger.reserve(memory::Tier::Host, memory::Class::Workspace, "a test", free).unwrap();
    assert!(roomy.exec.snapshot(seq, state::Park::F32).is_ok());
    assert!(!roomy.exec.leased().unwrap().here, "a snapshot took its room");
    drop(rest);
    roomy.exec.close(seq).unwrap();
    assert_eq!(answer(&mut roomy, &req).0.ids, want.ids);
}

mod long {
    use super::*;

    #[test]
    fn two_hundred_thousand_draws_have_the_models_distribution() {
        draws_follow_the_model(200_000);
    }

    #[test]
    fn five_thousand_greedy_tokens_are_those_of_plain_decoding() {
        let mut model = built_in(4);
        let (mut all, mut right, mut drafted) = (0, 0, 0);
        for (i, question) in QUESTIONS.iter().enumerate() {
            let ids = asked(&model, question);
            let (plain, fast, d, r) = both_ways(&mut model, &ids, 640, 1 + i as u32 % 4);
            assert_eq!(plain, fast, "{question}");
            (all, drafted, right) = (all + plain.len(), drafted + d, right + r);
        }
        println!("{all} tokens, {right} of {drafted} drafts were right");
        assert!(all >= 5_000);
    }

    /// Of greedy tokens behind each prompt the predictor's guess at every one but the first, made from the model's own tokens
    /// before it: how many were right, and how many there were.
    fn foretold(model: &mut Model, prompt: &[u32], n: usize) -> (usize, usize) {
        let exec = &mut model.exec;
        let (seq, logits) = prefill(exec, prompt);
        let mut made = vec![argmax(&logits).unwrap()];
        while made.len() < n {
            let logits = exec.decode(&[(seq, made[made.len() - 1])]).unwrap();
            made.push(argmax(&logits).unwrap());
        }
        exec.close(seq).unwrap();
        let seq = exec.open().unwrap();
        let (_, ahead) = exec.foretell(seq, &[prompt, &made[..n - 1]].concat()).unwrap();
        exec.close(seq).unwrap();
        let guesses = ahead.chunks_exact(exec.family().spec().vocab as usize).skip(prompt.len());
        (guesses.zip(&made[1..]).filter(|(row, id)| argmax(row) == Some(**id)).count(), n - 1)
    }

    /// All guesses at the first 65 greedy tokens behind 32 prompts, in thousandths.
    fn foretold_of_questions(model: &mut Model) -> usize {
        let subjects =
            ["a baker and a hedgehog", "a dragon in a snowy mountain", "a teacher and a blue stone", "the sea"];
        let forms = [
            "Write a gentle story about",
            "Tell me a silly story about",
            "Write a short poem about",
            "Write a letter about",
        ];
        let told = forms.iter().flat_map(|f| subjects.iter().map(move |s| format!("{f} {s}.")));
        let things = ["gravity", "photosynthesis", "the moon", "volcanoes"];
        let asks = ["What is", "Explain to a beginner what is", "List five facts about", "Why do people like"];
        let asked_of = asks.iter().flat_map(|a| things.iter().map(move |t| format!("{a} {t}?")));
        let (mut right, mut of) = (0, 0);
        for question in told.chain(asked_of) {
            let ids = asked(model, &question);
            let (r, n) = foretold(model, &ids, 65);
            (right, of) = (right + r, of + n);
        }
        println!("{right} of {of} guesses were right behind questions");
        1000 * right / of
    }

    #[test]
    fn most_of_what_the_built_in_models_predictor_guesses_is_right() {
        assert!(foretold_of_questions(&mut built_in(1)) >= 820);
    }

    /// Where `SNUG_TRAINED` names the directory of the checkpoint that the built-in model was made from, with its
    /// `reference.json`: its guesses are right as often as those of transformers in f32 behind the same prompts, and those of the
    /// built-in model as often as its own, within two in a hundred.
    #[test]
    fn guesses_of_the_trained_checkpoint_are_right_as_often_as_in_transformers() {
        let Some(dir) = std::env::var_os("SNUG_TRAINED").map(std::path::PathBuf::from) else {
            return println!("left out: SNUG_TRAINED names no directory");
        };
        let json = std::fs::read_to_string(dir.join("reference.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let mut model = open(dir, cpu(), 1);
        let (mut right, mut want, mut of) = (0, 0, 0);
        for p in json["prompts"].as_array().unwrap() {
            let list =
                |key: &str| p[key].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect::<Vec<_>>();
            let (r, n) = foretold(&mut model, &list("token_ids"), 32);
            (right, of) = (right + r, of + n);
            want += list("mtp_accepted").iter().sum::<u32>() as usize;
        }
        println!("{right} of {of} guesses were right, {want} in transformers");
        assert!(right.abs_diff(want) * 50 <= of, "{right} of {of}, {want} in transformers");
        let (own, built_in) = (foretold_of_questions(&mut model), foretold_of_questions(&mut built_in(1)));
        assert!(own.abs_diff(built_in) <= 20, "{own} and {built_in} in a thousand");
    }

    const QUESTIONS: [&str; 8] = [
        "Write a gentle story about a baker and a hedgehog.",
        "Tell me a silly story about a dragon in a snowy mountain.",
        "Write a short story about a teacher who finds a blue stone in an old castle.",
        "What is photosynthesis? Explain it to a child in three sentences.",
        "List five healthy breakfasts.",
        "Explain gravity to a beginner.",
        "What is the capital of France?",
        "Write a Python function that checks if a number is prime.",
    ];
}
