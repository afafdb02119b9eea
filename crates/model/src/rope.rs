//! Rope base frequencies: `inv_freq[i] = theta^(-2i/dims)`, with whatever scaling the checkpoint asks for, as data.

use crate::error::{Error, Result};
use crate::keys::Keys;
use checkpoint::Meta;
use std::f64::consts::PI;
use std::sync::Arc;

/// Frequencies without scaling, in f32 as the reference computes them.
pub fn plain(theta: f32, dims: u32) -> impl Iterator<Item = f32> {
    (0..dims / 2).map(move |i| (theta as f64).powf(-2.0 * i as f64 / dims as f64) as f32)
}

/// A rotation as a configuration describes it.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f32,
    /// Columns of a head that the frequencies are spread over.
    pub dims: u32,
    /// What is done to them.
    pub scaling: Scaling,
}

/// The scaling rules.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Scaling {
    /// None.
    Plain,
    /// All frequencies divided by a factor.
    Linear(f64),
    /// Llama 3.1's: long wavelengths are divided by `factor`, short ones kept, those between blended.
    Llama3 {
        /// The divisor.
        factor: f64,
        /// Turns in the original context below which a wavelength is long.
        low: f64,
        /// Turns in the original context above which it is short.
        high: f64,
        /// Positions the model was first trained for.
        original: f64,
    },
    /// YaRN (arXiv 2309.00071).
    Yarn(Yarn),
    /// Only this share of the frequencies turns; the others are zero, so that halves stay paired over the whole head
    /// (Gemma 4's full layers).
    Proportional(f64),
}

/// YaRN: frequencies that turn more than `beta_fast` times in the original context are kept, those that turn less than
/// `beta_slow` times divided by `factor`, a ramp between them; cosine and sine are multiplied by `attention`.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Yarn {
    /// The divisor.
    pub factor: f64,
    /// Positions the model was first trained for.
    pub original: f64,
    /// Turns from which on nothing is scaled.
    pub beta_fast: f64,
    /// Turns up to which everything is.
    pub beta_slow: f64,
    /// Whether the ends of the ramp are whole numbers of pairs.
    pub truncate: bool,
    /// Multiplies cosine and sine.
    pub attention: f64,
}

impl Rope {
    /// The rotation of a model that has one: under `rope_parameters` or `rope_scaling`, or among a GGUF file's keys.
    ///
    /// # Errors
    /// [`Error::BadKey`] for a scaling nobody here knows, [`Error::MissingKeys`] for one without its numbers.
    pub fn read(keys: &Keys, theta: f32, dims: u32) -> Result<Self> {
        let root = if keys.hf("rope_parameters.rope_type").is_some() { "rope_parameters" } else { "rope_scaling" };
        Self::read_under(keys, root, theta, dims)
    }

    /// The rotation whose Hugging Face configuration is the object at `root`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_under(keys: &Keys, root: &str, theta: f32, dims: u32) -> Result<Self> {
        let scaling = if keys.gguf() { gguf(keys)? } else { hf(keys, root)? };
        Ok(Rope { theta, dims, scaling })
    }

    /// A rotation without scaling.
    pub fn unscaled(theta: f32, dims: u32) -> Self {
        Rope { theta, dims, scaling: Scaling::Plain }
    }

    /// The frequencies.
    pub fn frequencies(&self) -> Arc<[f32]> {
        let plain = plain(self.theta, self.dims);
        match self.scaling {
            Scaling::Plain => plain.collect(),
            Scaling::Linear(factor) => plain.map(|f| f / factor as f32).collect(),
            Scaling::Llama3 { factor, low, high, original } => {
                plain.map(|f| llama3(f as f64, factor, low, high, original) as f32).collect()
            }
            Scaling::Yarn(y) => y.frequencies(self.theta, self.dims),
            Scaling::Proportional(share) => {
                let turning = (share * self.dims as f64 / 2.0) as usize;
                plain.enumerate().map(|(i, f)| if i < turning { f } else { 0.0 }).collect()
            }
        }
    }

    /// What cosine and sine are multiplied by.
    pub fn factor(&self) -> f32 {
        if let Scaling::Yarn(y) = self.scaling { y.attention as f32 } else { 1.0 }
    }

    /// Whether GGUF files carry the scaling as a table of divisors, not as keys.
    pub fn by_divisors(&self) -> bool {
        matches!(self.scaling, Scaling::Llama3 { .. } | Scaling::Proportional(_))
    }

    /// Writes base and scaling as keys of architecture `arch`.
    pub fn export(&self, arch: &str, out: &mut Meta) {
        let key = |name: &str| format!("{arch}.rope.{name}");
        out.set(&key("freq_base"), self.theta);
        match self.scaling {
            Scaling::Linear(factor) => {
                out.set(&key("scaling.type"), "linear").set(&key("scaling.factor"), factor as f32);
            }
            Scaling::Yarn(y) => {
                out.set(&key("scaling.type"), "yarn").set(&key("scaling.factor"), y.factor as f32);
                out.set(&key("scaling.original_context_length"), y.original as u32);
                out.set(&key("scaling.yarn_beta_fast"), y.beta_fast as f32);
                out.set(&key("scaling.yarn_beta_slow"), y.beta_slow as f32);
            }
            Scaling::Plain | Scaling::Llama3 { .. } | Scaling::Proportional(_) => {}
        }
    }
}

