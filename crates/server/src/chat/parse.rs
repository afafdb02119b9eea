//! A body of `/v1/chat/completions` to a [`GenerateRequest`].

use serde_json::{Map, Value, json};
use text::dialect::Tool;

use crate::fault::Fault;
use crate::json::{self, Fields};
use crate::request::{
    Format, GenerateRequest, MAX_LOGPROBS, MAX_N, Message, Prompt, Reasoning, ToolChoice, Wishes, identifier, stops,
};

/// What only the way back needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// End a stream with a chunk of usage.
    pub include_usage: bool,
    /// Report logprobs.
    pub logprobs: bool,
}

/// Reads a body.
///
/// # Errors
/// A [`Fault`] that names the field.
pub fn request(body: &[u8]) -> Result<(GenerateRequest, Options), Fault> {
    let map = json::object(body)?;
    let f = Fields::of(&map);
    for old in ["functions", "function_call"] {
        if f.get(old).is_some() {
            return Err(f.wrong(old, "is the older form; send tools and tool_choice"));
        }
    }
    let tools = tools(&f)?;
    let logprobs = f.bool("logprobs")?.unwrap_or(false);
    let top = f.int("top_logprobs", 0, MAX_LOGPROBS)?;
    if top.is_some_and(|n| n > 0) && !logprobs {
        return Err(f.wrong("top_logprobs", "needs logprobs to be true"));
    }
    // The newer name wins.
    let max_tokens = f.tokens("max_completion_tokens")?.or(f.tokens("max_tokens")?);
    let parsed_tools = parsed(&tools);
    let request = GenerateRequest {
        model: f.str("model")?.map(str::to_owned),
        prompt: Prompt::Messages(messages(&f, "messages")?),
        further: Vec::new(),
        tool_choice: tool_choice(&f, &parsed_tools)?,
        single_call: f.bool("parallel_tool_calls")? == Some(false),
        sampling: Wishes::read(&f)?,
        stop: stops(&f, "stop")?,
        max_tokens,
        format: format(&f, "response_format")?,
        reasoning: reasoning(&f)?,
        template_args: f.object("chat_template_kwargs")?.map(|o| o.map().clone()).unwrap_or_default(),
        n: f.int("n", 1, i64::from(MAX_N))?.unwrap_or(1) as u32,
        logprobs: logprobs.then(|| top.unwrap_or(0) as u32),
        prompt_logprobs: false,
        ignore_eos: f.bool("ignore_eos")?.unwrap_or(false),
        stream: f.bool("stream")?.unwrap_or(false),
        tools,
        parsed_tools,
    };
    let include_usage = match f.object("stream_options")? {
        Some(o) => o.bool("include_usage")?.unwrap_or(false),
        None => false,
    };
    Ok((request, Options { include_usage, logprobs }))
}

fn messages(f: &Fields<'_>, name: &str) -> Result<Vec<Message>, Fault> {
    let given = f.objects(name)?;
    if given.is_empty() {
        return Err(f.wrong(name, "is missing or empty; there must be at least one message"));
    }
    let one =
        |(i, m): (usize, Fields<'_>)| Message { path: f.path(&format!("{name}[{i}]")), value: m.map().clone().into() };
    Ok(given.into_iter().enumerate().map(one).collect())
}

/// `tools`: functions only.
///
/// # Errors
/// Names the tool and the field.
pub fn tools(f: &Fields<'_>) -> Result<Vec<Value>, Fault> {
    let mut out = Vec::new();
    for t in f.objects("tools")? {
        if let Some(kind) = t.str("type")?.filter(|k| *k != "function") {
            return Err(t.wrong("type", format_args!("is {kind:?}; only functions can be offered")));
        }
        let function = t.object("function")?.ok_or_else(|| t.wrong("function", "is missing"))?;
        out.push(tool(&function, "parameters")?);
    }
    Ok(out)
}

/// One function, in the form templates know.
///
/// # Errors
/// Names the field.
pub fn tool(f: &Fields<'_>, schema: &str) -> Result<Value, Fault> {
    let mut function = Map::new();
    function.insert("name".into(), identifier(f, "name")?.into());
    if let Some(d) = f.str("description")? {
        function.insert("description".into(), d.into());
    }
    let parameters =
        f.object(schema)?.map_or_else(|| json!({"type": "object", "properties": {}}), |o| o.map().clone().into());
    function.insert("parameters".into(), parameters);
    if f.bool("strict")? == Some(true) {
        function.insert("strict".into(), true.into());
    }
    Ok(json!({"type": "function", "function": function}))
}

/// Tools as parsers and grammars want them.
pub fn parsed(tools: &[Value]) -> Vec<Tool> {
    tools.iter().filter_map(Tool::from_openai).collect()
}

/// `tool_choice`.
///
/// # Errors
/// A tool that is not offered, a call that is required without any tools, or a form nobody knows.
pub fn tool_choice(f: &Fields<'_>, tools: &[Tool]) -> Result<ToolChoice, Fault> {
    let choice = match f.get("tool_choice") {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(s)) => match s.as_str() {
            "none" => ToolChoice::None,
            "auto" => ToolChoice::Auto,
            "required" | "any" => ToolChoice::Required,
            _ => {
                return Err(
                    f.wrong("tool_choice", format_args!("is {s:?}; known are none, auto, required or a function"))
                );
            }
        },
        Some(Value::Object(o)) => {
            let name = o.get("function").and_then(|f| f.get("name")).or(o.get("name")).and_then(Value::as_str);
            let kind = o.get("type").and_then(Value::as_str).unwrap_or("function");
            match (kind, name) {
                ("function" | "custom", Some(name)) => ToolChoice::Named(name.into()),
                ("none", _) => ToolChoice::None,
                ("auto", _) => ToolChoice::Auto,
                ("required", _) => ToolChoice::Required,
                _ => {
                    return Err(f.wrong(
                        "tool_choice",
                        "must name a function: {\"type\": \"function\", \"function\": {\"name\": ...}}",
                    ));
                }
            }
        }
        Some(other) => {
            return Err(
                f.wrong("tool_choice", format_args!("must be a string or an object, not {}", json::kind(other)))
            );
        }
    };
    chosen(f, choice, tools)
}

