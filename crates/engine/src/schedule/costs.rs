//! What steps cost, learned as they are done.

use std::time::Duration;

/// How much of a new measurement is believed.
const WEIGHT: f64 = 0.2;
/// Rows of class Many are computed on a grid of this many.
pub(super) const GRID: u32 = 64;

/// A running mean that forgets.
#[derive(Copy, Clone, Debug, Default)]
struct Mean(Option<f64>);

impl Mean {
    fn see(&mut self, x: f64) {
        self.0 = Some(self.0.map_or(x, |old| old + WEIGHT * (x - old)));
    }
}

/// Seconds of each kind of step. What was never seen is derived from what was, and before anything was seen it is
/// nothing, so that the first step of a kind is as large as it may be.
#[derive(Clone, Debug, Default)]
pub(super) struct Costs {
    /// Decoding, by rows.
    decode: Vec<Mean>,
    /// A slice of a prompt through all layers, by grids of rows.
    read: Vec<Mean>,
    /// A speculative round, by drafts.
    round: Vec<Mean>,
    /// Share of drafts that were accepted, counted to the first that was not.
    accepted: Mean,
}

/// Seconds of a size that may not have been seen: of the nearest that was, scaled by `per`.
fn near(seen: &[Mean], n: usize, per: impl Fn(usize, usize) -> f64) -> Option<f64> {
    let known = (0..seen.len()).filter(|&i| seen[i].0.is_some());
    let at = known.min_by_key(|&i| (i.abs_diff(n), i))?;
    seen[at].0.map(|s| s * per(at, n))
}

fn slot(list: &mut Vec<Mean>, i: usize) -> &mut Mean {
    if list.len() <= i {
        list.resize(i + 1, Mean::default());
    }
    &mut list[i]
}

impl Costs {
    /// A decoding step of `rows` rows took so long.
    pub fn decoded(&mut self, rows: u32, took: Duration) {
        slot(&mut self.decode, rows as usize).see(took.as_secs_f64());
    }
    /// `layers` of `of` layers of a slice of `rows` rows took so long.
    pub fn read(&mut self, rows: u32, layers: u32, of: u32, took: Duration) {
        let whole = took.as_secs_f64() * of as f64 / layers.max(1) as f64;
        slot(&mut self.read, rows.div_ceil(GRID) as usize).see(whole);
    }
    /// A round with so many drafts came to `made` tokens.
    pub fn speculated(&mut self, drafted: u32, made: u32, took: Duration) {
        slot(&mut self.round, drafted as usize).see(took.as_secs_f64());
        let right = made.saturating_sub(1).min(drafted);
        // The first wrong draft is the last that says something.
        let tried = drafted.min(right + 1);
        if tried > 0 {
            self.accepted.see(right as f64 / tried as f64);
        }
    }
    /// Seconds of a decoding step: rows share the weights, so more of them are at most in proportion.
    pub(super) fn decode_s(&self, rows: u32) -> Option<f64> {
        near(&self.decode, rows as usize, |at, n| if n > at { n as f64 / at.max(1) as f64 } else { 1.0 })
    }
    /// Seconds of a whole slice.
    pub(super) fn read_s(&self, rows: u32) -> Option<f64> {
        near(&self.read, rows.div_ceil(GRID) as usize, |at, n| n as f64 / at.max(1) as f64)
    }
    /// Seconds of a round.
    pub(super) fn round_s(&self, drafts: u32) -> Option<f64> {
        near(&self.round, drafts as usize, |at, n| (n + 1) as f64 / (at + 1) as f64)
    }

    /// The slice to read in `budget` seconds: rows, of `left` and at most `chunk`, and layers of `of`. The most rows of
    /// which one layer can be done in that time; at least a grid of rows through one layer.
    pub(super) fn slice(&self, left: u32, chunk: u32, of: u32, budget: Option<f64>) -> (u32, u32) {
        let most = left.min(chunk);
        let Some(budget) = budget else { return (most, of) };
        let fits = |rows: u32| self.read_s(rows).is_none_or(|s| s / of as f64 <= budget);
        let grids = (1..=most.div_ceil(GRID)).rev().find(|g| fits(g * GRID)).unwrap_or(1);
        let rows = most.min(grids * GRID);
        (rows, self.layers(rows, of, of, Some(budget)))
    }
    /// Layers of a slice, of `left`, that can be done in `budget` seconds; at least one.
    pub(super) fn layers(&self, rows: u32, left: u32, of: u32, budget: Option<f64>) -> u32 {
        let (Some(budget), Some(whole)) = (budget, self.read_s(rows)) else { return left };
        let each = whole / of as f64;
        let fit = if each > 0.0 { budget / each } else { f64::INFINITY };
        (fit.floor().clamp(1.0, left.max(1) as f64)) as u32
    }

    /// How many drafts, at most `most`, give the most tokens a second; 0 where plain decoding gives more. A number of
    /// drafts that was never tried is tried.
    pub(super) fn drafts(&self, most: u32) -> u32 {
        if most == 0 {
            return 0;
        }
        let plain = self.decode.get(1).and_then(|m| m.0);
        let Some(plain) = plain else { return 0 };
        let Some(a) = self.accepted.0 else { return 1 };
        let tokens = |k: u32| (0..=k).map(|i| a.powi(i as i32)).sum::<f64>();
        let seconds = |k: u32| self.round.get(k as usize).and_then(|m| m.0);
        // A draft more than was ever tried costs what those before it cost each.
        let each = |k: u32| (seconds(k).unwrap_or(plain) - plain).max(0.0) / k.max(1) as f64;
        let beyond = |k: u32| plain + each(k - 1) * k as f64;
        let rate = |k: u32| if k == 0 { 1.0 / plain } else { tokens(k) / seconds(k).unwrap_or_else(|| beyond(k)) };
        let tried = self.round.len().saturating_sub(1) as u32;
        let reach = most.min(tried + 1);
        (0..=reach).fold((0, rate(0)), |best, k| if rate(k) > best.1 { (k, rate(k)) } else { best }).0
    }
}
