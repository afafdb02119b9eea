//! A predictor that is in memory only while tokens are drafted.
//!
//! Following the model takes a hundredth of its parameters, which stay; so it knows every position when it comes back,
//! whatever was decoded meanwhile. The others take what the ledger has free, and give way to whoever needs that.

use super::Executor;
use crate::error::Result;
use checkpoint::Checkpoint;
use std::time::{Duration, Instant};
use weights::{Bound, Lease};

/// What became of a lease so far.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Leased {
    /// Bytes of it, when it is here.
    pub bytes: u64,
    /// Whether it is.
    pub here: bool,
    /// Times it came.
    pub attached: u32,
    /// Times it could not come, for want of room or because it could not be read.
    pub refused: u32,
    /// What coming took, the last time.
    pub last: Duration,
    /// What coming took, all times together.
    pub attaching: Duration,
}

pub(super) struct Predictor {
    lease: Lease,
    figures: Leased,
}

impl Predictor {
    pub fn new(ck: &Checkpoint, bounds: Vec<Bound>) -> Self {
        let lease = Lease::new(ck, bounds);
        let figures = Leased { bytes: lease.bytes(), ..Leased::default() };
        Predictor { lease, figures }
    }
    pub fn is_here(&self) -> bool {
        self.lease.is_here()
    }
}

impl Executor {
    /// Whether tokens can be drafted now. A predictor that is leased is brought if there is room for it; where it cannot be
    /// brought, answers are made without it.
    pub fn may_draft(&mut self) -> bool {
        let Some(p) = &mut self.lease else { return self.plan.draft > 0 };
        if p.lease.is_here() {
            return true;
        }
        self.watch.look();
        let begun = Instant::now();
        let came = self.weights.attach(&mut p.lease, &self.ledger, self.dev.as_mut()).is_ok();
        p.figures.here = came;
        if came {
            p.figures.attached += 1;
            p.figures.last = begun.elapsed();
            p.figures.attaching += p.figures.last;
        } else {
            p.figures.refused += 1;
        }
        came
    }

    /// Lets a leased predictor go, until somebody drafts again. What is resident stays.
    ///
    /// # Errors
    /// The device's; the next call tries again, and nobody can draft meanwhile.
    pub fn release_drafter(&mut self) -> Result<()> {
        let Some(p) = &mut self.lease else { return Ok(()) };
        p.figures.here = false;
        Ok(self.weights.release(&mut p.lease, self.dev.as_mut())?)
    }

    /// What became of the predictor's lease; `None` where it is not leased.
    pub fn leased(&self) -> Option<Leased> {
        self.lease.as_ref().map(|p| p.figures)
    }

    /// Does what may need room; where there is none, a leased predictor makes some.
    pub(super) fn giving_way<T>(&mut self, mut f: impl FnMut(&mut Self) -> state::Result<T>) -> Result<T> {
        match f(self) {
            Err(state::Error::OverBudget(_)) if self.lease.as_ref().is_some_and(Predictor::is_here) => {
                self.release_drafter()?;
                Ok(f(self)?)
            }
            other => Ok(other?),
        }
    }
}
