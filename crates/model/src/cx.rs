//! What a family's forward pass calls: each helper takes room for its result, builds the op and runs it.

use crate::error::Result;
use device::{Act, ActFn, Buf, Device, GdnShape, Glu, Op, Region, Rope, RowClass, Rows, View};
use state::State;
use weights::{Resident, WId};

/// A device, the weights on it and the state of the step's sequences.
pub struct Cx<'a> {
    /// Where ops run.
    pub dev: &'a mut dyn Device,
    /// Parameters.
    pub w: &'a Resident,
    /// Pages, rings and recurrent states.
    pub st: &'a State,
    /// Most rows that a feed-forward computes at once, a multiple of 64: what bounds its workspace where a call has more.
    pub tile: u32,
}

/// Rows of a call that are computed together.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The first of them.
    pub first: u32,
    /// How many.
    pub n: u32,
}

impl Tile {
    /// These rows of a view of all.
    pub fn of(&self, v: View) -> View {
        v.rows(self.first, self.n)
    }
}

impl Cx<'_> {
    /// Runs `f`; workspace taken in it is given back afterwards.
    pub fn scope<R>(&mut self, f: impl FnOnce(&mut Cx) -> Result<R>) -> Result<R> {
        let (w, st, tile) = (self.w, self.st, self.tile);
        self.dev.scope(Region::Step, |dev| f(&mut Cx { dev, w, st, tile }))
    }
    /// The tiles of `n` rows, in order.
    pub fn cut(&self, n: u32) -> impl Iterator<Item = Tile> + use<> {
        let tile = self.tile.max(1);
        (0..n.div_ceil(tile)).map(move |i| Tile { first: i * tile, n: tile.min(n - i * tile) })
    }
    /// Runs `f` on tile after tile of `n` rows; workspace taken in it is given back after each.
    pub fn tiles(&mut self, n: u32, mut f: impl FnMut(&mut Cx, Tile) -> Result<()>) -> Result<()> {
        self.cut(n).try_for_each(|t| self.scope(|cx| f(cx, t)))
    }
    /// Room for f32 `[rows, cols]`.
    pub fn take(&mut self, rows: u32, cols: u32) -> Result<View> {
        Ok(self.dev.take(Region::Step, Act::F32, rows, cols)?)
    }
    fn vec(&self, w: Option<WId>) -> Result<Option<Buf>> {
        Ok(w.map(|w| self.w.vec(w)).transpose()?)
    }
    /// `out = table[ids]`.
    pub fn embed(&mut self, out: View, table: WId, ids: View) -> Result<()> {
        self.embed_scaled(out, table, ids, 1.0)
    }
    /// `out = scale * table[ids]`.
    pub fn embed_scaled(&mut self, out: View, table: WId, ids: View, scale: f32) -> Result<()> {
        let (table, ids) = self.w.table(table, ids)?;
        Ok(self.dev.run(Op::Embed { out, table, ids, scale })?)
    }
    /// RMS norm over the columns of each (row, head) into new room.
    pub fn rms_norm(&mut self, x: View, w: WId, eps: f32) -> Result<View> {
        let out = self.take(x.rows, x.width())?.heads(x.heads);
        let w = Some(self.w.vec(w)?);
        self.dev.run(Op::RmsNorm { out, x, w, eps })?;
        Ok(out)
    }
    /// The same into a view.
    pub fn rms_norm_to(&mut self, out: View, x: View, w: WId, eps: f32) -> Result<()> {
        let w = Some(self.w.vec(w)?);
        Ok(self.dev.run(Op::RmsNorm { out, x, w, eps })?)
    }
    /// The same in place.
    pub fn rms_norm_in(&mut self, x: View, w: WId, eps: f32) -> Result<()> {
        let w = Some(self.w.vec(w)?);
        Ok(self.dev.run(Op::RmsNorm { out: x, x, w, eps })?)
    }
    /// RMS norm without weights into new room.
    pub fn rms_unit(&mut self, x: View, eps: f32) -> Result<View> {
        let out = self.take(x.rows, x.width())?.heads(x.heads);
        self.dev.run(Op::RmsNorm { out, x, w: None, eps })?;
        Ok(out)
    }
    /// RMS norm without weights in place.
    pub fn rms_unit_in(&mut self, x: View, eps: f32) -> Result<()> {
        Ok(self.dev.run(Op::RmsNorm { out: x, x, w: None, eps })?)
    }
    /// `x w^T` into new room.
    pub fn linear(&mut self, x: View, w: WId, r: RowClass) -> Result<View> {
        self.linear_bias(x, w, None, r)
    }
    /// `x w^T + bias` into new room.
    pub fn linear_bias(&mut self, x: View, w: WId, bias: Option<WId>, class: RowClass) -> Result<View> {
        let (w, bias) = (*self.w.mat(w)?, self.vec(bias)?);
        let out = self.take(x.rows, w.n)?;
        self.dev.run(Op::Linear { out, x, w, bias, add: false, class })?;
        Ok(out)
    }
    /// `out += x w^T`.
    pub fn linear_add(&mut self, out: View, x: View, w: WId, class: RowClass) -> Result<()> {
        self.linear_add_bias(out, x, w, None, class)
    }
    /// `out += x w^T + bias`.
    pub fn linear_add_bias(&mut self, out: View, x: View, w: WId, bias: Option<WId>, class: RowClass) -> Result<()> {
        let (w, bias) = (*self.w.mat(w)?, self.vec(bias)?);
        Ok(self.dev.run(Op::Linear { out, x, w, bias, add: true, class })?)
    }
    /// `out = x w^T`.
    pub fn linear_into(&mut self, out: View, x: View, w: WId, class: RowClass) -> Result<()> {
        let w = *self.w.mat(w)?;
        Ok(self.dev.run(Op::Linear { out, x, w, bias: None, add: false, class })?)
    }
    /// Rotates in place.
    pub fn rope(&mut self, x: View, pos: View, rope: &RopeOf) -> Result<()> {
        let inv_freq = self.w.vec(rope.inv_freq)?;
        let rope = Rope { pairing: rope.pairing, dims: rope.dims, inv_freq, factor: rope.factor };
        Ok(self.dev.run(Op::Rope { x, pos, rope })?)
    }
    /// Encodes keys and values into the layer's history.
    pub fn append(&mut self, layer: u32, r: &Rows, k: View, v: View) -> Result<()> {
        let st = self.st.view(layer)?;
        Ok(self.dev.run(Op::Append { st, rows: *r, k, v })?)
    }
    /// Causal attention over the layer's history into new room `[n, heads, d]`.
    pub fn attention(&mut self, layer: u32, r: &Rows, q: View, scale: f32) -> Result<View> {
        self.attend(layer, r, q, &Attn { scale, ..Attn::FULL })
    }
    /// The same with a window, with sinks, or without the first positions.
    pub fn attend(&mut self, layer: u32, r: &Rows, q: View, a: &Attn) -> Result<View> {
        let (st, sinks) = (self.st.view(layer)?, self.vec(a.sinks)?);
        let out = self.take(q.rows, q.width())?.heads(q.heads);
        let Attn { scale, window, since, .. } = *a;
        self.dev.run(Op::Attention { out, q, st, rows: *r, scale, window, since, sinks })?;
        Ok(out)
    }
    /// Each row's predecessor in its sequence into new room; the rows go to the layer's slots.
    pub fn shift(&mut self, layer: u32, r: &Rows, x: View) -> Result<View> {
        let st = self.st.rec(layer)?;
        let out = self.take(x.rows, x.cols)?;
        self.dev.run(Op::Shift { out, x, st, rows: *r })?;
        Ok(out)
    }
    /// `x *= act(g)`.
    pub fn gate(&mut self, x: View, g: View, act: ActFn) -> Result<()> {
        Ok(self.dev.run(Op::Gate { x, g, act })?)
    }
    /// `x += y`.
    pub fn add(&mut self, x: View, y: View) -> Result<()> {
        Ok(self.dev.run(Op::Add { x, y })?)
    }
    /// `x = 0`.
    pub fn zero(&mut self, x: View) -> Result<()> {
        Ok(self.dev.run(Op::Zero { x })?)
    }
    /// `x *= w`, one number or one per column.
    pub fn scale(&mut self, x: View, w: WId) -> Result<()> {
        let by = self.w.vec(w)?;
        Ok(self.dev.run(Op::Scale { x, by })?)
    }
    /// `x = cap tanh(x / cap)`.
    pub fn softcap(&mut self, x: View, cap: f32) -> Result<()> {
        Ok(self.dev.run(Op::Softcap { x, cap })?)
    }
    /// `gate = act(gate) * up`.
    pub fn glu_in(&mut self, gate: View, up: View, glu: Glu) -> Result<()> {
        Ok(self.dev.run(Op::Glu { out: gate, gate, up, glu })?)
    }
    /// Convolution and SiLU into new room.
    pub fn conv_silu(&mut self, layer: u32, r: &Rows, x: View, w: WId, kernel: u32) -> Result<View> {
        let (st, w) = (self.st.rec(layer)?, self.w.vec(w)?);
        let out = self.take(x.rows, x.cols)?;
        self.dev.run(Op::ConvSilu { out, x, w, kernel, st, rows: *r })?;
        Ok(out)
    }
    /// The gated delta rule into new room `[n, n_v, d_v]`.
    pub fn gated_delta(&mut self, layer: u32, r: &Rows, x: GdnIn, g: GdnShape) -> Result<View> {
        let st = self.st.rec(layer)?;
        let (decay, dt) = (self.w.vec(x.decay)?, self.w.vec(x.dt)?);
        let out = self.take(r.n, g.n_v * g.d_v)?.heads(g.n_v);
        self.dev.run(Op::GatedDelta { out, qkv: x.qkv, a: x.a, b: x.b, decay, dt, g, st, rows: *r })?;
        Ok(out)
    }
    /// `down(act(gate x) * up x)` into new room.
    pub fn mlp(&mut self, x: View, m: &Mlp, class: RowClass) -> Result<View> {
        let out = self.take(x.rows, self.w.mat(m.down)?.n)?;
        self.mlp_into(out, x, m, class)?;
        Ok(out)
    }
    /// `out = down(act(gate x) * up x)`.
    pub fn mlp_into(&mut self, out: View, x: View, m: &Mlp, class: RowClass) -> Result<()> {
        self.scope(|cx| {
            let y = cx.glu(x, m, class)?;
            cx.linear_into(out, y, m.down, class)
        })
    }
    /// `out += down(act(gate x) * up x)`.
    pub fn mlp_add(&mut self, out: View, x: View, m: &Mlp, class: RowClass) -> Result<()> {
        self.scope(|cx| {
            let y = cx.glu(x, m, class)?;
            cx.linear_add(out, y, m.down, class)
        })
    }
    /// `logits = norm(x[pick]) w^T`.
    pub fn head(&mut self, x: View, pick: View, h: &Head, logits: View, class: RowClass) -> Result<()> {
        let w = if self.w.has(h.own) { h.own } else { h.tied };
        self.scope(|cx| {
            let rows = cx.take(pick.rows, x.cols)?;
            cx.dev.run(Op::GatherRows { out: rows, x, rows: pick })?;
            cx.rms_norm_in(rows, h.norm, h.eps)?;
            cx.linear_into(logits, rows, w, class)
        })
    }
    fn glu(&mut self, x: View, m: &Mlp, class: RowClass) -> Result<View> {
        let gate = self.linear(x, m.gate, class)?;
        let up = self.linear(x, m.up, class)?;
        self.glu_in(gate, up, m.glu)?;
        Ok(gate)
    }
}

