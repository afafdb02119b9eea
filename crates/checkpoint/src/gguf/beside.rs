//! Files beside a GGUF that belong to it: a multi-token predictor that was published as a file of its own
//! (`mtp-NAME.gguf`), and a vision tower (`mmproj-NAME.gguf`).

use std::path::{Path, PathBuf};

use super::header::{Header, parse};
use crate::source::Stored;
use crate::{FileId, Meta, Result, TensorInfo};

/// A model's file set with what was opened of it.
pub(crate) struct Set {
    pub files: Vec<Stored>,
    pub meta: Meta,
    pub tensors: Vec<TensorInfo>,
}

/// Whether a file is one that only belongs to another, by its name.
pub fn is_companion(path: &Path) -> bool {
    let name = path.file_name().map(|n| n.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    name.starts_with("mtp-") || name.starts_with("mmproj")
}

/// Vision towers beside a file.
pub(crate) fn vision(path: &Path) -> Vec<PathBuf> {
    beside(path, "mmproj")
}

/// Adds the predictor that lies beside a model without one, as its last block. One that does not fit is left alone, and so
/// are several of which none has the model's name.
///
/// # Errors
/// Those of a predictor's file that fits by name and cannot be read.
pub(crate) fn with_predictor(mut set: Set, path: &Path) -> Result<Set> {
    let arch = set.meta.str("general.architecture")?.unwrap_or_default().to_owned();
    let key = |name: &str| format!("{arch}.{name}");
    let blocks = set.meta.u32(&key("block_count"))?;
    let (Some(blocks), false) = (blocks, set.meta.u32(&key("nextn_predict_layers"))?.is_some_and(|n| n > 0)) else {
        return Ok(set);
    };
    if is_companion(path) {
        return Ok(set);
    }
    let candidates = beside(path, "mtp-");
    let own = path.file_name().map(|n| format!("mtp-{}", n.to_string_lossy()));
    let named = candidates.iter().find(|p| p.file_name().map(|n| n.to_string_lossy().into_owned()) == own);
    let one = named.or(if candidates.len() == 1 { candidates.first() } else { None });
    let Some(one) = one else { return Ok(set) };
    let stored = Stored::open(one)?;
    let Header { meta, tensors } = parse(&stored, FileId(set.files.len() as u32))?;
    let same = |name: &str| -> Result<bool> { Ok(meta.u32(&key(name))? == set.meta.u32(&key(name))?) };
    let fits = meta.str("general.architecture")? == Some(arch.as_str()) && same("embedding_length")?;
    let Some(block) = block_of(&tensors).filter(|_| fits) else { return Ok(set) };
    let (from, to) = (format!("blk.{block}."), format!("blk.{blocks}."));
    for t in tensors {
        // Its embedding and its head, where it has copies of them, are the model's.
        if let Some(rest) = t.name.strip_prefix(&from) {
            set.tensors.push(TensorInfo { name: format!("{to}{rest}").into(), ..t });
        }
    }
    set.meta.set(&key("block_count"), blocks + 1).set(&key("nextn_predict_layers"), 1u32);
    set.files.push(stored);
    Ok(set)
}

/// The block that predicts: the one with a projection of two hidden states to one.
fn block_of(tensors: &[TensorInfo]) -> Option<u32> {
    let number = |t: &TensorInfo| t.name.strip_prefix("blk.")?.strip_suffix(".nextn.eh_proj.weight")?.parse().ok();
    tensors.iter().find_map(number)
}

/// GGUF files in the same directory whose names begin so, sorted. A directory that cannot be listed has none.
fn beside(path: &Path, begins: &str) -> Vec<PathBuf> {
    let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let fits = |p: &PathBuf| {
        let name = p.file_name().map(|n| n.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        name.starts_with(begins) && name.ends_with(".gguf")
    };
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    let mut all: Vec<PathBuf> = entries.filter(fits).filter(|p| p != path).collect();
    all.sort();
    all
}
