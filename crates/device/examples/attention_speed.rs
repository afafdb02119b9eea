//! Times attention alone over deep history, at the geometry of a 27B model (24 query heads over 4 key heads, 256 wide), going
//! round more than a gigabyte of pages:
//! `cargo run --release -p device --example attention_speed -- [THREADS] [decode|prefill] [ISA] [FORMAT ..]`.
//!
//! `depth=N` takes another depth than 32K and 128K; `cycle=MIB` goes round so many MiB at least (0: one history again and
//! again, which shows what the arithmetic alone costs when it stays in a cache).
//!
//! Medians (least, most) of the time of one call, its rate of stored bytes, and that rate's share of what as many threads
//! read from memory here. Pages are valid, their numbers random.

use device::{Act, Buf, Cpu, CpuOptions, Device, Isa, Op, Region, RowClass, Rows, StreamView, View, kv};
use memory::{Class, KvFormat, Ledger, RegionSizes, Tier};
use std::time::Instant;

const HEADS: u32 = 24;
const KV: u32 = 4;
const D: u32 = 256;
const DEPTHS: [u32; 2] = [32 << 10, 128 << 10];
/// Bytes of a layer's part of a slab.
const PART: u64 = 8 << 20;
/// MiB to go round.
const CYCLE: u64 = 1200;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let threads = args.first().map_or(Ok(2), |a| a.parse())?;
    let wants = |word: &str| !args.iter().any(|a| a == "decode" || a == "prefill") || args.iter().any(|a| a == word);
    let named: Vec<KvFormat> = args.iter().filter_map(|a| KvFormat::named(a)).collect();
    let formats = if named.is_empty() { vec![KvFormat::Bf16, KvFormat::Q8, KvFormat::Tq4] } else { named };
    let isa = Isa::ALL.into_iter().find(|i| args.iter().any(|a| a == i.name()));
    let number = |name: &str| args.iter().find_map(|a| a.strip_prefix(name)).map(str::parse).transpose();
    let depths = number("depth=")?.map_or(DEPTHS.to_vec(), |d: u32| vec![d]);
    let cycle = number("cycle=")?.unwrap_or(CYCLE as u32) as u64 * (1 << 20);
    let gbps = bandwidth(threads);
    println!("{threads} threads read {gbps:.1} GB/s");
    let classes = [("decode", RowClass::Few, 1, 15), ("prefill", RowClass::Many, 256, 3)];
    for (name, class, rows, rounds) in classes.into_iter().filter(|(name, ..)| wants(name)) {
        for (depth, &fmt) in depths.iter().flat_map(|&d| formats.iter().map(move |f| (d, f))) {
            let on = CpuOptions { threads: Some(threads), isa };
            let mut t = Bench::new(on, fmt, depth, cycle, (rows, class))?.times(rounds)?;
            t.sort_by(f64::total_cmp);
            let (median, bytes) = (t[t.len() / 2], depth as f64 * 2.0 * KV as f64 * fmt.vector_bytes(D) as f64);
            let rate = bytes / median / 1e9;
            println!(
                "{name:<8} {:<5} @ {depth:>6}: {:>9.3} ms ({:.3}, {:.3})  {rate:>5.1} GB/s  {:.3} of memory",
                fmt.name(),
                median * 1e3,
                t[0] * 1e3,
                t[t.len() - 1] * 1e3,
                rate / gbps
            );
        }
    }
    Ok(())
}

/// Bytes that threads sum up in a second, the best of five rounds over more than any cache holds.
fn bandwidth(threads: usize) -> f64 {
    let each = vec![1u64; ((CYCLE << 20) / 8) as usize / threads];
    let all: Vec<Vec<u64>> = (0..threads).map(|_| each.clone()).collect();
    let round = || {
        let begun = Instant::now();
        std::thread::scope(|s| {
            for part in &all {
                s.spawn(|| {
                    let mut sums = [0u64; 32];
                    for x in part.chunks_exact(32) {
                        sums.iter_mut().zip(x).for_each(|(s, x)| *s = s.wrapping_add(*x));
                    }
                    std::hint::black_box(sums)
                });
            }
        });
        (all.len() * each.len() * 8) as f64 / begun.elapsed().as_secs_f64() / 1e9
    };
    (0..5).map(|_| round()).fold(0.0, f64::max)
}

/// Histories one behind the other, so that none is in a cache when its turn comes again.
struct Bench {
    dev: Cpu,
    st: StreamView,
    rows: Rows,
    q: View,
    out: View,
    pages: u32,
    histories: u32,
}

