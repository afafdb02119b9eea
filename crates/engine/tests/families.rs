//! Every family against numbers of transformers, on checkpoints made of f32 weights and computed in f32.

use device::CpuOptions;
use engine::open::On;
use engine::{Ask, Executor, Model, OpenOptions, Wanted, argmax};
use std::sync::atomic::AtomicBool;
use testkit::Expected;

const MODELS: &[&str] = testkit::NAMES;
/// Those whose layers see windows.
const WINDOWED: [&str; 9] = [
    "gpt_oss-a",
    "gpt_oss-b",
    "gemma3-a",
    "gemma3-b",
    "gemma4-a",
    "gemma4_moe-a",
    "gemma4_moe-b",
    "gemma4_e-a",
    "gemma4_e-b",
];
/// Logits are about ±3; f32 sums in another order move them by about 1e-5.
const TOLERANCE: f32 = 1e-4;

/// Gemma 4 does not scale its scores and norms everything twice, so that roundings show more; the same holds for sums over
/// many hundred positions.
fn tolerance(name: &str, position: usize) -> f32 {
    if name.starts_with("gemma4") || position >= 512 { 3.0 * TOLERANCE } else { TOLERANCE }
}

struct Rig {
    model: Model,
    expected: Expected,
    _dir: tempfile::TempDir,
}

fn rig(name: &str, on: On) -> Rig {
    rig_with(name, on, Ask::default())
}

fn rig_with(name: &str, on: On, ask: Ask) -> Rig {
    let dir = testkit::materialise(name).unwrap();
    let ask = Ask { logit_rows: 256, few: 8, parallel: 4, ..ask };
    let model =
        Model::open(dir.path().to_path_buf(), &OpenOptions { ask, on, ..OpenOptions::default() }, &mut |_| {}).unwrap();
    Rig { model, expected: testkit::expected(name).unwrap(), _dir: dir }
}

fn cpu() -> On {
    On::Cpu(CpuOptions::default())
}

/// Logits of every position, the prompt given in parts of these lengths, each part a prefill call of its own.
fn prefilled(exec: &mut Executor, ids: &[u32], parts: &[usize]) -> Vec<f32> {
    let seq = exec.open().unwrap();
    let (mut all, mut at) = (Vec::new(), 0);
    for &n in parts {
        let part = &ids[at..(at + n).min(ids.len())];
        all.extend(exec.prefill(seq, part, Wanted::All, &AtomicBool::new(false), &mut |_| {}).unwrap());
        at += part.len();
    }
    assert_eq!(at, ids.len(), "parts do not cover the prompt");
    exec.close(seq).unwrap();
    all
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| if a.is_finite() { (a - b).abs() } else { f32::INFINITY }).fold(0.0, f32::max)
}

/// The first `n` positions.
fn check_logits(name: &str, on: On, n: usize) {
    let Rig { mut model, expected, _dir } = rig(name, on);
    let n = n.min(expected.ids.len());
    let got = prefilled(&mut model.exec, &expected.ids[..n], &[n]);
    let vocab = model.exec.family().spec().vocab as usize;
    for row in expected.logits.iter().filter(|r| r.position < n) {
        let at = row.position;
        let off = worst(&got[at * vocab..(at + 1) * vocab], &row.values);
        assert!(off < tolerance(name, at), "{name}: logits at position {at} are off by {off}");
    }
    for (at, (&best, &gap)) in expected.argmax.iter().zip(&expected.top2_gap).enumerate().take(n) {
        let ours = argmax(&got[at * vocab..(at + 1) * vocab]).unwrap();
        assert!(ours == best || gap < 2.0 * tolerance(name, at), "{name}: position {at} prefers {ours}, not {best}");
    }
}

#[test]
fn reference_logits_are_those_of_transformers() {
    // It is slow, and every op of it is compared with the CPU kernels besides.
    MODELS.iter().for_each(|m| check_logits(m, On::Reference, 130));
}

#[test]
fn cpu_logits_are_those_of_transformers() {
    MODELS.iter().for_each(|m| check_logits(m, cpu(), usize::MAX));
}

