//! What can go wrong between a file and a device.

/// Errors of weights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// The device.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// The budget.
    #[error(transparent)]
    OverBudget(#[from] memory::OverBudget),
    /// A parameter that the plan did not load was asked for.
    #[error("parameter '{0}' is not loaded")]
    NotLoaded(String),
    /// A tensor cannot be used as what the model needs.
    #[error("tensor '{tensor}': {what}")]
    Unusable {
        /// Its name.
        tensor: String,
        /// Why not.
        what: String,
    },
}

/// Result of weight calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;
