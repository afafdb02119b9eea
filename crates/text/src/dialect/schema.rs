//! Tools, and which JSON types their parameters may have.

use std::collections::HashMap;

use serde_json::Value;

/// A tool the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// The function's name, as the model writes it.
    pub name: String,
    /// JSON schema of its arguments; `null` if it was given none.
    pub parameters: Value,
    /// Whether the arguments must follow the schema to the letter.
    pub strict: bool,
}

impl Tool {
    /// Reads a tool in the form `{"type": "function", "function": {"name", "parameters", "strict"}}`, or the inner object
    /// alone. `None` without a name.
    pub fn from_openai(value: &Value) -> Option<Self> {
        let f = value.get("function").unwrap_or(value);
        let name = f.get("name")?.as_str()?.to_owned();
        let parameters = f.get("parameters").or_else(|| f.get("input_schema")).cloned().unwrap_or(Value::Null);
        Some(Self { name, parameters, strict: f.get("strict").and_then(Value::as_bool).unwrap_or(false) })
    }
}

/// A set of JSON types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Types(u8);

impl Types {
    pub const NONE: Self = Self(0);
    pub const STRING: Self = Self(1);
    pub const NUMBER: Self = Self(2);
    pub const INTEGER: Self = Self(4);
    pub const BOOLEAN: Self = Self(8);
    pub const NULL: Self = Self(16);
    pub const OBJECT: Self = Self(32);
    pub const ARRAY: Self = Self(64);
    pub const ANY: Self = Self(127);

    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether it has no others than these.
    pub fn only(self, these: Self) -> bool {
        self.0 & !these.0 == 0
    }

    pub fn without_string(self) -> Self {
        Self(self.0 & !Self::STRING.0)
    }

    /// The names of the types, as a schema has them.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        const ALL: [(Types, &str); 7] = [
            (Types::STRING, "string"),
            (Types::NUMBER, "number"),
            (Types::INTEGER, "integer"),
            (Types::BOOLEAN, "boolean"),
            (Types::NULL, "null"),
            (Types::OBJECT, "object"),
            (Types::ARRAY, "array"),
        ];
        ALL.into_iter().filter(move |(t, _)| self.has(*t)).map(|(_, n)| n)
    }

    fn named(name: &str) -> Self {
        match name {
            "string" => Self::STRING,
            "number" => Self::NUMBER.or(Self::INTEGER),
            "integer" => Self::INTEGER,
            "boolean" => Self::BOOLEAN,
            "null" => Self::NULL,
            "object" => Self::OBJECT,
            "array" => Self::ARRAY,
            _ => Self::ANY,
        }
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(n) if n.is_f64() => Self::NUMBER,
            Value::Number(_) => Self::INTEGER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    /// Whether a value of this kind is among them.
    pub fn admits(self, value: &Value) -> bool {
        self.has(Self::of_value(value)) || (value.is_number() && self.has(Self::NUMBER))
    }
}

/// How deep a schema is followed.
const MAX_DEPTH: u32 = 32;
/// How many schemas are looked at for one tool: references can make a small schema endless.
const MAX_WORK: u32 = 20_000;

/// The types a schema admits.
pub(crate) fn types_of(schema: &Value, root: &Value) -> Types {
    types(schema, root, MAX_DEPTH, &mut MAX_WORK.clone())
}

