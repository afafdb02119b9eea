//! The streaming safetensors writer.

use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::TYPES;
use crate::error::FileName;
use crate::gguf::{Plan, atomically};
use crate::{Error, NewTensor, Result, TensorWriter};

/// Writes one safetensors file, as [`crate::write_gguf`] does for GGUF: announced tensors, data asked for in order, a temporary file that takes the name
/// `out` when all is written. `metadata` becomes `__metadata__` (`format: pt` is what other programs expect).
///
/// # Errors
/// Anything `fill` returns, [`Error::Tensor`] for a type that the format does not have (all block types), [`Error::WrongSize`], [`Error::Io`].
pub fn write_safetensors<E: From<Error>>(
    out: &Path,
    metadata: &[(&str, &str)],
    tensors: &[NewTensor],
    fill: impl FnMut(usize, &mut TensorWriter<'_>) -> Result<(), E>,
) -> Result<(), E> {
    atomically(out, |w, file| write_to(w, file, metadata, tensors, fill).map(|()| 0))
}

/// As [`write_safetensors`] without any data, as [`crate::write_gguf_hole`] does for GGUF.
///
/// # Errors
/// As [`write_safetensors`].
pub fn write_safetensors_hole(out: &Path, metadata: &[(&str, &str)], tensors: &[NewTensor]) -> Result<()> {
    atomically(out, |w, file| {
        let plan = Plan::of(file, tensors)?;
        w.write_all(&head(file, metadata, tensors, &plan)?).map_err(crate::gguf::write_error(file))?;
        // The header has checked that the sum fits.
        Ok(plan.lens.iter().sum())
    })
}

/// As [`write_safetensors`], to any writer.
///
/// # Errors
/// As [`write_safetensors`].
pub fn write_safetensors_to<E: From<Error>>(
    mut out: impl Write,
    metadata: &[(&str, &str)],
    tensors: &[NewTensor],
    fill: impl FnMut(usize, &mut TensorWriter<'_>) -> Result<(), E>,
) -> Result<(), E> {
    write_to(&mut out, &"new safetensors".into(), metadata, tensors, fill)
}

fn write_to<E: From<Error>>(
    out: &mut dyn Write,
    file: &FileName,
    metadata: &[(&str, &str)],
    tensors: &[NewTensor],
    mut fill: impl FnMut(usize, &mut TensorWriter<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let plan = Plan::of(file, tensors)?;
    let head = head(file, metadata, tensors, &plan)?;
    out.write_all(&head).map_err(crate::gguf::write_error(file))?;
    for (i, (t, len)) in tensors.iter().zip(plan.lens).enumerate() {
        let mut w = TensorWriter::new(out, file, t, len);
        fill(i, &mut w)?;
        w.finish()?;
    }
    Ok(())
}

/// Length and JSON, padded with spaces so that the data starts at a multiple of eight.
fn head(file: &FileName, metadata: &[(&str, &str)], tensors: &[NewTensor], plan: &Plan) -> Result<Vec<u8>> {
    let mut all = Map::new();
    if !metadata.is_empty() {
        let pairs: Map<String, Json> = metadata.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
        all.insert("__metadata__".into(), pairs.into());
    }
    let mut offset = 0u64;
    for (t, len) in tensors.iter().zip(&plan.lens) {
        let bad = |why: String| Error::Tensor { file: file.clone(), tensor: t.name.clone(), why };
        if !TYPES.contains(&t.dtype) || t.name == "__metadata__" {
            return Err(bad(format!("is {}, which safetensors cannot hold under this name", t.dtype)));
        }
        let end = offset.checked_add(*len).ok_or_else(|| bad("does not fit a file".into()))?;
        let entry = json!({"dtype": t.dtype.name(), "shape": t.shape.as_slice(), "data_offsets": [offset, end]});
        all.insert(t.name.clone(), entry);
        offset = end;
    }
    let mut text = Json::Object(all).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut h = (text.len() as u64).to_le_bytes().to_vec();
    h.append(&mut text);
    Ok(h)
}
