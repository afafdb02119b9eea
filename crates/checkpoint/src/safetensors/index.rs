//! Shards: `model.safetensors.index.json` maps every tensor to the file that holds it.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value as Json;

use super::parse;
use crate::meta::json;
use crate::source::Stored;
use crate::{Error, FileId, Result, TensorInfo};

/// The index's usual name.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Opens every shard that the index names. A tensor comes from the shard that the index says; a shard may hold tensors that the index does not mention,
/// which are left out.
pub(crate) fn open_shards(index: &Path) -> Result<(Vec<Stored>, Vec<TensorInfo>)> {
    let name: crate::error::FileName = index.display().to_string().into();
    let header = |why: String| Error::Header { file: name.clone(), why };
    let doc = json(index)?.ok_or_else(|| header("is not there".into()))?;
    let Some(Json::Object(map)) = doc.get("weight_map") else {
        return Err(header("has no weight_map".into()));
    };
    let mut shards: Vec<&str> = Vec::new();
    let mut wanted: HashMap<&str, &str> = HashMap::new();
    for (tensor, shard) in map {
        let shard = shard.as_str().filter(|s| is_plain(s)).ok_or_else(|| {
            header(format!("puts tensor {tensor:?} into {shard}, which is not the name of a file beside it"))
        })?;
        wanted.insert(tensor, shard);
        shards.push(shard);
    }
    shards.sort_unstable();
    shards.dedup();
    let missing: Vec<String> =
        shards.iter().filter(|s| !index.with_file_name(s).is_file()).map(|s| (*s).to_owned()).collect();
    if !missing.is_empty() {
        return Err(Error::MissingParts { file: name, missing });
    }
    let (mut files, mut tensors) = (Vec::new(), Vec::new());
    for (i, shard) in shards.iter().enumerate() {
        let stored = Stored::open(&index.with_file_name(shard))?;
        for t in parse(&stored, FileId(i as u32))? {
            if wanted.get(&*t.name) == Some(shard) {
                wanted.remove(&*t.name);
                tensors.push(t);
            }
        }
        files.push(stored);
    }
    match wanted.iter().min() {
        Some((tensor, shard)) => Err(Error::Tensor {
            file: name.clone(),
            tensor: (*tensor).to_owned(),
            why: format!("should be in {shard}, but is not: index and shards do not belong together"),
        }),
        None => Ok((files, tensors)),
    }
}

/// A file name and nothing else: an index must not point outside its directory.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name != ".." && name != "." && !name.contains(['/', '\\', ':', '\0'])
}
