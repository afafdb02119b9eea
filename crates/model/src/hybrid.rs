//! Qwen's hybrids: layers of the gated delta rule with one of gated attention after every few of them.
//!
//! Norms are `1 + w` in safetensors files and plain in GGUF files and in those that MLX wrote. Attention has normed heads and a gate as wide as the
//! query, and rotates only the first columns of a head. Text positions are the same in all axes of the interleaved
//! multi-axis rope that some of these models have, so it is plain rope here; files carry the axes' shares on.

use crate::decoder::{Block, Ffn, Mixer, Norms};
use crate::error::Result;
use crate::gdn::{self, Naming};
use crate::gqa::{Heads, Kind};
use crate::keys::Keys;
use crate::want::{At, Wants};
use checkpoint::Meta;
use weights::Canon;

/// What the mixers of a hybrid are like.
#[derive(Clone, Debug)]
pub struct Hybrid {
    heads: Heads,
    gdn: gdn::Shape,
    /// By layer: whether it attends.
    full: Vec<bool>,
    /// One layer in this many attends.
    interval: u32,
    /// Frequencies of the multi-axis rope by axis, where the file names them.
    axes: Option<[u32; 4]>,
    /// What its norms are like.
    pub norms: Norms,
}

impl Hybrid {
    /// Reads the mixers of `n_layers` layers.
    ///
    /// # Errors
    /// Whatever is missing or impossible in the configuration.
    pub fn read(c: &Keys, w: &mut Wants, n_layers: u32, naming: Naming) -> Result<Self> {
        let key = "full_attention_interval";
        let interval = c.opt_u32(key, key).filter(|&n| n > 0).unwrap_or(4);
        let recurrent = c.opt_bools("attention.recurrent_layers").unwrap_or_default();
        let full = |l: u32| {
            let listed = c.layer_is(l, "full_attention").or_else(|| recurrent.get(l as usize).map(|r| !r));
            listed.unwrap_or((l + 1).is_multiple_of(interval))
        };
        let full = (0..n_layers).map(full).collect();
        let gdn = gdn::Shape::read(c, naming);
        let canon = if c.turned() { Canon::Same } else { Canon::PlusOne };
        let heads = Heads::read(c, w, Kind { head_dim: 256, rotating: 0.25, gated: true, norms: canon.clone() })?;
        let norms = Norms { eps: heads.eps, canon, ffn: "post_attention_norm.weight" };
        Ok(Hybrid { heads, gdn, full, interval, axes: axes(c), norms })
    }
    /// Wants layer `l` of the model, around a feed-forward.
    pub fn block(&self, w: &mut Wants, l: u32, hidden: u32, ffn: impl FnOnce(&mut Wants, &At) -> Ffn) -> Block {
        let at = At::layer(l);
        if self.full.get(l as usize).is_none_or(|&f| f) {
            return self.attending(w, &at, hidden, |w| ffn(w, &at));
        }
        let mixer = |w: &mut Wants| Mixer::Gdn(self.gdn.want(w, &at, hidden));
        self.norms.block(w, &at, hidden, mixer, |w| ffn(w, &at))
    }
    /// Wants a block that attends.
    pub fn attending(&self, w: &mut Wants, at: &At, hidden: u32, ffn: impl FnOnce(&mut Wants) -> Ffn) -> Block {
        self.norms.block(w, at, hidden, |w| Mixer::Attention(self.heads.want(w, at, hidden)), ffn)
    }
    /// Writes the mixers as keys of architecture `arch`, of whose blocks the last `predictors` are those of a predictor: they
    /// are in the list of blocks too, and attend.
    pub fn export(&self, arch: &str, predictors: u32, out: &mut Meta) {
        let key = |name: &str| format!("{arch}.{name}");
        self.heads.export(arch, out);
        self.gdn.export(arch, out);
        out.set(&key("full_attention_interval"), self.interval);
        let predictors = std::iter::repeat_n(false, predictors as usize);
        let recurrent: Vec<bool> = self.full.iter().map(|f| !f).chain(predictors).collect();
        out.set(&key("attention.recurrent_layers"), recurrent);
        if let Some(axes) = self.axes {
            out.set(&key("rope.dimension_sections"), axes.to_vec());
        }
    }
}

/// How many frequencies of the multi-axis rope follow each axis.
fn axes(c: &Keys) -> Option<[u32; 4]> {
    let hf = c.hf("rope_parameters.mrope_section").or_else(|| c.hf("rope_scaling.mrope_section"));
    let listed: Vec<u32> = match hf.and_then(|v| v.as_array()) {
        Some(list) => list.iter().filter_map(|v| v.as_u64()).map(|n| n as u32).collect(),
        None => c.opt_u32s("rope.dimension_sections").unwrap_or_default(),
    };
    match listed[..] {
        [t, h, w] | [t, h, w, _] => Some([t, h, w, 0]),
        _ => None,
    }
}
