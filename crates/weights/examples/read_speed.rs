//! How fast experts of a checkpoint are read, by reader, size of a piece and pieces under way: `cargo run --release -p weights
//! --example read_speed -- MODEL [BYTES]`. Every line reads random ranges of BYTES (default 884736, a matrix of an expert of
//! Qwen3-30B-A3B in Q4_0) for a second and a half, three of them asked for together, as a step with one missing expert does
//! (`3`), or two dozen (`24`).

use checkpoint::Checkpoint;
use device::Device;
use memory::{Class, Ledger, RegionSizes, Tier};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use weights::io::{Access, Files, Job, Pool, RangeReader, ReadQueue, Tuning, Urgency, Wanted, reader};

const TIME: Duration = Duration::from_millis(1500);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path: PathBuf = args.next().ok_or("which checkpoint?")?.into();
    let len: u64 = args.next().map_or(Ok(884_736), |b| b.parse())?;
    let ck = Checkpoint::open(path)?;
    let end = ck.tensors().filter(|t| t.at.file.0 == 0).map(|t| t.at.off + t.at.len).max().unwrap_or(0);
    let room = 32 * (len + 8192).next_multiple_of(4096);
    let ledger = Ledger::new(&[(Tier::Host, room)]);
    let mut dev = device::Reference::new(RegionSizes::default())?;
    let buf = dev.alloc(ledger.reserve(Tier::Host, Class::Weights, "ranges", room)?)?;
    let to = dev.share(buf).ok_or("no memory")?;
    println!(
        "{:<10} {:<7} {:>8} {:>6} {:>9} {:>9} {:>8}",
        "reader", "access", "piece", "depth", "3, GB/s", "24, GB/s", "CPU s/GB"
    );
    for access in [Access::Direct, Access::PageCache] {
        let files = Files::open(&ck, access)?;
        for threads in [false, true] {
            for (piece, depth) in
                [(128, 32), (256, 16), (256, 32), (512, 8), (512, 16), (512, 32), (1024, 8), (1024, 16)]
            {
                if access == Access::PageCache && (piece, depth) != (512, 16) {
                    continue;
                }
                let make = || -> std::io::Result<Box<dyn RangeReader>> {
                    Ok(if threads { Box::new(Pool::new(&files, Pool::THREADS)?) } else { reader(&files)? })
                };
                let tuning = Tuning { piece: piece << 10, depth, ..Tuning::default() };
                let (mut rates, mut name, mut cpu) = ([0.0; 2], "", 0.0);
                for (rate, together) in rates.iter_mut().zip([3, 24]) {
                    let r = make()?;
                    name = r.name();
                    let mut q = ReadQueue::tuned(r, files.align(), tuning);
                    let (begun, before) = (Instant::now(), cpu_seconds());
                    let mut x = begun.elapsed().as_nanos() as u64 | 1;
                    let mut job = 0;
                    while begun.elapsed() < TIME {
                        for i in 0..together {
                            x = x.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
                            let off = (x >> 20) % (end - len).max(1);
                            let at = i * (len + 8192).next_multiple_of(4096);
                            q.read(Job(job), &Wanted { file: 0, off, len, to: to.clone(), at }, Urgency::Demand);
                            job += 1;
                        }
                        let mut done = Vec::new();
                        while q.unfinished() > 0 {
                            q.poll(true, &mut done)?;
                        }
                        for f in done {
                            f.result?;
                        }
                    }
                    *rate = q.stats().bytes as f64 / begun.elapsed().as_secs_f64() / 1e9;
                    cpu = (cpu_seconds() - before) / (q.stats().bytes as f64 / 1e9);
                }
                println!(
                    "{name:<10} {:<7} {:>5} KiB {depth:>6} {:>9.2} {:>9.2} {cpu:>8.3}",
                    if access == Access::Direct { "direct" } else { "cached" },
                    piece,
                    rates[0],
                    rates[1]
                );
            }
        }
    }
    Ok(())
}

/// Processor time of this process in seconds, by the system's account.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}
