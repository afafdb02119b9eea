//! How fast memory is read, by how many threads.

use super::profile::RamRate;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Reads `bytes` (more than any cache holds) with 1, 2, 4, ... and `most` threads, each for `time`; the best pass of each.
/// Empty where there is not that much memory.
pub fn measure(bytes: u64, most: u32, time: Duration) -> Vec<RamRate> {
    let words = (bytes / 8) as usize;
    let mut data: Vec<u64> = Vec::new();
    if words == 0 || data.try_reserve_exact(words).is_err() {
        return Vec::new();
    }
    // Written, so that every page exists.
    data.extend(0..words as u64);
    counts(most).into_iter().map(|threads| rate(&data, threads, time)).collect()
}

/// Bytes of a quick test: more than any cache holds.
const QUICK: u64 = 5 << 28;

/// How fast `threads` threads read 1.25 GiB, in 10^9 bytes a second. `None` where the system cannot spare twice that, or
/// `spare`, what the process may still take, is less.
pub fn read_gbps(threads: u32, spare: u64) -> Option<f64> {
    if spare < QUICK || super::available_memory().is_some_and(|a| a < 2 * QUICK) {
        return None;
    }
    let data: Vec<u64> = (0..QUICK / 8).collect();
    Some(rate(&data, threads.max(1), Duration::from_millis(700)).gbps)
}

/// Powers of two below `most`, and `most`.
fn counts(most: u32) -> Vec<u32> {
    let powers = std::iter::successors(Some(1), |n: &u32| n.checked_mul(2));
    powers.take_while(|n| *n < most).chain([most.max(1)]).collect()
}

fn rate(data: &[u64], threads: u32, time: Duration) -> RamRate {
    let (begin, mut best, mut passes) = (Instant::now(), f64::INFINITY, 0);
    while passes < 2 || begin.elapsed() < time {
        let start = Instant::now();
        std::thread::scope(|s| {
            for part in data.chunks(data.len().div_ceil(threads as usize)) {
                s.spawn(|| black_box(sum(part)));
            }
        });
        best = best.min(start.elapsed().as_secs_f64());
        passes += 1;
    }
    let bytes = data.len() as u64 * 8;
    RamRate { threads, bytes, gbps: bytes as f64 / best / 1e9 }
}

/// Sixteen sums side by side, so that additions do not wait for each other.
fn sum(data: &[u64]) -> u64 {
    let mut sums = [0u64; 16];
    for line in data.as_chunks::<16>().0 {
        for (s, x) in sums.iter_mut().zip(line) {
            *s = s.wrapping_add(*x);
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
        assert_eq!(sum(&(0..64).collect::<Vec<u64>>()), 63 * 32);
        let r = measure(1 << 20, 3, Duration::ZERO);
        assert_eq!(
            r.iter().map(|r| (r.threads, r.bytes)).collect::<Vec<_>>(),
            [(1, 1 << 20), (2, 1 << 20), (3, 1 << 20)]
        );
        assert!(r.iter().all(|r| r.gbps > 0.0 && r.gbps.is_finite()));
    }
}
