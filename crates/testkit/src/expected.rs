//! What the oracle computed: `expected/NAME.json`, written by `scripts/oracle_tiny.py`.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{Error, description::files};

/// Numbers of one tiny model, computed in float32. "Gap" is always the lead, in logits, of the best token over the
/// runner-up: where it is small, another order of summation may choose otherwise.
#[derive(Debug, Clone, Deserialize)]
pub struct Expected {
    /// Versions of the libraries that computed it.
    pub made_with: String,
    /// SHA-256, in hex, of the safetensors file that [`crate::write_safetensors`] must write.
    pub safetensors_sha256: String,
    /// The input: 717 token ids.
    pub ids: Vec<u32>,
    /// Full logits at some positions of `ids`.
    pub logits: Vec<Row>,
    /// Best token at every position of `ids`.
    pub argmax: Vec<u32>,
    /// Its gap.
    pub top2_gap: Vec<f32>,
    /// Expert choices; none for a dense model.
    pub routing: Option<Routing>,
    /// A greedy continuation.
    pub greedy: Greedy,
    /// Largest logit difference between one pass over `ids` and a cached prefill followed by single steps, both in
    /// transformers: the scale of the numbers' own error.
    pub step_difference: f32,
    /// The multi-token-prediction head, where the model has one.
    pub mtp: Option<Mtp>,
}

/// The logits after one position.
#[derive(Debug, Clone, Deserialize)]
pub struct Row {
    /// Index into the token ids.
    pub position: usize,
    /// One logit per vocabulary entry.
    #[serde(deserialize_with = "base64_f32")]
    pub values: Vec<f32>,
}

/// Expert choices at the first 64 positions.
#[derive(Debug, Clone, Deserialize)]
pub struct Routing {
    /// `[position][layer][rank]`, by falling probability.
    pub experts: Vec<Vec<Vec<u32>>>,
    /// `[position][layer]`: probability of the last chosen minus that of the best not chosen expert (softmax over all).
    pub margin: Vec<Vec<f32>>,
    /// `[position][layer]`: least difference of adjacent probabilities among the chosen and the best not chosen.
    pub order_margin: Vec<Vec<f32>>,
    /// The least `margin` over all 717 positions.
    pub least_margin: f32,
}

/// A greedy continuation (end-of-sequence tokens do not end it).
#[derive(Debug, Clone, Deserialize)]
pub struct Greedy {
    /// The prompt is this many first ids of [`Expected::ids`].
    pub prompt: usize,
    /// The tokens that follow.
    pub ids: Vec<u32>,
    /// Gap of each.
    pub top2_gap: Vec<f32>,
}

/// The multi-token-prediction head over rows t = 0..716. Row t joins the embedding of `ids[t + 1]` with the trunk's
/// hidden state (after the final norm) at position t, attends to rows 0..=t, and predicts `ids[t + 2]`.
#[derive(Debug, Clone, Deserialize)]
pub struct Mtp {
    /// Full logits of some rows.
    pub logits: Vec<Row>,
    /// Best token of every row.
    pub argmax: Vec<u32>,
    /// Its gap.
    pub top2_gap: Vec<f32>,
    /// The main model's own next token after the greedy prompt.
    pub draft_first: u32,
    /// Tokens drafted after `draft_first`, feeding back the head's output (after its norm) as the hidden state.
    pub draft: Vec<u32>,
    /// Gap of each drafted token.
    pub draft_top2_gap: Vec<f32>,
}

/// The expected numbers of a tiny model.
pub fn expected(name: &str) -> Result<Expected, Error> {
    let (_, text) = files(name)?;
    serde_json::from_str(text).map_err(|e| Error::malformed(name, "expected numbers", e))
}

fn base64_f32<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<f32>, D::Error> {
    let bytes = BASE64_STANDARD.decode(String::deserialize(d)?).map_err(D::Error::custom)?;
    let (values, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(D::Error::custom("logits are not a whole number of f32"));
    }
    Ok(values.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NAMES, model};

    #[test]
    fn every_model_has_consistent_numbers() {
        for name in NAMES {
            let (want, model) = (expected(name).unwrap(), model(name).unwrap());
            let config = model.config.get("text_config").unwrap_or(&model.config);
            let vocab = config["vocab_size"].as_u64().unwrap() as usize;
            assert_eq!(want.ids.len(), 717);
            assert!(want.ids.iter().all(|&i| (i as usize) < vocab));
            assert_eq!(want.argmax.len(), want.ids.len());
            check_rows(&want.logits, &want.argmax, &want.top2_gap, vocab);
            assert_eq!((want.greedy.prompt, want.greedy.ids.len()), (41, 16));
            assert_eq!(want.greedy.ids[0], want.argmax[40]);
            let number = |names: &[&str]| names.iter().find_map(|f| config.get(f)?.as_u64()).map(|n| n as usize);
            let experts = number(&["num_experts", "num_local_experts", "n_routed_experts"]);
            assert_eq!(want.routing.is_some(), experts.is_some(), "{name}");
            if let Some(routing) = &want.routing {
                let (k, e) = (number(&["num_experts_per_tok", "top_k_experts"]).unwrap(), experts.unwrap());
                let listed = config.get("mlp_only_layers").and_then(|l| l.as_array()).map_or(0, Vec::len);
                let dense = listed + number(&["first_k_dense_replace"]).unwrap_or(0);
                assert_eq!(routing.experts.len(), 64);
                for row in &routing.experts {
                    assert_eq!(row.len(), number(&["num_hidden_layers"]).unwrap() - dense);
                    assert!(row.iter().all(|c| c.len() == k && c.iter().all(|&x| (x as usize) < e)));
                }
            }
            if let Some(mtp) = &want.mtp {
                check_rows(&mtp.logits, &mtp.argmax, &mtp.top2_gap, vocab);
                assert_eq!(mtp.draft_first, want.argmax[40]);
            }
        }
    }

    fn check_rows(rows: &[Row], argmax: &[u32], gap: &[f32], vocab: usize) {
        assert!(!rows.is_empty());
        for row in rows {
            assert_eq!(row.values.len(), vocab);
            let mut best: Vec<usize> = (0..vocab).collect();
            best.sort_by(|&a, &b| row.values[b].total_cmp(&row.values[a]));
            assert_eq!(best[0] as u32, argmax[row.position]);
            assert!((row.values[best[0]] - row.values[best[1]] - gap[row.position]).abs() < 1e-4);
        }
    }
}
