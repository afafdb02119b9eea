//! Segments: rows of a prompt that go through a layer together before the next one begins, so that what a layer reads
//! from disk is read once for all of them.
//!
//! One append holds all rows; their residuals lie in the carry region, so that other sequences may take steps between
//! layers. In each layer `mix` runs chunk by chunk and `ffn` over all rows. Positions commit at the end. Rows are
//! computed on the same grid as in chunks, so the order changes no bit.

use super::{Executor, Wanted, source, tapped};
use crate::error::{Error, Result};
use device::{Act, Device, Region, RowClass, Rows, View};
use memory::Order;
use model::{Carry, Cx, Drafter, Family};
use state::{Append, PART_ROWS, Park, Recurrent, SeqId, Snapshot, Span, State, Taking};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weights::{ExpertSource, Resident};

/// What the stages of a segment work on.
#[derive(Copy, Clone)]
pub(crate) struct Through<'a> {
    pub family: &'a dyn Family,
    pub resident: &'a Resident,
    pub state: &'a State,
    pub append: &'a Append,
    /// Most rows of one `mix` call.
    pub chunk: u32,
    /// Most rows that a feed-forward computes at once.
    pub tile: u32,
    /// Who follows in order to draft behind it.
    pub drafter: Option<&'a dyn Drafter>,
}

/// Rows of the head: where the logits go, and which rows they are of.
pub(crate) struct Logits {
    pub pick: View,
    pub to: View,
}

impl Through<'_> {
    /// Takes what rows carry from layer to layer from the carry region, whose scope is open.
    pub fn carry(&self, dev: &mut dyn Device) -> Result<Carry> {
        let (n, spec) = (self.append.n(), self.family.carry());
        let mut take = |cols| dev.take(Region::Carry, Act::F32, n, cols);
        let streams = (0..spec.streams).map(|_| take(spec.width)).collect::<Result<_, _>>()?;
        let side = self.family.side().map(|s| take(s.width)).transpose()?;
        Ok(Carry { streams, side })
    }
    /// Embeds a part of the rows.
    pub fn embed(&self, dev: &mut dyn Device, x: &Carry, part: &Range<u32>) -> Result<()> {
        let rows = self.state.rows(self.append, part.clone())?;
        let mut here = x.rows(part.start, rows.n);
        self.within(dev, |cx| self.family.embed(cx, &rows, &mut here))
    }
    /// Takes all rows through a layer, `mix` in these parts.
    pub fn layer(
        &self,
        dev: &mut dyn Device,
        l: u32,
        x: &mut Carry,
        parts: &[Range<u32>],
        experts: &mut dyn ExpertSource,
        on_part: &mut dyn FnMut(&mut dyn Device, u32) -> Result<()>,
    ) -> Result<()> {
        experts.enter(dev, l)?;
        for part in parts {
            let rows = self.state.rows(self.append, part.clone())?;
            let mut here = x.rows(part.start, rows.n);
            self.within(dev, |cx| self.family.mix(cx, l, &rows, &mut here))?;
            on_part(dev, part.end)?;
        }
        let all = self.all()?;
        self.within(dev, |cx| self.family.ffn(cx, l, &all, x, experts))?;
        let (experts_of, top_k) = self.family.spec().experts.unwrap_or_default();
        // Short segments read only what they are routed to.
        let most = u64::from(all.n) * u64::from(top_k) >= u64::from(experts_of) && experts_of > 0;
        if most && l + 1 < self.family.spec().n_layers {
            experts.ahead(dev, l + 1)?;
        }
        Ok(())
    }
    /// What a pass leaves for later drafts, and the logits of a part's rows.
    pub fn end(
        &self,
        dev: &mut dyn Device,
        x: &Carry,
        part: &Range<u32>,
        logits: Option<&Logits>,
        experts: &mut dyn ExpertSource,
    ) -> Result<()> {
        let rows = self.state.rows(self.append, part.clone())?;
        let here = x.rows(part.start, rows.n);
        self.within(dev, |cx| {
            if let Some(l) = logits {
                self.family.head(cx, &rows, l.pick, &here, l.to)?;
            }
            match self.drafter {
                Some(d) => cx.scope(|cx| crate::draft::follow(cx, d, &rows, &here, None, experts)),
                None => Ok(()),
            }
        })
    }
    /// All stages with all parts: what a dry run counts.
    pub fn whole(&self, dev: &mut dyn Device, experts: &mut dyn ExpertSource, logit_rows: u32) -> Result<()> {
        dev.scope(Region::Carry, |dev| {
            let mut x = self.carry(dev)?;
            let parts = parts(self.append.n(), self.chunk, &[]);
            parts.iter().try_for_each(|p| self.embed(dev, &x, p))?;
            for l in 0..self.family.spec().n_layers {
                self.layer(dev, l, &mut x, &parts, experts, &mut |_, _| Ok(()))?;
            }
            let vocab = self.family.spec().vocab;
            for part in &parts {
                let n = logit_rows.clamp(1, part.len() as u32);
                let pick = self.state.rows(self.append, part.clone())?.pos.rows(0, n);
                dev.scope(Region::Step, |dev| {
                    let to = dev.take(Region::Step, Act::F32, n, vocab)?;
                    self.end(dev, &x, part, Some(&Logits { pick, to }), experts)
                })?;
            }
            Ok(())
        })
    }
    fn all(&self) -> Result<Rows> {
        Ok(self.state.rows(self.append, 0..self.append.n())?)
    }
    fn within(&self, dev: &mut dyn Device, f: impl FnOnce(&mut Cx) -> model::Result<()>) -> Result<()> {
        let (w, st, tile) = (self.resident, self.state, self.tile);
        Ok(dev.scope(Region::Step, |dev| f(&mut Cx { dev, w, st, tile }))?)
    }
}

