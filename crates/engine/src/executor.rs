//! The executor: carries out steps, decides nothing.
//!
//! A pass is embed, then for each layer `mix` and `ffn`, then the head for the rows that are asked for. Decode passes
//! of models whose experts are resident run inside a device graph, which forbids the host to touch the device in them.

mod ahead;
mod head;
mod lease;
mod segment;
mod share;
mod tables;

use crate::error::{Error, Result};
use crate::machine::Watch;
use crate::plan::{limits, pick_bytes, step_rows, streams};
use crate::stream::{MakeReader, Streamed, stream_layers};
use checkpoint::Checkpoint;
use device::{Act, Device, GraphKey, Op, Region, RowClass, Rows, View};
use memory::{Class, Component, KvSpec, LayerPlan, Ledger, Order, Plan, Reservation, Tier, TierUsage};
use model::{Carry, Cx, Drafter, Family};
use state::{Recurrent, SeqId, Span, State};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weights::{
    Bound, CacheStats, ExpertSource, Listener, Progress, Resident, Role, SharedStats, Tap, Tapped, WId, Weights, Window,
};

pub use lease::Leased;
pub(crate) use segment::Through;
pub use segment::{OnMark, Passed, Segment};
use tables::SideRows;

/// The operands of one pass over a step's rows.
pub(crate) struct Pass<'a> {
    pub family: &'a dyn Family,
    pub resident: &'a Resident,
    pub state: &'a State,
    pub rows: &'a Rows,
    /// `i32[m, 1]` indices of the rows whose logits are wanted.
    pub pick: Option<View>,
    /// `f32[n, width]`: what was read for the rows' ids.
    pub side: Option<View>,
    /// Whether the pass may be captured, and which of several it is then.
    pub graph: Option<u32>,
    /// How many of the likeliest ids of each picked row are wanted in place of its logits; they come back as `i32[m, 2 k]`,
    /// bit by bit in floats.
    pub likeliest: Option<u32>,
    /// Who follows the pass in order to draft behind it.
    pub drafter: Option<&'a dyn Drafter>,
    /// Where the drafter's logits of all rows go, where they are wanted now.
    pub foretold: Option<View>,
}

/// Runs a pass; returns the logits `[m, vocab]`, read back, or `None` where no rows are picked or nothing can be read
/// (dry runs).
pub(crate) fn pass(dev: &mut dyn Device, p: Pass, experts: &mut dyn ExpertSource) -> Result<Option<Vec<f32>>> {
    let spec = p.family.spec();
    dev.scope(Region::Step, |dev| {
        let carry = p.family.carry();
        let streams = (0..carry.streams)
            .map(|_| dev.take(Region::Step, Act::F32, p.rows.n, carry.width))
            .collect::<Result<_, _>>()?;
        let mut x = Carry { streams, side: p.side };
        let logits = p.pick.map(|v| dev.take(Region::Step, Act::F32, v.rows, spec.vocab)).transpose()?;
        let best = match (p.likeliest, logits) {
            (Some(k), Some(l)) => Some(dev.take(Region::Step, Act::I32, l.rows, 2 * k)?),
            _ => None,
        };
        let mut body = |dev: &mut dyn Device| layers(dev, &p, &mut x, (logits, best), experts);
        match p.graph {
            Some(which) => dev.graph(GraphKey { rows: p.rows.n, seqs: p.rows.seqs, which }, &mut body),
            None => body(dev),
        }?;
        let read = best.map(|b| View { ty: Act::F32, ..b }).or(logits);
        match read.map(|l| dev.read_f32(l)).transpose() {
            Err(device::Error::Dry) => Ok(None),
            other => Ok(other?),
        }
    })
}

