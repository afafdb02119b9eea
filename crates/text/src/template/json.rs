//! JSON as Python's `json.dumps` writes it, which is what models saw in training.

use minijinja::{Error, ErrorKind, Value, value::ValueKind};

use super::guard::Table;

/// The arguments of `json.dumps` that templates use.
#[derive(Debug, Default)]
pub struct Options {
    pub ensure_ascii: bool,
    pub indent: Option<Indent>,
    /// (between items, after a key)
    pub separators: Option<(String, String)>,
    pub sort_keys: bool,
}

/// One level of indentation.
#[derive(Debug)]
pub struct Indent(String);

impl Indent {
    /// A number of spaces, or the string itself.
    pub fn from_value(v: &Value) -> Result<Self, Error> {
        match (v.as_str(), v.as_i64()) {
            (Some(s), _) => Ok(Self(s.to_owned())),
            (_, Some(n)) if n <= 64 => Ok(Self(" ".repeat(usize::try_from(n).unwrap_or(0)))),
            _ => Err(bad("tojson: indent is a number up to 64 or a string")),
        }
    }
}

/// A pair of strings.
pub fn separators(v: &Value) -> Result<(String, String), Error> {
    let pair: Vec<Value> = v.try_iter()?.take(3).collect();
    match pair.iter().map(Value::as_str).collect::<Option<Vec<_>>>().as_deref() {
        Some([item, key]) => Ok((item.to_string(), key.to_string())),
        _ => Err(bad("tojson: separators is a pair of strings")),
    }
}

/// Appends `value`. Strings that stand behind placeholders are looked up in `table`, so that what JSON escapes in them is
/// escaped.
pub fn write(value: &Value, options: &Options, table: Option<&Table>, out: &mut String) -> Result<(), Error> {
    let (item, key) = match (&options.separators, &options.indent) {
        (Some((item, key)), _) => (item.as_str(), key.as_str()),
        (None, Some(_)) => (",", ": "),
        (None, None) => (", ", ": "),
    };
    Writer { item, key, options, table, out }.value(value, 0)
}

/// Nesting beyond this is refused: Python raises a `RecursionError` in the same place.
const MAX_DEPTH: usize = 200;
/// Output beyond this is refused: a template that nests a list in itself doubles its JSON with each level.
const MAX_BYTES: usize = 64 << 20;

struct Writer<'a> {
    item: &'a str,
    key: &'a str,
    options: &'a Options,
    table: Option<&'a Table>,
    out: &'a mut String,
}

impl Writer<'_> {
    fn value(&mut self, v: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH || self.out.len() > MAX_BYTES {
            return Err(bad("tojson: the value is nested too deeply or too large"));
        }
        match v.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if v.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(v),
            ValueKind::String => self.string(v.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(v, depth)?,
            ValueKind::Map => self.map(v, depth)?,
            ValueKind::Undefined => return Err(bad("tojson: Object of type Undefined is not JSON serializable")),
            other => return Err(bad(&format!("tojson: Object of type {other} is not JSON serializable"))),
        }
        Ok(())
    }

    fn number(&mut self, v: &Value) {
        if v.is_integer() {
            self.out.push_str(&v.to_string());
        } else {
            self.out.push_str(&float(f64::try_from(v.clone()).unwrap_or(f64::NAN)));
        }
    }

    fn list(&mut self, v: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in v.try_iter()? {
            self.separate(&mut empty, depth + 1);
            self.value(&item, depth + 1)?;
        }
        self.close(empty, depth, ']');
        Ok(())
    }

    fn map(&mut self, v: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = v.try_iter()?.collect();
        if self.options.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        let mut empty = true;
        for key in keys {
            self.separate(&mut empty, depth + 1);
            self.map_key(&key)?;
            self.out.push_str(self.key);
            self.value(&v.get_item(&key)?, depth + 1)?;
        }
        self.close(empty, depth, '}');
        Ok(())
    }

    /// Keys that are not strings become the string of their JSON.
    fn map_key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.out.push('"');
                self.value(key, 0)?;
                self.out.push('"');
            }
            other => return Err(bad(&format!("tojson: keys must be str, int, float, bool or None, not {other}"))),
        }
        Ok(())
    }

    fn separate(&mut self, empty: &mut bool, depth: usize) {
        if !std::mem::replace(empty, false) {
            self.out.push_str(self.item);
        }
        self.line(depth);
    }

    fn close(&mut self, empty: bool, depth: usize, bracket: char) {
        if !empty {
            self.line(depth);
        }
        self.out.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(Indent(indent)) = &self.options.indent {
            self.out.push('\n');
            (0..depth).for_each(|_| self.out.push_str(indent));
        }
    }

    fn string(&mut self, s: &str) {
        self.out.push('"');
        for c in s.chars() {
            match self.table.and_then(|t| t.get(c)) {
                None => escape(c, self.options.ensure_ascii, self.out),
                Some(content) => {
                    let mut escaped = String::with_capacity(content.len());
                    content.chars().for_each(|c| escape(c, self.options.ensure_ascii, &mut escaped));
                    // Unchanged, it could still be read as markup and keeps its placeholder.
                    if escaped == content { self.out.push(c) } else { self.out.push_str(&escaped) }
                }
            }
        }
        self.out.push('"');
    }
}

fn escape(c: char, ensure_ascii: bool, out: &mut String) {
    use std::fmt::Write as _;
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        c if c < ' ' || (ensure_ascii && c > '~') => {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
        c => out.push(c),
    }
}

/// A float as Python's `repr`: the shortest digits that read back, in scientific form below 1e-4 and from 1e16.
pub fn float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity".into() } else { "-Infinity".into() };
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{x}");
        if plain.contains('.') { plain } else { plain + ".0" }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    }
}

fn bad(what: &str) -> Error {
    Error::new(ErrorKind::BadSerialization, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_python_writes_them() {
        let cases: &[(f64, &str)] = &[
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.2345e22, "1.2345e+22"),
            (1e100, "1e+100"),
            (5e-324, "5e-324"),
            (123456789.125, "123456789.125"),
            (0.30000000000000004, "0.30000000000000004"),
            (f64::INFINITY, "Infinity"),
        ];
        for (x, text) in cases {
            assert_eq!(float(*x), *text);
        }
    }
}
