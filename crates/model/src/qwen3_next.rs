//! Qwen3-Next (80B-A3B): the hybrid that Qwen3.5 grew out of, with a mixture in every layer.
//!
//! ```text
//! full      [q | gate] = W_q h per head;  y = attention(rope(norm(q)), rope(norm(k)), v) * sigmoid(gate)
//! recurrent qkv = silu(conv(W_qkv h));    y = norm(gated_delta(qkv, W_a h, W_b h)) * silu(W_z h)
//! x += W_o y
//! x += sigmoid(w_s h) * shared(h) + sum of top-k experts                     h = norm(x)
//! ```
//! Norms are `1 + w` in safetensors files and plain in GGUF files, except the norm inside the recurrent mixer, which is
//! plain in both. Value head j uses key head `j / (n_v / n_k)` in both. Safetensors files keep W_qkv and W_z in one
//! tensor and W_b and W_a in another, their rows key head by key head; GGUF files keep only the latter two together.
//! A configuration may leave layers dense, as in [`qwen3_moe`](crate::qwen3_moe).

use crate::decoder::{Decoder, Ffn};
use crate::error::Result;
use crate::family::Spec;
use crate::gdn::Naming;
use crate::hybrid::Hybrid;
use crate::keys::Keys;
use crate::qwen3_moe::dense_width;
use crate::sparse::Shape;
use crate::want::Wants;
use checkpoint::Meta;

/// Name of the architecture in GGUF files.
const ARCH: &str = "qwen3next";

/// Reads the configuration.
///
/// # Errors
/// Whatever is missing or impossible in it.
pub fn new(c: &Keys) -> Result<Decoder> {
    let mut w = Wants::default();
    let moe = Shape::read(c, true, true);
    let spec = Spec::read(c, Some(moe.experts()), 0);
    let sparse: Vec<bool> = (0..spec.n_layers).map(|l| c.is_sparse(l)).collect();
    let inner = dense_width(c, &sparse);
    c.only_silu();
    let hybrid = Hybrid::read(c, &mut w, spec.n_layers, Naming::PerKeyHead)?;
    let mut keys = Meta::gguf();
    keys.set("general.architecture", ARCH);
    if let Some(n) = inner {
        keys.set(&format!("{ARCH}.feed_forward_length"), n);
    }
    hybrid.export(ARCH, spec.mtp_layers, &mut keys);
    moe.export(ARCH, &mut keys);
    let hidden = spec.hidden;
    Ok(Decoder::new(c, spec, &hybrid.norms, keys, w, |w, l| {
        hybrid.block(w, l, hidden, |w, at| match inner.filter(|_| !sparse[l as usize]) {
            Some(inner) => Ffn::dense(w, at, hidden, inner),
            None => Ffn::Sparse(Box::new(moe.want(w, at, hidden))),
        })
    }))
}
