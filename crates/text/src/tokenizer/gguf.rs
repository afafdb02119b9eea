//! Tokenizers from the metadata of a GGUF file (`tokenizer.ggml.*`, GGUF spec).

use std::collections::HashMap;

use super::{
    Core, Ids, Tokenizer,
    added::{Added, AddedToken, is_markup},
    bpe::{BpeParts, Pipeline},
    byte_level, end_ids,
    pieces::{Kind, Pieces},
    pre::Rule,
    spm::{self, Spm, SpmParts, unescape},
};
use crate::{Error, Result};

/// The `tokenizer.ggml.*` keys, as found: nothing is checked before [`Tokenizer::from_gguf`]. Integers of any width are
/// welcome in the file; the caller widens them.
#[derive(Debug, Clone, Default)]
pub struct GgufVocab<'a> {
    /// `model`: `gpt2` (byte-level BPE), `llama` (scores and byte fallback) or `gemma4`.
    pub model: &'a str,
    /// `pre`: the splitting rule of a BPE.
    pub pre: Option<&'a str>,
    /// `tokens`, by id.
    pub tokens: Vec<&'a str>,
    /// `token_type`, by id: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Option<Vec<i64>>,
    /// `scores`, by id.
    pub scores: Option<Vec<f32>>,
    /// `merges`: two tokens joined by a space, in rank order.
    pub merges: Vec<&'a str>,
    /// `bos_token_id`
    pub bos: Option<i64>,
    /// `eos_token_id`
    pub eos: Option<i64>,
    /// `eot_token_id`: end of turn.
    pub eot: Option<i64>,
    /// `eom_token_id`: end of message.
    pub eom: Option<i64>,
    /// `unknown_token_id`
    pub unk: Option<i64>,
    /// `eog_token_ids` or whatever else the caller knows to end a generation.
    pub more_eog: Vec<i64>,
    /// `add_bos_token`
    pub add_bos: Option<bool>,
    /// `add_eos_token`
    pub add_eos: Option<bool>,
    /// `add_space_prefix`
    pub add_space_prefix: Option<bool>,
}

const TYPE_UNKNOWN: i64 = 2;
const TYPE_CONTROL: i64 = 3;
const TYPE_USER_DEFINED: i64 = 4;
const TYPE_UNUSED: i64 = 5;
const TYPE_BYTE: i64 = 6;

pub fn build(v: &GgufVocab<'_>) -> Result<Tokenizer> {
    if v.tokens.is_empty() {
        return Err(Error::key("tokenizer.ggml.tokens", "missing or empty"));
    }
    long_enough("tokenizer.ggml.token_type", v.token_types.as_ref().map(Vec::len), v.tokens.len())?;
    match v.model {
        "gpt2" => bpe(v, Rule::by_name(v.pre)?),
        "gemma4" => bpe(v, Rule::by_name(Some(v.pre.unwrap_or("gemma4")))?),
        "llama" => spm(v),
        other => Err(Error::UnknownModel { model: other.to_owned(), known: "gpt2, llama, gemma4" }),
    }
}

fn bpe(v: &GgufVocab<'_>, rule: Rule) -> Result<Tokenizer> {
    let roles = Roles::read(v, rule.add_bos)?;
    let mut merges = Vec::with_capacity(v.merges.len());
    for (i, m) in v.merges.iter().enumerate() {
        merges.push(split_merge(m).ok_or_else(|| {
            Error::key("tokenizer.ggml.merges", format!("entry {i} is {m:?}, not two tokens with a space between"))
        })?);
    }
    let unk = roles.unk.filter(|_| !rule.byte_level).map(|id| v.tokens[id as usize]);
    let model = BpeParts {
        // Where whole words are looked up first, a word must not find markup.
        vocab: Mergeable::new(&v.tokens, |id| !(rule.ignore_merges && roles.types[id] == TYPE_CONTROL)),
        merges: merges.into_iter(),
        unk_token: unk,
        continuing_subword_prefix: None,
        end_of_word_suffix: None,
        fuse_unk: !rule.byte_level,
        byte_fallback: !rule.byte_level,
        ignore_merges: rule.ignore_merges,
    }
    .build("tokenizer.ggml.merges")?;
    let pipeline = Pipeline { normalizer: rule.normalizer()?, pre: Some(rule.pre_tokenizer()?), model: model.into() };
    if rule.byte_level {
        roles.finish(v, Core::Pipeline(Box::new(pipeline)), byte_level::push_bytes, false)
    } else {
        roles.finish(v, Core::Pipeline(Box::new(pipeline)), unescape, false)
    }
}

