//! Reference scores of a text, for judging quantised weights and activations: `fixtures/*_gate.json`, written by
//! `scripts/oracle_gate.py`.

use serde::Deserialize;

use crate::Error;

/// The scored text, English prose with some code and numbers; see `fixtures/README.md`.
pub const GATE_TEXT: &str = include_str!("../../../fixtures/gate_text.txt");

/// Names of the scores: SmolLM2-135M-Instruct with its Q4_1 weights dequantised, and snug-tiny-moe in bf16, both
/// computed in float32.
pub const GATES: &[&str] = &["smollm2", "tiny_moe"];

/// One model's scores of [`GATE_TEXT`], cut into windows of up to 1,024 tokens, each scored from an empty context.
#[derive(Debug, Clone, Deserialize)]
pub struct Gate {
    /// Versions of the libraries that computed it.
    pub made_with: String,
    /// Mean negative log likelihood (nats) over all scored tokens.
    pub mean_nll: f64,
    /// Share of scored tokens that were the model's best guess.
    pub top1_is_next: f64,
    /// The windows, in text order.
    pub windows: Vec<Window>,
}

/// One window of n tokens; row i of n - 1 is about the token after `ids[i]`.
#[derive(Debug, Clone, Deserialize)]
pub struct Window {
    /// Token ids, n of them.
    pub ids: Vec<u32>,
    /// Negative log likelihood of `ids[i + 1]`, in nats, rounded to 4 decimals.
    pub nll: Vec<f32>,
    /// Best token of row i.
    pub top1: Vec<u32>,
    /// Its lead over the runner-up in logits, rounded to 3 decimals.
    pub gap: Vec<f32>,
}

/// Reference scores by a name of [`GATES`].
pub fn gate(name: &str) -> Result<Gate, Error> {
    let text = match name {
        "smollm2" => include_str!("../../../fixtures/smollm2_gate.json"),
        "tiny_moe" => include_str!("../../../fixtures/tiny_moe_gate.json"),
        _ => return Err(Error::UnknownModel(name.to_owned())),
    };
    serde_json::from_str(text).map_err(|e| Error::malformed(name, "gate", e))
}

/// Running comparison of a model under test with the reference.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tally {
    rows: usize,
    nll: f64,
    reference_nll: f64,
    agree: usize,
}

impl Tally {
    /// Adds row `i` of a window, given all logits of the model under test after `ids[i]`. Rows beyond the last scored
    /// one count nothing.
    pub fn add(&mut self, window: &Window, i: usize, logits: &[f32]) {
        let (Some(&next), Some(&nll), Some(&top1)) = (window.ids.get(i + 1), window.nll.get(i), window.top1.get(i))
        else {
            return;
        };
        self.rows += 1;
        self.nll += nll_of(logits, next);
        self.reference_nll += f64::from(nll);
        self.agree += usize::from(argmax(logits) == Some(top1));
    }

    /// Rows added.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Mean negative log likelihood under test minus the reference's over the same rows, in nats; NaN if any logit was.
    pub fn delta_nll(&self) -> f64 {
        (self.nll - self.reference_nll) / self.rows as f64
    }

    /// Share of rows whose best token is the reference's.
    pub fn top1_agreement(&self) -> f64 {
        self.agree as f64 / self.rows as f64
    }
}

/// -log softmax(logits)[token], in nats and f64; NaN for a token that has no logit.
fn nll_of(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    let own = logits.get(token as usize).map_or(f64::NAN, |&x| f64::from(x));
    sum.ln() + f64::from(max) - own
}

/// Index of the largest value, the first of equals.
fn argmax(logits: &[f32]) -> Option<u32> {
    let best = logits.iter().enumerate().reduce(|a, b| if b.1 > a.1 { b } else { a })?;
    u32::try_from(best.0).ok()
}

#[cfg(test)]
mod tests {
    use std::f32::consts::LN_2;

    use super::*;

    #[test]
    fn scores_are_whole_and_their_mean_is_theirs() {
        for name in GATES {
            let gate = gate(name).unwrap();
            let rows: usize = gate.windows.iter().map(|w| w.nll.len()).sum();
            assert!(rows >= 4000, "{rows}");
            for w in &gate.windows {
                assert!(w.ids.len() <= 1024);
                assert_eq!((w.nll.len(), w.top1.len(), w.gap.len()), (w.ids.len() - 1, w.nll.len(), w.nll.len()));
            }
            let sum: f64 = gate.windows.iter().flat_map(|w| &w.nll).map(|&x| f64::from(x)).sum();
            assert!((sum / rows as f64 - gate.mean_nll).abs() < 1e-4);
        }
        let ids = |g: &str| gate(g).unwrap().windows.into_iter().flat_map(|w| w.ids).collect::<Vec<_>>();
        assert_eq!(ids("smollm2"), ids("tiny_moe"), "both models share a tokenizer and a text");
    }

    #[test]
    fn tally_measures_distance_and_agreement() {
        // Two rows over a vocabulary of 3; the reference was certain to 0.5 and 0.25.
        let window = Window { ids: vec![0, 1, 2], nll: vec![LN_2, 2.0 * LN_2], top1: vec![1, 0], gap: vec![0.0, 0.0] };
        let mut t = Tally::default();
        t.add(&window, 0, &[0.25f32.ln(), 0.5f32.ln(), 0.25f32.ln()]); // the same
        assert!(t.delta_nll().abs() < 1e-6);
        assert_eq!(t.top1_agreement(), 1.0);
        t.add(&window, 1, &[0.25f32.ln(), 0.625f32.ln(), 0.125f32.ln()]); // one bit worse, another best
        assert!((t.delta_nll() - f64::from(LN_2) / 2.0).abs() < 1e-5);
        assert_eq!(t.top1_agreement(), 0.5);
        t.add(&window, 2, &[0.0, 0.0, 0.0]); // nothing follows the last token
        assert_eq!(t.rows(), 2);
        t.add(&window, 0, &[f32::NAN; 3]);
        assert!(t.delta_nll().is_nan());
    }
}
