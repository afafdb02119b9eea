//! Each rule by itself.

use crate::{Append, Decl, Error, Limits, PART_ROWS, SeqId, Span, State, Stream};
use device::RowClass::{Few, Many};
use device::{Buf, Caps, Device, Meter, Reference, RowClass, View};
use memory::{Class, KvFormat, KvSpec, Ledger, RegionSizes, Tier};

const LIMITS: Limits = Limits { context: 600, parallel: 3, pages: 9, rows: 300, few: 4, slab_pages: 4, segment: 0 };

fn history(layer: u32) -> Decl {
    Decl { layer, stream: Stream::History { heads: 2, d: 8, kv: KvSpec::of(KvFormat::Bf16) } }
}
fn ring(layer: u32) -> Decl {
    Decl { layer, stream: Stream::Ring { window: 128, heads: 1, d: 4, fmt: KvFormat::F32 } }
}
fn recurrent(layer: u32) -> Decl {
    Decl { layer, stream: Stream::Recurrent { state: [2, 4, 3], conv: [3, 14] } }
}
fn all() -> Vec<Decl> {
    vec![history(0), recurrent(1), ring(2), history(5)]
}
fn ledger() -> Ledger {
    Ledger::new(&[(Tier::Host, 1 << 30)])
}
fn reference() -> Reference {
    Reference::new(RegionSizes { step: 0, carry: 0 }).unwrap()
}
fn made(decls: &[Decl], limits: Limits) -> (State, Reference) {
    let mut dev = reference();
    (State::new(decls, limits, &ledger(), &mut dev).unwrap(), dev)
}

/// Reserves `n` rows for one sequence.
fn take(st: &mut State, dev: &mut dyn Device, class: RowClass, seq: SeqId, n: u32) -> Result<Append, Error> {
    let ids: Vec<u32> = (100..100 + n).collect();
    st.reserve(dev, class, &[Span { seq, ids: &ids }])
}
/// Appends `n` rows of class Many and accepts them.
fn grow(st: &mut State, dev: &mut dyn Device, seq: SeqId, n: u32) {
    let a = take(st, dev, Many, seq, n).unwrap();
    st.commit(a, &[n]).unwrap();
}
fn ints(dev: &mut Reference, v: View) -> Vec<i32> {
    (dev as &mut dyn Device).read_i32(v).unwrap()
}
fn pages(st: &State, id: SeqId) -> usize {
    st.seqs.get(id).unwrap().pages.len()
}

#[test]
fn what_a_full_state_holds_is_what_bytes_says_and_free_returns_it() {
    let (l, mut dev) = (ledger(), reference());
    let want = State::bytes(&all(), LIMITS);
    // 3 pages a sequence, 9 in all, of 2 * 2 heads * 256 * 8 * 2 bytes; a ring of ceil((128 + 299) / 256) + 1 pages of
    // 2 * 256 * 4 * 4 bytes; 3 + 4 slots of 24 + 42 floats.
    let rings = 3 * 3 * 8192;
    assert_eq!(want.kv, 2 * 9 * 16384 + rings);
    assert_eq!(want.state, 7 * (24 + 42) * 4);
    // 3 -> 16, 9 -> 16, 300 -> 304 elements.
    assert_eq!(want.rows, (4 * 16 + 16 + 4 * 304) * 4);
    let mut st = State::new(&all(), LIMITS, &l, &mut dev).unwrap();
    let used = || l.usage()[&Tier::Host].by_class.clone();
    let at = used();
    assert_eq!((at[&Class::Kv], at[&Class::State], at[&Class::Workspace]), (rings, want.state, want.rows));
    let seqs = [0; 3].map(|_| st.open().unwrap());
    for (s, slabs) in seqs.into_iter().zip([1, 2, 3]) {
        st.fill(&mut dev, s, 600, 1).unwrap();
        let pages = (4 * slabs).min(9);
        assert_eq!(used()[&Class::Kv], pages * 2 * 16384 + rings);
    }
    assert_eq!(l.usage()[&Tier::Host].reserved(), want.total());
    st.free(&mut dev).unwrap();
    assert_eq!(l.usage()[&Tier::Host].reserved(), 0);
}

