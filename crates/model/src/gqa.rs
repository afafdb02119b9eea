//! Grouped-query attention, its variants as data: normed heads, heads of which only a part rotates, gated outputs.
//!
//! ```text
//! q, k, v = W_q h, W_k h, W_v h, cut into heads;  with a gate, W_q gives [query | gate] of each head
//! y = softmax(rope(norm(q)) rope(norm(k))^T d^-0.5) v;  with a gate, y *= sigmoid(gate)
//! ```
//! Query head i reads key head `i / (heads / key heads)`. `W_o` belongs to the block around it.

use crate::cx::{Attn, Cx, RopeOf};
use crate::error::Result;
use crate::keys::Keys;
use crate::rope::Rope;
use crate::want::{At, Wants};
use checkpoint::Meta;
use device::{ActFn, Pairing, Rows, View};
use memory::KvSpec;
use state::Stream;
use weights::{Canon, WId};

/// What a family's attention is like, beyond what its configuration says.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Width of a head where no key says it.
    pub head_dim: u32,
    /// Share of a head's columns that rotate, where no key says it.
    pub rotating: f64,
    /// Whether a gate as wide as the query comes with it.
    pub gated: bool,
    /// What makes the head norms of safetensors files canonical.
    pub norms: Canon,
}

/// The shape of attention in every layer of a model.
#[derive(Clone, Debug)]
pub struct Heads {
    /// Query heads.
    pub n: u32,
    /// Key/value heads.
    pub n_kv: u32,
    /// Width of a head.
    pub d: u32,
    /// Added to the mean of squares in head norms.
    pub eps: f32,
    /// The rotation as the configuration describes it.
    pub rotation: Rope,
    /// The rotation.
    pub rope: RopeOf,
    kind: Kind,
}

/// One layer's parameters.
#[derive(Clone, Debug)]
pub struct Gqa {
    q: WId,
    k: WId,
    v: WId,
    q_norm: WId,
    k_norm: WId,
    /// The output projection.
    pub o: WId,
    heads: Heads,
    /// First position that later ones see.
    since: u32,
}

impl Heads {
    /// Reads the shape, and wants the rope frequencies.
    ///
    /// # Errors
    /// Whatever is missing or impossible in it.
    pub fn read(c: &Keys, w: &mut Wants, kind: Kind) -> Result<Self> {
        let n = c.count("num_attention_heads", "attention.head_count");
        let kv = ("num_key_value_heads", "attention.head_count_kv");
        let n_kv = c.opt_u32(kv.0, kv.1).unwrap_or(n);
        let whole = n_kv > 0 && n.is_multiple_of(n_kv);
        c.require(whole, kv.0, kv.1, n_kv, "it must divide the number of heads");
        let d = c.opt_u32("head_dim", "attention.key_length").unwrap_or(kind.head_dim);
        c.require((2..=1 << 16).contains(&d), "head_dim", "attention.key_length", d, "2 to 65536 can be");
        c.width(2 * u64::from(n) * u64::from(d), "num_attention_heads", "attention.head_count");
        let eps = c.positive("rms_norm_eps", "attention.layer_norm_rms_epsilon");
        let biased = c.opt_bool("attention_bias", "attention.bias").unwrap_or(false);
        c.require(!biased, "attention_bias", "attention.bias", biased, "no model of this architecture has it");
        let rope_theta = c.rope_theta();
        let part = ["rope_parameters.partial_rotary_factor", "partial_rotary_factor"];
        let part = part.iter().find_map(|k| c.hf(k)).and_then(|v| v.as_f64()).unwrap_or(kind.rotating);
        let dims = c.rope_dims(d, (d as f64 * part) as u32 & !1);
        c.done()?;
        let rotation = Rope::read(c, rope_theta, dims)?;
        let rope = w.rope(&rotation, Pairing::Half);
        Ok(Heads { n, n_kv, d, eps, rotation, rope, kind })
    }
    /// Wants the parameters of one layer.
    pub fn want(&self, w: &mut Wants, at: &At, hidden: u32) -> Gqa {
        let (q_dim, kv_dim) = (self.n * self.d, self.n_kv * self.d);
        let gated = if self.kind.gated { 2 } else { 1 };
        let mut norm = |gguf, hf| at.vec_as(w, self.d, gguf, hf, self.kind.norms.clone());
        let q_norm = norm("attn_q_norm.weight", "self_attn.q_norm.weight");
        let k_norm = norm("attn_k_norm.weight", "self_attn.k_norm.weight");
        Gqa {
            q: at.mat(w, gated * q_dim, hidden, "attn_q.weight", "self_attn.q_proj.weight"),
            k: at.mat(w, kv_dim, hidden, "attn_k.weight", "self_attn.k_proj.weight"),
            v: at.mat(w, kv_dim, hidden, "attn_v.weight", "self_attn.v_proj.weight"),
            q_norm,
            k_norm,
            o: at.mat(w, hidden, q_dim, "attn_output.weight", "self_attn.o_proj.weight"),
            heads: self.clone(),
            since: 0,
        }
    }
    /// Writes the shape as keys of architecture `arch`.
    pub fn export(&self, arch: &str, out: &mut Meta) {
        let key = |name: &str| format!("{arch}.{name}");
        for (name, value) in [
            ("attention.head_count", self.n),
            ("attention.head_count_kv", self.n_kv),
            ("attention.key_length", self.d),
            ("attention.value_length", self.d),
            ("rope.dimension_count", self.rope.dims),
        ] {
            out.set(&key(name), value);
        }
        self.rotation.export(arch, out);
        out.set(&key("attention.layer_norm_rms_epsilon"), self.eps);
    }
}