#[test]
fn greedy_continuations_and_decode_steps_are_those_of_transformers() {
    for name in MODELS {
        let Rig { mut model, expected, _dir } = rig(name, cpu());
        let (exec, greedy) = (&mut model.exec, &expected.greedy);
        let seq = exec.open().unwrap();
        let no = AtomicBool::new(false);
        let prompt = &expected.ids[..greedy.prompt];
        let mut logits = exec.prefill(seq, prompt, Wanted::Last, &no, &mut |_| {}).unwrap();
        for (&want, &gap) in greedy.ids.iter().zip(&greedy.top2_gap) {
            assert!(gap > 2.0 * tolerance(name, 0), "{name}: a near tie proves nothing");
            assert_eq!(argmax(&logits), Some(want), "{name}");
            logits = exec.decode(&[(seq, want)]).unwrap();
        }
    }
}

/// One of each kind of layer, in every shape that differs.
const PREFILLED: [&str; 7] =
    ["llama-b", "qwen3-b", "qwen3_moe-b", "qwen3_next-b", "qwen3_5-b", "qwen3_5_moe-a", "qwen3_5_moe-b"];
/// Prompt lengths around the recurrent chunk of 64, the page of 256 and the prefill chunk.
const LENGTHS: [usize; 7] = [1, 63, 64, 65, 200, 257, 600];

#[test]
fn prefill_in_parts_on_the_grid_agrees_to_the_bit() {
    for name in PREFILLED.into_iter().chain(WINDOWED).chain(["glm4_moe-b"]) {
        let Rig { mut model, expected, _dir } = rig(name, cpu());
        for n in LENGTHS {
            let ids = &expected.ids[..n];
            let whole = prefilled(&mut model.exec, ids, &[n]);
            for parts in [vec![64; n.div_ceil(64)], vec![192; n.div_ceil(192)], vec![64, 128, 256, 192]] {
                if parts.iter().sum::<usize>() < n {
                    continue;
                }
                let pieces = prefilled(&mut model.exec, ids, &parts);
                assert!(whole == pieces, "{name}: {n} tokens in parts of {parts:?} differ");
            }
        }
    }
}

#[test]
fn any_other_chunking_and_token_by_token_agree_within_tolerance() {
    for name in PREFILLED.into_iter().chain(WINDOWED).chain(["glm4_moe-b"]) {
        let Rig { mut model, expected, _dir } = rig(name, cpu());
        for n in LENGTHS {
            let ids = &expected.ids[..n];
            let tolerance = tolerance(name, n);
            let whole = prefilled(&mut model.exec, ids, &[n]);
            let odd = prefilled(&mut model.exec, ids, &vec![37; n.div_ceil(37)]);
            assert!(worst(&whole, &odd) < tolerance, "{name}: {n} tokens by 37 differ by {}", worst(&whole, &odd));
            let exec = &mut model.exec;
            let seq = exec.open().unwrap();
            let single: Vec<f32> = ids.iter().flat_map(|&id| exec.decode(&[(seq, id)]).unwrap()).collect();
            exec.close(seq).unwrap();
            let off = worst(&whole, &single);
            assert!(off < tolerance, "{name}: {n} tokens one by one differ by {off}");
        }
    }
}

/// A ring of pages is as long as a window and the rows of an append need: with chunks of 64 and these windows two pages,
/// which are written over from position 512 on.
#[test]
fn rings_that_wrap_keep_the_windows_of_transformers() {
    for name in WINDOWED {
        let ask = || Ask { chunk: 64, ..Ask::default() };
        let Rig { mut model, expected, _dir } = rig_with(name, cpu(), ask());
        let vocab = model.exec.family().spec().vocab as usize;
        let n = expected.ids.len();
        let whole = prefilled(&mut model.exec, &expected.ids, &[n]);
        // The first part as a prompt, the rest token by token.
        let exec = &mut model.exec;
        let seq = exec.open().unwrap();
        exec.prefill(seq, &expected.ids[..430], Wanted::Last, &AtomicBool::new(false), &mut |_| {}).unwrap();
        let single: Vec<f32> = expected.ids[430..].iter().flat_map(|&id| exec.decode(&[(seq, id)]).unwrap()).collect();
        for row in expected.logits.iter().filter(|r| r.position >= 430) {
            let (at, from) = (row.position, row.position - 430);
            for (got, how) in
                [(&whole[at * vocab..][..vocab], "prefilled"), (&single[from * vocab..][..vocab], "decoded")]
            {
                let off = worst(got, &row.values);
                assert!(off < tolerance(name, at), "{name}: {how} logits at position {at} are off by {off}");
            }
        }
    }
}

