//! Tokenizers, the incremental detokenizer, chat templates, stop matching, dialects of tool calls, constrained decoding.
//! No models, no HTTP.
//!
//! The walk of a request through this room: [`History`] brings a client's messages into one form, a [`ChatTemplate`] turns
//! them into a [`Rendered`] prompt in which the author of every byte is still known, a [`Tokenizer`] turns that into ids,
//! and on the way back a [`Detokenizer`] turns sampled ids into valid UTF-8 pieces which a [`StopMatcher`] watches; or, for
//! models that reason and call tools, a [`dialect::OutputParser`] turns them into reasoning, content and calls. Where an
//! output must follow a schema or a tool, a [`constrain::Matcher`] says which ids may come next. All of it is pure: strings
//! and ids in, strings and ids out, so it takes plain inputs ([`GgufVocab`], [`HfFiles`]) and never opens a file.

pub mod constrain;
mod detokenizer;
pub mod dialect;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod history;
mod rendered;
mod stop;
mod template;
mod tokenizer;

pub use detokenizer::Detokenizer;
pub use error::{Error, Result};
pub use history::{History, RAW_ARGUMENTS};
pub use rendered::Rendered;
pub use stop::{StopHit, StopMatcher};
pub use template::{ChatTemplate, Prompt, rfc3339};
pub use tokenizer::{Encoded, GgufVocab, HfFiles, PartCache, Specials, Tokenizer, pre_name};
