//! One answer: prompt ids in, text out, token by token.

use crate::error::{Error, Result};
use crate::executor::{Executor, Wanted};
use crate::sampler::{Choice, Sampler, Sampling};
use state::SeqId;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
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
    /// Passes that made it up.
    pub decode_steps: u32,
}

impl Answer {
    /// Prompt tokens a second.
    pub fn prefill_tps(&self) -> f64 {
        rate(self.prompt_tokens as f64, self.prefill)
    }
    /// Decode passes a second; 0 before the second token.
    pub fn decode_tps(&self) -> f64 {
        rate(self.decode_steps as f64, self.decode)
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
    check(exec, seq, req)?;
    let (begun, total) = (Instant::now(), req.prompt.len());
    let mut done = 0;
    let mut on_chunk = |n: usize| {
        done += n;
        on(Event::Prefill { done, total });
    };
    let mut answer = Answer::begin(total);
    let mut logits = match exec.prefill(seq, &req.prompt, Wanted::Last, cancel, &mut on_chunk) {
        Err(Error::Cancelled) => {
            answer.finish = Finish::Cancelled;
            return Ok(answer);
        }
        other => other?,
    };
    answer.prefill = begun.elapsed();
    let decoding = Instant::now();
    let mut out = Output::new(tokenizer, &req.stop);
    let read: Vec<u32> = req.history.iter().chain(&req.prompt).copied().collect();
    let mut sampler = Sampler::new(req.sampling.clone(), &read, exec.family().spec().vocab);
    answer.finish = loop {
        let choice = sampler.sample(&mut logits, exec.len(seq)?)?;
        if !req.ignore_eos && tokenizer.is_some_and(|t| t.is_eog(choice.id)) {
            break Finish::Stop;
        }
        on(Event::Token(&choice));
        answer.ids.push(choice.id);
        let stopped = out.push(choice.id, &mut |s| on(Event::Text(s)));
        let last = choice.id;
        if req.sampling.logprobs.is_some() {
            answer.choices.push(choice);
        }
        if stopped {
            break Finish::Stop;
        }
        if req.max_tokens.is_some_and(|m| answer.ids.len() as u32 >= m) {
            break Finish::Length;
        }
        if exec.len(seq)? >= exec.plan().context {
            break Finish::ContextFull;
        }
        if cancel.load(Ordering::Relaxed) {
            break Finish::Cancelled;
        }
        logits = exec.decode(&[(seq, last)])?;
        answer.decode_steps += 1;
    };
    answer.decode = decoding.elapsed();
    answer.text = out.finish(&mut |s| on(Event::Text(s)));
    Ok(answer)
}

impl Answer {
    fn begin(prompt_tokens: usize) -> Self {
        Answer {
            text: String::new(),
            ids: Vec::new(),
            choices: Vec::new(),
            finish: Finish::Length,
            prompt_tokens,
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
            decode_steps: 0,
        }
    }
}

fn check(exec: &Executor, seq: SeqId, req: &Request) -> Result<()> {
    let spec = exec.family().spec();
    req.sampling.check(spec.vocab)?;
    if req.prompt.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    if let Some(&id) = req.prompt.iter().find(|&&id| id >= spec.vocab) {
        return Err(Error::BadToken { id, vocab: spec.vocab });
    }
    let all = exec.len(seq)? as usize + req.prompt.len();
    let context = exec.plan().context;
    if all >= context as usize {
        return Err(Error::PromptTooLong { prompt: all as u32, context, most: spec.context });
    }
    if req.max_tokens == Some(0) {
        let range = "1 and more".to_string();
        return Err(Error::BadParameter { name: "max_tokens", value: "0".into(), range });
    }
    Ok(())
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
