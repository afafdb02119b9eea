//! The planner: a dry run of the real forward pass counts every byte before a weight is read.
//!
//! - `ask`: what is asked of a plan, and why it may be refused.
//! - `allowance`: H, foreseen.
//! - `slots`: room for experts that do not all fit.
//! - `head`: whether the head gives its room to prompts while they are read.
//! - `forecast`: how long things will take on a measured machine.
//! - `order`: how prompts go through the layers.
//! - `rows`: whether the embedding stays in its file.

mod allowance;
mod ask;
mod forecast;
mod head;
mod order;
mod rows;
mod slots;

use crate::draft::Behind;
use crate::error::Result;
use crate::executor::{Pass, Through, pass};
use checkpoint::{DType, Format};
use device::{Act, Caps, Device, Layout, Meter, Region, RowClass, ScratchFn, View};
use memory::pages::pages_for;
use memory::{
    Component, HostShare, KvFormat, KvSpec, Ledger, Order, PAGE_POSITIONS, Plan, RegionSizes, Residency, SlotPlan,
    Tier, WeightShare,
};
use model::{Family, Spec};
use state::{Bytes, Decl, Limits, Span, State, Stream};
use std::collections::BTreeMap;
use weights::{Bound, Role, Weights};

pub use allowance::Allowance;
pub use ask::{Ask, Context, Parts, Predictor, Refusal};
pub use forecast::{Forecast, Streamed, forecast};
pub use head::last_row_bytes;
pub use rows::embed_by_rows;
pub use slots::{Slots, StreamAsk};

/// Positions of history that there is room for beside those of a full sequence, for each other one; and positions of an
/// answer that are set aside before it begins.
pub const GUARANTEE: u32 = 8_192;

/// States kept of what was read that there is room for where memory is short: behind the system message, behind the
/// tools, and behind the last two messages.
const LEAST_SNAPSHOTS: u64 = 4;

/// Context taken when nobody says otherwise and it fits.
pub const DEFAULT_CONTEXT: u32 = 65_536;

/// The backend whose workspace is counted.
#[derive(Clone, Debug)]
pub struct Backend {
    /// Its scratch function.
    pub scratch: ScratchFn,
    /// Its caps.
    pub caps: Caps,
    /// How it wants formats to lie.
    pub layout: fn(&Format) -> Layout,
    /// Whose memory it takes.
    pub own: Option<OnCard>,
}

/// What a plan for a device with memory of its own is bounded by.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct OnCard {
    /// The memory.
    pub tier: Tier,
    /// Bytes of it that are free now.
    pub free: u64,
    /// Bytes of it that the driver takes for code, recorded steps and what the backend keeps.
    pub overhead: u64,
    /// Host bytes that files are read into on their way there.
    pub staging: u64,
    /// Host bytes that the driver takes.
    pub driver: u64,
    /// Rows of a prefill step that keep it busy.
    pub rows: u32,
}

/// What plans are made for: a model, and the process around it.
#[derive(Copy, Clone)]
pub struct Subject<'a> {
    /// The architecture.
    pub family: &'a dyn Family,
    /// Its parameters.
    pub bounds: &'a [Bound],
    /// Where it runs.
    pub on: &'a Backend,
    /// What the process will hold besides.
    pub beyond: Allowance,
    /// Whether weights can be read while it runs: not from bytes that are in memory anyway, and not onto a card.
    pub streams: bool,
}

/// Plans a model.
///
/// # Errors
/// [`Refusal`] when it does not fit or cannot be.
pub fn plan(of: Subject, ask: &Ask) -> Result<Plan> {
    slots::enough(of, ask.stream)?;
    if ask.draft == 0 || ask.predictor != Predictor::AsItFits || !can_draft(of) {
        return decided(of, ask);
    }
    let without = decided(of, &Ask { draft: 0, ..ask.clone() })?;
    let left_out = |p: &Plan| embed_by_rows(of.bounds, p).is_some();
    let takes_no_room = |p: &Plan| {
        p.context == without.context && p.slots.is_none() && p.layers.is_none() && left_out(p) == left_out(&without)
    };
    for predictor in [Predictor::Resident, Predictor::Leased] {
        match decided(of, &Ask { predictor, ..ask.clone() }) {
            Ok(p) if takes_no_room(&p) => return Ok(p),
            _ => {}
        }
    }
    Ok(without)
}

