//! The tensors of the new file: where each comes from, and streaming it through.

use super::kinds::choose;
use super::planes::Source;
use super::{Options, encode, rearrange};
use anyhow::{Result, bail};
use checkpoint::{ByteRange, Checkpoint, DType, Format, TensorInfo};
use model::Family;
use model::want::{Export, Groups, Lies, Place, Want};
use std::collections::HashMap;
use weights::{Bound, Canon, Data, Proj, Role};

/// One tensor to write.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its name in the new file.
    pub name: String,
    /// Slowest dimension first.
    pub shape: Vec<u64>,
    /// Its new type.
    pub to: DType,
    /// Whether that is not the type that was asked for.
    pub substituted: bool,
    from: From,
}

#[derive(Clone, Debug)]
enum From {
    /// The bytes as they are.
    Copy(ByteRange),
    /// Matrices one behind the other, each `[rows, k]`.
    Matrices { parts: Vec<ByteRange>, dtype: DType, export: Export },
    /// Matrices over several planes.
    Planes { source: Source, export: Export },
    /// Transposed matrices, `[E, k, of * n]`: every `of`-th column from `first` on is a row.
    Turned { range: ByteRange, dtype: DType, first: usize, of: usize },
    /// Values that are at hand.
    Values(Vec<f32>),
    /// A vector, canonicalised.
    Vector { range: ByteRange, dtype: DType, canon: Canon, export: Export },
}

impl Job {
    /// Whether a rule can apply to it.
    pub fn is_matrix(&self) -> bool {
        self.shape.iter().filter(|&&d| d > 1).count() >= 2
    }
    /// Whether blocks are decoded to be encoded again.
    pub fn is_requantised(&self) -> bool {
        let blocks = |t: DType| matches!(t, DType::Block(_));
        match &self.from {
            From::Matrices { dtype, .. } => blocks(*dtype) && blocks(self.to),
            From::Planes { .. } => blocks(self.to),
            _ => false,
        }
    }
    /// Bytes of its data.
    pub fn bytes(&self) -> u64 {
        let k = self.shape.last().copied().unwrap_or(1);
        let rows: u64 = self.shape.iter().rev().skip(1).product();
        self.to.row_bytes(k).unwrap_or(0) * rows
    }
}

/// The tensors of a GGUF: the same, in other types. What cannot be decoded is copied.
pub fn from_gguf(ck: &Checkpoint, how: &Options) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for m in ck.matrices() {
        let (Format::Scaled(_), [Some(blocks), .., Some(scale)]) = (m.format, &m.planes) else {
            jobs.extend(m.planes.iter().flatten().map(|t| requantized(t, how)));
            continue;
        };
        // A scale apart goes into the values when their type changes, and stays beside them when it does not.
        let as_blocks = requantized(blocks, how);
        if as_blocks.to == blocks.dtype {
            jobs.extend([as_blocks, requantized(scale, how)]);
        } else {
            let from = From::Planes { source: Source::found(&m), export: Export::Same };
            jobs.push(Job { from, ..as_blocks });
        }
    }
    Ok(jobs)
}

fn requantized(t: &TensorInfo, how: &Options) -> Job {
    let shape = t.shape.to_vec();
    let matrix = shape.iter().filter(|&&d| d > 1).count() >= 2;
    let (to, substituted) = choose(&t.name, &shape, t.dtype, how.to, &how.rules);
    let keep = !matrix || !t.dtype.decodable() || t.dtype == to;
    if keep {
        return Job { name: t.name.to_string(), shape, to: t.dtype, substituted: false, from: From::Copy(t.at) };
    }
    let from = From::Matrices { parts: vec![t.at], dtype: t.dtype, export: Export::Same };
    Job { name: t.name.to_string(), shape, to, substituted, from }
}

/// The tensors of a family, by the names GGUF files have for them.
pub fn from_family(family: &dyn Family, bounds: &[Bound], how: &Options) -> Result<Vec<Job>> {
    let wants: HashMap<_, _> = family.tensors().iter().map(|w| (w.id, w)).collect();
    let (mut jobs, mut fused): (Vec<Job>, Fused) = Default::default();
    for b in bounds {
        let Some(want) = wants.get(&b.id) else { bail!("parameter {} is not the family's", b.name) };
        let Some(place) = want.gguf.first() else {
            // Constants of the configuration are in no file.
            if matches!(b.data, Data::Values(_)) {
                continue;
            }
            bail!("{} has no name in a GGUF", b.name)
        };
        let Lies::Groups(g) = place.shape else {
            jobs.extend(job(want, place, b, bounds, how)?);
            continue;
        };
        if !fused.iter().any(|(name, _)| *name == place.name) {
            let shape = vec![g.count as u64 * g.of as u64, b.k as u64];
            jobs.push(matrix_job(&place.name, shape, b, want.export, how)?);
        }
        fused.push((place.name.clone(), grouped(b, g)?));
    }
    for job in &mut jobs {
        let mut pieces: Vec<_> = fused.iter().filter(|(n, _)| *n == job.name).flat_map(|(_, p)| p.clone()).collect();
        pieces.sort_by_key(|(row, _)| *row);
        if let (From::Matrices { parts, .. }, false) = (&mut job.from, pieces.is_empty()) {
            *parts = pieces.into_iter().map(|(_, range)| range).collect();
        }
    }
    Ok(jobs)
}

