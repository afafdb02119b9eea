//! `snug bench`: how fast a model reads and answers on this machine, and how near that is to what its memory allows.

use super::ahead::Parts;
use super::profile::{self, Costs};
use crate::args::BenchArgs;
use crate::fault::{Ended, usage};
use crate::load::{options, place, say_memory};
use crate::output::{self, note};
use crate::progress::Bar;
use crate::resolve;
use crate::streamed::{Moment, Streamed, Watched};
use device::{Profile, Region};
use engine::open::Opened;
use engine::plan::{decode_weight_bytes, history_bytes};
use engine::{Context, Executor, Model, SeqId, Wanted, machine};
use memory::{KvSpec, Tier};
use serde::Serialize;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use weights::Rerouted;

/// Fixes the token ids and the history.
const SEED: u64 = 1;

/// Measures and reports.
pub fn run(a: &BenchArgs, verbose: bool) -> anyhow::Result<Ended> {
    let mut how = options(&a.on, 1)?;
    how.ask.draft = a.draft;
    how.profile = a.profile.then(Profile::default);
    let opened = Opened::open(resolve::source(a.model.as_deref())?)?;
    how.ask.context = context(a, opened.family.spec().context)?;
    how.ask.parallel = how.ask.parallel.max(a.batch);
    let weight_bytes = decode_weight_bytes(opened.family.as_ref(), &opened.bounds);
    let mut model = place(opened, &how, verbose)?;
    if a.eager {
        model.exec.set_graphs(false);
    }
    if let Some(file) = &a.route_trace {
        let routing = super::experts::fitted(file, &model)?;
        model.exec.set_tap(Some(Box::new(Rerouted::new(routing))));
    }
    let times = measure(&mut model.exec, a, how.profile.as_ref())?;
    let ahead = ahead(&mut model.exec, a)?;
    if verbose {
        say_memory(&model.exec.usage());
    }
    let costs = how.profile.map(|p| Costs::new(p.take(), times.prefill.iter().sum(), times.decode.iter().sum()));
    let report = Report { profile: costs, ahead, ..Report::new(&mut model, a, &times, weight_bytes) };
    if a.json {
        output::json(&report)?;
    } else {
        report.show()?;
        report.ahead.iter().try_for_each(Parts::show)?;
        report.profile.iter().for_each(profile::show);
    }
    Ok(Ended::Done)
}

/// The parts of a round of drafting, where somebody asked for drafts and somebody can make them.
fn ahead(exec: &mut Executor, a: &BenchArgs) -> anyhow::Result<Option<Parts>> {
    if exec.plan().draft == 0 {
        return Ok(None);
    }
    let vocab = exec.family().spec().vocab;
    let (prompt, rows) = (ids(a.prompt, vocab, 0), ids(64, vocab, 1));
    let seq = exec.open()?;
    exec.fill(seq, a.depth, SEED)?;
    exec.prefill(seq, &prompt, Wanted::Last, &AtomicBool::new(false), &mut |_| {})?;
    let parts = Parts::measure(exec, seq, &rows)?;
    exec.close(seq)?;
    Ok(Some(parts))
}

/// Positions to plan for.
fn context(a: &BenchArgs, most: u32) -> anyhow::Result<Context> {
    let drafts = u64::from(a.draft) + 1;
    let needed = a.depth as u64 + a.prompt as u64 + (a.generate as u64).max(drafts);
    let context = if let Some(Context::Exactly(n)) = a.on.context { n } else { most };
    if needed > context as u64 {
        return usage(format!(
            "--depth {}, --prompt {} and --gen {} are {needed} positions; the context is {context} (the model allows {most})",
            a.depth, a.prompt, a.generate
        ));
    }
    Ok(a.on.context.unwrap_or(Context::Exactly(needed as u32)))
}

/// What each counted round took.
#[derive(Default)]
struct Times {
    prefill: Vec<Duration>,
    decode: Vec<Duration>,
    workspace: Workspace,
    /// Of the likeliest ids of all steps.
    digest: Digest,
    /// Before and after each counted prompt and answer, where weights are read from disk.
    streamed: Vec<[Moment; 4]>,
    /// 10^9 bytes of memory that were read a second, before and after each counted answer; their mean.
    memory: Vec<f64>,
}

/// A number that is the same for the same ids in the same order (FNV-1a).
#[derive(Copy, Clone, PartialEq)]
struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    fn take(&mut self, id: u32) {
        for b in id.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// Bytes of the step's arena: what the plan says, and the most that was in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Workspace {
    planned: u64,
    prefill: u64,
    decode: u64,
}

