//! Keeps content from becoming markup while a template handles it as ordinary strings.
//!
//! Before rendering, every special-token string inside the conversation is replaced by one private-use character; after
//! rendering the characters are turned back and their places are remembered. A template thus cannot tell, and need not
//! know, what is content, and nothing a user types reaches the tokenizer as markup.

use std::collections::HashMap;

use minijinja::value::Object;
use serde_json::{Map, Value};

use crate::{Error, Rendered, Result, Tokenizer};

/// First code point of plane 15. Planes 15 and 16 are private use; their last two code points each are no characters.
const FIRST: u32 = 0xF_0000;
const PER_PLANE: u32 = 0xFFFE;

/// Whether a character is one of those this module writes.
fn is_reserved(c: char) -> bool {
    c as u32 >= FIRST
}

/// Whether a text has characters that would be mistaken for placeholders.
pub fn has_reserved(text: &str) -> bool {
    text.chars().any(is_reserved)
}

/// The strings that placeholders stand for, by number.
#[derive(Debug, Clone, Default)]
pub struct Table {
    strings: Vec<String>,
}

impl Object for Table {}

impl Table {
    /// The string a character stands for.
    pub fn get(&self, c: char) -> Option<&str> {
        let at = (c as u32).checked_sub(FIRST)?;
        let (plane, index) = (at >> 16, at & 0xFFFF);
        self.strings.get((plane * PER_PLANE + index) as usize).map(String::as_str)
    }

    /// The character with that number, if there are so many.
    fn placeholder(number: usize) -> Option<char> {
        let number = u32::try_from(number).ok().filter(|n| *n < 2 * PER_PLANE)?;
        char::from_u32(FIRST + ((number / PER_PLANE) << 16) + number % PER_PLANE)
    }
}

/// One render's placeholders.
pub struct Guard<'t> {
    tokenizer: &'t Tokenizer,
    numbers: HashMap<String, char>,
    table: Table,
    bytes: u64,
}

/// How deep a conversation's JSON may nest; deeper is refused, not crashed on.
const MAX_DEPTH: usize = 128;

impl<'t> Guard<'t> {
    pub fn new(tokenizer: &'t Tokenizer) -> Self {
        Self { tokenizer, numbers: HashMap::new(), table: Table::default(), bytes: 0 }
    }

    /// How much text has been guarded.
    pub fn bytes_seen(&self) -> u64 {
        self.bytes
    }

    /// The strings so far.
    pub fn table(&self) -> Table {
        self.table.clone()
    }

    /// A message, guarded all over but for the thought an assistant's own words begin with.
    pub fn message(&mut self, message: &Value) -> Result<Value> {
        let mut guarded = self.value(message)?;
        if message["role"] == "assistant"
            && let Some((open, thought, close, rest)) = message["content"].as_str().and_then(split_thought)
        {
            let parts = [open, &self.string(thought)?, close, &self.string(rest)?].concat();
            guarded["content"] = Value::String(parts);
        }
        Ok(guarded)
    }

    /// Any JSON, guarded in every string and key.
    pub fn value(&mut self, value: &Value) -> Result<Value> {
        self.nested(value, 0)
    }

    fn nested(&mut self, value: &Value, depth: usize) -> Result<Value> {
        if depth > MAX_DEPTH {
            let what = format!("the conversation's JSON nests deeper than {MAX_DEPTH} levels");
            return Err(Error::TemplateRender { line: 0, what });
        }
        self.bytes += 8;
        Ok(match value {
            Value::String(s) => Value::String(self.string(s)?),
            Value::Array(items) => {
                Value::Array(items.iter().map(|v| self.nested(v, depth + 1)).collect::<Result<_>>()?)
            }
            Value::Object(map) => {
                let entries = map.iter().map(|(k, v)| Ok((self.string(k)?, self.nested(v, depth + 1)?)));
                Value::Object(entries.collect::<Result<Map<_, _>>>()?)
            }
            other => other.clone(),
        })
    }

    fn string(&mut self, text: &str) -> Result<String> {
        self.bytes += text.len() as u64;
        let mut out = String::with_capacity(text.len());
        let mut at = 0;
        for range in self.tokenizer.markup_in(text) {
            self.reserved(&text[at..range.start], &mut out)?;
            out.push(self.placeholder(&text[range.clone()])?);
            at = range.end;
        }
        self.reserved(&text[at..], &mut out)?;
        Ok(out)
    }

    /// Appends text without markup; only characters that look like placeholders need one of their own.
    fn reserved(&mut self, text: &str, out: &mut String) -> Result<()> {
        if !has_reserved(text) {
            out.push_str(text);
            return Ok(());
        }
        for c in text.chars() {
            let c = if is_reserved(c) { self.placeholder(c.encode_utf8(&mut [0; 4]))? } else { c };
            out.push(c);
        }
        Ok(())
    }

    fn placeholder(&mut self, text: &str) -> Result<char> {
        if let Some(&c) = self.numbers.get(text) {
            return Ok(c);
        }
        let Some(c) = Table::placeholder(self.table.strings.len()) else {
            let what = "the conversation has too many different private-use characters".into();
            return Err(Error::TemplateRender { line: 0, what });
        };
        self.table.strings.push(text.to_owned());
        self.numbers.insert(text.to_owned(), c);
        Ok(c)
    }

    /// Turns placeholders back into the strings they stand for, which stay protected.
    pub fn restore(&self, rendered: &str) -> Rendered {
        let mut out = Rendered::default();
        let mut at = 0;
        for (i, c) in rendered.char_indices().filter(|(_, c)| is_reserved(*c)) {
            if let Some(content) = self.table.get(c) {
                out.push_markup(&rendered[at..i]);
                out.push_content(content);
                at = i + c.len_utf8();
            }
        }
        out.push_markup(&rendered[at..]);
        out
    }
}

/// Splits `<think>thought</think>rest`, with white space before it kept in the first part.
fn split_thought(content: &str) -> Option<(&str, &str, &str, &str)> {
    const OPEN: &str = "<think>";
    const CLOSE: &str = "</think>";
    let start = content.len() - content.trim_start().len();
    let thought = start + content[start..].strip_prefix(OPEN).map(|_| OPEN.len())?;
    let close = thought + content[thought..].find(CLOSE)?;
    let rest = close + CLOSE.len();
    Some((&content[..thought], &content[thought..close], &content[close..rest], &content[rest..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_count_over_both_planes_and_back() {
        let table = Table { strings: (0..2 * PER_PLANE).map(|i| i.to_string()).collect() };
        for n in [0, 1, PER_PLANE - 1, PER_PLANE, 2 * PER_PLANE - 1] {
            let c = Table::placeholder(n as usize).unwrap();
            assert!(is_reserved(c));
            assert_eq!(table.get(c), Some(n.to_string().as_str()));
        }
        assert_eq!(Table::placeholder(2 * PER_PLANE as usize), None);
        assert_eq!(table.get('a'), None);
    }

    #[test]
    fn only_a_leading_thought_is_split_off() {
        assert_eq!(split_thought("\n<think>a</think>b</think>"), Some(("\n<think>", "a", "</think>", "b</think>")));
        assert_eq!(split_thought("x<think>a</think>"), None);
        assert_eq!(split_thought("<think>a"), None);
    }
}
