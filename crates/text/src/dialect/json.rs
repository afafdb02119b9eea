//! JSON as models write it, to JSON as parsers accept it, one character at a time.

/// What a character did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    More,
    /// The value is complete; the character belonged to it.
    Done,
    /// No JSON value goes on like this.
    Bad,
}

/// How deep values may nest.
const MAX_DEPTH: usize = 128;

/// Copies one JSON object or array and stops where it ends.
///
/// What comes out is always a prefix of valid JSON, and is what went in but for: raw control characters in strings (they
/// become escapes), unknown escapes (the backslash is doubled), halves of surrogate pairs (U+FFFD), Python's `True`,
/// `False` and `None`, numbers with leading zeros (they become strings) and commas before a closing bracket (dropped).
#[derive(Debug, Clone)]
pub(crate) struct Scanner {
    /// For each open bracket, whether it is `{`.
    stack: Vec<bool>,
    state: State,
    /// A comma and the space after it, until something follows.
    comma: String,
    /// A number or word that is not complete.
    word: String,
    /// A high surrogate whose other half may follow.
    high: Option<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A value must come, or the end of an array.
    Value,
    /// A key must come, or the end of the object.
    Key,
    Colon,
    /// A comma or the end must come.
    After,
    Word,
    Text {
        key: bool,
    },
    Escape {
        key: bool,
    },
    Unicode {
        key: bool,
        digits: u8,
        code: u16,
    },
}

impl Scanner {
    /// Before a value.
    pub fn new() -> Self {
        Self { stack: Vec::new(), state: State::Value, comma: String::new(), word: String::new(), high: None }
    }

    /// Inside an object, after one of its values.
    pub fn after_value() -> Self {
        Self { stack: vec![true], state: State::After, ..Self::new() }
    }

    /// Whether the next character is part of a string.
    pub fn in_text(&self) -> bool {
        matches!(self.state, State::Text { .. } | State::Escape { .. } | State::Unicode { .. })
    }

    pub fn push(&mut self, c: char, out: &mut String) -> Step {
        match self.state {
            State::Text { key } => self.text(c, key, out),
            State::Escape { key } => self.escape(c, key, out),
            State::Unicode { key, digits, code } => self.unicode(c, key, digits, code, out),
            State::Word => self.in_word(c, out),
            _ if matches!(c, ' ' | '\t' | '\n' | '\r') => {
                if self.comma.is_empty() {
                    out.push(c)
                } else {
                    self.comma.push(c)
                }
                Step::More
            }
            State::Value => self.value(c, out),
            State::Key => match c {
                '"' => {
                    self.flush_comma(out);
                    out.push(c);
                    self.state = State::Text { key: true };
                    Step::More
                }
                '}' => self.close(c, out),
                _ => Step::Bad,
            },
            State::Colon if c == ':' => {
                out.push(c);
                self.state = State::Value;
                Step::More
            }
            State::Colon => Step::Bad,
            State::After => self.after(c, out),
        }
    }

    fn flush_comma(&mut self, out: &mut String) {
        out.push_str(&self.comma);
        self.comma.clear();
    }

    fn value(&mut self, c: char, out: &mut String) -> Step {
        match c {
            ']' if self.stack.last() == Some(&false) => return self.close(c, out),
            '{' | '[' if self.stack.len() < MAX_DEPTH => {
                self.flush_comma(out);
                out.push(c);
                self.stack.push(c == '{');
                self.state = if c == '{' { State::Key } else { State::Value };
            }
            '"' => {
                self.flush_comma(out);
                out.push(c);
                self.state = State::Text { key: false };
            }
            '-' | '+' | '.' | '0'..='9' | 'a'..='z' | 'A'..='Z' if !self.stack.is_empty() => {
                self.flush_comma(out);
                self.word.push(c);
                self.state = State::Word;
            }
            _ => return Step::Bad,
        }
        Step::More
    }

    fn in_word(&mut self, c: char, out: &mut String) -> Step {
        if matches!(c, '-' | '+' | '.' | '0'..='9' | 'a'..='z' | 'A'..='Z') && self.word.len() < 512 {
            self.word.push(c);
            return Step::More;
        }
        let Some(scalar) = scalar(&self.word) else { return Step::Bad };
        out.push_str(&scalar);
        self.word.clear();
        self.state = State::After;
        self.push(c, out)
    }

    fn after(&mut self, c: char, out: &mut String) -> Step {
        match c {
            ',' => {
                self.comma.push(c);
                self.state = if self.stack.last() == Some(&true) { State::Key } else { State::Value };
                Step::More
            }
            '}' | ']' => self.close(c, out),
            _ => Step::Bad,
        }
    }

    fn close(&mut self, c: char, out: &mut String) -> Step {
        if self.stack.pop() != Some(c == '}') {
            return Step::Bad;
        }
        self.comma.clear();
        out.push(c);
        self.state = State::After;
        if self.stack.is_empty() { Step::Done } else { Step::More }
    }

    fn text(&mut self, c: char, key: bool, out: &mut String) -> Step {
        if c == '\\' {
            self.state = State::Escape { key };
            return Step::More;
        }
        self.lone_half(out);
        if c == '"' {
            out.push(c);
            self.state = if key { State::Colon } else { State::After };
        } else {
            self.state = State::Text { key };
            if c.is_control() { escape(c, out) } else { out.push(c) }
        }
        Step::More
    }

