//! Whether reading ahead of a router wins: tried now and then, by the clock.
//!
//! What the next layer's router says early is read while the disk would have nothing to do; what it says wrongly takes the
//! disk from what is needed. Which of both is more depends on the disk, on how much is in memory, and on what is asked. So
//! some tokens are made without it, some with it, and the faster way is kept for a while.

use std::time::Duration;

/// When the next layer's router is asked ahead of its time, and what it names read ahead.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Lookahead {
    /// Never.
    #[default]
    Off,
    /// Always.
    On,
    /// Where it is faster.
    Auto,
}

/// Tokens of a try, each way; the first of them is not counted, because what was read for the way before is still there.
const TRY: usize = 7;
/// Tokens from one try to the next.
const KEEP: u32 = 256;
/// It must be so much faster to be kept: it reads more than is needed.
const GAIN: f64 = 0.97;
/// And so much of what is asked for must have been named: times of a few tokens say little, and reading for nothing takes
/// the disk from others.
const RIGHT: f64 = 0.5;

/// Experts that were asked for after something had been named, and how many of them had been.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Guessed {
    /// Experts asked for.
    pub asked: u64,
    /// Of these, named before.
    pub named: u64,
}

impl Guessed {
    fn and(self, other: Guessed) -> Guessed {
        Guessed { asked: self.asked + other.asked, named: self.named + other.named }
    }
    fn mostly_right(self) -> bool {
        self.asked == 0 || self.named as f64 >= RIGHT * self.asked as f64
    }
}

/// The times of a few tokens in one way.
type Times = Vec<Duration>;

#[derive(Clone, Debug)]
enum Phase {
    Without(Times),
    With { without: Times, with: Times, guessed: Guessed },
    Kept { on: bool, left: u32 },
}

/// Decides, token by token.
#[derive(Clone, Debug)]
pub struct Ahead {
    how: Lookahead,
    phase: Phase,
}

impl Ahead {
    /// Begins without.
    pub fn new(how: Lookahead) -> Self {
        Ahead { how, phase: Phase::Without(Vec::new()) }
    }
    /// Whether to look ahead now.
    pub fn on(&self) -> bool {
        match self.how {
            Lookahead::Off => false,
            Lookahead::On => true,
            Lookahead::Auto => matches!(self.phase, Phase::With { .. } | Phase::Kept { on: true, .. }),
        }
    }
    /// A token was made in `took`, with these guesses.
    pub fn token(&mut self, took: Duration, of: Guessed) {
        self.phase = match std::mem::replace(&mut self.phase, Phase::Without(Vec::new())) {
            Phase::Without(mut t) => {
                t.push(took);
                if t.len() < TRY {
                    Phase::Without(t)
                } else {
                    Phase::With { without: t, with: Vec::new(), guessed: Guessed::default() }
                }
            }
            Phase::With { without, mut with, guessed } => {
                with.push(took);
                let guessed = guessed.and(of);
                if with.len() < TRY {
                    Phase::With { without, with, guessed }
                } else {
                    let faster = middle(with) < middle(without).mul_f64(GAIN);
                    Phase::Kept { on: faster && guessed.mostly_right(), left: KEEP }
                }
            }
            Phase::Kept { left: 0, .. } => Phase::Without(vec![took]),
            Phase::Kept { on, left } => Phase::Kept { on, left: left - 1 },
        };
    }
    /// Something else was done between two tokens: what is being tried is begun again.
    pub fn interrupted(&mut self) {
        match &mut self.phase {
            Phase::Without(t) | Phase::With { with: t, .. } => t.clear(),
            Phase::Kept { .. } => {}
        }
    }
}

/// The median of all but the first.
fn middle(mut t: Times) -> Duration {
    t.remove(0);
    t.sort_unstable();
    t[t.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const RIGHTLY: Guessed = Guessed { asked: 8, named: 7 };

    /// Makes tokens that take `without` or `with` milliseconds; how many of them looked ahead.
    fn make(a: &mut Ahead, tokens: u32, (without, with): (u32, u32)) -> u32 {
        (0..tokens)
            .map(|_| {
                let on = a.on();
                a.token(MS * if on { with } else { without }, RIGHTLY);
                u32::from(on)
            })
            .sum()
    }

    #[test]
    fn the_faster_way_is_kept_and_looked_at_again() {
        let one_try = 2 * TRY as u32;
        let mut a = Ahead::new(Lookahead::Auto);
        assert_eq!(make(&mut a, one_try, (100, 70)), TRY as u32);
        assert_eq!(make(&mut a, KEEP, (100, 70)), KEEP);
        // The next try finds that it is slower by now.
        make(&mut a, one_try + 1, (100, 130));
        assert_eq!(make(&mut a, KEEP, (100, 130)), 0);
    }

    #[test]
    fn a_gain_that_is_not_sure_is_none() {
        let mut a = Ahead::new(Lookahead::Auto);
        make(&mut a, 2 * TRY as u32, (100, 99));
        assert!(!a.on());
    }

    #[test]
    fn one_slow_token_decides_nothing_and_the_first_of_a_way_does_not_count() {
        let mut a = Ahead::new(Lookahead::Auto);
        (0..TRY).for_each(|i| a.token(MS * if i == 3 { 900 } else { 100 }, RIGHTLY));
        (0..TRY).for_each(|i| a.token(MS * if i == 0 { 900 } else { 80 }, RIGHTLY));
        assert!(a.on());
    }

    #[test]
    fn guesses_that_are_mostly_wrong_are_not_kept_however_fast_it_seemed() {
        for (named, kept) in [(3, false), (4, true)] {
            let mut a = Ahead::new(Lookahead::Auto);
            make(&mut a, TRY as u32, (100, 100));
            (0..TRY).for_each(|_| a.token(MS * 50, Guessed { asked: 8, named }));
            assert_eq!(a.on(), kept, "{named} of 8");
        }
    }

    #[test]
    fn a_try_that_was_interrupted_is_begun_again() {
        let mut a = Ahead::new(Lookahead::Auto);
        make(&mut a, TRY as u32 - 1, (100, 70));
        a.interrupted();
        assert_eq!(make(&mut a, TRY as u32, (100, 70)), 0, "as many again");
        assert!(a.on());
        a.interrupted();
        assert!(a.on());
    }

    #[test]
    fn what_was_asked_for_is_not_tried() {
        for (how, all) in [(Lookahead::Off, 0), (Lookahead::On, 50)] {
            assert_eq!(make(&mut Ahead::new(how), 50, (100, 10)), all);
        }
    }
}
