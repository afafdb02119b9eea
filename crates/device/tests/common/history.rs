//! Cases of ops on pages.

use super::Case;
use super::random::Random;
use super::steps::{Span, Step, spans};
use super::world::{Grade, World, dense};
use device::RowClass::{Few, Many};
use device::{Buf, Op, RowClass, Rows, StreamView, tolerance};
use half::bf16;
use memory::KvFormat;

/// An attention over some history.
#[derive(Clone, Debug)]
pub struct Attention {
    pub class: RowClass,
    pub fmt: KvFormat,
    pub heads: u32,
    pub kv: u32,
    pub d: u32,
    pub spans: Vec<Span>,
    pub window: Option<u32>,
    /// First position that others see.
    pub since: u32,
    /// Pages of a ring per sequence.
    pub ring: u32,
    pub sinks: bool,
    pub seed: u64,
}

pub fn attention_of(class: RowClass, fmt: KvFormat, (heads, kv, d): (u32, u32, u32), rows: &[(u32, u32)]) -> Attention {
    let seed = (heads * d + rows.len() as u32 + rows[0].0) as u64;
    Attention { class, fmt, heads, kv, d, spans: spans(rows), window: None, since: 0, ring: 0, sinks: false, seed }
}

impl Attention {
    fn encode(&self, x: &[f32]) -> Vec<u8> {
        match self.fmt {
            KvFormat::F32 => x.iter().flat_map(|x| x.to_le_bytes()).collect(),
            KvFormat::Bf16 => x.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        }
    }
    fn stream(&self, buf: Buf) -> StreamView {
        let page_bytes = self.page_bytes();
        StreamView { buf, page_bytes, fmt: self.fmt, heads: self.kv, d: self.d, ring: self.ring }
    }
    fn page_bytes(&self) -> u64 {
        (2 * self.kv as u64 * 256 * self.fmt.vector_bytes(self.d)).next_multiple_of(4096)
    }
    fn step(&self, r: &mut Random) -> Step {
        let longest = self.spans.iter().map(|s| (s.start + s.n).div_ceil(256)).max().unwrap();
        // Rings do not look at the page table.
        Step::new(self.class, &self.spans, if self.ring > 0 { 1 } else { longest + 3 }, r)
    }
    /// Poisoned pages with the keys and values that the rows look at, `own` with those of the rows themselves too.
    fn pages(&self, step: &Step, r: &mut Random, own: bool) -> Vec<u8> {
        let count = if self.ring > 0 { (step.spans.len() as u32 + 1) * self.ring } else { step.page_count };
        let mut bytes = vec![0xff; (count as u64 * self.page_bytes()) as usize];
        let st = self.stream(Buf::whole(device::AllocId(0), 0));
        for (s, span) in step.spans.iter().enumerate() {
            let first = self.window.map_or(0, |w| (span.start + 1).saturating_sub(w));
            let first = first.max(self.since.min(span.start));
            for p in first..span.start + if own { span.n } else { 0 } {
                let page = match self.ring {
                    0 => step.pages[s][(p / 256) as usize] as u64,
                    n => step.seq_slots[s] as u64 * n as u64 + (p / 256 % n) as u64,
                };
                for plane in 0..2 {
                    for head in 0..self.kv {
                        let vector = self.encode(&r.floats(self.d as usize, 1.5));
                        let off = (page * self.page_bytes() + st.vector_at(plane, head, p % 256)) as usize;
                        bytes[off..off + vector.len()].copy_from_slice(&vector);
                    }
                }
            }
        }
        bytes
    }
    pub fn case(self) -> Case {
        Case::new(format!("{self:?}"), move |w: &mut World| {
            let mut r = Random::new(self.seed);
            let step = self.step(&mut r);
            let pages = self.pages(&step, &mut r, true);
            let buf = w.bytes("pages", Grade::Exact, &pages);
            let gaps = self.seed.is_multiple_of(2);
            let s = dense(step.n(), self.heads, self.d);
            let q = w.input("q", s.gaps(gaps), &r.floats(s.len(), 2.0));
            let sinks = self.sinks.then(|| w.vector("sinks", &r.floats(self.heads as usize, 3.0)));
            let out = w.output("out", Grade::Close(tolerance::ATTENTION), s.gaps(!gaps));
            let rows = step.rows(w);
            let scale = 1.0 / (self.d as f32).sqrt();
            Op::Attention { out, q, st: self.stream(buf), rows, scale, window: self.window, since: self.since, sinks }
        })
    }
    pub fn append_case(self) -> Case {
        Case::new(format!("append {self:?}"), move |w: &mut World| {
            let mut r = Random::new(self.seed);
            let step = self.step(&mut r);
            let pages = self.pages(&step, &mut r, false);
            let buf = w.bytes("pages", Grade::Exact, &pages);
            let s = dense(step.n(), self.kv, self.d).gaps(self.seed.is_multiple_of(2));
            let k = w.input("k", s, &r.floats(s.len(), 3.0));
            let v = w.input("v", s, &r.floats(s.len(), 3.0));
            let rows: Rows = step.rows(w);
            Op::Append { st: self.stream(buf), rows, k, v }
        })
    }
}

