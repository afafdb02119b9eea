//! What is asked of a plan, and why it may be refused.

use super::StreamAsk;
use crate::machine::MachineProfile;
use memory::{KvSpec, Plan, Tier};
use std::fmt::Write as _;

/// How many positions a sequence shall have.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Context {
    /// The model's, at most [`DEFAULT_CONTEXT`](super::DEFAULT_CONTEXT), less if that does not fit.
    #[default]
    Usual,
    /// As many as fit, at most the model's.
    Most,
    /// So many, or a refusal.
    Exactly(u32),
}

/// How a predictor is kept in memory, where tokens are to be drafted. What it needs to follow the model always is there.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Predictor {
    /// All the time.
    #[default]
    Resident,
    /// While an answer is made alone, as long as nobody else needs the room.
    Leased,
    /// The first of these that takes no room from others, neither from the context that fits nor from weights that would be
    /// read from disk then; else nobody drafts.
    AsItFits,
}

/// What is asked of a plan.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Positions of a sequence.
    pub context: Context,
    /// Sequences at a time. They share the pages of history: those of one full sequence at least, and of each other one those
    /// of `share` positions; more as far as memory goes.
    pub parallel: u32,
    /// Positions that each sequence but one has room for at least, where the context is longer.
    pub share: u32,
    /// Most rows of one `mix` call, a multiple of 64.
    pub chunk: u32,
    /// Most rows of class Few in one call; as many as sequences at least.
    pub few: u32,
    /// Formats of history; `None`: f32 for f32 weights, else bf16.
    pub kv: Option<KvSpec>,
    /// Formats of a second history that the same rows are read into.
    pub beside: Option<KvSpec>,
    /// Rows whose logits are wanted at once from a prefill chunk.
    pub logit_rows: u32,
    /// Most bytes that the process may hold.
    pub guard: u64,
    /// Most bytes of a device's own memory; `None`: what is free there.
    pub device_guard: Option<u64>,
    /// Most tokens that the model's predictor drafts ahead, where it has one; 0 leaves the predictor where it is.
    pub draft: u32,
    /// How that predictor is kept.
    pub predictor: Predictor,
    /// Most bytes for states kept of what was read, where sequences need some to go on; `None`: none are planned.
    pub snapshots: Option<u64>,
    /// Pages that wait in the host's memory on their way to a disk, where what was read is kept there
    /// ([`crate::batch::STAGING_PAGES`]).
    pub staged: u64,
    /// Whether a prompt may stop between layers for answers beside it, where there are several sequences.
    pub stops_between_layers: bool,
    /// Prompts go layer by layer in segments of so many rows; `None`: where experts are not all in memory, in segments that
    /// follow from `machine`, else chunk by chunk.
    pub segment: Option<u32>,
    /// What was measured of this machine.
    pub machine: Option<Box<MachineProfile>>,
    /// How experts are streamed that do not fit.
    pub stream: StreamAsk,
}

impl Default for Ask {
    fn default() -> Self {
        Ask {
            context: Context::Usual,
            parallel: 1,
            share: super::GUARANTEE,
            chunk: 256,
            few: 1,
            kv: None,
            beside: None,
            logit_rows: 1,
            guard: u64::MAX,
            device_guard: None,
            draft: 0,
            predictor: Predictor::default(),
            snapshots: None,
            staged: 0,
            stops_between_layers: false,
            segment: None,
            machine: None,
            stream: StreamAsk::default(),
        }
    }
}

/// The parts of a plan's total, in bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// W.
    pub weights: u64,
    /// K.
    pub history: u64,
    /// S.
    pub states: u64,
    /// X.
    pub workspace: u64,
    /// H.
    pub allowance: u64,
    /// Whether that is with experts or layers left on disk, as many as can be.
    pub left_out: bool,
}

impl Parts {
    /// Those of a plan.
    pub fn of(p: &Plan) -> Self {
        Parts {
            weights: p.resident_bytes().saturating_add(p.head_beyond()),
            history: p.kv_bytes,
            states: p.state_bytes.saturating_add(if p.tier == Tier::Host { p.snapshots() } else { 0 }),
            workspace: p.workspace_bytes(),
            allowance: p.allowance,
            left_out: p.slots.is_some() || p.layers.is_some(),
        }
    }
    /// All of them.
    pub fn total(&self) -> u64 {
        let all = [self.weights, self.history, self.states, self.workspace, self.allowance];
        all.into_iter().fold(0, u64::saturating_add)
    }
}

