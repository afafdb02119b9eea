//! What can go wrong on a device.

use crate::arena::Region;

/// Errors of devices. Shape errors name the op and what does not match.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Workspace ran out: the plan's meter and the op disagree, or the step is larger than planned.
    #[error("workspace {region:?}: {asked} bytes asked, {free} free; the step is larger than the plan")]
    ArenaFull {
        /// Which region.
        region: Region,
        /// Bytes asked.
        asked: u64,
        /// Bytes free.
        free: u64,
    },
    /// Workspace was asked for outside any scope.
    #[error("workspace was asked for outside any scope")]
    NoScope,
    /// Operands do not fit each other.
    #[error("{op}: {what}")]
    Shape {
        /// Name of the op.
        op: &'static str,
        /// What does not match.
        what: String,
    },
    /// A dry run has no values to read.
    #[error("a dry run has no values")]
    Dry,
    /// The host may not read, write or allocate inside a graph, so that a step can be captured and replayed.
    #[error("{0} is not allowed inside a graph")]
    InGraph(&'static str),
    /// A handle that names no live allocation, or bytes outside one.
    #[error("a buffer handle is stale or out of range")]
    BadBuf,
    /// The backend has no kernel for this.
    #[error("{op}: format {fmt} has no kernel on this device")]
    NoKernel {
        /// Name of the op.
        op: &'static str,
        /// The format.
        fmt: String,
    },
    /// The operating system refused memory.
    #[error("the system refused {0} bytes")]
    OutOfMemory(u64),
    /// The caller cancelled inside a scope. Carries nothing: the canceller knows why.
    #[error("cancelled")]
    Cancelled,
    /// An instruction set was asked for that this machine does not have.
    #[error("this machine has no {asked}; the best it has is {have}")]
    NoIsa {
        /// Asked for.
        asked: &'static str,
        /// The best there is.
        have: &'static str,
    },
    /// No NVIDIA GPU can be used here.
    #[error("{0}")]
    NoCuda(String),
    /// The NVIDIA driver refused a call.
    #[error("{call}: {what}")]
    Cuda {
        /// The call.
        call: &'static str,
        /// Its message.
        what: String,
    },
    /// The system refused a kernel thread.
    #[error("a kernel thread could not be started: {0}; ask for fewer threads")]
    Threads(std::io::Error),
    /// A task of an op panicked.
    #[error("a kernel thread panicked: {0}")]
    Panicked(String),
    /// An error of another room passing through a scope.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

/// Result of device calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;
