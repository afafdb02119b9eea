//! How long things will take on a machine that was measured: bytes over the rates at which they are read,
//! multiply-adds over the rates at which they are done, and what each matrix costs however small it is. Attention of
//! prompts is not in it.

use super::{Subject, decode_read};
use crate::machine::{LinearRate, MachineProfile};
use checkpoint::{Block, DType};
use memory::{Component, KvFormat, Plan};
use state::{Decl, Stream};
use weights::{Bound, Role};

/// What to expect. `None` where the profile lacks what it follows from.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Seconds to read the weights, nothing of them being in the page cache.
    pub load_s: Option<f64>,
    /// Prompt tokens a second, attention not counted.
    pub prefill_tps: Option<f64>,
    /// Tokens a second at the start of a context.
    pub decode_tps: Option<f64>,
    /// The same at its end.
    pub decode_full_tps: Option<f64>,
    /// Where experts are read from their file: what a token reads of them.
    pub streamed: Option<Streamed>,
}

/// What a decoded token reads from the disk, where its experts are chosen without any liking for those chosen before:
/// real routers choose more kindly.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Streamed {
    /// Share of the chosen experts that is in memory.
    pub hit_rate: f64,
    /// Bytes a token reads from the disk.
    pub bytes: u64,
    /// Bytes a second that the disk gives; `None` where it was not measured.
    pub rate: Option<f64>,
}

impl Streamed {
    fn of(p: &Plan, top_k: u32, rate: Option<f64>) -> Option<Self> {
        let layers = p.layers.as_ref().map_or(0, |l| l.read_bytes);
        if p.slots.is_none() && layers == 0 {
            return None;
        }
        let (mut asked, mut missed, mut bytes) = (0.0, 0.0, layers as f64);
        for pool in p.slots.iter().flat_map(|s| &s.pools) {
            let chosen = pool.layers.len() as f64 * f64::from(top_k);
            let kept = f64::from(pool.slots - pool.passing) / f64::from(pool.experts.max(1));
            let missing = chosen * (1.0 - kept.min(1.0));
            (asked, missed, bytes) = (asked + chosen, missed + missing, bytes + missing * pool.record_bytes as f64);
        }
        Some(Streamed { hit_rate: 1.0 - missed / f64::max(asked, 1.0), bytes: bytes as u64, rate })
    }
    /// Seconds of a token, reading alone.
    fn seconds(&self) -> Option<f64> {
        Some(self.bytes as f64 / self.rate?)
    }
}

/// Forecasts a plan on a machine.
pub fn forecast(of: Subject, plan: &Plan, machine: &MachineProfile) -> Forecast {
    let disk = disk(machine);
    let (_, top_k) = of.family.spec().experts.unwrap_or_default();
    let streamed = Streamed::of(plan, top_k, disk);
    let decode = |len: u32| {
        let read = |b: &Bound| Some(decode_read(of.family, of.bounds, b) as f64 / gemv(machine, b.dtype)?);
        let weights = of.bounds.iter().map(read).sum::<Option<f64>>()? + calls(of) as f64 * machine.call_us / 1e6;
        // What is read while nothing is computed and the other way round: the whole of both is the careful answer.
        let disk = streamed.map_or(Some(0.0), |s| s.seconds())?;
        positive(1.0 / (weights + looking(of, plan, machine, len)? + disk))
    };
    Forecast {
        load_s: disk.and_then(|d| positive(loaded(plan) as f64 / d)),
        prefill_tps: row_seconds(of, machine).and_then(|s| positive(1.0 / s.max(reading(plan, disk)))),
        decode_tps: decode(1),
        decode_full_tps: decode(plan.context),
        streamed,
    }
}

/// Bytes that a decoded token reads from disk.
pub(super) fn token_reads(of: Subject, p: &Plan) -> u64 {
    let (_, top_k) = of.family.spec().experts.unwrap_or_default();
    Streamed::of(p, top_k, None).map_or(0, |s| s.bytes)
}

