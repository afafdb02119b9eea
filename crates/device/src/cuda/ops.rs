//! Each op as the kernels it takes.

use super::args;
use super::driver::Ptr;
use super::experts::{Group, chosen, experts};
use super::few::{Quantised, few_linear};
use super::held::{self, Fit};
use super::kernels::history;
use super::launch::blocks;
use super::norms::{fused, gated, norm, turned};
use super::scratch;
use super::{Cuda, Result, normed};
use crate::error::Error;
use crate::op::{ActFn, GdnShape, KeyHeadRule, Op, RecView, Router, RouterScore, Routing, RowClass, Rows};
use crate::view::{Buf, Glu, Mat, View};
use memory::KvFormat;

/// Enqueues a checked op, or holds it back until it is known what follows.
pub fn run(d: &mut Cuda, op: &Op, scratch: Buf) -> Result<()> {
    match held::fit(d, &d.held, op) {
        Fit::More => {
            d.held.push((op.clone(), scratch));
            return Ok(());
        }
        Fit::Whole => {
            let mut all = std::mem::take(&mut d.held);
            all.push((op.clone(), scratch));
            return held::whole(d, &all);
        }
        Fit::No => {}
    }
    if d.held.is_empty() {
        return one(d, op, scratch);
    }
    for (op, scratch) in std::mem::take(&mut d.held) {
        one(d, &op, scratch)?;
    }
    run(d, op, scratch)
}

/// Most rows that a block of the kernels for few rows has: the codes of more of them push each other out of the nearest cache,
/// and dot products take the time then, not weights that are read once more.
pub(super) const FEW: u32 = 4;
/// Rows of a block of the kernel for many rows that meet f32 weights.
const MANY_F32: u32 = 8;

/// Enqueues an op, behind those that were.
pub(super) fn one(d: &mut Cuda, op: &Op, scratch: Buf) -> Result<()> {
    let room = d.at(&scratch)?;
    if d.norm.is_some() && matches!(op, Op::Linear { .. }) {
        d.flush()?;
    }
    if let Op::Linear { out, x, w, bias, add, class } = op {
        let bias = d.vector(bias.as_ref())?;
        return linear(d, room, &Product { out, x, w, bias, add: *add }, *class);
    }
    if fused(d, op)? || d.convolves(op)? {
        return Ok(());
    }
    d.flush()?;
    if let Some(n) = normed::of(d, op)? {
        d.row = Some(n);
        return Ok(());
    }
    if let Op::RmsNorm { out, x, w, eps } = op
        && out == x
        && out.heads > 1
    {
        // What turns or gates the same rows may come next.
        d.norm = Some(norm(d, out, x, *w, *eps, args::Fifteen::default())?);
        return d.wrote(op);
    }
    let kept = enqueue(d, op, room)?;
    d.wrote(op)?;
    if let Some(k) = kept {
        d.hold(k);
    }
    Ok(())
}