    fn escape(&mut self, c: char, key: bool, out: &mut String) -> Step {
        if c == 'u' {
            self.state = State::Unicode { key, digits: 0, code: 0 };
            return Step::More;
        }
        self.lone_half(out);
        self.state = State::Text { key };
        match c {
            '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => out.extend(['\\', c]),
            _ => {
                out.push_str("\\\\");
                escape(c, out);
            }
        }
        Step::More
    }

    fn unicode(&mut self, c: char, key: bool, digits: u8, code: u16, out: &mut String) -> Step {
        let Some(d) = c.to_digit(16) else {
            // Not an escape after all: what was read of it is text.
            self.lone_half(out);
            out.push_str("\\\\u");
            for i in (0..digits).rev() {
                out.extend(char::from_digit(u32::from(code >> (4 * i)) & 15, 16));
            }
            self.state = State::Text { key };
            return self.push(c, out);
        };
        let code = code << 4 | d as u16;
        if digits < 3 {
            self.state = State::Unicode { key, digits: digits + 1, code };
            return Step::More;
        }
        self.state = State::Text { key };
        match (self.high.take(), code) {
            (Some(high), 0xDC00..=0xDFFF) => out.push_str(&format!("\\u{high:04x}\\u{code:04x}")),
            (high, _) => {
                self.high = high;
                self.lone_half(out);
                match code {
                    0xD800..=0xDBFF => self.high = Some(code),
                    0xDC00..=0xDFFF => out.push(char::REPLACEMENT_CHARACTER),
                    _ => out.push_str(&format!("\\u{code:04x}")),
                }
            }
        }
        Step::More
    }

    fn lone_half(&mut self, out: &mut String) {
        if self.high.take().is_some() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// A bare word as JSON: a literal, a number, Python's spelling of one, or a number that JSON would not have.
pub(crate) fn scalar(word: &str) -> Option<String> {
    Some(match word {
        "true" | "false" | "null" => word.to_owned(),
        "True" => "true".to_owned(),
        "False" => "false".to_owned(),
        "None" => "null".to_owned(),
        _ if serde_json::from_str::<serde_json::Number>(word).is_ok() => word.to_owned(),
        _ if word.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) => {
            let mut s = String::new();
            quote(word, &mut s);
            s
        }
        _ => return None,
    })
}

/// Appends a character as it stands inside a JSON string.
pub(crate) fn escape(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
        c => out.push(c),
    }
}

/// Appends a text as a JSON string.
pub(crate) fn quote(text: &str, out: &mut String) {
    out.push('"');
    text.chars().for_each(|c| escape(c, out));
    out.push('"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn scan(text: &str) -> (String, Step) {
        let (mut s, mut out) = (Scanner::new(), String::new());
        for (i, c) in text.char_indices() {
            match s.push(c, &mut out) {
                Step::More => {}
                end => {
                    if end == Step::Done {
                        assert_eq!(i + c.len_utf8(), text.len(), "ended early in {text}");
                    }
                    return (out, end);
                }
            }
        }
        (out, Step::More)
    }

    #[test]
    fn what_models_get_wrong_is_put_right() {
        for (given, right) in [
            ("{\"a\": \"x\ny\"}", r#"{"a": "x\ny"}"#),
            (r#"{"a": True, "b": [None, False,]}"#, r#"{"a": true, "b": [null, false]}"#),
            (r#"{"a": 007, }"#, r#"{"a": "007"}"#),
            (r#"{"a": "\d\'\q"}"#, r#"{"a": "\\d\\'\\q"}"#),
            (r#"{"a": "\ud83d"}"#, "{\"a\": \"\u{FFFD}\"}"),
            (r#"{"a": "\ud83dx\ud83d\ude00\udc00"}"#, "{\"a\": \"\u{FFFD}x\\ud83d\\ude00\u{FFFD}\"}"),
            (r#"{"a": "\u00zz"}"#, r#"{"a": "\\u00zz"}"#),
        ] {
            assert_eq!(scan(given), (right.to_owned(), Step::Done));
            serde_json::from_str::<Value>(right).unwrap();
        }
        for bad in ["x", "1", "{1", r#"{"a" 1"#, r#"{"a":1]"#, r#"{"a":nul,"#, r#"{"a":1 "b""#, r#"{"a":}"#] {
            assert_eq!(scan(bad).1, Step::Bad, "{bad}");
        }
        assert_eq!(scan(&"[".repeat(500)).1, Step::Bad, "nested without end");
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e9..1e9).prop_map(Value::from),
            "\\PC{0,8}|[\\x00-\\x7f]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("\\PC{0,4}", inner), 0..4).prop_map(|v| Value::Object(v.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn valid_json_is_copied(v in value(), pretty in any::<bool>()) {
            let v = Value::Array(vec![v]);
            let text = if pretty { serde_json::to_string_pretty(&v) } else { serde_json::to_string(&v) }.unwrap();
            prop_assert_eq!(scan(&text).1, Step::Done);
            // Compared as parsed text: the parser may round a printed float to its neighbour.
            let parsed = |s: &str| serde_json::from_str::<Value>(s).unwrap();
            prop_assert_eq!(parsed(&scan(&text).0), parsed(&text));
        }

        #[test]
        fn what_ends_is_valid(text in r#"[\[{](["\\{}\[\]:,0a tu-]|"a":|true|\\u[dD][89cC]00){0,24}"#) {
            let (mut s, mut out) = (Scanner::new(), String::new());
            for c in text.chars() {
                match s.push(c, &mut out) {
                    Step::More => {}
                    Step::Done => { prop_assert!(serde_json::from_str::<Value>(&out).is_ok(), "{:?} from {:?}", out, text); break }
                    Step::Bad => break,
                }
            }
        }
    }
}
