//! Reading a configuration from either kind of file: every value has a Hugging Face name and a GGUF name.
//! What is missing is collected, so that one error lists it all.

use crate::error::{Error, Result};
use checkpoint::{Checkpoint, Container, DType, Meta};
use serde_json::{Map, Value};
use std::cell::RefCell;

/// Most of anything a configuration may count: beyond it, numbers are damage, and sizes made of them would not fit.
pub const MOST: u32 = 1 << 24;

/// The configuration of one model.
pub struct Keys<'a> {
    ck: &'a Checkpoint,
    meta: &'a Meta,
    arch: String,
    hf: Map<String, Value>,
    /// Rows of the token embedding: the vocabulary, where no key says it.
    embedded: Option<u64>,
    /// Type of the token embedding.
    embed: Option<DType>,
    /// Tensors there are: no model has more layers.
    tensors: usize,
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
        let is_embedding = |name: &str| name == "token_embd.weight" || name.ends_with("embed_tokens.weight");
        let embedding = ck.tensors().find(|t| is_embedding(&t.name));
        let (embedded, embed) = (embedding.and_then(|t| t.shape.first().copied()), embedding.map(|t| t.dtype));
        let none = || Error::NoArchitecture(meta.file().to_string());
        let hf = meta.hf().and_then(|h| h.text_config()).unwrap_or_default();
        let arch = match meta.container() {
            Container::Gguf => meta.str("general.architecture")?.ok_or_else(none)?.to_string(),
            Container::Hf => {
                let t = hf.get("model_type").and_then(Value::as_str).ok_or_else(none)?;
                t.strip_suffix("_text").unwrap_or(t).to_string()
            }
        };
        let tensors = ck.tensors().len();
        Ok(Keys { ck, meta, arch, hf, embedded, embed, tensors, missing: RefCell::default(), bad: RefCell::default() })
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
    /// The first of two Hugging Face names if the file has it, else the second.
    pub fn either<'n>(&self, first: &'n str, second: &'n str) -> &'n str {
        if self.hf(first).is_some() || self.hf(second).is_none() { first } else { second }
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
    /// A count of at least one and at most [`MOST`]. Its absence is noted, and 1 stands for it until
    /// [`done`](Self::done) says so.
    pub fn count(&self, hf: &str, gguf: &str) -> u32 {
        match self.opt_u32(hf, gguf) {
            Some(n) if n == 0 || n > MOST => {
                let why = if n == 0 { "at least 1 is needed".into() } else { format!("more than {MOST} cannot be") };
                self.note(Error::BadKey { key: self.name(hf, gguf), value: n.to_string(), why });
                1
            }
            Some(n) => n,
            None => {
                self.miss(hf, gguf);
                1
            }
        }
    }
    /// A number of layers, of which a file has no more than tensors. (A configuration without any is a plan for a file.)
    pub fn layers(&self, hf: &str, gguf: &str) -> u32 {
        self.no_more_than_tensors(self.count(hf, gguf), hf, gguf).unwrap_or(1)
    }
    fn no_more_than_tensors(&self, n: u32, hf: &str, gguf: &str) -> Option<u32> {
        let most = if self.tensors == 0 { 1024 } else { self.tensors };
        if n as usize <= most {
            return Some(n);
        }
        let why = format!("the file has {} tensors", self.tensors);
        self.note(Error::BadKey { key: self.name(hf, gguf), value: n.to_string(), why });
        None
    }
    /// The error for a GGUF key that is missing.
    pub fn missing_key(&self, gguf: &str) -> Error {
        Error::MissingKeys { arch: self.arch.clone(), keys: vec![self.key(gguf)] }
    }
    /// A count that configurations of the architecture may leave out.
    pub fn count_or(&self, hf: &str, gguf: &str, absent: u32) -> u32 {
        if self.opt_u32(hf, gguf).is_none() { absent } else { self.count(hf, gguf) }
    }
    /// A count that GGUF files give once, or once for each of `n` layers.
    pub fn counts_by_layer(&self, gguf: &str, n: u32) -> Option<Vec<u32>> {
        if self.gguf() { self.gguf_value(gguf, |m, k| m.u32_per_layer(k, n as usize)) } else { None }
    }
    /// Whether the file has a tensor of this name.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.ck.tensor(name).is_some()
    }
    /// A number above zero that must be there.
    pub fn positive(&self, hf: &str, gguf: &str) -> f32 {
        let x = self.f32(hf, gguf);
        self.require(x.is_finite() && x > 0.0, hf, gguf, x, "it must be above zero");
        x
    }
    /// Refuses another word than these under a key, where the file has it.
    pub fn only(&self, hf: &str, words: &[&str]) {
        if let Some(v) = self.hf(hf).filter(|v| !words.iter().any(|w| *v == w)) {
            self.wrong(hf, v, &format!("supported in this architecture: {}", words.join(", ")));
        }
    }
    /// Whether the token embedding is stored in f32; a configuration without tensors is asked for its type.
    pub fn embeds_f32(&self) -> bool {
        match &self.embed {
            Some(t) => *t == DType::F32,
            None => ["dtype", "torch_dtype"].iter().any(|k| self.hf(k).is_some_and(|v| v == "float32")),
        }
    }
    /// Refuses a nonlinearity other than SiLU, where the file names one.
    pub fn only_silu(&self) {
        if let Some(v) = self.hf("hidden_act").filter(|v| *v != "silu") {
            self.wrong("hidden_act", v, "only silu is supported in this architecture");
        }
    }
    /// Refuses sliding windows, where the file asks for them.
    pub fn no_window(&self) {
        if let Some(v) = self.hf("use_sliding_window").filter(|v| **v != Value::Bool(false)) {
            self.wrong("use_sliding_window", v, "sliding windows are not supported in this architecture");
        }
    }
    /// Whether layer `l` of a mixture has routed experts: by `mlp_only_layers` and `decoder_sparse_step`, or by the
    /// router's tensor in a GGUF file.
    pub fn is_sparse(&self, l: u32) -> bool {
        if self.gguf() {
            let router = format!("blk.{l}.ffn_gate_inp.weight");
            return self.ck.tensors().len() == 0 || self.ck.tensor(&router).is_some();
        }
        let listed = self.hf("mlp_only_layers").and_then(Value::as_array);
        let dense = listed.is_some_and(|list| list.iter().any(|v| v.as_u64() == Some(l.into())));
        let step = self.opt_u32("decoder_sparse_step", "").unwrap_or(1);
        !dense && step > 0 && (l + 1).is_multiple_of(step)
    }
    /// Whether the head is a matrix of its own, which the file must then have.
    pub fn untied(&self) -> bool {
        self.hf("tie_word_embeddings") == Some(&Value::Bool(false))
    }
    /// Whether a safetensors file was written by MLX, which turns depthwise convolutions round (`[channels, taps, 1]`) and
    /// adds 1 to norms around zero when it does.
    pub fn turned(&self) -> bool {
        let conv = |t: &&checkpoint::TensorInfo| t.name.ends_with(".conv1d.weight");
        let first = self.ck.tensors().find(conv).filter(|_| !self.gguf());
        first.is_some_and(|t| matches!(t.shape[..], [_, taps, 1] if taps > 1))
    }
    /// Layers of the multi-token predictor.
    pub fn predictors(&self) -> u32 {
        let (hf, gguf) = ("mtp_num_hidden_layers", "nextn_predict_layers");
        self.opt_u32(hf, gguf).and_then(|n| self.no_more_than_tensors(n, hf, gguf)).unwrap_or(0)
    }
    /// A number that must be there.
    pub fn f32(&self, hf: &str, gguf: &str) -> f32 {
        self.opt_f32(hf, gguf).unwrap_or_else(|| {
            self.miss(hf, gguf);
            1.0
        })
    }
    /// Refuses a width made of several counts that is beyond [`MOST`]: products of it would not fit.
    pub fn width(&self, columns: u64, hf: &str, gguf: &str) {
        let why = format!("it makes rows of {columns} elements, and more than {MOST} cannot be");
        self.require(columns <= u64::from(MOST), hf, gguf, columns, &why);
    }
    /// Notes that a condition on a key does not hold; not while something is missing, which values may stand in for.
    pub fn require(&self, ok: bool, hf: &str, gguf: &str, value: impl std::fmt::Display, why: &str) {
        if !ok && self.missing.borrow().is_empty() {
            self.note(Error::BadKey { key: self.name(hf, gguf), value: value.to_string(), why: why.into() });
        }
    }
    /// The first thing that was wrong, else everything that was missing.
    ///
    /// # Errors
    /// [`Error::MissingKeys`] or [`Error::BadKey`].
    pub fn done(&self) -> Result<()> {
        if let Some(bad) = self.bad.borrow_mut().take() {
            return Err(bad);
        }
        let missing = self.missing.borrow();
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::MissingKeys { arch: self.arch.clone(), keys: missing.clone() })
    }
    /// `rope_theta`, wherever this version of the file keeps it.
    pub fn rope_theta(&self) -> f32 {
        let nested = "rope_parameters.rope_theta";
        let hf = if self.hf(nested).is_some() { nested } else { "rope_theta" };
        for root in ["rope_parameters", "rope_scaling"] {
            if let Some(v) = self.hf(root).filter(|v| !v.is_object()) {
                self.wrong(root, v, "an object is needed");
            }
        }
        let theta = self.opt_f32(hf, "rope.freq_base").unwrap_or(10_000.0);
        self.require(theta.is_finite() && theta > 0.0, hf, "rope.freq_base", theta, "it must be above zero");
        theta
    }
    /// Rotating columns of a head of width `d`: the file's number, else `default`.
    pub fn rope_dims(&self, d: u32, default: u32) -> u32 {
        let key = "rope.dimension_count";
        let dims = self.opt_u32("", key).unwrap_or(default);
        let fits = dims >= 2 && dims <= d && dims.is_multiple_of(2);
        self.require(fits, "partial_rotary_factor", key, dims, "it must be even and within a head");
        if fits { dims } else { 2 }
    }
    /// Whether layer `l` is what `kind` says, by `layer_types`; `None` where the file does not list them.
    pub fn layer_is(&self, l: u32, kind: &str) -> Option<bool> {
        let v = self.hf("layer_types")?;
        let named = v.as_array().and_then(|list| list.get(l as usize)).and_then(Value::as_str);
        if named.is_none() {
            self.wrong("layer_types", v, "a list with a name for every layer is needed");
        }
        named.map(|n| n == kind)
    }
    /// Length of the vocabulary: GGUF files may leave it to the token list or to the embedding.
    pub fn vocab(&self) -> u32 {
        let listed = || match self.meta.value("tokenizer.ggml.tokens") {
            Some(checkpoint::Value::Array(a)) => u32::try_from(a.len).ok(),
            _ => self.embedded.and_then(|n| u32::try_from(n).ok()),
        };
        let found = self.opt_u32("vocab_size", "vocab_size").or_else(listed);
        self.require(
            found.is_none_or(|n| n > 0 && n <= MOST),
            "vocab_size",
            "vocab_size",
            found.unwrap_or(0),
            "it cannot be",
        );
        found.filter(|&n| n > 0).unwrap_or_else(|| {
            self.miss("vocab_size", "vocab_size");
            1
        })
    }
}
