//! From what the user calls a model to where its bytes are.

use crate::fault::usage;
use anyhow::Context;
use checkpoint::Source;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The model linked into the program, where there is one.
#[cfg(feature = "embedded")]
const EMBEDDED: Option<&[u8]> =
    Some(include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/snug-tiny-moe.gguf")));
#[cfg(not(feature = "embedded"))]
const EMBEDDED: Option<&[u8]> = None;

const HOW_TO_GET: &str =
    "scripts/get-smollm2 fetches one, or give the path of a .gguf file or a Hugging Face directory";

/// The source of a model: an existing path, else a name of the store; without one, the model in the program.
///
/// # Errors
/// A usage error that says what there is and how to get more.
pub fn source(model: Option<&str>) -> anyhow::Result<Source> {
    match (model, EMBEDDED) {
        (Some(m), _) => find(m, &Store::of_user()).map(Source::Path),
        (None, Some(bytes)) => Ok(Source::Embedded(bytes)),
        (None, None) => usage(format!("this build has no model of its own, so one must be named; {HOW_TO_GET}")),
    }
}

fn find(model: &str, store: &Store) -> anyhow::Result<PathBuf> {
    if model.is_empty() {
        return usage("the model's name is empty");
    }
    let path = Path::new(model);
    if path.exists() {
        return Ok(path.into());
    }
    let models = store.models()?;
    if let Some(p) = models.get(model).or_else(|| models.get(model.strip_suffix(".gguf")?)) {
        return Ok(p.clone());
    }
    let names: Vec<_> = models.keys().map(String::as_str).collect();
    let has = if names.is_empty() { "is empty".into() } else { format!("has {}", names.join(", ")) };
    usage(format!("no model '{model}': no such file or directory, and the store {store} {has}; {HOW_TO_GET}"))
}

/// The directory of models known by name.
pub struct Store(Option<PathBuf>);

impl std::fmt::Display for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(p) => write!(f, "{}", p.display()),
            None => f.write_str("(neither SNUG_HOME nor HOME is set)"),
        }
    }
}

impl Store {
    /// `$SNUG_HOME/models`, else `$XDG_DATA_HOME/snug/models`, else `~/.local/share/snug/models`.
    pub fn of_user() -> Self {
        Store(engine::machine::home().map(|h| h.join("models")))
    }

    /// Models by name: `.gguf` files (of a split set its first part), and directories with weights in them.
    ///
    /// # Errors
    /// When the store is there and cannot be read.
    pub fn models(&self) -> anyhow::Result<BTreeMap<String, PathBuf>> {
        let mut models = BTreeMap::new();
        let Some(dir) = self.0.as_ref().filter(|d| d.is_dir()) else { return Ok(models) };
        let list = |d: &Path| std::fs::read_dir(d).with_context(|| format!("cannot list {}", d.display()));
        for entry in list(dir)? {
            let path = entry.with_context(|| format!("cannot list {}", dir.display()))?.path();
            if let Some(name) = name_of(&path) {
                models.insert(name, path);
            }
        }
        Ok(models)
    }
}

fn name_of(path: &Path) -> Option<String> {
    if path.is_dir() {
        let has_weights = std::fs::read_dir(path).ok()?.flatten().any(|e| is_weights(&e.path()));
        return has_weights.then(|| path.file_name()?.to_str().map(str::to_string)).flatten();
    }
    if path.extension()?.to_str()? != "gguf" {
        return None;
    }
    let stem = path.file_stem()?.to_str()?;
    match split_part(stem) {
        Some((name, 1)) => Some(name.to_string()),
        Some(_) => None,
        None => Some(stem.to_string()),
    }
}

fn is_weights(p: &Path) -> bool {
    p.extension().is_some_and(|e| e == "gguf" || e == "safetensors")
}

/// `name-00002-of-00003` is part 2 of `name`.
fn split_part(stem: &str) -> Option<(&str, u32)> {
    let (head, count) = stem.rsplit_once("-of-")?;
    let (name, part) = head.rsplit_once('-')?;
    let five_digits = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
    (five_digits(part) && five_digits(count)).then(|| Some((name, part.parse().ok()?))).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        for f in ["a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf", "c/model.safetensors", "notes.txt", "d/x"]
        {
            let path = dir.path().join(f);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let store = Store(Some(dir.path().into()));
        (dir, store)
    }

    #[test]
    fn a_store_lists_files_sets_and_directories_once() {
        let (dir, store) = store();
        let models = store.models().unwrap();
        assert_eq!(models.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(models["b"], dir.path().join("b-00001-of-00002.gguf"));
    }

    #[test]
    fn a_path_wins_then_a_name_then_an_error_that_lists_names() {
        let (dir, store) = store();
        assert_eq!(find("a", &store).unwrap(), dir.path().join("a.gguf"));
        assert_eq!(find("a.gguf", &store).unwrap(), dir.path().join("a.gguf"));
        let path = dir.path().join("notes.txt");
        assert_eq!(find(path.to_str().unwrap(), &store).unwrap(), path);
        let e = find("missing", &store).unwrap_err().to_string();
        assert!(e.contains("'missing'") && e.contains("a, b, c") && e.contains("get-smollm2"), "{e}");
        assert!(find("", &store).is_err());
    }

    #[test]
    fn a_store_that_is_not_there_is_empty() {
        assert!(Store(Some("/nowhere/at/all".into())).models().unwrap().is_empty());
        assert!(find("x", &Store(None)).unwrap_err().to_string().contains("SNUG_HOME"));
    }
}
