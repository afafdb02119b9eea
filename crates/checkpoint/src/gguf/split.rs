//! Split sets: `name-00001-of-00003.gguf` and so on, with `split.no`, `split.count` and `split.tensors.count` in each part. The first part has the metadata.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::header::{Header, parse};
use crate::source::Stored;
use crate::{Error, FileId, Meta, Result, TensorInfo};

/// More parts than any model has.
const MAX_PARTS: u32 = 4096;

/// A file name of a split set, taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SplitName {
    stem: String,
    /// From 1.
    pub(crate) part: u32,
    pub(crate) count: u32,
    extension: &'static str,
}

impl SplitName {
    /// `None` if the name does not follow the pattern.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let (name, extension) = [".gguf", ".safetensors"].iter().find_map(|e| Some((name.strip_suffix(e)?, *e)))?;
        let (rest, count) = name.rsplit_once("-of-")?;
        let (stem, part) = rest.rsplit_once('-')?;
        let number = |s: &str| (s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse().ok())?;
        let (part, count) = (number(part)?, number(count)?);
        (1 <= part && part <= count && count <= MAX_PARTS).then(|| Self {
            stem: stem.to_owned(),
            part,
            count,
            extension,
        })
    }

    /// Name of part `i` (from 1).
    pub(crate) fn file(&self, i: u32) -> String {
        format!("{}-{i:05}-of-{:05}{}", self.stem, self.count, self.extension)
    }
}

/// Opens one file, or the whole set that it is a part of.
pub(crate) fn open_set(first: Stored, path: &Path) -> Result<(Vec<Stored>, Meta, Vec<TensorInfo>)> {
    let split = path.file_name().and_then(|n| n.to_str()).and_then(SplitName::of).filter(|s| s.count > 1);
    let Some(split) = split else {
        let Header { meta, tensors } = parse(&first, FileId(0))?;
        if meta.u32("split.count")?.unwrap_or(1) > 1 {
            return Err(Error::Key {
                file: first.name,
                key: "split.count".into(),
                why: "says that this is one of several parts: keep their names, NAME-00001-of-00003.gguf and so on, and open any of them".into(),
            });
        }
        return Ok((vec![first], meta, tensors));
    };
    let paths = part_paths(path, &split)?;
    let mut files = Vec::new();
    let mut all = Vec::new();
    let mut meta = None;
    for (i, p) in paths.iter().enumerate() {
        let stored = Stored::open(p)?;
        let Header { meta: own, mut tensors } = parse(&stored, FileId(i as u32))?;
        check_part(&stored, &own, i as u32, split.count)?;
        all.append(&mut tensors);
        meta.get_or_insert(own);
        files.push(stored);
    }
    let meta = meta.unwrap_or_else(Meta::gguf);
    check_whole(&files[0], &meta, &all)?;
    Ok((files, meta, all))
}

/// Paths of all parts; an error names every one that is missing.
fn part_paths(path: &Path, split: &SplitName) -> Result<Vec<PathBuf>> {
    let paths: Vec<PathBuf> = (1..=split.count).map(|i| path.with_file_name(split.file(i))).collect();
    let missing: Vec<String> =
        (1..=split.count).zip(&paths).filter(|(_, p)| !p.is_file()).map(|(i, _)| split.file(i)).collect();
    if missing.is_empty() {
        Ok(paths)
    } else {
        Err(Error::MissingParts { file: path.display().to_string().into(), missing })
    }
}

fn check_part(stored: &Stored, meta: &Meta, no: u32, count: u32) -> Result<()> {
    for (key, want) in [("split.count", count), ("split.no", no)] {
        let have = meta.need(key, Meta::u32)?;
        if have != want {
            let why =
                format!("is {have}, but the file's name says {want}: a part was renamed or belongs to another set");
            return Err(Error::Key { file: stored.name.clone(), key: key.into(), why });
        }
    }
    Ok(())
}

fn check_whole(first: &Stored, meta: &Meta, all: &[TensorInfo]) -> Result<()> {
    let mut seen = HashSet::new();
    if let Some(t) = all.iter().find(|t| !seen.insert(&t.name)) {
        return Err(Error::Tensor {
            file: first.name.clone(),
            tensor: t.name.to_string(),
            why: "is in two parts of the set".into(),
        });
    }
    match meta.u64("split.tensors.count")? {
        Some(n) if n != all.len() as u64 => Err(Error::Key {
            file: first.name.clone(),
            key: "split.tensors.count".into(),
            why: format!("is {n}, but the parts hold {}: they do not belong together", all.len()),
        }),
        _ => Ok(()),
    }
}
