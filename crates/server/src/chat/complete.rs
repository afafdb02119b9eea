//! `/v1/completions`: text or ids in, text out, no template.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::parse::{Options, format};
use super::render::{finite, note, reason, usage};
use crate::answer::{Answer, Answers, Step};
use crate::backend::Token;
use crate::fault::Fault;
use crate::frames::Frames;
use crate::ids;
use crate::json::{self, Fields};
use crate::output::{Finish, Piece};
use crate::pump::Render;
use crate::request::{GenerateRequest, MAX_N, MAX_PROMPTS, Prompt, Wishes, stops};
use crate::voice::Voice;
use crate::wire::Wire;

/// Most likeliest tokens reported here.
const MAX_TOP: i64 = 5;
/// What this API makes if nobody says how much.
const USUAL_TOKENS: u32 = 16;

/// Reads a body; the second part says whether the prompt is to be repeated.
///
/// # Errors
/// A [`Fault`] that names the field.
pub fn request(body: &[u8]) -> Result<(GenerateRequest, Echo), Fault> {
    let map = json::object(body)?;
    let f = Fields::of(&map);
    let echo = f.bool("echo")?.unwrap_or(false);
    if f.get("suffix").is_some_and(|s| s != "") {
        return Err(f.wrong("suffix", "is not supported: text can only be continued"));
    }
    if f.int("best_of", 1, i64::from(MAX_N))?.is_some_and(|n| n > 1) {
        return Err(f.wrong("best_of", "is not supported; use n"));
    }
    let logprobs = f.int("logprobs", 0, MAX_TOP)?.map(|n| n as u32);
    let include_usage = match f.object("stream_options")? {
        Some(o) => o.bool("include_usage")?.unwrap_or(false),
        None => false,
    };
    let mut prompts = prompts(&f)?.into_iter();
    let (format, format_field) = format(&f, "response_format")?;
    let request = GenerateRequest {
        model: f.str("model")?.map(str::to_owned),
        prompt: prompts.next().unwrap_or_default(),
        further: prompts.collect(),
        sampling: Wishes::read(&f)?,
        stop: stops(&f, "stop")?,
        max_tokens: Some(f.tokens("max_tokens")?.unwrap_or(USUAL_TOKENS)),
        format,
        format_field,
        n: f.int("n", 1, i64::from(MAX_N))?.unwrap_or(1) as u32,
        logprobs,
        prompt_logprobs: echo && logprobs.is_some(),
        ignore_eos: f.bool("ignore_eos")?.unwrap_or(false),
        stream: f.bool("stream")?.unwrap_or(false),
        ..GenerateRequest::default()
    };
    Ok((request, Echo { echo, options: Options { include_usage, logprobs: logprobs.is_some() } }))
}

/// `prompt`: text, ids, or an array of either.
fn prompts(f: &Fields<'_>) -> Result<Vec<Prompt>, Fault> {
    let ids = |path: &str, a: &[Value]| {
        let id = |(i, v): (usize, &Value)| {
            let id = v.as_u64().and_then(|n| u32::try_from(n).ok());
            id.ok_or_else(|| f.wrong(&format!("{path}[{i}]"), format_args!("{v} is no token id")))
        };
        Ok(Prompt::Ids(a.iter().enumerate().map(id).collect::<Result<_, _>>()?))
    };
    let several = |a: &[Value]| {
        let one = |(i, v): (usize, &Value)| match v {
            Value::String(s) => Ok(Prompt::Text(s.clone())),
            Value::Array(a) => ids(&format!("prompt[{i}]"), a),
            other => Err(f.wrong(
                &format!("prompt[{i}]"),
                format_args!("must be a string or token ids, not {}", json::kind(other)),
            )),
        };
        a.iter().enumerate().map(one).collect()
    };
    match f.get("prompt") {
        Some(Value::String(s)) => Ok(vec![Prompt::Text(s.clone())]),
        Some(Value::Array(a)) if a.len() > MAX_PROMPTS && !a[0].is_number() => {
            Err(f.wrong("prompt", format_args!("holds {} prompts; at most {MAX_PROMPTS} are allowed", a.len())))
        }
        Some(Value::Array(a)) if matches!(a.first(), Some(Value::String(_) | Value::Array(_))) => several(a),
        Some(Value::Array(a)) => Ok(vec![ids("prompt", a)?]),
        Some(other) => Err(f.wrong("prompt", format_args!("must be a string or token ids, not {}", json::kind(other)))),
        None => Err(f.wrong("prompt", "is missing")),
    }
}

/// What only the way back needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo {
    echo: bool,
    options: Options,
}