#[test]
fn idle_slabs_go_back_highest_first_and_come_again_as_zeros() {
    let (l, mut dev) = (ledger(), reference());
    let mut st = State::new(&[history(0), history(5)], LIMITS, &l, &mut dev).unwrap();
    let (slab, kv) = (4 * 2 * 16384, || l.usage()[&Tier::Host].by_class[&Class::Kv]);
    let [a, b, c] = [0; 3].map(|_| st.open().unwrap());
    for s in [a, b, c] {
        st.fill(&mut dev, s, 600, 1).unwrap();
    }
    // Pages 0-2, 3-5, 6-8 in slabs 0-3, 4-7, 8.
    st.close(b).unwrap();
    st.trim(&mut dev, 0).unwrap();
    assert_eq!(kv(), 2 * slab + slab / 4, "no slab is idle");
    st.close(c).unwrap();
    st.trim(&mut dev, 1).unwrap();
    assert_eq!(kv(), 2 * slab, "the higher of two idle ones goes");
    st.trim(&mut dev, 0).unwrap();
    assert_eq!(kv(), slab);
    let view = st.view(5).unwrap();
    let read = |dev: &mut Reference, page: u64| {
        let mut out = vec![1u8; 64];
        dev.read(view.buf.slice(page * view.page_bytes, 64).unwrap(), &mut out).map(|()| out)
    };
    assert!(matches!(read(&mut dev, 4), Err(device::Error::BadBuf)), "memory that is gone cannot be read");
    let d = st.open().unwrap();
    st.fill(&mut dev, d, 255, 1).unwrap();
    assert_eq!(kv(), slab, "the lowest free page was taken");
    let e = st.open().unwrap();
    st.fill(&mut dev, e, 200, 1).unwrap();
    assert_eq!((kv(), read(&mut dev, 4).is_ok()), (2 * slab, true));
    assert_eq!(read(&mut dev, 5).unwrap(), [0; 64]);
    st.check_integrity().unwrap();
}

#[test]
fn a_sequence_is_promised_its_pages_or_refused() {
    let (page, rest) = (2 * 16384, State::bytes(&all(), LIMITS).total() - 2 * 9 * 16384);
    let (l, mut dev) = (Ledger::new(&[(Tier::Host, rest + 5 * page)]), reference());
    let mut st = State::new(&all(), LIMITS, &l, &mut dev).unwrap();
    let a = st.open().unwrap();
    // Three of five pages are promised.
    let full = |e: Error| matches!(&e, Error::OverBudget(o) if o.asked == 3 * page && o.free < o.asked);
    assert!(full(st.open().unwrap_err()));
    assert!(l.reserve(Tier::Host, Class::Workspace, "else", 3 * page).is_err());
    st.fill(&mut dev, a, 600, 1).unwrap();
    assert!(full(st.open().unwrap_err()));
    st.close(a).unwrap();
    let b = st.open().expect("an idle slab serves the next one");
    st.fill(&mut dev, b, 600, 1).unwrap();
    st.check_integrity().unwrap();
}

#[test]
fn a_slab_that_nobody_pays_for_is_refused_and_the_sequence_stays() {
    let (page, rest) = (2 * 16384, State::bytes(&all(), LIMITS).total() - 2 * 9 * 16384);
    let (l, mut dev) = (Ledger::new(&[(Tier::Host, rest + 3 * page)]), reference());
    let mut st = State::new(&all(), LIMITS, &l, &mut dev).unwrap();
    let s = st.open().unwrap();
    let e = take(&mut st, &mut dev, Few, s, 1).unwrap_err();
    assert!(matches!(&e, Error::OverBudget(o) if o.asked == 4 * page && o.free == 3 * page), "{e}");
    assert_eq!(st.len(s).unwrap(), 0);
    st.check_integrity().unwrap();
}

#[test]
fn layer_pages_are_rounded_up_to_4096_bytes() {
    let odd = Stream::History { heads: 1, d: 3, kv: KvSpec::of(KvFormat::Bf16) };
    let one = Limits { context: 256, parallel: 1, pages: 1, rows: 1, few: 1, slab_pages: 1, segment: 0 };
    assert_eq!(State::bytes(&[Decl { layer: 0, stream: odd }], one).kv, 4096);
    let (st, _) =
        made(&[Decl { layer: 7, stream: Stream::History { heads: 3, d: 3, kv: KvSpec::of(KvFormat::F32) } }], one);
    assert_eq!(st.view(7).unwrap().page_bytes, 20480);
}

