//! Qwen3.5 mixtures (35B-A3B and its kin): three Gated DeltaNet layers, then one of gated attention, each followed by
//! a mixture of routed experts beside a gated shared expert.
//!
//! ```text
//! full      [q | gate] = W_q h per head;  y = attention(rope(norm(q)), rope(norm(k)), v) * sigmoid(gate)
//! recurrent qkv = silu(conv(W_qkv h));    y = norm(gated_delta(qkv, W_a h, W_b h)) * silu(W_z h)
//! x += W_o y
//! x += sigmoid(w_s h) * shared(h) + sum of top-k experts                     h = rms_norm(x)
//! ```
//! Norms are `1 + w` in safetensors files and plain in GGUF files, except the norm inside the recurrent mixer, which is
//! plain in both. Rope turns only the first columns of a head, halves paired. Value head j of the recurrent mixer uses
//! key head `j / (n_v / n_k)` in safetensors files and `j % n_k` in GGUF files, whose value heads are reordered.
//! Text positions are the same in all three axes of the interleaved multi-axis rope, so it is plain rope here.

use crate::cx::{Cx, GdnIn, Head, Mlp, RopeOf};
use crate::error::Result;
use crate::family::{Carry, Family, Spec};
use crate::keys::Keys;
use crate::moe::{self, Moe};
use crate::rope::frequencies;
use crate::want::{Experts, Export, Want, Wants};
use checkpoint::Meta;
use device::{ActFn, ExpertBias, GdnShape, Glu, KeyHeadRule, Pairing, Router, Rows, View};
use memory::{Component, KvSpec};
use state::{Decl, Stream};
use weights::{Canon, ExpertSource, Proj, WId};

struct Config {
    n_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    eps: f32,
    rope_theta: f32,
    rope: RopeOf,
    mrope: [u32; 4],
    full_interval: u32,
    gdn: GdnShape,
    conv_kernel: u32,
    moe: Moe,
    shared_inner: u32,
}

struct Attention {
    q: WId,
    k: WId,
    v: WId,
    q_norm: WId,
    k_norm: WId,
    o: WId,
}

struct Gdn {
    qkv: WId,
    z: WId,
    a: WId,
    b: WId,
    conv: WId,
    decay: WId,
    dt: WId,
    norm: WId,
    out: WId,
}

enum Mixer {
    Full(Attention),
    Gdn(Gdn),
}

struct Block {
    input_norm: WId,
    mixer: Mixer,
    ffn_norm: WId,
    router: WId,
    shared_gate: WId,
    shared: Mlp,
}

/// See the module.
pub struct Qwen35Moe {
    spec: Spec,
    cfg: Config,
    embed: WId,
    layers: Vec<Block>,
    head: Head,
    wants: Vec<Want>,
}

impl Qwen35Moe {
    /// Reads the configuration.
    ///
    /// # Errors
    /// Whatever is missing or impossible in it.
    pub fn new(c: &Keys) -> Result<Self> {
        let mtp_layers = c.opt_u32("mtp_num_hidden_layers", "nextn_predict_layers").unwrap_or(0);
        let blocks = c.layers("num_hidden_layers", "block_count");
        // A GGUF file counts the predictor's block among its blocks.
        let n_layers = if c.gguf() { blocks.saturating_sub(mtp_layers).max(1) } else { blocks };
        let experts = c.count("num_experts", "expert_count");
        let top_k = c.count("num_experts_per_tok", "expert_used_count");
        c.require(top_k <= experts, "num_experts_per_tok", "expert_used_count", top_k, "there are fewer experts");
        let spec = Spec {
            arch: c.arch().to_string(),
            n_layers,
            hidden: c.count("hidden_size", "embedding_length"),
            vocab: c.vocab(),
            context: c.count("max_position_embeddings", "context_length"),
            experts: Some((experts, top_k)),
            mtp_layers,
        };
        let mut w = Wants::default();
        let cfg = Config::new(c, &mut w, experts, top_k)?;
        let recurrent = c.opt_bools("attention.recurrent_layers").unwrap_or_default();
        let is_full = |l: u32| {
            let listed = c.layer_is(l, "full_attention").or_else(|| recurrent.get(l as usize).map(|r| !r));
            listed.unwrap_or((l + 1).is_multiple_of(cfg.full_interval))
        };
        let embed = w.mat(Component::Embed, spec.vocab, spec.hidden, "token_embd.weight", "~embed_tokens.weight");
        let layers = (0..n_layers)
            .map(|l| {
                let names = Names { gguf: format!("blk.{l}"), hf: format!("~layers.{l}") };
                let at = Place { here: Component::Layer(l), experts: Component::Experts(l), layer: l };
                block(&mut w, &names, at, is_full(l), spec.hidden, &cfg)
            })
            .collect();
        let norm = w.vec_as(Component::Core, spec.hidden, "output_norm.weight", "~norm.weight", Canon::PlusOne);
        let own = w.mat(Component::Head, spec.vocab, spec.hidden, "output.weight", "lm_head.weight");
        w.optional();
        let head = Head { norm, eps: cfg.eps, own, tied: embed };
        c.done()?;
        if mtp_layers > 0 {
            predictor(&mut w, n_layers, &spec, &cfg);
        }
        Ok(Qwen35Moe { spec, cfg, embed, layers, head, wants: w.finish() })
    }
}

