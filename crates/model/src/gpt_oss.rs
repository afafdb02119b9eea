//! gpt-oss (20b, 120b): windowed and full attention in turn, both with sinks and biases, and a mixture with biases.
//!
//! ```text
//! x = embed(ids)
//! q, k, v = W h + b;  y = attention(rope(q), rope(k), v) with one more logit per head, the sink
//! x += W_o y + b                                                            h = rms_norm(x)
//! x += sum over the top k of w_e (W_down glu(W_gate h + b, W_up h + b) + b)   h = rms_norm(x)
//! glu(gate, up) = (up + 1) * gate * sigmoid(1.702 gate)                     gate at most 7, up within -7 ..= 7
//! logits = W_head rms_norm(x)
//! ```
//! Even layers see the last `sliding_window` positions, odd ones all. Rope pairs halves over the whole head, with YaRN
//! whose ramp does not end on whole pairs. The router is a linear layer with bias; the softmax is over the chosen logits
//! only, which is softmax over all, divided by the sum of the chosen.
//!
//! Safetensors files hold gate and up row by row in turn: as `[E, k, 2n]`, transposed, in float types. GGUF files hold
//! them apart.

use crate::cx::{Attn, Cx, Head, RopeOf, Tile};
use crate::error::Result;
use crate::family::{Carry, Family, Spec};
use crate::keys::Keys;
use crate::moe::{self, Moe};
use crate::rope::Rope;
use crate::want::{Experts, Want, Wants};
use checkpoint::Meta;
use device::{ExpertBias, Glu, Pairing, Router, Rows, View};
use memory::{Component, KvSpec};
use state::{Decl, Stream};
use weights::{ExpertSource, Proj, WId};

/// Name of the architecture in GGUF files.
const ARCH: &str = "gpt-oss";
/// Slope inside the sigmoid, for files that do not say.
const ALPHA: f32 = 1.702;
/// Where gate and up are cut, for files that do not say (GGUF).
const LIMIT: f32 = 7.0;

struct Config {
    n_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    eps: f32,
    window: u32,
    rotation: Rope,
    rope: RopeOf,
    moe: Moe,
}

/// A matrix and its bias.
type Biased = (WId, WId);

struct Layer {
    sliding: bool,
    attn_norm: WId,
    q: Biased,
    k: Biased,
    v: Biased,
    o: Biased,
    sinks: WId,
    ffn_norm: WId,
    router: Biased,
    /// Gate, up, down.
    biases: [WId; 3],
}

/// See the module.
pub struct GptOss {
    spec: Spec,
    cfg: Config,
    embed: WId,
    layers: Vec<Layer>,
    head: Head,
    wants: Vec<Want>,
}

impl GptOss {
    /// Reads the configuration.
    ///
    /// # Errors
    /// Whatever is missing or impossible in it.
    pub fn new(c: &Keys) -> Result<Self> {
        let experts = c.count("num_local_experts", "expert_count");
        let used = if c.hf("num_experts_per_tok").is_some() { "num_experts_per_tok" } else { "experts_per_token" };
        let k = c.count(used, "expert_used_count");
        c.require(k <= experts, used, "expert_used_count", k, "there are fewer experts");
        let spec = Spec {
            arch: c.arch().to_string(),
            n_layers: c.layers("num_hidden_layers", "block_count"),
            hidden: c.count("hidden_size", "embedding_length"),
            vocab: c.vocab(),
            context: c.count("max_position_embeddings", "context_length"),
            experts: Some((experts, k)),
            mtp_layers: 0,
        };
        let mut w = Wants::default();
        let cfg = Config::new(c, &mut w, experts, k)?;
        let sliding = |l: u32| c.layer_is(l, "sliding_attention").unwrap_or(l.is_multiple_of(2));
        let embed = w.mat(Component::Embed, spec.vocab, spec.hidden, "token_embd.weight", "~embed_tokens.weight");
        let layers = (0..spec.n_layers).map(|l| layer(&mut w, l, sliding(l), spec.hidden, &cfg)).collect();
        let norm = w.vec(Component::Core, spec.hidden, "output_norm.weight", "~norm.weight");
        let own = w.mat(Component::Head, spec.vocab, spec.hidden, "output.weight", "lm_head.weight");
        w.optional();
        let head = Head { norm, eps: cfg.eps, own, tied: embed };
        c.done()?;
        Ok(GptOss { spec, cfg, embed, layers, head, wants: w.finish() })
    }
}

