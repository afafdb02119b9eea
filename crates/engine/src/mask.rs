//! Masks of allowed ids, worked out on a thread of their own while the logits are made.

use crate::error::{Error, Result};
use std::sync::mpsc::{Receiver, Sender, channel};
use text::constrain::Matcher;

/// What may come next.
pub(crate) struct Mask {
    /// Bit `id % 32` of word `id / 32`.
    pub words: Vec<u32>,
    /// Nothing may: the output is complete.
    pub over: bool,
}

/// A matcher at work. Each mask is asked for once.
pub(crate) struct Masks {
    taken: Sender<u32>,
    made: Receiver<text::Result<Mask>>,
}

impl Masks {
    /// Begins with the first mask. The thread ends with the value.
    pub fn new(mut matcher: Matcher) -> Self {
        let (taken, ids) = channel();
        let (out, made) = channel();
        std::thread::spawn(move || {
            let mut next = |id: Option<u32>| -> text::Result<Mask> {
                if let Some(id) = id {
                    matcher.accept(id)?;
                }
                if matcher.is_over() {
                    return Ok(Mask { words: Vec::new(), over: true });
                }
                Ok(Mask { words: matcher.mask()?.to_vec(), over: false })
            };
            // Nobody waiting for a mask means that the generation is over.
            let mut open = out.send(next(None)).is_ok();
            while let (true, Ok(id)) = (open, ids.recv()) {
                open = out.send(next(Some(id))).is_ok();
            }
        });
        Self { taken, made }
    }

    /// The mask for the next token.
    pub fn next(&mut self) -> Result<Mask> {
        let mask = self.made.recv().map_err(|_| Error::ConstraintLost)?;
        Ok(mask?)
    }

    /// An id was chosen: work on the mask behind it begins.
    pub fn take(&mut self, id: u32) {
        // A thread that ended has left its error where `next` finds it.
        let _ = self.taken.send(id);
    }
}
