//! The configuration, from either kind of file, and back to GGUF keys.

use super::ARCH;
use crate::cx::RopeOf;
use crate::error::Result;
use crate::family::Spec;
use crate::gemma;
use crate::keys::Keys;
use crate::moe::Moe;
use crate::rope::Rope;
use crate::want::Wants;
use checkpoint::Meta;
use device::{ExpertBias, Glu, Pairing, Router};

/// Every layer of this number is full, where no file lists them.
const INTERVAL: u32 = 6;

/// What differs from layer to layer.
#[derive(Copy, Clone, Debug)]
pub struct OfLayer {
    pub sliding: bool,
    pub head_dim: u32,
    pub n_kv_heads: u32,
    /// The layer whose history is read: itself, but for the last `shared` ones.
    pub history: u32,
    /// Width of the dense feed-forward.
    pub inner: u32,
    /// Whether values are the keys before norm and rope.
    pub k_is_v: bool,
}

/// Embeddings per layer.
#[derive(Copy, Clone, Debug)]
pub struct PerLayerSize {
    /// Columns of a layer.
    pub width: u32,
    /// Rows of the table.
    pub vocab: u32,
}

pub struct Config {
    pub n_heads: u32,
    pub eps: f32,
    pub window: u32,
    pub embed_scale: f32,
    pub softcap: Option<f32>,
    pub layers: Vec<OfLayer>,
    shared: u32,
    /// Of full and of windowed layers.
    rotations: [Rope; 2],
    pub ropes: [RopeOf; 2],
    pub moe: Option<Moe>,
    pub per_layer: Option<PerLayerSize>,
}

impl Config {
    pub fn new(c: &Keys, w: &mut Wants, spec: &Spec) -> Result<Self> {
        let n_heads = c.count("num_attention_heads", "attention.head_count");
        let eps = c.positive("rms_norm_eps", "attention.layer_norm_rms_epsilon");
        let window = c.count("sliding_window", "attention.sliding_window");
        let shared_key = ("num_kv_shared_layers", "attention.shared_kv_layers");
        let shared = c.opt_u32(shared_key.0, shared_key.1).unwrap_or(0);
        c.require(shared < spec.n_layers, shared_key.0, shared_key.1, shared, "some layer must have keys of its own");
        let cap_key = ("final_logit_softcapping", "final_logit_softcapping");
        let softcap = c.opt_f32(cap_key.0, cap_key.1);
        let above = softcap.is_none_or(|cap| cap > 0.0);
        c.require(above, cap_key.0, cap_key.1, softcap.unwrap_or(0.0), "it must be above zero");
        gemma::only_gelu(c);
        c.only("use_bidirectional_attention", &["vision"]);
        let layers = layers(c, spec, n_heads, shared);
        let moe = mixture(c);
        let width = c.opt_u32("hidden_size_per_layer_input", "embedding_length_per_layer_input").filter(|&n| n > 0);
        let all = u64::from(width.unwrap_or(0)) * u64::from(spec.n_layers);
        c.width(all, "hidden_size_per_layer_input", "embedding_length_per_layer_input");
        let vocab = c.opt_u32("vocab_size_per_layer_input", "").unwrap_or(spec.vocab);
        let per_layer = width.map(|width| PerLayerSize { width, vocab });
        let embed_scale = gemma::root(c, spec.hidden);
        c.done()?;
        let rotations = rotations(c, &layers)?;
        c.done()?;
        let ropes = [w.rope(&rotations[0], Pairing::Half), w.rope_apart(&rotations[1], Pairing::Half)];
        Ok(Config { n_heads, eps, window, embed_scale, softcap, layers, shared, rotations, ropes, moe, per_layer })
    }

    pub fn export(&self, spec: &Spec, out: &mut Meta) {
        let key = |name: &str| format!("{ARCH}.{name}");
        out.set("general.architecture", ARCH);
        let of = |sliding: bool| self.layers.iter().find(|l| l.sliding == sliding).map_or(0, |l| l.head_dim);
        for (name, value) in [
            ("block_count", spec.n_layers),
            ("context_length", spec.context),
            ("embedding_length", spec.hidden),
            ("attention.head_count", self.n_heads),
            ("attention.key_length", of(false)),
            ("attention.value_length", of(false)),
            ("attention.key_length_swa", of(true)),
            ("attention.value_length_swa", of(true)),
            ("attention.sliding_window", self.window),
            ("attention.shared_kv_layers", self.shared),
            ("embedding_length_per_layer_input", self.per_layer.map_or(0, |p| p.width)),
            ("rope.dimension_count", of(false)),
            ("rope.dimension_count_swa", of(true)),
            ("vocab_size", spec.vocab),
        ] {
            out.set(&key(name), value);
        }
        let each = |f: fn(&OfLayer) -> u32| self.layers.iter().map(f).collect::<Vec<u32>>();
        out.set(&key("attention.head_count_kv"), each(|l| l.n_kv_heads));
        out.set(&key("feed_forward_length"), each(|l| l.inner));
        let sliding: Vec<bool> = self.layers.iter().map(|l| l.sliding).collect();
        out.set(&key("attention.sliding_window_pattern"), sliding);
        out.set(&key("attention.layer_norm_rms_epsilon"), self.eps);
        if let Some(cap) = self.softcap {
            out.set(&key("final_logit_softcapping"), cap);
        }
        if let Some(m) = self.moe {
            out.set(&key("expert_count"), m.experts);
            out.set(&key("expert_used_count"), m.router.k);
            out.set(&key("expert_feed_forward_length"), m.inner);
        }
        self.rotations[0].export(ARCH, out);
        out.set(&key("rope.freq_base_swa"), self.rotations[1].theta);
    }
}

