//! Answers as responses: events and whole.

use std::sync::Arc;

use serde_json::{Value, json};

use super::items::pack;
use super::parse::About;
use super::tools::{INPUT, Named};
use crate::answer::{Answer, Answers, Item, Step};
use crate::app::App;
use crate::backend::Token;
use crate::chat::finite;
use crate::fault::Fault;
use crate::frames::Frames;
use crate::ids;
use crate::output::{Finish, Piece};
use crate::pump::Render;
use crate::request::GenerateRequest;
use crate::voice::Voice;
use crate::wire::Wire;

/// Renders one request's answer.
pub struct Responses {
    id: String,
    created: u64,
    model: String,
    voice: Arc<Voice>,
    app: Arc<App>,
    about: About,
    logprobs: bool,
    sequence: u64,
    /// Ids of output items by their index: the same in the stream and in the whole.
    item_ids: Vec<String>,
    /// How many items were closed in the stream.
    closed: usize,
    /// Tokens of the text that no delta has carried yet.
    tokens: Vec<Token>,
}

impl Responses {
    /// For a request that named this model.
    pub fn new(model: String, voice: Arc<Voice>, app: Arc<App>, request: &GenerateRequest, about: About) -> Self {
        Self {
            id: ids::id("resp_"),
            created: ids::now(),
            model,
            voice,
            app,
            about,
            logprobs: request.logprobs.is_some(),
            sequence: 0,
            item_ids: Vec::new(),
            closed: 0,
            tokens: Vec::new(),
        }
    }

    fn event(&mut self, name: &str, mut data: Value, out: &mut Frames) {
        let mut event = json!({"type": name, "sequence_number": self.sequence});
        self.sequence += 1;
        if let (Some(all), Some(more)) = (event.as_object_mut(), data.as_object_mut()) {
            all.append(more);
        }
        out.event(name, &event);
    }

