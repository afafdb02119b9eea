//! Llama and Qwen2: pre-norm blocks of grouped-query attention and a SwiGLU feed-forward.
//!
//! ```text
//! x = embed(ids)
//! x += W_o attention(rope(W_q h + b_q), rope(W_k h + b_k), W_v h + b_v)      h = rms_norm(x)
//! x += W_down (silu(W_gate h) * W_up h)                                     h = rms_norm(x)
//! logits = W_head rms_norm(x)                                               W_head may be the embedding
//! ```
//! Qwen2 differs by the biases of q, k and v. GGUF files of `llama` permute the rows of q and k, so that rope pairs
//! adjacent columns there; all other files pair halves.

use crate::cx::{Cx, Head, Mlp, RopeOf};
use crate::error::Result;
use crate::family::{Carry, Family, Spec};
use crate::keys::Keys;
use crate::rope::Rope;
use crate::want::{Export, Want, Wants};
use checkpoint::Meta;
use device::{Glu, Pairing, RowClass, Rows, View};
use memory::{Component, KvSpec};
use state::{Decl, Stream};
use weights::{ExpertSource, WId};

struct Config {
    n_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    inner: u32,
    eps: f32,
    rotation: Rope,
    rope: RopeOf,
}

struct Layer {
    attn_norm: WId,
    q: (WId, Option<WId>),
    k: (WId, Option<WId>),
    v: (WId, Option<WId>),
    o: WId,
    ffn_norm: WId,
    mlp: Mlp,
}

/// See the module.
pub struct Llama {
    spec: Spec,
    cfg: Config,
    embed: WId,
    layers: Vec<Layer>,
    head: Head,
    wants: Vec<Want>,
}

impl Llama {
    /// Reads the configuration.
    ///
    /// # Errors
    /// Whatever is missing or impossible in it.
    pub fn new(c: &Keys) -> Result<Self> {
        let spec = Spec {
            arch: c.arch().to_string(),
            n_layers: c.layers("num_hidden_layers", "block_count"),
            hidden: c.count("hidden_size", "embedding_length"),
            vocab: c.vocab(),
            context: c.count("max_position_embeddings", "context_length"),
            experts: None,
            mtp_layers: 0,
        };
        let n_heads = c.count("num_attention_heads", "attention.head_count");
        let n_kv_heads = c.opt_u32("num_key_value_heads", "attention.head_count_kv").unwrap_or(n_heads);
        let head_dim = c.opt_u32("head_dim", "attention.key_length").unwrap_or(spec.hidden / n_heads);
        let inner = c.count("intermediate_size", "feed_forward_length");
        let eps = c.positive("rms_norm_eps", "attention.layer_norm_rms_epsilon");
        c.only_silu();
        let theta = c.rope_theta();
        let kv = "attention.head_count_kv";
        let whole = n_kv_heads > 0 && n_heads.is_multiple_of(n_kv_heads);
        c.require(whole, "num_key_value_heads", kv, n_kv_heads, "it must divide the number of heads");
        let sane = (2..=1 << 16).contains(&head_dim);
        c.require(sane, "head_dim", "attention.key_length", head_dim, "2 to 65536 can be");
        c.width(u64::from(n_heads) * u64::from(head_dim), "num_attention_heads", "attention.head_count");
        let dims = c.rope_dims(head_dim, head_dim & !1);
        c.done()?;

        let mut w = Wants::default();
        let rotation = Rope::read(c, theta, dims)?;
        let permuted = c.gguf() && c.arch() == "llama";
        let pairing = if permuted { Pairing::Adjacent } else { Pairing::Half };
        let rope = w.rope(&rotation, pairing);
        let cfg = Config { n_heads, n_kv_heads, head_dim, inner, eps, rotation, rope };
        let embed = w.mat(Component::Embed, spec.vocab, spec.hidden, "token_embd.weight", "~embed_tokens.weight");
        let biased = c.arch() == "qwen2" || c.opt_bool("attention_bias", "attention.bias").unwrap_or(false);
        let layers = (0..spec.n_layers).map(|l| layer(&mut w, l, &spec, &cfg, biased)).collect();
        let norm = w.vec(Component::Core, spec.hidden, "output_norm.weight", "~norm.weight");
        let own = w.mat(Component::Head, spec.vocab, spec.hidden, "output.weight", "lm_head.weight");
        w.optional();
        let head = Head { norm, eps: cfg.eps, own, tied: embed };
        Ok(Llama { spec, cfg, embed, layers, head, wants: w.finish() })
    }
}

