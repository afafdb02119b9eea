//! The one error type of this crate.

/// Shorthand for this crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong between text and ids. Every variant names the key, field or template line to look at.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A metadata key or JSON field holds something that cannot be used.
    #[error("{key}: {what}")]
    BadKey {
        /// The GGUF key or the JSON field, e.g. `tokenizer.ggml.bos_token_id`.
        key: String,
        /// What is wrong with it and what was expected.
        what: String,
    },
    /// `tokenizer.ggml.pre` names a splitting rule this build does not know.
    #[error("tokenizer.ggml.pre is {pre:?}, which is not known here; known: {known}")]
    UnknownPre {
        /// The value found.
        pre: String,
        /// The values that would have worked.
        known: String,
    },
    /// `tokenizer.ggml.model` names a kind of tokenizer this build does not know.
    #[error("tokenizer.ggml.model is {model:?}, which is not known here; known: {known}")]
    UnknownModel {
        /// The value found.
        model: String,
        /// The values that would have worked.
        known: &'static str,
    },
    /// The tokenizer refused a text.
    #[error("could not tokenise the text: {0}")]
    Encode(String),
    /// The chat template does not parse. Reported when the model is loaded.
    #[error("chat template, line {line}: {what}")]
    TemplateSyntax {
        /// Line in the template's source, from 1.
        line: usize,
        /// The parser's message.
        what: String,
    },
    /// The chat template refused the conversation by calling `raise_exception`; the text is the template's own.
    #[error("the chat template refused this conversation: {0}")]
    TemplateRaised(String),
    /// The chat template failed on this conversation.
    #[error("chat template, line {line}: {what}")]
    TemplateRender {
        /// Line in the template's source, from 1; 0 if unknown.
        line: usize,
        /// What failed.
        what: String,
    },
    /// Rendering took more steps or memory than any honest template needs (an endless loop, or a hostile template).
    #[error(
        "the chat template used up its budget of work: it loops or recurses without end, or the conversation is far too large"
    )]
    TemplateOutOfFuel,
    /// The model has no chat template, and none can be assumed.
    #[error("the model has no chat template and its vocabulary has no <|im_start|>; give one, or use plain completion")]
    NoTemplate,
    /// A JSON schema asks for something that cannot be enforced.
    #[error("schema at {path}: {keyword}: {what}")]
    Schema {
        /// JSON pointer to the schema that holds the keyword; of a tool, with its name in front.
        path: String,
        /// The keyword; empty if it is the schema as a whole.
        keyword: String,
        /// What is the matter with it.
        what: String,
    },
    /// A grammar, a regular expression or a choice of tools cannot be used.
    #[error("grammar: {0}")]
    Grammar(String),
    /// A message of the conversation cannot be used.
    #[error("messages[{index}]: {what}")]
    Message {
        /// Its index, from 0.
        index: usize,
        /// What is wrong with it.
        what: String,
    },
}

impl Error {
    pub(crate) fn key(key: impl Into<String>, what: impl Into<String>) -> Self {
        Self::BadKey { key: key.into(), what: what.into() }
    }
}
