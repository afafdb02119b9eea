//! A head that gives its room to prompts while they are read.
//!
//! ```text
//! answers: [ head | filler ]  -- a segment begins -->  prompts: [ workspace of segments | filler ]
//!                             <-- logits are wanted --
//! ```
//! The room is paid for all the time, as large as the larger of the two, so nobody else can take it in between. Where the
//! head cannot be read, the room is empty, whoever wanted logits fails, and the next who does tries again.

use super::{Executor, Leased};
use crate::error::Result;
use crate::plan::last_row_bytes;
use checkpoint::Checkpoint;
use device::{Act, Device, Op, Region, View};
use memory::{Class, Component, Ledger, Plan, Reservation};
use model::{Carry, Family};
use std::time::Instant;
use weights::{Bound, Lease, Weights};

/// The head, and the room that it is in by turns.
pub(super) struct Turns {
    lease: Lease,
    figures: Leased,
    /// Bytes of the room.
    room: u64,
    /// What pays for what of it nobody is in.
    filler: Option<Reservation>,
    /// What pays for the workspace of segments, while it is theirs.
    aside: Option<Reservation>,
    /// What the last row of a segment carries: its streams, `f32[1, width]` each.
    last: Vec<View>,
}

impl Turns {
    /// An empty room, where the plan has one.
    pub fn new(
        ck: &Checkpoint,
        bounds: &[Bound],
        (family, plan): (&dyn Family, &Plan),
        ledger: &Ledger,
        weights: &mut Weights,
        dev: &mut dyn Device,
    ) -> Result<Option<Self>> {
        if plan.head_bytes() == 0 {
            return Ok(None);
        }
        let head = bounds.iter().filter(|b| b.component == Component::Head).cloned().collect();
        let lease = Lease::planned(ck, head);
        weights.expect(&lease);
        let paid = ledger.reserve_planned(plan.tier, Class::Workspace, "last row", last_row_bytes(family))?;
        let (all, carry) = (dev.alloc(paid)?, family.carry());
        let bytes = u64::from(carry.width) * 4;
        let stream = |i| all.slice(u64::from(i) * bytes, bytes).map(|b| View::dense(b, Act::F32, 1, carry.width));
        let last = (0..carry.streams).map(stream).collect::<Option<_>>().ok_or(device::Error::BadBuf)?;
        let (figures, room) = (Leased { bytes: lease.bytes(), ..Leased::default() }, plan.aside.max(plan.head_bytes()));
        let mut turns = Turns { lease, figures, room, filler: None, aside: None, last };
        turns.fill(plan, ledger, room)?;
        Ok(Some(turns))
    }
    /// Pays for `bytes` of the room that nobody is in.
    fn fill(&mut self, plan: &Plan, ledger: &Ledger, bytes: u64) -> Result<()> {
        self.filler = Some(ledger.reserve_planned(plan.tier, Class::Workspace, "room of head and prompts", bytes)?);
        Ok(())
    }
}

impl Executor {
    /// Brings the head, where it is away: what follows wants logits.
    pub(super) fn need_head(&mut self) -> Result<()> {
        if self.turns.as_ref().is_none_or(|t| t.lease.is_here()) {
            return Ok(());
        }
        if self.carrying && self.under_way.strong_count() > 0 {
            // Its rows are in the room.
            return Err(weights::Error::NotLoaded("the head, while a prompt is read".into()).into());
        }
        // What a dropped segment took is nobody's.
        self.close_carry();
        let Some(t) = &mut self.turns else { return Ok(()) };
        let begun = Instant::now();
        self.dev.release_workspace(Region::Carry, 0)?;
        self.dev.release_workspace(Region::Step, self.plan.step_with_head())?;
        (t.aside, t.filler) = (None, None);
        let came = self.weights.attach(&mut t.lease, &self.ledger, self.dev.as_mut());
        t.figures.here = came.is_ok();
        let taken = if came.is_ok() { self.plan.head_bytes() } else { 0 };
        t.fill(&self.plan, &self.ledger, t.room - taken)?;
        match came {
            Ok(()) => {
                t.figures.attached += 1;
                t.figures.last = begun.elapsed();
                t.figures.attaching += t.figures.last;
                Ok(())
            }
            Err(e) => {
                t.figures.refused += 1;
                Err(e.into())
            }
        }
    }

    /// Lets the head go: a segment begins.
    pub(super) fn need_segments(&mut self) -> Result<()> {
        let Some(t) = self.turns.as_mut().filter(|t| t.aside.is_none()) else { return Ok(()) };
        t.figures.here = false;
        self.weights.release(&mut t.lease, self.dev.as_mut())?;
        t.filler = None;
        let (plan, aside) = (&self.plan, self.plan.aside);
        t.aside = Some(self.ledger.reserve_planned(plan.tier, Class::Workspace, "segments", aside)?);
        t.fill(plan, &self.ledger, t.room - aside)
    }

    /// What became of the head, where it is leased; `None` where it is there all the time.
    pub fn head(&self) -> Option<Leased> {
        self.turns.as_ref().map(|t| t.figures)
    }

    /// Copies row `row` of a segment to where it stays when the segment's workspace is gone.
    pub(super) fn keep_last(&mut self, x: &Carry, row: u32) -> Result<Option<Carry>> {
        let Some(t) = &self.turns else { return Ok(None) };
        let rows = self.pick.rows(0, 1);
        self.dev.write_i32(rows, &[row as i32])?;
        for (&out, &x) in t.last.iter().zip(&x.streams) {
            self.dev.run(Op::GatherRows { out, x, rows })?;
        }
        Ok(Some(Carry { streams: t.last.iter().copied().collect(), side: None }))
    }

    /// Whether the head takes turns with segments.
    pub(super) fn takes_turns(&self) -> bool {
        self.turns.is_some()
    }
}
