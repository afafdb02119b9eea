//! Each op as the kernels it takes.

use super::args;
use super::driver::Ptr;
use super::launch::blocks;
use super::scratch::{self, Cut, EXPERT_TILE};
use super::{Cuda, Result};
use crate::error::Error;
use crate::op::{
    Acc, ActFn, GdnShape, KeyHeadRule, Op, Pairing, Part, Pick, RecView, RouterScore, Routing, RowClass, Rows,
    StreamView,
};
use crate::view::{Buf, ExpertMats, Glu, Mat, MatSet, View};
use memory::KvFormat;

/// Rows of one call of the kernels for few rows.
const FEW: u32 = 8;

/// Enqueues a checked op.
pub fn run(d: &mut Cuda, op: &Op, scratch: Buf) -> Result<()> {
    let room = d.at(&scratch)?;
    match op {
        Op::Embed { out, table, ids, scale } => {
            let a = args::Embed { out: d.view(out)?, ids: d.view(ids)?, table: d.mat(table)?, scale: *scale };
            d.launch(d.kernels.of("embed", "embed_*", &table.fmt)?, [out.rows, 1, 1], 256, 0, &a)
        }
        Op::RmsNorm { out, x, w, eps } => {
            let a = args::Norm { out: d.view(out)?, x: d.view(x)?, w: d.vector(w.as_ref())?, eps: *eps };
            let threads = x.cols.next_multiple_of(32).clamp(32, 256);
            d.launch(d.kernels.get("rms_norm")?, [x.rows * x.heads, 1, 1], threads, 0, &a)
        }
        Op::Linear { out, x, w, bias, add, class } => {
            let bias = d.vector(bias.as_ref())?;
            linear(d, room, &Product { out, x, w, bias, add: *add }, *class)
        }
        Op::Rope { x, pos, rope } => {
            let a = args::Rope {
                x: d.view(x)?,
                pos: d.view(pos)?,
                inv_freq: d.vector(Some(&rope.inv_freq))?,
                dims: rope.dims as i32,
                adjacent: (rope.pairing == Pairing::Adjacent) as i32,
                factor: rope.factor,
            };
            d.each("rope", x.rows as u64 * x.heads as u64 * (rope.dims / 2) as u64, &a)
        }
        Op::Gate { x, g, act } => {
            let act = match act {
                ActFn::Sigmoid => 0,
                ActFn::Silu => 1,
            };
            d.each("gate", elements(x), &args::Gate { x: d.view(x)?, g: d.view(g)?, act })
        }
        Op::Glu { out, gate, up, glu } => {
            let a = args::Glu { out: d.view(out)?, gate: d.view(gate)?, up: d.view(up)?, glu: kind(*glu) };
            d.each("glu", elements(out), &a)
        }
        Op::Zero { x } => d.each("zero", elements(x), &args::Zero { x: d.view(x)? }),
        Op::Scale { x, by } => {
            let wide = (by.bytes() > 4) as i32;
            d.each("scale", elements(x), &args::Scale { x: d.view(x)?, by: d.vector(Some(by))?, wide, pad: 0 })
        }
        Op::Softcap { x, cap } => d.each("softcap", elements(x), &args::Softcap { x: d.view(x)?, cap: *cap, pad: 0 }),
        Op::Add { x, y } => d.each("add", elements(x), &args::Add { x: d.view(x)?, y: d.view(y)? }),
        Op::Append { st, rows, k, v } => {
            let a = args::Append { st: d.stream(st)?, rows: d.rows(rows)?, k: d.view(k)?, v: d.view(v)? };
            d.launch(d.kernels.get("append")?, [rows.n * st.heads, 1, 1], 128, 0, &a)
        }
        Op::Attention { out, q, st, rows, scale, window, since, sinks } => {
            let sinks = d.vector(sinks.as_ref())?;
            attention(d, room, out, q, st, rows, *scale, (*window, *since), sinks)
        }
        Op::ConvSilu { out, x, w, kernel, st, rows } => {
            if *kernel > 8 {
                return Err(Error::Shape {
                    op: "conv_silu",
                    what: format!("{kernel} taps; this device has at most 8"),
                });
            }
            let a = args::Conv {
                out: d.view(out)?,
                x: d.view(x)?,
                w: d.vector(Some(w))?,
                conv: d.vector(Some(&st.conv))?,
                rows: d.rows(rows)?,
                kernel: *kernel as i32,
                conv_elems: st.conv_elems as i32,
                slots: st.slots as i32,
            };
            d.launch(d.kernels.get("conv_silu")?, [blocks(x.cols as u64, 128), rows.seqs, 1], 128, 0, &a)
        }
        Op::Shift { out, x, st, rows } => {
            let a = args::Shift {
                out: d.view(out)?,
                x: d.view(x)?,
                state: d.vector(Some(&st.state))?,
                rows: d.rows(rows)?,
                state_elems: st.state_elems as i32,
                slots: st.slots as i32,
            };
            d.launch(d.kernels.get("shift")?, [blocks(x.cols as u64, 128), rows.seqs, 1], 128, 0, &a)
        }
        Op::GatedDelta { out, qkv, a, b, decay, dt, g, st, rows } => {
            let x = [out, qkv, a, b];
            let vectors = [d.vector(Some(decay))?, d.vector(Some(dt))?];
            gated_delta(d, x, vectors, g, st, rows)
        }
        Op::Route { out, logits, router } => {
            let a = args::Route {
                ids: d.view(&out.ids)?,
                w: d.view(&out.w)?,
                logits: d.view(logits)?,
                bias: d.vector(router.bias.as_ref())?,
                per_expert: d.vector(router.per_expert.as_ref())?,
                k: router.k as i32,
                renormalise: router.renormalise as i32,
                sigmoid: (router.score == RouterScore::Sigmoid) as i32,
                groups: router.groups.map_or(0, |g| g.n as i32),
                keep: router.groups.map_or(0, |g| g.keep as i32),
                scale: router.scale,
            };
            let shared = (2 * logits.cols + router.groups.map_or(0, |g| g.n)) * 4;
            d.launch(d.kernels.get("route")?, [logits.rows, 1, 1], 128, shared, &a)
        }
        Op::ExpertGroup { dst, mid, h, routed, e, pick, part, class } => {
            let g = Group { dst, mid, h, routed, e, part: *part, class: *class, chosen: chosen(d, routed, e, pick)? };
            experts(d, room, &g)
        }
        Op::Combine { out, base, parts, w } => {
            let a = args::Combine { out: d.view(out)?, base: d.view(base)?, parts: d.view(parts)?, w: d.view(w)? };
            d.launch(d.kernels.get("combine")?, [blocks(out.cols as u64, 128), out.rows, 1], 128, 0, &a)
        }
        Op::GatherRows { out, x, rows } => {
            let a = args::Gather { out: d.view(out)?, x: d.view(x)?, rows: d.view(rows)? };
            d.launch(d.kernels.get("gather_rows")?, [out.rows, 1, 1], 256, 0, &a)
        }
    }
}