fn spm(v: &GgufVocab<'_>) -> Result<Tokenizer> {
    let roles = Roles::read(v, true)?;
    let Some(scores) = &v.scores else {
        return Err(Error::key("tokenizer.ggml.scores", "missing; a `llama` vocabulary needs it"));
    };
    long_enough("tokenizer.ggml.scores", Some(scores.len()), v.tokens.len())?;
    let space_prefix = v.add_space_prefix.unwrap_or(true);
    let kind = |id: usize| match roles.types[id] {
        TYPE_UNKNOWN | TYPE_CONTROL => spm::Role::Never,
        TYPE_USER_DEFINED if is_markup(v.tokens[id]) => spm::Role::Never,
        TYPE_BYTE => spm::Role::Byte,
        TYPE_UNUSED => spm::Role::Unused,
        _ => spm::Role::Word,
    };
    let core = Spm::new(SpmParts { tokens: &v.tokens, scores, role: &kind, unk: roles.unk, space_prefix });
    roles.finish(v, Core::Spm(Box::new(core)), unescape, space_prefix)
}

/// Types and role ids after checking.
struct Roles {
    types: Vec<i64>,
    bos: Option<u32>,
    eos: Option<u32>,
    unk: Option<u32>,
    eog: Vec<u32>,
    add_bos: bool,
    add_eos: bool,
}

impl Roles {
    fn read(v: &GgufVocab<'_>, add_bos_default: bool) -> Result<Self> {
        let by_text = unique(&v.tokens)?;
        let id = |key: &str, id: Option<i64>| in_vocab(key, id, v.tokens.len());
        let (bos, eos) = (id("bos_token_id", v.bos)?, id("eos_token_id", v.eos)?);
        let (eot, eom) = (id("eot_token_id", v.eot)?, id("eom_token_id", v.eom)?);
        let unk = id("unknown_token_id", v.unk)?;
        let mut given: Vec<u32> = [eos, eot, eom].into_iter().flatten().collect();
        for &more in &v.more_eog {
            given.extend(id("eog_token_ids", Some(more))?);
        }
        let eog = end_ids(given, true, |name| by_text.get(name).copied());
        let mut types = match &v.token_types {
            Some(t) => t[..v.tokens.len()].to_vec(),
            None => vec![1; v.tokens.len()],
        };
        // Some files mark turn endings as ordinary words; as markup they must be.
        for &id in eog.iter().chain(&bos) {
            types[id as usize] = TYPE_CONTROL;
        }
        let add_bos = match (v.add_bos, bos) {
            (Some(true), None) => {
                return Err(Error::key("tokenizer.ggml.add_bos_token", "true, but there is no bos_token_id"));
            }
            (given, bos) => given.unwrap_or(add_bos_default) && bos.is_some(),
        };
        Ok(Self { types, bos, eos, unk, eog, add_bos, add_eos: v.add_eos.unwrap_or(false) && eos.is_some() })
    }

