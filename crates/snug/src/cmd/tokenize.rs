//! `snug tokenize`: text to ids and back.

use super::answer;
use crate::args::TokenizeArgs;
use crate::fault::{Ended, usage};
use crate::{output, resolve};
use checkpoint::Checkpoint;
use engine::{Error, open};
use serde_json::json;
use text::{Specials, Tokenizer};

/// Prints ids, or the text of ids.
pub fn run(a: &TokenizeArgs) -> anyhow::Result<Ended> {
    let words: Vec<&str> = a.words.iter().map(String::as_str).collect();
    match (&a.decode, &words[..]) {
        (Some(ids), [] | [_]) => decode(&tokenizer(words.first().copied())?, &ids.0, a)?,
        (Some(_), _) => return usage("--decode takes ids instead of a text"),
        (None, [text]) => encode(None, text, a)?,
        (None, [model, text]) => encode(Some(model), text, a)?,
        (None, _) => return usage("there is no text: give it as an argument, or `-` to read it from stdin"),
    }
    Ok(Ended::Done)
}

/// A model's tokenizer; nothing else of it is read.
fn tokenizer(model: Option<&str>) -> anyhow::Result<Tokenizer> {
    let ck = Checkpoint::open(resolve::source(model)?)?;
    let found = open::tokenizer(ck.meta())?;
    Ok(found.ok_or_else(|| Error::NoTokenizer(open::name(ck.meta())))?)
}

fn encode(model: Option<&str>, text: &str, a: &TokenizeArgs) -> anyhow::Result<()> {
    let tokenizer = tokenizer(model)?;
    let text = if text == "-" { answer::from_stdin()? } else { text.to_string() };
    let ids = tokenizer.encode(&text, if a.no_specials { Specials::Plain } else { Specials::Parse })?;
    if a.json {
        let piece = |&id| tokenizer.token_bytes(id).map(String::from_utf8_lossy);
        return output::json(
            &json!({"count": ids.len(), "ids": ids, "pieces": ids.iter().map(piece).collect::<Vec<_>>()}),
        );
    }
    output::line(ids.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
}

fn decode(tokenizer: &Tokenizer, ids: &[u32], a: &TokenizeArgs) -> anyhow::Result<()> {
    if let Some(&id) = ids.iter().find(|&&id| tokenizer.token_bytes(id).is_none()) {
        return Err(Error::BadToken { id, vocab: tokenizer.vocab_size() }.into());
    }
    let text = tokenizer.decode(ids, a.no_specials);
    if a.json { output::json(&json!({"text": text})) } else { output::line(text) }
}
