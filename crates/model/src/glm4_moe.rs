//! GLM 4.5, 4.6 and 4.7: grouped-query attention whose heads rotate in part, a few dense layers, then mixtures chosen by
//! sigmoid scores beside a shared expert.
//!
//! ```text
//! q, k, v = W h + b;  y = attention(rope(norm(q)), rope(norm(k)), v)        head norms only in some models (not Air)
//! x += W_o y                                                                h = rms_norm(x)
//! x += W_down (silu(W_gate h) * W_up h)                                     the first layers; h = rms_norm(x)
//! x += shared(h) + sum over the top k of w_e expert_e(h)                    the others
//! w_e = s_e / (sum of the chosen s) * scale,  s = sigmoid(W_router h)       chosen by s + correction bias
//! logits = W_head rms_norm(x)
//! ```
//! Rope pairs halves of the first `partial_rotary_factor` of a head's columns. A configuration may have experts compete
//! in groups. Published files have one more block, a multi-token predictor, which is not read here.

use crate::cx::{Attn, Cx, Head, Mlp, RopeOf, Tile};
use crate::error::Result;
use crate::family::{Carry, Family, Spec};
use crate::keys::Keys;
use crate::moe::{self, Moe};
use crate::rope::Rope;
use crate::want::{Experts, Want, Wants};
use checkpoint::Meta;
use device::{ExpertBias, Glu, Groups, Pairing, Router, RouterScore, Rows, View};
use memory::{Component, KvSpec};
use state::{Decl, Stream};
use weights::{ExpertSource, Proj, WId};

/// Name of the architecture in GGUF files.
const ARCH: &str = "glm4moe";
/// GGUF's number for sigmoid scores.
const SIGMOID: u32 = 2;

struct Config {
    n_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    eps: f32,
    biased: bool,
    head_norms: bool,
    rotation: Rope,
    rope: RopeOf,
    /// Layers before the first mixture, and the width of their feed-forward.
    dense: (u32, u32),
    moe: Moe,
    shared: u32,
}

struct Layer {
    attn_norm: WId,
    q: (WId, Option<WId>),
    k: (WId, Option<WId>),
    v: (WId, Option<WId>),
    /// Of query and key heads.
    norms: Option<(WId, WId)>,
    o: WId,
    ffn_norm: WId,
    ffn: Ffn,
}

enum Ffn {
    Dense(Mlp),
    Mixture { router: WId, correction: WId, shared: Mlp },
}

/// See the module.
pub struct Glm4Moe {
    spec: Spec,
    cfg: Config,
    embed: WId,
    layers: Vec<Layer>,
    head: Head,
    wants: Vec<Want>,
}

impl Glm4Moe {
    /// Reads the configuration.
    ///
    /// # Errors
    /// Whatever is missing or impossible in it.
    pub fn new(c: &Keys) -> Result<Self> {
        let blocks = c.layers("num_hidden_layers", "block_count");
        // A GGUF file counts the predictor's block among its blocks.
        let predictor = if c.gguf() { c.opt_u32("", "nextn_predict_layers").unwrap_or(0) } else { 0 };
        let experts = c.count("n_routed_experts", "expert_count");
        let k = c.count("num_experts_per_tok", "expert_used_count");
        let spec = Spec {
            arch: c.arch().to_string(),
            n_layers: blocks.saturating_sub(predictor).max(1),
            hidden: c.count("hidden_size", "embedding_length"),
            vocab: c.vocab(),
            context: c.count("max_position_embeddings", "context_length"),
            experts: Some((experts, k)),
            mtp_layers: 0,
        };
        let mut w = Wants::default();
        let cfg = Config::new(c, &mut w, experts, k)?;
        let embed = w.mat(Component::Embed, spec.vocab, spec.hidden, "token_embd.weight", "~embed_tokens.weight");
        let layers = (0..spec.n_layers).map(|l| layer(&mut w, l, spec.hidden, &cfg)).collect();
        let norm = w.vec(Component::Core, spec.hidden, "output_norm.weight", "~norm.weight");
        let own = w.mat(Component::Head, spec.vocab, spec.hidden, "output.weight", "lm_head.weight");
        w.optional();
        let head = Head { norm, eps: cfg.eps, own, tied: embed };
        c.done()?;
        Ok(Glm4Moe { spec, cfg, embed, layers, head, wants: w.finish() })
    }
}

