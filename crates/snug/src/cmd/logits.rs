//! `snug logits`: the numbers behind an answer, for comparing with other programs.

use crate::args::LogitsArgs;
use crate::fault::Ended;
use crate::load::load;
use crate::{interrupt, output};
use engine::{Ask, Error, Model, Wanted};
use memory::{Class, Tier};
use serde::Serialize;
use weights::{Recorder, Visit, Visits};

/// Computes and prints logits.
pub fn run(a: &LogitsArgs, verbose: bool) -> anyhow::Result<Ended> {
    let rows = if a.all { Ask::default().chunk } else { 1 };
    let mut model = load(a.model.as_deref(), &a.on, rows, verbose)?;
    let visits = a.routing.then(Visits::default);
    if let Some(v) = &visits {
        model.exec.set_tap(Some(Box::new(Recorder::new(v.clone()))));
    }
    // Rows of every position are kept until they are printed; one row is part of what the plan allows for.
    let kept = if a.all { a.ids.0.len() as u64 * model.exec.family().spec().vocab as u64 * 4 } else { 0 };
    let _paid = model.exec.ledger().reserve(Tier::Host, Class::Workspace, "logits of all positions", kept)?;
    let Some(logits) = compute(&mut model, a)? else { return Ok(Ended::Interrupted) };
    if logits.iter().any(|x| !x.is_finite()) {
        return Err(Error::BadLogits.into());
    }
    let routing = visits.map(|v| by_position(v.take()));
    let vocab = model.exec.family().spec().vocab as usize;
    let rows: Vec<&[f32]> = logits.chunks(vocab).collect();
    match (a.json, a.all) {
        (true, true) => output::json(&Logits { logits: &rows, routing })?,
        (true, false) => output::json(&Logits { logits: &logits, routing })?,
        (false, _) => {
            rows.iter().enumerate().try_for_each(|(i, row)| show(&model, a.all.then_some(i), row))?;
            for (at, layers) in routing.iter().flatten().enumerate() {
                output::line(format_args!("experts at position {at}: {layers:?}"))?;
            }
        }
    }
    Ok(Ended::Done)
}

#[derive(Serialize)]
struct Logits<T> {
    logits: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    routing: Option<Vec<Vec<Vec<u32>>>>,
}

/// `[position][layer][rank]` from visits, which come layer after layer for each chunk of positions.
fn by_position(visits: Vec<Visit>) -> Vec<Vec<Vec<u32>>> {
    let mut all: Vec<Vec<Vec<u32>>> = Vec::new();
    let mut first = 0;
    let mut layer = None;
    for v in visits {
        if layer.is_some_and(|l| v.layer <= l) {
            first = all.len();
        }
        layer = Some(v.layer);
        for (i, experts) in v.experts.into_iter().enumerate() {
            if first + i == all.len() {
                all.push(Vec::new());
            }
            all[first + i].push(experts);
        }
    }
    all
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
