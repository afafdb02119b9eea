//! io_uring: the kernel reads, no thread of ours waits.

use super::{Files, Outcome, Piece, RangeReader};
use io_uring::{IoUring, opcode, types};
use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;

/// Pieces that may be under way.
const ENTRIES: u32 = 128;

/// A ring of requests and one of results, shared with the kernel.
pub struct Uring {
    ring: IoUring,
    files: Files,
    /// Pieces that the kernel has, which keep their memory.
    flying: HashMap<u64, Piece>,
    /// Pieces that the ring had no room for.
    waiting: Vec<Piece>,
    pending: usize,
}

impl Uring {
    /// A ring.
    ///
    /// # Errors
    /// Where the kernel has none, allows none, or a file has no descriptor.
    pub fn new(files: &Files) -> io::Result<Self> {
        if (0..files.len()).any(|f| files.descriptor(f).is_none()) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let ring = IoUring::new(ENTRIES)?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Uring { ring, files: files.clone(), flying: HashMap::new(), waiting: Vec::new(), pending: 0 })
    }

    /// Puts a piece into the ring; gives it back where there is no room.
    fn push(&mut self, p: Piece) -> Result<(), Piece> {
        let address = p.to.address(p.at, p.len.into());
        let Some((to, file)) = address.zip(self.files.descriptor(p.file)) else { return Err(p) };
        let fd = types::Fd(file.as_raw_fd());
        let entry = opcode::Read::new(fd, to, p.len).offset(p.off).build().user_data(p.id);
        // SAFETY: the memory and the file live until the kernel is done: the piece stays in `flying` until its result was
        // seen, `files` as long as the ring, and dropping waits for all results.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return Err(p);
        }
        self.flying.insert(p.id, p);
        self.pending += 1;
        Ok(())
    }

    fn collect(&mut self, done: &mut Vec<Outcome>) {
        let flying = &mut self.flying;
        for entry in self.ring.completion() {
            let id = entry.user_data();
            flying.remove(&id);
            let n = entry.result();
            let result = if n < 0 { Err(io::Error::from_raw_os_error(-n)) } else { Ok(n as u32) };
            done.push(Outcome { id, result });
        }
    }

    /// Hands pieces to the kernel and waits for `n` results. Signals do not end the waiting.
    fn enter(&mut self, n: usize) -> io::Result<()> {
        loop {
            match self.ring.submit_and_wait(n) {
                Ok(taken) => {
                    self.pending = self.pending.saturating_sub(taken);
                    return Ok(());
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The kernel has no room for results before the old ones are collected.
                Err(e) if matches!(e.raw_os_error(), Some(EBUSY | EAGAIN)) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }
}

const EAGAIN: i32 = 11;
const EBUSY: i32 = 16;

impl RangeReader for Uring {
    fn name(&self) -> &'static str {
        "io_uring"
    }
    fn submit(&mut self, p: Piece) {
        if let Err(p) = self.push(p) {
            self.waiting.push(p);
        }
    }
    fn reap(&mut self, wait: bool, done: &mut Vec<Outcome>) -> io::Result<()> {
        self.collect(done);
        let none_yet = done.is_empty();
        for p in std::mem::take(&mut self.waiting) {
            let id = p.id;
            if p.to.address(p.at, p.len.into()).is_none() || self.files.descriptor(p.file).is_none() {
                done.push(Outcome { id, result: Err(io::ErrorKind::InvalidInput.into()) });
            } else {
                self.submit(p);
            }
        }
        let must_wait = wait && none_yet && done.is_empty() && !self.flying.is_empty();
        if self.pending > 0 || must_wait {
            self.enter(must_wait as usize)?;
            self.collect(done);
        }
        Ok(())
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        let mut done = Vec::new();
        while !self.flying.is_empty() {
            if self.enter(1).is_err() {
                // The kernel may still write: its memory must not go back to anybody.
                std::mem::take(&mut self.flying).into_values().for_each(std::mem::forget);
                return;
            }
            self.collect(&mut done);
        }
    }
}
