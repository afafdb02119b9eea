//! Every family against numbers of transformers, on checkpoints made of f32 weights and computed in f32.

use device::CpuOptions;
use engine::open::On;
use engine::{Ask, Executor, Model, OpenOptions, Wanted, argmax};
use std::sync::atomic::AtomicBool;
use testkit::Expected;

const MODELS: [&str; 5] = ["llama-a", "llama-b", "qwen2-a", "qwen3_5_moe-a", "qwen3_5_moe-b"];
/// Logits are about ±3; f32 sums in another order move them by about 1e-5.
const TOLERANCE: f32 = 1e-4;

struct Rig {
    model: Model,
    expected: Expected,
    _dir: tempfile::TempDir,
}

fn rig(name: &str, on: On) -> Rig {
    let dir = testkit::materialise(name).unwrap();
    let ask = Ask { logit_rows: 256, few: 8, parallel: 4, ..Ask::default() };
    let model = Model::open(dir.path().to_path_buf(), &OpenOptions { ask, on }, &mut |_| {}).unwrap();
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

fn check_logits(name: &str, on: On) {
    let Rig { mut model, expected, _dir } = rig(name, on);
    let got = prefilled(&mut model.exec, &expected.ids, &[expected.ids.len()]);
    let vocab = model.exec.family().spec().vocab as usize;
    for row in &expected.logits {
        let at = row.position;
        let off = worst(&got[at * vocab..(at + 1) * vocab], &row.values);
        assert!(off < TOLERANCE, "{name}: logits at position {at} are off by {off}");
    }
    for (at, (&best, &gap)) in expected.argmax.iter().zip(&expected.top2_gap).enumerate() {
        let ours = argmax(&got[at * vocab..(at + 1) * vocab]).unwrap();
        assert!(ours == best || gap < 2.0 * TOLERANCE, "{name}: position {at} prefers {ours}, not {best}");
    }
}

#[test]
fn reference_logits_are_those_of_transformers() {
    MODELS.iter().for_each(|m| check_logits(m, On::Reference));
}

#[test]
fn cpu_logits_are_those_of_transformers() {
    MODELS.iter().for_each(|m| check_logits(m, cpu()));
}
