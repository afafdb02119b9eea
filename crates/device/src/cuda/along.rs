//! What goes along with products of few rows that stream their weights, in one grid: the norm in front of the rows, matrices of floats
//! that meet the same rows, a short convolution behind one of the products, and what becomes of the outputs ([`super::follow`]).

use super::driver::Ptr;
use super::few::{Quantised, STREAM, Span, Waiting};
use super::kernels::{STREAMED, Stream, number};
use super::norms::{self, Norm};
use super::ops::FEW;
use super::{Cuda, Result, args};
use crate::op::Op;
use crate::view::{Buf, View};

/// A norm of rows whose codes may be left, without its scale, by whoever makes the rows.
pub struct RowNorm {
    norm: Norm,
    /// The rows that it makes.
    pub x: Quantised,
    /// The rows that it reads.
    pub from: Span,
    /// Its weights.
    pub w: Option<Buf>,
}

/// A norm whose codes are there without their scale: whoever meets them brings it in.
pub struct Waits {
    row: RowNorm,
    room: usize,
}

/// What one grid is to do.
pub struct Grid<'a> {
    pub rows: u32,
    /// Rows and their codes; behind a norm whose scale is not known yet, where the rows will be.
    pub h: args::View,
    pub q: args::Fifteen,
    pub behind: args::Behind,
    pub streams: &'a [args::One],
    pub fmt: checkpoint::Format,
    pub floats: &'a [args::One],
    pub conv: Option<args::ConvOf>,
    pub then: args::Follow,
}

/// The norm of an op, if codes may be made without it.
pub fn norm_of(d: &Cuda, op: &Op) -> Result<Option<RowNorm>> {
    let Op::RmsNorm { out, x, w, eps } = op else { return Ok(None) };
    let whole = out.heads == 1 && x.heads == 1 && x.cols.is_multiple_of(STREAM.1) && (1024..=8192).contains(&x.cols);
    let (Some(kept), true, true) = (d.keeps(out), whole, d.kernels.joins()) else { return Ok(None) };
    let norm = norms::norm(d, out, x, *w, *eps, args::Fifteen::default())?;
    let a = &norm.args;
    let from = Span::of(d, x);
    let fits = pieces(&a.x) && pieces(&a.out) && a.w.is_multiple_of(16) && !Span::of(d, out).meets(&from);
    Ok(fits.then_some(RowNorm { norm, x: kept, from, w: *w }))
}

/// Whether a matrix of floats that meets rows `x` may go along: f32, whole pieces of sixteen bytes.
pub fn floats(w: &args::One, fmt: &checkpoint::Format, x: &args::View) -> bool {
    number(fmt) == Some(0) && w.w.k % 4 == 0 && w.w.q.is_multiple_of(16) && pieces(x)
}

/// Whether rows lie in whole pieces of sixteen bytes.
pub fn pieces(v: &args::View) -> bool {
    v.p.is_multiple_of(16) && v.s0 % 4 == 0
}

impl RowNorm {
    /// Its weights, as kernels see them.
    pub fn weights(&self) -> Ptr {
        self.norm.args.w
    }
    /// The rows that it reads, as kernels see them.
    pub fn source(&self) -> args::View {
        self.norm.args.x
    }
    /// Enqueues the norm by itself, with codes.
    pub fn launch(self, d: &mut Cuda) -> Result<args::Fifteen> {
        let to = d.codes_for(Some(&self.x));
        d.forget(&self.x.span);
        let args = args::Norm { to, ..self.norm.args };
        Norm { args, ..self.norm }.launch(d)?;
        d.hold(self.x);
        Ok(to)
    }
    /// The room of its codes, if they are there without their scale.
    pub fn room(&self, d: &Cuda) -> Option<usize> {
        d.unscaled.filter(|u| u.is_of(self)).map(|u| u.room)
    }
    /// As one that waits for who brings in its scale.
    pub fn waits(self, room: usize) -> Waits {
        Waits { row: self, room }
    }
}

impl Waits {
    /// Whether a product may be the one that brings in the scale: it must leave alone what the norm reads and writes.
    pub fn takes(&self, w: &Waiting) -> bool {
        let apart = !w.out.meets(&self.row.from) && !w.out.meets(&self.row.x.span);
        (w.streams || w.along) && apart && w.x == self.row.x
    }
    /// Codes without their scale, and what brings it in.
    fn parts(&self, d: &Cuda) -> (args::Fifteen, args::Behind) {
        let [hi, lo, meta, raw, squares] = d.unscaled_at(self.room, &self.row.x);
        let args::Norm { out: h, x, w, eps, .. } = self.row.norm.args;
        (args::Fifteen { hi, lo, meta: raw }, args::Behind { h, x, w, squares, raw, meta, eps, pad: 0 })
    }
    /// Enqueues the norm by itself after all.
    pub fn whole(self, d: &mut Cuda) -> Result<args::Fifteen> {
        self.row.launch(d)
    }
}

