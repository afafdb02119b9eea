//! Scores a model on the gate text against a reference of transformers in f32, and optionally its distributions against
//! those of another model:
//! `cargo run --release -p engine --example gate -- MODEL smollm2|tiny_moe [kv=f32|bf16] [against=MODEL]`.
//!
//! Prints the difference of mean negative log-likelihood, how often the likeliest token is the reference's, and the mean
//! KL divergence from the other model.

use engine::{Ask, Context, Model, OpenOptions, Wanted};
use memory::{KvFormat, KvSpec};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use testkit::{Gate, Tally, Window};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| args.iter().find_map(|a| a.strip_prefix(name));
    let [path, gate, ..] = &args[..] else {
        return Err("usage: gate MODEL smollm2|tiny_moe [kv=..] [against=..]".into());
    };
    let kv = match option("kv=") {
        Some("f32") => Some(KvFormat::F32),
        Some("bf16") => Some(KvFormat::Bf16),
        _ => None,
    };
    let gate = testkit::gate(gate)?;
    let (mut model, begun) = (open(path, kv)?, Instant::now());
    let tally = score(&mut model, &gate)?;
    let (delta, agreement) = (tally.delta_nll(), tally.top1_agreement());
    let seconds = begun.elapsed().as_secs_f64();
    println!("rows {}  delta-NLL {delta:+.5}  top-1 agreement {agreement:.4}  {seconds:.1} s", tally.rows());
    if let Some(other) = option("against=") {
        println!("mean KL {:.5}", mean_kl(&mut open(other, kv)?, &mut model, &gate)?);
    }
    Ok(())
}

fn open(path: &str, kv: Option<KvFormat>) -> Result<Model> {
    let ask = Ask { kv: kv.map(KvSpec::of), logit_rows: 256, context: Context::Exactly(1024), ..Ask::default() };
    Ok(Model::open(PathBuf::from(path), &OpenOptions { ask, ..OpenOptions::default() }, &mut |_| {})?)
}

fn vocab(model: &Model) -> usize {
    model.exec.family().spec().vocab as usize
}

fn logits(model: &mut Model, window: &Window) -> Result<Vec<f32>> {
    let seq = model.exec.open()?;
    let all = model.exec.prefill(seq, &window.ids, Wanted::All, &AtomicBool::new(false), &mut |_| {})?;
    model.exec.close(seq)?;
    Ok(all)
}

fn score(model: &mut Model, gate: &Gate) -> Result<Tally> {
    let mut tally = Tally::default();
    for window in &gate.windows {
        let all = logits(model, window)?;
        for (row, logits) in all.chunks_exact(vocab(model)).enumerate().take(window.nll.len()) {
            tally.add(window, row, logits);
        }
    }
    Ok(tally)
}

fn mean_kl(reference: &mut Model, model: &mut Model, gate: &Gate) -> Result<f64> {
    let (mut sum, mut rows, v) = (0.0, 0, vocab(model));
    for window in &gate.windows {
        let (p, q) = (logits(reference, window)?, logits(model, window)?);
        sum += p.chunks_exact(v).zip(q.chunks_exact(v)).map(|(p, q)| kl(p, q)).sum::<f64>();
        rows += window.ids.len();
    }
    Ok(sum / rows as f64)
}

/// KL(p || q) of two rows of logits, in nats.
fn kl(p: &[f32], q: &[f32]) -> f64 {
    let log_sum = |z: &[f32]| {
        let max = z.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
        max + z.iter().map(|&x| (x as f64 - max).exp()).sum::<f64>().ln()
    };
    let (zp, zq) = (log_sum(p), log_sum(q));
    p.iter().zip(q).map(|(&a, &b)| (a as f64 - zp).exp() * ((a as f64 - zp) - (b as f64 - zq))).sum()
}
