//! Tokenizers from a Hugging Face checkpoint: `tokenizer.json` and the small files beside it.

use std::{borrow::Cow, collections::HashMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Value, value::RawValue};
use tokenizers::{Model, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper};

use super::{
    Core, Ids, Tokenizer,
    added::{Added, AddedToken},
    bpe::{BpeParts, Pipeline},
    byte_level, end_ids,
    pieces::{Kind, Pieces},
    spm::{byte_of, unescape},
};
use crate::{Error, Result};

/// The bytes of a checkpoint's text files.
#[derive(Debug, Clone, Copy, Default)]
pub struct HfFiles<'a> {
    /// `tokenizer.json`
    pub tokenizer: &'a [u8],
    /// `tokenizer_config.json`
    pub config: Option<&'a [u8]>,
    /// `special_tokens_map.json`
    pub special_tokens_map: Option<&'a [u8]>,
    /// `generation_config.json`: its `eos_token_id` is the authority on what ends a generation.
    pub generation_config: Option<&'a [u8]>,
}

#[derive(Deserialize)]
struct TokenizerJson<'a> {
    #[serde(default)]
    added_tokens: Vec<AddedJson>,
    #[serde(borrow, default)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(default)]
    post_processor: Option<Value>,
    #[serde(default)]
    decoder: Option<Value>,
    #[serde(borrow)]
    model: &'a RawValue,
}

#[derive(Deserialize)]
struct AddedJson {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
}

/// The fields of a BPE model, borrowed from the file where it has no escapes.
#[derive(Deserialize)]
struct BpeJson<'a> {
    #[serde(borrow)]
    vocab: Vocab<'a>,
    #[serde(borrow)]
    merges: Vec<Merge<'a>>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: Option<bool>,
}

#[derive(Deserialize)]
struct ModelHead<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(default)]
    merges: Option<de::IgnoredAny>,
}

pub fn build(files: &HfFiles<'_>) -> Result<Tokenizer> {
    let json: TokenizerJson<'_> = parse("tokenizer.json", files.tokenizer)?;
    let normalizer = part::<NormalizerWrapper>("normalizer", json.normalizer)?;
    let pre = part::<PreTokenizerWrapper>("pre_tokenizer", json.pre_tokenizer)?;
    let (model, vocab) = model(json.model)?;
    let decoder = Decoder::read(json.decoder.as_ref())?;

    let config = Config::read(files)?;
    let added_ids: HashMap<&str, u32> = json.added_tokens.iter().map(|t| (t.content.as_str(), t.id)).collect();
    let id_of = |t: &str| added_ids.get(t).copied().or_else(|| model.token_to_id(t));
    let ids = config.ids(&json, &id_of, decoder.strip_first_space)?;

    let pieces = pieces(&vocab, &json.added_tokens, &ids, &decoder)?;
    let added = json.added_tokens.into_iter().map(|t| AddedToken {
        id: t.id,
        content: t.content,
        special: t.special,
        lstrip: t.lstrip,
        rstrip: t.rstrip,
        single_word: t.single_word,
    });
    let added = Added::new(added.collect())?;
    Ok(Tokenizer {
        core: Core::Pipeline(Box::new(Pipeline { normalizer, pre, model })),
        added,
        pieces,
        ids,
        vocabulary: Default::default(),
    })
}

fn parse<'a, T: Deserialize<'a>>(file: &str, bytes: &'a [u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| Error::key(file, e.to_string()))
}

fn part<T: for<'d> Deserialize<'d>>(field: &str, raw: Option<&RawValue>) -> Result<Option<T>> {
    let bad = |e: serde_json::Error| Error::key(format!("tokenizer.json: {field}"), e.to_string());
    raw.filter(|r| r.get() != "null").map(|r| serde_json::from_str(r.get()).map_err(bad)).transpose()
}

/// (token, id) in the file's order.
type Tokens<'a> = Vec<(Cow<'a, str>, u32)>;

fn model(raw: &RawValue) -> Result<(ModelWrapper, Tokens<'_>)> {
    let bad = |e: serde_json::Error| Error::key("tokenizer.json: model", e.to_string());
    let head: ModelHead<'_> = serde_json::from_str(raw.get()).map_err(bad)?;
    if head.kind.as_deref() == Some("BPE") || (head.kind.is_none() && head.merges.is_some()) {
        let bpe: BpeJson<'_> = serde_json::from_str(raw.get()).map_err(bad)?;
        // Files from before the flag existed were written for models that have no use for it.
        let parts = BpeParts {
            vocab: bpe.vocab.0.iter().map(|(t, id)| (t.as_ref(), *id)),
            merges: bpe.merges.iter().map(|m| (m.left(), m.right())),
            unk_token: bpe.unk_token.as_deref(),
            continuing_subword_prefix: bpe.continuing_subword_prefix.as_deref().filter(|p| !p.is_empty()),
            end_of_word_suffix: bpe.end_of_word_suffix.as_deref().filter(|p| !p.is_empty()),
            fuse_unk: bpe.fuse_unk,
            byte_fallback: bpe.byte_fallback,
            ignore_merges: bpe.ignore_merges.unwrap_or(false),
        };
        let model = parts.build("tokenizer.json: model.merges")?;
        return Ok((model.into(), bpe.vocab.0));
    }
    let model: ModelWrapper = serde_json::from_str(raw.get()).map_err(bad)?;
    let vocab = model.get_vocab().into_iter().map(|(t, id)| (Cow::Owned(t), id)).collect();
    Ok((model, vocab))
}

