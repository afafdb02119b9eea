//! `snug doctor`: what this machine can do, measured and kept.

use crate::args::DoctorArgs;
use crate::fault::{Ended, usage};
use crate::output::{self, bytes, line, note};
use engine::machine::{DiskFacts, MachineProfile, Measure, home, measure};
use std::io::IsTerminal;

/// Measures, prints and keeps the profile.
pub fn run(a: &DoctorArgs) -> anyhow::Result<Ended> {
    let dir = a.dir.clone().or_else(|| home().filter(|h| h.is_dir())).unwrap_or_else(std::env::temp_dir);
    if !dir.is_dir() {
        return usage(format!("{} is not a directory; --dir says where the disk is measured", dir.display()));
    }
    let most = if a.quick { 64 << 20 } else { 512 << 20 };
    let fs = rustix::fs::statvfs(&dir);
    let free = fs.map_or(0, |f| f.f_bavail.saturating_mul(f.f_frsize));
    let how = Measure { quick: a.quick, dir, disk_bytes: (free / 4).min(most) };
    let told = std::io::stderr().is_terminal();
    let profile = measure(&how, &mut |part| {
        if told {
            note(format_args!("measuring {part} ..."));
        }
    })?;
    if a.json {
        output::json(&profile)?
    } else {
        print(&profile)?
    }
    keep(&profile);
    Ok(Ended::Done)
}

/// A machine without a home still gets its answer.
fn keep(p: &MachineProfile) {
    match home().map(|h| p.save_to(&h)) {
        Some(Ok(file)) => note(format_args!("kept in {}", file.display())),
        Some(Err(e)) => note(format_args!("not kept: {e}")),
        None => note("not kept: neither SNUG_HOME nor HOME is set"),
    }
}

fn field(name: &str, value: impl std::fmt::Display) -> anyhow::Result<()> {
    line(format_args!("{name:<14}{value}"))
}

fn print(p: &MachineProfile) -> anyhow::Result<()> {
    field("measured", format_args!("{}{}", p.date, if p.quick { ", in a hurry" } else { "" }))?;
    let cores = p.cpu.cores.map(|n| format!(" on {n} cores")).unwrap_or_default();
    field(
        "processor",
        format_args!("{}, {} threads{cores}", p.cpu.model.as_deref().unwrap_or("unnamed"), p.cpu.threads),
    )?;
    field("kernels use", &p.cpu.isa)?;
    field("it has", p.cpu.found.join(" "))?;
    let known = |b: Option<u64>| b.map_or_else(|| "unknown".into(), bytes);
    field("memory", format_args!("{}, {} available", known(p.memory.total), known(p.memory.available)))?;
    for l in &p.memory.limits {
        field("limit", format_args!("{} by {}", bytes(l.bytes), l.file.display()))?;
    }
    if p.memory.limits.is_empty() {
        field("limit", "none by control groups")?;
    }
    for gpu in &p.gpus {
        field("GPU", format_args!("{gpu}, not probed further"))?;
    }
    if p.gpus.is_empty() {
        field("GPU", "none seen")?;
    }
    line("\nreading memory")?;
    for r in &p.ram_read {
        line(format_args!("  {:>3} threads {:>8.2} GB/s", r.threads, r.gbps))?;
    }
    if p.ram_read.is_empty() {
        line("  too little memory to measure")?;
    }
    disk(&p.disk_read)?;
    line("\nlinear layers  one row, GB/s of weights    256 rows, 10^9 multiply-adds/s")?;
    for r in &p.linear {
        line(format_args!("  {:<12} {:>24.2} {:>33.1}", r.dtype, r.gemv_gbps, r.gemm_gmadds))?;
    }
    line(format_args!("  a small one takes {:.1} us, whatever it reads", p.call_us))?;
    line("\nattention of one row over a long history, GB/s of what is stored")?;
    for r in &p.history {
        line(format_args!("  {:<12} {:>24.2}", r.format, r.gbps))?;
    }
    Ok(())
}

/// One line for each size of block, one column for each depth.
fn disk(d: &DiskFacts) -> anyhow::Result<()> {
    line(format_args!("\nreading the disk at {}, GB/s by reads at once", d.dir.display()))?;
    if let Some(why) = &d.failed {
        return line(format_args!("  cannot be measured: {why}"));
    }
    if !d.direct {
        line("  this file system has no direct reads: these are of the page cache")?;
    }
    let mut blocks: Vec<u64> = d.rates.iter().map(|r| r.block).collect();
    blocks.dedup();
    for block in blocks {
        let here = d.rates.iter().filter(|r| r.block == block);
        let columns: Vec<String> = here.map(|r| format!("{:>2}: {:>6.2}", r.depth, r.gbps)).collect();
        line(format_args!("  {:>9}  {}", bytes(block), columns.join("   ")))?;
    }
    Ok(())
}
