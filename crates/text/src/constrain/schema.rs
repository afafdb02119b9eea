//! Which parts of a JSON schema can be enforced, and what to do about the others.

use serde_json::{Map, Value};

use super::{Warning, bounds};

/// Keywords of JSON Schema (draft 2020-12 and what it replaced) that say something about values and are not enforced.
const UNSUPPORTED: &[&str] = &[
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
];

/// Formats that are enforced.
const FORMATS: &[&str] = &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Something a schema asks that cannot be enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// JSON pointer to the schema that holds the keyword.
    pub path: String,
    pub keyword: String,
    pub why: String,
}

impl Finding {
    pub fn warning(&self) -> Warning {
        Warning { path: self.path.clone(), keyword: self.keyword.clone(), why: self.why.clone() }
    }
}

/// How deep schemas may nest.
const MAX_DEPTH: usize = 64;

/// Everything in a schema that is known not to be enforceable.
pub(super) fn findings(schema: &Value) -> Vec<Finding> {
    let mut out = Vec::new();
    walk(schema, schema, String::new(), 0, &mut out);
    out
}

/// Looks at every schema inside a schema.
fn walk(root: &Value, schema: &Value, path: String, depth: usize, out: &mut Vec<Finding>) {
    let Some(map) = schema.as_object() else {
        if !schema.is_boolean() {
            out.push(finding(&path, "", "a schema must be an object or a boolean"));
        }
        return;
    };
    if depth > MAX_DEPTH {
        out.push(finding(&path, "", "nested too deep"));
        return;
    }
    look(root, &path, map, out);
    for (path, inner) in children(&path, map) {
        walk(root, inner, path, depth + 1, out);
    }
}

/// The schemas directly inside a schema, with their pointers.
pub(super) fn children<'v>(path: &str, map: &'v Map<String, Value>) -> Vec<(String, &'v Value)> {
    let mut out = Vec::new();
    for (key, value) in map {
        match (key.as_str(), value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(inner)) => {
                out.extend(inner.iter().map(|(k, v)| (format!("{path}/{key}/{}", pointer(k)), v)));
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(inner)) => {
                out.extend(inner.iter().enumerate().map(|(i, v)| (format!("{path}/{key}/{i}"), v)));
            }
            ("items" | "additionalProperties" | "additionalItems", v) => out.push((format!("{path}/{key}"), v)),
            _ => {}
        }
    }
    out
}

fn pointer(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn finding(path: &str, keyword: &str, why: impl Into<String>) -> Finding {
    Finding { path: if path.is_empty() { "/".into() } else { path.into() }, keyword: keyword.into(), why: why.into() }
}

fn look(root: &Value, path: &str, map: &Map<String, Value>, out: &mut Vec<Finding>) {
    for key in map.keys().filter(|k| UNSUPPORTED.contains(&k.as_str())) {
        if key == "uniqueItems" && map[key] == Value::Bool(false) {
            continue;
        }
        out.push(finding(path, key, "this keyword is not supported"));
    }
    if let Some(format) = map.get("format")
        && may_be_string(map)
        && !format.as_str().is_some_and(|f| FORMATS.contains(&f))
    {
        out.push(finding(path, "format", format!("the format {format} is not supported")));
    }
    if let Some(r) = map.get("$ref") {
        let target = r.as_str().and_then(|r| root.pointer(r.strip_prefix('#')?));
        match target {
            None => out.push(finding(path, "$ref", format!("{r} is not found in the schema"))),
            Some(t) if is_void(root, t, &mut vec![std::ptr::from_ref(map)]) => {
                out.push(finding(path, "$ref", format!("{r} leads back to itself with nothing between")));
            }
            Some(_) => {}
        }
    }
    out.extend(bounds::unreachable(map).map(|(key, why)| finding(path, key, why)));
    if let Some(t) = map.get("type") {
        const TYPES: [&str; 7] = ["null", "boolean", "number", "integer", "string", "array", "object"];
        let known = |v: &Value| v.as_str().is_some_and(|s| TYPES.contains(&s));
        if !(known(t) || t.as_array().is_some_and(|a| !a.is_empty() && a.iter().all(known))) {
            out.push(finding(path, "type", format!("{t} is no type")));
        }
    }
}

/// Whether a schema says nothing but that it is itself, so that no value is ever reached. `above`: the schemas that are
/// being asked.
fn is_void(root: &Value, schema: &Value, above: &mut Vec<*const Map<String, Value>>) -> bool {
    let Some(map) = schema.as_object() else { return false };
    let this = std::ptr::from_ref(map);
    if above.contains(&this) || above.len() > MAX_DEPTH {
        return above.contains(&this);
    }
    above.push(this);
    let target = map.get("$ref").and_then(Value::as_str).and_then(|r| root.pointer(r.strip_prefix('#')?));
    let mut of = |key: &str, all: bool| {
        let parts = map.get(key).and_then(Value::as_array).filter(|a| !a.is_empty());
        parts.is_some_and(|a| {
            if all { a.iter().all(|s| is_void(root, s, above)) } else { a.iter().any(|s| is_void(root, s, above)) }
        })
    };
    let parts = of("anyOf", true) || of("oneOf", true) || of("allOf", false);
    let void = parts || target.is_some_and(|t| is_void(root, t, above));
    above.pop();
    void
}

fn may_be_string(map: &Map<String, Value>) -> bool {
    match map.get("type") {
        Some(Value::String(s)) => s == "string",
        Some(Value::Array(a)) => a.iter().any(|t| t == "string"),
        _ => true,
    }
}

/// Takes a keyword out of a schema.
pub(super) fn relax(schema: &mut Value, finding: &Finding) {
    let path = if finding.path == "/" { "" } else { finding.path.as_str() };
    match schema.pointer_mut(path) {
        Some(Value::Object(map)) if !finding.keyword.is_empty() => {
            map.shift_remove(&finding.keyword);
        }
        Some(other) => *other = Value::Bool(true),
        None => {}
    }
}

/// A part of a schema as a schema of its own: the whole one goes along as a definition, and references are turned to it.
pub(super) fn standalone(part: &Value, root: &Value) -> Value {
    if !has_reference(part) {
        return part.clone();
    }
    let mut out = turned(part);
    let mut whole = turned(root);
    if let Some(map) = whole.as_object_mut() {
        map.shift_remove("x-guidance");
    }
    if let Some(map) = out.as_object_mut() {
        let mut defs = Map::new();
        defs.insert(WHOLE.into(), whole);
        map.insert("$defs".into(), Value::Object(defs));
    }
    out
}

/// The schema as the grammar's compiler takes it: it follows no references with escapes in their pointers, so those are
/// replaced by others, and its times are too generous.
pub(super) fn prepared(schema: &Value) -> Value {
    let mut escaped = Vec::new();
    collect_escaped(schema, &mut escaped);
    let mut out = schema.clone();
    if !escaped.is_empty() {
        rename(&mut out, &escaped);
        for (i, r) in escaped.iter().enumerate() {
            let Some(target) = schema.pointer(&r[1..]) else { continue };
            let mut target = target.clone();
            rename(&mut target, &escaped);
            out["$defs"][format!("__ref{i}")] = target;
        }
    }
    everywhere(&mut out, &mut |m| {
        real_format(m);
        bounds::rewrite(m);
    });
    out
}

/// The dates there are: RFC 3339 has days in its months and leap years in its calendar.
pub(super) const DATE: &str = "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)";
/// The times there are, up to their seconds: a second 60 is only one where a leap second was inserted.
pub(super) const TIME: &str = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]";

