//! What goes along with products of few rows that stream their weights, in one grid: small matrices of floats that meet the same rows,
//! a short convolution behind one of the products, and, where weights are few, the norm that makes the rows: every block makes the codes
//! that it needs, which is cheaper there than a kernel for it and the wait behind that.

use super::few::{Quantised, STREAM, Span, Waiting, numbered};
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

/// Matrices of one grid that meet the same rows.
pub struct Grid {
    /// Those that stream, and their rows.
    pub set: args::Set,
    pub fmt: checkpoint::Format,
    /// The norm that makes the rows, if it goes along.
    pub norm: Option<args::Norm>,
    /// Matrices of floats with the number of the first output of each, how many they are, and outputs of all of them.
    pub floats: ([args::One; args::SET], usize, u32),
    pub conv: Option<args::ConvOf>,
}

/// The norm of an op, if it may go into products.
pub fn of(d: &Cuda, op: &Op) -> Result<Option<RowNorm>> {
    let Op::RmsNorm { out, x, w, eps } = op else { return Ok(None) };
    let whole = out.heads == 1 && x.heads == 1 && x.cols.is_multiple_of(STREAM.1) && (1024..=8192).contains(&x.cols);
    let (Some(kept), true, true) = (d.keeps(out), whole, d.kernels.joins()) else { return Ok(None) };
    let norm = norms::norm(d, out, x, *w, *eps, args::Fifteen::default())?;
    let a = &norm.args;
    let from = Span::of(d, x);
    let fits = pieces(&a.x) && pieces(&a.out) && a.w.is_multiple_of(16) && !Span::of(d, out).meets(&from);
    Ok(fits.then_some(RowNorm { norm, x: kept, from }))
}

/// Whether a matrix of floats may go along: f32, whole pieces of sixteen bytes.
pub fn floats(w: &args::One, fmt: &checkpoint::Format) -> bool {
    number(fmt) == Some(0) && w.w.k % 4 == 0 && w.w.q.is_multiple_of(16)
}

/// Whether rows lie in whole pieces of sixteen bytes.
pub fn pieces(v: &args::View) -> bool {
    v.p.is_multiple_of(16) && v.s0 % 4 == 0
}

/// Weights up to which a norm goes along: more of them leave a kernel of its own little to cost, and want many small blocks.
const MOST: i64 = 48 << 20;

impl RowNorm {
    /// Whether a product may wait for it.
    pub fn takes(&self, w: &Waiting) -> bool {
        let apart = !w.out.meets(&self.from) && !w.out.meets(&self.x.span);
        (w.streams || w.along) && apart && w.x == self.x
    }
    /// Whether it goes along with these.
    pub fn worth(&self, w: &[Waiting]) -> bool {
        let weights = w.iter().filter(|w| w.streams).map(|w| i64::from(w.one.w.n) * i64::from(w.one.w.k)).sum();
        (1..=MOST).contains(&weights)
    }
    /// Its arguments, with codes to `to`.
    fn args(&self, to: args::Fifteen) -> args::Norm {
        args::Norm { to, ..self.norm.args }
    }
    /// Enqueues it by itself; gives its codes.
    pub fn launch(self, d: &mut Cuda) -> Result<args::Fifteen> {
        let to = d.codes_for(Some(&self.x));
        d.forget(&self.x.span);
        Norm { args: self.args(to), ..self.norm }.launch(d)?;
        d.hold(self.x);
        Ok(to)
    }
}