fn measure(exec: &mut Executor, a: &BenchArgs, counted: Option<&Profile>) -> anyhow::Result<Times> {
    let vocab = exec.family().spec().vocab;
    let watched = Watched::of(exec);
    let look = || watched.as_ref().map(Watched::now);
    let mut reads = read_test(exec);
    let mut rate = |round| reads.as_mut().filter(|_| round > 0).map(machine::ReadTest::gbps);
    let bar = Bar::rounds("measuring", a.repeat as u64 + 1);
    let mut times = Times::default();
    times.workspace.planned = exec.plan().workspace.step;
    for round in 0..=a.repeat {
        bar.at(round as u64, a.repeat as u64 + 1);
        let [prompt, answer] = [(0, a.prompt), (1, a.generate)].map(|(of, n)| ids(n, vocab, 2 * u64::from(round) + of));
        let a0 = look();
        let prefill = behind(exec, a.depth, 1, |exec, seqs| {
            exec.prefill(seqs[0], &prompt, Wanted::Last, &AtomicBool::new(false), &mut |_| {}).map(drop)
        })?;
        let a1 = look();
        times.workspace.prefill = most_used(exec);
        let before = rate(round);
        let b0 = look();
        let mut digest = Digest::default();
        let decode = behind(exec, a.depth, a.batch, |exec, seqs| {
            let mut rows: Vec<(SeqId, u32)> = seqs.iter().map(|&s| (s, 0)).collect();
            for &id in &answer {
                // Each sequence goes its own way through the vocabulary.
                (0..).zip(&mut rows).for_each(|(i, row)| row.1 = (id + i * 7919) % vocab);
                for best in exec.decode_likeliest(&rows, 1)? {
                    digest.take(best.first().ok_or(engine::Error::BadLogits)?.0);
                }
            }
            Ok(())
        })?;
        times.digest = digest;
        let b1 = look();
        times.workspace.decode = most_used(exec);
        let after = rate(round);
        if round > 0 {
            times.memory.extend(before.zip(after).map(|(a, b)| (a + b) / 2.0));
            times.prefill.push(prefill);
            times.decode.push(decode);
            times.streamed.extend(a0.zip(a1).zip(b0.zip(b1)).map(|((a, b), (c, d))| [a, b, c, d]));
        } else if let Some(p) = counted {
            p.take();
        }
    }
    Ok(times)
}

/// Memory to read beside each round, where the budget leaves it: not a byte of it is the model's.
fn read_test(exec: &mut Executor) -> Option<machine::ReadTest> {
    let threads = exec.device().caps().threads;
    match exec.plan().tier {
        Tier::Host => machine::ReadTest::new(threads, exec.ledger(), exec.plan().kv_bytes),
        _ => None,
    }
}

/// Most bytes of the arena in use at once since this was last asked.
fn most_used(exec: &mut Executor) -> u64 {
    let arena = exec.device().arena();
    let most = arena.high_water(Region::Step);
    arena.reset_high_water();
    most
}

/// Times `f` on `n` new sequences that have `depth` positions.
fn behind(
    exec: &mut Executor,
    depth: u32,
    n: u32,
    f: impl FnOnce(&mut Executor, &[SeqId]) -> engine::Result<()>,
) -> anyhow::Result<Duration> {
    let mut seqs = Vec::new();
    for i in 0..n {
        let seq = exec.open()?;
        exec.fill(seq, depth, SEED + u64::from(i))?;
        seqs.push(seq);
    }
    let begun = Instant::now();
    f(exec, &seqs)?;
    let took = begun.elapsed();
    seqs.into_iter().try_for_each(|seq| exec.close(seq))?;
    Ok(took)
}

/// Token ids spread over the vocabulary, so that routers choose as variously as they can. No two rounds have the same: what
/// one of them had read from disk would all be there for the next.
fn ids(n: u32, vocab: u32, round: u64) -> Vec<u32> {
    let mut x = SEED ^ round.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        // Knuth's MMIX generator; its upper half is the random one.
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((x >> 32) % vocab.max(1) as u64) as u32
    };
    (0..n).map(|_| next()).collect()
}

/// Of the rounds.
#[derive(Debug, PartialEq, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    /// Tokens a second.
    fn of(tokens: u32, times: &[Duration]) -> Self {
        let mut all: Vec<f64> = times.iter().map(|t| tokens as f64 / t.as_secs_f64().max(1e-9)).collect();
        Self::of_numbers(&mut all)
    }
    fn of_numbers(all: &mut [f64]) -> Self {
        all.sort_by(f64::total_cmp);
        let at = |i: usize| all.get(i).copied().unwrap_or_default();
        let (low, high) = (at(all.len().saturating_sub(1) / 2), at(all.len() / 2));
        Spread { median: (low + high) / 2.0, min: at(0), max: at(all.len().saturating_sub(1)) }
    }
}