impl Bench {
    fn new(on: CpuOptions, fmt: KvFormat, depth: u32, cycle: u64, (n, class): (u32, RowClass)) -> Result<Self> {
        let ledger = Ledger::new(&[(Tier::Host, 8 << 30)]);
        let mut dev = Cpu::new(on, RegionSizes { step: 16 << 20, carry: 0 })?;
        let alloc = |dev: &mut Cpu, bytes: u64| -> Result<Buf> {
            Ok(dev.alloc(ledger.reserve(Tier::Host, Class::Workspace, "bench", bytes)?)?)
        };
        let page_bytes = (2 * KV as u64 * 256 * fmt.vector_bytes(D)).next_multiple_of(4096);
        let pages = (depth + n).div_ceil(256);
        let histories = cycle.div_ceil(pages as u64 * page_bytes) as u32 + u32::from(cycle > 0);
        let histories = histories.max(1);
        let count = pages as u64 * histories as u64;
        let buf = history(&mut dev, &ledger, count, page_bytes)?;
        let st = StreamView { buf, page_bytes, fmt, heads: KV, d: D, ring: 0, layer: 3, own: None, sink: None };
        let page = page(&st);
        for i in 0..count {
            dev.write(buf.slice(i * page_bytes, page_bytes).ok_or("a page beyond the buffer")?, &page)?;
        }
        let ints = |dev: &mut Cpu, rows: u32, cols: u32, values: &[i32]| -> Result<View> {
            let b = alloc(dev, values.len() as u64 * 4)?;
            dev.write(b, &values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())?;
            Ok(View::dense(b, Act::I32, rows, cols))
        };
        let zeros = vec![0; n as usize];
        let pos: Vec<i32> = (0..n).map(|i| (depth - 1 + i) as i32).collect();
        let per_row = ints(&mut dev, n, 1, &zeros)?;
        let rows = Rows {
            class,
            n,
            seqs: 1,
            ids: per_row,
            pos: ints(&mut dev, n, 1, &pos)?,
            seq_of: per_row,
            page_table: ints(&mut dev, 1, pages, &vec![0; pages as usize])?,
            seq_slot: per_row.rows(0, 1),
            rec_from: per_row.rows(0, 1),
            rec_to: per_row,
        };
        let mut draw = Draw(7);
        let values: Vec<u8> = (0..n * HEADS * D).flat_map(|_| draw.even().to_le_bytes()).collect();
        let b = alloc(&mut dev, values.len() as u64)?;
        dev.write(b, &values)?;
        let q = View::dense(b, Act::F32, n, HEADS * D).heads(HEADS);
        let out = View::dense(alloc(&mut dev, values.len() as u64)?, Act::F32, n, HEADS * D).heads(HEADS);
        Ok(Bench { dev, st, rows, q, out, pages, histories })
    }

    /// Seconds of each round but the first.
    fn times(&mut self, rounds: u32) -> Result<Vec<f64>> {
        let op = Op::Attention {
            out: self.out,
            q: self.q,
            st: self.st,
            rows: self.rows,
            scale: (D as f32).powf(-0.5),
            window: None,
            since: 0,
            sinks: None,
        };
        let mut times = Vec::new();
        for round in 0..=rounds {
            let first = round % self.histories * self.pages;
            // Pages of a history out of order, as a pool leaves them.
            let table: Vec<u8> =
                (0..self.pages).flat_map(|i| ((first + i * 7919 % self.pages) as i32).to_le_bytes()).collect();
            self.dev.write(self.rows.page_table.buf, &table)?;
            let begun = Instant::now();
            (&mut self.dev as &mut dyn Device).scope(Region::Step, |dev| dev.run(op.clone()))?;
            if round > 0 {
                times.push(begun.elapsed().as_secs_f64());
            }
        }
        Ok(times)
    }
}

/// Room for pages, backed slab by slab as in a model's state.
fn history(dev: &mut Cpu, ledger: &Ledger, count: u64, page_bytes: u64) -> Result<Buf> {
    let all = dev.reserve_range(count * page_bytes)?;
    let each = (PART / page_bytes).max(1);
    for first in (0..count).step_by(each as usize) {
        let bytes = each.min(count - first) * page_bytes;
        let part = all.slice(first * page_bytes, bytes).ok_or("a part beyond the range")?;
        dev.commit_range(part, ledger.reserve(Tier::Host, Class::Kv, "bench", bytes)?)?;
    }
    Ok(all)
}

/// A page of random vectors.
fn page(st: &StreamView) -> Vec<u8> {
    let (mut page, mut draw) = (vec![0; st.page_bytes as usize], Draw(1));
    for (plane, head) in (0..2).flat_map(|p| (0..KV).map(move |h| (p, h))) {
        let signs = kv::Signs::new(st.layer, plane, head);
        for at in 0..256 {
            let x: Vec<f32> = (0..D).map(|_| draw.even()).collect();
            let mut codes = vec![0; st.fmt.code_bytes(D) as usize];
            let scale = kv::encode(st.fmt, &signs, &x, &mut codes);
            kv::Pieces::of(st.fmt, plane, D, at).scatter(&codes, &mut page[st.block_at(plane, head) as usize..]);
            if let Some(scale) = scale {
                let to = st.scale_at(plane, head, at) as usize;
                page[to..to + 2].copy_from_slice(&scale.to_le_bytes());
            }
        }
    }
    page
}

/// Even numbers from -1 to 1.
struct Draw(u64);

impl Draw {
    fn even(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}
