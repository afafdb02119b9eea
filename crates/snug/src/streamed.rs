//! What reading experts, or whole layers, from disk did, for people and in JSON.

use crate::output::{bytes, note};
use engine::{Executor, machine};
use serde::Serialize;
use std::time::{Duration, Instant};
use weights::{CacheStats, SharedStats};

/// The figures at one moment.
#[derive(Copy, Clone)]
pub struct Moment {
    stats: CacheStats,
    /// Of the whole process, by the system's own account.
    disk: Option<u64>,
    at: Instant,
}

/// Looks at a cache of experts.
#[derive(Clone)]
pub struct Watched(SharedStats);

impl Watched {
    /// That of an executor, where it has one.
    pub fn of(exec: &Executor) -> Option<Self> {
        exec.cache_figures().map(Watched)
    }
    /// The figures now.
    pub fn now(&self) -> Moment {
        Moment { stats: self.0.get(), disk: machine::disk_read_bytes(), at: Instant::now() }
    }
}

/// What happened between two moments.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Streamed {
    /// Tokens that were computed.
    pub tokens: u64,
    /// Routed experts that were asked for and were in memory, of all.
    pub hit_rate: f64,
    pub hits: u64,
    /// On their way already when they were asked for.
    pub foreseen: u64,
    pub misses: u64,
    /// Bytes of the experts that were missing, or of the layers that are never there.
    pub missed_bytes: u64,
    /// Bytes that were read from the files for them.
    pub read_bytes: u64,
    pub read_bytes_per_token: u64,
    /// Bytes that the system says this process made its disks read.
    pub process_read_bytes: Option<u64>,
    /// Bytes read over the time in which a read was under way.
    pub disk_gbps: f64,
    /// Share of the time that was spent waiting for reads.
    pub waiting_share: f64,
    pub seconds: f64,
    /// Time with a read under way, and waiting for one.
    pub reading_s: f64,
    pub waiting_s: f64,
    /// Of the experts that were guessed at before they were asked for, those that were then; absent where nobody guesses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recall: Option<f64>,
    pub slots: u64,
}

impl Streamed {
    /// What happened from `a` to `b`, in which `tokens` were computed.
    pub fn between(a: &Moment, b: &Moment, tokens: u64) -> Self {
        let disk = a.disk.zip(b.disk).map(|(a, b)| b.saturating_sub(a));
        let parts = (b.stats.since(&a.stats), disk, b.at.saturating_duration_since(a.at));
        Self::new(parts, tokens)
    }
    fn new((s, disk, took): (CacheStats, Option<u64>, Duration), tokens: u64) -> Self {
        let (took, busy, waited) = (took.as_secs_f64(), s.read.busy.as_secs_f64(), s.read.waited.as_secs_f64());
        let over = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        let [asked, named] = s.guessed;
        Streamed {
            tokens,
            hit_rate: s.hit_rate(),
            hits: s.hits,
            foreseen: s.foreseen,
            misses: s.misses,
            missed_bytes: s.missed_bytes,
            read_bytes: s.read.bytes,
            read_bytes_per_token: s.read.bytes / tokens.max(1),
            process_read_bytes: disk,
            disk_gbps: over(s.read.bytes as f64 / 1e9, busy),
            waiting_share: over(waited, took),
            seconds: took,
            reading_s: busy,
            waiting_s: waited,
            recall: (asked > 0).then(|| named as f64 / asked as f64),
            slots: s.slots,
        }
    }
    /// As a line of text.
    pub fn describe(&self) -> String {
        let asked = self.hits + self.foreseen + self.misses;
        let hits = if asked == 0 {
            String::new()
        } else {
            format!("{:.1}% of {asked} experts in memory, ", self.hit_rate * 100.0)
        };
        format!(
            "{hits}{} a token read at {:.2} GB/s, {:.0}% of {:.1} s waiting",
            bytes(self.read_bytes_per_token),
            self.disk_gbps,
            self.waiting_share * 100.0,
            self.seconds
        )
    }
    /// Says it on stderr.
    pub fn say(&self, what: &str) {
        note(format_args!("from disk, {what}: {}", self.describe()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_what_happened_and_nothing_is_divided_by_nothing() {
        let mut s = CacheStats { hits: 3, misses: 1, ..CacheStats::default() };
        s.read.bytes = 4_000_000_000;
        s.read.busy = Duration::from_secs(2);
        s.read.waited = Duration::from_secs(1);
        let r = Streamed::new((s, Some(5), Duration::from_secs(4)), 2);
        assert_eq!(
            (r.hit_rate, r.read_bytes_per_token, r.disk_gbps, r.waiting_share),
            (0.75, 2_000_000_000, 2.0, 0.25)
        );
        let none = Streamed::new((CacheStats::default(), None, Duration::ZERO), 0);
        assert_eq!((none.hit_rate, none.disk_gbps, none.waiting_share, none.recall), (0.0, 0.0, 0.0, None));
    }
}