#[derive(Serialize)]
struct Report {
    model: String,
    arch: String,
    device: &'static str,
    isa: String,
    threads: u32,
    kv: Option<String>,
    context: u32,
    prompt: u32,
    #[serde(rename = "gen")]
    generate: u32,
    depth: u32,
    batch: u32,
    repeat: u32,
    /// What loading took, and 10^9 bytes of weights a second.
    load_s: f64,
    load_gbps: f64,
    /// The file that routing was replayed from, in place of the router's choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    route_trace: Option<String>,
    prefill_tps: Spread,
    decode_tps: Spread,
    /// Of the likeliest ids of all steps: the same for the same ids.
    digest: String,
    /// What one step of one sequence reads: weights, and history and states halfway through the answer.
    bytes_per_token: u64,
    weight_bytes_per_token: u64,
    history_bytes_per_token: u64,
    /// `bytes_per_token` at the median rate.
    achieved_gbps: f64,
    /// What as many threads read of memory, taken before and after each round: the median; on a GPU what a copy within its
    /// memory moves.
    ram_read_gbps: Option<f64>,
    /// The same for each round; empty on a GPU.
    ram_reads_gbps: Vec<f64>,
    /// Of each round the rate of its bytes over that of memory beside it: the median. More than 1 where weights stay in a cache.
    bound_share: Option<f64>,
    /// Bytes of the step's arena.
    workspace: Workspace,
    /// A GPU's memory as its driver sees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    card: Option<Card>,
    /// What rounds of drafting are made of, with `--draft`.
    #[serde(skip_serializing_if = "Option::is_none")]
    ahead: Option<Parts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Costs>,
    /// What reading from disk did in each round, where not all weights are in memory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    streamed: Vec<FromDisk>,
}

/// Of one round.
#[derive(Serialize)]
struct FromDisk {
    prefill: Streamed,
    decode: Streamed,
}

/// Bytes of a GPU's memory.
#[derive(Serialize)]
struct Card {
    total: u64,
    free: u64,
    context: u64,
    code: u64,
    arena: u64,
    graphs: u64,
    reserved: u64,
}

impl Report {
    fn new(m: &mut Model, a: &BenchArgs, times: &Times, weights: u64) -> Self {
        let caps = m.exec.device().caps().clone();
        let (family, plan) = (m.exec.family(), m.exec.plan());
        let history = history_bytes(family, plan, a.depth + a.generate.div_ceil(2));
        let decode_tps = Spread::of(a.generate * a.batch, &times.decode);
        // A batch reads the weights once, where all its rows take the same ones.
        let read = weights as f64 / f64::from(a.batch) + history as f64;
        let achieved = read * decode_tps.median / 1e9;
        let (tier, load_s, resident) = (plan.tier, m.exec.loading().as_secs_f64(), plan.resident_bytes());
        let usage = m.exec.usage();
        let copy = match tier {
            Tier::Device(n) if usage.free() > 2 << 30 => device::Cuda::copy_gbps(n.into()).ok(),
            _ => None,
        };
        let median = |mut all: Vec<f64>| (!all.is_empty()).then(|| Spread::of_numbers(&mut all).median);
        let ram = copy.or_else(|| median(times.memory.clone()));
        let of_round = |(took, gbps): (&Duration, &f64)| {
            read * f64::from(a.generate * a.batch) / took.as_secs_f64().max(1e-9) / 1e9 / gbps
        };
        let shares = times.decode.iter().zip(&times.memory).map(of_round).collect();
        let share = copy.map(|c| achieved / c).or_else(|| median(shares));
        let card = m.exec.device().memory().map(|c| Card {
            total: c.total,
            free: c.free,
            context: c.context,
            code: c.code,
            arena: c.arena,
            graphs: c.graphs,
            reserved: usage.reserved(),
        });
        let (family, plan) = (m.exec.family(), m.exec.plan());
        Report {
            model: m.name.clone(),
            arch: family.spec().arch.clone(),
            device: caps.name,
            isa: caps.isa,
            threads: caps.threads,
            kv: plan.kv.first().map(KvSpec::describe),
            context: plan.context,
            prompt: a.prompt,
            generate: a.generate,
            depth: a.depth,
            batch: a.batch,
            repeat: a.repeat,
            load_s,
            load_gbps: resident as f64 / load_s.max(1e-9) / 1e9,
            digest: format!("{:016x}", times.digest.0),
            route_trace: a.route_trace.as_ref().map(|f| f.display().to_string()),
            prefill_tps: Spread::of(a.prompt, &times.prefill),
            decode_tps,
            bytes_per_token: weights + history,
            weight_bytes_per_token: weights,
            history_bytes_per_token: history,
            achieved_gbps: achieved,
            ram_read_gbps: ram,
            ram_reads_gbps: times.memory.clone(),
            bound_share: share,
            workspace: times.workspace.clone(),
            card,
            ahead: None,
            profile: None,
            streamed: times.streamed.iter().map(|m| from_disk(a, m)).collect(),
        }
    }