impl Yarn {
    /// The attention factor of a scaling that says nothing else.
    pub fn attention_of(factor: f64) -> f64 {
        if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 }
    }
    /// The pair that turns `turns` times in the original context.
    fn pair(&self, turns: f64, theta: f64, dims: f64) -> f64 {
        dims * (self.original / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln())
    }
    fn frequencies(&self, theta: f32, dims: u32) -> Arc<[f32]> {
        let of = |turns| self.pair(turns, theta as f64, dims as f64);
        let (low, high) = (of(self.beta_fast), of(self.beta_slow));
        let (low, high) = if self.truncate { (low.floor(), high.ceil()) } else { (low, high) };
        let (low, high) = (low.max(0.0), high.min(dims as f64 - 1.0));
        let width = if low == high { 0.001 } else { high - low };
        let each = |(i, f): (usize, f32)| {
            let ramp = ((i as f64 - low) / width).clamp(0.0, 1.0);
            let f = f as f64;
            (f / self.factor * ramp + f * (1.0 - ramp)) as f32
        };
        plain(theta, dims).enumerate().map(each).collect()
    }
}

fn hf(keys: &Keys, root: &str) -> Result<Scaling> {
    let get = |name: &str| keys.hf(&format!("{root}.{name}"));
    let kind = get("rope_type").or_else(|| get("type")).and_then(|v| v.as_str()).unwrap_or("default");
    let opt = |name: &str| get(name).and_then(|v| v.as_f64()).filter(|v| *v > 0.0);
    let number = |name: &str| {
        let missing = || Error::MissingKeys { arch: keys.arch().into(), keys: vec![format!("{root}.{name}")] };
        opt(name).ok_or_else(missing)
    };
    Ok(match kind {
        "default" => Scaling::Plain,
        "linear" => Scaling::Linear(number("factor")?),
        "llama3" => Scaling::Llama3 {
            factor: number("factor")?,
            low: number("low_freq_factor")?,
            high: number("high_freq_factor")?,
            original: number("original_max_position_embeddings")?,
        },
        "yarn" => {
            let factor = number("factor")?;
            let trained = keys.hf("max_position_embeddings").and_then(|v| v.as_f64());
            let original = opt("original_max_position_embeddings").or(trained).filter(|v| *v > 0.0);
            let original = original.map_or_else(|| number("original_max_position_embeddings"), Ok)?;
            let scale = |m: f64| if factor > 1.0 { 0.1 * m * factor.ln() + 1.0 } else { 1.0 };
            // DeepSeek's pair of numbers, where both are there.
            let both = opt("mscale").zip(opt("mscale_all_dim")).map(|(m, all)| scale(m) / scale(all));
            Scaling::Yarn(Yarn {
                factor,
                original,
                beta_fast: opt("beta_fast").unwrap_or(32.0),
                beta_slow: opt("beta_slow").unwrap_or(1.0),
                truncate: get("truncate").and_then(|v| v.as_bool()).unwrap_or(true),
                attention: opt("attention_factor").or(both).unwrap_or_else(|| Yarn::attention_of(factor)),
            })
        }
        "proportional" => Scaling::Proportional(opt("partial_rotary_factor").unwrap_or(1.0)),
        other => return Err(unknown(&format!("{root}.rope_type"), other)),
    })
}

