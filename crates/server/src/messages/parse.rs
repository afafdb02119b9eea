//! A body of `/v1/messages` to a [`GenerateRequest`].

use serde_json::{Value, json};

use super::known;
use crate::app::Config;
use crate::chat::{chosen, is_providers, leave_out, parsed, tool, with_effort};
use crate::fault::Fault;
use crate::json::{self, Fields};
use crate::request::{Format, GenerateRequest, Message, Prompt, Reasoning, ToolChoice, Wishes, stops};

/// The line with which some versions of Claude Code begin their system prompt. It changes with every request, so nothing
/// after it would be found again.
const VOLATILE: &str = "x-anthropic-billing-header:";

/// Reads a body. `answering`: it is to be answered, not only counted, so it must say how long the answer may be.
///
/// # Errors
/// A [`Fault`] that names the field.
pub fn request(body: &[u8], config: &Config, answering: bool) -> Result<GenerateRequest, Fault> {
    let map = json::object(body)?;
    let f = Fields::of(&map);
    let max_tokens = f.tokens("max_tokens")?;
    if answering && max_tokens.is_none() {
        return Err(f.wrong("max_tokens", "is missing"));
    }
    let tools = tools(&f)?;
    let parsed_tools = parsed(&tools);
    let choice = f.object("tool_choice")?;
    let (format, format_field) = format(&f)?;
    // Other APIs go further; here more than 1 is a mistake.
    f.f32("temperature", 0.0, 1.0)?;
    let single_call = match &choice {
        Some(c) => c.bool("disable_parallel_tool_use")?.unwrap_or(false),
        None => false,
    };
    Ok(GenerateRequest {
        model: f.str("model")?.map(str::to_owned),
        prompt: Prompt::Messages(messages(&f, config.strip_volatile)?),
        further: Vec::new(),
        tool_choice: chosen(&f, tool_choice(choice.as_ref())?, &parsed_tools)?,
        only_parsed: false,
        single_call,
        sampling: Wishes::read(&f)?,
        stop: stops(&f, "stop_sequences")?,
        max_tokens,
        format,
        format_field,
        reasoning: reasoning(&f)?,
        template_args: f.object("chat_template_kwargs")?.map(|o| o.map().clone()).unwrap_or_default(),
        n: 1,
        logprobs: None,
        prompt_logprobs: false,
        ignore_eos: false,
        stream: f.bool("stream")?.unwrap_or(false),
        tools,
        parsed_tools,
    })
}

fn tools(f: &Fields<'_>) -> Result<Vec<Value>, Fault> {
    let mut out: Vec<Value> = Vec::new();
    for t in f.objects("tools")? {
        let one = match t.str("type")?.unwrap_or("custom") {
            "custom" | "function" => {
                if t.get("input_schema").is_none() {
                    return Err(t.wrong("input_schema", "is missing"));
                }
                tool(&t, "input_schema")?
            }
            // Tools that run at Anthropic; here is nobody to run them.
            kind if is_providers(kind) => {
                leave_out(kind);
                continue;
            }
            // Tools that the client runs, of which it sends no schema.
            kind => match known::tool(kind, t.str("name")?) {
                Some(known) => known,
                None => {
                    let what = format_args!("is {kind:?}, whose schema is not known here; send it as a custom tool");
                    return Err(t.wrong("type", what));
                }
            },
        };
        if out.iter().any(|o| o["function"]["name"] == one["function"]["name"]) {
            return Err(t.wrong("name", format_args!("is {}, as another tool's", one["function"]["name"])));
        }
        out.push(one);
    }
    Ok(out)
}

fn tool_choice(choice: Option<&Fields<'_>>) -> Result<ToolChoice, Fault> {
    let Some(c) = choice else { return Ok(ToolChoice::Auto) };
    match c.str("type")? {
        Some("auto") => Ok(ToolChoice::Auto),
        Some("any") => Ok(ToolChoice::Required),
        Some("none") => Ok(ToolChoice::None),
        Some("tool") => match c.str("name")? {
            Some(name) => Ok(ToolChoice::Named(name.into())),
            None => Err(c.wrong("name", "is missing")),
        },
        other => Err(c.wrong("type", format_args!("is {other:?}; known are auto, any, tool, none"))),
    }
}

fn format(f: &Fields<'_>) -> Result<(Format, String), Fault> {
    let nested = match f.object("output_config")? {
        Some(o) => o.object("format")?,
        None => None,
    };
    let Some(o) = nested.or(f.object("output_format")?) else { return Ok((Format::Text, String::new())) };
    match o.str("type")? {
        Some("json_schema") => match o.get("schema") {
            Some(s) => Ok((Format::JsonSchema(s.clone()), o.path("schema"))),
            None => Err(o.wrong("schema", "is missing")),
        },
        other => Err(o.wrong("type", format_args!("is {other:?}; known is json_schema"))),
    }
}

