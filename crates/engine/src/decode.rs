//! Tokens one after the other: the loop under every answer.

use crate::error::{Error, Result};
use crate::executor::{Executor, Wanted};
use crate::generate::Finish;
use crate::mask::Masks;
use crate::sampler::{Choice, Sampler, Sampling, logprobs_of};
use memory::Tier;
use state::SeqId;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use text::constrain::Matcher;

/// Asked once, with the ids so far, when the model wants to end: ids that the answer goes on with, or none.
pub type AtEnd = Box<dyn FnOnce(&[u32]) -> Vec<u32> + Send>;

/// Told every id as it is chosen: ids that the answer goes on with before the model chooses again, or none.
pub type Steer = Box<dyn FnMut(u32) -> Vec<u32> + Send>;

/// What is to be made.
pub struct Decoding<'a> {
    /// Ids to append to the sequence before the first token.
    pub prompt: &'a [u32],
    /// Ids that were in the sequence before: a repetition penalty counts them as prompt.
    pub history: &'a [u32],
    /// How to sample.
    pub sampling: Sampling,
    /// Most tokens; 0 only reads the prompt. `None`: to the end of the context.
    pub max_tokens: Option<u32>,
    /// Which ids may come next. What it may do is worked out beside the pass that makes the logits.
    pub constraint: Option<Matcher>,
    /// Whether an id ends the answer.
    pub is_end: &'a dyn Fn(u32) -> bool,
    /// Has a say when the model wants to end.
    pub at_end: Option<AtEnd>,
    /// Has a say after every id. Where the constraint does not allow what it says, nothing comes of it.
    pub steer: Option<Steer>,
    /// Report the prompt's logprobs too. The prompt is then read in small pieces.
    pub prompt_logprobs: bool,
}

/// What happens on the way.
#[derive(Debug)]
pub enum Step<'a> {
    /// Prompt tokens read so far, and in all.
    Prefill {
        /// So far.
        done: usize,
        /// In all.
        total: usize,
    },
    /// A token of the prompt with its logprobs.
    PromptToken(Choice),
    /// A token was chosen.
    Token(&'a Choice),
}

