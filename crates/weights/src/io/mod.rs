//! Reading ranges of files while other things are computed.
//!
//! A [`RangeReader`] reads single pieces, in whatever order the disk likes: [`Uring`] where Linux has io_uring, else a
//! [`Pool`] of threads. A [`ReadQueue`] stands in front of it and is written once: it cuts ranges into pieces, keeps
//! what is needed now in front of what is only expected, cancels what nobody expects any more, finishes short reads and
//! tries failed ones once more. Files are read past the page cache where the file system can do that, so that the
//! budget holds all there is.

mod file;
mod pool;
mod queue;
mod scripted;
#[cfg(target_os = "linux")]
mod uring;

pub use file::{Access, Files};
pub use pool::Pool;
pub use queue::{Finished, Job, ReadQueue, ReadStats, Tuning, Urgency, Wanted};
pub use scripted::{Fault, Scripted};
#[cfg(target_os = "linux")]
pub use uring::Uring;

use device::SharedBytes;
use std::io;

/// A piece of a file and where it goes. Offset, length and address are multiples of the file's alignment, but where a
/// file ends in the middle of a piece.
#[derive(Clone, Debug)]
pub struct Piece {
    /// What it is known by when it is done.
    pub id: u64,
    /// Number of the file.
    pub file: u32,
    /// Byte in the file.
    pub off: u64,
    /// Bytes asked for.
    pub len: u32,
    /// Memory that is there as long as the piece is.
    pub to: SharedBytes,
    /// Where in it.
    pub at: u64,
}

/// A piece that is over: bytes that were read, fewer than asked for where the file ends or the system felt like it.
#[derive(Debug)]
pub struct Outcome {
    /// Of which piece.
    pub id: u64,
    /// What came of it.
    pub result: io::Result<u32>,
}

/// Reads pieces beside the caller.
///
/// Between [`submit`](Self::submit) and the piece's outcome its memory belongs to the reader.
pub trait RangeReader: Send {
    /// Its name in reports.
    fn name(&self) -> &'static str;
    /// Takes a piece. It may wait for [`reap`](Self::reap) to be handed to the system.
    fn submit(&mut self, p: Piece);
    /// Hands over what was submitted and collects what is over; with `wait`, waits for at least one if any is under way.
    ///
    /// # Errors
    /// When the system cannot be asked at all; pieces under way are then lost.
    fn reap(&mut self, wait: bool, done: &mut Vec<Outcome>) -> io::Result<()>;
}

/// The reader for this machine: io_uring where it is allowed, else threads.
///
/// # Errors
/// When not even a thread can be had.
pub fn reader(files: &Files) -> io::Result<Box<dyn RangeReader>> {
    #[cfg(target_os = "linux")]
    if let Ok(ring) = Uring::new(files) {
        return Ok(Box::new(ring));
    }
    Ok(Box::new(Pool::new(files, Pool::THREADS)?))
}

/// What is said of a read that failed: of a file that ends early, what to do.
pub(crate) fn why(e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::UnexpectedEof => {
            "the file ends before it: it became shorter since it was opened; put it back whole and ask again".into()
        }
        _ => e.to_string(),
    }
}

#[cfg(test)]
mod tests;
