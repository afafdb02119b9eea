//! From logits to a token.
//!
//! The order is that of transformers: penalties and biases on the raw logits, then temperature, then top-k, top-p and
//! min-p on what the temperature made of them. Temperature 0 takes the largest logit. A draw is keyed by (seed,
//! position), so the same request gives the same text whatever ran beside it.

mod pick;

use crate::error::{Error, Result};
use pick::{Candidate, Weights, falling};
use std::collections::HashMap;

/// How to sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 is greedy. `0 ..= 100`.
    pub temperature: f32,
    /// Only the k likeliest; 0 is all.
    pub top_k: u32,
    /// Only the likeliest that together reach this share. `0 ..= 1`; 1 is all.
    pub top_p: f32,
    /// Only those at least this share of the likeliest. `0 ..= 1`.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens already seen. `> 0`; 1 is none.
    pub repetition_penalty: f32,
    /// Subtracted once from generated tokens. `-2 ..= 2`.
    pub presence_penalty: f32,
    /// Subtracted per occurrence from generated tokens. `-2 ..= 2`.
    pub frequency_penalty: f32,
    /// Added to single tokens' logits. `-100 ..= 100` each.
    pub logit_bias: Vec<(u32, f32)>,
    /// Key of the draws.
    pub seed: u64,
    /// How many likeliest tokens to report beside the chosen one.
    pub logprobs: Option<u32>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

impl Sampling {
    /// Always the largest logit.
    pub fn greedy() -> Self {
        Sampling { temperature: 0.0, ..Sampling::default() }
    }
    /// Whether every value is in its range.
    ///
    /// # Errors
    /// [`Error::BadParameter`] naming the first that is not.
    pub fn check(&self, vocab: u32) -> Result<()> {
        let within = |name: &'static str, v: f32, lo: f32, hi: f32| {
            if v >= lo && v <= hi {
                return Ok(());
            }
            Err(Error::BadParameter { name, value: v.to_string(), range: format!("{lo} to {hi}") })
        };
        within("temperature", self.temperature, 0.0, 100.0)?;
        within("top_p", self.top_p, 0.0, 1.0)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        within("repetition_penalty", self.repetition_penalty, 0.01, 100.0)?;
        within("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        for &(id, bias) in &self.logit_bias {
            within("logit_bias", bias, -100.0, 100.0)?;
            if id >= vocab {
                let range = format!("token ids below {vocab}");
                return Err(Error::BadParameter { name: "logit_bias", value: id.to_string(), range });
            }
        }
        Ok(())
    }
}

/// A token and the logarithm of its probability under the raw logits with penalties and biases.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Logprob {
    /// Token id.
    pub id: u32,
    /// Natural logarithm.
    pub logprob: f32,
}

/// What was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Token id.
    pub id: u32,
    /// Its logprob, where asked for.
    pub logprob: Option<f32>,
    /// The likeliest tokens, where asked for.
    pub top: Vec<Logprob>,
}

/// One request's sampler: its parameters and what it has seen. It allocates with the first token and no more after it.
#[derive(Clone, Debug)]
pub struct Sampler {
    how: Sampling,
    /// Ids of prompt and answer, each once, where a repetition penalty asks for them.
    seen: Option<Seen>,
    generated: HashMap<u32, u32>,
    candidates: Vec<Candidate>,
    weights: Vec<f64>,
}

/// A set of ids.
#[derive(Clone, Debug)]
struct Seen {
    is: Vec<bool>,
    ids: Vec<u32>,
}

impl Seen {
    fn add(&mut self, id: u32) {
        if let Some(is @ false) = self.is.get_mut(id as usize) {
            *is = true;
            self.ids.push(id);
        }
    }
}

impl Sampler {
    /// A sampler for a prompt.
    pub fn new(how: Sampling, prompt: &[u32], vocab: u32) -> Self {
        let seen = (how.repetition_penalty != 1.0).then(|| {
            let mut seen = Seen { is: vec![false; vocab as usize], ids: Vec::new() };
            prompt.iter().for_each(|&id| seen.add(id));
            seen
        });
        Sampler { how, seen, generated: HashMap::new(), candidates: Vec::new(), weights: Vec::new() }
    }

