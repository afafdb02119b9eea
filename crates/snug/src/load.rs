//! From flags to a loaded model, the same for every command that computes.

use crate::args;
use crate::output::{bytes, note};
use crate::progress::Bar;
use crate::resolve;
use device::{CpuOptions, Isa};
use engine::open::{On, Opened};
use engine::{Ask, Model, OpenOptions, machine};

/// Opens and loads a model. `logit_rows` is how many rows of logits a prefill may be asked for at once.
pub fn load(model: Option<&str>, on: &args::On, logit_rows: u32, verbose: bool) -> anyhow::Result<Model> {
    let how = options(on, logit_rows)?;
    place(Opened::open(resolve::source(model)?)?, &how, verbose)
}

/// What the flags say about opening a model.
pub fn options(on: &args::On, logit_rows: u32) -> anyhow::Result<OpenOptions> {
    Ok(OpenOptions { ask: ask(on, logit_rows), on: backend(on)?, profile: None })
}

/// Loads what was opened.
pub fn place(opened: Opened, how: &OpenOptions, verbose: bool) -> anyhow::Result<Model> {
    let mut bar = Bar::bytes("loading");
    let mut model = Model::load(opened, how, &mut |p| bar.at(p.done, p.total))?;
    bar.clear();
    if verbose {
        describe(&mut model);
    }
    Ok(model)
}

fn ask(on: &args::On, logit_rows: u32) -> Ask {
    let guard = machine::available_memory().unwrap_or(u64::MAX);
    Ask { context: on.context, kv: on.kv, logit_rows, guard, ..Ask::default() }
}

fn backend(on: &args::On) -> anyhow::Result<On> {
    if on.device == args::Device::Reference {
        return match (on.isa, on.threads) {
            (None, None) => Ok(On::Reference),
            _ => crate::fault::usage("--isa and --threads are for --device cpu; the reference has neither"),
        };
    }
    let isa = on.isa.map(|i| match i {
        args::Isa::Scalar => Isa::Scalar,
        args::Isa::Avx2 => Isa::Avx2,
        args::Isa::Avx512 => Isa::Avx512,
    });
    Ok(On::Cpu(CpuOptions { threads: on.threads.map(|t| t as usize), isa }))
}

fn describe(m: &mut Model) {
    let caps = m.exec.device().caps().clone();
    let (spec, plan) = (m.exec.family().spec(), m.exec.plan());
    note(format_args!(
        "{}: {} on {} {} with {} threads, context {} of {}",
        m.name, spec.arch, caps.name, caps.isa, caps.threads, plan.context, spec.context
    ));
    note(format_args!(
        "weights {}, history {}, states {}, workspace {}",
        bytes(plan.resident_bytes()),
        bytes(plan.kv_bytes),
        bytes(plan.state_bytes),
        bytes(plan.workspace.step + plan.workspace.carry)
    ));
}
