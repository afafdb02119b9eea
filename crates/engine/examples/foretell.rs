//! What a model's multi-token predictor makes of some ids, as JSON, to compare with a reference:
//! `foretell MODEL 1,2,3 [rows=FIRST..END] [reference]`. Row t has the token at t and the model's hidden state before it,
//! and is about the token at t + 1; row 0 means nothing. `rows` adds the logits of these rows, `reference` computes with
//! the plain f32 backend.

use engine::open::On;
use engine::{Ask, Model, OpenOptions, argmax};
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, ids, flags @ ..] = args.as_slice() else {
        return Err("MODEL IDS [rows=FIRST..END] [reference]".into());
    };
    let ids = ids.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>()?;
    let on = if flags.iter().any(|f| f == "reference") { On::Reference } else { On::default() };
    let ask = Ask { logit_rows: 256, context: engine::Context::Exactly(2048), draft: 1, ..Ask::default() };
    let how = OpenOptions { ask, on, ..OpenOptions::default() };
    let mut m = Model::open(PathBuf::from(model), &how, &mut |_| {})?;
    let seq = m.exec.open()?;
    let (own, ahead) = m.exec.foretell(seq, &ids)?;
    let vocab = m.exec.family().spec().vocab as usize;
    let best = |all: &[f32]| all.chunks_exact(vocab).map(argmax).collect::<Vec<_>>();
    println!("{{\"argmax\": {:?}, \"predictor_argmax\": {:?}", plain(&best(&own)), plain(&best(&ahead)));
    if let Some((first, end)) = flags.iter().find_map(|f| f.strip_prefix("rows=")?.split_once("..")) {
        let rows = first.parse::<usize>()?..end.parse::<usize>()?;
        let rows: Vec<_> = ahead.chunks_exact(vocab).skip(rows.start).take(rows.len()).collect();
        println!(", \"rows\": {rows:?}");
    }
    println!("}}");
    Ok(())
}

/// -1 where nothing is the largest.
fn plain(ids: &[Option<u32>]) -> Vec<i64> {
    ids.iter().map(|i| i.map_or(-1, i64::from)).collect()
}
