//! Each op as the kernels it takes.

use super::args;
use super::driver::Ptr;
use super::experts::{Group, chosen, experts};
use super::kernels::history;
use super::launch::blocks;
use super::norms::{fused, gated, norm, turned};
use super::scratch::{self, Cut};
use super::{Cuda, Result};
use crate::error::Error;
use crate::op::{Acc, GdnShape, KeyHeadRule, Op, RecView, RouterScore, RowClass, Rows, StreamView};
use crate::view::{Buf, Glu, Mat, View};
use memory::KvFormat;

/// Most rows that a block of the kernels for few rows has: the codes of more of them push each other out of the nearest cache,
/// and dot products take the time then, not weights that are read once more.
const FEW: u32 = 4;
/// Rows of a block of the kernel for many rows that meet f32 weights.
const MANY_F32: u32 = 8;

/// Enqueues a checked op.
pub fn run(d: &mut Cuda, op: &Op, scratch: Buf) -> Result<()> {
    let room = d.at(&scratch)?;
    if d.norm.is_some() && matches!(op, Op::Linear { .. }) {
        d.flush()?;
    }
    if let Op::Linear { out, x, w, bias, add, class } = op {
        let bias = d.vector(bias.as_ref())?;
        return linear(d, room, &Product { out, x, w, bias, add: *add }, *class);
    }
    if fused(d, op)? {
        return Ok(());
    }
    d.flush()?;
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
struct Product<'a> {
    out: &'a View,
    x: &'a View,
    w: &'a Mat,
    bias: Ptr,
    add: bool,
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

/// Outputs of a block of the kernels for few rows: two of each of four warps; of floats one or two of all of them.
fn outputs(fmt: &checkpoint::Format) -> u64 {
    match super::kernels::number(fmt) {
        Some(0) => 1,
        Some(1 | 2) => 2,
        _ => 8,
    }
}

/// Outputs of a block of the kernels that stream weights, and columns of a stage.
const STREAM: (u32, u32) = (16, 256);

/// Whether a matrix streams through shared memory: whole tiles and stages, rows one behind the other, scales where copies of sixteen
/// bytes find them. It follows from the matrix alone, so that rows have their bits in any company.
fn streams(d: &Cuda, w: &Mat, at: &args::Mat) -> bool {
    let whole = w.n.is_multiple_of(STREAM.0) && w.k.is_multiple_of(STREAM.1) && w.k >= 4 * STREAM.1;
    whole && w.row_step == 1 && at.s.is_multiple_of(16) && d.kernels.stream(&w.fmt, 1).is_some()
}

/// A product of few rows: it waits for others that meet the same rows. Block weights meet their codes.
fn few_linear(d: &mut Cuda, room: Ptr, p: &Product) -> Result<()> {
    let one = args::One { out: d.view(p.out)?, w: d.mat(p.w)?, bias: p.bias, add: p.add as i32, first: 0 };
    let (x, view) = (Quantised::of(d, p.x)?, d.view(p.x)?);
    let streams = streams(d, p.w, &one.w);
    let joins = |w: &Waiting| w.x == x && w.fmt == p.w.fmt && w.streams == streams && !w.out.meets(&Span::of(d, p.out));
    let joins = d.pending.iter().all(joins);
    if !joins || d.pending.len() == args::SET {
        d.flush()?;
    }
    let out = Span::of(d, p.out);
    let q = match d.codes_of(&x) {
        _ if !scratch::is_block(p.w) => args::Fifteen::default(),
        Some(q) => q,
        None => {
            d.flush()?;
            if !d.room_for(&x) {
                let at = scratch::fifteen(&mut Cut::default(), p.x.rows as u64, p.w.k);
                let q = quantise(d, room, at, p.x)?;
                d.pending.push(Waiting { x, view, q, fmt: p.w.fmt, streams, one, out });
                return d.flush();
            }
            let q = d.codes_for(Some(&x));
            quantise_to(d, q, p.x)?;
            d.hold(x);
            q
        }
    };
    d.pending.push(Waiting { x, view, q, fmt: p.w.fmt, streams, one, out });
    // Who writes over its own rows is waited for by nobody.
    if x.span.meets(&out) { d.flush() } else { Ok(()) }
}

/// Bytes of the arena that a view lies in.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Span {
    from: Ptr,
    to: Ptr,
}

