//! How fast linear layers are: `cargo run --release -p device --example linear_speed [threads]`.
//!
//! For each format a matrix far larger than any cache times one row (bytes of weights a second), and a matrix of a small
//! model times 256 rows (multiply-adds a second). Medians and best of several runs; only meaningful on an idle machine.

use checkpoint::{Block, DType, Format};
use device::{Act, Buf, Cpu, CpuOptions, Device, Layout, Mat, Op, RowClass, View};
use memory::{Class, Ledger, RegionSizes, Tier};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::args().nth(1).map(|t| t.parse()).transpose()?;
    let mut cpu = Cpu::new(CpuOptions { threads, isa: None }, RegionSizes { step: 16 << 20, carry: 0 })?;
    println!("{:?}", Device::caps(&cpu));
    println!("{:8} {:>21} {:>27}", "format", "GB/s (median, best)", "G madd/s (median, best)");
    let ledger = Ledger::new(&[(Tier::Host, u64::MAX / 2)]);
    let floats = [DType::F32, DType::F16, DType::BF16].into_iter();
    for dtype in floats.chain(Block::ALL.map(DType::Block)) {
        let dev: &mut dyn Device = &mut cpu;
        let (n, k) = (48 << 10, 4096);
        let seconds = measure(dev, &ledger, dtype, n, k, 1, 7)?;
        let bytes = dtype.row_bytes(k as u64)? as f64 * n as f64;
        let k = if 576 % dtype.elems() == 0 { 576 } else { 512 };
        let (n, rows) = (1536, 256);
        let busy = measure(dev, &ledger, dtype, n, k, rows, 15)?;
        let work = n as f64 * k as f64 * rows as f64;
        let [gb, gm] = [(bytes, seconds), (work, busy)].map(|(x, t)| t.map(|t| x / t / 1e9));
        println!("{:8} {:10.1} {:10.1} {:13.1} {:13.1}", dtype.name(), gb[0], gb[1], gm[0], gm[1]);
    }
    Ok(())
}

/// (median, best) seconds of one layer.
fn measure(
    dev: &mut dyn Device,
    ledger: &Ledger,
    dtype: DType,
    n: u32,
    k: u32,
    rows: u32,
    runs: usize,
) -> Result<[f64; 2], Box<dyn std::error::Error>> {
    let mut alloc = |bytes: u64| -> Result<Buf, Box<dyn std::error::Error>> {
        Ok(dev.alloc(ledger.reserve(Tier::Host, Class::Workspace, "benchmark", bytes)?)?)
    };
    let plane = alloc(dtype.row_bytes(k as u64)? * n as u64)?;
    let x = View::dense(alloc(rows as u64 * k as u64 * 4)?, Act::F32, rows, k);
    let out = View::dense(alloc(rows as u64 * n as u64 * 4)?, Act::F32, rows, n);
    // Touched, so that pages exist; what the bytes mean does not change the time.
    dev.host_mut(plane).ok_or("not a host device")?.fill(0x11);
    dev.host_mut(x.buf)
        .ok_or("not a host device")?
        .chunks_exact_mut(4)
        .for_each(|c| c.copy_from_slice(&1f32.to_le_bytes()));
    let w = Mat { n, k, fmt: Format::Plain(dtype), layout: Layout::File, planes: [Some(plane), None, None, None] };
    let mut times = Vec::new();
    for _ in 0..runs {
        let start = Instant::now();
        dev.run(Op::Linear { out, x, w, bias: None, add: false, class: RowClass::Few })?;
        times.push(start.elapsed().as_secs_f64());
    }
    for v in [plane, x.buf, out.buf] {
        dev.free(v)?;
    }
    times.sort_by(f64::total_cmp);
    Ok([times[runs / 2], times[0]])
}
