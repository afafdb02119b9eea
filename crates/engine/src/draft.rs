//! Drafting behind a sequence, and speculation on it: a predictor proposes, one pass of the model verifies.

use crate::error::Result;
use crate::executor::Executor;
use device::{Act, Device, Region, Rows, View};
use model::{Carry, Cx, Drafter};
use state::{SeqId, State};
use weights::{ExpertSource, Resident};

/// What a pass leaves for later drafts; with `foretold`, the drafter's logits of all rows besides.
pub(crate) fn follow(
    cx: &mut Cx,
    d: &dyn Drafter,
    r: &Rows,
    x: &Carry,
    foretold: Option<View>,
    experts: &mut dyn ExpertSource,
) -> model::Result<()> {
    let before = d.follow(cx, r, x)?;
    let Some(logits) = foretold else { return d.keep(cx, r, before) };
    let hidden = cx.take(r.n, before.cols)?;
    d.draft(cx, r, before, hidden, experts)?;
    d.logits(cx, r, hidden, logits)
}

/// Rows reserved behind what a sequence has.
pub(crate) struct Behind<'a> {
    pub drafter: &'a dyn Drafter,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Length of the vocabulary.
    pub vocab: u32,
    /// All of them, of one sequence.
    pub rows: Rows,
    /// `i32[1, 1]`: takes the token of the row that is drafted from.
    pub id: View,
}

impl Behind<'_> {
    /// Row `i` alone. A drafter's recurrent state is only read by the first.
    fn row(&self, i: u32) -> Rows {
        let (r, one) = (&self.rows, |v: View| v.rows(i, 1));
        Rows { n: 1, ids: self.id, pos: one(r.pos), seq_of: one(r.seq_of), rec_to: one(r.rec_to), ..*r }
    }
    /// Drafts row by row, each from the token that `choose` took from the logits before; `bring` sees to it that its
    /// embedding can be looked up. A dry run does one row.
    pub fn draft(
        &self,
        dev: &mut dyn Device,
        (w, st): (&Resident, &State),
        first: u32,
        experts: &mut dyn ExpertSource,
        bring: &mut dyn FnMut(&mut dyn Device, u32) -> Result<()>,
        choose: &mut dyn FnMut(&mut [f32]) -> Option<u32>,
    ) -> Result<Vec<u32>> {
        dev.scope(Region::Step, |dev| {
            let mut states = [self.take(dev, self.hidden)?, self.take(dev, self.hidden)?];
            let logits = self.take(dev, self.vocab)?;
            let (mut ids, mut last) = (Vec::new(), first);
            for i in 0..self.rows.n {
                bring(dev, last)?;
                // An id beyond i32 is in no vocabulary.
                dev.write_i32(self.id, &[i32::try_from(last).unwrap_or(-1)])?;
                let r = self.row(i);
                Cx { dev: &mut *dev, w, st, tile: u32::MAX }.scope(|cx| {
                    let before = if i == 0 { self.drafter.recall(cx, &r)? } else { states[0] };
                    self.drafter.draft(cx, &r, before, states[1], experts)?;
                    self.drafter.logits(cx, &r, states[1], logits)
                })?;
                states.swap(0, 1);
                let mut read = match dev.read_f32(logits) {
                    Err(device::Error::Dry) => break,
                    other => other?,
                };
                let Some(id) = choose(&mut read) else { break };
                ids.push(id);
                last = id;
            }
            Ok(ids)
        })
    }
    fn take(&self, dev: &mut dyn Device, cols: u32) -> device::Result<View> {
        dev.take(Region::Step, Act::F32, 1, cols)
    }
}

/// What a round of speculation came to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// Tokens that were drafted.
    pub drafted: u32,
    /// Tokens that were chosen, at least one; the sequence has as many positions more.
    pub made: u32,
}

/// One round: up to `n` tokens are drafted behind `first`, the newest token, which the sequence does not have yet, and one
/// pass of class Few verifies them. `guess` drafts from logits the token at a position; `choose` chooses it from the
/// model's own, and says `None` where the answer ends. A draft counts where the chosen token is the same, so the tokens are
/// those of plain decoding, whatever `guess` does.
///
/// # Errors
/// Those of [`Executor::draft`], [`Executor::verify`] and `choose`.
pub fn round(
    exec: &mut Executor,
    seq: SeqId,
    (first, n): (u32, u32),
    mut guess: impl FnMut(&mut [f32], u32) -> Option<u32>,
    mut choose: impl FnMut(&mut [f32], u32) -> Result<Option<u32>>,
) -> Result<Made> {
    let next = exec.len(seq)? + 1;
    let mut at = next;
    let drafts = exec.draft(seq, first, n, &mut |logits| {
        at += 1;
        guess(logits, at - 1)
    })?;
    let rows: Vec<u32> = std::iter::once(first).chain(drafts.iter().copied()).collect();
    let vocab = exec.family().spec().vocab as usize;
    let (mut made, mut failed) = (0, None);
    exec.verify(seq, &rows, |logits| {
        for (row, position) in logits.chunks_exact_mut(vocab).zip(next..) {
            let draft = drafts.get(made as usize);
            made += 1;
            match choose(row, position) {
                Ok(Some(id)) if draft == Some(&id) => {}
                Ok(_) => break,
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        made
    })?;
    failed.map_or(Ok(Made { drafted: drafts.len() as u32, made }), Err)
}
