//! Routed experts as the kernels they take.

use super::args;
use super::driver::Ptr;
use super::few::{Quantised, quantise};
use super::launch::blocks;
use super::ops::{elements, kind, to_bf16};
use super::scratch::{self, Cut};
use super::{Cuda, Result};
use crate::error::Error;
use crate::op::{Acc, Part, Pick, Routing, RowClass};
use crate::view::{ExpertMats, MatSet, View};

/// Operands of an expert group.
pub struct Group<'a> {
    pub dst: &'a Acc,
    pub mid: &'a View,
    pub h: &'a View,
    pub routed: &'a Routing,
    pub e: &'a ExpertMats,
    pub part: Part,
    pub class: RowClass,
    pub chosen: args::Chosen,
}

/// Which experts a call computes, and for which rows.
pub fn chosen(d: &Cuda, routed: &Routing, e: &ExpertMats, pick: &Pick) -> Result<args::Chosen> {
    if e.begins.is_some() {
        return Err(Error::NoKernel { op: "expert_group", fmt: "a file's own layout in slots".into() });
    }
    let experts = scratch::expert_count(e);
    let mut bits = [0u32; 32];
    if let Pick::Experts(list) = pick {
        for &id in list {
            let word = bits.get_mut(id as usize / 32).ok_or(Error::BadBuf)?;
            *word |= 1 << (id % 32);
        }
    }
    Ok(args::Chosen {
        ids: d.view(&routed.ids)?,
        w: d.view(&routed.w)?,
        slot_of: d.vector(e.slot_of.as_ref())?,
        bits,
        all: (*pick == Pick::All) as i32,
        pad: 0,
        experts: experts as i32,
        k: routed.ids.cols as i32,
    })
}

