//! Items shared out so that each thread walks neighbours.
//!
//! A thread starts with a share of its own, so that what it asks for ahead of use is what it uses next, and helps others
//! from behind when it is done: a slow or late thread delays nobody.

use super::pool::Pool;
use crate::error::Result;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Most shares of a job.
const MOST: usize = 64;

/// What is left of a share: first item and end. Alone on its cache line.
#[repr(align(64))]
struct Share(AtomicU64);

const fn pack(first: usize, end: usize) -> u64 {
    (first as u64) << 32 | end as u64
}

impl Share {
    fn new(r: Range<usize>) -> Self {
        Share(AtomicU64::new(pack(r.start, r.end)))
    }
    /// Up to `grain` items, from the front for the owner, from the back for others.
    fn take(&self, grain: usize, front: bool) -> Option<Range<usize>> {
        let mut seen = self.0.load(Relaxed);
        loop {
            let (first, end) = ((seen >> 32) as usize, seen as u32 as usize);
            if first >= end {
                return None;
            }
            let n = grain.min(end - first);
            let (left, taken) =
                if front { (pack(first + n, end), first..first + n) } else { (pack(first, end - n), end - n..end) };
            // Relaxed: which items a thread got is all that is agreed here; the pool orders memory around the job.
            match self.0.compare_exchange_weak(seen, left, Relaxed, Relaxed) {
                Ok(_) => return Some(taken),
                Err(now) => seen = now,
            }
        }
    }
}

/// Runs `f` on ranges of at most `grain` items that cover `0 .. n` (below 2^32), on at most `width` threads.
///
/// # Errors
/// As [`Pool::run_on`].
pub fn share_out(pool: &Pool, width: usize, n: usize, grain: usize, f: &(dyn Fn(Range<usize>) + Sync)) -> Result<()> {
    let grain = grain.max(1);
    let width = width.clamp(1, pool.width().min(MOST)).min(n.div_ceil(grain));
    if width <= 1 {
        let parts = n.div_ceil(grain);
        return pool.run_on(1, parts, &|_, t| f(t * grain..n.min((t + 1) * grain)));
    }
    let shares: [Share; MOST] = std::array::from_fn(|i| {
        let at = |i: usize| i.min(width) * n / width;
        Share::new(at(i)..at(i + 1))
    });
    pool.run_on(width, width, &|_, own| {
        for i in 0..width {
            let share = &shares[(own + i) % width];
            while let Some(r) = share.take(grain, i == 0) {
                f(r);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn every_item_is_met_once_for_any_width_and_grain() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads, None).unwrap();
            for n in [0, 1, 2, 7, 64, 1000] {
                for (width, grain) in [(1, 1), (2, 3), (threads, 8), (99, 0), (threads, 5000)] {
                    let met: Vec<_> = (0..n).map(|_| AtomicUsize::new(0)).collect();
                    share_out(&pool, width, n, grain, &|r| {
                        assert!(r.len() <= grain.max(1));
                        r.for_each(|i| _ = met[i].fetch_add(1, Relaxed));
                    })
                    .unwrap();
                    assert!(met.iter().all(|m| m.load(Relaxed) == 1), "{threads} threads, {n} items");
                }
            }
        }
    }

    #[test]
    fn owners_take_from_the_front_and_others_from_the_back() {
        let s = Share::new(3..10);
        assert_eq!(s.take(2, true), Some(3..5));
        assert_eq!(s.take(4, false), Some(6..10));
        assert_eq!(s.take(4, false), Some(5..6));
        assert_eq!((s.take(1, true), s.take(1, false)), (None, None));
    }
}
