//! A `tokenizer.json` as GGUF keys.

use anyhow::{Context, Result, bail};
use checkpoint::Meta;
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    pre_tokenizer: Option<Value>,
    normalizer: Option<Value>,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: HashMap<String, u32>,
    #[serde(default)]
    merges: Vec<Merge>,
}

/// Newer files keep pairs, older ones a string with a space between.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Joined(String),
}

/// Writes the vocabulary. A checkpoint without a tokenizer gives a file without one.
///
/// # Errors
/// A tokenizer that GGUF keys cannot describe.
pub fn export(meta: &mut Meta, from: &Meta, vocab: u32) -> Result<()> {
    let Some(hf) = from.hf() else { return Ok(()) };
    let Some(json) = hf.tokenizer_json()? else { return Ok(()) };
    let file: File = serde_json::from_slice(&json).context("tokenizer.json")?;
    if file.model.kind.as_deref().is_some_and(|k| k != "BPE") || file.model.byte_fallback {
        bail!("tokenizer.json is not a byte-level BPE; its vocabulary cannot be written yet");
    }
    let pre = text::pre_name(file.normalizer.as_ref(), file.pre_tokenizer.as_ref(), file.model.ignore_merges);
    let Some(pre) = pre else { bail!("the splitting rule of tokenizer.json has no name in GGUF files") };
    meta.set("tokenizer.ggml.model", "gpt2");
    meta.set("tokenizer.ggml.pre", pre);
    let (tokens, types) = tokens(&file, vocab)?;
    meta.set("tokenizer.ggml.tokens", tokens);
    meta.set("tokenizer.ggml.token_type", types);
    let merges: Vec<String> = file.model.merges.iter().map(Merge::joined).collect();
    meta.set("tokenizer.ggml.merges", merges);
    ids(meta, from)
}

impl Merge {
    fn joined(&self) -> String {
        match self {
            Merge::Pair(a, b) => format!("{a} {b}"),
            Merge::Joined(s) => s.clone(),
        }
    }
}

/// Tokens and their types by id; ids nobody names are filled in.
fn tokens(file: &File, vocab: u32) -> Result<(Vec<String>, Vec<i32>)> {
    let most = file.model.vocab.values().copied().chain(file.added_tokens.iter().map(|a| a.id)).max();
    if most.is_some_and(|m| m >= vocab) {
        bail!("tokenizer.json has ids beyond the vocabulary of {vocab}");
    }
    let mut tokens: Vec<String> = (0..vocab).map(|i| format!("[PAD{i}]")).collect();
    let mut types = vec![UNUSED; vocab as usize];
    for (t, &id) in &file.model.vocab {
        tokens[id as usize].clone_from(t);
        types[id as usize] = NORMAL;
    }
    for a in &file.added_tokens {
        tokens[a.id as usize].clone_from(&a.content);
        types[a.id as usize] = if a.special { CONTROL } else { USER_DEFINED };
    }
    Ok((tokens, types))
}

fn ids(meta: &mut Meta, from: &Meta) -> Result<()> {
    let t = engine::open::tokenizer(from)?;
    let Some(t) = t else { return Ok(()) };
    meta.set("tokenizer.ggml.add_bos_token", t.add_bos());
    if let Some(id) = t.bos() {
        meta.set("tokenizer.ggml.bos_token_id", id);
    }
    if let Some(id) = t.eos() {
        meta.set("tokenizer.ggml.eos_token_id", id);
    }
    Ok(())
}