impl Config {
    fn new(c: &Keys, w: &mut Wants, experts: u32, k: u32) -> Result<Self> {
        let n_heads = c.count("num_attention_heads", "attention.head_count");
        let kv = ("num_key_value_heads", "attention.head_count_kv");
        let n_kv_heads = c.count(kv.0, kv.1);
        c.require(n_heads.is_multiple_of(n_kv_heads), kv.0, kv.1, n_kv_heads, "it must divide the number of heads");
        let head_dim = c.count_or("head_dim", "attention.key_length", 128);
        c.require((2..=1 << 16).contains(&head_dim), "head_dim", "attention.key_length", head_dim, "2 to 65536 can be");
        c.width(u64::from(n_heads) * u64::from(head_dim), "num_attention_heads", "attention.head_count");
        let eps = c.positive("rms_norm_eps", "attention.layer_norm_rms_epsilon");
        let part = ["rope_parameters.partial_rotary_factor", "partial_rotary_factor"];
        let part = part.iter().find_map(|k| c.hf(k)).and_then(|v| v.as_f64()).unwrap_or(0.5);
        let dims = c.rope_dims(head_dim, (head_dim as f64 * part) as u32 & !1);
        let leading = c.opt_u32("first_k_dense_replace", "leading_dense_block_count").unwrap_or(1);
        let width = c.count("intermediate_size", "feed_forward_length");
        let inner = c.count("moe_intermediate_size", "expert_feed_forward_length");
        let beside = c.opt_u32("n_shared_experts", "expert_shared_count").unwrap_or(1);
        c.width(u64::from(beside) * u64::from(inner), "n_shared_experts", "expert_shared_count");
        let gating = c.opt_u32("", "expert_gating_func").unwrap_or(SIGMOID);
        c.require(gating == SIGMOID, "", "expert_gating_func", gating, "only 2 (sigmoid) is known here");
        // GGUF files have the tensors where the model has them.
        let biased = c.opt_bool("attention_bias", "").unwrap_or(false) || c.has_tensor("blk.0.attn_q.bias");
        let head_norms = c.opt_bool("use_qk_norm", "").unwrap_or(false) || c.has_tensor("blk.0.attn_q_norm.weight");
        c.only_silu();
        let theta = c.rope_theta();
        let router = router(c, experts, k);
        c.done()?;
        let rotation = Rope::read(c, theta, dims)?;
        let rope = w.rope(&rotation, Pairing::Half);
        let moe = Moe { experts, inner, router, bias: ExpertBias::default(), glu: Glu::Swiglu };
        let (dense, shared) = ((leading, width), beside.saturating_mul(inner));
        Ok(Config { n_heads, n_kv_heads, head_dim, eps, biased, head_norms, rotation, rope, dense, moe, shared })
    }
}

fn router(c: &Keys, experts: u32, k: u32) -> Router {
    let group = ("n_group", "expert_group_count");
    let keep = ("topk_group", "expert_group_used_count");
    let (n, kept) = (c.opt_u32(group.0, group.1).unwrap_or(1), c.opt_u32(keep.0, keep.1).unwrap_or(1));
    let whole = n >= 1 && experts.is_multiple_of(n);
    c.require(whole, group.0, group.1, n, "it must divide the number of experts");
    c.require((1..=n).contains(&kept), keep.0, keep.1, kept, "it must be 1 to the number of groups");
    let enough = !whole || u64::from(experts / n) * u64::from(kept) >= u64::from(k);
    c.require(enough, "num_experts_per_tok", "expert_used_count", k, "there are fewer experts to choose from");
    Router {
        score: RouterScore::Sigmoid,
        groups: (n > 1).then_some(Groups { n, keep: kept }),
        renormalise: c.opt_bool("norm_topk_prob", "expert_weights_norm").unwrap_or(true),
        scale: c.opt_f32("routed_scaling_factor", "expert_weights_scale").unwrap_or(1.0),
        ..Router::softmax(k)
    }
}