/// `n` rows cut after every `chunk` and at `marks`, which are multiples of 64.
fn parts(n: u32, chunk: u32, marks: &[u32]) -> Vec<Range<u32>> {
    let mut ends: Vec<u32> = (1..).map(|i| i * chunk.max(1)).take_while(|&e| e < n).collect();
    ends.extend(marks.iter().copied().filter(|&m| m > 0 && m < n).chain([n]));
    ends.sort_unstable();
    ends.dedup();
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(ends.iter().copied()).map(|(s, e)| s..e).collect()
}

/// Rows of each of as few segments as may be: as even as the grid allows, because a segment of few rows reads as much as
/// one of many.
pub(crate) fn even(n: u32, most: u32) -> u32 {
    let most = most.max(PART_ROWS);
    n.div_ceil(n.div_ceil(most).max(1)).next_multiple_of(PART_ROWS).min(most)
}

/// A segment under way. It ends in [`Executor::finish`] or [`Executor::abandon`]; one that is dropped is rolled back by
/// the next call.
#[derive(Debug)]
#[must_use = "a segment ends in finish or abandon"]
pub struct Segment {
    append: Append,
    /// The next layer.
    layer: u32,
    x: Carry,
    parts: Vec<Range<u32>>,
    marks: Vec<u32>,
    /// Snapshots at marks, with their rows.
    taking: Vec<(u32, Taking)>,
    /// By which one that was dropped is told from one under way.
    _alive: Arc<()>,
}

impl Segment {
    /// Rows.
    pub fn rows(&self) -> u32 {
        self.append.n()
    }
    /// Layers that are done.
    pub fn layers(&self) -> u32 {
        self.layer
    }
}

/// A layer's recurrent state where its rows passed a mark.
#[derive(Copy, Clone, Debug)]
pub struct Passed {
    /// Rows of the segment before the mark.
    pub rows: u32,
    /// The state behind them, to be copied at once: the next rows write over it.
    pub state: Recurrent,
}

/// Told of every recurrent state that passes a mark.
pub type OnMark<'a> = &'a mut dyn FnMut(&mut dyn Device, Passed) -> Result<()>;