/// Whether a model comes with a predictor.
fn can_draft(of: Subject) -> bool {
    of.family.drafter().is_some() && of.bounds.iter().any(|b| b.component == Component::Mtp)
}

fn decided(of: Subject, ask: &Ask) -> Result<Plan> {
    match chosen(of, ask) {
        // Without them more is read twice, and that is all.
        Err(crate::Error::Refused(_)) if ask.snapshots > Some(0) => {
            decided(of, &Ask { snapshots: Some(0), ..ask.clone() })
        }
        other => widened(of, ask, other?),
    }
}

/// A plan whose snapshots and pages are as many as memory allows, at most as many as are of use. Where weights are read from
/// disk all of it is theirs.
fn widened(of: Subject, ask: &Ask, p: Plan) -> Result<Plan> {
    if p.slots.is_some() || p.layers.is_some() {
        return Ok(p);
    }
    let one = state::snapshot_bytes(&streams(of.family, &p.kv, p.draft), &limits(&p));
    let most = ask.snapshots.filter(|_| one > 0).unwrap_or(0);
    let more = |n: u64| Plan { snapshot_bytes: p.snapshot_bytes.map(|b| b.max((n * one).min(most))), ..p.clone() };
    let p = widest(most.checked_div(one).unwrap_or(0), more, |p| counted(of, ask, p))?;
    let (least, most) = (p.pages, limits(&p).most_pages());
    let more = |n: u64| Plan { pages: least + n as u32, ..p.clone() };
    widest(u64::from(most.saturating_sub(least)), more, |p| counted(of, ask, p))
}

/// The plan with the largest number up to `most` that fits; the plan with 0 is known to.
fn widest(most: u64, with: impl Fn(u64) -> Plan, count: impl Fn(Plan) -> Result<Plan>) -> Result<Plan> {
    let all = count(with(most))?;
    if all.fits() {
        return Ok(all);
    }
    let (mut best, mut fits, mut fails) = (None, 0, most);
    while fails - fits > 1 {
        let middle = fits + (fails - fits) / 2;
        let p = count(with(middle))?;
        if p.fits() {
            (best, fits) = (Some(p), middle);
        } else {
            fails = middle;
        }
    }
    best.map_or_else(|| count(with(0)), Ok)
}

fn chosen(of: Subject, ask: &Ask) -> Result<Plan> {
    let model = of.family.spec().context;
    match ask.context {
        Context::Exactly(asked) if asked > model => Err(Refusal::ContextBeyondModel { asked, most: model }.into()),
        Context::Exactly(asked) => {
            let p = at_context(of, ask, asked)?;
            if p.fits() { Ok(p) } else { Err(refused(of, ask, &p)?.into()) }
        }
        Context::Usual => most(of, ask, model.min(DEFAULT_CONTEXT), |p| balanced(of, ask, p)),
        Context::Most => most(of, ask, model, Plan::fits),
    }
}

