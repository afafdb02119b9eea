//! Qwen3.5 mixtures (3.5 and 3.6 35B-A3B and their kin): three Gated DeltaNet layers, then one of gated attention, each
//! followed by a mixture of routed experts beside a gated shared expert.
//!
//! ```text
//! full      [q | gate] = W_q h per head;  y = attention(rope(norm(q)), rope(norm(k)), v) * sigmoid(gate)
//! recurrent qkv = silu(conv(W_qkv h));    y = norm(gated_delta(qkv, W_a h, W_b h)) * silu(W_z h)
//! x += W_o y
//! x += sigmoid(w_s h) * shared(h) + sum of top-k experts                     h = norm(x)
//! ```
//! Norms are `1 + w` in safetensors files and plain in GGUF files, except the norm inside the recurrent mixer, which is
//! plain in both. Value head j of the recurrent mixer uses key head `j / (n_v / n_k)` in safetensors files and `j % n_k`
//! in GGUF files, whose value heads are reordered. A predictor of further tokens may be in the file.

use crate::decoder::{Decoder, Ffn};
use crate::error::Result;
use crate::family::Spec;
use crate::gdn::Naming;
use crate::hybrid::Hybrid;
use crate::keys::Keys;
use crate::sparse::Shape;
use crate::want::Wants;
use checkpoint::Meta;

/// Name of the architecture in GGUF files.
const ARCH: &str = "qwen35moe";

/// Reads the configuration.
///
/// # Errors
/// Whatever is missing or impossible in it.
pub fn new(c: &Keys) -> Result<Decoder> {
    let mut w = Wants::default();
    let moe = Shape::read(c, true, true);
    let spec = Spec::read(c, Some(moe.experts()), c.predictors());
    c.only_silu();
    let hybrid = Hybrid::read(c, &mut w, spec.n_layers, Naming::Apart)?;
    let mut keys = Meta::gguf();
    keys.set("general.architecture", ARCH);
    hybrid.export(ARCH, spec.mtp_layers, &mut keys);
    moe.export(ARCH, &mut keys);
    let hidden = spec.hidden;
    let ffn = |w: &mut Wants, at: &_| Ffn::Sparse(Box::new(moe.want(w, at, hidden)));
    let d = Decoder::new(c, spec, &hybrid.norms, keys, w, |w, l| hybrid.block(w, l, hidden, ffn));
    Ok(d.with_predictor(&hybrid.norms, |w, at| hybrid.attending(w, at, hidden, |w| ffn(w, at))))
}