fn layer(w: &mut Wants, l: u32, hidden: u32, c: &Config) -> Layer {
    let at = Component::Layer(l);
    let (g, h) = (format!("blk.{l}"), format!("~layers.{l}"));
    let (q_dim, kv_dim) = (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim);
    let mut projection = |n: u32, gguf: &str, hf: &str| {
        let m = w.mat(at, n, hidden, format!("{g}.{gguf}.weight"), format!("{h}.self_attn.{hf}.weight"));
        let bias = || w.vec(at, n, format!("{g}.{gguf}.bias"), format!("{h}.self_attn.{hf}.bias"));
        (m, c.biased.then(bias))
    };
    let q = projection(q_dim, "attn_q", "q_proj");
    let k = projection(kv_dim, "attn_k", "k_proj");
    let v = projection(kv_dim, "attn_v", "v_proj");
    let mut vec = |n: u32, gguf: &str, hf: &str| w.vec(at, n, format!("{g}.{gguf}"), format!("{h}.{hf}"));
    let attn_norm = vec(hidden, "attn_norm.weight", "input_layernorm.weight");
    let norms = c.head_norms.then(|| {
        let q = vec(c.head_dim, "attn_q_norm.weight", "self_attn.q_norm.weight");
        (q, vec(c.head_dim, "attn_k_norm.weight", "self_attn.k_norm.weight"))
    });
    let ffn_norm = vec(hidden, "post_attention_norm.weight", "post_attention_layernorm.weight");
    let o = w.mat(at, hidden, q_dim, format!("{g}.attn_output.weight"), format!("{h}.self_attn.o_proj.weight"));
    let ffn = if l < c.dense.0 { dense(w, l, hidden, c.dense.1) } else { mixture(w, l, hidden, c) };
    Layer { attn_norm, q, k, v, norms, o, ffn_norm, ffn }
}

/// A gated feed-forward: `gguf` and `hf` are what surrounds gate, up and down in the names.
fn mlp(w: &mut Wants, l: u32, hidden: u32, inner: u32, gguf: &str, hf: &str) -> Mlp {
    let mut mat = |n, k, part: &str| {
        let (g, h) = (format!("blk.{l}.ffn_{part}{gguf}.weight"), format!("~layers.{l}.mlp.{hf}{part}_proj.weight"));
        w.mat(Component::Layer(l), n, k, g, h)
    };
    Mlp {
        gate: mat(inner, hidden, "gate"),
        up: mat(inner, hidden, "up"),
        down: mat(hidden, inner, "down"),
        glu: Glu::Swiglu,
    }
}

fn dense(w: &mut Wants, l: u32, hidden: u32, inner: u32) -> Ffn {
    Ffn::Dense(mlp(w, l, hidden, inner, "", ""))
}

fn mixture(w: &mut Wants, l: u32, hidden: u32, c: &Config) -> Ffn {
    let (g, h) = (format!("blk.{l}"), format!("~layers.{l}.mlp"));
    let (count, inner) = (c.moe.experts, c.moe.inner);
    for (proj, n, k) in [(Proj::Gate, inner, hidden), (Proj::Up, inner, hidden), (Proj::Down, hidden, inner)] {
        w.experts(Component::Experts(l), Experts { layer: l, proj, count, n, k }, &g, &h);
    }
    let at = Component::Layer(l);
    Ffn::Mixture {
        router: w.mat(at, count, hidden, format!("{g}.ffn_gate_inp.weight"), format!("{h}.gate.weight")),
        correction: w.vec(at, count, format!("{g}.exp_probs_b.bias"), format!("{h}.gate.e_score_correction_bias")),
        shared: mlp(w, l, hidden, c.shared, "_shexp", "shared_experts."),
    }
}