fn layers(
    dev: &mut dyn Device,
    p: &Pass,
    x: &mut Carry,
    (logits, best): (Option<View>, Option<View>),
    experts: &mut dyn ExpertSource,
) -> Result<()> {
    let mut cx = Cx { dev, w: p.resident, st: p.state, tile: u32::MAX };
    p.family.embed(&mut cx, p.rows, x)?;
    for l in 0..p.family.spec().n_layers {
        experts.enter(cx.dev, l)?;
        p.family.mix(&mut cx, l, p.rows, x)?;
        if p.rows.class == RowClass::Few && experts.wants_hints(l + 1) {
            foresee(&mut cx, p, l + 1, x, experts)?;
        }
        p.family.ffn(&mut cx, l, p.rows, x, experts)?;
    }
    if let (Some(pick), Some(logits)) = (p.pick, logits) {
        p.family.head(&mut cx, p.rows, pick, x, logits)?;
        if let Some(out) = best {
            cx.dev.run(Op::Likeliest { out, x: logits })?;
        }
    }
    match p.drafter {
        Some(d) => Ok(cx.scope(|cx| crate::draft::follow(cx, d, p.rows, x, p.foretold, experts))?),
        None => Ok(()),
    }
}

/// Asks the router of layer `l` about a hidden state that is not its own yet, and tells the source what it says.
fn foresee(cx: &mut Cx, p: &Pass, l: u32, x: &mut Carry, experts: &mut dyn ExpertSource) -> Result<()> {
    let mut router = Listener::default();
    match p.family.ffn(cx, l, p.rows, x, &mut router) {
        Err(model::Error::Weights(weights::Error::OnlyListening)) | Ok(()) => {}
        Err(e) => return Err(e.into()),
    }
    experts.hint(l, router.heard);
    Ok(())
}

/// Whether a parameter is read when a model is loaded; `keeps` are those that a predictor follows with.
fn loads(plan: &Plan, keeps: &[WId], b: &Bound) -> bool {
    if plan.draft > 0 && keeps.contains(&b.id) {
        return true;
    }
    let (c, layers) = (b.component, plan.layers.as_ref());
    let comes_later =
        |l: &LayerPlan| matches!(c, Component::Layer(n) if b.role == Role::Matrix && l.layers.contains(&n));
    let absent = plan.weights.iter().any(|w| w.component == c && !plan.is_loaded(w.residency));
    !absent && !layers.is_some_and(comes_later)
}

/// Which rows of a prefill give logits.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The last one of each sequence.
    Last,
    /// Every one.
    All,
}

/// The limits that a plan keeps to.
fn budget(plan: &Plan) -> Ledger {
    let host = plan.host.as_ref().map(|h| (Tier::Host, h.guard));
    let ledger = Ledger::new(&[(plan.tier, plan.guard)].into_iter().chain(host).collect::<Vec<_>>());
    ledger.allow(plan.tier, plan.allowance);
    if let Some(h) = &plan.host {
        ledger.allow(Tier::Host, h.allowance);
    }
    ledger
}

/// A loaded model: weights, state and device.
pub struct Executor {
    family: Box<dyn Family>,
    weights: Weights,
    /// Takes the place of the weights' own source of experts: where not all of them are in memory, and in tests of
    /// arrival order.
    arrivals: Option<Box<dyn ExpertSource + Send>>,
    /// Sees what rows are routed to before experts are asked for.
    tap: Option<Box<dyn Tap>>,
    /// Whether the carry region's scope is open, for a segment.
    carrying: bool,
    /// Whether the segment that was begun last is still there.
    under_way: Weak<()>,
    /// What the cache of experts did, where there is one.
    cache: Option<SharedStats>,
    state: State,
    /// A second history, where the plan has one.
    beside: Option<State>,
    /// Whether `state` is the second one now.
    on_second: bool,
    /// Whether decode steps are recorded once and replayed.
    graphs: bool,
    /// What the step under way reads back instead of logits.
    likeliest: Option<u32>,
    dev: Box<dyn Device>,
    ledger: Ledger,
    watch: Watch,
    plan: Plan,
    /// What bringing the weights took.
    loading: Duration,
    /// `i32[rows, 1]` at a fixed address: every row, where all of them give logits; the token of a draft.
    pick: View,
    /// Rows of a table that are read from the file for a step's ids.
    side: Option<SideRows>,
    /// Rows of the embedding, where it stays in its file.
    embed: Option<Window>,
    /// The part of the predictor that is in memory only while tokens are drafted, where the plan leases it.
    lease: Option<lease::Predictor>,
    /// The head, where it gives its room to prompts while they are read.
    turns: Option<head::Turns>,
    /// What pays for the device's arena, but for what is the head's by turns.
    _workspace: Reservation,
}

