//! History that nobody computed.

use crate::{Decl, Error, Limits, SeqId, Span, State, Stream};
use device::{Buf, Device, Reference, RowClass, kv};
use half::f16;
use memory::{KvFormat, KvSpec, Ledger, RegionSizes, Tier};

const LIMITS: Limits = Limits { context: 1000, parallel: 2, pages: 8, rows: 64, few: 2, slab_pages: 3, segment: 0 };

fn made() -> (State, Reference) {
    let decls = [
        Decl { layer: 0, stream: Stream::History { heads: 2, d: 8, kv: KvSpec::of(KvFormat::Bf16) } },
        Decl { layer: 1, stream: Stream::Recurrent { state: [2, 4, 3], conv: [3, 14] } },
        Decl { layer: 2, stream: Stream::Ring { window: 128, heads: 1, d: 4, fmt: KvFormat::F32 } },
    ];
    let mut dev = Reference::new(RegionSizes { step: 0, carry: 0 }).unwrap();
    (State::new(&decls, LIMITS, &Ledger::new(&[(Tier::Host, 1 << 30)]), &mut dev).unwrap(), dev)
}

fn read(dev: &mut Reference, b: Buf, off: u64, len: u64) -> Vec<u8> {
    let mut out = vec![0; len as usize];
    dev.read(b.slice(off, len).unwrap(), &mut out).unwrap();
    out
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}

fn bf16s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(2).map(|c| f32::from_bits((u16::from_le_bytes([c[0], c[1]]) as u32) << 16)).collect()
}

/// Every key and value of a sequence that ops would look at, and its recurrent state.
fn held(st: &State, dev: &mut Reference, seq: SeqId) -> Vec<Vec<f32>> {
    let s = st.seqs.get(seq).unwrap();
    let mut all = Vec::new();
    for (layer, first) in [(0, 0), (2, s.len.saturating_sub(127))] {
        let v = st.view(layer).unwrap();
        for pos in first..s.len {
            let page = match v.ring {
                0 => s.pages[pos as usize / 256].0,
                ring => s.ring.0 * ring + pos / 256 % ring,
            };
            for i in 0..2 * v.heads {
                let at = page as u64 * v.page_bytes + v.vector_at(i / v.heads, i % v.heads, pos % 256);
                let bytes = read(dev, v.buf, at, v.fmt.vector_bytes(v.d));
                all.push(if v.fmt == KvFormat::F32 { f32s(&bytes) } else { bf16s(&bytes) });
            }
        }
    }
    let (r, slot) = (st.rec(1).unwrap(), s.rec.unwrap().0 as u64);
    for (buf, elems) in [(r.state, r.state_elems as u64), (r.conv, r.conv_elems as u64)] {
        all.push(f32s(&read(dev, buf, slot * elems * 4, elems * 4)));
    }
    all
}

#[test]
fn a_filled_sequence_holds_numbers_everywhere_and_grows_by_the_rules() {
    let (mut st, mut dev) = made();
    let seq = st.open().unwrap();
    st.fill(&mut dev, seq, 0, 7).unwrap();
    assert_eq!(st.len(seq).unwrap(), 0);
    st.fill(&mut dev, seq, 900, 7).unwrap();
    st.check_integrity().unwrap();
    assert_eq!((st.len(seq).unwrap(), st.seqs.get(seq).unwrap().pages.len()), (900, 4));
    let vectors = held(&st, &mut dev, seq);
    assert_eq!(vectors.len(), 900 * 4 + 127 * 2 + 2);
    for v in &vectors {
        assert!(v.iter().all(|x| x.abs() <= 1.0) && v.iter().any(|x| *x != v[0]), "{v:?}");
    }
    let mean = vectors.iter().flatten().sum::<f32>() / vectors.iter().flatten().count() as f32;
    assert!(mean.abs() < 0.02, "{mean}");
    // Rows go on behind it.
    let a = st.reserve(&mut dev, RowClass::Few, &[Span { seq, ids: &[1] }]).unwrap();
    let rows = st.rows(&a, 0..1).unwrap();
    assert_eq!((&mut dev as &mut dyn Device).read_i32(rows.pos).unwrap(), [900]);
    st.commit(a, &[1]).unwrap();
    st.check_integrity().unwrap();
}

