//! A reader that fails as a test says, and finishes pieces in an order drawn from a seed.

use super::pool::read;
use super::{Files, Outcome, Piece, RangeReader};
use crate::draw::Draw;
use std::io;
use std::time::Duration;

/// What may go wrong with a piece.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No more than so many bytes at once.
    Short(u32),
    /// A signal came in between.
    Interrupted,
    /// The disk says it cannot.
    Io,
    /// It takes so long.
    Stall(Duration),
    /// The disk says it could, and it is not so: one byte is another.
    Wrong,
    /// The file ends in front of it.
    Ends,
}

/// Asked once for every piece that is submitted.
pub type Script = Box<dyn FnMut(&Piece) -> Option<Fault> + Send>;

/// See the [module](self).
pub struct Scripted {
    files: Files,
    script: Script,
    held: Vec<(Piece, Option<Fault>)>,
    draw: Draw,
}

impl Scripted {
    /// A reader of these files.
    pub fn new(files: &Files, seed: u64, script: Script) -> Self {
        Scripted { files: files.clone(), script, held: Vec::new(), draw: Draw(seed) }
    }
    fn outcome(&self, p: &Piece, fault: Option<Fault>) -> io::Result<u32> {
        match fault {
            None => read(&self.files, p),
            // Direct reads of odd lengths are refused, so all of it is read and less is said.
            Some(Fault::Short(n)) => read(&self.files, p).map(|have| have.min(n)),
            Some(Fault::Interrupted) => Err(io::ErrorKind::Interrupted.into()),
            Some(Fault::Io) => Err(io::Error::other("the disk cannot read it")),
            Some(Fault::Stall(time)) => {
                std::thread::sleep(time);
                read(&self.files, p)
            }
            Some(Fault::Ends) => Ok(0),
            Some(Fault::Wrong) => {
                let n = read(&self.files, p)?;
                if let Some(byte) = p.to.address(p.at + u64::from(n / 2), 1) {
                    // SAFETY: a byte of the piece's memory, which belongs to the reader until the outcome.
                    unsafe { byte.write(byte.read() ^ 0x10) };
                }
                Ok(n)
            }
        }
    }
}

impl RangeReader for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }
    fn submit(&mut self, p: Piece) {
        let fault = (self.script)(&p);
        self.held.push((p, fault));
    }
    fn reap(&mut self, wait: bool, done: &mut Vec<Outcome>) -> io::Result<()> {
        let n = self.draw.below(self.held.len() + 1).max((wait && !self.held.is_empty()) as usize);
        for _ in 0..n {
            let at = self.draw.below(self.held.len());
            let (p, fault) = self.held.swap_remove(at);
            done.push(Outcome { id: p.id, result: self.outcome(&p, fault) });
        }
        Ok(())
    }
}