impl Executor {
    /// Loads what the plan says is resident.
    ///
    /// # Errors
    /// Those of file, device and budget.
    pub fn load(
        family: Box<dyn Family>,
        ck: &Checkpoint,
        bounds: &[Bound],
        plan: Plan,
        mut dev: Box<dyn Device>,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        let ledger = budget(&plan);
        let watch = Watch::begin(ledger.clone());
        let arena = plan.workspace.step + plan.workspace.carry - plan.aside;
        let workspace = ledger.reserve_planned(plan.tier, Class::Workspace, "workspace", arena)?;
        let keeps = family.drafter().map(|d| d.keeps()).unwrap_or_default();
        let loaded = |b: &Bound| loads(&plan, &keeps, b);
        let lease = (plan.leased_bytes() > 0).then(|| {
            let comes_and_goes = |b: &&Bound| b.component == Component::Mtp && !loaded(b);
            lease::Predictor::new(ck, bounds.iter().filter(comes_and_goes).cloned().collect())
        });
        let begun = Instant::now();
        let mut weights = Weights::open(ck, bounds, loaded, &ledger, dev.as_mut(), on_progress)?;
        let loading = begun.elapsed();
        let all = |kv: &[KvSpec]| streams(family.as_ref(), kv, plan.draft);
        let mut history = |kv: &[KvSpec]| State::new(&all(kv), limits(&plan), &ledger, dev.as_mut());
        let state = history(&plan.kv)?;
        let beside = if plan.beside.is_empty() { None } else { Some(history(&plan.beside)?) };
        let paid = ledger.reserve_planned(plan.tier, Class::Workspace, "row choice", pick_bytes(&plan))?;
        let pick = View::dense(dev.alloc(paid)?, Act::I32, step_rows(&plan), 1);
        let side = SideRows::new(family.as_ref(), ck, bounds, &plan, &ledger, dev.as_mut())?;
        let turns = head::Turns::new(ck, bounds, (family.as_ref(), &plan), &ledger, &mut weights, dev.as_mut())?;
        let embed = tables::window(ck, bounds, &plan, &ledger, &mut weights, dev.as_mut())?;
        let mut exec = Executor {
            family,
            weights,
            arrivals: None,
            tap: None,
            carrying: false,
            under_way: Weak::new(),
            cache: None,
            state,
            beside,
            on_second: false,
            graphs: true,
            likeliest: None,
            dev,
            ledger,
            watch,
            plan,
            loading,
            pick,
            side,
            embed,
            lease,
            turns,
            _workspace: workspace,
        };
        exec.stream(ck, bounds, None)?;
        Ok(exec)
    }
    /// Makes the cache that the plan says, if it says one. `make` takes the place of this machine's usual reader.
    fn stream(&mut self, ck: &Checkpoint, bounds: &[Bound], make: Option<MakeReader>) -> Result<()> {
        let resident = self.weights.experts().clone();
        if let Some(slots) = &self.plan.slots {
            let (_, top_k) = self.family.spec().experts.unwrap_or_default();
            let of = Streamed { ck, bounds, slots, top_k, ledger: &self.ledger };
            let cache = of.cache(resident.clone(), self.dev.as_mut(), make)?;
            self.cache = Some(cache.stats());
            self.arrivals = Some(Box::new(cache));
        }
        let Some(plan) = &self.plan.layers else { return Ok(()) };
        let inner = self.arrivals.take().unwrap_or_else(|| Box::new(resident));
        let (stream, mats) = stream_layers(ck, bounds, plan, &self.ledger, inner, self.dev.as_mut(), make)?;
        self.weights.install(mats);
        self.cache.get_or_insert(stream.stats());
        self.arrivals = Some(Box::new(stream));
        Ok(())
    }
    /// Begins with an empty cache of experts again, and no row of an embedding, whose files are read by what `make` makes: how
    /// tests let reads fail.
    ///
    /// # Errors
    /// Those of files, device and budget.
    pub fn stream_with(&mut self, ck: &Checkpoint, bounds: &[Bound], make: MakeReader) -> Result<()> {
        self.arrivals = None;
        self.embed_with(make)?;
        self.stream(ck, bounds, Some(make))
    }
    /// The figures of the cache of experts, for looking at them while a step runs.
    pub fn cache_figures(&self) -> Option<SharedStats> {
        self.cache.clone()
    }
    /// What the cache of experts did so far; `None` where all experts are in memory.
    pub fn cache(&self) -> Option<CacheStats> {
        self.cache.as_ref().map(SharedStats::get)
    }
    /// What it serves.
    pub fn family(&self) -> &dyn Family {
        self.family.as_ref()
    }
    /// The plan it keeps to.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
    /// The budget.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }
    /// What the memory that the model lies in is used for, as it is now.
    pub fn usage(&self) -> TierUsage {
        self.watch.look();
        self.ledger.usage().remove(&self.plan.tier).unwrap_or_default()
    }
    /// What bringing the weights took.
    pub fn loading(&self) -> Duration {
        self.loading
    }
    /// Whether decode steps are recorded once for each shape and replayed, where the device can (so it is from the
    /// start), or enqueued op by op.
    pub fn set_graphs(&mut self, on: bool) {
        self.graphs = on;
    }
    /// Runs `f` on the second history in place of the first. Sequences belong to the history they were opened on.
    ///
    /// # Errors
    /// [`Error::NoSecondHistory`] where the plan has none; those of `f`.
    pub fn beside<R>(&mut self, f: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let second = self.beside.take().ok_or(Error::NoSecondHistory)?;
        let first = std::mem::replace(&mut self.state, second);
        self.on_second = true;
        let done = f(self);
        self.on_second = false;
        self.beside = Some(std::mem::replace(&mut self.state, first));
        done
    }
    /// The device.
    pub fn device(&mut self) -> &mut dyn Device {
        self.dev.as_mut()
    }
    /// Hands experts out through another source from now on.
    pub fn set_arrivals(&mut self, wrap: impl FnOnce(&weights::ResidentExperts) -> Box<dyn ExpertSource + Send>) {
        self.arrivals = Some(wrap(self.weights.experts()));
    }
    /// Shows what rows are routed to, or lets it be changed, from now on. Steps are not recorded then.
    pub fn set_tap(&mut self, tap: Option<Box<dyn Tap>>) {
        self.tap = tap;
    }
    /// A new, empty sequence. It may grow to the plan's context whatever comes.
    ///
    /// # Errors
    /// When all places are taken; and beside another sequence, when the process holds more than the plan allowed for
    /// and what is left is less than the history of a full sequence.
    pub fn open(&mut self) -> Result<SeqId> {
        self.watch.look();
        self.giving_way(|e| e.state.open())
    }
    /// Lets a sequence go, and the memory of pages that nobody owns then, all but one slab for who comes next.
    ///
    /// # Errors
    /// Those of the state.
    pub fn close(&mut self, s: SeqId) -> Result<()> {
        self.state.close(s)?;
        Ok(self.state.trim(self.dev.as_mut(), 1)?)
    }
    /// Gives a sequence `n` positions of seeded random history, without computing anything.
    ///
    /// # Errors
    /// Those of the state.
    pub fn fill(&mut self, s: SeqId, n: u32, seed: u64) -> Result<()> {
        Ok(self.state.fill(self.dev.as_mut(), s, n, seed)?)
    }
    /// Where the recurrent states of a sequence lie on the [device](Self::device).
    ///
    /// # Errors
    /// Those of the state.
    pub fn recurrent(&self, s: SeqId) -> Result<Vec<Recurrent>> {
        Ok(self.state.recurrent(s)?)
    }
    /// Positions a sequence has.
    pub fn len(&self, s: SeqId) -> Result<u32> {
        Ok(self.state.len(s)?)
    }

