//! Where the bytes of a routed expert are, and how they lie in a slot.
//!
//! A record is a short list of runs of one file each: ranges that touch or overlap (gate and up fused, the three
//! tensors of an expert side by side) are one run. In a slot every run lies as it is read: from the alignment in front of
//! its first byte on. So nothing is moved after reading, and each expert has its own table of where its planes begin.
//! Planes of a few bytes an expert (scales of a whole matrix) are not worth a read and stay resident.

use crate::bound::{Bound, Data, Proj, Role};
use checkpoint::{ByteRange, PLANES};
use device::{Layout, Mat};
use memory::{Component, SlotPool};
use std::collections::BTreeMap;

/// What a slot is planned for: no file system asks for more.
pub const MAX_ALIGN: u64 = 4096;
/// Most bytes an expert of a plane that stays resident.
const SMALL: u64 = 256;
/// Bytes of this process for a record: itself, its runs, its sum, and its places in the maps of the policy.
const RECORD: u64 = 512;
/// Gate, up and down.
pub(crate) const PROJS: [Proj; 3] = [Proj::Gate, Proj::Up, Proj::Down];

/// Bytes that are read together.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where from.
    pub from: ByteRange,
    /// Where its cover begins in the slot, a multiple of the alignment.
    pub at: u64,
    /// Whether the first half of the expert (gate and up) needs it.
    pub first_half: bool,
}

/// One expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What to read, the first half's runs first.
    pub runs: Vec<Run>,
    /// Where the planes of gate, up and down begin: in the slot, or, for those that stay resident, in their own buffer.
    pub begins: [[u64; PLANES]; 3],
    /// Bytes of the slot that it takes.
    pub slot_bytes: u64,
    /// Bytes of the expert itself in these runs.
    pub bytes: u64,
}

/// The routed experts of one layer.
#[derive(Clone, Debug)]
pub struct LayerRecords {
    /// The layer.
    pub layer: u32,
    /// Experts.
    pub experts: u32,
    bounds: [Bound; 3],
    /// Bytes of each plane from its first to behind its last row; 0 where there is none.
    reach: [[u64; PLANES]; 3],
}

/// What streaming a model's experts takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Streaming {
    /// Pools by size of a slot, with no slots yet.
    pub pools: Vec<SlotPool>,
    /// Bytes beside the slots: tables and planes that stay resident.
    pub tables: u64,
    /// Bytes of this process for the records themselves.
    pub heap: u64,
}

impl LayerRecords {
    /// The layers whose routed experts can be read one by one, in ascending order.
    ///
    /// # Errors
    /// The name of a tensor that cannot be, and why.
    pub fn of(bounds: &[Bound]) -> Result<Vec<Self>, (String, &'static str)> {
        let mut layers: BTreeMap<u32, Vec<&Bound>> = BTreeMap::new();
        for b in bounds.iter().filter(|b| matches!(b.component, Component::Experts(_))) {
            if let Role::Experts { layer, .. } = b.role {
                layers.entry(layer).or_default().push(b);
            }
        }
        layers.into_iter().map(|(layer, of)| Self::new(layer, &of)).collect()
    }

    fn new(layer: u32, of: &[&Bound]) -> Result<Self, (String, &'static str)> {
        let find = |p: Proj| of.iter().find(|b| matches!(b.role, Role::Experts { proj, .. } if proj == p));
        let name = || of.first().map_or_else(String::new, |b| b.name.to_string());
        let [Some(gate), Some(up), Some(down)] = PROJS.map(find) else { return Err((name(), "a matrix is missing")) };
        let bounds = [gate, up, down].map(|b| (**b).clone());
        let experts = match gate.role {
            Role::Experts { count, .. } => count,
            _ => 0,
        };
        let mut reach = [[0; PLANES]; 3];
        for (b, reach) in bounds.iter().zip(&mut reach) {
            let extents = device::op::extents(&mat(b)).ok_or((b.name.to_string(), "its rows cannot be read"))?;
            for (i, bytes) in extents.iter().enumerate() {
                match b.plane(i) {
                    Some(Data::Turned { .. }) => return Err((b.name.to_string(), "it is stored transposed")),
                    Some(Data::Values(_)) => return Err((b.name.to_string(), "it is in no file")),
                    Some(_) => reach[i] = bytes.unwrap_or(0),
                    None => {}
                }
            }
        }
        Ok(LayerRecords { layer, experts, bounds, reach })
    }

    /// Gate, up or down, without its bytes.
    pub(crate) fn mat(&self, proj: usize) -> Mat {
        mat(&self.bounds[proj])
    }
    /// The parameter.
    pub(crate) fn bound(&self, proj: usize) -> &Bound {
        &self.bounds[proj]
    }
    /// Whether a plane is kept for all experts, not read for one.
    pub(crate) fn is_resident(&self, proj: usize, plane: usize) -> bool {
        (1..=SMALL).contains(&self.reach[proj][plane])
    }
    /// Whether there is such a plane.
    pub(crate) fn has(&self, proj: usize, plane: usize) -> bool {
        self.reach[proj][plane] > 0
    }
    /// Where a plane of an expert's matrix is; `None` where there is no such plane or expert, or it is in no file.
    pub(crate) fn range(&self, proj: usize, plane: usize, expert: u32) -> Option<ByteRange> {
        let len = self.reach[proj][plane];
        let (all, at) = match self.bounds[proj].plane(plane).filter(|_| len > 0 && expert < self.experts)? {
            Data::Whole { range, first, step } => (*range, first.checked_add(step.checked_mul(expert.into())?)?),
            Data::Each(ranges) => (*ranges.get(expert as usize)?, 0),
            Data::Turned { .. } | Data::Values(_) => return None,
        };
        let inside = at.checked_add(len).is_some_and(|end| end <= all.len);
        inside.then_some(ByteRange { file: all.file, off: all.off + at, len })
    }

