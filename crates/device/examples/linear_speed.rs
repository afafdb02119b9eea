//! How fast linear layers are: `cargo run --release -p device --example linear_speed [threads] [isa]`.
//!
//! For each format: a matrix far larger than any cache times one row, in bytes of weights a second, and a matrix that
//! stays in cache times some rows, in multiply-adds a second. Medians; only meaningful on an idle machine.

use checkpoint::{Block, DType, Format, Global, PLANES};
use device::{Act, Buf, Cpu, CpuOptions, Device, Isa, Layout, Mat, Op, RowClass, View};
use memory::{Class, Ledger, RegionSizes, Tier};
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const ROWS: [u32; 6] = [1, 2, 4, 8, 32, 256];

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let threads = args.next().map(|t| t.parse()).transpose()?;
    let isa = args.next().and_then(|name| Isa::ALL.into_iter().find(|i| i.name() == name));
    let mut cpu = Cpu::new(CpuOptions { threads, isa }, RegionSizes { step: 16 << 20, carry: 0 })?;
    println!("{:?}", Device::caps(&cpu));
    println!("{:22} {:>6}  G madd/s by rows {ROWS:?}", "format", "GB/s");
    let ledger = Ledger::new(&[(Tier::Host, u64::MAX / 2)]);
    let only = args.next();
    for fmt in formats().into_iter().filter(|f| only.as_ref().is_none_or(|o| f.to_string().contains(o))) {
        let (n, k) = (48 << 10, 4096);
        let seconds = measure(&mut cpu, &ledger, fmt, n, k, 1)?;
        print!("{fmt:22} {:6.1} ", fmt.bytes(n.into(), k.into()) as f64 / seconds / 1e9);
        for rows in ROWS {
            let (n, k) = (2048, 1024);
            let seconds = measure(&mut cpu, &ledger, fmt, n, k, rows)?;
            print!(" {:7.1}", n as f64 * k as f64 * rows as f64 / seconds / 1e9);
        }
        println!();
    }
    Ok(())
}

/// Every type of one plane, then formats of several.
fn formats() -> Vec<Format> {
    let floats = [DType::F32, DType::F16, DType::BF16].into_iter();
    let mut all: Vec<Format> = floats.chain(Block::ALL.map(DType::Block)).map(Format::Plain).collect();
    let scale = DType::BF16;
    all.extend([32, 64, 128].map(|group| Format::Affine { bits: 4, group, scale }));
    all.extend([8, 6, 5, 3, 2].map(|bits| Format::Affine { bits, group: 64, scale }));
    all.extend([Format::Mxfp4Hf, Format::Nvfp4 { global: Global::Multiplies }]);
    all.push(Format::Fp8 { tile: [128, 128], scale: DType::F32 });
    all.extend([false, true].map(|zero| Format::Int4 { group: 128, zero, scale }));
    all
}

/// Median seconds of one layer.
fn measure(dev: &mut dyn Device, ledger: &Ledger, fmt: Format, n: u32, k: u32, rows: u32) -> Outcome<f64> {
    let mut alloc = |class: Class, bytes: u64| -> Outcome<Buf> {
        Ok(dev.alloc(ledger.reserve(Tier::Host, class, "benchmark", bytes)?)?)
    };
    let mut planes = [None; PLANES];
    for (plane, cut) in planes.iter_mut().zip(fmt.planes(k.into())?) {
        *plane = cut.map(|c| alloc(Class::Weights, c.total(n.into()))).transpose()?;
    }
    let x = View::dense(alloc(Class::Workspace, rows as u64 * k as u64 * 4)?, Act::F32, rows, k);
    let out = View::dense(alloc(Class::Workspace, rows as u64 * n as u64 * 4)?, Act::F32, rows, n);
    // Touched, so that pages exist; what the bytes mean does not change the time.
    for plane in planes.into_iter().flatten() {
        dev.host_mut(plane).ok_or("not a host device")?.fill(0x11);
    }
    let ones = dev.host_mut(x.buf).ok_or("not a host device")?;
    ones.chunks_exact_mut(4).for_each(|c| c.copy_from_slice(&1f32.to_le_bytes()));
    let file = Mat { n, k, fmt, layout: Layout::File, row_step: 1, planes };
    let w = Mat { layout: dev.arrange(&file)?, ..file };
    let (mut times, begin) = (Vec::new(), Instant::now());
    while times.len() < 5 || (times.len() < 1000 && begin.elapsed().as_secs_f64() < 0.3) {
        let start = Instant::now();
        dev.run(Op::Linear { out, x, w, bias: None, add: false, class: RowClass::Few })?;
        times.push(start.elapsed().as_secs_f64());
    }
    for b in planes.into_iter().flatten().chain([x.buf, out.buf]) {
        dev.free(b)?;
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