impl Config {
    fn new(c: &Keys, w: &mut Wants, experts: u32, top_k: u32) -> Result<Self> {
        let n_heads = c.count("num_attention_heads", "attention.head_count");
        let n_kv_heads = c.count("num_key_value_heads", "attention.head_count_kv");
        let kv = "attention.head_count_kv";
        let whole = n_heads.is_multiple_of(n_kv_heads);
        c.require(whole, "num_key_value_heads", kv, n_kv_heads, "it must divide the number of heads");
        let head_dim = c.count("head_dim", "attention.key_length");
        let n_k = c.count("linear_num_key_heads", "ssm.group_count");
        let n_v = c.count("linear_num_value_heads", "ssm.time_step_rank");
        let many = n_v.is_multiple_of(n_k);
        c.require(many, "linear_num_key_heads", "ssm.group_count", n_k, "it must divide the number of value heads");
        let d_k = c.count("linear_key_head_dim", "ssm.state_size");
        let d_v = if c.gguf() { c.count("", "ssm.inner_size") / n_v } else { c.count("linear_value_head_dim", "") };
        c.require(d_v > 0, "linear_value_head_dim", "ssm.inner_size", d_v, "it must be a multiple of the value heads");
        let rule = if c.gguf() { KeyHeadRule::Mod } else { KeyHeadRule::Div };
        let router = Router { renormalise: true, ..Router::softmax(top_k) };
        let inner = c.count("moe_intermediate_size", "expert_feed_forward_length");
        let shared_inner = c.count("shared_expert_intermediate_size", "expert_shared_feed_forward_length");
        let conv_kernel = c.count("linear_conv_kernel_dim", "ssm.conv_kernel");
        let eps = c.positive("rms_norm_eps", "attention.layer_norm_rms_epsilon");
        c.only_silu();
        let theta = c.rope_theta();
        let sane = (2..=1 << 16).contains(&head_dim);
        c.require(sane, "head_dim", "attention.key_length", head_dim, "2 to 65536 can be");
        let part = ["rope_parameters.partial_rotary_factor", "partial_rotary_factor"];
        let part = part.iter().find_map(|k| c.hf(k)).and_then(|v| v.as_f64()).unwrap_or(0.25);
        let dims = c.rope_dims(head_dim, (head_dim as f64 * part) as u32 & !1);
        let interval = "full_attention_interval";
        let full_interval = c.opt_u32(interval, interval).filter(|&n| n > 0).unwrap_or(4);
        c.done()?;
        let inv_freq = w.rope(Component::Core, frequencies(c, theta, dims)?, theta);
        Ok(Config {
            n_heads,
            n_kv_heads,
            head_dim,
            eps,
            rope_theta: theta,
            rope: RopeOf { pairing: Pairing::Half, dims, inv_freq },
            mrope: sections(c, dims),
            full_interval,
            gdn: GdnShape { n_k, n_v, d_k, d_v, rule },
            conv_kernel,
            moe: Moe { experts, inner, router, bias: ExpertBias::default(), glu: Glu::Swiglu },
            shared_inner,
        })
    }
}

/// How many frequencies of the multi-axis rope follow each axis (text follows them all alike; files carry the numbers on).
fn sections(c: &Keys, dims: u32) -> [u32; 4] {
    let hf = c.hf("rope_parameters.mrope_section").or_else(|| c.hf("rope_scaling.mrope_section"));
    let listed: Vec<u32> = match hf.and_then(|v| v.as_array()) {
        Some(list) => list.iter().filter_map(|v| v.as_u64()).map(|n| n as u32).collect(),
        None => c.opt_u32s("rope.dimension_sections").unwrap_or_default(),
    };
    match listed[..] {
        [t, h, w] | [t, h, w, _] => [t, h, w, 0],
        _ => [dims / 2, 0, 0, 0],
    }
}