/// How it ended.
#[derive(Clone, Debug)]
pub struct Decoded {
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
pub fn check(exec: &Executor, seq: SeqId, prompt: &[u32], sampling: &Sampling) -> Result<()> {
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
/// Those of [`check`] before anything is computed, of the executor and of the constraint afterwards. Cancelling is none.
pub fn decode(
    exec: &mut Executor,
    seq: SeqId,
    mut job: Decoding<'_>,
    cancel: &AtomicBool,
    on: &mut dyn FnMut(Step) -> bool,
) -> Result<Decoded> {
    check(exec, seq, job.prompt, &job.sampling)?;
    let constraint = job.constraint.take();
    let mut masks = constraint.map(Masks::new);
    Loop { exec, seq, job, cancel, on }.run(&mut masks)
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
    fn run(mut self, masks: &mut Option<Masks>) -> Result<Decoded> {
        let begun = Instant::now();
        let none =
            |finish| Decoded { ids: Vec::new(), finish, prefill: begun.elapsed(), decode: Duration::ZERO, steps: 0 };
        let logits = match self.read() {
            Err(Error::Cancelled) => return Ok(none(Finish::Cancelled)),
            other => other?,
        };
        let mut done = none(Finish::Length);
        if self.job.max_tokens == Some(0) {
            return Ok(done);
        }
        let decoding = Instant::now();
        done.finish = self.make(logits, masks, &mut done.ids, &mut done.steps)?;
        done.decode = decoding.elapsed();
        Ok(done)
    }

    /// Reads the prompt.
    fn read(&mut self) -> Result<Vec<f32>> {
        let total = self.job.prompt.len();
        let mut done = 0;
        if self.job.prompt_logprobs {
            return self.read_reporting();
        }
        let on = &mut self.on;
        let mut on_chunk = |n: usize| {
            done += n;
            on(Step::Prefill { done, total });
        };
        self.exec.prefill(self.seq, self.job.prompt, Wanted::Last, self.cancel, &mut on_chunk)
    }

    /// Reads the prompt in pieces for which the plan has room for all logits.
    fn read_reporting(&mut self) -> Result<Vec<f32>> {
        let (prompt, total) = (self.job.prompt, self.job.prompt.len());
        let vocab = self.exec.family().spec().vocab as usize;
        let n = self.job.sampling.logprobs.unwrap_or(0);
        let first = Choice { id: prompt[0], logprob: None, top: Vec::new() };
        (self.on)(Step::PromptToken(first));
        let (mut done, mut last) = (0, Vec::new());
        for part in prompt.chunks(self.exec.plan().few.max(1) as usize) {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            let logits = self.exec.verify(self.seq, part, |_| part.len() as u32)?;
            for row in logits.chunks_exact(vocab) {
                done += 1;
                match prompt.get(done) {
                    Some(&next) => (self.on)(Step::PromptToken(logprobs_of(row, next, n))),
                    None => {
                        last = row.to_vec();
                        true
                    }
                };
            }
            (self.on)(Step::Prefill { done, total });
        }
        Ok(last)
    }

    fn make(
        &mut self,
        logits: Vec<f32>,
        masks: &mut Option<Masks>,
        ids: &mut Vec<u32>,
        steps: &mut u32,
    ) -> Result<Finish> {
        let read: Vec<u32> = self.job.history.iter().chain(self.job.prompt).copied().collect();
        let vocab = self.exec.family().spec().vocab;
        let mut sampler = Sampler::new(self.job.sampling.clone(), &read, vocab);
        // A mask may take all of the likeliest away.
        let needs = sampler.needs().filter(|_| masks.is_none());
        let mut logits = Next::Logits(logits);
        let mut forced: Vec<u32> = Vec::new();
        loop {
            let mask = match masks {
                None => None,
                Some(m) => match m.next()? {
                    mask if mask.over => return Ok(Finish::Stop),
                    mask => Some(mask.words),
                },
            };
            let now = std::mem::take(&mut forced);
            if now.first().is_some_and(|id| mask.as_deref().is_none_or(|m| allows(m, *id))) {
                match self.insert(&now, mask, masks, ids, steps, needs)? {
                    Ok(next) => logits = next,
                    Err(finish) => return Ok(finish),
                }
                continue;
            }
            let position = self.exec.len(self.seq)?;
            let choice = match logits {
                Next::Logits(ref mut all) => sampler.sample_within(all, position, mask.as_deref())?,
                Next::Likeliest(best) => sampler.sample_likeliest(best, position)?,
            };
            if (self.job.is_end)(choice.id) {
                let more = self.job.at_end.take().map(|f| f(ids)).unwrap_or_default();
                match self.insert(&more, mask, masks, ids, steps, needs)? {
                    Ok(next) => logits = next,
                    Err(finish) => return Ok(finish),
                }
                continue;
            }
            if let Some(m) = masks {
                m.take(choice.id);
            }
            forced = self.job.steer.as_mut().map(|f| f(choice.id)).unwrap_or_default();
            match self.append(choice, needs, ids, steps)? {
                Ok(next) => logits = next,
                Err(finish) => return Ok(finish),
            }
        }
    }

    /// Ids that somebody else chose. None, or some that the constraint does not allow: it is the end.
    fn insert(
        &mut self,
        more: &[u32],
        mut mask: Option<Vec<u32>>,
        masks: &mut Option<Masks>,
        ids: &mut Vec<u32>,
        steps: &mut u32,
        needs: Option<u32>,
    ) -> Result<Result<Next, Finish>> {
        let mut logits = Err(Finish::Stop);
        for (i, &id) in more.iter().enumerate() {
            if let Some(m) = masks {
                if !mask.as_ref().is_some_and(|m| allows(m, id)) {
                    return Ok(Err(Finish::Stop));
                }
                m.take(id);
                if i + 1 < more.len() {
                    mask = Some(m.next()?.words);
                }
            }
            logits = self.append(Choice { id, logprob: None, top: Vec::new() }, needs, ids, steps)?;
            if logits.is_err() {
                break;
            }
        }
        Ok(logits)
    }

    /// Appends a token and makes what follows it: logits, or of a device with memory of its own only the likeliest `needs`
    /// of them. The inner error says why there is nothing.
    fn append(
        &mut self,
        choice: Choice,
        needs: Option<u32>,
        ids: &mut Vec<u32>,
        steps: &mut u32,
    ) -> Result<Result<Next, Finish>> {
        ids.push(choice.id);
        if !(self.on)(Step::Token(&choice)) {
            return Ok(Err(Finish::Stop));
        }
        if self.job.max_tokens.is_some_and(|m| ids.len() as u32 >= m) {
            return Ok(Err(Finish::Length));
        }
        if self.exec.len(self.seq)? >= self.exec.plan().context {
            return Ok(Err(Finish::ContextFull));
        }
        if self.cancel.load(Ordering::Relaxed) {
            return Ok(Err(Finish::Cancelled));
        }
        let row = [(self.seq, choice.id)];
        *steps += 1;
        Ok(Ok(match needs.filter(|_| self.exec.plan().tier != Tier::Host) {
            Some(k) => Next::Likeliest(self.exec.decode_likeliest(&row, k)?.pop().unwrap_or_default()),
            None => Next::Logits(self.exec.decode(&row)?),
        }))
    }
}

/// Whether a mask has an id.
pub(crate) fn allows(mask: &[u32], id: u32) -> bool {
    mask.get(id as usize / 32).is_some_and(|w| w >> (id % 32) & 1 == 1)
}
