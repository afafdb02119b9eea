//! The tensors of a family with what is drawn into them, by the names either kind of file has.

use super::draw::{Stream, noise};
use super::scheme::{Kind, Scheme};
use super::{Format, Wrong};
use crate::quantize::{choose, divisors};
use checkpoint::{Block, DType, NewTensor, TensorWriter};
use memory::Component;
use model::Family;
use model::want::{Lies, Place, Want};
use rayon::prelude::*;
use weights::{Canon, Role};

/// Elements drawn together, a multiple of every block's.
const PIECE: u64 = 1 << 16;
/// Pieces in memory at a time.
const PIECES: u64 = 32;

/// One tensor to write.
pub struct Job {
    /// Its name, type and shape.
    pub new: NewTensor,
    /// Whether the type is not the one that was asked for.
    pub substituted: bool,
    fill: Fill,
}

/// What is drawn.
enum Fill {
    /// Values of mean 0 and this standard deviation.
    Noise(f32),
    /// One plane of a matrix of values like that.
    Plane(Scheme, usize, f32),
    /// The same value throughout.
    Constant(f32),
    /// Decays of recurrent layers: `-A`, or `ln A` where it is stored so, with `A` between 1/50 and 1.
    Decay { log: bool },
    /// These.
    Values(Vec<f32>),
}

impl Job {
    /// Bytes of its data.
    pub fn bytes(&self) -> u64 {
        let k = self.new.shape.last().copied().unwrap_or(1);
        let rows: u64 = self.new.shape.iter().rev().skip(1).product();
        self.new.dtype.row_bytes(k).unwrap_or(0) * rows
    }
}

/// The scheme of several planes that a kind means in a container, `None` where it is a type.
///
/// # Errors
/// A kind that the container does not hold.
pub fn scheme(format: Format, to: Kind) -> Result<Option<Scheme>, Wrong> {
    match (format, to) {
        (Format::Gguf, Kind::Scheme(_)) => Err(Wrong(format!(
            "{to} has several tensors a matrix: --format hf (mlx4 and mlx8: mlx) holds it, not gguf"
        ))),
        (Format::Hf, Kind::Type(DType::Block(Block::Mxfp4))) => Ok(Some(Scheme::GptOss)),
        (Format::Mlx, Kind::Scheme(s @ Scheme::Mlx(_))) => Ok(Some(s)),
        (Format::Mlx, Kind::Scheme(_)) => Err(Wrong(format!("--format mlx holds mlx4 and mlx8, not {to}"))),
        (Format::Hf, Kind::Scheme(Scheme::Mlx(_))) => Err(Wrong(format!("{to} is what --format mlx holds"))),
        (Format::Hf, Kind::Scheme(s)) => Ok(Some(s)),
        (Format::Hf | Format::Mlx, Kind::Type(DType::F32 | DType::F16 | DType::BF16)) | (Format::Gguf, _) => Ok(None),
        (_, Kind::Type(t)) => {
            let what = "safetensors files hold f32, f16, bf16 and formats of several tensors here";
            Err(Wrong(format!("{what}, not {t}; --format gguf holds it")))
        }
    }
}

/// All tensors. A model whose head is its embedding (`tied`) has no tensor for it, and none of those that real files of
/// the family may leave out.
///
/// # Errors
/// A type that this format cannot hold.
pub fn jobs(family: &dyn Family, format: Format, to: Kind, tied: bool) -> Result<Vec<Job>, Wrong> {
    let scheme = scheme(format, to)?;
    let here = |w: &&Want| if w.component == Component::Head { !tied } else { !w.optional };
    let wanted = family.tensors().iter().filter(here);
    Ok(wanted
        .flat_map(|w| {
            // Beside a scheme, everything else is bf16.
            let plain = if scheme.is_some() { DType::BF16 } else { to.plain() };
            let job = match format {
                Format::Gguf => gguf(w, plain, tied),
                Format::Hf => hf(w, plain, tied),
                Format::Mlx => mlx(w, plain, family, tied),
            };
            match (job, scheme) {
                (Some(job), Some(s)) => planes(job, s, w),
                (job, _) => job.into_iter().collect(),
            }
        })
        .collect())
}

