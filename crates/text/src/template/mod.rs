//! Chat templates: a conversation to the one string its model was trained on.

mod generation;
mod guard;
mod json;
mod python;
mod time;

use std::time::SystemTime;

use minijinja::{
    Environment, ErrorKind, State, UndefinedBehavior, Value,
    syntax::SyntaxConfig,
    value::{Kwargs, Rest, Serde},
};

use crate::{Error, Rendered, Result, Tokenizer};
use guard::Guard;

/// Name of the one template in its environment.
const NAME: &str = "chat";
/// Global under which filters find the render's [`Guard`].
const GUARD: &str = "__content_guard";
/// Global under which `strftime_now` finds the render's time.
const NOW: &str = "__now";

/// Work a render may do before it is called endless: a base, and so much for each byte of the conversation. One unit is
/// one instruction or 64 bytes of text made. Real templates take a few hundred for each message.
const FUEL_BASE: u64 = 2_000_000;
const FUEL_PER_BYTE: u64 = 64;

/// The turn format most chat models share, for models that bring `<|im_start|>` but no template.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + (message.content or '') + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// A parsed chat template. Rendering follows what Hugging Face does with Jinja2: `trim_blocks`, `lstrip_blocks`, loop
/// controls, Python's string methods and Python's JSON.
pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
}

/// What a template is given. Fields are JSON as a client sends it.
#[derive(Debug, Clone, Default)]
pub struct Prompt<'a> {
    /// The conversation: an array of objects with `role` and `content`.
    pub messages: &'a [serde_json::Value],
    /// Tool declarations, as an array; absent is not the same as empty to some templates.
    pub tools: Option<&'a [serde_json::Value]>,
    /// Whether to end with the opening of an assistant turn.
    pub add_generation_prompt: bool,
    /// Further variables (`enable_thinking`, `reasoning_effort`, ...), from the server's settings or the request.
    pub extra: Option<&'a serde_json::Map<String, serde_json::Value>>,
    /// The time `strftime_now` shows, in UTC. `None`: the system's.
    pub now: Option<SystemTime>,
}

impl ChatTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// [`Error::TemplateSyntax`] with the line.
    pub fn new(source: &str) -> Result<Self> {
        if let Some(line) = source.lines().position(guard::has_reserved) {
            let what = "characters of the private-use planes 15 and 16 are not possible in a template".into();
            return Err(Error::TemplateSyntax { line: line + 1, what });
        }
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(false).build();
        env.set_syntax(syntax.map_err(syntax_error)?);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.set_debug(false);
        env.set_formatter(python::print);
        env.add_test("iterable", python::is_iterable);
        env.add_test("sequence", python::is_sequence);
        env.add_filter("tojson", tojson);
        env.add_function("raise_exception", raise_exception);
        env.add_function("strftime_now", strftime_now);
        env.add_template_owned(NAME, generation::neutralise(&source).into_owned()).map_err(syntax_error)?;
        Ok(Self { env, source })
    }

    /// The model's own template or, if it has none but speaks ChatML (its vocabulary has `<|im_start|>` and `<|im_end|>`),
    /// plain ChatML.
    ///
    /// # Errors
    /// [`Error::TemplateSyntax`]; [`Error::NoTemplate`].
    pub fn for_model(source: Option<&str>, tokenizer: &Tokenizer) -> Result<Self> {
        let chatml = || ["<|im_start|>", "<|im_end|>"].iter().all(|t| tokenizer.id_of(t).is_some());
        match source {
            Some(source) => Self::new(source),
            None if chatml() => Self::new(CHATML),
            None => Err(Error::NoTemplate),
        }
    }

    /// The source, with lines ended by `\n`.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation. Every string in it is content: special tokens inside stay words. The one exception is the
    /// `<think>...</think>` with which an assistant's earlier message begins, which is the model's own output and which
    /// templates look for.
    ///
    /// # Errors
    /// [`Error::TemplateRaised`] with the template's own words, [`Error::TemplateRender`], [`Error::TemplateOutOfFuel`]:
    /// all of them about this conversation, none about the server.
    pub fn render(&self, prompt: &Prompt<'_>, tokenizer: &Tokenizer) -> Result<Rendered> {
        let mut guard = Guard::new(tokenizer);
        let messages = prompt.messages.iter().map(|m| guard.message(m)).collect::<Result<Vec<_>>>()?;
        let tools = prompt.tools.map(|t| t.iter().map(|t| guard.value(t)).collect::<Result<Vec<_>>>()).transpose()?;
        let mut context: Vec<(String, Value)> = Vec::new();
        for (key, value) in prompt.extra.into_iter().flatten() {
            context.push((key.clone(), Value::from(Serde(guard.value(value)?))));
        }
        let token = |id: Option<u32>| {
            id.and_then(|id| tokenizer.token_bytes(id))
                .map_or(String::new(), |b| String::from_utf8_lossy(b).into_owned())
        };
        context.push(("messages".into(), Value::from(Serde(messages))));
        context.push(("tools".into(), tools.map_or(Value::from(()), |t| Value::from(Serde(t)))));
        context.push(("add_generation_prompt".into(), prompt.add_generation_prompt.into()));
        context.push(("bos_token".into(), token(tokenizer.bos()).into()));
        context.push(("eos_token".into(), token(tokenizer.eos()).into()));

        let mut env = self.env.clone();
        env.set_fuel(Some(FUEL_BASE.saturating_add(FUEL_PER_BYTE.saturating_mul(guard.bytes_seen()))));
        env.add_global(NOW, time::seconds(prompt.now.unwrap_or_else(SystemTime::now)));
        env.add_global(GUARD, Value::from_object(guard.table()));
        let template = env.get_template(NAME).map_err(render_error)?;
        let text = template.render(Value::from_pairs(context)).map_err(render_error)?;
        Ok(guard.restore(&text))
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Marks an error as the template's own refusal.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn strftime_now(state: &State, format: String) -> String {
    time::format(&format, state.lookup(NOW).and_then(|v| v.as_i64()).unwrap_or(0))
}

