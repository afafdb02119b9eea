//! Checkpoints of real geometries with random weights: what `snug synth` writes.
//!
//! A geometry is a `config.json` and nothing more. Its family, opened on it, says which tensors there are, by which
//! names and in which shapes; the GGUF keys and the vocabulary are written by the same code that writes those of real
//! checkpoints. Weights are drawn by counter and streamed: a few MiB are in memory.

mod draw;
mod geometry;
mod scheme;
mod tensors;
mod vision;
mod vocab;

use crate::quantize::{file_type, hf_metadata};
use anyhow::{Context, Result};
use checkpoint::{Checkpoint, DType, NewTensor, TensorWriter};
pub use geometry::{Resize, names};
pub use scheme::{Kind, Scheme};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tensors::Job;

/// What was asked cannot be done, and asking differently helps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Wrong(pub String);

/// Containers that can be written.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// One GGUF file.
    Gguf,
    /// A directory with `config.json`, `tokenizer.json` and `model.safetensors`.
    Hf,
    /// The same by the names and in the forms of MLX.
    Mlx,
}

/// What to write.
#[derive(Clone, Debug)]
pub struct Options {
    /// One of [`names`].
    pub geometry: String,
    /// What is not as in the real model.
    pub resize: Resize,
    /// Type of the matrices.
    pub to: Kind,
    /// The container.
    pub format: Format,
    /// Whether to leave a hole where the weights would be.
    pub sparse: bool,
    /// Key of the weights.
    pub seed: u64,
    /// Whether what is at the target may be replaced.
    pub force: bool,
}

/// What was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Tensors.
    pub tensors: usize,
    /// Bytes of their data, or of the hole.
    pub bytes: u64,
    /// Matrices whose rows do not divide into the type asked for, with the type they got.
    pub substituted: Vec<(String, DType)>,
}

/// Writes a checkpoint to `out`. `on_progress` gets the bytes of data written so far and in all, and ends the writing by
/// returning false.
///
/// # Errors
/// [`Wrong`] for an unknown geometry, a type the container does not hold, an existing `out` without `force`, too little
/// room on the disk; those of the file system. `out` is never left half written.
pub fn synth(out: &Path, how: &Options, on_progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Report> {
    let mut config = geometry::config(&how.geometry, &how.resize)?;
    check_target(out, how)?;
    if let Kind::Type(t) = how.to
        && !draw::drawable(t)
    {
        return Err(Wrong(format!("there is no generator for {}", how.to)).into());
    }
    let dir = out.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let temp = tempfile::Builder::new().prefix(".snug-").suffix(".part").tempdir_in(dir);
    let temp = temp.with_context(|| format!("cannot write in {}", dir.display()))?;
    let scheme = tensors::scheme(how.format, how.to)?;
    if let Some((key, value)) = scheme.map(Scheme::config) {
        config[key] = value;
    }
    let skeleton = Skeleton::write(temp.path(), &how.geometry.to_ascii_lowercase(), &mut config)?;
    let ck = Checkpoint::open(skeleton.dir.clone())?;
    let family = model::open(&ck)?;
    let tied = config["tie_word_embeddings"] == true;
    let mut jobs = tensors::jobs(family.as_ref(), how.format, how.to, tied)?;
    if how.format == Format::Hf {
        // GGUF checkpoints keep a vision tower in a file of its own.
        let to = if scheme.is_some() { DType::BF16 } else { how.to.plain() };
        jobs.extend(vision::tensors(&config).into_iter().map(|(name, shape)| tensors::unused(name, &shape, to)));
    }
    let total: u64 = jobs.iter().map(Job::bytes).sum();
    if !how.sparse {
        room(dir, total)?;
    }
    let announced: Vec<NewTensor> = jobs.iter().map(|j| j.new.clone()).collect();
    let mut done = 0;
    let mut fill = |i: usize, w: &mut TensorWriter<'_>| {
        tensors::write(&jobs[i], how.seed, w, &mut |bytes| {
            done += bytes;
            if on_progress(done, total) { Ok(()) } else { Err(Stopped.into()) }
        })
    };
    match how.format {
        Format::Gguf => {
            let (mut meta, vocab) = (hf_metadata(family.as_ref(), &ck), family.spec().vocab);
            meta.set("general.description", describe(how));
            meta.set("general.quantization_version", 2u32);
            meta.set("general.file_type", file_type(jobs.iter().map(|j| (j.new.dtype, j.bytes()))));
            crate::quantize::export_vocab(&mut meta, ck.meta(), vocab)?;
            if how.sparse {
                checkpoint::write_gguf_hole(out, &meta, &announced)?;
            } else {
                checkpoint::write_gguf::<anyhow::Error>(out, &meta, &announced, &mut fill)?;
            }
        }
        Format::Hf | Format::Mlx => {
            let (file, about) = (skeleton.weights(), describe(how));
            let by = if how.format == Format::Mlx { "mlx" } else { "pt" };
            let about = [("format", by), ("description", &*about)];
            if how.sparse {
                checkpoint::write_safetensors_hole(&file, &about, &announced)?;
            } else {
                checkpoint::write_safetensors::<anyhow::Error>(&file, &about, &announced, &mut fill)?;
            }
            skeleton.place(out)?;
        }
    }
    let substituted = jobs.iter().filter(|j| j.substituted).map(|j| (j.new.name.clone(), j.new.dtype)).collect();
    Ok(Report { tensors: jobs.len(), bytes: total, substituted })
}