/// A tensor that a checkpoint has and no family asks for.
pub fn unused(name: String, shape: &[u64], to: DType) -> Job {
    let k = *shape.last().unwrap_or(&1) as f32;
    Job { new: NewTensor::new(name, to, shape), substituted: false, fill: Fill::Noise(1.0 / k.max(1.0).sqrt()) }
}

fn gguf(w: &Want, to: DType, tied: bool) -> Option<Job> {
    let place = w.gguf.first()?;
    if let Some(freqs) = &w.fallback {
        let by = divisors(w.export, freqs)?;
        let new = NewTensor::new(&*place.name, DType::F32, &w.shape);
        return Some(Job { new, substituted: false, fill: Fill::Values(by) });
    }
    let shape = stored(w, place)?;
    let (dtype, substituted) = match w.role {
        Role::Vector => (DType::F32, false),
        _ => choose(&place.name, &shape, DType::F32, to, &Vec::new()),
    };
    Some(Job { new: NewTensor::new(&*place.name, dtype, &shape), substituted, fill: fill(w, &place.canon, tied) })
}

/// Experts are stacked, gate and up in one tensor, as newer checkpoints have them.
fn hf(w: &Want, to: DType, tied: bool) -> Option<Job> {
    let place = w.hf.iter().find(|p| p.shape != Lies::Each)?;
    let mut shape = stored(w, place)?;
    let name = place.name.replace('~', "model.");
    if name.ends_with("conv1d.weight") {
        // A depthwise convolution: one input channel for each output channel.
        shape.insert(1, 1);
    }
    Some(Job { new: NewTensor::new(name, to, &shape), substituted: false, fill: fill(w, &place.canon, tied) })
}

/// A job as the planes of a scheme, where the scheme takes the parameter and its rows.
fn planes(job: Job, s: Scheme, w: &Want) -> Vec<Job> {
    let kept = w
        .gguf
        .first()
        .is_some_and(|p| choose(&p.name, &w.shape, DType::F32, DType::BF16, &Vec::new()).0 != DType::BF16);
    let (Fill::Noise(std), false, true) = (&job.fill, kept, s.takes(w)) else { return vec![job] };
    let mut shape = job.new.shape.to_vec();
    if w.hf.iter().any(|p| matches!(p.shape, Lies::Turned { .. })) {
        // Only floats are transposed.
        shape[1..].reverse();
    }
    let Some(parts) = s.tensors(&job.new.name, &shape) else { return vec![Job { substituted: true, ..job }] };
    let one = |(plane, new)| Job { new, substituted: false, fill: Fill::Plane(s, plane, *std) };
    parts.into_iter().map(one).collect()
}

/// Experts are stacked, gate and up apart; convolutions have their channels last but one; norms are as they are
/// multiplied with where MLX adds one to them; predictors are left out. Multimodal models keep everything under one
/// more root.
fn mlx(w: &Want, to: DType, family: &dyn Family, tied: bool) -> Option<Job> {
    if w.component == Component::Mtp {
        return None;
    }
    let stacked = |p: &&Place| p.name.contains(".switch_mlp.");
    let place = w.hf.iter().find(stacked).or_else(|| w.hf.iter().find(|p| p.shape != Lies::Each))?;
    let mut shape = stored(w, place)?;
    let multimodal = ["qwen3_5", "gemma4"].iter().any(|a| family.spec().arch.starts_with(a));
    let root = if multimodal { "language_model." } else { "" };
    let name = match place.name.strip_prefix('~') {
        Some(rest) => format!("{root}model.{rest}"),
        None => format!("{root}{}", place.name),
    };
    if name.ends_with("conv1d.weight") {
        shape.push(1);
    }
    // Where MLX turns convolutions round, it adds one to norms as well.
    let conv = |w: &Want| w.hf.iter().any(|p| p.name.ends_with("conv1d.weight"));
    let adds_one = place.canon == Canon::PlusOne && family.tensors().iter().any(conv);
    let canon = if adds_one { Canon::Same } else { place.canon.clone() };
    Some(Job { new: NewTensor::new(name, to, &shape), substituted: false, fill: fill(w, &canon, tied) })
}

