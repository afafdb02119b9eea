//! What was read before, kept on disk: pages and snapshots that outlive the process.
//!
//! A file holds one page, or one snapshot, behind a header that says what it is: the ids it stands for, the key of all
//! ids before them, a fingerprint of everything that gives its bytes their meaning, and checksums. Its name is its key,
//! so a prompt finds what is there by its own ids, and two servers that keep the same thing write the same file. Files
//! appear whole under their name (written aside, then renamed); what is torn or changed nevertheless is found by its
//! checksums, taken for nothing, and removed.
//!
//! - `key`: names by content.
//! - `file`: headers, writing, reading.
//! - `shelf`: what is there, and where a prompt meets it.
//! - `writer`: the thread that writes, and lets go what was used longest ago.

mod file;
mod key;
mod shelf;
#[cfg(test)]
mod tests;
mod writer;

pub use file::{Head, Kind, Name, Opened, write};
pub use key::{Chain, Key, fingerprint, of_checkpoint, of_tokenizer};
pub use shelf::{Route, Shelf};
pub use writer::{Figures, Work, Writer};

use std::path::PathBuf;

/// Where things are kept, and how much.
#[derive(Clone, Debug)]
pub struct Where {
    /// A directory for nothing else; servers may share it.
    pub dir: PathBuf,
    /// Most bytes of files in it.
    pub most: u64,
}

/// A directory that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot keep prompts in {dir}: {source}")]
pub struct Unusable {
    /// Which.
    pub dir: PathBuf,
    /// Why.
    pub source: std::io::Error,
}
