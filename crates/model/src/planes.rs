//! Binding matrices that are stored over several planes.

use crate::bind::squeeze;
use crate::error::{Error, Result};
use crate::want::{Groups, Lies, Place, Want};
use checkpoint::{ByteRange, Checkpoint, Format, MatrixInfo, PLANES, Plane};
use std::collections::HashSet;
use weights::{Bound, Data, Role, Side};

/// The parameter `want`, which `m` (for experts apart: the first one's) was found to be by `place`.
///
/// # Errors
/// [`Error::TensorShape`], [`Error::TensorType`] for vectors and for rows that a plane does not have by themselves,
/// [`Error::MissingTensors`] for an expert.
pub fn bound(want: &Want, place: &Place, name: &str, m: &MatrixInfo, ck: &Checkpoint) -> Result<Bound> {
    let bad = |what: &str| Error::TensorType { name: m.name.to_string(), dtype: format!("{}{what}", m.format) };
    if want.role == Role::Vector || want.shape.len() < 2 {
        return Err(bad(", which vectors are not read from"));
    }
    let shape = &want.shape[..];
    let (n, k) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    let cuts = m.format.planes(k).map_err(|_| bad(" with other rows"))?;
    let mut data: [Option<Data>; PLANES] = Default::default();
    let mut row_step = 1;
    for (i, cut) in cuts.iter().enumerate() {
        let Some(cut) = cut else { continue };
        data[i] = Some(match place.shape {
            Lies::Whole => {
                expect(m, shape)?;
                behind(m, i, 0)
            }
            Lies::Half(half) => {
                expect(m, &[shape[0], 2 * shape[1], shape[2]])?;
                behind(m, i, row(cut, n * u64::from(half)).ok_or_else(|| bad(" cut inside a tile"))?)
            }
            // Published files of gpt-oss are quantised by rows, where float ones are transposed: gate and up lie row by
            // row in turn.
            Lies::Turned { first, of } => {
                expect(m, &[shape[0], u64::from(of) * n, k])?;
                row_step = of;
                behind(m, i, row(cut, first.into()).ok_or_else(|| bad(" cut inside a tile"))?)
            }
            Lies::Each => each(name, shape, m, i, ck)?,
            Lies::Groups(g) => {
                expect(m, &[u64::from(g.count) * u64::from(g.of), k])?;
                grouped(m, i, cut, g).ok_or_else(|| bad(" cut inside a tile"))?
            }
        });
    }
    let [codes, planes @ ..] = data;
    let (Some(codes), Some(info)) = (codes, &m.planes[0]) else { return Err(bad(" without codes")) };
    Ok(Bound {
        id: want.id,
        name: m.name.clone(),
        component: want.component,
        role: want.role,
        n: n as u32,
        k: k as u32,
        dtype: info.dtype,
        data: codes,
        canon: place.canon.clone(),
        side: Some(Box::new(Side { fmt: m.format, planes, row_step })),
    })
}

/// Takes the scale from blocks whose family has that tensor as a vector of its own: GGUF files name the scales of Gemma 4's experts as they name those
/// of NVFP4 tensors, and it must not be applied twice.
pub fn used_once(bound: &mut [Bound]) {
    let own = |b: &Bound| match (&b.role, &b.data) {
        (Role::Vector, Data::Whole { range, .. }) => Some(*range),
        _ => None,
    };
    let vectors: HashSet<ByteRange> = bound.iter().filter_map(own).collect();
    for b in bound {
        let twice = |s: &Side| {
            let scale = s.planes.last().and_then(Option::as_ref);
            matches!(s.fmt, Format::Scaled(_))
                && matches!(scale, Some(Data::Whole { range, .. }) if vectors.contains(range))
        };
        if b.side.as_deref().is_some_and(twice) {
            b.side = None;
        }
    }
}

fn expect(m: &MatrixInfo, wanted: &[u64]) -> Result<()> {
    if squeeze(&m.shape) == squeeze(wanted) {
        return Ok(());
    }
    Err(Error::TensorShape { name: m.name.to_string(), found: m.shape.to_vec(), wanted: wanted.to_vec() })
}

/// Byte of a plane at which row `at` begins, if something begins there.
fn row(cut: &Plane, at: u64) -> Option<u64> {
    at.is_multiple_of(u64::from(cut.rows.max(1))).then(|| cut.at(at))
}

/// Plane `i` of all matrices, from byte `first` of each on.
fn behind(m: &MatrixInfo, i: usize, first: u64) -> Data {
    let range = m.planes[i].as_ref().map_or(ByteRange { file: checkpoint::FileId(0), off: 0, len: 0 }, |t| t.at);
    Data::Whole { range, first, step: if m.count() > 1 { m.step(i) } else { 0 } }
}

/// Plane `i` of some rows of every group.
fn grouped(m: &MatrixInfo, i: usize, cut: &Plane, g: Groups) -> Option<Data> {
    let t = m.planes[i].as_ref()?;
    if cut.rows == 0 {
        return Some(behind(m, i, 0));
    }
    let range = |(first, n): (u64, u64)| {
        let (off, end) = (row(cut, first)?, row(cut, first + n)?);
        Some(ByteRange { file: t.at.file, off: t.at.off + off, len: end - off })
    };
    Some(Data::Each(g.ranges().map(range).collect::<Option<_>>()?))
}

/// Plane `i` of experts that are matrices of their own.
fn each(pattern: &str, shape: &[u64], first: &MatrixInfo, i: usize, ck: &Checkpoint) -> Result<Data> {
    let mut ranges = Vec::new();
    for e in 0..shape[0] {
        let name = pattern.replace("{e}", &e.to_string());
        let missing = || Error::MissingTensors { arch: "mixture".into(), count: 1, names: vec![name.clone()] };
        let m = ck.matrix(&name)?.ok_or_else(missing)?;
        expect(&m, &shape[1..])?;
        let Some(t) = m.planes[i].as_ref().filter(|_| m.format == first.format) else {
            let dtype = format!("{}, others {}", m.format, first.format);
            return Err(Error::TensorType { name, dtype });
        };
        ranges.push(t.at);
    }
    Ok(Data::Each(ranges))
}
