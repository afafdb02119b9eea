//! The model's words: from a [`GenerateRequest`] to prompt ids and everything the way back needs.

use std::sync::Arc;

use serde_json::{Map, Value};
use text::constrain::{Choice, Constraint, Matcher, Reasoning, ToolChoice as Tools};
use text::dialect::{Dialect, OutputParser, ParserOptions, Region, Tool};
use text::{ChatTemplate, Encoded, History, PartCache, Rendered, Tokenizer};

use crate::backend::{AtEnd, Steer};
use crate::fault::Fault;
use crate::places;
use crate::request::{Format, GenerateRequest, Message, Prompt, ToolChoice};

/// Ids of prompts' parts that are kept: four bytes each, and the text of several long conversations.
const KEPT_IDS: usize = 1 << 20;

/// Tokenizer, template and dialect of a model.
#[derive(Debug)]
pub struct Voice {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat template, where there is one.
    pub template: Option<ChatTemplate>,
    /// How it writes reasoning and calls.
    pub dialect: Dialect,
    /// Somebody said that this is its dialect, so that it has calls although its template may show no tools.
    named: bool,
    /// What was tokenised before.
    parts: PartCache,
}

/// A prompt, and how to read what comes after it.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The prompt's ids.
    pub ids: Arc<[u32]>,
    /// How the answer is read.
    pub reading: Reading,
    /// The tools whose calls are read; none if there must be no calls.
    pub tools: Arc<[Tool]>,
    /// Where messages begin: the first token of each, and what the client calls it.
    pub begins: Arc<[(u32, String)]>,
}

/// How an answer is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// As plain text (completions).
    Plain,
    /// By the dialect, from the state in which the prompt leaves the model.
    Dialect {
        /// The prompt opened reasoning.
        inside_reasoning: bool,
        /// Ids behind the template's generation prompt that the parser must see and no client: of an answer begun by the
        /// client.
        begun: Vec<u32>,
    },
}