#[test]
fn four_bit_history_of_the_27b_geometry_costs_16640_bytes_a_position() {
    let kv = KvSpec::of(KvFormat::Tq4);
    let layers: Vec<Decl> =
        (0..16).map(|layer| Decl { layer, stream: Stream::History { heads: 4, d: 256, kv } }).collect();
    let one = Limits { context: 262_144, parallel: 1, pages: 1024, rows: 256, few: 8, slab_pages: 1, segment: 0 };
    assert_eq!(State::bytes(&layers, one).kv, 262_144 * 16_640);
    assert_eq!(State::bytes(&layers, one).kv >> 20, 4_160);
    let read: u64 = layers.iter().map(|l| l.stream.read_bytes(1000)).sum();
    assert_eq!(read, 1000 * 16_640);
    // Own pages are two of bf16 for chunks of 256 rows, page 0 is one more.
    let beside = KvSpec { own_page: Some(KvFormat::Bf16), sink_page: Some(KvFormat::Bf16), ..kv };
    let with = Stream::History { heads: 4, d: 256, kv: beside };
    assert_eq!(State::bytes(&[Decl { layer: 0, stream: with }], one).kv, 262_144 * 1_040 + (3 << 20));
    assert_eq!(with.read_bytes(1000), (256 + 1000 - 768) * 4096 + 512 * 1040);
    assert_eq!(with.read_bytes(10), 10 * 4096);
}

#[test]
fn a_budget_that_is_too_small_by_one_byte_refuses_and_keeps_nothing() {
    let total = State::bytes(&all(), LIMITS).total() - 2 * 9 * 16384;
    let l = Ledger::new(&[(Tier::Host, total - 1)]);
    assert!(matches!(State::new(&all(), LIMITS, &l, &mut reference()), Err(Error::OverBudget(_))));
    assert_eq!(l.usage()[&Tier::Host].reserved(), 0);
    let l = Ledger::new(&[(Tier::Host, total)]);
    assert!(State::new(&all(), LIMITS, &l, &mut reference()).is_ok());
}

#[test]
fn geometry_beyond_any_memory_is_refused_without_overflow() {
    let huge = Stream::History { heads: u32::MAX, d: u32::MAX, kv: KvSpec::of(KvFormat::F32) };
    let decls = [Decl { layer: 0, stream: huge }];
    assert_eq!(State::bytes(&decls, LIMITS).kv, u64::MAX);
    let none = State::new(&decls, LIMITS, &ledger(), &mut reference());
    assert!(matches!(none, Err(Error::Device(device::Error::OutOfMemory(u64::MAX)))));
}

#[test]
fn declarations_and_limits_that_cannot_be_are_named() {
    let try_new = |d: &[Decl], l| State::new(d, l, &ledger(), &mut reference()).err().map(|e| e.to_string());
    let layer = |stream| try_new(&[Decl { layer: 3, stream }], LIMITS).unwrap();
    assert!(try_new(&[history(3), ring(3)], LIMITS).unwrap().starts_with("layer 3: two streams"));
    assert!(layer(Stream::History { heads: 0, d: 8, kv: KvSpec::of(KvFormat::F32) }).starts_with("layer 3: keys"));
    let kv = KvSpec::of(KvFormat::Tq4);
    assert!(layer(Stream::History { heads: 1, d: 80, kv }).contains("q8 and tq4"));
    assert!(layer(Stream::Ring { window: 9, heads: 1, d: 80, fmt: KvFormat::Q8 }).contains("q8 and tq4"));
    let own_page = Some(KvFormat::Q8);
    assert!(layer(Stream::History { heads: 1, d: 64, kv: KvSpec { own_page, ..kv } }).contains("f32 or bf16"));
    let (own_page, sink_page) = (Some(KvFormat::F32), Some(KvFormat::Bf16));
    let kv = KvSpec { own_page, sink_page, ..kv };
    assert!(layer(Stream::History { heads: 1, d: 64, kv }).contains("one format"));
    assert!(layer(Stream::Ring { window: 0, heads: 1, d: 8, fmt: KvFormat::F32 }).contains("window"));
    assert!(layer(Stream::Recurrent { state: [1, 0, 1], conv: [3, 4] }).contains("no elements"));
    assert!(layer(Stream::Recurrent { state: [65536, 65536, 1], conv: [3, 4] }).contains("2^32"));
    let limits = |l: Limits| try_new(&all(), l).unwrap();
    assert!(limits(Limits { context: 0, ..LIMITS }).contains("context"));
    assert!(limits(Limits { context: 1 << 31, ..LIMITS }).contains("context"));
    assert!(limits(Limits { parallel: 0, ..LIMITS }).contains("sequence"));
    assert!(limits(Limits { rows: 0, ..LIMITS }).contains("rows"));
    assert!(limits(Limits { few: 0, ..LIMITS }).contains("Few"));
    assert!(limits(Limits { pages: 2, ..LIMITS }).contains("enough for a full one"));
    assert!(limits(Limits { pages: u32::MAX, ..LIMITS }).contains("more than 2^31 - 1 pages"));
}