/// Seconds of reading for each row of a segment, which take place while it computes.
fn reading(p: &Plan, disk: Option<f64>) -> f64 {
    let streams = p.segment() > 0 && (p.slots.is_some() || p.layers.is_some());
    match disk.filter(|_| streams) {
        Some(disk) => super::order::read_bytes(p) as f64 / disk / f64::from(p.segment()),
        None => 0.0,
    }
}

/// Bytes a second that the disk gives at best.
pub(super) fn disk(m: &MachineProfile) -> Option<f64> {
    m.disk_read.rates.iter().map(|r| r.gbps * 1e9).reduce(f64::max)
}

fn positive(x: f64) -> Option<f64> {
    (x.is_finite() && x > 0.0).then_some(x)
}

fn loaded(p: &Plan) -> u64 {
    p.weights.iter().filter(|w| p.is_loaded(w.residency)).map(|w| w.bytes).sum()
}

/// Seconds for a prompt token: every matrix once but the embedding, which is looked up, and the head, which is for the
/// last token only.
pub(super) fn row_seconds(of: Subject, m: &MachineProfile) -> Option<f64> {
    let (_, top_k) = of.family.spec().experts.unwrap_or_default();
    let madds = |b: &Bound| match (b.component, b.role) {
        (Component::Mtp | Component::Embed | Component::LayerEmbed | Component::Head, _) | (_, Role::Vector) => 0.0,
        (_, Role::Matrix) => b.n as f64 * b.k as f64,
        (_, Role::Experts { count, .. }) => b.n as f64 * b.k as f64 * count.min(top_k) as f64,
    };
    of.bounds.iter().map(|b| Some(madds(b) / (like(m, b.dtype)?.gemm_gmadds * 1e9))).sum()
}

/// Matrices that a decoded token is multiplied with, one after the other: each has its threads to wait for.
fn calls(of: Subject) -> usize {
    let one = |b: &&Bound| {
        let looked_up = matches!(b.component, Component::Mtp | Component::Embed | Component::LayerEmbed);
        !looked_up && !matches!(b.role, Role::Vector)
    };
    of.bounds.iter().filter(one).count()
}

/// Seconds in which the row at position `len - 1` goes through its histories, at the rates of their formats, and states.
fn looking(of: Subject, plan: &Plan, m: &MachineProfile, len: u32) -> Option<f64> {
    let ram = ram(m, of.on.caps.threads)?;
    let rate = |fmt: KvFormat| m.history.iter().find(|h| h.format == fmt.name()).map_or(ram, |h| h.gbps * 1e9);
    let one = |d: &Decl| {
        let rate = match d.stream {
            Stream::History { kv, .. } => rate(kv.main),
            Stream::Ring { fmt, .. } => rate(fmt),
            Stream::Recurrent { .. } => ram,
        };
        d.stream.read_bytes(len) as f64 * f64::from(of.family.readers(d.layer)) / rate
    };
    Some(of.family.state(&plan.kv).iter().map(one).sum())
}

/// Bytes a second of weights of a type, for one row.
fn gemv(m: &MachineProfile, t: DType) -> Option<f64> {
    like(m, t).map(|r| r.gemv_gbps * 1e9)
}

/// Bytes a second that so many threads read.
fn ram(m: &MachineProfile, threads: u32) -> Option<f64> {
    let enough = m.ram_read.iter().find(|r| r.threads >= threads).or(m.ram_read.last());
    enough.map(|r| r.gbps * 1e9)
}

/// The rates of a type, else those of the measured type most like it: the one with as many bits, or nearly.
fn like(m: &MachineProfile, t: DType) -> Option<&LinearRate> {
    let named = |name: &str| m.linear.iter().find(|r| r.dtype == name);
    let stand_in = match t {
        DType::F16 => DType::BF16,
        DType::Block(Block::Q5K | Block::Q6K | Block::Iq4Xs) => DType::Block(Block::Q4K),
        DType::Block(Block::Q8_0) => t,
        DType::Block(_) => DType::Block(Block::Q4_0),
        _ => DType::F32,
    };
    named(t.name()).or_else(|| named(stand_in.name()))
}
