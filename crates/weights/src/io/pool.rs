//! Threads that read: where there is no io_uring, or none is allowed.

use super::{Files, Outcome, Piece, RangeReader};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A fixed number of threads, each reading one piece at a time.
pub struct Pool {
    /// `None` once it is being dropped, which ends the threads.
    work: Option<Sender<Piece>>,
    done: Receiver<Outcome>,
    flying: usize,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Threads that keep a disk busy.
    pub const THREADS: usize = 8;

    /// Starts the threads.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn new(files: &Files, threads: usize) -> io::Result<Self> {
        let (work, pieces) = channel::<Piece>();
        let (outcomes, done) = channel();
        let pieces = Arc::new(Mutex::new(pieces));
        let start = |i: usize| {
            let (files, pieces, outcomes) = (files.clone(), pieces.clone(), outcomes.clone());
            let name = format!("snug-read-{i}");
            std::thread::Builder::new().name(name).stack_size(64 << 10).spawn(move || serve(&files, &pieces, &outcomes))
        };
        let threads = (0..threads.max(1)).map(start).collect::<io::Result<_>>()?;
        Ok(Pool { work: Some(work), done, flying: 0, threads })
    }
}

fn serve(files: &Files, pieces: &Mutex<Receiver<Piece>>, outcomes: &Sender<Outcome>) {
    loop {
        // Only one of the idle threads waits at the channel, the others for the lock.
        let next = pieces.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(p) = next else { return };
        let result = read(files, &p);
        let id = p.id;
        drop(p);
        if outcomes.send(Outcome { id, result }).is_err() {
            return;
        }
    }
}

pub(super) fn read(files: &Files, p: &Piece) -> io::Result<u32> {
    let address = p.to.address(p.at, p.len.into()).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: the memory is mapped as long as the piece has it, and until its outcome it belongs to the reader alone.
    let to = unsafe { std::slice::from_raw_parts_mut(address, p.len as usize) };
    files.read_once(p.file, p.off, to).map(|n| n as u32)
}

impl RangeReader for Pool {
    fn name(&self) -> &'static str {
        "threads"
    }
    fn submit(&mut self, p: Piece) {
        // The channel is open as long as the threads are, and they end with this alone.
        if self.work.as_ref().is_some_and(|w| w.send(p).is_ok()) {
            self.flying += 1;
        }
    }
    fn reap(&mut self, wait: bool, done: &mut Vec<Outcome>) -> io::Result<()> {
        if wait && self.flying > 0 {
            done.push(self.done.recv().map_err(io::Error::other)?);
            self.flying -= 1;
        }
        while let Ok(o) = self.done.try_recv() {
            self.flying -= 1;
            done.push(o);
        }
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.work = None;
        for t in self.threads.drain(..) {
            // A reader that panicked has nothing left to do.
            let _ = t.join();
        }
    }
}
