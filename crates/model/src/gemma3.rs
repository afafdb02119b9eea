//! Gemma 3, text: five layers of windowed attention, then one of full attention, with norms on both sides of every half.
//!
//! ```text
//! x = sqrt(H) embed(ids)
//! x += norm(W_o attention(rope(norm(W_q h)), rope(norm(W_k h)), W_v h))     h = norm(x)
//! x += norm(W_down (gelu(W_gate h) * W_up h))                               h = norm(x)
//! logits = W_embed norm(x)
//! ```
//! Norms are `1 + w` in safetensors files and plain in GGUF files. Windowed layers rotate with a base of their own and
//! no scaling; both kinds pair halves over the whole head. Scores are multiplied by `query_pre_attn_scalar^-0.5`, which
//! most sizes have equal to a head's width. Configurations on the hub leave out what is the same in most sizes.
//!
//! `sqrt(H)` is rounded to bfloat16 unless the embedding is f32, as when the models were trained.

use crate::cx::{Attn, Cx, Head, Mlp, RopeOf};
use crate::error::Result;
use crate::family::{Carry, Family, Spec};
use crate::gemma::{self, Blocks, Norm};
use crate::keys::Keys;
use crate::rope::Rope;
use crate::want::{Want, Wants};
use checkpoint::Meta;
use device::{Pairing, Rows, View};
use memory::{Component, KvSpec};
use state::{Decl, Stream};
use weights::{Canon, ExpertSource, WId};

/// Name of the architecture in GGUF files.
const ARCH: &str = "gemma3";
/// Every layer of this number is full, where no file lists them.
const INTERVAL: u32 = 6;

struct Config {
    n_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    inner: u32,
    eps: f32,
    window: u32,
    /// Multiplies scores.
    scale: f32,
    embed_scale: f32,
    /// Of full and of windowed layers.
    rotations: [Rope; 2],
    ropes: [RopeOf; 2],
}

struct Layer {
    sliding: bool,
    attn_norm: WId,
    q: WId,
    k: WId,
    v: WId,
    q_norm: WId,
    k_norm: WId,
    o: WId,
    post_attn: WId,
    ffn_norm: WId,
    mlp: Mlp,
    post_ffn: WId,
}

/// See the module.
pub struct Gemma3 {
    spec: Spec,
    cfg: Config,
    embed: WId,
    layers: Vec<Layer>,
    head: Head,
    wants: Vec<Want>,
}

impl Gemma3 {
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
            context: c.count_or("max_position_embeddings", "context_length", 131_072),
            experts: None,
            mtp_layers: 0,
        };
        let mut w = Wants::default();
        let cfg = Config::new(c, &mut w, &spec)?;
        let interval = ["sliding_window_pattern", "_sliding_window_pattern"];
        let interval = interval.iter().find_map(|k| c.opt_u32(k, "")).filter(|&n| n > 0).unwrap_or(INTERVAL);
        // Only files written here have it: those of the published models all repeat after six layers.
        let pattern = c.opt_bools("attention.sliding_window_pattern").unwrap_or_default();
        let sliding = |l: u32| {
            let listed = c.layer_is(l, "sliding_attention").or_else(|| pattern.get(l as usize).copied());
            listed.unwrap_or(!(l + 1).is_multiple_of(interval))
        };
        let embed = w.mat(Component::Embed, spec.vocab, spec.hidden, "token_embd.weight", "~embed_tokens.weight");
        let layers = (0..spec.n_layers).map(|l| layer(&mut w, l, sliding(l), spec.hidden, &cfg)).collect();
        let norm = w.vec_as(Component::Core, spec.hidden, "output_norm.weight", "~norm.weight", Canon::PlusOne);
        let own = w.mat(Component::Head, spec.vocab, spec.hidden, "output.weight", "lm_head.weight");
        w.optional();
        let head = Head { norm, eps: cfg.eps, own, tied: embed };
        c.done()?;
        Ok(Gemma3 { spec, cfg, embed, layers, head, wants: w.finish() })
    }
}

