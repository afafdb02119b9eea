//! The one neutral request that every dialect becomes.

use serde_json::{Map, Value};
use text::dialect::Tool;

use crate::backend::Sampling;
use crate::fault::Fault;
use crate::json::Fields;

/// Most answers to one request.
pub const MAX_N: u32 = 4;
/// Most prompts in one request.
pub const MAX_PROMPTS: usize = 64;
/// Most likeliest tokens that are reported.
pub const MAX_LOGPROBS: i64 = 20;
/// Most stop strings.
pub const MAX_STOPS: usize = 64;

/// A request in no dialect's form.
#[derive(Clone, Debug, Default)]
pub struct GenerateRequest {
    /// The model as the client named it; any name will do.
    pub model: Option<String>,
    /// What to answer.
    pub prompt: Prompt,
    /// Further prompts, each answered for itself, behind the answers to those before it.
    pub further: Vec<Prompt>,
    /// Tools in the form of OpenAI's chat completions, for the template.
    pub tools: Vec<Value>,
    /// The same tools for parser and grammar.
    pub parsed_tools: Vec<Tool>,
    /// Which calls there may or must be.
    pub tool_choice: ToolChoice,
    /// Only the parsed tools may be called, although the template shows others too.
    pub only_parsed: bool,
    /// At most one call.
    pub single_call: bool,
    /// Sampling, where the client said something.
    pub sampling: Wishes,
    /// Strings that end the answer.
    pub stop: Vec<String>,
    /// Most tokens of an answer.
    pub max_tokens: Option<u32>,
    /// What the answer must follow.
    pub format: Format,
    /// The client's own field that says so.
    pub format_field: String,
    /// What the client says about reasoning.
    pub reasoning: Reasoning,
    /// Further variables for the template.
    pub template_args: Map<String, Value>,
    /// How many answers; 0 is one.
    pub n: u32,
    /// Report logprobs, of the chosen and of that many likeliest.
    pub logprobs: Option<u32>,
    /// Report logprobs of the prompt.
    pub prompt_logprobs: bool,
    /// End tokens are ordinary ones.
    pub ignore_eos: bool,
    /// Whether to stream.
    pub stream: bool,
}

/// What to answer.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// A conversation in the form of OpenAI's chat completions.
    Messages(Vec<Message>),
    /// Text to continue; special tokens in it are markup.
    Text(String),
    /// Ids to continue.
    Ids(Vec<u32>),
}

/// A message, and where the client's form of it stands.
#[derive(Clone, Debug)]
pub struct Message {
    /// E.g. `messages[3]` or `input[0]`.
    pub path: String,
    /// In the form of OpenAI's chat completions.
    pub value: Value,
}

impl Default for Prompt {
    fn default() -> Self {
        Self::Messages(Vec::new())
    }
}

/// Which calls there may or must be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// No calls.
    None,
    /// The model's choice.
    #[default]
    Auto,
    /// At least one.
    Required,
    /// Of this tool.
    Named(String),
}

/// What an answer must follow.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Format {
    /// Nothing.
    #[default]
    Text,
    /// Any JSON object.
    JsonObject,
    /// A schema.
    JsonSchema(Value),
    /// A regular expression.
    Regex(String),
    /// A grammar in Lark.
    Grammar(String),
}

/// What a client says about reasoning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reasoning {
    /// On or off; `None`: as the template likes.
    pub enabled: Option<bool>,
    /// `low`, `medium`, `high` and what else a template knows.
    pub effort: Option<String>,
    /// Most tokens of reasoning.
    pub budget: Option<u32>,
}

/// Sampling as far as the client said something.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wishes {
    /// See [`Sampling`].
    pub temperature: Option<f32>,
    /// See [`Sampling`].
    pub top_k: Option<u32>,
    /// See [`Sampling`].
    pub top_p: Option<f32>,
    /// See [`Sampling`].
    pub min_p: Option<f32>,
    /// See [`Sampling`].
    pub repetition_penalty: Option<f32>,
    /// See [`Sampling`].
    pub presence_penalty: Option<f32>,
    /// See [`Sampling`].
    pub frequency_penalty: Option<f32>,
    /// See [`Sampling`].
    pub logit_bias: Vec<(u32, f32)>,
    /// See [`Sampling`].
    pub seed: Option<u64>,
}

