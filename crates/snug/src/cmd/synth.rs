//! `snug synth`: a checkpoint of a real geometry with random weights.

use crate::args::{Container, SynthArgs};
use crate::fault::Ended;
use crate::interrupt::answering;
use crate::output::{bytes, note};
use crate::progress::Bar;
use checkpoint::{Block, DType};
use snug::synth::{Format, Kind, Options, Report, Resize, Scheme, Stopped, synth};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

/// Writes it and says on stderr what it is. Ctrl-C leaves nothing behind.
pub fn run(a: &SynthArgs) -> anyhow::Result<Ended> {
    let (format, usual) = match a.format {
        Container::Gguf => (Format::Gguf, Kind::Type(Block::Q4_0.into())),
        Container::Hf => (Format::Hf, Kind::Type(DType::BF16)),
        Container::Mlx => (Format::Mlx, Kind::Scheme(Scheme::Mlx(4))),
    };
    let how = Options {
        geometry: a.geometry.clone(),
        resize: Resize { layers: a.layers, experts: a.experts, vocab: a.vocab },
        to: a.to.unwrap_or(usual),
        format,
        sparse: a.sparse,
        seed: a.seed,
        force: a.force,
    };
    let mut bar = Bar::bytes("writing");
    let written = answering(|stop| {
        synth(&a.out, &how, &mut |done, total| {
            bar.at(done, total);
            !stop.load(Relaxed)
        })
    });
    bar.clear();
    let report = match written {
        Err(e) if e.is::<Stopped>() => return Ok(Ended::Interrupted),
        other => other?,
    };
    for (to, n) in by_type(&report) {
        note(format_args!("{n} tensors are {to}: their rows do not divide into {}", how.to));
    }
    note(format_args!("{}: {} tensors, {}", a.out.display(), report.tensors, bytes(report.bytes)));
    if a.sparse {
        note("the weights are a hole: this can be looked at and planned for, not run");
    }
    Ok(Ended::Done)
}

/// How many tensors got which other type.
fn by_type(r: &Report) -> BTreeMap<&'static str, usize> {
    let mut all = BTreeMap::new();
    for (_, to) in &r.substituted {
        *all.entry(to.name()).or_default() += 1;
    }
    all
}
