//! `snug experts`: what routing is like, recorded, and what policies would make of it.

use super::answer;
use super::run::templated;
use crate::args::{On, Sample};
use crate::fault::{Ended, usage};
use crate::interrupt;
use crate::load::load;
use crate::output::{self, line, note};
use crate::progress::Bar;
use anyhow::Context as _;
use clap::{Args, Subcommand};
use engine::{Error, Event, Finish, Model, Request, generate};
use memory::experts::replay::{bound, contenders, pool, replay};
use memory::experts::trace::{Fitted, Stream, Trace};
use serde::Serialize;
use std::path::{Path, PathBuf};
use weights::{Recorder, Visit, Visits};

/// `snug experts`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  snug experts trace -p 'Tell me a story' -p 'Write a poem' -o t.bin
  snug experts replay t.bin --slots 64,128,256")]
pub struct ExpertsArgs {
    /// What to do
    #[command(subcommand)]
    pub what: What,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum What {
    /// Answer prompts and write down which experts every token was routed to
    Trace(Box<TraceArgs>),
    /// Say how often each policy would have found an expert in memory
    Replay(ReplayArgs),
}

/// `snug experts trace`.
#[derive(Debug, Args)]
#[command(
    after_help = "Every prompt is a conversation of its own. The file is described in the program's source, at memory::experts::trace.

Example:
  snug experts trace qwen3-30b-a3b -p 'Tell me a story' -n 500 -o t.bin"
)]
pub struct TraceArgs {
    /// The model [default: the one that is part of the program]
    pub model: Option<String>,
    /// A prompt; may be repeated
    #[arg(short, long, value_name = "TEXT", required_unless_present = "file", allow_hyphen_values = true)]
    pub prompt: Vec<String>,
    /// A file with a prompt on every line
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Where to write to
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    #[command(flatten)]
    pub sample: Sample,
    #[command(flatten)]
    pub on: On,
}

/// `snug experts replay`.
#[derive(Debug, Args)]
#[command(
    after_help = "Parameters are to be chosen on the first half of the conversations and judged on the second, so the two have a
column each; each half begins with nothing in memory. The bound is Belady's: what could be found by knowing
what comes.

