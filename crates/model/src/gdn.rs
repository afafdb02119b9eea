//! The Gated DeltaNet mixer: a recurrent layer whose state is a matrix per value head.
//!
//! ```text
//! qkv = silu(conv(W_qkv h));  y = norm(gated_delta(qkv, W_a h, W_b h)) * silu(W_z h)
//! ```
//! The norm is over each value head and plain in every kind of file. Value head j uses key head `j / (n_v / n_k)`, or
//! `j % n_k` where a converter reordered the value heads: a rule of the file, see [`KeyHeadRule`]. Some files keep the
//! rows of several projections together, key head by key head; they are cut apart when they are loaded.

use crate::cx::{Cx, GdnIn};
use crate::error::Result;
use crate::keys::Keys;
use crate::want::{At, Export, Groups, Wants};
use checkpoint::Meta;
use device::{ActFn, GdnShape, KeyHeadRule, Rows, View};
use state::Stream;
use weights::{Canon, WId};

/// How files name the projections and arrange the value heads.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Qwen3.5: one tensor each for qkv, z, a and b; value heads tiled in GGUF files.
    Apart,
    /// Qwen3-Next: in safetensors files qkv and z in one tensor, in both kinds b and a in one; value heads in order.
    PerKeyHead,
}

/// The shape of the recurrent mixer in every layer of a model.
#[derive(Copy, Clone, Debug)]
pub struct Shape {
    /// Heads.
    pub heads: GdnShape,
    /// Taps of the convolution.
    pub kernel: u32,
    /// Added to the mean of squares in the norm.
    pub eps: f32,
    /// How files of the architecture keep it.
    pub naming: Naming,
}

/// One layer's parameters.
#[derive(Clone, Debug)]
pub struct Gdn {
    qkv: WId,
    z: WId,
    a: WId,
    b: WId,
    conv: WId,
    decay: WId,
    dt: WId,
    norm: WId,
    /// The output projection.
    pub out: WId,
    shape: Shape,
}

