//! Qwen3 mixtures (30B-A3B, 235B-A22B): Qwen3 with routed experts in place of the dense feed-forward.
//!
//! ```text
//! x += W_o attention(rope(norm(W_q h)), rope(norm(W_k h)), W_v h)      h = norm(x); heads are normed before rope
//! x += sum of w_e expert_e(h) over the top k                           h = norm(x)
//! ```
//! The router's weights are a softmax over all experts, of which the chosen ones are divided by their sum where the
//! configuration says so (`norm_topk_prob`; all published models do). There is no shared expert. A configuration may
//! leave layers dense (`mlp_only_layers`, `decoder_sparse_step`); a GGUF file shows them by having no router there.

use crate::decoder::{Decoder, Ffn, Mixer};
use crate::error::Result;
use crate::family::Spec;
use crate::gqa::Heads;
use crate::keys::Keys;
use crate::qwen3::{attention, norms};
use crate::sparse::Shape;
use crate::want::{At, Wants};
use checkpoint::Meta;

/// Name of the architecture in GGUF files.
const ARCH: &str = "qwen3moe";

/// Reads the configuration.
///
/// # Errors
/// Whatever is missing or impossible in it.
pub fn new(c: &Keys) -> Result<Decoder> {
    let mut w = Wants::default();
    // What a configuration that does not name the switch means; GGUF files of the architecture have no other kind.
    let moe = Shape::read(c, false, c.gguf());
    let spec = Spec::read(c, Some(moe.experts()), 0);
    let sparse: Vec<bool> = (0..spec.n_layers).map(|l| c.is_sparse(l)).collect();
    let inner = dense_width(c, &sparse);
    c.only_silu();
    c.no_window();
    let heads = Heads::read(c, &mut w, attention())?;
    let mut keys = Meta::gguf();
    keys.set("general.architecture", ARCH);
    if let Some(n) = inner {
        keys.set(&format!("{ARCH}.feed_forward_length"), n);
    }
    heads.export(ARCH, &mut keys);
    moe.export(ARCH, &mut keys);
    let (norms, hidden) = (norms(&heads), spec.hidden);
    Ok(Decoder::new(c, spec, &norms, keys, w, |w, l| {
        let at = At::layer(l);
        let mixer = |w: &mut Wants| Mixer::Attention(heads.want(w, &at, hidden));
        norms.block(w, &at, hidden, mixer, |w| match inner.filter(|_| !sparse[l as usize]) {
            Some(inner) => Ffn::dense(w, &at, hidden, inner),
            None => Ffn::Sparse(Box::new(moe.want(w, &at, hidden))),
        })
    }))
}

/// Width of dense layers: needed only where there are any.
pub(crate) fn dense_width(c: &Keys, sparse: &[bool]) -> Option<u32> {
    let (hf, gguf) = ("intermediate_size", "feed_forward_length");
    if sparse.iter().all(|&s| s) { c.opt_u32(hf, gguf) } else { Some(c.count(hf, gguf)) }
}
