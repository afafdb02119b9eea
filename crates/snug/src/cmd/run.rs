//! `snug run`: one prompt, one answer.

use super::answer;
use super::profile::{self, Costs};
use crate::args::RunArgs;
use crate::fault::{Ended, usage};
use crate::interrupt;
use crate::leases::{self, Rows};
use crate::load::{answering, place, say_memory};
use crate::output::{self, Stream, note};
use crate::progress::Bar;
use crate::resolve;
use crate::streamed::{Moment, Streamed, Watched};
use device::Profile;
use engine::batch::Drafts;
use engine::open::Opened;
use engine::plan::GUARANTEE;
use engine::{Answer, Choice, Error, Event, Executor, Finish, Model, Request, generate, machine};
use serde::Serialize;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use text::{Prompt, Rendered, Tokenizer};

enum Asked {
    Text(String),
    Ids(Vec<u32>),
}

/// Answers and says how it ended.
pub fn run(a: &RunArgs, begun: Instant, verbose: bool) -> anyhow::Result<Ended> {
    answer::check(&a.sample)?;
    let asked = asked(a)?;
    let mut how = answering(&a.on, a.ahead)?;
    how.profile = a.profile.then(Profile::default);
    let mut model = place(Opened::open(resolve::source(a.model.as_deref())?)?, &how, verbose)?;
    let prompt = match asked {
        Asked::Ids(ids) => ids,
        Asked::Text(text) => prompt_ids(&model, a, text)?,
    };
    let mut sampling = answer::sampling(&a.sample, model.sampling.clone());
    sampling.logprobs = a.logprobs;
    let s = &a.sample;
    let (stop, seed) = (s.stop.clone(), sampling.seed);
    let req =
        Request { prompt, sampling, max_tokens: s.max_tokens, stop, ignore_eos: s.ignore_eos, ..Request::default() };
    if verbose {
        note(format_args!("seed {seed}"));
    }
    let watched = Watched::of(&model.exec);
    let before = watched.as_ref().map(Watched::now);
    let (answer, first, between) = interrupt::answering(|stop| stream(&mut model, &req, !a.json, stop))?;
    let after = watched.as_ref().map(Watched::now);
    let streamed = before.zip(after).map(|(a, b)| FromDisk::new([a, between.unwrap_or(b), b], &answer));
    if let Some(e) = streamed.as_ref().filter(|_| a.on.stats) {
        e.prefill.say("prompt");
        e.decode.say("answer");
    }
    let ttft = first.map(|t| t - begun);
    let costs = how.profile.map(|p| Costs::new(p.take(), answer.prefill, answer.decode));
    if a.json {
        let report = Report::new(&answer, model.tokenizer.as_ref(), seed, ttft, a.logprobs.is_some());
        output::json(&Report { profile: costs, streamed, embedding_rows: Rows::of(&model.exec), ..report })?;
    } else if let Some(costs) = &costs {
        profile::show(costs);
    }
    if answer.finish == Finish::ContextFull && !a.json {
        note(format_args!("note: the answer ends here because the context of {} is full", model.exec.plan().context));
    }
    if verbose {
        say_speed(&answer, ttft);
        say_drafts(&model.exec, answer.drafts);
        say_memory(&model.exec.usage());
    }
    Ok(if answer.finish == Finish::Cancelled { Ended::Interrupted } else { Ended::Done })
}

fn asked(a: &RunArgs) -> anyhow::Result<Asked> {
    match (&a.ids, a.prompt.as_deref()) {
        (Some(ids), _) => Ok(Asked::Ids(ids.0.clone())),
        (None, Some("-")) => answer::from_stdin().map(Asked::Text),
        (None, Some(p)) => Ok(Asked::Text(p.to_string())),
        (None, None) if !std::io::stdin().is_terminal() => answer::from_stdin().map(Asked::Text),
        (None, None) => usage("there is no prompt: give one with -p, or pipe it in"),
    }
}

fn prompt_ids(m: &Model, a: &RunArgs, text: String) -> anyhow::Result<Vec<u32>> {
    if text.is_empty() {
        return Err(Error::EmptyPrompt.into());
    }
    let tokenizer = m.tokenizer()?;
    let rendered = if a.raw { Rendered::markup(text) } else { templated(m, tokenizer, a.system.as_deref(), text)? };
    Ok(tokenizer.encode_prompt(&rendered)?)
}

/// A prompt in the model's chat template, as it is where there is none.
pub(super) fn templated(
    m: &Model,
    tokenizer: &Tokenizer,
    system: Option<&str>,
    text: String,
) -> anyhow::Result<Rendered> {
    let Some(template) = &m.template else {
        if system.is_some() {
            return Err(text::Error::NoTemplate.into());
        }
        note("note: the model has no chat template; the prompt is continued as it is (as with --raw)");
        return Ok(Rendered::markup(text));
    };
    let message = |role: &str, text: &str| serde_json::json!({"role": role, "content": text});
    let mut messages: Vec<_> = system.map(|s| message("system", s)).into_iter().collect();
    messages.push(message("user", &text));
    let prompt = Prompt { messages: &messages, add_generation_prompt: true, ..Prompt::default() };
    Ok(template.render(&prompt, tokenizer)?)
}

