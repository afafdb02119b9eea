//! From logits to a token.
//!
//! The order is that of transformers: penalties and biases on the raw logits, then temperature, then top-k, top-p and
//! min-p on what the temperature made of them. Temperature 0 takes the largest logit. A draw is keyed by (seed,
//! position), so the same request gives the same text whatever ran beside it.

use crate::error::{Error, Result};
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

/// One request's sampler: its parameters and what it has seen.
#[derive(Clone, Debug)]
pub struct Sampler {
    how: Sampling,
    prompt: Vec<bool>,
    generated: HashMap<u32, u32>,
}

impl Sampler {
    /// A sampler for a prompt.
    pub fn new(how: Sampling, prompt: &[u32], vocab: u32) -> Self {
        let mut seen = Vec::new();
        if how.repetition_penalty != 1.0 {
            seen = vec![false; vocab as usize];
            prompt.iter().filter(|&&id| id < vocab).for_each(|&id| seen[id as usize] = true);
        }
        Sampler { how, prompt: seen, generated: HashMap::new() }
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
        let reported = self.how.logprobs.map(|n| Reported::of(logits, n));
        let mut best = argmax(logits).ok_or(Error::BadLogits)?;
        if let Some(mask) = mask {
            let allowed = |id: usize| mask.get(id / 32).is_some_and(|w| w >> (id % 32) & 1 == 1);
            logits.iter_mut().enumerate().filter(|(id, _)| !allowed(*id)).for_each(|(_, x)| *x = f32::NEG_INFINITY);
            best = argmax(logits).ok_or(Error::NothingAllowed)?;
        }
        let id = if self.how.temperature == 0.0 { best } else { self.draw(logits, position) };
        *self.generated.entry(id).or_default() += 1;
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
        let best = likeliest.first().ok_or(Error::BadLogits)?.0;
        let id = if self.how.temperature == 0.0 { best } else { self.drawn(self.weighed(likeliest), position) };
        *self.generated.entry(id).or_default() += 1;
        Ok(Choice { id, logprob: None, top: Vec::new() })
    }

    fn penalise(&self, logits: &mut [f32]) {
        let p = &self.how;
        if p.repetition_penalty != 1.0 {
            for (id, x) in logits.iter_mut().enumerate() {
                if self.prompt.get(id) == Some(&true) || self.generated.contains_key(&(id as u32)) {
                    *x = if *x > 0.0 { *x / p.repetition_penalty } else { *x * p.repetition_penalty };
                }
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

    fn draw(&self, logits: &[f32], position: u32) -> u32 {
        self.drawn(self.kept(logits), position)
    }

    fn drawn(&self, kept: Vec<(u32, f64)>, position: u32) -> u32 {
        let total: f64 = kept.iter().map(|(_, p)| p).sum();
        let mut left = uniform(self.how.seed, position) * total;
        for &(id, p) in &kept {
            left -= p;
            if left < 0.0 {
                return id;
            }
        }
        kept.last().map_or(0, |k| k.0)
    }

    /// Tokens that may be drawn with their weights relative to the likeliest, likeliest first (all of them unsorted when
    /// nothing needs an order).
    fn kept(&self, logits: &[f32]) -> Vec<(u32, f64)> {
        let p = &self.how;
        let mut all: Vec<(u32, f32)> =
            logits.iter().enumerate().filter(|(_, x)| **x > f32::NEG_INFINITY).map(|(i, x)| (i as u32, *x)).collect();
        let falling = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let k = p.top_k as usize;
        if k > 0 && k < all.len() {
            all.select_nth_unstable_by(k - 1, falling);
            all.truncate(k);
        }
        if k > 0 || p.top_p < 1.0 || p.min_p > 0.0 {
            all.sort_unstable_by(falling);
        }
        self.weighed(all)
    }

    /// What is left of candidates, in their order.
    fn weighed(&self, all: Vec<(u32, f32)>) -> Vec<(u32, f64)> {
        let p = &self.how;
        let max = all.iter().map(|x| x.1).fold(f32::NEG_INFINITY, f32::max);
        let t = p.temperature as f64;
        let mut kept: Vec<(u32, f64)> = all.iter().map(|&(i, x)| (i, (((x - max) as f64) / t).exp())).collect();
        if p.top_p < 1.0 {
            let wanted = kept.iter().map(|k| k.1).sum::<f64>() * p.top_p as f64;
            let mut sum = 0.0;
            let n = kept.iter().position(|k| {
                sum += k.1;
                sum >= wanted
            });
            kept.truncate(n.map_or(kept.len(), |n| n + 1));
        }
        if p.min_p > 0.0 {
            let n = kept.iter().position(|k| k.1 < p.min_p as f64);
            kept.truncate(n.unwrap_or(kept.len()).max(1));
        }
        kept
    }
}

/// A token that somebody else chose, with its logprob and the `n` likeliest of the row it was chosen from.
pub(crate) fn logprobs_of(row: &[f32], id: u32, n: u32) -> Choice {
    let reported = Reported::of(row, n);
    let logprob = row.get(id as usize).map(|x| x - reported.log_sum);
    Choice { id, logprob, top: reported.top }
}

/// The largest logit's index, the lowest of equals; NaN is never it.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best: Option<(u32, f32)> = None;
    for (i, &x) in logits.iter().enumerate() {
        if x > best.map_or(f32::NEG_INFINITY, |b| b.1) {
            best = Some((i as u32, x));
        }
    }
    let any_nan = logits.iter().any(|x| x.is_nan());
    best.filter(|_| !any_nan).map(|b| b.0)
}

struct Reported {
    log_sum: f32,
    top: Vec<Logprob>,
}

impl Reported {
    fn of(logits: &[f32], n: u32) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let log_sum = max + logits.iter().map(|x| ((x - max) as f64).exp()).sum::<f64>().ln() as f32;
        let mut all: Vec<Logprob> =
            logits.iter().enumerate().map(|(i, x)| Logprob { id: i as u32, logprob: x - log_sum }).collect();
        let falling = |a: &Logprob, b: &Logprob| b.logprob.total_cmp(&a.logprob).then(a.id.cmp(&b.id));
        let n = (n as usize).min(all.len());
        if n > 0 && n < all.len() {
            all.select_nth_unstable_by(n - 1, falling);
        }
        all.truncate(n);
        all.sort_unstable_by(falling);
        Reported { log_sum, top: all }
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
