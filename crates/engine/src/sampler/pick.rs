//! Looks over a vocabulary's logits: the largest, the largest few, the sum of all weights. One call for each token, so these
//! are written in blocks that compilers make vectors of, and keep what they allocate.

/// Logits that are looked at together.
const BLOCK: usize = 1024;
/// Lanes of a block that the compiler may keep in vectors.
const LANES: usize = 32;

/// A token and its logit.
pub(super) type Candidate = (u32, f32);

/// Largest logit first; of equals the lowest id.
pub(super) fn falling(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// The largest logit, the lowest id of equals; `None` when there is no number above negative infinity or one is NaN.
pub(super) fn peak(logits: &[f32]) -> Option<Candidate> {
    let (mut best, mut at, mut odd) = (f32::NEG_INFINITY, 0, false);
    for (i, block) in logits.chunks(BLOCK).enumerate() {
        let (most, nan) = most(block);
        odd |= nan;
        if most > best {
            (best, at) = (most, i * BLOCK);
        }
    }
    if odd || best == f32::NEG_INFINITY {
        return None;
    }
    let inside = logits[at..].iter().position(|&x| x == best)?;
    Some(((at + inside) as u32, best))
}

/// The largest of a block, and whether one of them is NaN.
fn most(block: &[f32]) -> (f32, bool) {
    let (mut lanes, mut odd) = ([f32::NEG_INFINITY; LANES], [false; LANES]);
    let (whole, rest) = block.as_chunks::<LANES>();
    for x in whole {
        for i in 0..LANES {
            lanes[i] = if x[i] > lanes[i] { x[i] } else { lanes[i] };
            odd[i] |= x[i].is_nan();
        }
    }
    let all = lanes.iter().chain(rest).copied();
    (all.fold(f32::NEG_INFINITY, f32::max), odd.contains(&true) || rest.iter().any(|x| x.is_nan()))
}

/// Adds to `out` every token whose logit is above `than`, in the order of ids.
pub(super) fn above(logits: &[f32], than: f32, out: &mut Vec<Candidate>) {
    for (i, part) in logits.chunks(LANES).enumerate() {
        if part.iter().fold(false, |any, &x| any | (x > than)) {
            let id = |(j, &x): (usize, &f32)| ((i * LANES + j) as u32, x);
            out.extend(part.iter().enumerate().filter(|(_, x)| **x > than).map(id));
        }
    }
}

/// Puts the `k` likeliest tokens into `out`, likeliest first; fewer where fewer are above negative infinity.
pub(super) fn largest(logits: &[f32], k: usize, out: &mut Vec<Candidate>) {
    out.clear();
    let k = k.min(logits.len());
    if k == 0 {
        return;
    }
    // Only what beats the k-th of those seen so far can be among them: ids rise, so of equals the earlier one stays.
    let (mut bar, room) = (f32::NEG_INFINITY, 2 * k + LANES);
    let mut from = 0;
    while from < logits.len() {
        let until = (from + BLOCK).min(logits.len());
        let begun = out.len();
        above(&logits[from..until], bar, out);
        out[begun..].iter_mut().for_each(|c| c.0 += from as u32);
        if out.len() > room || (until == logits.len() && out.len() > k) {
            out.select_nth_unstable_by(k - 1, falling);
            out.truncate(k);
            bar = out[k - 1].1;
        }
        from = until;
    }
    out.sort_unstable_by(falling);
}

/// `e^x` for `x <= 0`, within 3e-7 of its size; 0 below -87. A Taylor series around the nearest multiple of ln 2.
fn exp(x: f32) -> f32 {
    /// Adding it to a float rounds that to a whole number, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts, the first with room for whole multiples.
    const LN2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);
    let x = x.max(-87.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2.0) - n * LN2.1;
    let series = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let value = series.iter().fold(1.0 / 5040.0, |sum, c| sum * r + c);
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    if x <= -87.0 { 0.0 } else { value * power }
}

/// Weights `e^((x - max) / t)` of tokens, relative to the likeliest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    max: f32,
    by: f32,
}

impl Weights {
    /// At temperature `t`, above 0.
    pub fn new(max: f32, t: f32) -> Self {
        Weights { max, by: 1.0 / t }
    }

    fn narrow(self, x: f32) -> f32 {
        exp((x - self.max) * self.by)
    }

    /// The weight of a token.
    pub fn of(self, x: f32) -> f64 {
        f64::from(self.narrow(x))
    }

