//! What `--profile` shows: where the time of prompts and of answers went.

use crate::output::note;
use device::RowClass;
use device::profile::Entry;
use serde::Serialize;
use std::time::Duration;

/// Costs of reading prompts and of making tokens.
#[derive(Debug, Serialize)]
pub struct Costs {
    prefill: Side,
    decode: Side,
}

#[derive(Debug, Serialize)]
struct Side {
    /// All the time there was.
    total_ms: f64,
    /// By falling time; the last is what no operation took: sampling, text, bookkeeping.
    ops: Vec<Cost>,
}

#[derive(Debug, Serialize)]
struct Cost {
    op: &'static str,
    calls: u64,
    ms: f64,
    /// Of `total_ms`.
    share: f64,
    /// 10^9 bytes of weights and recurrent states a second, where the operation tells them.
    gbps: Option<f64>,
}

const OUTSIDE: &str = "outside";

impl Costs {
    /// From what was counted while prompts were read for `prefill` and tokens were made for `decode`.
    pub fn new(entries: Vec<Entry>, prefill: Duration, decode: Duration) -> Self {
        let (many, few) = entries.into_iter().partition(|e| e.class == RowClass::Many);
        Costs { prefill: Side::new(many, prefill), decode: Side::new(few, decode) }
    }
}

impl Side {
    fn new(entries: Vec<Entry>, total: Duration) -> Self {
        let counted = entries.iter().map(|e| e.time).sum();
        let share = |t: Duration| if total.is_zero() { 0.0 } else { t.as_secs_f64() / total.as_secs_f64() };
        let cost = |op, calls, t, gbps| Cost { op, calls, ms: millis(t), share: share(t), gbps };
        let mut ops: Vec<Cost> = entries.iter().map(|e| cost(e.op, e.calls, e.time, e.gbps())).collect();
        ops.push(cost(OUTSIDE, 0, total.saturating_sub(counted), None));
        Side { total_ms: millis(total), ops }
    }
}

fn millis(t: Duration) -> f64 {
    t.as_secs_f64() * 1e3
}

/// Prints tables to stderr.
pub fn show(c: &Costs) {
    for (name, side) in [("prefill", &c.prefill), ("decode", &c.decode)] {
        note(format_args!("{name:<14} {:>9} {:>12} {:>7} {:>8}", "calls", "ms", "share", "GB/s"));
        for o in &side.ops {
            let gbps = o.gbps.map(|g| format!("{g:.1}")).unwrap_or_default();
            let line = format!("  {:<12} {:>9} {:>12.2} {:>6.1}% {gbps:>8}", o.op, o.calls, o.ms, o.share * 100.0);
            note(line.trim_end());
        }
        note(format_args!("  {:<12} {:>9} {:>12.2}", "all", "", side.total_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_operation_took_is_shown_and_all_sums_up() {
        let ms = Duration::from_millis;
        let entry = |op, class, t| Entry { op, class, calls: 2, time: ms(t), bytes: 6_000_000, told: ms(3) };
        let entries = vec![entry("linear", RowClass::Few, 6), entry("linear", RowClass::Many, 1)];
        let c = Costs::new(entries, ms(4), ms(8));
        let names: Vec<_> = c.decode.ops.iter().map(|o| o.op).collect();
        assert_eq!(names, ["linear", "outside"]);
        let sum = |s: &Side| s.ops.iter().map(|o| o.ms).sum::<f64>();
        assert_eq!((sum(&c.prefill), sum(&c.decode)), (4.0, 8.0));
        assert_eq!((c.decode.ops[0].share, c.decode.ops[1].ms), (0.75, 2.0));
        assert_eq!(c.decode.ops[0].gbps, Some(2.0));
    }
}
