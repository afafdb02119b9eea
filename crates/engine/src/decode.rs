//! Tokens one after the other: the loop under every answer.

use crate::batch::Drafts;
use crate::draft::{Made, round};
use crate::error::{Error, Result};
use crate::executor::{Executor, Wanted};
use crate::generate::Finish;
use crate::sampler::{Choice, Sampler, Sampling};
use crate::schedule::Depth;
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
    /// Tokens behind the first, with one that ended the answer and is none of it.
    pub behind: u32,
    /// What drafting ahead did.
    pub drafts: Drafts,
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
    let begun = Instant::now();
    let (total, mut read) = (job.prompt.len(), 0);
    let mut on_chunk = |n: usize| {
        read += n;
        on(Step::Prefill { done: read, total });
    };
    let logits = exec.prefill(seq, job.prompt, Wanted::Last, cancel, &mut on_chunk);
    let mut done = Decoded {
        ids: Vec::new(),
        finish: Finish::Cancelled,
        prefill: begun.elapsed(),
        decode: Duration::ZERO,
        behind: 0,
        drafts: Drafts::default(),
    };
    let logits = match logits {
        Err(Error::Cancelled) => return Ok(done),
        other => other?,
    };
    let seen: Vec<u32> = job.history.iter().chain(job.prompt).copied().collect();
    let sampler = Sampler::new(job.sampling.clone(), &seen, exec.family().spec().vocab);
    let (context, decoding) = (exec.plan().context, Instant::now());
    let made = Taking { job, cancel, on, sampler, context, done: &mut done };
    done.finish = Loop { exec, seq, depth: Depth::default(), made }.run(logits)?;
    done.decode = decoding.elapsed();
    Ok(done)
}

/// What becomes of rows of logits, one after the other.
struct Taking<'a, 'b> {
    job: Decoding<'a>,
    cancel: &'a AtomicBool,
    on: &'a mut (dyn FnMut(Step) -> bool + 'b),
    sampler: Sampler,
    context: u32,
    done: &'a mut Decoded,
}

impl Taking<'_, '_> {
    /// The newest token.
    fn last(&self) -> Result<u32> {
        self.done.ids.last().copied().ok_or(Error::BadLogits)
    }
    /// The token at `position` was chosen: it is told and counted. Why the answer ends, if it does.
    fn take(&mut self, choice: Choice, position: u32) -> Option<Finish> {
        if (self.job.is_end)(choice.id) {
            return Some(Finish::Stop);
        }
        self.done.ids.push(choice.id);
        if !(self.on)(Step::Token(&choice)) {
            return Some(Finish::Stop);
        }
        if self.job.max_tokens.is_some_and(|m| self.done.ids.len() as u32 >= m) {
            return Some(Finish::Length);
        }
        if position >= self.context {
            return Some(Finish::ContextFull);
        }
        self.cancel.load(Ordering::Relaxed).then_some(Finish::Cancelled)
    }
    fn choose(&mut self, logits: &mut [f32], position: u32) -> Result<Option<Finish>> {
        let choice = self.sampler.sample(logits, position)?;
        Ok(self.take(choice, position))
    }
}

struct Loop<'a, 'b> {
    exec: &'a mut Executor,
    seq: SeqId,
    /// How far ahead to draft, where the plan has a predictor.
    depth: Depth,
    made: Taking<'a, 'b>,
}

impl Loop<'_, '_> {
    fn run(mut self, mut logits: Vec<f32>) -> Result<Finish> {
        let needs = self.made.sampler.needs().filter(|_| self.exec.plan().tier != Tier::Host);
        let position = self.exec.len(self.seq)?;
        let mut over = self.made.choose(&mut logits, position)?;
        loop {
            if let Some(finish) = over {
                return Ok(finish);
            }
            let last = self.made.last()?;
            let drafts = self.drafts()?;
            let begun = Instant::now();
            over = match drafts {
                0 => {
                    let over = self.one(last, needs)?;
                    self.depth.plain(begun.elapsed());
                    over
                }
                n => {
                    let (over, round) = self.round(last, n)?;
                    self.depth.round(round.drafted, round.made, begun.elapsed());
                    over
                }
            };
        }
    }

    /// Tokens to draft ahead now: no more than there is room for, and no more than are wanted.
    fn drafts(&mut self) -> Result<u32> {
        let room = self.made.context.saturating_sub(self.exec.len(self.seq)?).saturating_sub(1);
        let made = self.made.done.ids.len() as u32;
        let wanted = self.made.job.max_tokens.map_or(u32::MAX, |m| m.saturating_sub(made).saturating_sub(1));
        let n = self.depth.next(self.exec.plan().draft.min(room).min(wanted));
        if n == 0 || self.exec.may_draft() {
            return Ok(n);
        }
        self.depth.left(self.exec.leased().map_or(Duration::ZERO, |l| l.last));
        Ok(0)
    }

    /// Appends a token and chooses the next; of a device with memory of its own from the likeliest `needs` ids alone.
    fn one(&mut self, id: u32, needs: Option<u32>) -> Result<Option<Finish>> {
        let row = [(self.seq, id)];
        self.made.done.behind += 1;
        let Some(k) = needs else {
            let mut logits = self.exec.decode(&row)?;
            return self.made.choose(&mut logits, self.exec.len(self.seq)?);
        };
        let best = self.exec.decode_likeliest(&row, k)?.pop().unwrap_or_default();
        let position = self.exec.len(self.seq)?;
        let choice = self.made.sampler.sample_likeliest(best, position)?;
        Ok(self.made.take(choice, position))
    }

    /// A round of speculation: its tokens are those that one step after the other makes.
    fn round(&mut self, last: u32, n: u32) -> Result<(Option<Finish>, Made)> {
        let (mut guess, mut over) = (self.made.sampler.guesser(), None);
        let draft = |logits: &mut [f32], at| guess.sample(logits, at).ok().map(|c| c.id);
        let choose = |logits: &mut [f32], at| {
            over = self.made.choose(logits, at)?;
            if over.is_some() { Ok(None) } else { self.made.last().map(Some) }
        };
        let round = round(self.exec, self.seq, (last, n), draft, choose)?;
        self.made.done.behind += round.made;
        self.made.done.drafts.drafted += round.drafted;
        self.made.done.drafts.right += round.made - 1;
        Ok((over, round))
    }
}