/// The shape of the tensor that a parameter lies in, `None` where another parameter brings it.
fn stored(w: &Want, place: &Place) -> Option<Vec<u64>> {
    let mut shape = w.shape.clone();
    match place.shape {
        Lies::Half(0) => shape[1] *= 2,
        Lies::Groups(g) if g.rows[0].0 == 0 => shape[0] = g.count as u64 * g.of as u64,
        Lies::Half(_) | Lies::Groups(_) | Lies::Turned { first: 1.., .. } => return None,
        Lies::Turned { of, .. } => shape = vec![shape[0], shape[2], of as u64 * shape[1]],
        Lies::Whole | Lies::Each => {}
    }
    match place.canon {
        Canon::Every { first: 0, of } => shape.last_mut().into_iter().for_each(|k| *k *= of as u64),
        Canon::Every { .. } => return None,
        _ => {}
    }
    Some(shape)
}

/// Deviation of embeddings that are not the head too. Behind dozens of random layers a token whose embedding is no larger
/// than what each of them adds looks like every other, and routers choose the same experts for all.
const EMBEDDED: f32 = 4.0;

/// Matrices keep the size of what they are given (a deviation of `1 / sqrt(k)`), norms are 1, biases small.
fn fill(w: &Want, stored: &Canon, tied: bool) -> Fill {
    let hf = |p: &Place| p.canon.clone();
    let bias = w.gguf.first().is_some_and(|p| p.name.ends_with(".bias"));
    match (w.hf.first().map(hf), w.shape.as_slice()) {
        (Some(Canon::NegExp), _) => Fill::Decay { log: *stored == Canon::NegExp },
        (_, [_, _]) if w.component == Component::Embed && !tied => Fill::Noise(EMBEDDED),
        (_, [.., _, k]) => Fill::Noise(1.0 / (*k as f32).sqrt()),
        _ if bias => Fill::Noise(0.02),
        _ => Fill::Constant(if *stored == Canon::PlusOne { 0.0 } else { 1.0 }),
    }
}

/// Streams one tensor's bytes; `wrote` gets the length of each piece.
///
/// # Errors
/// Those of the file and of `wrote`.
pub fn write(
    job: &Job,
    seed: u64,
    w: &mut TensorWriter<'_>,
    wrote: &mut dyn FnMut(u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let stream = Stream::of(seed, &job.new.name);
    let elems: u64 = job.new.shape.iter().product();
    let small: Vec<f32> = match &job.fill {
        Fill::Noise(_) | Fill::Plane(..) => return drawn(job, elems, stream, w, wrote),
        Fill::Constant(x) => vec![*x; elems as usize],
        Fill::Decay { log } => (0..elems).map(|i| decay(stream.unit(i), *log)).collect(),
        Fill::Values(v) => v.clone(),
    };
    w.floats(&small)?;
    wrote(job.bytes())
}

fn decay(unit: f32, log: bool) -> f32 {
    let a = (unit - 1.0) / 2.0 * 50f32.ln();
    if log { a } else { -a.exp() }
}

fn drawn(
    job: &Job,
    elems: u64,
    stream: Stream,
    w: &mut TensorWriter<'_>,
    wrote: &mut dyn FnMut(u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let dtype = job.new.dtype;
    let piece = dtype.row_bytes(PIECE)? as usize;
    let mut buf = vec![0; dtype.row_bytes(elems.min(PIECE * PIECES))? as usize];
    let (mut left, mut first) = (job.bytes(), 0);
    while left > 0 {
        let part = &mut buf[..left.min(piece as u64 * PIECES) as usize];
        let pieces = part.par_chunks_mut(piece).enumerate();
        pieces.for_each(|(i, out)| match job.fill {
            Fill::Plane(s, plane, std) => s.draw(plane, std, stream.piece(first + i as u64), out),
            Fill::Noise(std) => noise(dtype, std, stream.piece(first + i as u64), out),
            _ => {}
        });
        w.bytes(part)?;
        left -= part.len() as u64;
        first += PIECES;
        wrote(part.len() as u64)?;
    }
    Ok(())
}
