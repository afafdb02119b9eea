//! One request, from its prompt to its last token.

use super::{Drafts, Ended, Sink, Told};
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::generate::Finish;
use crate::mask::Masks;
use crate::prefix::{Miss, Owner, Role};
use crate::sampler::{Choice, Sampler, Sampling, logprobs_of};
use state::SeqId;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use text::constrain::Matcher;

/// Whether an id ends an answer.
pub type Ends = Arc<dyn Fn(u32) -> bool + Send + Sync>;

/// Asked once, with the ids so far, when the model wants to end: ids that the answer goes on with, or none.
pub type AtEnd = Box<dyn FnOnce(&[u32]) -> Vec<u32> + Send>;

/// Told every id as it is chosen: ids that the answer goes on with before the model chooses again, or none.
pub type Steer = Box<dyn FnMut(u32) -> Vec<u32> + Send>;

/// A request.
pub struct Job {
    /// The prompt's ids.
    pub prompt: Arc<[u32]>,
    /// How to sample.
    pub sampling: Sampling,
    /// Most ids to make; 0 only reads the prompt. `None`: to the end of the context.
    pub max_tokens: Option<u32>,
    /// Which ids may come next.
    pub constraint: Option<Matcher>,
    /// Whether an id ends it.
    pub ends: Ends,
    /// Has a say when the model wants to end.
    pub at_end: Option<AtEnd>,
    /// Has a say after every id. Where the constraint does not allow what it says, nothing comes of it.
    pub steer: Option<Steer>,
    /// Report the prompt's logprobs too. The prompt is then read in small pieces, all of it.
    pub prompt_logprobs: bool,
    /// What it is to its conversation, and which that is.
    pub from: (Role, Owner),
    /// Positions of the prompt where its parts begin, rising: reading can go on there later.
    pub marks: Vec<u32>,
}

impl Job {
    /// A request of the first conversation there is, for an answer that goes on to the end of the context.
    pub fn new(prompt: impl Into<Arc<[u32]>>, sampling: Sampling) -> Job {
        Job {
            prompt: prompt.into(),
            sampling,
            max_tokens: None,
            constraint: None,
            ends: Arc::new(|_| false),
            at_end: None,
            steer: None,
            prompt_logprobs: false,
            from: (Role::Main, Owner(0)),
            marks: Vec::new(),
        }
    }
    /// Whether tokens may be drafted ahead: masks are worked out token by token, beside the pass, and drafts know nothing of
    /// them.
    pub(super) fn drafts(&self) -> bool {
        self.constraint.is_none()
    }
    /// Whether it can be done at all, room aside.
    pub(super) fn check(&self, exec: &Executor) -> Result<()> {
        let spec = exec.family().spec();
        self.sampling.check(spec.vocab)?;
        if self.prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        match self.prompt.iter().find(|&&id| id >= spec.vocab) {
            Some(&id) => Err(Error::BadToken { id, vocab: spec.vocab }),
            None => Ok(()),
        }
    }
}

/// What a token is chosen from.
pub(super) enum Row<'a> {
    /// The logits of all of them.
    Logits(&'a mut [f32]),
    /// At least as many of the likeliest as the session [needs](Session::needs), falling.
    Likeliest(Vec<(u32, f32)>),
}

/// A request at work.
pub(super) struct Session {
    pub job: Job,
    /// Its sequence, once it is open.
    pub seq: Option<SeqId>,
    to: Box<dyn Sink>,
    sampler: Sampler,
    masks: Option<Masks>,
    /// Ids that somebody else chose, still to come.
    forced: VecDeque<u32>,
    /// Whether the first of them is only a proposal.
    steered: bool,
    /// What was made; the last of it was not fed yet.
    made: Vec<u32>,
    cached: u32,
    over: bool,
    begun: Instant,
    first: Option<Instant>,
    /// Time of the passes that made its tokens.
    pub passes: Duration,
    /// What drafting ahead did.
    pub drafts: Drafts,
}

