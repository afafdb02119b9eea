//! `snug list`: the models of the store.

use crate::args::ListArgs;
use crate::fault::Ended;
use crate::output::{self, bytes, note};
use crate::resolve::Store;
use checkpoint::Checkpoint;
use serde::Serialize;
use std::path::PathBuf;

#[derive(Serialize)]
struct Entry {
    name: String,
    path: PathBuf,
    /// Bytes of its tensors; absent where it cannot be opened.
    bytes: Option<u64>,
    /// Why it cannot be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Prints names with sizes.
pub fn run(a: &ListArgs) -> anyhow::Result<Ended> {
    let store = Store::of_user();
    let entries: Vec<Entry> = store.models()?.into_iter().map(|(name, path)| entry(name, path)).collect();
    if a.json {
        output::json(&entries)?;
        return Ok(Ended::Done);
    }
    if entries.is_empty() {
        note(format_args!("the store {store} is empty; scripts/get-smollm2 puts a model there"));
    }
    let width = entries.iter().map(|e| e.name.chars().count()).max().unwrap_or(0);
    for e in &entries {
        let size = e.bytes.map_or_else(|| "unreadable".to_string(), bytes);
        output::line(format_args!("{:width$}  {size:>10}  {}", e.name, e.path.display()))?;
    }
    Ok(Ended::Done)
}

fn entry(name: String, path: PathBuf) -> Entry {
    match Checkpoint::open(path.as_path()) {
        Ok(ck) => Entry { name, path, bytes: Some(ck.weight_bytes()), error: None },
        Err(e) => Entry { name, path, bytes: None, error: Some(e.to_string()) },
    }
}
