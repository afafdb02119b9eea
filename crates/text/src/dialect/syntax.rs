//! The shape of a dialect: what its file says, and the same with patterns made for one vocabulary.

use super::symbols::{Marks, Pattern};
use crate::Tokenizer;

/// A dialect as data. In patterns `␣` is any run of white space.
#[derive(Debug)]
pub(crate) struct Syntax {
    /// The name it is chosen by.
    pub name: &'static str,
    /// Markers that are one token in vocabularies made for the dialect.
    pub marks: &'static [&'static str],
    /// What opens and closes reasoning.
    pub reasoning: Option<(&'static str, &'static str)>,
    /// Closing markup that is dropped where it closes nothing.
    pub strays: &'static [&'static str],
    /// How calls are written.
    pub calls: Calls,
    /// Whether call ids are nine letters and digits.
    pub short_ids: bool,
}

/// How a dialect writes calls.
#[derive(Debug)]
pub(crate) enum Calls {
    /// Not at all.
    None,
    /// A tag for the call and one for each parameter, raw values between them.
    Tagged(&'static Tagged),
    /// A JSON object.
    Json(&'static JsonCalls),
    /// `call:NAME{key:VALUE}` of Gemma 4.
    Gemma,
    /// Messages with channels and recipients of gpt-oss.
    Harmony,
}

/// Calls in tags.
#[derive(Debug)]
pub(crate) struct Tagged {
    /// Opens a section of calls.
    pub open: &'static str,
    /// What a call begins with inside the section, up to its name.
    pub call: &'static str,
    /// A call may also begin without the section.
    pub bare: bool,
    /// Ends the name. Empty: the name ends at white space or before the next tag.
    pub name_end: &'static str,
    /// Opens a parameter, up to its name.
    pub param: &'static str,
    /// Ends a parameter's name; and whether that says that the value is a string.
    pub key_end: &'static [(&'static str, Option<bool>)],
    /// Ends a value.
    pub value_end: &'static str,
    /// The value stands on lines of its own.
    pub value_lines: bool,
    /// Ends a call. Empty: the section's end does.
    pub call_end: &'static str,
    /// Closes the section.
    pub close: &'static str,
    /// A section holds several calls; otherwise each call has a section of its own.
    pub many: bool,
}

impl Tagged {
    /// Whether a parameter's name is read back as it is written: what ends a name does not stand in it.
    pub fn holds_name(&self, name: &str) -> bool {
        let ends = self.key_end.iter().filter_map(|(end, _)| end.split('␣').next());
        !name.is_empty() && name.len() < super::tagged::MAX_NAME && ends.into_iter().all(|end| !name.contains(end))
    }
}

/// Calls as JSON objects `{"name": .., "arguments": {..}}`.
#[derive(Debug)]
pub(crate) struct JsonCalls {
    /// What a call or a list of calls begins with.
    pub open: &'static [&'static str],
    /// A `{` at the very beginning of the content may open a call to a known tool.
    pub bare: bool,
    /// Fields that may hold the arguments.
    pub arguments: &'static [&'static str],
    /// Between a name that stands alone and its arguments.
    pub named: Option<&'static str>,
    /// Characters between two calls, beside white space.
    pub between: &'static [char],
}

/// A dialect for one vocabulary.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub syntax: &'static Syntax,
    pub marks: Marks,
    pub think: Option<(Pattern, Pattern)>,
    pub strays: Vec<Pattern>,
    /// What a call may begin with.
    pub openers: Vec<Pattern>,
    pub tagged: Option<TaggedPatterns>,
    pub gemma_quote: Pattern,
    pub harmony: Harmony,
}

/// [`Tagged`] as patterns.
#[derive(Debug)]
pub(crate) struct TaggedPatterns {
    pub shape: &'static Tagged,
    /// All that may stand before a name. The first is the section with the call, the second the call alone.
    pub heads: Vec<Pattern>,
    pub name_end: Pattern,
    pub key_end: Vec<Pattern>,
    /// What may follow a value or come between two: parameter, end of the call, end of the section.
    pub followers: Vec<Pattern>,
    /// [`Self::followers`] after the end of a value: when the value stands on its own lines, and otherwise.
    pub value_end_lines: Vec<Pattern>,
    pub value_end: Vec<Pattern>,
}

/// The markers of gpt-oss.
#[derive(Debug)]
pub(crate) struct Harmony {
    pub start: Pattern,
    pub channel: Pattern,
    pub constrain: Pattern,
    pub message: Pattern,
    /// `<|end|>`, `<|call|>`, `<|return|>`.
    pub ends: Vec<Pattern>,
}

impl Compiled {
    pub fn new(syntax: &'static Syntax, tokenizer: Option<&Tokenizer>, think: bool) -> Self {
        let marks = Marks::new(syntax.marks, tokenizer);
        let p = |s: &str| Pattern::new(s, &marks);
        let tagged = match &syntax.calls {
            Calls::Tagged(t) => Some(TaggedPatterns::new(t, &marks)),
            _ => None,
        };
        let openers = match &syntax.calls {
            Calls::Tagged(t) if t.bare => Pattern::all(&[t.open, t.call], &marks),
            Calls::Tagged(t) => vec![p(t.open)],
            Calls::Json(j) => Pattern::all(j.open, &marks),
            Calls::Gemma => vec![p("<|tool_call>")],
            Calls::None | Calls::Harmony => Vec::new(),
        };
        Self {
            syntax,
            think: syntax.reasoning.filter(|_| think).map(|(open, close)| (p(open), p(close))),
            strays: Pattern::all(syntax.strays, &marks),
            openers,
            tagged,
            gemma_quote: p("<|\"|>"),
            harmony: Harmony {
                start: p("<|start|>"),
                channel: p("<|channel|>"),
                constrain: p("<|constrain|>"),
                message: p("<|message|>"),
                ends: Pattern::all(&["<|end|>", "<|call|>", "<|return|>"], &marks),
            },
            marks,
        }
    }
}

impl TaggedPatterns {
    fn new(shape: &'static Tagged, marks: &Marks) -> Self {
        let p = |s: &str| Pattern::new(s, marks);
        let (open, call, gap) = (p(shape.open), p(shape.call), p("␣"));
        let followers: Vec<Pattern> =
            [shape.param, shape.call_end, shape.close].iter().filter(|s| !s.is_empty()).map(|s| p(s)).collect();
        let after = |end: &str| -> Vec<Pattern> {
            let end = p(end).then(&gap);
            followers.iter().map(|f| end.then(f)).collect()
        };
        let mut heads = vec![open.then(&gap).then(&call)];
        if !shape.call.is_empty() {
            heads.push(call.clone());
        }
        Self {
            shape,
            heads,
            name_end: p(shape.name_end),
            key_end: shape.key_end.iter().map(|(s, _)| p(s)).collect(),
            value_end_lines: after(&format!("\n{}", shape.value_end)),
            value_end: after(shape.value_end),
            followers,
        }
    }
}
