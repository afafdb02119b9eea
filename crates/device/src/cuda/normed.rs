//! A norm of rows goes into the products that meet the rows: every block makes the codes that it needs, which is cheaper than a
//! kernel for it and the wait behind that. Small matrices of floats go along, and a short convolution behind one of the products.

use super::few::{Quantised, STREAM, Span, Waiting};
use super::kernels::{STREAMED, Stream, code_bytes, number};
use super::norms::{self, Norm};
use super::ops::FEW;
use super::{Cuda, Result, args};
use crate::op::Op;
use crate::view::View;

/// A norm that waits for products.
pub struct RowNorm {
    norm: Norm,
    /// The rows that it makes.
    pub x: Quantised,
    from: Span,
}

/// Matrices of one grid that meet the rows of a norm: of blocks that stream, of floats.
pub struct Grid<'a> {
    pub norm: args::Norm,
    pub streams: &'a [args::One],
    pub fmt: checkpoint::Format,
    pub floats: &'a [args::One],
    pub conv: Option<args::ConvOf>,
}

/// The norm of an op, if it may go into products.
pub fn of(d: &Cuda, op: &Op) -> Result<Option<RowNorm>> {
    let Op::RmsNorm { out, x, w, eps } = op else { return Ok(None) };
    let whole = out.heads == 1 && x.heads == 1 && x.cols.is_multiple_of(STREAM.1) && (1024..=8192).contains(&x.cols);
    let (Some(kept), true, true) = (d.keeps(out), whole, d.kernels.joins()) else { return Ok(None) };
    let norm = norms::norm(d, out, x, *w, *eps, args::Fifteen::default())?;
    let aligned = |v: &args::View| v.p.is_multiple_of(16) && v.s0 % 4 == 0;
    let a = &norm.args;
    let from = Span::of(d, x);
    let fits = aligned(&a.x) && aligned(&a.out) && a.w.is_multiple_of(16) && !Span::of(d, out).meets(&from);
    Ok(fits.then_some(RowNorm { norm, x: kept, from }))
}

/// Whether a matrix of floats may go along: f32, whole pieces of sixteen bytes.
pub fn floats(w: &args::One, fmt: &checkpoint::Format) -> bool {
    number(fmt) == Some(0) && w.w.k % 4 == 0 && w.w.q.is_multiple_of(16)
}

/// Weights up to which a norm goes along: more of them leave a kernel of its own little to cost, and want many small blocks.
const MOST: i64 = 48 << 20;

fn worth(streams: &[&Waiting]) -> bool {
    streams.iter().map(|w| i64::from(w.one.w.n) * i64::from(w.one.w.k)).sum::<i64>() <= MOST
}

impl RowNorm {
    /// Whether a product may wait with those that wait already.
    pub fn takes(&self, w: &Waiting, with: &[Waiting]) -> bool {
        let streams = || with.iter().filter(|o| o.streams);
        let room = match w.streams {
            true => streams().count() < args::SET && streams().all(|o| o.fmt == w.fmt),
            false => floats(&w.one, &w.fmt) && with.len() - streams().count() < args::SET,
        };
        let apart = with.iter().all(|o| !o.out.meets(&w.out)) && !w.out.meets(&self.from) && !w.out.meets(&self.x.span);
        room && apart && w.x == self.x
    }
}

