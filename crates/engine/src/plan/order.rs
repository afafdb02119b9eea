//! In which order a prompt's rows go through the layers, and how many of them together.

use super::forecast::{disk, row_seconds};
use super::{Ask, Subject, counted};
use crate::error::Result;
use crate::machine::MachineProfile;
use memory::{Component, Order, Plan, Residency, WeightShare};

/// Rows of a segment where nothing is known of the machine.
const USUAL: u32 = 2048;
/// A segment computes this many times as long as its experts take to read: the disk's share of the time is then small
/// whatever the segment after it does.
const TIMES_READING: f64 = 4.0;
/// Seconds that a segment takes at most: nothing of it is kept before its end.
const LONGEST: f64 = 60.0;
/// Most rows that a feed-forward computes at once. An expert's share of them must be worth decoding its weights for.
const TILE: u32 = 512;
/// Of the room that experts have, the part that a segment's workspace may take.
const WORKSPACE_PART: u64 = 8;

/// The same plan with prompts layer by layer, as `shaped` makes it, in the longest segments that leave most of the room to
/// experts; as it was where not even short ones do.
pub(super) fn by_layers(of: Subject, ask: &Ask, p: &Plan, shaped: impl Fn(Plan) -> Plan) -> Result<Plan> {
    let mut wanted = ask.segment.unwrap_or_else(|| rows(of, p, ask.machine.as_deref()));
    loop {
        let order = layer_outer(wanted, p.chunk, p.context);
        let longer = shaped(counted(of, ask, Plan { order, ..p.clone() })?);
        let more = longer.total_bytes().saturating_sub(p.total_bytes());
        if ask.segment.is_some() || more <= most_workspace(p) {
            return Ok(longer);
        }
        if longer.segment() <= p.chunk {
            return Ok(p.clone());
        }
        wanted = longer.segment() / 2;
    }
}

/// Segments of at most `rows`: whole grids, not less than a chunk, not more than the context needs.
pub(super) fn layer_outer(rows: u32, chunk: u32, context: u32) -> Order {
    let most = context.next_multiple_of(64);
    let segment = (rows.max(chunk) / 64 * 64).min(most);
    Order::LayerOuter { segment, tile: TILE.max(chunk).min(segment) }
}

/// Rows whose computing takes four times as long as reading once what is on disk, and a minute at most.
fn rows(of: Subject, p: &Plan, machine: Option<&MachineProfile>) -> u32 {
    let rates = machine.and_then(|m| Some((disk(m)?, row_seconds(of, m)?)));
    let Some((disk, row)) = rates else { return USUAL };
    // A cast of what is beyond u32 saturates.
    ((TIMES_READING * read_bytes(p) as f64 / disk).min(LONGEST) / row) as u32
}

/// Bytes of workspace that a segment may take of the room for what is on disk.
fn most_workspace(p: &Plan) -> u64 {
    let core = p.total_bytes().saturating_sub(read_bytes(p));
    p.guard.saturating_sub(core) / WORKSPACE_PART
}

/// Bytes that may be left on disk: all experts, of a model without any its layers.
pub(super) fn read_bytes(p: &Plan) -> u64 {
    let of = |which: fn(&WeightShare) -> bool| p.weights.iter().filter(|w| which(w)).map(|w| w.bytes).sum();
    match of(|w| w.residency == Residency::Cached) {
        0 => of(|w| matches!(w.component, Component::Layer(_))),
        experts => experts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_whole_grids_between_a_chunk_and_the_context() {
        let segment = |rows| layer_outer(rows, 256, 5000);
        assert_eq!(segment(1), Order::LayerOuter { segment: 256, tile: 256 });
        assert_eq!(segment(1000), Order::LayerOuter { segment: 960, tile: 512 });
        assert_eq!(segment(u32::MAX), Order::LayerOuter { segment: 5056, tile: 512 });
    }
}
