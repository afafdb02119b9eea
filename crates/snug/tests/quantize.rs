//! What is written as a GGUF computes what the safetensors files compute: names, rearrangements and types.

use engine::{Ask, Model, OpenOptions, Wanted};
use snug::quantize::{Options, Report, Rule, parse_type, quantize};
use std::path::Path;
use std::sync::atomic::AtomicBool;

fn to(from: &Path, out: &Path, kind: &str, rules: &[&str]) -> Report {
    let rules = rules.iter().map(|r| Rule::parse(r).unwrap()).collect();
    let how = Options { to: parse_type(kind).unwrap(), rules, meta: vec![], force: false };
    quantize(from.to_path_buf(), out, &how, &mut |_, _| {}).unwrap()
}

fn logits(path: &Path, ids: &[u32]) -> Vec<f32> {
    let ask = Ask { logit_rows: 256, ..Ask::default() };
    let mut m = Model::open(path.to_path_buf(), &OpenOptions { ask, ..OpenOptions::default() }, &mut |_| {}).unwrap();
    let seq = m.exec.open().unwrap();
    m.exec.prefill(seq, ids, Wanted::All, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

fn rms(a: &[f32], b: &[f32]) -> f32 {
    let n = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f32>();
    let d = b.iter().map(|b| b * b).sum::<f32>();
    (n / d).sqrt()
}

#[test]
fn a_gguf_in_f32_has_the_logits_of_transformers() {
    for name in testkit::NAMES {
        let (dir, out) = (testkit::materialise(name).unwrap(), tempfile::tempdir().unwrap());
        let file = out.path().join("m.gguf");
        to(dir.path(), &file, "f32", &[]);
        let want = testkit::expected(name).unwrap();
        let got = logits(&file, &want.ids);
        for row in &want.logits {
            let v = row.values.len();
            let ours = &got[row.position * v..][..v];
            let off = ours.iter().zip(&row.values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let room = if name.starts_with("gemma4") || row.position >= 512 { 3e-4 } else { 1e-4 };
            assert!(off < room, "{name}: logits at position {} are off by {off}", row.position);
        }
    }
}

#[test]
fn coarser_types_are_further_from_f32_in_the_order_of_their_bits() {
    for name in ["llama-a", "qwen3_5_moe-a", "gpt_oss-a", "gemma4_moe-a", "gemma4_e-a", "glm4_moe-b"] {
        let (dir, out) = (testkit::materialise(name).unwrap(), tempfile::tempdir().unwrap());
        let ids: Vec<u32> = testkit::expected(name).unwrap().ids[..80].to_vec();
        let exact = logits(dir.path(), &ids);
        let error = |kind: &str| {
            let file = out.path().join(format!("{kind}.gguf"));
            to(dir.path(), &file, kind, &[]);
            rms(&logits(&file, &ids), &exact)
        };
        let (q8, q5, q4, mx) = (error("q8_0"), error("q5_0"), error("q4_0"), error("mxfp4"));
        assert!(q8 < q5 && q5 < q4 && q4 < mx, "{name}: {q8} {q5} {q4} {mx}");
        // The weights of tiny models are boosted so that mistakes show, and so does rounding.
        assert!(q8 < 0.2, "{name}: eight bits are off by {q8}");
    }
}

#[test]
fn a_gguf_can_be_written_again_in_another_type_and_keeps_what_it_says() {
    let (dir, out) = (testkit::materialise("qwen3_5_moe-b").unwrap(), tempfile::tempdir().unwrap());
    let (first, second, direct) = (out.path().join("a.gguf"), out.path().join("b.gguf"), out.path().join("c.gguf"));
    to(dir.path(), &first, "f32", &[]);
    to(&first, &second, "q8_0", &["token_embd=f32"]);
    to(dir.path(), &direct, "q8_0", &["token_embd=f32"]);
    let ids = [3, 1, 4, 1, 5, 9, 2, 6];
    assert_eq!(logits(&second, &ids), logits(&direct, &ids), "by way of f32 nothing is lost");
    let third = to(&second, &out.path().join("d.gguf"), "q4_0", &["nosuch=q8_0"]);
    assert!(third.requantised > 0 && third.unmatched == ["nosuch"], "{third:?}");
    let (a, b) = (checkpoint::Checkpoint::open(second).unwrap(), checkpoint::Checkpoint::open(direct).unwrap());
    let keys = |c: &checkpoint::Checkpoint| c.meta().entries().map(|(k, v)| format!("{k} {v}")).collect::<Vec<_>>();
    assert_eq!(keys(&a), keys(&b));
}

#[test]
fn rows_that_no_block_divides_are_reported_with_what_they_got() {
    // llama-b is 96 wide: no block of 256 divides that.
    let (dir, out) = (testkit::materialise("llama-b").unwrap(), tempfile::tempdir().unwrap());
    let report = to(dir.path(), &out.path().join("m.gguf"), "q4_k", &[]);
    let q5_0 = parse_type("q5_0").unwrap();
    assert!(report.substituted.iter().any(|(name, t)| name == "blk.0.attn_q.weight" && *t == q5_0), "{report:?}");
}

#[test]
fn an_existing_file_is_not_replaced_unasked_and_a_failure_leaves_none() {
    let (dir, out) = (testkit::materialise("llama-a").unwrap(), tempfile::tempdir().unwrap());
    let file = out.path().join("m.gguf");
    std::fs::write(&file, "mine").unwrap();
    let how = Options { to: parse_type("q8_0").unwrap(), rules: vec![], meta: vec![], force: false };
    let e = quantize(dir.path().to_path_buf(), &file, &how, &mut |_, _| {}).unwrap_err().to_string();
    assert!(e.contains("--force"), "{e}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    let nowhere = out.path().join("absent/m.gguf");
    assert!(quantize(dir.path().to_path_buf(), &nowhere, &how, &mut |_, _| {}).is_err());
    assert!(!nowhere.exists());
}

mod long {
    use super::*;

    /// Kernels quantise activations that meet block formats. Against the same weights in f32, which they never quantise for:
    /// at most 0.005 nats, and 99 of 100 likeliest tokens the same.
    #[test]
    fn quantised_activations_cost_next_to_nothing() {
        let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/snug-tiny-moe.gguf"));
        let out = tempfile::tempdir().unwrap();
        let exact = out.path().join("f32.gguf");
        to(model, &exact, "f32", &[]);
        let gate = testkit::gate("tiny_moe").unwrap();
        let (mut rows, mut same, mut delta) = (0, 0, 0.0);
        for w in &gate.windows {
            let (a, b) = (logits(model, &w.ids), logits(&exact, &w.ids));
            let v = a.len() / w.ids.len();
            for (i, (a, b)) in a.chunks_exact(v).zip(b.chunks_exact(v)).enumerate().take(w.ids.len() - 1) {
                rows += 1;
                same += usize::from(engine::argmax(a) == engine::argmax(b));
                delta += nll(a, w.ids[i + 1]) - nll(b, w.ids[i + 1]);
            }
        }
        let (delta, share) = (delta / rows as f64, same as f64 / rows as f64);
        println!("rows {rows}  delta-NLL {delta:+.5}  top-1 agreement {share:.4}");
        assert!(rows > 4000 && delta <= 0.005 && share >= 0.99, "{rows} rows, {delta} nats, {share} the same");
    }

    fn nll(logits: &[f32], id: u32) -> f64 {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
        let sum: f64 = logits.iter().map(|&x| (x as f64 - max).exp()).sum();
        max + sum.ln() - logits[id as usize] as f64
    }
}
