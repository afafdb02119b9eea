//! Writing a checkpoint as a GGUF in another type: what `snug quantize` does.
//!
//! A safetensors directory is written by the names and rearrangements its family knows ([`model::want::Export`]); a GGUF
//! keeps its names and metadata, and only matrices change their type. Everything is streamed: a few rows at a time are
//! in memory.

mod encode;
mod kinds;
mod metadata;
mod planes;
mod rearrange;
mod tensors;
mod vocab;

use anyhow::{Context, Result, bail};
use checkpoint::{Checkpoint, Container, DType, Meta, NewTensor, write_gguf};
pub(crate) use kinds::choose;
pub use kinds::{Rule, Rules, parse_type};
pub(crate) use metadata::file_type;
use std::path::Path;
use tensors::Job;
pub(crate) use tensors::divisors;
pub(crate) use vocab::export as export_vocab;

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Type of matrices for which no rule says otherwise.
    pub to: DType,
    /// Exceptions, the first that matches wins.
    pub rules: Rules,
    /// Metadata to set, e.g. `general.license`.
    pub meta: Vec<(String, String)>,
    /// Whether `out` may be replaced.
    pub force: bool,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Tensors written.
    pub tensors: usize,
    /// Bytes of their data.
    pub bytes: u64,
    /// Matrices whose rows do not divide into the type asked for, with the type they got.
    pub substituted: Vec<(String, DType)>,
    /// Patterns of rules that matched no matrix.
    pub unmatched: Vec<String>,
    /// Matrices that were quantised before, whose errors add up.
    pub requantised: usize,
}

/// Writes `source` to `out`. `on_progress` gets the bytes of data written so far, and in all.
///
/// # Errors
/// Those of the source; an existing `out` without `force`; a full disk. `out` is never left half written.
pub fn quantize(
    source: impl Into<checkpoint::Source>,
    out: &Path,
    how: &Options,
    on_progress: &mut dyn FnMut(u64, u64),
) -> Result<Report> {
    if out.exists() && !how.force {
        bail!("{} exists already; --force replaces it", out.display());
    }
    let ck = Checkpoint::open(source)?;
    let (mut meta, jobs) = match ck.meta().container() {
        Container::Hf => from_hf(&ck, how)?,
        Container::Gguf => (ck.meta().clone(), tensors::from_gguf(&ck, how)?),
    };
    metadata::finish(&mut meta, &jobs, how);
    let announced: Vec<NewTensor> = jobs.iter().map(|j| NewTensor::new(&*j.name, j.to, &j.shape)).collect();
    let total: u64 = jobs.iter().map(Job::bytes).sum();
    let mut done = 0;
    write_gguf::<anyhow::Error>(out, &meta, &announced, |i, w| {
        tensors::write(&ck, &jobs[i], &mut |bytes| {
            w.bytes(bytes)?;
            done += bytes.len() as u64;
            on_progress(done, total);
            Ok(())
        })
        .with_context(|| format!("tensor '{}'", jobs[i].name))
    })?;
    let substituted = jobs.iter().filter(|j| j.substituted).map(|j| (j.name.clone(), j.to)).collect();
    let unmatched = how.rules.iter().filter(|r| !jobs.iter().any(|j| j.is_matrix() && r.matches(&j.name)));
    let unmatched = unmatched.map(|r| r.pattern.clone()).collect();
    let requantised = jobs.iter().filter(|j| j.is_requantised()).count();
    Ok(Report { tensors: jobs.len(), bytes: total, substituted, unmatched, requantised })
}

fn from_hf(ck: &Checkpoint, how: &Options) -> Result<(Meta, Vec<Job>)> {
    let family = model::open(ck)?;
    let bounds = model::bind(family.as_ref(), ck)?;
    let jobs = tensors::from_family(family.as_ref(), &bounds, how)?;
    let mut meta = hf_metadata(family.as_ref(), ck);
    metadata::without_predictor(&mut meta, family.spec(), &bounds);
    vocab::export(&mut meta, ck.meta(), family.spec().vocab)?;
    Ok((meta, jobs))
}

/// The configuration of a safetensors directory as GGUF keys, all but the vocabulary.
pub(crate) fn hf_metadata(family: &dyn model::Family, ck: &Checkpoint) -> Meta {
    let mut meta = Meta::gguf();
    family.export(&mut meta);
    metadata::describe(&mut meta, ck.meta());
    meta
}
