//! One answer: prompt ids in, text out, token by token.

use crate::batch::Drafts;
use crate::decode::{Decoding, Step, check, decode};
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::sampler::{Choice, Sampling};
use state::SeqId;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use text::{Detokenizer, StopMatcher, Tokenizer};

/// What is asked.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Ids to append to the sequence before the answer begins.
    pub prompt: Vec<u32>,
    /// Ids that were in the sequence before: a repetition penalty counts them as prompt.
    pub history: Vec<u32>,
    /// How to sample.
    pub sampling: Sampling,
    /// Most tokens of the answer; `None`: to the end of the context.
    pub max_tokens: Option<u32>,
    /// Texts that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// Whether end tokens are ordinary tokens.
    pub ignore_eos: bool,
}

/// What happens on the way.
#[derive(Debug)]
pub enum Event<'a> {
    /// Prompt tokens read so far, and in all.
    Prefill {
        /// So far.
        done: usize,
        /// In all.
        total: usize,
    },
    /// A token was chosen.
    Token(&'a Choice),
    /// More text of the answer: always whole characters, never part of a stop text.
    Text(&'a str),
}

/// Why an answer ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, or a stop text did.
    Stop,
    /// `max_tokens` were made.
    Length,
    /// The context is full.
    ContextFull,
    /// The caller cancelled.
    Cancelled,
}

impl Finish {
    /// The word for it in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::ContextFull => "context_full",
            Finish::Cancelled => "cancelled",
        }
    }
}

/// An answer with its figures.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// Its tokens, without the end token.
    pub ids: Vec<u32>,
    /// Every choice with its logprobs, where they were asked for.
    pub choices: Vec<Choice>,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Time to read the prompt.
    pub prefill: Duration,
    /// Time from the first token to the last.
    pub decode: Duration,
    /// Tokens behind the first, with one that ended the answer and is none of it.
    pub behind: u32,
    /// What drafting ahead did.
    pub drafts: Drafts,
}

impl Answer {
    /// Prompt tokens a second.
    pub fn prefill_tps(&self) -> f64 {
        rate(self.prompt_tokens as f64, self.prefill)
    }
    /// Tokens behind the first a second; 0 before the second.
    pub fn decode_tps(&self) -> f64 {
        rate(self.behind as f64, self.decode)
    }
}

fn rate(n: f64, t: Duration) -> f64 {
    if t.is_zero() { 0.0 } else { n / t.as_secs_f64() }
}

/// Appends the prompt to `seq` and answers.
///
/// # Errors
/// [`Error::EmptyPrompt`], [`Error::BadToken`], [`Error::PromptTooLong`], [`Error::BadParameter`] before anything is
/// computed; those of the executor afterwards. Cancelling is not an error: the answer so far is returned.
pub fn generate(
    exec: &mut Executor,
    tokenizer: Option<&Tokenizer>,
    seq: SeqId,
    req: &Request,
    cancel: &AtomicBool,
    on: &mut dyn FnMut(Event),
) -> Result<Answer> {
    check(exec, seq, &req.prompt, &req.sampling)?;
    if req.max_tokens == Some(0) {
        let range = "1 and more".to_string();
        return Err(Error::BadParameter { name: "max_tokens", value: "0".into(), range });
    }
    let is_end = |id| !req.ignore_eos && tokenizer.is_some_and(|t| t.is_eog(id));
    let job = Decoding {
        prompt: &req.prompt,
        history: &req.history,
        sampling: req.sampling.clone(),
        max_tokens: req.max_tokens,
        is_end: &is_end,
    };
    let mut out = Output::new(tokenizer, &req.stop);
    let mut choices = Vec::new();
    let made = decode(exec, seq, job, cancel, &mut |step| match step {
        Step::Prefill { done, total } => {
            on(Event::Prefill { done, total });
            true
        }
        Step::Token(choice) => {
            on(Event::Token(choice));
            if req.sampling.logprobs.is_some() {
                choices.push(choice.clone());
            }
            !out.push(choice.id, &mut |s| on(Event::Text(s)))
        }
    })?;
    Ok(Answer {
        text: out.finish(&mut |s| on(Event::Text(s))),
        ids: made.ids,
        choices,
        finish: made.finish,
        prompt_tokens: req.prompt.len(),
        prefill: made.prefill,
        decode: made.decode,
        behind: made.behind,
        drafts: made.drafts,
    })
}

/// Tokens to text, up to a stop text. Without a tokenizer there is no text.
struct Output<'t> {
    tokenizer: Option<&'t Tokenizer>,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    text: String,
    stopped: bool,
}

impl<'t> Output<'t> {
    fn new(tokenizer: Option<&'t Tokenizer>, stop: &[String]) -> Self {
        // The answer continues a prompt, so its first space is its own.
        let detokenizer = Detokenizer::new(true, false);
        Output { tokenizer, detokenizer, stop: StopMatcher::new(stop), text: String::new(), stopped: false }
    }
    /// Whether a stop text was reached.
    fn push(&mut self, id: u32, emit: &mut dyn FnMut(&str)) -> bool {
        let Some(t) = self.tokenizer else { return false };
        let mut piece = String::new();
        self.detokenizer.push(t, id, &mut piece);
        self.pass(&piece, emit);
        self.stopped
    }
    fn pass(&mut self, piece: &str, emit: &mut dyn FnMut(&str)) {
        let mut safe = String::new();
        self.stopped |= self.stop.push(piece, &mut safe).is_some();
        self.emit(&safe, emit);
    }
    fn emit(&mut self, safe: &str, emit: &mut dyn FnMut(&str)) {
        if !safe.is_empty() {
            self.text.push_str(safe);
            emit(safe);
        }
    }
    fn finish(mut self, emit: &mut dyn FnMut(&str)) -> String {
        if !self.stopped {
            let mut rest = String::new();
            self.detokenizer.finish(&mut rest);
            self.pass(&rest, emit);
        }
        if !self.stopped {
            let mut held = String::new();
            self.stop.finish(&mut held);
            self.emit(&held, emit);
        }
        self.text
    }
}