impl Session {
    pub fn new(mut job: Job, to: Box<dyn Sink>, vocab: u32) -> Self {
        let sampler = Sampler::new(job.sampling.clone(), &job.prompt, vocab);
        let masks = job.constraint.take().map(Masks::new);
        let (forced, made, seq, first) = (VecDeque::new(), Vec::new(), None, None);
        Session {
            job,
            seq,
            to,
            sampler,
            masks,
            forced,
            made,
            cached: 0,
            over: false,
            steered: false,
            begun: Instant::now(),
            first,
            passes: Duration::ZERO,
            drafts: Drafts::default(),
        }
    }
    pub fn tell(&self, what: Told) {
        self.to.tell(what);
    }
    pub fn gone(&self) -> bool {
        self.to.gone()
    }
    /// Its sequence is open and has `cached` positions.
    pub fn begin(&mut self, seq: SeqId, cached: u32, miss: Miss) {
        (self.seq, self.cached, self.begun) = (Some(seq), cached, Instant::now());
        self.tell(Told::Started { cached, miss });
    }
    /// The first `len` ids of prompt and answer.
    pub fn ids(&self, len: u32) -> Vec<u32> {
        self.job.prompt.iter().chain(&self.made).take(len as usize).copied().collect()
    }
    /// The token that the sequence does not have yet.
    pub fn pending(&self) -> Result<u32> {
        self.made.last().copied().ok_or(Error::NoSession)
    }
    /// A sampler that draws as this one will, and changes nothing.
    pub fn guesser(&self) -> Sampler {
        self.sampler.guesser()
    }
    pub fn told_prefill(&self, len: u32) {
        let total = self.job.prompt.len() as u32 - self.cached;
        self.tell(Told::Prefill { done: len - self.cached, total });
    }

    /// Reads ids of the prompt in pieces for which the plan has room for all logits; the logits of the last.
    pub fn read_reporting(&mut self, exec: &mut Executor, ids: &[u32]) -> Result<Vec<f32>> {
        let seq = self.seq.ok_or(Error::NoSession)?;
        let (vocab, n) = (exec.family().spec().vocab as usize, self.job.sampling.logprobs.unwrap_or(0));
        let mut at = exec.len(seq)? as usize;
        if at == 0 {
            self.tell(Told::PromptToken(&Choice { id: self.job.prompt[0], logprob: None, top: Vec::new() }));
        }
        let mut last = Vec::new();
        for part in ids.chunks(exec.plan().few.max(1) as usize) {
            let logits = exec.verify(seq, part, |_| part.len() as u32)?;
            for row in logits.chunks_exact(vocab) {
                at += 1;
                if let Some(&next) = self.job.prompt.get(at) {
                    self.tell(Told::PromptToken(&logprobs_of(row, next, n)));
                }
            }
            last = logits[logits.len() - vocab..].to_vec();
        }
        Ok(last)
    }

    /// How many of the likeliest ids its next token depends on; `None` where that is every logit.
    pub fn needs(&self) -> Option<u32> {
        self.sampler.needs().filter(|_| self.masks.is_none())
    }

    /// The prompt was read: chooses the first token. Whether the answer is over.
    pub fn first(&mut self, mut logits: Vec<f32>, position: u32) -> Result<bool> {
        self.first = Some(Instant::now());
        if self.job.max_tokens == Some(0) {
            self.end(Finish::Length);
            return Ok(true);
        }
        self.choose(Row::Logits(&mut logits), position)
    }