impl Family for Glm4Moe {
    fn spec(&self) -> &Spec {
        &self.spec
    }
    fn tensors(&self) -> &[Want] {
        &self.wants
    }
    fn state(&self, kv: &[KvSpec]) -> Vec<Decl> {
        let history = |kv| Stream::History { heads: self.cfg.n_kv_heads, d: self.cfg.head_dim, kv };
        (0..self.spec.n_layers).zip(kv).map(|(layer, &kv)| Decl { layer, stream: history(kv) }).collect()
    }
    fn export(&self, out: &mut Meta) {
        let (spec, c) = (&self.spec, &self.cfg);
        let key = |name: &str| format!("{ARCH}.{name}");
        out.set("general.architecture", ARCH);
        let groups = c.moe.router.groups.unwrap_or(Groups { n: 1, keep: 1 });
        for (name, value) in [
            ("block_count", spec.n_layers),
            ("context_length", spec.context),
            ("embedding_length", spec.hidden),
            ("feed_forward_length", c.dense.1),
            ("attention.head_count", c.n_heads),
            ("attention.head_count_kv", c.n_kv_heads),
            ("attention.key_length", c.head_dim),
            ("attention.value_length", c.head_dim),
            ("rope.dimension_count", c.rope.dims),
            ("leading_dense_block_count", c.dense.0),
            ("expert_count", c.moe.experts),
            ("expert_used_count", c.moe.router.k),
            ("expert_feed_forward_length", c.moe.inner),
            ("expert_shared_count", c.shared / c.moe.inner),
            ("expert_gating_func", SIGMOID),
            ("expert_group_count", groups.n),
            ("expert_group_used_count", groups.keep),
            ("vocab_size", spec.vocab),
        ] {
            out.set(&key(name), value);
        }
        out.set(&key("expert_weights_norm"), c.moe.router.renormalise);
        out.set(&key("expert_weights_scale"), c.moe.router.scale);
        out.set(&key("attention.layer_norm_rms_epsilon"), c.eps);
        c.rotation.export(ARCH, out);
    }
    fn embed(&self, cx: &mut Cx, r: &Rows, x: &mut Carry) -> Result<()> {
        cx.embed(x.streams[0], self.embed, r.ids)
    }
    fn mix(&self, cx: &mut Cx, l: u32, r: &Rows, x: &mut Carry) -> Result<()> {
        let (c, w, x) = (&self.cfg, &self.layers[l as usize], x.streams[0]);
        cx.scope(|cx| {
            let h = cx.rms_norm(x, w.attn_norm, c.eps)?;
            let q = cx.linear_bias(h, w.q.0, w.q.1, r.class)?.heads(c.n_heads);
            let k = cx.linear_bias(h, w.k.0, w.k.1, r.class)?.heads(c.n_kv_heads);
            let v = cx.linear_bias(h, w.v.0, w.v.1, r.class)?.heads(c.n_kv_heads);
            if let Some((q_norm, k_norm)) = w.norms {
                cx.rms_norm_in(q, q_norm, c.eps)?;
                cx.rms_norm_in(k, k_norm, c.eps)?;
            }
            cx.rope(q, r.pos, &c.rope)?;
            cx.rope(k, r.pos, &c.rope)?;
            cx.append(l, r, k, v)?;
            let scale = (c.head_dim as f32).powf(-0.5);
            let y = cx.attend(l, r, q, &Attn { scale, ..Attn::FULL })?;
            cx.linear_add(x, y.flat(), w.o, r.class)
        })
    }
    fn ffn(&self, cx: &mut Cx, l: u32, r: &Rows, x: &mut Carry, ex: &mut dyn ExpertSource) -> Result<()> {
        let (c, w, x) = (&self.cfg, &self.layers[l as usize], x.streams[0]);
        match &w.ffn {
            Ffn::Dense(mlp) => cx.tiles(r.n, |cx, t| {
                let h = cx.rms_norm(t.of(x), w.ffn_norm, c.eps)?;
                cx.mlp_add(t.of(x), h, mlp, r.class)
            }),
            Ffn::Mixture { router, correction, shared } => {
                let choice = Router { bias: Some(cx.w.vec(*correction)?), ..c.moe.router };
                let mut parts = Mixed { router: *router, shared, norm: w.ffn_norm, x, r, eps: c.eps };
                moe::drive(cx, l, r, ex, &Moe { router: choice, ..c.moe }, &mut parts)
            }
        }
    }
    fn head(&self, cx: &mut Cx, r: &Rows, pick: View, x: &Carry, logits: View) -> Result<()> {
        cx.head(x.streams[0], pick, &self.head, logits, r.class)
    }
}

struct Mixed<'a> {
    router: WId,
    shared: &'a Mlp,
    norm: WId,
    x: View,
    r: &'a Rows,
    eps: f32,
}

impl moe::Mixture for Mixed<'_> {
    fn begin(&mut self, cx: &mut Cx, n: u32) -> Result<View> {
        cx.take(n, self.x.cols)
    }
    fn route(&mut self, cx: &mut Cx, t: Tile, h: View) -> Result<View> {
        cx.rms_norm_to(h, t.of(self.x), self.norm, self.eps)?;
        cx.linear(h, self.router, self.r.class)
    }
    fn base(&mut self, cx: &mut Cx, _: Tile, h: View, sum: View) -> Result<()> {
        cx.mlp_into(sum, h, self.shared, self.r.class)
    }
    fn close(&mut self, cx: &mut Cx, t: Tile, sum: View) -> Result<()> {
        cx.add(t.of(self.x), sum)
    }
}
