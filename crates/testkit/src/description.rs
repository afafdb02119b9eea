//! Descriptions of the tiny models: `models/NAME.json`.

use serde::Deserialize;

use crate::{Error, fill};

macro_rules! table {
    ($($name:literal),* $(,)?) => {
        /// Names of the tiny models.
        pub const NAMES: &[&str] = &[$($name),*];
        /// (name, description, expected numbers)
        const FILES: &[(&str, &str, &str)] = &[$((
            $name,
            include_str!(concat!("../models/", $name, ".json")),
            include_str!(concat!("../expected/", $name, ".json")),
        )),*];
    };
}
table![
    "llama-a",
    "llama-b",
    "qwen2-a",
    "qwen3-a",
    "qwen3-b",
    "qwen3_5-a",
    "qwen3_5-b",
    "qwen3_5_moe-a",
    "qwen3_5_moe-b",
    "qwen3_moe-a",
    "qwen3_moe-b",
    "qwen3_next-a",
    "qwen3_next-b",
    "gpt_oss-a",
    "gpt_oss-b",
    "gemma3-a",
    "gemma3-b",
    "gemma4-a",
    "gemma4_moe-a",
    "gemma4_moe-b",
    "gemma4_e-a",
    "gemma4_e-b",
    "glm4_moe-a",
    "glm4_moe-b",
];

/// A described model.
#[derive(Debug, Clone)]
pub struct TinyModel {
    /// One of [`NAMES`].
    pub name: String,
    /// What is particular about it.
    pub about: String,
    /// Seed of all its tensors.
    pub seed: u64,
    /// Contents of its config.json.
    pub config: serde_json::Value,
    /// Every tensor, in file order.
    pub tensors: Vec<Tensor>,
}

/// One tensor of a tiny model; f32, row-major, shape as the checkpoint's publisher stores it (matrices [out, in]).
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Full name in the checkpoint.
    pub name: String,
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    /// Values lie in `offset + 2^scale_log2 * [-1, 1)`.
    pub scale_log2: i32,
    /// Centre of the values.
    pub offset: f32,
}

impl Tensor {
    /// Number of values.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// The values under a model's seed.
    pub fn values(&self, seed: u64) -> Vec<f32> {
        let mut out = vec![0.0; self.numel()];
        fill(seed, &self.name, self.scale_log2, self.offset, &mut out);
        out
    }
}

impl TinyModel {
    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|t| t.name == name)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    about: String,
    seed: u64,
    config: serde_json::Value,
    tensors: Vec<Template>,
}

/// A tensor, or one per layer of `layers` (for `{l}` in the name), or one per expert of 0..`experts` (for `{e}`).
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Template {
    name: String,
    shape: Vec<usize>,
    scale_log2: i32,
    offset: f32,
    layers: Option<Vec<usize>>,
    experts: Option<usize>,
}

impl Template {
    fn expand(&self, into: &mut Vec<Tensor>) {
        for l in self.layers.as_deref().unwrap_or(&[0]) {
            for e in 0..self.experts.unwrap_or(1) {
                let name = self.name.replace("{l}", &l.to_string()).replace("{e}", &e.to_string());
                let Self { shape, scale_log2, offset, .. } = self;
                into.push(Tensor { name, shape: shape.clone(), scale_log2: *scale_log2, offset: *offset });
            }
        }
    }
}

/// The description of a tiny model, its tensor templates expanded.
pub fn model(name: &str) -> Result<TinyModel, Error> {
    let (text, _) = files(name)?;
    let file: File = serde_json::from_str(text).map_err(|e| Error::malformed(name, "description", e))?;
    let mut tensors = Vec::new();
    file.tensors.iter().for_each(|t| t.expand(&mut tensors));
    Ok(TinyModel { name: name.to_owned(), about: file.about, seed: file.seed, config: file.config, tensors })
}

/// The two committed files of a model: description, expected numbers.
pub(crate) fn files(name: &str) -> Result<(&'static str, &'static str), Error> {
    FILES.iter().find(|f| f.0 == name).map(|f| (f.1, f.2)).ok_or_else(|| Error::UnknownModel(name.to_owned()))
}
