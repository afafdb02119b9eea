//! A body of `/v1/responses` to a [`GenerateRequest`].

use serde_json::{Map, Value, json};

use super::items;
use super::store::Store;
use super::tools::Tools;
use crate::chat::{format, parsed, reasoning, tool_choice};
use crate::fault::{Fault, Kind};
use crate::json::{self, Fields};
use crate::request::{Format, GenerateRequest, MAX_LOGPROBS, Message, Prompt, ToolChoice, Wishes, stops};

/// What only the way back needs.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Tools by the names clients know.
    pub tools: Tools,
    /// Keep the response.
    pub store: bool,
    /// Give reasoning in a form the client can keep.
    pub pack_reasoning: bool,
    /// Fields that the response repeats.
    pub echo: Map<String, Value>,
    /// The conversation without instructions.
    pub messages: Vec<Value>,
}

/// Fields that a response repeats as they were sent, and what they are if they were not.
const ECHOED: [(&str, &str); 12] = [
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("previous_response_id", "null"),
    ("reasoning", "null"),
    ("temperature", "null"),
    ("text", r#"{"format":{"type":"text"}}"#),
    ("tool_choice", "\"auto\""),
    ("tools", "[]"),
    ("top_p", "null"),
    ("truncation", "\"disabled\""),
];

/// Reads a body.
///
/// # Errors
/// A [`Fault`] that names the field.
pub fn request(body: &[u8], store: &Store) -> Result<(GenerateRequest, About), Fault> {
    let map = json::object(body)?;
    let f = Fields::of(&map);
    for field in ["conversation", "prompt"] {
        if f.get(field).is_some() {
            return Err(f.wrong(field, "is not supported; send the conversation as input, or previous_response_id"));
        }
    }
    if f.bool("background")? == Some(true) {
        return Err(f.wrong("background", "is not supported; stream the response instead"));
    }
    // An empty input is a probe that some clients send; none at all is a mistake.
    if !map.contains_key("input") && f.get("previous_response_id").is_none() {
        return Err(f.wrong("input", "is missing"));
    }
    let tools = Tools::read(&f)?;
    let (tool_choice, parsed_tools) = choice(&f, parsed(&tools.shown))?;
    let (format, format_field) = text_format(&f)?;
    let (mut messages, new) = (earlier(&f, store)?, items::messages(&f)?);
    messages.extend(new);
    let plain = messages.iter().map(|m| m.value.clone()).collect();
    let mut all = instructions(&f)?;
    all.extend(messages);
    // Some clients try a connection with no input at all.
    if all.iter().all(|m| matches!(m.value["role"].as_str(), Some("system" | "developer"))) {
        all.push(Message { path: "input".into(), value: json!({"role": "user", "content": ""}) });
    }
    let include: Vec<&str> = f.array("include")?.unwrap_or_default().iter().filter_map(Value::as_str).collect();
    let top = f.int("top_logprobs", 0, MAX_LOGPROBS)?;
    let logprobs = include.contains(&"message.output_text.logprobs") || top.is_some_and(|n| n > 0);
    let request = GenerateRequest {
        model: f.str("model")?.map(str::to_owned),
        prompt: Prompt::Messages(all),
        further: Vec::new(),
        only_parsed: parsed_tools.len() < tools.shown.len(),
        tool_choice,
        single_call: f.bool("parallel_tool_calls")? == Some(false),
        sampling: Wishes::read(&f)?,
        stop: stops(&f, "stop")?,
        max_tokens: f.tokens("max_output_tokens")?,
        format,
        format_field,
        reasoning: reasoning(&f)?,
        template_args: f.object("chat_template_kwargs")?.map(|o| o.map().clone()).unwrap_or_default(),
        n: 1,
        logprobs: logprobs.then(|| top.unwrap_or(0) as u32),
        prompt_logprobs: false,
        ignore_eos: f.bool("ignore_eos")?.unwrap_or(false),
        stream: f.bool("stream")?.unwrap_or(false),
        tools: tools.shown.clone(),
        parsed_tools,
    };
    let about = About {
        store: f.bool("store")?.unwrap_or(true),
        pack_reasoning: include.contains(&"reasoning.encrypted_content"),
        echo: echo(&f),
        messages: plain,
        tools,
    };
    Ok((request, about))
}

fn earlier(f: &Fields<'_>, store: &Store) -> Result<Vec<Message>, Fault> {
    let Some(id) = f.str("previous_response_id")? else { return Ok(Vec::new()) };
    let kept = store.get(id).ok_or_else(|| Fault {
        kind: Kind::NotFound,
        ..f.wrong(
            "previous_response_id",
            format_args!("{id:?} is not known; it was not stored, deleted, or another server's"),
        )
    })?;
    let one = |m: &Value| Message { path: "previous_response_id".into(), value: m.clone() };
    Ok(kept.messages.iter().map(one).collect())
}

fn instructions(f: &Fields<'_>) -> Result<Vec<Message>, Fault> {
    let text = f.str("instructions")?.filter(|t| !t.is_empty());
    let one = |t: &str| Message { path: "instructions".into(), value: json!({"role": "system", "content": t}) };
    Ok(text.map(one).into_iter().collect())
}

/// `text.format`, where a schema lies flat.
fn text_format(f: &Fields<'_>) -> Result<(Format, String), Fault> {
    let own = match f.object("text")? {
        Some(t) => format(&t, "format")?,
        None => (Format::Text, String::new()),
    };
    let (other, field) = format(f, "response_format")?;
    match (&own.0, &other) {
        (_, Format::Text) => Ok(own),
        (Format::Text, _) => Ok((other, field)),
        _ => Err(Fault::field(field, format_args!("cannot be given beside {}: an answer follows one of them", own.1))),
    }
}

fn choice(f: &Fields<'_>, parsed: Vec<text::dialect::Tool>) -> Result<(ToolChoice, Vec<text::dialect::Tool>), Fault> {
    let name =
        f.get("tool_choice").and_then(|c| Some((c.get("name")?.as_str()?, c.get("namespace").and_then(Value::as_str))));
    if let Some((name, namespace)) = name {
        let inside = Tools::inside(name, namespace);
        return Ok((crate::chat::chosen(f, ToolChoice::Named(inside), &parsed)?, parsed));
    }
    tool_choice(f, parsed, |t| {
        let namespace = t.str("namespace")?;
        Ok(t.str("name")?.map(|n| Tools::inside(n, namespace)))
    })
}

fn echo(f: &Fields<'_>) -> Map<String, Value> {
    let usual = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
    ECHOED
        .iter()
        .map(|(name, absent)| ((*name).into(), f.get(name).cloned().unwrap_or_else(|| usual(absent))))
        .collect()
}
