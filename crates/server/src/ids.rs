//! Ids of responses and requests, and seeds.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// A number nobody can guess or meet twice in a process: the hasher's own randomness over a counter. 53 bits, so that
/// every JSON reader keeps it.
pub fn random() -> u64 {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let mut h = RandomState::new().build_hasher();
    h.write_u64(COUNTER.fetch_add(1, Ordering::Relaxed));
    h.finish() >> 11
}

/// An id with this prefix.
pub fn id(prefix: &str) -> String {
    format!("{prefix}{:013x}{:013x}", random(), random())
}

/// Seconds since 1970.
pub fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