/// A final norm and the matrix behind it.
#[derive(Copy, Clone, Debug)]
pub struct Head {
    /// The norm.
    pub norm: WId,
    /// Added to the mean of squares.
    pub eps: f32,
    /// The output matrix, where the checkpoint has one of its own.
    pub own: WId,
    /// The embedding, used where it has none.
    pub tied: WId,
}

/// A rotation, with its frequencies among the weights.
#[derive(Copy, Clone, Debug)]
pub struct RopeOf {
    /// Which columns rotate together.
    pub pairing: device::Pairing,
    /// How many of them.
    pub dims: u32,
    /// Their frequencies.
    pub inv_freq: WId,
    /// Multiplies cosine and sine.
    pub factor: f32,
}

/// How rows see their history.
#[derive(Copy, Clone, Debug)]
pub struct Attn {
    /// Multiplies every score.
    pub scale: f32,
    /// Positions a row sees, itself included; all of them where absent.
    pub window: Option<u32>,
    /// The first position that later ones see.
    pub since: u32,
    /// One more logit per head, whose share is dropped.
    pub sinks: Option<WId>,
}

impl Attn {
    /// Every position seen, scores as they are.
    pub const FULL: Attn = Attn { scale: 1.0, window: None, since: 0, sinks: None };
}

/// Inputs of a gated delta rule.
#[derive(Copy, Clone, Debug)]
pub struct GdnIn {
    /// `[n, channels]`, after the convolution.
    pub qkv: View,
    /// `[n, n_v]`.
    pub a: View,
    /// `[n, n_v]`.
    pub b: View,
    /// `-exp(A_log)`.
    pub decay: WId,
    /// `dt_bias`.
    pub dt: WId,
}

/// A gated feed-forward block.
#[derive(Copy, Clone, Debug)]
pub struct Mlp {
    /// `[I, H]`.
    pub gate: WId,
    /// `[I, H]`.
    pub up: WId,
    /// `[H, I]`.
    pub down: WId,
    /// The nonlinearity.
    pub glu: Glu,
}
