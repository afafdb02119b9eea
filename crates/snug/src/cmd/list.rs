//! `snug list`: the models that are on this machine already, ours and those of other programs.

use crate::args::ListArgs;
use crate::fault::Ended;
use crate::output::{self, bytes, note};
use crate::places::Place;
use crate::resolve;
use checkpoint::Checkpoint;
use serde::Serialize;
use std::path::PathBuf;

#[derive(Serialize)]
struct Entry {
    name: String,
    /// Whose it is.
    place: &'static str,
    path: PathBuf,
    /// Bytes of its tensors; absent where it cannot be opened.
    bytes: Option<u64>,
    /// Why it cannot be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Prints names with sizes.
pub fn run(a: &ListArgs) -> anyhow::Result<Ended> {
    let places = resolve::of_user();
    let mut entries = Vec::new();
    for place in &places {
        entries.extend(resolve::models(place)?.into_iter().map(|(name, path)| entry(name, place, path)));
    }
    if a.json {
        output::json(&entries)?;
        return Ok(Ended::Done);
    }
    if entries.is_empty() {
        let store = places.iter().find_map(|p| if let Place::Store(p) = p { Some(p.display()) } else { None });
        let store = store.map_or_else(|| "(SNUG_HOME is not set)".into(), |s| s.to_string());
        note(format_args!(
            "the store {store} is empty, and no other program's models were found; scripts/get-smollm2 puts one there"
        ));
    }
    let width = entries.iter().map(|e| e.name.chars().count()).max().unwrap_or(0);
    for e in &entries {
        let size = e.bytes.map_or_else(|| "unreadable".to_string(), bytes);
        output::line(format_args!("{:width$}  {size:>10}  {:18}  {}", e.name, e.place, e.path.display()))?;
    }
    Ok(Ended::Done)
}

fn entry(name: String, place: &Place, path: PathBuf) -> Entry {
    let (bytes, error) = match Checkpoint::open(path.as_path()) {
        Ok(ck) => (Some(ck.weight_bytes()), None),
        Err(e) => (None, Some(e.to_string())),
    };
    Entry { name, place: place.name(), path, bytes, error }
}
