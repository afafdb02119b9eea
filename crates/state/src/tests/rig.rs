//! A device with sequences on it whose rows really run: appended, attended, convolved.

use super::model::{K_HEADS, Q_HEADS, Row, SCALE, Use, decay, outputs, weight};
use crate::{Append, Decl, Limits, SeqId, State, Stream};
use device::{Act, Buf, Device, GdnShape, KeyHeadRule, Op, Reference, Region, Rows, Side, StreamView, View};
use memory::{Class, Ledger, PageId, RegionSizes, Tier};
use std::collections::BTreeMap;
use std::ops::Range;

/// Everything that is not committed is filled with these: NaN in every format.
const POISON: u8 = 0xff;

/// Weights of a recurrent layer.
struct Mixer {
    taps: Buf,
    decay: Buf,
    dt: Buf,
}

pub struct Rig {
    pub st: State,
    ledger: Ledger,
    pub dev: Reference,
    decls: Vec<Decl>,
    mixers: BTreeMap<u32, Mixer>,
    /// Pages with an owner beside sequences, and how many positions of them are of interest.
    pub kept: Vec<(Vec<PageId>, u32)>,
}

impl Rig {
    pub fn new(decls: &[Decl], limits: Limits) -> Self {
        let ledger = Ledger::new(&[(Tier::Host, 1 << 28)]);
        let mut dev = Reference::new(RegionSizes { step: 1 << 20, carry: 0 }).unwrap();
        let st = State::new(decls, limits, &ledger, &mut dev).unwrap();
        let mut put = |n: u32, f: &dyn Fn(u32) -> f32| {
            let r = ledger.reserve(Tier::Host, Class::Weights, "test weights", n as u64 * 4).unwrap();
            let b = dev.alloc(r).unwrap();
            dev.write(b, &le((0..n).map(f))).unwrap();
            b
        };
        let mut mixers = BTreeMap::new();
        for d in decls {
            if let Stream::Recurrent { state: [heads, ..], conv: [past, channels] } = d.stream {
                let taps = put(channels * (past + 1), &|i| weight(d.layer, 0, i));
                let of_decay = put(heads, &|h| decay(d.layer, h));
                let dt = put(heads, &|h| weight(d.layer, 2, h));
                mixers.insert(d.layer, Mixer { taps, decay: of_decay, dt });
            }
        }
        let mut rig = Rig { st, ledger, dev, decls: decls.to_vec(), mixers, kept: Vec::new() };
        rig.poison();
        rig
    }

    /// Whether the ledger pays for exactly the slabs that are backed, and for all rings.
    pub fn pays(&self) -> Result<(), String> {
        let pages: u32 = self.st.room.pages.backed().map(|s| self.st.room.pages.pages_of(s).len() as u32).sum();
        let rings = crate::decl::ring_bytes(&self.decls, &self.st.limits());
        let paged: u64 = self.decls.iter().filter_map(|d| d.stream.history_page()).sum();
        let (want, have) = (pages as u64 * paged + rings, self.ledger.usage()[&Tier::Host].by_class[&Class::Kv]);
        if want == have { Ok(()) } else { Err(format!("{have} bytes are paid for, {want} are backed")) }
    }

    /// Runs an append part by part through all layers (or layer by layer through all parts) and returns each row's
    /// outputs. `rows` are those of all spans.
    pub fn run(&mut self, a: &Append, rows: &[Row], parts: &[Range<u32>], layer_outer: bool) -> Vec<Vec<f32>> {
        let layers = self.layers();
        let mut steps: Vec<(usize, Range<u32>)> = Vec::new();
        for p in parts {
            steps.extend((0..layers).map(|l| (l, p.clone())));
        }
        if layer_outer {
            steps.sort_by_key(|(l, p)| (*l, p.start));
        }
        let mut by_layer = vec![Vec::new(); layers];
        for (l, part) in steps {
            by_layer[l].extend(self.run_part(l, a, rows, &part));
        }
        joined(&by_layer)
    }

    /// How many layers there are.
    pub fn layers(&self) -> usize {
        self.decls.len()
    }

