//! The states of requests, and the choice of the next step.

use super::costs::{Costs, GRID};
use super::pace::{Pace, Token};
use super::queue::{Queue, Waiting};
use super::{Ask, Id, Limits, Outcome, Refused, Report, Room, Step};
use memory::PAGE_POSITIONS;
use memory::pages::pages_for;
use std::time::Duration;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Its sequence is being opened.
    Opening,
    /// Its prompt is read; a slice of so many rows has so many layers left.
    Reading {
        slice: Option<(u32, u32)>,
    },
    Decoding,
    /// Over; its sequence is still open.
    Over,
}

#[derive(Clone, Debug)]
struct Running {
    id: Id,
    ask: Ask,
    phase: Phase,
    /// Positions it has.
    len: u32,
    /// Pages that are set aside for it.
    pages: u32,
    marks: Box<[u32]>,
}

/// The scheduler.
#[derive(Clone, Debug)]
pub struct Schedule {
    limits: Limits,
    costs: Costs,
    queue: Queue,
    /// In the order in which they began.
    running: Vec<Running>,
    /// The step that was given out and not reported yet.
    given: Option<Step>,
    /// How prompts and answers share time.
    pace: Pace,
    /// Whether answers had the last turn beside a prompt.
    answered: bool,
    /// Who decodes first when not all fit into a step.
    turn: usize,
}

impl Schedule {
    /// Nobody is there yet.
    pub fn new(limits: Limits) -> Self {
        let (costs, queue, pace, running) = (Costs::default(), Queue::default(), Pace::default(), Vec::new());
        Schedule { limits, costs, queue, running, given: None, pace, answered: false, turn: 0 }
    }