    /// One step of class Few: each row appends to its sequence. Logits of every row, row by row.
    ///
    /// # Errors
    /// Those of state and device; nothing is appended then.
    pub fn decode(&mut self, rows: &[(SeqId, u32)]) -> Result<Vec<f32>> {
        let spans: Vec<Span> = rows.iter().map(|(seq, id)| Span { seq: *seq, ids: std::slice::from_ref(id) }).collect();
        let all = vec![1; rows.len()];
        Ok(self.step(RowClass::Few, &spans, Wanted::All, &all)?.unwrap_or_default())
    }

    /// As [`decode`](Self::decode), but of each row only the `k` likeliest ids come back, with their logits, falling: fewer
    /// where fewer are numbers above negative infinity.
    ///
    /// # Errors
    /// As [`decode`](Self::decode), and for a `k` beyond [`LIKELIEST`](device::op::LIKELIEST).
    pub fn decode_likeliest(&mut self, rows: &[(SeqId, u32)], k: u32) -> Result<Vec<Vec<(u32, f32)>>> {
        self.likeliest = Some(k);
        let read = self.decode(rows);
        self.likeliest = None;
        let one = |row: &[f32]| {
            let (ids, logits) = row.split_at(k as usize);
            let ids = ids.iter().map(|x| x.to_bits()).zip(logits.iter().copied());
            ids.filter(|(id, _)| *id != u32::MAX).collect()
        };
        Ok(read?.chunks_exact(2 * k as usize).map(one).collect())
    }