const FORMATS: [KvFormat; 2] = [KvFormat::F32, KvFormat::Bf16];

/// Pages of a ring for a window when `n` rows are written before they are read.
fn ring(window: u32, n: u32) -> u32 {
    (window + n - 1).div_ceil(256) + 1
}

pub fn append() -> Vec<Case> {
    let mut all = Vec::new();
    for fmt in FORMATS {
        for rows in [vec![(0, 1)], vec![(250, 12), (0, 3), (1000, 1)], vec![(511, 300)]] {
            all.push(attention_of(Many, fmt, (3, 3, 80), &rows).append_case());
            let window = Some(100);
            let a = Attention { window, ring: ring(100, 300), ..attention_of(Few, fmt, (2, 2, 64), &rows) };
            all.push(a.append_case());
        }
    }
    all
}

pub fn attention_few() -> Vec<Case> {
    let mut all = Vec::new();
    for fmt in FORMATS {
        for (i, shape) in [
            (9, 3, 64),
            (4, 4, 16),
            (8, 1, 32),
            (6, 2, 80),
            (16, 2, 128),
            (9, 1, 256),
            (3, 1, 24),
            (8, 1, 512),
            (22, 2, 8),
        ]
        .into_iter()
        .enumerate()
        {
            let base = attention_of(Few, fmt, shape, &[(0, 1), (63, 1), (700, 3), (255, 2)]);
            all.push(Attention { sinks: i % 2 == 1, ..base.clone() }.case());
            all.push(Attention { since: [1, 64, 300][i % 3], ..base.clone() }.case());
            all.push(Attention { window: Some([1, 100, 256, 300][i % 4]), ..base }.case());
        }
        // More than 32 pages: partitions of two pages, the last one short.
        all.push(attention_of(Few, fmt, (2, 1, 16), &[(9000, 1), (8191, 2), (5, 1)]).case());
        for start in [0, 1, 100, 254, 255, 600, 1500] {
            let rows = [(start, 3), (start + 77, 1)];
            let a = Attention {
                window: Some(300),
                ring: ring(300, 4),
                sinks: true,
                ..attention_of(Few, fmt, (6, 2, 64), &rows)
            };
            all.push(a.case());
        }
    }
    all
}

pub fn attention_many() -> Vec<Case> {
    let mut all = Vec::new();
    for fmt in FORMATS {
        for (i, shape) in [
            (9, 3, 64),
            (2, 2, 16),
            (8, 1, 32),
            (6, 2, 80),
            (8, 2, 128),
            (4, 1, 256),
            (3, 1, 24),
            (8, 1, 512),
            (80, 1, 8),
        ]
        .into_iter()
        .enumerate()
        {
            let base = attention_of(Many, fmt, shape, &[(0, 70), (130, 1), (250, 40)]);
            all.push(Attention { sinks: i % 2 == 0, ..base.clone() }.case());
            all.push(Attention { since: [1, 64, 100][i % 3], ..base.clone() }.case());
            all.push(Attention { window: Some([1, 50, 64, 100][i % 4]), ..base }.case());
        }
        all.push(attention_of(Many, fmt, (4, 2, 64), &[(0, 300)]).case());
        for start in [0, 1, 100, 254, 255, 600] {
            let rows = [(start, 150), (start / 2, 90)];
            let a = Attention {
                window: Some(120),
                ring: ring(120, 240),
                sinks: true,
                ..attention_of(Many, fmt, (4, 2, 32), &rows)
            };
            all.push(a.case());
        }
    }
    all
}
