//! From flags to a loaded model, the same for every command that computes.

use crate::args;
use crate::output::{bytes, note};
use crate::progress::Bar;
use crate::resolve;
use device::{CpuOptions, Isa};
use engine::machine::{Budget, MachineProfile, Sight};
use engine::open::{On, Opened};
use engine::plan::{DEFAULT_CONTEXT, Predictor, Slots, StreamAsk};
use engine::{Ask, Context, Model, OpenOptions};
use memory::experts::Lookahead;
use memory::{Class, Plan, TierUsage};

/// Tokens drafted ahead where nobody says otherwise: with four of five right, a fourth would be worth four tenths of a token.
const DRAFTS: u32 = 3;

/// Opens and loads a model. `logit_rows` is how many rows of logits a prefill may be asked for at once.
pub fn load(model: Option<&str>, on: &args::On, logit_rows: u32, verbose: bool) -> anyhow::Result<Model> {
    let how = options(on, logit_rows)?;
    place(Opened::open(resolve::source(model)?)?, &how, verbose)
}

/// The same for a model whose answers are drafted ahead where that pays.
pub fn answering(on: &args::On, ahead: args::Ahead) -> anyhow::Result<OpenOptions> {
    let mut how = options(on, 1)?;
    how.ask.draft = ahead.draft.unwrap_or(DRAFTS);
    how.ask.predictor = if ahead.draft.is_some() { Predictor::Resident } else { Predictor::AsItFits };
    Ok(how)
}

/// What the flags say about opening a model.
pub fn options(on: &args::On, logit_rows: u32) -> anyhow::Result<OpenOptions> {
    Ok(OpenOptions { ask: ask(on, logit_rows), on: backend(on)?, ..OpenOptions::default() })
}

/// What this process may hold: `--memory`, or less where there is less, or what there is.
pub fn budget(on: &args::On) -> Budget {
    Sight::now().budget(on.memory)
}

/// Loads what was opened. What was decided and nobody asked for is said.
pub fn place(opened: Opened, how: &OpenOptions, verbose: bool) -> anyhow::Result<Model> {
    let mut how = how.clone();
    // That there is no GPU is no news; that there is one and why it is not used, is.
    if let Some(said) = opened.settle(&mut how).filter(|_| verbose || device::cuda::cards().is_ok()) {
        note(format_args!("device: {said}"));
    }
    let plan = opened.plan(&how)?;
    let less = less(&opened, &how, &plan)?;
    let mut bar = Bar::bytes("loading");
    let mut model = Model::load_as(opened, &how, plan, &mut |p| bar.at(p.done, p.total))?;
    bar.clear();
    if let Some(less) = less {
        note(format_args!("note: {less}"));
    }
    if let Some(l) = &model.exec.plan().layers {
        let (n, all) = (l.layers.len(), model.exec.family().spec().n_layers);
        let each = bytes(l.read_bytes);
        note(format_args!(
            "note: {n} of {all} layers do not fit: every token, or piece of a prompt, reads {each} from disk"
        ));
    }
    if let Some(s) = &model.exec.plan().slots {
        let (slots, all) = (s.slots().min(s.experts()), s.experts());
        note(format_args!("note: there is room for {slots} of {all} routed experts; the others are read from disk"));
    }
    if verbose {
        describe(&mut model);
    }
    Ok(model)
}

/// What to say where the context is shorter than it would have been, with the reason.
pub fn less(opened: &Opened, how: &OpenOptions, plan: &Plan) -> anyhow::Result<Option<String>> {
    let (context, usual) = (plan.context, opened.family.spec().context.min(DEFAULT_CONTEXT));
    if how.ask.context != Context::Usual || context >= usual {
        return Ok(None);
    }
    let why = match (opened.has_room_for_more(how, plan)?, &plan.slots) {
        (false, _) => "no more fit in memory",
        (true, Some(_)) => "more would take room from experts, which --context N or max does",
        (true, None) => "for more, weights would be read from disk for every token, which --context N or max does",
    };
    Ok(Some(format!("the context is {context} positions, not {usual}: {why} (see `snug plan`)")))
}

/// What memory is used for, and what the process was seen to hold.
pub fn say_memory(u: &TierUsage) {
    let of = |c: Class| bytes(u.by_class.get(&c).copied().unwrap_or(0));
    note(format_args!(
        "memory: weights {}, history {}, states {}, workspace {}; beside them {} of {} allowed for; most seen {} of {}",
        of(Class::Weights),
        of(Class::Kv),
        of(Class::State),
        of(Class::Workspace),
        bytes(u.most_beyond),
        bytes(u.allowance),
        bytes(u.most_seen),
        bytes(u.guard)
    ));
}

fn ask(on: &args::On, logit_rows: u32) -> Ask {
    let context = on.context.unwrap_or_default();
    // A profile that cannot be read is for `snug plan` to complain about; here the usual segments do.
    let machine = MachineProfile::load().unwrap_or_default().map(Box::new);
    let (parallel, kv, segment, guard) = (on.parallel, on.kv, on.segment, budget(on).bytes);
    let stream = StreamAsk {
        slots: on.slots.map_or(Slots::AsFit, Slots::AtMost),
        page_cache: on.page_cache,
        away: false,
        verify: on.verify_reads,
        lookahead: lookahead(on),
    };
    let device_guard = on.device_memory;
    Ask { context, parallel, kv, logit_rows, guard, device_guard, segment, machine, stream, ..Ask::default() }
}

fn backend(on: &args::On) -> anyhow::Result<On> {
    let given = on.isa.is_some() || on.threads.is_some();
    if given && !matches!(on.device, args::Device::Cpu | args::Device::Auto) {
        return crate::fault::usage("--isa and --threads are for --device cpu");
    }
    if on.device_memory.is_some() && !matches!(on.device, args::Device::Cuda(_) | args::Device::Auto) {
        return crate::fault::usage("--device-memory is for --device cuda:N and auto");
    }
    let isa = on.isa.map(|i| match i {
        args::Isa::Scalar => Isa::Scalar,
        args::Isa::Avx2 => Isa::Avx2,
        args::Isa::Avx512 => Isa::Avx512,
        args::Isa::Amx => Isa::Amx,
    });
    let cpu = CpuOptions { threads: on.threads.map(|t| t as usize), isa };
    Ok(match on.device {
        args::Device::Reference => On::Reference,
        args::Device::Cuda(n) => On::Cuda(n.into()),
        // Who says how the CPU shall compute has chosen it.
        args::Device::Auto if !given => On::Auto(cpu),
        args::Device::Auto | args::Device::Cpu => On::Cpu(cpu),
    })
}

fn describe(m: &mut Model) {
    let caps = m.exec.device().caps().clone();
    let (spec, plan) = (m.exec.family().spec(), m.exec.plan());
    note(format_args!(
        "{}: {} on {} {} with {} threads, context {} of {}",
        m.name, spec.arch, caps.name, caps.isa, caps.threads, plan.context, spec.context
    ));
    note(format_args!(
        "planned: weights {}, history {} when full, states {}, workspace {}, the process itself {}: {} of {}",
        bytes(plan.resident_bytes() + plan.head_beyond()),
        bytes(plan.kv_bytes),
        bytes(plan.state_bytes),
        bytes(plan.workspace_bytes()),
        bytes(plan.allowance),
        bytes(plan.total_bytes()),
        bytes(plan.guard)
    ));
}

fn lookahead(on: &args::On) -> Lookahead {
    match on.lookahead {
        args::Lookahead::Off => Lookahead::Off,
        args::Lookahead::On => Lookahead::On,
        args::Lookahead::Auto => Lookahead::Auto,
    }
}