impl Shape {
    /// Reads the shape.
    pub fn read(c: &Keys, naming: Naming) -> Self {
        let n_k = c.count("linear_num_key_heads", "ssm.group_count");
        let n_v = c.count("linear_num_value_heads", "ssm.time_step_rank");
        let many = n_v.is_multiple_of(n_k);
        c.require(many, "linear_num_key_heads", "ssm.group_count", n_k, "it must divide the number of value heads");
        let d_k = c.count("linear_key_head_dim", "ssm.state_size");
        let d_v = if c.gguf() { c.count("", "ssm.inner_size") / n_v } else { c.count("linear_value_head_dim", "") };
        c.require(d_v > 0, "linear_value_head_dim", "ssm.inner_size", d_v, "it must be a multiple of the value heads");
        let wide = |heads: u32, d: u32| u64::from(heads) * u64::from(d);
        c.width(2 * wide(n_k, d_k) + wide(n_v, d_v), "linear_num_value_heads", "ssm.time_step_rank");
        let rule = if c.gguf() && naming == Naming::Apart { KeyHeadRule::Mod } else { KeyHeadRule::Div };
        let kernel = c.count("linear_conv_kernel_dim", "ssm.conv_kernel");
        let eps = c.positive("rms_norm_eps", "attention.layer_norm_rms_epsilon");
        Shape { heads: GdnShape { n_k, n_v, d_k, d_v, rule }, kernel, eps, naming }
    }
    /// Wants the parameters of one layer.
    pub fn want(&self, w: &mut Wants, at: &At, hidden: u32) -> Gdn {
        let GdnShape { n_k, n_v, d_k, d_v, .. } = self.heads;
        let (channels, v_dim, keys) = (self.heads.channels(), n_v * d_v, 2 * n_k * d_k);
        let tiled = |e| if self.naming == Naming::Apart { e } else { Export::Same };
        let rows = |skip, each| tiled(Export::TileRows { skip, n_k, n_v, each });
        let (qkv, z, a, b) = match self.naming {
            Naming::Apart => {
                let mut heads = |n_out, gguf, hf, export| {
                    let id = at.mat(w, n_out, hidden, gguf, hf);
                    w.export(export);
                    id
                };
                let qkv = heads(channels, "attn_qkv.weight", "linear_attn.in_proj_qkv.weight", rows(keys, d_v));
                let z = heads(v_dim, "attn_gate.weight", "linear_attn.in_proj_z.weight", rows(0, d_v));
                let a = heads(n_v, "ssm_alpha.weight", "linear_attn.in_proj_a.weight", rows(0, 1));
                let b = heads(n_v, "ssm_beta.weight", "linear_attn.in_proj_b.weight", rows(0, 1));
                (qkv, z, a, b)
            }
            Naming::PerKeyHead => self.want_grouped(w, at, hidden),
        };
        let conv = at.table(w, channels, self.kernel, "ssm_conv1d.weight", "linear_attn.conv1d.weight");
        w.export(rows(keys, d_v));
        let mut small = |len, gguf, hf, canon, export| {
            let id = at.vec_as(w, len, gguf, hf, canon);
            w.export(export);
            id
        };
        let decay = small(n_v, "ssm_a", "linear_attn.A_log", Canon::NegExp, rows(0, 1));
        let dt = small(n_v, "ssm_dt.bias", "linear_attn.dt_bias", Canon::Same, rows(0, 1));
        let norm = small(d_v, "ssm_norm.weight", "linear_attn.norm.weight", Canon::Same, Export::Same);
        let out = at.mat(w, hidden, v_dim, "ssm_out.weight", "linear_attn.out_proj.weight");
        w.export(tiled(Export::TileCols { n_k, n_v, each: d_v }));
        Gdn { qkv, z, a, b, conv, decay, dt, norm, out, shape: *self }
    }
    /// Of each key head: its query, its key, the values it serves and their gates; in another tensor b and a of the
    /// values it serves.
    fn want_grouped(&self, w: &mut Wants, at: &At, hidden: u32) -> (WId, WId, WId, WId) {
        let GdnShape { n_k, n_v, d_k, d_v, .. } = self.heads;
        let (served, values) = (n_v / n_k, n_v / n_k * d_v);
        let of = 2 * d_k + 2 * values;
        let group = |rows| Groups { count: n_k, of, rows };
        let fused = "linear_attn.in_proj_qkvz.weight";
        let qkv = at.mat(w, self.heads.channels(), hidden, "attn_qkv.weight", fused);
        w.grouped_in_hf(group([(0, d_k), (d_k, d_k), (2 * d_k, values)]));
        let z = at.mat(w, n_v * d_v, hidden, "attn_gate.weight", fused);
        w.grouped_in_hf(group([(2 * d_k + values, values), (0, 0), (0, 0)]));
        let mut half = |first| {
            let id = at.mat(w, n_v, hidden, "ssm_ba.weight", "linear_attn.in_proj_ba.weight");
            let g = Groups { count: n_k, of: 2 * served, rows: [(first, served), (0, 0), (0, 0)] };
            w.grouped_in_hf(g);
            w.grouped_in_gguf(g);
            id
        };
        let (b, a) = (half(0), half(served));
        (qkv, z, a, b)
    }
    /// Writes the shape as keys of architecture `arch`.
    pub fn export(&self, arch: &str, out: &mut Meta) {
        for (name, value) in [
            ("ssm.conv_kernel", self.kernel),
            ("ssm.state_size", self.heads.d_k),
            ("ssm.group_count", self.heads.n_k),
            ("ssm.time_step_rank", self.heads.n_v),
            ("ssm.inner_size", self.heads.n_v * self.heads.d_v),
        ] {
            out.set(&format!("{arch}.{name}"), value);
        }
    }
}

impl Gdn {
    /// All of its parameters.
    pub fn parameters(&self) -> [WId; 9] {
        [self.qkv, self.z, self.a, self.b, self.conv, self.decay, self.dt, self.norm, self.out]
    }
    /// What a sequence keeps.
    pub fn stream(&self) -> Stream {
        let h = &self.shape.heads;
        Stream::Recurrent { state: [h.n_v, h.d_k, h.d_v], conv: [self.shape.kernel - 1, h.channels()] }
    }
    /// The mixer over the rows, whose states go to their slots of layer `l`: `[n, n_v * d_v]`.
    ///
    /// # Errors
    /// Those of the device.
    pub fn forward(&self, cx: &mut Cx, l: u32, r: &Rows, h: View) -> Result<View> {
        let c = &self.shape;
        let (qkv, z) = (cx.linear(h, self.qkv, r.class)?, cx.linear(h, self.z, r.class)?);
        let (a, b) = (cx.linear(h, self.a, r.class)?, cx.linear(h, self.b, r.class)?);
        let qkv = cx.conv_silu(l, r, qkv, self.conv, c.kernel)?;
        let y = cx.gated_delta(l, r, GdnIn { qkv, a, b, decay: self.decay, dt: self.dt }, c.heads)?;
        cx.rms_norm_in(y, self.norm, c.eps)?;
        cx.gate(y, z.heads(c.heads.n_v), ActFn::Silu)?;
        Ok(y.flat())
    }
}
