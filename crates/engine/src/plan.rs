//! The planner: a dry run of the real forward pass counts every byte before a weight is read.

use crate::draft::Behind;
use crate::error::Result;
use crate::executor::{Pass, pass};
use checkpoint::DType;
use device::{Act, Caps, Device, Meter, Region, RowClass, ScratchFn, View};
use memory::{Component, KvFormat, KvSpec, Ledger, Plan, RegionSizes, Residency, Tier, WeightShare};
use model::{Family, Spec};
use state::{Decl, Limits, Span, State};
use std::collections::BTreeMap;
use weights::{Bound, Role, Weights};

/// Context taken when nobody says otherwise and it fits.
pub const DEFAULT_CONTEXT: u32 = 65_536;

/// What is asked of a plan.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Positions of a sequence; `None`: the model's, at most [`DEFAULT_CONTEXT`], less if that does not fit.
    pub context: Option<u32>,
    /// Sequences at a time.
    pub parallel: u32,
    /// Most rows of one `mix` call, a multiple of 64.
    pub chunk: u32,
    /// Most rows of class Few in one call.
    pub few: u32,
    /// Format of history; `None`: f32 for f32 weights, else bf16.
    pub kv: Option<KvFormat>,
    /// Rows whose logits are wanted at once from a prefill chunk.
    pub logit_rows: u32,
    /// Most bytes that may be reserved.
    pub guard: u64,
    /// Most tokens that the model's predictor drafts ahead, where it has one; 0 leaves the predictor where it is.
    pub draft: u32,
}

impl Default for Ask {
    fn default() -> Self {
        Ask { context: None, parallel: 1, chunk: 256, few: 8, kv: None, logit_rows: 1, guard: u64::MAX, draft: 0 }
    }
}

/// Why a model cannot be served as asked, and what would do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// More positions than the model was trained for.
    #[error("--context {asked} is more than the {most} positions of this model")]
    ContextBeyondModel {
        /// Asked.
        asked: u32,
        /// Allowed.
        most: u32,
    },
    /// It does not fit.
    #[error("{needed} bytes are needed and {guard} may be used; {advice}")]
    TooLarge {
        /// Bytes of weights, history, state and workspace.
        needed: u64,
        /// Bytes allowed.
        guard: u64,
        /// What would help.
        advice: String,
    },
}

/// The backend whose workspace is counted.
#[derive(Clone, Debug)]
pub struct Backend {
    /// Its scratch function.
    pub scratch: ScratchFn,
    /// Its caps.
    pub caps: Caps,
}

/// Plans a model on a backend.
///
/// # Errors
/// [`Refusal`] when it does not fit or cannot be.
pub fn plan(family: &dyn Family, bounds: &[Bound], ask: &Ask, on: &Backend) -> Result<Plan> {
    let most = family.spec().context;
    if let Some(asked) = ask.context.filter(|&c| c > most) {
        return Err(Refusal::ContextBeyondModel { asked, most }.into());
    }
    let mut context = ask.context.unwrap_or(most.min(DEFAULT_CONTEXT));
    loop {
        let p = at_context(family, bounds, ask, on, context)?;
        let needed = p.total_bytes();
        if needed <= ask.guard {
            return Ok(p);
        }
        if ask.context.is_some() || context <= 256 {
            let fixed = p.total_bytes() - p.kv_bytes - p.state_bytes;
            let advice = if fixed > ask.guard {
                format!("weights and workspace alone take {fixed}; a smaller model or quantisation is needed")
            } else {
                "ask for a smaller --context".to_string()
            };
            return Err(Refusal::TooLarge { needed, guard: ask.guard, advice }.into());
        }
        context = (context / 2).max(256).min(most);
    }
}

fn at_context(family: &dyn Family, bounds: &[Bound], ask: &Ask, on: &Backend, context: u32) -> Result<Plan> {
    let embed_is_f32 = bounds.iter().any(|b| b.component == Component::Embed && b.dtype == DType::F32);
    let main = ask.kv.unwrap_or(if embed_is_f32 { KvFormat::F32 } else { KvFormat::Bf16 });
    let can_draft = family.drafter().is_some() && bounds.iter().any(|b| b.component == Component::Mtp);
    let draft = if can_draft { ask.draft } else { 0 };
    let mut weights = shares(bounds);
    let predictor = weights.iter_mut().filter(|w| draft > 0 && w.component == Component::Mtp);
    predictor.for_each(|w| w.residency = Residency::Resident);
    let mut p = Plan {
        weights,
        kv: vec![KvSpec { main }; family.spec().n_layers as usize],
        context,
        parallel: ask.parallel.max(1),
        chunk: ask.chunk.max(64).next_multiple_of(64).min(context.next_multiple_of(64)),
        few: ask.few.max(ask.parallel).max(draft.saturating_add(1)),
        draft,
        kv_bytes: 0,
        state_bytes: 0,
        workspace: RegionSizes::default(),
        row_bytes: 0,
        guard: ask.guard,
    };
    let decls = streams(family, &p);
    let bytes = State::bytes(&decls, limits(&p));
    (p.kv_bytes, p.state_bytes) = (bytes.kv, bytes.state);
    p.workspace = measure(family, bounds, &p, ask.logit_rows, on)?;
    p.row_bytes = bytes.rows + pick_bytes(&p);
    Ok(p)
}

