//! How many tokens to draft ahead of an answer that is made alone: measured acceptance against measured costs.
//!
//! A round of k drafts makes `1 + a + ... + a^k` tokens, where a is the share of drafts that turned out right. Its seconds
//! are measured for each k, as those of a plain step are; the k with the most tokens a second is taken. A depth that was
//! never tried is believed to cost what the drafts before it cost each. The other way of decoding is tried soon, then ever
//! more seldom: its worth may have changed, and the first time of anything takes longest.

use super::costs::near;
use std::time::Duration;

/// The other way of decoding is tried after so many steps for the first time, then after twice as many each time.
const TRY_FIRST: u32 = 4;
/// And never more seldom than once in so many steps.
const TRY_LAST: u32 = 128;
/// How much of a measurement is believed that is less than what was, and of one that is more: what a step takes is what it takes
/// when nothing comes between, and most of what comes between has nothing to do with it.
const LESS: f64 = 0.8;
const MORE: f64 = 0.1;

/// What a round counts after the next one: some fifty rounds say how many drafts are right.
const MEMORY: f64 = 0.98;

/// Fewest plain steps after whoever drafts went away.
const AWAY: u32 = 16;

/// What rounds and plain steps of one answer alone came to so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Depth {
    /// Seconds of a step that makes one token.
    plain: Option<f64>,
    /// Seconds of a round, by drafts.
    round: Vec<Option<f64>>,
    /// Of drafts that were tried, counted to the first that was wrong, those that were right.
    drafts: Share,
    /// Steps and rounds since the other way was tried last, and as many as there were between the two times before.
    since: u32,
    between: u32,
    /// Plain steps before anything is drafted again.
    away: u32,
    /// Times in a row that whoever drafts could not come, or went.
    losses: u32,
}

/// A share that forgets.
#[derive(Copy, Clone, Debug, Default)]
struct Share {
    right: f64,
    tried: f64,
}

impl Share {
    fn see(&mut self, right: u32, tried: u32) {
        let old = if tried > 0 { MEMORY } else { 1.0 };
        (self.right, self.tried) = (old * self.right + f64::from(right), old * self.tried + f64::from(tried));
    }
    fn get(&self) -> Option<f64> {
        (self.tried > 0.0).then(|| self.right / self.tried)
    }
}

impl Depth {
    /// A plain step took so long.
    pub fn plain(&mut self, took: Duration) {
        see(&mut self.plain, took);
        self.count();
        self.away = self.away.saturating_sub(1);
    }
    /// Whoever drafts went away, or could not come; coming back takes so long. As much time is decoded plainly first, so that
    /// coming and going never take more than half of the time, and twice as many steps each time that nothing came of it.
    pub fn left(&mut self, coming: Duration) {
        let steps = coming.as_secs_f64() / self.plain.unwrap_or(f64::INFINITY).max(1e-9);
        // A cast of what is beyond u32 saturates.
        self.away = (steps.ceil() as u32).clamp(AWAY << self.losses, 1 << 16);
        self.losses = (self.losses + 1).min(10);
    }
    /// A round with so many drafts came to `made` tokens.
    pub fn round(&mut self, drafted: u32, made: u32, took: Duration) {
        if self.round.len() <= drafted as usize {
            self.round.resize(drafted as usize + 1, None);
        }
        see(&mut self.round[drafted as usize], took);
        self.count();
        self.losses = 0;
        let right = made.saturating_sub(1).min(drafted);
        // The first wrong draft is the last that says something.
        self.drafts.see(right, drafted.min(right + 1));
    }
    /// Seconds of a round, where any was seen.
    pub fn round_s(&self, drafts: u32) -> Option<f64> {
        near(&self.round, drafts as usize, |at, n| (n + 1) as f64 / (at + 1) as f64)
    }
    /// Drafts of the next round, at most `most`; 0 is a plain step.
    pub fn next(&self, most: u32) -> u32 {
        if self.away > 0 {
            return 0;
        }
        let best = self.best(most);
        match self.since >= self.wait() {
            false => best,
            true if best == 0 => most.min(1),
            true => 0,
        }
    }
    /// Steps from one try of the other way to the next.
    fn wait(&self) -> u32 {
        (2 * self.between).clamp(TRY_FIRST, TRY_LAST)
    }
    /// A step or a round is over.
    fn count(&mut self) {
        if self.since >= self.wait() {
            (self.between, self.since) = (self.wait(), 0);
        } else {
            self.since += 1;
        }
    }