impl Config {
    fn new(c: &Keys, w: &mut Wants, spec: &Spec) -> Result<Self> {
        let n_heads = c.count_or("num_attention_heads", "attention.head_count", 8);
        let kv = ("num_key_value_heads", "attention.head_count_kv");
        let n_kv_heads = c.count_or(kv.0, kv.1, 4);
        c.require(n_heads.is_multiple_of(n_kv_heads), kv.0, kv.1, n_kv_heads, "it must divide the number of heads");
        let head_dim = c.count_or("head_dim", "attention.key_length", 256);
        c.require(head_dim.is_multiple_of(2), "head_dim", "attention.key_length", head_dim, "it must be even");
        c.width(u64::from(n_heads) * u64::from(head_dim), "num_attention_heads", "attention.head_count");
        let inner = c.count("intermediate_size", "feed_forward_length");
        let window = c.count("sliding_window", "attention.sliding_window");
        let eps = c.opt_f32("rms_norm_eps", "attention.layer_norm_rms_epsilon").unwrap_or(1e-6);
        c.require(eps > 0.0, "rms_norm_eps", "attention.layer_norm_rms_epsilon", eps, "it must be above zero");
        for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
            let cap = c.opt_f32(key, key);
            c.require(cap.is_none(), key, key, cap.unwrap_or(0.0), "no model of this architecture has it");
        }
        gemma::only_gelu(c);
        let rotations = rotations(c, head_dim)?;
        let scale = scale(c, spec, n_heads, head_dim);
        let embed_scale = gemma::root(c, spec.hidden);
        c.done()?;
        let ropes = [w.rope(&rotations[0], Pairing::Half), w.rope_apart(&rotations[1], Pairing::Half)];
        Ok(Config { n_heads, n_kv_heads, head_dim, inner, eps, window, scale, embed_scale, rotations, ropes })
    }
}

/// GGUF files do not say by what scores are multiplied. Only the 27B, known by its 62 layers, has another number than the
/// width of a head.
fn scale(c: &Keys, spec: &Spec, n_heads: u32, head_dim: u32) -> f32 {
    if let Some(scale) = c.gguf().then(|| c.opt_f32("", "attention.scale")).flatten() {
        return scale;
    }
    let usual = if c.gguf() && spec.n_layers == 62 { spec.hidden / n_heads } else { head_dim };
    let absent = if c.gguf() { usual } else { 256 };
    let scalar = c.opt_f32("query_pre_attn_scalar", "").unwrap_or(absent as f32);
    c.require(scalar > 0.0, "query_pre_attn_scalar", "", scalar, "it must be above zero");
    scalar.powf(-0.5)
}

/// Of full and of windowed layers. Newer configurations have an object for each kind, older ones keys side by side.
fn rotations(c: &Keys, dims: u32) -> Result<[Rope; 2]> {
    let by_kind = c.hf("rope_parameters.full_attention").is_some();
    let of = |kind: &str, old: &str, gguf: &str, usual: f32| {
        let nested = format!("rope_parameters.{kind}.rope_theta");
        let theta = c.opt_f32(if by_kind { &nested } else { old }, gguf).unwrap_or(usual);
        c.require(theta.is_finite() && theta > 0.0, old, gguf, theta, "it must be above zero");
        theta
    };
    let full = of("full_attention", "rope_theta", "rope.freq_base", 1e6);
    let windowed = of("sliding_attention", "rope_local_base_freq", "rope.freq_base_swa", 1e4);
    let root = if by_kind { "rope_parameters.full_attention" } else { "rope_scaling" };
    Ok([Rope::read_under(c, root, full, dims)?, Rope::unscaled(windowed, dims)])
}