/// Enqueues any op but a linear layer. Tells whose codes it left behind.
fn enqueue(d: &Cuda, op: &Op, room: Ptr) -> Result<Option<Quantised>> {
    let mut kept = None;
    match op {
        Op::Embed { out, table, ids, scale } => {
            let a = args::Embed { out: d.view(out)?, ids: d.view(ids)?, table: d.mat(table)?, scale: *scale };
            d.launch(d.kernels.of("embed", "embed_*", &table.fmt)?, [out.rows, 1, 1], 256, 0, &a)
        }
        Op::RmsNorm { out, x, w, eps } => {
            kept = d.keeps(out).filter(|_| out.heads == 1);
            norm(d, out, x, *w, *eps, d.codes_for(kept.as_ref()))?.launch(d)
        }
        Op::Linear { .. } => Ok(()),
        Op::Rope { x, pos, rope } => {
            d.each("rope", x.rows as u64 * x.heads as u64 * (rope.dims / 2) as u64, &turned(d, x, pos, rope)?)
        }
        Op::Gate { x, g, act } => {
            kept = d.keeps(x);
            d.each("gate", elements(x), &gated(d, x, g, *act, d.codes_for(kept.as_ref()))?)
        }
        Op::Glu { out, gate, up, glu } => {
            kept = d.keeps(out);
            let to = d.codes_for(kept.as_ref());
            let a = args::Glu { out: d.view(out)?, gate: d.view(gate)?, up: d.view(up)?, to, glu: kind(*glu), pad: 0 };
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
            if st.fmt.rotated() {
                // A warp for each of key and value.
                let kernel = d.kernels.get(&format!("append_{}_{}", history(st.fmt), st.d))?;
                d.launch(kernel, [rows.n * st.heads, 1, 1], 64, 0, &a)
            } else {
                d.launch(d.kernels.get("append")?, [rows.n * st.heads, 1, 1], 128, 0, &a)
            }
        }
        Op::Attention { .. } => attention(d, room, op, AfterMeeting::default()),
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
            // Each block walks at most 32 rows of a sequence.
            let grid = [blocks(x.cols as u64, 128), rows.seqs, rows.n.div_ceil(32)];
            d.launch(d.kernels.get("conv_silu")?, grid, 128, 0, &a)
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
            let a = route_args(d, out, logits, router)?;
            if logits.cols <= 512 && router.groups.is_none() {
                let threads = logits.cols.next_multiple_of(32);
                return d.launch(d.kernels.get("route_ranks")?, [logits.rows, 1, 1], threads, 0, &a).map(|()| None);
            }
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
        Op::Likeliest { out, x } => {
            let parts = scratch::likeliest_parts(x);
            let (k, n) = (out.cols as i32 / 2, parts as i32);
            let a = args::Likeliest { out: d.view(out)?, x: d.view(x)?, keys: room, k, parts: n };
            d.launch(d.kernels.get("likeliest_parts")?, [parts, x.rows, 1], 512, 0, &a)?;
            d.launch(d.kernels.get("likeliest_meet")?, [x.rows, 1, 1], 512, 0, &a)
        }
    }?;
    Ok(kept)
}

pub(super) fn route_args(d: &Cuda, out: &Routing, logits: &View, router: &Router) -> Result<args::Route> {
    Ok(args::Route {
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
    })
}

pub(super) fn act(f: ActFn) -> i32 {
    match f {
        ActFn::Sigmoid => 0,
        ActFn::Silu => 1,
    }
}

pub(super) fn kind(glu: Glu) -> args::GluKind {
    match glu {
        Glu::Swiglu => args::GluKind { kind: 0, limit: 0.0, alpha: 0.0 },
        Glu::GegluTanh => args::GluKind { kind: 1, limit: 0.0, alpha: 0.0 },
        Glu::SwigluClamped { limit, alpha } => args::GluKind { kind: 2, limit, alpha },
    }
}

pub(super) fn elements(v: &View) -> u64 {
    v.rows as u64 * v.heads as u64 * v.cols as u64
}

/// Operands of a linear layer.
pub(super) struct Product<'a> {
    pub out: &'a View,
    pub x: &'a View,
    pub w: &'a Mat,
    pub bias: Ptr,
    pub add: bool,
}

fn linear(d: &mut Cuda, room: Ptr, p: &Product, class: RowClass) -> Result<()> {
    if class == RowClass::Few {
        return few_linear(d, room, p);
    }
    d.flush()?;
    if scratch::on_tensor_cores(p.w, class) {
        many_linear(d, room, p)?;
    } else {
        let one = args::One { out: d.view(p.out)?, w: d.mat(p.w)?, bias: p.bias, add: p.add as i32, first: 0 };
        let (x, q, rows) = (d.view(p.x)?, args::Fifteen::default(), p.x.rows);
        let a = args::Set { x, q, m: [one; args::SET], rows: rows as i32, count: 1, blocks: 0, pad: 0 };
        let grid = [blocks(p.w.n as u64, 8), rows.div_ceil(MANY_F32), 1];
        d.launch(d.kernels.get("linear_many_f32")?, grid, 128, 0, &a)?;
    }
    d.wrote_view(p.out)
}

/// Rows in bf16 at an address.
pub(super) fn to_bf16(d: &Cuda, to: Ptr, x: &args::View) -> Result<()> {
    let k = scratch::padded(x.cols as u32);
    let grid = [x.rows as u32, blocks(k, 8 * 256), 1];
    d.launch(d.kernels.get("to_bf16")?, grid, 256, 0, &args::Bf16 { x: *x, to, k: k as i32, pad: 0 })
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
    // Fewer rows a tile where more would be mostly empty; an element's arithmetic is the same.
    let tile = match p.x.rows {
        ..=64 => 32,
        65..=192 => 128,
        _ => 256,
    };
    let kernel = d.kernels.of("linear", &format!("gemm_*_{tile}"), &p.w.fmt)?;
    let grid = [blocks(p.w.n as u64, 128), p.x.rows.div_ceil(tile), 1];
    d.launch(kernel, grid, 256, super::kernels::gemm_shared(tile), &a)
}

