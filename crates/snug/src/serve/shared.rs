//! The engine as a backend that several requests share: one thread does the steps, all others only ask and listen.

use super::{failure, token, wanted};
use crate::leases;
use crate::streamed::{Moment, Streamed, Watched};
use engine::batch::{self, Batch, Sink, Told};
use engine::prefix::{self, Role};
use serde_json::Value;
use server::backend::{Backend, Done, Event, Facts, Job, Known, Load, Miss, Reason, Refused, Reporter, Ticket};
use server::voice::Voice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Answers no longer than this are no part of a conversation: titles, summaries, checks.
const ASIDE: u32 = 64;

/// How often it is looked whether the disk has room for more.
const DISK: Duration = Duration::from_millis(2);

/// A backend in front of a [`Batch`].
pub struct Shared {
    facts: Facts,
    plan: Value,
    places: u32,
    counts: Arc<Counts>,
    /// Closed when it is dropped, which ends the thread.
    jobs: Mutex<Option<Sender<(Job, Client)>>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Counts {
    /// Jobs that were taken and whose end was not told.
    inside: AtomicU32,
    running: AtomicU32,
    waiting: AtomicU32,
    /// Sent and not yet taken.
    sent: AtomicU32,
    stopping: AtomicBool,
}

impl Shared {
    /// Starts the thread.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn new(
        facts: Facts,
        plan: Value,
        mut batch: Batch,
        (voice, stats): (Arc<Voice>, bool),
        places: u32,
    ) -> std::io::Result<Self> {
        let (jobs, taken) = channel();
        let counts = Arc::new(Counts::default());
        let watched = Watched::of(batch.executor()).filter(|_| stats);
        let mut at_work = AtWork { batch, voice, taken, counts: Arc::clone(&counts), watched, since: None };
        let thread = std::thread::Builder::new().name("generate".into()).spawn(move || at_work.run())?;
        Ok(Self { facts, plan, places, counts, jobs: Mutex::new(Some(jobs)), thread: Some(thread) })
    }
}

impl Backend for Shared {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn submit(&self, job: Job) -> Result<Ticket, Refused> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(to_thread) = jobs.as_ref().filter(|_| !self.counts.stopping.load(Ordering::Acquire)) else {
            return Err(Refused::Stopping);
        };
        // Nobody else takes a place meanwhile, because of the lock.
        if self.counts.inside.load(Ordering::Acquire) >= self.places.saturating_add(self.facts.parallel) {
            return Err(Refused::Full { places: self.places });
        }
        let (ticket, to) = Ticket::new();
        let client = Client { to, place: Place::take(&self.counts) };
        self.counts.sent.fetch_add(1, Ordering::AcqRel);
        // The thread lives as long as the sender; should it be gone, the ticket's events end.
        to_thread.send((job, client)).map_err(|_| Refused::Stopping)?;
        Ok(ticket)
    }

    fn load(&self) -> Load {
        let get = |n: &AtomicU32| n.load(Ordering::Acquire);
        Load {
            running: get(&self.counts.running),
            waiting: get(&self.counts.waiting) + get(&self.counts.sent),
            places: self.places,
        }
    }

    fn plan(&self) -> Value {
        self.plan.clone()
    }
}

impl Drop for Shared {
    /// Jobs that run are finished unless their clients are gone; those that wait are not begun.
    fn drop(&mut self) {
        self.counts.stopping.store(true, Ordering::Release);
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(t) = self.thread.take() {
            // It only ends by itself; panics are kept from it.
            let _ = t.join();
        }
    }
}

/// What the thread has.
struct AtWork {
    batch: Batch,
    voice: Arc<Voice>,
    taken: Receiver<(Job, Client)>,
    counts: Arc<Counts>,
    /// What reading weights from disk did, where somebody wants to know, and when it was looked at last.
    watched: Option<Watched>,
    since: Option<(Moment, u64)>,
}

impl AtWork {
    fn run(&mut self) {
        loop {
            let more = self.take_jobs();
            if !more {
                self.batch.drain(&engine::Error::Stopping);
            }
            let busy = self.turn();
            let (running, waiting) = self.batch.load();
            self.counts.running.store(running, Ordering::Release);
            self.counts.waiting.store(waiting, Ordering::Release);
            self.say(busy);
            match (busy, more) {
                (true, _) => {}
                (false, false) => break,
                // Nothing to do until something comes, or the last sender is gone.
                (false, true) => match self.wait() {
                    Ok(next) => self.submit(next),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                },
            }
        }
        self.batch.save_all();
    }