/// The roots of a block's names.
struct Names {
    gguf: String,
    hf: String,
}

impl Names {
    fn of(&self, gguf: &str, hf: &str) -> (String, String) {
        (format!("{}.{gguf}", self.gguf), format!("{}.{hf}", self.hf))
    }
}

/// What a block's parameters belong to.
struct Place {
    here: Component,
    experts: Component,
    layer: u32,
}

/// A norm around zero in safetensors files.
fn norm(w: &mut Wants, at: Component, n: u32, (gguf, hf): (String, String)) -> WId {
    w.vec_as(at, n, gguf, hf, Canon::PlusOne)
}

fn mat(w: &mut Wants, at: Component, n: u32, k: u32, (gguf, hf): (String, String)) -> WId {
    w.mat(at, n, k, gguf, hf)
}

fn block(w: &mut Wants, n: &Names, at: Place, full: bool, hidden: u32, c: &Config) -> Block {
    let Place { here, experts, layer } = at;
    let input_norm = norm(w, here, hidden, n.of("attn_norm.weight", "input_layernorm.weight"));
    let mixer =
        if full { Mixer::Full(attention(w, n, here, hidden, c)) } else { Mixer::Gdn(gdn(w, n, here, hidden, c)) };
    let ffn_norm = norm(w, here, hidden, n.of("post_attention_norm.weight", "post_attention_layernorm.weight"));
    let mut part = |proj, n_out, k| {
        let x = Experts { layer, proj, count: c.moe.experts, n: n_out, k };
        w.experts(experts, x, &n.gguf, &format!("{}.mlp", n.hf));
    };
    part(Proj::Gate, c.moe.inner, hidden);
    part(Proj::Up, c.moe.inner, hidden);
    part(Proj::Down, hidden, c.moe.inner);
    Block {
        input_norm,
        mixer,
        ffn_norm,
        router: mat(w, here, c.moe.experts, hidden, n.of("ffn_gate_inp.weight", "mlp.gate.weight")),
        shared_gate: mat(w, here, 1, hidden, n.of("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight")),
        shared: Mlp {
            gate: mat(
                w,
                here,
                c.shared_inner,
                hidden,
                n.of("ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"),
            ),
            up: mat(w, here, c.shared_inner, hidden, n.of("ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight")),
            down: mat(
                w,
                here,
                hidden,
                c.shared_inner,
                n.of("ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"),
            ),
            glu: Glu::Swiglu,
        },
    }
}

fn attention(w: &mut Wants, n: &Names, at: Component, hidden: u32, c: &Config) -> Attention {
    let (q_dim, kv_dim) = (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim);
    Attention {
        q: mat(w, at, 2 * q_dim, hidden, n.of("attn_q.weight", "self_attn.q_proj.weight")),
        k: mat(w, at, kv_dim, hidden, n.of("attn_k.weight", "self_attn.k_proj.weight")),
        v: mat(w, at, kv_dim, hidden, n.of("attn_v.weight", "self_attn.v_proj.weight")),
        q_norm: norm(w, at, c.head_dim, n.of("attn_q_norm.weight", "self_attn.q_norm.weight")),
        k_norm: norm(w, at, c.head_dim, n.of("attn_k_norm.weight", "self_attn.k_norm.weight")),
        o: mat(w, at, hidden, q_dim, n.of("attn_output.weight", "self_attn.o_proj.weight")),
    }
}