/// Parameters that share a tensor: its name, and ranges of rows with the row of the tensor at which each begins.
type Fused = Vec<(String, Vec<(u64, ByteRange)>)>;

/// A parameter's bytes as the ranges of rows that its tensor has them in.
fn grouped(b: &Bound, g: Groups) -> Result<Vec<(u64, ByteRange)>> {
    if b.side.is_some() {
        bail!("{} is stored over several planes, and its rows cannot be put together with others yet", b.name);
    }
    let row = b.dtype.row_bytes(b.k as u64)?;
    // What is contiguous in the source may be cut at rows; what is in pieces there is cut in the same places.
    let source = parts(b)?;
    let mut pieces = Vec::new();
    let mut at = 0;
    for (first, n) in g.ranges() {
        let mut begin = 0;
        let holds = |p: &&ByteRange| {
            let here = begin;
            begin += p.len / row;
            (here..begin).contains(&at) && at + n <= begin
        };
        let Some(from) = source.iter().find(holds).copied() else { bail!("{} is cut in other places", b.name) };
        let skip = at - (begin - from.len / row);
        pieces.push((first, ByteRange { off: from.off + skip * row, len: n * row, ..from }));
        at += n;
    }
    Ok(pieces)
}

fn job(want: &Want, place: &Place, b: &Bound, others: &[Bound], how: &Options) -> Result<Option<Job>> {
    let (name, mut shape) = (place.name.clone(), want.shape.clone());
    let f32_job = |from| Job { name: name.clone(), shape: shape.clone(), to: DType::F32, substituted: false, from };
    if let Data::Values(values) = &b.data {
        return Ok(divisors(want.export, values).map(|v| f32_job(From::Values(v))));
    }
    if b.role == Role::Vector {
        let Data::Whole { range, .. } = b.data else { bail!("{} is a vector in pieces", b.name) };
        let (dtype, canon, export) = (b.dtype, b.canon.clone(), want.export);
        return Ok(Some(f32_job(From::Vector { range, dtype, canon, export })));
    }
    if let (Lies::Half(half), Role::Experts { layer, .. }) = (place.shape, want.role) {
        // The second half is written with the first.
        if half > 0 {
            return Ok(None);
        }
        shape[1] *= 2;
        let mut job = matrix_job(&name, shape, b, want.export, how)?;
        job.from = From::Matrices { parts: both_halves(layer, b, others)?, dtype: b.dtype, export: want.export };
        return Ok(Some(job));
    }
    matrix_job(&name, shape, b, want.export, how).map(Some)
}

fn matrix_job(name: &str, shape: Vec<u64>, b: &Bound, export: Export, how: &Options) -> Result<Job> {
    let (to, substituted) = choose(name, &shape, b.dtype, how.to, &how.rules);
    let from = match (Source::of(b)?, &b.data) {
        (Some(source), _) => From::Planes { source, export },
        (None, &Data::Turned { range, first, of }) => {
            From::Turned { range, dtype: b.dtype, first: first as usize, of: of as usize }
        }
        _ => From::Matrices { parts: parts(b)?, dtype: b.dtype, export },
    };
    Ok(Job { name: name.into(), shape, to, substituted, from })
}

/// Gate and up of every expert in turn: the parts of a tensor that holds both.
fn both_halves(layer: u32, gate: &Bound, others: &[Bound]) -> Result<Vec<ByteRange>> {
    let is_up = |b: &&Bound| matches!(b.role, Role::Experts { layer: l, proj: Proj::Up, .. } if l == layer);
    let Some(up) = others.iter().find(is_up) else { bail!("{} has no other half", gate.name) };
    if up.dtype != gate.dtype {
        bail!("{} and {} have different types", gate.name, up.name);
    }
    Ok(parts(gate)?.into_iter().zip(parts(up)?).flat_map(|(g, u)| [g, u]).collect())
}

/// The divisor of frequencies that do not turn at all, as llama.cpp's converter writes it.
const STILL: f32 = 1e30;

/// Rope frequencies as the divisors a GGUF keeps, `None` where there is nothing to divide.
pub fn divisors(export: Export, freqs: &[f32]) -> Option<Vec<f32>> {
    let Export::Divisors { theta, dims } = export else { return None };
    let by: Vec<f32> = model::rope::plain(theta, dims).zip(freqs).map(|(plain, f)| (plain / f).min(STILL)).collect();
    by.iter().any(|&d| d != 1.0).then_some(by)
}