impl Cuda {
    /// Enqueues a norm and what waits for it, `conv` behind one of the matrices that stream.
    pub(super) fn flush_row(&mut self, conv: Option<args::ConvOf>) -> Result<()> {
        let Some(row) = self.row.take() else { return Ok(()) };
        let pending = std::mem::take(&mut self.pending);
        let (streams, floats): (Vec<&Waiting>, Vec<&Waiting>) = pending.iter().partition(|w| w.streams);
        let to = self.codes_for(Some(&row.x));
        let norm = args::Norm { to, ..row.norm.args };
        self.forget(&row.x.span);
        let Some(first) = streams.first().filter(|_| worth(&streams)) else {
            Norm { args: norm, ..row.norm }.launch(self)?;
            self.hold(row.x);
            return self.flush_groups(pending, to);
        };
        let one = |w: &[&Waiting]| w.iter().map(|w| w.one).collect::<Vec<_>>();
        let (m, f) = (one(&streams), one(&floats));
        self.launch_normed(&Grid { norm, streams: &m, fmt: first.fmt, floats: &f, conv })?;
        self.hold(row.x);
        pending.iter().for_each(|w| self.forget(&w.out));
        Ok(())
    }
    /// A convolution behind one of the products that wait for a norm. `false` where it must wait for them.
    pub(super) fn convolves(&mut self, op: &Op) -> Result<bool> {
        let Op::ConvSilu { out, x, w, kernel, st, rows } = op else { return Ok(false) };
        let same = |v: &View, w: &Waiting| w.streams && Span::of(self, v) == w.out;
        let which = self.pending.iter().filter(|w| w.streams).position(|w| same(x, w));
        let streams: Vec<&Waiting> = self.pending.iter().filter(|w| w.streams).collect();
        let joins = self.row.is_some() && worth(&streams);
        let (Some(which), true, true) = (which, joins, *kernel == 4 && rows.n == rows.seqs) else {
            return Ok(false);
        };
        let (w, state) = (self.vector(Some(w))?, self.vector(Some(&st.conv))?);
        let outs: Vec<_> = self.pending.iter().map(|w| w.out).collect();
        let own = Span::of(self, out);
        let apart = outs.iter().all(|o| !o.meets(&own)) && self.row.as_ref().is_some_and(|r| !r.from.meets(&own));
        if !w.is_multiple_of(16) || !apart {
            return Ok(false);
        }
        let (seq_of, from, to) = (self.view(&rows.seq_of)?, self.view(&rows.rec_from)?, self.view(&rows.rec_to)?);
        let (which, elems) = (which as i32, st.conv_elems as i32);
        let conv = args::ConvOf { out: self.view(out)?, seq_of, from, to, w, state, which, elems };
        self.flush_row(Some(conv))?;
        self.wrote(op)?;
        Ok(true)
    }
    /// Grid, threads and shared memory of products that stream with the rows' codes: fewer warps a tile where each would have too
    /// little of one, or where there are rows of weights enough; sixteen where there are not more tiles than multiprocessors.
    pub(super) fn shape(&self, s: &Stream, tiles: u32, k: u32) -> Result<(u32, u32, u32)> {
        let warps = match (tiles, k) {
            _ if k <= 2048 || tiles >= 2048 => 4,
            _ if tiles <= self.caps.threads && k >= 16 * STREAM.1 => 16,
            _ => 8,
        };
        let fits = self.cx.at_once(s.kernel, 32 * warps, warps * s.shared)?.max(1) * self.caps.threads;
        Ok((tiles.min(fits), 32 * warps, warps * s.shared))
    }
    /// One grid for a norm and everything that meets its rows.
    pub(super) fn launch_normed(&self, g: &Grid) -> Result<()> {
        let n = g.norm.x.rows as u32;
        let rows = if n == 1 { 1 } else { FEW };
        let missing = || crate::error::Error::NoKernel { op: "linear", fmt: g.fmt.to_string() };
        let s = self.kernels.stream(&g.fmt, rows).ok_or_else(missing)?;
        let (mut tiles, mut outputs) = (0u32, 0u32);
        let mut m = [g.streams[0]; args::SET];
        for (to, one) in m.iter_mut().zip(g.streams) {
            *to = args::One { first: tiles as i32, ..*one };
            tiles += one.w.n as u32 / STREAM.0;
        }
        let mut f = [g.streams[0]; args::SET];
        for (to, one) in f.iter_mut().zip(g.floats) {
            *to = args::One { first: outputs as i32, ..*one };
            outputs += one.w.n as u32;
        }
        let k = g.norm.x.cols as u32;
        // Two teams that share what they make of the rows.
        let warps = if k <= 1024 { 2 * 4 } else { 2 * 8 };
        let shared = rows * code_bytes(k) + warps * s.bare;
        debug_assert!(shared <= STREAMED);
        let fits = self.cx.at_once(s.normed, 32 * warps, shared)?.max(1) * self.caps.threads;
        let grid = (tiles + outputs + 1).min(fits);
        let a = args::Streamed {
            set: args::Set {
                x: g.norm.out,
                q: args::Fifteen::default(),
                m,
                rows: n as i32,
                count: g.streams.len() as i32,
                blocks: tiles as i32,
                pad: 0,
            },
            norm: g.norm,
            f,
            conv: g.conv.unwrap_or(args::ConvOf::none()),
            floats: g.floats.len() as i32,
            outputs: outputs as i32,
        };
        self.launch(s.normed, [grid, n.div_ceil(rows), 1], 32 * warps, shared, &a)
    }
}
