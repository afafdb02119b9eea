//! One safetensors file's header.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::source::Stored;
use crate::tensor::measure;
use crate::{ByteRange, DType, Dims, Error, FileId, Result, TensorInfo};

/// The format's own limit.
const MAX_HEADER: u64 = 100_000_000;
const MAX_DIMS: usize = 8;

/// Types by the names of the format.
pub(crate) const TYPES: &[DType] = &[
    DType::F64,
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::Bool,
    DType::F8E4M3,
    DType::F8E5M2,
    DType::E8M0,
];

/// Reads and checks a header; tensors come in the order of the data.
pub(crate) fn parse(stored: &Stored, file: FileId) -> Result<Vec<TensorInfo>> {
    let truncated = |at: &str, need| Error::Truncated {
        file: stored.name.clone(),
        container: "safetensors",
        at: at.into(),
        need,
        have: stored.len,
    };
    if stored.len < 8 {
        return Err(truncated("the header's length", 8));
    }
    let mut n = [0; 8];
    stored.read_at(0, &mut n)?;
    let n = u64::from_le_bytes(n);
    if n > MAX_HEADER {
        let why = format!(
            "claims a header of {n} bytes; {MAX_HEADER} are allowed, so this is not a safetensors file or it is damaged"
        );
        return Err(Error::Header { file: stored.name.clone(), why });
    }
    let start = 8 + n;
    if start > stored.len {
        return Err(truncated("the header", start));
    }
    let mut text = vec![0; n as usize];
    stored.read_at(8, &mut text)?;
    let Entries(entries) = serde_json::from_slice(&text)
        .map_err(|e| Error::Header { file: stored.name.clone(), why: format!("has a damaged header: {e}") })?;
    let mut out =
        entries.into_iter().map(|(name, e)| describe(stored, file, start, name, e)).collect::<Result<Vec<_>>>()?;
    out.sort_by(|a, b| (a.at, &a.name).cmp(&(b.at, &b.name)));
    let mut seen = HashSet::new();
    if let Some(t) = out.iter().find(|t| !seen.insert(&t.name)) {
        return Err(bad(stored, &t.name, "is there twice"));
    }
    cover(stored, start, &out)?;
    Ok(out)
}

fn bad(stored: &Stored, tensor: &str, why: impl Into<String>) -> Error {
    Error::Tensor { file: stored.name.clone(), tensor: tensor.to_owned(), why: why.into() }
}

fn describe(stored: &Stored, file: FileId, start: u64, name: Arc<str>, e: Entry) -> Result<TensorInfo> {
    let dtype = TYPES.iter().find(|d| d.name() == e.dtype).ok_or_else(|| {
        let known: Vec<_> = TYPES.iter().map(|d| d.name()).collect();
        bad(stored, &name, format!("has the unknown type {:?}; known are {}", e.dtype, known.join(", ")))
    })?;
    let want = measure(*dtype, &e.shape.0).map_err(|why| bad(stored, &name, why))?;
    let [from, to] = e.data_offsets;
    match to.checked_sub(from) {
        Some(have) if have == want => {}
        _ => {
            let why = format!(
                "takes {want} bytes ({dtype} {:?}), but its data_offsets are [{from}, {to}]",
                e.shape.0.as_slice()
            );
            return Err(bad(stored, &name, why));
        }
    }
    let end = start.saturating_add(to);
    if end > stored.len {
        return Err(Error::DataCut {
            file: stored.name.clone(),
            tensor: name.to_string(),
            want: end,
            have: stored.len,
        });
    }
    Ok(TensorInfo { name, dtype: *dtype, shape: e.shape.0, at: ByteRange { file, off: start + from, len: want } })
}

/// The tensors, sorted by place, must cover the data exactly.
fn cover(stored: &Stored, start: u64, sorted: &[TensorInfo]) -> Result<()> {
    let mut at = start;
    for (i, t) in sorted.iter().enumerate() {
        if t.at.off < at {
            return Err(bad(stored, &t.name, format!("overlaps tensor {:?}", sorted[i.saturating_sub(1)].name)));
        }
        if t.at.off > at {
            return Err(bad(stored, &t.name, format!("leaves a gap of {} bytes before it", t.at.off - at)));
        }
        at += t.at.len;
    }
    if at == stored.len {
        return Ok(());
    }
    let why = format!("has {} bytes after the last tensor: header and data do not belong together", stored.len - at);
    Err(Error::Header { file: stored.name.clone(), why })
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Shape,
    data_offsets: [u64; 2],
}

struct Shape(Dims);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct Numbers;
        impl<'de> Visitor<'de> for Numbers {
            type Value = Shape;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "up to {MAX_DIMS} dimensions")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Shape, A::Error> {
                let mut out = Dims::new();
                while let Some(d) = seq.next_element()? {
                    if out.len() == MAX_DIMS {
                        return Err(A::Error::invalid_length(MAX_DIMS + 1, &self));
                    }
                    out.push(d);
                }
                Ok(Shape(out))
            }
        }
        d.deserialize_seq(Numbers)
    }
}

/// The header's pairs in order, so that duplicates are seen. `__metadata__` may be anything: nothing here depends on it.
struct Entries(Vec<(Arc<str>, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Entries;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Entries, A::Error> {
                let mut out = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<serde::de::IgnoredAny>()?;
                    } else {
                        let entry = map.next_value().map_err(|e| A::Error::custom(format!("tensor {name:?}: {e}")))?;
                        out.push((name.into(), entry));
                    }
                }
                Ok(Entries(out))
            }
        }
        d.deserialize_map(Pairs)
    }
}
