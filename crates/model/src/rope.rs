//! Rope base frequencies: `inv_freq[i] = theta^(-2i/dims)`, with whatever scaling the checkpoint asks for.

use crate::error::{Error, Result};
use crate::keys::Keys;
use std::sync::Arc;

/// Frequencies without scaling, in f32 as the reference computes them.
pub fn plain(theta: f32, dims: u32) -> impl Iterator<Item = f32> {
    (0..dims / 2).map(move |i| (theta as f64).powf(-2.0 * i as f64 / dims as f64) as f32)
}

/// The frequencies of a model.
///
/// # Errors
/// [`Error::BadKey`] for a scaling nobody here knows.
pub fn frequencies(keys: &Keys, theta: f32, dims: u32) -> Result<Arc<[f32]>> {
    let plain = plain(theta, dims);
    if keys.gguf() {
        return gguf(keys, plain.collect());
    }
    let root = if keys.hf("rope_parameters.rope_type").is_some() { "rope_parameters" } else { "rope_scaling" };
    let get = |name: &str| keys.hf(&format!("{root}.{name}"));
    let kind = get("rope_type").or_else(|| get("type")).and_then(|v| v.as_str()).unwrap_or("default");
    let number = |name: &str| {
        let missing = || Error::MissingKeys { arch: keys.arch().into(), keys: vec![format!("{root}.{name}")] };
        get(name).and_then(|v| v.as_f64()).filter(|v| *v > 0.0).ok_or_else(missing)
    };
    match kind {
        "default" => Ok(plain.collect()),
        "linear" => {
            let factor = number("factor")? as f32;
            Ok(plain.map(|f| f / factor).collect())
        }
        "llama3" => {
            let original = number("original_max_position_embeddings")?;
            let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
            let factor = number("factor")?;
            Ok(plain.map(|f| llama3(f as f64, factor, low, high, original) as f32).collect())
        }
        other => Err(unknown(&format!("{root}.rope_type"), other)),
    }
}

fn unknown(key: &str, kind: &str) -> Error {
    let why = "supported are default, linear and llama3";
    Error::BadKey { key: key.into(), value: kind.into(), why: why.into() }
}

/// GGUF files name only linear scaling by a key; that of llama3 is a tensor of divisors, which binding applies.
fn gguf(keys: &Keys, plain: Vec<f32>) -> Result<Arc<[f32]>> {
    let kind = keys.opt_str("rope.scaling.type");
    let by = match kind.as_deref() {
        None | Some("none") => 1.0,
        Some("linear") => keys.opt_f32("", "rope.scaling.factor").filter(|f| *f > 0.0).unwrap_or(1.0),
        Some(other) => return Err(unknown("rope.scaling.type", other)),
    };
    Ok(plain.into_iter().map(|f| f / by).collect())
}

/// Llama 3.1's scaling: long wavelengths are divided by `factor`, short ones kept, those between blended.
/// Source: transformers, `_compute_llama3_parameters`.
fn llama3(freq: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let wavelength = 2.0 * std::f64::consts::PI / freq;
    if wavelength > original / low {
        return freq / factor;
    }
    if wavelength < original / high {
        return freq;
    }
    let blend = (original / wavelength - low) / (high - low);
    (1.0 - blend) * freq / factor + blend * freq
}