#[test]
fn layers_answer_for_the_stream_they_declared_and_no_other() {
    let (st, _) = made(&all(), LIMITS);
    assert_eq!((st.view(0).unwrap().ring, st.view(2).unwrap().ring), (0, 3));
    assert_eq!((st.rec(1).unwrap().state_elems, st.rec(1).unwrap().conv_elems), (24, 42));
    assert_eq!(st.rec(1).unwrap().slots, 7);
    assert!(matches!(st.view(1), Err(Error::NoStream { layer: 1, .. })));
    assert!(matches!(st.rec(0), Err(Error::NoStream { layer: 0, .. })));
    assert!(matches!(st.view(3), Err(Error::NoStream { layer: 3, .. })));
}

#[test]
fn the_id_of_a_closed_sequence_is_never_another_one() {
    let (mut st, mut dev) = made(&all(), LIMITS);
    let a = st.open().unwrap();
    st.close(a).unwrap();
    let b = st.open().unwrap();
    assert_eq!(a.place(), b.place());
    assert!(matches!(st.len(a), Err(Error::NotOpen(id)) if id == a));
    assert!(matches!(st.close(a), Err(Error::NotOpen(_))));
    assert!(matches!(take(&mut st, &mut dev, Few, a, 1), Err(Error::NotOpen(_))));
    assert_eq!(st.len(b).unwrap(), 0);
}

#[test]
fn one_sequence_too_many_has_no_room() {
    let (mut st, _) = made(&all(), LIMITS);
    let ids: Vec<_> = (0..3).map(|_| st.open().unwrap()).collect();
    assert!(matches!(st.open(), Err(Error::NoRoom { what: "sequences", asked: 1, free: 0 })));
    st.close(ids[1]).unwrap();
    assert!(st.open().is_ok());
}

#[test]
fn the_context_can_be_filled_and_not_passed() {
    let (mut st, mut dev) = made(&all(), LIMITS);
    let s = st.open().unwrap();
    grow(&mut st, &mut dev, s, 300);
    grow(&mut st, &mut dev, s, 298);
    let e = take(&mut st, &mut dev, Few, s, 3).unwrap_err();
    assert!(matches!(e, Error::ContextFull { len: 598, asked: 3, context: 600 }));
    grow(&mut st, &mut dev, s, 2);
    assert!(matches!(take(&mut st, &mut dev, Few, s, 1), Err(Error::ContextFull { .. })));
    assert_eq!((st.len(s).unwrap(), pages(&st, s)), (600, 3));
    st.check_integrity().unwrap();
}

#[test]
fn appends_beyond_the_limits_or_without_rows_are_refused() {
    let (mut st, mut dev) = made(&all(), LIMITS);
    let (s, t) = (st.open().unwrap(), st.open().unwrap());
    let e = take(&mut st, &mut dev, Few, s, 5).unwrap_err();
    assert!(matches!(e, Error::TooManyRows { class: Few, asked: 5, most: 4 }));
    let e = take(&mut st, &mut dev, Many, s, 301).unwrap_err();
    assert!(matches!(e, Error::TooManyRows { class: Many, asked: 301, most: 300 }));
    assert!(matches!(st.reserve(&mut dev, Few, &[]), Err(Error::Empty)));
    let none = [Span { seq: s, ids: &[1] }, Span { seq: t, ids: &[] }];
    assert!(matches!(st.reserve(&mut dev, Few, &none), Err(Error::Empty)));
    let twice = [Span { seq: s, ids: &[1] }, Span { seq: t, ids: &[1] }, Span { seq: s, ids: &[2] }];
    assert!(matches!(st.reserve(&mut dev, Few, &twice), Err(Error::Twice(id)) if id == s));
    st.check_integrity().unwrap();
}

