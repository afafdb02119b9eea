//! Which kept expert makes room for another.

use super::{DecayedLfu, ExpertId, PoolSize, Scope};
use crate::SlotId;
use std::collections::HashMap;

/// A live entry that nobody uses and that may go.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its slot.
    pub slot: SlotId,
    /// What it holds.
    pub id: ExpertId,
}

/// Ranks what is kept. Time is the number of visits so far; one decoded token makes one visit a layer.
pub trait Policy: std::fmt::Debug + Send {
    /// Its name in reports.
    fn name(&self) -> &'static str;
    /// A decoding visit asks for an expert, here or not. Called before its slots are planned.
    fn touch(&mut self, id: ExpertId, now: u64);
    /// An expert is kept from now on.
    fn kept(&mut self, _slot: SlotId, _id: ExpertId, _now: u64) {}
    /// A kept expert was let go of, or never arrived.
    fn dropped(&mut self, _slot: SlotId, _id: ExpertId) {}
    /// Which of the candidates (by ascending slot) makes room for `id`. `None`: none does, `id` will only pass through.
    fn victim(&mut self, id: ExpertId, candidates: &[Candidate], now: u64) -> Option<SlotId>;
}

/// Tokens after which a use counts half as much in the usual policy.
pub const HALF_LIFE: u32 = 32;

/// The usual policy of a pool of this size, for a model that chooses `top_k` experts: what replaying routing traces
/// found best, whatever the number of slots (docs/experiments.md, E70).
pub fn usual(size: &PoolSize, _top_k: u32) -> (Scope, Box<dyn Policy>) {
    let visits = u64::from(HALF_LIFE) * u64::from(size.layers.max(1));
    (Scope::Pool { floor: 0 }, Box::new(DecayedLfu::new(visits)))
}

/// The least recently used one goes.
#[derive(Clone, Debug, Default)]
pub struct Lru {
    last: HashMap<ExpertId, u64>,
}

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }
    fn touch(&mut self, id: ExpertId, now: u64) {
        self.last.insert(id, now);
    }
    fn victim(&mut self, _: ExpertId, candidates: &[Candidate], _: u64) -> Option<SlotId> {
        let last = |c: &&Candidate| self.last.get(&c.id).copied().unwrap_or(0);
        candidates.iter().min_by_key(last).map(|c| c.slot)
    }
}