/// The most positions that fit, at most those of the model, as [`Context::Most`] plans them: exact to the page. `None` where
/// none do.
///
/// # Errors
/// Those of a dry run.
pub fn max_context(of: Subject, ask: &Ask) -> Result<Option<u32>> {
    match plan(of, &Ask { context: Context::Most, ..ask.clone() }) {
        Ok(p) => Ok(Some(p.context)),
        Err(crate::Error::Refused(Refusal::TooLarge { .. })) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Whether a page of positions more than a plan has would fit too, at the cost of experts or layers that would be read
/// from disk for it.
///
/// # Errors
/// Those of a dry run.
pub fn has_room_for_more(of: Subject, ask: &Ask, p: &Plan) -> Result<bool> {
    let predictor = if p.leased_bytes() > 0 { Predictor::Leased } else { ask.predictor };
    let ask = Ask { draft: p.draft, predictor, snapshots: ask.snapshots.map(|_| 0), ..ask.clone() };
    let more = p.context.saturating_add(PAGE_POSITIONS).min(of.family.spec().context);
    Ok(more > p.context && at_context(of, &ask, more)?.fits())
}

/// Whether a plan fits and history leaves most of the room to experts, where they compete for it: every position more
/// makes every token slower.
fn balanced(of: Subject, ask: &Ask, p: &Plan) -> bool {
    let leaves_room = |s: &SlotPlan| p.kv_bytes <= s.bytes() / 3 || slots::all_there(of, ask.stream, p);
    p.fits() && p.layers.is_none() && p.slots.as_ref().is_none_or(leaves_room)
}

fn most(of: Subject, ask: &Ask, limit: u32, good: impl Fn(&Plan) -> bool) -> Result<Plan> {
    let best = search(of, ask, limit, good)?;
    let best = if best.is_some() { best } else { search(of, ask, limit, Plan::fits)? };
    match best {
        Some(p) => Ok(p),
        None => {
            let least = at_context(of, ask, limit.min(PAGE_POSITIONS))?;
            Err(refused(of, ask, &least)?.into())
        }
    }
}

/// The plan with the most pages a sequence that is good. Every page more takes more bytes, so halving the distance between
/// what fits and what does not ends at the one edge there is.
fn search(of: Subject, ask: &Ask, limit: u32, good: impl Fn(&Plan) -> bool) -> Result<Option<Plan>> {
    let at = |pages: u32| at_context(of, ask, pages.saturating_mul(PAGE_POSITIONS).min(limit));
    let all = at(pages_for(limit))?;
    if good(&all) {
        return Ok(Some(all));
    }
    let (mut best, mut fits, mut fails) = (None, 0, pages_for(limit));
    while fails - fits > 1 {
        let middle = fits + (fails - fits) / 2;
        let p = at(middle)?;
        if good(&p) {
            (best, fits) = (Some(p), middle);
        } else {
            fails = middle;
        }
    }
    Ok(best)
}

/// Why a plan does not fit, and each single change that would make it.
fn refused(of: Subject, ask: &Ask, p: &Plan) -> Result<Refusal> {
    if let Some(h) = p.host.filter(|_| p.total_bytes() <= p.guard) {
        let needed = h.staging.saturating_add(h.allowance);
        return Ok(Refusal::HostTooSmall { needed, guard: h.guard });
    }
    let other = |ask: Ask| -> Result<Option<u32>> { Ok(search(of, &ask, p.context, Plan::fits)?.map(|p| p.context)) };
    let smaller = if matches!(ask.context, Context::Exactly(_)) { other(ask.clone())? } else { None };
    let mut formats = Vec::new();
    for kv in narrower(p, of.family) {
        // A format that this model cannot have is no advice.
        if let Ok(Some(context)) = other(Ask { kv: Some(kv), ..ask.clone() }) {
            formats.push((kv, context));
        }
    }
    let mut parallel = None;
    for n in (1..ask.parallel).rev() {
        if at_context(of, &Ask { parallel: n, ..ask.clone() }, p.context)?.fits() {
            parallel = Some(n);
            break;
        }
    }
    let (tier, parts, guard) = (p.tier, Parts::of(p), p.guard);
    Ok(Refusal::TooLarge { tier, context: p.context, parts, guard, smaller, formats, parallel })
}

/// Formats of history that take fewer bytes than the plan's; four bits with the pages beside them without which they cost
/// much (docs/benchmarks.md).
fn narrower(p: &Plan, family: &dyn Family) -> Vec<KvSpec> {
    let Some(now) = p.kv.first() else { return Vec::new() };
    let heads = |kv: KvSpec| {
        let decls = family.state(&vec![kv; p.kv.len()]);
        state::position_bytes(&decls)
    };
    let have = heads(*now);
    let beside = Some(KvFormat::Bf16);
    let advised = |main| match main {
        KvFormat::Tq4 => KvSpec { main, own_page: beside, sink_page: beside },
        _ => KvSpec::of(main),
    };
    KvFormat::ALL.into_iter().map(advised).filter(|&kv| heads(kv) < have).collect()
}

/// The format of history that loses nothing of the weights' own precision, beside which others are measured: f32 for f32
/// weights, else bf16.
pub fn whole_kv(bounds: &[Bound]) -> KvSpec {
    let embed_is_f32 = bounds.iter().any(|b| b.component == Component::Embed && b.dtype == DType::F32);
    KvSpec::of(if embed_is_f32 { KvFormat::F32 } else { KvFormat::Bf16 })
}

/// The format of history where nobody says otherwise: f32 for f32 weights; else q8, which on text is as good as bf16
/// (docs/decisions.md), where every layer's heads have a width it is for; else bf16.
pub fn usual_kv(family: &dyn Family, bounds: &[Bound]) -> KvSpec {
    let (whole, eight) = (whole_kv(bounds), KvSpec::of(KvFormat::Q8));
    let fits = || kv_fits(&family.state(&vec![eight; family.spec().n_layers as usize])).is_ok();
    if whole.main == KvFormat::Bf16 && fits() { eight } else { whole }
}

fn at_context(of: Subject, ask: &Ask, context: u32) -> Result<Plan> {
    let layers = of.family.spec().n_layers as usize;
    let draft = if can_draft(of) { ask.draft } else { 0 };
    let p = Plan {
        weights: with_predictor(of, draft, ask.predictor),
        slots: None,
        layers: None,
        kv: vec![ask.kv.unwrap_or_else(|| usual_kv(of.family, of.bounds)); layers],
        beside: ask.beside.map_or_else(Vec::new, |kv| vec![kv; layers]),
        context,
        parallel: ask.parallel.max(1),
        pages: pages_for(context)
            .saturating_add(pages_for(context.min(ask.share)).saturating_mul(ask.parallel.saturating_sub(1))),
        chunk: rows_at_once(of.on, ask).next_multiple_of(64).min(context.next_multiple_of(64)),
        few: ask.few.max(ask.parallel).max(draft.saturating_add(1)),
        order: Order::ChunkOuter,
        ring_rows: 0,
        draft,
        slab_pages: 1,
        kv_bytes: 0,
        kv_bytes_per_position: 0,
        state_bytes: 0,
        snapshot_bytes: None,
        workspace: RegionSizes::default(),
        aside: 0,
        row_bytes: 0,
        tier: of.on.own.map_or(Tier::Host, |c| c.tier),
        allowance: 0,
        guard: ask.guard,
        host: None,
    };
    let mut p = counted(of, ask, p)?;
    if let Some(most) = ask.snapshots {
        let one = state::snapshot_bytes(&streams(of.family, &p.kv, p.draft), &limits(&p));
        p.snapshot_bytes = Some(one.saturating_mul(LEAST_SNAPSHOTS).min(most));
        p = counted(of, ask, p)?;
    }
    let p = rows::by_rows(of, ask, p);
    if ask.segment.is_some() {
        return in_segments(of, ask, &p);
    }
    let stays = !of.streams || p.fits() && !ask.stream.slots.are_wanted();
    if stays {
        // A card reads a slice of a prompt in the time of a few tokens, and wants all of its rows at once.
        if ask.stops_between_layers && p.parallel > 1 && of.on.own.is_none() {
            let order = order::layer_outer(p.chunk, p.chunk, p.context);
            let between = counted(of, ask, Plan { order, ..p.clone() })?;
            return Ok(if between.fits() { between } else { p });
        }
        return Ok(p);
    }
    // What is read from disk is read once for a segment, unless there is no room for segments.
    let segments = in_segments(of, ask, &p)?;
    if segments.fits() { Ok(segments) } else { streamed(of, ask, p) }
}

/// The same plan with prompts in segments, and what does not fit on disk.
fn in_segments(of: Subject, ask: &Ask, p: &Plan) -> Result<Plan> {
    let always = streamed(of, ask, order::by_layers(of, ask, p, |longer| longer)?)?;
    let stays = always.slots.is_none() && always.layers.is_none() && !ask.stream.away;
    if stays || !head::may_leave(of, ask) {
        return Ok(always);
    }
    let turns = order::by_layers(of, ask, p, |longer| head::in_turn(of, ask, p, longer))?;
    Ok(head::better(of, ask, always, streamed(of, ask, turns)?))
}

/// W, with the predictor as it is kept where tokens are drafted.
fn with_predictor(of: Subject, draft: u32, kept: Predictor) -> Vec<WeightShare> {
    let mut weights = shares_on(of.bounds, of.on.layout);
    if draft == 0 {
        return weights;
    }
    let keeps = of.family.drafter().map(|d| d.keeps()).unwrap_or_default();
    let each = of.bounds.iter().zip(weights::placed_bytes(of.bounds, of.on.layout));
    let follows = |b: &Bound| b.component == Component::Mtp && keeps.contains(&b.id);
    let following: u64 = each.filter(|(b, _)| follows(b)).map(|(_, n)| n).sum();
    for w in weights.iter_mut().filter(|w| w.component == Component::Mtp) {
        match kept {
            Predictor::Leased => w.bytes -= following,
            _ => w.residency = Residency::Resident,
        }
    }
    if kept == Predictor::Leased {
        weights.push(WeightShare { component: Component::Mtp, residency: Residency::Resident, bytes: following });
    }
    weights
}

/// The same plan with what does not fit left on disk.
fn streamed(of: Subject, ask: &Ask, p: Plan) -> Result<Plan> {
    let p = rows::by_rows(of, ask, p);
    if !of.streams || p.fits() && !ask.stream.slots.are_wanted() {
        return Ok(p);
    }
    let streamed = slots::stream(of, ask.stream, &p, |p| allowance(of, ask, p));
    // Slots of very small experts, or of a few, may take more than all of them side by side.
    let p = streamed.filter(|s| ask.stream.slots.are_wanted() || s.total_bytes() < p.total_bytes()).unwrap_or(p);
    if p.fits() {
        return Ok(p);
    }
    Ok(slots::stream_layers(of, ask.stream, &p, |p| allowance(of, ask, p))
        .filter(|s| s.total_bytes() < p.total_bytes())
        .unwrap_or(p))
}

/// A plan whose shapes are decided, with its bytes.
fn counted(of: Subject, ask: &Ask, mut p: Plan) -> Result<Plan> {
    // Rows of a segment go through all of a layer before the next one: a ring that others read holds all of them.
    let shared = (0..of.family.spec().n_layers).any(|l| of.family.readers(l) > 1);
    p.ring_rows = if shared { p.chunk.max(p.segment()) } else { p.chunk };
    p.workspace = RegionSizes::default();
    let decls = streams(of.family, &p.kv, p.draft);
    p.slab_pages = state::slab_pages(&decls);
    p.kv_bytes_per_position = state::position_bytes(&decls);
    kv_fits(&decls)?;
    let bytes = State::bytes(&decls, limits(&p));
    let beside = beside_bytes(of.family, &p);
    p.kv_bytes = bytes.kv.saturating_add(beside.kv);
    p.state_bytes = bytes.state.saturating_add(beside.state);
    let tables = [pick_bytes(&p), side_bytes(of.family, &p), rows::window_bytes(of.bounds, &p)];
    p.row_bytes = tables.into_iter().fold(bytes.rows.saturating_add(beside.rows), u64::saturating_add);
    for kv in [&p.kv, &p.beside].into_iter().filter(|kv| !kv.is_empty()) {
        let x = measure(of, &p, kv, ask.logit_rows)?;
        p.workspace = RegionSizes { step: p.workspace.step.max(x.step), carry: p.workspace.carry.max(x.carry) };
    }
    let page = p.kv_bytes_per_position.saturating_mul(PAGE_POSITIONS.into());
    let staged = ask.staged.saturating_mul(page);
    if let Some(card) = of.on.own {
        let allowance = of.beyond.bytes(&p, card.staging, of.family.spec().vocab, ask.logit_rows);
        let allowance = allowance.saturating_add(card.driver).saturating_add(staged);
        p.host = Some(HostShare { staging: card.staging, allowance, guard: ask.guard });
        p.allowance = card.overhead;
        p.guard = ask.device_guard.map_or(card.free, |g| g.min(card.free));
        return Ok(p);
    }
    p.row_bytes = p.row_bytes.saturating_add(staged);
    p.allowance = allowance(of, ask, &p);
    Ok(p)
}

fn allowance(of: Subject, ask: &Ask, p: &Plan) -> u64 {
    of.beyond.bytes(p, p.reserved_bytes(), of.family.spec().vocab, ask.logit_rows)
}

/// Rows of a prefill step: as many as were asked for, more where a device needs them to be busy and nobody wants the logits of
/// all of them.
fn rows_at_once(on: &Backend, ask: &Ask) -> u32 {
    let wide = on.own.map_or(0, |c| if ask.logit_rows <= 1 { c.rows } else { 0 });
    ask.chunk.max(wide).max(64)
}

fn kv_fits(decls: &[Decl]) -> Result<(), Refusal> {
    for decl in decls {
        let (fmt, d) = match decl.stream {
            Stream::History { d, kv, .. } => (kv.main, d),
            Stream::Ring { d, fmt, .. } => (fmt, d),
            Stream::Recurrent { .. } => continue,
        };
        if !fmt.fits(d) {
            return Err(Refusal::KvWidth { kv: fmt.name(), layer: decl.layer, d });
        }
    }
    Ok(())
}

/// Bytes of the second history.
fn beside_bytes(family: &dyn Family, p: &Plan) -> Bytes {
    if p.beside.is_empty() { Bytes::default() } else { State::bytes(&streams(family, &p.beside, p.draft), limits(p)) }
}

/// What sequences keep in history of these formats, for the model and for its predictor where it drafts.
pub fn streams(family: &dyn Family, kv: &[KvSpec], draft: u32) -> Vec<Decl> {
    let mut all = family.state(kv);
    if let (Some(d), Some(kv)) = (family.drafter().filter(|_| draft > 0), kv.last()) {
        all.extend(d.state(kv));
    }
    all
}

/// The limits of the state that a plan describes.
pub fn limits(p: &Plan) -> Limits {
    Limits {
        context: p.context,
        parallel: p.parallel,
        pages: p.pages,
        rows: step_rows(p).max(p.ring_rows),
        few: p.few,
        slab_pages: p.slab_pages,
        segment: p.segment(),
    }
}

/// Most rows of a step.
pub fn step_rows(p: &Plan) -> u32 {
    p.chunk.max(p.few)
}

/// Bytes of the list of rows that give logits.
pub fn pick_bytes(p: &Plan) -> u64 {
    step_rows(p) as u64 * 4
}

/// Bytes of what is read for a step's ids beside their embeddings.
pub fn side_bytes(family: &dyn Family, p: &Plan) -> u64 {
    family.side().map_or(0, |s| step_rows(p) as u64 * s.width as u64 * 4)
}

/// Runs the widest prefill and decode passes, and the longest segment, on shapes alone, with a history in the formats `kv`.
fn measure(of: Subject, p: &Plan, kv: &[KvSpec], logit_rows: u32) -> Result<RegionSizes> {
    let mut meter = Meter::new(of.on.scratch, of.on.caps.clone());
    let mut weights = Weights::imagine(of.bounds, &mut meter)?;
    let endless = Ledger::new(&[(Tier::Host, u64::MAX)]);
    let decls = streams(of.family, kv, p.draft);
    let mut state = State::new(&decls, limits(p), &endless, &mut meter)?;
    for (class, n, wanted) in [(RowClass::Many, p.chunk, logit_rows), (RowClass::Few, p.few, p.few)] {
        let n = n.min(p.context);
        let seq = state.open()?;
        let ids = vec![0; n as usize];
        let a = state.reserve(&mut meter, class, &[Span { seq, ids: &ids }])?;
        let rows = state.rows(&a, 0..n)?;
        let (resident, experts) = weights.split();
        let pick = Some(rows.pos.rows(0, wanted.clamp(1, n)));
        let family = of.family;
        let of = |s: model::SideTable| View::dense(meter.imagine(n as u64 * s.width as u64 * 4), Act::F32, n, s.width);
        let side = family.side().map(of);
        let drafter = family.drafter().filter(|_| p.draft > 0);
        // Who wants the logits of every row may want the predictor's too.
        let all = drafter.is_some() && class == RowClass::Many && wanted >= n;
        let Spec { hidden, vocab, .. } = *family.spec();
        let bytes = n as u64 * vocab as u64 * 4;
        let foretold = all.then(|| View::dense(meter.imagine(bytes), Act::F32, n, vocab));
        let likeliest = (class == RowClass::Few).then_some(device::op::LIKELIEST);
        let dry = Pass {
            family,
            resident,
            state: &state,
            rows: &rows,
            pick,
            side,
            graph: None,
            likeliest,
            drafter,
            foretold,
        };
        pass(&mut meter, dry, experts)?;
        if let Some(drafter) = drafter.filter(|_| class == RowClass::Few) {
            let behind = Behind { drafter, hidden, vocab, rows, id: rows.ids.rows(0, 1) };
            behind.draft(&mut meter, (resident, &state), 0, experts, &mut |_, _| Ok(()), &mut |_| None)?;
        }
        state.rollback(a)?;
        state.close(seq)?;
    }
    if p.segment() > 0 {
        let seq = state.open()?;
        let ids = vec![0; p.segment().min(p.context) as usize];
        let append = state.reserve_segment(&mut meter, Span { seq, ids: &ids })?;
        let (resident, experts) = weights.split();
        let (family, drafter) = (of.family, of.family.drafter().filter(|_| p.draft > 0));
        let (state, chunk, tile) = (&state, p.chunk, p.tile());
        let segment = Through { family, resident, state, append: &append, chunk, tile, drafter };
        segment.whole(&mut meter, experts, logit_rows)?;
    }
    let arena = meter.arena();
    Ok(RegionSizes { step: arena.high_water(Region::Step), carry: arena.high_water(Region::Carry) })
}

fn residency(c: Component) -> Residency {
    match c {
        Component::Mtp => Residency::Leased,
        Component::Experts(_) => Residency::Cached,
        Component::LayerEmbed => Residency::RowRead,
        _ => Residency::Resident,
    }
}

/// W by component. Experts are cached with room for all of them.
pub fn shares(bounds: &[Bound]) -> Vec<WeightShare> {
    shares_on(bounds, |_| Layout::File)
}

/// W by component, in the layouts of a backend.
fn shares_on(bounds: &[Bound], layout: fn(&Format) -> Layout) -> Vec<WeightShare> {
    let mut by: BTreeMap<Component, u64> = BTreeMap::new();
    for (b, bytes) in bounds.iter().zip(weights::placed_bytes(bounds, layout)) {
        *by.entry(b.component).or_default() += bytes;
    }
    by.into_iter().map(|(component, bytes)| WeightShare { component, residency: residency(component), bytes }).collect()
}

/// What one decoded token reads of a parameter, in bytes: everything outside the layers' experts once, the experts a
/// row chooses, and of an embedding that is not also the output head one row. A predictor is not part of decoding.
fn decode_read(family: &dyn Family, bounds: &[Bound], b: &Bound) -> u64 {
    let (_, top_k) = family.spec().experts.unwrap_or_default();
    let has_head = || bounds.iter().any(|b| b.component == Component::Head);
    match (b.component, b.role) {
        (Component::Mtp, _) => 0,
        // Read from the file, one row.
        (Component::LayerEmbed, _) => b.matrix_bytes() / b.n.max(1) as u64,
        (Component::Embed, Role::Matrix) if has_head() => b.matrix_bytes() / b.n.max(1) as u64,
        (_, Role::Experts { count, .. }) => b.matrix_bytes() * count.min(top_k) as u64,
        _ => b.loaded_bytes(),
    }
}

/// Bytes of weights that one decoded token reads.
pub fn decode_weight_bytes(family: &dyn Family, bounds: &[Bound]) -> u64 {
    bounds.iter().map(|b| decode_read(family, bounds, b)).sum()
}

/// Bytes of history and recurrent states that the row at position `len - 1` reads, in the formats of `plan`: a history
/// that several layers share is read by each of them.
pub fn history_bytes(family: &dyn Family, plan: &Plan, len: u32) -> u64 {
    family.state(&plan.kv).iter().map(|d| d.stream.read_bytes(len) * u64::from(family.readers(d.layer))).sum()
}