fn pieces(vocab: &Tokens<'_>, added: &[AddedJson], ids: &Ids, decoder: &Decoder) -> Result<Pieces> {
    let count = vocab.len() + added.len();
    let max = vocab.iter().map(|(_, id)| *id).chain(added.iter().map(|t| t.id)).max().unwrap_or(0) as usize;
    if max > 2 * count + 65536 {
        return Err(Error::key("tokenizer.json: model.vocab", format!("{count} tokens, but an id of {max}")));
    }
    let mut by_id: Vec<Option<(&str, bool, bool)>> = vec![None; max + 1];
    for (token, id) in vocab {
        by_id[*id as usize] = Some((token, false, false));
    }
    for t in added {
        by_id[t.id as usize] = Some((&t.content, true, t.special));
    }
    let mut pieces = Pieces::with_capacity(by_id.len());
    for (id, slot) in by_id.iter().enumerate() {
        match slot {
            None => pieces.push(Kind::Hole, |_| ()),
            Some((token, is_added, special_by_file)) => {
                let special = *special_by_file || ids.eog.contains(&(id as u32)) || ids.bos == Some(id as u32);
                let kind = if special { Kind::Special } else { Kind::Text };
                // Added tokens are spelled as they read, except that a few vocabularies add runs of `▁`.
                let literal = *is_added && (*special_by_file || !decoder.metaspace);
                pieces.push(kind, |out| {
                    if literal { out.extend_from_slice(token.as_bytes()) } else { decoder.write(token, out) }
                });
            }
        }
    }
    Ok(pieces)
}

/// How ids are read back.
#[derive(Default)]
struct Decoder {
    byte_level: bool,
    metaspace: bool,
    byte_fallback: bool,
    strip_first_space: bool,
}

impl Decoder {
    fn read(json: Option<&Value>) -> Result<Self> {
        let mut d = Self::default();
        if let Some(json) = json.filter(|j| !j.is_null()) {
            d.add(json, 0)?;
        }
        Ok(d)
    }

    fn add(&mut self, step: &Value, depth: usize) -> Result<()> {
        let kind = step["type"].as_str().unwrap_or_default();
        match kind {
            "Sequence" if depth < 4 => {
                for s in step["decoders"].as_array().into_iter().flatten() {
                    self.add(s, depth + 1)?;
                }
            }
            "ByteLevel" => self.byte_level = true,
            "ByteFallback" => self.byte_fallback = true,
            "Fuse" => {}
            "Strip" if step["content"] == " " => self.strip_first_space |= step["start"].as_u64() == Some(1),
            "Replace" if step["pattern"]["String"] == "▁" && step["content"] == " " => self.metaspace = true,
            "Metaspace" if step["replacement"].as_str().is_none_or(|r| r == "▁") => {
                self.metaspace = true;
                self.strip_first_space |= match step["prepend_scheme"].as_str() {
                    Some(scheme) => scheme != "never",
                    None => step["add_prefix_space"].as_bool().unwrap_or(true),
                };
            }
            _ => return Err(Error::key("tokenizer.json: decoder", format!("step {step} is not known here"))),
        }
        Ok(())
    }

    fn write(&self, token: &str, out: &mut Vec<u8>) {
        match byte_of(token) {
            Some(b) if self.byte_fallback => out.push(b),
            _ if self.byte_level => byte_level::push_bytes(token, out),
            _ if self.metaspace => unescape(token, out),
            _ => out.extend_from_slice(token.as_bytes()),
        }
    }
}

/// What the files beside `tokenizer.json` say.
#[derive(Default)]
struct Config {
    tokenizer: Value,
    special: Value,
    generation: Value,
}

impl Config {
    fn read(files: &HfFiles<'_>) -> Result<Self> {
        let read = |name, bytes: Option<&[u8]>| bytes.map_or(Ok(Value::Null), |b| parse(name, b));
        Ok(Self {
            tokenizer: read("tokenizer_config.json", files.config)?,
            special: read("special_tokens_map.json", files.special_tokens_map)?,
            generation: read("generation_config.json", files.generation_config)?,
        })
    }

    /// A token that may be written as a string or as an object with `content`; the config goes before the older map.
    fn token(&self, field: &str) -> Option<&str> {
        [&self.tokenizer, &self.special]
            .into_iter()
            .find_map(|v| v[field].as_str().or_else(|| v[field]["content"].as_str()))
    }

