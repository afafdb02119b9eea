//! Input items of the responses API as messages of chat completions.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::tools::{INPUT, Tools};
use crate::fault::Fault;
use crate::json::Fields;
use crate::request::Message;

/// How reasoning that is kept by the client begins: it is only packed, not encrypted, for it is the client's own.
const PACKED: &str = "snug1:";

/// Packs reasoning for clients that keep it.
pub fn pack(reasoning: &str) -> String {
    format!("{PACKED}{}", STANDARD.encode(reasoning))
}

fn unpack(packed: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(packed.strip_prefix(PACKED)?).ok()?).ok()
}

/// Reads `input`: a string or items.
///
/// # Errors
/// Names the item and the field.
pub fn messages(f: &Fields<'_>) -> Result<Vec<Message>, Fault> {
    match f.get("input") {
        None => return Ok(Vec::new()),
        Some(Value::String(s)) => {
            return Ok(vec![Message { path: "input".into(), value: json!({"role": "user", "content": s}) }]);
        }
        Some(_) => {}
    }
    let mut reader = Reader::default();
    for (i, item) in f.objects("input")?.iter().enumerate() {
        reader.item(item, &format!("input[{i}]"))?;
    }
    reader.flush("input");
    Ok(reader.out)
}

#[derive(Default)]
struct Reader {
    out: Vec<Message>,
    /// An assistant's turn that is being put together: reasoning, text and calls are items of their own here.
    turn: Option<Value>,
}

impl Reader {
    fn item(&mut self, f: &Fields<'_>, path: &str) -> Result<(), Fault> {
        let kind = f.str("type")?.unwrap_or("message");
        match kind {
            "message" => self.message(f, path),
            "reasoning" => {
                if let Some(text) = reasoning(f)? {
                    if self.turn.as_ref().is_some_and(|t| t.get("tool_calls").is_some() || t["content"] != "") {
                        self.flush(path);
                    }
                    let turn = self.turn();
                    let before = turn["reasoning_content"].as_str().map(|b| format!("{b}\n")).unwrap_or_default();
                    turn["reasoning_content"] = format!("{before}{text}").into();
                }
                Ok(())
            }
            "function_call" | "custom_tool_call" => self.call(f, kind),
            "function_call_output" | "custom_tool_call_output" => {
                self.flush(path);
                let id = f.str("call_id")?.ok_or_else(|| f.wrong("call_id", "is missing"))?;
                let content = f.get("output");
                self.add(path, json!({"role": "tool", "tool_call_id": id, "content": content}));
                Ok(())
            }
            // What the provider's own tools did is of no use to another model.
            "web_search_call"
            | "image_generation_call"
            | "file_search_call"
            | "code_interpreter_call"
            | "compaction" => Ok(()),
            other => Err(f.wrong(
                "type",
                format_args!(
                    "is {other:?}; known are message, reasoning, function_call, custom_tool_call and their outputs"
                ),
            )),
        }
    }

    fn message(&mut self, f: &Fields<'_>, path: &str) -> Result<(), Fault> {
        let role = f.str("role")?.ok_or_else(|| f.wrong("role", "is missing"))?;
        let content = f.get("content").cloned().unwrap_or_else(|| "".into());
        if role != "assistant" {
            self.flush(path);
            self.add(path, json!({"role": role, "content": content}));
            return Ok(());
        }
        if self.turn.as_ref().is_some_and(|t| t["content"] != "" || t.get("tool_calls").is_some()) {
            self.flush(path);
        }
        self.turn()["content"] = content;
        Ok(())
    }

    fn call(&mut self, f: &Fields<'_>, kind: &str) -> Result<(), Fault> {
        let name = f.str("name")?.ok_or_else(|| f.wrong("name", "is missing"))?;
        let id = f.str("call_id")?.ok_or_else(|| f.wrong("call_id", "is missing"))?;
        let arguments = if kind == "custom_tool_call" {
            json!({INPUT: f.str("input")?.unwrap_or_default()})
        } else {
            f.get("arguments").cloned().unwrap_or(Value::Null)
        };
        let name = Tools::inside(name, f.str("namespace")?);
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let turn = self.turn();
        match turn.get_mut("tool_calls").and_then(Value::as_array_mut) {
            Some(calls) => calls.push(call),
            None => turn["tool_calls"] = json!([call]),
        }
        Ok(())
    }

    fn turn(&mut self) -> &mut Value {
        self.turn.get_or_insert_with(|| json!({"role": "assistant", "content": ""}))
    }

    fn flush(&mut self, path: &str) {
        if let Some(turn) = self.turn.take() {
            self.add(path, turn);
        }
    }

    fn add(&mut self, path: &str, value: Value) {
        self.out.push(Message { path: path.into(), value });
    }
}

fn reasoning(f: &Fields<'_>) -> Result<Option<String>, Fault> {
    let mut texts = Vec::new();
    for part in f.objects("content")? {
        texts.extend(part.str("text")?.map(str::to_owned));
    }
    if texts.is_empty() {
        texts.extend(f.str("encrypted_content")?.and_then(unpack));
    }
    Ok((!texts.is_empty()).then(|| texts.join("\n")))
}