/// Renders one request's answers.
pub struct Completions {
    id: String,
    created: u64,
    model: String,
    voice: Arc<Voice>,
    prompts: Vec<Prompt>,
    /// Answers to each of them.
    n: usize,
    how: Echo,
    /// Characters of each answer that were sent, for `text_offset`.
    sent: Vec<usize>,
}

impl Completions {
    /// For a request that named this model.
    pub fn new(model: String, voice: Arc<Voice>, request: &GenerateRequest, how: Echo) -> Self {
        let prompts: Vec<Prompt> = std::iter::once(&request.prompt).chain(&request.further).cloned().collect();
        let n = request.n.max(1) as usize;
        let sent = vec![0; prompts.len() * n];
        Self { id: ids::id("cmpl-"), created: ids::now(), model, voice, prompts, n, how, sent }
    }

    fn echoed(&self, choice: usize) -> String {
        match self.prompts.get(choice / self.n) {
            Some(Prompt::Text(t)) if self.how.echo => t.clone(),
            Some(Prompt::Ids(ids)) if self.how.echo => self.voice.tokenizer.decode(ids, false),
            _ => String::new(),
        }
    }

    fn response(&self, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id, "object": "text_completion", "created": self.created, "model": self.model, "choices": choices,
        })
    }

    fn choice(&self, index: usize, text: &str, tokens: &[Token], offset: usize, finish: Option<&Finish>) -> Value {
        let logprobs = if self.how.options.logprobs { self.logprobs(tokens, offset) } else { Value::Null };
        let mut c = json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish.map(reason)});
        note(&mut c, finish);
        c
    }

    fn logprobs(&self, tokens: &[Token], mut offset: usize) -> Value {
        let text =
            |id: u32| String::from_utf8_lossy(self.voice.tokenizer.token_bytes(id).unwrap_or_default()).into_owned();
        let (mut names, mut probs, mut tops, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for t in tokens {
            let name = text(t.id);
            offsets.push(offset);
            offset += name.chars().count();
            let top: Map<String, Value> = t.top.iter().map(|(id, p)| (text(*id), finite(Some(*p)))).collect();
            tops.push(if t.logprob.is_some() { top.into() } else { Value::Null });
            probs.push(finite(t.logprob));
            names.push(name);
        }
        json!({"tokens": names, "token_logprobs": probs, "top_logprobs": tops, "text_offset": offsets})
    }

    fn all_tokens(&self, a: &Answer) -> Vec<Token> {
        let prompt = if self.how.echo { a.prompt_tokens.as_slice() } else { &[] };
        prompt.iter().chain(&a.tokens).cloned().collect()
    }
}

fn text_of(pieces: &[Piece]) -> String {
    pieces.iter().filter_map(|p| if let Piece::Text(t) = p { Some(t.as_str()) } else { None }).collect()
}

impl Render for Completions {
    fn step(&mut self, choice: usize, step: &Step, answers: &Answers, out: &mut Frames) {
        let a = &answers.all[choice];
        let mut text = text_of(&step.pieces);
        let mut tokens = step.tokens.clone();
        // The prompt goes before the first piece.
        if self.how.echo && self.sent[choice] == 0 && (a.made <= 1 || step.ended) {
            text.insert_str(0, &self.echoed(choice));
            tokens.splice(0..0, a.prompt_tokens.iter().cloned());
        }
        let offset = self.sent[choice];
        self.sent[choice] += text.chars().count();
        if !text.is_empty() || !tokens.is_empty() {
            out.data(&self.response(vec![self.choice(choice, &text, &tokens, offset, None)]));
        }
        if step.ended {
            let offset = self.sent[choice];
            out.data(&self.response(vec![self.choice(choice, "", &[], offset, a.finish.as_ref())]));
        }
    }

    fn end(&mut self, answers: &Answers, out: &mut Frames) {
        if self.how.options.include_usage {
            let mut last = self.response(Vec::new());
            last["usage"] = usage(answers);
            out.data(&last);
        }
        out.done();
    }

    fn fail(&mut self, fault: &Fault, _: &Answers, out: &mut Frames) {
        out.data(&Wire::OpenAi.fault(fault));
        out.done();
    }

    fn whole(&mut self, answers: &Answers) -> Value {
        let choice = |(i, a): (usize, &Answer)| {
            let text = self.echoed(i) + &a.text();
            self.choice(i, &text, &self.all_tokens(a), 0, a.finish.as_ref())
        };
        let mut whole = self.response(answers.all.iter().enumerate().map(choice).collect());
        whole["usage"] = usage(answers);
        whole
    }

    fn fault(&self, fault: &Fault) -> Value {
        Wire::OpenAi.fault(fault)
    }
}
