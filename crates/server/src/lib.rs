//! HTTP: three dialects of the wire in, one neutral request, one streaming output engine, and the same dialects out.
//! No tokens beyond opaque ids, no tensors.
//!
//! The walk of a request: [`http`] accepts it and lets it in; a dialect (`chat`, `messages`, `responses`) parses its body
//! to a [`request::GenerateRequest`]; [`voice`] renders and tokenises it; a [`backend::Backend`] takes it as a job and
//! answers with events; [`output`] turns ids into reasoning, text and calls; [`pump`] drives all of that, keeps the
//! connection alive and lets the dialect render what came. tokio lives in this crate alone: a backend is plain threads.

pub mod answer;
pub mod app;
pub mod backend;
mod chat;
pub mod fault;
pub mod frames;
#[doc(hidden)]
pub mod fuzzing;
pub mod http;
mod ids;
mod info;
pub mod json;
pub mod line;
mod messages;
mod metrics;
pub mod output;
mod places;
pub mod pump;
mod registry;
pub mod request;
mod responses;
pub mod script;
pub mod voice;
mod wire;

pub use app::{Config, Loading, Ready};
pub use http::{Error, Server};