    /// Waits for a job; not for long while something is on its way to the disk.
    fn wait(&mut self) -> Result<(Job, Client), RecvTimeoutError> {
        if let Some(what) = self.batch.disk().and_then(|d| d.trouble()) {
            tracing::warn!(what, "a prompt could not be kept on disk");
        }
        match self.batch.saving() {
            true => self.taken.recv_timeout(DISK),
            false => self.taken.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    /// Says what reading from disk did from the first step after a rest to the last before the next.
    fn say(&mut self, busy: bool) {
        let Some(w) = &self.watched else { return };
        let tokens = self.batch.tokens();
        if busy {
            self.since.get_or_insert_with(|| (w.now(), tokens));
        } else if let Some((then, before)) = self.since.take() {
            Streamed::between(&then, &w.now(), tokens - before).say("prompts and answers");
            leases::say(self.batch.executor());
        }
    }

    /// Takes what came; whether more may come.
    fn take_jobs(&mut self) -> bool {
        loop {
            match self.taken.try_recv() {
                Ok(next) => self.submit(next),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn submit(&mut self, (job, client): (Job, Client)) {
        let (job, to) = (self.job(job), client.to.clone());
        if let Err(e) = self.batch.submit(job, Box::new(client)) {
            to.tell(Event::Failed(failure(&e)));
        }
        let (_, waiting) = self.batch.load();
        self.counts.waiting.store(waiting, Ordering::Release);
        self.counts.sent.fetch_sub(1, Ordering::AcqRel);
    }

    /// A step; a panic in it ends all requests, and the next ones find an executor without sequences.
    fn turn(&mut self) -> bool {
        match catch_unwind(AssertUnwindSafe(|| self.batch.turn())) {
            Ok(busy) => busy,
            Err(_) => {
                let all_closed = self.batch.abort(&engine::Error::Panicked);
                if all_closed.is_err() {
                    self.counts.stopping.store(true, Ordering::Release);
                }
                true
            }
        }
    }

    fn job(&self, job: Job) -> batch::Job {
        let (voice, ignore) = (Arc::clone(&self.voice), job.ignore_eos);
        let aside = job.max_tokens.is_some_and(|n| n <= ASIDE);
        batch::Job {
            marks: prefix::marks(&job.prompt, |id| self.voice.tokenizer.is_special(id)),
            from: (if aside { Role::Side } else { Role::Main }, prefix::owner(&job.prompt)),
            sampling: wanted(job.sampling, job.logprobs),
            max_tokens: job.max_tokens,
            constraint: job.constraint,
            ends: Arc::new(move |id| !ignore && voice.tokenizer.is_eog(id)),
            at_end: job.at_end,
            steer: job.steer,
            prompt_logprobs: job.prompt_logprobs,
            prompt: job.prompt,
        }
    }
}

fn why(miss: prefix::Miss) -> Miss {
    match miss {
        prefix::Miss::Nothing => Miss::Nothing,
        prefix::Miss::Unknown => Miss::Unknown,
        prefix::Miss::Grows { at } => Miss::Grows(at),
        prefix::Miss::Differs { at } => Miss::Differs(at),
        prefix::Miss::NoAnchor { same } => Miss::NoState(same),
        prefix::Miss::Off => Miss::Off,
    }
}

/// One of the places of those that run or wait.
struct Place {
    counts: Arc<Counts>,
    held: AtomicBool,
}

impl Place {
    fn take(counts: &Arc<Counts>) -> Self {
        counts.inside.fetch_add(1, Ordering::AcqRel);
        Place { counts: Arc::clone(counts), held: AtomicBool::new(true) }
    }
    fn leave(&self) {
        if self.held.swap(false, Ordering::AcqRel) {
            self.counts.inside.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A client at the other end of a ticket.
struct Client {
    to: Reporter,
    place: Place,
}

impl Sink for Client {
    fn tell(&self, what: Told) {
        // Whoever reads that it has ended may ask again at once.
        if matches!(what, Told::Done(_) | Told::Failed(_)) {
            self.place.leave();
        }
        self.to.tell(match what {
            Told::Queued(place) => Event::Queued { place },
            Told::Started { cached, miss } => Event::Started(Known { cached, miss: why(miss) }),
            Told::Prefill { done, total } => Event::Prefill { done, total },
            Told::PromptToken(c) => Event::PromptToken(token(c)),
            Told::Token(c) => Event::Token(token(c)),
            Told::Done(e) => Event::Done(Done {
                reason: match e.finish {
                    engine::Finish::Length => Reason::Length,
                    engine::Finish::ContextFull => Reason::ContextFull,
                    engine::Finish::Stop | engine::Finish::Cancelled => Reason::End,
                },
                cached: e.cached,
                prefill: e.prefill,
                decode: e.decode,
                passes: e.passes,
            }),
            Told::Failed(e) => Event::Failed(failure(e)),
        });
    }
    fn gone(&self) -> bool {
        self.to.is_cancelled()
    }
}