fn parts(b: &Bound) -> Result<Vec<ByteRange>> {
    let one = b.matrix_bytes();
    let count = if let Role::Experts { count, .. } = b.role { count as u64 } else { 1 };
    Ok(match &b.data {
        Data::Whole { range, first, step } => {
            (0..count).map(|e| ByteRange { file: range.file, off: range.off + first + e * step, len: one }).collect()
        }
        Data::Each(ranges) => ranges.clone(),
        Data::Turned { .. } => bail!("{} is transposed", b.name),
        Data::Values(_) => bail!("{} has no file", b.name),
    })
}

/// Rows handled at a time: a few MiB of f32.
fn batch(k: u64) -> u64 {
    ((2 << 20) / k.max(1)).max(1)
}

/// Streams one tensor's bytes.
pub fn write(ck: &Checkpoint, job: &Job, put: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    match &job.from {
        From::Copy(r) => copy(ck, *r, put),
        From::Values(v) => put(&encode::rows(DType::F32, v.len(), v)?),
        From::Vector { range, dtype, canon, export } => {
            let k: u64 = job.shape.iter().skip(1).product();
            let n = job.shape[0];
            let mut values = vec![0.0; (n * k) as usize * canon.stored()];
            let mut bytes = vec![0; range.len as usize];
            ck.read_at(*range, &mut bytes)?;
            dtype.decode(&bytes, &mut values)?;
            canon.apply(&mut values);
            let k = k as usize;
            let moved: Vec<f32> = (0..n)
                .flat_map(|i| {
                    let at = rearrange::row_of(*export, i, n) as usize;
                    values[at * k..(at + 1) * k].iter().copied()
                })
                .collect();
            put(&encode::rows(DType::F32, moved.len(), &moved)?)
        }
        From::Planes { source, export } => source.write(ck, job.to, *export, put),
        From::Turned { range, dtype, first, of } => turned(ck, job, *range, *dtype, [*first, *of], put),
        From::Matrices { parts, dtype, export } => {
            parts.iter().try_for_each(|part| matrix(ck, job, *part, *dtype, *export, put))
        }
    }
}

/// One expert is in memory at a time.
fn turned(
    ck: &Checkpoint,
    job: &Job,
    range: ByteRange,
    dtype: DType,
    [first, of]: [usize; 2],
    put: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let [experts, n, k] = job.shape[..] else { bail!("{} is no stack of experts", job.name) };
    let (n, k, each) = (n as usize, k as usize, range.len / experts.max(1));
    let (mut bytes, mut old) = (vec![0; each as usize], vec![0.0; n * of * k]);
    for e in 0..experts {
        ck.read_at(ByteRange { file: range.file, off: range.off + e * each, len: each }, &mut bytes)?;
        dtype.decode(&bytes, &mut old)?;
        let row = |i: usize| old[first + i * of..].iter().step_by(n * of).copied();
        let turned: Vec<f32> = (0..n).flat_map(row).collect();
        put(&encode::rows(job.to, k, &turned)?)?;
    }
    Ok(())
}

fn copy(ck: &Checkpoint, r: ByteRange, put: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    const STEP: u64 = 4 << 20;
    let mut buf = vec![0; STEP.min(r.len) as usize];
    let mut at = 0;
    while at < r.len {
        let len = STEP.min(r.len - at);
        ck.read_at(ByteRange { file: r.file, off: r.off + at, len }, &mut buf[..len as usize])?;
        put(&buf[..len as usize])?;
        at += len;
    }
    Ok(())
}

fn matrix(
    ck: &Checkpoint,
    job: &Job,
    part: ByteRange,
    dtype: DType,
    export: Export,
    put: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let k = job.shape.last().copied().unwrap_or(1);
    let row = dtype.row_bytes(k)?;
    let rows = part.len / row.max(1);
    let moves_rows = matches!(export, Export::TileRows { .. } | Export::AdjacentRope { .. });
    let mut first = 0;
    while first < rows {
        let n = batch(k).min(rows - first);
        let mut values = Vec::with_capacity((n * k) as usize);
        let mut bytes = vec![0; (if moves_rows { row } else { row * n }) as usize];
        let mut old = vec![0.0; bytes.len() / row as usize * k as usize];
        let mut new = Vec::new();
        let steps = if moves_rows { n } else { 1 };
        for i in 0..steps {
            let at = if moves_rows { rearrange::row_of(export, first + i, rows) } else { first };
            let r = ByteRange { file: part.file, off: part.off + at * row, len: bytes.len() as u64 };
            ck.read_at(r, &mut bytes)?;
            dtype.decode(&bytes, &mut old)?;
            for line in old.chunks_exact(k as usize) {
                rearrange::cols(export, line, &mut new);
                values.extend_from_slice(&new);
            }
        }
        put(&encode::rows(job.to, k as usize, &values)?)?;
        first += n;
    }
    Ok(())
}