/// Why a model cannot be served as asked, and what would do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// More positions than the model was trained for.
    #[error("--context {asked} is more than the {most} positions of this model")]
    ContextBeyondModel {
        /// Asked.
        asked: u32,
        /// Allowed.
        most: u32,
    },
    /// Heads of a width that the format of history is not for.
    #[error(
        "--kv {kv} is for heads of 64, 128, 256 or 512 columns; layer {layer} of this model has {d}; \
         take --kv bf16 or leave --kv out"
    )]
    KvWidth {
        /// The format.
        kv: &'static str,
        /// The layer.
        layer: u32,
        /// Width of its heads.
        d: u32,
    },
    /// Fewer slots than a token needs.
    #[error(
        "--slots {asked} is too few: a token needs its {top_k} experts of a layer at once, and others are read beside \
         them; take --slots {least} or more, or leave --slots out"
    )]
    TooFewSlots {
        /// Asked.
        asked: u32,
        /// The fewest possible.
        least: u32,
        /// Experts that a token is routed to.
        top_k: u32,
    },
    /// It does not fit.
    #[error("{}", too_large(.tier, .context, .parts, .guard, .smaller, .formats, .parallel))]
    TooLarge {
        /// The memory that is too small.
        tier: Tier,
        /// Positions that do not fit; the fewest possible where none were asked for.
        context: u32,
        /// What they need at least.
        parts: Parts,
        /// Bytes there are.
        guard: u64,
        /// The most positions that would fit, all else as asked.
        smaller: Option<u32>,
        /// Formats of history that would fit, each with the most positions it would fit with.
        formats: Vec<(KvSpec, u32)>,
        /// The most sequences at a time that would fit, all else as asked.
        parallel: Option<u32>,
    },
    /// The model fits on the device, and the process does not fit in the host's memory.
    #[error(
        "the process needs {} of the host's memory beside the device's and {} may be used; what would help: --memory {} or \
         more, where there is as much",
        mib(*.needed), mib_below(*.guard), mib(*.needed).replace(' ', "")
    )]
    HostTooSmall {
        /// Bytes needed.
        needed: u64,
        /// Bytes there are.
        guard: u64,
    },
}

fn too_large(
    tier: &Tier,
    context: &u32,
    p: &Parts,
    guard: &u64,
    smaller: &Option<u32>,
    formats: &[(KvSpec, u32)],
    parallel: &Option<u32>,
) -> String {
    let mut said = format!(
        "{context} positions need {} of {}{} and {} may be used (weights {}, history {}, states {}, workspace {}, \
         {} {}); what would help: ",
        mib(p.total()),
        if *tier == Tier::Host { "memory".into() } else { tier.to_string() },
        if p.left_out { ", however much is read from disk for every token," } else { "" },
        mib_below(*guard),
        mib(p.weights),
        mib(p.history),
        mib(p.states),
        mib(p.workspace),
        if *tier == Tier::Host { "the process itself" } else { "the driver" },
        mib(p.allowance)
    );
    let mut ways = Vec::new();
    ways.extend(smaller.map(|c| format!("--context {c}")));
    for (kv, most) in formats {
        let less = if most < context { format!(" with --context {most}") } else { String::new() };
        ways.push(format!("--kv {}{less}", kv.describe()));
    }
    ways.extend(parallel.map(|n| format!("--parallel {n}")));
    if p.weights.saturating_add(p.allowance) > *guard {
        ways.push("a smaller model or quantisation".into());
    }
    let flag = if *tier == Tier::Host { "--memory" } else { "--device-memory" };
    ways.push(format!("{flag} {} or more, where there is as much", mib(p.total()).replace(' ', "")));
    if *tier != Tier::Host {
        ways.push("--device cpu".into());
    }
    // Writing to a string cannot fail.
    let _ = write!(said, "{}", ways.join("; "));
    said
}

/// Rounded up, so that a limit of what is said is enough.
fn mib(n: u64) -> String {
    format!("{} MiB", n.div_ceil(1 << 20))
}

/// Rounded down, so that what is said is there.
fn mib_below(n: u64) -> String {
    format!("{} MiB", n >> 20)
}
