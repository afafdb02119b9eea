//! What parking recurrent states costs: reads text of the gate, parks the states in each format, and compares the states
//! and what the model says next with those that were never parked:
//! `cargo run --release -p engine --example park_error -- [MODEL]` (by default the built-in one).

use device::Buf;
use engine::{Ask, Context, Model, OpenOptions, SeqId, Wanted, argmax};
use state::Park;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Positions before the states are parked, and decoded after.
const BEFORE: usize = 400;
const AFTER: usize = 64;

fn main() -> Result<()> {
    let built_in = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/snug-tiny-moe.gguf"));
    let path = std::env::args().nth(1).map_or(built_in, PathBuf::from);
    let ask = Ask { context: Context::Exactly(1024), ..Ask::default() };
    let mut model = Model::open(path, &OpenOptions { ask, ..OpenOptions::default() }, &mut |_| {})?;
    let gate = testkit::gate("tiny_moe")?;
    let windows: Vec<Vec<u32>> =
        gate.windows.iter().map(|w| w.ids.clone()).filter(|ids| ids.len() >= BEFORE + AFTER).collect();
    println!("{} windows, {AFTER} tokens each behind {BEFORE}", windows.len());
    for park in Park::ALL {
        let (mut error, mut kl, mut same, mut rows) = (0.0, 0.0, 0, 0);
        for ids in &windows {
            let want = said(&mut model, ids, None)?;
            let got = said(&mut model, ids, Some(park))?;
            error += got.1 / windows.len() as f64;
            for (p, q) in want.0.iter().zip(&got.0) {
                kl += divergence(p, q);
                same += (argmax(p) == argmax(q)) as usize;
                rows += 1;
            }
        }
        let (kl, same) = (kl / rows as f64, same as f64 / rows as f64);
        println!("{park:?}: states off by {:.4}%, mean KL {kl:.2e}, top-1 agreement {same:.4}", 100.0 * error);
    }
    Ok(())
}

/// Logits of the tokens behind the parking, and how far off the states were.
fn said(model: &mut Model, ids: &[u32], park: Option<Park>) -> Result<(Vec<Vec<f32>>, f64)> {
    let exec = &mut model.exec;
    let seq = exec.open()?;
    exec.prefill(seq, &ids[..BEFORE], Wanted::Last, &AtomicBool::new(false), &mut |_| {})?;
    let error = park.map_or(Ok(0.0), |p| through(model, seq, p))?;
    let exec = &mut model.exec;
    let mut logits = Vec::new();
    for &id in &ids[BEFORE..BEFORE + AFTER] {
        logits.push(exec.decode(&[(seq, id)])?);
    }
    exec.close(seq)?;
    Ok((logits, error))
}

/// Parks all states of a sequence and brings them back; the relative error of all together.
fn through(model: &mut Model, seq: SeqId, park: Park) -> Result<f64> {
    let shapes = model.exec.family().state(&model.exec.plan().kv);
    let cols = shapes.iter().find_map(|d| match d.stream {
        state::Stream::Recurrent { state: [_, _, d_v], .. } => Some(d_v as usize),
        _ => None,
    });
    let cols = cols.ok_or("the model has no recurrent layer")?;
    let (mut off, mut square) = (0.0, 0.0);
    for r in model.exec.recurrent(seq)? {
        let was = read(model, r.state)?;
        let is = park.decode(&park.encode(&was, cols), was.len() / cols, cols)?;
        model.exec.device().write(r.state, &is.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())?;
        off += was.iter().zip(&is).map(|(a, b)| ((a - b) as f64).powi(2)).sum::<f64>();
        square += was.iter().map(|a| (*a as f64).powi(2)).sum::<f64>();
    }
    Ok((off / square).sqrt())
}

fn read(model: &mut Model, b: Buf) -> Result<Vec<f32>> {
    let mut bytes = vec![0; b.bytes() as usize];
    model.exec.device().read(b, &mut bytes)?;
    Ok(bytes.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect())
}

/// KL(p || q) of two rows of logits, in nats.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let log_sum = |z: &[f32]| {
        let max = z.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
        max + z.iter().map(|&x| (x as f64 - max).exp()).sum::<f64>().ln()
    };
    let (zp, zq) = (log_sum(p), log_sum(q));
    p.iter().zip(q).map(|(&a, &b)| (a as f64 - zp).exp() * ((a as f64 - zp) - (b as f64 - zq))).sum()
}
