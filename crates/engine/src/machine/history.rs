//! How fast one row looks at a long history, by format: it reads memory and multiplies, whichever takes longer.

use super::profile::HistoryRate;
use crate::error::Result;
use device::{Act, Buf, Cpu, CpuOptions, Device, Op, Region, RowClass, Rows, StreamView, View};
use memory::{Class, KvFormat, Ledger, PAGE_POSITIONS, RegionSizes, Tier};
use std::time::{Duration, Instant};

/// Key heads, query heads of each, and their width: common ones.
const HEADS: u32 = 4;
const GROUP: u32 = 4;
const D: u32 = 128;
/// Room for what the op needs besides its operands.
const SCRATCH: u64 = 16 << 20;

/// Measures each format over `bytes` of history, for `time` each.
///
/// # Errors
/// Memory that is not there.
pub fn measure(bytes: u64, time: Duration) -> Result<Vec<HistoryRate>> {
    KvFormat::ALL.into_iter().map(|fmt| one(fmt, bytes, time)).collect()
}

fn one(fmt: KvFormat, bytes: u64, time: Duration) -> Result<HistoryRate> {
    let mut dev = Cpu::new(CpuOptions::default(), RegionSizes { step: SCRATCH, carry: 0 })?;
    let page_bytes = (2 * HEADS as u64 * PAGE_POSITIONS as u64 * fmt.vector_bytes(D)).next_multiple_of(4096);
    let pages = (bytes / page_bytes).max(1) as u32;
    let ledger = Ledger::new(&[(Tier::Host, pages as u64 * page_bytes + (64 << 20))]);
    let alloc = |dev: &mut Cpu, bytes: u64| -> Result<Buf> {
        Ok(dev.alloc(ledger.reserve(Tier::Host, Class::Workspace, "doctor", bytes)?)?)
    };
    let buf = alloc(&mut dev, pages as u64 * page_bytes)?;
    // Small numbers in every format, scales included; what they are does not change the time.
    dev.host_mut(buf).into_iter().for_each(|b| b.fill(0x2c));
    let ints = |dev: &mut Cpu, values: &[i32]| -> Result<View> {
        let b = alloc(dev, values.len() as u64 * 4)?;
        dev.write(b, &values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())?;
        Ok(View::dense(b, Act::I32, 1, values.len() as u32))
    };
    let (zero, last) = (ints(&mut dev, &[0])?, ints(&mut dev, &[(pages * PAGE_POSITIONS - 1) as i32])?);
    let table = ints(&mut dev, &(0..pages as i32).collect::<Vec<_>>())?;
    let rows = Rows {
        class: RowClass::Few,
        n: 1,
        seqs: 1,
        ids: zero,
        pos: last,
        seq_of: zero,
        page_table: table,
        seq_slot: zero,
        rec_from: zero,
        rec_to: zero,
    };
    let cols = HEADS * GROUP * D;
    let (q, out) = (alloc(&mut dev, cols as u64 * 4)?, alloc(&mut dev, cols as u64 * 4)?);
    dev.host_mut(q).into_iter().for_each(|b| b.fill(0x3c));
    let heads = |b: Buf| View::dense(b, Act::F32, 1, cols).heads(HEADS * GROUP);
    let st = StreamView { buf, page_bytes, fmt, heads: HEADS, d: D, ring: 0, layer: 0, own: None, sink: None };
    let scale = (D as f32).powf(-0.5);
    let op = Op::Attention { out: heads(out), q: heads(q), st, rows, scale, window: None, since: 0, sinks: None };
    let (mut times, begun) = (Vec::new(), Instant::now());
    while times.len() < 3 || begun.elapsed() < time {
        let start = Instant::now();
        (&mut dev as &mut dyn Device).scope(Region::Step, |dev| dev.run(op.clone()))?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let read = (pages * PAGE_POSITIONS) as f64 * 2.0 * (HEADS as u64 * fmt.vector_bytes(D)) as f64;
    Ok(HistoryRate { format: fmt.name().into(), gbps: read / times[times.len() / 2] / 1e9 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_a_rate() {
        let r = measure(1 << 20, Duration::ZERO).unwrap();
        assert_eq!(r.iter().map(|r| &*r.format).collect::<Vec<_>>(), ["f32", "bf16", "q8", "tq4"]);
        assert!(r.iter().all(|r| r.gbps > 0.0));
    }
}