/// What happens to the rows of attention where partitions meet: a gate, and codes of what comes of that.
#[derive(Copy, Clone, Default)]
pub(super) struct AfterMeeting {
    pub g: args::View,
    pub to: args::Fifteen,
    pub act: i32,
    pub gated: i32,
}

/// Attention of few rows with a gate behind it.
pub(super) fn attend(d: &Cuda, op: &Op, scratch: Buf, then: AfterMeeting) -> Result<()> {
    attention(d, d.at(&scratch)?, op, then)
}

fn attention(d: &Cuda, room: Ptr, op: &Op, then: AfterMeeting) -> Result<()> {
    let Op::Attention { out, q, st, rows, scale, window, since, sinks } = op else { return Ok(()) };
    if st.d > 512 {
        return Err(Error::Shape {
            op: "attention",
            what: format!("heads {} wide; this device has at most 512", st.d),
        });
    }
    let parts = scratch::room(st, rows, &d.caps);
    let a = args::Attention {
        out: d.view(out)?,
        q: d.view(q)?,
        st: d.stream(st)?,
        rows: d.rows(rows)?,
        scale: *scale,
        window: window.map_or(0, |w| w.clamp(1, i32::MAX as u32) as i32),
        since: (*since).min(i32::MAX as u32) as i32,
        sinks: d.vector(sinks.as_ref())?,
        scratch: room,
        room: parts as i32,
        whole: (rows.class == RowClass::Many) as i32,
        most: scratch::most_parts(st, &d.caps) as i32,
    };
    let AfterMeeting { g, to, act, gated } = then;
    let meet = args::Meet { a, g, to, act, gated };
    let meets = || d.launch(d.kernels.get("attention_meet")?, [rows.n * q.heads, 1, 1], 1024, 0, &meet);
    if scratch::flashes(st, rows) {
        let kernel = d.kernels.get(&format!("flash_{}_{}", history(st.fmt), st.d))?;
        let shared = super::kernels::flash_shared(st.d, st.fmt.rotated());
        return d.launch(kernel, [q.heads, rows.n.div_ceil(64), 1], 128, shared, &a);
    }
    if scratch::on_tensor_cores_by_row(st) {
        let kernel = d.kernels.get(&format!("few_{}_{}", history(st.fmt), st.d))?;
        d.launch(
            kernel,
            [parts, st.heads, rows.n],
            256,
            super::kernels::few_shared(st.d, st.fmt == KvFormat::Tq4),
            &a,
        )?;
        return meets();
    }
    let (name, heads) = if st.fmt == KvFormat::F32 { ("attention_few_f32", 4) } else { ("attention_few_bf16", 8) };
    let shared = heads * (st.d + 64 + 3) * 4;
    d.launch(d.kernels.get(name)?, [parts, st.heads, rows.n], 256, shared, &a)?;
    meets()
}

fn gated_delta(d: &Cuda, x: [&View; 4], v: [Ptr; 2], g: &GdnShape, st: &RecView, rows: &Rows) -> Result<()> {
    let (name, width) = match g.d_k {
        ..=32 => ("delta_32", 32),
        33..=128 => ("delta_128", 128),
        129..=256 => ("delta_256", 256),
        _ => {
            return Err(Error::Shape {
                op: "gated_delta",
                what: format!("d_k {}; this device has at most 256", g.d_k),
            });
        }
    };
    let grid = [g.n_v, g.d_v.div_ceil(32), rows.seqs];
    // Queries, keys, values and three numbers of sixteen rows.
    d.launch(d.kernels.get(name)?, grid, 128, 16 * (2 * width + 32 + 3) * 4, &delta_args(d, x, v, g, st, rows)?)
}

pub(super) fn delta_args(
    d: &Cuda,
    x: [&View; 4],
    v: [Ptr; 2],
    g: &GdnShape,
    st: &RecView,
    rows: &Rows,
) -> Result<args::Delta> {
    Ok(args::Delta {
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
    })
}
