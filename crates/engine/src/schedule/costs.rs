//! What steps cost, learned as they are done.

use super::depth::Depth;
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

/// Seconds of each kind of step. What was never seen is derived from what was.
#[derive(Clone, Debug, Default)]
pub(super) struct Costs {
    /// Decoding, by rows.
    decode: Vec<Mean>,
    /// A slice of a prompt through all layers, by grids of rows.
    read: Vec<Mean>,
    /// Rounds of one answer alone.
    depth: Depth,
}

/// Seconds of a size that may not have been seen: of the nearest that was, scaled by `per`.
pub(super) fn near(seen: &[Option<f64>], n: usize, per: impl Fn(usize, usize) -> f64) -> Option<f64> {
    let known = (0..seen.len()).filter(|&i| seen[i].is_some());
    let at = known.min_by_key(|&i| (i.abs_diff(n), i))?;
    seen[at].map(|s| s * per(at, n))
}

fn values(seen: &[Mean]) -> Vec<Option<f64>> {
    seen.iter().map(|m| m.0).collect()
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
        if rows == 1 {
            self.depth.plain(took);
        }
    }
    /// `layers` of `of` layers of a slice of `rows` rows took so long.
    pub fn read(&mut self, rows: u32, layers: u32, of: u32, took: Duration) {
        let whole = took.as_secs_f64() * of as f64 / layers.max(1) as f64;
        slot(&mut self.read, rows.div_ceil(GRID) as usize).see(whole);
    }
    /// A round with so many drafts came to `made` tokens.
    pub fn speculated(&mut self, drafted: u32, made: u32, took: Duration) {
        self.depth.round(drafted, made, took);
    }
    /// Whoever drafts is away; coming back takes so long.
    pub fn left(&mut self, coming: Duration) {
        self.depth.left(coming);
    }
    /// Seconds of a decoding step: rows share the weights, so more of them are at most in proportion.
    pub(super) fn decode_s(&self, rows: u32) -> Option<f64> {
        near(&values(&self.decode), rows as usize, |at, n| if n > at { n as f64 / at.max(1) as f64 } else { 1.0 })
    }
    /// Seconds of a whole slice.
    pub(super) fn read_s(&self, rows: u32) -> Option<f64> {
        near(&values(&self.read), rows.div_ceil(GRID) as usize, |at, n| n as f64 / at.max(1) as f64)
    }
    /// Seconds of a round.
    pub(super) fn round_s(&self, drafts: u32) -> Option<f64> {
        self.depth.round_s(drafts)
    }
    /// How many tokens to draft ahead of one answer alone, at most `most`.
    pub(super) fn drafts(&self, most: u32) -> u32 {
        self.depth.next(most)
    }

    /// The slice to read in `budget` seconds: rows, of `left` and at most `chunk`, and layers of `of`. The most rows of
    /// which one layer can be done in that time; at least a grid of rows through one layer.
    pub(super) fn slice(&self, left: u32, chunk: u32, of: u32, budget: Option<f64>) -> (u32, u32) {
        let most = left.min(chunk);
        let Some(budget) = budget else { return (most, of) };
        // Of unknown cost only the least is read beside others: that says what more of it costs.
        let fits = |rows: u32| self.read_s(rows).is_some_and(|s| s / of as f64 <= budget);
        let grids = (1..=most.div_ceil(GRID)).rev().find(|g| fits(g * GRID)).unwrap_or(1);
        let rows = most.min(grids * GRID);
        (rows, self.layers(rows, of, of, Some(budget)))
    }
    /// Layers of a slice, of `left`, that can be done in `budget` seconds; at least one.
    pub(super) fn layers(&self, rows: u32, left: u32, of: u32, budget: Option<f64>) -> u32 {
        let Some(budget) = budget else { return left };
        let Some(whole) = self.read_s(rows) else { return 1 };
        let each = whole / of as f64;
        let fit = if each > 0.0 { budget / each } else { f64::INFINITY };
        (fit.floor().clamp(1.0, left.max(1) as f64)) as u32
    }
}