    /// An expert's record where reads are aligned so. `None` when a plane is not inside its tensor.
    pub fn record(&self, expert: u32, align: u64) -> Option<Record> {
        let mut parts = Vec::new();
        let mut begins = [[0; PLANES]; 3];
        let mut bytes = 0;
        for (proj, begins) in begins.iter_mut().enumerate() {
            for plane in (0..PLANES).filter(|&p| self.has(proj, p)) {
                let range = self.range(proj, plane, expert)?;
                if self.is_resident(proj, plane) {
                    begins[plane] = expert as u64 * range.len;
                } else {
                    parts.push((range, proj, plane));
                    bytes += self.bounds[proj].plane_bytes(plane);
                }
            }
        }
        let mut runs = joined(&parts);
        runs.sort_by_key(|r| (!r.first_half, r.from.file, r.from.off));
        let mut slot_bytes = 0;
        for r in &mut runs {
            r.at = slot_bytes;
            let cover = (r.from.off + r.from.len).next_multiple_of(align) - r.from.off / align * align;
            slot_bytes += cover;
        }
        for (range, proj, plane) in parts {
            let holds = |r: &&Run| r.from.file == range.file && r.from.off <= range.off && end(&range) <= end(&r.from);
            let run = runs.iter().find(holds)?;
            begins[proj][plane] = run.at + (range.off - run.from.off / align * align);
        }
        Some(Record { runs, begins, slot_bytes, bytes })
    }
}

fn end(r: &ByteRange) -> u64 {
    r.off + r.len
}

/// Ranges of one file that touch become one.
pub(crate) fn joined(parts: &[(ByteRange, usize, usize)]) -> Vec<Run> {
    let mut sorted: Vec<_> = parts.iter().map(|&(r, proj, _)| (r, proj < 2)).collect();
    sorted.sort_by_key(|(r, _)| (r.file, r.off));
    let mut runs: Vec<Run> = Vec::new();
    for (r, first_half) in sorted {
        match runs.last_mut() {
            Some(last) if last.from.file == r.file && r.off <= end(&last.from) => {
                last.from.len = end(&r).max(end(&last.from)) - last.from.off;
                last.first_half |= first_half;
            }
            _ => runs.push(Run { from: r, at: 0, first_half }),
        }
    }
    runs
}

pub(crate) fn mat(b: &Bound) -> Mat {
    let row_step = b.side.as_ref().map_or(1, |s| s.row_step);
    Mat { n: b.n, k: b.k, fmt: b.format(), layout: Layout::File, row_step, planes: [None; PLANES] }
}

/// What it takes to stream a model's routed experts: `None` where it has none, or they cannot be read one by one.
pub fn streaming(bounds: &[Bound]) -> Option<Streaming> {
    let layers = LayerRecords::of(bounds).ok().filter(|l| !l.is_empty())?;
    let mut pools: BTreeMap<u64, SlotPool> = BTreeMap::new();
    let mut tables = 0;
    for l in &layers {
        let mut records = (0..l.experts).map(|e| l.record(e, MAX_ALIGN));
        let most = records.try_fold((0, 0), |most, r| {
            let r = r?;
            Some((r.slot_bytes.max(most.0), r.bytes.max(most.1)))
        });
        let (slot_bytes, record_bytes) = most.filter(|m| m.1 > 0)?;
        let pool = pools.entry(record_bytes).or_insert(SlotPool {
            layers: Vec::new(),
            experts: 0,
            slot_bytes: 0,
            record_bytes,
            slots: 0,
            passing: 0,
        });
        pool.layers.push(l.layer);
        pool.experts += l.experts;
        pool.slot_bytes = pool.slot_bytes.max(slot_bytes.next_multiple_of(MAX_ALIGN));
        tables += table_bytes(l);
    }
    let heap = layers.iter().map(|l| u64::from(l.experts) * RECORD).sum();
    Some(Streaming { pools: pools.into_values().collect(), tables, heap })
}

/// Bytes of a layer's tables and resident planes.
pub(crate) fn table_bytes(l: &LayerRecords) -> u64 {
    let small = |(proj, plane): (usize, usize)| if l.is_resident(proj, plane) { l.reach[proj][plane] } else { 0 };
    let planes: u64 = (0..3).flat_map(|proj| (0..PLANES).map(move |plane| (proj, plane))).map(small).sum();
    l.experts as u64 * (4 + device::BEGINS_ROW + planes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use checkpoint::FileId;

    fn range(off: u64, len: u64) -> ByteRange {
        ByteRange { file: FileId(0), off, len }
    }

    #[test]
    fn ranges_that_touch_are_read_together() {
        let part = |off, len, proj| (range(off, len), proj, 0);
        let runs = joined(&[part(100, 50, 0), part(400, 10, 2), part(150, 50, 1)]);
        assert_eq!(
            runs.iter().map(|r| (r.from.off, r.from.len, r.first_half)).collect::<Vec<_>>(),
            [(100, 100, true), (400, 10, false)]
        );
        // Rows of gate and up in turn: the ranges overlap.
        assert_eq!(joined(&[part(0, 90, 0), part(10, 90, 1)])[0].from, range(0, 100));
    }
}