impl Config {
    fn new(c: &Keys, w: &mut Wants, experts: u32, k: u32) -> Result<Self> {
        let n_heads = c.count("num_attention_heads", "attention.head_count");
        let kv = ("num_key_value_heads", "attention.head_count_kv");
        let n_kv_heads = c.count(kv.0, kv.1);
        c.require(n_heads.is_multiple_of(n_kv_heads), kv.0, kv.1, n_kv_heads, "it must divide the number of heads");
        let head_dim = c.count_or("head_dim", "attention.key_length", 64);
        let even = head_dim.is_multiple_of(2);
        c.require(even, "head_dim", "attention.key_length", head_dim, "it must be even");
        c.width(u64::from(n_heads) * u64::from(head_dim), "num_attention_heads", "attention.head_count");
        let inner = c.count("intermediate_size", "expert_feed_forward_length");
        let window = c.count("sliding_window", "attention.sliding_window");
        let eps = c.positive("rms_norm_eps", "attention.layer_norm_rms_epsilon");
        let limit = c.opt_f32("swiglu_limit", "swiglu_limit").unwrap_or(LIMIT);
        c.require(limit > 0.0, "swiglu_limit", "swiglu_limit", limit, "it must be above zero");
        let alpha = c.opt_f32("swiglu_alpha", "swiglu_alpha").unwrap_or(ALPHA);
        c.only_silu();
        let theta = c.rope_theta();
        c.done()?;
        let rotation = Rope::read(c, theta, head_dim)?;
        let router = Router { renormalise: true, ..Router::softmax(k) };
        let glu = Glu::SwigluClamped { limit, alpha };
        let moe = Moe { experts, inner, router, bias: ExpertBias::default(), glu };
        let rope = w.rope(&rotation, Pairing::Half);
        Ok(Config { n_heads, n_kv_heads, head_dim, eps, window, rotation, rope, moe })
    }
}

fn layer(w: &mut Wants, l: u32, sliding: bool, hidden: u32, c: &Config) -> Layer {
    let (at, experts) = (Component::Layer(l), Component::Experts(l));
    let (g, h) = (format!("blk.{l}"), format!("~layers.{l}"));
    let (q_dim, kv_dim, inner) = (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim, c.moe.inner);
    let mut biased = |n: u32, k: u32, gguf: &str, hf: &str| {
        let m = w.mat(at, n, k, format!("{g}.{gguf}.weight"), format!("{h}.{hf}.weight"));
        (m, w.vec(at, n, format!("{g}.{gguf}.bias"), format!("{h}.{hf}.bias")))
    };
    let q = biased(q_dim, hidden, "attn_q", "self_attn.q_proj");
    let k = biased(kv_dim, hidden, "attn_k", "self_attn.k_proj");
    let v = biased(kv_dim, hidden, "attn_v", "self_attn.v_proj");
    let o = biased(hidden, q_dim, "attn_output", "self_attn.o_proj");
    let router = biased(c.moe.experts, hidden, "ffn_gate_inp", "mlp.router");
    let mut vec = |n: u32, gguf: &str, hf: &str| w.vec(at, n, format!("{g}.{gguf}"), format!("{h}.{hf}"));
    let attn_norm = vec(hidden, "attn_norm.weight", "input_layernorm.weight");
    let sinks = vec(c.n_heads, "attn_sinks.weight", "self_attn.sinks");
    let ffn_norm = vec(hidden, "post_attention_norm.weight", "post_attention_layernorm.weight");
    let parts = [(Proj::Gate, inner, hidden), (Proj::Up, inner, hidden), (Proj::Down, hidden, inner)];
    let biases = parts.map(|(proj, n, k)| {
        let x = Experts { layer: l, proj, count: c.moe.experts, n, k };
        w.experts_turned(experts, x, &g, &format!("{h}.mlp"));
        w.expert_bias(at, x, &g, &format!("{h}.mlp"))
    });
    Layer { sliding, attn_norm, q, k, v, o, sinks, ffn_norm, router, biases }
}