#[test]
fn every_sequence_can_be_full_at_once() {
    let (mut st, mut dev) = made(&all(), LIMITS);
    for _ in 0..3 {
        let s = st.open().unwrap();
        grow(&mut st, &mut dev, s, 300);
        grow(&mut st, &mut dev, s, 300);
    }
    assert_eq!(st.room.pages.free(), 0);
    st.check_integrity().unwrap();
}

#[test]
fn pages_follow_the_accepted_length() {
    let (mut st, mut dev) = made(&[history(0)], LIMITS);
    let s = st.open().unwrap();
    grow(&mut st, &mut dev, s, 255);
    let free = st.room.pages.free();
    for (class, rows, accepted, held) in [(Few, 4, 0, 1), (Few, 4, 1, 1), (Few, 4, 1, 2), (Many, 300, 256, 3)] {
        let a = take(&mut st, &mut dev, class, s, rows).unwrap();
        st.check_integrity().unwrap();
        st.commit(a, &[accepted]).unwrap();
        assert_eq!(pages(&st, s), held);
        st.check_integrity().unwrap();
    }
    assert_eq!(st.len(s).unwrap(), 255 + 1 + 1 + 256);
    let a = take(&mut st, &mut dev, Many, s, 10).unwrap();
    st.rollback(a).unwrap();
    assert_eq!((st.len(s).unwrap(), st.room.pages.free()), (513, free - 2));
    st.close(s).unwrap();
    assert_eq!(st.room.pages.free(), 9);
}

#[test]
fn the_arrays_say_where_rows_come_from_and_go_to() {
    let (mut st, mut dev) = made(&all(), LIMITS);
    let (s, t) = (st.open().unwrap(), st.open().unwrap());
    grow(&mut st, &mut dev, t, 256);
    let rec_t = st.seqs.get(t).unwrap().rec.unwrap().0 as i32;
    let spans = [Span { seq: t, ids: &[7, 8] }, Span { seq: s, ids: &[9, u32::MAX] }];
    let a = st.reserve(&mut dev, Few, &spans).unwrap();
    let r = st.rows(&a, 0..4).unwrap();
    assert_eq!((r.class, r.n, r.seqs), (Few, 4, 2));
    assert_eq!(ints(&mut dev, r.ids), [7, 8, 9, -1]);
    assert_eq!(ints(&mut dev, r.pos), [256, 257, 0, 1]);
    assert_eq!(ints(&mut dev, r.seq_of), [0, 0, 1, 1]);
    assert_eq!(ints(&mut dev, r.seq_slot), [t.place() as i32, s.place() as i32]);
    assert_eq!(ints(&mut dev, r.rec_from), [rec_t, -1]);
    let to = ints(&mut dev, r.rec_to);
    assert!(to.iter().all(|&x| (0..7).contains(&x) && x != rec_t));
    assert_eq!(ints(&mut dev, r.page_table), [0, 1, -1, 2, -1, -1]);
    assert_eq!(ints(&mut dev, st.last_rows(&a).unwrap()), [1, 3]);
    // Span by span.
    let part = st.rows(&a, 2..4).unwrap();
    assert_eq!(ints(&mut dev, part.ids), [9, -1]);
    assert_eq!(ints(&mut dev, part.seq_of), [1, 1]);
    assert_eq!(ints(&mut dev, part.rec_from), [rec_t, -1]);
    // The slot of the last accepted row becomes the sequence's own; nothing accepted keeps the old one.
    st.commit(a, &[0, 1]).unwrap();
    assert_eq!(st.seqs.get(t).unwrap().rec.unwrap().0 as i32, rec_t);
    assert_eq!(st.seqs.get(s).unwrap().rec.unwrap().0 as i32, to[2]);
    st.check_integrity().unwrap();
}

#[test]
fn addresses_never_move_and_page_tables_follow_their_sequence() {
    let (mut st, mut dev) = made(&all(), LIMITS);
    let (s, t) = (st.open().unwrap(), st.open().unwrap());
    let a = take(&mut st, &mut dev, Few, s, 1).unwrap();
    let first = st.rows(&a, 0..1).unwrap();
    st.commit(a, &[1]).unwrap();
    for (seq, want) in [(t, 1), (s, 0), (s, 0), (t, 1)] {
        let a = take(&mut st, &mut dev, Few, seq, 1).unwrap();
        assert_eq!(st.rows(&a, 0..1).unwrap(), first);
        assert_eq!(ints(&mut dev, first.page_table), [want, -1, -1]);
        st.commit(a, &[1]).unwrap();
    }
}