/// The caller ended the writing.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped; nothing was written")]
pub struct Stopped;

fn describe(how: &Options) -> String {
    if how.sparse {
        "synthetic geometry without weights: a hole, for looking and planning only".into()
    } else {
        format!("synthetic weights, seed {}", how.seed)
    }
}

fn check_target(out: &Path, how: &Options) -> Result<(), Wrong> {
    let wrong = |what: &str| Err(Wrong(format!("{} {what}", out.display())));
    match (how.format, out.is_dir(), out.exists()) {
        (Format::Gguf, true, _) => wrong("is a directory, and a GGUF is one file"),
        (Format::Hf | Format::Mlx, false, true) => wrong("is a file, and --format hf writes a directory"),
        (_, _, true) if !how.force => wrong("exists already; --force replaces it"),
        _ => Ok(()),
    }
}

/// Refuses before anything is written what the disk has no room for.
fn room(dir: &Path, total: u64) -> Result<()> {
    // Header, vocabulary, and whatever else the disk needs.
    const BESIDES: u64 = 64 << 20;
    let fs = rustix::fs::statvfs(dir).with_context(|| format!("cannot ask for the free space of {}", dir.display()))?;
    let free = fs.f_bavail.saturating_mul(fs.f_frsize);
    if total + BESIDES <= free {
        return Ok(());
    }
    let gib = |b: u64| b as f64 / (1u64 << 30) as f64;
    let (need, free) = (gib(total + BESIDES), gib(free));
    let how = "take fewer --layers, a smaller --type, another disk, or --sparse for the header alone";
    Err(Wrong(format!("{need:.2} GiB are needed in {} and {free:.2} GiB are free; {how}", dir.display())).into())
}

/// A Hugging Face directory without weights.
struct Skeleton {
    dir: PathBuf,
}

impl Skeleton {
    fn write(parent: &Path, name: &str, config: &mut Value) -> Result<Self> {
        let this = Skeleton { dir: parent.join(format!("{name}-synthetic")) };
        std::fs::create_dir(&this.dir).with_context(|| format!("cannot create {}", this.dir.display()))?;
        let vocab =
            geometry::text_config(config)["vocab_size"].as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
        let put = |name: &str, v: &Value| {
            let path = this.dir.join(name);
            std::fs::write(&path, format!("{v:#}\n")).with_context(|| format!("cannot write {}", path.display()))
        };
        put("config.json", config)?;
        put("tokenizer.json", &vocab::tokenizer(vocab))?;
        put("tokenizer_config.json", &vocab::tokenizer_config())?;
        checkpoint::write_safetensors::<checkpoint::Error>(&this.weights(), &[], &[], |_, _| Ok(()))?;
        Ok(this)
    }
    fn weights(&self) -> PathBuf {
        self.dir.join("model.safetensors")
    }
    /// Gives the directory its name. Into one that is there already the files are moved, weights last.
    fn place(self, out: &Path) -> Result<()> {
        let moved = |from: &Path, to: &Path| {
            std::fs::rename(from, to).with_context(|| format!("cannot give {} its name", to.display()))
        };
        if !out.exists() {
            return moved(&self.dir, out);
        }
        for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
            moved(&self.dir.join(name), &out.join(name))?;
        }
        Ok(())
    }
}
