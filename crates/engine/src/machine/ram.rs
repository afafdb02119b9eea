//! How fast memory is read, by how many threads.

use super::profile::RamRate;
use device::{Buf, Cpu, CpuOptions, Device};
use memory::{Class, Ledger, RegionSizes, Tier};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Reads `bytes` (more than any cache holds) with 1, 2, 4, ... and `most` threads, each for `time`; the best pass of each.
/// Empty where there is not that much memory.
pub fn measure(bytes: u64, most: u32, time: Duration) -> Vec<RamRate> {
    let mut written = Written::new(bytes, &Ledger::new(&[(Tier::Host, bytes)]));
    let data = written.as_mut().and_then(Written::bytes);
    data.map_or_else(Vec::new, |data| counts(most).into_iter().map(|threads| rate(data, threads, time)).collect())
}

/// Bytes of a quick test: more than any cache holds.
const QUICK: u64 = 5 << 28;

/// Memory to read again and again, so that a rate can be taken beside whatever else is measured: some machines read at one
/// rate in one minute and at another in the next.
pub struct ReadTest {
    data: Written,
    threads: u32,
}

impl ReadTest {
    /// 1.25 GiB of a budget for `threads` threads. `None` where the system cannot spare twice that, or the budget does not
    /// have as much besides `kept` bytes that somebody will want.
    pub fn new(threads: u32, ledger: &Ledger, kept: u64) -> Option<Self> {
        let free = ledger.usage().get(&Tier::Host)?.free().saturating_sub(kept);
        if free < QUICK || super::available_memory().is_some_and(|a| a < 2 * QUICK) {
            return None;
        }
        Some(ReadTest { data: Written::new(QUICK, ledger)?, threads: threads.max(1) })
    }
    /// 10^9 bytes a second now, the best of the passes of a fifth of a second.
    pub fn gbps(&mut self) -> f64 {
        self.data.bytes().map_or(0.0, |data| rate(data, self.threads, Duration::from_millis(200)).gbps)
    }
}

/// Written bytes where a device keeps weights: whether pages are large makes half of the rate.
struct Written {
    cpu: Cpu,
    buf: Buf,
}

impl Written {
    fn new(bytes: u64, ledger: &Ledger) -> Option<Self> {
        if bytes == 0 {
            return None;
        }
        let mut cpu = Cpu::new(CpuOptions { threads: Some(1), isa: None }, RegionSizes { step: 0, carry: 0 }).ok()?;
        let buf = cpu.alloc(ledger.reserve(Tier::Host, Class::Workspace, "a test of memory", bytes).ok()?).ok()?;
        let mut written = Written { cpu, buf };
        // Written, so that every page exists.
        written.bytes()?.fill(1);
        Some(written)
    }
    fn bytes(&mut self) -> Option<&mut [u8]> {
        self.cpu.host_mut(self.buf)
    }
}

/// Powers of two below `most`, and `most`.
fn counts(most: u32) -> Vec<u32> {
    let powers = std::iter::successors(Some(1), |n: &u32| n.checked_mul(2));
    powers.take_while(|n| *n < most).chain([most.max(1)]).collect()
}

fn rate(data: &[u8], threads: u32, time: Duration) -> RamRate {
    let (begin, mut best, mut passes) = (Instant::now(), f64::INFINITY, 0);
    while passes < 2 || begin.elapsed() < time {
        let start = Instant::now();
        std::thread::scope(|s| {
            for part in data.chunks(data.len().div_ceil(threads as usize).next_multiple_of(LINE)) {
                s.spawn(|| black_box(sum(part)));
            }
        });
        best = best.min(start.elapsed().as_secs_f64());
        passes += 1;
    }
    let bytes = data.len() as u64;
    RamRate { threads, bytes, gbps: bytes as f64 / best / 1e9 }
}

/// Bytes of one round of [`sum`].
const LINE: usize = 128;

/// Sixteen sums of words side by side, so that additions do not wait for each other.
fn sum(data: &[u8]) -> u64 {
    let mut sums = [0u64; LINE / 8];
    for line in data.as_chunks::<LINE>().0 {
        for (s, x) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
            *s = s.wrapping_add(u64::from_le_bytes(*x));
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_counts_double_up_to_the_most() {
        assert_eq!((counts(1), counts(2), counts(6)), (vec![1], vec![1, 2], vec![1, 2, 4, 6]));
    }

    #[test]
    fn every_word_is_summed_and_rates_are_rates() {
        assert_eq!(sum(&(0..64u64).flat_map(u64::to_le_bytes).collect::<Vec<u8>>()), 63 * 32);
        let r = measure(1 << 20, 3, Duration::ZERO);
        assert_eq!(
            r.iter().map(|r| (r.threads, r.bytes)).collect::<Vec<_>>(),
            [(1, 1 << 20), (2, 1 << 20), (3, 1 << 20)]
        );
        assert!(r.iter().all(|r| r.gbps > 0.0 && r.gbps.is_finite()));
    }
}