fn kind(glu: Glu) -> args::GluKind {
    match glu {
        Glu::Swiglu => args::GluKind { kind: 0, limit: 0.0, alpha: 0.0 },
        Glu::GegluTanh => args::GluKind { kind: 1, limit: 0.0, alpha: 0.0 },
        Glu::SwigluClamped { limit, alpha } => args::GluKind { kind: 2, limit, alpha },
    }
}

fn elements(v: &View) -> u64 {
    v.rows as u64 * v.heads as u64 * v.cols as u64
}

/// Operands of a linear layer.
struct Product<'a> {
    out: &'a View,
    x: &'a View,
    w: &'a Mat,
    bias: Ptr,
    add: bool,
}

fn linear(d: &Cuda, room: Ptr, p: &Product, class: RowClass) -> Result<()> {
    if scratch::on_tensor_cores(p.w, class) {
        return many_linear(d, room, p);
    }
    let mut a = args::Linear {
        out: d.view(p.out)?,
        x: d.view(p.x)?,
        q: args::Fifteen { hi: 0, lo: 0, meta: 0 },
        w: d.mat(p.w)?,
        bias: p.bias,
        add: p.add as i32,
        pad: 0,
    };
    if scratch::is_block(p.w) {
        let at = scratch::fifteen(&mut Cut::default(), p.x.rows as u64, p.w.k);
        a.q = quantise(d, room, at, p.x)?;
    }
    // Weights of two outputs a warp, four warps a block.
    let grid = |each: u32| [blocks(p.w.n as u64, 8), p.x.rows.div_ceil(each), 1];
    let rows = p.x.rows.clamp(1, FEW).next_power_of_two();
    let kernel = d.kernels.of("linear", &format!("linear_*_{rows}"), &p.w.fmt)?;
    d.launch(kernel, grid(rows), 128, 0, &a)
}

