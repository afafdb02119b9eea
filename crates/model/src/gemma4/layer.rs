//! A layer's parameters, and its mixture.

use super::config::{Config, PerLayerSize};
use crate::cx::{Cx, Mlp, Tile};
use crate::error::Result;
use crate::family::Spec;
use crate::gemma::{self, Blocks, Norm};
use crate::moe;
use crate::want::{Experts, Wants};
use device::{Rows, View};
use memory::Component;
use weights::{Canon, Proj, WId};

pub struct Layer {
    pub attn_norm: WId,
    pub q: WId,
    pub q_norm: WId,
    /// Absent where another layer's history is read.
    pub kv: Option<Kv>,
    pub o: WId,
    pub post_attn: WId,
    pub ffn_norm: WId,
    pub mlp: Mlp,
    pub post_ffn: WId,
    pub mixture: Option<Mixture>,
    pub per_layer: Option<Join>,
    /// Multiplies the residual stream.
    pub scalar: WId,
}

pub struct Kv {
    pub k: WId,
    pub k_norm: WId,
    /// Absent where values are keys.
    pub v: Option<WId>,
}

pub struct Mixture {
    router: WId,
    /// Multiplies the router's input, column by column.
    scale: WId,
    /// `H^-0.5`.
    root: WId,
    pub per_expert: WId,
    /// Before the experts, behind the dense branch, behind the experts.
    pre: WId,
    post_dense: WId,
    post_experts: WId,
}

/// The embeddings per layer, before they are cut into layers.
pub struct PerLayer {
    pub table: WId,
    /// Columns of a layer.
    pub width: u32,
    pub project: WId,
    pub norm: WId,
    /// `sqrt(width)`.
    pub root: WId,
    /// `2^-0.5`.
    pub mean: WId,
}

/// How a layer joins its own.
pub struct Join {
    pub gate: WId,
    pub project: WId,
    pub norm: WId,
}

pub fn per_layer(w: &mut Wants, spec: &Spec, size: PerLayerSize) -> PerLayer {
    let PerLayerSize { width, vocab } = size;
    let all = width * spec.n_layers;
    let table = "per_layer_token_embd.weight";
    let (model, norm) = ("per_layer_model_proj.weight", "per_layer_proj_norm.weight");
    PerLayer {
        table: w.mat(Component::LayerEmbed, vocab, all, table, "~embed_tokens_per_layer.weight"),
        width,
        project: w.mat(Component::Core, all, spec.hidden, model, "~per_layer_model_projection.weight"),
        norm: w.vec(Component::Core, width, norm, "~per_layer_projection_norm.weight"),
        root: w.constant(&[(width as f32).sqrt()]),
        mean: w.constant(&[std::f32::consts::FRAC_1_SQRT_2]),
    }
}

pub fn layer(w: &mut Wants, l: u32, hidden: u32, c: &Config) -> Layer {
    let (b, of) = (Blocks::new(l), &c.layers[l as usize]);
    let (q_dim, kv_dim) = (c.n_heads * of.head_dim, of.n_kv_heads * of.head_dim);
    let mut norm = |n: u32, of: Norm| b.norm(w, n, of, Canon::Same);
    let (attn_norm, q_norm) = (norm(hidden, gemma::INPUT), norm(of.head_dim, gemma::QUERY));
    let (post_attn, ffn_norm, post_ffn) =
        (norm(hidden, gemma::POST_ATTENTION), norm(hidden, gemma::PRE_FFN), norm(hidden, gemma::POST_FFN));
    let kv = (of.history == l).then(|| Kv {
        k: b.mat(w, kv_dim, hidden, "attn_k", "self_attn.k_proj"),
        k_norm: b.norm(w, of.head_dim, gemma::KEY, Canon::Same),
        v: (!of.k_is_v).then(|| b.mat(w, kv_dim, hidden, "attn_v", "self_attn.v_proj")),
    });
    let scalar = b.vec(w, 1, "layer_output_scale.weight", "layer_scalar");
    let p = c.per_layer.map(|p| p.width);
    Layer {
        attn_norm,
        q: b.mat(w, q_dim, hidden, "attn_q", "self_attn.q_proj"),
        q_norm,
        kv,
        o: b.mat(w, hidden, q_dim, "attn_output", "self_attn.o_proj"),
        post_attn,
        ffn_norm,
        mlp: b.mlp(w, hidden, of.inner),
        post_ffn,
        mixture: c.moe.map(|m| mixture(w, l, hidden, &b, m.experts, m.inner)),
        per_layer: p.map(|p| Join {
            gate: b.mat(w, p, hidden, "inp_gate", "per_layer_input_gate"),
            project: b.mat(w, hidden, p, "proj", "per_layer_projection"),
            norm: b.norm(w, hidden, ("post_norm", "post_per_layer_input_norm"), Canon::Same),
        }),
        scalar,
    }
}