    fn finish(
        self,
        v: &GgufVocab<'_>,
        core: Core,
        write: impl Fn(&str, &mut Vec<u8>),
        strip_first_space: bool,
    ) -> Result<Tokenizer> {
        let mut pieces = Pieces::with_capacity(v.tokens.len());
        let mut added = Vec::new();
        for (id, (&token, &ty)) in v.tokens.iter().zip(&self.types).enumerate() {
            let markup = matches!(ty, TYPE_CONTROL | TYPE_UNKNOWN);
            if markup || ty == TYPE_USER_DEFINED {
                added.push(AddedToken {
                    id: id as u32,
                    content: token.to_owned(),
                    special: markup,
                    ..Default::default()
                });
            }
            let kind = if markup { Kind::Special } else { Kind::Text };
            pieces.push(kind, |out| match (ty, spm::byte_of(token)) {
                (TYPE_CONTROL | TYPE_UNKNOWN | TYPE_USER_DEFINED, _) => out.extend_from_slice(token.as_bytes()),
                (TYPE_BYTE, Some(b)) => out.push(b),
                _ => write(token, out),
            });
        }
        let ids = Ids {
            bos: self.bos,
            eos: self.eos,
            eog: self.eog,
            add_bos: self.add_bos,
            add_eos: self.add_eos,
            strip_first_space,
        };
        Ok(Tokenizer { core, added: Added::new(added)?, pieces, ids, vocabulary: Default::default() })
    }
}

/// Tokens by text; a text with two ids could not be encoded.
fn unique<'a>(tokens: &[&'a str]) -> Result<HashMap<&'a str, u32>> {
    let mut by_text = HashMap::with_capacity(tokens.len());
    for (id, &t) in tokens.iter().enumerate().filter(|(_, t)| !t.is_empty()) {
        if let Some(first) = by_text.insert(t, id as u32) {
            return Err(Error::key("tokenizer.ggml.tokens", format!("{t:?} has two ids, {first} and {id}")));
        }
    }
    Ok(by_text)
}

fn in_vocab(key: &str, id: Option<i64>, vocab: usize) -> Result<Option<u32>> {
    match id {
        None | Some(-1) => Ok(None),
        Some(id) if (0..vocab as i64).contains(&id) => Ok(Some(id as u32)),
        Some(id) => {
            Err(Error::key(format!("tokenizer.ggml.{key}"), format!("is {id}, but the vocabulary has {vocab} tokens")))
        }
    }
}

fn long_enough(key: &str, len: Option<usize>, tokens: usize) -> Result<()> {
    match len {
        Some(n) if n < tokens => Err(Error::key(key, format!("has {n} entries for {tokens} tokens"))),
        _ => Ok(()),
    }
}

/// The first space after the first character is the border: a token may itself begin with a space.
fn split_merge(m: &str) -> Option<(&str, &str)> {
    let first = m.chars().next()?.len_utf8();
    let border = first + m[first..].find(' ')?;
    let (left, right) = (&m[..border], &m[border + 1..]);
    (!right.is_empty()).then_some((left, right))
}

/// (token, id) of the tokens the merges work on.
struct Mergeable<'a, F> {
    tokens: std::iter::Enumerate<std::slice::Iter<'a, &'a str>>,
    keep: F,
    left: usize,
}

impl<'a, F: Fn(usize) -> bool> Mergeable<'a, F> {
    fn new(tokens: &'a [&'a str], keep: F) -> Self {
        let left = tokens.iter().enumerate().filter(|&(id, t)| !t.is_empty() && keep(id)).count();
        Self { tokens: tokens.iter().enumerate(), keep, left }
    }
}

impl<'a, F: Fn(usize) -> bool> Iterator for Mergeable<'a, F> {
    type Item = (&'a str, u32);
    fn next(&mut self) -> Option<Self::Item> {
        let (id, token) = self.tokens.find(|&(id, t)| !t.is_empty() && (self.keep)(id))?;
        self.left -= 1;
        Some((token, id as u32))
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<F: Fn(usize) -> bool> ExactSizeIterator for Mergeable<'_, F> {}