/// Fifteen-bit codes of rows, at these offsets of the scratch.
fn quantise(d: &Cuda, room: Ptr, at: [u64; 3], x: &View) -> Result<args::Fifteen> {
    let to = args::Fifteen { hi: room + at[0], lo: room + at[1], meta: room + at[2] };
    let groups = x.rows as u64 * (x.cols / 32) as u64;
    d.launch(d.kernels.get("quantise")?, [blocks(groups, 8), 1, 1], 256, 0, &args::Quant { x: d.view(x)?, to })?;
    Ok(to)
}

/// Rows in bf16 at an address.
fn to_bf16(d: &Cuda, to: Ptr, x: &args::View) -> Result<()> {
    let k = scratch::padded(x.cols as u32);
    d.each("to_bf16", x.rows as u64 * k, &args::Bf16 { x: *x, to, k: k as i32, pad: 0 })
}

fn many_linear(d: &Cuda, room: Ptr, p: &Product) -> Result<()> {
    to_bf16(d, room, &d.view(p.x)?)?;
    let a = args::Gemm {
        out: d.view(p.out)?,
        x: room,
        w: d.mat(p.w)?,
        step: [0; 3],
        bias: p.bias,
        order: 0,
        tiles: 0,
        count: 0,
        rows: p.x.rows as i32,
        kp: scratch::padded(p.w.k) as i32,
        add: p.add as i32,
        from_div: 1,
    };
    // Tiles of 32 rows where a hundred and twenty-eight would be mostly empty; an element's arithmetic is the same.
    let tile = if p.x.rows <= 64 { 32 } else { 128 };
    let kernel = d.kernels.of("linear", &format!("gemm_*_{tile}"), &p.w.fmt)?;
    let grid = [blocks(p.w.n as u64, 128), p.x.rows.div_ceil(tile), 1];
    d.launch(kernel, grid, 256, super::kernels::gemm_shared(tile), &a)
}

#[expect(clippy::too_many_arguments, reason = "the op's operands")]
fn attention(
    d: &Cuda,
    room: Ptr,
    out: &View,
    q: &View,
    st: &StreamView,
    rows: &Rows,
    scale: f32,
    (window, since): (Option<u32>, u32),
    sinks: Ptr,
) -> Result<()> {
    if st.d > 512 {
        return Err(Error::Shape {
            op: "attention",
            what: format!("heads {} wide; this device has at most 512", st.d),
        });
    }
    let parts = scratch::room(st, rows);
    let a = args::Attention {
        out: d.view(out)?,
        q: d.view(q)?,
        st: d.stream(st)?,
        rows: d.rows(rows)?,
        scale,
        window: window.map_or(0, |w| w.clamp(1, i32::MAX as u32) as i32),
        since: since.min(i32::MAX as u32) as i32,
        sinks,
        scratch: room,
        room: parts as i32,
        whole: (rows.class == RowClass::Many) as i32,
        pad: 0,
    };
    if scratch::flashes(st, rows) {
        let kernel = d.kernels.get(&format!("flash_bf16_{}", st.d))?;
        return d.launch(kernel, [q.heads, rows.n.div_ceil(64), 1], 128, super::kernels::flash_shared(st.d), &a);
    }
    let (name, heads) = if st.fmt == KvFormat::F32 { ("attention_few_f32", 4) } else { ("attention_few_bf16", 8) };
    let shared = heads * (st.d + 64 + 3) * 4;
    d.launch(d.kernels.get(name)?, [parts, st.heads, rows.n], 256, shared, &a)?;
    d.launch(d.kernels.get("attention_meet")?, [rows.n * q.heads, 1, 1], 128, 0, &a)
}

