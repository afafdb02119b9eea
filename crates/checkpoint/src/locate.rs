//! From what the user named to opened files: a file is known by its first bytes, a directory by what it holds.

use std::path::{Path, PathBuf};

use crate::gguf::{self, SplitName};
use crate::meta::Hf;
use crate::source::{Bytes, Stored};
use crate::{Checkpoint, Error, FileId, Result, safetensors};

/// Opens the file or directory at `path`.
pub(crate) fn open(path: &Path) -> Result<Checkpoint> {
    if path.is_dir() { open_dir(path) } else { open_file(path) }
}

/// Opens bytes in memory.
pub(crate) fn open_memory(bytes: Bytes) -> Result<Checkpoint> {
    let stored = Stored::memory(bytes);
    match sniff(&stored)? {
        Shape::Gguf => {
            let h = gguf::parse(&stored, FileId(0))?;
            Ok(Checkpoint::gguf(vec![stored], h.meta, h.tensors))
        }
        Shape::Safetensors => {
            let tensors = safetensors::parse(&stored, FileId(0))?;
            let name = stored.name.to_string();
            Ok(Checkpoint::hf(vec![stored], tensors, Hf::default(), Path::new(&name)))
        }
    }
}

enum Shape {
    Gguf,
    Safetensors,
}

fn open_file(path: &Path) -> Result<Checkpoint> {
    let stored = Stored::open(path)?;
    match sniff(&stored)? {
        Shape::Gguf => {
            let (files, meta, tensors) = gguf::open_set(stored, path)?;
            let gguf::Set { files, meta, tensors } = gguf::with_predictor(gguf::Set { files, meta, tensors }, path)?;
            Ok(Checkpoint::gguf(files, meta, tensors).beside(gguf::vision(path)))
        }
        Shape::Safetensors => open_safetensors(stored, path),
    }
}

/// A lone file takes its configuration from its directory; a shard brings the whole set.
fn open_safetensors(stored: Stored, path: &Path) -> Result<Checkpoint> {
    let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_shard = path.file_name().and_then(|n| n.to_str()).and_then(SplitName::of).is_some_and(|s| s.count > 1);
    if is_shard {
        let index = dir.join(safetensors::INDEX);
        if !index.is_file() {
            let missing = vec![safetensors::INDEX.to_owned()];
            return Err(Error::MissingParts { file: stored.name, missing });
        }
        return open_index(&index, dir);
    }
    let tensors = safetensors::parse(&stored, FileId(0))?;
    Ok(Checkpoint::hf(vec![stored], tensors, Hf::open(dir)?, dir))
}

fn open_index(index: &Path, dir: &Path) -> Result<Checkpoint> {
    let (files, tensors) = safetensors::open_shards(index)?;
    Ok(Checkpoint::hf(files, tensors, Hf::open(dir)?, dir))
}

/// In this order: `model.safetensors`, the index of a sharded set, the only `.safetensors` file, the only `.gguf` file or split set (a predictor's and a
/// vision tower's beside it do not count).
fn open_dir(dir: &Path) -> Result<Checkpoint> {
    let single = dir.join("model.safetensors");
    if single.is_file() {
        return open_safetensors(Stored::open(&single)?, &single);
    }
    let index = dir.join(safetensors::INDEX);
    if index.is_file() {
        return open_index(&index, dir);
    }
    let (mut st, gg) = (named(dir, "safetensors")?, named(dir, "gguf")?);
    let mut gg: Vec<PathBuf> = gg.into_iter().filter(|p| split_of(p).is_none_or(|s| s.part == 1)).collect();
    if gg.len() > 1 {
        gg.retain(|p| !gguf::is_companion(p));
    }
    let one = match (st.len(), gg.len()) {
        (1, _) => st.pop(),
        (0, 1) => gg.pop(),
        _ => None,
    };
    if let Some(path) = one {
        return open_file(&path);
    }
    let what = if st.is_empty() && gg.is_empty() {
        "is a directory without a .gguf or .safetensors file".to_owned()
    } else {
        let all: Vec<_> = st.iter().chain(&gg).filter_map(|p| Some(p.file_name()?.to_string_lossy())).collect();
        format!("is a directory with several models, name one of them: {}", all.join(", "))
    };
    Err(Error::NotACheckpoint { file: dir.display().to_string().into(), what })
}

fn split_of(p: &Path) -> Option<SplitName> {
    SplitName::of(p.file_name()?.to_str()?)
}

/// Files with an extension, sorted.
fn named(dir: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let io = |source| Error::Io { file: dir.display().to_string().into(), action: "list", source };
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let p = entry.map_err(io)?.path();
        if p.extension().is_some_and(|e| e.eq_ignore_ascii_case(extension)) && p.is_file() {
            out.push(p);
        }
    }
    out.sort();
    Ok(out)
}

/// What a file is, by its first bytes.
fn sniff(stored: &Stored) -> Result<Shape> {
    let mut first = [0; 64];
    let first = &mut first[..stored.len.min(64) as usize];
    stored.read_at(0, first)?;
    let n = first.len().min(4);
    let is_safetensors_name = stored.path().and_then(|p| p.extension()).is_some_and(|e| e == "safetensors");
    if n > 0 && first[..n] == b"GGUF"[..n] || first.is_empty() && !is_safetensors_name {
        return Ok(Shape::Gguf);
    }
    if let Some(what) = foreign(first) {
        return Err(Error::NotACheckpoint { file: stored.name.clone(), what: what.into() });
    }
    // Anything that calls itself safetensors is reported on as such.
    if is_safetensors_name || first.get(8) == Some(&b'{') {
        return Ok(Shape::Safetensors);
    }
    let what = format!("is not a model: it starts with {:02x?}; GGUF and safetensors are supported", &first[..n]);
    Err(Error::NotACheckpoint { file: stored.name.clone(), what })
}

/// Files that are often taken for models.
fn foreign(first: &[u8]) -> Option<&'static str> {
    let text: Vec<u8> = first.iter().skip_while(|b| b.is_ascii_whitespace()).map(u8::to_ascii_lowercase).collect();
    let starts = |s: &[u8]| first.starts_with(s);
    if text.starts_with(b"<!doctype") || text.starts_with(b"<html") || text.starts_with(b"<?xml") {
        return Some("is a web page, not a model: the download went wrong (it may need a login or another link)");
    }
    if text.starts_with(b"version https://git-lfs") {
        return Some("is a Git LFS pointer, not the model itself: fetch it with `git lfs pull`");
    }
    // The magics are little-endian numbers, so files show them backwards.
    if [b"GGML", b"lmgg", b"fmgg", b"tjgg", b"algg"].iter().any(|m| starts(*m)) {
        return Some("is in the old GGML format: convert the model to GGUF, or download it again");
    }
    if starts(b"PK\x03\x04") || starts(&[0x80, 2]) || starts(&[0x80, 4]) {
        return Some("is a PyTorch or zip file, which can run code when loaded: use safetensors or GGUF");
    }
    if text.starts_with(b"{") || text.starts_with(b"[") {
        return Some("is a JSON file, not a model");
    }
    None
}
