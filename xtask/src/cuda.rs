//! The kernels' machine code: one compressed file of every unit for every architecture, with the hash of its source.

use crate::nvrtc::Nvrtc;
use anyhow::{Context, Result, ensure};
use clap::Args;
use lzma_rust2::{LzmaOptions, LzmaWriter};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

/// Architectures with machine code (that of 8.0 runs on 8.6 to 8.9 too), and one as PTX for all other cards. Those of a group are
/// compressed together: machine code then takes a twenty-fifth less, and is unpacked as far as a card's own.
const ARCHS: [&[&str]; 2] = [&["sm_80", "sm_90", "sm_120"], &["compute_80"]];
const UNITS: [&str; 14] = [
    "rows",
    "recurrent",
    "repack",
    "linear",
    "stream",
    "normed",
    "chosen",
    "gated",
    "heads",
    "moe",
    "gemm",
    "attention",
    "few",
    "flash",
];
/// Units for 9.0 alone: they were tried there and nowhere else, and others have the kernels that they stand for.
const ONLY_HOPPER: [&str; 5] = ["stream", "normed", "chosen", "gated", "heads"];

#[derive(Args)]
pub struct Options {
    /// Compiles one architecture only, without writing, and fails where the committed file is not of this source.
    #[arg(long)]
    check: bool,
    /// Compiles these architectures only (for work on kernels; not for committing).
    #[arg(long, value_name = "sm_NN")]
    arch: Vec<String>,
    /// Compiles these units only, without writing.
    #[arg(long, value_name = "NAME")]
    unit: Vec<String>,
}

pub fn run(o: &Options) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the repository")?;
    let kernels = root.join("crates/device/src/cuda/kernels");
    let image = root.join("crates/device/src/cuda/kernels.bin");
    let hash = source_hash(&kernels)?;
    if o.check {
        let have = std::fs::read(&image).context("crates/device/src/cuda/kernels.bin")?;
        let fresh = have.get(8..40) == Some(&hash[..]);
        ensure!(fresh, "crates/device/src/cuda/kernels.bin is not of this source: run `cargo xtask cuda`");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let nvrtc = Nvrtc::open(&target.join("cuda-tools"))?;
    let archs: Vec<String> = match (o.check, o.arch.is_empty()) {
        (true, true) => vec!["sm_80".into()],
        (_, false) => o.arch.clone(),
        _ => ARCHS.concat().into_iter().map(String::from).collect(),
    };
    let units: Vec<&str> = UNITS.into_iter().filter(|u| o.unit.is_empty() || o.unit.iter().any(|x| x == u)).collect();
    let made = compile(&nvrtc, &kernels, &archs, &units)?;
    if o.check || !o.unit.is_empty() {
        return Ok(());
    }
    pack(&image, hash, &made)
}

/// Writes units with the hash of their source.
fn pack(image: &Path, hash: [u8; 32], made: &[Made]) -> Result<()> {
    let mut out = b"SNUGCUDA".to_vec();
    out.extend(hash);
    let group = |arch: &str| ARCHS.iter().position(|g| g.contains(&arch)).unwrap_or(ARCHS.len());
    for together in made.chunk_by(|a, b| group(&a.0) == group(&b.0)) {
        out.extend((together.len() as u32).to_le_bytes());
        for (arch, unit, code) in together {
            for s in [arch, unit] {
                out.push(s.len() as u8);
                out.extend(s.as_bytes());
            }
            out.extend((code.len() as u32).to_le_bytes());
        }
        let size = together.iter().map(|(_, _, code)| code.len() as u64).sum();
        let mut z = LzmaWriter::new_use_header(Vec::new(), &settings(&together[0].0), Some(size))?;
        together.iter().try_for_each(|(_, _, code)| z.write_all(code))?;
        let z = z.finish()?;
        out.extend((z.len() as u32).to_le_bytes());
        out.extend(z);
    }
    std::fs::write(image, &out)?;
    eprintln!("{} bytes in {}", out.len(), image.display());
    Ok(())
}

