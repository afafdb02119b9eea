//! Follows a script through one job.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use text::constrain::Matcher;

use super::{Script, Step};
use crate::backend::{Done, Event, Failure, Job, Reason, Reporter, Token};
use crate::line::Run;
use crate::voice::Voice;

/// How often a pause looks whether its client is still there.
const SLICE: Duration = Duration::from_millis(2);
/// Shortest ways out of a grammar, tried in this order where the script has nothing that is allowed.
const WAYS_OUT: [&str; 8] = ["\"", "}", "]", "0", "t", "n", "{", "["];

/// One place of the backend.
pub(super) struct Runner {
    script: Arc<Script>,
    voice: Arc<Voice>,
}

impl Runner {
    pub fn new(script: &Arc<Script>, voice: &Arc<Voice>) -> Self {
        Self { script: Arc::clone(script), voice: Arc::clone(voice) }
    }

    fn steps(&self, prompt: &[u32]) -> &[Step] {
        let text = self.voice.tokenizer.decode(prompt, false);
        let answers = &self.script.answers;
        let named = answers.iter().find(|a| a.when.as_ref().is_some_and(|w| text.contains(w)));
        let others: Vec<_> = answers.iter().filter(|a| a.when.is_none()).collect();
        let taken = named.or_else(|| {
            let turn = self.script.turn.fetch_add(1, Ordering::Relaxed);
            others.get(turn % others.len().max(1)).copied()
        });
        taken.map_or(&[], |a| &a.steps)
    }

    fn prefill(&self, job: &Job, to: &Reporter) {
        let total = job.prompt.len() as u32;
        let chunk = self.script.chunk;
        for i in 0..total.div_ceil(chunk) {
            let ms = self.script.chunk_ms.get(i as usize).or(self.script.chunk_ms.last());
            if !pause(ms.copied().unwrap_or(0), to) {
                return;
            }
            to.tell(Event::Prefill { done: ((i + 1) * chunk).min(total), total });
        }
        if job.prompt_logprobs {
            let tokens = job.prompt.iter().enumerate();
            tokens.for_each(|(i, &id)| to.tell(Event::PromptToken(token(id, job.logprobs.filter(|_| i > 0)))));
        }
    }
}

impl Run for Runner {
    fn cached(&self, job: &Job) -> u32 {
        self.script.cached.min((job.prompt.len() as u32).saturating_sub(1))
    }

    fn run(&mut self, mut job: Job, to: &Reporter) -> Result<Done, Failure> {
        let (begun, cached) = (Instant::now(), self.cached(&job));
        self.prefill(&job, to);
        let prefill = begun.elapsed();
        let room = self.script.context as usize - job.prompt.len().min(self.script.context as usize);
        let mut said = Saying { ids: Vec::new(), max: job.max_tokens.unwrap_or(u32::MAX) as usize, room, to };
        let mut matcher = job.constraint.take();
        let (logprobs, mut at_end, mut steer) = (job.logprobs, job.at_end.take(), job.steer.take());
        let mut over = said.limit();
        for step in self.steps(&job.prompt) {
            if over.is_some() || to.is_cancelled() {
                break;
            }
            match step {
                Step::Pause(ms) => _ = pause(*ms, to),
                Step::Fail(why) => return Err(Failure::Internal(why.clone())),
                Step::Token(id) if self.voice.tokenizer.is_eog(*id) && !job.ignore_eos => {
                    over = self.end(&mut said, &mut matcher, &mut at_end, logprobs)?;
                }
                Step::End => over = self.end(&mut said, &mut matcher, &mut at_end, logprobs)?,
                Step::Token(id) => {
                    if let Some(m) = &mut matcher {
                        if m.is_over() {
                            over = Some(Reason::End);
                            continue;
                        }
                        if !m.allows(*id).map_err(failure)? {
                            continue;
                        }
                        m.accept(*id).map_err(failure)?;
                    }
                    pause(self.script.token_ms, to);
                    over = said.say(*id, logprobs);
                    let more = steer.as_mut().map(|f| f(*id)).unwrap_or_default();
                    if over.is_none() {
                        over = insert(&mut said, &mut matcher, more, logprobs)?;
                    }
                }
            }
        }
        while over.is_none() && !to.is_cancelled() {
            over = self.end(&mut said, &mut matcher, &mut at_end, logprobs)?;
        }
        let reason = over.unwrap_or(Reason::End);
        // A script makes its tokens in no time.
        Ok(Done { reason, cached, prefill, decode: begun.elapsed() - prefill, passes: Duration::ZERO })
    }
}

