//! What a checkpoint says about itself: GGUF keys through typed getters, or the JSON files of a Hugging Face directory.

mod hf;
mod value;

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::error::FileName;
use crate::{Error, Result};

pub use hf::Hf;
pub(crate) use hf::json;
pub(crate) use value::Encoded;
pub use value::{Array, Kind, ToMeta, Value};

/// Which kind of container the weights are in.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Container {
    /// One GGUF file or a split set.
    Gguf,
    /// Safetensors with Hugging Face's JSON files beside them.
    Hf,
}

/// A checkpoint's metadata. The GGUF getters find nothing in a Hugging Face checkpoint, and [`Meta::hf`] is `None` for a GGUF.
#[derive(Clone, Debug)]
pub struct Meta {
    file: FileName,
    entries: Vec<(Arc<str>, Encoded)>,
    index: HashMap<Arc<str>, usize>,
    hf: Option<Box<Hf>>,
}

impl Meta {
    /// Empty GGUF metadata, to be filled with [`Meta::set`] and written.
    pub fn gguf() -> Self {
        Self::for_gguf("new GGUF".into())
    }

    pub(crate) fn for_gguf(file: FileName) -> Self {
        Self { file, entries: Vec::new(), index: HashMap::new(), hf: None }
    }

    pub(crate) fn for_hf(file: FileName, hf: Hf) -> Self {
        Self { hf: Some(Box::new(hf)), ..Self::for_gguf(file) }
    }

    /// The container.
    pub fn container(&self) -> Container {
        if self.hf.is_some() { Container::Hf } else { Container::Gguf }
    }

    /// The JSON files of a Hugging Face checkpoint.
    pub fn hf(&self) -> Option<&Hf> {
        self.hf.as_deref()
    }

    /// The file this came from, for messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// `config.json`, if this is a Hugging Face checkpoint that has one.
    pub fn config(&self) -> Option<&Json> {
        self.hf()?.config.as_ref()
    }

    /// The chat template, from whichever place this kind of checkpoint keeps it; the one named "default" if there are several.
    ///
    /// # Errors
    /// When the GGUF key is not a string.
    pub fn chat_template(&self) -> Result<Option<&str>> {
        match self.hf() {
            Some(hf) => Ok(hf.chat_template()),
            None => self.str("tokenizer.chat_template"),
        }
    }

