//! What the Gemma families share: names of a layer's parameters, the factor of embeddings, the nonlinearity.

use crate::cx::Mlp;
use crate::keys::Keys;
use crate::want::Wants;
use device::Glu;
use half::bf16;
use memory::Component;
use weights::{Canon, WId};

/// Ends of a norm's names, in GGUF and in safetensors files.
pub type Norm = (&'static str, &'static str);

/// Before attention.
pub const INPUT: Norm = ("attn_norm", "input_layernorm");
/// Of query heads.
pub const QUERY: Norm = ("attn_q_norm", "self_attn.q_norm");
/// Of key heads.
pub const KEY: Norm = ("attn_k_norm", "self_attn.k_norm");
/// Behind attention.
pub const POST_ATTENTION: Norm = ("post_attention_norm", "post_attention_layernorm");
/// Before the dense feed-forward.
pub const PRE_FFN: Norm = ("ffn_norm", "pre_feedforward_layernorm");
/// Behind the feed-forward.
pub const POST_FFN: Norm = ("post_ffw_norm", "post_feedforward_layernorm");

/// Wants parameters of one layer, by the ends of their names.
pub struct Blocks {
    at: Component,
    gguf: String,
    hf: String,
}

impl Blocks {
    /// Layer `l`.
    pub fn new(l: u32) -> Self {
        Blocks { at: Component::Layer(l), gguf: format!("blk.{l}"), hf: format!("~layers.{l}") }
    }
    /// The roots of the names, in GGUF and in safetensors files.
    pub fn roots(&self) -> (&str, &str) {
        (&self.gguf, &self.hf)
    }
    /// A matrix `[n, k]`.
    pub fn mat(&self, w: &mut Wants, n: u32, k: u32, gguf: &str, hf: &str) -> WId {
        w.mat(self.at, n, k, format!("{}.{gguf}.weight", self.gguf), format!("{}.{hf}.weight", self.hf))
    }
    /// A norm of `n`, stored in safetensors files as `canon` says.
    pub fn norm(&self, w: &mut Wants, n: u32, (gguf, hf): Norm, canon: Canon) -> WId {
        let (gguf, hf) = (format!("{}.{gguf}.weight", self.gguf), format!("{}.{hf}.weight", self.hf));
        w.vec_as(self.at, n, gguf, hf, canon)
    }
    /// A vector of `n`, by its whole endings.
    pub fn vec(&self, w: &mut Wants, n: u32, gguf: &str, hf: &str) -> WId {
        w.vec(self.at, n, format!("{}.{gguf}", self.gguf), format!("{}.{hf}", self.hf))
    }
    /// The dense feed-forward of width `inner`.
    pub fn mlp(&self, w: &mut Wants, hidden: u32, inner: u32) -> Mlp {
        Mlp {
            gate: self.mat(w, inner, hidden, "ffn_gate", "mlp.gate_proj"),
            up: self.mat(w, inner, hidden, "ffn_up", "mlp.up_proj"),
            down: self.mat(w, hidden, inner, "ffn_down", "mlp.down_proj"),
            glu: Glu::GegluTanh,
        }
    }
}

/// `sqrt(n)`, by which embeddings are multiplied: rounded to bfloat16 unless the embedding is f32. The models were
/// trained with the rounded number, and transformers takes it in the type of the weights.
pub fn root(c: &Keys, n: u32) -> f32 {
    let exact = (n as f32).sqrt();
    if c.embeds_f32() { exact } else { bf16::from_f32(exact).to_f32() }
}

/// Refuses another nonlinearity than the tanh form of GELU, where the file names one.
pub fn only_gelu(c: &Keys) {
    c.only("hidden_activation", &["gelu_pytorch_tanh"]);
}
