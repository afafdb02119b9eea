//! A conversation as clients send it, to the form templates were written for.
//!
//! Clients say the same thing in many ways; templates understand one. After [`History::new`] all equal forms are equal, so
//! they give the same prompt and find the same cached prefix.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::{Error, Result};

/// Where a call's arguments stand when they are no JSON object: `{"_raw_arguments": "the text as it was sent"}`. Templates
/// need an object, and a history with one broken call must not be unusable for ever.
pub const RAW_ARGUMENTS: &str = "_raw_arguments";

/// What a tool result that reports a failure begins with.
const TOOL_ERROR: &str = "[tool error]\n";

/// A conversation ready for a template.
///
/// - `content` is a string: absent, null, `""` and `[]` are all `""`; text parts are joined by line breaks. If there are parts
///   that are not text (images, sound) it stays an array, and [`media`](Self::media) names them.
/// - `tool_calls[].function.arguments` is an object; text that is none goes under [`RAW_ARGUMENTS`].
/// - `reasoning_content` is the one name of reasoning, left out when empty.
/// - Leading system and developer messages are one system message, joined by blank lines. Later ones stay in place, as user
///   text between `<system>` lines; a neighbouring user message takes them in, for templates that insist on turns.
/// - Tool results carry the name of the function they belong to, and say so if they report an error (`is_error`).
/// - A last message by the assistant without calls is the beginning of the answer: [`prefill`](Self::prefill).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// The messages.
    pub messages: Vec<Value>,
    /// For each of them the index of the given message it begins with.
    pub given: Vec<usize>,
    /// Text the answer begins with, taken off the end of the messages.
    pub prefill: Option<String>,
    /// Parts that are not text: index into the given messages, and the part's `type`.
    pub media: Vec<(usize, String)>,
}

impl History {
    /// Reads messages in the form of OpenAI's chat completions.
    ///
    /// # Errors
    /// [`Error::Message`] with the index: no object, an unknown role, a call without a name, a tool result that belongs to no
    /// earlier call or to one that already has its result.
    pub fn new(messages: &[Value]) -> Result<Self> {
        let mut reader = Reader::default();
        for (index, message) in messages.iter().enumerate() {
            let fail = |what: String| Error::Message { index, what };
            let m = message.as_object().ok_or_else(|| fail("not an object".into()))?;
            reader.message(index, m).map_err(fail)?;
        }
        Ok(reader.done())
    }

    /// The history for a template with that source: gpt-oss's looks for the reasoning before a call under `thinking`, and
    /// allows it only beside empty content.
    #[must_use]
    pub fn for_template(mut self, source: &str) -> Self {
        if source.contains("message.thinking") {
            for m in self.messages.iter_mut().filter(|m| m.get("tool_calls").is_some() && m["content"] == "") {
                if let Some(text) = m.get("reasoning_content").cloned() {
                    m["thinking"] = text;
                }
            }
        }
        self
    }
}

#[derive(Default)]
struct Reader {
    history: History,
    /// Function names of calls that wait for their result, by id.
    waiting: HashMap<String, String>,
    /// A late system message waits for a user message to join.
    late: bool,
}

impl Reader {
    fn message(&mut self, index: usize, m: &Map<String, Value>) -> Result<(), String> {
        let role = m.get("role").and_then(Value::as_str).ok_or("no role")?;
        match role {
            "system" | "developer" => self.system(index, m),
            "user" => self.user(index, m),
            "assistant" => self.assistant(index, m),
            "tool" | "function" => self.tool(index, m, role),
            other => Err(format!("unknown role {other:?}; known: system, developer, user, assistant, tool")),
        }
    }

    fn push(&mut self, index: usize, message: Value) {
        self.late = false;
        self.history.given.push(index);
        self.history.messages.push(message);
    }

    fn system(&mut self, index: usize, m: &Map<String, Value>) -> Result<(), String> {
        let text = self.content(index, m)?.0;
        let text = text.as_str().ok_or("a system message must be text")?;
        match self.history.messages.last_mut() {
            None => self.push(index, json!({"role": "system", "content": text})),
            Some(last) if last["role"] == "system" => append(last, text),
            Some(last) => {
                let marked = format!("<system>\n{text}\n</system>");
                if last["role"] == "user" && last["content"].is_string() {
                    append(last, &marked);
                } else {
                    self.push(index, json!({"role": "user", "content": marked}));
                }
                self.late = true;
            }
        }
        Ok(())
    }

