//! What steps cost, learned as they are done.

use super::depth::Depth;
use std::ops::Range;
use std::time::Duration;

/// What a token takes is the median of so many of the last.
const LAST: usize = 15;
/// Of a slice that took longer or less than expected, how much is believed of its number of rows, and of its layers.
const OF_ROWS: f64 = 0.2;
const OF_LAYERS: f64 = 0.3;
/// Rows of a slice are as many as take this part of the time there is: its later layers may take longer than expected, and it
/// keeps its rows.
const PART: f64 = 0.75;
/// Rows of class Many are computed on a grid of this many.
pub(super) const GRID: u32 = 64;

/// What was measured last. Its median knows nothing of what came between now and then.
#[derive(Clone, Debug, Default)]
struct Last {
    all: [f64; LAST],
    seen: usize,
}

impl Last {
    fn see(&mut self, x: f64) {
        self.all[self.seen % LAST] = x;
        self.seen += 1;
    }
    fn median(&self) -> Option<f64> {
        let n = self.seen.min(LAST);
        let mut all = self.all;
        all[..n].sort_unstable_by(f64::total_cmp);
        (n > 0).then(|| all[n / 2])
    }
}

/// Seconds of each kind of step. What was never seen is derived from what was.
#[derive(Clone, Debug, Default)]
pub(super) struct Costs {
    /// Decoding, by rows.
    decode: Vec<Last>,
    /// The same right behind a slice of a prompt, which leaves nothing of the weights in the caches.
    behind: Vec<Last>,
    /// A layer of a slice of a prompt, by grids of rows.
    read: Vec<Option<f64>>,
    /// How much longer than others each layer takes: a factor. Layers that attend take longer the longer a prompt is, so
    /// this follows the prompt.
    layer: Vec<f64>,
    /// Rounds of one answer alone.
    depth: Depth,
}

/// Seconds of a size that may not have been seen: of the nearest that was, scaled by `per`.
pub(super) fn near(seen: &[Option<f64>], n: usize, per: impl Fn(usize, usize) -> f64) -> Option<f64> {
    let known = (0..seen.len()).filter(|&i| seen[i].is_some());
    let at = known.min_by_key(|&i| (i.abs_diff(n), i))?;
    seen[at].map(|s| s * per(at, n))
}

fn slot<T: Clone>(list: &mut Vec<T>, i: usize, empty: T) -> &mut T {
    if list.len() <= i {
        list.resize(i + 1, empty);
    }
    &mut list[i]
}

fn grids(rows: u32) -> usize {
    rows.div_ceil(GRID) as usize
}

impl Costs {
    /// A decoding step of `rows` rows took so long, right behind a slice of a prompt or not.
    pub fn decoded(&mut self, rows: u32, behind: bool, took: Duration) {
        let list = if behind { &mut self.behind } else { &mut self.decode };
        slot(list, rows as usize, Last::default()).see(took.as_secs_f64());
        if rows == 1 {
            self.depth.plain(took);
        }
    }
    /// These layers of a slice of `rows` rows took so long.
    pub fn read(&mut self, rows: u32, layers: Range<u32>, took: Duration) {
        let took = took.as_secs_f64().max(1e-9);
        let n = grids(rows);
        let known = self.read.get(n).is_some_and(Option::is_some);
        let factors: f64 = layers.clone().map(|l| self.factor(l)).sum();
        if !known {
            *slot(&mut self.read, n, None) = Some(took / factors.max(1e-9));
            return;
        }
        let expected = self.pieces_s(rows, layers.clone()).unwrap_or(took);
        let odd = (took / expected).clamp(0.1, 10.0);
        if let Some(s) = self.read[n].as_mut() {
            *s *= odd.powf(OF_ROWS);
        }
        for l in layers {
            *slot(&mut self.layer, l as usize, 1.0) *= odd.powf(OF_LAYERS);
        }
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
        step_s(&self.decode, &self.behind, rows)
    }
    /// The same right behind a slice of a prompt.
    pub(super) fn behind_s(&self, rows: u32) -> Option<f64> {
        step_s(&self.behind, &self.decode, rows)
    }
    /// Seconds of a round.
    pub(super) fn round_s(&self, drafts: u32) -> Option<f64> {
        self.depth.round_s(drafts)
    }
    /// How many tokens to draft ahead of one answer alone, at most `most`.
    pub(super) fn drafts(&self, most: u32) -> u32 {
        self.depth.next(most)
    }

    fn factor(&self, layer: u32) -> f64 {
        self.layer.get(layer as usize).copied().unwrap_or(1.0)
    }
    /// Seconds of these layers of a slice.
    pub(super) fn pieces_s(&self, rows: u32, layers: Range<u32>) -> Option<f64> {
        let each = near(&self.read, grids(rows), |at, n| n as f64 / at.max(1) as f64)?;
        Some(layers.map(|l| each * self.factor(l)).sum())
    }
    /// Seconds of the one of `of` layers that takes longest.
    pub(super) fn dearest_s(&self, rows: u32, of: u32) -> Option<f64> {
        let dearest = (0..of).map(|l| self.factor(l)).fold(0.0, f64::max);
        near(&self.read, grids(rows), |at, n| n as f64 / at.max(1) as f64).map(|s| s * dearest)
    }

    /// The slice to read in `budget` seconds: rows, of `left` and at most `chunk`, and layers of `of`. The most rows of
    /// which any one layer can be done in that time with some to spare; at least a grid of rows through one layer.
    pub(super) fn slice(&self, left: u32, chunk: u32, of: u32, budget: Option<f64>) -> (u32, u32) {
        let most = left.min(chunk);
        let Some(budget) = budget else { return (most, of) };
        // Of unknown cost only the least is read beside others: that says what more of it costs.
        let fits = |rows: u32| self.dearest_s(rows, of).is_some_and(|s| s <= PART * budget);
        let grids = (1..=most.div_ceil(GRID)).rev().find(|g| fits(g * GRID)).unwrap_or(1);
        let rows = most.min(grids * GRID);
        (rows, self.layers(rows, 0..of, Some(budget)))
    }
    /// How many of the layers that are left can be done in `budget` seconds; at least one.
    pub(super) fn layers(&self, rows: u32, left: Range<u32>, budget: Option<f64>) -> u32 {
        let all = left.end.saturating_sub(left.start).max(1);
        let Some(budget) = budget else { return all };
        let fits = |n: &u32| self.pieces_s(rows, left.start..left.start + n).is_some_and(|s| s <= budget);
        (2..=all).take_while(fits).last().unwrap_or(1)
    }
}

/// Seconds of a step of so many rows: of those `seen`, else of the `others`.
fn step_s(seen: &[Last], others: &[Last], rows: u32) -> Option<f64> {
    let median = |list: &[Last], i: usize| list.get(i).and_then(Last::median);
    let all: Vec<_> =
        (0..seen.len().max(others.len())).map(|i| median(seen, i).or_else(|| median(others, i))).collect();
    near(&all, rows as usize, |at, n| if n > at { n as f64 / at.max(1) as f64 } else { 1.0 })
}