#[test]
fn a_decoded_row_does_not_depend_on_its_company() {
    for name in [
        "llama-a",
        "qwen3_moe-a",
        "qwen3_5_moe-b",
        "qwen3_next-a",
        "gpt_oss-a",
        "gemma4_moe-b",
        "gemma4_e-a",
        "glm4_moe-b",
    ] {
        let Rig { mut model, expected, _dir } = rig(name, cpu());
        let exec = &mut model.exec;
        let no = AtomicBool::new(false);
        let starts = [5usize, 70, 256, 300];
        let mut alone = Vec::new();
        for n in starts {
            let seq = exec.open().unwrap();
            exec.prefill(seq, &expected.ids[..n], Wanted::Last, &no, &mut |_| {}).unwrap();
            alone.push(exec.decode(&[(seq, expected.ids[n])]).unwrap());
            exec.close(seq).unwrap();
        }
        let seqs: Vec<_> = starts
            .map(|n| {
                let seq = exec.open().unwrap();
                exec.prefill(seq, &expected.ids[..n], Wanted::Last, &no, &mut |_| {}).unwrap();
                (seq, expected.ids[n])
            })
            .into();
        let together = exec.decode(&seqs).unwrap();
        assert!(together == alone.concat(), "{name}: company changes a row's bits");
    }
}

