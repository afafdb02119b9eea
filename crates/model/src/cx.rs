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
}

impl Cx<'_> {
    /// Runs `f`; workspace taken in it is given back afterwards.
    pub fn scope<R>(&mut self, f: impl FnOnce(&mut Cx) -> Result<R>) -> Result<R> {
        let (w, st) = (self.w, self.st);
        self.dev.scope(Region::Step, |dev| f(&mut Cx { dev, w, st }))
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
        let table = *self.w.mat(table)?;
        Ok(self.dev.run(Op::Embed { out, table, ids, scale: 1.0 })?)
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
        let w = *self.w.mat(w)?;
        Ok(self.dev.run(Op::Linear { out, x, w, bias: None, add: true, class })?)
    }
    /// `out = x w^T`.
    pub fn linear_into(&mut self, out: View, x: View, w: WId, class: RowClass) -> Result<()> {
        let w = *self.w.mat(w)?;
        Ok(self.dev.run(Op::Linear { out, x, w, bias: None, add: false, class })?)
    }
    /// Rotates in place.
    pub fn rope(&mut self, x: View, pos: View, rope: &RopeOf) -> Result<()> {
        let inv_freq = self.w.vec(rope.inv_freq)?;
        let rope = Rope { pairing: rope.pairing, dims: rope.dims, inv_freq, factor: 1.0 };
        Ok(self.dev.run(Op::Rope { x, pos, rope })?)
    }
    /// Encodes keys and values into the layer's history.
    pub fn append(&mut self, layer: u32, r: &Rows, k: View, v: View) -> Result<()> {
        let st = self.st.view(layer)?;
        Ok(self.dev.run(Op::Append { st, rows: *r, k, v })?)
    }
    /// Causal attention over the layer's history into new room `[n, heads, d]`.
    pub fn attention(&mut self, layer: u32, r: &Rows, q: View, scale: f32) -> Result<View> {
        self.attention_since(layer, r, q, scale, 0)
    }
    /// The same without the positions before `since`, which see only themselves.
    pub fn attention_since(&mut self, layer: u32, r: &Rows, q: View, scale: f32, since: u32) -> Result<View> {
        let st = self.st.view(layer)?;
        let out = self.take(q.rows, q.width())?.heads(q.heads);
        self.dev.run(Op::Attention { out, q, st, rows: *r, scale, window: None, since, sinks: None })?;
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
        self.scope(|cx| {
            let y = cx.glu(x, m, class)?;
            cx.linear_into(out, y, m.down, class)
        })?;
        Ok(out)
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
        self.dev.run(Op::Glu { out: gate, gate, up, glu: m.glu })?;
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
