//! One GGUF file's header: key-value pairs and tensor descriptions.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use super::cursor::{At, Cursor};
use super::types::{TypeId, of_id};
use super::{ALIGNMENT, check_alignment};
use crate::meta::{Encoded, Kind};
use crate::source::Stored;
use crate::tensor::measure;
use crate::{ByteRange, DType, Dims, Error, FileId, Meta, Result, TensorInfo};

/// Magic, version, two counts.
const START: u64 = 24;
/// Least bytes of a key-value pair (key length, one-byte key, type, one-byte value) and of a tensor description (name length, one-byte name, dimension
/// count, one dimension, type, offset).
const MIN_PAIR: u64 = 8 + 1 + 4 + 1;
const MIN_TENSOR: u64 = 8 + 1 + 4 + 8 + 4 + 8;
/// Longest key or tensor name; the specification says 65535 for keys, real names have up to 80.
const MAX_NAME: u64 = 65535;
/// Deepest arrays in arrays.
const MAX_DEPTH: u32 = 4;

/// What a header says.
pub(crate) struct Header {
    pub(crate) meta: Meta,
    /// In the order of the file's data.
    pub(crate) tensors: Vec<TensorInfo>,
}

/// A key, and the type and place of its value.
type Pair = (Arc<str>, Kind, Range<usize>);

struct RawTensor {
    name: Arc<str>,
    dtype: DType,
    shape: Dims,
    offset: u64,
    len: u64,
}

/// Parses a whole header.
pub(crate) fn parse(stored: &Stored, file: FileId) -> Result<Header> {
    let mut c = Cursor::new(stored);
    c.room(START, 1)?;
    if &c.array()? != b"GGUF" {
        return Err(c.header("does not start with GGUF"));
    }
    let version = c.array()?;
    check_version(&c, version)?;
    let (n_tensors, n_pairs) = (c.u64()?, c.u64()?);
    let pairs = pairs(&mut c, n_pairs)?;
    let tensors = tensors(&mut c, stored, n_tensors)?;
    let end = c.pos();
    let bytes = c.into_bytes();
    let mut meta = Meta::for_gguf(stored.name.clone());
    for (key, kind, at) in pairs {
        if !meta.put(key.clone(), Encoded::new(kind, bytes.clone(), at)) {
            return Err(key_error(stored, &key, "is there twice"));
        }
    }
    let tensors = place(&meta, stored, file, end, tensors)?;
    Ok(Header { meta, tensors })
}

fn check_version(c: &Cursor<'_>, v: [u8; 4]) -> Result<()> {
    match (u32::from_le_bytes(v), u32::from_be_bytes(v)) {
        (2 | 3, _) => Ok(()),
        (1, _) => Err(c.header("is GGUF version 1; convert it again, versions 2 and 3 are supported")),
        (_, 1..=3) => Err(c.header("is a big-endian GGUF; only little-endian files are supported")),
        (v, _) => Err(c.header(format!("is GGUF version {v}; versions 2 and 3 are supported"))),
    }
}

fn key_error(stored: &Stored, key: &str, why: impl Into<String>) -> Error {
    Error::Key { file: stored.name.clone(), key: key.to_owned(), why: why.into() }
}

/// A key or tensor name.
fn name(c: &mut Cursor<'_>) -> Result<Arc<str>> {
    let n = c.u64()?;
    if n == 0 || n > MAX_NAME {
        return Err(c.header(format!("{} has a name of {n} bytes; 1 to {MAX_NAME} are allowed", c.at)));
    }
    let at = c.take(n)?;
    match std::str::from_utf8(c.bytes(at)) {
        Ok(s) => Ok(s.into()),
        Err(_) => Err(c.header(format!("{} has a name that is not UTF-8", c.at))),
    }
}

fn pairs(c: &mut Cursor<'_>, n: u64) -> Result<Vec<Pair>> {
    c.at = At::Key(0);
    c.room(n, MIN_PAIR)?;
    // Grown as pairs arrive: a count that merely fits the file is no reason to allocate for it.
    let mut out = Vec::new();
    for i in 0..n {
        c.at = At::Key(i);
        let key = name(c)?;
        c.at = At::Value(key.clone());
        let id = c.u32()?;
        let kind = kind(c, id)?;
        let from = c.pos() as usize;
        skip(c, kind, 0)?;
        out.push((key, kind, from..c.pos() as usize));
    }
    Ok(out)
}

fn kind(c: &Cursor<'_>, id: u32) -> Result<Kind> {
    Kind::of_id(id).ok_or_else(|| c.header(format!("{} has the unknown type {id}", c.at)))
}

