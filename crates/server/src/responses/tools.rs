//! Tools of the responses API: functions, free-form ones, and whole namespaces.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::chat::{leave_out, tool};
use crate::fault::Fault;
use crate::json::Fields;

/// The one argument of a free-form tool.
pub const INPUT: &str = "input";

/// What the client calls a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: Option<String>,
    /// It takes any text rather than JSON.
    pub custom: bool,
}

/// Tools as the model sees them, and what the client calls them.
#[derive(Clone, Debug, Default)]
pub struct Tools {
    /// In the form of chat completions.
    pub shown: Vec<Value>,
    names: HashMap<String, Named>,
}

impl Tools {
    /// Reads `tools`. Those that only a provider could run, or that are called in a form of their own (`local_shell`), are
    /// left out, and the log says so.
    ///
    /// # Errors
    /// Names the tool and the field.
    pub fn read(f: &Fields<'_>) -> Result<Self, Fault> {
        let mut all = Self::default();
        for t in f.objects("tools")? {
            match t.str("type")?.unwrap_or("function") {
                "namespace" => {
                    let namespace = t.str("name")?.ok_or_else(|| t.wrong("name", "is missing"))?;
                    for inner in t.objects("tools")? {
                        all.add(&inner, Some(namespace))?;
                    }
                }
                "function" | "custom" => all.add(&t, None)?,
                other => leave_out(other),
            }
        }
        Ok(all)
    }

    fn add(&mut self, f: &Fields<'_>, namespace: Option<&str>) -> Result<(), Fault> {
        let custom = f.str("type")? == Some("custom");
        let mut shown = if custom { free_form(f)? } else { tool(f, "parameters")? };
        let name = shown["function"]["name"].as_str().unwrap_or_default().to_owned();
        let inside = Self::inside(&name, namespace);
        shown["function"]["name"] = inside.as_str().into();
        self.shown.push(shown);
        self.names.insert(inside, Named { name, namespace: namespace.map(str::to_owned), custom });
        Ok(())
    }

    /// The name by which the model knows a tool.
    pub fn inside(name: &str, namespace: Option<&str>) -> String {
        namespace.map_or_else(|| name.to_owned(), |n| format!("{n}__{name}"))
    }

    /// What the client calls a tool the model named. One that does not exist keeps its name.
    pub fn named(&self, inside: &str) -> Named {
        let unknown = || Named { name: inside.into(), ..Named::default() };
        self.names.get(inside).cloned().unwrap_or_else(unknown)
    }
}

/// A free-form tool as a function of one string. A regular expression holds that string; a grammar is only told in words,
/// since most dialects write the string in JSON, with escapes that no grammar of the text knows.
fn free_form(f: &Fields<'_>) -> Result<Value, Fault> {
    let mut description = f.str("description")?.unwrap_or_default().to_owned();
    let (mut input, mut strict) = (json!({"type": "string"}), false);
    if let Some(format) = f.object("format")?
        && let Some(definition) = format.str("definition")?
    {
        let syntax = format.str("syntax")?.unwrap_or("grammar");
        description.push_str(&format!("\n\nThe input must follow this {syntax} grammar:\n{definition}"));
        if syntax == "regex" {
            input["pattern"] = format!("^(?:{definition})$").into();
            strict = true;
        }
    }
    let mut inner = Map::new();
    inner.insert("name".into(), f.get("name").cloned().unwrap_or(Value::Null));
    inner.insert("description".into(), description.into());
    inner.insert(
        "parameters".into(),
        json!({
            "type": "object", "properties": {INPUT: input}, "required": [INPUT], "additionalProperties": false,
        }),
    );
    inner.insert("strict".into(), strict.into());
    tool(&Fields::of(&inner), "parameters").map_err(|e| f.wrong("name", e.message))
}
