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
    /// Bytes promised to what was admitted, whether reserved by now or not.
    pub promised: u64,
    /// Of the reserved bytes, those that keep a promise.
    pub drawn: u64,
    /// What the plan allows for H, the bytes that a process holds beyond what it reserves.
    pub allowance: u64,
    /// H: bytes seen beyond what is reserved, at the last observation.
    pub beyond: u64,
    /// The most that `beyond` ever was.
    pub most_beyond: u64,
    /// Most bytes ever seen in all.
    pub most_seen: u64,
}

impl TierUsage {
    /// All reserved bytes.
    pub fn reserved(&self) -> u64 {
        self.by_class.values().sum()
    }
    /// H beyond its allowance.
    pub fn excess(&self) -> u64 {
        self.beyond.saturating_sub(self.allowance)
    }
    /// Promised bytes that are not reserved yet.
    fn outstanding(&self) -> u64 {
        self.promised.saturating_sub(self.drawn)
    }
    /// Bytes there are by the plan: of the limit, what is neither reserved, nor promised, nor allowed for H.
    fn planned(&self) -> u64 {
        let taken = [self.reserved(), self.outstanding(), self.allowance];
        taken.into_iter().fold(self.guard, u64::saturating_sub)
    }
    /// Bytes that a reservation may still take: of the limit, what is neither reserved nor promised and not kept for H,
    /// which is the allowance or what was seen, whichever is more.
    pub fn free(&self) -> u64 {
        self.planned().saturating_sub(self.excess())
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
        self.take(tier, class, who, bytes, Kind::New)?;
        Ok(Reservation { ledger: self.clone(), tier, class, who, bytes, kind: Kind::New })
    }

    /// Takes `bytes` that are part of the plan: weights, states and workspace at load. An H beyond its allowance
    /// refuses what is new, never this.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn reserve_planned(
        &self,
        tier: Tier,
        class: Class,
        who: &'static str,
        bytes: u64,
    ) -> Result<Reservation, OverBudget> {
        self.take(tier, class, who, bytes, Kind::Planned)?;
        Ok(Reservation { ledger: self.clone(), tier, class, who, bytes, kind: Kind::Planned })
    }

    /// Takes `bytes` that were [promised](Self::promise); what goes beyond the promises must be there as well. H does not
    /// refuse this either.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn reserve_promised(
        &self,
        tier: Tier,
        class: Class,
        who: &'static str,
        bytes: u64,
    ) -> Result<Reservation, OverBudget> {
        self.take(tier, class, who, bytes, Kind::Promised)?;
        Ok(Reservation { ledger: self.clone(), tier, class, who, bytes, kind: Kind::Promised })
    }

    /// Sets `bytes` aside for something that will reserve them as it grows, until the promise is dropped. `first`:
    /// nothing else was admitted, so that an H beyond its allowance does not refuse it.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn promise(
        &self,
        tier: Tier,
        class: Class,
        who: &'static str,
        bytes: u64,
        first: bool,
    ) -> Result<Promise, OverBudget> {
        let mut map = self.lock();
        let usage = map.entry(tier).or_default();
        // What was drawn for others who are gone by now serves the next one.
        let idle = usage.drawn.saturating_sub(usage.promised).min(bytes);
        let free = if first { usage.planned() } else { usage.free() };
        usage.check(tier, class, who, bytes, free.saturating_add(idle))?;
        usage.promised += bytes;
        Ok(Promise { ledger: self.clone(), tier, bytes })
    }

    /// Keeps this much of a tier for H.
    pub fn allow(&self, tier: Tier, bytes: u64) {
        if let Some(u) = self.lock().get_mut(&tier) {
            u.allowance = bytes;
        }
    }

    /// Records what the process was seen to hold; what exceeds the reservations is H, and where that is more than the
    /// allowance it lessens what is free. Reserved memory that was not touched yet hides as much of H.
    pub fn observe(&self, seen: Footprint) {
        if let Some(u) = self.lock().get_mut(&seen.tier) {
            u.beyond = seen.bytes.saturating_sub(u.reserved());
            u.most_beyond = u.most_beyond.max(u.beyond);
            u.most_seen = u.most_seen.max(seen.bytes);
        }
    }

    /// The state of every tier.
    pub fn usage(&self) -> BTreeMap<Tier, TierUsage> {
        self.lock().clone()
    }

    fn take(&self, tier: Tier, class: Class, who: &'static str, bytes: u64, kind: Kind) -> Result<(), OverBudget> {
        let mut map = self.lock();
        let usage = map.entry(tier).or_default();
        let free = match kind {
            Kind::New => usage.free(),
            Kind::Planned => usage.planned(),
            Kind::Promised => usage.planned().saturating_add(usage.outstanding().min(bytes)),
        };
        usage.check(tier, class, who, bytes, free)?;
        *usage.by_class.entry(class).or_default() += bytes;
        usage.drawn += if kind == Kind::Promised { bytes } else { 0 };
        Ok(())
    }

    fn give_back(&self, tier: Tier, class: Class, bytes: u64, kind: Kind) {
        let mut map = self.lock();
        let Some(usage) = map.get_mut(&tier) else { return };
        if kind == Kind::Promised {
            usage.drawn = usage.drawn.saturating_sub(bytes);
        }
        if let Some(held) = usage.by_class.get_mut(&class) {
            *held = held.saturating_sub(bytes);
        }
    }
}

