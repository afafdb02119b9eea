//! What a round of drafting ahead is made of: a pass over its rows, and a pass of the predictor for each draft.

use crate::output;
use engine::{Executor, SeqId, argmax};
use serde::Serialize;
use std::time::Instant;

/// Times that each is measured.
const TIMES: usize = 32;

/// Milliseconds of the parts of a round behind a history, medians.
#[derive(Debug, PartialEq, Serialize)]
pub struct Parts {
    /// A pass over one row, two rows and so on, at once.
    verify_ms: Vec<f64>,
    /// One draft, two drafts and so on, one after the other.
    draft_ms: Vec<f64>,
    /// Share of drafts that must be right for a round of one draft, of two and so on to be as fast as plain steps; `None`
    /// where not even all of them suffice.
    breaks_even: Vec<Option<f64>>,
}

impl Parts {
    /// Measures them behind what a sequence has, which stays as it is. `ids` are fed in turn.
    ///
    /// # Errors
    /// Those of the executor.
    pub fn measure(exec: &mut Executor, seq: SeqId, ids: &[u32]) -> engine::Result<Self> {
        let most = exec.plan().draft;
        let mut rows = ids.iter().copied().cycle();
        let verify_ms = (1..=most + 1)
            .map(|n| {
                median(|| {
                    let part: Vec<u32> = rows.by_ref().take(n as usize).collect();
                    exec.verify(seq, &part, |_| 0).map(drop)
                })
            })
            .collect::<engine::Result<Vec<f64>>>()?;
        let draft_ms = (1..=most)
            .map(|n| median(|| exec.draft(seq, rows.next().unwrap_or(0), n, &mut |l| argmax(l)).map(drop)))
            .collect::<engine::Result<Vec<f64>>>()?;
        let rounds = verify_ms.iter().skip(1).zip(&draft_ms).zip(1..);
        let breaks_even = rounds.map(|((v, d), k)| breaks_even((v + d) / verify_ms[0], k)).collect();
        Ok(Parts { verify_ms, draft_ms, breaks_even })
    }

    /// Prints them.
    ///
    /// # Errors
    /// Those of stdout.
    pub fn show(&self) -> anyhow::Result<()> {
        output::line(format_args!(
            "{:<24} {:>10} {:>10} {:>10}",
            "drafting ahead, ms", "drafts", "verify", "pays from"
        ))?;
        output::line(format_args!("{:<24} {:>10} {:>10.3} {:>10}", "plain step", "", self.verify_ms[0], ""))?;
        for (i, (draft, even)) in self.draft_ms.iter().zip(&self.breaks_even).enumerate() {
            let what = format!("round of {}", i + 1);
            let from = even.map_or_else(|| "never".into(), |a| format!("{:.0}% right", a * 100.0));
            output::line(format_args!("{what:<24} {draft:>10.3} {:>10.3} {from:>10}", self.verify_ms[i + 1]))?;
        }
        Ok(())
    }
}

fn median(mut f: impl FnMut() -> engine::Result<()>) -> engine::Result<f64> {
    f()?;
    let mut all = Vec::with_capacity(TIMES);
    for _ in 0..TIMES {
        let begun = Instant::now();
        f()?;
        all.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    all.sort_by(f64::total_cmp);
    Ok((all[(TIMES - 1) / 2] + all[TIMES / 2]) / 2.0)
}

/// The share a of right drafts at which `1 + a + ... + a^k` tokens are worth `cost` plain steps.
fn breaks_even(cost: f64, k: u32) -> Option<f64> {
    let tokens = |a: f64| (0..=k as i32).map(|i| a.powi(i)).sum::<f64>();
    if tokens(1.0) < cost {
        return None;
    }
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        if tokens(middle) < cost { low = middle } else { high = middle }
    }
    Some(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_pays_from_the_share_at_which_its_tokens_cost_what_plain_ones_do() {
        // 1 + a = 1.5, and 1 + a + a^2 = 1.75.
        assert!((breaks_even(1.5, 1).unwrap() - 0.5).abs() < 1e-9);
        assert!((breaks_even(1.75, 2).unwrap() - 0.5).abs() < 1e-9);
        assert!(breaks_even(0.9, 1).unwrap() < 1e-9, "drafts for nothing always pay");
        assert_eq!(breaks_even(2.1, 1), None);
    }
}