/// The limits of the state that a plan describes.
pub fn limits(p: &Plan) -> Limits {
    Limits { context: p.context, parallel: p.parallel, rows: p.chunk.max(p.few), few: p.few }
}

/// What sequences keep under a plan, for the model and for its predictor where it drafts.
pub fn streams(family: &dyn Family, p: &Plan) -> Vec<Decl> {
    let mut all = family.state(&p.kv);
    if let (Some(d), Some(kv)) = (family.drafter().filter(|_| p.draft > 0), p.kv.last()) {
        all.extend(d.state(kv));
    }
    all
}

/// Bytes of the list of rows that give logits.
pub fn pick_bytes(p: &Plan) -> u64 {
    limits(p).rows as u64 * 4
}

/// Runs the widest prefill and decode passes on shapes alone.
fn measure(family: &dyn Family, bounds: &[Bound], p: &Plan, logit_rows: u32, on: &Backend) -> Result<RegionSizes> {
    let mut meter = Meter::new(on.scratch, on.caps.clone());
    let mut weights = Weights::imagine(bounds, &mut meter)?;
    let endless = Ledger::new(&[(Tier::Host, u64::MAX)]);
    let decls = streams(family, p);
    let mut state = State::new(&decls, limits(p), &endless, &mut meter)?;
    for (class, n, wanted) in [(RowClass::Many, p.chunk, logit_rows), (RowClass::Few, p.few, p.few)] {
        let n = n.min(p.context);
        let seq = state.open()?;
        let ids = vec![0; n as usize];
        let a = state.reserve(&mut meter, class, &[Span { seq, ids: &ids }])?;
        let rows = state.rows(&a, 0..n)?;
        let (resident, experts) = weights.split();
        let pick = Some(rows.pos.rows(0, wanted.clamp(1, n)));
        let drafter = family.drafter().filter(|_| p.draft > 0);
        // Who wants the logits of every row may want the predictor's too.
        let all = drafter.is_some() && class == RowClass::Many && wanted >= n;
        let vocab = family.spec().vocab;
        let bytes = n as u64 * vocab as u64 * 4;
        let foretold = all.then(|| View::dense(meter.imagine(bytes), Act::F32, n, vocab));
        let dry = Pass { family, resident, state: &state, rows: &rows, pick, graph: false, drafter, foretold };
        pass(&mut meter, dry, experts)?;
        if let Some(drafter) = drafter.filter(|_| class == RowClass::Few) {
            let Spec { hidden, vocab, .. } = *family.spec();
            let behind = Behind { drafter, hidden, vocab, rows, id: rows.ids.rows(0, 1) };
            behind.draft(&mut meter, (resident, &state), 0, experts, &mut |_| None)?;
        }
        state.rollback(a)?;
        state.close(seq)?;
    }
    let arena = meter.arena();
    Ok(RegionSizes { step: arena.high_water(Region::Step), carry: arena.high_water(Region::Carry) })
}

fn residency(c: Component) -> Residency {
    match c {
        Component::Mtp => Residency::Leased,
        Component::Experts(_) => Residency::Cached,
        _ => Residency::Resident,
    }
}

/// W by component. Experts are cached with room for all of them.
pub fn shares(bounds: &[Bound]) -> Vec<WeightShare> {
    let mut by: BTreeMap<Component, u64> = BTreeMap::new();
    for b in bounds {
        *by.entry(b.component).or_default() += b.loaded_bytes();
    }
    by.into_iter().map(|(component, bytes)| WeightShare { component, residency: residency(component), bytes }).collect()
}

/// Bytes of weights that one decoded token reads: everything outside the layers' experts once, the experts a row
/// chooses, and of an embedding that is not also the output head one row. A predictor is not part of decoding.
pub fn decode_weight_bytes(family: &dyn Family, bounds: &[Bound]) -> u64 {
    let (_, top_k) = family.spec().experts.unwrap_or_default();
    let has_head = bounds.iter().any(|b| b.component == Component::Head);
    let read = |b: &Bound| match (b.component, b.role) {
        (Component::Mtp, _) => 0,
        (Component::Embed, Role::Matrix) if has_head => b.matrix_bytes() / b.n.max(1) as u64,
        (_, Role::Experts { count, .. }) => b.matrix_bytes() * count.min(top_k) as u64,
        _ => b.loaded_bytes(),
    };
    bounds.iter().map(read).sum()
}

/// Bytes of history and recurrent states that the row at position `len - 1` reads, in the formats of `plan`.
pub fn history_bytes(family: &dyn Family, plan: &Plan, len: u32) -> u64 {
    family.state(&plan.kv).iter().map(|d| d.stream.read_bytes(len)).sum()
}