Example:
  snug experts replay t.bin --slots 64,128,256 --json"
)]
pub struct ReplayArgs {
    /// What `snug experts trace` wrote
    pub trace: PathBuf,
    /// Slots over all layers [default: an eighth, a quarter and half of all experts]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(2..=1 << 24))]
    pub slots: Vec<u32>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Records or replays.
pub fn run(a: &ExpertsArgs, verbose: bool) -> anyhow::Result<Ended> {
    match &a.what {
        What::Trace(t) => record(t, verbose),
        What::Replay(r) => compare(r),
    }
}

/// Reads a trace.
pub fn read(file: &Path) -> anyhow::Result<Trace> {
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Trace::decode(&bytes).with_context(|| file.display().to_string())
}

/// The routing of a trace for a model.
pub fn fitted(file: &Path, m: &Model) -> anyhow::Result<Fitted> {
    let Some((experts, top_k)) = m.exec.family().spec().experts else {
        return usage("--route-trace is for models with experts; this one has none");
    };
    read(file)?.fit(experts, top_k).with_context(|| file.display().to_string())
}

fn prompts(a: &TraceArgs) -> anyhow::Result<Vec<String>> {
    let mut all = a.prompt.clone();
    if let Some(file) = &a.file {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        all.extend(text.lines().filter(|l| !l.trim().is_empty()).map(str::to_string));
    }
    if all.is_empty() || all.iter().any(String::is_empty) {
        return Err(Error::EmptyPrompt.into());
    }
    Ok(all)
}

fn record(a: &TraceArgs, verbose: bool) -> anyhow::Result<Ended> {
    answer::check(&a.sample)?;
    let prompts = prompts(a)?;
    let mut model = load(a.model.as_deref(), &a.on, 1, verbose)?;
    let Some((experts, top_k)) = model.exec.family().spec().experts else {
        return usage("only models with experts have routing to record");
    };
    let visits = Visits::default();
    model.exec.set_tap(Some(Box::new(Recorder::new(visits.clone()))));
    let sampling = answer::sampling(&a.sample, model.sampling.clone());
    let mut trace = Trace { layers: Vec::new(), experts, top_k, streams: Vec::new() };
    let mut bar = Bar::rounds("recording", prompts.len() as u64);
    for (i, text) in prompts.iter().enumerate() {
        bar.at(i as u64, prompts.len() as u64);
        let tokenizer = model.tokenizer()?;
        let prompt = tokenizer.encode_prompt(&templated(&model, tokenizer, None, text.clone())?)?;
        let rows = prompt.len() as u32;
        let s = &a.sample;
        let (sampling, stop) = (sampling.clone(), s.stop.clone());
        let more = Request { max_tokens: s.max_tokens, ignore_eos: s.ignore_eos, ..Request::default() };
        let req = Request { prompt, sampling, stop, ..more };
        let finish = interrupt::answering(|stop| {
            let seq = model.exec.open()?;
            let made = generate(&mut model.exec, model.tokenizer.as_ref(), seq, &req, stop, &mut |_: Event| {});
            model.exec.close(seq)?;
            made.map(|m| m.finish)
        })?;
        if finish == Finish::Cancelled {
            return Ok(Ended::Interrupted);
        }
        let (layers, ids) = by_row(visits.take(), top_k);
        trace.layers = layers;
        trace.streams.push(Stream { prompt: rows, ids });
    }
    bar.clear();
    std::fs::write(&a.out, trace.encode()).with_context(|| format!("cannot write {}", a.out.display()))?;
    note(format_args!("{} answers, {} tokens in them", trace.streams.len(), trace.decoded()));
    Ok(Ended::Done)
}

/// Layers that were visited, ascending, and `[rows, layers, k]` from visits in any order of layers and rows of each layer in
/// order.
fn by_row(visits: Vec<Visit>, top_k: u32) -> (Vec<u32>, Vec<u16>) {
    let mut by_layer: std::collections::BTreeMap<u32, Vec<Vec<u32>>> = Default::default();
    visits.into_iter().for_each(|v| by_layer.entry(v.layer).or_default().extend(v.experts));
    let rows = by_layer.values().map(Vec::len).min().unwrap_or(0);
    let mut ids = Vec::with_capacity(rows * by_layer.len() * top_k as usize);
    for row in 0..rows {
        for layer in by_layer.values() {
            // A file has no room for more than 65,536 experts, and no model has as many.
            ids.extend(layer[row].iter().map(|&e| e.min(u16::MAX.into()) as u16));
        }
    }
    (by_layer.into_keys().collect(), ids)
}

#[derive(Serialize)]
struct Report {
    layers: usize,
    experts: u32,
    top_k: u32,
    streams: usize,
    tokens: u64,
    pools: Vec<Pool>,
}

#[derive(Serialize)]
struct Pool {
    slots: u32,
    /// Best first, by the tuning half.
    policies: Vec<Row>,
    bound: Row,
}

#[derive(Serialize)]
struct Row {
    policy: String,
    tuning: f64,
    held_out: f64,
}

fn compare(a: &ReplayArgs) -> anyhow::Result<Ended> {
    let t = read(&a.trace)?;
    if t.streams.len() < 2 || t.decoded() == 0 {
        return usage("the trace needs two conversations with answers at least: one to choose by and one to judge by");
    }
    let (tuning, held_out) = t.streams.split_at(t.streams.len() / 2);
    let halves = [t.with(tuning), t.with(held_out)];
    let all = t.experts * t.layers.len() as u32;
    let usual = [8, 4, 2].map(|part| (all / part).max(2));
    let sizes = if a.slots.is_empty() { usual.to_vec() } else { a.slots.clone() };
    let mut pools = Vec::new();
    for slots in sizes {
        let size = pool(&t, slots);
        let rates = |name: String, of: [f64; 2]| Row { policy: name, tuning: of[0], held_out: of[1] };
        let names: Vec<String> = contenders(&t, &size).into_iter().map(|c| c.name).collect();
        let [first, second] = halves
            .each_ref()
            .map(|half| contenders(half, &size).into_iter().map(|c| replay(half, size, c).rate()).collect::<Vec<_>>());
        let mut policies: Vec<Row> =
            names.into_iter().zip(first.into_iter().zip(second)).map(|(n, (a, b))| rates(n, [a, b])).collect();
        policies.sort_by(|a, b| b.tuning.total_cmp(&a.tuning));
        let bound = rates("bound".into(), halves.each_ref().map(|half| bound(half, slots).rate()));
        pools.push(Pool { slots, policies, bound });
    }
    let report = Report {
        layers: t.layers.len(),
        experts: t.experts,
        top_k: t.top_k,
        streams: t.streams.len(),
        tokens: t.decoded(),
        pools,
    };
    if a.json {
        output::json(&report)?
    } else {
        report.show()?
    }
    Ok(Ended::Done)
}

impl Report {
    fn show(&self) -> anyhow::Result<()> {
        line(format_args!(
            "{} conversations, {} tokens, {} layers of {} experts, {} a token",
            self.streams, self.tokens, self.layers, self.experts, self.top_k
        ))?;
        for p in &self.pools {
            line(format_args!("{:<28} {:>8} {:>8}", format!("hits with {} slots", p.slots), "tuning", "held out"))?;
            for r in p.policies.iter().chain([&p.bound]) {
                line(format_args!("{:<28} {:>7.1}% {:>7.1}%", r.policy, r.tuning * 100.0, r.held_out * 100.0))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visits_become_rows_whatever_order_the_layers_came_in() {
        let visit =
            |layer, experts: &[[u32; 2]]| Visit { layer, experts: experts.iter().map(|e| e.to_vec()).collect() };
        // A prompt of two rows, chunk by chunk or layer by layer, then a token.
        let visits =
            vec![visit(3, &[[1, 2], [3, 4]]), visit(5, &[[5, 6], [7, 8]]), visit(3, &[[9, 10]]), visit(5, &[[11, 12]])];
        assert_eq!(by_row(visits, 2), (vec![3, 5], vec![1, 2, 5, 6, 3, 4, 7, 8, 9, 10, 11, 12]));
    }
}