    fn response(&mut self, answers: &Answers, status: &str) -> Value {
        let a = answers.all.first();
        let output: Vec<Value> = match (status, a) {
            ("in_progress" | "queued", _) | (_, None) => Vec::new(),
            (_, Some(a)) => (0..a.items.len()).map(|i| self.item(a, i, true)).collect(),
        };
        let finish = a.and_then(|a| a.finish.as_ref());
        let mut r = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "background": false,
            "error": Value::Null, "incomplete_details": Value::Null, "model": self.model, "output": output,
            "store": self.about.store, "usage": Value::Null,
        });
        if let Some(all) = r.as_object_mut() {
            all.extend(self.about.echo.clone());
        }
        match finish {
            Some(Finish::Length) => r["incomplete_details"] = json!({"reason": "max_output_tokens"}),
            Some(Finish::ContextFull) => {
                r["incomplete_details"] = json!({"reason": "max_output_tokens", "note": "the context is full"});
            }
            Some(Finish::Incomplete(why)) => {
                r["incomplete_details"] = json!({"reason": "max_output_tokens", "note": why});
            }
            _ => {}
        }
        if finish.is_some() {
            r["completed_at"] = ids::now().into();
            r["usage"] = usage(answers);
        }
        r
    }

    fn item_id(&mut self, index: usize, item: &Item) -> String {
        while self.item_ids.len() <= index {
            let prefix = match item {
                Item::Reasoning(_) => "rs_",
                Item::Text(_) => "msg_",
                Item::Call { name, .. } if self.about.tools.named(name).custom => "ctc_",
                Item::Call { .. } => "fc_",
            };
            self.item_ids.push(ids::id(prefix));
        }
        self.item_ids[index].clone()
    }

    /// An output item; `done` with all it holds, else as it begins.
    fn item(&mut self, a: &Answer, index: usize, done: bool) -> Value {
        let item = &a.items[index];
        let id = self.item_id(index, item);
        let text = |t: &str| if done { t.to_owned() } else { String::new() };
        let status = status(done, index + 1 == a.items.len(), a);
        match item {
            Item::Reasoning(t) => {
                let content = if done { json!([{"type": "reasoning_text", "text": t}]) } else { json!([]) };
                let mut r = json!({"id": id, "type": "reasoning", "summary": [], "content": content, "status": status});
                if self.about.pack_reasoning {
                    r["encrypted_content"] = if done { pack(t).into() } else { Value::Null };
                }
                r
            }
            Item::Text(t) => {
                let content = if done { json!([self.text_part(t, &a.tokens)]) } else { json!([]) };
                json!({"id": id, "type": "message", "role": "assistant", "status": status, "content": content})
            }
            Item::Call { id: call_id, name, arguments, complete } => {
                let named = self.about.tools.named(name);
                let status = match (done, complete) {
                    (false, _) => "in_progress",
                    (true, true) => "completed",
                    (true, false) => "incomplete",
                };
                let mut c = json!({"id": id, "call_id": call_id, "name": named.name, "status": status});
                if named.custom {
                    (c["type"], c["input"]) = ("custom_tool_call".into(), text(&input_of(arguments)).into());
                } else {
                    (c["type"], c["arguments"]) = ("function_call".into(), text(arguments).into());
                }
                if let Some(n) = named.namespace {
                    c["namespace"] = n.into();
                }
                c
            }
        }
    }

    fn text_part(&self, text: &str, tokens: &[Token]) -> Value {
        let logprobs = if self.logprobs { self.report(tokens) } else { json!([]) };
        json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
    }

    fn report(&self, tokens: &[Token]) -> Value {
        let one = |id: u32, p: Option<f32>| {
            let bytes = self.voice.tokenizer.token_bytes(id).unwrap_or_default();
            json!({"token": String::from_utf8_lossy(bytes), "bytes": bytes, "logprob": finite(p)})
        };
        let all = tokens.iter().map(|t| {
            let mut o = one(t.id, t.logprob);
            o["top_logprobs"] = t.top.iter().map(|(id, p)| one(*id, Some(*p))).collect();
            o
        });
        all.collect()
    }

    fn added(&mut self, a: &Answer, index: usize, out: &mut Frames) {
        let item = self.item(a, index, false);
        self.event("response.output_item.added", json!({"output_index": index, "item": item}), out);
        let id = self.item_ids[index].clone();
        let part = match &a.items[index] {
            Item::Text(_) => self.text_part("", &[]),
            Item::Reasoning(_) => json!({"type": "reasoning_text", "text": ""}),
            Item::Call { .. } => return,
        };
        let data = json!({"item_id": id, "output_index": index, "content_index": 0, "part": part});
        self.event("response.content_part.added", data, out);
    }

    /// Ends items before `until`.
    fn close(&mut self, a: &Answer, until: usize, out: &mut Frames) {
        while self.closed < until {
            let index = self.closed;
            self.closed += 1;
            let item = self.item(a, index, true);
            let at = json!({"item_id": self.item_ids[index], "output_index": index});
            let with = |more: Value| merged(&at, more);
            match &a.items[index] {
                Item::Text(t) => {
                    let part = item["content"][0].clone();
                    let data = with(json!({"content_index": 0, "text": t, "logprobs": part["logprobs"]}));
                    self.event("response.output_text.done", data, out);
                    self.event("response.content_part.done", with(json!({"content_index": 0, "part": part})), out);
                }
                Item::Reasoning(t) => {
                    self.event("response.reasoning_text.done", with(json!({"content_index": 0, "text": t})), out);
                    let part = item["content"][0].clone();
                    self.event("response.content_part.done", with(json!({"content_index": 0, "part": part})), out);
                }
                Item::Call { name, arguments, .. } => match self.about.tools.named(name) {
                    Named { custom: true, .. } => {
                        let input = input_of(arguments);
                        self.event("response.custom_tool_call_input.delta", with(json!({"delta": input})), out);
                        self.event("response.custom_tool_call_input.done", with(json!({"input": input})), out);
                    }
                    Named { name, .. } => {
                        let data = with(json!({"name": name, "arguments": arguments}));
                        self.event("response.function_call_arguments.done", data, out);
                    }
                },
            }
            self.event("response.output_item.done", json!({"output_index": index, "item": item}), out);
        }
    }

    fn finished(&mut self, answers: &Answers) -> Value {
        let finish = answers.all.first().and_then(|a| a.finish.as_ref());
        let status = match finish {
            Some(Finish::Length | Finish::ContextFull | Finish::Incomplete(_)) => "incomplete",
            _ => "completed",
        };
        let response = self.response(answers, status);
        if self.about.store
            && let Some(a) = answers.all.first()
        {
            let mut messages = self.about.messages.clone();
            messages.push(turn(a));
            self.app.store.put(&self.id, response.clone(), messages);
        }
        response
    }
}

fn merged(at: &Value, more: Value) -> Value {
    let mut all = at.clone();
    if let (Some(all), Value::Object(more)) = (all.as_object_mut(), more) {
        all.extend(more);
    }
    all
}

