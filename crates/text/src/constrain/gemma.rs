//! Arguments in Gemma 4's own notation: bare sorted keys, strings between `<|"|>` tokens.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::{
    calls::{NOT_JSON, WHOLE_OBJECT, Writer},
    schema::standalone,
};
use crate::dialect::schema::{Types, types_of};

const QUOTE: &str = "<|\"|>";
const NUMBER: &str = r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?/";
/// Types that this notation writes as JSON does.
const SCALARS: Types = Types::NUMBER.or(Types::INTEGER).or(Types::BOOLEAN).or(Types::NULL);
const KEY: &str = r"/[A-Za-z_][A-Za-z0-9_\-]{0,62}/";

/// Turns one tool's schema into rules.
pub(super) struct Gemma<'w, 'l, 'm, 's> {
    w: &'w mut Writer<'l, 'm>,
    root: &'s Value,
    path: &'s str,
    /// Rules of schemas that are referred to.
    refs: HashMap<String, String>,
    any: Option<String>,
}

impl<'w, 'l, 'm, 's> Gemma<'w, 'l, 'm, 's> {
    pub fn new(w: &'w mut Writer<'l, 'm>, root: &'s Value, path: &'s str) -> Self {
        Self { w, root, path, refs: HashMap::new(), any: None }
    }

    /// A value, as the name of a rule.
    fn value(&mut self, s: &Value) -> String {
        // Numbers, true, false and null are written as in JSON, so all that a schema says of them holds.
        let types = types_of(s, self.root);
        if types != Types::NONE && types.only(SCALARS) {
            return self.w.lark.json(&standalone(s, self.root));
        }
        if let Some(r) = s.get("$ref").and_then(Value::as_str) {
            return self.reference(r);
        }
        let values =
            s.get("enum").and_then(Value::as_array).cloned().or_else(|| s.get("const").map(|c| vec![c.clone()]));
        if let Some(values) = values {
            let options: Vec<String> = values.iter().map(|v| self.w.lark.literal(&written(v))).collect();
            return self.w.lark.rule(&options.join(" | "));
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(list) = s.get(key).and_then(Value::as_array).filter(|l| !l.is_empty()) {
                let options: Vec<String> = list.iter().map(|s| self.value(s)).collect();
                return self.w.lark.rule(&options.join(" | "));
            }
        }
        if let Some(list) = s.get("allOf").and_then(Value::as_array).filter(|l| !l.is_empty()) {
            if list.len() > 1 {
                self.warn("allOf");
            }
            return self.value(&list[0]);
        }
        if types == Types::ANY {
            return self.anything();
        }
        let mut options = Vec::new();
        if types.has(Types::STRING) {
            let body = self.w.string(s, self.root, self.path);
            options.push(self.text(&body));
        }
        if types.has(SCALARS) {
            let names: Vec<&str> = types.and(SCALARS).names().collect();
            options.push(self.w.lark.json(&standalone(&json!({"allOf": [s, {"type": names}]}), self.root)));
        }
        if types.has(Types::ARRAY) {
            options.push(self.array(s));
        }
        if types.has(Types::OBJECT) {
            options.push(self.object(s));
        }
        self.w.lark.rule(&options.join(" | "))
    }

    fn warn(&mut self, keyword: &str) {
        self.w.warn(self.path, keyword, NOT_JSON);
    }

    fn text(&mut self, body: &str) -> String {
        let inside = self.w.lark.until(body, None, QUOTE);
        format!("{} {inside}", self.w.lark.literal(QUOTE))
    }

    fn reference(&mut self, r: &str) -> String {
        if let Some(rule) = self.refs.get(r) {
            return rule.clone();
        }
        let rule = self.w.lark.reserve();
        self.refs.insert(r.into(), rule.clone());
        let root = self.root;
        let body = match r.strip_prefix('#').and_then(|p| root.pointer(p)) {
            Some(target) => self.value(target),
            None => self.anything(),
        };
        self.w.lark.define(&rule, &body);
        rule
    }

    /// Any value.
    fn anything(&mut self) -> String {
        if let Some(rule) = &self.any {
            return rule.clone();
        }
        let rule = self.w.lark.reserve();
        self.any = Some(rule.clone());
        let text = self.text(super::lark::ANY_TEXT);
        let body = format!(
            "{text} | {NUMBER} | \"true\" | \"false\" | \"null\" | \"[\" ({rule} (\",\" {rule})*)? \"]\" | \
             \"{{\" ({KEY} \":\" {rule} (\",\" {KEY} \":\" {rule})*)? \"}}\""
        );
        self.w.lark.define(&rule, &body);
        rule
    }