impl Runner {
    /// The script wants to end: it does, unless the request has something to say or the grammar is not complete.
    fn end(
        &self,
        said: &mut Saying<'_>,
        matcher: &mut Option<Matcher>,
        at_end: &mut Option<crate::backend::AtEnd>,
        logprobs: Option<u32>,
    ) -> Result<Option<Reason>, Failure> {
        let more = at_end.take().map(|f| f(&said.ids)).unwrap_or_default();
        if !more.is_empty() {
            return insert(said, matcher, more, logprobs);
        }
        let Some(m) = matcher else { return Ok(Some(Reason::End)) };
        while !m.is_complete() && !said.to.is_cancelled() {
            let Some(id) = self.way_out(m)? else { break };
            m.accept(id).map_err(failure)?;
            if let Some(over) = said.say(id, logprobs) {
                return Ok(Some(over));
            }
        }
        Ok(Some(Reason::End))
    }

    fn way_out(&self, m: &mut Matcher) -> Result<Option<u32>, Failure> {
        let mask = m.mask().map_err(failure)?.to_vec();
        let t = &self.voice.tokenizer;
        let allowed = |id: &u32| mask.get(*id as usize / 32).is_some_and(|w| w >> (id % 32) & 1 == 1) && !t.is_eog(*id);
        let all = || (0..t.vocab_size()).filter(allowed);
        let bytes = |id: u32| t.token_bytes(id).unwrap_or_default();
        let way = WAYS_OUT.iter().find_map(|w| all().find(|id| bytes(*id) == w.as_bytes()));
        Ok(way.or_else(|| all().find(|id| !bytes(*id).is_empty())))
    }
}

/// Says what the request wants said.
fn insert(
    said: &mut Saying<'_>,
    matcher: &mut Option<Matcher>,
    more: Vec<u32>,
    logprobs: Option<u32>,
) -> Result<Option<Reason>, Failure> {
    for id in more {
        if let Some(m) = matcher {
            m.accept(id).map_err(failure)?;
        }
        if let Some(over) = said.say(id, logprobs) {
            return Ok(Some(over));
        }
    }
    Ok(None)
}

struct Saying<'a> {
    ids: Vec<u32>,
    max: usize,
    room: usize,
    to: &'a Reporter,
}

impl Saying<'_> {
    fn say(&mut self, id: u32, logprobs: Option<u32>) -> Option<Reason> {
        self.ids.push(id);
        self.to.tell(Event::Token(token(id, logprobs)));
        self.limit()
    }

    fn limit(&self) -> Option<Reason> {
        match self.ids.len() {
            n if n >= self.max => Some(Reason::Length),
            n if n >= self.room => Some(Reason::ContextFull),
            _ => None,
        }
    }
}

fn token(id: u32, logprobs: Option<u32>) -> Token {
    let top = |n: u32| (0..n).map(|i| (id.saturating_add(i), -0.5 - i as f32)).collect();
    Token { id, logprob: logprobs.map(|_| -0.5), top: logprobs.map(top).unwrap_or_default() }
}

/// False if the client went away meanwhile.
fn pause(ms: u64, to: &Reporter) -> bool {
    let until = Instant::now() + Duration::from_millis(ms);
    while !to.is_cancelled() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(SLICE));
    }
    false
}

/// A grammar that comes to nothing is the request's own.
fn failure(e: text::Error) -> Failure {
    match e {
        text::Error::Grammar(_) => Failure::Request { field: None, what: e.to_string() },
        other => Failure::Internal(other.to_string()),
    }
}
