//! How fast linear layers are: `cargo run --release -p device --example linear_speed [threads] [isa] [format] [n] [k]`.
//!
//! For each format: matrices of `n` rows (48 Ki) of `k` elements (4096), by turns out of more than any cache holds, times
//! one row, in bytes of weights a second; and a matrix that stays in cache times some rows, in multiply-adds a second.
//! With `n` and `k` only the former. Medians; only meaningful on an idle machine.

use checkpoint::{Block, DType, Format, Global, PLANES};
use device::{Act, Buf, Cpu, CpuOptions, Device, Isa, Layout, Mat, Op, RowClass, View};
use memory::{Class, Ledger, RegionSizes, Tier};
use std::hint::black_box;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const ROWS: [u32; 6] = [1, 2, 4, 8, 32, 256];
/// Bytes to go round: more than any cache holds.
const CYCLE: u64 = 1 << 30;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| args.get(i).map(|a| a.parse::<u32>()).transpose();
    let isa = args.get(1).and_then(|name| Isa::ALL.into_iter().find(|i| i.name() == name));
    let threads = number(0)?.map(|t| t as usize);
    let mut cpu = Cpu::new(CpuOptions { threads, isa }, RegionSizes { step: 16 << 20, carry: 0 })?;
    println!("{:?}", Device::caps(&cpu));
    let shape = number(3)?.zip(number(4)?);
    println!("{:22} {:>6} {:>6}  G madd/s by rows {ROWS:?}", "format", "GB/s", "memory");
    let ledger = Ledger::new(&[(Tier::Host, u64::MAX / 2)]);
    let wide = Device::caps(&cpu).threads as usize;
    let plain = cpu.alloc(ledger.reserve(Tier::Host, Class::Weights, "memory", CYCLE)?)?;
    cpu.host_mut(plain).ok_or("not a host device")?.fill(1);
    for fmt in formats().into_iter().filter(|f| args.get(2).is_none_or(|o| f.to_string().contains(o))) {
        let (n, k) = shape.unwrap_or((48 << 10, 4096));
        let bytes = fmt.bytes(n.into(), k.into());
        let mut stream = Bench::new(&mut cpu, &ledger, fmt, (n, k), 1, CYCLE.div_ceil(bytes) as usize)?;
        // Before and behind: the rate of memory changes.
        let before = read(stream.dev.host_mut(plain).ok_or("no host")?, wide);
        let seconds = stream.seconds()?;
        let behind = read(stream.dev.host_mut(plain).ok_or("no host")?, wide);
        stream.free()?;
        print!("{fmt:22} {:6.1} {:6.1} ", bytes as f64 / seconds / 1e9, (before + behind) / 2.0);
        for rows in ROWS.into_iter().filter(|_| shape.is_none()) {
            let (n, k) = (2048, 1024);
            let mut cached = Bench::new(&mut cpu, &ledger, fmt, (n, k), rows, 1)?;
            let seconds = cached.seconds()?;
            cached.free()?;
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

/// Layers of one shape, run by turns.
struct Bench<'a> {
    dev: &'a mut Cpu,
    layers: Vec<Mat>,
    x: View,
    out: View,
}

impl<'a> Bench<'a> {
    fn new(dev: &'a mut Cpu, l: &Ledger, fmt: Format, (n, k): (u32, u32), rows: u32, layers: usize) -> Outcome<Self> {
        let alloc = |dev: &mut Cpu, class: Class, bytes: u64, fill: u8| -> Outcome<Buf> {
            let buf = dev.alloc(l.reserve(Tier::Host, class, "benchmark", bytes)?)?;
            // Touched, so that pages exist; what the bytes mean does not change the time.
            dev.host_mut(buf).ok_or("not a host device")?.fill(fill);
            Ok(buf)
        };
        let mut mats = Vec::new();
        for _ in 0..layers {
            let mut planes = [None; PLANES];
            for (plane, cut) in planes.iter_mut().zip(fmt.planes(k.into())?) {
                *plane = cut.map(|c| alloc(dev, Class::Weights, c.total(n.into()), 0x11)).transpose()?;
            }
            let file = Mat { n, k, fmt, layout: Layout::File, row_step: 1, planes };
            mats.push(Mat { layout: dev.arrange(&file)?, ..file });
        }
        let x = View::dense(alloc(dev, Class::Workspace, rows as u64 * k as u64 * 4, 0)?, Act::F32, rows, k);
        let out = View::dense(alloc(dev, Class::Workspace, rows as u64 * n as u64 * 4, 0)?, Act::F32, rows, n);
        let ones = dev.host_mut(x.buf).ok_or("not a host device")?;
        ones.chunks_exact_mut(4).for_each(|c| c.copy_from_slice(&1f32.to_le_bytes()));
        Ok(Bench { dev, layers: mats, x, out })
    }
    /// Median seconds of a layer.
    fn seconds(&mut self) -> Outcome<f64> {
        let (mut times, begin) = (Vec::new(), Instant::now());
        while times.len() < 5 || (times.len() < 1000 && begin.elapsed().as_secs_f64() < 0.5) {
            let w = self.layers[times.len() % self.layers.len()];
            let start = Instant::now();
            let op = Op::Linear { out: self.out, x: self.x, w, bias: None, add: false, class: RowClass::Few };
            (self.dev as &mut dyn Device).run(op)?;
            times.push(start.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
    fn free(self) -> Outcome<()> {
        for b in self.layers.iter().flat_map(|m| m.planes).flatten().chain([self.x.buf, self.out.buf]) {
            self.dev.free(b)?;
        }
        Ok(())
    }
}

/// 10^9 bytes a second that threads sum up: the better of two times.
fn read(data: &[u8], threads: usize) -> f64 {
    let once = || {
        let start = Instant::now();
        std::thread::scope(|s| {
            data.chunks(data.len() / threads).for_each(|part| _ = s.spawn(|| black_box(sum(part))));
        });
        data.len() as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    once().max(once())
}

/// Sixteen sums of words side by side, so that additions do not wait for each other.
fn sum(data: &[u8]) -> u64 {
    let mut sums = [0u64; 16];
    for line in data.as_chunks::<128>().0 {
        sums.iter_mut().zip(line.as_chunks::<8>().0).for_each(|(s, x)| *s = s.wrapping_add(u64::from_le_bytes(*x)));
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}
