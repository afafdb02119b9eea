//! `snug logits`: the numbers behind an answer, for comparing with other programs.

use crate::args::LogitsArgs;
use crate::fault::Ended;
use crate::load::load;
use crate::{interrupt, output};
use engine::{Ask, Error, Model, Wanted};
use serde::Serialize;

/// Computes and prints logits.
pub fn run(a: &LogitsArgs, verbose: bool) -> anyhow::Result<Ended> {
    let rows = if a.all { Ask::default().chunk } else { 1 };
    let mut model = load(a.model.as_deref(), &a.on, rows, verbose)?;
    let Some(logits) = compute(&mut model, a)? else { return Ok(Ended::Interrupted) };
    let vocab = model.exec.family().spec().vocab as usize;
    let rows: Vec<&[f32]> = logits.chunks(vocab).collect();
    match (a.json, a.all) {
        (true, true) => output::json(&Logits { logits: &rows })?,
        (true, false) => output::json(&Logits { logits: &logits })?,
        (false, _) => rows.iter().enumerate().try_for_each(|(i, row)| show(&model, a.all.then_some(i), row))?,
    }
    Ok(Ended::Done)
}

#[derive(Serialize)]
struct Logits<T> {
    logits: T,
}

/// `None` when Ctrl-C came first.
fn compute(m: &mut Model, a: &LogitsArgs) -> anyhow::Result<Option<Vec<f32>>> {
    let ids = &a.ids.0;
    let (spec, context) = (m.exec.family().spec(), m.exec.plan().context);
    if ids.is_empty() {
        return Err(Error::EmptyPrompt.into());
    }
    if let Some(&id) = ids.iter().find(|&&id| id >= spec.vocab) {
        return Err(Error::BadToken { id, vocab: spec.vocab }.into());
    }
    if ids.len() > context as usize {
        return Err(Error::PromptTooLong { prompt: ids.len() as u32, context, most: spec.context }.into());
    }
    let wanted = if a.all { Wanted::All } else { Wanted::Last };
    let seq = m.exec.open()?;
    match interrupt::answering(|stop| m.exec.prefill(seq, ids, wanted, stop, &mut |_| {})) {
        Err(Error::Cancelled) => Ok(None),
        other => Ok(Some(other?)),
    }
}

/// The ten likeliest ids of a row, with their logits and texts.
fn show(m: &Model, position: Option<usize>, row: &[f32]) -> anyhow::Result<()> {
    let mut ids: Vec<u32> = (0..row.len() as u32).collect();
    ids.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]).then(a.cmp(&b)));
    if let Some(at) = position {
        output::line(format_args!("position {at}"))?;
    }
    for &id in ids.iter().take(10) {
        let bytes = m.tokenizer.as_ref().and_then(|t| t.token_bytes(id));
        let text = bytes.map(|b| format!("{:?}", String::from_utf8_lossy(b))).unwrap_or_default();
        output::line(format!("{id:>8} {:>12} {text}", row[id as usize]).trim_end())?;
    }
    Ok(())
}