/// Routed experts: few rows by codes, many on tensor cores, sorted by expert.
pub fn experts(d: &Cuda, room: Ptr, g: &Group) -> Result<()> {
    let k = g.routed.ids.cols;
    let at = scratch::experts(&mut Cut::default(), g.e, g.h, g.mid, k, g.class);
    let entries = g.h.rows * k;
    let (Acc::Parts(dst) | Acc::Sum(dst)) = g.dst;
    if g.class == RowClass::Many {
        let a = args::Sort {
            c: g.chosen,
            order: room + at.order,
            count: room + at.count,
            start: room + at.start,
            tiles: room + at.tiles,
            n: g.h.rows as i32,
            tile: scratch::expert_tile(entries as u64, g.e) as i32,
        };
        let experts = scratch::expert_count(g.e);
        d.launch(d.kernels.get("expert_sort")?, [1, 1, 1], 1024, experts * 4, &a)?;
        d.launch(d.kernels.get("expert_order")?, [experts, 1, 1], 256, 0, &a)?;
    }
    // Few rows meet codes of what the first half of a group makes, which it leaves itself.
    let by_codes = scratch::is_block(&g.e.down.first) && !scratch::on_tensor_cores(&g.e.down.first, g.class);
    let made = args::Fifteen { hi: room + at.mid[0], lo: room + at.mid[1], meta: room + at.mid[2] };
    let leaves = by_codes && !scratch::on_tensor_cores(&g.e.gate.first, g.class) && g.mid.cols.is_multiple_of(32);
    let codes = if leaves { made } else { args::Fifteen::default() };
    let (count, tile) = (scratch::max_tiles(entries as u64, g.e), scratch::expert_tile(entries as u64, g.e));
    let tiles = Tiles { room, at: &at, entries, count: count as u32, tile: tile as u32 };
    if g.part != Part::Down {
        if scratch::on_tensor_cores(&g.e.gate.first, g.class) {
            let h = room + at.h[0];
            to_bf16(d, h, &d.view(g.h)?)?;
            let up = Cuda::dense(room + at.up, entries as u64, 1, g.mid.cols);
            let bias = [&g.e.bias.gate, &g.e.bias.up].map(|b| d.vector(b.as_ref()));
            let [gate_bias, up_bias] = bias;
            tiles.product(d, &g.e.gate, h, k, d.view(g.mid)?, gate_bias?)?;
            tiles.product(d, &g.e.up, h, k, up, up_bias?)?;
            let mid = d.view(g.mid)?;
            d.each(
                "glu",
                elements(g.mid),
                &args::Glu { out: mid, gate: mid, up, to: args::Fifteen::default(), glu: kind(g.e.glu), pad: 0 },
            )?;
        } else {
            let h = Quantised::of(d, g.h)?;
            let q = match scratch::is_block(&g.e.gate.first) {
                true => d.codes_of(&h).map_or_else(|| quantise(d, room, at.h, g.h), Ok)?,
                false => args::Fifteen::default(),
            };
            let (mid, h, gate, up) = (d.view(g.mid)?, d.view(g.h)?, d.set(&g.e.gate)?, d.set(&g.e.up)?);
            let (gate_bias, up_bias) = (d.vector(g.e.bias.gate.as_ref())?, d.vector(g.e.bias.up.as_ref())?);
            let glu = kind(g.e.glu);
            let a = args::GateUp { mid, h, q, to: codes, gate, up, c: g.chosen, gate_bias, up_bias, glu, pad: 0 };
            let kernel = d.kernels.of("expert_group", "gate_up_*", &g.e.gate.first.fmt)?;
            d.launch(kernel, [g.mid.cols.div_ceil(32), entries, 1], 512, 0, &a)?;
        }
    }
    if g.part == Part::GateUp {
        return Ok(());
    }
    let parts = match g.class {
        RowClass::Few => d.view(dst)?,
        RowClass::Many => Cuda::dense(room + at.parts, g.h.rows as u64, k, g.h.cols),
    };
    let bias = d.vector(g.e.bias.down.as_ref())?;
    if scratch::on_tensor_cores(&g.e.down.first, g.class) {
        let mid = room + at.mid[0];
        to_bf16(d, mid, &d.view(g.mid)?)?;
        let flat = Cuda::dense(room + at.parts, entries as u64, 1, g.h.cols);
        tiles.product(d, &g.e.down, mid, 1, flat, bias)?;
    } else {
        let q = match by_codes {
            true if leaves && g.part == Part::Both => made,
            true => quantise(d, room, at.mid, g.mid)?,
            false => args::Fifteen::default(),
        };
        let a = args::Down { parts, mid: d.view(g.mid)?, q, down: d.set(&g.e.down)?, c: g.chosen, bias };
        let kernel = d.kernels.of("expert_group", "down_*", &g.e.down.first.fmt)?;
        // Eight warps, each with four outputs, as many times as narrow rows leave lanes for.
        let groups = (g.mid.cols / 32).clamp(1, 32).next_power_of_two();
        let each = if by_codes { 4 * 8 * (32 / groups) } else { 4 * 8 };
        d.launch(kernel, [g.h.cols.div_ceil(each), entries, 1], 256, 0, &a)?;
    }
    if g.class == RowClass::Many {
        let a = args::Sum { sum: d.view(dst)?, parts, c: g.chosen };
        d.launch(d.kernels.get("expert_sum")?, [blocks(g.h.cols as u64, 128), g.h.rows, 1], 128, 0, &a)?;
    }
    Ok(())
}

/// Tiles of entries sorted by expert.
struct Tiles<'a> {
    room: Ptr,
    at: &'a scratch::ExpertRoom,
    entries: u32,
    count: u32,
    /// Rows of each.
    tile: u32,
}

impl Tiles<'_> {
    /// `out[entry] = x[entry / from_div] w[expert of entry]^T`.
    fn product(&self, d: &Cuda, w: &MatSet, x: Ptr, from_div: u32, out: args::View, bias: Ptr) -> Result<()> {
        let set = d.set(w)?;
        let a = args::Gemm {
            out,
            x,
            w: set.first,
            step: set.step,
            bias,
            order: self.room + self.at.order,
            tiles: self.room + self.at.tiles,
            count: self.room + self.at.count,
            rows: self.entries as i32,
            kp: scratch::padded(w.first.k) as i32,
            add: 0,
            from_div: from_div as i32,
        };
        let tile = self.tile;
        let kernel = d.kernels.of("expert_group", &format!("gemm_*_{tile}"), &w.first.fmt)?;
        d.launch(kernel, [blocks(w.first.n as u64, 128), self.count, 1], 256, super::kernels::gemm_shared(tile), &a)
    }
}
