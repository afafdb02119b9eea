//! What can go wrong between a file and a device.

use std::sync::Arc;

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
    /// An expert could not be read. Whoever asked for it fails, nobody else.
    #[error("expert {expert} of layer {layer} cannot be read from '{file}' at byte {off}: {why}")]
    Read {
        /// The file.
        file: Arc<str>,
        /// The byte where its part begins.
        off: u64,
        /// Layer.
        layer: u32,
        /// Its number in the layer.
        expert: u32,
        /// What the system said.
        why: String,
    },
    /// A layer could not be read.
    #[error("layer {layer} cannot be read from '{file}' at byte {off}: {why}")]
    ReadLayer {
        /// The file.
        file: Arc<str>,
        /// The byte where its part begins.
        off: u64,
        /// Layer.
        layer: u32,
        /// What the system said.
        why: String,
    },
    /// A row of a table that stays in its file could not be read. Whoever asked for it fails, nobody else.
    #[error("row {row} of '{table}' cannot be read from '{file}' at byte {off}: {why}")]
    ReadRow {
        /// The file.
        file: Arc<str>,
        /// The byte where it begins.
        off: u64,
        /// The table.
        table: Arc<str>,
        /// The row: an id of the vocabulary.
        row: u32,
        /// What the system said.
        why: String,
    },
    /// Nothing can be read at all any more.
    #[error("the reader ({reader}) cannot go on: {why}")]
    Reader {
        /// Which one.
        reader: &'static str,
        /// What the system said.
        why: String,
    },
    /// The pass was begun for its router alone.
    #[error("only the router was asked")]
    OnlyListening,
    /// There is no slot for an expert.
    #[error("there is no slot to read an expert into; this device cannot stream experts, or its slots are all in use")]
    NoSlots,
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