/// Adds what the compiler's own formats leave out, where no pattern stands in the way.
fn real_format(m: &mut Map<String, Value>) {
    let pattern = match m.get("format").and_then(Value::as_str) {
        Some("date") => Some(format!("^{DATE}$")),
        Some("time") => Some(format!("^{TIME}")),
        Some("date-time") => Some(format!("^{DATE}[tT]{TIME}")),
        // RFC 5321 and 1035 bound their lengths.
        Some("email") => Some("^[^@]{1,64}@.{1,253}$".to_owned()),
        Some("hostname") => Some("^.{1,253}$".to_owned()),
        _ => None,
    };
    if let Some(pattern) = pattern.filter(|_| !m.contains_key("pattern")) {
        m.insert("pattern".into(), pattern.into());
    }
}

/// Changes every schema inside a schema, and leaves values in it alone.
fn everywhere(v: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    match v {
        Value::Object(m) => {
            change(m);
            for (key, v) in m.iter_mut() {
                if !matches!(key.as_str(), "enum" | "const" | "default" | "examples") {
                    everywhere(v, change);
                }
            }
        }
        Value::Array(a) => a.iter_mut().for_each(|v| everywhere(v, change)),
        _ => {}
    }
}

fn collect_escaped(v: &Value, out: &mut Vec<String>) {
    match v {
        Value::Object(m) => {
            if let Some(r) = m.get("$ref").and_then(Value::as_str)
                && r.starts_with('#')
                && r.contains('~')
                && !out.iter().any(|o| o == r)
            {
                out.push(r.to_owned());
            }
            m.values().for_each(|v| collect_escaped(v, out));
        }
        Value::Array(a) => a.iter().for_each(|v| collect_escaped(v, out)),
        _ => {}
    }
}

fn rename(v: &mut Value, escaped: &[String]) {
    match v {
        Value::Object(m) => {
            if let Some(Value::String(r)) = m.get_mut("$ref")
                && let Some(i) = escaped.iter().position(|e| e == r)
            {
                *r = format!("#/$defs/__ref{i}");
            }
            m.values_mut().for_each(|v| rename(v, escaped));
        }
        Value::Array(a) => a.iter_mut().for_each(|v| rename(v, escaped)),
        _ => {}
    }
}

const WHOLE: &str = "__whole";

fn has_reference(v: &Value) -> bool {
    match v {
        Value::Object(m) => m.get("$ref").is_some_and(Value::is_string) || m.values().any(has_reference),
        Value::Array(a) => a.iter().any(has_reference),
        _ => false,
    }
}

fn turned(v: &Value) -> Value {
    match v {
        Value::Object(m) => Value::Object(
            m.iter()
                .map(|(k, v)| match v.as_str().and_then(|r| r.strip_prefix('#')) {
                    Some(rest) if k == "$ref" => (k.clone(), format!("#/$defs/{WHOLE}{rest}").into()),
                    _ => (k.clone(), turned(v)),
                })
                .collect(),
        ),
        Value::Array(a) => a.iter().map(turned).collect(),
        other => other.clone(),
    }
}
