//! Which rows belong to which sequence, where its state comes from and where states go.

use crate::cpu::span::Span;
use crate::error::{Error, Result};
use crate::host::HostMemory;
use crate::op::Rows;
use std::ops::Range;

/// Neighbouring rows of one sequence.
#[derive(Clone, Debug)]
pub struct Run {
    pub rows: Range<usize>,
    /// Slot of the state before the first row; zeros where there is none.
    pub from: Option<usize>,
}

/// The rows of a call.
pub struct Runs {
    pub runs: Vec<Run>,
    /// Slot that takes the state after each row.
    pub to: Vec<Option<usize>>,
}

impl Runs {
    /// Reads and checks the step's values.
    ///
    /// # Errors
    /// [`Error::BadBuf`] for a sequence or slot that is not there.
    pub fn new(mem: &HostMemory, rows: &Rows, slots: u32) -> Result<Self> {
        let (seq_of, from) = (Span::ints(mem, &rows.seq_of)?, Span::ints(mem, &rows.rec_from)?);
        let to = Span::ints(mem, &rows.rec_to)?;
        let slot = |s: i32| match u32::try_from(s) {
            Ok(s) if s < slots => Ok(Some(s as usize)),
            Ok(_) => Err(Error::BadBuf),
            Err(_) => Ok(None),
        };
        let mut runs: Vec<Run> = Vec::new();
        let mut before = None;
        for row in 0..rows.n as usize {
            let seq = seq_of.get(row, 0).ok_or(Error::BadBuf)?;
            match runs.last_mut() {
                Some(run) if before == Some(seq) => run.rows.end += 1,
                _ => {
                    let at = usize::try_from(seq).ok().and_then(|s| from.get(s, 0)).ok_or(Error::BadBuf)?;
                    runs.push(Run { rows: row..row + 1, from: slot(at)? });
                }
            }
            before = Some(seq);
        }
        let to = (0..rows.n as usize).map(|row| slot(to.get(row, 0).ok_or(Error::BadBuf)?)).collect::<Result<_>>()?;
        Ok(Runs { runs, to })
    }
}
