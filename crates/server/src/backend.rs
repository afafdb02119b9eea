//! What the server asks of whatever makes tokens.
//!
//! A [`Backend`] takes any number of [`Job`]s at any time and answers each with a stream of [`Event`]s. How many of them
//! run at once is its own affair; those that wait are told their place. Dropping a [`Ticket`] cancels its job within one
//! step. Token ids are opaque here: they come from `text` and go back to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use text::constrain::Matcher;
use tokio::sync::mpsc;

/// Makes tokens. Object-safe: the server holds it as `Arc<dyn Backend>`.
pub trait Backend: Send + Sync {
    /// What does not change while it lives.
    fn facts(&self) -> &Facts;
    /// Takes a job; its first event comes at once.
    ///
    /// # Errors
    /// [`Refused`], before anything was computed for it.
    fn submit(&self, job: Job) -> Result<Ticket, Refused>;
    /// How busy it is.
    fn load(&self) -> Load;
    /// How memory is divided, as JSON for people and tools.
    fn plan(&self) -> Value;
}

/// What a backend can do.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The model's name.
    pub name: String,
    /// Other names by which it can be asked for.
    pub aliases: Vec<String>,
    /// The architecture's name.
    pub architecture: String,
    /// Most positions of prompt and answer together.
    pub context: u32,
    /// Positions the model was trained for.
    pub trained_context: u32,
    /// Length of the logits.
    pub vocab: u32,
    /// Jobs that run at a time.
    pub parallel: u32,
    /// How the model likes to be sampled.
    pub sampling: Sampling,
}

/// How busy a backend is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Jobs that run.
    pub running: u32,
    /// Jobs that wait.
    pub waiting: u32,
    /// Most jobs that may wait.
    pub places: u32,
}

/// How to sample; the fields mean what they mean everywhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// `0 ..= 100`; 0 is greedy.
    pub temperature: f32,
    /// 0 is all.
    pub top_k: u32,
    /// `0 ..= 1`; 1 is all.
    pub top_p: f32,
    /// `0 ..= 1`.
    pub min_p: f32,
    /// `0.01 ..= 100`; 1 is none.
    pub repetition_penalty: f32,
    /// `-2 ..= 2`.
    pub presence_penalty: f32,
    /// `-2 ..= 2`.
    pub frequency_penalty: f32,
    /// Added to single ids' logits, `-100 ..= 100`.
    pub logit_bias: Vec<(u32, f32)>,
    /// Key of the draws.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// Asked once, with the ids so far, when the model wants to end: ids that the answer must go on with, or none.
pub type AtEnd = Box<dyn FnOnce(&[u32]) -> Vec<u32> + Send>;

/// Told every id as it is chosen: ids that the answer must go on with before another is chosen, or none.
pub type Steer = Box<dyn FnMut(u32) -> Vec<u32> + Send>;

/// One generation. The prompt is not empty and shorter than the context.
pub struct Job {
    /// The prompt's ids.
    pub prompt: Arc<[u32]>,
    /// How to sample.
    pub sampling: Sampling,
    /// Most ids to make; 0 only reads the prompt. `None`: to the end of the context.
    pub max_tokens: Option<u32>,
    /// Which ids may come next.
    pub constraint: Option<Matcher>,
    /// Report logprobs of the chosen id and of this many likeliest.
    pub logprobs: Option<u32>,
    /// Report logprobs of the prompt's ids too.
    pub prompt_logprobs: bool,
    /// Whether end tokens are ordinary ones.
    pub ignore_eos: bool,
    /// Has a say when the model wants to end.
    pub at_end: Option<AtEnd>,
    /// Has a say after every id.
    pub steer: Option<Steer>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("prompt", &self.prompt.len()).field("max_tokens", &self.max_tokens).finish()
    }
}

/// What happens to a job, in order: any number of `Queued`, `Started`, any number of `Prefill` and `PromptToken`, any
/// number of `Token`, and one `Done` or `Failed`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It waits; `place` jobs must begin before it (1 is next).
    Queued {
        /// Its place.
        place: u32,
    },
    /// It runs.
    Started(Known),
    /// Prompt ids read so far.
    Prefill {
        /// So far, without those that were there before.
        done: u32,
        /// To read.
        total: u32,
    },
    /// An id of the prompt with its logprobs, where they were asked for.
    PromptToken(Token),
    /// The next id of the answer. End tokens do not come.
    Token(Token),
    /// The end.
    Done(Done),
    /// It could not be finished.
    Failed(Failure),
}