impl Family for GptOss {
    fn spec(&self) -> &Spec {
        &self.spec
    }
    fn tensors(&self) -> &[Want] {
        &self.wants
    }
    fn state(&self, kv: &[KvSpec]) -> Vec<Decl> {
        let c = &self.cfg;
        let (heads, d, window) = (c.n_kv_heads, c.head_dim, c.window);
        let stream = |l: &Layer, kv: &KvSpec| match l.sliding {
            true => Stream::Ring { window, heads, d, fmt: kv.main },
            false => Stream::History { heads, d, kv: *kv },
        };
        let layers = self.layers.iter().zip(kv).zip(0..);
        layers.map(|((l, kv), layer)| Decl { layer, stream: stream(l, kv) }).collect()
    }
    fn export(&self, out: &mut Meta) {
        let (spec, c) = (&self.spec, &self.cfg);
        let key = |name: &str| format!("{ARCH}.{name}");
        out.set("general.architecture", ARCH);
        for (name, value) in [
            ("block_count", spec.n_layers),
            ("context_length", spec.context),
            ("embedding_length", spec.hidden),
            ("feed_forward_length", c.moe.inner),
            ("attention.head_count", c.n_heads),
            ("attention.head_count_kv", c.n_kv_heads),
            ("attention.key_length", c.head_dim),
            ("attention.value_length", c.head_dim),
            ("attention.sliding_window", c.window),
            ("expert_count", c.moe.experts),
            ("expert_used_count", c.moe.router.k),
            ("expert_feed_forward_length", c.moe.inner),
            ("rope.dimension_count", c.head_dim),
            ("vocab_size", spec.vocab),
        ] {
            out.set(&key(name), value);
        }
        out.set(&key("attention.layer_norm_rms_epsilon"), c.eps);
        // Files of the published models have no keys for these.
        if let Glu::SwigluClamped { limit, alpha } = c.moe.glu
            && (limit, alpha) != (LIMIT, ALPHA)
        {
            out.set(&key("swiglu_limit"), limit).set(&key("swiglu_alpha"), alpha);
        }
        c.rotation.export(ARCH, out);
    }
    fn embed(&self, cx: &mut Cx, r: &Rows, x: &mut Carry) -> Result<()> {
        cx.embed(x.streams[0], self.embed, r.ids)
    }
    fn mix(&self, cx: &mut Cx, l: u32, r: &Rows, x: &mut Carry) -> Result<()> {
        let (c, w, x) = (&self.cfg, &self.layers[l as usize], x.streams[0]);
        cx.scope(|cx| {
            let h = cx.rms_norm(x, w.attn_norm, c.eps)?;
            let q = cx.linear_bias(h, w.q.0, Some(w.q.1), r.class)?.heads(c.n_heads);
            let k = cx.linear_bias(h, w.k.0, Some(w.k.1), r.class)?.heads(c.n_kv_heads);
            let v = cx.linear_bias(h, w.v.0, Some(w.v.1), r.class)?.heads(c.n_kv_heads);
            cx.rope(q, r.pos, &c.rope)?;
            cx.rope(k, r.pos, &c.rope)?;
            cx.append(l, r, k, v)?;
            let scale = (c.head_dim as f32).powf(-0.5);
            let y = cx.attend(
                l,
                r,
                q,
                &Attn { scale, window: w.sliding.then_some(c.window), sinks: Some(w.sinks), ..Attn::FULL },
            )?;
            cx.linear_add_bias(x, y.flat(), w.o.0, Some(w.o.1), r.class)
        })
    }
    fn ffn(&self, cx: &mut Cx, l: u32, r: &Rows, x: &mut Carry, ex: &mut dyn ExpertSource) -> Result<()> {
        let (c, w, x) = (&self.cfg, &self.layers[l as usize], x.streams[0]);
        let [gate, up, down] = w.biases.map(|b| cx.w.vec(b));
        let bias = ExpertBias { gate: Some(gate?), up: Some(up?), down: Some(down?) };
        moe::drive(cx, l, r, ex, &Moe { bias, ..c.moe }, &mut Ffn { w, x, r, eps: c.eps })
    }
    fn head(&self, cx: &mut Cx, r: &Rows, pick: View, x: &Carry, logits: View) -> Result<()> {
        cx.head(x.streams[0], pick, &self.head, logits, r.class)
    }
}

struct Ffn<'a> {
    w: &'a Layer,
    x: View,
    r: &'a Rows,
    eps: f32,
}

impl moe::Mixture for Ffn<'_> {
    /// Nothing beside them: the experts are added to the residual stream itself.
    fn begin(&mut self, _: &mut Cx, _: u32) -> Result<View> {
        Ok(self.x)
    }
    fn route(&mut self, cx: &mut Cx, t: Tile, h: View) -> Result<View> {
        cx.rms_norm_to(h, t.of(self.x), self.w.ffn_norm, self.eps)?;
        let (router, bias) = self.w.router;
        cx.linear_bias(h, router, Some(bias), self.r.class)
    }
    fn base(&mut self, _: &mut Cx, _: Tile, _: View, _: View) -> Result<()> {
        Ok(())
    }
    fn close(&mut self, _: &mut Cx, _: Tile, _: View) -> Result<()> {
        Ok(())
    }
}