    /// A sampler that draws as this one will, reports nothing, and does not change this one.
    pub fn guesser(&self) -> Self {
        Sampler { how: Sampling { logprobs: None, ..self.how.clone() }, ..self.clone() }
    }

    /// Chooses the token at `position` from its logits, which are altered, and remembers it.
    ///
    /// # Errors
    /// [`Error::BadLogits`] when no logit is a number above negative infinity.
    pub fn sample(&mut self, logits: &mut [f32], position: u32) -> Result<Choice> {
        self.sample_within(logits, position, None)
    }

    /// The same among the ids of a mask only: bit `id % 32` of word `id / 32`. Logprobs are those without it.
    ///
    /// # Errors
    /// Also when the mask allows nothing that has a probability.
    pub fn sample_within(&mut self, logits: &mut [f32], position: u32, mask: Option<&[u32]>) -> Result<Choice> {
        self.penalise(logits);
        let mut best = pick::peak(logits).ok_or(Error::BadLogits)?;
        let reported = self.how.logprobs.map(|n| Reported::of(logits, best.1, n, &mut self.candidates));
        if let Some(mask) = mask {
            forbid(logits, mask);
            best = pick::peak(logits).ok_or(Error::NothingAllowed)?;
        }
        let id = if self.how.temperature == 0.0 { best.0 } else { self.draw(logits, best, position) };
        *self.generated.entry(id).or_default() += 1;
        self.seen.iter_mut().for_each(|s| s.add(id));
        let logprob = reported.as_ref().map(|r| logits[id as usize] - r.log_sum);
        Ok(Choice { id, logprob, top: reported.map(|r| r.top).unwrap_or_default() })
    }

    /// How many of the likeliest tokens are all that a choice depends on; `None` where it depends on every logit, or more of
    /// them than [`Op::Likeliest`](device::Op::Likeliest) gives.
    pub fn needs(&self) -> Option<u32> {
        let p = &self.how;
        let altered = p.repetition_penalty != 1.0 || p.presence_penalty != 0.0 || p.frequency_penalty != 0.0;
        if altered || !p.logit_bias.is_empty() || p.logprobs.is_some() {
            return None;
        }
        if p.temperature == 0.0 {
            return Some(1);
        }
        (1..=device::op::LIKELIEST).contains(&p.top_k).then_some(p.top_k)
    }

    /// As [`sample`](Self::sample), from as many of the likeliest tokens as it [needs](Self::needs).
    ///
    /// # Errors
    /// [`Error::BadLogits`] where there is none.
    pub fn sample_likeliest(&mut self, likeliest: Vec<(u32, f32)>, position: u32) -> Result<Choice> {
        let best = *likeliest.first().ok_or(Error::BadLogits)?;
        let id = if self.how.temperature == 0.0 || best.1 == f32::INFINITY {
            best.0
        } else {
            self.candidates = likeliest;
            self.narrow(Weights::new(best.1, self.how.temperature), None);
            self.drawn(best, uniform(self.how.seed, position))
        };
        *self.generated.entry(id).or_default() += 1;
        Ok(Choice { id, logprob: None, top: Vec::new() })
    }

    fn penalise(&self, logits: &mut [f32]) {
        let p = &self.how;
        for &id in self.seen.iter().flat_map(|s| &s.ids) {
            if let Some(x) = logits.get_mut(id as usize) {
                *x = if *x > 0.0 { *x / p.repetition_penalty } else { *x * p.repetition_penalty };
            }
        }
        if p.presence_penalty != 0.0 || p.frequency_penalty != 0.0 {
            for (&id, &n) in &self.generated {
                if let Some(x) = logits.get_mut(id as usize) {
                    *x -= p.presence_penalty + p.frequency_penalty * n as f32;
                }
            }
        }
        for &(id, bias) in &p.logit_bias {
            if let Some(x) = logits.get_mut(id as usize) {
                *x += bias;
            }
        }
    }

    fn draw(&mut self, logits: &[f32], best: Candidate, position: u32) -> u32 {
        if best.1 == f32::INFINITY {
            return best.0;
        }
        let p = &self.how;
        let (u, w) = (uniform(p.seed, position), Weights::new(best.1, p.temperature));
        if p.top_k == 0 && p.top_p >= 1.0 && p.min_p == 0.0 {
            return w.at(logits, u, &mut self.weights).unwrap_or(best.0);
        }
        self.keep(logits, w);
        self.drawn(best, u)
    }