impl Wishes {
    /// Reads the fields all dialects share, and the extensions `top_k`, `min_p` and `repetition_penalty`.
    ///
    /// # Errors
    /// Names the field that is out of range.
    pub fn read(f: &Fields<'_>) -> Result<Self, Fault> {
        let seed = match f.get("seed") {
            None => None,
            Some(v) => match (v.as_u64(), v.as_i64(), v.as_f64()) {
                (Some(s), ..) => Some(s),
                // Negative seeds are as good as any.
                (None, Some(s), _) => Some(s as u64),
                (None, None, Some(x)) if x.fract() == 0.0 && x.abs() < 9e15 => Some(x as i64 as u64),
                _ => return Err(f.wrong("seed", format_args!("must be a whole number of 64 bits, not {v}"))),
            },
        };
        Ok(Self {
            temperature: f.f32("temperature", 0.0, 100.0)?,
            // -1 is how some clients switch it off.
            top_k: f.int("top_k", -1, i64::from(i32::MAX))?.map(|k| k.max(0) as u32),
            top_p: f.f32("top_p", 0.0, 1.0)?,
            min_p: f.f32("min_p", 0.0, 1.0)?,
            repetition_penalty: f.f32("repetition_penalty", 0.01, 100.0)?,
            presence_penalty: f.f32("presence_penalty", -2.0, 2.0)?,
            frequency_penalty: f.f32("frequency_penalty", -2.0, 2.0)?,
            logit_bias: logit_bias(f)?,
            seed,
        })
    }

    /// The model's own preferences under the client's.
    pub fn over(&self, usual: &Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(usual.temperature),
            top_k: self.top_k.unwrap_or(usual.top_k),
            top_p: self.top_p.unwrap_or(usual.top_p),
            min_p: self.min_p.unwrap_or(usual.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(usual.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(usual.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(usual.frequency_penalty),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(crate::ids::random),
        }
    }
}

fn logit_bias(f: &Fields<'_>) -> Result<Vec<(u32, f32)>, Fault> {
    let Some(bias) = f.object("logit_bias")? else { return Ok(Vec::new()) };
    let one = |(id, _): (&String, &Value)| {
        let n: u32 = id.parse().map_err(|_| bias.wrong(id, "is not a token id"))?;
        Ok((n, bias.f32(id, -100.0, 100.0)?.unwrap_or(0.0)))
    };
    bias.map().iter().map(one).collect()
}

/// Stop strings: null, a string, or an array of strings. Empty ones mean nothing and are left out.
///
/// # Errors
/// Names the element that is no string.
pub fn stops(f: &Fields<'_>, name: &str) -> Result<Vec<String>, Fault> {
    let all: Vec<String> = match f.get(name) {
        None => Vec::new(),
        Some(Value::String(s)) => vec![s.clone()],
        Some(Value::Array(items)) => {
            let one = |(i, v): (usize, &Value)| match v {
                Value::String(s) => Ok(s.clone()),
                other => Err(f.wrong(
                    &format!("{name}[{i}]"),
                    format_args!("must be a string, not {}", crate::json::kind(other)),
                )),
            };
            items.iter().enumerate().map(one).collect::<Result<_, _>>()?
        }
        Some(other) => {
            return Err(f.wrong(
                name,
                format_args!("must be a string or an array of strings, not {}", crate::json::kind(other)),
            ));
        }
    };
    if all.len() > MAX_STOPS {
        return Err(f.wrong(name, format_args!("has {} strings; at most {MAX_STOPS} are allowed", all.len())));
    }
    Ok(all.into_iter().filter(|s| !s.is_empty()).collect())
}

/// A name that goes through parsers and grammars: not empty, no characters that were replaced or control it.
///
/// # Errors
/// Names the field.
pub fn identifier<'a>(f: &Fields<'a>, name: &str) -> Result<&'a str, Fault> {
    let s = f.str(name)?.unwrap_or_default();
    if s.is_empty() {
        return Err(f.wrong(name, "is missing"));
    }
    if s.chars().any(|c| c == char::REPLACEMENT_CHARACTER || c.is_control() || c.is_whitespace()) || s.len() > 256 {
        return Err(f.wrong(
            name,
            format_args!("{s:?} is no name: white space, control or broken characters, or more than 256 bytes"),
        ));
    }
    Ok(s)
}
