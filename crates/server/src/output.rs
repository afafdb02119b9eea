//! The one way from ids to what clients see, for all dialects of the wire.

use std::sync::Arc;

use text::dialect::{self, Ending, Event, OutputParser};
use text::{Detokenizer, StopMatcher};

use crate::backend::Reason;
use crate::voice::{Prepared, Reading, Voice};

/// A piece of an answer. Neighbouring pieces of one kind are to be concatenated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Reasoning.
    Reasoning(String),
    /// The answer's text.
    Text(String),
    /// A call begins.
    CallStart {
        /// Among the calls, from 0.
        index: u32,
        /// Unique.
        id: String,
        /// The tool's name, whole.
        name: String,
    },
    /// More of a call's arguments.
    CallArgs {
        /// The call.
        index: u32,
        /// JSON text.
        delta: String,
    },
    /// A call is complete.
    CallEnd {
        /// The call.
        index: u32,
    },
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it.
    Stop,
    /// This stop string did.
    StopString(String),
    /// Calls are to be made.
    ToolCalls,
    /// The limit of tokens was reached.
    Length,
    /// The context is full.
    ContextFull,
    /// The model ended in the middle: inside its reasoning, or in a call that cannot be read.
    Incomplete(&'static str),
}

/// Turns ids into pieces. What comes out depends on the ids alone, not on when they come.
pub struct Output {
    voice: Arc<Voice>,
    mode: Mode,
    stop: StopMatcher,
    stops: Vec<String>,
    hit: Option<usize>,
    /// Calls are shown as text: there were no tools to call.
    calls_are_text: bool,
    /// A call was shown as text, and what follows stands on a line of its own.
    behind_call: bool,
    any_text: bool,
    any_reasoning: bool,
    /// Ids were taken.
    any_id: bool,
}

enum Mode {
    Plain(Detokenizer),
    Parsed(Option<Box<OutputParser>>),
}

impl Output {
    /// For the answer to a prompt.
    pub fn new(voice: &Arc<Voice>, p: &Prepared, stops: &[String], id_seed: u64) -> Self {
        let mode = match &p.reading {
            Reading::Plain => Mode::Plain(Detokenizer::new(true, false)),
            Reading::Dialect { inside_reasoning, begun } => {
                Mode::Parsed(Some(Box::new(voice.parser(*inside_reasoning, begun, &p.tools, id_seed))))
            }
        };
        Self {
            voice: Arc::clone(voice),
            mode,
            stop: StopMatcher::new(stops),
            stops: stops.to_vec(),
            hit: None,
            calls_are_text: p.tools.is_empty(),
            behind_call: false,
            any_text: false,
            any_reasoning: false,
            any_id: false,
        }
    }

    /// Takes an id; true once a stop string has ended the answer.
    pub fn push(&mut self, id: u32, out: &mut Vec<Piece>) -> bool {
        let mut raw = Vec::new();
        self.any_id = true;
        match &mut self.mode {
            Mode::Plain(d) => {
                let mut text = String::new();
                d.push(&self.voice.tokenizer, id, &mut text);
                raw.push(Piece::Text(text));
            }
            Mode::Parsed(Some(p)) => p.push(&self.voice.tokenizer, id, &mut |e| raw.push(piece(e))),
            Mode::Parsed(None) => {}
        }
        self.pass(raw, out);
        self.hit.is_some()
    }

