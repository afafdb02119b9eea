//! `snug quantize`: a checkpoint as a GGUF of another type.

use crate::args::QuantizeArgs;
use crate::fault::{Ended, usage};
use crate::output::{bytes, note};
use crate::progress::Bar;
use crate::resolve;
use snug::quantize::{Options, quantize};

/// Writes the file and says on stderr what it holds.
pub fn run(a: &QuantizeArgs) -> anyhow::Result<Ended> {
    if a.out.exists() && !a.force {
        return usage(format!("{} exists already; --force replaces it", a.out.display()));
    }
    let how = Options { to: a.to, rules: a.rules.clone(), meta: a.meta.clone(), force: a.force };
    let source = resolve::source(Some(&a.model))?;
    let mut bar = Bar::bytes("writing");
    let report = quantize(source, &a.out, &how, &mut |done, total| bar.at(done, total))?;
    bar.clear();
    for (tensor, to) in &report.substituted {
        note(format_args!("{tensor} is {to}: its rows do not divide into {}", a.to));
    }
    for pattern in &report.unmatched {
        note(format_args!("--tensor-type '{pattern}=...' matched no matrix; snug inspect --tensors lists the names"));
    }
    if report.requantised > 0 {
        note(format_args!(
            "{} matrices were quantised before: errors add up, the original is better",
            report.requantised
        ));
    }
    note(format_args!("{}: {} tensors, {}", a.out.display(), report.tensors, bytes(report.bytes)));
    Ok(Ended::Done)
}
