//! Several answers at once on one executor: what the [scheduler](crate::schedule) says is done here, step by step.
//!
//! [`Batch::turn`] is the loop's body. It owns the executor and one session for each request (sampler, constraint, what
//! was made); requests that fail or are cancelled end alone. What was read is kept for whoever begins alike
//! ([`crate::prefix`]).
//!
//! - `session`: one request, from its prompt to its last token.
//! - `reuse`: pages and snapshots of what was read before.
//! - `kept`: what of it goes to disk and comes back.

mod kept;
mod reuse;
mod session;

use crate::error::{Error, Result};
use crate::executor::{Executor, Leased, Segment, Wanted};
use crate::prefix::Miss;
use crate::sampler::Choice;
use crate::schedule::{Ask, Id, Limits, Outcome, Room, Schedule, Step};
use memory::{Order, Tier};
use reuse::Reuse;
use session::{Row, Session};
use state::PART_ROWS;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub use kept::STAGING_PAGES;
pub use reuse::Keeping;
pub use session::{AtEnd, Ends, Job, Steer};
pub use state::Park;

/// What a request is told, in order: any number of `Queued`, `Started`, any number of `Prefill` and `PromptToken`, any
/// number of `Token`, and one `Done` or `Failed`. One that is cancelled is told nothing more.
#[derive(Debug)]
pub enum Told<'a> {
    /// It waits; so many begin before it (1 is next).
    Queued(u32),
    /// It runs.
    Started {
        /// Ids of the prompt that need not be read.
        cached: u32,
        /// Why not more.
        miss: Miss,
    },
    /// Ids of the prompt read so far, without those that were there before.
    Prefill {
        /// So far.
        done: u32,
        /// To read.
        total: u32,
    },
    /// An id of the prompt with its logprobs.
    PromptToken(&'a Choice),
    /// The next id of the answer.
    Token(&'a Choice),
    /// The end.
    Done(Ended),
    /// It could not be finished.
    Failed(&'a Error),
}

/// Figures of an answer.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Ended {
    /// Why it ended.
    pub finish: crate::Finish,
    /// Ids of the prompt that were there before.
    pub cached: u32,
    /// Time from its start to its first id.
    pub prefill: Duration,
    /// Time from the first id to the last.
    pub decode: Duration,
    /// Of that, time in the model's passes: the rest is choosing, telling, and what other requests did meanwhile.
    pub passes: Duration,
    /// What drafting ahead did.
    pub drafts: Drafts,
}

/// Tokens that were drafted ahead of an answer, and how many of them it has.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Drafts {
    /// Drafted.
    pub drafted: u32,
    /// Of these, those that were right.
    pub right: u32,
}

/// Who asked.
pub trait Sink: Send {
    /// Tells them.
    fn tell(&self, what: Told);
    /// Whether they are gone: the request is cancelled then.
    fn gone(&self) -> bool;
}

/// How to share an executor.
#[derive(Copy, Clone, Debug)]
pub struct Sharing {
    /// Requests that may wait.
    pub places: u32,
    /// Most time between two tokens of an answer beside a prompt, in times of what it takes without.
    pub patience: f64,
    /// What is kept of what was read.
    pub keeping: Keeping,
}

/// How often a request that waits for room may be passed.
const BYPASS: u32 = 8;

/// An executor that several requests share.
pub struct Batch {
    exec: Executor,
    schedule: Schedule,
    sessions: BTreeMap<Id, Session>,
    reuse: Reuse,
    /// The slice under way, where it stops between layers.
    segment: Option<(Id, Segment)>,
    next: u64,
    /// Places that were told.
    told: BTreeMap<Id, u32>,
    /// Rows that were computed.
    tokens: u64,
}

impl Batch {
    /// Nobody is there yet.
    pub fn new(exec: Executor, how: Sharing) -> Self {
        let plan = exec.plan();
        let layered = matches!(plan.order, Order::LayerOuter { .. });
        let limits = Limits {
            parallel: plan.parallel,
            pages: exec.total_pages(),
            context: plan.context,
            guarantee: crate::plan::GUARANTEE,
            places: how.places,
            bypass: BYPASS,
            // A segment is read at once, so that what a layer reads from disk is read once for all of its rows.
            chunk: if layered { plan.segment().max(plan.chunk) } else { plan.chunk },
            few: plan.few,
            layers: if layered { exec.family().spec().n_layers } else { 1 },
            drafts: plan.draft,
            patience: how.patience,
        };
        // Snapshots beyond those that were planned would take what sequences grow into.
        let snapshots = plan.snapshot_bytes.map_or(how.keeping.snapshots, |b| b.min(how.keeping.snapshots));
        let snapshots = if exec.needs_snapshots() { snapshots } else { how.keeping.snapshots };
        let reuse = Reuse::new(Keeping { snapshots, ..how.keeping }, exec.needs_snapshots());
        let (sessions, told) = (BTreeMap::new(), BTreeMap::new());
        Batch { exec, schedule: Schedule::new(limits), sessions, reuse, segment: None, next: 0, told, tokens: 0 }
    }