    /// Takes a request; its place in the queue, 0 where it can begin at once. Slices of its prompt end at `marks`, which
    /// rise.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn arrive(&mut self, id: Id, ask: Ask, marks: &[u32]) -> Result<u32, Refused> {
        let pages = self.wanted(&ask);
        if ask.prompt >= self.limits.context || pages > self.limits.pages {
            return Err(Refused::Never { most_prompt: self.most_prompt(&ask) });
        }
        let next = self.queue.len() == 0 && self.has_place() && pages <= self.free();
        if !next && self.queue.len() >= self.limits.places {
            return Err(Refused::Full { places: self.limits.places });
        }
        self.queue.push(Waiting { id, ask, pages, passed: 0, marks: marks.into() });
        Ok(if next { 0 } else { self.queue.len() })
    }

    /// Forgets a request: one that waits at once, one that runs by a [`Step::Close`]. Others are not changed.
    pub fn cancel(&mut self, id: Id) {
        if !self.queue.remove(id)
            && let Some(r) = self.running.iter_mut().find(|r| r.id == id)
        {
            r.phase = Phase::Over;
        }
    }

    /// Whoever drafts is away; bringing it back takes so long. Answers are made without drafts for a while.
    pub fn drafter_left(&mut self, coming: Duration) {
        self.costs.left(coming);
    }

    /// Requests that wait, with their places.
    pub fn waiting(&self) -> impl Iterator<Item = (Id, u32)> {
        self.queue.iter().map(|w| w.id).zip(1..)
    }
    /// Requests that were opened and not closed.
    pub fn running(&self) -> u32 {
        self.running.len() as u32
    }
    /// Pages set aside for a request that runs; 0 for others.
    pub fn set_aside(&self, id: Id) -> u32 {
        self.running.iter().find(|r| r.id == id).map_or(0, |r| r.pages)
    }
    /// Pages set aside for those that run.
    pub fn pages(&self) -> u32 {
        self.running.iter().map(|r| r.pages).sum()
    }

    #[cfg(test)]
    pub(super) fn limits_for_tests(&mut self) -> &mut Limits {
        &mut self.limits
    }

    /// The next step. It is reported by [`done`](Self::done) before the next one is asked for.
    pub fn step(&mut self) -> Step {
        debug_assert!(self.given.is_none(), "a step is under way");
        let step = self.choose();
        self.given = (step != Step::Idle).then(|| step.clone());
        step
    }

    /// How the last step went. Without one under way nothing happens.
    pub fn done(&mut self, (outcome, took): Report) {
        let Some(step) = self.given.take() else { return };
        match (step, outcome) {
            (Step::Close(id), _) => self.running.retain(|r| r.id != id),
            (Step::Stop(id, _), _) => self.over(id),
            (step, Outcome::Failed) => ids(&step).into_iter().for_each(|id| self.over(id)),
            (Step::Open(id), Outcome::Opened { kept }) => {
                self.with(id, |r| (r.len, r.phase) = (kept.min(r.ask.prompt - 1), Phase::Reading { slice: None }));
            }
            (Step::Read { id, rows, layers }, Outcome::Read { ended }) => {
                let from = self.limits.layers.max(1) - self.layers_left(id);
                self.costs.read(rows, from..from + layers, took);
                // Alone a prompt takes time from nobody.
                if self.decoding() > 0 {
                    self.pace.read(took.as_secs_f64());
                }
                self.answered = false;
                self.read_on(id, rows, layers, ended);
            }
            (Step::Decode(ids), Outcome::Decoded { ended }) => {
                self.decoded(ids.len() as u32, took);
                ids.iter().for_each(|&id| self.with(id, |r| r.len += 1));
                ended.into_iter().for_each(|id| self.over(id));
            }
            (Step::Speculate { id, .. }, Outcome::Speculated { drafted, made, ended }) => {
                self.costs.speculated(drafted, made, took);
                self.answered(1, took);
                self.with(id, |r| r.len += made);
                if ended {
                    self.over(id);
                }
            }
            // Whoever drafts could not come.
            (Step::Speculate { id, .. }, Outcome::Decoded { ended }) => {
                self.decoded(1, took);
                self.with(id, |r| r.len += 1);
                ended.into_iter().for_each(|id| self.over(id));
            }
            // An outcome of another step: whoever carries steps out is at fault, and no request may hang for it.
            (step, _) => ids(&step).into_iter().for_each(|id| self.over(id)),
        }
    }

    fn choose(&mut self) -> Step {
        if let Some(r) = self.running.iter().find(|r| r.phase == Phase::Over) {
            return Step::Close(r.id);
        }
        if let Some(stop) = self.make_room() {
            return stop;
        }
        if let Some(open) = self.admit() {
            return open;
        }
        match (self.reading(), self.decoding()) {
            (None, 0) => Step::Idle,
            (Some(r), 0) => self.read(r, None),
            (Some(r), n) if self.answered => {
                let (token, need) = (self.token(n as u32), self.need(r));
                match self.pace.budget(token, need) {
                    Some(budget) => self.read(r, Some(budget)),
                    None => self.decode(n),
                }
            }
            (_, n) => self.decode(n),
        }
    }

    /// How many answers are made.
    fn decoding(&self) -> usize {
        self.running.iter().filter(|r| r.phase == Phase::Decoding).count()
    }
    /// Whose prompt is read.
    fn reading(&self) -> Option<usize> {
        self.running.iter().position(|r| matches!(r.phase, Phase::Reading { .. }))
    }

    /// A plain step of so many rows was done.
    fn decoded(&mut self, rows: u32, took: Duration) {
        self.costs.decoded(rows, !self.answered, took);
        self.answered(rows, took);
    }
    /// So many answers got a token, or one a round.
    fn answered(&mut self, n: u32, took: Duration) {
        let beside = self.reading().map(|_| self.token(n));
        self.pace.answered(beside, took.as_secs_f64());
        self.answered = true;
    }

    /// Sets pages aside for answers that outgrew theirs; ends one for which there are none.
    fn make_room(&mut self) -> Option<Step> {
        // A round may make so many positions at once, but never needs them all.
        let (context, mut free) = (self.limits.context, self.free());
        for r in self.running.iter_mut().filter(|r| r.phase == Phase::Decoding) {
            if r.len >= context {
                return Some(Step::Stop(r.id, Room::Context));
            }
            if r.len < r.pages * PAGE_POSITIONS {
                continue;
            }
            if free == 0 {
                return Some(Step::Stop(r.id, Room::Pages));
            }
            (r.pages, free) = (r.pages + 1, free - 1);
        }
        None
    }

    fn admit(&mut self) -> Option<Step> {
        if !self.has_place() {
            return None;
        }
        let Waiting { id, ask, pages, marks, .. } = self.queue.take(self.free(), self.limits.bypass)?;
        self.running.push(Running { id, ask, phase: Phase::Opening, len: 0, pages, marks });
        Some(Step::Open(id))
    }

    /// What a token takes beside `n` answers. What was never seen takes no time, so that only the least is read beside it.
    fn token(&self, n: u32) -> Token {
        let (solo, now) = match self.drafts(n) {
            0 => (self.costs.decode_s(1), self.costs.behind_s(n)),
            k => (self.costs.round_s(k), self.costs.round_s(k)),
        };
        Token { solo: solo.unwrap_or(0.0), now: now.unwrap_or(0.0), patience: self.limits.patience }
    }
    /// Seconds of the least that can be read next.
    fn need(&self, at: usize) -> Option<f64> {
        let (r, of) = (&self.running[at], self.limits.layers.max(1));
        match r.phase {
            Phase::Reading { slice: Some((rows, left)) } => self.costs.pieces_s(rows, of - left..of - left + 1),
            _ => self.costs.dearest_s(GRID.min(r.ask.prompt - r.len), of),
        }
    }
    /// Layers that the slice under way, or the next one, still has.
    fn layers_left(&self, id: Id) -> u32 {
        match self.running.iter().find(|r| r.id == id).map(|r| r.phase) {
            Some(Phase::Reading { slice: Some((_, left)) }) => left,
            _ => self.limits.layers.max(1),
        }
    }

    fn read(&self, at: usize, budget: Option<f64>) -> Step {
        let (r, of) = (&self.running[at], self.limits.layers.max(1));
        let (rows, layers) = match r.phase {
            Phase::Reading { slice: Some((rows, left)) } => (rows, self.costs.layers(rows, of - left..of, budget)),
            _ => {
                let next = r.marks.iter().find(|&&m| m > r.len).map_or(r.ask.prompt, |&m| m.min(r.ask.prompt));
                self.costs.slice(next - r.len, self.limits.chunk, of, budget)
            }
        };
        Step::Read { id: r.id, rows, layers }
    }

    fn read_on(&mut self, id: Id, rows: u32, layers: u32, ended: bool) {
        let left = self.layers_left(id);
        self.with(id, |r| match left.saturating_sub(layers) {
            0 => {
                r.len += rows;
                let more = r.len < r.ask.prompt;
                r.phase = if more { Phase::Reading { slice: None } } else { Phase::Decoding };
            }
            left => r.phase = Phase::Reading { slice: Some((rows, left)) },
        });
        if ended {
            self.over(id);
        }
    }

    fn drafts(&self, decoding: u32) -> u32 {
        let mut alone = self.running.iter().filter(|r| r.phase == Phase::Decoding);
        match (decoding, alone.next()) {
            (1, Some(r)) if r.ask.drafts => {
                // A round may not outgrow what is set aside: its rows are one more than its drafts.
                let room = (r.pages * PAGE_POSITIONS).min(self.limits.context).saturating_sub(r.len);
                // Nor make more than was asked for.
                let made = (r.len + 1).saturating_sub(r.ask.prompt);
                let wanted = r.ask.most.map_or(u32::MAX, |m| m.saturating_sub(made));
                let most = [self.limits.drafts, room.saturating_sub(1), wanted.saturating_sub(1)];
                self.costs.drafts(most.into_iter().min().unwrap_or(0))
            }
            _ => 0,
        }
    }

    fn decode(&mut self, n: usize) -> Step {
        let all: Vec<Id> = self.running.iter().filter(|r| r.phase == Phase::Decoding).map(|r| r.id).collect();
        match self.drafts(n as u32) {
            0 => {}
            drafts => return Step::Speculate { id: all[0], drafts },
        }
        let most = (self.limits.few.max(1) as usize).min(n);
        if most == n {
            return Step::Decode(all);
        }
        let some = (0..most).map(|i| all[(self.turn + i) % n]).collect();
        self.turn = (self.turn + most) % n;
        Step::Decode(some)
    }

    fn over(&mut self, id: Id) {
        self.with(id, |r| r.phase = Phase::Over);
    }
    /// One that is over stays so.
    fn with(&mut self, id: Id, f: impl FnOnce(&mut Running)) {
        if let Some(r) = self.running.iter_mut().find(|r| r.id == id && r.phase != Phase::Over) {
            f(r);
        }
    }
    fn has_place(&self) -> bool {
        self.running() < self.limits.parallel
    }
    fn free(&self) -> u32 {
        self.limits.pages.saturating_sub(self.pages())
    }
    /// Positions of the answer that are set aside.
    fn guaranteed(&self, ask: &Ask) -> u32 {
        ask.most.unwrap_or(u32::MAX).min(self.limits.guarantee)
    }
    fn wanted(&self, ask: &Ask) -> u32 {
        pages_for(ask.prompt.saturating_add(self.guaranteed(ask)).min(self.limits.context))
    }
    fn most_prompt(&self, ask: &Ask) -> u32 {
        let room = self.limits.pages.saturating_mul(PAGE_POSITIONS);
        let room =
            if room >= self.limits.context { self.limits.context } else { room.saturating_sub(self.guaranteed(ask)) };
        room.min(self.limits.context.saturating_sub(1))
    }
}

/// The requests that a step is for.
pub(super) fn ids(step: &Step) -> Vec<Id> {
    match step {
        Step::Open(id) | Step::Read { id, .. } | Step::Speculate { id, .. } | Step::Stop(id, _) | Step::Close(id) => {
            vec![*id]
        }
        Step::Decode(all) => all.clone(),
        Step::Idle => Vec::new(),
    }
}