fn gdn(w: &mut Wants, n: &Names, at: Component, hidden: u32, c: &Config) -> Gdn {
    let (n_k, n_v, d_v) = (c.gdn.n_k, c.gdn.n_v, c.gdn.d_v);
    let (channels, v_dim) = (c.gdn.channels(), n_v * d_v);
    let keys = 2 * n_k * c.gdn.d_k;
    let tile = |skip, each| Export::TileRows { skip, n_k, n_v, each };
    let mut heads = |n_out, names, export| {
        let id = mat(w, at, n_out, hidden, names);
        w.export(export);
        id
    };
    let qkv = heads(channels, n.of("attn_qkv.weight", "linear_attn.in_proj_qkv.weight"), tile(keys, d_v));
    let z = heads(v_dim, n.of("attn_gate.weight", "linear_attn.in_proj_z.weight"), tile(0, d_v));
    let a = heads(n_v, n.of("ssm_alpha.weight", "linear_attn.in_proj_a.weight"), tile(0, 1));
    let b = heads(n_v, n.of("ssm_beta.weight", "linear_attn.in_proj_b.weight"), tile(0, 1));
    let (gguf, hf) = n.of("ssm_conv1d.weight", "linear_attn.conv1d.weight");
    let conv = w.table(at, channels, c.conv_kernel, gguf, hf);
    w.export(tile(keys, d_v));
    let mut small = |len, (gguf, hf): (String, String), canon, export| {
        let id = w.vec_as(at, len, gguf, hf, canon);
        w.export(export);
        id
    };
    let decay = small(n_v, n.of("ssm_a", "linear_attn.A_log"), Canon::NegExp, tile(0, 1));
    let dt = small(n_v, n.of("ssm_dt.bias", "linear_attn.dt_bias"), Canon::Same, tile(0, 1));
    let norm = small(d_v, n.of("ssm_norm.weight", "linear_attn.norm.weight"), Canon::Same, Export::Same);
    let out = mat(w, at, hidden, v_dim, n.of("ssm_out.weight", "linear_attn.out_proj.weight"));
    w.export(Export::TileCols { n_k, n_v, each: d_v });
    Gdn { qkv, z, a, b, conv, decay, dt, norm, out }
}

/// The multi-token predictor's parameters: known, sized and exported; leased by whoever speculates.
fn predictor(w: &mut Wants, n_layers: u32, spec: &Spec, c: &Config) {
    let (at, h) = (Component::Mtp, spec.hidden);
    let next = Names { gguf: format!("blk.{n_layers}.nextn"), hf: "mtp".into() };
    mat(w, at, h, 2 * h, next.of("eh_proj.weight", "fc.weight"));
    norm(w, at, h, next.of("enorm.weight", "pre_fc_norm_embedding.weight"));
    norm(w, at, h, next.of("hnorm.weight", "pre_fc_norm_hidden.weight"));
    norm(w, at, h, next.of("shared_head_norm.weight", "norm.weight"));
    let names = Names { gguf: format!("blk.{n_layers}"), hf: "mtp.layers.0".into() };
    block(w, &names, Place { here: at, experts: at, layer: n_layers }, true, h, c);
}

impl Qwen35Moe {
    fn full(&self, cx: &mut Cx, l: u32, r: &Rows, h: View, a: &Attention) -> Result<View> {
        let c = &self.cfg;
        let (q, gate) = cx.linear(h, a.q, r.class)?.heads(c.n_heads).split(c.head_dim);
        let k = cx.linear(h, a.k, r.class)?.heads(c.n_kv_heads);
        let v = cx.linear(h, a.v, r.class)?.heads(c.n_kv_heads);
        cx.rms_norm_in(q, a.q_norm, c.eps)?;
        cx.rms_norm_in(k, a.k_norm, c.eps)?;
        cx.rope(q, r.pos, &c.rope)?;
        cx.rope(k, r.pos, &c.rope)?;
        cx.append(l, r, k, v)?;
        let y = cx.attention(l, r, q, (c.head_dim as f32).powf(-0.5))?;
        cx.gate(y, gate, ActFn::Sigmoid)?;
        Ok(y.flat())
    }

    fn recurrent(&self, cx: &mut Cx, l: u32, r: &Rows, h: View, g: &Gdn) -> Result<View> {
        let c = &self.cfg;
        let (qkv, z) = (cx.linear(h, g.qkv, r.class)?, cx.linear(h, g.z, r.class)?);
        let (a, b) = (cx.linear(h, g.a, r.class)?, cx.linear(h, g.b, r.class)?);
        let qkv = cx.conv_silu(l, r, qkv, g.conv, c.conv_kernel)?;
        let y = cx.gated_delta(l, r, GdnIn { qkv, a, b, decay: g.decay, dt: g.dt }, c.gdn)?;
        cx.rms_norm_in(y, g.norm, c.eps)?;
        cx.gate(y, z.heads(c.gdn.n_v), ActFn::Silu)?;
        Ok(y.flat())
    }
}