/// A choice that these tools allow.
///
/// # Errors
/// As [`tool_choice`].
pub fn chosen(f: &Fields<'_>, choice: ToolChoice, tools: &[Tool]) -> Result<ToolChoice, Fault> {
    match &choice {
        ToolChoice::Required | ToolChoice::Named(_) if tools.is_empty() => {
            Err(f.wrong("tool_choice", "asks for a call, but there are no tools"))
        }
        ToolChoice::Named(name) if tools.iter().all(|t| t.name != *name) => {
            let names: Vec<&str> = tools.iter().map(|t| t.name.as_str()).collect();
            Err(f
                .wrong("tool_choice", format_args!("names {name:?}, which is none of the tools: {}", names.join(", "))))
        }
        _ => Ok(choice),
    }
}

/// `response_format`, and the extensions `regex`, `grammar` and their `guided_` names.
///
/// # Errors
/// Names the field.
pub fn format(f: &Fields<'_>, name: &str) -> Result<Format, Fault> {
    if let Some(s) = f.str("regex")?.or(f.str("guided_regex")?) {
        return Ok(Format::Regex(s.into()));
    }
    if let Some(s) = f.str("grammar")?.or(f.str("guided_grammar")?) {
        return Ok(Format::Grammar(s.into()));
    }
    let Some(o) = f.object(name)? else { return Ok(Format::Text) };
    match o.str("type")?.ok_or_else(|| o.wrong("type", "is missing"))? {
        "text" => Ok(Format::Text),
        "json_object" => Ok(Format::JsonObject),
        "json_schema" => {
            let inner = o.object("json_schema")?.unwrap_or_else(|| o.clone());
            let schema = inner.get("schema").ok_or_else(|| inner.wrong("schema", "is missing"))?;
            Ok(Format::JsonSchema(schema.clone()))
        }
        "regex" => Ok(Format::Regex(o.str("regex")?.or(o.str("pattern")?).unwrap_or_default().into())),
        "grammar" => Ok(Format::Grammar(o.str("grammar")?.unwrap_or_default().into())),
        other => {
            Err(o.wrong("type", format_args!("is {other:?}; known are text, json_object, json_schema, regex, grammar")))
        }
    }
}

/// `reasoning_effort`, `reasoning: {effort, enabled, max_tokens}`, `enable_thinking`, `thinking_budget`.
///
/// # Errors
/// Names the field.
pub fn reasoning(f: &Fields<'_>) -> Result<Reasoning, Fault> {
    let nested = f.object("reasoning")?;
    let effort = match (&nested, f.str("reasoning_effort")?) {
        (_, Some(e)) => Some(e),
        (Some(o), None) => o.str("effort")?,
        (None, None) => None,
    };
    let switch = match &nested {
        Some(o) => o.bool("enabled")?,
        None => None,
    };
    let nested_budget = match &nested {
        Some(o) => o.tokens("max_tokens")?,
        None => None,
    };
    let enabled = f.bool("enable_thinking")?.or(switch);
    let budget = f.tokens("thinking_budget")?.or(nested_budget);
    Ok(Reasoning { budget, ..with_effort(enabled, effort) })
}

/// An effort of none switches reasoning off.
pub fn with_effort(enabled: Option<bool>, effort: Option<&str>) -> Reasoning {
    match effort {
        Some("none") => Reasoning { enabled: Some(false), ..Reasoning::default() },
        Some(e) => Reasoning { enabled: enabled.or(Some(true)), effort: Some(e.into()), budget: None },
        None => Reasoning { enabled, ..Reasoning::default() },
    }
}
