//! How long an agent's first turn will take on this machine, said before it is started.

use super::server::{Client, Error};
use std::time::Duration;

/// Tokens of an agent's first prompt: its instructions and the descriptions of its tools.
pub const FIRST_TURN: u32 = 20_000;
/// Words of the first probe, and of the second, which is worth more where it is quick.
const WORDS: [usize; 2] = [64, 640];
/// The longest that a second probe may take, by the rate of the first.
const QUICK: Duration = Duration::from_secs(8);

/// Tokens a second that a server reads, by having it read a text it has not seen.
///
/// # Errors
/// What the server says.
pub fn measure(client: &Client, model: &str, context: u32, seed: u64) -> Result<f64, Error> {
    let (tokens, took) = client.read_text(model, &words(WORDS[0], seed))?;
    let first = rate(tokens, took);
    let ratio = (WORDS[1] / WORDS[0]) as u32;
    // Twice the tokens of the first, so that a text which falls apart into more of them still fits.
    let fits = tokens.saturating_mul(u64::from(ratio)).saturating_mul(2) < u64::from(context);
    if !fits || took * ratio > QUICK {
        return Ok(first);
    }
    let (tokens, took) = client.read_text(model, &words(WORDS[1], seed ^ 0xA5A5))?;
    Ok(rate(tokens, took))
}

fn rate(tokens: u64, took: Duration) -> f64 {
    tokens as f64 / took.as_secs_f64().max(1e-6)
}

/// Words in an order that no cache has seen.
fn words(n: usize, seed: u64) -> String {
    const SOME: [&str; 16] = [
        "the", "file", "reads", "a", "line", "and", "writes", "it", "back", "then", "calls", "open", "for", "every",
        "name", "found",
    ];
    let mut x = seed | 1;
    let mut out = String::new();
    for _ in 0..n {
        // xorshift64 (Marsaglia 2003).
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.push_str(SOME[(x >> 40) as usize % SOME.len()]);
        out.push(' ');
    }
    out
}

/// What a person should expect of the first turn, as far as it fits into the context. The rate was measured on a short
/// prompt, and a long one is read more slowly, so the time is a lower bound.
pub fn forecast(rate: f64, context: u32) -> String {
    let tokens = FIRST_TURN.min(context);
    let seconds = f64::from(tokens) / rate.max(1e-6);
    let all = if tokens < FIRST_TURN { ", as many as fit," } else { "" };
    format!("a first turn of {tokens} tokens{all} takes at least {} here ({rate:.0} tokens/s)", spoken(seconds))
}

fn spoken(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{:.0} s", s.max(1.0)),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_in_units_people_use() {
        let said = |rate| forecast(rate, 100_000);
        assert!(said(400.0).contains("at least 50 s here (400 tokens/s)"), "{}", said(400.0));
        assert!(said(100.0).contains("at least 3 min"));
        assert!(said(2.0).contains("at least 2.8 h"));
        assert!(said(1e9).contains("at least 1 s"));
        assert!(said(0.0).contains(" h "), "no division by nothing");
        let short = forecast(100.0, 8_000);
        assert!(short.contains("8000 tokens, as many as fit, takes at least 80 s"), "{short}");
    }

    #[test]
    fn probes_differ_from_each_other() {
        assert_eq!(words(5, 7), words(5, 7));
        assert_ne!(words(64, 7), words(64, 8));
        assert_eq!(words(64, 7).split_whitespace().count(), 64);
    }
}
