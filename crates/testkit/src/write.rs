//! Writes a tiny model as a checkpoint directory.

use std::{
    fs,
    io::{BufWriter, Write},
    path::Path,
};

use serde_json::{Map, json};
use tempfile::TempDir;

use crate::{Error, TinyModel, model};

/// Writes the tiny model `name` (`config.json` and `model.safetensors`, all f32) into a fresh temporary directory, which
/// goes when the returned guard does.
pub fn materialise(name: &str) -> Result<TempDir, Error> {
    let dir = tempfile::Builder::new()
        .prefix(&format!("snug-{name}-"))
        .tempdir()
        .map_err(|source| Error::Write { path: std::env::temp_dir(), source })?;
    write_checkpoint(&model(name)?, dir.path())?;
    Ok(dir)
}

/// Writes `config.json` and `model.safetensors` of a described model into an existing directory. A test may change the
/// description first (leave out a tensor, alter a shape) to make a broken checkpoint.
pub fn write_checkpoint(model: &TinyModel, dir: &Path) -> Result<(), Error> {
    let path = dir.join("config.json");
    fs::write(&path, format!("{:#}\n", model.config)).map_err(|source| Error::Write { path, source })?;
    let path = dir.join("model.safetensors");
    let file = fs::File::create(&path).map_err(|source| Error::Write { path: path.clone(), source })?;
    let mut out = BufWriter::new(file);
    write_safetensors(model, &mut out)
        .and_then(|()| out.flush())
        .map_err(|source| Error::Write { path: path.clone(), source })
}

/// Writes the tensors in the safetensors format: u64 LE length of the header, the JSON header padded with spaces to a
/// multiple of 8 bytes, then the tensors as little-endian f32 back to back in the order of the description.
pub fn write_safetensors(model: &TinyModel, out: &mut impl Write) -> std::io::Result<()> {
    let mut header = Map::new();
    let mut at = 0;
    for t in &model.tensors {
        let end = at + 4 * t.numel();
        header.insert(t.name.clone(), json!({"dtype": "F32", "shape": t.shape, "data_offsets": [at, end]}));
        at = end;
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for t in &model.tensors {
        for v in t.values(model.seed) {
            out.write_all(&v.to_le_bytes())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::{NAMES, expected};

    #[test]
    fn weights_equal_those_the_oracle_saw() {
        for name in NAMES {
            let mut file = Vec::new();
            write_safetensors(&model(name).unwrap(), &mut file).unwrap();
            let sum: String = Sha256::digest(&file).iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(sum, expected(name).unwrap().safetensors_sha256, "{name}: run scripts/oracle_tiny.py again");
        }
    }

    #[test]
    fn directory_holds_both_files_and_goes_with_its_guard() {
        let dir = materialise("llama-a").unwrap();
        let path = dir.path().to_owned();
        let config: serde_json::Value = serde_json::from_slice(&fs::read(path.join("config.json")).unwrap()).unwrap();
        assert_eq!(config["model_type"], "llama");
        let size = fs::metadata(path.join("model.safetensors")).unwrap().len() as usize;
        assert!(size > model("llama-a").unwrap().tensors.iter().map(|t| 4 * t.numel()).sum());
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn unknown_names_are_refused() {
        assert!(matches!(materialise("gpt-9"), Err(Error::UnknownModel(n)) if n == "gpt-9"));
    }
}