fn layer(w: &mut Wants, l: u32, spec: &Spec, c: &Config, biased: bool) -> Layer {
    let inner = c.inner;
    let at = Component::Layer(l);
    let g = |name: &str| format!("blk.{l}.{name}");
    let h = |name: &str| format!("~layers.{l}.{name}");
    let (hidden, q_dim, kv_dim) = (spec.hidden, c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim);
    // Only GGUF files of the llama architecture have q and k permuted.
    let permute = spec.arch == "llama";
    let mut qkv = |gguf: &str, hf: &str, n: u32, heads: Option<u32>| {
        let export = heads.filter(|_| permute).map_or(Export::Same, |heads| Export::AdjacentRope { heads });
        let m = w.mat(at, n, hidden, g(&format!("{gguf}.weight")), h(&format!("self_attn.{hf}.weight")));
        w.export(export);
        let b = w.vec(at, n, g(&format!("{gguf}.bias")), h(&format!("self_attn.{hf}.bias")));
        w.export(export);
        if !biased {
            w.optional();
        }
        (m, Some(b))
    };
    let q = qkv("attn_q", "q_proj", q_dim, Some(c.n_heads));
    let k = qkv("attn_k", "k_proj", kv_dim, Some(c.n_kv_heads));
    let v = qkv("attn_v", "v_proj", kv_dim, None);
    Layer {
        attn_norm: w.vec(at, hidden, g("attn_norm.weight"), h("input_layernorm.weight")),
        q,
        k,
        v,
        o: w.mat(at, hidden, q_dim, g("attn_output.weight"), h("self_attn.o_proj.weight")),
        ffn_norm: w.vec(at, hidden, g("ffn_norm.weight"), h("post_attention_layernorm.weight")),
        mlp: Mlp {
            gate: w.mat(at, inner, hidden, g("ffn_gate.weight"), h("mlp.gate_proj.weight")),
            up: w.mat(at, inner, hidden, g("ffn_up.weight"), h("mlp.up_proj.weight")),
            down: w.mat(at, hidden, inner, g("ffn_down.weight"), h("mlp.down_proj.weight")),
            glu: Glu::Swiglu,
        },
    }
}

impl Family for Llama {
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
        let key = |name: &str| format!("{}.{name}", spec.arch);
        out.set("general.architecture", spec.arch.as_str());
        for (name, value) in [
            ("block_count", spec.n_layers),
            ("context_length", spec.context),
            ("embedding_length", spec.hidden),
            ("feed_forward_length", c.inner),
            ("attention.head_count", c.n_heads),
            ("attention.head_count_kv", c.n_kv_heads),
            ("attention.key_length", c.head_dim),
            ("attention.value_length", c.head_dim),
            ("rope.dimension_count", c.rope.dims),
            ("vocab_size", spec.vocab),
        ] {
            out.set(&key(name), value);
        }
        c.rotation.export(&spec.arch, out);
        out.set(&key("attention.layer_norm_rms_epsilon"), c.eps);
    }
    fn embed(&self, cx: &mut Cx, r: &Rows, x: &mut Carry) -> Result<()> {
        cx.embed(x.streams[0], self.embed, r.ids)
    }
    fn mix(&self, cx: &mut Cx, l: u32, r: &Rows, x: &mut Carry) -> Result<()> {
        let (c, w, x) = (&self.cfg, &self.layers[l as usize], x.streams[0]);
        cx.scope(|cx| {
            let h = cx.rms_norm(x, w.attn_norm, c.eps)?;
            let q = projected(cx, h, w.q, r.class)?.heads(c.n_heads);
            let k = projected(cx, h, w.k, r.class)?.heads(c.n_kv_heads);
            let v = projected(cx, h, w.v, r.class)?.heads(c.n_kv_heads);
            cx.rope(q, r.pos, &c.rope)?;
            cx.rope(k, r.pos, &c.rope)?;
            cx.append(l, r, k, v)?;
            let y = cx.attention(l, r, q, (c.head_dim as f32).powf(-0.5))?;
            cx.linear_add(x, y.flat(), w.o, r.class)
        })
    }
    fn ffn(&self, cx: &mut Cx, l: u32, r: &Rows, x: &mut Carry, _: &mut dyn ExpertSource) -> Result<()> {
        let (c, w, x) = (&self.cfg, &self.layers[l as usize], x.streams[0]);
        cx.tiles(r.n, |cx, t| {
            let h = cx.rms_norm(t.of(x), w.ffn_norm, c.eps)?;
            cx.mlp_add(t.of(x), h, &w.mlp, r.class)
        })
    }
    fn head(&self, cx: &mut Cx, r: &Rows, pick: View, x: &Carry, logits: View) -> Result<()> {
        cx.head(x.streams[0], pick, &self.head, logits, r.class)
    }
}

/// A projection, with its bias where the checkpoint has one.
fn projected(cx: &mut Cx, h: View, (w, bias): (WId, Option<WId>), class: RowClass) -> Result<View> {
    let bias = bias.filter(|&b| cx.w.has(b));
    cx.linear_bias(h, w, bias, class)
}