fn mixture(w: &mut Wants, l: u32, hidden: u32, b: &Blocks, count: u32, inner: u32) -> Mixture {
    let (gguf, hf) = b.roots();
    for (proj, n, k) in [(Proj::Gate, inner, hidden), (Proj::Up, inner, hidden), (Proj::Down, hidden, inner)] {
        w.experts(Component::Experts(l), Experts { layer: l, proj, count, n, k }, gguf, hf);
        w.fused_in_gguf();
    }
    let mut norm = |gguf, hf| b.norm(w, hidden, (gguf, hf), Canon::Same);
    let pre = norm("pre_ffw_norm_2", "pre_feedforward_layernorm_2");
    let post_dense = norm("post_ffw_norm_1", "post_feedforward_layernorm_1");
    let post_experts = norm("post_ffw_norm_2", "post_feedforward_layernorm_2");
    Mixture {
        router: b.mat(w, count, hidden, "ffn_gate_inp", "router.proj"),
        scale: b.vec(w, hidden, "ffn_gate_inp.scale", "router.scale"),
        root: w.constant(&[(hidden as f32).powf(-0.5)]),
        per_expert: b.vec(w, count, "ffn_down_exps.scale", "router.per_expert_scale"),
        pre,
        post_dense,
        post_experts,
    }
}

/// The mixture of the rows of one call: the dense branch is computed while experts are brought, and kept apart because
/// each branch is normed by itself.
pub struct Mixed<'a> {
    w: &'a Layer,
    m: &'a Mixture,
    x: View,
    r: &'a Rows,
    eps: f32,
    dense: Option<View>,
}

impl<'a> Mixed<'a> {
    pub fn new(w: &'a Layer, m: &'a Mixture, x: View, r: &'a Rows, eps: f32) -> Self {
        Mixed { w, m, x, r, eps, dense: None }
    }
}

impl moe::Mixture for Mixed<'_> {
    fn begin(&mut self, cx: &mut Cx, n: u32) -> Result<View> {
        self.dense = Some(cx.take(n, self.x.cols)?);
        cx.take(n, self.x.cols)
    }
    fn route(&mut self, cx: &mut Cx, t: Tile, h: View) -> Result<View> {
        cx.rms_norm_to(h, t.of(self.x), self.m.pre, self.eps)?;
        let scaled = cx.rms_norm(t.of(self.x), self.m.scale, self.eps)?;
        let logits = cx.linear(scaled, self.m.router, self.r.class)?;
        cx.scale(logits, self.m.root)?;
        Ok(logits)
    }
    fn base(&mut self, cx: &mut Cx, t: Tile, _: View, sum: View) -> Result<()> {
        if let Some(dense) = self.dense.map(|d| t.of(d)) {
            let h = cx.rms_norm(t.of(self.x), self.w.ffn_norm, self.eps)?;
            cx.mlp_into(dense, h, &self.w.mlp, self.r.class)?;
            cx.rms_norm_in(dense, self.m.post_dense, self.eps)?;
        }
        cx.zero(sum)
    }
    fn close(&mut self, cx: &mut Cx, t: Tile, sum: View) -> Result<()> {
        cx.rms_norm_in(sum, self.m.post_experts, self.eps)?;
        if let Some(dense) = self.dense {
            cx.add(sum, t.of(dense))?;
        }
        cx.rms_norm_in(sum, self.w.post_ffn, self.eps)?;
        cx.add(t.of(self.x), sum)
    }
}
