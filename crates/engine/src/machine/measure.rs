//! Measuring a machine: what `snug doctor` does.

use super::cgroup::{self, Group, Limit};
use super::profile::{CpuFacts, MachineProfile, MemoryFacts, VERSION, date};
use super::{available_memory, disk, field_kib, history, linear, ram};
use crate::error::Result;
use device::Isa;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How to measure.
#[derive(Clone, Debug)]
pub struct Measure {
    /// Less time for each figure.
    pub quick: bool,
    /// Directory of the file that is read.
    pub dir: PathBuf,
    /// Most bytes of that file.
    pub disk_bytes: u64,
}

/// More than any cache holds.
const RAM_BYTES: u64 = 5 << 28;

/// Measures; `on_part` hears what comes next.
///
/// # Errors
/// Memory that is not there. A disk that cannot be read is part of the result.
pub fn measure(how: &Measure, on_part: &mut dyn FnMut(&'static str)) -> Result<MachineProfile> {
    let time = |quick, thorough| Duration::from_millis(if how.quick { quick } else { thorough });
    let cpu = cpu();
    let memory = memory();
    // A quarter of what there is at most, so that measuring is never what fills the memory.
    let spare = memory.limits.iter().map(|l| l.bytes).chain(memory.available).min().unwrap_or(u64::MAX) / 4;
    on_part("memory");
    let ram_read = ram::measure(RAM_BYTES.min(spare), cpu.threads, time(100, 600));
    on_part("disk");
    // Whole blocks of the largest size.
    let bytes = (how.disk_bytes >> 22).max(1) << 22;
    let disk_read = disk::measure(&how.dir, bytes, time(60, 500));
    on_part("kernels");
    let linear = linear::measure((if how.quick { 64 << 20 } else { 512 << 20 }).min(spare), time(60, 500))?;
    let call_us = linear::call_us(time(60, 300))?;
    on_part("attention");
    let history = history::measure((if how.quick { 64 << 20 } else { 256 << 20 }).min(spare), time(60, 500))?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let gpus = gpus();
    Ok(MachineProfile {
        version: VERSION,
        measured_at: now,
        date: date(now),
        quick: how.quick,
        cpu,
        memory,
        gpus,
        ram_read,
        disk_read,
        linear,
        call_us,
        history,
    })
}

fn cpu() -> CpuFacts {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    CpuFacts {
        model: model_name(&text),
        threads,
        cores: cores(&text),
        isa: Isa::best().name().into(),
        found: found(&text),
    }
}

fn values<'t>(text: &'t str, field: &'static str) -> impl Iterator<Item = &'t str> {
    text.lines().filter_map(|l| l.split_once(':')).filter(move |(k, _)| k.trim() == field).map(|(_, v)| v.trim())
}

fn model_name(text: &str) -> Option<String> {
    values(text, "model name").next().map(str::to_string)
}

/// Different (socket, core) pairs.
fn cores(text: &str) -> Option<u32> {
    let pairs: HashSet<_> = values(text, "physical id").zip(values(text, "core id")).collect();
    u32::try_from(pairs.len()).ok().filter(|n| *n > 0)
}

/// Of what a kernel could use, what the first processor has.
fn found(text: &str) -> Vec<String> {
    const MATTER: [&str; 11] = [
        "avx2",
        "fma",
        "f16c",
        "avx_vnni",
        "avx512f",
        "avx512bw",
        "avx512_vnni",
        "avx512_bf16",
        "amx_tile",
        "amx_int8",
        "amx_bf16",
    ];
    let flags: HashSet<&str> = values(text, "flags").next().unwrap_or_default().split(' ').collect();
    MATTER.iter().filter(|f| flags.contains(*f)).map(|f| f.to_string()).collect()
}

fn memory() -> MemoryFacts {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = field_kib(&text, "MemTotal:").map(|k| k * 1024);
    MemoryFacts { total, available: available_memory(), limits: limits() }
}

/// Limits of the control groups that this process is in.
pub fn limits() -> Vec<Limit> {
    groups().into_iter().map(|g| g.limit).collect()
}

/// The control groups with a limit that this process is in, with what is used of each.
pub fn groups() -> Vec<Group> {
    let read = |p: &Path| std::fs::read_to_string(p).ok();
    let of = |p: &str| read(Path::new(p)).unwrap_or_default();
    cgroup::limited(&of("/proc/self/cgroup"), &of("/proc/self/mountinfo"), &read)
}

/// Names of NVIDIA GPUs by what the driver lists, else by their device files; nothing is asked of them.
fn gpus() -> Vec<String> {
    let list = |dir: &str| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    let listed = list("/proc/driver/nvidia/gpus").filter_map(|p| {
        let text = std::fs::read_to_string(p.join("information")).ok()?;
        values(&text, "Model").next().map(str::to_string)
    });
    let mut all: Vec<String> = listed.collect();
    if all.is_empty() {
        all.extend(list("/dev").filter_map(|p| device_file(p.file_name()?.to_str()?)));
    }
    all.sort();
    all
}

/// `nvidia0` is a GPU, `nvidiactl` is not.
fn device_file(name: &str) -> Option<String> {
    let number = name.strip_prefix("nvidia")?;
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| format!("NVIDIA GPU {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "processor\t: 0\nmodel name\t: Some CPU\nphysical id\t: 0\ncore id\t\t: 0\nflags\t\t: fpu avx2 fma avx512_vnni amx_tile\n\nprocessor\t: 1\nmodel name\t: Some CPU\nphysical id\t: 0\ncore id\t\t: 0\nflags\t\t: fpu\n\nprocessor\t: 2\nphysical id\t: 1\ncore id\t\t: 0\n";

    #[test]
    fn a_processor_is_read_from_what_the_system_says() {
        assert_eq!((model_name(INFO).as_deref(), cores(INFO)), (Some("Some CPU"), Some(2)));
        assert_eq!(found(INFO), ["avx2", "fma", "avx512_vnni", "amx_tile"]);
        assert_eq!((model_name(""), cores(""), found("")), (None, None, vec![]));
    }

    #[test]
    fn only_numbered_device_files_are_gpus() {
        assert_eq!(device_file("nvidia3").as_deref(), Some("NVIDIA GPU 3"));
        assert_eq!([device_file("nvidiactl"), device_file("nvidia"), device_file("sda")], [None, None, None]);
    }
}