    /// Runs a part of an append's rows through one layer.
    pub fn run_part(&mut self, l: usize, a: &Append, rows: &[Row], part: &Range<u32>) -> Vec<Vec<f32>> {
        let r = self.st.rows(a, part.clone()).unwrap();
        let rows = &rows[part.start as usize..part.end as usize];
        self.expect_arrays(&r, rows);
        self.layer(&self.decls[l].clone(), r, rows)
    }

    fn expect_arrays(&mut self, r: &Rows, rows: &[Row]) {
        let dev = &mut self.dev as &mut dyn Device;
        assert_eq!(dev.read_i32(r.ids).unwrap(), rows.iter().map(|r| r.id as i32).collect::<Vec<_>>());
        assert_eq!(dev.read_i32(r.pos).unwrap(), rows.iter().map(|r| r.pos as i32).collect::<Vec<_>>());
    }

    fn layer(&mut self, d: &Decl, r: Rows, rows: &[Row]) -> Vec<Vec<f32>> {
        match d.stream {
            Stream::History { .. } => self.attend(d.layer, None, r, rows),
            Stream::Ring { window, .. } => self.attend(d.layer, Some(window), r, rows),
            Stream::Recurrent { state: [n_v, d_k, d_v], conv: [past, channels] } => {
                let g = GdnShape { n_k: K_HEADS, n_v, d_k, d_v, rule: KeyHeadRule::Div };
                assert_eq!(g.channels(), channels);
                self.mix(d.layer, g, past + 1, r, rows)
            }
        }
    }

    fn attend(&mut self, layer: u32, window: Option<u32>, r: Rows, rows: &[Row]) -> Vec<Vec<f32>> {
        let st = self.st.view(layer).unwrap();
        let all = (&mut self.dev as &mut dyn Device).scope(Region::Step, |dev| {
            let mut put =
                |of, heads: u32| Ok::<_, device::Error>(inputs(dev, layer, of, heads * st.d, rows)?.heads(heads));
            let (k, v, q) = (put(Use::Key, st.heads)?, put(Use::Value, st.heads)?, put(Use::Query, Q_HEADS)?);
            let out = dev.take(Region::Step, Act::F32, r.n, Q_HEADS * st.d)?.heads(Q_HEADS);
            dev.run(Op::Append { st, rows: r, k, v })?;
            dev.run(Op::Attention { out, q, st, rows: r, scale: SCALE, window, since: 0, sinks: None })?;
            dev.read_f32(out)
        });
        by_row(all.unwrap(), rows.len())
    }

    fn mix(&mut self, layer: u32, g: GdnShape, kernel: u32, r: Rows, rows: &[Row]) -> Vec<Vec<f32>> {
        let (st, m) = (self.st.rec(layer).unwrap(), &self.mixers[&layer]);
        let both = (&mut self.dev as &mut dyn Device).scope(Region::Step, |dev| {
            let x = inputs(dev, layer, Use::Mixed, g.channels(), rows)?;
            let a = inputs(dev, layer, Use::Decay, g.n_v, rows)?;
            let b = inputs(dev, layer, Use::Beta, g.n_v, rows)?;
            let qkv = dev.take(Region::Step, Act::F32, r.n, g.channels())?;
            let out = dev.take(Region::Step, Act::F32, r.n, g.n_v * g.d_v)?.heads(g.n_v);
            dev.run(Op::ConvSilu { out: qkv, x, w: m.taps, kernel, st, rows: r })?;
            dev.run(Op::GatedDelta { out, qkv, a, b, decay: m.decay, dt: m.dt, g, st, rows: r })?;
            Ok::<_, device::Error>((dev.read_f32(qkv)?, dev.read_f32(out)?))
        });
        let (mixed, out) = both.unwrap();
        let out = by_row(out, rows.len());
        by_row(mixed, rows.len()).into_iter().zip(out).map(|(m, o)| [m, o].concat()).collect()
    }

