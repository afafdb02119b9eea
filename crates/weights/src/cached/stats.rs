//! What a cache of experts did.

use crate::io::ReadStats;
use std::sync::{Arc, Mutex, PoisonError};

/// Sums since the cache was made.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct CacheStats {
    /// Experts asked for that were there.
    pub hits: u64,
    /// That were on their way already.
    pub foreseen: u64,
    /// That had to be read.
    pub misses: u64,
    /// Of all these, those asked for by prompts.
    pub sweep: u64,
    /// Bytes of the experts that had to be read, foreseen ones included.
    pub missed_bytes: u64,
    /// What the reader did.
    pub read: ReadStats,
    /// Slots there are.
    pub slots: u64,
    /// Experts that are kept.
    pub live: u64,
    /// Guesses that were checked, and how many of the experts then asked for they had named.
    pub guessed: [u64; 2],
}

impl CacheStats {
    /// Share of the experts asked for that were there.
    pub fn hit_rate(&self) -> f64 {
        let all = self.hits + self.foreseen + self.misses;
        if all == 0 { 0.0 } else { self.hits as f64 / all as f64 }
    }
    /// What happened since an earlier look.
    pub fn since(&self, before: &CacheStats) -> CacheStats {
        let read = ReadStats {
            bytes: self.read.bytes - before.read.bytes,
            ahead_bytes: self.read.ahead_bytes - before.read.ahead_bytes,
            pieces: self.read.pieces - before.read.pieces,
            retries: self.read.retries - before.read.retries,
            busy: self.read.busy.saturating_sub(before.read.busy),
            waited: self.read.waited.saturating_sub(before.read.waited),
        };
        CacheStats {
            hits: self.hits - before.hits,
            foreseen: self.foreseen - before.foreseen,
            misses: self.misses - before.misses,
            sweep: self.sweep - before.sweep,
            missed_bytes: self.missed_bytes - before.missed_bytes,
            guessed: [self.guessed[0] - before.guessed[0], self.guessed[1] - before.guessed[1]],
            read,
            ..*self
        }
    }
}

/// Figures that outlive a look at them.
#[derive(Clone, Debug, Default)]
pub struct SharedStats(Arc<Mutex<CacheStats>>);

impl SharedStats {
    /// The figures as they are now.
    pub fn get(&self) -> CacheStats {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub(crate) fn set(&self, s: CacheStats) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = s;
    }
}