    /// The candidate that a number from 0 to 1 falls on, by their weights.
    fn drawn(&self, best: Candidate, u: f64) -> u32 {
        let mut left = u * self.weights.iter().sum::<f64>();
        for (c, p) in self.candidates.iter().zip(&self.weights) {
            left -= p;
            if left < 0.0 {
                return c.0;
            }
        }
        self.candidates.last().map_or(best.0, |c| c.0)
    }

    /// Leaves in `candidates` the tokens that may be drawn, with their weights relative to the likeliest beside them.
    fn keep(&mut self, logits: &[f32], w: Weights) {
        let (p, all) = (&self.how, &mut self.candidates);
        let mut wanted = None;
        if p.top_k > 0 {
            pick::largest(logits, p.top_k as usize, all);
        } else {
            wanted = (p.top_p < 1.0).then(|| w.sum(logits) * f64::from(p.top_p));
            likely(logits, w, p.min_p, wanted, all);
        }
        self.narrow(w, wanted);
    }

    /// Takes from the candidates what top-p (`wanted`: the sum of weights to reach, theirs where it is not known) and min-p
    /// leave out.
    fn narrow(&mut self, w: Weights, wanted: Option<f64>) {
        let (p, all) = (&self.how, &mut self.candidates);
        if p.top_p < 1.0 {
            let wanted = wanted.unwrap_or_else(|| all.iter().map(|c| w.of(c.1)).sum::<f64>() * f64::from(p.top_p));
            let mut sum = 0.0;
            let n = all.iter().position(|c| {
                sum += w.of(c.1);
                sum >= wanted
            });
            all.truncate(n.map_or(all.len(), |n| n + 1));
        }
        if p.min_p > 0.0 {
            all.retain(|c| w.of(c.1) >= f64::from(p.min_p));
        }
        self.weights.clear();
        self.weights.extend(all.iter().map(|c| w.of(c.1)));
    }
}

/// Puts into `out` every token that top-p (`wanted`: the sum of weights to reach) and min-p may keep, in an order in which
/// top-p may cut. Few models need more than the first try: what is much less likely than the likeliest is seldom part of the
/// sum.
fn likely(logits: &[f32], w: Weights, min_p: f32, wanted: Option<f64>, out: &mut Vec<Candidate>) {
    // A little below the bound, so that rounding leaves nothing out.
    let least = min_p * 0.99;
    for cut in [1e-3f32, 1e-5, 0.0] {
        out.clear();
        let cut = cut.max(least);
        pick::above(logits, if cut > 0.0 { w.cut(cut) } else { f32::NEG_INFINITY }, out);
        let enough = |wanted| out.iter().map(|c| w.of(c.1)).sum::<f64>() >= wanted;
        if cut == least || wanted.is_some_and(enough) {
            break;
        }
    }
    if let Some(wanted) = wanted {
        reach(out, w, wanted);
    }
}

/// Drops what is not needed to reach a sum of weights. What is needed beyond doubt comes first, in any order; the few
/// candidates among which the sum is reached come behind it, likeliest first.
fn reach(all: &mut Vec<Candidate>, w: Weights, wanted: f64) {
    /// As many are sorted faster than parted.
    const FEW: usize = 256;
    let (mut sure, mut sum, mut end) = (0, 0.0, all.len());
    while end - sure > FEW {
        let half = (end - sure) / 2;
        all[sure..end].select_nth_unstable_by(half, falling);
        let first: f64 = all[sure..sure + half].iter().map(|c| w.of(c.1)).sum();
        if sum + first >= wanted {
            end = sure + half;
        } else {
            (sure, sum) = (sure + half, sum + first);
        }
    }
    all.truncate(end);
    all[sure..].sort_unstable_by(falling);
}

/// Takes away what a mask does not allow.
fn forbid(logits: &mut [f32], mask: &[u32]) {
    for (i, part) in logits.chunks_mut(32).enumerate() {
        match mask.get(i).copied().unwrap_or(0) {
            u32::MAX => {}
            0 => part.fill(f32::NEG_INFINITY),
            word => {
                let shut = |(bit, x): (usize, &mut f32)| {
                    if word >> bit & 1 == 0 {
                        *x = f32::NEG_INFINITY;
                    }
                };
                part.iter_mut().enumerate().for_each(shut);
            }
        }
    }
}