/// Walks over a value and checks its structure.
fn skip(c: &mut Cursor<'_>, kind: Kind, depth: u32) -> Result<()> {
    match kind {
        Kind::Str => c.string().map(drop),
        Kind::Array => skip_array(c, depth + 1),
        _ => skip_numbers(c, kind, 1),
    }
}

fn skip_array(c: &mut Cursor<'_>, depth: u32) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(c.header(format!("{} has arrays in arrays deeper than {MAX_DEPTH}", c.at)));
    }
    let id = c.u32()?;
    let kind = kind(c, id)?;
    let n = c.u64()?;
    match kind {
        Kind::Str => {
            c.room(n, 8)?;
            (0..n).try_for_each(|_| c.string().map(drop))
        }
        Kind::Array => {
            c.room(n, 12)?;
            (0..n).try_for_each(|_| skip_array(c, depth + 1))
        }
        _ => skip_numbers(c, kind, n),
    }
}

fn skip_numbers(c: &mut Cursor<'_>, kind: Kind, n: u64) -> Result<()> {
    let size = kind.size().unwrap_or(1) as u64;
    c.room(n, size)?;
    let at = c.take(n * size)?;
    match c.bytes(at).iter().find(|b| kind == Kind::Bool && **b > 1) {
        Some(b) => Err(c.header(format!("{} is a bool of {b}; only 0 and 1 are allowed", c.at))),
        None => Ok(()),
    }
}

fn tensors(c: &mut Cursor<'_>, stored: &Stored, n: u64) -> Result<Vec<RawTensor>> {
    c.at = At::Tensor(0);
    c.room(n, MIN_TENSOR)?;
    let mut seen = HashSet::new();
    let mut out = Vec::new();
    for i in 0..n {
        c.at = At::Tensor(i);
        let t = tensor(c, stored)?;
        if !seen.insert(t.name.clone()) {
            return Err(tensor_error(stored, &t.name, "is there twice"));
        }
        out.push(t);
    }
    Ok(out)
}

fn tensor_error(stored: &Stored, tensor: &str, why: impl Into<String>) -> Error {
    Error::Tensor { file: stored.name.clone(), tensor: tensor.to_owned(), why: why.into() }
}

fn tensor(c: &mut Cursor<'_>, stored: &Stored) -> Result<RawTensor> {
    let name = name(c)?;
    let bad = |why: String| tensor_error(stored, &name, why);
    let n = c.u32()?;
    if !(1..=4).contains(&n) {
        return Err(bad(format!("has {n} dimensions; 1 to 4 are allowed")));
    }
    let mut shape = Dims::new();
    for _ in 0..n {
        shape.push(c.u64()?);
    }
    // GGUF stores the fastest dimension first.
    shape.reverse();
    let (id, offset) = (c.u32()?, c.u64()?);
    if shape.contains(&0) {
        return Err(bad(format!("has an empty shape {:?}", shape.as_slice())));
    }
    let dtype = match of_id(id) {
        TypeId::Known(d) => d,
        TypeId::Removed(n) => {
            return Err(bad(format!(
                "has type {n} ({id}), which was taken out of the format: quantise the model again"
            )));
        }
        TypeId::Unknown => return Err(bad(format!("has the unknown type {id}: the file is newer than this program"))),
    };
    let len = measure(dtype, &shape).map_err(&bad)?;
    Ok(RawTensor { dtype, shape, offset, len, name })
}

/// Checks alignment and ranges, and turns offsets in the data section into offsets in the file.
fn place(meta: &Meta, stored: &Stored, file: FileId, header: u64, raw: Vec<RawTensor>) -> Result<Vec<TensorInfo>> {
    let alignment = match meta.u64("general.alignment")? {
        Some(a) => check_alignment(a).map_err(|why| key_error(stored, "general.alignment", why))?,
        None => ALIGNMENT,
    };
    let start = header.next_multiple_of(alignment);
    let mut out = Vec::with_capacity(raw.len());
    for t in raw {
        if !t.offset.is_multiple_of(alignment) {
            return Err(tensor_error(
                stored,
                &t.name,
                format!("starts at {}, not a multiple of {alignment}", t.offset),
            ));
        }
        let off = start.saturating_add(t.offset);
        let end = off.saturating_add(t.len);
        if end > stored.len {
            let (file, tensor) = (stored.name.clone(), t.name.to_string());
            return Err(Error::DataCut { file, tensor, want: end, have: stored.len });
        }
        out.push(TensorInfo { name: t.name, dtype: t.dtype, shape: t.shape, at: ByteRange { file, off, len: t.len } });
    }
    out.sort_by_key(|t| t.at);
    match out.windows(2).find(|w| w[0].at.off + w[0].at.len > w[1].at.off) {
        Some([a, b]) => Err(tensor_error(stored, &b.name, format!("overlaps tensor {:?}", a.name))),
        _ => Ok(out),
    }
}
