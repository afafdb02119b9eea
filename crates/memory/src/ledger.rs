//! The ledger: a hard budget per tier, and the reservations that draw on it.
//!
//! Nothing is allocated on the strength of a guess: whoever needs memory that grows with a model, a context or a
//! request first holds a [`Reservation`]. What does not fit is an [`OverBudget`] value, never an abort.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A kind of memory with a limit of its own.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Ordinary host memory.
    Host,
    /// Page-locked host memory.
    Pinned,
    /// Memory of device `n`.
    Device(u8),
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Tier::Host => f.write_str("host memory"),
            Tier::Pinned => f.write_str("pinned host memory"),
            Tier::Device(n) => write!(f, "memory of device {n}"),
        }
    }
}

/// What reserved bytes are for: the W, K, S and X of the budget. (H, what a process holds beyond the ledger, is
/// observed and never reserved.)
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Weights now resident.
    Weights,
    /// Key/value pages and rings.
    Kv,
    /// Recurrent, speculative and snapshot state.
    State,
    /// Workspace of a step.
    Workspace,
}

/// A change that would make a refused reservation fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Raise the limit of the tier to at least this many bytes.
    RaiseLimit(u64),
    /// Ask for a shorter context or fewer parallel sequences.
    SmallerContext,
}

impl std::fmt::Display for Advice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Advice::RaiseLimit(b) => write!(f, "a limit of at least {b} bytes would fit it"),
            Advice::SmallerContext => f.write_str("a smaller --context would fit"),
        }
    }
}

/// A reservation that was refused: how much was asked, what is free, what would help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{who} asks for {asked} bytes of {tier} and {free} are free; {advice}")]
pub struct OverBudget {
    /// Where.
    pub tier: Tier,
    /// Who asked, e.g. `"kv pages"`.
    pub who: &'static str,
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes free at that moment.
    pub free: u64,
    /// What would help.
    pub advice: Advice,
}

/// What the process was seen to hold in a tier, in bytes, by whatever measures it.
#[derive(Copy, Clone, Debug)]
pub struct Footprint {
    /// Where.
    pub tier: Tier,
    /// Bytes held in all.
    pub bytes: u64,
}

/// Bytes of one tier by use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierUsage {
    /// The limit.
    pub guard: u64,
    /// Reserved bytes by class.
    pub by_class: BTreeMap<Class, u64>,
    /// H: bytes seen beyond what is reserved, at the last observation.
    pub beyond: u64,
}

impl TierUsage {
    /// All reserved bytes.
    pub fn reserved(&self) -> u64 {
        self.by_class.values().sum()
    }
    /// Bytes that a reservation may still take.
    pub fn free(&self) -> u64 {
        self.guard.saturating_sub(self.reserved()).saturating_sub(self.beyond)
    }
}

/// The budget of a process. Cheap to clone; all clones are the same ledger.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Mutex<BTreeMap<Tier, TierUsage>>>);

