//! Dialects of tool calls and reasoning.
//!
//! Every family of models has its own way to write reasoning and calls. A [`Dialect`] is one such way for one vocabulary:
//! a file of data, and where data is not enough a small machine. One engine, the [`OutputParser`], runs them all.
//!
//! Rules that hold for every dialect:
//! - A marker the vocabulary has as a token is recognised by its id alone; one that it lacks, by its text.
//! - White space between reasoning, content and calls belongs to none of them.
//! - In content, markup never appears: a call that turns out to be none leaves its words ([`Summary::degraded`]), closing
//!   markup that closes nothing is dropped.
//! - In reasoning, a call must be whole up to its arguments, name a tool that was offered and not follow a backtick;
//!   otherwise the model only talks about calls, and the text stays reasoning. A real call ends the reasoning.
//! - Arguments come out as valid JSON. Raw values get the types of the tool's schema: what can only be a string streams, the
//!   rest comes when it is complete. What is not valid JSON of the wanted type comes as a string.
//! - A call that is cut off or that breaks its own grammar never gets an end event.

mod deepseek_v4;
mod engine;
mod event;
mod gemma4;
mod gemma_call;
mod glm;
mod harmony;
mod harmony_head;
pub(crate) mod json;
mod json_call;
mod llama;
mod minimax_m2;
mod mistral;
mod plain;
mod qwen3;
mod qwen35;
pub(crate) mod schema;
pub(crate) mod symbols;
pub(crate) mod syntax;
mod tagged;
mod value;

use std::sync::Arc;

pub use engine::{OutputParser, ParserOptions, Region};
pub use event::{Ending, Event, Finish, Parsed, ParsedCall, Summary};
pub(crate) use gemma_call::stands_bare;
pub use schema::Tool;

use crate::Tokenizer;
use syntax::{Compiled, Syntax};

/// What most models open and close reasoning with.
const THINK: (&str, &str) = ("<think>", "</think>");

/// All dialects. Detection asks them in this order.
static ALL: [&Syntax; 10] = [
    &harmony::SYNTAX,
    &deepseek_v4::SYNTAX,
    &gemma4::SYNTAX,
    &minimax_m2::SYNTAX,
    &glm::SYNTAX,
    &qwen35::SYNTAX,
    &qwen3::SYNTAX,
    &mistral::SYNTAX,
    &llama::SYNTAX,
    &plain::SYNTAX,
];

/// A way to write reasoning and calls, for one vocabulary. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Dialect {
    compiled: Arc<Compiled>,
}

impl Dialect {
    pub(crate) fn compiled(&self) -> &Compiled {
        &self.compiled
    }

    /// The dialect a checkpoint's chat template speaks; with a template that shows no calls, or none at all, the one its
    /// vocabulary was made for.
    pub fn detect(template: Option<&str>, tokenizer: &Tokenizer) -> Self {
        let by_template = template.and_then(|t| {
            let shows = |words: &[&str]| words.iter().all(|w| t.contains(w));
            Some(if shows(&["<|channel|>", "<|message|>"]) {
                &harmony::SYNTAX
            } else if t.contains("｜DSML｜") {
                &deepseek_v4::SYNTAX
            } else if t.contains("<|tool_call>") {
                &gemma4::SYNTAX
            } else if t.contains("<minimax:tool_call>") {
                &minimax_m2::SYNTAX
            } else if t.contains("<arg_key>") {
                &glm::SYNTAX
            } else if t.contains("<function=") {
                &qwen35::SYNTAX
            } else if t.contains("<tool_call>") {
                &qwen3::SYNTAX
            } else if t.contains("[TOOL_CALLS]") {
                &mistral::SYNTAX
            } else if t.contains("<|python_tag|>") || shows(&["\"parameters\"", "ipython"]) {
                &llama::SYNTAX
            } else {
                return None;
            })
        });
        let syntax: &'static Syntax = by_template.unwrap_or_else(|| {
            let has = |words: &[&str]| words.iter().all(|w| tokenizer.id_of(w).is_some());
            let none = template.is_none();
            match () {
                () if has(&["<|channel|>", "<|message|>", "<|call|>"]) => &harmony::SYNTAX,
                () if has(&["｜DSML｜"]) => &deepseek_v4::SYNTAX,
                () if none && has(&["<|tool_call>", "<|\"|>"]) => &gemma4::SYNTAX,
                () if none && has(&["<minimax:tool_call>"]) => &minimax_m2::SYNTAX,
                () if none && has(&["<arg_key>"]) => &glm::SYNTAX,
                () if none && has(&["[TOOL_CALLS]"]) => &mistral::SYNTAX,
                () => &plain::SYNTAX,
            }
        });
        let think = syntax.reasoning.is_some_and(|(open, _)| {
            template.is_some_and(|t| t.contains(open)) || tokenizer.id_of(open).is_some() || syntax.name == "gemma4"
        });
        Self { compiled: Arc::new(Compiled::new(syntax, Some(tokenizer), think)) }
    }

    /// The dialect with that name (see [`Dialect::names`]); `None` if there is none. Its reasoning markers count always.
    pub fn named(name: &str, tokenizer: &Tokenizer) -> Option<Self> {
        let syntax = ALL.into_iter().find(|s| s.name == name)?;
        Some(Self { compiled: Arc::new(Compiled::new(syntax, Some(tokenizer), true)) })
    }

    /// The names of all dialects.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ALL.into_iter().map(|s| s.name)
    }

    /// The dialect's name.
    pub fn name(&self) -> &'static str {
        self.compiled.syntax.name
    }

    /// Whether a prompt with this end leaves the model inside reasoning. Give the rendered prompt's text, to its very end.
    pub fn opens_reasoning(&self, prompt: &str) -> bool {
        let end = prompt.trim_end();
        match self.compiled.syntax.reasoning {
            Some((open, _)) if self.compiled.think.is_some() => end.ends_with(open),
            _ => end.ends_with("<|channel|>analysis<|message|>") && self.name() == harmony::SYNTAX.name,
        }
    }

    /// The markers that this vocabulary has as tokens of their own.
    pub fn markers(&self) -> impl Iterator<Item = &'static str> {
        self.compiled.marks.names()
    }

    /// What ends reasoning, for a model that stopped inside it and is made to go on. `None` if the dialect has no such
    /// text.
    pub fn reasoning_end(&self) -> Option<&'static str> {
        match self.compiled.syntax.reasoning {
            Some(_) if self.compiled.think.is_none() => None,
            Some((_, close)) => Some(close),
            None if self.name() == harmony::SYNTAX.name => Some("<|end|><|start|>assistant<|channel|>final<|message|>"),
            None => None,
        }
    }
}

/// What the beginning of a call says.
enum Head {
    /// This is no call.
    No,
    /// It may become one.
    Partial,
    /// It is one; its arguments begin after `len` symbols.
    Full { len: usize, name: String, then: After },
}

/// What stands behind a call's name.
#[derive(Clone, Copy)]
enum After {
    /// Parameters in the dialect's own form.
    Fields,
    /// Nothing: a call without arguments.
    Zero,
    /// A JSON object.
    Object,
    /// A JSON object inside another.
    Wrapped,
}

/// How a call's body goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    /// With the next symbol.
    Go,
    /// Not before there are more symbols.
    Wait,
    /// It is over.
    Done,
    /// It is over, and the last symbol was not part of it.
    Retry,
    /// It makes no sense.
    Broken,
}
