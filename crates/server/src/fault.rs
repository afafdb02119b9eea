//! What can be wrong with a request, before any dialect has its say about how that looks.

use crate::backend::{Failure, Refused};

/// A request that cannot be answered. Every dialect renders it in its own JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// What kind of fault, which decides the status.
    pub kind: Kind,
    /// The field that is wrong, e.g. `messages[2].content`.
    pub field: Option<String>,
    /// What is wrong and what would do.
    pub message: String,
}

/// Kinds of faults.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request makes no sense.
    Invalid,
    /// The prompt does not fit into the context.
    TooLong {
        /// Ids of the prompt.
        prompt: u32,
        /// Positions there are.
        context: u32,
    },
    /// No or a wrong key.
    Unauthorized,
    /// A browser page from elsewhere.
    Forbidden,
    /// No such path, response or model.
    NotFound,
    /// The path is there, the method is not.
    Method,
    /// The body took too long to arrive.
    Slow,
    /// The body is too large.
    TooLarge,
    /// A compressed body or the like.
    MediaType,
    /// All places are taken.
    Full,
    /// The model is being loaded or the server stops.
    Unavailable,
    /// The server's fault.
    Internal,
}

impl Fault {
    /// A fault of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, field: None, message: message.into() }
    }

    /// A field that is wrong.
    pub fn field(field: impl Into<String>, what: impl std::fmt::Display) -> Self {
        let field = field.into();
        let message = format!("{field}: {what}");
        Self { kind: Kind::Invalid, field: Some(field), message }
    }

    /// A request that is wrong as a whole.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// A prompt that does not fit.
    pub fn too_long(prompt: usize, context: u32) -> Self {
        let message = format!(
            "the prompt has {prompt} tokens and the context {context}, of which at least one must be left for the answer; \
             shorten the prompt or start the server with a larger --context"
        );
        Self::new(Kind::TooLong { prompt: prompt as u32, context }, message)
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self.kind {
            Kind::Invalid | Kind::TooLong { .. } => 400,
            Kind::Unauthorized => 401,
            Kind::Forbidden => 403,
            Kind::NotFound => 404,
            Kind::Method => 405,
            Kind::Slow => 408,
            Kind::TooLarge => 413,
            Kind::MediaType => 415,
            Kind::Full | Kind::Unavailable => 503,
            Kind::Internal => 500,
        }
    }
}

impl From<Refused> for Fault {
    fn from(r: Refused) -> Self {
        match r {
            Refused::Full { places } => {
                Self::new(Kind::Full, format!("all {places} places in the queue are taken; try again later"))
            }
            Refused::Stopping => Self::new(Kind::Unavailable, "the server is stopping"),
        }
    }
}

impl From<Failure> for Fault {
    fn from(f: Failure) -> Self {
        match f {
            Failure::Request { field: Some(f), what } => Self::field(f, what),
            Failure::Request { field: None, what } => Self::invalid(what),
            Failure::Internal(what) => Self::new(Kind::Internal, what),
            Failure::Stopping => Self::new(Kind::Unavailable, "the server is stopping and the answer is broken off"),
        }
    }
}

impl From<text::Error> for Fault {
    fn from(e: text::Error) -> Self {
        use text::Error as E;
        match &e {
            E::Message { index, what } => Self::field(format!("messages[{index}]"), what),
            E::NoTemplate => Self::invalid(e.to_string()),
            E::TemplateRaised(_) | E::TemplateRender { .. } | E::TemplateOutOfFuel | E::Encode(_) => {
                Self::field("messages", &e)
            }
            E::Schema { .. } | E::Grammar(_) => Self::invalid(e.to_string()),
            _ => Self::new(Kind::Internal, e.to_string()),
        }
    }
}