#[test]
fn a_single_span_of_many_rows_is_cut_on_the_grid_and_hands_its_state_on() {
    let (mut st, mut dev) = made(&all(), LIMITS);
    let s = st.open().unwrap();
    let a = take(&mut st, &mut dev, Many, s, 150).unwrap();
    let to = ints(&mut dev, st.rows(&a, 0..150).unwrap().rec_to);
    let next = to[149];
    assert!(next >= 0);
    let kept: Vec<usize> = (0..150).filter(|&i| to[i] == next).collect();
    assert_eq!(kept, [63, 127, 149]);
    assert_eq!(to.iter().filter(|&&x| x == -1).count(), 147);
    let parts = [(0..64, -1), (64..128, next), (128..150, next), (0..128, -1), (64..150, next)];
    for (part, from) in parts {
        let r = st.rows(&a, part.clone()).unwrap();
        assert_eq!(ints(&mut dev, r.rec_from), [from], "{part:?}");
        assert_eq!(ints(&mut dev, r.pos), part.map(|p| p as i32).collect::<Vec<_>>());
    }
    for part in [0..0, 64..64, 1..64, 0..63, 64..149, 128..151, 150..150, 149..150] {
        assert!(matches!(st.rows(&a, part.clone()), Err(Error::Part { .. })), "{part:?}");
    }
    st.commit(a, &[150]).unwrap();
    assert_eq!(st.seqs.get(s).unwrap().rec.unwrap().0 as i32, next);
}

#[test]
fn other_appends_are_cut_between_spans_only() {
    let (mut st, mut dev) = made(&all(), LIMITS);
    let (s, t) = (st.open().unwrap(), st.open().unwrap());
    let ids = [1; 2 * PART_ROWS as usize];
    let a = st.reserve(&mut dev, Many, &[Span { seq: s, ids: &ids }, Span { seq: t, ids: &ids }]).unwrap();
    assert_eq!((a.n(), a.seqs(), a.span(1), a.span(2)), (256, 2, Some(128..256), None));
    assert!(st.rows(&a, 0..128).is_ok() && st.rows(&a, 128..256).is_ok() && st.rows(&a, 0..256).is_ok());
    assert!(matches!(st.rows(&a, 0..64), Err(Error::Part { .. })));
    assert!(matches!(st.rows(&a, 128..192), Err(Error::Part { .. })));
    st.rollback(a).unwrap();
    let a = take(&mut st, &mut dev, Few, s, 4).unwrap();
    assert!(matches!(st.rows(&a, 0..2), Err(Error::Part { .. })));
    st.rollback(a).unwrap();
}

#[test]
fn many_rows_of_a_recurrent_model_are_accepted_whole_or_not_at_all() {
    let (mut st, mut dev) = made(&all(), LIMITS);
    let s = st.open().unwrap();
    let a = take(&mut st, &mut dev, Many, s, 100).unwrap();
    let e = st.commit(a, &[99]).unwrap_err();
    assert!(matches!(e, Error::Indivisible { span: 0, accepted: 99, rows: 100 }));
    assert_eq!(st.len(s).unwrap(), 0);
    let a = take(&mut st, &mut dev, Many, s, 100).unwrap();
    st.commit(a, &[0]).unwrap();
    assert_eq!(st.len(s).unwrap(), 0);
    st.check_integrity().unwrap();
}

#[test]
fn a_commit_with_wrong_counts_is_a_rollback() {
    let (mut st, mut dev) = made(&all(), LIMITS);
    let s = st.open().unwrap();
    grow(&mut st, &mut dev, s, 10);
    for counts in [&[][..], &[1, 1], &[3]] {
        let a = take(&mut st, &mut dev, Few, s, 2).unwrap();
        assert!(matches!(st.commit(a, counts), Err(Error::Counts { .. } | Error::Accepted { .. })));
        st.check_integrity().unwrap();
        assert_eq!(st.len(s).unwrap(), 10);
    }
}