#[test]
fn values_follow_from_seed_and_position_not_from_how_it_was_filled() {
    let (mut st, mut dev) = made();
    let [whole, pieces] = [0; 2].map(|_| st.open().unwrap());
    st.fill(&mut dev, whole, 700, 7).unwrap();
    for n in [3, 253, 300, 144] {
        st.fill(&mut dev, pieces, n, 7).unwrap();
    }
    let want = held(&st, &mut dev, whole);
    assert_eq!(held(&st, &mut dev, pieces), want);
    st.close(pieces).unwrap();
    let other = st.open().unwrap();
    st.fill(&mut dev, other, 700, 8).unwrap();
    assert!(held(&st, &mut dev, other).iter().zip(&want).all(|(a, b)| a != b));
    st.check_integrity().unwrap();
}

#[test]
fn pages_of_every_format_are_filled_with_numbers() {
    for fmt in KvFormat::ALL {
        let kv = KvSpec { own_page: Some(KvFormat::Bf16), sink_page: Some(KvFormat::Bf16), ..KvSpec::of(fmt) };
        let decls = [Decl { layer: 5, stream: Stream::History { heads: 2, d: 64, kv } }];
        let mut dev = Reference::new(RegionSizes { step: 0, carry: 0 }).unwrap();
        let mut st = State::new(&decls, LIMITS, &Ledger::new(&[(Tier::Host, 1 << 30)]), &mut dev).unwrap();
        let seq = st.open().unwrap();
        for n in [270, 1, 400, 29] {
            st.fill(&mut dev, seq, n, 7).unwrap();
        }
        let (v, pages) = (st.view(5).unwrap(), st.seqs.get(seq).unwrap().pages.clone());
        let (own, sink) = (v.beside(&v.own.unwrap()), v.beside(&v.sink.unwrap()));
        let mut square = 0.0;
        for pos in 0..700 {
            let of = [(v, pages[pos as usize / 256].0), (own, pos / 256 % own.ring), (sink, 0)];
            // Own pages are a ring; page 0 is one.
            let there = [true, pos >= 512, pos < 256];
            for ((v, page), _) in of.into_iter().zip(there).filter(|(_, there)| *there) {
                for (plane, head) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    let at = |off| page as u64 * v.page_bytes + off;
                    let block = read(&mut dev, v.buf, at(v.block_at(plane, head)), v.block_bytes());
                    let codes = kv::Pieces::of(v.fmt, plane, v.d, pos % 256).gather(&block);
                    let scale = read(&mut dev, v.buf, at(v.scale_at(plane, head, pos % 256)), v.fmt.scale_bytes());
                    let scale = scale.first_chunk().map_or(f16::ONE, |b| f16::from_le_bytes(*b));
                    let mut x = [0.0; 64];
                    kv::decode(v.fmt, &kv::Signs::new(5, plane, head), &codes, scale, &mut x);
                    assert!(x.iter().all(|x| x.abs() < 8.0) && x.iter().any(|y| *y != x[0]), "{fmt:?} {x:?}");
                    square += x.iter().map(|x| x * x).sum::<f32>() / 64.0;
                }
            }
        }
        let vectors = (700 + 188 + 256) * 4;
        let rms = (square / vectors as f32).sqrt();
        assert!((0.5..0.7).contains(&rms), "{fmt:?}: {rms}");
    }
}

#[test]
fn what_cannot_be_filled_leaves_the_sequence_as_it_was() {
    let (mut st, mut dev) = made();
    let seq = st.open().unwrap();
    st.fill(&mut dev, seq, 990, 1).unwrap();
    let full = st.fill(&mut dev, seq, 11, 1).unwrap_err();
    assert!(matches!(full, Error::ContextFull { len: 990, asked: 11, context: 1000 }), "{full}");
    let a = st.reserve(&mut dev, RowClass::Few, &[Span { seq, ids: &[1] }]).unwrap();
    assert!(matches!(st.fill(&mut dev, seq, 1, 1), Err(Error::Pending)));
    st.rollback(a).unwrap();
    assert_eq!(st.len(seq).unwrap(), 990);
    st.close(seq).unwrap();
    assert!(matches!(st.fill(&mut dev, seq, 1, 1), Err(Error::NotOpen(_))));
    st.check_integrity().unwrap();
}

#[test]
fn a_step_reads_what_its_history_holds() {
    let h = Stream::History { heads: 2, d: 8, kv: KvSpec::of(KvFormat::Bf16) };
    assert_eq!(h.read_bytes(100), 100 * 2 * 2 * 8 * 2);
    let r = Stream::Ring { window: 128, heads: 1, d: 4, fmt: KvFormat::F32 };
    assert_eq!((r.read_bytes(100), r.read_bytes(1000)), (100 * 2 * 16, 128 * 2 * 16));
    let s = Stream::Recurrent { state: [2, 4, 3], conv: [3, 14] };
    assert_eq!((s.read_bytes(1), s.read_bytes(1000)), ((24 + 42) * 4, (24 + 42) * 4));
}
