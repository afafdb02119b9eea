//! What can go wrong while a model answers.

/// Errors of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A request parameter out of its range.
    #[error("{name} is {value}; allowed is {range}")]
    BadParameter {
        /// Which.
        name: &'static str,
        /// What it is.
        value: String,
        /// What it may be.
        range: String,
    },
    /// The model's logits hold NaN, or nothing above negative infinity.
    #[error("the model produced logits that are not numbers")]
    BadLogits,
    /// The constraint allows no token that the model gives a probability.
    #[error("the grammar of the answer allows nothing that the model could say here")]
    NothingAllowed,
    /// The thread that follows a constraint ended early.
    #[error("the grammar of the answer was lost")]
    ConstraintLost,
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {prompt} tokens and the context {context}; shorten it or raise --context (the model allows {most})"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: u32,
        /// Positions there are.
        context: u32,
        /// Positions the model was trained for.
        most: u32,
    },
    /// An empty prompt.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// A token id beyond the vocabulary.
    #[error("token id {id} is beyond the vocabulary of {vocab}")]
    BadToken {
        /// The id.
        id: u32,
        /// Length of the vocabulary.
        vocab: u32,
    },
    /// The model has no tokenizer and text was asked for.
    #[error("{0} has no tokenizer; only token ids can be used with it")]
    NoTokenizer(String),
    /// Drafts were asked for and nothing drafts.
    #[error("the model has no predictor of further tokens, or was opened without drafting")]
    NoDrafter,
    /// The directory for kept prompts cannot be used.
    #[error(transparent)]
    Disk(#[from] crate::disk::Unusable),
    /// A second history was asked for and none was planned.
    #[error("the plan has no second history")]
    NoSecondHistory,
    /// A mark that is no place of the segment's grid.
    #[error("rows are marked at {mark}; a mark is a multiple of 64, or the end, of {rows} rows")]
    BadMark {
        /// The mark.
        mark: u32,
        /// Rows of the segment.
        rows: u32,
    },
    /// A segment was to end before its last layer.
    #[error("the segment went through {done} layers of {of}")]
    Unfinished {
        /// Layers done.
        done: u32,
        /// All layers.
        of: u32,
    },
    /// A text too short to measure on.
    #[error("{0} tokens are too few to measure: 2 at least are needed")]
    TooShort(usize),
    /// All places in the queue are taken.
    #[error("{places} requests wait already; ask again later")]
    QueueFull {
        /// How many there are.
        places: u32,
    },
    /// Who waits is not begun any more.
    #[error("the server is stopping")]
    Stopping,
    /// A step was broken off by a fault of the program.
    #[error("the generation panicked")]
    Panicked,
    /// A step for a request that is not there: a fault of the scheduler.
    #[error("a step names a request that is not at work")]
    NoSession,
    /// The caller cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The plan does not fit.
    #[error("{0}")]
    Refused(#[from] crate::plan::Refusal),
    /// The machine's profile cannot be read or kept.
    #[error("{}: {why}; `snug doctor` writes it anew", file.display())]
    Profile {
        /// The file.
        file: std::path::PathBuf,
        /// Why.
        why: String,
    },
    /// The file.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// The text side.
    #[error(transparent)]
    Text(#[from] text::Error),
    /// A file that opens but cannot be used.
    #[error("{file}: {source}")]
    InFile {
        /// Which.
        file: String,
        /// What is wrong with it.
        source: Box<Error>,
    },
    /// The model.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// The device.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// The weights.
    #[error(transparent)]
    Weights(#[from] weights::Error),
    /// The sequences' state.
    #[error(transparent)]
    State(#[from] state::Error),
    /// The budget.
    #[error(transparent)]
    OverBudget(#[from] memory::OverBudget),
}

/// Result of engine calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;