fn layers(c: &Keys, spec: &Spec, n_heads: u32, shared: u32) -> Vec<OfLayer> {
    let n = spec.n_layers;
    let pattern = c.opt_bools("attention.sliding_window_pattern").unwrap_or_default();
    let sliding = |l: u32| {
        let listed = c.layer_is(l, "sliding_attention").or_else(|| pattern.get(l as usize).copied());
        listed.unwrap_or(!(l + 1).is_multiple_of(INTERVAL))
    };
    let kinds: Vec<bool> = (0..n).map(sliding).collect();
    let widths = widths(c, n, shared);
    let first = n.saturating_sub(shared);
    let of = |l: u32| {
        let sliding = kinds[l as usize];
        let (head_dim, n_kv_heads) = if c.gguf() { heads_gguf(c, n, l, sliding) } else { heads_hf(c, l, sliding) };
        let kv = ("num_key_value_heads", "attention.head_count_kv");
        let whole = n_kv_heads > 0 && n_heads.is_multiple_of(n_kv_heads);
        c.require(whole, kv.0, kv.1, n_kv_heads, "it must divide the number of heads");
        let even = head_dim.is_multiple_of(2) && head_dim > 0;
        c.require(even, "head_dim", "attention.key_length", head_dim, "it must be even");
        c.width(u64::from(n_heads) * u64::from(head_dim), "num_attention_heads", "attention.head_count");
        let before = (0..first).rev().find(|&j| kinds[j as usize] == sliding);
        let lonely = l >= first && before.is_none();
        c.require(
            !lonely,
            "num_kv_shared_layers",
            "attention.shared_kv_layers",
            shared,
            "a kind has no layer to share",
        );
        let history = if l < first { l } else { before.unwrap_or(0) };
        let k_is_v = !sliding
            && if c.gguf() {
                !c.has_tensor(&format!("blk.{l}.attn_v.weight"))
            } else {
                c.opt_bool("attention_k_eq_v", "").unwrap_or(false)
            };
        OfLayer { sliding, head_dim, n_kv_heads, history, inner: widths[l as usize], k_is_v }
    };
    (0..n).map(of).collect()
}

/// Widths of the dense feed-forward.
fn widths(c: &Keys, n: u32, shared: u32) -> Vec<u32> {
    if c.gguf() {
        return c.counts_by_layer("feed_forward_length", n).unwrap_or_else(|| {
            c.count("", "feed_forward_length");
            vec![1; n as usize]
        });
    }
    let inner = c.count("intermediate_size", "");
    let wider = if c.opt_bool("use_double_wide_mlp", "").unwrap_or(false) { 2 } else { 1 };
    (0..n).map(|l| if l >= n.saturating_sub(shared) { inner * wider } else { inner }).collect()
}

fn heads_gguf(c: &Keys, n: u32, l: u32, sliding: bool) -> (u32, u32) {
    let length = if sliding { "attention.key_length_swa" } else { "attention.key_length" };
    let kv = c.counts_by_layer("attention.head_count_kv", n).and_then(|all| all.get(l as usize).copied());
    (c.count("", length), kv.unwrap_or_else(|| c.count("", "attention.head_count_kv")))
}

/// A list of what single layers have otherwise, or one more pair of keys for all full layers.
fn heads_hf(c: &Keys, l: u32, sliding: bool) -> (u32, u32) {
    let usual = (c.count("head_dim", ""), c.count("num_key_value_heads", ""));
    if c.hf("per_layer_config").is_some() {
        let of = |key: &str, usual| c.opt_u32(&format!("per_layer_config.{l}.{key}"), "").unwrap_or(usual);
        return (of("head_dim", usual.0), of("num_key_value_heads", usual.1));
    }
    if sliding {
        return usual;
    }
    let same = c.opt_bool("attention_k_eq_v", "").unwrap_or(false);
    let kv = if same { c.opt_u32("num_global_key_value_heads", "") } else { None };
    (c.opt_u32("global_head_dim", "").unwrap_or(512), kv.unwrap_or(usual.1))
}

fn mixture(c: &Keys) -> Option<Moe> {
    let there = if c.gguf() {
        c.opt_u32("", "expert_count").is_some_and(|n| n > 0)
    } else {
        c.opt_bool("enable_moe_block", "").unwrap_or(false)
    };
    if !there {
        return None;
    }
    let experts = c.count("num_experts", "expert_count");
    let used = ("top_k_experts", "expert_used_count");
    let k = c.count(used.0, used.1);
    c.require(k <= experts, used.0, used.1, k, "there are fewer experts");
    let inner = c.count("moe_intermediate_size", "expert_feed_forward_length");
    let router = Router { renormalise: true, ..Router::softmax(k) };
    Some(Moe { experts, inner, router, bias: ExpertBias::default(), glu: Glu::GegluTanh })
}

/// Of full and of windowed layers.
fn rotations(c: &Keys, layers: &[OfLayer]) -> Result<[Rope; 2]> {
    let dims = |sliding: bool| layers.iter().find(|l| l.sliding == sliding).map_or(2, |l| l.head_dim);
    let theta = |kind: &str, gguf: &str, usual: f32| {
        let hf = format!("rope_parameters.{kind}.rope_theta");
        let theta = c.opt_f32(&hf, gguf).unwrap_or(usual);
        c.require(theta.is_finite() && theta > 0.0, &hf, gguf, theta, "it must be above zero");
        theta
    };
    let full = theta("full_attention", "rope.freq_base", 1e6);
    let windowed = theta("sliding_attention", "rope.freq_base_swa", 1e4);
    let root = "rope_parameters.full_attention";
    Ok([Rope::read_under(c, root, full, dims(false))?, Rope::unscaled(windowed, dims(true))])
}