/// `tojson(value, ensure_ascii=false, indent=none, separators=none, sort_keys=false)`, the arguments Hugging Face gives it.
fn tojson(state: &State, value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, minijinja::Error> {
    let given = |position: usize, name: &str| -> Result<Option<Value>, minijinja::Error> {
        let value = args.get(position).cloned().map_or_else(|| kwargs.get::<Option<Value>>(name), |v| Ok(Some(v)))?;
        Ok(value.filter(|v| !v.is_undefined() && !v.is_none()))
    };
    let options = json::Options {
        ensure_ascii: given(0, "ensure_ascii")?.is_some_and(|v| v.is_true()),
        indent: given(1, "indent")?.map(|v| json::Indent::from_value(&v)).transpose()?,
        separators: given(2, "separators")?.map(|v| json::separators(&v)).transpose()?,
        sort_keys: given(3, "sort_keys")?.is_some_and(|v| v.is_true()),
    };
    kwargs.assert_all_used()?;
    let guard = state.lookup(GUARD);
    let table = guard.as_ref().and_then(|g| g.downcast_object_ref::<guard::Table>());
    let mut out = String::new();
    json::write(value, &options, table, &mut out)?;
    state.consume_fuel(out.len() as u64 / 16)?;
    Ok(Value::from(out))
}

/// A time in seconds since 1970 as RFC 3339 has it, in UTC.
pub fn rfc3339(seconds: i64) -> String {
    time::format("%Y-%m-%dT%H:%M:%SZ", seconds)
}

fn line_of(e: &minijinja::Error) -> usize {
    e.line().unwrap_or(0)
}

fn words(e: &minijinja::Error) -> String {
    match e.detail() {
        Some(detail) => format!("{}: {detail}", e.kind()),
        None => e.kind().to_string(),
    }
}

fn syntax_error(e: minijinja::Error) -> Error {
    Error::TemplateSyntax { line: line_of(&e), what: words(&e) }
}

fn render_error(e: minijinja::Error) -> Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&e);
    while let Some(err) = source {
        if let Some(Raised(message)) = err.downcast_ref::<Raised>() {
            return Error::TemplateRaised(message.clone());
        }
        if err.downcast_ref::<minijinja::Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
            return Error::TemplateOutOfFuel;
        }
        source = err.source();
    }
    Error::TemplateRender { line: line_of(&e), what: words(&e) }
}