fn gated_delta(d: &Cuda, x: [&View; 4], v: [Ptr; 2], g: &GdnShape, st: &RecView, rows: &Rows) -> Result<()> {
    let name = match g.d_k {
        ..=32 => "delta_32",
        33..=128 => "delta_128",
        129..=256 => "delta_256",
        _ => {
            return Err(Error::Shape {
                op: "gated_delta",
                what: format!("d_k {}; this device has at most 256", g.d_k),
            });
        }
    };
    let a = args::Delta {
        out: d.view(x[0])?,
        qkv: d.view(x[1])?,
        a: d.view(x[2])?,
        b: d.view(x[3])?,
        decay: v[0],
        dt: v[1],
        state: d.vector(Some(&st.state))?,
        rows: d.rows(rows)?,
        n_k: g.n_k as i32,
        n_v: g.n_v as i32,
        d_k: g.d_k as i32,
        d_v: g.d_v as i32,
        modulo: (g.rule == KeyHeadRule::Mod) as i32,
        state_elems: st.state_elems as i32,
        slots: st.slots as i32,
    };
    let grid = [g.n_v, g.d_v.div_ceil(32), rows.seqs];
    d.launch(d.kernels.get(name)?, grid, 128, (2 * g.d_k + 256) * 4, &a)
}

/// Operands of an expert group.
struct Group<'a> {
    dst: &'a Acc,
    mid: &'a View,
    h: &'a View,
    routed: &'a Routing,
    e: &'a ExpertMats,
    part: Part,
    class: RowClass,
    chosen: args::Chosen,
}

fn chosen(d: &Cuda, routed: &Routing, e: &ExpertMats, pick: &Pick) -> Result<args::Chosen> {
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

fn experts(d: &Cuda, room: Ptr, g: &Group) -> Result<()> {
    let k = g.routed.ids.cols;
    let at = scratch::experts(&mut Cut::default(), g.e, g.h, g.mid, k, g.class);
    let entries = g.h.rows * k;
    let (Acc::Parts(dst) | Acc::Sum(dst)) = g.dst;
    if g.class == RowClass::Many {
        let a = args::Sort {
            c: g.chosen,
            order: room + at.order,
            count: room + at.count,
            tiles: room + at.tiles,
            n: g.h.rows as i32,
            tile: EXPERT_TILE as i32,
        };
        d.launch(d.kernels.get("expert_sort")?, [1, 1, 1], 1024, scratch::expert_count(g.e) * 4, &a)?;
    }
    let tiles = Tiles { room, at: &at, entries, count: scratch::max_tiles(entries as u64, g.e) as u32 };
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
            d.each("glu", elements(g.mid), &args::Glu { out: mid, gate: mid, up, glu: kind(g.e.glu) })?;
        } else {
            let q = match scratch::is_block(&g.e.gate.first) {
                true => quantise(d, room, at.h, g.h)?,
                false => args::Fifteen { hi: 0, lo: 0, meta: 0 },
            };
            let (mid, h, gate, up) = (d.view(g.mid)?, d.view(g.h)?, d.set(&g.e.gate)?, d.set(&g.e.up)?);
            let (gate_bias, up_bias) = (d.vector(g.e.bias.gate.as_ref())?, d.vector(g.e.bias.up.as_ref())?);
            let a = args::GateUp { mid, h, q, gate, up, c: g.chosen, gate_bias, up_bias, glu: kind(g.e.glu), pad: 0 };
            let kernel = d.kernels.of("expert_group", "gate_up_*", &g.e.gate.first.fmt)?;
            d.launch(kernel, [g.mid.cols.div_ceil(4), entries, 1], 128, 0, &a)?;
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
        let q = match scratch::is_block(&g.e.down.first) {
            true => quantise(d, room, at.mid, g.mid)?,
            false => args::Fifteen { hi: 0, lo: 0, meta: 0 },
        };
        let a = args::Down { parts, mid: d.view(g.mid)?, q, down: d.set(&g.e.down)?, c: g.chosen, bias };
        let kernel = d.kernels.of("expert_group", "down_*", &g.e.down.first.fmt)?;
        d.launch(kernel, [g.h.cols.div_ceil(4), entries, 1], 128, 0, &a)?;
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
        let tile = EXPERT_TILE as u32;
        let kernel = d.kernels.of("expert_group", &format!("gemm_*_{tile}"), &w.first.fmt)?;
        d.launch(kernel, [blocks(w.first.n as u64, 128), self.count, 1], 256, super::kernels::gemm_shared(tile), &a)
    }
}
