//! What this machine can spare, and how fast its memory is.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Memory that the system says can be had without swapping, in bytes; `None` where it does not say.
pub fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    field_kib(&text, "MemAvailable:").map(|k| k * 1024)
}

/// Most memory this process ever held, in bytes; `None` where the system does not say.
pub fn peak_rss() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    field_kib(&text, "VmHWM:").map(|k| k * 1024)
}

/// Elements of the read test: 1.25 GiB, more than any cache holds.
const READ_WORDS: usize = (5 << 30) / 4 / 8;
const READ_PASSES: usize = 5;

/// How fast `threads` threads read memory that no cache holds, in 10^9 bytes a second: the best of a few passes over
/// 1.25 GiB. `None` where the system cannot spare twice that.
pub fn ram_read_gbps(threads: u32) -> Option<f64> {
    let bytes = READ_WORDS as u64 * 8;
    if available_memory().is_some_and(|a| a < 2 * bytes) {
        return None;
    }
    let mut words = vec![0u64; READ_WORDS];
    let share = READ_WORDS.div_ceil(threads.max(1) as usize);
    // Zeroed memory has no pages of its own until it is written; whoever reads a part also touches it first.
    each(words.chunks_mut(share), |part| part.iter_mut().zip(1..).for_each(|(w, i)| *w = i));
    let pass = || {
        let begun = Instant::now();
        each(words.chunks(share), |part| {
            black_box(sum(part));
        });
        begun.elapsed()
    };
    let best: Duration = (0..READ_PASSES).map(|_| pass()).min()?;
    Some(bytes as f64 / best.as_secs_f64() / 1e9)
}

/// Runs `f` on every part, each on a thread of its own.
fn each<P: Send>(parts: impl Iterator<Item = P>, f: impl Fn(P) + Sync) {
    std::thread::scope(|s| {
        let f = &f;
        parts.for_each(|p| {
            s.spawn(move || f(p));
        });
    });
}

/// Independent sums, so that the reads and not the additions are what takes time.
fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0u64; 32];
    for chunk in words.chunks_exact(32) {
        lanes.iter_mut().zip(chunk).for_each(|(l, w)| *l = l.wrapping_add(*w));
    }
    lanes.iter().fold(0, |a, l| a.wrapping_add(*l))
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