impl Voice {
    /// A voice; the dialect is detected unless it is named.
    ///
    /// # Errors
    /// The names of all dialects, if this is none.
    pub fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>, dialect: Option<&str>) -> Result<Self, String> {
        let named = dialect.is_some();
        let dialect = match dialect {
            None => Dialect::detect(template.as_ref().map(ChatTemplate::source), &tokenizer),
            Some(name) => Dialect::named(name, &tokenizer).ok_or_else(|| {
                format!("there is no dialect {name:?}; there are {}", Dialect::names().collect::<Vec<_>>().join(", "))
            })?,
        };
        Ok(Self { tokenizer, template, dialect, named, parts: PartCache::new(KEPT_IDS) })
    }

    /// Renders and tokenises a prompt.
    ///
    /// # Errors
    /// A [`Fault`] that names the message or the field.
    pub fn prepare(&self, r: &GenerateRequest) -> Result<Prepared, Fault> {
        self.prepare_one(r, &r.prompt)
    }

    /// The same for one of a request's prompts.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn prepare_one(&self, r: &GenerateRequest, prompt: &Prompt) -> Result<Prepared, Fault> {
        let offered = r.tool_choice != ToolChoice::None;
        let tools: Arc<[Tool]> = if offered { r.parsed_tools.clone().into() } else { Arc::new([]) };
        let (none, begins) = (Arc::new([]), Arc::new([]));
        let plain = |ids: Vec<u32>| Prepared { ids: ids.into(), reading: Reading::Plain, tools: none, begins };
        let prepared = match prompt {
            Prompt::Ids(ids) => plain(self.checked(ids)?),
            Prompt::Text(text) => plain(self.encode(&Rendered::markup(text.as_str()))?.ids),
            Prompt::Messages(messages) => self.chat(r, messages, tools)?,
        };
        if prepared.ids.is_empty() {
            return Err(Fault::invalid("the prompt has no tokens"));
        }
        Ok(prepared)
    }

    fn encode(&self, prompt: &Rendered) -> text::Result<Encoded> {
        self.tokenizer.encode_parts(prompt, &self.parts)
    }

    fn checked(&self, ids: &[u32]) -> Result<Vec<u32>, Fault> {
        let vocab = self.tokenizer.vocab_size();
        match ids.iter().find(|&&id| id >= vocab) {
            Some(id) => Err(Fault::field("prompt", format_args!("token id {id} is beyond the vocabulary of {vocab}"))),
            None => Ok(ids.to_vec()),
        }
    }

    fn chat(&self, r: &GenerateRequest, messages: &[Message], tools: Arc<[Tool]>) -> Result<Prepared, Fault> {
        let template = self.template.as_ref().ok_or(text::Error::NoTemplate)?;
        self.showable(r, messages)?;
        let at = |i: usize| messages.get(i).map_or_else(|| format!("messages[{i}]"), |m| m.path.clone());
        let values: Vec<Value> = messages.iter().map(|m| m.value.clone()).collect();
        let history = History::new(&values).map_err(|e| match e {
            text::Error::Message { index, what } => Fault::field(at(index), what),
            other => other.into(),
        })?;
        if let Some((i, kind)) = history.media.first() {
            let what = format_args!("holds a part of type {kind:?}; this model reads text only");
            return Err(Fault::field(format!("{}.content", at(*i)), what));
        }
        let mut history = history.for_template(template.source());
        let extra = self.extra(r);
        let shown = r.tools.as_slice();
        let prompt = text::Prompt {
            messages: &history.messages,
            tools: (!shown.is_empty() && r.tool_choice != ToolChoice::None).then_some(shown),
            add_generation_prompt: true,
            extra: Some(&extra),
            now: None,
        };
        let mut rendered = template.render(&prompt, &self.tokenizer)?;
        let inside_reasoning = self.dialect.opens_reasoning(rendered.text());
        let mut begun = Vec::new();
        if let Some(prefill) = history.prefill.take() {
            let before = rendered.text().len();
            if let (true, Some(end)) = (inside_reasoning, self.dialect.reasoning_end()) {
                rendered.push_markup(end);
                rendered.push_markup("\n\n");
            } else if self.dialect.name() == "harmony" {
                rendered.push_markup("<|channel|>final<|message|>");
            }
            rendered.push_content(&prefill);
            // White space at its end belongs to what the model says next.
            let mut shown = Rendered::default();
            let added = &rendered.text()[before..rendered.text().len() - prefill.len()];
            shown.push_markup(added);
            shown.push_content(prefill.trim_end());
            begun = self.tokenizer.encode_rest(&with_head(shown), 1)?;
            history.messages.push(serde_json::json!({"content": prefill}));
            history.given.push(messages.len() - 1);
        }
        let encoded = self.encode(&rendered)?;
        let begins = places::messages(rendered.text(), &encoded, &self.tokenizer, &history.messages);
        let begins = begins.into_iter().map(|(token, i)| (token, at(history.given[i]))).collect();
        Ok(Prepared { ids: encoded.ids.into(), reading: Reading::Dialect { inside_reasoning, begun }, tools, begins })
    }

    /// Variables for the template: the client's, and its wishes about reasoning under the names templates look for.
    fn extra(&self, r: &GenerateRequest) -> Map<String, Value> {
        let mut extra = r.template_args.clone();
        let mut usual = |key: &str, value: Value| {
            extra.entry(key).or_insert(value);
        };
        if let Some(on) = r.reasoning.enabled {
            usual("enable_thinking", on.into());
            usual("thinking", on.into());
        }
        if let Some(effort) = &r.reasoning.effort {
            usual("reasoning_effort", effort.as_str().into());
        }
        extra
    }

    /// What the answer must follow, if anything. Warnings say which parts of tools' schemas are not enforced.
    ///
    /// # Errors
    /// A [`Fault`] naming the schema's path and keyword, or what is wrong with the choice of tools.
    pub fn constraint(&self, r: &GenerateRequest, p: &Prepared) -> Result<Option<Matcher>, Fault> {
        let Reading::Dialect { inside_reasoning, begun } = &p.reading else {
            return self.formatted(r, Reasoning::Off);
        };
        let never = self.dialect.reasoning_end().is_none();
        let reasoning = match () {
            () if *inside_reasoning && begun.is_empty() => Reasoning::Open,
            () if never
                || !begun.is_empty()
                || (r.reasoning.enabled == Some(false) && self.dialect.name() != "harmony") =>
            {
                Reasoning::Off
            }
            () => Reasoning::Allowed,
        };
        let strict = p.tools.iter().any(|t| t.strict);
        let choice = match &r.tool_choice {
            ToolChoice::None => return self.formatted(r, reasoning),
            ToolChoice::Auto if p.tools.is_empty() => return self.formatted(r, reasoning),
            ToolChoice::Auto if strict || r.single_call || r.only_parsed || r.format != Format::Text => Choice::Auto,
            ToolChoice::Auto => return Ok(None),
            ToolChoice::Required => Choice::Required,
            ToolChoice::Named(name) => Choice::Named(name),
        };
        let answer = if choice == Choice::Auto { constraint_of(&r.format) } else { None };
        if let Some(answer) = &answer {
            // Alone first, so that what is wrong with it is said of it.
            let alone = answer.build(&self.tokenizer, &self.dialect, Reasoning::Off);
            alone.map_err(|e| Fault::field(&r.format_field, e))?;
        }
        let answer = answer.as_ref();
        let tools = Tools { dialect: &self.dialect, tools: &p.tools, choice, parallel: !r.single_call, answer };
        let built = Constraint::Tools(tools).build(&self.tokenizer, &self.dialect, reasoning);
        let matcher = built.map_err(|e| Fault::field("tools", e))?;
        for w in matcher.warnings() {
            tracing::warn!(
                path = w.path,
                keyword = w.keyword,
                why = w.why,
                "a keyword of a tool's schema is not enforced"
            );
        }
        Ok(Some(matcher))
    }

    fn formatted(&self, r: &GenerateRequest, reasoning: Reasoning) -> Result<Option<Matcher>, Fault> {
        let Some(constraint) = constraint_of(&r.format) else { return Ok(None) };
        let built = constraint.build(&self.tokenizer, &self.dialect, reasoning);
        Ok(Some(built.map_err(|e| Fault::field(&r.format_field, e))?))
    }

    /// Whether the template shows tools to the model.
    pub fn shows_tools(&self) -> bool {
        self.template.as_ref().is_some_and(|t| t.source().contains("tools"))
    }

    /// Whether the model can call tools: its dialect has calls, and its template shows tools or somebody named the dialect.
    pub fn calls(&self) -> bool {
        self.template.is_some() && self.dialect.name() != "plain" && (self.shows_tools() || self.named)
    }

    /// What a template cannot show is refused: a model that never sees its tools, or what it called, gives answers that look
    /// like a choice. Where the dialect was named the log says so instead.
    fn showable(&self, r: &GenerateRequest, messages: &[Message]) -> Result<(), Fault> {
        const TOOLS: &str = "this model's chat template has no place for tools, so it would never see them; \
            leave them out, set tool_choice to none, or serve a model that knows tools";
        const CALLS: &str = "holds tool calls, and this model's chat template has no place for them";
        let offered = !r.tools.is_empty() && r.tool_choice != ToolChoice::None;
        let has = |m: &&Message| m.value.get("tool_calls").and_then(Value::as_array).is_some_and(|c| !c.is_empty());
        let shows_calls = self.template.as_ref().is_some_and(|t| t.source().contains("tool_call"));
        let hidden = messages.iter().find(has).filter(|_| !shows_calls);
        let fault = match hidden {
            _ if offered && !self.shows_tools() => Fault::field("tools", TOOLS),
            Some(m) => Fault::field(m.path.as_str(), CALLS),
            None => return Ok(()),
        };
        if !self.calls() {
            return Err(fault);
        }
        tracing::warn!(why = fault.message, "a part of a conversation is not shown to the model");
        Ok(())
    }

    /// A parser for the answer to a prompt, which has seen what the client began.
    pub fn parser(&self, inside_reasoning: bool, begun: &[u32], tools: &[Tool], id_seed: u64) -> OutputParser {
        let options = ParserOptions { tools, inside_reasoning, id_seed };
        let mut parser = OutputParser::new(&self.dialect, &options);
        for &id in begun {
            parser.push(&self.tokenizer, id, &mut |_| {});
        }
        parser
    }

    /// What to do when the model ends inside its reasoning: it is closed and the model goes on, once.
    pub fn at_end(self: &Arc<Self>, p: &Prepared) -> Option<AtEnd> {
        let Reading::Dialect { inside_reasoning, begun } = p.reading.clone() else { return None };
        let end = self.dialect.reasoning_end()?;
        let (voice, tools) = (Arc::clone(self), Arc::clone(&p.tools));
        Some(Box::new(move |ids: &[u32]| {
            let mut parser = voice.parser(inside_reasoning, &begun, &tools, 0);
            for &id in ids {
                parser.push(&voice.tokenizer, id, &mut |_| {});
            }
            if parser.region() != Region::Reasoning {
                return Vec::new();
            }
            voice.closing(end)
        }))
    }

    /// Closes the reasoning in front of an answer when it has had `most` ids.
    pub fn bounded_reasoning(self: &Arc<Self>, p: &Prepared, most: u32) -> Option<Steer> {
        let Reading::Dialect { inside_reasoning, begun } = &p.reading else { return None };
        let end = self.dialect.reasoning_end()?;
        let mut parser = Some(self.parser(*inside_reasoning, begun, &p.tools, 0));
        let (voice, mut made) = (Arc::clone(self), 0);
        Some(Box::new(move |id| {
            let Some(reading) = &mut parser else { return Vec::new() };
            reading.push(&voice.tokenizer, id, &mut |_| {});
            if reading.region() != Region::Reasoning {
                return Vec::new();
            }
            made += 1;
            if made < most {
                return Vec::new();
            }
            parser = None;
            voice.closing(end)
        }))
    }

    /// The ids that close reasoning.
    fn closing(&self, end: &str) -> Vec<u32> {
        let mut rest = Rendered::default();
        rest.push_markup(end);
        self.tokenizer.encode_rest(&with_head(rest), 1).unwrap_or_default()
    }
}

/// What a format asks of an answer.
fn constraint_of(format: &Format) -> Option<Constraint<'_>> {
    Some(match format {
        Format::Text => return None,
        Format::JsonObject => Constraint::JsonObject,
        Format::JsonSchema(s) => Constraint::JsonSchema(s),
        Format::Regex(r) => Constraint::Regex(r),
        Format::Grammar(g) => Constraint::Lark(g),
    })
}

/// A text that continues another: rules see that something stands before it.
fn with_head(rest: Rendered) -> Rendered {
    let mut all = Rendered::default();
    all.push_markup("\n");
    let mut at = 0;
    for r in rest.protected() {
        all.push_markup(&rest.text()[at..r.start]);
        all.push_content(&rest.text()[r.clone()]);
        at = r.end;
    }
    all.push_markup(&rest.text()[at..]);
    all
}
