//! Products of few rows: those that meet the same rows wait for each other and go as one grid; codes of rows are kept until somebody
//! writes to them.

use super::driver::Ptr;
use super::launch::blocks;
use super::ops::{FEW, Product, one};
use super::scratch::{self, Cut};
use super::{Cuda, Result, args, normed};
use crate::op::{Acc, Op, RowClass};
use crate::view::{Mat, View};

/// Outputs of a block of the kernels for few rows: two of each of four warps; of floats one or two of all of them.
fn outputs(fmt: &checkpoint::Format) -> u64 {
    match super::kernels::number(fmt) {
        Some(0) => 1,
        Some(1 | 2) => 2,
        _ => 8,
    }
}

/// Outputs of a block of the kernels that stream weights, and columns of a stage.
pub(super) const STREAM: (u32, u32) = (16, 256);

/// Whether a matrix streams through shared memory: whole tiles and stages, rows one behind the other, scales where copies of sixteen
/// bytes find them. It follows from the matrix alone, so that rows have their bits in any company.
pub(super) fn streams(d: &Cuda, w: &Mat, at: &args::Mat) -> bool {
    let whole = w.n.is_multiple_of(STREAM.0) && w.k.is_multiple_of(STREAM.1) && w.k >= 4 * STREAM.1;
    whole && w.row_step == 1 && at.s.is_multiple_of(16) && d.kernels.stream(&w.fmt, 1).is_some()
}

/// A product of few rows: it waits for others that meet the same rows. Block weights meet their codes.
pub(super) fn few_linear(d: &mut Cuda, room: Ptr, p: &Product) -> Result<()> {
    let one = args::One { out: d.view(p.out)?, w: d.mat(p.w)?, bias: p.bias, add: p.add as i32, first: 0 };
    let (x, view, out) = (Quantised::of(d, p.x)?, d.view(p.x)?, Span::of(d, p.out));
    let streams = streams(d, p.w, &one.w);
    let along = !streams && d.kernels.joins() && normed::floats(&one, &p.w.fmt) && normed::pieces(&view);
    let mut new = Waiting { x, view, q: args::Fifteen::default(), fmt: p.w.fmt, streams, along, one, out };
    if !joins(&d.pending, &new) || !d.row.as_ref().is_none_or(|row| row.takes(&new)) {
        d.flush()?;
    }
    if d.row.is_none() && scratch::is_block(p.w) {
        new.q = match d.codes_of(&x) {
            Some(q) => q,
            None => {
                d.flush()?;
                if !d.room_for(&x) {
                    let at = scratch::fifteen(&mut Cut::default(), p.x.rows as u64, p.w.k);
                    new.q = quantise(d, room, at, p.x)?;
                    d.pending.push(new);
                    return d.flush();
                }
                let q = d.codes_for(Some(&x));
                quantise_to(d, q, p.x)?;
                d.hold(x);
                q
            }
        };
    }
    d.pending.push(new);
    // Who writes over its own rows is waited for by nobody.
    if x.span.meets(&out) { d.flush() } else { Ok(()) }
}

/// Whether a product may wait with those that wait: for one grid, all that stream and matrices of floats that go along; or others of
/// one format.
fn joins(waiting: &[Waiting], new: &Waiting) -> bool {
    let like = |o: &&Waiting| o.streams == new.streams;
    let apart = waiting.iter().all(|o| o.x == new.x && !o.out.meets(&new.out));
    let alike =
        waiting.iter().filter(like).all(|o| o.fmt == new.fmt) && waiting.iter().filter(like).count() < args::SET;
    let grid = |o: &Waiting| o.streams || o.along;
    apart && alike && waiting.iter().all(|o| grid(o) == grid(new))
}

/// Bytes of the arena that a view lies in.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Span {
    from: Ptr,
    to: Ptr,
}

impl Span {
    pub(super) fn of(d: &Cuda, v: &View) -> Self {
        let from = d.at(&v.buf).unwrap_or(0);
        Span { from, to: from + v.extent() * v.ty.bytes() }
    }
    pub(super) fn meets(&self, other: &Span) -> bool {
        self.from < other.to && other.from < self.to
    }
}

/// Rows whose codes the backend keeps until somebody writes to them.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Quantised {
    pub(super) span: Span,
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
    pub(super) x: Quantised,
    pub(super) view: args::View,
    pub(super) q: args::Fifteen,
    pub(super) fmt: checkpoint::Format,
    pub(super) streams: bool,
    /// A matrix of floats that goes along with those that stream.
    pub(super) along: bool,
    pub(super) one: args::One,
    pub(super) out: Span,
}

/// Matrices with the number of the first block or output of each, and how many of these there are.
pub(super) fn numbered(w: &[&Waiting], blocks: impl Fn(&Waiting) -> u32) -> ([args::One; args::SET], u32) {
    let (mut all, mut first) = ([w[0].one; args::SET], 0);
    for (to, w) in all.iter_mut().zip(w) {
        *to = args::One { first: first as i32, ..w.one };
        first += blocks(w);
    }
    (all, first)
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
    /// Enqueues what waits: products behind a norm of rows, a norm of heads, or products as one grid; who waits second lets the first
    /// go. Behind them ops that were held back.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.flush_products(None)?;
        if let Some(n) = self.norm.take() {
            n.launch(self)?;
        }
        if self.held.is_empty() {
            return Ok(());
        }
        for (op, scratch) in std::mem::take(&mut self.held) {
            one(self, &op, scratch)?;
        }
        self.flush()
    }
    /// Enqueues products that meet the same rows, a norm in front of them if one waits, `conv` behind one of those that stream.
    pub(super) fn flush_products(&mut self, conv: Option<args::ConvOf>) -> Result<()> {
        let mut pending = std::mem::take(&mut self.pending);
        if let Some(row) = self.row.take() {
            if row.worth(&pending) {
                return self.launch_behind(row, &pending, conv);
            }
            let q = row.launch(self)?;
            pending.iter_mut().for_each(|w| w.q = q);
        }
        let Some(first) = pending.first() else { return Ok(()) };
        if pending.iter().any(|w| w.streams) {
            self.launch_streams(&pending, None, conv)?;
        } else {
            let rows = self.kernels.rows(first.x.rows.clamp(1, FEW));
            let name = format!("linear_*_{rows}");
            let (set, blocks) = self.set_of(&pending.iter().collect::<Vec<_>>(), outputs(&first.fmt));
            let kernel = self.kernels.of("linear", &name, &first.fmt)?;
            self.launch(kernel, [blocks, first.x.rows.div_ceil(rows), 1], 128, 0, &set)?;
        }
        pending.iter().for_each(|w| self.forget(&w.out));
        Ok(())
    }
    /// Products of one format that meet the same rows, `each` outputs a block, and their blocks.
    pub(super) fn set_of(&self, w: &[&Waiting], each: u64) -> (args::Set, u32) {
        let first = w[0];
        let (m, total) = numbered(w, |w| blocks(w.one.w.n as u64, each));
        let (rows, count) = (first.x.rows as i32, w.len() as i32);
        (args::Set { x: first.view, q: first.q, m, rows, count, blocks: total as i32, pad: 0 }, total)
    }
    /// Codes of rows that were written to are worth nothing.
    pub(super) fn forget(&mut self, s: &Span) {
        self.quantised.iter_mut().filter(|q| q.is_some_and(|q| q.span.meets(s))).for_each(|q| *q = None);
    }
    pub(super) fn wrote_view(&mut self, v: &View) -> Result<()> {
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
