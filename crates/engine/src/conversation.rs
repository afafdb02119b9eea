//! A conversation that is never read twice.
//!
//! The sequence of the last answer stays open. For a new turn the whole conversation is rendered; where the rendering
//! begins with what the sequence already stands for (the last rendering and the answer as it was made), only the rest is
//! tokenised and read. The ids of an answer are kept as the model made them, which a tokenizer need not reproduce from
//! their text. Templates that drop or trim earlier answers break the beginning; then everything is read again.

use crate::error::Result;
use crate::executor::Executor;
use crate::generate::{Answer, Event, Finish, Request, generate};
use serde_json::{Value, json};
use state::SeqId;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;
use text::{ChatTemplate, Detokenizer, Prompt, Rendered, Tokenizer};

/// Messages so far, and the sequence that holds them.
pub struct Conversation {
    template: ChatTemplate,
    system: Option<String>,
    messages: Vec<Value>,
    held: Option<Held>,
    /// The time templates see: it stays, or every turn would begin differently.
    begun: SystemTime,
}

/// An open sequence and what it stands for.
struct Held {
    seq: SeqId,
    /// Ids fed to it, and behind them those that were made and not fed yet.
    ids: Vec<u32>,
    /// Their text: the last rendering and the answer to it.
    said: String,
}

/// A turn's answer and how it was come by. [`Answer::prompt_tokens`] counts what was read for it.
#[derive(Debug)]
pub struct Turn {
    /// The answer.
    pub answer: Answer,
    /// Why earlier turns were read again, if they were.
    pub reread: Option<Reread>,
}

/// Why a conversation was read from its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reread {
    /// The new rendering does not begin with the last one and its answer.
    Rendered {
        /// First byte that differs.
        at: usize,
        /// Bytes that should have been the same.
        of: usize,
    },
    /// The last turn failed or was stopped before its answer began.
    Unfinished,
}

impl std::fmt::Display for Reread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reread::Rendered { at, of } => write!(
                f,
                "the conversation was read again: the template writes earlier turns differently from byte {at} of {of}"
            ),
            Reread::Unfinished => f.write_str("the conversation was read again: the last turn has no answer"),
        }
    }
}

impl Conversation {
    /// An empty conversation.
    pub fn new(template: ChatTemplate, system: Option<String>) -> Self {
        let mut c = Conversation { template, system, messages: Vec::new(), held: None, begun: SystemTime::now() };
        c.start();
        c
    }

    fn start(&mut self) {
        self.messages = self.system.iter().map(|s| message("system", s)).collect();
    }

    /// Forgets everything but the system message.
    ///
    /// # Errors
    /// Those of the state.
    pub fn reset(&mut self, exec: &mut Executor) -> Result<()> {
        self.start();
        self.let_go(exec)
    }

    /// Messages so far, as templates are given them.
    pub fn messages(&self) -> &[Value] {
        &self.messages
    }

    /// Every id so far: those the open sequence holds, and behind them the ones it is fed with the next turn.
    pub fn ids(&self) -> &[u32] {
        self.held.as_ref().map_or(&[], |h| &h.ids)
    }

    /// Says `text` and lets the model answer. `how` gives everything but the prompt. A turn that fails leaves the messages
    /// as they were.
    ///
    /// # Errors
    /// Those of the template, of [`generate`] (a full context is [`crate::Error::PromptTooLong`]) and of the state.
    pub fn say(
        &mut self,
        exec: &mut Executor,
        tokenizer: &Tokenizer,
        text: &str,
        how: &Request,
        cancel: &AtomicBool,
        on: &mut dyn FnMut(Event),
    ) -> Result<Turn> {
        self.messages.push(message("user", text));
        let turn = self.answer(Means { exec, tokenizer, how, cancel, on });
        match &turn {
            Ok(t) if !stopped_while_reading(&t.answer) => self.messages.push(message("assistant", &t.answer.text)),
            _ => {
                self.messages.pop();
            }
        }
        turn
    }

    fn answer(&mut self, mut by: Means) -> Result<Turn> {
        let messages = &self.messages;
        let prompt = Prompt { messages, add_generation_prompt: true, now: Some(self.begun), ..Prompt::default() };
        let rendered = self.template.render(&prompt, by.tokenizer)?;
        let reread = self.why_reread(&rendered);
        if reread.is_some() {
            self.let_go(by.exec)?;
        }
        let mut held = match self.held.take() {
            Some(h) => h,
            None => Held { seq: by.exec.open()?, ids: Vec::new(), said: String::new() },
        };
        let before = by.exec.len(held.seq)?;
        match held.answer(&rendered, &mut by) {
            Ok(answer) if !stopped_while_reading(&answer) => {
                held.said = rendered.text().to_string() + &as_made(by.tokenizer, &answer.ids);
                self.held = Some(held);
                Ok(Turn { answer, reread })
            }
            Err(e) if before > 0 && by.exec.len(held.seq)? == before => {
                self.held = Some(held);
                Err(e)
            }
            // What the sequence holds now is the beginning of no rendering.
            other => {
                by.exec.close(held.seq)?;
                other.map(|answer| Turn { answer, reread })
            }
        }
    }

    fn why_reread(&self, rendered: &Rendered) -> Option<Reread> {
        let Some(h) = &self.held else {
            let answered = self.messages.iter().any(|m| m["role"] == "assistant");
            return answered.then_some(Reread::Unfinished);
        };
        if rendered.text().starts_with(&h.said) {
            return None;
        }
        let same = h.said.bytes().zip(rendered.text().bytes()).take_while(|(a, b)| a == b).count();
        Some(Reread::Rendered { at: same, of: h.said.len() })
    }

    fn let_go(&mut self, exec: &mut Executor) -> Result<()> {
        self.held.take().map_or(Ok(()), |h| exec.close(h.seq))
    }
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// What a turn is made with.
struct Means<'a> {
    exec: &'a mut Executor,
    tokenizer: &'a Tokenizer,
    how: &'a Request,
    cancel: &'a AtomicBool,
    on: &'a mut dyn FnMut(Event),
}

impl Held {
    /// Feeds the sequence the ids it has not been fed yet and what the rendering adds, and answers. Ids grow by what was
    /// read and made; after an error they are as they were.
    fn answer(&mut self, rendered: &Rendered, by: &mut Means) -> Result<Answer> {
        let fed = (by.exec.len(self.seq)? as usize).min(self.ids.len());
        let more = match self.said.len() {
            0 => by.tokenizer.encode_prompt(rendered)?,
            read => by.tokenizer.encode_rest(rendered, read)?,
        };
        let (read, pending) = self.ids.split_at(fed);
        let prompt = pending.iter().chain(&more).copied().collect();
        let req = Request { prompt, history: read.to_vec(), ..by.how.clone() };
        let answer = generate(by.exec, Some(by.tokenizer), self.seq, &req, by.cancel, by.on)?;
        self.ids.extend(more);
        self.ids.extend(&answer.ids);
        Ok(answer)
    }
}

fn stopped_while_reading(a: &Answer) -> bool {
    a.finish == Finish::Cancelled && a.ids.is_empty()
}

/// The text of an answer with everything that was made, special tokens and text behind a stop string too.
fn as_made(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let (mut text, mut d) = (String::new(), Detokenizer::new(false, false));
    ids.iter().for_each(|&id| d.push(tokenizer, id, &mut text));
    d.finish(&mut text);
    text
}
