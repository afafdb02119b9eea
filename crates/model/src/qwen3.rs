//! Qwen3, dense: blocks of grouped-query attention with normed heads and a SwiGLU feed-forward.
//!
//! ```text
//! x += W_o attention(rope(norm(W_q h)), rope(norm(W_k h)), W_v h)      h = norm(x); heads are normed before rope
//! x += W_down (silu(W_gate h) * W_up h)                                h = norm(x)
//! ```
//! All columns of a head rotate, halves paired. Norms are plain in both kinds of file. There are no biases.

use crate::decoder::{Decoder, Ffn, Mixer, Norms};
use crate::error::Result;
use crate::family::Spec;
use crate::gqa::{Heads, Kind};
use crate::keys::Keys;
use crate::want::{At, Wants};
use checkpoint::Meta;
use weights::Canon;

/// Name of the architecture in GGUF files.
const ARCH: &str = "qwen3";

/// Reads the configuration.
///
/// # Errors
/// Whatever is missing or impossible in it.
pub fn new(c: &Keys) -> Result<Decoder> {
    let mut w = Wants::default();
    let spec = Spec::read(c, None, 0);
    let inner = c.count("intermediate_size", "feed_forward_length");
    c.only_silu();
    c.no_window();
    let heads = Heads::read(c, &mut w, attention())?;
    let mut keys = Meta::gguf();
    keys.set("general.architecture", ARCH).set(&format!("{ARCH}.feed_forward_length"), inner);
    heads.export(ARCH, &mut keys);
    let (norms, hidden) = (norms(&heads), spec.hidden);
    Ok(Decoder::new(c, spec, &norms, keys, w, |w, l| {
        let at = At::layer(l);
        let mixer = |w: &mut Wants| Mixer::Attention(heads.want(w, &at, hidden));
        norms.block(w, &at, hidden, mixer, |w| Ffn::dense(w, &at, hidden, inner))
    }))
}

/// Attention as all of Qwen3 has it.
pub(crate) fn attention() -> Kind {
    Kind { head_dim: 128, rotating: 1.0, gated: false, norms: Canon::Same }
}

/// The norms of all of Qwen3.
pub(crate) fn norms(heads: &Heads) -> Norms {
    Norms { eps: heads.eps, canon: Canon::Same, ffn: "ffn_norm.weight" }
}
