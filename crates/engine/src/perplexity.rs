//! How well a model predicts a text with its history in one format, beside the same model with another: both read the
//! same rows side by side, so that no more logits are held than those of one chunk.

use crate::error::{Error, Result};
use crate::executor::{Executor, Wanted};
use std::sync::atomic::AtomicBool;

/// What was measured over all scored positions.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Positions scored: all but the first of every window.
    pub tokens: usize,
    /// Mean negative log-likelihood of the text, in nats a token.
    pub nll: f64,
    /// The same with the second history.
    pub base_nll: f64,
    /// Mean Kullback-Leibler divergence from the second history's distribution, in nats.
    pub kl_mean: f64,
    /// Its 99th percentile.
    pub kl_p99: f64,
    /// Share of positions whose likeliest token is the same.
    pub top1_agreement: f64,
}

/// Rows of a chunk for which the logits of `vocab` tokens take 64 MiB at most: a multiple of 64 up to 256.
pub fn chunk_rows(vocab: u32) -> u32 {
    let most = (64 << 20) / (vocab.max(1) as u64 * 4);
    (most / 64 * 64).clamp(64, 256) as u32
}

/// One position under both histories.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
struct Scored {
    nll: f64,
    base_nll: f64,
    kl: f64,
    same_top: bool,
}

/// Reads `ids` in windows of at most `window` positions. The plan must have room for one of them in both histories and
/// for the logits of a whole chunk.
///
/// # Errors
/// [`Error::TooShort`], [`Error::BadToken`], [`Error::Cancelled`], [`Error::BadLogits`], and those of the executor.
pub fn compare(
    exec: &mut Executor,
    ids: &[u32],
    window: u32,
    cancel: &AtomicBool,
    on_progress: &mut dyn FnMut(usize),
) -> Result<Comparison> {
    let vocab = exec.family().spec().vocab;
    if ids.len() < 2 {
        return Err(Error::TooShort(ids.len()));
    }
    if let Some(&id) = ids.iter().find(|&&id| id >= vocab) {
        return Err(Error::BadToken { id, vocab });
    }
    let mut all = Vec::with_capacity(ids.len());
    // A last window of one token has nothing to predict.
    for part in ids.chunks(window.max(2) as usize).filter(|w| w.len() > 1) {
        let (seq, second) = (exec.open()?, exec.beside(Executor::open)?);
        let mut at = 0;
        for chunk in part.chunks(exec.plan().chunk as usize) {
            let base = exec.beside(|e| e.prefill(second, chunk, Wanted::All, cancel, &mut |_| {}))?;
            let ours = exec.prefill(seq, chunk, Wanted::All, cancel, &mut |_| {})?;
            let targets = &part[(at + 1).min(part.len())..(at + 1 + chunk.len()).min(part.len())];
            all.extend(score(&ours, &base, targets, vocab as usize)?);
            at += chunk.len();
            on_progress(chunk.len());
        }
        exec.close(seq)?;
        exec.beside(|e| e.close(second))?;
    }
    Ok(summary(&all))
}

/// Scores rows `[n, vocab]` of both by what came next; rows behind the last target are left out. Rows are divided among
/// threads; each is computed by itself, so their number changes nothing.
fn score(ours: &[f32], base: &[f32], targets: &[u32], vocab: usize) -> Result<Vec<Scored>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let each = targets.len().div_ceil(threads).max(1);
    let work = |t: usize| -> Result<Vec<Scored>> {
        let range = (t * each).min(targets.len())..((t + 1) * each).min(targets.len());
        let one = |i: usize| Some(Scored::of(&row(ours, i, vocab)?, &row(base, i, vocab)?, targets[i] as usize));
        range.map(|i| one(i).ok_or(Error::BadLogits)).collect()
    };
    let parts: Vec<Result<Vec<Scored>>> = std::thread::scope(|s| {
        let started: Vec<_> = (0..threads).map(|t| s.spawn(move || work(t))).collect();
        // A part that panicked is as wrong as one that failed.
        started.into_iter().map(|h| h.join().unwrap_or(Err(Error::BadLogits))).collect()
    });
    parts.into_iter().collect::<Result<Vec<_>>>().map(|p| p.concat())
}

/// Row `i`, where it is there and holds numbers.
fn row(of: &[f32], i: usize, vocab: usize) -> Option<LogProbs<'_>> {
    LogProbs::of(of.get(i * vocab..(i + 1) * vocab)?)
}

/// Logits with what turns them into logarithms of probabilities.
struct LogProbs<'a> {
    logits: &'a [f32],
    /// Logarithm of the sum of all exponentials.
    total: f64,
    top: usize,
}