/// Generates, streaming text to stdout if `show`; also tells when the first token was there.
fn stream(
    m: &mut Model,
    req: &Request,
    show: bool,
    stop: &AtomicBool,
) -> anyhow::Result<(Answer, Option<Instant>, Option<Moment>)> {
    let mut out = Stream::default();
    let mut bar = Bar::prefill(req.prompt.len() as u64);
    let mut first = None;
    let (watched, mut between) = (Watched::of(&m.exec), None);
    // Without a tokenizer there is no text, so the ids are shown.
    let show_ids = show && m.tokenizer.is_none();
    // One answer needs no more than this; a predictor may have what it leaves.
    let answer = req.max_tokens.unwrap_or(u32::MAX).min(GUARANTEE);
    let seq = m.exec.open_for(answer.saturating_add(req.prompt.len() as u32))?;
    let answer = generate(&mut m.exec, m.tokenizer.as_ref(), seq, req, stop, &mut |e| {
        let written = match e {
            Event::Prefill { done, total } => {
                bar.at(done as u64, total as u64);
                true
            }
            Event::Token(c) => {
                bar.clear();
                let separator = if first.is_some() { "," } else { "" };
                if first.is_none() {
                    first = Some(Instant::now());
                    between = watched.as_ref().map(Watched::now);
                }
                !show_ids || out.push(&format!("{separator}{}", c.id))
            }
            Event::Text(t) => !show || out.push(t),
        };
        if !written {
            stop.store(true, Ordering::Relaxed);
        }
    })?;
    m.exec.close(seq)?;
    out.finish()?;
    Ok((answer, first, between))
}

fn say_speed(a: &Answer, ttft: Option<Duration>) {
    note(format_args!(
        "prompt {} tokens at {:.1}/s; answer {} tokens at {:.1}/s; first after {:.0} ms; ended: {}; peak {:.0} MiB",
        a.prompt_tokens,
        a.prefill_tps(),
        a.ids.len(),
        a.decode_tps(),
        ttft.map_or(0.0, millis),
        a.finish.name(),
        peak_rss_mib().unwrap_or(0.0)
    ));
}

/// What drafting ahead did, if it did anything, and what came and went.
pub(super) fn say_drafts(exec: &Executor, d: Drafts) {
    if d.drafted > 0 {
        note(format_args!("debug: {} of {} tokens drafted ahead were right", d.right, d.drafted));
    }
    leases::say(exec);
}

fn millis(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

fn peak_rss_mib() -> Option<f64> {
    machine::peak_rss().map(|b| b as f64 / (1 << 20) as f64)
}

/// The object `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    text: &'a str,
    prompt_tokens: usize,
    tokens: usize,
    ids: &'a [u32],
    finish_reason: &'static str,
    seed: u64,
    prefill_tps: f64,
    decode_tps: f64,
    /// Tokens that were drafted ahead, and of them those that were right.
    drafted: u32,
    drafts_right: u32,
    ttft_ms: Option<f64>,
    peak_rss_mib: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<TokenReport>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Costs>,
    /// What reading from disk did, where not all weights are in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    streamed: Option<FromDisk>,
    #[serde(skip_serializing_if = "Option::is_none")]
    embedding_rows: Option<Rows>,
}

/// For the prompt and for the answer.
#[derive(Serialize)]
struct FromDisk {
    prefill: Streamed,
    decode: Streamed,
}

impl FromDisk {
    fn new([before, between, after]: [Moment; 3], a: &Answer) -> Self {
        let tokens = (a.ids.len() as u64).saturating_sub(1);
        let prefill = Streamed::between(&before, &between, a.prompt_tokens as u64);
        FromDisk { prefill, decode: Streamed::between(&between, &after, tokens) }
    }
}

#[derive(Serialize)]
struct TokenReport {
    #[serde(flatten)]
    token: Likely,
    top: Vec<Likely>,
}

#[derive(Serialize)]
struct Likely {
    id: u32,
    /// Its bytes as text, where it has any; a part of a character shows as U+FFFD.
    token: Option<String>,
    logprob: Option<f32>,
}

impl<'a> Report<'a> {
    fn new(a: &'a Answer, t: Option<&Tokenizer>, seed: u64, ttft: Option<Duration>, logprobs: bool) -> Self {
        Report {
            text: &a.text,
            prompt_tokens: a.prompt_tokens,
            tokens: a.ids.len(),
            ids: &a.ids,
            finish_reason: a.finish.name(),
            seed,
            prefill_tps: a.prefill_tps(),
            decode_tps: a.decode_tps(),
            drafted: a.drafts.drafted,
            drafts_right: a.drafts.right,
            ttft_ms: ttft.map(millis),
            peak_rss_mib: peak_rss_mib(),
            logprobs: logprobs.then(|| a.choices.iter().map(|c| TokenReport::new(c, t)).collect()),
            profile: None,
            streamed: None,
            embedding_rows: None,
        }
    }
}

impl TokenReport {
    fn new(c: &Choice, t: Option<&Tokenizer>) -> Self {
        let likely = |id, logprob| Likely { id, token: t.and_then(|t| piece(t, id)), logprob };
        let top = c.top.iter().map(|l| likely(l.id, Some(l.logprob))).collect();
        TokenReport { token: likely(c.id, c.logprob), top }
    }
}

fn piece(t: &Tokenizer, id: u32) -> Option<String> {
    t.token_bytes(id).map(|b| String::from_utf8_lossy(b).into_owned())
}
