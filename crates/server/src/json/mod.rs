//! Bytes of a request to JSON, strictly where a mistake must be told and mildly where history would be poisoned.

mod fields;

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::fault::Fault;
pub use fields::Fields;

/// Reads a body as one JSON object.
///
/// A UTF-8 byte order mark is skipped. Halves of surrogate pairs in `\u` escapes become U+FFFD: they come from clients that
/// cut text in the wrong place, and a conversation that holds one could never be continued otherwise. Nesting is limited
/// to 128. A key that is there twice is an error: its author cannot mean both.
///
/// # Errors
/// A [`Fault`] that says where.
pub fn object(body: &[u8]) -> Result<Map<String, Value>, Fault> {
    let body = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body);
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(Fault::invalid("the body is empty; it must be a JSON object"));
    }
    let text = std::str::from_utf8(body).map_err(|e| {
        let at = e.valid_up_to();
        let utf16 = matches!(body, [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..]);
        let hint = if utf16 { "; it looks like UTF-16" } else { "" };
        Fault::invalid(format!("the body is not UTF-8: byte {at} begins no character{hint}"))
    })?;
    let text = mend(text);
    let mut de = serde_json::Deserializer::from_str(&text);
    let value = Unique.deserialize(&mut de).and_then(|v| de.end().map(|()| v));
    match value.map_err(|e| Fault::invalid(format!("the body is not valid JSON: {e}")))? {
        Value::Object(map) => Ok(map),
        other => Err(Fault::invalid(format!("the body must be a JSON object, not {}", kind(&other)))),
    }
}

/// What a value is, for people.
pub fn kind(v: &Value) -> &'static str {
    match v {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Replaces `\ud800`-`\udfff` escapes that are no pair by `\ufffd`.
fn mend(text: &str) -> Cow<'_, str> {
    let escape = |at: usize| -> Option<u32> {
        let hex = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u32::from_str_radix(hex, 16).ok()
    };
    let mut out: Option<String> = None;
    let (mut at, mut copied) = (0, 0);
    while let Some(next) = text[at..].find('\\') {
        at += next;
        let Some(code) = escape(at) else {
            // An escape is a backslash and one more character, which may be a backslash too.
            at += 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8);
            continue;
        };
        let high = (0xD800..0xDC00).contains(&code);
        if high && escape(at + 6).is_some_and(|c| (0xDC00..0xE000).contains(&c)) {
            at += 12;
            continue;
        }
        if high || (0xDC00..0xE000).contains(&code) {
            let out = out.get_or_insert_default();
            out.push_str(&text[copied..at]);
            out.push_str("\\ufffd");
            copied = at + 6;
        }
        at += 6;
    }
    match out {
        None => Cow::Borrowed(text),
        Some(mut out) => {
            out.push_str(&text[copied..]);
            Cow::Owned(out)
        }
    }
}

/// A value whose objects have no key twice.
struct Unique;

impl<'de> DeserializeSeed<'de> for Unique {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Value;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(v) = seq.next_element_seed(Unique)? {
            out.push(v);
        }
        Ok(out.into())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(Unique)?;
            if out.insert(key.clone(), value).is_some() {
                return Err(de::Error::custom(format!("the key {key:?} is there twice")));
            }
        }
        Ok(out.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(body: &[u8]) -> String {
        object(body).unwrap_err().message
    }

    #[test]
    fn what_is_no_object_is_named() {
        for (body, word) in [
            ("", "empty"),
            (" \n", "empty"),
            ("[]", "an array"),
            ("5", "a number"),
            ("{:", "line 1 column 2"),
            ("{} {}", "trailing"),
            (r#"{"model":"a","model":"b"}"#, "\"model\""),
            (r#"{"x":NaN}"#, "JSON"),
        ] {
            assert!(said(body.as_bytes()).contains(word), "{body}: {}", said(body.as_bytes()));
        }
        let deep = "[".repeat(100_000);
        assert!(said(deep.as_bytes()).contains("recursion"));
        assert!(said(format!("{{\"a\":{deep}").as_bytes()).contains("recursion"));
    }

    #[test]
    fn bytes_that_are_no_text_are_named_by_place() {
        assert!(said(b"{\"a\":\"\xC4\xE3\"}").contains("byte 6"));
        assert!(said(b"{\"a\":\"\xC0\x80\"}").contains("byte 6"));
        assert!(said(b"\xFF\xFE{\0}\0").contains("UTF-16"));
        assert_eq!(object(b"\xEF\xBB\xBF{\"a\":\"x\\u0000y\"}").unwrap()["a"], "x\0y");
    }

    #[test]
    fn halves_of_surrogate_pairs_are_replaced() {
        for (sent, right) in [
            (r"x\ud83d", "x\u{FFFD}"),
            (r"\udc00y", "\u{FFFD}y"),
            (r"\ud83d\ude00", "😀"),
            (r"\ud83d\ud83d\ude00!", "\u{FFFD}😀!"),
            (r"\\ud83d", r"\ud83d"),
            (r"\\\ud83d", "\\\u{FFFD}"),
            (r#"\"\uD83Dé"#, "\"\u{FFFD}é"),
        ] {
            assert_eq!(object(format!("{{\"a\":\"{sent}\"}}").as_bytes()).unwrap()["a"], right, "{sent}");
        }
        assert!(object(br#"{"a":"\ud8"#).is_err());
        assert!(object("{\"a\":\"\\é\"".as_bytes()).is_err());
    }

    #[test]
    fn order_and_numbers_are_kept() {
        let o = object(br#"{"b":1,"a":[1.5,-2,null,true,{"z":"\n"}]}"#).unwrap();
        assert_eq!(Value::Object(o).to_string(), json!({"b":1,"a":[1.5,-2,null,true,{"z":"\n"}]}).to_string());
    }
}