impl<'a> LogProbs<'a> {
    /// `None` where a logit is not a number.
    fn of(logits: &'a [f32]) -> Option<Self> {
        let mut top = 0;
        for (i, x) in logits.iter().enumerate() {
            if !x.is_finite() {
                return None;
            }
            if *x > logits[top] {
                top = i;
            }
        }
        let most = *logits.get(top)? as f64;
        let sum: f64 = logits.iter().map(|&x| (x as f64 - most).exp()).sum();
        Some(LogProbs { logits, total: most + sum.ln(), top })
    }
    fn at(&self, i: usize) -> f64 {
        self.logits[i] as f64 - self.total
    }
}

impl Scored {
    fn of(ours: &LogProbs, base: &LogProbs, target: usize) -> Self {
        let kl = (0..base.logits.len()).map(|i| base.at(i).exp() * (base.at(i) - ours.at(i))).sum::<f64>();
        // Rounding may leave a little less than nothing.
        let kl = kl.max(0.0);
        Scored { nll: -ours.at(target), base_nll: -base.at(target), kl, same_top: ours.top == base.top }
    }
}

fn summary(all: &[Scored]) -> Comparison {
    let n = all.len().max(1) as f64;
    let mean = |f: fn(&Scored) -> f64| all.iter().map(f).sum::<f64>() / n;
    let mut kl: Vec<f64> = all.iter().map(|s| s.kl).collect();
    kl.sort_by(f64::total_cmp);
    // The least value that 99% of all do not exceed.
    let rank = (kl.len() * 99).div_ceil(100).max(1) - 1;
    Comparison {
        tokens: all.len(),
        nll: mean(|s| s.nll),
        base_nll: mean(|s| s.base_nll),
        kl_mean: mean(|s| s.kl),
        kl_p99: kl.get(rank).copied().unwrap_or(0.0),
        top1_agreement: mean(|s| f64::from(u8::from(s.same_top))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn scores_are_those_of_the_definitions() {
        let base = [1f64.ln(), 2f64.ln(), 5f64.ln()].map(|x| x as f32 + 3.0);
        let ours = [0.0f32; 3];
        let got = score(&ours, &base, &[1], 3).unwrap()[0];
        let p = [0.125f64, 0.25, 0.625];
        let kl: f64 = p.iter().map(|p| p * (p * 3.0).ln()).sum();
        assert!((got.kl - kl).abs() < 1e-6, "{} {kl}", got.kl);
        assert!(near(got.nll, 3f64.ln()) && (got.base_nll - 4f64.ln()).abs() < 1e-6);
        assert!(!got.same_top);
        let same = score(&base, &base, &[2], 3).unwrap()[0];
        assert!(near(same.kl, 0.0) && near(same.nll, same.base_nll) && same.same_top);
    }

    #[test]
    fn rows_without_a_target_are_left_out_and_threads_change_nothing() {
        let rows: Vec<f32> = (0..7 * 4).map(|i| (i * 37 % 11) as f32).collect();
        let base: Vec<f32> = rows.iter().map(|x| x * 0.9).collect();
        let all = score(&rows, &base, &[0, 1, 2, 3, 0, 1], 4).unwrap();
        assert_eq!(all.len(), 6);
        for (i, one) in all.iter().enumerate() {
            let at = i * 4..(i + 1) * 4;
            let alone = score(&rows[at.clone()], &base[at], &[[0, 1, 2, 3, 0, 1][i]], 4).unwrap();
            assert_eq!(alone, [*one]);
        }
    }

    #[test]
    fn logits_that_are_not_numbers_are_an_error() {
        assert!(matches!(score(&[0.0, f32::NAN], &[0.0, 0.0], &[0], 2), Err(Error::BadLogits)));
        assert!(matches!(score(&[0.0], &[0.0, 0.0], &[0], 2), Err(Error::BadLogits)));
    }

    #[test]
    fn the_percentile_is_a_value_that_was_seen() {
        let all: Vec<Scored> = (1..=200).map(|i| Scored { kl: i as f64, ..Scored::default() }).collect();
        let s = summary(&all);
        assert_eq!((s.kl_p99, s.kl_mean, s.tokens), (198.0, 100.5, 200));
        assert_eq!(summary(&all[..1]).kl_p99, 1.0);
    }

    #[test]
    fn chunks_bound_the_logits_that_are_held() {
        assert_eq!([49_152, 4_000, 1 << 18, 1 << 24].map(chunk_rows), [256, 256, 64, 64]);
        assert_eq!(chunk_rows(100_000), 128);
    }
}
