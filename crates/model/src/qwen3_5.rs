//! Qwen3.5, dense (3.5, 3.6 and 3.8 of 27B and their kin): three Gated DeltaNet layers, then one of gated attention,
//! each followed by a SwiGLU feed-forward.
//!
//! ```text
//! full      [q | gate] = W_q h per head;  y = attention(rope(norm(q)), rope(norm(k)), v) * sigmoid(gate)
//! recurrent qkv = silu(conv(W_qkv h));    y = norm(gated_delta(qkv, W_a h, W_b h)) * silu(W_z h)
//! x += W_o y
//! x += W_down (silu(W_gate h) * W_up h)                                      h = norm(x)
//! ```
//! Norms, value heads and the predictor are as in [`qwen3_5_moe`](crate::qwen3_5_moe). Checkpoints that also see have
//! their language model under `text_config` and `model.language_model`, and a vision tower that nothing here uses.

use crate::decoder::{Decoder, Ffn};
use crate::error::Result;
use crate::family::Spec;
use crate::gdn::Naming;
use crate::hybrid::Hybrid;
use crate::keys::Keys;
use crate::want::Wants;
use checkpoint::Meta;

/// Name of the architecture in GGUF files.
const ARCH: &str = "qwen35";

/// Reads the configuration.
///
/// # Errors
/// Whatever is missing or impossible in it.
pub fn new(c: &Keys) -> Result<Decoder> {
    let mut w = Wants::default();
    let spec = Spec::read(c, None, c.predictors());
    let inner = c.count("intermediate_size", "feed_forward_length");
    c.only_silu();
    let hybrid = Hybrid::read(c, &mut w, spec.n_layers, Naming::Apart)?;
    let mut keys = Meta::gguf();
    keys.set("general.architecture", ARCH).set(&format!("{ARCH}.feed_forward_length"), inner);
    hybrid.export(ARCH, spec.mtp_layers, &mut keys);
    let hidden = spec.hidden;
    let ffn = |w: &mut Wants, at: &_| Ffn::dense(w, at, hidden, inner);
    let d = Decoder::new(c, spec, &hybrid.norms, keys, w, |w, l| hybrid.block(w, l, hidden, ffn));
    Ok(d.with_predictor(&hybrid.norms, |w, at| hybrid.attending(w, at, hidden, |w| ffn(w, at))))
}
