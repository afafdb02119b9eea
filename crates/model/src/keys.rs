//! Reading a configuration from either kind of file: every value has a Hugging Face name and a GGUF name.
//! What is missing is collected, so that one error lists it all.

use crate::error::{Error, Result};
use checkpoint::{Checkpoint, Container, Meta};
use serde_json::{Map, Value};
use std::cell::RefCell;

/// The configuration of one model.
pub struct Keys<'a> {
    meta: &'a Meta,
    arch: String,
    hf: Map<String, Value>,
    /// Rows of a GGUF file's embedding: its vocabulary, where no key says it.
    embedded: Option<u64>,
    missing: RefCell<Vec<String>>,
    bad: RefCell<Option<Error>>,
}

impl<'a> Keys<'a> {
    /// The configuration of a checkpoint, with the architecture it names (`model_type` without a `_text` ending, or
    /// `general.architecture`).
    ///
    /// # Errors
    /// [`Error::NoArchitecture`].
    pub fn new(ck: &'a Checkpoint) -> Result<Self> {
        let meta = ck.meta();
        let embedded = ck.tensor("token_embd.weight").and_then(|t| t.shape.first().copied());
        let none = || Error::NoArchitecture(meta.file().to_string());
        let hf = meta.hf().and_then(|h| h.text_config()).unwrap_or_default();
        let arch = match meta.container() {
            Container::Gguf => meta.str("general.architecture")?.ok_or_else(none)?.to_string(),
            Container::Hf => {
                let t = hf.get("model_type").and_then(Value::as_str).ok_or_else(none)?;
                t.strip_suffix("_text").unwrap_or(t).to_string()
            }
        };
        Ok(Keys { meta, arch, hf, embedded, missing: RefCell::default(), bad: RefCell::default() })
    }
    /// The architecture's name in the file.
    pub fn arch(&self) -> &str {
        &self.arch
    }
    /// Whether the file is a GGUF.
    pub fn gguf(&self) -> bool {
        self.meta.container() == Container::Gguf
    }
    fn name(&self, hf: &str, gguf: &str) -> String {
        if self.gguf() { self.key(gguf) } else { hf.to_string() }
    }
    fn key(&self, gguf: &str) -> String {
        format!("{}.{gguf}", self.arch)
    }
    fn note(&self, e: Error) {
        self.bad.borrow_mut().get_or_insert(e);
    }
    fn miss(&self, hf: &str, gguf: &str) {
        self.missing.borrow_mut().push(self.name(hf, gguf));
    }
    /// A Hugging Face value, by a path of names separated by dots.
    pub fn hf(&self, path: &str) -> Option<&Value> {
        let mut parts = path.split('.');
        let first = self.hf.get(parts.next()?)?;
        parts.try_fold(first, |v, p| v.get(p)).filter(|v| !v.is_null())
    }
    fn gguf_value<T>(&self, key: &str, get: impl Fn(&Meta, &str) -> checkpoint::Result<Option<T>>) -> Option<T> {
        get(self.meta, &self.key(key)).unwrap_or_else(|e| {
            self.note(e.into());
            None
        })
    }
    fn wrong(&self, key: &str, v: &Value, why: &str) {
        self.note(Error::BadKey { key: key.into(), value: v.to_string(), why: why.into() });
    }
    /// An integer that may be absent.
    pub fn opt_u32(&self, hf: &str, gguf: &str) -> Option<u32> {
        if self.gguf() {
            return self.gguf_value(gguf, |m, k| m.u32(k));
        }
        let v = self.hf(hf)?;
        let n = v.as_u64().and_then(|n| u32::try_from(n).ok());
        if n.is_none() {
            self.wrong(hf, v, "a whole number is needed");
        }
        n
    }
    /// A number that may be absent.
    pub fn opt_f32(&self, hf: &str, gguf: &str) -> Option<f32> {
        if self.gguf() {
            return self.gguf_value(gguf, |m, k| m.f32(k));
        }
        let v = self.hf(hf)?;
        let n = v.as_f64().map(|n| n as f32);
        if n.is_none() {
            self.wrong(hf, v, "a number is needed");
        }
        n
    }
    /// A GGUF string that may be absent.
    pub fn opt_str(&self, gguf: &str) -> Option<String> {
        self.gguf_value(gguf, |m, k| Ok(m.str(k)?.map(str::to_string)))
    }
    /// A GGUF list of integers that may be absent.
    pub fn opt_u32s(&self, gguf: &str) -> Option<Vec<u32>> {
        if self.gguf() { self.gguf_value(gguf, |m, k| m.u32s(k)) } else { None }
    }
    /// A GGUF list of switches that may be absent.
    pub fn opt_bools(&self, gguf: &str) -> Option<Vec<bool>> {
        if self.gguf() { self.gguf_value(gguf, |m, k| m.bools(k)) } else { None }
    }
    /// A switch that may be absent.
    pub fn opt_bool(&self, hf: &str, gguf: &str) -> Option<bool> {
        if self.gguf() { self.gguf_value(gguf, |m, k| m.bool(k)) } else { self.hf(hf)?.as_bool() }
    }
    /// A count of at least one. Its absence is noted, and 1 stands for it until [`done`](Self::done) says so.
    pub fn count(&self, hf: &str, gguf: &str) -> u32 {
        match self.opt_u32(hf, gguf) {
            Some(0) => {
                let key = self.name(hf, gguf);
                self.note(Error::BadKey { key, value: "0".into(), why: "at least 1 is needed".into() });
                1
            }
            Some(n) => n,
            None => {
                self.miss(hf, gguf);
                1
            }
        }
    }
    /// A number that must be there.
    pub fn f32(&self, hf: &str, gguf: &str) -> f32 {
        self.opt_f32(hf, gguf).unwrap_or_else(|| {
            self.miss(hf, gguf);
            1.0
        })
    }
    /// Notes that a condition on a key does not hold.
    pub fn require(&self, ok: bool, hf: &str, gguf: &str, value: impl std::fmt::Display, why: &str) {
        if !ok {
            self.note(Error::BadKey { key: self.name(hf, gguf), value: value.to_string(), why: why.into() });
        }
    }
    /// The first thing that was wrong, or everything that was missing.
    ///
    /// # Errors
    /// [`Error::MissingKeys`] or [`Error::BadKey`].
    pub fn done(&self) -> Result<()> {
        let missing = self.missing.borrow();
        if !missing.is_empty() {
            return Err(Error::MissingKeys { arch: self.arch.clone(), keys: missing.clone() });
        }
        self.bad.borrow_mut().take().map_or(Ok(()), Err)
    }
    /// `rope_theta`, wherever this version of the file keeps it.
    pub fn rope_theta(&self) -> f32 {
        let hf =
            if self.hf("rope_parameters.rope_theta").is_some() { "rope_parameters.rope_theta" } else { "rope_theta" };
        self.opt_f32(hf, "rope.freq_base").unwrap_or(10_000.0)
    }
    /// Length of the vocabulary: GGUF files may leave it to the token list or to the embedding.
    pub fn vocab(&self) -> u32 {
        let listed = || match self.meta.value("tokenizer.ggml.tokens") {
            Some(checkpoint::Value::Array(a)) => u32::try_from(a.len).ok(),
            _ => self.embedded.and_then(|n| u32::try_from(n).ok()),
        };
        let found = self.opt_u32("vocab_size", "vocab_size").or_else(listed).filter(|&n| n > 0);
        found.unwrap_or_else(|| {
            self.miss("vocab_size", "vocab_size");
            1
        })
    }
}
