//! Matching what a family needs to what a checkpoint has.

use crate::error::{Error, Result};
use crate::family::Family;
use crate::planes;
use crate::want::{Groups, Lies, Place, Want};
use checkpoint::{ByteRange, Checkpoint, Container, DType, Format, TensorInfo};
use memory::Component;
use weights::{Bound, Canon, Data, Role};

/// Where the language model begins in safetensors files, by who wrote them.
const ROOTS: [&str; 4] = ["model.", "model.language_model.", "language_model.model.", ""];

/// Binds every parameter of a family. Optional ones that are absent are left out, and the multi-token predictor as a
/// whole where none of it is there.
///
/// # Errors
/// [`Error::MissingTensors`], [`Error::TensorShape`], [`Error::TensorType`].
pub fn bind(family: &dyn Family, ck: &Checkpoint) -> Result<Vec<Bound>> {
    let (mut bound, mut missing) = (Vec::new(), Vec::new());
    for want in family.tensors() {
        match find(want, ck)? {
            Some(b) => bound.push(b),
            None if want.optional => {}
            None => missing.push(want),
        }
    }
    planes::used_once(&mut bound);
    let has_mtp = bound.iter().any(|b| b.component == Component::Mtp);
    missing.retain(|w| w.component != Component::Mtp || has_mtp);
    if missing.is_empty() {
        return Ok(bound);
    }
    let name = |w: &&Want| places(w, ck).first().map_or_else(String::new, |p| p.name.replace('~', "model."));
    let names = missing.iter().take(6).map(name).collect();
    Err(Error::MissingTensors { arch: family.spec().arch.clone(), count: missing.len(), names })
}

fn places<'w>(want: &'w Want, ck: &Checkpoint) -> &'w [Place] {
    match ck.meta().container() {
        Container::Gguf => &want.gguf,
        Container::Hf => &want.hf,
    }
}

fn find(want: &Want, ck: &Checkpoint) -> Result<Option<Bound>> {
    for place in places(want, ck) {
        for root in ROOTS {
            let name = place.name.replace('~', root);
            if let Some(found) = at(want, place, &name, ck)? {
                return Ok(Some(found));
            }
            if !place.name.contains('~') {
                break;
            }
        }
    }
    Ok(want.fallback.as_ref().map(|v| Bound {
        id: want.id,
        name: "computed".into(),
        component: want.component,
        role: want.role,
        n: 1,
        k: v.len() as u32,
        dtype: DType::F32,
        data: Data::Values(v.clone()),
        canon: Canon::Same,
        side: None,
    }))
}

fn at(want: &Want, place: &Place, name: &str, ck: &Checkpoint) -> Result<Option<Bound>> {
    let first = name.replace("{e}", "0");
    let Some(m) = ck.matrix(&first)? else { return Ok(None) };
    let (Format::Plain(_), Some(info)) = (m.format, &m.planes[0]) else {
        return planes::bound(want, place, name, &m, ck).map(Some);
    };
    if !info.dtype.decodable() {
        return Err(Error::TensorType { name: first, dtype: info.dtype.to_string() });
    }
    let (n, k) = match want.role {
        Role::Vector => (1, want.shape.iter().product::<u64>() as u32),
        _ => (want.shape[want.shape.len() - 2] as u32, want.shape[want.shape.len() - 1] as u32),
    };
    let data = match place.shape {
        Lies::Whole => whole(info, &want.shape, place.canon.stored())?,
        Lies::Half(half) => halves(info, &want.shape, half)?,
        Lies::Each => each(info, name, &want.shape, ck)?,
        Lies::Turned { first, of } => turned(info, &want.shape, first, of)?,
        Lies::Groups(g) => grouped(info, &want.shape, g)?,
    };
    Ok(Some(Bound {
        id: want.id,
        name: info.name.clone(),
        component: want.component,
        role: want.role,
        n,
        k,
        dtype: info.dtype,
        data,
        canon: place.canon.clone(),
        side: None,
    }))
}

pub(crate) fn squeeze(shape: &[u64]) -> Vec<u64> {
    shape.iter().copied().filter(|&d| d != 1).collect()
}

fn expect_shape(info: &TensorInfo, wanted: &[u64]) -> Result<()> {
    if squeeze(&info.shape) == squeeze(wanted) {
        return Ok(());
    }
    Err(Error::TensorShape { name: info.name.to_string(), found: info.shape.to_vec(), wanted: wanted.to_vec() })
}

/// `stored` elements lie there for each one that is wanted.
fn whole(info: &TensorInfo, shape: &[u64], stored: usize) -> Result<Data> {
    let mut there = shape.to_vec();
    there.last_mut().into_iter().for_each(|k| *k *= stored as u64);
    expect_shape(info, &there)?;
    let step = if shape.len() == 3 { info.at.len / shape[0] } else { 0 };
    Ok(Data::Whole { range: info.at, first: 0, step })
}

fn halves(info: &TensorInfo, shape: &[u64], half: u8) -> Result<Data> {
    expect_shape(info, &[shape[0], 2 * shape[1], shape[2]])?;
    let step = info.at.len / shape[0];
    Ok(Data::Whole { range: info.at, first: step / 2 * half as u64, step })
}

fn turned(info: &TensorInfo, shape: &[u64], first: u32, of: u32) -> Result<Data> {
    expect_shape(info, &[shape[0], shape[2], of as u64 * shape[1]])?;
    if matches!(info.dtype, DType::Block(_)) {
        return Err(Error::TensorType { name: info.name.to_string(), dtype: format!("{}, transposed", info.dtype) });
    }
    Ok(Data::Turned { range: info.at, first, of })
}

fn grouped(info: &TensorInfo, shape: &[u64], g: Groups) -> Result<Data> {
    let rows = g.count as u64 * g.of as u64;
    expect_shape(info, &[rows, shape[1]])?;
    let row = info.at.len / rows;
    let range = |(first, n): (u64, u64)| ByteRange { file: info.at.file, off: info.at.off + first * row, len: n * row };
    Ok(Data::Each(g.ranges().map(range).collect()))
}

fn each(first: &TensorInfo, pattern: &str, shape: &[u64], ck: &Checkpoint) -> Result<Data> {
    let mut ranges = Vec::new();
    for e in 0..shape[0] {
        let name = pattern.replace("{e}", &e.to_string());
        let missing = |name| Error::MissingTensors { arch: "mixture".into(), count: 1, names: vec![name] };
        let info = ck.tensor(&name).ok_or_else(|| missing(name))?;
        expect_shape(info, &shape[1..])?;
        if info.dtype != first.dtype {
            return Err(Error::TensorType { name: info.name.to_string(), dtype: info.dtype.to_string() });
        }
        ranges.push(info.at);
    }
    Ok(Data::Each(ranges))
}
