//! From what the user calls a model to where its bytes are.

use crate::fault::usage;
use crate::places::{Models, Place, places};
use anyhow::Context;
use checkpoint::Source;
use std::path::{Path, PathBuf};

/// The model linked into the program, where there is one.
#[cfg(feature = "embedded")]
const EMBEDDED: Option<&[u8]> =
    Some(include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/snug-tiny-moe.gguf")));
#[cfg(not(feature = "embedded"))]
const EMBEDDED: Option<&[u8]> = None;

const HOW_TO_GET: &str =
    "scripts/get-smollm2 fetches one, or give the path of a .gguf file or a Hugging Face directory";

/// The source of a model: an existing path, else the name of a model in the store or in another program's; without one,
/// the model in the program.
///
/// # Errors
/// A usage error that says what there is and how to get more.
pub fn source(model: Option<&str>) -> anyhow::Result<Source> {
    match (model, EMBEDDED) {
        (Some(m), _) => find(m, &of_user()).map(Source::Path),
        (None, Some(bytes)) => Ok(Source::Embedded(bytes)),
        (None, None) => usage(format!("this build has no model of its own, so one must be named; {HOW_TO_GET}")),
    }
}

/// The name by which a model is asked for, if it is one and not a path.
pub fn asked_for(model: &str) -> Option<String> {
    let is_name = !model.is_empty() && !Path::new(model).exists() && !model.contains(char::is_whitespace);
    is_name.then(|| model.strip_suffix(".gguf").unwrap_or(model).to_owned())
}

/// The places of this user, ours first.
pub fn of_user() -> Vec<Place> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    places(engine::machine::home().map(|h| h.join("models")), var)
}

/// The models of a place.
///
/// # Errors
/// When it is our own store, is there and cannot be read.
pub fn models(place: &Place) -> anyhow::Result<Models> {
    place.models().with_context(|| format!("cannot list the {}", place.name()))
}

fn find(model: &str, places: &[Place]) -> anyhow::Result<PathBuf> {
    if model.is_empty() {
        return usage("the model's name is empty");
    }
    let path = Path::new(model);
    if path.exists() {
        return Ok(path.into());
    }
    let all = places.iter().map(models).collect::<anyhow::Result<Vec<_>>>()?;
    let named = [Some(model), model.strip_suffix(".gguf")].into_iter().flatten().map(str::to_string);
    // Tags of Ollama's models may be left out as there.
    for name in named.chain([format!("{model}:latest")]) {
        if let Some(p) = all.iter().find_map(|m| m.get(&name)) {
            return Ok(p.clone());
        }
    }
    let store = match places.first() {
        Some(Place::Store(p)) => p.display().to_string(),
        _ => "(neither SNUG_HOME nor HOME is set)".into(),
    };
    let names: Vec<_> = all.first().into_iter().flat_map(Models::keys).map(String::as_str).collect();
    let has = if names.is_empty() { "is empty".into() } else { format!("has {}", names.join(", ")) };
    let others: usize = all.iter().skip(1).map(Models::len).sum();
    let also = if others > 0 { format!(" (and there are {others} in other places: snug list)") } else { String::new() };
    usage(format!("no model '{model}': no such file or directory, and the store {store} {has}{also}; {HOW_TO_GET}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Vec<Place>) {
        let dir = tempfile::tempdir().unwrap();
        for f in ["own/a.gguf", "own/b.gguf", "own/notes.txt", "hub/models--org--a/snapshots/1/model.safetensors"] {
            let path = dir.path().join(f);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let places = vec![Place::Store(dir.path().join("own")), Place::HuggingFace(dir.path().join("hub"))];
        (dir, places)
    }

    #[test]
    fn a_path_wins_then_a_name_then_an_error_that_lists_names() {
        let (dir, places) = store();
        assert_eq!(find("a", &places).unwrap(), dir.path().join("own/a.gguf"));
        assert_eq!(find("a.gguf", &places).unwrap(), dir.path().join("own/a.gguf"));
        assert_eq!(find("org/a", &places).unwrap(), dir.path().join("hub/models--org--a/snapshots/1"));
        let path = dir.path().join("own/notes.txt");
        assert_eq!(find(path.to_str().unwrap(), &places).unwrap(), path);
        let e = find("missing", &places).unwrap_err().to_string();
        assert!(e.contains("'missing'") && e.contains("has a, b") && e.contains("1 in other places"), "{e}");
        assert!(find("", &places).is_err());
    }

    #[test]
    fn without_a_store_the_error_says_what_is_not_set() {
        assert!(find("x", &[]).unwrap_err().to_string().contains("SNUG_HOME"));
    }
}
