//! What `run` and `chat` have in common: sampling flags, seeds, prompts from stdin.

use crate::args::Sample;
use crate::fault::usage;
use anyhow::Context;
use engine::{Error, Sampling};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Read;
use std::time::SystemTime;

/// Checks flags before a model is loaded for nothing.
pub fn check(a: &Sample) -> anyhow::Result<()> {
    if a.max_tokens == Some(0) {
        let range = "1 and more".to_string();
        return Err(Error::BadParameter { name: "--max-tokens", value: "0".into(), range }.into());
    }
    Ok(sampling(a, Sampling::default()).check(u32::MAX)?)
}

/// The checkpoint's preferences under what was typed. Without `--seed` one is drawn.
pub fn sampling(a: &Sample, usual: Sampling) -> Sampling {
    Sampling {
        temperature: a.temp.unwrap_or(usual.temperature),
        top_k: a.top_k.unwrap_or(usual.top_k),
        top_p: a.top_p.unwrap_or(usual.top_p),
        min_p: a.min_p.unwrap_or(usual.min_p),
        repetition_penalty: a.repeat_penalty.unwrap_or(usual.repetition_penalty),
        presence_penalty: a.presence_penalty.unwrap_or(usual.presence_penalty),
        frequency_penalty: a.frequency_penalty.unwrap_or(usual.frequency_penalty),
        logit_bias: a.logit_bias.clone(),
        seed: a.seed.unwrap_or_else(drawn_seed),
        logprobs: usual.logprobs,
    }
}

/// A seed from the time, the process id and the hasher's own randomness. 53 bits, so that every JSON reader keeps it.
fn drawn_seed() -> u64 {
    let mut h = RandomState::new().build_hasher();
    h.write_u32(std::process::id());
    h.write_u128(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_nanos()));
    h.finish() >> 11
}

/// All of stdin as a prompt, without the line break that ends it.
pub fn from_stdin() -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read stdin")?;
    let Ok(mut text) = String::from_utf8(bytes) else { return usage("what is piped in is not UTF-8 text") };
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}