fn reasoning(f: &Fields<'_>) -> Result<Reasoning, Fault> {
    let (enabled, budget) = match f.object("thinking")? {
        None => (None, None),
        Some(t) => match t.str("type")? {
            Some("enabled" | "adaptive") => (Some(true), t.tokens("budget_tokens")?),
            Some("disabled") => (Some(false), None),
            other => return Err(t.wrong("type", format_args!("is {other:?}; known are enabled, adaptive, disabled"))),
        },
    };
    let effort = match f.object("output_config")? {
        Some(o) => o.str("effort")?,
        None => None,
    };
    // Here an effort says how, not whether.
    let r = with_effort(enabled, effort);
    Ok(Reasoning { enabled: if effort == Some("none") { r.enabled } else { enabled }, budget, ..r })
}

fn messages(f: &Fields<'_>, strip: bool) -> Result<Vec<Message>, Fault> {
    let mut out = Vec::new();
    let system = match f.get("system") {
        Some(Value::Array(_)) => {
            let mut parts = Vec::new();
            for block in f.objects("system")? {
                let text =
                    block.str("text")?.ok_or_else(|| block.wrong("text", "is missing; system prompts are text"))?;
                parts.push(text);
            }
            parts
                .into_iter()
                .map(|t| if strip { stable(t) } else { t })
                .filter(|t| !t.is_empty())
                .collect::<Vec<_>>()
                .join("\n\n")
        }
        _ => f.str("system")?.map(|t| if strip { stable(t) } else { t }).unwrap_or_default().to_owned(),
    };
    if !system.is_empty() {
        out.push(Message { path: "system".into(), value: json!({"role": "system", "content": system}) });
    }
    let given = f.objects("messages")?;
    if given.is_empty() {
        return Err(f.wrong("messages", "is missing or empty; there must be at least one message"));
    }
    for (i, m) in given.iter().enumerate() {
        message(m, &format!("messages[{i}]"), &mut out)?;
    }
    Ok(out)
}

/// A system text without the line that changes with every request.
fn stable(text: &str) -> &str {
    if !text.trim_start().starts_with(VOLATILE) {
        return text;
    }
    text.trim_start().split_once('\n').map_or("", |(_, rest)| rest)
}

/// One message; its tool results become messages of their own, in their places.
fn message(m: &Fields<'_>, path: &str, out: &mut Vec<Message>) -> Result<(), Fault> {
    let role = m.str("role")?.ok_or_else(|| m.wrong("role", "is missing"))?;
    if !matches!(role, "user" | "assistant" | "system") {
        return Err(m.wrong("role", format_args!("is {role:?}; known are user, assistant, system")));
    }
    let mut add = |value: Value| out.push(Message { path: path.into(), value });
    let Some(Value::Array(_)) = m.get("content") else {
        let text = m.str("content")?.unwrap_or_default();
        add(json!({"role": role, "content": text}));
        return Ok(());
    };
    let (mut parts, mut calls, mut any) = (Vec::new(), Vec::new(), false);
    for b in m.objects("content")? {
        match b.str("type")?.ok_or_else(|| b.wrong("type", "is missing"))? {
            "tool_use" => {
                let name = b.str("name")?.ok_or_else(|| b.wrong("name", "is missing"))?;
                let input = b.get("input").cloned().unwrap_or_else(|| json!({}));
                let id = b.str("id")?.ok_or_else(|| b.wrong("id", "is missing"))?;
                calls.push(json!({"id": id, "type": "function", "function": {"name": name, "arguments": input}}));
            }
            "tool_result" => {
                if !parts.is_empty() {
                    add(json!({"role": role, "content": std::mem::take(&mut parts)}));
                }
                let id = b.str("tool_use_id")?.ok_or_else(|| b.wrong("tool_use_id", "is missing"))?;
                let mut result = json!({"role": "tool", "tool_call_id": id, "content": b.get("content")});
                if b.bool("is_error")? == Some(true) {
                    result["is_error"] = true.into();
                }
                add(result);
                any = true;
            }
            "text" if b.get("text").is_some_and(|t| !t.is_string()) => b.str("text").map(drop)?,
            _ => parts.push(Value::Object(b.map().clone())),
        }
    }
    if !calls.is_empty() {
        add(json!({"role": role, "content": parts, "tool_calls": calls}));
    } else if !parts.is_empty() || !any {
        add(json!({"role": role, "content": parts}));
    }
    Ok(())
}