impl Executor {
    /// Begins a segment: reserves its rows and embeds them. Other sequences may take steps until it ends. `marks` are rows
    /// at which recurrent states shall be shown as layers pass them: multiples of 64, or the segment's end.
    ///
    /// # Errors
    /// Those of state and device, also where the plan has no segments or not so long ones; [`Error::BadMark`].
    pub fn segment(&mut self, seq: SeqId, ids: &[u32], marks: &[u32]) -> Result<Segment> {
        let n = ids.len() as u32;
        if let Some(&mark) = marks.iter().find(|&&m| m > n || (m < n && !m.is_multiple_of(PART_ROWS))) {
            return Err(Error::BadMark { mark, rows: n });
        }
        self.need_segments()?;
        self.dev.step_begins(RowClass::Many);
        let append = self.giving_way(|e| e.state.reserve_segment(e.dev.as_mut(), Span { seq, ids }))?;
        // One that was dropped was rolled back by this; its room is still taken.
        self.close_carry();
        let parts = parts(n, self.plan.chunk, marks);
        self.dev.arena().open(Region::Carry);
        self.carrying = true;
        match self.embedded(&append, ids, &parts) {
            Ok(x) => {
                let alive = Arc::new(());
                self.under_way = Arc::downgrade(&alive);
                Ok(Segment { append, layer: 0, x, parts, marks: marks.to_vec(), taking: Vec::new(), _alive: alive })
            }
            Err(e) => {
                self.undo(append)?;
                Err(e)
            }
        }
    }

    /// Keeps states and rings at the marks of a segment that was just begun, as long as the ledger has room for them.
    ///
    /// # Errors
    /// Those of the state.
    pub fn keep_at_marks(&mut self, g: &mut Segment, seq: SeqId, park: Park) -> Result<()> {
        let len = self.state.len(seq)?;
        // The last ones are the likeliest to be of use.
        for &rows in g.marks.iter().rev() {
            let Ok(taking) = self.giving_way(|e| e.state.begin_snapshot(len + rows, park)) else { break };
            g.taking.push((rows, taking));
        }
        Ok(())
    }

    fn embedded(&mut self, append: &Append, ids: &[u32], parts: &[Range<u32>]) -> Result<Carry> {
        let (dev, t) = self.through(append);
        let x = t.carry(dev)?;
        for part in parts {
            let ids = &ids[part.start as usize..part.end as usize];
            if let (Some(side), Some(to)) = (&mut self.side, x.side) {
                side.fill_into(self.dev.as_mut(), ids, to.rows(part.start, ids.len() as u32))?;
            }
            self.bring_rows(ids)?;
            let (dev, t) = self.through(append);
            t.embed(dev, &x, part)?;
        }
        self.dev.step_ends();
        Ok(x)
    }