    fn user(&mut self, index: usize, m: &Map<String, Value>) -> Result<(), String> {
        if m.get("content").is_some_and(|c| !(c.is_null() || c.is_string() || c.is_array())) {
            return Err("content must be text or an array of parts".into());
        }
        let content = self.content(index, m)?.0;
        if let (true, Some(last), Some(text)) = (self.late, self.history.messages.last_mut(), content.as_str()) {
            append(last, text);
            self.late = false;
            return Ok(());
        }
        self.push(index, keep_name(json!({"role": "user", "content": content}), m));
        Ok(())
    }

    fn assistant(&mut self, index: usize, m: &Map<String, Value>) -> Result<(), String> {
        let (content, thought) = self.content(index, m)?;
        let mut out = json!({"role": "assistant", "content": content});
        let named = ["reasoning_content", "reasoning", "thinking"].iter().find_map(|k| m.get(*k)?.as_str());
        if let Some(text) = named.map(str::to_owned).or(thought).filter(|t| !t.is_empty()) {
            out["reasoning_content"] = text.into();
        }
        let mut calls = Vec::new();
        let legacy = m.get("function_call").filter(|f| f.is_object()).map(|f| json!({"id": "", "function": f}));
        let given = m.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
        for call in given.chain(&legacy) {
            let f = call.get("function").unwrap_or(call);
            let name = f.get("name").and_then(Value::as_str).filter(|n| !n.is_empty());
            let name = name.ok_or_else(|| format!("tool_calls[{}] has no function name", calls.len()))?;
            let id = call.get("id").and_then(Value::as_str).unwrap_or_default();
            self.waiting.insert(id.into(), name.into());
            let function = json!({"name": name, "arguments": arguments(f.get("arguments"))});
            calls.push(json!({"id": id, "type": "function", "function": function}));
        }
        if !calls.is_empty() {
            out["tool_calls"] = calls.into();
        }
        self.push(index, out);
        Ok(())
    }

    fn tool(&mut self, index: usize, m: &Map<String, Value>, role: &str) -> Result<(), String> {
        let id = match m.get("tool_call_id").and_then(Value::as_str) {
            Some(id) => id,
            None if role == "function" => "",
            None => return Err("a tool result needs tool_call_id".into()),
        };
        let Some(name) = self.waiting.remove(id) else {
            return Err(format!("tool_call_id {id:?} is no call that waits for its result"));
        };
        let mut content = self.content(index, m)?.0;
        if m.get("is_error").and_then(Value::as_bool).unwrap_or(false) {
            match &mut content {
                Value::String(s) => s.insert_str(0, TOOL_ERROR),
                Value::Array(parts) => parts.insert(0, json!({"type": "text", "text": TOOL_ERROR})),
                _ => {}
            }
        }
        self.push(index, json!({"role": "tool", "tool_call_id": id, "name": name, "content": content}));
        Ok(())
    }

    /// The content, and reasoning that was among its parts.
    fn content(&mut self, index: usize, m: &Map<String, Value>) -> Result<(Value, Option<String>), String> {
        let parts = match m.get("content") {
            None | Some(Value::Null) => return Ok(("".into(), None)),
            Some(Value::String(s)) => return Ok((s.as_str().into(), None)),
            Some(Value::Array(parts)) => parts,
            // Tool results of clients that forgot to make text of them.
            Some(other) => return Ok((other.to_string().into(), None)),
        };
        let (mut texts, mut all, mut thoughts, mut media) = (Vec::new(), Vec::new(), Vec::new(), false);
        for (i, part) in parts.iter().enumerate() {
            let kind = part.get("type").and_then(Value::as_str).unwrap_or("text");
            let text = ["text", "refusal"].iter().find_map(|k| part.get(*k)?.as_str()).or(part.as_str());
            match (kind, text) {
                ("thinking" | "reasoning", _) => {
                    thoughts.extend(["thinking", "text"].iter().find_map(|k| part.get(*k)?.as_str()));
                }
                ("redacted_thinking", _) => {}
                ("text" | "input_text" | "output_text" | "refusal", Some(t)) => {
                    texts.push(t);
                    all.push(json!({"type": "text", "text": t}));
                }
                ("text" | "input_text" | "output_text" | "refusal", None) if part.is_object() => {
                    return Err(format!("content[{i}] is a {kind} part without its text"));
                }
                _ if part.is_object() => {
                    media = true;
                    self.history.media.push((index, kind.into()));
                    all.push(part.clone());
                }
                _ => return Err(format!("content[{i}] is no content part")),
            }
        }
        let thought = (!thoughts.is_empty()).then(|| thoughts.join("\n"));
        Ok((if media { all.into() } else { texts.join("\n").into() }, thought))
    }

