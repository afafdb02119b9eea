//! How fast the CPU backend's linear layers are: one row against weights that no cache holds, many rows against weights
//! that stay in cache.

use super::profile::LinearRate;
use crate::error::Result;
use checkpoint::{Block, DType, Format};
use device::{Act, Buf, Cpu, CpuOptions, Device, Layout, Mat, Op, RowClass, View};
use memory::{Class, Ledger, RegionSizes, Tier};
use std::time::{Duration, Instant};

const DTYPES: [DType; 5] =
    [DType::F32, DType::BF16, DType::Block(Block::Q8_0), DType::Block(Block::Q4_0), DType::Block(Block::Q4K)];
/// Width of the large matrix.
const K: u32 = 4096;
/// `[n, k]` of the small one, and the rows it meets.
const SMALL: (u32, u32, u32) = (512, 1024, 256);
/// Width of one that is all overhead, yet large enough to be shared by the threads.
const TINY: u32 = 512;
/// Room for what a layer needs besides its operands.
const SCRATCH: u64 = 32 << 20;

/// Measures each type over `bytes` of weights, for `time` each way.
///
/// # Errors
/// Memory that is not there.
pub fn measure(bytes: u64, time: Duration) -> Result<Vec<LinearRate>> {
    let mut cpu = Cpu::new(CpuOptions::default(), RegionSizes { step: SCRATCH, carry: 0 })?;
    let ledger = Ledger::new(&[(Tier::Host, bytes + (256 << 20))]);
    let mut all = Vec::new();
    for dtype in DTYPES {
        let row = dtype.row_bytes(K.into())?;
        let n = (bytes / row) as u32;
        let large = layer(&mut cpu, &ledger, dtype, (n, K, 1), RowClass::Few, time)?;
        let small = layer(&mut cpu, &ledger, dtype, SMALL, RowClass::Many, time)?;
        let madds = f64::from(SMALL.0) * f64::from(SMALL.1) * f64::from(SMALL.2);
        all.push(LinearRate {
            dtype: dtype.name().into(),
            gemv_gbps: (row * u64::from(n)) as f64 / large / 1e9,
            gemm_gmadds: madds / small / 1e9,
        });
    }
    Ok(all)
}

/// Microseconds of a layer so small that its weights hardly count: what it costs to hand one to the threads and to wait for
/// them.
///
/// # Errors
/// Memory that is not there.
pub fn call_us(time: Duration) -> Result<f64> {
    let mut cpu = Cpu::new(CpuOptions::default(), RegionSizes { step: SCRATCH, carry: 0 })?;
    let ledger = Ledger::new(&[(Tier::Host, 64 << 20)]);
    let q4 = DType::Block(Block::Q4_0);
    Ok(layer(&mut cpu, &ledger, q4, (TINY, TINY, 1), RowClass::Few, time)? * 1e6)
}

/// Median seconds of one layer `[n, k]` over some rows.
fn layer(
    dev: &mut dyn Device,
    ledger: &Ledger,
    dtype: DType,
    (n, k, rows): (u32, u32, u32),
    class: RowClass,
    time: Duration,
) -> Result<f64> {
    let mut alloc = |class: Class, bytes: u64| -> Result<Buf> {
        Ok(dev.alloc(ledger.reserve(Tier::Host, class, "doctor", bytes)?)?)
    };
    let plane = alloc(Class::Weights, dtype.row_bytes(k.into())? * u64::from(n))?;
    let x = View::dense(alloc(Class::Workspace, u64::from(rows) * u64::from(k) * 4)?, Act::F32, rows, k);
    let out = View::dense(alloc(Class::Workspace, u64::from(rows) * u64::from(n) * 4)?, Act::F32, rows, n);
    // Touched, so that pages exist; what the bytes mean does not change the time.
    for (buf, byte) in [(plane, 0x11), (x.buf, 0x3f)] {
        dev.host_mut(buf).into_iter().for_each(|b| b.fill(byte));
    }
    let planes = [Some(plane), None, None, None];
    let file = Mat { n, k, fmt: Format::Plain(dtype), layout: Layout::File, row_step: 1, planes };
    let w = Mat { layout: dev.arrange(&file)?, ..file };
    let (mut times, begin) = (Vec::new(), Instant::now());
    while times.len() < 3 || (times.len() < 1000 && begin.elapsed() < time) {
        let start = Instant::now();
        dev.run(Op::Linear { out, x, w, bias: None, add: false, class })?;
        times.push(start.elapsed().as_secs_f64());
    }
    for b in [plane, x.buf, out.buf] {
        dev.free(b)?;
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_rates() {
        let r = measure(1 << 20, Duration::ZERO).unwrap();
        assert_eq!(r.iter().map(|r| &*r.dtype).collect::<Vec<_>>(), ["F32", "BF16", "Q8_0", "Q4_0", "Q4_K"]);
        assert!(r.iter().all(|r| r.gemv_gbps > 0.0 && r.gemm_gmadds > 0.0));
        assert!(call_us(Duration::ZERO).unwrap() > 0.0);
    }
}
