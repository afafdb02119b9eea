//! Bytes of scratch by op: from shapes, class and format alone.

use super::kernels::number;
use crate::device::Caps;
use crate::op::{Op, RowClass, Rows, StreamView};
use crate::view::{ExpertMats, Mat, View};
use memory::{KvFormat, PAGE_POSITIONS};

/// Most partitions of a row's history, and positions that they are whole numbers of, as pages.cuh has it.
const PARTS: u32 = 128;
const UNIT: u32 = 128;

/// Pieces of scratch, one behind the other, each aligned to 256 bytes.
#[derive(Default)]
pub struct Cut {
    at: u64,
}

impl Cut {
    /// Offset of a piece of `bytes` bytes.
    pub fn take(&mut self, bytes: u64) -> u64 {
        let start = self.at;
        self.at += bytes.next_multiple_of(256);
        start
    }
    /// Bytes of all pieces.
    pub fn total(&self) -> u64 {
        self.at
    }
}

/// Whether rows meet fifteen-bit codes (block formats).
pub fn is_block(m: &Mat) -> bool {
    number(&m.fmt).is_some_and(|n| n > 2)
}

/// Whether many rows go through tensor cores: everything but f32 weights, which meet f32.
pub fn on_tensor_cores(m: &Mat, class: RowClass) -> bool {
    class == RowClass::Many && number(&m.fmt).is_some_and(|n| n > 0)
}

/// Columns of bf16 rows: `k` padded to whole tiles.
pub fn padded(k: u32) -> u64 {
    k.next_multiple_of(64) as u64
}

/// Planes and meta of `rows` quantised rows.
pub fn fifteen(cut: &mut Cut, rows: u64, k: u32) -> [u64; 3] {
    let groups = k as u64 / 32;
    [cut.take(rows * groups * 32), cut.take(rows * groups * 32), cut.take(rows * groups * 8)]
}

/// Offsets of what an expert group needs.
#[derive(Copy, Clone, Debug, Default)]
pub struct ExpertRoom {
    pub h: [u64; 3],
    pub mid: [u64; 3],
    pub up: u64,
    pub parts: u64,
    pub order: u64,
    pub count: u64,
    pub start: u64,
    pub tiles: u64,
}

/// Cuts an expert group's scratch: `n` rows with `k` experts each.
pub fn experts(cut: &mut Cut, e: &ExpertMats, h: &View, mid: &View, k: u32, class: RowClass) -> ExpertRoom {
    let (n, entries) = (h.rows as u64, h.rows as u64 * k as u64);
    let mut room = ExpertRoom::default();
    if on_tensor_cores(&e.gate.first, class) {
        room.h[0] = cut.take(n * padded(h.cols) * 2);
        room.up = cut.take(entries * mid.cols as u64 * 4);
    } else if is_block(&e.gate.first) {
        room.h = fifteen(cut, n, h.cols);
    }
    if on_tensor_cores(&e.down.first, class) {
        room.mid[0] = cut.take(entries * padded(mid.cols) * 2);
    } else if is_block(&e.down.first) {
        room.mid = fifteen(cut, entries, mid.cols);
    }
    if class == RowClass::Many {
        room.parts = cut.take(entries * h.cols as u64 * 4);
        room.order = cut.take(entries * 4);
        room.count = cut.take(4);
        room.start = cut.take((expert_count(e) as u64 + 1) * 4);
        room.tiles = cut.take(max_tiles(entries, e) * 16);
    }
    room
}

/// Rows of a tile of the experts' products: wide ones, which take weights apart less often, where experts have rows enough.
pub fn expert_tile(entries: u64, e: &ExpertMats) -> u64 {
    if entries >= 64 * u64::from(expert_count(e)) { 128 } else { 32 }
}

/// Most tiles that entries can need: every expert may have one that is not full.
pub fn max_tiles(entries: u64, e: &ExpertMats) -> u64 {
    entries / expert_tile(entries, e) + entries.min(expert_count(e) as u64)
}

/// Experts that ids may name.
pub fn expert_count(e: &ExpertMats) -> u32 {
    e.slot_of.map_or(e.gate.slots, |b| (b.bytes() / 4) as u32)
}

/// Whether attention of many rows goes through tensor cores, with its scores in registers and no scratch.
pub fn flashes(st: &StreamView, rows: &Rows) -> bool {
    rows.class == RowClass::Many && st.fmt != KvFormat::F32 && matches!(st.d, 64 | 128 | 256)
}

/// Whether attention of a row at a time goes through tensor cores.
pub fn on_tensor_cores_by_row(st: &StreamView) -> bool {
    st.fmt != KvFormat::F32 && matches!(st.d, 64 | 128 | 256 | 512)
}

/// Most partitions of a row's history: as many as a card computes at a time, one behind the other for each key head. Two blocks
/// share a multiprocessor where codes come through shared memory or heads are narrow; others need its registers alone.
pub fn most_parts(st: &StreamView, caps: &Caps) -> u32 {
    let both = st.d <= if st.fmt == KvFormat::Tq4 { 256 } else { 64 };
    let places = caps.threads * if both { 2 } else { 1 };
    (places / st.heads.max(1)).clamp(8, PARTS)
}

/// Partitions of a row that there is room for.
pub fn room(st: &StreamView, rows: &Rows, caps: &Caps) -> u32 {
    match rows.class {
        RowClass::Many => 1,
        RowClass::Few => {
            let pages = if st.ring > 0 { st.ring } else { rows.page_table.cols };
            (PAGE_POSITIONS / UNIT * pages).clamp(1, most_parts(st, caps))
        }
    }
}

/// Blocks that look for the likeliest ids of a row, 4,096 logits each.
pub fn likeliest_parts(x: &View) -> u32 {
    x.cols.div_ceil(4096)
}

/// Bytes of scratch for an op.
pub fn bytes(op: &Op, caps: &Caps) -> u64 {
    const _: () = assert!(PAGE_POSITIONS == 256);
    let mut cut = Cut::default();
    match op {
        Op::Linear { x, w, class, .. } if on_tensor_cores(w, *class) => {
            cut.take(x.rows as u64 * padded(w.k) * 2);
        }
        Op::Linear { x, w, .. } if is_block(w) => {
            fifteen(&mut cut, x.rows as u64, w.k);
        }
        Op::ExpertGroup { mid, h, routed, e, class, .. } => {
            experts(&mut cut, e, h, mid, routed.ids.cols, *class);
        }
        Op::Attention { q, st, rows, .. } if !flashes(st, rows) => {
            cut.take(rows.n as u64 * q.heads as u64 * room(st, rows, caps) as u64 * (st.d as u64 + 2) * 4);
        }
        Op::Likeliest { out, x } => {
            cut.take(x.rows as u64 * likeliest_parts(x) as u64 * (out.cols as u64 / 2) * 8);
        }
        _ => {}
    }
    cut.total()
}