/// Only what was being said when an answer was cut off is incomplete.
fn status(done: bool, last: bool, a: &Answer) -> &'static str {
    match (&a.finish, done) {
        (Some(Finish::Length | Finish::ContextFull | Finish::Incomplete(_)), true) if last => "incomplete",
        (_, true) => "completed",
        (_, false) => "in_progress",
    }
}

/// The text that a free-form tool is called with; what there is of it if the call was cut off.
fn input_of(arguments: &str) -> String {
    let read = serde_json::from_str::<Value>(arguments).ok().and_then(|v| Some(v.get(INPUT)?.as_str()?.to_owned()));
    read.unwrap_or_else(|| arguments.to_owned())
}

/// The answer as a message of the conversation.
fn turn(a: &Answer) -> Value {
    let calls: Vec<Value> = a
        .items
        .iter()
        .filter_map(|i| match i {
            Item::Call { id, name, arguments, .. } => {
                Some(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
            }
            _ => None,
        })
        .collect();
    let mut turn = json!({"role": "assistant", "content": a.text(), "reasoning_content": a.reasoning()});
    if !calls.is_empty() {
        turn["tool_calls"] = calls.into();
    }
    turn
}

fn usage(a: &Answers) -> Value {
    json!({
        "input_tokens": a.prompt_tokens, "input_tokens_details": {"cached_tokens": a.cached()},
        "output_tokens": a.made(), "output_tokens_details": {"reasoning_tokens": a.reasoning_made()},
        "total_tokens": a.prompt_tokens + a.made(),
    })
}

impl Render for Responses {
    fn begin(&mut self, answers: &Answers, out: &mut Frames) {
        for name in ["response.created", "response.in_progress"] {
            let response = self.response(answers, "in_progress");
            self.event(name, json!({"response": response}), out);
        }
    }

    fn step(&mut self, choice: usize, step: &Step, answers: &Answers, out: &mut Frames) {
        let a = &answers.all[choice];
        self.tokens.extend(step.tokens.iter().cloned());
        // Pieces of this step may have begun items; the last item that was known before is found from the pieces' kinds.
        let mut at = self.item_ids.len();
        for piece in &step.pieces {
            let continues = at > self.closed
                && at > 0
                && matches!(
                    (piece, &a.items[at - 1]),
                    (Piece::Text(_), Item::Text(_)) | (Piece::Reasoning(_), Item::Reasoning(_))
                );
            if !continues && !matches!(piece, Piece::CallArgs { .. } | Piece::CallEnd { .. }) {
                self.close(a, at, out);
                self.added(a, at, out);
                at += 1;
            }
            let index = at.saturating_sub(1);
            let Some(id) = self.item_ids.get(index).cloned() else { continue };
            let mut data = json!({"item_id": id, "output_index": index});
            match piece {
                Piece::Text(s) => {
                    let tokens = std::mem::take(&mut self.tokens);
                    let logprobs = if self.logprobs { self.report(&tokens) } else { json!([]) };
                    data = merged(&data, json!({"content_index": 0, "delta": s, "logprobs": logprobs}));
                    self.event("response.output_text.delta", data, out);
                }
                Piece::Reasoning(s) => {
                    data = merged(&data, json!({"content_index": 0, "delta": s}));
                    self.event("response.reasoning_text.delta", data, out);
                }
                Piece::CallArgs { delta, .. } if !self.is_custom(a, index) => {
                    data["delta"] = delta.as_str().into();
                    self.event("response.function_call_arguments.delta", data, out);
                }
                Piece::CallEnd { .. } => self.close(a, at, out),
                Piece::CallStart { .. } | Piece::CallArgs { .. } => {}
            }
        }
        if step.ended {
            self.close(a, a.items.len(), out);
        }
    }

    fn end(&mut self, answers: &Answers, out: &mut Frames) {
        let response = self.finished(answers);
        let name = if response["status"] == "incomplete" { "response.incomplete" } else { "response.completed" };
        self.event(name, json!({"response": response}), out);
    }

    fn fail(&mut self, fault: &Fault, answers: &Answers, out: &mut Frames) {
        let mut response = self.response(answers, "failed");
        response["error"] = json!({"code": "server_error", "message": fault.message});
        self.event("response.failed", json!({"response": response}), out);
    }

    fn whole(&mut self, answers: &Answers) -> Value {
        self.finished(answers)
    }

    fn fault(&self, fault: &Fault) -> Value {
        Wire::OpenAi.fault(fault)
    }
}

impl Responses {
    fn is_custom(&self, a: &Answer, index: usize) -> bool {
        matches!(a.items.get(index), Some(Item::Call { name, .. }) if self.about.tools.named(name).custom)
    }
}