    /// The end of the answer.
    pub fn finish(&mut self, reason: Reason, out: &mut Vec<Piece>) -> Finish {
        let mut raw = Vec::new();
        let how = if reason == Reason::End && self.hit.is_none() { dialect::Finish::End } else { dialect::Finish::Cut };
        let summary = match &mut self.mode {
            Mode::Plain(d) => {
                let mut text = String::new();
                d.finish(&mut text);
                raw.push(Piece::Text(text));
                None
            }
            Mode::Parsed(p) => p.take().map(|p| p.finish(how, &mut |e| raw.push(piece(e)))),
        };
        self.pass(raw, out);
        self.flush(out);
        if let Some(i) = self.hit {
            return Finish::StopString(self.stops[i].clone());
        }
        match (reason, summary.map(|s| (s.ending, s.calls))) {
            (Reason::Length, _) => Finish::Length,
            (Reason::ContextFull, _) => Finish::ContextFull,
            (Reason::End, Some((Ending::InsideCall { .. }, _))) => {
                Finish::Incomplete("the model ended inside a tool call")
            }
            (Reason::End, Some((Ending::BrokenCall { .. }, _))) => {
                Finish::Incomplete("the model began a tool call whose arguments cannot be read")
            }
            (Reason::End, Some((Ending::InsideReasoning, _))) if !self.any_text => {
                Finish::Incomplete("the model ended inside its reasoning and gave no answer")
            }
            (Reason::End, Some((_, 1..))) if !self.calls_are_text => Finish::ToolCalls,
            (Reason::End, Some(_)) if !self.any_text && self.any_reasoning => {
                Finish::Incomplete("the model ended behind its reasoning and gave no answer")
            }
            (Reason::End, Some(_)) if !self.any_text && self.any_id => {
                Finish::Incomplete("what the model wrote held no answer")
            }
            (Reason::End, _) => Finish::Stop,
        }
    }

    fn pass(&mut self, raw: Vec<Piece>, out: &mut Vec<Piece>) {
        for piece in raw {
            if self.hit.is_some() {
                return;
            }
            match piece {
                Piece::Text(text) => {
                    if !text.is_empty() && std::mem::take(&mut self.behind_call) {
                        self.text("\n", out);
                    }
                    self.text(&text, out);
                }
                Piece::CallStart { name, .. } if self.calls_are_text => {
                    let name = serde_json::Value::from(name);
                    let line = if self.any_text { "\n" } else { "" };
                    self.behind_call = true;
                    self.text(&format!("{line}{{\"name\": {name}, \"arguments\": "), out);
                }
                Piece::CallArgs { delta, .. } if self.calls_are_text => self.text(&delta, out),
                Piece::CallEnd { .. } if self.calls_are_text => self.text("}", out),
                other => {
                    self.any_reasoning |= matches!(other, Piece::Reasoning(_));
                    self.flush(out);
                    push(out, other);
                }
            }
        }
    }

    fn text(&mut self, text: &str, out: &mut Vec<Piece>) {
        let mut safe = String::new();
        if let Some(hit) = self.stop.push(text, &mut safe) {
            self.hit = Some(hit.index);
        }
        self.any_text |= !safe.is_empty();
        push(out, Piece::Text(safe));
    }

    /// Text held back for a stop string that will not come any more.
    fn flush(&mut self, out: &mut Vec<Piece>) {
        if self.hit.is_none() {
            let mut held = String::new();
            self.stop.finish(&mut held);
            self.any_text |= !held.is_empty();
            push(out, Piece::Text(held));
        }
    }
}

/// Appends a piece, joined with the last one where both are of one kind. Empty ones say nothing.
fn push(out: &mut Vec<Piece>, piece: Piece) {
    match (out.last_mut(), piece) {
        (_, Piece::Text(s) | Piece::Reasoning(s) | Piece::CallArgs { delta: s, .. }) if s.is_empty() => {}
        (Some(Piece::Text(a)), Piece::Text(b)) | (Some(Piece::Reasoning(a)), Piece::Reasoning(b)) => a.push_str(&b),
        (Some(Piece::CallArgs { index: i, delta: a }), Piece::CallArgs { index: j, delta: b }) if *i == j => {
            a.push_str(&b)
        }
        (_, piece) => out.push(piece),
    }
}

fn piece(e: Event<'_>) -> Piece {
    match e {
        Event::Reasoning(s) => Piece::Reasoning(s.into()),
        Event::Content(s) => Piece::Text(s.into()),
        Event::ToolCallStart { index, id, name } => Piece::CallStart { index, id: id.into(), name: name.into() },
        Event::ToolCallArgs { index, delta } => Piece::CallArgs { index, delta: delta.into() },
        Event::ToolCallEnd { index } => Piece::CallEnd { index },
    }
}
