//! Where in a prompt the messages of its conversation begin, for people who ask why it was read again.
//!
//! Templates write what they like around a message, and leave out parts of it, so its place is found by its words: from
//! the end of the prompt backwards, each message in front of the one behind it, and begun at the markup before its words.

use serde_json::Value;
use text::{Encoded, Tokenizer};

/// For each message that is found: its first token, and its place in the list. Both rise.
pub fn messages(text: &str, encoded: &Encoded, tokenizer: &Tokenizer, messages: &[Value]) -> Vec<(u32, usize)> {
    let mut all = Vec::new();
    let mut end = text.len();
    for (i, message) in messages.iter().enumerate().rev() {
        let Some(at) = words(message).iter().rev().fold(None, |at: Option<usize>, w| {
            let before = at.unwrap_or(end);
            last(&text[..before], w).or(at)
        }) else {
            continue;
        };
        // In front of it stands the markup that opens its turn, unless that is another message's, too.
        let border =
            encoded.borders.partition_point(|(byte, _)| *byte <= at).checked_sub(1).map(|b| encoded.borders[b]);
        let (byte, token) = border.unwrap_or((0, 0));
        let own = !messages[..i].iter().rev().flat_map(words).next_back().is_some_and(|w| text[byte..at].contains(w));
        let begins =
            if own { (byte, token) } else { (at, token + ids_before(tokenizer, &encoded.ids[token..], at - byte)) };
        all.push((begins.1 as u32, i));
        end = begins.0;
    }
    all.reverse();
    all
}

/// The message with the token at `at`.
pub fn holding<T>(begins: &[(u32, T)], at: u32) -> Option<&T> {
    let i = begins.partition_point(|(first, _)| *first <= at).checked_sub(1)?;
    Some(&begins[i].1)
}

/// What a message says, in the order in which templates write it: its text, the names of the tools it calls.
fn words(message: &Value) -> Vec<&str> {
    let text = |v: &'_ Value| v.as_str().map(str::trim).filter(|t| !t.is_empty()).is_some();
    let content = match &message["content"] {
        Value::Array(parts) => parts.iter().map(|p| &p["text"]).filter(|t| text(t)).collect(),
        one => [one].into_iter().filter(|t| text(t)).collect::<Vec<_>>(),
    };
    let calls = message["tool_calls"].as_array().into_iter().flatten().map(|c| &c["function"]["name"]);
    content.into_iter().chain(calls).filter_map(Value::as_str).map(str::trim).collect()
}

/// Where `text` has `words` last, whole.
fn last(text: &str, words: &str) -> Option<usize> {
    let letter = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let mut end = text.len();
    loop {
        let at = text[..end].rfind(words)?;
        let behind = at + words.len();
        let cut_before = letter(words.chars().next()) && letter(text[..at].chars().next_back());
        let cut_behind = letter(words.chars().next_back()) && letter(text[behind..].chars().next());
        if !cut_before && !cut_behind {
            return Some(at);
        }
        // The next one may overlap this one.
        end = behind - words.chars().next_back().map_or(1, char::len_utf8);
        if end == 0 {
            return None;
        }
    }
}

/// How many of the ids stand for the first `bytes` bytes.
fn ids_before(tokenizer: &Tokenizer, ids: &[u32], bytes: usize) -> usize {
    let mut left = bytes;
    let whole = |id: &&u32| {
        let n = tokenizer.token_bytes(**id).map_or(0, <[u8]>::len);
        let fits = n <= left;
        left = left.saturating_sub(n);
        fits
    };
    ids.iter().take_while(whole).count()
}