impl TierUsage {
    fn check(&self, tier: Tier, class: Class, who: &'static str, asked: u64, free: u64) -> Result<(), OverBudget> {
        if asked <= free {
            return Ok(());
        }
        let advice = match class {
            Class::Kv | Class::State => Advice::SmallerContext,
            _ => Advice::RaiseLimit(self.guard.saturating_add(asked - free)),
        };
        Err(OverBudget { tier, who, asked, free, advice })
    }
}

/// Bytes that nobody else may reserve while this lives.
#[derive(Debug)]
pub struct Promise {
    ledger: Ledger,
    tier: Tier,
    bytes: u64,
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(u) = self.ledger.lock().get_mut(&self.tier) {
            u.promised = u.promised.saturating_sub(self.bytes);
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
    kind: Kind,
}

/// What a reservation may draw on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Kind {
    New,
    Planned,
    Promised,
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
        self.ledger.take(self.tier, self.class, self.who, by, self.kind)?;
        self.bytes += by;
        Ok(())
    }
    /// Moves `n` bytes (at most all) into a reservation of their own.
    pub fn split(&mut self, n: u64) -> Reservation {
        let n = n.min(self.bytes);
        self.bytes -= n;
        let Reservation { tier, class, who, kind, .. } = *self;
        Reservation { ledger: self.ledger.clone(), tier, class, who, bytes: n, kind }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.ledger.give_back(self.tier, self.class, self.bytes, self.kind);
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

    #[test]
    fn the_allowance_is_kept_free_until_more_is_seen() {
        let l = Ledger::new(&[(Tier::Host, 100)]);
        l.allow(Tier::Host, 30);
        let _a = l.reserve(Tier::Host, Class::Weights, "core", 50).unwrap();
        assert_eq!(l.reserve(Tier::Host, Class::Kv, "kv", 21).unwrap_err().free, 20);
        l.observe(Footprint { tier: Tier::Host, bytes: 75 });
        assert_eq!(l.usage()[&Tier::Host].free(), 20, "H is within its allowance");
        l.observe(Footprint { tier: Tier::Host, bytes: 95 });
        l.observe(Footprint { tier: Tier::Host, bytes: 90 });
        let u = &l.usage()[&Tier::Host];
        assert_eq!((u.free(), u.beyond, u.most_beyond, u.most_seen), (10, 40, 45, 95));
    }

    #[test]
    fn a_promise_is_kept_whatever_else_is_asked_or_seen() {
        let l = Ledger::new(&[(Tier::Host, 100)]);
        l.allow(Tier::Host, 10);
        let kv = |bytes| l.reserve_promised(Tier::Host, Class::Kv, "kv", bytes);
        let promise = |bytes, first| l.promise(Tier::Host, Class::Kv, "a sequence", bytes, first);
        let free = || l.usage()[&Tier::Host].free();
        let first = promise(40, true).unwrap();
        assert_eq!(free(), 50);
        let a = kv(30).unwrap();
        assert_eq!(free(), 50, "it was counted before");
        let other = l.reserve(Tier::Host, Class::Weights, "w", 50).unwrap();
        l.observe(Footprint { tier: Tier::Host, bytes: 100 });
        assert!(promise(1, false).is_err() && promise(1, true).is_err());
        assert!(l.reserve_planned(Tier::Host, Class::State, "s", 1).is_err());
        let b = kv(10).unwrap();
        assert!(kv(1).is_err(), "no more than what was promised and what is there");
        drop(other);
        // 40 of 100 are reserved and 75 are seen, so H is 35.
        l.observe(Footprint { tier: Tier::Host, bytes: 75 });
        assert_eq!(free(), 25);
        assert!(promise(26, false).is_err());
        assert!(l.reserve(Tier::Host, Class::State, "s", 26).is_err());
        drop(l.reserve_planned(Tier::Host, Class::State, "s", 26).unwrap());
        let late = promise(50, true).unwrap();
        drop((a, b, first, late));
        let u = l.usage()[&Tier::Host].clone();
        assert_eq!((u.promised, u.drawn, u.reserved()), (0, 0, 0));
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
