//! A queue before something that runs one job at a time.
//!
//! [`Line`] makes a [`Backend`] of anything that can [`Run`] a job to its end on a plain thread. It knows places and
//! limits, drops jobs whose clients went away, and turns a panic of the run into a failure of that one job.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use serde_json::Value;

use crate::backend::{Backend, Done, Event, Facts, Failure, Job, Known, Load, Miss, Refused, Reporter, Ticket};

/// Runs one job at a time.
pub trait Run: Send {
    /// Runs a job to its end, telling `to` about prefill and tokens, and looking at [`Reporter::is_cancelled`] at least
    /// once for each step. A cancelled run may return anything.
    ///
    /// # Errors
    /// [`Failure`], after which the next job can run.
    fn run(&mut self, job: Job, to: &Reporter) -> Result<Done, Failure>;

    /// How many ids of a job's prompt it need not read.
    fn cached(&self, _: &Job) -> u32 {
        0
    }
}

/// A backend with a queue and one thread for each run.
pub struct Line {
    facts: Facts,
    plan: Value,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    places: u32,
    free: u32,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Job, Reporter)>,
    running: u32,
    stopping: bool,
}

impl Line {
    /// A line before these runs, where `places` jobs may wait.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn new(facts: Facts, plan: Value, runs: Vec<Box<dyn Run>>, places: u32) -> std::io::Result<Self> {
        let free = runs.len() as u32;
        let shared = Shared { queue: Mutex::default(), changed: Condvar::new(), places, free };
        let mut line = Self { facts, plan, shared: Arc::new(shared), threads: Vec::new() };
        for (i, mut run) in runs.into_iter().enumerate() {
            let shared = Arc::clone(&line.shared);
            let thread = std::thread::Builder::new().name(format!("generate-{i}"));
            line.threads.push(thread.spawn(move || {
                while let Some((job, to)) = shared.next() {
                    let ended = work(run.as_mut(), job, &to);
                    // Whoever reads that it has ended may ask again at once.
                    shared.lock().running -= 1;
                    to.tell(ended);
                }
            })?);
        }
        Ok(line)
    }
}

impl Backend for Line {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn submit(&self, job: Job) -> Result<Ticket, Refused> {
        let mut q = self.shared.lock();
        if q.stopping {
            return Err(Refused::Stopping);
        }
        drop_cancelled(&mut q);
        let free = self.shared.free - q.running;
        let waiting = q.waiting.len() as u32;
        if waiting >= self.shared.places.saturating_add(free) {
            return Err(Refused::Full { places: self.shared.places });
        }
        let (ticket, to) = Ticket::new();
        if waiting >= free {
            to.tell(Event::Queued { place: waiting - free + 1 });
        }
        q.waiting.push_back((job, to));
        drop(q);
        self.shared.changed.notify_one();
        Ok(ticket)
    }

    fn load(&self) -> Load {
        let mut q = self.shared.lock();
        drop_cancelled(&mut q);
        Load { running: q.running, waiting: q.waiting.len() as u32, places: self.shared.places }
    }

    fn plan(&self) -> Value {
        self.plan.clone()
    }
}

