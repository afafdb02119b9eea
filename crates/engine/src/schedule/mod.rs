//! Who runs next: a pure state machine.
//!
//! The scheduler holds no memory, no clock and no model. It is told what arrives, what is cancelled and how long steps
//! took, and says what to do next; whoever carries steps out ([`Step`]) reports how they went ([`Outcome`]). So
//! thousands of days can be tried in a test (`tests`).
//!
//! ```text
//! arrive -> waiting -> Open -> reading (slices of the prompt) -> decoding (alone: speculating) -> Close -> gone
//! ```
//!
//! - `costs`: what steps cost, learned as they are done; how large a slice may be.
//! - `pace`: how a prompt and the answers beside it share time.
//! - `depth`: how many tokens to draft ahead.
//! - `queue`: who waits; small requests may pass a large one that does not fit, a bounded number of times.
//! - `machine`: the states of requests, and the choice of the next step.
//!
//! A prompt beside answers under way is read in slices that keep 95 of 100 times between two tokens of those answers within
//! [`Limits::patience`] of what they are without the prompt. A slice is some rows through some layers: many rows through
//! few layers at a time cost the prompt less than few rows through all of them, because weights are read once for all
//! rows.

#[cfg(test)]
mod beside;
mod costs;
mod depth;
mod machine;
mod pace;
mod queue;
#[cfg(test)]
mod tests;

pub(crate) use depth::Depth;
pub use machine::Schedule;

use std::time::Duration;

/// A request. The caller chooses ids and never uses one twice.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub u64);

/// What the scheduler keeps to.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Limits {
    /// Most open sequences.
    pub parallel: u32,
    /// Pages of history in all.
    pub pages: u32,
    /// Most positions of a sequence.
    pub context: u32,
    /// Positions of an answer that are set aside before it begins. What it makes beyond is made while there is room.
    pub guarantee: u32,
    /// Requests that may wait.
    pub places: u32,
    /// How often a request that waits for room may be passed by later ones.
    pub bypass: u32,
    /// Most rows of a slice of a prompt.
    pub chunk: u32,
    /// Most rows of a decoding step.
    pub few: u32,
    /// Layers of the model: a slice may stop between them.
    pub layers: u32,
    /// Most drafts of a speculative round; 0 where nobody drafts.
    pub drafts: u32,
    /// Most time between two tokens of an answer beside a prompt, in times of what it takes without. Where the least slice takes
    /// longer, one time in twenty-five does.
    pub patience: f64,
}

/// What a request needs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Ids of the prompt, at least one.
    pub prompt: u32,
    /// Most ids of the answer; `None`: to the end of the context.
    pub most: Option<u32>,
    /// Whether its tokens may be drafted ahead.
    pub drafts: bool,
}

/// Why a request was not taken.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// All places are taken.
    Full {
        /// How many there are.
        places: u32,
    },
    /// It can never fit.
    Never {
        /// The longest prompt that could, with as long an answer; 0 where none could.
        most_prompt: u32,
    },
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Open a sequence for a request.
    Open(Id),
    /// Take a slice of a prompt further.
    Read {
        /// Whose.
        id: Id,
        /// Rows of the slice; the same until all layers are done.
        rows: u32,
        /// The layers to do now, of those that are left. When none is left its positions are committed.
        layers: u32,
    },
    /// One token for each of these.
    Decode(Vec<Id>),
    /// A speculative round of one request, the only one that is decoding. Where nobody can draft now it gets one token as by
    /// [`Decode`](Step::Decode).
    Speculate {
        /// Whose.
        id: Id,
        /// Tokens to draft ahead.
        drafts: u32,
    },
    /// End an answer for which there is no more room, then [`Close`](Step::Close) follows.
    Stop(Id, Room),
    /// Let go of a sequence, whatever it is doing.
    Close(Id),
    /// Nothing can be done until something arrives.
    Idle,
}

/// What is full.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Room {
    /// The context.
    Context,
    /// The pages of history: others use them.
    Pages,
}

/// How a step went. Requests that ended are closed by a later step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A sequence was opened, and holds this many of the prompt's positions already.
    Opened {
        /// Fewer than the prompt has.
        kept: u32,
    },
    /// A slice went further. When it was the prompt's last, the first token was chosen, which may have been the end.
    Read {
        /// Whether the answer is over.
        ended: bool,
    },
    /// Each request has one position more.
    Decoded {
        /// Those whose answers are over.
        ended: Vec<Id>,
    },
    /// A round was done.
    Speculated {
        /// Tokens that were drafted.
        drafted: u32,
        /// Tokens that came of it, at least one; the sequence has as many positions more.
        made: u32,
        /// Whether the answer is over.
        ended: bool,
    },
    /// A stop or a close was carried out.
    Done,
    /// The step failed for all of its requests: they are over.
    Failed,
}

/// A step's outcome and how long it took.
pub type Report = (Outcome, Duration);
