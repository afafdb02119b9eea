//! Cases of ops on pages.

use super::Case;
use super::random::Random;
use super::steps::{Span, Step, spans};
use super::world::{Grade, World, dense};
use device::RowClass::{Few, Many};
use device::{Buf, Op, RowClass, Rows, Side, StreamView, kv, tolerance};
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
    /// Format of rows' own pages and of page 0, where they lie beside the history.
    pub own: Option<KvFormat>,
    pub sink: Option<KvFormat>,
    pub sinks: bool,
    pub seed: u64,
}

pub fn attention_of(class: RowClass, fmt: KvFormat, (heads, kv, d): (u32, u32, u32), rows: &[(u32, u32)]) -> Attention {
    let seed = (heads * d + rows.len() as u32 + rows[0].0) as u64;
    Attention {
        class,
        fmt,
        heads,
        kv,
        d,
        spans: spans(rows),
        window: None,
        since: 0,
        ring: 0,
        own: None,
        sink: None,
        sinks: false,
        seed,
    }
}

/// Keys and values are drawn evenly up to this.
pub const VALUES: f32 = 1.5;

impl Attention {
    fn view(&self, buf: Buf) -> StreamView {
        let bytes = |f: KvFormat| (2 * self.kv as u64 * 256 * f.vector_bytes(self.d)).next_multiple_of(4096);
        let side = |fmt: Option<KvFormat>, ring| fmt.map(|fmt| Side { buf, page_bytes: bytes(fmt), fmt, ring });
        let n = self.spans.iter().map(|s| s.n).sum();
        StreamView {
            buf,
            page_bytes: bytes(self.fmt),
            fmt: self.fmt,
            heads: self.kv,
            d: self.d,
            ring: self.ring,
            layer: self.seed as u32 % 70,
            own: side(self.own, StreamView::own_pages(n)),
            sink: side(self.sink, 1),
        }
    }
    fn step(&self, r: &mut Random) -> Step {
        let longest = self.spans.iter().map(|s| (s.start + s.n).div_ceil(256)).max().unwrap();
        // Rings do not look at the page table.
        Step::new(self.class, &self.spans, if self.ring > 0 { 1 } else { longest + 3 }, r)
    }
    /// Whether some row of the span reads position `p` from the history, from its own page, from page 0 beside it.
    fn read_from(&self, span: &Span, p: u32) -> [bool; 3] {
        let sink = self.sink.is_some() && p < 256;
        let readers = span.start.max(p)..span.start + span.n;
        let same_page = |q: u32| q / 256 == p / 256;
        let own = !sink && self.own.is_some() && readers.clone().any(same_page);
        let main = !sink && readers.clone().any(|q| self.own.is_none() || !same_page(q));
        [main, own, sink]
    }
    /// Poisoned pages of the history and of what lies beside it, with the keys and values that the rows look at, `own`
    /// with those of the rows themselves too.
    fn stream(&self, w: &mut World, step: &Step, r: &mut Random, own: bool) -> StreamView {
        let st = self.view(Buf::whole(device::AllocId(0), 0));
        let views = [Some(st), st.own.map(|s| st.beside(&s)), st.sink.map(|s| st.beside(&s))];
        let seqs = step.spans.len() as u64 + 1;
        let count = |v: &StreamView| if v.ring > 0 { seqs * v.ring as u64 } else { step.page_count as u64 };
        let mut bytes = views.map(|v| v.map_or(Vec::new(), |v| vec![0xff; (count(&v) * v.page_bytes) as usize]));
        for (s, span) in step.spans.iter().enumerate() {
            let first = self.window.map_or(0, |w| (span.start + 1).saturating_sub(w));
            let first = first.max(self.since.min(span.start));
            for p in first..span.start + if own { span.n } else { 0 } {
                for (plane, head) in (0..2).flat_map(|p| (0..self.kv).map(move |h| (p, h))) {
                    let x = r.floats(self.d as usize, VALUES);
                    for (i, of) in self.read_from(span, p).into_iter().enumerate() {
                        let Some(v) = views[i].filter(|_| of) else { continue };
                        let page = match v.ring {
                            0 => step.pages[s][(p / 256) as usize] as u64,
                            n => step.seq_slots[s] as u64 * n as u64 + (p / 256 % n) as u64,
                        };
                        put(&v, &mut bytes[i][(page * v.page_bytes) as usize..], (plane, head, p % 256), &x);
                    }
                }
            }
        }
        let [main, own, sink] = bytes;
        let mut side =
            |name, s: Option<Side>, b: Vec<u8>| s.map(|s| Side { buf: w.bytes(name, Grade::Exact, &b), ..s });
        let (own, sink) = (side("own pages", st.own, own), side("sink pages", st.sink, sink));
        StreamView { buf: w.bytes("pages", Grade::Exact, &main), own, sink, ..st }
    }
    pub fn case(self) -> Case {
        Case::new(format!("{self:?}"), move |w: &mut World| {
            let mut r = Random::new(self.seed);
            let step = self.step(&mut r);
            let st = self.stream(w, &step, &mut r, true);
            let gaps = self.seed.is_multiple_of(2);
            let s = dense(step.n(), self.heads, self.d);
            let q = w.input("q", s.gaps(gaps), &r.floats(s.len(), 2.0));
            let sinks = self.sinks.then(|| w.vector("sinks", &r.floats(self.heads as usize, 3.0)));
            let rotated = Grade::Within(tolerance::ATTENTION_ROTATED * VALUES);
            let grade = if self.fmt.rotated() { rotated } else { Grade::Close(tolerance::ATTENTION) };
            let out = w.output("out", grade, s.gaps(!gaps));
            let rows = step.rows(w);
            let scale = 1.0 / (self.d as f32).sqrt();
            Op::Attention { out, q, st, rows, scale, window: self.window, since: self.since, sinks }
        })
    }
    pub fn append_case(self) -> Case {
        Case::new(format!("append {self:?}"), move |w: &mut World| {
            let mut r = Random::new(self.seed);
            let step = self.step(&mut r);
            let st = self.stream(w, &step, &mut r, false);
            let s = dense(step.n(), self.kv, self.d).gaps(self.seed.is_multiple_of(2));
            let k = w.input("k", s, &r.floats(s.len(), 3.0));
            let v = w.input("v", s, &r.floats(s.len(), 3.0));
            let rows: Rows = step.rows(w);
            Op::Append { st, rows, k, v }
        })
    }
}

