//! Drafting with the model's predictor: behind a sequence, and beside a whole prompt.

use super::{Executor, Pass, pass, source, tables};
use crate::draft::Behind;
use crate::error::{Error, Result};
use device::{Act, RowClass, View};
use memory::Class;
use state::{SeqId, Span};

impl Executor {
    /// Up to `n` tokens that the predictor expects behind `first`, which itself is behind what the sequence has.
    /// `choose` picks one from each draft's logits, or ends the drafting. Nothing is appended.
    ///
    /// # Errors
    /// [`Error::NoDrafter`] where the plan has none, or where it is leased and [away](Self::may_draft); those of state and
    /// device.
    pub fn draft(
        &mut self,
        seq: SeqId,
        first: u32,
        n: u32,
        choose: &mut dyn FnMut(&mut [f32]) -> Option<u32>,
    ) -> Result<Vec<u32>> {
        self.need_head()?;
        let Some(drafter) = self.family.drafter().filter(|_| self.plan.draft > 0) else { return Err(Error::NoDrafter) };
        let n = n.min(self.plan.draft).min(self.plan.context.saturating_sub(self.state.len(seq)?));
        if n == 0 {
            return Ok(Vec::new());
        }
        if self.lease.as_ref().is_some_and(|l| !l.is_here()) {
            return Err(Error::NoDrafter);
        }
        self.dev.step_begins(RowClass::Few);
        let ids = vec![first; n as usize];
        let append = self.state.reserve(self.dev.as_mut(), RowClass::Few, &[Span { seq, ids: &ids }])?;
        let rows = self.state.rows(&append, 0..n)?;
        let (resident, own) = self.weights.split();
        let experts = source(&mut self.arrivals, own);
        let spec = self.family.spec();
        let behind = Behind { drafter, hidden: spec.hidden, vocab: spec.vocab, rows, id: self.pick.rows(0, 1) };
        let embed = &mut self.embed;
        let mut bring = |dev: &mut dyn device::Device, id| tables::bring(embed, dev, &[id]);
        let done = behind.draft(self.dev.as_mut(), (resident, &self.state), first, experts, &mut bring, choose);
        self.dev.step_ends();
        self.state.rollback(append)?;
        done
    }

    /// Appends a prompt and gives, beside the logits of every row, those of the predictor: its row t has the token at t
    /// and the model's hidden state before it, and is about the token at t + 1. Row 0 has no such state and means nothing.
    ///
    /// The plan must have been asked for the logits of every row.
    ///
    /// # Errors
    /// [`Error::NoDrafter`] where the plan has none; those of state and device.
    pub fn foretell(&mut self, seq: SeqId, ids: &[u32]) -> Result<(Vec<f32>, Vec<f32>)> {
        let Some(drafter) = self.family.drafter().filter(|_| self.plan.draft > 0) else { return Err(Error::NoDrafter) };
        let (mut all, mut ahead) = (Vec::new(), Vec::new());
        for part in ids.chunks(self.plan.chunk as usize) {
            let (n, vocab) = (part.len() as u32, self.family.spec().vocab);
            tables::bring(&mut self.embed, self.dev.as_mut(), part)?;
            let bytes = n as u64 * vocab as u64 * 4;
            let paid = self.ledger.reserve(self.plan.tier, Class::Workspace, "predictions", bytes)?;
            let out = View::dense(self.dev.alloc(paid)?, Act::F32, n, vocab);
            self.dev.step_begins(RowClass::Many);
            let spans = [Span { seq, ids: part }];
            let append = self.state.reserve(self.dev.as_mut(), RowClass::Many, &spans)?;
            let rows = self.state.rows(&append, 0..n)?;
            let side = self.side.as_mut().map(|s| s.fill(self.dev.as_mut(), &spans)).transpose()?;
            self.dev.write_i32(self.pick.rows(0, n), &(0..n as i32).collect::<Vec<_>>())?;
            let (resident, own) = self.weights.split();
            let p = Pass {
                family: self.family.as_ref(),
                resident,
                state: &self.state,
                rows: &rows,
                pick: Some(self.pick.rows(0, n)),
                side,
                graph: None,
                likeliest: None,
                drafter: Some(drafter),
                foretold: Some(out),
            };
            let done = pass(self.dev.as_mut(), p, own);
            self.dev.step_ends();
            let read = done.and_then(|logits| Ok((logits, self.dev.read_f32(out)?)));
            self.dev.free(out.buf)?;
            match read {
                Ok((logits, drafts)) => {
                    self.state.commit(append, &[n])?;
                    all.extend(logits.unwrap_or_default());
                    ahead.extend(drafts);
                }
                Err(e) => {
                    self.state.rollback(append)?;
                    return Err(e);
                }
            }
        }
        Ok((all, ahead))
    }
}
