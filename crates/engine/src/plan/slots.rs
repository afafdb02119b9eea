//! How much room experts get that do not all fit, and which layers are read for every step where even that is not enough.

use super::{Refusal, Subject};
use memory::experts::Lookahead;
use memory::{LayerPlan, Plan, SlotPlan, SlotPool};
use weights::layers::LayerRuns;
use weights::record::{Streaming, streaming};

/// How many slots of a size there shall be for routed experts.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Slots {
    /// As many as fit; none where all experts do.
    #[default]
    AsFit,
    /// As few as a token can live with, also where everything would fit.
    Fewest,
    /// At most so many, also where everything would fit.
    AtMost(u32),
}

impl Slots {
    /// Whether there shall be some wherever that can be.
    pub fn are_wanted(self) -> bool {
        self != Slots::AsFit
    }
    fn most(self) -> u32 {
        match self {
            Slots::AsFit => u32::MAX,
            Slots::Fewest => 0,
            Slots::AtMost(n) => n,
        }
    }
}

/// What is asked of streaming.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamAsk {
    /// How many slots there shall be.
    pub slots: Slots,
    /// Read through the page cache.
    pub page_cache: bool,
    /// When to ask the next layer's router ahead of its time, and to read what it names ahead.
    pub lookahead: Lookahead,
    /// Leave the embedding in its file, and let the head go while prompts are read in segments, wherever that can be: also
    /// where there is room for both, or it does not pay.
    pub away: bool,
    /// Compare what is read again with what it was at first.
    pub verify: bool,
}

/// Refuses fewer slots than a token can live with.
pub(super) fn enough(of: Subject, ask: StreamAsk) -> Result<(), Refusal> {
    let (Slots::AtMost(asked), true) = (ask.slots, of.streams) else { return Ok(()) };
    let (Some(s), Some((_, top_k))) = (streaming(of.bounds), of.family.spec().experts) else { return Ok(()) };
    let least = s.pools.iter().map(|p| least(p, top_k)).max().unwrap_or(0);
    if asked >= least { Ok(()) } else { Err(Refusal::TooFewSlots { asked, least, top_k }) }
}

/// Whether a plan has all the slots that were asked for, so that history takes none of their room.
pub(super) fn all_there(of: Subject, ask: StreamAsk, p: &Plan) -> bool {
    let (Some(s), Some((_, top_k))) = (&p.slots, of.family.spec().experts) else { return false };
    ask.slots.are_wanted() && s.pools.iter().all(|p| p.slots >= most(p, top_k, ask.slots))
}

/// One row's experts, and what passes beside them.
fn least(p: &SlotPool, top_k: u32) -> u32 {
    top_k.saturating_add(2).min(p.experts).max(2)
}

/// As many as are asked for and of use.
fn most(p: &SlotPool, top_k: u32, asked: Slots) -> u32 {
    p.experts.saturating_add(PASSING).min(asked.most()).max(least(p, top_k))
}

/// Slots that prompts and guesses pass through, where there are many: enough for a disk that reads ahead.
const PASSING: u32 = 16;
/// Of the slots, the part that is for passing, where there are few.
const PASSING_PART: u32 = 8;

/// Gives `p` slots for its experts, as many as its limit allows: W becomes what is loaded and the slots. `None` where its
/// experts cannot be streamed. It may still not fit: then it has as few slots as it can live with.
pub(super) fn stream(of: Subject, ask: StreamAsk, p: &Plan, allowance: impl Fn(&Plan) -> u64) -> Option<Plan> {
    let s = streaming(of.bounds)?;
    let (_, top_k) = of.family.spec().experts?;
    let with = |room: u64| {
        let pools = share(&s, room, top_k, ask.slots);
        let StreamAsk { page_cache, lookahead, verify, .. } = ask;
        let slots = Some(SlotPlan { pools, tables: s.tables, heap: s.heap, page_cache, lookahead, verify });
        let mut p = Plan { slots, ..p.clone() };
        p.allowance = allowance(&p);
        p
    };
    let least = with(0);
    let mut room = p.guard.checked_sub(least.total_bytes()).map(|left| left + pool_bytes(&least));
    // The allowance grows with what is reserved: a second or third look takes that off again.
    while let Some(bytes) = room {
        let p = with(bytes);
        let over = p.total_bytes().saturating_sub(p.guard);
        if over == 0 {
            return Some(p);
        }
        room = bytes.checked_sub(over.max(1));
    }
    Some(least)
}

fn pool_bytes(p: &Plan) -> u64 {
    p.slots.as_ref().map_or(0, |s| s.bytes() - s.tables)
}

/// Cuts `room` bytes into slots, each pool as many as its share of all experts' bytes. At least one row's experts and
/// what passes beside them have a slot in each.
fn share(s: &Streaming, room: u64, top_k: u32, asked: Slots) -> Vec<SlotPool> {
    let bytes = |p: &SlotPool| u128::from(p.slot_bytes) * u128::from(p.experts);
    let all: u128 = s.pools.iter().map(bytes).sum();
    let slots = |p: &SlotPool| {
        let part = u128::from(room) * bytes(p) / all.max(1) / u128::from(p.slot_bytes.max(1));
        u32::try_from(part).unwrap_or(u32::MAX).min(most(p, top_k, asked)).max(least(p, top_k))
    };
    let sized = |p: &SlotPool| {
        let slots = slots(p);
        SlotPool { slots, passing: (slots / PASSING_PART).clamp(1, PASSING), ..p.clone() }
    };
    s.pools.iter().map(sized).collect()
}

/// Streams as few whole layers of `p` as make it fit, evenly among the others. Where not even all of them would do, the
/// plan that takes the least; `None` where no layers can be streamed.
pub(super) fn stream_layers(of: Subject, ask: StreamAsk, p: &Plan, allowance: impl Fn(&Plan) -> u64) -> Option<Plan> {
    let all = LayerRuns::of(of.bounds);
    let mut least: Option<Plan> = None;
    for n in 2..=all.len() {
        let chosen: Vec<&LayerRuns> = (0..n).map(|i| &all[i * all.len() / n]).collect();
        let buffer_bytes = chosen.iter().map(|l| l.buffer_bytes()).max()?;
        // They take turns, so that of three the second has a buffer for itself.
        let shares = |i: usize| (n - i % 2).div_ceil(2) > 1;
        let layers = Some(LayerPlan {
            layers: chosen.iter().map(|l| l.layer).collect(),
            bytes: chosen.iter().map(|l| l.bytes).sum(),
            read_bytes: chosen.iter().enumerate().filter(|(i, _)| shares(*i)).map(|(_, l)| l.bytes).sum(),
            buffer_bytes,
            verify: ask.verify,
        });
        let mut p = Plan { layers, ..p.clone() };
        p.allowance = allowance(&p);
        if p.fits() {
            return Some(p);
        }
        least = least.filter(|l| l.total_bytes() <= p.total_bytes()).or(Some(p));
    }
    least
}
