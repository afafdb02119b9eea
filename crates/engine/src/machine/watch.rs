//! Watching what the process really holds, beside what it reserved.

use memory::{Footprint, Ledger, Tier};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(250);
/// A look needs little: the text of one small file.
const STACK: usize = 128 << 10;

/// A thread that tells a ledger four times a second how much memory the process holds, so that what it holds beyond
/// its reservations (H) is known and new reservations are refused before the limit is reached. It ends when this is
/// dropped.
#[derive(Debug)]
pub struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    ledger: Ledger,
}

impl Watch {
    /// Begins. Where the system does not say what a process holds, or has no thread to spare, nothing is watched.
    pub fn begin(ledger: Ledger) -> Self {
        look(&ledger);
        let (stop, stopped) = channel();
        let watched = ledger.clone();
        let work = move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                look(&watched);
            }
        };
        let thread = std::thread::Builder::new().name("memory watch".into()).stack_size(STACK).spawn(work).ok();
        Watch { stop: Some(stop), thread, ledger }
    }
    /// Looks at once.
    pub fn look(&self) {
        look(&self.ledger);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The thread sees the channel close.
        self.stop.take();
        if let Some(t) = self.thread.take() {
            // A look does not panic; if one did, there is nothing to add.
            let _ = t.join();
        }
    }
}

fn look(ledger: &Ledger) {
    if let Some(bytes) = super::rss() {
        ledger.observe(Footprint { tier: Tier::Host, bytes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory::Class;
    use std::time::Instant;

    #[test]
    fn memory_that_nobody_reserved_is_seen_and_narrows_what_is_free() {
        let ledger = Ledger::new(&[(Tier::Host, 1 << 40)]);
        ledger.allow(Tier::Host, 1 << 20);
        let watch = Watch::begin(ledger.clone());
        let before = ledger.usage()[&Tier::Host].clone();
        assert!(before.beyond > 1 << 20 && before.free() < (1 << 40) - before.beyond + 1);
        let hoard = vec![1u8; 64 << 20];
        let begun = Instant::now();
        let seen = || ledger.usage()[&Tier::Host].beyond;
        while seen() < before.beyond + (60 << 20) && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(seen() >= before.beyond + (60 << 20), "{} of {}", seen(), before.beyond);
        assert_eq!(hoard[hoard.len() - 1], 1);
        let free = ledger.usage()[&Tier::Host].free();
        assert!(ledger.reserve(Tier::Host, Class::Kv, "more", free + (32 << 20)).is_err());
        drop(watch);
    }
}
