//! The door every architecture stands behind.

use crate::cx::Cx;
use crate::drafter::Drafter;
use crate::error::{Error, Result};
use crate::keys::Keys;
use crate::want::Want;
use crate::{gemma3, gemma4, glm4_moe, gpt_oss, llama, qwen3, qwen3_5, qwen3_5_moe, qwen3_moe, qwen3_next};
use checkpoint::{Checkpoint, Meta};
use device::{Rows, View};
use memory::KvSpec;
use smallvec::SmallVec;
use state::Decl;
use weights::{ExpertSource, WId};

/// What is the same to say of every model.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Architecture, as the file names it.
    pub arch: String,
    /// Layers.
    pub n_layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Length of the vocabulary.
    pub vocab: u32,
    /// Positions it was trained for.
    pub context: u32,
    /// Routed experts of a layer and how many a row uses; `None` for dense models.
    pub experts: Option<(u32, u32)>,
    /// Layers of the multi-token predictor.
    pub mtp_layers: u32,
}

impl Spec {
    /// Reads what every configuration says in the same way. A GGUF file counts the blocks of a predictor among its own.
    pub fn read(c: &Keys, experts: Option<(u32, u32)>, mtp_layers: u32) -> Self {
        let blocks = c.layers("num_hidden_layers", "block_count");
        let n_layers = if c.gguf() { blocks.saturating_sub(mtp_layers).max(1) } else { blocks };
        Spec {
            arch: c.arch().to_string(),
            n_layers,
            hidden: c.count("hidden_size", "embedding_length"),
            vocab: c.vocab(),
            context: c.count("max_position_embeddings", "context_length"),
            experts,
            mtp_layers,
        }
    }
    /// Writes it as GGUF keys of the architecture that is named there.
    pub fn export(&self, out: &mut Meta) {
        let arch = out.str("general.architecture").ok().flatten().unwrap_or(&self.arch).to_string();
        for (name, value) in [
            ("block_count", self.n_layers.saturating_add(self.mtp_layers)),
            ("context_length", self.context),
            ("embedding_length", self.hidden),
            ("vocab_size", self.vocab),
        ] {
            out.set(&format!("{arch}.{name}"), value);
        }
        if self.mtp_layers > 0 {
            out.set(&format!("{arch}.nextn_predict_layers"), self.mtp_layers);
        }
    }
}

/// What a row carries from layer to layer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CarrySpec {
    /// Residual streams.
    pub streams: u32,
    /// Width of each.
    pub width: u32,
}

/// A step's rows between layers.
#[derive(Clone, Debug)]
pub struct Carry {
    /// Residual streams, f32 `[rows, H]` each.
    pub streams: SmallVec<[View; 4]>,
    /// f32 `[rows, width]`: what was read for the rows' ids, of families that have a [`SideTable`].
    pub side: Option<View>,
}

/// A table too large to be in memory, of which a row is read from the file for every token of a step, before its pass.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SideTable {
    /// The table, `[vocab, width]`.
    pub table: WId,
    /// Columns.
    pub width: u32,
}

impl Carry {
    /// Rows `first .. first + n` of every stream.
    pub fn rows(&self, first: u32, n: u32) -> Carry {
        let streams = self.streams.iter().map(|s| s.rows(first, n)).collect();
        Carry { streams, side: self.side.map(|s| s.rows(first, n)) }
    }
}

/// An architecture with its configuration.
pub trait Family: Send + Sync {
    /// What it is.
    fn spec(&self) -> &Spec;
    /// Parameters it needs, by number.
    fn tensors(&self) -> &[Want];
    /// What a sequence keeps, with `kv` for each layer's history.
    fn state(&self, kv: &[KvSpec]) -> Vec<Decl>;
    /// Layers that read what layer `l` keeps: more than itself where later ones have no history of their own.
    fn readers(&self, _l: u32) -> u32 {
        1
    }
    /// Writes the configuration as GGUF keys, with the architecture's name there.
    fn export(&self, out: &mut Meta);
    /// What a row carries between layers.
    fn carry(&self) -> CarrySpec {
        CarrySpec { streams: 1, width: self.spec().hidden }
    }
    /// The table whose rows a step's ids need beside the embedding.
    fn side(&self) -> Option<SideTable> {
        None
    }
    /// Token ids to the residual streams.
    fn embed(&self, cx: &mut Cx, r: &Rows, x: &mut Carry) -> Result<()>;
    /// Attention or recurrence of layer `l`, over at most a chunk of rows.
    fn mix(&self, cx: &mut Cx, l: u32, r: &Rows, x: &mut Carry) -> Result<()>;
    /// Feed-forward of layer `l`, over any number of rows.
    fn ffn(&self, cx: &mut Cx, l: u32, r: &Rows, x: &mut Carry, ex: &mut dyn ExpertSource) -> Result<()>;
    /// The rows that `pick` names, to `logits` `[m, vocab]`.
    fn head(&self, cx: &mut Cx, r: &Rows, pick: View, x: &Carry, logits: View) -> Result<()>;
    /// What proposes tokens ahead of it. The checkpoint may still lack its parameters.
    fn drafter(&self) -> Option<&dyn Drafter> {
        None
    }
}

/// Architectures by the name a GGUF file has for them, then by `model_type`.
const SUPPORTED: [&str; 17] = [
    "llama",
    "qwen2",
    "qwen3",
    "qwen3moe",
    "qwen3_moe",
    "qwen3next",
    "qwen3_next",
    "qwen35",
    "qwen3_5",
    "qwen35moe",
    "qwen3_5_moe",
    "gpt-oss",
    "gpt_oss",
    "gemma3",
    "gemma4",
    "glm4moe",
    "glm4_moe",
];

/// Names of the architectures that can be opened.
pub fn supported() -> &'static [&'static str] {
    &SUPPORTED
}

/// The family of a checkpoint.
///
/// # Errors
/// [`Error::UnknownArchitecture`], and whatever is wrong with the configuration.
pub fn open(ck: &Checkpoint) -> Result<Box<dyn Family>> {
    let keys = Keys::new(ck)?;
    match keys.arch() {
        "llama" | "qwen2" => Ok(Box::new(llama::Llama::new(&keys)?)),
        "qwen3" => Ok(Box::new(qwen3::new(&keys)?)),
        "qwen3moe" | "qwen3_moe" => Ok(Box::new(qwen3_moe::new(&keys)?)),
        "qwen3next" | "qwen3_next" => Ok(Box::new(qwen3_next::new(&keys)?)),
        "qwen35" | "qwen3_5" => Ok(Box::new(qwen3_5::new(&keys)?)),
        "qwen35moe" | "qwen3_5_moe" => Ok(Box::new(qwen3_5_moe::new(&keys)?)),
        "gpt-oss" | "gpt_oss" => Ok(Box::new(gpt_oss::GptOss::new(&keys)?)),
        "gemma3" => Ok(Box::new(gemma3::Gemma3::new(&keys)?)),
        "gemma4" => Ok(Box::new(gemma4::Gemma4::new(&keys)?)),
        "glm4moe" | "glm4_moe" => Ok(Box::new(glm4_moe::Glm4Moe::new(&keys)?)),
        "clip" => Err(Error::BadKey {
            key: "general.architecture".into(),
            value: "clip".into(),
            why: "this is the vision tower of a model, and vision is not supported yet; open the language model's file"
                .into(),
        }),
        other => Err(Error::UnknownArchitecture { found: other.to_string(), supported: SUPPORTED.to_vec() }),
    }
}