impl Cuda {
    /// Enqueues a norm and what waits for it as one grid.
    pub(super) fn launch_behind(
        &mut self,
        row: RowNorm,
        pending: &[Waiting],
        conv: Option<args::ConvOf>,
    ) -> Result<()> {
        let norm = row.args(self.codes_for(Some(&row.x)));
        self.forget(&row.x.span);
        self.launch_streams(pending, Some(norm), conv)?;
        self.hold(row.x);
        pending.iter().for_each(|w| self.forget(&w.out));
        Ok(())
    }
    /// Enqueues products of which some stream as one grid.
    pub(super) fn launch_streams(
        &mut self,
        pending: &[Waiting],
        norm: Option<args::Norm>,
        conv: Option<args::ConvOf>,
    ) -> Result<()> {
        let (streams, floats): (Vec<&Waiting>, Vec<&Waiting>) = pending.iter().partition(|w| w.streams);
        let Some(first) = streams.first() else { return Ok(()) };
        let (set, _) = self.set_of(&streams, u64::from(STREAM.0));
        let (f, outputs) = numbered(if floats.is_empty() { &streams } else { &floats }, |w| w.one.w.n as u32);
        let floats = (f, floats.len(), if floats.is_empty() { 0 } else { outputs });
        self.launch_grid(&Grid { set, fmt: first.fmt, norm, floats, conv })
    }
    /// A convolution behind one of the products that wait. `false` where it must wait for them.
    pub(super) fn convolves(&mut self, op: &Op) -> Result<bool> {
        let Op::ConvSilu { out, x, w, kernel, st, rows } = op else { return Ok(false) };
        let same = |v: &View, w: &Waiting| w.streams && Span::of(self, v) == w.out;
        let which = self.pending.iter().filter(|w| w.streams).position(|w| same(x, w));
        let (Some(which), true) = (which, *kernel == 4 && rows.n == rows.seqs && self.kernels.joins()) else {
            return Ok(false);
        };
        let (w, state) = (self.vector(Some(w))?, self.vector(Some(&st.conv))?);
        let own = Span::of(self, out);
        let apart = self.pending.iter().all(|o| !o.out.meets(&own) && !o.x.span.meets(&own));
        if !w.is_multiple_of(16) || !apart || self.row.as_ref().is_some_and(|r| r.from.meets(&own)) {
            return Ok(false);
        }
        let (seq_of, from, to) = (self.view(&rows.seq_of)?, self.view(&rows.rec_from)?, self.view(&rows.rec_to)?);
        let (which, elems) = (which as i32, st.conv_elems as i32);
        let conv = args::ConvOf { out: self.view(out)?, seq_of, from, to, w, state, which, elems };
        self.flush_products(Some(conv))?;
        self.wrote(op)?;
        Ok(true)
    }
    /// Blocks, threads and shared memory of products that stream with the rows' codes: fewer warps a tile where each would have too
    /// little of one, or where there are rows of weights enough; sixteen where there are not more tiles than multiprocessors. Four warps
    /// have an output of floats at a time.
    fn shape(&self, s: &Stream, tiles: u32, k: u32, outputs: u32) -> Result<(u32, u32, u32)> {
        let warps = match (tiles, k) {
            _ if k <= 2048 || tiles >= 2048 => 4,
            _ if tiles <= self.caps.threads && k >= 16 * STREAM.1 => 16,
            _ => 8,
        };
        let fits = self.cx.at_once(s.kernel, 32 * warps, warps * s.shared)?.max(1) * self.caps.threads;
        Ok(((tiles + outputs.div_ceil(warps / 4)).min(fits), 32 * warps, warps * s.shared))
    }
    /// The same behind a norm: four teams of four warps that share what they make of the rows.
    fn shape_behind(&self, s: &Stream, tiles: u32, k: u32, outputs: u32, rows: u32) -> Result<(u32, u32, u32)> {
        let warps = 4 * 4;
        let shared = rows * code_bytes(k) + warps * s.bare;
        debug_assert!(shared <= STREAMED);
        let fits = self.cx.at_once(s.normed, 32 * warps, shared)?.max(1) * self.caps.threads;
        Ok(((tiles + outputs + 1).min(fits), 32 * warps, shared))
    }
    /// Enqueues one grid.
    pub(super) fn launch_grid(&mut self, g: &Grid) -> Result<()> {
        let (n, k) = (g.set.rows as u32, g.set.m[0].w.k as u32);
        let together = |rows| if g.norm.is_some() && rows > 1 { FEW } else { self.kernels.rows(rows) };
        let rows = together(n.clamp(1, FEW));
        let missing = || crate::error::Error::NoKernel { op: "linear", fmt: g.fmt.to_string() };
        let s = self.kernels.stream(&g.fmt, rows).ok_or_else(missing)?;
        let (f, floats, outputs) = g.floats;
        let (tiles, none) = (g.set.blocks as u32, args::ConvOf::none());
        let (kernel, (grid, threads, shared)) = match g.norm {
            Some(_) => (s.normed, self.shape_behind(&s, tiles, k, outputs, rows)?),
            None => (s.kernel, self.shape(&s, tiles, k, outputs)?),
        };
        let (conv, floats, outputs) = (g.conv.unwrap_or(none), floats as i32, outputs as i32);
        let a = args::Streamed { set: g.set, norm: g.norm.unwrap_or_default(), f, conv, floats, outputs };
        self.launch(kernel, [grid, n.div_ceil(rows), 1], threads, shared, &a)
    }
}