impl Ledger {
    /// A ledger with these limits in bytes. A tier that is not named has none and refuses everything.
    pub fn new(guards: &[(Tier, u64)]) -> Self {
        let usage = |g: u64| TierUsage { guard: g, ..TierUsage::default() };
        Ledger(Arc::new(Mutex::new(guards.iter().map(|&(t, g)| (t, usage(g))).collect())))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Tier, TierUsage>> {
        // The map is consistent between any two statements, so a panicked holder cannot have broken it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `bytes` of `tier` for `who`.
    ///
    /// # Errors
    /// [`OverBudget`] when the tier's limit would be passed; nothing is taken then.
    pub fn reserve(&self, tier: Tier, class: Class, who: &'static str, bytes: u64) -> Result<Reservation, OverBudget> {
        self.take(tier, class, who, bytes)?;
        Ok(Reservation { ledger: self.clone(), tier, class, who, bytes })
    }

    /// Records what the process was seen to hold; what exceeds the reservations is H and lessens what is free.
    pub fn observe(&self, seen: Footprint) {
        if let Some(u) = self.lock().get_mut(&seen.tier) {
            u.beyond = seen.bytes.saturating_sub(u.reserved());
        }
    }

    /// The state of every tier.
    pub fn usage(&self) -> BTreeMap<Tier, TierUsage> {
        self.lock().clone()
    }

    fn take(&self, tier: Tier, class: Class, who: &'static str, bytes: u64) -> Result<(), OverBudget> {
        let mut map = self.lock();
        let usage = map.entry(tier).or_default();
        let free = usage.free();
        if bytes > free {
            let missing = bytes - free;
            let advice = match class {
                Class::Kv | Class::State => Advice::SmallerContext,
                _ => Advice::RaiseLimit(usage.guard.saturating_add(missing)),
            };
            return Err(OverBudget { tier, who, asked: bytes, free, advice });
        }
        *usage.by_class.entry(class).or_default() += bytes;
        Ok(())
    }

    fn give_back(&self, tier: Tier, class: Class, bytes: u64) {
        if let Some(held) = self.lock().get_mut(&tier).and_then(|u| u.by_class.get_mut(&class)) {
            *held = held.saturating_sub(bytes);
        }
    }
}

/// Bytes that belong to their holder until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    ledger: Ledger,
    tier: Tier,
    class: Class,
    who: &'static str,
    bytes: u64,
}

impl Reservation {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Where they are.
    pub fn tier(&self) -> Tier {
        self.tier
    }
    /// What they are for.
    pub fn class(&self) -> Class {
        self.class
    }
    /// Takes `by` more bytes.
    ///
    /// # Errors
    /// [`OverBudget`]; the reservation is then as it was.
    pub fn grow(&mut self, by: u64) -> Result<(), OverBudget> {
        self.ledger.take(self.tier, self.class, self.who, by)?;
        self.bytes += by;
        Ok(())
    }
    /// Moves `n` bytes (at most all) into a reservation of their own.
    pub fn split(&mut self, n: u64) -> Reservation {
        let n = n.min(self.bytes);
        self.bytes -= n;
        Reservation { ledger: self.ledger.clone(), tier: self.tier, class: self.class, who: self.who, bytes: n }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.ledger.give_back(self.tier, self.class, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_refusal_says_what_was_asked_what_is_free_and_what_would_help() {
        let l = Ledger::new(&[(Tier::Host, 100)]);
        let _a = l.reserve(Tier::Host, Class::Weights, "core", 70).unwrap();
        let e = l.reserve(Tier::Host, Class::Weights, "experts", 40).unwrap_err();
        assert_eq!((e.asked, e.free), (40, 30));
        assert_eq!(e.advice, Advice::RaiseLimit(110));
        assert_eq!(
            e.to_string(),
            "experts asks for 40 bytes of host memory and 30 are free; a limit of at least 110 bytes would fit it"
        );
    }

    #[test]
    fn an_unnamed_tier_refuses_everything_but_nothing() {
        let l = Ledger::new(&[(Tier::Host, 100)]);
        assert!(l.reserve(Tier::Device(0), Class::Kv, "kv", 1).is_err());
        assert!(l.reserve(Tier::Device(0), Class::Kv, "kv", 0).is_ok());
    }

    #[test]
    fn what_is_seen_beyond_the_ledger_tightens_admission() {
        let l = Ledger::new(&[(Tier::Host, 100)]);
        let _a = l.reserve(Tier::Host, Class::Weights, "core", 50).unwrap();
        l.observe(Footprint { tier: Tier::Host, bytes: 80 });
        assert!(l.reserve(Tier::Host, Class::Kv, "kv", 21).is_err());
        assert!(l.reserve(Tier::Host, Class::Kv, "kv", 20).is_ok());
    }

    proptest! {
        /// Whatever the order of reserve, grow, split and drop, the ledger holds the sum of live reservations.
        #[test]
        fn the_ledger_equals_the_sum_of_live_reservations(script in prop::collection::vec((0u8..4, 0usize..8, 0u64..60), 1..200)) {
            let l = Ledger::new(&[(Tier::Host, 300)]);
            let mut live: Vec<Reservation> = Vec::new();
            for (what, i, n) in script {
                let i = if live.is_empty() { 0 } else { i % live.len() };
                match what {
                    0 => if let Ok(r) = l.reserve(Tier::Host, Class::Kv, "t", n) { live.push(r) },
                    1 if !live.is_empty() => { let _ = live[i].grow(n); }
                    2 if !live.is_empty() => { let r = live[i].split(n); live.push(r) }
                    3 if !live.is_empty() => { live.swap_remove(i); }
                    _ => {}
                }
                let sum: u64 = live.iter().map(Reservation::bytes).sum();
                prop_assert_eq!(l.usage()[&Tier::Host].reserved(), sum);
                prop_assert!(sum <= 300);
            }
        }
    }
}
