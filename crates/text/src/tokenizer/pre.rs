//! Splitting rules of byte-level BPE by the name GGUF files give them (`tokenizer.ggml.pre`).
//!
//! The patterns are those of the `tokenizer.json` files the names were made for (Smol, Llama 3, Qwen 2/3, Qwen 3.5,
//! gpt-4o, Mistral tekken, DeepSeek V3, GLM 4). The names follow the GGUF converter.

use tokenizers::{
    NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
    normalizers::{NFC, Replace},
    pre_tokenizers::{
        byte_level::ByteLevel,
        digits::Digits,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use serde_json::Value;

use crate::{Error, Result};

/// A splitting rule and what goes with it.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    splits: Splits,
    /// A word that is a token is taken whole, whatever the merges say.
    pub ignore_merges: bool,
    /// What `add_bos_token` defaults to.
    pub add_bos: bool,
    /// Text is put into Unicode NFC first.
    nfc: bool,
    /// Whether the vocabulary is written in the byte-to-character table.
    pub byte_level: bool,
}

#[derive(Debug, Clone, Copy)]
enum Splits {
    /// Digits alone or not, then GPT-2's pattern.
    Gpt2 { single_digits: bool },
    /// One pattern after the other.
    Patterns(&'static [&'static str]),
    /// Spaces become `▁`, runs of newlines stand alone, nothing else is split (Gemma 4).
    Lines,
}

const DEFAULT: Rule = Rule {
    names: &[],
    splits: Splits::Gpt2 { single_digits: false },
    ignore_merges: false,
    add_bos: false,
    nfc: false,
    byte_level: true,
};

/// A pattern with the case-insensitive English contractions in front, as cl100k and its children have it.
macro_rules! contractions {
    ($rest:literal) => {
        concat!("(?i:'s|'t|'re|'ve|'m|'ll|'d)|", $rest)
    };
}