impl Span {
    fn of(d: &Cuda, v: &View) -> Self {
        let from = d.at(&v.buf).unwrap_or(0);
        Span { from, to: from + v.extent() * v.ty.bytes() }
    }
    fn meets(&self, other: &Span) -> bool {
        self.from < other.to && other.from < self.to
    }
}

/// Rows whose codes the backend keeps until somebody writes to them.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Quantised {
    span: Span,
    rows: u32,
    cols: u32,
    stride: u32,
}

impl Quantised {
    /// Rows of whole groups, heads one behind the other.
    pub(super) fn of(d: &Cuda, v: &View) -> Result<Self> {
        Ok(Quantised { span: Span::of(d, v), rows: v.rows, cols: v.heads * v.cols, stride: v.stride[0] })
    }
}

/// A product that was asked for and not enqueued yet.
pub struct Waiting {
    x: Quantised,
    view: args::View,
    q: args::Fifteen,
    fmt: checkpoint::Format,
    streams: bool,
    one: args::One,
    out: Span,
}

/// Rows whose codes are kept at a time: what a layer's parts meet, what a part makes in between, and what is about to be made.
pub const ROOMS: usize = 3;

impl Cuda {
    /// Bytes for codes of some rows.
    pub(super) const CODES: u64 = 4 << 20;

    fn room_for(&self, x: &Quantised) -> bool {
        let mut cut = Cut::default();
        scratch::fifteen(&mut cut, x.rows as u64, x.cols);
        cut.total() <= Self::CODES
    }
    /// Whether an op that writes `v` shall leave its codes too: few rows in whole groups that somebody will multiply.
    pub(super) fn keeps(&self, v: &View) -> Option<Quantised> {
        let whole = v.cols.is_multiple_of(32) && (v.heads == 1 || v.stride[1] == v.cols);
        let x = Quantised::of(self, v).ok().filter(|_| self.class == Some(RowClass::Few) && whole)?;
        self.room_for(&x).then_some(x)
    }
    /// Where codes of these rows go next: the room whose codes were made longest ago.
    pub(super) fn codes_for(&self, x: Option<&Quantised>) -> args::Fifteen {
        x.map_or_else(args::Fifteen::default, |x| self.codes_at(self.next_codes, x))
    }
    /// Codes of these rows, where they are kept.
    pub(super) fn codes_of(&self, x: &Quantised) -> Option<args::Fifteen> {
        let i = self.quantised.iter().position(|q| q.as_ref() == Some(x))?;
        Some(self.codes_at(i, x))
    }
    fn codes_at(&self, i: usize, x: &Quantised) -> args::Fifteen {
        let base = self.codes + i as u64 * Self::CODES;
        let [hi, lo, meta] = scratch::fifteen(&mut Cut::default(), x.rows as u64, x.cols).map(|at| base + at);
        args::Fifteen { hi, lo, meta }
    }
    /// Says whose codes were made where [`codes_for`](Self::codes_for) said.
    pub(super) fn hold(&mut self, x: Quantised) {
        self.quantised[self.next_codes] = Some(x);
        self.next_codes = (self.next_codes + 1) % ROOMS;
    }
    /// Enqueues what waits: a norm, or products, as one grid. Never both: who waits second lets the first go.
    pub(super) fn flush(&mut self) -> Result<()> {
        if let Some(n) = self.norm.take() {
            n.launch(self)?;
        }
        let Some(w) = self.pending.first() else { return Ok(()) };
        let rows = w.x.rows.clamp(1, FEW).next_power_of_two();
        let stream = self.kernels.stream(&w.fmt, rows).filter(|_| w.streams);
        let each = if stream.is_some() { STREAM.0 as u64 } else { outputs(&w.fmt) };
        let (mut first, mut m) = (0u32, [w.one; args::SET]);
        for (to, w) in m.iter_mut().zip(&self.pending) {
            *to = args::One { first: first as i32, ..w.one };
            first += blocks(w.one.w.n as u64, each);
        }
        let (n, count) = (w.x.rows, self.pending.len() as i32);
        let a = args::Set { x: w.view, q: w.q, m, rows: n as i32, count, blocks: first as i32, pad: 0 };
        let together = n.div_ceil(rows);
        match stream {
            Some(s) => {
                // Fewer warps share a row of weights where that leaves each too little of it, or where there are rows enough.
                let warps = if w.one.w.k <= 2048 || first >= 2048 { 4 } else { 8 };
                let (grid, threads, shared) = s.shape(first, warps);
                self.launch(s.kernel, [grid, together, 1], threads, shared, &a)?;
            }
            None => {
                let kernel = self.kernels.of("linear", &format!("linear_*_{rows}"), &w.fmt)?;
                self.launch(kernel, [first, together, 1], 128, 0, &a)?;
            }
        }
        let written: Vec<Span> = self.pending.drain(..).map(|w| w.out).collect();
        written.iter().for_each(|s| self.forget(s));
        Ok(())
    }
    /// Codes of rows that were written to are worth nothing.
    fn forget(&mut self, s: &Span) {
        self.quantised.iter_mut().filter(|q| q.is_some_and(|q| q.span.meets(s))).for_each(|q| *q = None);
    }
    fn wrote_view(&mut self, v: &View) -> Result<()> {
        self.forget(&Span::of(self, v));
        Ok(())
    }
    pub(super) fn wrote(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Linear { out, .. }
            | Op::Embed { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::Glu { out, .. }
            | Op::Attention { out, .. }
            | Op::ConvSilu { out, .. }
            | Op::Shift { out, .. }
            | Op::GatedDelta { out, .. }
            | Op::Combine { out, .. }
            | Op::GatherRows { out, .. }
            | Op::Likeliest { out, .. } => self.wrote_view(out),
            Op::Rope { x, .. }
            | Op::Gate { x, .. }
            | Op::Zero { x }
            | Op::Scale { x, .. }
            | Op::Softcap { x, .. }
            | Op::Add { x, .. } => self.wrote_view(x),
            Op::Route { out, .. } => {
                self.wrote_view(&out.ids)?;
                self.wrote_view(&out.w)
            }
            Op::ExpertGroup { dst, mid, .. } => {
                let (Acc::Parts(dst) | Acc::Sum(dst)) = dst;
                self.wrote_view(dst)?;
                self.wrote_view(mid)
            }
            Op::Append { .. } => Ok(()),
        }
    }
}

