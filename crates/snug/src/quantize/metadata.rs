//! Metadata of the new file.

use super::Options;
use super::tensors::Job;
use checkpoint::{Block, DType, Meta};
use memory::Component;
use model::Spec;
use serde_json::Value;
use std::collections::HashMap;
use weights::Bound;

/// A checkpoint whose configuration names a predictor that its files do not have is written without one.
pub fn without_predictor(meta: &mut Meta, spec: &Spec, bounds: &[Bound]) {
    if spec.mtp_layers == 0 || bounds.iter().any(|b| b.component == Component::Mtp) {
        return;
    }
    let Ok(Some(arch)) = meta.str("general.architecture").map(|s| s.map(str::to_string)) else { return };
    meta.set(&format!("{arch}.block_count"), spec.n_layers);
    meta.set(&format!("{arch}.nextn_predict_layers"), 0u32);
    let recurrent = format!("{arch}.attention.recurrent_layers");
    if let Ok(Some(mut each)) = meta.bools(&recurrent) {
        each.truncate(spec.n_layers as usize);
        meta.set(&recurrent, each);
    }
}

/// Name, sampling defaults and chat template of a safetensors directory.
pub fn describe(meta: &mut Meta, from: &Meta) {
    meta.set("general.name", engine::open::name(from));
    let Some(hf) = from.hf() else { return };
    if let Some(template) = hf.chat_template() {
        meta.set("tokenizer.chat_template", template);
    }
    let Some(g) = &hf.generation else { return };
    let names =
        [("temperature", "temp"), ("top_p", "top_p"), ("min_p", "min_p"), ("repetition_penalty", "penalty_repeat")];
    for (hf, gguf) in names {
        if let Some(x) = g.get(hf).and_then(Value::as_f64) {
            meta.set(&format!("general.sampling.{gguf}"), x as f32);
        }
    }
    if let Some(k) = g.get("top_k").and_then(Value::as_i64) {
        meta.set("general.sampling.top_k", k.clamp(0, i32::MAX as i64) as i32);
    }
}

/// What follows from the tensors, and what the user wants set.
pub fn finish(meta: &mut Meta, jobs: &[Job], how: &Options) {
    meta.set("general.quantization_version", 2u32);
    meta.set("general.file_type", file_type(jobs.iter().map(|j| (j.to, j.bytes()))));
    for (key, value) in &how.meta {
        meta.set(key, value.as_str());
    }
}

/// GGUF's number for the type that most bytes have (llama.cpp's `llama_ftype`), from each tensor's type and bytes.
pub fn file_type(tensors: impl Iterator<Item = (DType, u64)>) -> u32 {
    let mut by: HashMap<DType, u64> = HashMap::new();
    for (dtype, bytes) in tensors {
        *by.entry(dtype).or_default() += bytes;
    }
    match by.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(t, _)| t) {
        Some(DType::F16) => 1,
        Some(DType::BF16) => 32,
        Some(DType::Block(Block::Q4_0)) => 2,
        Some(DType::Block(Block::Q4_1)) => 3,
        Some(DType::Block(Block::Q8_0)) => 7,
        Some(DType::Block(Block::Q5_0)) => 8,
        Some(DType::Block(Block::Q5_1)) => 9,
        Some(DType::Block(Block::Q4K)) => 14,
        Some(DType::Block(Block::Q5K)) => 16,
        Some(DType::Block(Block::Q6K)) => 18,
        Some(DType::Block(Block::Mxfp4)) => 38,
        _ => 0,
    }
}