#[test]
fn rows_verified_together_are_the_rows_decoded_one_by_one() {
    for name in ["llama-a", "qwen3_moe-a", "qwen3_5-b", "qwen3_5_moe-a", "gpt_oss-b", "gemma3-a", "gemma4_e-b"] {
        let Rig { mut model, expected, _dir } = rig(name, cpu());
        let exec = &mut model.exec;
        let no = AtomicBool::new(false);
        let open = |exec: &mut Executor| {
            let seq = exec.open().unwrap();
            exec.prefill(seq, &expected.ids[..250], Wanted::Last, &no, &mut |_| {}).unwrap();
            seq
        };
        let seq = open(exec);
        let single: Vec<f32> = (250..258).flat_map(|i| exec.decode(&[(seq, expected.ids[i])]).unwrap()).collect();
        exec.close(seq).unwrap();
        let vocab = exec.family().spec().vocab as usize;
        for accepted in [0u32, 1, 5, 8] {
            let seq = open(exec);
            let rows = exec.verify(seq, &expected.ids[250..258], |_| accepted).unwrap();
            assert!(rows == single, "{name}");
            assert_eq!(exec.len(seq).unwrap(), 250 + accepted);
            if accepted < 8 {
                // What was not accepted has left no trace: the next row is the one that follows the accepted ones.
                let next = exec.decode(&[(seq, expected.ids[250 + accepted as usize])]).unwrap();
                assert!(next == single[accepted as usize * vocab..][..vocab], "{name}: {accepted} accepted");
            }
            exec.close(seq).unwrap();
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    for name in ["llama-b", "qwen3_5_moe-a", "gpt_oss-a", "gemma4_moe-a"] {
        let logits: Vec<Vec<f32>> = [1usize, 2, 3]
            .map(|threads| {
                let on = On::Cpu(CpuOptions { threads: Some(threads), ..CpuOptions::default() });
                let Rig { mut model, expected, _dir } = rig(name, on);
                let mut all = prefilled(&mut model.exec, &expected.ids[..300], &[300]);
                let seq = model.exec.open().unwrap();
                all.extend(model.exec.decode(&[(seq, 3)]).unwrap());
                all
            })
            .into();
        assert!(logits[0] == logits[1] && logits[0] == logits[2], "{name}");
    }
}

#[test]
fn the_order_in_which_experts_arrive_changes_no_bit() {
    for name in ["qwen3_5_moe-a", "qwen3_5_moe-b", "qwen3_moe-b", "gpt_oss-b", "gemma4_moe-a", "glm4_moe-a"] {
        let run = |seed: Option<u64>| {
            let Rig { mut model, expected, _dir } = rig(name, cpu());
            if let Some(seed) = seed {
                model.exec.set_arrivals(|e| Box::new(weights::ScriptedArrivals::new(e.clone(), seed)));
            }
            let mut all = prefilled(&mut model.exec, &expected.ids[..130], &[130]);
            let seq = model.exec.open().unwrap();
            for &id in &expected.ids[..12] {
                all.extend(model.exec.decode(&[(seq, id)]).unwrap());
            }
            all
        };
        let resident = run(None);
        for seed in 0..4 {
            assert!(run(Some(seed)) == resident, "{name}: arrivals of seed {seed} change a bit");
        }
    }
}

#[test]
fn a_real_step_takes_exactly_the_metered_workspace() {
    for name in ["llama-b", "qwen3_5_moe-b", "gpt_oss-a", "gemma3-b", "gemma4_moe-b", "gemma4_e-a", "glm4_moe-b"] {
        for (chunk, few, logit_rows) in [(64, 1, 1), (128, 4, 128), (256, 8, 3)] {
            let dir = testkit::materialise(name).unwrap();
            let ask = Ask { chunk, few, logit_rows, ..Ask::default() };
            let how = OpenOptions { ask, on: cpu(), ..OpenOptions::default() };
            let mut model = Model::open(dir.path().to_path_buf(), &how, &mut |_| {}).unwrap();
            let ids: Vec<u32> = (0..chunk).map(|i| i % 200).collect();
            let exec = &mut model.exec;
            let (planned, seq) = (exec.plan().workspace.step, exec.open().unwrap());
            let wanted = if logit_rows == chunk { Wanted::All } else { Wanted::Last };
            exec.prefill(seq, &ids, wanted, &AtomicBool::new(false), &mut |_| {}).unwrap();
            exec.verify(seq, &ids[..few as usize], |_| few).unwrap();
            let used = exec.device().arena().high_water(device::Region::Step);
            if logit_rows == chunk || logit_rows == 1 {
                assert_eq!(used, planned, "{name}: chunk {chunk}, few {few}, logits of {logit_rows}");
            } else {
                assert!(used <= planned, "{name}: {used} used, {planned} planned");
            }
        }
    }
}

#[test]
fn the_ledger_holds_what_the_plan_says() {
    for name in ["qwen3_5_moe-a", "gpt_oss-a", "gemma4_e-a"] {
        let Rig { mut model, .. } = rig(name, cpu());
        let plan = model.exec.plan().clone();
        let used = |m: &Model| m.exec.ledger().usage()[&memory::Tier::Host].reserved();
        let empty = used(&model);
        // Rings are there from the start.
        let rings = WINDOWED.contains(&name);
        assert!(rings || empty == plan.reserved_bytes() - plan.kv_bytes, "{name}: pages come with positions");
        let open: Vec<_> = (0..plan.parallel).map(|_| model.exec.open().unwrap()).collect();
        open.iter().for_each(|&s| model.exec.fill(s, plan.context, 1).unwrap());
        let usage = model.exec.ledger().usage();
        let host = &usage[&memory::Tier::Host];
        let of = |class| host.by_class.get(&class).copied().unwrap_or(0);
        assert_eq!(of(memory::Class::Weights), plan.resident_bytes(), "{name}");
        assert_eq!(of(memory::Class::State), plan.state_bytes, "{name}");
        assert_eq!(of(memory::Class::Kv), plan.kv_bytes, "{name}");
        assert_eq!(host.reserved(), plan.reserved_bytes(), "{name}: weights, history, state and workspace are all");
        open.into_iter().for_each(|s| model.exec.close(s).unwrap());
        assert!(used(&model) <= empty + (16 << 20), "{name}: one slab stays for who comes next");
    }
}

#[test]
fn rows_choose_the_experts_that_transformers_chooses() {
    for name in MODELS {
        let Rig { mut model, expected, _dir } = rig(name, cpu());
        let Some(routing) = expected.routing else { continue };
        let (visits, n) = (weights::Visits::default(), routing.experts.len());
        model.exec.set_tap(Some(Box::new(weights::Recorder::new(visits.clone()))));
        prefilled(&mut model.exec, &expected.ids[..n], &[n]);
        let layers = visits.take();
        assert_eq!(layers.len(), routing.experts[0].len(), "{name}: one visit a layer");
        for (at, by_layer) in routing.experts.iter().enumerate() {
            for (l, want) in by_layer.iter().enumerate() {
                let (mut got, mut want) = (layers[l].experts[at].clone(), want.clone());
                // Ranks whose probabilities are this close may change places by rounding.
                if routing.order_margin[at][l] < 1e-5 {
                    got.sort_unstable();
                    want.sort_unstable();
                }
                assert_eq!(got, want, "{name}: position {at}, layer {l}");
            }
        }
    }
}
