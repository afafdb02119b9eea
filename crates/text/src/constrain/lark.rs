//! Writes grammars in llguidance's Lark.

use std::fmt::Write;

use serde_json::Value;

use crate::dialect::symbols::{Marks, Piece};

/// A grammar being written.
pub(super) struct Lark<'m> {
    marks: &'m Marks,
    text: String,
    count: usize,
    /// At most one character of white space between two parts of JSON: where values stand in tags among raw ones, so that
    /// nothing else can bound it.
    pub tight: bool,
}

/// A regular expression for any text, also none.
pub(super) const ANY_TEXT: &str = "(?s:.*)";

impl<'m> Lark<'m> {
    pub fn new(marks: &'m Marks) -> Self {
        Self { marks, text: String::new(), count: 0, tight: false }
    }

    /// The whole grammar, which begins with `start`.
    pub fn done(self, start: &str) -> String {
        format!("start: {start}\n{}", self.text)
    }

    /// Adds a rule and returns its name.
    pub fn rule(&mut self, body: &str) -> String {
        let name = self.reserve();
        self.define(&name, body);
        name
    }

    /// A name for a rule that is defined later.
    pub fn reserve(&mut self) -> String {
        self.count += 1;
        format!("r{}", self.count)
    }

    pub fn define(&mut self, name: &str, body: &str) {
        let _ = writeln!(self.text, "{name}: {body}");
    }

    fn terminal(&mut self, body: &str) -> String {
        self.count += 1;
        let name = format!("T{}", self.count);
        self.define(&name, body);
        name
    }

    /// A literal in which markers are tokens.
    pub fn literal(&self, text: &str) -> String {
        let part = |p: Piece<'_>| match p {
            Piece::Text(t) => quoted(t),
            Piece::Id(id) => format!("<[{id}]>"),
        };
        self.marks.split(text).into_iter().map(part).collect::<Vec<_>>().join(" ")
    }

    /// JSON that follows a schema.
    pub fn json(&mut self, schema: &Value) -> String {
        let schema = with_options(&super::schema::prepared(schema), if self.tight { 1 } else { MAX_SPACE });
        self.rule(&format!("%json {schema}"))
    }

    /// Text that matches a regular expression and then `end`, where `end` comes for the first time. `not`: a further
    /// expression that the text must not match.
    pub fn until(&mut self, body: &str, not: Option<&str>, end: &str) -> String {
        let pieces = self.marks.split(end);
        let not = not.map_or(String::new(), |n| format!(" & ~{}", regex(n)));
        let marked = pieces.iter().any(|p| matches!(p, Piece::Id(_)));
        let (words, rest) = match pieces.first() {
            Some(Piece::Text(t)) => (*t, &end[t.len()..]),
            _ => ("", end),
        };
        // Before a token the end is certain; otherwise the text must not have the end in it.
        let once = if marked || words.is_empty() {
            String::new()
        } else {
            let lone = words.trim_start_matches('\n');
            format!(" & ~{}", regex(&format!("{ANY_TEXT}{}{ANY_TEXT}", escaped(lone))))
        };
        let inner = format!("({}{not}{once})", regex(body));
        let term =
            if words.is_empty() { self.terminal(&inner) } else { self.terminal(&format!("{inner} {}", quoted(words))) };
        let rest = if rest.is_empty() { String::new() } else { format!(" {}", self.literal(rest)) };
        self.rule(&format!("{term}{rest}"))
    }

    /// Text that does not contain `marker`; tokens that are markers are no text anyway.
    pub fn free(&mut self, marker: &str) -> String {
        let plain = self.marks.split(marker).iter().all(|p| matches!(p, Piece::Text(_)));
        let body = regex(ANY_TEXT);
        if plain && !marker.is_empty() {
            let has = regex(&format!("{ANY_TEXT}{}{ANY_TEXT}", escaped(marker)));
            return self.terminal(&format!("{body} & ~{has}"));
        }
        self.terminal(&body)
    }
}

/// Most characters of white space between two parts of JSON.
pub(super) const MAX_SPACE: u32 = 32;

/// A schema with this project's choices of white space: any that a model likes, up to `most` characters in one place.
pub(super) fn with_options(schema: &Value, most: u32) -> Value {
    let mut schema = if schema.is_object() { schema.clone() } else { serde_json::json!({"anyOf": [schema]}) };
    schema["x-guidance"] = serde_json::json!({"whitespace_pattern": format!(r"[ \n\t]{{0,{most}}}")});
    schema
}

/// A text as a Lark string, whose escapes are JSON's.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A regular expression as a Lark terminal.
pub(super) fn regex(pattern: &str) -> String {
    let mut out = String::from("/");
    let mut backslash = false;
    for c in pattern.chars() {
        match c {
            '/' if !backslash => out.push_str("\\/"),
            '\n' if !backslash => out.push_str("\\n"),
            c => out.push(c),
        }
        backslash = c == '\\' && !backslash;
    }
    out.push('/');
    out
}

/// A text as a regular expression that matches it alone.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            c if r"\.+*?()|[]{}^$#&-~".contains(c) => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}