fn layer(w: &mut Wants, l: u32, sliding: bool, hidden: u32, c: &Config) -> Layer {
    let b = Blocks::new(l);
    let (q_dim, kv_dim) = (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim);
    let mut norm = |n: u32, of: Norm| b.norm(w, n, of, Canon::PlusOne);
    let attn_norm = norm(hidden, gemma::INPUT);
    let (q_norm, k_norm) = (norm(c.head_dim, gemma::QUERY), norm(c.head_dim, gemma::KEY));
    let (post_attn, ffn_norm, post_ffn) =
        (norm(hidden, gemma::POST_ATTENTION), norm(hidden, gemma::PRE_FFN), norm(hidden, gemma::POST_FFN));
    Layer {
        sliding,
        attn_norm,
        q: b.mat(w, q_dim, hidden, "attn_q", "self_attn.q_proj"),
        k: b.mat(w, kv_dim, hidden, "attn_k", "self_attn.k_proj"),
        v: b.mat(w, kv_dim, hidden, "attn_v", "self_attn.v_proj"),
        q_norm,
        k_norm,
        o: b.mat(w, hidden, q_dim, "attn_output", "self_attn.o_proj"),
        post_attn,
        ffn_norm,
        mlp: b.mlp(w, hidden, c.inner),
        post_ffn,
    }
}

impl Family for Gemma3 {
    fn spec(&self) -> &Spec {
        &self.spec
    }
    fn tensors(&self) -> &[Want] {
        &self.wants
    }
    fn state(&self, kv: &[KvSpec]) -> Vec<Decl> {
        let (heads, d, window) = (self.cfg.n_kv_heads, self.cfg.head_dim, self.cfg.window);
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
            ("feed_forward_length", c.inner),
            ("attention.head_count", c.n_heads),
            ("attention.head_count_kv", c.n_kv_heads),
            ("attention.key_length", c.head_dim),
            ("attention.value_length", c.head_dim),
            ("attention.sliding_window", c.window),
            ("vocab_size", spec.vocab),
        ] {
            out.set(&key(name), value);
        }
        let sliding: Vec<bool> = self.layers.iter().map(|l| l.sliding).collect();
        out.set(&key("attention.sliding_window_pattern"), sliding);
        out.set(&key("attention.scale"), c.scale);
        out.set(&key("attention.layer_norm_rms_epsilon"), c.eps);
        c.rotations[0].export(ARCH, out);
        out.set(&key("rope.freq_base_swa"), c.rotations[1].theta);
    }
    fn embed(&self, cx: &mut Cx, r: &Rows, x: &mut Carry) -> Result<()> {
        cx.embed_scaled(x.streams[0], self.embed, r.ids, self.cfg.embed_scale)
    }
    fn mix(&self, cx: &mut Cx, l: u32, r: &Rows, x: &mut Carry) -> Result<()> {
        let (c, w, x) = (&self.cfg, &self.layers[l as usize], x.streams[0]);
        cx.scope(|cx| {
            let rope = &c.ropes[w.sliding as usize];
            let h = cx.rms_norm(x, w.attn_norm, c.eps)?;
            let q = cx.linear(h, w.q, r.class)?.heads(c.n_heads);
            let k = cx.linear(h, w.k, r.class)?.heads(c.n_kv_heads);
            let v = cx.linear(h, w.v, r.class)?.heads(c.n_kv_heads);
            cx.rms_norm_in(q, w.q_norm, c.eps)?;
            cx.rms_norm_in(k, w.k_norm, c.eps)?;
            cx.rope(q, r.pos, rope)?;
            cx.rope(k, r.pos, rope)?;
            cx.append(l, r, k, v)?;
            let window = w.sliding.then_some(c.window);
            let y = cx.attend(l, r, q, &Attn { scale: c.scale, window, ..Attn::FULL })?;
            let y = cx.linear(y.flat(), w.o, r.class)?;
            cx.rms_norm_in(y, w.post_attn, c.eps)?;
            cx.add(x, y)
        })
    }
    fn ffn(&self, cx: &mut Cx, l: u32, r: &Rows, x: &mut Carry, _: &mut dyn ExpertSource) -> Result<()> {
        let (c, w, x) = (&self.cfg, &self.layers[l as usize], x.streams[0]);
        cx.tiles(r.n, |cx, t| {
            let h = cx.rms_norm(t.of(x), w.ffn_norm, c.eps)?;
            let y = cx.mlp(h, &w.mlp, r.class)?;
            cx.rms_norm_in(y, w.post_ffn, c.eps)?;
            cx.add(t.of(x), y)
        })
    }
    fn head(&self, cx: &mut Cx, r: &Rows, pick: View, x: &Carry, logits: View) -> Result<()> {
        cx.head(x.streams[0], pick, &self.head, logits, r.class)
    }
}