/// A token that somebody else chose, with its logprob and the `n` likeliest of the row it was chosen from.
pub(crate) fn logprobs_of(row: &[f32], id: u32, n: u32) -> Choice {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let reported = Reported::of(row, max, n, &mut Vec::new());
    let logprob = row.get(id as usize).map(|x| x - reported.log_sum);
    Choice { id, logprob, top: reported.top }
}

/// The largest logit's index, the lowest of equals; `None` if one is NaN or none is above negative infinity.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    pick::peak(logits).map(|c| c.0)
}

struct Reported {
    log_sum: f32,
    top: Vec<Logprob>,
}

impl Reported {
    fn of(logits: &[f32], max: f32, n: u32, scratch: &mut Vec<Candidate>) -> Self {
        let log_sum = max + Weights::new(max, 1.0).sum(logits).ln() as f32;
        pick::largest(logits, n as usize, scratch);
        let top = scratch.iter().map(|&(id, x)| Logprob { id, logprob: x - log_sum }).collect();
        Reported { log_sum, top }
    }
}

/// A number in `[0, 1)` that depends on seed and position alone (SplitMix64, two rounds).
fn uniform(seed: u64, position: u32) -> f64 {
    let mix = |x: u64| {
        let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let z = mix(mix(seed) ^ position as u64);
    (z >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn draws(how: Sampling, logits: &[f32], n: u32) -> HashMap<u32, u32> {
        let mut count = HashMap::new();
        for at in 0..n {
            let mut s = Sampler::new(how.clone(), &[], logits.len() as u32);
            *count.entry(s.sample(&mut logits.to_vec(), at).unwrap().id).or_default() += 1;
        }
        count
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits = [0.0f32, 1.0, 2.0, -1.0];
        let n = 40_000;
        let total: f64 = logits.iter().map(|x| (*x as f64).exp()).sum();
        let got = draws(Sampling::default(), &logits, n);
        let chi: f64 = (0..4u32)
            .map(|i| {
                let e = n as f64 * (logits[i as usize] as f64).exp() / total;
                (got[&i] as f64 - e).powi(2) / e
            })
            .sum();
        // 99.99% of chi-square with 3 degrees of freedom lies below 21.1.
        assert!(chi < 21.1, "chi-square {chi}");
    }

    #[test]
    fn what_it_needs_of_the_likeliest_is_enough() {
        let logits: Vec<f32> = (0..500).map(|i| ((i * 37 % 101) as f32 * 0.1).sin() * 6.0).collect();
        let chains = [
            Sampling::greedy(),
            Sampling { top_k: 40, ..Sampling::default() },
            Sampling { top_k: 64, top_p: 0.9, temperature: 0.7, ..Sampling::default() },
            Sampling { top_k: 8, min_p: 0.2, temperature: 1.3, seed: 5, ..Sampling::default() },
        ];
        for how in chains {
            let (mut all, mut some) = (Sampler::new(how.clone(), &[], 500), Sampler::new(how.clone(), &[], 500));
            let k = some.needs().unwrap() as usize;
            for at in 0..200 {
                let best = device::op::likeliest(&logits, k);
                let (a, b) = (all.sample(&mut logits.clone(), at).unwrap(), some.sample_likeliest(best, at).unwrap());
                assert_eq!(a, b, "{how:?} at {at}");
            }
        }
        let needs = |how| Sampler::new(how, &[1], 500).needs();
        for how in [
            Sampling::default(),
            Sampling { top_k: 65, ..Sampling::default() },
            Sampling { repetition_penalty: 1.1, ..Sampling::greedy() },
            Sampling { presence_penalty: 0.5, ..Sampling::greedy() },
            Sampling { logit_bias: vec![(3, 1.0)], ..Sampling::greedy() },
            Sampling { logprobs: Some(2), ..Sampling::greedy() },
        ] {
            assert_eq!(needs(how.clone()), None, "{how:?}");
        }
        assert!(Sampler::new(Sampling::greedy(), &[], 500).sample_likeliest(Vec::new(), 0).is_err());
    }

    #[test]
    fn top_k_top_p_and_min_p_keep_only_what_they_say() {
        let logits = [0.0f32, 3.0, 2.0, 1.0];
        let only = |how: Sampling| {
            let mut ids: Vec<_> = draws(how, &logits, 2000).into_keys().collect();
            ids.sort();
            ids
        };
        assert_eq!(only(Sampling { top_k: 2, ..Sampling::default() }), [1, 2]);
        assert_eq!(only(Sampling { top_k: 1, ..Sampling::default() }), [1]);
        // Shares: 0.644, 0.237, 0.087, 0.032.
        assert_eq!(only(Sampling { top_p: 0.6, ..Sampling::default() }), [1]);
        assert_eq!(only(Sampling { top_p: 0.7, ..Sampling::default() }), [1, 2]);
        assert_eq!(only(Sampling { top_p: 0.0, ..Sampling::default() }), [1]);
        assert_eq!(only(Sampling { min_p: 0.3, ..Sampling::default() }), [1, 2]);
        assert_eq!(only(Sampling { min_p: 1.0, ..Sampling::default() }), [1]);
    }

    #[test]
    fn a_draw_depends_on_seed_and_position_alone() {
        let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).sin()).collect();
        let one = |seed, at| {
            let how = Sampling { seed, ..Sampling::default() };
            Sampler::new(how, &[1, 2], 50).sample(&mut logits.clone(), at).unwrap().id
        };
        assert_eq!(one(7, 3), one(7, 3));
        let distinct: std::collections::HashSet<_> = (0..20).map(|at| one(7, at)).collect();
        assert!(distinct.len() > 5);
        assert!((0..20).any(|at| one(7, at) != one(8, at)));
    }

    #[test]
    fn penalties_move_seen_tokens_only() {
        let how = Sampling { repetition_penalty: 2.0, ..Sampling::greedy() };
        let mut s = Sampler::new(how, &[0], 3);
        assert_eq!(s.sample(&mut [3.0, 2.0, -1.0], 0).unwrap().id, 1);
        // 0 is halved by the prompt, 1 now by the answer.
        assert_eq!(s.sample(&mut [3.0, 2.0, 1.4], 1).unwrap().id, 0);
        let how = Sampling { frequency_penalty: 1.0, presence_penalty: 0.5, ..Sampling::greedy() };
        let mut s = Sampler::new(how, &[0], 3);
        assert_eq!(s.sample(&mut [3.0, 2.0, 0.0], 0).unwrap().id, 0);
        assert_eq!(s.sample(&mut [3.0, 2.0, 0.0], 1).unwrap().id, 1);
    }

    #[test]
    fn logprobs_are_those_of_the_raw_logits() {
        let how = Sampling { logprobs: Some(2), top_k: 1, ..Sampling::default() };
        let c = Sampler::new(how, &[], 3).sample(&mut [0.0, 1.0, 2.0], 0).unwrap();
        let z = (1f32 + 1f32.exp() + 2f32.exp()).ln();
        assert_eq!(c.top.iter().map(|t| t.id).collect::<Vec<_>>(), [2, 1]);
        assert!((c.logprob.unwrap() - (2.0 - z)).abs() < 1e-5);
        assert!((c.top[1].logprob - (1.0 - z)).abs() < 1e-5);
    }

    #[test]
    fn logits_without_a_number_are_an_error() {
        for bad in [[f32::NAN; 3], [f32::NEG_INFINITY; 3], [1.0, f32::NAN, 0.0]] {
            for how in [Sampling::greedy(), Sampling::default()] {
                assert!(Sampler::new(how, &[], 3).sample(&mut bad.clone(), 0).is_err());
            }
        }
    }

    #[test]
    fn parameters_out_of_range_are_named() {
        let bad = |s: Sampling| s.check(10).unwrap_err().to_string();
        assert!(bad(Sampling { temperature: -1.0, ..Sampling::default() }).contains("temperature"));
        assert!(bad(Sampling { temperature: f32::NAN, ..Sampling::default() }).contains("temperature"));
        assert!(bad(Sampling { top_p: 2.0, ..Sampling::default() }).contains("top_p"));
        assert!(bad(Sampling { min_p: 5.0, ..Sampling::default() }).contains("min_p"));
        assert!(bad(Sampling { repetition_penalty: 0.0, ..Sampling::default() }).contains("repetition_penalty"));
        assert!(bad(Sampling { logit_bias: vec![(10, 0.0)], ..Sampling::default() }).contains("logit_bias"));
    }

    /// What may be drawn, by sorting everything: ids with their shares.
    fn plainly(how: &Sampling, logits: &[f32]) -> HashMap<u32, f64> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |x: f32| (f64::from(x - max) / f64::from(how.temperature)).exp();
        let mut all: Vec<Candidate> = logits.iter().enumerate().map(|(i, x)| (i as u32, *x)).collect();
        all.sort_by(falling);
        if how.top_k > 0 {
            all.truncate(how.top_k as usize);
        }
        let wanted = all.iter().map(|c| weight(c.1)).sum::<f64>() * f64::from(how.top_p);
        let mut sum = 0.0;
        let n = all.iter().position(|c| {
            sum += weight(c.1);
            how.top_p < 1.0 && sum >= wanted
        });
        all.truncate(n.map_or(all.len(), |n| n + 1));
        all.retain(|c| weight(c.1) >= f64::from(how.min_p));
        let total: f64 = all.iter().map(|c| weight(c.1)).sum();
        all.iter().map(|c| (c.0, weight(c.1) / total)).collect()
    }

    #[test]
    fn what_is_kept_is_what_sorting_everything_keeps() {
        // Flat ones, in which top-p keeps thousands, and steep ones, in which it keeps a few.
        for (i, steep) in [0.01f32, 0.3, 1.0, 4.0].into_iter().enumerate() {
            let logits: Vec<f32> = (0..6000u32)
                .map(|n| ((n.wrapping_mul(2_654_435_761) >> 16) as f32 / 3e3).sin() * 5.0 * steep)
                .collect();
            for (top_k, top_p, min_p) in [
                (0, 0.5, 0.0),
                (0, 0.95, 0.0),
                (0, 1.0, 0.02),
                (0, 0.9, 0.3),
                (50, 1.0, 0.0),
                (50, 0.8, 0.1),
                (0, 0.0, 0.0),
            ] {
                let how = Sampling { temperature: 0.8, top_k, top_p, min_p, ..Sampling::default() };
                let mut s = Sampler::new(how.clone(), &[], 6000);
                s.keep(&logits, Weights::new(pick::peak(&logits).unwrap().1, 0.8));
                let (want, total) = (plainly(&how, &logits), s.weights.iter().sum::<f64>());
                // Rounding may put the border of a sum of thousands one token off.
                let off = s.candidates.len().abs_diff(want.len());
                assert!(off <= usize::from(want.len() > 300), "{i} {how:?}: {off}");
                for (c, w) in s.candidates.iter().zip(&s.weights) {
                    let share = want.get(&c.0).copied().unwrap_or(if off > 0 { w / total } else { 0.0 });
                    assert!((w / total - share).abs() < 1e-3 * share, "{i} {how:?}: {c:?}");
                }
            }
        }
    }

    #[test]
    fn masks_shut_everything_they_do_not_name() {
        let mut logits: Vec<f32> = (0..100).map(|i| i as f32).collect();
        let mut s = Sampler::new(Sampling::greedy(), &[], 100);
        let id = |s: &mut Sampler, l: &mut [f32], mask: &[u32]| s.sample_within(l, 0, Some(mask)).map(|c| c.id);
        assert_eq!(id(&mut s, &mut logits.clone(), &[u32::MAX, u32::MAX, 0, 0]).unwrap(), 63);
        assert_eq!(id(&mut s, &mut logits.clone(), &[1 << 7, 1 << 3 | 1]).unwrap(), 35);
        assert!(id(&mut s, &mut logits, &[0, 0]).is_err());
    }

    proptest! {
        #[test]
        fn any_parameters_in_range_draw_a_token_that_is_there(
            logits in prop::collection::vec(-50f32..50.0, 1..60), t in 0f32..5.0, k in 0u32..70, p in 0f32..=1.0, m in 0f32..=1.0, seed: u64,
        ) {
            let how = Sampling { temperature: t, top_k: k, top_p: p, min_p: m, seed, ..Sampling::default() };
            let id = Sampler::new(how, &[], logits.len() as u32).sample(&mut logits.clone(), 9).unwrap().id;
            prop_assert!((id as usize) < logits.len());
        }
    }
}