/// Encodes one vector into its page.
fn put(st: &StreamView, page: &mut [u8], (plane, head, at): (u32, u32, u32), x: &[f32]) {
    let mut codes = vec![0; st.fmt.code_bytes(st.d) as usize];
    let scale = kv::encode(st.fmt, &kv::Signs::new(st.layer, plane, head), x, &mut codes);
    kv::Pieces::of(st.fmt, plane, st.d, at).scatter(&codes, &mut page[st.block_at(plane, head) as usize..]);
    if let Some(scale) = scale {
        let at = st.scale_at(plane, head, at) as usize;
        page[at..at + 2].copy_from_slice(&scale.to_le_bytes());
    }
}

const FORMATS: [KvFormat; 2] = [KvFormat::F32, KvFormat::Bf16];

const ROTATED: [KvFormat; 2] = [KvFormat::Q8, KvFormat::Tq4];

/// A history alone and with what may lie beside it.
pub fn beside(a: Attention) -> [Attention; 4] {
    let bf16 = Some(KvFormat::Bf16);
    [
        a.clone(),
        Attention { own: bf16, ..a.clone() },
        Attention { sink: bf16, ..a.clone() },
        Attention { own: Some(KvFormat::F32), sink: Some(KvFormat::F32), ..a },
    ]
}

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
    for (fmt, d) in ROTATED.into_iter().flat_map(|f| KvFormat::ROTATED_WIDTHS.map(|d| (f, d))) {
        let base = attention_of(Many, fmt, (2, 2, d), &[(250, 12), (0, 3), (1000, 1)]);
        all.extend(beside(base).map(Attention::append_case));
        let window = Some(100);
        let a = Attention { window, ring: ring(100, 300), ..attention_of(Few, fmt, (2, 2, d), &[(511, 300)]) };
        all.push(a.append_case());
    }
    all
}

/// Rows whose last position lies on, before and behind the edges of pages.
const EDGES: [(u32, u32); 5] = [(254, 1), (255, 2), (510, 1), (528, 1), (0, 1)];

/// Rotated formats: every width, edges of pages, starts of rings, more than 32 pages.
pub fn attention_rotated(class: RowClass) -> Vec<Case> {
    let mut all = Vec::new();
    for fmt in ROTATED {
        for (i, shape) in [(6, 1, 256), (9, 3, 64), (8, 2, 128), (2, 1, 512), (14, 2, 64), (5, 1, 128), (10, 1, 256)]
            .into_iter()
            .enumerate()
        {
            let base = Attention { sinks: i % 2 == 1, ..attention_of(class, fmt, shape, &EDGES) };
            all.extend(beside(base.clone()).map(Attention::case));
            let window = Some([1, 100, 256, 300][i % 4]);
            all.extend(beside(Attention { window, ..base }).map(Attention::case));
        }
        for start in [0, 1, 100, 254, 255, 600] {
            let window = Some(300);
            let base = attention_of(class, fmt, (6, 2, 64), &[(start, 3), (start + 77, 1)]);
            all.push(Attention { window, ring: ring(300, 4), sinks: true, ..base }.case());
        }
        // Rows of two pages in one call, each with its own one beside the history.
        all.extend(beside(attention_of(class, fmt, (4, 2, 64), &[(200, 120), (500, 30)])).map(Attention::case));
        if class == Few {
            all.extend(beside(attention_of(Few, fmt, (2, 1, 64), &[(9000, 1), (8191, 2)])).map(Attention::case));
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