/// Words by case as in o200k, with what may follow a word.
macro_rules! cased_words {
    ($suffix:literal, $digits:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $suffix,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $suffix,
            "|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
}

const LLAMA3: &str =
    contractions!(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+");
const QWEN2: &str = contractions!(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+");
const QWEN35: &str =
    contractions!(r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+");
const GPT4O: &str = cased_words!("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}");
const TEKKEN: &str = cased_words!("", r"\p{N}");
const DEEPSEEK3: &[&str] = &[
    r"\p{N}{1,3}",
    "[一-龥\u{3040}-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];

const RULES: &[Rule] = &[
    Rule {
        names: &["default", "gpt-2", "gpt2", "phi-2", "olmo", "mpt", "exaone4", "trillion", "granite-docling"],
        ..DEFAULT
    },
    Rule {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        splits: Splits::Gpt2 { single_digits: true },
        ..DEFAULT
    },
    Rule {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"],
        splits: Splits::Patterns(&[LLAMA3]),
        ignore_merges: true,
        add_bos: true,
        ..DEFAULT
    },
    Rule { names: &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], splits: Splits::Patterns(&[LLAMA3]), ..DEFAULT },
    Rule { names: &["qwen2", "deepseek-r1-qwen", "megrez"], splits: Splits::Patterns(&[QWEN2]), nfc: true, ..DEFAULT },
    Rule { names: &["stablelm2", "hunyuan", "solar-open", "grok-2"], splits: Splits::Patterns(&[QWEN2]), ..DEFAULT },
    Rule { names: &["qwen35"], splits: Splits::Patterns(&[QWEN35]), nfc: true, ..DEFAULT },
    Rule { names: &["gpt-4o", "llama4", "kanana2", "minimax-m2"], splits: Splits::Patterns(&[GPT4O]), ..DEFAULT },
    Rule { names: &["tekken"], splits: Splits::Patterns(&[TEKKEN]), ignore_merges: true, add_bos: true, ..DEFAULT },
    Rule { names: &["deepseek-v3", "hunyuan-dense", "joyai-llm"], splits: Splits::Patterns(DEEPSEEK3), ..DEFAULT },
    Rule { names: &["gemma4"], splits: Splits::Lines, add_bos: true, byte_level: false, ..DEFAULT },
];

impl Rule {
    /// The rule of that name; without a name, GPT-2's, which files older than the key were made with.
    pub fn by_name(pre: Option<&str>) -> Result<Rule> {
        let Some(pre) = pre.filter(|p| !p.is_empty()) else { return Ok(DEFAULT) };
        RULES.iter().find(|r| r.names.contains(&pre)).copied().ok_or_else(|| Error::UnknownPre {
            pre: pre.to_owned(),
            known: RULES.iter().flat_map(|r| r.names).copied().collect::<Vec<_>>().join(", "),
        })
    }

    pub fn normalizer(&self) -> Result<Option<NormalizerWrapper>> {
        Ok(match self.splits {
            Splits::Lines => Some(Replace::new(" ", "▁").map_err(broken)?.into()),
            _ if self.nfc => Some(NFC.into()),
            _ => None,
        })
    }

    pub fn pre_tokenizer(&self) -> Result<PreTokenizerWrapper> {
        let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
        match self.splits {
            Splits::Gpt2 { single_digits } => {
                if single_digits {
                    steps.push(Digits::new(true).into());
                }
                steps.push(ByteLevel::new(false, true, true).into());
            }
            Splits::Patterns(patterns) => {
                for p in patterns {
                    steps.push(isolate(p)?);
                }
                steps.push(ByteLevel::new(false, true, false).into());
            }
            Splits::Lines => steps.push(isolate("[^\n]+|[\n]+")?),
        }
        Ok(Sequence::new(steps).into())
    }
}

/// The first name under which GGUF files know what a `tokenizer.json` does to text before its BPE: its `normalizer`, its
/// `pre_tokenizer` and its model's `ignore_merges`. `None` where no rule here does the same.
pub fn pre_name(
    normalizer: Option<&Value>,
    pre_tokenizer: Option<&Value>,
    ignore_merges: bool,
) -> Option<&'static str> {
    let (wanted, nfc) = (steps(pre_tokenizer?), normalizer.is_some_and(|n| steps(n) == ["NFC"]));
    if normalizer.is_some_and(|n| !n.is_null()) && !nfc {
        return None;
    }
    let same = |r: &&Rule| {
        let made = r.pre_tokenizer().ok().and_then(|p| serde_json::to_value(p).ok());
        r.byte_level && r.nfc == nfc && r.ignore_merges == ignore_merges && made.is_some_and(|m| steps(&m) == wanted)
    };
    RULES.iter().find(same).and_then(|r| r.names.first()).copied()
}

/// What a step list does, without the fields that change nothing of the ids.
fn steps(v: &Value) -> Vec<String> {
    let field = |name: &str| v.get(name).map(Value::to_string).unwrap_or_default();
    match v.get("type").and_then(Value::as_str) {
        Some("Sequence") => {
            let inner = v.get("pretokenizers").or_else(|| v.get("normalizers")).and_then(Value::as_array);
            inner.into_iter().flatten().flat_map(steps).collect()
        }
        Some("Digits") => vec![format!("Digits {}", field("individual_digits"))],
        Some("Split") => vec![format!("Split {} {} {}", field("pattern"), field("behavior"), field("invert"))],
        Some("ByteLevel") => vec![format!("ByteLevel {} {}", field("add_prefix_space"), field("use_regex"))],
        Some(other) => vec![other.to_string()],
        None => Vec::new(),
    }
}

fn isolate(pattern: &str) -> Result<PreTokenizerWrapper> {
    let pattern = SplitPattern::Regex(pattern.to_owned());
    Ok(Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(broken)?.into())
}

fn broken(e: impl std::fmt::Display) -> Error {
    Error::key("tokenizer.ggml.pre", format!("its pattern does not compile: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_builds_and_no_name_is_given_twice() {
        let mut seen = std::collections::HashSet::new();
        for rule in RULES {
            rule.pre_tokenizer().unwrap();
            rule.normalizer().unwrap();
            assert!(rule.names.iter().all(|n| seen.insert(n)), "{:?}", rule.names);
        }
    }

    #[test]
    fn a_rule_is_recognised_by_what_it_does() {
        for rule in RULES.iter().filter(|r| r.byte_level) {
            let steps = serde_json::to_value(rule.pre_tokenizer().unwrap()).unwrap();
            let nfc = rule.nfc.then(|| serde_json::json!({"type": "NFC"}));
            let name = pre_name(nfc.as_ref(), Some(&steps), rule.ignore_merges).unwrap();
            let found = Rule::by_name(Some(name)).unwrap();
            assert_eq!(serde_json::to_value(found.pre_tokenizer().unwrap()).unwrap(), steps);
        }
        let other = serde_json::json!({"type": "Whitespace"});
        assert_eq!(pre_name(None, Some(&other), false), None);
    }

    #[test]
    fn an_unknown_name_is_refused_by_name_with_the_known_ones() {
        let text = Rule::by_name(Some("klingon")).unwrap_err().to_string();
        assert!(text.contains("klingon") && text.contains("qwen35") && text.contains("smollm"), "{text}");
    }
}