#[test]
fn one_append_at_a_time_and_a_dropped_one_is_reclaimed() {
    let (mut st, mut dev) = made(&all(), LIMITS);
    let (s, t) = (st.open().unwrap(), st.open().unwrap());
    let a = take(&mut st, &mut dev, Many, s, 300).unwrap();
    assert!(matches!(take(&mut st, &mut dev, Few, t, 1), Err(Error::Pending)));
    assert!(matches!(st.close(s), Err(Error::Pending)));
    st.close(t).unwrap();
    st.check_integrity().unwrap();
    drop(a);
    let b = take(&mut st, &mut dev, Few, s, 4).unwrap();
    assert_eq!(st.room.pages.free(), 8);
    drop(b);
    st.close(s).unwrap();
    assert_eq!((st.room.pages.free(), st.room.slots.free()), (9, 7));
    st.check_integrity().unwrap();
}

#[test]
fn an_append_of_another_state_is_refused() {
    let ((mut st, mut dev), (mut other, mut dev2)) = (made(&all(), LIMITS), made(&all(), LIMITS));
    let (s, o) = (st.open().unwrap(), other.open().unwrap());
    let (a, b) = (take(&mut st, &mut dev, Few, s, 1).unwrap(), take(&mut other, &mut dev2, Few, o, 1).unwrap());
    assert!(matches!(st.rows(&b, 0..1), Err(Error::Foreign)));
    assert!(matches!(st.last_rows(&b), Err(Error::Foreign)));
    assert!(matches!(st.commit(b, &[1]), Err(Error::Foreign)));
    st.commit(a, &[1]).unwrap();
    assert_eq!((st.len(s).unwrap(), other.len(o).unwrap()), (1, 0));
}

#[test]
fn a_device_that_refuses_writes_leaves_nothing_taken() {
    let (mut st, mut dev) = made(&all(), LIMITS);
    let s = st.open().unwrap();
    let key = device::GraphKey { rows: 1, seqs: 1, which: 0 };
    let refused = (&mut dev as &mut dyn Device).graph(key, |d| {
        assert!(matches!(take(&mut st, d, Few, s, 1), Err(Error::Device(device::Error::InGraph(_)))));
        Ok::<_, device::Error>(())
    });
    refused.unwrap();
    assert_eq!((st.room.pages.free(), st.room.slots.free()), (9, 7));
    let a = take(&mut st, &mut dev, Few, s, 1).unwrap();
    let table = st.rows(&a, 0..1).unwrap().page_table;
    assert_eq!(ints(&mut dev, table), [0, -1, -1]);
    st.commit(a, &[1]).unwrap();
}

#[test]
fn without_recurrent_layers_no_slot_is_named() {
    let (mut st, mut dev) = made(&[history(0), ring(1)], LIMITS);
    let s = st.open().unwrap();
    let a = take(&mut st, &mut dev, Many, s, 70).unwrap();
    let r = st.rows(&a, 64..70).unwrap();
    assert_eq!((ints(&mut dev, r.rec_from), ints(&mut dev, r.rec_to)), (vec![-1], vec![-1; 6]));
    st.commit(a, &[69]).unwrap();
    assert_eq!(st.len(s).unwrap(), 69);
    st.check_integrity().unwrap();
}

/// The whole path on shapes alone.
#[test]
fn the_meter_runs_it_and_frees_it() {
    let l = Ledger::new(&[(Tier::Host, u64::MAX)]);
    let caps = Caps { name: "none", isa: String::new(), threads: 1, borrows_host: false };
    let mut dev = Meter::new(|_, _| 0, caps);
    let big = Limits { context: 1 << 18, parallel: 8, pages: 8192, rows: 8192, few: 64, slab_pages: 32, segment: 0 };
    let mut st = State::new(&all(), big, &l, &mut dev).unwrap();
    let s = st.open().unwrap();
    let kv = || l.usage()[&Tier::Host].by_class[&Class::Kv];
    let rings = kv();
    grow(&mut st, &mut dev, s, 8192);
    assert_eq!(kv() - rings, 2 * 16384 * 32);
    while st.len(s).unwrap() < 1 << 18 {
        grow(&mut st, &mut dev, s, 8192);
    }
    for _ in 1..8 {
        let s = st.open().unwrap();
        for _ in 0..(1 << 18) / 8192 {
            grow(&mut st, &mut dev, s, 8192);
        }
    }
    assert_eq!(l.usage()[&Tier::Host].reserved(), State::bytes(&all(), big).total());
    let b: Buf = st.view(0).unwrap().buf;
    assert_eq!(b.bytes(), 16384 * 1024 * 8);
    st.free(&mut dev).unwrap();
    assert_eq!(l.usage()[&Tier::Host].reserved(), 0);
}