    /// The sum over a block.
    fn block(self, block: &[f32]) -> f64 {
        let mut lanes = [0f32; LANES];
        let (whole, rest) = block.as_chunks::<LANES>();
        for x in whole {
            for i in 0..LANES {
                lanes[i] += self.narrow(x[i]);
            }
        }
        lanes.iter().copied().chain(rest.iter().map(|&x| self.narrow(x))).map(f64::from).sum()
    }

    /// The sum over all logits.
    pub fn sum(self, logits: &[f32]) -> f64 {
        logits.chunks(BLOCK).map(|b| self.block(b)).sum()
    }

    /// The token at a share of the sum over all, in the order of ids. `share` is in `[0, 1)`.
    pub fn at(self, logits: &[f32], share: f64, sums: &mut Vec<f64>) -> Option<u32> {
        sums.clear();
        sums.extend(logits.chunks(BLOCK).map(|b| self.block(b)));
        let mut left = share * sums.iter().sum::<f64>();
        let mut last = None;
        for (i, (block, sum)) in logits.chunks(BLOCK).zip(sums.iter()).enumerate() {
            // Rounding may leave a little behind the last token that has a weight.
            if left >= *sum && i + 1 < sums.len() {
                left -= sum;
                continue;
            }
            for (j, &x) in block.iter().enumerate() {
                let w = self.of(x);
                if w > 0.0 {
                    last = Some((i * BLOCK + j) as u32);
                }
                left -= w;
                if left < 0.0 {
                    return last;
                }
            }
        }
        last
    }

    /// The logit at which a weight is `w`, which is above 0.
    pub fn cut(self, w: f32) -> f32 {
        self.max + w.ln() / self.by
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut x = seed;
        let mut next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 8) as f32 / (1 << 24) as f32 * 40.0 - 25.0
        };
        // Quantised, so that there are equals.
        (0..n).map(|_| (next() * 8.0).round() / 8.0).collect()
    }

    #[test]
    fn the_peak_is_the_first_of_the_largest() {
        for n in [1, 5, 31, 32, 33, 1023, 1024, 1025, 5000] {
            let mut logits = noise(n, n as u32);
            let want = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0))).unwrap();
            assert_eq!(peak(&logits), Some((want.0 as u32, *want.1)), "{n}");
            logits[n / 2] = f32::NAN;
            assert_eq!(peak(&logits), None, "{n}");
        }
        assert_eq!(peak(&[]), None);
        assert_eq!(peak(&[f32::NEG_INFINITY; 40]), None);
    }

    #[test]
    fn the_largest_few_are_those_of_a_whole_sort() {
        for n in [1, 33, 1024, 7001] {
            let logits = noise(n, 7 + n as u32);
            let mut all: Vec<Candidate> = logits.iter().enumerate().map(|(i, x)| (i as u32, *x)).collect();
            all.sort_unstable_by(falling);
            for k in [0, 1, 2, 40, 1000, 9000] {
                let mut out = vec![(9, 9.0)];
                largest(&logits, k, &mut out);
                assert_eq!(out, all[..k.min(n)], "{k} of {n}");
            }
        }
        let mut out = Vec::new();
        largest(&[f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY], 3, &mut out);
        assert_eq!(out, [(1, 1.0)]);
    }

    #[test]
    fn powers_of_e_are_right_to_the_last_bits() {
        let mut worst = 0f64;
        for i in 0..86_000 {
            let x = -(i as f32) / 1000.0;
            worst = worst.max((f64::from(exp(x)) / f64::from(x).exp() - 1.0).abs());
        }
        assert!(worst < 3e-7, "{worst}");
        assert_eq!((exp(0.0), exp(-1e9), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
    }

    #[test]
    fn sums_and_shares_are_those_of_the_weights() {
        let logits = noise(5000, 3);
        let w = Weights::new(peak(&logits).unwrap().1, 0.8);
        let exact: Vec<f64> = logits.iter().map(|&x| (f64::from(x - w.max) / 0.8).exp()).collect();
        let total: f64 = exact.iter().sum();
        assert!((w.sum(&logits) / total - 1.0).abs() < 1e-6);
        let mut sums = Vec::new();
        for step in 0..500 {
            let share = f64::from(step) / 500.0;
            let id = w.at(&logits, share, &mut sums).unwrap() as usize;
            let before: f64 = exact[..id].iter().sum::<f64>() / total;
            assert!(before <= share + 1e-6 && share <= before + exact[id] / total + 1e-6, "{share}: {id}");
        }
        assert_eq!(w.at(&[f32::NEG_INFINITY, w.max, f32::NEG_INFINITY], 0.999_999_999, &mut sums), Some(1));
    }
}