/// The types a schema admits. Keywords it does not know admit everything.
fn types(schema: &Value, root: &Value, depth: u32, work: &mut u32) -> Types {
    let Some(map) = schema.as_object() else { return Types::ANY };
    if depth == 0 || *work == 0 {
        return Types::ANY;
    }
    *work -= 1;
    let mut found = match map.get("type") {
        Some(Value::String(name)) => Types::named(name),
        Some(Value::Array(names)) => {
            names.iter().filter_map(Value::as_str).fold(Types::NONE, |t, n| t.or(Types::named(n)))
        }
        _ => Types::ANY,
    };
    if map.get("nullable") == Some(&Value::Bool(true)) {
        found = found.or(Types::NULL);
    }
    if let Some(values) = map.get("enum").and_then(Value::as_array) {
        found = found.and(values.iter().fold(Types::NONE, |t, v| t.or(Types::of_value(v))));
    }
    if let Some(value) = map.get("const") {
        found = found.and(Types::of_value(value));
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(list) = map.get(key).and_then(Value::as_array) {
            found = found.and(list.iter().fold(Types::NONE, |t, s| t.or(types(s, root, depth - 1, work))));
        }
    }
    for part in map.get("allOf").and_then(Value::as_array).into_iter().flatten() {
        found = found.and(types(part, root, depth - 1, work));
    }
    if let Some(target) = map.get("$ref").and_then(Value::as_str).and_then(|r| root.pointer(r.strip_prefix('#')?)) {
        found = found.and(types(target, root, depth - 1, work));
    }
    if found == Types::NONE { Types::ANY } else { found }
}

/// The types of one tool's parameters.
#[derive(Debug, Clone)]
pub(crate) struct Fields {
    by_name: HashMap<String, Types>,
    rest: Types,
}

impl Fields {
    pub fn of(schema: &Value) -> Self {
        let mut work = MAX_WORK;
        let mut fields = Self { by_name: HashMap::new(), rest: Types::ANY };
        if let Some(additional) = schema.get("additionalProperties") {
            fields.rest = types(additional, schema, MAX_DEPTH, &mut work);
        }
        fields.collect(schema, schema, MAX_DEPTH, &mut work);
        fields
    }

    /// Properties may also stand in the parts of a composed schema.
    fn collect(&mut self, schema: &Value, root: &Value, depth: u32, work: &mut u32) {
        if depth == 0 || *work == 0 {
            return;
        }
        *work -= 1;
        for (name, s) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let t = types(s, root, MAX_DEPTH, work);
            self.by_name.entry(name.clone()).and_modify(|have| *have = have.or(t)).or_insert(t);
        }
        for key in ["allOf", "anyOf", "oneOf"] {
            for part in schema.get(key).and_then(Value::as_array).into_iter().flatten() {
                self.collect(part, root, depth - 1, work);
            }
        }
        if let Some(t) = schema.get("$ref").and_then(Value::as_str).and_then(|r| root.pointer(r.strip_prefix('#')?)) {
            self.collect(t, root, depth - 1, work);
        }
    }

    pub fn get(&self, name: &str) -> Types {
        self.by_name.get(name).copied().unwrap_or(self.rest)
    }

    /// Fields of a tool nothing is known about.
    pub fn unknown() -> Self {
        Self { by_name: HashMap::new(), rest: Types::ANY }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_are_found_through_references_and_unions() {
        let fields = Fields::of(&json!({
            "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}, "loop": {"$ref": "#/$defs/loop"}},
            "properties": {
                "s": {"type": "string"}, "n": {"type": ["string", "null"]}, "e": {"enum": ["a", 1]}, "c": {"const": true},
                "u": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "r": {"$ref": "#/$defs/node"}, "l": {"$ref": "#/$defs/loop"},
                "o": {"type": "string", "nullable": true}, "x": {}
            },
            "additionalProperties": {"type": "number"},
        }));
        assert_eq!(fields.get("s"), Types::STRING);
        assert_eq!(fields.get("n"), Types::STRING.or(Types::NULL));
        assert_eq!(fields.get("o"), Types::STRING.or(Types::NULL));
        assert_eq!(fields.get("e"), Types::STRING.or(Types::INTEGER));
        assert_eq!(fields.get("c"), Types::BOOLEAN);
        assert_eq!(fields.get("u"), Types::INTEGER.or(Types::NULL));
        assert_eq!(fields.get("r"), Types::OBJECT);
        assert_eq!(fields.get("l"), Types::ANY);
        assert_eq!(fields.get("x"), Types::ANY);
        assert_eq!(fields.get("other"), Types::NUMBER.or(Types::INTEGER));
    }

    #[test]
    fn recursion_through_any_of_is_bounded() {
        // Each level doubles: only the bound on all work ends this.
        let schema = json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]});
        assert_eq!(Fields::of(&schema).get("a"), Types::ANY);
    }
}