/// Fifteen-bit codes of rows, at these offsets of the scratch.
pub(super) fn quantise(d: &Cuda, room: Ptr, at: [u64; 3], x: &View) -> Result<args::Fifteen> {
    let to = args::Fifteen { hi: room + at[0], lo: room + at[1], meta: room + at[2] };
    quantise_to(d, to, x)?;
    Ok(to)
}

fn quantise_to(d: &Cuda, to: args::Fifteen, x: &View) -> Result<()> {
    let groups = x.rows as u64 * (x.cols / 32) as u64;
    d.launch(d.kernels.get("quantise")?, [blocks(groups, 8), 1, 1], 256, 0, &args::Quant { x: d.view(x)?, to })
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
    let parts = scratch::room(st, rows, &d.caps);
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
        most: scratch::most_parts(st, &d.caps) as i32,
    };
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
        return d.launch(d.kernels.get("attention_meet")?, [rows.n * q.heads, 1, 1], 1024, 0, &a);
    }
    let (name, heads) = if st.fmt == KvFormat::F32 { ("attention_few_f32", 4) } else { ("attention_few_bf16", 8) };
    let shared = heads * (st.d + 64 + 3) * 4;
    d.launch(d.kernels.get(name)?, [parts, st.heads, rows.n], 256, shared, &a)?;
    d.launch(d.kernels.get("attention_meet")?, [rows.n * q.heads, 1, 1], 1024, 0, &a)
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
    // Queries, keys, values and three numbers of sixteen rows.
    d.launch(d.kernels.get(name)?, grid, 128, 16 * (2 * width + 32 + 3) * 4, &a)
}
