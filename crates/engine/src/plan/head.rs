//! Whether the head gives its room to prompts while they are read.
//!
//! A prompt that goes layer by layer needs workspace for all of its rows, and the head for the last of them alone, when
//! the others are done with. An answer needs the head for every token and little workspace. Where weights are read from
//! disk the two may take turns in one room: there is more for experts and layers then, or segments are longer. What it
//! costs is reading the head once a prompt.

use super::{Ask, Subject, allowance, forecast};
use memory::{Component, Plan, Residency};
use model::Family;
use weights::Role;

/// Pages in which workspace is given back.
const PAGE: u64 = 4096;
/// Tokens of an answer that together must save what bringing the head takes.
const ANSWER: u64 = 128;
/// Bringing a byte takes about so many times as long as reading one of an expert: one thread reads it, through the page
/// cache, and it is arranged then (docs/benchmarks.md).
const BRINGING: u64 = 3;

/// Whether a head can be let go: only where no answer is made beside a prompt, and nobody wants the logits of more than its
/// last row.
pub(super) fn may_leave(of: Subject, ask: &Ask) -> bool {
    let own = of.bounds.iter().any(|b| b.component == Component::Head && b.role == Role::Matrix);
    own && of.streams && ask.parallel <= 1 && ask.logit_rows <= 1 && ask.beside.is_none()
}

/// `p`, whose prompts go in segments, with the head in turn with what only these take beside what `short` has, the plan
/// without segments.
pub(super) fn in_turn(of: Subject, ask: &Ask, short: &Plan, p: Plan) -> Plan {
    let with_head = short.workspace.step.next_multiple_of(PAGE);
    let aside = p.workspace.step.saturating_sub(with_head).saturating_add(p.workspace.carry);
    if p.segment() <= p.chunk || aside == 0 {
        return p;
    }
    let mut p = Plan { aside, row_bytes: p.row_bytes.saturating_add(last_row_bytes(of.family)), ..p };
    for w in p.weights.iter_mut().filter(|w| w.component == Component::Head) {
        w.residency = Residency::Leased;
    }
    p.allowance = allowance(of, ask, &p);
    p
}

/// Bytes of what the last row of a segment carries, which outlives its workspace until the head is there.
pub fn last_row_bytes(family: &dyn Family) -> u64 {
    let carry = family.carry();
    u64::from(carry.streams) * u64::from(carry.width) * 4
}

/// Of a plan with the head there all the time and one with it in turn the better: the one that fits, that has longer segments,
/// or whose answers read so much less that one gets back what bringing the head takes.
pub(super) fn better(of: Subject, ask: &Ask, always: Plan, turns: Plan) -> Plan {
    let saved = forecast::token_reads(of, &always).saturating_sub(forecast::token_reads(of, &turns));
    let pays = ask.stream.away
        || turns.segment() > always.segment()
        || saved.saturating_mul(ANSWER) >= turns.head_bytes() * BRINGING;
    if turns.fits() && (pays || !always.fits()) && turns.head_bytes() > 0 { turns } else { always }
}