fn unknown(key: &str, kind: &str) -> Error {
    let why = "supported are default, linear, llama3, yarn and proportional";
    Error::BadKey { key: key.into(), value: kind.into(), why: why.into() }
}

/// GGUF files name linear scaling and YaRN by keys; those of llama3 and proportional are a tensor of divisors, which
/// binding applies.
fn gguf(keys: &Keys) -> Result<Scaling> {
    let number = |name: &str| keys.opt_f32("", &format!("rope.scaling.{name}")).filter(|f| *f > 0.0).map(f64::from);
    Ok(match keys.opt_str("rope.scaling.type").as_deref() {
        None | Some("none") => Scaling::Plain,
        Some("linear") => number("factor").map_or(Scaling::Plain, Scaling::Linear),
        Some("yarn") => {
            let key = |name: &str| keys.missing_key(&format!("rope.scaling.{name}"));
            let factor = number("factor").ok_or_else(|| key("factor"))?;
            Scaling::Yarn(Yarn {
                factor,
                original: number("original_context_length").ok_or_else(|| key("original_context_length"))?,
                beta_fast: number("yarn_beta_fast").unwrap_or(32.0),
                beta_slow: number("yarn_beta_slow").unwrap_or(1.0),
                // Files have no key for it; gpt-oss was trained with ends that are not whole.
                truncate: keys.arch() != "gpt-oss",
                attention: Yarn::attention_of(factor) * number("attn_factor").unwrap_or(1.0),
            })
        }
        Some(other) => return Err(unknown("rope.scaling.type", other)),
    })
}

/// Source: transformers, `_compute_llama3_parameters`.
fn llama3(freq: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let wavelength = 2.0 * PI / freq;
    if wavelength > original / low {
        return freq / factor;
    }
    if wavelength < original / high {
        return freq;
    }
    let blend = (original / wavelength - low) / (high - low);
    (1.0 - blend) * freq / factor + blend * freq
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yarn_of_gpt_oss_ramps_between_pairs_8_and_18() {
        let attention = Yarn::attention_of(32.0);
        assert!((attention - 1.346_573_6).abs() < 1e-6);
        let y = Yarn { factor: 32.0, original: 4096.0, beta_fast: 32.0, beta_slow: 1.0, truncate: false, attention };
        let ends = [32.0, 1.0].map(|turns| y.pair(turns, 150_000.0, 64.0));
        assert!((ends[0] - 8.093).abs() < 1e-3 && (ends[1] - 17.398).abs() < 1e-3, "{ends:?}");
        let rope = Rope { theta: 150_000.0, dims: 64, scaling: Scaling::Yarn(y) };
        let (scaled, plain): (Vec<f32>, Vec<f32>) = (rope.frequencies().to_vec(), plain(150_000.0, 64).collect());
        assert_eq!(scaled[..9], plain[..9]);
        assert!(scaled[18..].iter().zip(&plain[18..]).all(|(s, p)| (s * 32.0 - p).abs() <= p * 1e-6));
        assert!(scaled[9..18].iter().zip(&plain[9..18]).all(|(s, p)| *s < *p && *s > p / 32.0));
    }

    #[test]
    fn proportional_rope_turns_the_first_pairs_of_the_whole_head() {
        let rope = Rope { theta: 1e6, dims: 512, scaling: Scaling::Proportional(0.25) };
        let f = rope.frequencies();
        assert_eq!(f.iter().filter(|f| **f > 0.0).count(), 64);
        assert!((f[63] - 1e6f32.powf(-126.0 / 512.0)).abs() < 1e-7 && f[64] == 0.0);
    }
}
