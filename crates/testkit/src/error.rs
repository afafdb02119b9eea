//! What can go wrong in the test kit.

use std::path::PathBuf;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No model of this name is described.
    #[error("no tiny model is called {0:?}; see testkit::NAMES")]
    UnknownModel(String),
    /// A description or an expected file does not say what it must.
    #[error("{what} of tiny model {model}: {why}; see scripts/oracle_tiny.py")]
    Malformed {
        /// Name of the model.
        model: String,
        /// The file or field.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A file could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn malformed(model: &str, what: &'static str, why: impl ToString) -> Self {
        Self::Malformed { model: model.to_owned(), what, why: why.to_string() }
    }
}