    /// What the stages work on, and the device.
    fn through<'a>(&'a mut self, append: &'a Append) -> (&'a mut dyn Device, Through<'a>) {
        let family = self.family.as_ref();
        let through = Through {
            family,
            resident: self.weights.resident(),
            state: &self.state,
            append,
            chunk: self.plan.chunk,
            tile: self.plan.tile(),
            drafter: family.drafter().filter(|_| self.plan.draft > 0),
        };
        (self.dev.as_mut(), through)
    }

    /// Takes a segment through one more layer; `true` when that was the last.
    ///
    /// # Errors
    /// Those of device, source and `on_mark`. The segment is to be abandoned then.
    pub fn advance(&mut self, g: &mut Segment, on_mark: OnMark) -> Result<bool> {
        let layers = self.family.spec().n_layers;
        if g.layer >= layers {
            return Ok(true);
        }
        self.dev.step_begins(RowClass::Many);
        let (resident, own) = self.weights.split();
        let family = self.family.as_ref();
        let (state, append, l) = (&self.state, &g.append, g.layer);
        let t =
            Through { family, resident, state, append, chunk: self.plan.chunk, tile: self.plan.tile(), drafter: None };
        let (marks, taking) = (&g.marks, &mut g.taking);
        let mut on_part = |dev: &mut dyn Device, rows: u32| {
            for (_, t) in taking.iter_mut().filter(|(at, _)| *at == rows) {
                state.take_layer(dev, append, l, t)?;
            }
            let here = marks.contains(&rows).then(|| state.recurrent_of(append, l)).transpose()?.flatten();
            here.map_or(Ok(()), |state| on_mark(dev, Passed { rows, state }))
        };
        let (dev, experts) = (self.dev.as_mut(), source(&mut self.arrivals, own));
        let done = tapped(&mut self.tap, experts, |ex| t.layer(dev, l, &mut g.x, &g.parts, ex, &mut on_part));
        self.dev.step_ends();
        done?;
        g.layer += 1;
        Ok(g.layer == layers)
    }

    /// Ends a segment that went through all layers: its positions become the sequence's. Logits as `wanted`, none where
    /// that is `None`.
    ///
    /// # Errors
    /// [`Error::Unfinished`] before the last layer, and those of state and device. The segment is rolled back then.
    pub fn finish(&mut self, g: Segment, wanted: Option<Wanted>) -> Result<Vec<f32>> {
        self.finish_keeping(g, wanted).map(|(logits, _)| logits)
    }

    /// The same, and what was [kept at marks](Self::keep_at_marks), by position.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn finish_keeping(&mut self, mut g: Segment, wanted: Option<Wanted>) -> Result<(Vec<f32>, Vec<Snapshot>)> {
        let (done, of) = (g.layer, self.family.spec().n_layers);
        let ended = if done == of { self.ends(&mut g, wanted) } else { Err(Error::Unfinished { done, of }) };
        match ended {
            Ok(logits) => {
                let n = g.append.n();
                let kept = g.taking.drain(..).rev().filter_map(|(_, t)| self.state.end_snapshot(t)).collect();
                self.close_carry();
                self.state.commit(g.append, &[n])?;
                Ok((logits, kept))
            }
            Err(e) => {
                self.undo(g.append)?;
                Err(e)
            }
        }
    }

    fn ends(&mut self, g: &mut Segment, wanted: Option<Wanted>) -> Result<Vec<f32>> {
        self.dev.step_begins(RowClass::Many);
        let mut all = Vec::new();
        let turns = self.takes_turns();
        for part in &g.parts.clone() {
            let n = part.len() as u32;
            let pick: Vec<i32> = match wanted {
                Some(Wanted::Last) if turns => Vec::new(),
                Some(Wanted::All) => (0..n as i32).collect(),
                Some(Wanted::Last) if part.end == g.rows() => vec![n as i32 - 1],
                _ => Vec::new(),
            };
            all.extend(self.ends_part(g, part, &pick)?);
            self.take_beyond(g, part.end)?;
        }
        if turns && wanted == Some(Wanted::Last) {
            all = self.ends_last(g)?;
        }
        self.dev.step_ends();
        Ok(all)
    }

    /// Logits of the last row by a head that takes turns with the segment's workspace.
    fn ends_last(&mut self, g: &Segment) -> Result<Vec<f32>> {
        let (n, vocab) = (g.rows(), self.family.spec().vocab);
        let Some(x) = self.keep_last(&g.x, n - 1)? else { return Ok(Vec::new()) };
        self.close_carry();
        self.need_head()?;
        let pick = self.pick.rows(0, 1);
        self.dev.write_i32(pick, &[0])?;
        let rows = self.state.rows(&g.append, g.parts.last().map_or(0..n, Clone::clone))?;
        let (family, w, st) = (self.family.as_ref(), self.weights.resident(), &self.state);
        self.dev.as_mut().scope(Region::Step, |dev| {
            let to = dev.take(Region::Step, Act::F32, 1, vocab)?;
            family.head(&mut Cx { dev: &mut *dev, w, st, tile: u32::MAX }, &rows, pick, &x, to)?;
            Ok(dev.read_f32(to)?)
        })
    }

    /// Takes what a drafter has behind so many rows, where that is to be kept: its layers lie behind the model's.
    fn take_beyond(&mut self, g: &mut Segment, rows: u32) -> Result<()> {
        let layers = self.state.layers_from(self.family.spec().n_layers);
        for (_, t) in g.taking.iter_mut().filter(|(at, _)| *at == rows) {
            for &l in &layers {
                self.state.take_layer(self.dev.as_mut(), &g.append, l, t)?;
            }
        }
        Ok(())
    }

    /// Logits of the rows `pick` of a part.
    fn ends_part(&mut self, g: &Segment, part: &Range<u32>, pick: &[i32]) -> Result<Vec<f32>> {
        let (m, vocab) = (pick.len() as u32, self.family.spec().vocab);
        let picked = self.pick.rows(0, m);
        if m > 0 {
            self.dev.write_i32(picked, pick)?;
        }
        if self.embed.is_some() && self.plan.draft > 0 {
            // The drafter looks them up again.
            let ids = self.state.rows(&g.append, part.clone())?.ids;
            let ids: Vec<u32> = self.dev.read_i32(ids)?.into_iter().map(|id| id as u32).collect();
            self.bring_rows(&ids)?;
        }
        let (resident, own) = self.weights.split();
        let family = self.family.as_ref();
        let drafter = family.drafter().filter(|_| self.plan.draft > 0);
        let (state, append, chunk, tile) = (&self.state, &g.append, self.plan.chunk, self.plan.tile());
        let t = Through { family, resident, state, append, chunk, tile, drafter };
        self.dev.as_mut().scope(Region::Step, |dev| {
            if m == 0 {
                t.end(dev, &g.x, part, None, own)?;
                return Ok(Vec::new());
            }
            let to = dev.take(Region::Step, Act::F32, m, vocab)?;
            t.end(dev, &g.x, part, Some(&Logits { pick: picked, to }), own)?;
            Ok(dev.read_f32(to)?)
        })
    }

    /// Ends a segment without a trace.
    ///
    /// # Errors
    /// Those of the state.
    pub fn abandon(&mut self, g: Segment) -> Result<()> {
        self.undo(g.append)
    }

    fn undo(&mut self, append: Append) -> Result<()> {
        self.dev.step_ends();
        self.close_carry();
        Ok(self.state.rollback(append)?)
    }

    pub(super) fn close_carry(&mut self) {
        if std::mem::take(&mut self.carrying) {
            self.dev.arena().close(Region::Carry);
        }
    }

    /// Appends a prompt segment by segment.
    pub(super) fn prefill_segments(
        &mut self,
        (seq, ids): (SeqId, &[u32]),
        wanted: Wanted,
        cancel: &AtomicBool,
        on_rows: &mut dyn FnMut(usize),
    ) -> Result<Vec<f32>> {
        let Order::LayerOuter { segment, .. } = self.plan.order else { return Ok(Vec::new()) };
        let each = even(ids.len() as u32, segment) as usize;
        let (mut logits, count) = (Vec::new(), ids.len().div_ceil(each));
        for (i, part) in ids.chunks(each).enumerate() {
            let mut g = self.segment(seq, part, &[])?;
            loop {
                if cancel.load(Ordering::Relaxed) {
                    self.abandon(g)?;
                    return Err(Error::Cancelled);
                }
                match self.advance(&mut g, &mut |_, _| Ok(())) {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(e) => {
                        self.abandon(g)?;
                        return Err(e);
                    }
                }
            }
            let wanted = (wanted == Wanted::All || i + 1 == count).then_some(wanted);
            logits.extend(self.finish(g, wanted)?);
            on_rows(part.len());
        }
        Ok(logits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_at_chunks_and_marks() {
        assert_eq!(parts(100, 64, &[]), [0..64, 64..100]);
        assert_eq!(parts(300, 128, &[64, 128, 300]), [0..64, 64..128, 128..256, 256..300]);
    }

    #[test]
    fn segments_are_as_even_as_the_grid_allows() {
        assert_eq!([even(2048, 1536), even(2048, 2048), even(100, 2048), even(2049, 2048)], [1024, 2048, 128, 1088]);
        assert_eq!(even(1, 64), 64);
    }
}
