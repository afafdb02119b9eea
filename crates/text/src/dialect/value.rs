//! Raw parameter values (text between tags) to JSON, typed by the tool's schema.

use serde_json::Value;

use super::{
    json::{escape, quote, scalar},
    schema::Types,
};

/// One parameter's value on its way.
///
/// A value that can only be a string streams. Anything else is held until it is complete, because only then it is known to
/// be JSON; of a union with `string`, only as long as the text may still be one of the other types.
#[derive(Debug, Clone)]
pub(super) struct ParamValue {
    types: Types,
    held: String,
    streaming: bool,
}

impl ParamValue {
    pub fn new(types: Types) -> Self {
        Self { types, held: String::new(), streaming: false }
    }

    pub fn push(&mut self, c: char, out: &mut String) {
        if self.streaming {
            return escape(c, out);
        }
        self.held.push(c);
        if self.types.has(Types::STRING) && !may_be_other(self.types, &self.held) {
            self.streaming = true;
            out.push('"');
            self.held.chars().for_each(|c| escape(c, out));
            self.held.clear();
        }
    }

    pub fn finish(self, out: &mut String) {
        if self.streaming {
            return out.push('"');
        }
        match typed(self.types, &self.held) {
            Some(json) => out.push_str(&json),
            None => quote(&self.held, out),
        }
    }
}

/// No number or word is longer than this with the space around it.
const MAX_SCALAR: usize = 512;

/// Whether a text can still turn out as one of the types that are not strings.
fn may_be_other(types: Types, text: &str) -> bool {
    let head = text.get(..MAX_SCALAR).unwrap_or(text).trim_start();
    let scalar = text.len() <= MAX_SCALAR;
    let Some(c) = head.chars().next() else { return scalar && types.without_string() != Types::NONE };
    let word = |words: &[&str]| scalar && words.iter().any(|w| w.starts_with(head.trim_end()));
    (types.has(Types::NULL) && word(&["null", "None"]))
        || (types.has(Types::BOOLEAN) && word(&["true", "false", "True", "False"]))
        || (types.has(Types::NUMBER.or(Types::INTEGER))
            && scalar
            && head.trim_end().chars().all(|c| c.is_ascii_digit() || "+-.eE".contains(c)))
        || (types.has(Types::OBJECT) && c == '{')
        || (types.has(Types::ARRAY) && c == '[')
}

/// The text as JSON of one of the types that are not strings, if it is that.
fn typed(types: Types, text: &str) -> Option<String> {
    let text = text.trim();
    let strict = types.has(Types::STRING);
    if let Ok(v) = serde_json::from_str::<Value>(text) {
        // Without a string to fall back on, JSON of the wrong type is still the better answer.
        return (!strict || types.without_string().admits(&v)).then(|| text.to_owned());
    }
    if types.has(Types::BOOLEAN.or(Types::NULL))
        && let Some(word) = scalar(text).filter(|w| matches!(w.as_str(), "true" | "false" | "null"))
    {
        return serde_json::from_str(&word).is_ok_and(|v| types.admits(&v)).then_some(word);
    }
    if strict {
        return None;
    }
    if types.has(Types::NUMBER.or(Types::INTEGER))
        && let Ok(n) = text.parse::<i64>()
    {
        return Some(n.to_string());
    }
    if types.has(Types::OBJECT.or(Types::ARRAY)) { lenient(text) } else { None }
}

/// An object or array with a model's small mistakes put right.
fn lenient(text: &str) -> Option<String> {
    let (mut scanner, mut out) = (super::json::Scanner::new(), String::new());
    let mut chars = text.chars();
    for c in chars.by_ref() {
        match scanner.push(c, &mut out) {
            super::json::Step::More => {}
            super::json::Step::Done => return chars.as_str().is_empty().then_some(out),
            super::json::Step::Bad => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(types: Types, text: &str) -> String {
        let (mut v, mut out) = (ParamValue::new(types), String::new());
        text.chars().for_each(|c| v.push(c, &mut out));
        v.finish(&mut out);
        serde_json::from_str::<Value>(&out).unwrap();
        out
    }

    #[test]
    fn values_follow_the_schema() {
        let (s, i, n) = (Types::STRING, Types::INTEGER, Types::NUMBER.or(Types::INTEGER));
        for (types, text, right) in [
            (s, "007", r#""007""#),
            (s, "true", r#""true""#),
            (s, "a\"b\\c\n😀", r#""a\"b\\c\n😀""#),
            (s, "", r#""""#),
            (i, "007", "7"),
            (i, " 42\n", "42"),
            (i, "many", r#""many""#),
            (i.or(s), "007", r#""007""#),
            (i.or(s), "7", "7"),
            (n, "1e5", "1e5"),
            (Types::BOOLEAN, "True", "true"),
            (Types::BOOLEAN, "false", "false"),
            (Types::NULL.or(s), "null", "null"),
            (Types::NULL.or(s), "nullable", r#""nullable""#),
            (Types::NULL.or(s), "None", "null"),
            (Types::OBJECT, r#"{"a": [1, true]}"#, r#"{"a": [1, true]}"#),
            (Types::OBJECT, r#"{"a": True,}"#, r#"{"a": true}"#),
            (Types::ARRAY, "a, b", r#""a, b""#),
            (Types::ANY, "12", "12"),
            (Types::ANY, "12 monkeys", r#""12 monkeys""#),
            (Types::ANY, r#""quoted""#, r#""\"quoted\"""#),
            (Types::ANY, "{not json", r#""{not json""#),
            (Types::ANY, "[1]", "[1]"),
        ] {
            assert_eq!(json(types, text), right, "{text:?} as {types:?}");
        }
    }

    #[test]
    fn strings_stream_as_soon_as_they_are_strings() {
        let after = |types: Types, text: &str| {
            let (mut v, mut out) = (ParamValue::new(types), String::new());
            text.chars().for_each(|c| v.push(c, &mut out));
            out
        };
        assert_eq!(after(Types::STRING, "ab"), "\"ab");
        assert_eq!(after(Types::STRING.or(Types::NULL), "nu"), "");
        assert_eq!(after(Types::STRING.or(Types::NULL), "nux"), "\"nux");
        assert_eq!(after(Types::ANY, "{a"), "");
        assert_eq!(after(Types::ANY, "3 a"), "\"3 a");
    }
}