    fn done(mut self) -> History {
        let messages = &mut self.history.messages;
        if let Some(last) = messages.last()
            && last["role"] == "assistant"
            && last.get("tool_calls").is_none()
            && let Some(text) = last["content"].as_str()
        {
            self.history.prefill = Some(text.to_owned()).filter(|t| !t.is_empty());
            messages.pop();
            self.history.given.pop();
        }
        self.history
    }
}

fn append(message: &mut Value, text: &str) {
    if let Some(Value::String(have)) = message.get_mut("content") {
        if !have.is_empty() && !text.is_empty() {
            have.push_str("\n\n");
        }
        have.push_str(text);
    }
}

fn keep_name(mut message: Value, m: &Map<String, Value>) -> Value {
    if let Some(name) = m.get("name").filter(|n| n.is_string()) {
        message["name"] = name.clone();
    }
    message
}

/// Arguments as an object, whatever they were.
fn arguments(given: Option<&Value>) -> Value {
    let parsed = match given {
        None | Some(Value::Null) => json!({}),
        Some(Value::String(s)) if s.trim().is_empty() => json!({}),
        Some(Value::String(s)) => match serde_json::from_str::<Value>(s) {
            Ok(Value::Null) => json!({}),
            Ok(v) if v.is_object() => v,
            _ => json!({RAW_ARGUMENTS: s}),
        },
        Some(v) => v.clone(),
    };
    if parsed.is_object() { parsed } else { json!({RAW_ARGUMENTS: parsed.to_string()}) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(messages: Value) -> Vec<Value> {
        History::new(messages.as_array().unwrap()).unwrap().messages
    }

    fn refused(messages: Value) -> (usize, String) {
        match History::new(messages.as_array().unwrap()) {
            Err(Error::Message { index, what }) => (index, what),
            other => panic!("{other:?}"),
        }
    }

    fn call(id: &str, arguments: Value) -> Value {
        json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}})
    }

    #[test]
    fn equal_forms_are_equal() {
        let with = |extra: Value| {
            let mut a = json!({"role": "assistant", "tool_calls": [call("c1", json!("{}"))]});
            for (k, v) in extra.as_object().unwrap() {
                a[k] = v.clone();
            }
            read(json!([{"role": "user", "content": "U"}, a, {"role": "tool", "tool_call_id": "c1", "content": "r"}]))
        };
        let base = with(json!({}));
        for same in [
            json!({"content": null}),
            json!({"content": ""}),
            json!({"content": []}),
            json!({"content": [{"type": "text", "text": ""}]}),
            json!({"reasoning_content": ""}),
            json!({"tool_calls": [call("c1", json!(""))]}),
            json!({"tool_calls": [call("c1", json!({}))]}),
            json!({"tool_calls": [call("c1", Value::Null)]}),
            json!({"tool_calls": [call("c1", json!("null"))]}),
        ] {
            assert_eq!(with(same.clone()), base, "{same}");
        }
        assert_eq!(base[1], json!({"role": "assistant", "content": "", "tool_calls": [call("c1", json!({}))]}));
        assert_eq!(base[2], json!({"role": "tool", "tool_call_id": "c1", "name": "f", "content": "r"}));
    }

    #[test]
    fn broken_arguments_are_kept_under_their_key() {
        for (given, kept) in [
            (json!("{\"a\": "), json!({RAW_ARGUMENTS: "{\"a\": "})),
            (json!("[1]"), json!({RAW_ARGUMENTS: "[1]"})),
            (json!([1]), json!({RAW_ARGUMENTS: "[1]"})),
            (json!("{\"b\": 1, \"a\": \"é\"}"), json!({"b": 1, "a": "é"})),
        ] {
            let m = read(json!([{"role": "assistant", "tool_calls": [call("c", given)]}]));
            assert_eq!(m[0]["tool_calls"][0]["function"]["arguments"], kept);
        }
    }

    #[test]
    fn parts_are_joined_and_media_are_named() {
        let parts = json!([{"type": "text", "text": "21 C"}, {"type": "text", "text": "dry"}]);
        let m = read(
            json!([{"role": "user", "content": parts}, {"role": "user", "content": ["a", {"type": "input_text", "text": "b"}]}]),
        );
        assert_eq!((&m[0]["content"], &m[1]["content"]), (&json!("21 C\ndry"), &json!("a\nb")));
        let image = json!({"type": "image_url", "image_url": {"url": "data:"}});
        let h = History::new(&[json!({"role": "user", "content": [image, "look"]})]).unwrap();
        assert_eq!(h.media, [(0, "image_url".to_owned())]);
        assert_eq!(h.messages[0]["content"], json!([image, {"type": "text", "text": "look"}]));
        assert_eq!(refused(json!([{"role": "user", "content": [{"type": "text"}]}])).0, 0);
    }

    #[test]
    fn errors_of_tools_are_visible() {
        let result = |extra: Value| {
            let mut r = json!({"role": "tool", "tool_call_id": "c"});
            r.as_object_mut().unwrap().extend(extra.as_object().cloned().unwrap());
            let call = json!({"role": "assistant", "tool_calls": [call("c", json!("{}"))]});
            read(json!([call, r]))[1]["content"].as_str().unwrap().to_owned()
        };
        assert_eq!(result(json!({"content": "no such file", "is_error": true})), "[tool error]\nno such file");
        assert_eq!(result(json!({})), "");
        assert_eq!(result(json!({"content": {"temp": 21}})), r#"{"temp":21}"#);
    }

    #[test]
    fn tool_results_must_belong_to_a_call() {
        let call = json!({"role": "assistant", "tool_calls": [call("c", json!("{}"))]});
        let result = json!({"role": "tool", "tool_call_id": "c", "content": "r"});
        assert_eq!(refused(json!([result, call])).0, 0, "before its call");
        assert_eq!(refused(json!([call, result, result])).0, 2, "twice");
        assert_eq!(refused(json!([call, {"role": "tool", "content": "r"}])).0, 1, "no id");
        assert!(refused(json!([call, {"role": "tool", "tool_call_id": "x"}])).1.contains("\"x\""));
        assert_eq!(read(json!([call, result, call, result])).len(), 4, "an id used again in a later turn");
        let long = "i".repeat(300);
        let used = json!([{"role": "assistant", "tool_calls": [{"id": long, "function": {"name": "f"}}]}, {"role": "tool", "tool_call_id": long}]);
        assert_eq!(read(used)[1]["tool_call_id"], long.as_str());
    }

    #[test]
    fn system_messages_first_and_late() {
        let s = |t: &str| json!({"role": "system", "content": t});
        let d = json!({"role": "developer", "content": [{"type": "text", "text": "d"}]});
        let (u, a) = (json!({"role": "user", "content": "u"}), json!({"role": "assistant", "content": "a"}));
        assert_eq!(read(json!([s("one"), d, u]))[0], s("one\n\nd"));
        let late = read(json!([u, a, s("x"), u]));
        assert_eq!(late[..2], read(json!([u, a, u]))[..2], "what came before is untouched");
        assert_eq!(late[2], json!({"role": "user", "content": "<system>\nx\n</system>\n\nu"}));
        assert_eq!(read(json!([u, s("x")])), [json!({"role": "user", "content": "u\n\n<system>\nx\n</system>"})]);
        assert_eq!(read(json!([u, a, s("x"), a, u])).len(), 5);
    }

    #[test]
    fn reasoning_has_one_name() {
        let u = json!({"role": "user", "content": "u"});
        for form in [
            json!({"role": "assistant", "content": "a", "reasoning_content": "r"}),
            json!({"role": "assistant", "content": "a", "reasoning": "r"}),
            json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "r", "signature": "s"}, {"type": "text", "text": "a"}]}),
        ] {
            let right = json!({"role": "assistant", "content": "a", "reasoning_content": "r"});
            assert_eq!(read(json!([form, u]))[0], right);
        }
    }

    #[test]
    fn a_last_assistant_message_is_the_beginning_of_the_answer() {
        for content in [json!("Sure, "), json!([{"type": "text", "text": "Sure, "}])] {
            let h = History::new(&[
                json!({"role": "user", "content": "u"}),
                json!({"role": "assistant", "content": content}),
            ]);
            let h = h.unwrap();
            assert_eq!((h.prefill.as_deref(), h.messages.len()), (Some("Sure, "), 1));
        }
    }

    #[test]
    fn reasoning_before_a_call_is_found_by_templates_that_call_it_thinking() {
        let with = json!({"role": "assistant", "reasoning_content": "r", "tool_calls": [call("c", json!("{}"))]});
        let h = History::new(&[with, json!({"role": "user", "content": "u"})]).unwrap();
        assert_eq!(h.clone().for_template("{{ message.thinking }}").messages[0]["thinking"], "r");
        assert_eq!(h.clone().for_template("{{ message.reasoning_content }}"), h);
    }

    #[test]
    fn nonsense_is_refused_with_its_place() {
        assert_eq!(refused(json!([{"role": "user"}, 5])).0, 1);
        assert!(refused(json!([{"role": "narrator"}])).1.contains("narrator"));
        assert!(refused(json!([{"role": "assistant", "tool_calls": [{"id": "c"}]}])).1.contains("tool_calls[0]"));
    }
}