/// What of a prompt was read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Ids that need not be read.
    pub cached: u32,
    /// Why not more.
    pub miss: Miss,
}

/// Why a prompt's tokens must be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// All were known; the last is always read.
    Nothing,
    /// Nothing that begins like it is known.
    Unknown,
    /// All that was read goes on here, at this token.
    Grows(u32),
    /// What was read has another token here.
    Differs(u32),
    /// The tokens are the same up to here, but the model's state was not kept so far.
    NoState(u32),
    /// Nothing is kept, or this request asks for a figure of every token.
    Off,
}

impl Miss {
    /// Its name on the wire.
    pub fn why(self) -> &'static str {
        match self {
            Miss::Nothing => "all_known",
            Miss::Unknown => "unknown",
            Miss::Grows(_) => "grows",
            Miss::Differs(_) => "differs",
            Miss::NoState(_) => "no_state",
            Miss::Off => "off",
        }
    }
    /// The first token that is not what was read before, where there is one.
    pub fn token(self) -> Option<u32> {
        match self {
            Miss::Grows(at) | Miss::Differs(at) | Miss::NoState(at) => Some(at),
            Miss::Unknown => Some(0),
            Miss::Nothing | Miss::Off => None,
        }
    }
}

/// An id with what was asked about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Token {
    /// The id.
    pub id: u32,
    /// Natural logarithm of its probability.
    pub logprob: Option<f32>,
    /// The likeliest ids with theirs.
    pub top: Vec<(u32, f32)>,
}

/// Why a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The model ended it, or its constraint did.
    End,
    /// `max_tokens` were made.
    Length,
    /// The context is full.
    ContextFull,
}

/// Figures of a finished job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Done {
    /// Why it ended.
    pub reason: Reason,
    /// Prompt ids that did not have to be read again.
    pub cached: u32,
    /// Time it took to read the prompt.
    pub prefill: Duration,
    /// Time from the first id to the last.
    pub decode: Duration,
    /// Of that, time in the model's passes.
    pub passes: Duration,
}

/// Why a job failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// What was asked cannot be done.
    Request {
        /// The parameter that is wrong, if one is.
        field: Option<&'static str>,
        /// What is wrong.
        what: String,
    },
    /// The server's fault; what it says goes to the log and, shortened, to the client.
    Internal(String),
    /// The server ends before the job does.
    Stopping,
}

/// Why a job was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// All places in the queue are taken.
    Full {
        /// How many there are.
        places: u32,
    },
    /// The backend is being stopped.
    Stopping,
}

/// A job's events. Dropping it cancels the job.
#[derive(Debug)]
pub struct Ticket {
    events: mpsc::UnboundedReceiver<Event>,
    cancel: Arc<AtomicBool>,
}

impl Ticket {
    /// A ticket and the backend's end of it.
    pub fn new() -> (Self, Reporter) {
        let (tx, events) = mpsc::unbounded_channel();
        let cancel = Arc::new(AtomicBool::new(false));
        (Self { events, cancel: Arc::clone(&cancel) }, Reporter { tx, cancel })
    }

    /// The next event; `None` only if the backend died.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// The next event, for code that waits for several.
    pub fn poll_next(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Option<Event>> {
        self.events.poll_recv(cx)
    }

    /// The next event, for plain threads.
    pub fn wait(&mut self) -> Option<Event> {
        self.events.blocking_recv()
    }

    /// The next event, if it is there.
    pub fn try_next(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
    }
}

/// The backend's end of a [`Ticket`].
#[derive(Clone, Debug)]
pub struct Reporter {
    tx: mpsc::UnboundedSender<Event>,
    cancel: Arc<AtomicBool>,
}

impl Reporter {
    /// Tells the client. Never blocks: what waits is bounded by the context.
    pub fn tell(&self, event: Event) {
        // A client that is gone wants to hear nothing.
        let _ = self.tx.send(event);
    }

    /// Whether the client is gone.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// The flag behind [`is_cancelled`](Self::is_cancelled), for code that takes one.
    pub fn flag(&self) -> &AtomicBool {
        &self.cancel
    }
}
