//! How long things will take on a machine that was measured: bytes over the rates at which they are read,
//! multiply-adds over the rates at which they are done. What a profile does not hold (threads waiting for each other,
//! small matrices, attention) is not in it, so small models are slower than forecast.

use super::{Subject, decode_read, history_bytes};
use crate::machine::{LinearRate, MachineProfile};
use checkpoint::{Block, DType};
use memory::{Component, Plan, Residency};
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
}

/// Forecasts a plan on a machine.
pub fn forecast(of: Subject, plan: &Plan, machine: &MachineProfile) -> Forecast {
    let decode = |len: u32| {
        let read = |b: &Bound| Some(decode_read(of.family, of.bounds, b) as f64 / gemv(machine, b.dtype)?);
        let weights = of.bounds.iter().map(read).sum::<Option<f64>>()?;
        let history = history_bytes(of.family, plan, len) as f64 / ram(machine, of.on.caps.threads)?;
        positive(1.0 / (weights + history))
    };
    Forecast {
        load_s: disk(machine).and_then(|d| positive(loaded(plan) as f64 / d)),
        prefill_tps: row_seconds(of, machine).and_then(|s| positive(1.0 / s)),
        decode_tps: decode(1),
        decode_full_tps: decode(plan.context),
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
    p.weights.iter().filter(|w| !matches!(w.residency, Residency::Leased | Residency::RowRead)).map(|w| w.bytes).sum()
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