/// How an architecture's code is compressed: instructions are sixteen bytes long, so that what a byte is like depends on its place
/// among sixteen (a twentieth less than the usual settings give); PTX is text.
fn settings(arch: &str) -> LzmaOptions {
    let mut o = LzmaOptions::with_preset(9);
    o.nice_len = 128;
    (o.lc, o.lp, o.pb) = if arch.starts_with("sm_") { (0, 4, 4) } else { (4, 0, 0) };
    o
}

/// Whether an architecture gets a unit.
fn wanted((arch, unit): &(String, String)) -> bool {
    !ONLY_HOPPER.contains(&unit.as_str()) || arch == "sm_90"
}

/// PTX without comments, and one space wherever there is any: a twentieth less when it is compressed.
fn tidied(ptx: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(ptx);
    let lines = text.trim_end_matches('\0').lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|l| !l.is_empty() && !l.starts_with("//")).flat_map(|l| (l + "\n").into_bytes()).collect()
}

/// Machine code without what only a debugger reads: its call frames, as zeros, which take no room when they are compressed.
fn undebugged(mut code: Vec<u8>) -> Vec<u8> {
    let number = |code: &[u8], at: usize, n: usize| {
        code.get(at..at + n).map_or(0, |b| b.iter().rev().fold(0usize, |x, &b| x << 8 | b as usize))
    };
    let (first, each, count, names) =
        (number(&code, 40, 8), number(&code, 58, 2), number(&code, 60, 2), number(&code, 62, 2));
    let section = |code: &[u8], i: usize| {
        let at = first + i * each;
        (number(code, at, 4), number(code, at + 24, 8), number(code, at + 32, 8))
    };
    let (_, names, _) = section(&code, names);
    for i in 0..count {
        let (name, from, size) = section(&code, i);
        let is = |n: &[u8]| code.get(names + name..).is_some_and(|c| c.starts_with(n));
        if is(b".debug_frame\0") || is(b".rel.debug_frame\0") || is(b".rela.debug_frame\0") {
            code[from..from + size].fill(0);
        }
    }
    code
}

type Made = (String, String, Vec<u8>);

/// All units for all architectures, on two threads, in a fixed order.
fn compile(nvrtc: &Nvrtc, kernels: &Path, archs: &[String], units: &[&str]) -> Result<Vec<Made>> {
    let jobs: Vec<(String, String)> =
        archs.iter().flat_map(|a| units.iter().map(|u| (a.clone(), u.to_string()))).filter(wanted).collect();
    let next = Mutex::new(jobs.iter().enumerate());
    let done = Mutex::new(Vec::new());
    let work = || -> Result<()> {
        loop {
            let Some((i, (arch, unit))) = next.lock().ok().and_then(|mut n| n.next()) else { return Ok(()) };
            let begun = Instant::now();
            let mut code = nvrtc.compile(&kernels.join(format!("{unit}.cu")), arch)?;
            code = if arch.starts_with("sm_") { undebugged(code) } else { tidied(&code) };
            eprintln!("{arch:10} {unit:10} {:8} bytes {:5.1} s", code.len(), begun.elapsed().as_secs_f32());
            if let Ok(mut d) = done.lock() {
                d.push((i, (arch.clone(), unit.clone(), code)));
            }
        }
    };
    std::thread::scope(|s| {
        let other = s.spawn(work);
        work().and(other.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a compiler thread panicked"))))
    })?;
    let mut made = done.into_inner().unwrap_or_default();
    made.sort_by_key(|(i, _)| *i);
    Ok(made.into_iter().map(|(_, m)| m).collect())
}

/// Hash of every source file's name and bytes, in order of names.
fn source_hash(kernels: &Path) -> Result<[u8; 32]> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(kernels)?.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
    files.sort();
    let mut h = Sha256::new();
    for f in files {
        h.update(f.file_name().unwrap_or_default().as_encoded_bytes());
        h.update([0]);
        h.update(std::fs::read(&f)?);
        h.update([0]);
    }
    Ok(h.finalize().into())
}