impl Cuda {
    /// Enqueues products of which some stream.
    pub(super) fn flush_grid(
        &mut self,
        pending: Vec<Waiting>,
        conv: Option<args::ConvOf>,
        then: args::Follow,
    ) -> Result<()> {
        let (streams, floats): (Vec<&Waiting>, Vec<&Waiting>) = pending.iter().partition(|w| w.streams);
        let Some(first) = streams.first() else { return Ok(()) };
        let waits = self.row.take();
        let (q, behind) = waits.as_ref().map_or((first.q, args::Behind::default()), |w| w.parts(self));
        let one = |w: &[&Waiting]| w.iter().map(|w| w.one).collect::<Vec<_>>();
        let (m, f) = (one(&streams), one(&floats));
        let (rows, h, fmt) = (first.view.rows as u32, first.view, first.fmt);
        self.launch_grid(&Grid { rows, h, q, behind, streams: &m, fmt, floats: &f, conv, then })?;
        if let Some(w) = waits {
            self.forget(&w.row.x.span);
            self.hold_in(w.room, w.row.x);
        }
        pending.iter().for_each(|w| self.forget(&w.out));
        Ok(())
    }
    /// What a norm's products begin with: codes that are there without their scale, or whole ones made now.
    pub(super) fn begin_behind(&mut self, row: RowNorm) -> Result<(args::Fifteen, args::Behind)> {
        match row.room(self) {
            Some(room) => {
                let waits = row.waits(room);
                let parts = waits.parts(self);
                self.forget(&waits.row.x.span);
                self.hold_in(room, waits.row.x);
                Ok(parts)
            }
            None => Ok((row.launch(self)?, args::Behind::default())),
        }
    }
    /// A convolution behind one of the products that wait. `false` where it must wait for them.
    pub(super) fn convolves(&mut self, op: &Op) -> Result<bool> {
        let Op::ConvSilu { out, x, w, kernel, st, rows } = op else { return Ok(false) };
        let same = |v: &View, w: &Waiting| w.streams && Span::of(self, v) == w.out;
        let which = self.pending.iter().filter(|w| w.streams).position(|w| same(x, w));
        let (Some(which), true) = (which, *kernel == 4 && rows.n == rows.seqs) else { return Ok(false) };
        let (w, state) = (self.vector(Some(w))?, self.vector(Some(&st.conv))?);
        let own = Span::of(self, out);
        let waits = self.row.as_ref().is_none_or(|r| !r.row.from.meets(&own) && !r.row.x.span.meets(&own));
        if !w.is_multiple_of(16) || !waits || self.pending.iter().any(|o| o.out.meets(&own) || o.x.span.meets(&own)) {
            return Ok(false);
        }
        let (seq_of, from, to) = (self.view(&rows.seq_of)?, self.view(&rows.rec_from)?, self.view(&rows.rec_to)?);
        let (which, elems) = (which as i32, st.conv_elems as i32);
        let conv = args::ConvOf { out: self.view(out)?, seq_of, from, to, w, state, which, elems };
        self.flush_products(Some(conv), args::Follow::default())?;
        self.wrote(op)?;
        Ok(true)
    }
    /// Grid, threads and shared memory of products that stream: fewer warps a tile where each would have too little of one, or where
    /// there are rows of weights enough; sixteen where there are not more tiles than multiprocessors. Four warps have an output of floats.
    fn shape(&self, s: &Stream, tiles: u32, k: u32, outputs: u32) -> Result<(u32, u32, u32)> {
        let warps = match (tiles, k) {
            _ if k <= 2048 || tiles >= 2048 => 4,
            _ if tiles <= self.caps.threads && k >= 16 * STREAM.1 => 16,
            _ => 8,
        };
        let fits = self.cx.at_once(s.kernel, 32 * warps, warps * s.shared)?.max(1) * self.caps.threads;
        debug_assert!(warps * s.shared <= STREAMED);
        let wanted = tiles + if outputs > 0 { outputs.div_ceil(warps / 4) + 1 } else { 0 };
        Ok((wanted.min(fits), 32 * warps, warps * s.shared))
    }
    /// Enqueues one grid.
    pub(super) fn launch_grid(&mut self, g: &Grid) -> Result<()> {
        let rows = self.kernels.rows(g.rows.clamp(1, FEW));
        let missing = || crate::error::Error::NoKernel { op: "linear", fmt: g.fmt.to_string() };
        let s = self.kernels.stream(&g.fmt, rows).ok_or_else(missing)?;
        let Some(&first) = g.streams.first() else { return Ok(()) };
        let (mut tiles, mut outputs) = (0, 0);
        let (mut m, mut f) = ([first; args::SET], [first; args::SET]);
        for (to, one) in m.iter_mut().zip(g.streams) {
            *to = args::One { first: tiles as i32, ..*one };
            tiles += one.w.n as u32 / STREAM.0;
        }
        for (to, one) in f.iter_mut().zip(g.floats) {
            *to = args::One { first: outputs as i32, ..*one };
            outputs += one.w.n as u32;
        }
        let (grid, threads, shared) = self.shape(&s, tiles, first.w.k as u32, outputs)?;
        let (n, count) = (g.rows as i32, g.streams.len() as i32);
        let behind = if g.behind.squares == 0 { args::Behind { h: g.h, ..g.behind } } else { g.behind };
        let a = args::Streamed {
            set: args::Set { x: g.h, q: g.q, m, rows: n, count, blocks: tiles as i32, pad: 0 },
            behind,
            then: g.then,
            f,
            conv: g.conv.unwrap_or(args::ConvOf::none()),
            floats: g.floats.len() as i32,
            outputs: outputs as i32,
        };
        self.launch(s.kernel, [grid, g.rows.div_ceil(rows), 1], threads, shared, &a)
    }
}