    /// How many drafts, at most `most`, give the most tokens a second; 0 where plain steps give more.
    fn best(&self, most: u32) -> u32 {
        let Some(plain) = self.plain.filter(|_| most > 0) else { return 0 };
        let Some(a) = self.drafts.get() else { return 1 };
        let tokens = |k: u32| (0..=k).map(|i| a.powi(i as i32)).sum::<f64>();
        let seconds = |k: u32| self.round.get(k as usize).copied().flatten();
        let each = |k: u32| (seconds(k).unwrap_or(plain) - plain).max(0.0) / k.max(1) as f64;
        let beyond = |k: u32| plain + each(k - 1) * k as f64;
        let rate = |k: u32| if k == 0 { 1.0 / plain } else { tokens(k) / seconds(k).unwrap_or_else(|| beyond(k)) };
        let tried = self.round.len().saturating_sub(1) as u32;
        let reach = most.min(tried + 1);
        (0..=reach).fold((0, rate(0)), |best, k| if rate(k) > best.1 { (k, rate(k)) } else { best }).0
    }
}

fn see(old: &mut Option<f64>, took: Duration) {
    let x = took.as_secs_f64();
    *old = Some(old.map_or(x, |old| old + if x < old { LESS } else { MORE } * (x - old)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: f64) -> Duration {
        Duration::from_secs_f64(n / 1e3)
    }

    /// Depths of 400 steps where a draft is right so many times in a hundred, a plain step takes 10 ms and a draft with its row
    /// `each`.
    fn depths(right: u32, each: f64, most: u32) -> Vec<u32> {
        let (mut d, mut x) = (Depth::default(), 7u32);
        let mut hit = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 8) % 100 < right
        };
        let one = |_| {
            let k = d.next(most);
            match k {
                0 => d.plain(ms(10.0)),
                k => d.round(k, 1 + (0..k).take_while(|_| hit()).count() as u32, ms(10.0 + each * k as f64)),
            }
            k
        };
        (0..400).map(one).collect()
    }

    #[test]
    fn it_deepens_where_drafts_are_cheap_and_right_and_stops_where_they_are_not() {
        let mean = |d: Vec<u32>| d[200..].iter().sum::<u32>() as f64 / 200.0;
        assert!(mean(depths(95, 1.0, 3)) > 2.5);
        assert!(mean(depths(20, 8.0, 3)) < 0.1);
        assert!((0.8..1.3).contains(&mean(depths(80, 6.0, 3))), "one draft pays, a second does not");
        assert!(depths(95, 1.0, 0).iter().all(|&k| k == 0), "there is nobody to draft");
    }

    #[test]
    fn who_went_away_comes_back_when_as_much_time_has_passed_as_that_takes() {
        let mut d = Depth::default();
        d.plain(ms(10.0));
        d.round(2, 3, ms(12.0));
        assert!(d.next(3) > 0);
        d.left(ms(400.0));
        for _ in 0..40 {
            assert_eq!(d.next(3), 0);
            d.plain(ms(10.0));
        }
        assert!(d.next(3) > 0);
        d.left(ms(0.0));
        assert_eq!(d.next(3), 0, "not at once");
    }

    /// The first round of all takes ten times as long, and one step in ten takes twice as long: neither says what drafts are worth.
    #[test]
    fn a_slow_beginning_and_what_comes_between_mislead_nobody() {
        let (mut d, mut ahead) = (Depth::default(), 0);
        for i in 0..300 {
            let odd = if i % 10 == 9 { 2.0 } else { 1.0 };
            match d.next(1) {
                0 => d.plain(ms(10.0 * odd)),
                k => {
                    let first = if ahead == 0 { 10.0 } else { 1.0 };
                    ahead += 1;
                    d.round(k, 2, ms(15.0 * odd * first));
                }
            }
        }
        assert!(ahead > 220, "{ahead} of 300");
    }

    /// Two drafts in three right, each of which costs nine tenths of a token: that is a loss.
    #[test]
    fn what_does_not_win_is_off_but_for_a_try_now_and_then() {
        let all = depths(66, 9.0, 3);
        let tries = all[100..].iter().filter(|&&k| k > 0).count();
        assert!((1..=8).contains(&tries), "{tries} of 300");
    }
}