    fn ids(
        &self,
        json: &TokenizerJson<'_>,
        id_of: &dyn Fn(&str) -> Option<u32>,
        strip_first_space: bool,
    ) -> Result<Ids> {
        let named = |field: &str| match self.token(field) {
            None => Ok(None),
            Some(t) => id_of(t).map(Some).ok_or_else(|| {
                Error::key(
                    format!("tokenizer_config.json: {field}"),
                    format!("is {t:?}, which tokenizer.json does not have"),
                )
            }),
        };
        let (bos, eos) = (named("bos_token")?, named("eos_token")?);
        let listed = match &self.generation["eos_token_id"] {
            Value::Array(a) => a.iter().filter_map(Value::as_u64).collect(),
            v => v.as_u64().into_iter().collect::<Vec<_>>(),
        };
        let by_name = listed.is_empty();
        let eog = end_ids(listed.into_iter().filter_map(|i| u32::try_from(i).ok()).chain(eos), by_name, id_of);
        let frame = Frame::of(json.post_processor.as_ref(), 0);
        let wants = |field: &str, token: Option<u32>, framed: Option<&str>| {
            let by_frame = framed.is_some() && framed.and_then(id_of) == token;
            token.is_some() && self.tokenizer[field].as_bool().unwrap_or(by_frame)
        };
        Ok(Ids {
            bos,
            eos,
            eog,
            add_bos: wants("add_bos_token", bos, frame.first),
            add_eos: wants("add_eos_token", eos, frame.last),
            strip_first_space,
        })
    }
}

/// The special tokens a template post-processor puts around one sequence.
#[derive(Default)]
struct Frame<'a> {
    first: Option<&'a str>,
    last: Option<&'a str>,
}

impl<'a> Frame<'a> {
    fn of(json: Option<&'a Value>, depth: usize) -> Self {
        let Some(json) = json else { return Self::default() };
        let token = |item: Option<&'a Value>| item.and_then(|i| i["SpecialToken"]["id"].as_str());
        match json["type"].as_str() {
            Some("TemplateProcessing") => {
                let single = json["single"].as_array().map(Vec::as_slice).unwrap_or_default();
                Self { first: token(single.first()), last: token(single.last()) }
            }
            Some("Sequence") if depth < 4 => json["processors"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|p| Self::of(Some(p), depth + 1))
                .find(|f| f.first.or(f.last).is_some())
                .unwrap_or_default(),
            _ => Self::default(),
        }
    }
}

/// A JSON object of ids by token, in the file's order.
struct Vocab<'a>(Tokens<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Vocab<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Vocab<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of token ids by token")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut tokens = Vec::new();
                while let Some((token, id)) = map.next_entry::<Text<'de>, u32>()? {
                    tokens.push((token.0, id));
                }
                Ok(Vocab(tokens))
            }
        }
        d.deserialize_map(V)
    }
}

/// A string, borrowed if the file has it without escapes.
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, s: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(s)))
            }
            fn visit_str<E>(self, s: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(s.to_owned())))
            }
        }
        d.deserialize_str(V)
    }
}

/// One merge: `["a", "b"]`, or the older `"a b"`.
enum Merge<'a> {
    Pair(Cow<'a, str>, Cow<'a, str>),
    Joined(Cow<'a, str>, usize),
}

impl Merge<'_> {
    fn left(&self) -> &str {
        match self {
            Self::Pair(l, _) => l,
            Self::Joined(s, cut) => &s[..*cut],
        }
    }
    fn right(&self) -> &str {
        match self {
            Self::Pair(_, r) => r,
            Self::Joined(s, cut) => &s[cut + 1..],
        }
    }
    fn joined<E: de::Error>(s: Cow<'_, str>) -> Result<Merge<'_>, E> {
        match (s.find(' '), s.matches(' ').count()) {
            (Some(cut), 1) => Ok(Merge::Joined(s, cut)),
            _ => Err(E::custom(format!("merge {s:?} is not two tokens with a space between"))),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Merge<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Merge<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge: two tokens")
            }
            fn visit_borrowed_str<E: de::Error>(self, s: &'de str) -> Result<Self::Value, E> {
                Merge::joined(Cow::Borrowed(s))
            }
            fn visit_str<E: de::Error>(self, s: &str) -> Result<Self::Value, E> {
                Merge::joined(Cow::Owned(s.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let (l, r) = (seq.next_element::<Text<'de>>()?, seq.next_element::<Text<'de>>()?);
                match (l, r, seq.next_element::<de::IgnoredAny>()?) {
                    (Some(l), Some(r), None) => Ok(Merge::Pair(l.0, r.0)),
                    _ => Err(de::Error::custom("a merge is two tokens")),
                }
            }
        }
        d.deserialize_any(V)
    }
}
