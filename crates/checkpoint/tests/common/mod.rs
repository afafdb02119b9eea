//! GGUF and safetensors files put together by hand, so that they can be wrong in any way.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::sync::Arc;

use checkpoint::{Checkpoint, Error, Result, Source, ToMeta};

/// A GGUF in pieces.
#[derive(Clone)]
pub struct Raw {
    pub version: u32,
    pub pairs: Vec<Vec<u8>>,
    pub tensors: Vec<Vec<u8>>,
    pub data: Vec<u8>,
    pub alignment: usize,
    /// Counts to claim instead of the true ones.
    pub n_tensors: Option<u64>,
    pub n_pairs: Option<u64>,
}

impl Raw {
    pub fn new() -> Self {
        Self { version: 3, pairs: vec![], tensors: vec![], data: vec![], alignment: 32, n_tensors: None, n_pairs: None }
    }

    pub fn key(mut self, key: &str, value: impl ToMeta) -> Self {
        let mut b = string(key);
        b.extend((value.kind() as u32).to_le_bytes());
        value.put(&mut b);
        self.pairs.push(b);
        self
    }

    /// Dimensions fastest first, as in the file.
    pub fn tensor(mut self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Self {
        let mut b = string(name);
        b.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|d| b.extend(d.to_le_bytes()));
        b.extend(ty.to_le_bytes());
        b.extend(offset.to_le_bytes());
        self.tensors.push(b);
        self
    }

    pub fn data(mut self, bytes: usize) -> Self {
        self.data = (0..bytes).map(|i| (i * 7 + i / 256) as u8).collect();
        self
    }

    pub fn header(&self) -> Vec<u8> {
        let mut b = b"GGUF".to_vec();
        b.extend(self.version.to_le_bytes());
        b.extend(self.n_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        b.extend(self.n_pairs.unwrap_or(self.pairs.len() as u64).to_le_bytes());
        self.pairs.iter().chain(&self.tensors).for_each(|p| b.extend(p));
        b
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut b = self.header();
        if !self.data.is_empty() {
            b.resize(b.len().next_multiple_of(self.alignment), 0);
            b.extend(&self.data);
        }
        b
    }

    pub fn open(&self) -> Result<Checkpoint> {
        open(self.bytes())
    }

    /// The error of opening this, as text. Panics if it opens.
    pub fn error(&self) -> String {
        self.open().unwrap_err().to_string()
    }
}

pub fn string(s: &str) -> Vec<u8> {
    let mut b = (s.len() as u64).to_le_bytes().to_vec();
    b.extend(s.as_bytes());
    b
}

pub fn open(bytes: impl Into<Arc<[u8]>>) -> Result<Checkpoint> {
    Checkpoint::open(Source::Bytes(bytes.into()))
}

pub fn error(bytes: impl Into<Arc<[u8]>>) -> Error {
    open(bytes).unwrap_err()
}

/// A small valid GGUF with every kind of value and several types.
pub fn valid_gguf() -> Vec<u8> {
    Raw::new()
        .key("general.architecture", "llama")
        .key("general.alignment", 32u32)
        .key("llama.block_count", 2u32)
        .key("llama.feed_forward_length", vec![64u32, 96])
        .key("llama.rope.freq_base", 1e4f32)
        .key("a.bool", true)
        .key("a.bools", vec![true, false])
        .key("a.i64", -5i64)
        .key("a.nested", vec![vec![1u8, 2], vec![3]])
        .key("tokenizer.ggml.tokens", vec!["a", "bc", ""])
        .key("tokenizer.ggml.token_type", vec![1i32, 1, 3])
        .tensor("norm", &[8], 0, 0)
        .tensor("q8", &[32, 3], 8, 32)
        .tensor("exps", &[32, 2, 4], 2, 160)
        .data(160 + 144)
        .bytes()
}

/// A safetensors file from its JSON text and data.
pub fn safetensors(json: &str, data: &[u8]) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes(), json.as_bytes(), data].concat()
}

/// A small valid safetensors file.
pub fn valid_safetensors() -> Vec<u8> {
    let json = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[16,28]},"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"s":{"dtype":"U8","shape":[],"data_offsets":[28,29]}}"#;
    safetensors(json, &[7; 29])
}
