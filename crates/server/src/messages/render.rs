//! Answers as Anthropic's messages: events and whole.

use serde_json::{Map, Value, json};
use text::RAW_ARGUMENTS;

use crate::answer::{Answers, Item, Step};
use crate::fault::Fault;
use crate::frames::Frames;
use crate::ids;
use crate::output::{Finish, Piece};
use crate::pump::Render;
use crate::wire::Wire;

/// Renders one request's answer.
pub struct Messages {
    id: String,
    model: String,
    /// The block that is open, and how many were begun.
    open: Option<Open>,
    blocks: u32,
    /// Reasoning of the open block, for its signature.
    thought: String,
    /// The message was begun.
    begun: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    Call,
}

impl Messages {
    /// For a request that named this model.
    pub fn new(model: String) -> Self {
        Self { id: ids::id("msg_"), model, open: None, blocks: 0, thought: String::new(), begun: false }
    }

    fn envelope(&self, content: Value, finish: Option<&Finish>, usage: Value) -> Value {
        let (reason, sequence) = stop(finish);
        let mut message = json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": reason, "stop_sequence": sequence, "usage": usage,
        });
        if let Some(Finish::Incomplete(why)) = finish {
            message["note"] = (*why).into();
        }
        message
    }

    fn start(&mut self, kind: Open, block: Value, out: &mut Frames) {
        self.close(out);
        self.open = Some(kind);
        let data = json!({"type": "content_block_start", "index": self.blocks, "content_block": block});
        self.blocks += 1;
        out.event("content_block_start", &data);
    }

    fn delta(&self, delta: Value, out: &mut Frames) {
        let data = json!({"type": "content_block_delta", "index": self.blocks.saturating_sub(1), "delta": delta});
        out.event("content_block_delta", &data);
    }

    fn close(&mut self, out: &mut Frames) {
        let Some(open) = self.open.take() else { return };
        if open == Open::Thinking {
            let signature = signature(&std::mem::take(&mut self.thought));
            self.delta(json!({"type": "signature_delta", "signature": signature}), out);
        }
        out.event("content_block_stop", &json!({"type": "content_block_stop", "index": self.blocks.saturating_sub(1)}));
    }
}

/// A mark that clients keep beside reasoning and send back. It says nothing; reasoning is taken back with any.
fn signature(text: &str) -> String {
    // FNV-1a (Fowler, Noll, Vo).
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("snug{hash:016x}")
}

fn stop(finish: Option<&Finish>) -> (Value, Value) {
    let reason = match finish {
        None => return (Value::Null, Value::Null),
        Some(Finish::StopString(s)) => return ("stop_sequence".into(), s.as_str().into()),
        Some(Finish::Stop) => "end_turn",
        Some(Finish::ToolCalls) => "tool_use",
        Some(Finish::Length | Finish::Incomplete(_)) => "max_tokens",
        Some(Finish::ContextFull) => "model_context_window_exceeded",
    };
    (reason.into(), Value::Null)
}

/// What was read, what was there before, and what was made.
fn usage(a: &Answers) -> Value {
    let cached = a.cached();
    json!({
        "input_tokens": a.prompt_tokens.saturating_sub(cached), "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached,
        "output_tokens": a.made(),
    })
}

/// Ids begin as clients of this API are used to.
fn tool_id(id: &str) -> String {
    id.strip_prefix("call_").map_or_else(|| id.to_owned(), |rest| format!("toolu_{rest}"))
}

fn block(item: &Item) -> Value {
    match item {
        Item::Reasoning(t) => json!({"type": "thinking", "thinking": t, "signature": signature(t)}),
        Item::Text(t) => json!({"type": "text", "text": t}),
        Item::Call { id, name, arguments, .. } => {
            // What a client that streams makes of the same pieces.
            let read = serde_json::from_str::<Map<String, Value>>(arguments);
            let input = read.map_or_else(|_| json!({RAW_ARGUMENTS: arguments}), Value::from);
            json!({"type": "tool_use", "id": tool_id(id), "name": name, "input": input})
        }
    }
}

impl Render for Messages {
    /// The message begins when its figures are known; clients take them from here.
    fn started(&mut self, answers: &Answers, out: &mut Frames) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let message = self.envelope(json!([]), None, usage(answers));
        out.event("message_start", &json!({"type": "message_start", "message": message}));
        self.ping("", out);
    }

    fn step(&mut self, _: usize, step: &Step, answers: &Answers, out: &mut Frames) {
        self.started(answers, out);
        for piece in &step.pieces {
            match piece {
                Piece::Reasoning(s) => {
                    if self.open != Some(Open::Thinking) {
                        self.start(Open::Thinking, json!({"type": "thinking", "thinking": "", "signature": ""}), out);
                    }
                    self.thought.push_str(s);
                    self.delta(json!({"type": "thinking_delta", "thinking": s}), out);
                }
                Piece::Text(s) => {
                    if self.open != Some(Open::Text) {
                        self.start(Open::Text, json!({"type": "text", "text": ""}), out);
                    }
                    self.delta(json!({"type": "text_delta", "text": s}), out);
                }
                Piece::CallStart { id, name, .. } => {
                    let block = json!({"type": "tool_use", "id": tool_id(id), "name": name, "input": {}});
                    self.start(Open::Call, block, out);
                }
                Piece::CallArgs { delta, .. } => {
                    self.delta(json!({"type": "input_json_delta", "partial_json": delta}), out);
                }
                Piece::CallEnd { .. } => self.close(out),
            }
        }
    }

    fn end(&mut self, answers: &Answers, out: &mut Frames) {
        self.started(answers, out);
        self.close(out);
        let finish = answers.all.first().and_then(|a| a.finish.as_ref());
        let (reason, sequence) = stop(finish);
        let mut data = json!({
            "type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": sequence}, "usage": usage(answers),
        });
        if let Some(Finish::Incomplete(why)) = finish {
            data["note"] = (*why).into();
        }
        out.event("message_delta", &data);
        out.event("message_stop", &json!({"type": "message_stop"}));
    }

    fn ping(&mut self, _: &str, out: &mut Frames) {
        out.event("ping", &json!({"type": "ping"}));
    }

    fn fail(&mut self, fault: &Fault, _: &Answers, out: &mut Frames) {
        out.event("error", &Wire::Anthropic.fault(fault));
    }

    fn whole(&mut self, answers: &Answers) -> Value {
        let Some(a) = answers.all.first() else { return Value::Null };
        let content: Vec<Value> = a.items.iter().map(block).collect();
        self.envelope(content.into(), a.finish.as_ref(), usage(answers))
    }

    fn fault(&self, fault: &Fault) -> Value {
        Wire::Anthropic.fault(fault)
    }
}
