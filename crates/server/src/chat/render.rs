//! Answers as chat completions: chunks and whole.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::parse::Options;
use crate::answer::{Answer, Answers, Item, Joint, Step};
use crate::backend::Token;
use crate::fault::Fault;
use crate::frames::Frames;
use crate::ids;
use crate::output::{Finish, Piece};
use crate::pump::Render;
use crate::voice::Voice;
use crate::wire::Wire;

/// Renders one request's answers.
pub struct Chat {
    id: String,
    created: u64,
    model: String,
    voice: Arc<Voice>,
    options: Options,
    /// Between the texts of each answer.
    joints: Vec<Joint>,
}

impl Chat {
    /// For a request that named this model.
    pub fn new(model: String, voice: Arc<Voice>, options: Options) -> Self {
        Self { id: ids::id("chatcmpl-"), created: ids::now(), model, voice, options, joints: Vec::new() }
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model, "choices": choices,
        });
        if self.options.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn delta(&self, choice: usize, delta: Value, tokens: Option<&[Token]>, finish: Option<&Finish>) -> Value {
        let mut c =
            json!({"index": choice, "delta": delta, "logprobs": Value::Null, "finish_reason": finish.map(reason)});
        if let Some(tokens) = tokens.filter(|_| self.options.logprobs) {
            c["logprobs"] = self.logprobs(tokens);
        }
        note(&mut c, finish);
        self.chunk(json!([c]))
    }

    fn logprobs(&self, tokens: &[Token]) -> Value {
        let one = |id: u32, logprob: Option<f32>| {
            let bytes = self.voice.tokenizer.token_bytes(id).unwrap_or_default();
            let mut o = Map::new();
            o.insert("token".into(), String::from_utf8_lossy(bytes).into());
            o.insert("logprob".into(), finite(logprob));
            o.insert("bytes".into(), bytes.into());
            o
        };
        let content = tokens.iter().map(|t| {
            let mut o = one(t.id, t.logprob);
            let top: Vec<Value> = t.top.iter().map(|(id, p)| one(*id, Some(*p)).into()).collect();
            o.insert("top_logprobs".into(), top.into());
            Value::from(o)
        });
        json!({"content": content.collect::<Vec<_>>(), "refusal": Value::Null})
    }
}

/// JSON has no minus infinity.
pub fn finite(logprob: Option<f32>) -> Value {
    logprob.map_or(Value::Null, |p| p.max(-9999.0).into())
}

/// The word for an ending.
pub fn reason(f: &Finish) -> &'static str {
    match f {
        Finish::Stop | Finish::StopString(_) => "stop",
        Finish::ToolCalls => "tool_calls",
        // What is incomplete must not pass for a good end.
        Finish::Length | Finish::ContextFull | Finish::Incomplete(_) => "length",
    }
}

/// Says why an ending is none, where the word alone does not tell.
pub fn note(choice: &mut Value, finish: Option<&Finish>) {
    match finish {
        Some(Finish::Incomplete(why)) => choice["note"] = (*why).into(),
        Some(Finish::ContextFull) => choice["note"] = "the context is full".into(),
        Some(Finish::StopString(s)) => choice["stop_reason"] = s.as_str().into(),
        _ => {}
    }
}

/// The figures of OpenAI's older APIs.
pub fn usage(a: &Answers) -> Value {
    json!({
        "prompt_tokens": a.prompt_tokens, "completion_tokens": a.made(), "total_tokens": a.prompt_tokens + a.made(),
        "prompt_tokens_details": {"cached_tokens": a.cached()},
        "completion_tokens_details": {"reasoning_tokens": a.reasoning_made()},
    })
}

impl Render for Chat {
    fn begin(&mut self, answers: &Answers, out: &mut Frames) {
        for i in 0..answers.all.len() {
            out.data(&self.delta(i, json!({"role": "assistant", "content": ""}), None, None));
        }
    }

    fn step(&mut self, choice: usize, step: &Step, answers: &Answers, out: &mut Frames) {
        let mut tokens = Some(step.tokens.as_slice()).filter(|t| !t.is_empty());
        if self.joints.len() <= choice {
            self.joints.resize_with(choice + 1, Joint::default);
        }
        for piece in &step.pieces {
            let joint = &mut self.joints[choice];
            if !matches!(piece, Piece::Text(_)) {
                joint.apart();
            }
            let delta = match piece {
                Piece::Reasoning(s) => json!({"reasoning_content": s}),
                Piece::Text(s) => json!({"content": format!("{}{s}", joint.before(s))}),
                Piece::CallStart { index, id, name } => json!({"tool_calls": [
                    {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
                ]}),
                Piece::CallArgs { index, delta } => {
                    json!({"tool_calls": [{"index": index, "function": {"arguments": delta}}]})
                }
                Piece::CallEnd { .. } => continue,
            };
            out.data(&self.delta(choice, delta, tokens.take(), None));
        }
        if let Some(tokens) = tokens {
            out.data(&self.delta(choice, json!({"content": ""}), Some(tokens), None));
        }
        if step.ended {
            out.data(&self.delta(choice, json!({}), None, answers.all[choice].finish.as_ref()));
        }
    }

    fn end(&mut self, answers: &Answers, out: &mut Frames) {
        if self.options.include_usage {
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = usage(answers);
            out.data(&chunk);
        }
        out.done();
    }

    fn fail(&mut self, fault: &Fault, _: &Answers, out: &mut Frames) {
        out.data(&Wire::OpenAi.fault(fault));
        out.done();
    }

    fn whole(&mut self, answers: &Answers) -> Value {
        let choices: Vec<Value> = answers.all.iter().enumerate().map(|(i, a)| self.choice(i, a)).collect();
        json!({
            "id": self.id, "object": "chat.completion", "created": self.created, "model": self.model, "choices": choices,
            "usage": usage(answers),
        })
    }

    fn fault(&self, fault: &Fault) -> Value {
        Wire::OpenAi.fault(fault)
    }
}

impl Chat {
    fn choice(&self, index: usize, a: &Answer) -> Value {
        let calls: Vec<Value> = a.items.iter().filter_map(call).collect();
        let text = a.text();
        let content = if text.is_empty() && !calls.is_empty() { Value::Null } else { text.into() };
        let mut message = json!({"role": "assistant", "content": content, "refusal": Value::Null});
        let reasoning = a.reasoning();
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        let logprobs = if self.options.logprobs { self.logprobs(&a.tokens) } else { Value::Null };
        let finish = a.finish.as_ref();
        let mut c =
            json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish.map(reason)});
        note(&mut c, finish);
        c
    }
}

fn call(item: &Item) -> Option<Value> {
    let Item::Call { id, name, arguments, .. } = item else { return None };
    Some(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}