    /// Chooses the token at `position`. Whether the answer is over, which was told then.
    pub fn choose(&mut self, from: Row, position: u32) -> Result<bool> {
        let mask = match &mut self.masks {
            None => None,
            Some(m) => match m.next()? {
                mask if mask.over => return Ok(self.end(Finish::Stop)),
                mask => Some(mask.words),
            },
        };
        if let Some(id) = self.forced.pop_front() {
            if self.steered && mask.as_deref().is_some_and(|m| !allows(m, id)) {
                self.forced.clear();
            } else {
                self.steered = false;
                return self.insert(id, mask.as_deref());
            }
        }
        let choice = match from {
            Row::Logits(logits) => self.sampler.sample_within(logits, position, mask.as_deref())?,
            Row::Likeliest(mut best) => {
                // Somebody beside it may need more.
                best.truncate(self.sampler.needs().unwrap_or(0) as usize);
                self.sampler.sample_likeliest(best, position)?
            }
        };
        if !(self.job.ends)(choice.id) {
            let id = choice.id;
            let over = self.take(choice);
            self.forced = self.job.steer.as_mut().map(|f| f(id)).unwrap_or_default().into();
            self.steered = !self.forced.is_empty();
            return Ok(over);
        }
        self.forced = self.job.at_end.take().map(|f| f(&self.made)).unwrap_or_default().into();
        match self.forced.pop_front() {
            Some(id) => self.insert(id, mask.as_deref()),
            None => Ok(self.end(Finish::Stop)),
        }
    }

    /// An id that somebody else chose; where the constraint does not allow it, it is the end.
    fn insert(&mut self, id: u32, mask: Option<&[u32]>) -> Result<bool> {
        if mask.is_some_and(|m| !allows(m, id)) {
            return Ok(self.end(Finish::Stop));
        }
        Ok(self.take(Choice { id, logprob: None, top: Vec::new() }))
    }

    fn take(&mut self, choice: Choice) -> bool {
        if let Some(m) = &mut self.masks {
            m.take(choice.id);
        }
        self.made.push(choice.id);
        self.tell(Told::Token(&choice));
        let full = self.job.max_tokens.is_some_and(|m| self.made.len() as u32 >= m);
        full && self.end(Finish::Length)
    }

    /// Ends it once; true.
    pub fn end(&mut self, finish: Finish) -> bool {
        if !std::mem::replace(&mut self.over, true) {
            let first = self.first.unwrap_or_else(Instant::now);
            let (prefill, decode) =
                (first - self.begun, if self.first.is_some() { first.elapsed() } else { Duration::ZERO });
            let (cached, drafts) = (self.cached, self.drafts);
            self.tell(Told::Done(Ended { finish, cached, prefill, decode, passes: self.passes, drafts }));
        }
        true
    }
    pub fn fail(&mut self, e: &Error) {
        if !std::mem::replace(&mut self.over, true) {
            self.tell(Told::Failed(e));
        }
    }
}

/// Whether a mask has an id.
fn allows(mask: &[u32], id: u32) -> bool {
    mask.get(id as usize / 32).is_some_and(|w| w >> (id % 32) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;
    impl Sink for Nobody {
        fn tell(&self, _: Told) {}
        fn gone(&self) -> bool {
            false
        }
    }

    fn session(sampling: Sampling) -> Session {
        Session::new(Job::new([1], sampling), Box::new(Nobody), 64)
    }

    /// A device that gives only the likeliest ids, and more of them than one session asked for, changes no answer.
    #[test]
    fn the_likeliest_are_enough_for_who_needs_no_more() {
        let narrow = Sampling { top_k: 5, top_p: 0.9, seed: 7, ..Sampling::default() };
        for how in [Sampling::greedy(), narrow] {
            let (mut all, mut few) = (session(how.clone()), session(how));
            for at in 0..40u32 {
                let logits: Vec<f32> = (0..64).map(|i| ((i * 37 + at * 11) % 61) as f32 * 0.1).collect();
                let mut best: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
                best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
                best.truncate(9);
                assert!(few.needs().is_some_and(|n| n <= 9));
                assert!(!all.choose(Row::Logits(&mut logits.clone()), at).unwrap());
                assert!(!few.choose(Row::Likeliest(best), at).unwrap());
                assert_eq!(all.pending().unwrap(), few.pending().unwrap());
            }
        }
        let altered = Sampling { presence_penalty: 1.0, ..Sampling::greedy() };
        assert_eq!(session(altered).needs(), None);
    }
}