    /// Compares the outputs of the last `got.len()` rows of a history with the model's, at `at` (indexes into `got`).
    pub fn compare(&self, history: &[Row], got: &[Vec<f32>], at: &[usize]) -> Result<(), String> {
        let first = history.len() - got.len();
        let want = outputs(&self.decls, history, &at.iter().map(|i| first + i).collect::<Vec<_>>());
        for (&i, want) in at.iter().zip(&want) {
            let near = |(g, w): (&f32, &f64)| (*g as f64 - w).abs() <= 1e-4;
            if got[i].len() != want.len() || !got[i].iter().zip(want).all(near) {
                return Err(format!("row {i} after {first}: {:?}, expected {want:?}", got[i]));
            }
        }
        Ok(())
    }

    /// Fills the new pages of the segment under way with NaN: slabs that came with it read as zero, which would hide a row
    /// that looks too far.
    pub fn poison_segment_pages(&mut self) {
        let pages: Vec<u64> = self.st.segment().into_iter().flat_map(|p| p.pages().map(|p| p.0 as u64)).collect();
        for d in self.decls.clone() {
            let Stream::History { .. } = d.stream else { continue };
            let st = self.st.view(d.layer).unwrap();
            for at in &pages {
                self.rewrite(st.buf.slice(at * st.page_bytes, st.page_bytes).unwrap(), Vec::new());
            }
        }
    }

    /// The (page, place in it) that the segment under way may write.
    fn segment_room(&self) -> Vec<(u32, u32)> {
        let Some(p) = self.st.segment() else { return Vec::new() };
        let of = |(id, rows): (SeqId, u32)| {
            let s = self.st.seqs.get(id).unwrap();
            let pages: Vec<u32> = s.pages.iter().copied().chain(p.pages()).map(|p| p.0).collect();
            (s.len..s.len + rows).map(move |at| (pages[at as usize / 256], at % 256)).collect::<Vec<_>>()
        };
        p.rows().flat_map(of).collect()
    }

    /// All places of the rings that the segment under way writes, in rings of `ring` pages.
    fn segment_rings(&self, ring: u32) -> impl Iterator<Item = (u32, u32)> {
        let own: Vec<u32> = self.st.segment().into_iter().flat_map(|p| p.rings().map(|r| r.0)).collect();
        own.into_iter().flat_map(move |r| (0..ring * 256).map(move |p| (r * ring + p / 256, p % 256)))
    }

    /// Fills everything that belongs to no committed position and to no segment under way with NaN.
    pub fn poison(&mut self) {
        for d in self.decls.clone() {
            match d.stream {
                Stream::History { .. } => {
                    let st = self.st.view(d.layer).unwrap();
                    let own = self.st.seqs.iter().map(|s| (&s.pages, s.len));
                    let all = own.chain(self.kept.iter().map(|(pages, len)| (pages, *len)));
                    let at = |(pages, len): (&Vec<PageId>, u32)| {
                        (0..len).map(|p| (pages[p as usize / 256].0, p % 256)).collect::<Vec<_>>()
                    };
                    let live: Vec<_> = all.flat_map(at).chain(self.segment_room()).collect();
                    self.keep(&st, &live);
                    // The next row's own page, and page 0.
                    self.poison_side(&st, st.own, |p, len| p / 256 == len / 256);
                    self.poison_side(&st, st.sink, |p, _| p < 256);
                }
                Stream::Ring { window, .. } => self.poison_rings(d.layer, window),
                Stream::Recurrent { .. } => self.poison_slots(d.layer),
            }
        }
    }

    fn poison_side(&mut self, st: &StreamView, side: Option<Side>, keeps: fn(u32, u32) -> bool) {
        let Some(side) = side else { return };
        let mut live = Vec::new();
        for s in self.st.seqs.iter() {
            let kept = (0..s.len).filter(|&p| keeps(p, s.len));
            live.extend(kept.map(|p| (s.ring.0 * side.ring + p / 256 % side.ring, p % 256)));
        }
        live.extend(self.segment_rings(side.ring));
        self.keep(&st.beside(&side), &live);
    }

