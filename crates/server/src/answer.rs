//! Answers as they grow: what streams have said so far and what a whole response says at once.

use std::time::{Duration, Instant};

use crate::backend::{Done, Event, Reason, Token};
use crate::output::{Finish, Output, Piece};

/// One of a request's answers.
pub struct Answer {
    output: Output,
    /// What was said, in order.
    pub items: Vec<Item>,
    /// Every id made, with its logprobs; kept only if they were asked for.
    pub tokens: Vec<Token>,
    /// The prompt's ids with their logprobs, where asked for.
    pub prompt_tokens: Vec<Token>,
    keep_tokens: bool,
    /// How many ids were made.
    pub made: u32,
    /// How many of them were reasoning.
    pub reasoning_made: u32,
    /// Why it ended, once it has.
    pub finish: Option<Finish>,
    /// Prompt ids that were there before.
    pub cached: u32,
    prompt: u32,
    /// Prompt ids that were read, or were there before.
    read: u32,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Reasoning.
    Reasoning(String),
    /// Text.
    Text(String),
    /// A call.
    Call {
        /// Its id.
        id: String,
        /// The tool.
        name: String,
        /// JSON text, whole only if `complete`.
        arguments: String,
        /// Whether it ended.
        complete: bool,
    },
}

/// What an event came to.
#[derive(Debug, Default)]
pub struct Step {
    /// More of the answer.
    pub pieces: Vec<Piece>,
    /// Its tokens, if logprobs were asked for.
    pub tokens: Vec<Token>,
    /// The answer is over.
    pub ended: bool,
}

impl Answer {
    /// An answer that has not begun, to so many ids.
    pub fn new(output: Output, prompt: u32, keep_tokens: bool) -> Self {
        Self {
            output,
            items: Vec::new(),
            tokens: Vec::new(),
            prompt_tokens: Vec::new(),
            keep_tokens,
            made: 0,
            reasoning_made: 0,
            finish: None,
            cached: 0,
            prompt,
            read: 0,
        }
    }

    /// It begins, with so many ids of its prompt known.
    pub fn started(&mut self, cached: u32) {
        (self.cached, self.read) = (cached, cached);
    }

    /// So many ids of its prompt were read beside those.
    pub fn reads(&mut self, done: u32) {
        self.read = self.cached.saturating_add(done).min(self.prompt);
    }

    /// Takes a token or the end. Other events say nothing about the answer.
    pub fn take(&mut self, event: Event) -> Step {
        let mut step = Step::default();
        match event {
            Event::Token(token) => {
                self.made += 1;
                self.read = self.prompt;
                let stopped = self.output.push(token.id, &mut step.pieces);
                if matches!(step.pieces.last(), Some(Piece::Reasoning(_))) {
                    self.reasoning_made += 1;
                }
                if self.keep_tokens {
                    self.tokens.push(token.clone());
                    step.tokens.push(token);
                }
                if stopped {
                    self.end(Reason::End, &mut step);
                }
            }
            Event::PromptToken(token) => self.prompt_tokens.push(token),
            Event::Done(Done { reason, cached, .. }) => {
                (self.cached, self.read) = (cached, self.prompt);
                self.end(reason, &mut step);
            }
            _ => {}
        }
        for p in &step.pieces {
            self.add(p);
        }
        step
    }

    fn end(&mut self, reason: Reason, step: &mut Step) {
        self.finish = Some(self.output.finish(reason, &mut step.pieces));
        step.ended = true;
    }

    fn add(&mut self, piece: &Piece) {
        match (piece, self.items.last_mut()) {
            (Piece::Text(t), Some(Item::Text(have))) | (Piece::Reasoning(t), Some(Item::Reasoning(have))) => {
                have.push_str(t);
            }
            (Piece::Text(t), _) => self.items.push(Item::Text(t.clone())),
            (Piece::Reasoning(t), _) => self.items.push(Item::Reasoning(t.clone())),
            (Piece::CallStart { id, name, .. }, _) => self.items.push(Item::Call {
                id: id.clone(),
                name: name.clone(),
                arguments: String::new(),
                complete: false,
            }),
            (Piece::CallArgs { index, delta }, _) => {
                if let Some(Item::Call { arguments, .. }) = self.call(*index) {
                    arguments.push_str(delta);
                }
            }
            (Piece::CallEnd { index }, _) => {
                if let Some(Item::Call { complete, .. }) = self.call(*index) {
                    *complete = true;
                }
            }
        }
    }

    fn call(&mut self, index: u32) -> Option<&mut Item> {
        self.items.iter_mut().filter(|i| matches!(i, Item::Call { .. })).nth(index as usize)
    }

    /// All text. What stood on both sides of reasoning or a call does not run together.
    pub fn text(&self) -> String {
        let (mut all, mut joint) = (String::new(), Joint::default());
        for i in &self.items {
            match i {
                Item::Text(t) => {
                    all.push_str(joint.before(t));
                    all.push_str(t);
                }
                _ => joint.apart(),
            }
        }
        all
    }

    /// All reasoning.
    pub fn reasoning(&self) -> String {
        self.items.iter().filter_map(|i| if let Item::Reasoning(t) = i { Some(t.as_str()) } else { None }).collect()
    }
}

/// What goes between two pieces of text where something else stood between them. The parser takes the white space there
/// away, so that texts put together would run into each other.
#[derive(Debug, Default)]
pub struct Joint {
    last: Option<char>,
    apart: bool,
}

impl Joint {
    /// Something that is no text came.
    pub fn apart(&mut self) {
        self.apart = true;
    }

    /// What goes before this text, which is the next.
    pub fn before(&mut self, text: &str) -> &'static str {
        let (Some(first), Some(last)) = (text.chars().next(), text.chars().next_back()) else { return "" };
        let apart = std::mem::take(&mut self.apart);
        let before = self.last.replace(last);
        let runs_on = before.is_some_and(|b| !b.is_whitespace()) && !first.is_whitespace();
        if apart && runs_on { "\n\n" } else { "" }
    }
}

/// All answers to a request, with its figures.
pub struct Answers {
    /// One for each of `n`.
    pub all: Vec<Answer>,
    /// Answers to each prompt.
    pub each: u32,
    /// Ids of the prompt.
    pub prompt_tokens: u32,
    /// When the request was admitted.
    pub begun: Instant,
    /// When its first token was there.
    pub first: Option<Instant>,
    /// Time spent reading the prompt.
    pub prefill: Duration,
    /// Time spent making tokens.
    pub decode: Duration,
    /// Of that, time in the model's passes.
    pub passes: Duration,
}

impl Answers {
    /// Ids made for all answers.
    pub fn made(&self) -> u32 {
        self.all.iter().map(|a| a.made).sum()
    }

    /// Ids of reasoning made for all answers.
    pub fn reasoning_made(&self) -> u32 {
        self.all.iter().map(|a| a.reasoning_made).sum()
    }

    /// Prompt ids that were read, or were there before: of each prompt once, however many answers it has.
    pub fn read(&self) -> u32 {
        let of_prompt = |answers: &[Answer]| answers.iter().map(|a| a.read).max().unwrap_or(0);
        self.all.chunks(self.each.max(1) as usize).map(of_prompt).sum()
    }

    /// Prompt ids that were there before.
    pub fn cached(&self) -> u32 {
        self.all.iter().map(|a| a.cached).max().unwrap_or(0)
    }
}