    /// All GGUF keys and values in file order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> {
        self.entries.iter().map(|(k, v)| (&**k, v.value()))
    }

    /// A GGUF value of any type.
    pub fn value(&self, key: &str) -> Option<Value<'_>> {
        self.encoded(key).map(Encoded::value)
    }

    /// Whether a GGUF key is there.
    pub fn has(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// Checks that all these GGUF keys are there.
    ///
    /// # Errors
    /// [`Error::MissingKeys`] with every one that is not.
    pub fn require(&self, keys: &[&str]) -> Result<()> {
        let missing: Vec<String> = keys.iter().filter(|k| !self.has(k)).map(|k| (*k).to_owned()).collect();
        if missing.is_empty() { Ok(()) } else { Err(Error::MissingKeys { file: self.file.clone(), keys: missing }) }
    }

    /// A value that must be there: `meta.need("llama.block_count", Meta::u32)`.
    ///
    /// # Errors
    /// [`Error::MissingKeys`], or the getter's own.
    pub fn need<'a, T>(&'a self, key: &str, get: impl Fn(&'a Self, &str) -> Result<Option<T>>) -> Result<T> {
        get(self, key)?.ok_or_else(|| Error::MissingKeys { file: self.file.clone(), keys: vec![key.to_owned()] })
    }

    /// Sets or replaces a GGUF value.
    pub fn set(&mut self, key: &str, value: impl ToMeta) -> &mut Self {
        self.put(key.into(), Encoded::of(&value));
        self
    }

    /// Sets every GGUF value that `other` has.
    pub fn extend(&mut self, other: &Meta) -> &mut Self {
        for (key, value) in &other.entries {
            self.put(key.clone(), value.clone());
        }
        self
    }

    /// Removes a GGUF value.
    pub fn remove(&mut self, key: &str) {
        if let Some(at) = self.index.remove(key) {
            self.entries.remove(at);
            self.index.values_mut().filter(|i| **i > at).for_each(|i| *i -= 1);
        }
    }

    /// Puts a value; returns false if the key was there before (its value is replaced).
    pub(crate) fn put(&mut self, key: Arc<str>, value: Encoded) -> bool {
        if let Some(at) = self.index.get(&key) {
            self.entries[*at].1 = value;
            return false;
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        true
    }

    pub(crate) fn encoded(&self, key: &str) -> Option<&Encoded> {
        self.index.get(key).map(|at| &self.entries[*at].1)
    }

    pub(crate) fn encoded_entries(&self) -> impl Iterator<Item = (&str, &Encoded)> {
        self.entries.iter().map(|(k, v)| (&**k, v))
    }

    /// An unsigned integer of any stored width that fits 32 bits.
    ///
    /// # Errors
    /// [`Error::WrongType`], or [`Error::Key`] when it does not fit.
    pub fn u32(&self, key: &str) -> Result<Option<u32>> {
        self.get(key, "an integer", |v| self.integer(key, v))
    }

    /// An unsigned integer of any stored width.
    ///
    /// # Errors
    /// [`Error::WrongType`], or [`Error::Key`] when it is negative.
    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.get(key, "an integer", |v| self.integer(key, v))
    }

    /// A number of any stored type.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn f32(&self, key: &str) -> Result<Option<f32>> {
        self.get(key, "a number", |v| Ok(number(v)))
    }

    /// A bool.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.get(key, "a bool", |v| Ok(boolean(v)))
    }

    /// A string.
    ///
    /// # Errors
    /// [`Error::WrongType`], or [`Error::Key`] when it is not UTF-8.
    pub fn str(&self, key: &str) -> Result<Option<&str>> {
        self.get(key, "a string", |v| self.text(key, v))
    }

    /// An array of strings, borrowed from the header.
    ///
    /// # Errors
    /// [`Error::WrongType`], or [`Error::Key`] when one is not UTF-8.
    pub fn strs(&self, key: &str) -> Result<Option<Vec<&str>>> {
        self.array(key, "an array of strings", |v| self.text(key, v))
    }

    /// An array of unsigned integers of any stored width.
    ///
    /// # Errors
    /// [`Error::WrongType`], or [`Error::Key`] when one does not fit 32 bits.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>> {
        self.array(key, "an array of integers", |v| self.integer(key, v))
    }

    /// An array of integers of any stored width.
    ///
    /// # Errors
    /// [`Error::WrongType`], or [`Error::Key`] when one does not fit 32 bits.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>> {
        self.array(key, "an array of integers", |v| self.integer(key, v))
    }

    /// An array of numbers of any stored type.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.array(key, "an array of numbers", |v| Ok(number(v)))
    }

    /// An array of bools.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn bools(&self, key: &str) -> Result<Option<Vec<bool>>> {
        self.array(key, "an array of bools", |v| Ok(boolean(v)))
    }

    /// One unsigned integer for each of `n` layers: stored as an array of that length, or once for all.
    ///
    /// # Errors
    /// [`Error::WrongType`], or [`Error::Key`] when the array has another length or a value does not fit.
    pub fn u32_per_layer(&self, key: &str, n: usize) -> Result<Option<Vec<u32>>> {
        if !matches!(self.value(key), Some(Value::Array(_))) {
            return Ok(self.u32(key)?.map(|x| vec![x; n]));
        }
        let all = self.u32s(key)?.unwrap_or_default();
        if all.len() == n {
            Ok(Some(all))
        } else {
            Err(self.bad(key, format!("has {} values for {n} layers", all.len())))
        }
    }

    fn bad(&self, key: &str, why: String) -> Error {
        Error::Key { file: self.file.clone(), key: key.to_owned(), why }
    }

    /// `decode` answers `None` for a value of a type it does not take.
    fn get<'a, T>(
        &'a self,
        key: &str,
        want: &'static str,
        decode: impl Fn(Value<'a>) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let Some(stored) = self.encoded(key) else { return Ok(None) };
        decode(stored.value())?.map(Some).ok_or_else(|| self.wrong(key, want, stored.kind.name().to_owned()))
    }

    fn array<'a, T>(
        &'a self,
        key: &str,
        want: &'static str,
        decode: impl Fn(Value<'a>) -> Result<Option<T>>,
    ) -> Result<Option<Vec<T>>> {
        let Some(stored) = self.encoded(key) else { return Ok(None) };
        let Value::Array(a) = stored.value() else { return Err(self.wrong(key, want, stored.kind.name().to_owned())) };
        let wrong = || self.wrong(key, want, format!("{} of {}", Kind::Array.name(), a.kind.name()));
        if a.kind == Kind::Array {
            return Err(wrong());
        }
        a.iter().map(|v| decode(v)?.ok_or_else(wrong)).collect::<Result<Vec<T>>>().map(Some)
    }

    fn wrong(&self, key: &str, want: &'static str, have: String) -> Error {
        Error::WrongType { file: self.file.clone(), key: key.to_owned(), want, have }
    }

    fn integer<T: TryFrom<u64> + TryFrom<i64>>(&self, key: &str, v: Value<'_>) -> Result<Option<T>> {
        let fits = match v {
            Value::Unsigned(x) => T::try_from(x).ok(),
            Value::Signed(x) => T::try_from(x).ok(),
            _ => return Ok(None),
        };
        fits.map(Some).ok_or_else(|| self.bad(key, format!("{v} is out of range")))
    }

    fn text<'a>(&self, key: &str, v: Value<'a>) -> Result<Option<&'a str>> {
        let Value::Str(b) = v else { return Ok(None) };
        std::str::from_utf8(b).map(Some).map_err(|_| self.bad(key, format!("{v} is not UTF-8")))
    }
}

fn number(v: Value<'_>) -> Option<f32> {
    match v {
        Value::Float(x) => Some(x as f32),
        Value::Unsigned(x) => Some(x as f32),
        Value::Signed(x) => Some(x as f32),
        _ => None,
    }
}

fn boolean(v: Value<'_>) -> Option<bool> {
    if let Value::Bool(b) = v { Some(b) } else { None }
}
