//! How errors look in each dialect of the wire.

use axum::http::HeaderMap;
use serde_json::{Value, json};

use crate::fault::{Fault, Kind};

/// A dialect of the wire, as far as errors go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// OpenAI's, and everything that has no other.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

impl Wire {
    /// The one that is spoken at a path: that of its API; where both have the path, the one whose version the client sends.
    pub fn of(path: &str, headers: &HeaderMap) -> Self {
        let open_ai = ["/v1/chat", "/v1/completions", "/v1/responses"].iter().any(|p| path.starts_with(p));
        if path.starts_with("/v1/messages") || !open_ai && headers.contains_key("anthropic-version") {
            Self::Anthropic
        } else {
            Self::OpenAi
        }
    }

    /// The status of a fault.
    pub fn status(self, f: &Fault) -> u16 {
        match (self, f.kind) {
            // Anthropic's clients know this one as "try again later".
            (Self::Anthropic, Kind::Full) => 529,
            _ => f.status(),
        }
    }

    /// The body of a fault.
    pub fn fault(self, f: &Fault) -> Value {
        match self {
            Self::OpenAi => {
                let (kind, code) = openai(f.kind);
                json!({"error": {"message": said(f), "type": kind, "param": f.field, "code": code}})
            }
            Self::Anthropic => {
                let message = match f.kind {
                    Kind::TooLong { prompt, context } => {
                        // Clients look for these words to know that they must shorten the conversation.
                        format!("prompt is too long: {prompt} tokens > {} maximum", context.saturating_sub(1))
                    }
                    _ => said(f),
                };
                json!({"type": "error", "error": {"type": anthropic(f.kind), "message": message}})
            }
        }
    }
}

/// What a client is told. It learns what it did wrong, and of our own faults only that there was one.
fn said(f: &Fault) -> String {
    match f.kind {
        Kind::TooLong { prompt, context } => format!(
            "This model's maximum context length is {context} tokens. However, your messages resulted in {prompt} tokens, \
             which leaves no room for an answer. Please reduce the length of the messages."
        ),
        _ => f.message.clone(),
    }
}

fn openai(kind: Kind) -> (&'static str, Option<&'static str>) {
    match kind {
        Kind::Invalid | Kind::TooLarge | Kind::MediaType | Kind::Method | Kind::Slow => ("invalid_request_error", None),
        Kind::TooLong { .. } => ("invalid_request_error", Some("context_length_exceeded")),
        Kind::Unauthorized => ("invalid_request_error", Some("invalid_api_key")),
        Kind::Forbidden => ("invalid_request_error", Some("forbidden")),
        Kind::NotFound => ("invalid_request_error", Some("not_found")),
        Kind::Full => ("server_error", Some("queue_full")),
        Kind::Unavailable => ("server_error", Some("unavailable")),
        Kind::Internal => ("server_error", None),
    }
}

fn anthropic(kind: Kind) -> &'static str {
    match kind {
        Kind::Unauthorized => "authentication_error",
        Kind::Forbidden => "permission_error",
        Kind::NotFound => "not_found_error",
        Kind::TooLarge => "request_too_large",
        Kind::Full => "overloaded_error",
        Kind::Unavailable | Kind::Internal => "api_error",
        _ => "invalid_request_error",
    }
}