impl Family for Qwen35Moe {
    fn spec(&self) -> &Spec {
        &self.spec
    }
    fn tensors(&self) -> &[Want] {
        &self.wants
    }
    fn state(&self, kv: &[KvSpec]) -> Vec<Decl> {
        let c = &self.cfg;
        let stream = |b: &Block, kv: &KvSpec| match b.mixer {
            Mixer::Full(_) => Stream::History { heads: c.n_kv_heads, d: c.head_dim, fmt: kv.main },
            Mixer::Gdn(_) => Stream::Recurrent {
                state: [c.gdn.n_v, c.gdn.d_k, c.gdn.d_v],
                conv: [c.conv_kernel - 1, c.gdn.channels()],
            },
        };
        let layers = self.layers.iter().zip(kv).zip(0..);
        layers.map(|((b, kv), layer)| Decl { layer, stream: stream(b, kv) }).collect()
    }
    fn export(&self, out: &mut Meta) {
        let (spec, c) = (&self.spec, &self.cfg);
        let key = |name: &str| format!("qwen35moe.{name}");
        out.set("general.architecture", "qwen35moe");
        for (name, value) in [
            ("block_count", spec.n_layers + spec.mtp_layers),
            ("nextn_predict_layers", spec.mtp_layers),
            ("context_length", spec.context),
            ("embedding_length", spec.hidden),
            ("attention.head_count", c.n_heads),
            ("attention.head_count_kv", c.n_kv_heads),
            ("attention.key_length", c.head_dim),
            ("attention.value_length", c.head_dim),
            ("expert_count", c.moe.experts),
            ("expert_used_count", c.moe.router.k),
            ("expert_feed_forward_length", c.moe.inner),
            ("expert_shared_feed_forward_length", c.shared_inner),
            ("full_attention_interval", c.full_interval),
            ("rope.dimension_count", c.rope.dims),
            ("ssm.conv_kernel", c.conv_kernel),
            ("ssm.state_size", c.gdn.d_k),
            ("ssm.group_count", c.gdn.n_k),
            ("ssm.time_step_rank", c.gdn.n_v),
            ("ssm.inner_size", c.gdn.n_v * c.gdn.d_v),
            ("vocab_size", spec.vocab),
        ] {
            out.set(&key(name), value);
        }
        out.set(&key("rope.dimension_sections"), c.mrope.to_vec());
        out.set(&key("rope.freq_base"), c.rope_theta);
        out.set(&key("attention.layer_norm_rms_epsilon"), c.eps);
        let recurrent: Vec<bool> = self.layers.iter().map(|b| matches!(b.mixer, Mixer::Gdn(_))).collect();
        out.set(&key("attention.recurrent_layers"), recurrent);
    }
    fn embed(&self, cx: &mut Cx, r: &Rows, x: &mut Carry) -> Result<()> {
        cx.embed(x.streams[0], self.embed, r.ids)
    }
    fn mix(&self, cx: &mut Cx, l: u32, r: &Rows, x: &mut Carry) -> Result<()> {
        let (w, x) = (&self.layers[l as usize], x.streams[0]);
        cx.scope(|cx| {
            let h = cx.rms_norm(x, w.input_norm, self.cfg.eps)?;
            let (y, out) = match &w.mixer {
                Mixer::Full(a) => (self.full(cx, l, r, h, a)?, a.o),
                Mixer::Gdn(g) => (self.recurrent(cx, l, r, h, g)?, g.out),
            };
            cx.linear_add(x, y, out, r.class)
        })
    }
    fn ffn(&self, cx: &mut Cx, l: u32, r: &Rows, x: &mut Carry, ex: &mut dyn ExpertSource) -> Result<()> {
        let (w, x) = (&self.layers[l as usize], x.streams[0]);
        moe::drive(cx, l, r, ex, &self.cfg.moe, &mut Ffn { w, x, r, eps: self.cfg.eps })
    }
    fn head(&self, cx: &mut Cx, r: &Rows, pick: View, x: &Carry, logits: View) -> Result<()> {
        cx.head(x.streams[0], pick, &self.head, logits, r.class)
    }
}

struct Ffn<'a> {
    w: &'a Block,
    x: View,
    r: &'a Rows,
    eps: f32,
}

impl moe::Mixture for Ffn<'_> {
    fn route(&mut self, cx: &mut Cx) -> Result<(View, View)> {
        let h = cx.rms_norm(self.x, self.w.ffn_norm, self.eps)?;
        Ok((h, cx.linear(h, self.w.router, self.r.class)?))
    }
    fn base(&mut self, cx: &mut Cx, h: View) -> Result<View> {
        let y = cx.mlp(h, &self.w.shared, self.r.class)?;
        let g = cx.linear(h, self.w.shared_gate, self.r.class)?;
        cx.gate(y, g, ActFn::Sigmoid)?;
        Ok(y)
    }
    fn close(&mut self, cx: &mut Cx, sum: View) -> Result<()> {
        cx.add(self.x, sum)
    }
}