    /// Whose rate memory's is, and how far it went up and down.
    fn beside(&self) -> String {
        let s = Spread::of_numbers(&mut self.ram_reads_gbps.clone());
        format!("{} threads read from memory beside each round ({:.1} to {:.1})", self.threads, s.min, s.max)
    }

    /// What reading from disk did, round by round.
    fn show_streamed(&self) -> anyhow::Result<()> {
        for e in &self.streamed {
            for (what, s) in [("prefill", &e.prefill), ("decode", &e.decode)] {
                output::line(format_args!("from disk, {what}: {}", s.describe()))?;
            }
        }
        Ok(())
    }

    fn show(&self) -> anyhow::Result<()> {
        output::line(format_args!(
            "{}: {} on {} {} with {} threads, history in {}, context {}",
            self.model,
            self.arch,
            self.device,
            self.isa,
            self.threads,
            self.kv.as_deref().unwrap_or("nothing"),
            self.context
        ))?;
        if let Some(file) = &self.route_trace {
            output::line(format_args!("experts as recorded in {file}, not as the model's router chooses"))?;
        }
        output::line(format_args!("{:<24} {:>10} {:>10} {:>10}", "tokens/s", "median", "min", "max"))?;
        let rates = [("prefill", self.prompt, &self.prefill_tps), ("decode", self.generate, &self.decode_tps)];
        for (what, n, s) in rates {
            let batch = if what == "decode" && self.batch > 1 { format!("{} x ", self.batch) } else { String::new() };
            let what = format!("{what} {batch}{n} @ {}", self.depth);
            output::line(format_args!("{what:<24} {:>10.1} {:>10.1} {:>10.1}", s.median, s.min, s.max))?;
        }
        output::line(format_args!(
            "a token reads {} of weights and {} of history: {:.1} GB/s",
            output::bytes(self.weight_bytes_per_token),
            output::bytes(self.history_bytes_per_token),
            self.achieved_gbps
        ))?;
        self.show_streamed()?;
        let (Some(ram), Some(share)) = (self.ram_read_gbps, self.bound_share) else {
            note("note: there is too little free memory to measure how fast it is read");
            return Ok(());
        };
        output::line(format_args!(
            "{:.0}% of the {ram:.1} GB/s that {} in this run",
            share * 100.0,
            match self.card {
                Some(_) => "a copy moves on the GPU".into(),
                None => self.beside(),
            }
        ))?;
        line_of(self.card.as_ref(), self.load_s, self.load_gbps)
    }
}

fn line_of(card: Option<&Card>, load_s: f64, load_gbps: f64) -> anyhow::Result<()> {
    let Some(c) = card else { return Ok(()) };
    output::line(format_args!(
        "loaded in {load_s:.1} s, {load_gbps:.2} GB/s; on the GPU {} are reserved, the arena of steps {} of them; beside that the \
         context {}, code {}, recorded steps {}; {} of {} are free",
        output::bytes(c.reserved),
        output::bytes(c.arena),
        output::bytes(c.context),
        output::bytes(c.code),
        output::bytes(c.graphs),
        output::bytes(c.free),
        output::bytes(c.total)
    ))
}

fn from_disk(a: &BenchArgs, [p0, p1, d0, d1]: &[Moment; 4]) -> FromDisk {
    FromDisk {
        prefill: Streamed::between(p0, p1, a.prompt.into()),
        decode: Streamed::between(d0, d1, a.generate.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_of_rates_and_its_median_lies_between_two() {
        let s = |ms: &[u64]| Spread::of(10, &ms.iter().map(|&m| Duration::from_millis(m)).collect::<Vec<_>>());
        assert_eq!(s(&[100, 1000, 200]), Spread { median: 50.0, min: 10.0, max: 100.0 });
        assert_eq!(s(&[1000, 100]).median, 55.0);
    }

    #[test]
    fn ids_are_in_the_vocabulary_and_various() {
        let all = ids(1000, 50, 0);
        assert!(all.iter().all(|&id| id < 50));
        assert!((0..50).all(|id| all.contains(&id)));
        assert_eq!(ids(3, 1, 0), [0, 0, 0]);
    }

    /// Else a round measures a cache that knows its answer.
    #[test]
    fn no_round_is_that_before() {
        let rounds: Vec<Vec<u32>> = (0..8).map(|r| ids(64, 150_000, r)).collect();
        let seen: std::collections::BTreeSet<u32> = rounds.iter().flatten().copied().collect();
        assert!(seen.len() > 8 * 64 - 8, "{} different ids", seen.len());
    }
}