    /// Several rows of one sequence in one pass of class Few; the caller says how many to keep once it has seen the
    /// logits of all of them, which it may alter: they come back as it leaves them.
    ///
    /// # Errors
    /// Those of state and device; nothing is appended then.
    pub fn verify(&mut self, seq: SeqId, ids: &[u32], accept: impl FnOnce(&mut [f32]) -> u32) -> Result<Vec<f32>> {
        self.run(RowClass::Few, &[Span { seq, ids }], Wanted::All, |logits| vec![accept(logits)])
            .map(Option::unwrap_or_default)
    }

    /// Appends a prompt in the plan's order: chunk by chunk, looking at `cancel` between chunks, or segment by segment,
    /// looking at it between layers. Logits as `wanted`.
    ///
    /// # Errors
    /// [`Error::Cancelled`] (chunks and segments done stay), and those of state and device.
    pub fn prefill(
        &mut self,
        seq: SeqId,
        ids: &[u32],
        wanted: Wanted,
        cancel: &AtomicBool,
        on_chunk: &mut dyn FnMut(usize),
    ) -> Result<Vec<f32>> {
        let mut logits = Vec::new();
        let chunk = self.plan.chunk as usize;
        if matches!(self.plan.order, Order::LayerOuter { .. }) && ids.len() > chunk {
            return self.prefill_segments((seq, ids), wanted, cancel, on_chunk);
        }
        let chunks = ids.len().div_ceil(chunk);
        for (i, part) in ids.chunks(chunk).enumerate() {
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            let span = [Span { seq, ids: part }];
            let wants_any = wanted == Wanted::All || i + 1 == chunks;
            let all = [part.len() as u32];
            let got = if wants_any {
                self.step(RowClass::Many, &span, wanted, &all)?
            } else {
                self.step_silently(&span, &all)?
            };
            logits.extend(got.unwrap_or_default());
            on_chunk(part.len());
        }
        Ok(logits)
    }

