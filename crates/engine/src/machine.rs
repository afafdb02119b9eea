//! What this machine can spare, and what was measured of it.

mod budget;
pub mod cgroup;
mod disk;
mod history;
mod linear;
mod measure;
mod profile;
mod ram;
mod watch;

pub use budget::{Budget, Sight, Source};
pub use measure::{Measure, groups, limits, measure};
pub use profile::{
    CpuFacts, DiskFacts, DiskRate, HistoryRate, LinearRate, MachineProfile, MemoryFacts, RamRate, date, home,
};
pub use ram::ReadTest;
pub use watch::Watch;

/// Memory that the system says can be had without swapping, in bytes; `None` where it does not say.
pub fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    field_kib(&text, "MemAvailable:").map(|k| k * 1024)
}

/// Memory this process holds now, in bytes; `None` where the system does not say.
pub fn rss() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    field_kib(&text, "VmRSS:").map(|k| k * 1024)
}

/// Most memory this process ever held, in bytes; `None` where the system does not say.
pub fn peak_rss() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    field_kib(&text, "VmHWM:").map(|k| k * 1024)
}

/// Bytes that this process made its disks read, page cache not counted; `None` where the system does not say.
pub fn disk_read_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/io").ok()?;
    text.lines().find_map(|l| l.strip_prefix("read_bytes:"))?.trim().parse().ok()
}

fn field_kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "MemTotal:  100 kB\nMemAvailable:   42 kB\n";
        assert_eq!(field_kib(text, "MemAvailable:"), Some(42));
        assert_eq!(field_kib(text, "Mem:"), None);
    }
}
