//! What can be wrong with a model.

/// Errors of models.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody here knows this architecture.
    #[error("architecture '{found}' is not supported; supported are {}", supported.join(", "))]
    UnknownArchitecture {
        /// What the file says.
        found: String,
        /// What would do.
        supported: Vec<&'static str>,
    },
    /// The file does not say what it is.
    #[error("{0} does not name an architecture (general.architecture or model_type)")]
    NoArchitecture(String),
    /// Configuration keys that the architecture needs.
    #[error("the {arch} configuration lacks {}", keys.join(", "))]
    MissingKeys {
        /// The architecture.
        arch: String,
        /// The keys.
        keys: Vec<String>,
    },
    /// A configuration value that cannot be.
    #[error("configuration key '{key}' is {value}: {why}")]
    BadKey {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// Tensors that the architecture needs.
    #[error("the checkpoint lacks {count} tensors of a {arch} model: {}", names.join(", "))]
    MissingTensors {
        /// The architecture.
        arch: String,
        /// How many.
        count: usize,
        /// The first of them.
        names: Vec<String>,
    },
    /// A tensor of another shape than the configuration says.
    #[error("tensor '{name}' is {found:?}, the configuration says {wanted:?}")]
    TensorShape {
        /// Its name.
        name: String,
        /// Its shape in the file, slowest dimension first.
        found: Vec<u64>,
        /// The shape needed.
        wanted: Vec<u64>,
    },
    /// A tensor in a type that cannot be computed with.
    #[error("tensor '{name}' has type {dtype}, which cannot be computed with")]
    TensorType {
        /// Its name.
        name: String,
        /// Its type.
        dtype: String,
    },
    /// The file.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// The device.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// The weights.
    #[error(transparent)]
    Weights(#[from] weights::Error),
    /// The sequences' state.
    #[error(transparent)]
    State(#[from] state::Error),
}

/// Result of model calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;
