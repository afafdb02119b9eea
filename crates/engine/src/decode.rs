//! Tokens one after the other: the loop under every answer.

use crate::error::{Error, Result};
use crate::executor::{Executor, Wanted};
use crate::generate::Finish;
use crate::sampler::{Choice, Sampler, Sampling};
use memory::Tier;
use state::SeqId;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What is to be made.
pub(crate) struct Decoding<'a> {
    /// Ids to append to the sequence before the first token.
    pub prompt: &'a [u32],
    /// Ids that were in the sequence before: a repetition penalty counts them as prompt.
    pub history: &'a [u32],
    /// How to sample.
    pub sampling: Sampling,
    /// Most tokens. `None`: to the end of the context.
    pub max_tokens: Option<u32>,
    /// Whether an id ends the answer.
    pub is_end: &'a dyn Fn(u32) -> bool,
}

/// What happens on the way.
pub(crate) enum Step<'a> {
    /// Prompt tokens read so far, and in all.
    Prefill { done: usize, total: usize },
    /// A token was chosen.
    Token(&'a Choice),
}

/// How it ended.
pub(crate) struct Decoded {
    /// The tokens, without the end token.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// Time to read the prompt.
    pub prefill: Duration,
    /// Time from the first token to the last.
    pub decode: Duration,
    /// Passes between them.
    pub steps: u32,
}

/// Whether a prompt can be appended to a sequence and leaves room for a token.
///
/// # Errors
/// [`Error::EmptyPrompt`], [`Error::BadToken`], [`Error::PromptTooLong`], [`Error::BadParameter`].
pub(crate) fn check(exec: &Executor, seq: SeqId, prompt: &[u32], sampling: &Sampling) -> Result<()> {
    let spec = exec.family().spec();
    sampling.check(spec.vocab)?;
    if prompt.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    if let Some(&id) = prompt.iter().find(|&&id| id >= spec.vocab) {
        return Err(Error::BadToken { id, vocab: spec.vocab });
    }
    let all = exec.len(seq)? as usize + prompt.len();
    let context = exec.plan().context;
    if all >= context as usize {
        return Err(Error::PromptTooLong { prompt: all as u32, context, most: spec.context });
    }
    Ok(())
}

/// Appends the prompt to `seq` and makes tokens until something ends it, or `on` says false. `cancel` is looked at before
/// every chunk of the prompt and every token.
///
/// # Errors
/// Those of [`check`] before anything is computed, of the executor afterwards. Cancelling is none.
pub(crate) fn decode(
    exec: &mut Executor,
    seq: SeqId,
    job: Decoding<'_>,
    cancel: &AtomicBool,
    on: &mut dyn FnMut(Step) -> bool,
) -> Result<Decoded> {
    check(exec, seq, job.prompt, &job.sampling)?;
    Loop { exec, seq, job, cancel, on }.run()
}

/// What the next token is chosen from.
enum Next {
    Logits(Vec<f32>),
    Likeliest(Vec<(u32, f32)>),
}

struct Loop<'a, 'b> {
    exec: &'a mut Executor,
    seq: SeqId,
    job: Decoding<'a>,
    cancel: &'a AtomicBool,
    on: &'a mut (dyn FnMut(Step) -> bool + 'b),
}

impl Loop<'_, '_> {
    fn run(mut self) -> Result<Decoded> {
        let begun = Instant::now();
        let (total, mut read) = (self.job.prompt.len(), 0);
        let on = &mut self.on;
        let mut on_chunk = |n: usize| {
            read += n;
            on(Step::Prefill { done: read, total });
        };
        let logits = self.exec.prefill(self.seq, self.job.prompt, Wanted::Last, self.cancel, &mut on_chunk);
        let mut done = Decoded {
            ids: Vec::new(),
            finish: Finish::Cancelled,
            prefill: begun.elapsed(),
            decode: Duration::ZERO,
            steps: 0,
        };
        let logits = match logits {
            Err(Error::Cancelled) => return Ok(done),
            other => other?,
        };
        let decoding = Instant::now();
        done.finish = self.make(logits, &mut done)?;
        done.decode = decoding.elapsed();
        Ok(done)
    }

    fn make(&mut self, logits: Vec<f32>, done: &mut Decoded) -> Result<Finish> {
        let read: Vec<u32> = self.job.history.iter().chain(self.job.prompt).copied().collect();
        let mut sampler = Sampler::new(self.job.sampling.clone(), &read, self.exec.family().spec().vocab);
        let needs = sampler.needs().filter(|_| self.exec.plan().tier != Tier::Host);
        let mut next = Next::Logits(logits);
        loop {
            let position = self.exec.len(self.seq)?;
            let choice = match next {
                Next::Logits(mut all) => sampler.sample(&mut all, position)?,
                Next::Likeliest(best) => sampler.sample_likeliest(best, position)?,
            };
            if (self.job.is_end)(choice.id) {
                return Ok(Finish::Stop);
            }
            done.ids.push(choice.id);
            if !(self.on)(Step::Token(&choice)) {
                return Ok(Finish::Stop);
            }
            if self.job.max_tokens.is_some_and(|m| done.ids.len() as u32 >= m) {
                return Ok(Finish::Length);
            }
            if position >= self.exec.plan().context {
                return Ok(Finish::ContextFull);
            }
            if self.cancel.load(Ordering::Relaxed) {
                return Ok(Finish::Cancelled);
            }
            done.steps += 1;
            next = self.step(choice.id, needs)?;
        }
    }

    /// Appends a token and makes what follows it: logits, or of a device with memory of its own only the likeliest `needs`
    /// of them.
    fn step(&mut self, id: u32, needs: Option<u32>) -> Result<Next> {
        let row = [(self.seq, id)];
        Ok(match needs {
            Some(k) => Next::Likeliest(self.exec.decode_likeliest(&row, k)?.pop().unwrap_or_default()),
            None => Next::Logits(self.exec.decode(&row)?),
        })
    }
}
