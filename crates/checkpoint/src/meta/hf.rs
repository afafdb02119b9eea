//! The JSON files beside safetensors. All of them are optional here; whoever needs one says so.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use crate::{Error, Result};

/// No configuration file is larger; a cap keeps a damaged one from filling memory.
const MAX_CONFIG: u64 = 64 << 20;
/// `tokenizer.json` of the largest vocabularies is about 35 MB.
const MAX_TOKENIZER: u64 = 512 << 20;

/// A Hugging Face directory's files other than weights.
#[derive(Clone, Debug, Default)]
pub struct Hf {
    /// `config.json`.
    pub config: Option<Json>,
    /// `generation_config.json`.
    pub generation: Option<Json>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<Json>,
    dir: Option<PathBuf>,
    template: Option<String>,
}

impl Hf {
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let template = read(&dir.join("chat_template.jinja"), MAX_CONFIG)?
            .map(|b| String::from_utf8(b).map_err(|_| header(&dir.join("chat_template.jinja"), "is not UTF-8".into())))
            .transpose()?;
        Ok(Self {
            config: json(&dir.join("config.json"))?,
            generation: json(&dir.join("generation_config.json"))?,
            tokenizer_config: json(&dir.join("tokenizer_config.json"))?,
            template,
            dir: Some(dir.into()),
        })
    }

    /// The language model's part of `config.json`: `text_config` laid over the top level, so that one lookup serves plain and multimodal checkpoints.
    /// `None` without a `config.json` that is an object.
    pub fn text_config(&self) -> Option<Map<String, Json>> {
        let mut all = self.config.as_ref()?.as_object()?.clone();
        if let Some(Json::Object(inner)) = all.remove("text_config") {
            all.extend(inner);
        }
        Some(all)
    }

    /// `chat_template.jinja`, or else `chat_template` of `tokenizer_config.json` (the one named "default" in a list).
    pub fn chat_template(&self) -> Option<&str> {
        if let Some(t) = &self.template {
            return Some(t);
        }
        match self.tokenizer_config.as_ref()?.get("chat_template")? {
            Json::String(s) => Some(s),
            Json::Array(list) => list.iter().find(|t| t["name"] == "default")?.get("template")?.as_str(),
            _ => None,
        }
    }

    /// Where `tokenizer.json` is, if it is.
    pub fn tokenizer_path(&self) -> Option<PathBuf> {
        self.dir.as_ref().map(|d| d.join("tokenizer.json")).filter(|p| p.is_file())
    }

    /// The contents of `tokenizer.json`, read now.
    ///
    /// # Errors
    /// [`Error::Io`] when it is there but cannot be read.
    pub fn tokenizer_json(&self) -> Result<Option<Vec<u8>>> {
        self.tokenizer_path().map_or(Ok(None), |p| read(&p, MAX_TOKENIZER))
    }

    /// The directory.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }
}

fn header(path: &Path, why: String) -> Error {
    Error::Header { file: path.display().to_string().into(), why }
}

/// A whole file, `None` if there is none.
pub(crate) fn read(path: &Path, max: u64) -> Result<Option<Vec<u8>>> {
    let io = |action| move |source| Error::Io { file: path.display().to_string().into(), action, source };
    let file = match File::open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        f => f.map_err(io("open"))?,
    };
    let mut out = Vec::new();
    file.take(max + 1).read_to_end(&mut out).map_err(io("read"))?;
    if out.len() as u64 > max { Err(header(path, format!("is larger than {} MB", max >> 20))) } else { Ok(Some(out)) }
}

pub(crate) fn json(path: &Path) -> Result<Option<Json>> {
    let Some(bytes) = read(path, MAX_CONFIG)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|e| header(path, format!("is not valid JSON: {e}")))
}