    fn poison_rings(&mut self, layer: u32, window: u32) {
        let st = self.st.view(layer).unwrap();
        let mut live = Vec::new();
        for s in self.st.seqs.iter() {
            // The next row is its own window's last.
            let seen = (s.len + 1).saturating_sub(window)..s.len;
            live.extend(seen.map(|p| (s.ring.0 * st.ring + p / 256 % st.ring, p % 256)));
        }
        live.extend(self.segment_rings(st.ring));
        self.keep(&st, &live);
    }

    /// Keeps the vectors at these (page, place in it) and poisons the others.
    fn keep(&mut self, st: &StreamView, live: &[(u32, u32)]) {
        let vector = st.fmt.vector_bytes(st.d);
        let ranges = live.iter().flat_map(|&(page, at)| {
            let start = move |i: u32| page as u64 * st.page_bytes + st.vector_at(i / st.heads, i % st.heads, at);
            (0..2 * st.heads).map(move |i| start(i)..start(i) + vector)
        });
        let ranges: Vec<Range<u64>> = ranges.collect();
        // Of a history only backed slabs can be touched.
        let pages = &self.st.room.pages;
        let all = 0..st.buf.bytes() / st.page_bytes;
        let parts: Vec<Range<u64>> = match st.ring {
            0 => pages.backed().map(|s| pages.pages_of(s)).map(|p| p.start as u64..p.end as u64).collect(),
            _ => vec![all],
        };
        for pages in parts {
            let (from, to) = (pages.start * st.page_bytes, pages.end * st.page_bytes);
            let inside = ranges.iter().filter(|r| r.start >= from && r.end <= to);
            let keep = inside.map(|r| r.start - from..r.end - from).collect();
            self.rewrite(st.buf.slice(from, to - from).unwrap(), keep);
        }
    }

    fn poison_slots(&mut self, layer: u32) {
        let st = self.st.rec(layer).unwrap();
        let under_way = self.st.segment().into_iter().flat_map(|p| p.slots());
        let live: Vec<u64> = self.st.seqs.iter().filter_map(|s| s.rec).chain(under_way).map(|s| s.0 as u64).collect();
        for (buf, elems) in [(st.state, st.state_elems as u64), (st.conv, st.conv_elems as u64)] {
            self.rewrite(buf, live.iter().map(|s| s * elems * 4..(s + 1) * elems * 4).collect());
        }
    }

    fn rewrite(&mut self, buf: Buf, keep: Vec<Range<u64>>) {
        let mut old = vec![0; buf.bytes() as usize];
        self.dev.read(buf, &mut old).unwrap();
        let mut new = vec![POISON; old.len()];
        for r in keep {
            let r = r.start as usize..r.end as usize;
            new[r.clone()].copy_from_slice(&old[r]);
        }
        self.dev.write(buf, &new).unwrap();
    }

    /// Rows of `n` tokens behind what a sequence has.
    pub fn next(&self, seq: SeqId, tag: u64, ids: &[u32]) -> Vec<Row> {
        let len = self.st.len(seq).unwrap();
        ids.iter().zip(len..).map(|(&id, pos)| Row { tag, pos, id }).collect()
    }
}

/// Outputs by layer, each row's one behind the other.
pub fn joined(by_layer: &[Vec<Vec<f32>>]) -> Vec<Vec<f32>> {
    let rows = by_layer.first().map_or(0, Vec::len);
    (0..rows).map(|i| by_layer.iter().flat_map(|l| l[i].iter().copied()).collect()).collect()
}

fn inputs(dev: &mut dyn Device, layer: u32, of: Use, cols: u32, rows: &[Row]) -> device::Result<View> {
    let v = dev.take(Region::Step, Act::F32, rows.len() as u32, cols)?;
    dev.write(v.buf, &le(rows.iter().flat_map(|r| (0..cols).map(move |c| r.input(layer, of, c)))))?;
    Ok(v)
}

fn by_row(all: Vec<f32>, rows: usize) -> Vec<Vec<f32>> {
    all.chunks_exact(all.len() / rows).map(<[f32]>::to_vec).collect()
}

fn le(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}
