//! The planner, the executor, the sampler, generation. No wire formats.
//!
//! [`open::Model`] is a checkpoint that was opened, planned and loaded; [`generate`] answers one request on it.
//! [`plan`](mod@plan) counts bytes with a dry run of the same pass that [`Executor`] carries out.

pub mod batch;
mod conversation;
mod decode;
pub mod disk;
pub mod draft;
mod error;
mod executor;
pub mod figures;
mod generate;
pub mod machine;
mod mask;
pub mod open;
pub mod perplexity;
pub mod plan;
pub mod prefix;
mod sampler;
pub mod schedule;
pub mod stream;

pub use conversation::{Conversation, Reread, Turn};
pub use error::{Error, Result};
pub use executor::{Executor, Leased, OnMark, Passed, Segment, Wanted};
pub use generate::{Answer, Event, Finish, Request, generate};
pub use open::{Model, OpenOptions};
pub use plan::{Ask, Backend, Context, Refusal, plan};
pub use sampler::{Choice, Logprob, Sampler, Sampling, argmax};
pub use state::{Recurrent, SeqId};