impl Drop for Line {
    /// Jobs that run are finished unless their clients are gone; those that wait are not begun.
    fn drop(&mut self) {
        let mut q = self.shared.lock();
        q.stopping = true;
        for (_, to) in q.waiting.drain(..) {
            to.tell(Event::Failed(Failure::Stopping));
        }
        drop(q);
        self.shared.changed.notify_all();
        for t in self.threads.drain(..) {
            // A thread only ends by itself; `work` keeps panics from it.
            let _ = t.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job whose client is still there; `None` when there will be no more. Those behind it move up.
    fn next(&self) -> Option<(Job, Reporter)> {
        let mut q = self.lock();
        loop {
            drop_cancelled(&mut q);
            if let Some(next) = q.waiting.pop_front() {
                q.running += 1;
                for (i, (_, to)) in q.waiting.iter().enumerate() {
                    to.tell(Event::Queued { place: i as u32 + 1 });
                }
                return Some(next);
            }
            if q.stopping {
                return None;
            }
            q = self.changed.wait(q).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn drop_cancelled(q: &mut Queue) {
    q.waiting.retain(|(_, to)| !to.is_cancelled());
}

/// Does a job; gives its last event.
fn work(run: &mut dyn Run, job: Job, to: &Reporter) -> Event {
    to.tell(Event::Started(Known { cached: run.cached(&job), miss: Miss::Off }));
    let done = catch_unwind(AssertUnwindSafe(|| run.run(job, to)));
    match done {
        Ok(Ok(done)) => Event::Done(done),
        Ok(Err(failure)) => Event::Failed(failure),
        Err(_) => Event::Failed(Failure::Internal("the generation panicked".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Reason, Sampling, Token};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    /// Says the prompt's first id, then waits for leave to end.
    struct Held(Receiver<()>);

    impl Run for Held {
        fn run(&mut self, job: Job, to: &Reporter) -> Result<Done, Failure> {
            let id = job.prompt[0];
            assert_ne!(id, 13, "a run that panics");
            to.tell(Event::Token(Token { id, ..Token::default() }));
            while !to.is_cancelled() && self.0.recv_timeout(Duration::from_millis(1)).is_err() {}
            Ok(Done {
                reason: Reason::End,
                cached: 0,
                prefill: Duration::ZERO,
                decode: Duration::ZERO,
                passes: Duration::ZERO,
            })
        }
    }

    fn line(places: u32) -> (Line, Sender<()>) {
        let (leave, wait) = channel();
        let facts = Facts {
            name: "m".into(),
            aliases: Vec::new(),
            architecture: "a".into(),
            context: 8,
            trained_context: 8,
            vocab: 16,
            parallel: 1,
            sampling: Sampling::default(),
        };
        (Line::new(facts, Value::Null, vec![Box::new(Held(wait))], places).unwrap(), leave)
    }

    fn job(id: u32) -> Job {
        Job {
            prompt: Arc::new([id]),
            sampling: Sampling::default(),
            max_tokens: None,
            constraint: None,
            logprobs: None,
            prompt_logprobs: false,
            ignore_eos: false,
            at_end: None,
            steer: None,
        }
    }

    const OFF: Known = Known { cached: 0, miss: Miss::Off };

    fn next(t: &mut Ticket) -> Event {
        t.wait().unwrap()
    }

    #[test]
    fn jobs_wait_in_order_and_know_their_place() {
        let (line, leave) = line(2);
        let mut a = line.submit(job(1)).unwrap();
        assert_eq!(next(&mut a), Event::Started(OFF));
        let mut b = line.submit(job(2)).unwrap();
        let mut c = line.submit(job(3)).unwrap();
        assert_eq!((next(&mut b), next(&mut c)), (Event::Queued { place: 1 }, Event::Queued { place: 2 }));
        assert_eq!(line.submit(job(4)).unwrap_err(), Refused::Full { places: 2 });
        assert_eq!(line.load(), Load { running: 1, waiting: 2, places: 2 });
        leave.send(()).unwrap();
        assert_eq!(next(&mut c), Event::Queued { place: 1 });
        assert_eq!(next(&mut b), Event::Started(OFF));
        leave.send(()).unwrap();
        leave.send(()).unwrap();
        assert_eq!(next(&mut c), Event::Started(OFF));
    }

    #[test]
    fn a_dropped_ticket_frees_the_runner_and_its_place() {
        let (line, leave) = line(1);
        let mut a = line.submit(job(1)).unwrap();
        assert_eq!(next(&mut a), Event::Started(OFF));
        let b = line.submit(job(2)).unwrap();
        assert!(line.submit(job(3)).is_err());
        drop(b);
        let mut c = line.submit(job(3)).unwrap();
        assert_eq!(next(&mut c), Event::Queued { place: 1 });
        drop(a);
        assert_eq!(next(&mut c), Event::Started(OFF));
        leave.send(()).unwrap();
    }

    #[test]
    fn a_panic_is_one_jobs_failure() {
        let (line, leave) = line(1);
        let mut bad = line.submit(job(13)).unwrap();
        assert_eq!(next(&mut bad), Event::Started(OFF));
        assert!(matches!(next(&mut bad), Event::Failed(Failure::Internal(_))));
        let mut good = line.submit(job(1)).unwrap();
        leave.send(()).unwrap();
        while !matches!(next(&mut good), Event::Done(_)) {}
    }
}