    /// Keeps what was read on disk as well, so that another process can go on with it. `of` tells the model from all
    /// others: its [files](crate::disk::of_checkpoint) and its [vocabulary](crate::disk::of_tokenizer).
    ///
    /// # Errors
    /// A directory that cannot be used; where memory has no room for pages on their way.
    pub fn keep_on_disk(&mut self, at: &crate::disk::Where, of: &[&str]) -> Result<()> {
        self.reuse.keep_on_disk(at, of, &mut self.exec)
    }
    /// Whether something waits to be written to disk.
    pub fn saving(&self) -> bool {
        self.reuse.disk.as_ref().is_some_and(|d| d.busy())
    }
    /// What was written to disk; `None` where nothing is kept there.
    pub fn disk(&self) -> Option<&std::sync::Arc<crate::disk::Figures>> {
        self.reuse.disk.as_ref().map(|d| d.figures())
    }
    /// Waits until all that is to be kept is handed to the thread that writes it. Dropping the batch waits for that.
    pub fn save_all(&mut self) {
        while self.saving() {
            if !self.reuse.pump(&mut self.exec) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// The executor.
    pub fn executor(&mut self) -> &mut Executor {
        &mut self.exec
    }
    /// Requests that run and that wait.
    pub fn load(&self) -> (u32, u32) {
        (self.schedule.running(), self.schedule.waiting().count() as u32)
    }

    /// Tokens that were read or made.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Takes a request.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`], [`Error::BadToken`], [`Error::BadParameter`], [`Error::PromptTooLong`],
    /// [`Error::QueueFull`]; nothing was told then.
    pub fn submit(&mut self, mut job: Job, to: Box<dyn Sink>) -> Result<()> {
        job.check(&self.exec)?;
        let prompt = job.prompt.len() as u32;
        // Segments keep states where they pass marks, nearly: on their grid of rows. Other slices end there, unless each of
        // them would read all weights that are not in memory.
        let layered = matches!(self.exec.plan().order, Order::LayerOuter { .. });
        let streams = self.exec.cache_figures().is_some();
        job.marks = if streams && !layered { Vec::new() } else { marks(&job.marks, prompt, self.reuse.exact()) };
        let cuts: &[u32] = match job.marks.last() {
            // These go on anywhere.
            _ if !self.exec.needs_snapshots() => &[],
            _ if !layered => &job.marks,
            // The next turn most likely goes on at the last of them, where a slice more costs less than reading up to 63 ids
            // again.
            Some(last) if !streams && !self.reuse.exact() => std::slice::from_ref(last),
            _ => &[],
        };
        let id = Id(self.next);
        let ask = Ask { prompt, most: job.max_tokens, drafts: job.drafts() };
        self.schedule.arrive(id, ask, cuts).map_err(|e| self.refused(e, &job))?;
        self.next += 1;
        let vocab = self.exec.family().spec().vocab;
        self.sessions.insert(id, Session::new(job, to, vocab));
        self.tell_places();
        Ok(())
    }

    fn refused(&self, e: crate::schedule::Refused, job: &Job) -> Error {
        match e {
            crate::schedule::Refused::Full { places } => Error::QueueFull { places },
            crate::schedule::Refused::Never { most_prompt } => {
                let (context, most) = (most_prompt.saturating_add(1), self.exec.family().spec().context);
                Error::PromptTooLong { prompt: job.prompt.len() as u32, context, most }
            }
        }
    }

    /// Does the next step; `false` when there is nothing to do.
    pub fn turn(&mut self) -> bool {
        self.drop_gone();
        let step = self.schedule.step();
        if step == Step::Idle {
            return self.reuse.pump(&mut self.exec);
        }
        let leased = self.exec.leased();
        self.lease(&step);
        let begun = Instant::now();
        let outcome = self.carry_out(step);
        self.schedule.done((outcome, begun.elapsed()));
        self.reuse.pump(&mut self.exec);
        self.lost(leased);
        self.tell_places();
        true
    }

    /// Brings a leased predictor before a round and lets it go before a step of several answers. What that takes is no part of
    /// what the step takes.
    fn lease(&mut self, step: &Step) {
        let Some(was) = self.exec.leased() else { return };
        match step {
            Step::Speculate { .. } => _ = self.exec.may_draft(),
            // What could not be let go now is by the next call.
            Step::Decode(ids) if ids.len() > 1 && was.here => _ = self.exec.release_drafter(),
            _ => {}
        }
    }
    /// Tells the scheduler where a leased predictor gave way, or could not come.
    fn lost(&mut self, before: Option<Leased>) {
        let (Some(before), Some(now)) = (before, self.exec.leased()) else { return };
        if before.here && !now.here || before.refused < now.refused {
            self.schedule.drafter_left(now.last);
        }
    }

    /// Ends those that wait with an error; those that run go on.
    pub fn drain(&mut self, why: &Error) {
        let waiting: Vec<Id> = self.schedule.waiting().map(|w| w.0).collect();
        for id in waiting {
            self.schedule.cancel(id);
            if let Some(mut s) = self.sessions.remove(&id) {
                s.fail(why);
            }
        }
    }
    /// Ends all with an error: a step was broken off, and nobody knows how far it came. Nothing that was read is kept.
    ///
    /// # Errors
    /// Those of the state: the executor is of no use any more then.
    pub fn abort(&mut self, why: &Error) -> Result<()> {
        self.drain(why);
        self.schedule.done((Outcome::Failed, Duration::ZERO));
        if let Some((_, g)) = self.segment.take() {
            self.exec.abandon(g)?;
        }
        for (id, mut s) in std::mem::take(&mut self.sessions) {
            s.fail(why);
            self.schedule.cancel(id);
            s.seq.take().map_or(Ok(()), |seq| self.exec.close(seq))?;
        }
        Ok(())
    }

    fn drop_gone(&mut self) {
        let gone: Vec<Id> = self.sessions.iter().filter(|(_, s)| s.gone()).map(|(&id, _)| id).collect();
        for id in gone {
            self.schedule.cancel(id);
            // One that runs is closed by a step.
            if self.sessions.get(&id).is_some_and(|s| s.seq.is_none()) {
                self.sessions.remove(&id);
            }
        }
    }

    fn tell_places(&mut self) {
        let now: BTreeMap<Id, u32> = self.schedule.waiting().collect();
        for (id, place) in &now {
            if self.told.get(id) != Some(place)
                && let Some(s) = self.sessions.get(id)
            {
                s.tell(Told::Queued(*place));
            }
        }
        self.told = now;
    }

    fn carry_out(&mut self, step: Step) -> Outcome {
        match step {
            Step::Idle => Outcome::Done,
            Step::Open(id) => self.or_fail(id, |b| b.open(id)),
            Step::Read { id, rows, layers } => self.or_fail(id, |b| b.read(id, rows, layers)),
            Step::Decode(ids) => self.decode(&ids),
            Step::Speculate { id, .. } if self.exec.leased().is_some_and(|l| !l.here) => self.decode(&[id]),
            Step::Speculate { id, drafts } => self.or_fail(id, |b| b.speculate(id, drafts)),
            Step::Stop(id, room) => {
                if let Some(s) = self.sessions.get_mut(&id) {
                    s.end(match room {
                        Room::Context => crate::Finish::ContextFull,
                        Room::Pages => crate::Finish::Length,
                    });
                }
                Outcome::Done
            }
            Step::Close(id) => {
                self.close(id);
                Outcome::Done
            }
        }
    }

    fn or_fail(&mut self, id: Id, f: impl FnOnce(&mut Self) -> Result<Outcome>) -> Outcome {
        f(self).unwrap_or_else(|e| {
            self.fail(id, &e);
            Outcome::Failed
        })
    }

    fn fail(&mut self, id: Id, e: &Error) {
        if let Some(s) = self.sessions.get_mut(&id) {
            s.fail(e);
        }
    }

    fn session(&mut self, id: Id) -> Result<&mut Session> {
        self.sessions.get_mut(&id).ok_or(Error::NoSession)
    }

    fn open(&mut self, id: Id) -> Result<Outcome> {
        let s = self.sessions.get_mut(&id).ok_or(Error::NoSession)?;
        let pages = self.schedule.set_aside(id);
        let (seq, kept, miss) = self.reuse.begin(&mut self.exec, &s.job, pages)?;
        s.begin(seq, kept, miss);
        Ok(Outcome::Opened { kept })
    }

    fn read(&mut self, id: Id, rows: u32, layers: u32) -> Result<Outcome> {
        let s = self.sessions.get_mut(&id).ok_or(Error::NoSession)?;
        let seq = s.seq.ok_or(Error::NoSession)?;
        let len = self.exec.len(seq)?;
        let ids = s.job.prompt[len as usize..(len + rows) as usize].to_vec();
        let last = (len + rows) as usize == s.job.prompt.len();
        let wanted = last.then_some(Wanted::Last);
        self.reuse.make_room(&mut self.exec, &s.job, memory::pages::pages_for(rows) + 1)?;
        let under_way = self.segment.as_ref().is_some_and(|(of, _)| *of == id);
        let logits = if s.job.prompt_logprobs {
            s.read_reporting(&mut self.exec, &ids)?
        } else if under_way || self.in_parts(rows, layers) || self.has_marks(id, len, rows) {
            match self.part(id, &ids, layers, wanted)? {
                Some(logits) => logits,
                None => return Ok(Outcome::Read { ended: false }),
            }
        } else {
            self.exec.read(seq, &ids, wanted)?
        };
        let s = self.sessions.get_mut(&id).ok_or(Error::NoSession)?;
        self.tokens += rows as u64;
        s.told_prefill(len + rows);
        self.reuse.passed(&mut self.exec, s, len + rows);
        let ended = if last { s.first(logits, len + rows)? } else { false };
        Ok(Outcome::Read { ended })
    }

    /// Whether a slice goes layer by layer.
    fn in_parts(&self, rows: u32, layers: u32) -> bool {
        let plan = self.exec.plan();
        let few_layers = layers < self.exec.family().spec().n_layers;
        matches!(plan.order, Order::LayerOuter { .. }) && (few_layers || rows > plan.chunk)
    }

    /// Whether states are to be kept within a slice, which only segments can.
    fn has_marks(&self, id: Id, len: u32, rows: u32) -> bool {
        let layered = matches!(self.exec.plan().order, Order::LayerOuter { .. });
        let inside = |s: &Session| s.job.marks.iter().any(|&m| m > len && m < len + rows);
        layered && self.exec.needs_snapshots() && self.sessions.get(&id).is_some_and(inside)
    }

    /// Takes a slice some layers further; its logits when it was the last of them.
    fn part(&mut self, id: Id, ids: &[u32], layers: u32, wanted: Option<Wanted>) -> Result<Option<Vec<f32>>> {
        let seq = self.session(id)?.seq.ok_or(Error::NoSession)?;
        let mut g = match self.segment.take() {
            Some((of, g)) if of == id => g,
            other => {
                if let Some((_, g)) = other {
                    self.exec.abandon(g)?;
                }
                let s = self.sessions.get(&id).ok_or(Error::NoSession)?;
                self.reuse.segment(&mut self.exec, &s.job, seq, ids)?
            }
        };
        let mut over = false;
        for _ in 0..layers {
            match self.exec.advance(&mut g, &mut |_, _| Ok(())) {
                Ok(last) => over = last,
                Err(e) => {
                    self.exec.abandon(g)?;
                    return Err(e);
                }
            }
        }
        if over {
            let (logits, kept) = self.exec.finish_keeping(g, wanted)?;
            if let Some(s) = self.sessions.get(&id) {
                self.reuse.taken(&mut self.exec, s, kept);
            }
            return Ok(Some(logits));
        }
        self.segment = Some((id, g));
        Ok(None)
    }

    /// One token for each. When the step fails each is tried alone, so that only those fail who must.
    fn decode(&mut self, ids: &[Id]) -> Outcome {
        let mut ended = Vec::new();
        match self.decode_together(ids, &mut ended) {
            Ok(()) => {}
            Err(e) if ids.len() == 1 => {
                self.fail(ids[0], &e);
                return Outcome::Failed;
            }
            Err(_) => {
                for &id in ids {
                    if let Err(e) = self.decode_together(&[id], &mut ended) {
                        self.fail(id, &e);
                        ended.push(id);
                    }
                }
            }
        }
        Outcome::Decoded { ended }
    }

    fn decode_together(&mut self, ids: &[Id], ended: &mut Vec<Id>) -> Result<()> {
        let mut rows = Vec::new();
        for &id in ids {
            let s = self.session(id)?;
            rows.push((s.seq.ok_or(Error::NoSession)?, s.pending()?));
        }
        if let Some(s) = self.sessions.get(&ids[0]) {
            self.reuse.make_room(&mut self.exec, &s.job, ids.len() as u32)?;
        }
        let begun = Instant::now();
        let mut logits;
        let made: Vec<Row> = match self.needs(ids) {
            Some(k) => self.exec.decode_likeliest(&rows, k)?.into_iter().map(Row::Likeliest).collect(),
            None => {
                logits = self.exec.decode(&rows)?;
                logits.chunks_exact_mut(self.exec.family().spec().vocab as usize).map(Row::Logits).collect()
            }
        };
        let took = begun.elapsed();
        self.tokens += rows.len() as u64;
        for ((&id, (seq, _)), row) in ids.iter().zip(rows).zip(made) {
            let position = self.exec.len(seq)?;
            let s = self.session(id)?;
            s.passes += took;
            // The step was done for all: whoever cannot go on ends alone.
            match s.choose(row, position) {
                Ok(false) => {}
                Ok(true) => ended.push(id),
                Err(e) => {
                    s.fail(&e);
                    ended.push(id);
                }
            }
        }
        Ok(())
    }

    /// The likeliest ids that are enough for all of these, on a device whose logits would have to come from afar.
    fn needs(&self, ids: &[Id]) -> Option<u32> {
        if self.exec.plan().tier == Tier::Host {
            return None;
        }
        ids.iter().try_fold(1, |most: u32, id| Some(most.max(self.sessions.get(id)?.needs()?)))
    }

    /// A round: drafts are drawn as the answer's own tokens are, with the same keys, and a draft counts where the
    /// answer's token is the same. So the answer is the one that is made without drafts, whatever the sampling.
    fn speculate(&mut self, id: Id, drafts: u32) -> Result<Outcome> {
        let s = self.sessions.get_mut(&id).ok_or(Error::NoSession)?;
        let (seq, first) = (s.seq.ok_or(Error::NoSession)?, s.pending()?);
        self.reuse.make_room(&mut self.exec, &s.job, memory::pages::pages_for(drafts + 1) + 1)?;
        let (mut guess, drafted) = (s.guesser(), Cell::new(0));
        let (mut rows, mut over, begun) = (0, false, Instant::now());
        let draft = |logits: &mut [f32], at| {
            drafted.set(drafted.get() + 1);
            guess.sample(logits, at).ok().map(|c| c.id)
        };
        let choose = |logits: &mut [f32], at| {
            s.passes += if rows == 0 { begun.elapsed() } else { Duration::ZERO };
            // Every row behind the first is one of a draft that was right.
            s.drafts.drafted += if rows == 0 { drafted.get() } else { 0 };
            s.drafts.right += u32::from(rows > 0);
            rows += 1;
            over = s.choose(Row::Logits(logits), at)?;
            if over { Ok(None) } else { s.pending().map(Some) }
        };
        let round = crate::draft::round(&mut self.exec, seq, (first, drafts), draft, choose)?;
        self.tokens += round.made as u64;
        Ok(Outcome::Speculated { drafted: round.drafted, made: round.made, ended: over })
    }

    fn close(&mut self, id: Id) {
        if let Some((_, g)) = self.segment.take_if(|(of, _)| *of == id) {
            // What cannot be rolled back now is by the next step.
            let _ = self.exec.abandon(g);
        }
        let Some(mut s) = self.sessions.remove(&id) else { return };
        if let Some(seq) = s.seq.take() {
            self.reuse.ended(&mut self.exec, &s, seq);
            // The sequence is open, so nothing but the device can fail, and the next step will say so.
            let _ = self.exec.close(seq);
        }
    }
}

/// Marks before the prompt's last id. Exact ones lie on the grid of rows, of which the last place is one.
fn marks(marks: &[u32], prompt: u32, exact: bool) -> Vec<u32> {
    let last = prompt.saturating_sub(1);
    let mut all: Vec<u32> = match exact {
        false => marks.iter().map(|m| *m.min(&last)).collect(),
        true => marks.iter().chain([&last]).map(|m| m.min(&last) / PART_ROWS * PART_ROWS).collect(),
    };
    all.retain(|&m| m > 0);
    all.sort_unstable();
    all.dedup();
    all
}