    fn array(&mut self, s: &Value) -> String {
        if s.get("prefixItems").is_some() || s.get("items").is_some_and(Value::is_array) {
            self.warn("prefixItems");
        }
        let item = match s.get("items").filter(|i| !i.is_array()) {
            Some(items) => self.value(items),
            None => self.anything(),
        };
        let count = |k: &str| s.get(k).and_then(Value::as_u64);
        let (min, max) = (count("minItems").unwrap_or(0), count("maxItems"));
        let body = match (min, max) {
            (_, Some(0)) => String::new(),
            (0 | 1, None) => format!("{item} (\",\" {item})*"),
            (min, None) => format!("{item} (\",\" {item}){{{},}}", min - 1),
            (min, Some(max)) => {
                format!("{item} (\",\" {item}){{{},{}}}", min.saturating_sub(1), max.max(min).max(1) - 1)
            }
        };
        match (body.is_empty(), min) {
            (true, _) => "\"[\" \"]\"".into(),
            (false, 0) => format!("\"[\" ({body})? \"]\""),
            (false, _) => format!("\"[\" {body} \"]\""),
        }
    }

    /// An object with its braces.
    pub fn object(&mut self, s: &Value) -> String {
        let root = self.root;
        let mut s = s;
        for _ in 0..8 {
            match s.get("$ref").and_then(Value::as_str).and_then(|r| root.pointer(r.strip_prefix('#')?)) {
                Some(target) => s = target,
                None => break,
            }
        }
        for key in WHOLE_OBJECT {
            if s.get(key).is_some() {
                self.warn(key);
            }
        }
        let empty = Map::new();
        let properties = s.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let required: Vec<&str> =
            s.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        if properties.is_empty() && required.is_empty() {
            if s.get("additionalProperties") == Some(&Value::Bool(false)) {
                return "\"{\" \"}\"".into();
            }
            let value = match s.get("additionalProperties").filter(|a| a.is_object()) {
                Some(a) => self.value(a),
                None => self.anything(),
            };
            return format!("\"{{\" ({KEY} \":\" {value} (\",\" {KEY} \":\" {value})*)? \"}}\"");
        }
        let any = Value::Bool(true);
        let mut all: Vec<(&str, &Value)> = properties.iter().map(|(k, v)| (k.as_str(), v)).collect();
        all.extend(required.iter().filter(|r| !properties.contains_key(**r)).map(|r| (*r, &any)));
        all.sort_by_key(|(k, _)| *k);
        let fields: Vec<(String, bool)> = all
            .into_iter()
            .map(|(k, s)| {
                if k.contains(QUOTE) {
                    self.warn("properties");
                }
                let value = self.value(s);
                (format!("{} {value}", self.w.lark.literal(&format!("{}:", key(k)))), required.contains(&k))
            })
            .collect();
        self.fields(&fields)
    }

    /// Fields in order, each with whether it must be there, and commas between those that are.
    fn fields(&mut self, fields: &[(String, bool)]) -> String {
        let mut firsts = Vec::new();
        // From the last to the first: what may follow once there is a field.
        let mut tail = String::new();
        for (field, must) in fields.iter().rev() {
            firsts.push((format!("{field} {tail}"), *must));
            let next = if *must { format!("\",\" {field} {tail}") } else { format!("(\",\" {field})? {tail}") };
            tail = self.w.lark.rule(&next);
        }
        firsts.reverse();
        // The first field is one of those up to the first that must be there.
        let end = firsts.iter().position(|(_, must)| *must);
        let options: Vec<&str> =
            firsts[..end.map_or(firsts.len(), |i| i + 1)].iter().map(|(f, _)| f.as_str()).collect();
        let rule = self.w.lark.rule(&options.join(" | "));
        let optional = if end.is_none() { "?" } else { "" };
        format!("\"{{\" {rule}{optional} \"}}\"")
    }
}

/// A key as the model writes it: bare, unless it would not be read back so.
fn key(k: &str) -> String {
    if crate::dialect::stands_bare(k) { k.to_owned() } else { format!("{QUOTE}{k}{QUOTE}") }
}

/// A value as the model writes it.
fn written(v: &Value) -> String {
    match v {
        Value::String(s) => format!("{QUOTE}{s}{QUOTE}"),
        Value::Array(a) => format!("[{}]", a.iter().map(written).collect::<Vec<_>>().join(",")),
        Value::Object(o) => {
            let mut fields: Vec<(&String, &Value)> = o.iter().collect();
            fields.sort_by_key(|(k, _)| *k);
            let fields: Vec<String> = fields.iter().map(|(k, v)| format!("{}:{}", key(k), written(v))).collect();
            format!("{{{}}}", fields.join(","))
        }
        other => other.to_string(),
    }
}
