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
    let all_tools = parsed(&tools);
    let (tool_choice, parsed_tools) = tool_choice(&f, all_tools, |t| {
        t.object("function")?.unwrap_or_else(|| t.clone()).str("name").map(|n| n.map(str::to_owned))
    })?;
    let (format, format_field) = format(&f, "response_format")?;
    let request = GenerateRequest {
        model: f.str("model")?.map(str::to_owned),
        prompt: Prompt::Messages(messages(&f, "messages")?),
        further: Vec::new(),
        only_parsed: parsed_tools.len() < tools.len(),
        tool_choice,
        single_call: f.bool("parallel_tool_calls")? == Some(false),
        sampling: Wishes::read(&f)?,
        stop: stops(&f, "stop")?,
        max_tokens,
        format,
        format_field,
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

/// `tools`: functions. Those that only a provider could run are left out, and the log says so.
///
/// # Errors
/// Names the tool and the field.
pub fn tools(f: &Fields<'_>) -> Result<Vec<Value>, Fault> {
    let mut out = Vec::new();
    for t in f.objects("tools")? {
        match t.str("type")?.unwrap_or("function") {
            "function" => {
                let function = t.object("function")?.ok_or_else(|| t.wrong("function", "is missing"))?;
                out.push(tool(&function, "parameters")?);
            }
            kind if is_providers(kind) => leave_out(kind),
            kind => return Err(t.wrong("type", format_args!("is {kind:?}; only functions can be offered"))),
        }
    }
    Ok(out)
}

/// Whether a tool of this type is run by the provider of a model. Some types go on with a variant or a date.
pub fn is_providers(kind: &str) -> bool {
    const KINDS: [&str; 8] = [
        "web_search",
        "web_fetch",
        "code_execution",
        "code_interpreter",
        "file_search",
        "image_generation",
        "mcp",
        "tool_search",
    ];
    KINDS.iter().any(|k| kind.strip_prefix(k).is_some_and(|rest| rest.is_empty() || rest.starts_with('_')))
}

/// Says in the log that a tool is not offered to the model.
pub fn leave_out(kind: &str) {
    let why = if is_providers(kind) {
        "only a provider could run it"
    } else {
        "it is called in a form of its own, which is not spoken here"
    };
    tracing::warn!(kind, why, "a tool is left out");
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

/// `tool_choice`, and the tools it leaves. `name` reads one of `allowed_tools`, which chat completions and responses write
/// differently.
///
/// # Errors
/// A tool that is not offered, a call that is required without any tools, or a form nobody knows.
pub fn tool_choice(
    f: &Fields<'_>,
    tools: Vec<Tool>,
    name: impl Fn(&Fields<'_>) -> Result<Option<String>, Fault>,
) -> Result<(ToolChoice, Vec<Tool>), Fault> {
    if let Some(Value::Object(o)) = f.get("tool_choice")
        && o.get("type").and_then(Value::as_str) == Some("allowed_tools")
        && let Some(outer) = f.object("tool_choice")?
    {
        return allowed(&outer.object("allowed_tools")?.unwrap_or(outer), tools, name);
    }
    Ok((plain_choice(f, &tools)?, tools))
}

/// A choice among some of the tools: `{"mode": "auto" or "required", "tools": [...]}`.
fn allowed(
    f: &Fields<'_>,
    tools: Vec<Tool>,
    name: impl Fn(&Fields<'_>) -> Result<Option<String>, Fault>,
) -> Result<(ToolChoice, Vec<Tool>), Fault> {
    let choice = match f.str("mode")?.unwrap_or("auto") {
        "auto" => ToolChoice::Auto,
        "required" => ToolChoice::Required,
        other => return Err(f.wrong("mode", format_args!("is {other:?}; known are auto and required"))),
    };
    let mut wanted = Vec::new();
    for t in f.objects("tools")? {
        if t.str("type")?.is_some_and(is_providers) {
            continue;
        }
        let name = name(&t)?.ok_or_else(|| t.wrong("name", "is missing"))?;
        if tools.iter().all(|o| o.name != name) {
            return Err(t.wrong("name", format_args!("is {name:?}, which is none of the tools")));
        }
        wanted.push(name);
    }
    if wanted.is_empty() {
        return Err(f.wrong("tools", "is missing or empty"));
    }
    Ok((choice, tools.into_iter().filter(|t| wanted.contains(&t.name)).collect()))
}

fn plain_choice(f: &Fields<'_>, tools: &[Tool]) -> Result<ToolChoice, Fault> {
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

/// What an answer must follow, and the field that says so: `response_format`, or one of the extensions `regex`, `grammar`
/// and their `guided_` names.
///
/// # Errors
/// Names the field; also where two of them are given.
pub fn format(f: &Fields<'_>, name: &str) -> Result<(Format, String), Fault> {
    let (mut found, at) = structured(f, name)?;
    let mut field = f.path(&at);
    for (name, grammar) in [("regex", false), ("guided_regex", false), ("grammar", true), ("guided_grammar", true)] {
        let Some(s) = f.str(name)? else { continue };
        if found != Format::Text {
            return Err(f.wrong(name, format_args!("cannot be given beside {field}: an answer follows one of them")));
        }
        found = if grammar { Format::Grammar(s.into()) } else { Format::Regex(s.into()) };
        field = f.path(name);
    }
    Ok((found, field))
}

/// A format in an object of its own, and where in this one it stands.
fn structured(f: &Fields<'_>, name: &str) -> Result<(Format, String), Fault> {
    let at = |rest: &str| format!("{name}{rest}");
    let Some(o) = f.object(name)? else { return Ok((Format::Text, at(""))) };
    let text = |names: [&str; 2]| {
        for n in names {
            if let Some(s) = o.str(n)? {
                return Ok((s.to_owned(), at(&format!(".{n}"))));
            }
        }
        Err(o.wrong(names[0], "is missing"))
    };
    Ok(match o.str("type")?.ok_or_else(|| o.wrong("type", "is missing"))? {
        "text" => (Format::Text, at("")),
        "json_object" => (Format::JsonObject, at("")),
        "json_schema" => {
            let nested = o.object("json_schema")?;
            let path = if nested.is_some() { ".json_schema.schema" } else { ".schema" };
            let inner = nested.unwrap_or_else(|| o.clone());
            let schema = inner.get("schema").ok_or_else(|| inner.wrong("schema", "is missing"))?;
            (Format::JsonSchema(schema.clone()), at(path))
        }
        "regex" => {
            let (s, at) = text(["pattern", "regex"])?;
            (Format::Regex(s), at)
        }
        "grammar" => {
            let (s, at) = text(["grammar", "definition"])?;
            (Format::Grammar(s), at)
        }
        other => {
            return Err(o.wrong(
                "type",
                format_args!("is {other:?}; known are text, json_object, json_schema, regex, grammar"),
            ));
        }
    })
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