impl Gqa {
    /// The same attention with positions before `since` hidden from all others.
    pub fn since(self, since: u32) -> Self {
        Gqa { since, ..self }
    }
    /// The parameters of its own that [`keep`](Self::keep) needs.
    pub fn keeps(&self) -> [WId; 3] {
        [self.k, self.v, self.k_norm]
    }
    /// What a sequence keeps.
    pub fn stream(&self, kv: &KvSpec) -> Stream {
        Stream::History { heads: self.heads.n_kv, d: self.heads.d, kv: *kv }
    }
    /// Attention of the rows over the history of layer `l`, themselves appended to it: `[n, heads * d]`.
    ///
    /// # Errors
    /// Those of the device.
    pub fn forward(&self, cx: &mut Cx, l: u32, r: &Rows, h: View) -> Result<View> {
        let c = &self.heads;
        let q = cx.linear(h, self.q, r.class)?.heads(c.n);
        let (q, gate) = if c.kind.gated { q.split(c.d) } else { (q, q) };
        self.keep(cx, l, r, h)?;
        cx.rms_norm_in(q, self.q_norm, c.eps)?;
        cx.rope(q, r.pos, &c.rope)?;
        let scale = (c.d as f32).powf(-0.5);
        let y = cx.attend(l, r, q, &Attn { scale, since: self.since, ..Attn::FULL })?;
        if c.kind.gated {
            cx.gate(y, gate, ActFn::Sigmoid)?;
        }
        Ok(y.flat())
    }
    /// Appends the rows' keys and values to the history of layer `l` and no more.
    ///
    /// # Errors
    /// Those of the device.
    pub fn keep(&self, cx: &mut Cx, l: u32, r: &Rows, h: View) -> Result<()> {
        let c = &self.heads;
        cx.scope(|cx| {
            let k = cx.linear(h, self.k, r.class)?.heads(c.n_kv);
            let v = cx.linear(h, self.v, r.class)?.heads(c.n_kv);
            cx.rms_norm_in(k, self.k_norm, c.eps)?;
            cx.rope(k, r.pos, &c.rope)?;
            cx.append(l, r, k, v)
        })
    }
}