    fn step(&mut self, class: RowClass, spans: &[Span], wanted: Wanted, accepted: &[u32]) -> Result<Option<Vec<f32>>> {
        self.run(class, spans, wanted, |_| accepted.to_vec())
    }

    fn step_silently(&mut self, spans: &[Span], accepted: &[u32]) -> Result<Option<Vec<f32>>> {
        self.bring_spans(spans)?;
        self.dev.step_begins(RowClass::Many);
        let append = self.giving_way(|e| e.state.reserve(e.dev.as_mut(), RowClass::Many, spans))?;
        let rows = self.state.rows(&append, 0..append.n())?;
        let side = self.read_side(spans)?;
        self.carry_out(append, rows, None, side, |_| accepted.to_vec())
    }

    fn run(
        &mut self,
        class: RowClass,
        spans: &[Span],
        wanted: Wanted,
        accept: impl FnOnce(&mut [f32]) -> Vec<u32>,
    ) -> Result<Option<Vec<f32>>> {
        self.need_head()?;
        self.bring_spans(spans)?;
        self.dev.step_begins(class);
        let append = self.giving_way(|e| e.state.reserve(e.dev.as_mut(), class, spans))?;
        let rows = self.state.rows(&append, 0..append.n())?;
        let pick = match wanted {
            Wanted::Last => self.state.last_rows(&append)?,
            Wanted::All => {
                let all: Vec<i32> = (0..append.n() as i32).collect();
                let pick = self.pick.rows(0, append.n());
                self.dev.write_i32(pick, &all)?;
                pick
            }
        };
        let side = self.read_side(spans)?;
        self.carry_out(append, rows, Some(pick), side, accept)
    }

    /// Reads what the ids of a step need beside their embeddings, never inside a graph.
    fn read_side(&mut self, spans: &[Span]) -> Result<Option<View>> {
        let Some(side) = &mut self.side else { return Ok(None) };
        side.fill(self.dev.as_mut(), spans).map(Some)
    }

    fn carry_out(
        &mut self,
        append: state::Append,
        rows: Rows,
        pick: Option<View>,
        side: Option<View>,
        accept: impl FnOnce(&mut [f32]) -> Vec<u32>,
    ) -> Result<Option<Vec<f32>>> {
        let (resident, own) = self.weights.split();
        let recorded = self.graphs && rows.class == RowClass::Few && self.arrivals.is_none() && self.tap.is_none();
        let graph = recorded.then_some(self.on_second as u32 + 2 * self.likeliest.unwrap_or(0));
        let likeliest = self.likeliest;
        let experts = source(&mut self.arrivals, own);
        let family = self.family.as_ref();
        let drafter = family.drafter().filter(|_| self.plan.draft > 0);
        let foretold = None;
        let state = &self.state;
        let p = Pass { family, resident, state, rows: &rows, pick, side, graph, likeliest, drafter, foretold };
        let dev = self.dev.as_mut();
        let done = tapped(&mut self.tap, experts, |experts| pass(dev, p, experts));
        self.dev.step_ends();
        match done {
            Ok(mut logits) => {
                let accepted = accept(logits.as_deref_mut().unwrap_or_default());
                self.state.commit(append, &accepted)?;
                Ok(logits)
            }
            Err(e) => {
                self.state.rollback(append)?;
                Err(e)
            }
        }
    }
}

/// Where experts come from.
fn source<'a>(
    arrivals: &'a mut Option<Box<dyn ExpertSource + Send>>,
    own: &'a mut dyn ExpertSource,
) -> &'a mut dyn ExpertSource {
    match arrivals {
        Some(a) => a.as_mut(),
        None => own,
    }
}

/// Runs `f` with a source that the tap looks into.
fn tapped<R>(
    tap: &mut Option<Box<dyn Tap>>,
    experts: &mut dyn ExpertSource,
    f: impl FnOnce(&mut dyn ExpertSource) -> R,
) -> R {
    match tap {
        Some(tap) => f(&mut Tapped::new(tap.as_mut(), experts)),
        None => f(experts),
    }
}
