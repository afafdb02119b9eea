//! Prompts layer by layer: the same bits as chunk by chunk, on every family, whatever happens in between.

use engine::plan::{Slots, StreamAsk};
use engine::{Ask, Error, Model, OpenOptions, SeqId, Wanted};
use std::sync::atomic::AtomicBool;
use testkit::Expected;

struct Rig {
    model: Model,
    expected: Expected,
    _dir: tempfile::TempDir,
}

fn rig(name: &str, ask: Ask) -> Rig {
    let dir = testkit::materialise(name).unwrap();
    let how = OpenOptions { ask: Ask { logit_rows: 64, ..ask }, ..OpenOptions::default() };
    let model = Model::open(dir.path().to_path_buf(), &how, &mut |_| {}).unwrap();
    Rig { model, expected: testkit::expected(name).unwrap(), _dir: dir }
}

fn ask(segment: Option<u32>) -> Ask {
    Ask { segment, chunk: 64, few: 4, parallel: 3, ..Ask::default() }
}

fn prefill(m: &mut Model, seq: SeqId, ids: &[u32]) -> Vec<f32> {
    m.exec.prefill(seq, ids, Wanted::All, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

/// Logits of a prompt in two calls, of which the second goes on where the first ended, and of four tokens behind it.
fn whole(m: &mut Model, ids: &[u32], first: usize) -> Vec<f32> {
    let seq = m.exec.open().unwrap();
    let mut all = prefill(m, seq, &ids[..first]);
    all.extend(prefill(m, seq, &ids[first..]));
    for &id in &ids[..4] {
        all.extend(m.exec.decode(&[(seq, id)]).unwrap());
    }
    m.exec.close(seq).unwrap();
    all
}

#[test]
fn every_family_gives_the_same_bits_layer_by_layer_and_chunk_by_chunk() {
    for name in testkit::NAMES {
        let mut chunks = rig(name, ask(None));
        let ids = chunks.expected.ids.clone();
        // Rings of some families wrap, and the second call does not begin on the grid.
        let (n, first) = (ids.len().min(600), 200);
        let want = whole(&mut chunks.model, &ids[..n], first);
        for segment in [128, 192, 1024] {
            let mut layers = rig(name, ask(Some(segment)));
            assert_eq!(
                layers.model.exec.plan().segment(),
                segment.min(layers.model.exec.plan().context.next_multiple_of(64))
            );
            assert!(whole(&mut layers.model, &ids[..n], first) == want, "{name}: segments of {segment} change a bit");
        }
    }
}

#[test]
fn experts_may_arrive_in_any_order_and_by_halves() {
    for name in ["qwen3_5_moe-a", "qwen3_moe-b", "gpt_oss-b", "gemma4_moe-a", "glm4_moe-a"] {
        let mut chunks = rig(name, ask(None));
        let ids = chunks.expected.ids[..300].to_vec();
        let want = whole(&mut chunks.model, &ids, 130);
        for seed in 0..3 {
            let mut layers = rig(name, ask(Some(192)));
            layers.model.exec.set_arrivals(|e| Box::new(weights::ScriptedArrivals::new(e.clone(), seed)));
            assert!(whole(&mut layers.model, &ids, 130) == want, "{name}: arrivals of seed {seed}");
        }
    }
}

#[test]
fn experts_from_disk_are_read_once_for_a_segment_and_change_no_bit() {
    for name in ["qwen3_moe-b", "qwen3_5_moe-a", "gemma4_moe-a", "glm4_moe-a"] {
        let mut chunks = rig(name, ask(None));
        let ids = chunks.expected.ids[..400].to_vec();
        let want = whole(&mut chunks.model, &ids, 130);
        let stream = StreamAsk { slots: Slots::Fewest, ..StreamAsk::default() };
        let mut layers = rig(name, Ask { stream, ..ask(Some(192)) });
        assert!(whole(&mut layers.model, &ids, 130) == want, "{name}");

        // A prompt of its own, from a cache that holds what decoding kept.
        let exec = &mut layers.model.exec;
        let (before, all) = (exec.cache().unwrap(), exec.plan().slots.as_ref().unwrap().experts());
        let seq = exec.open().unwrap();
        exec.prefill(seq, &ids[..380], Wanted::Last, &AtomicBool::new(false), &mut |_| {}).unwrap();
        let read = exec.cache().unwrap().misses - before.misses;
        assert!(read > 0 && read <= 2 * all, "{name}: {read} reads of {all} experts in two segments");
        exec.close(seq).unwrap();

        // Of a prompt, what its last row asked for is kept, and nothing else.
        let mut fresh = rig(name, Ask { stream, ..ask(Some(192)) });
        let seq = fresh.model.exec.open().unwrap();
        prefill(&mut fresh.model, seq, &ids[..380]);
        let kept = fresh.model.exec.cache().unwrap();
        let (_, top_k) = fresh.model.exec.family().spec().experts.unwrap();
        let most = 2 * u64::from(top_k * fresh.model.exec.family().spec().n_layers);
        assert!(kept.live > 0 && kept.live <= most, "{name}: {} of {} slots are kept", kept.live, kept.slots);
    }
}

#[test]
fn a_plan_that_streams_goes_layer_by_layer_and_one_that_does_not_need_to_does_not() {
    let resident = rig("qwen3_moe-b", Ask { chunk: 64, ..Ask::default() });
    assert_eq!(resident.model.exec.plan().segment(), 0);
    let stream = StreamAsk { slots: Slots::Fewest, ..StreamAsk::default() };
    let streamed = rig("qwen3_moe-b", Ask { chunk: 64, stream, ..Ask::default() });
    let plan = streamed.model.exec.plan();
    assert!(plan.segment() > 64 && plan.segment() <= plan.context.next_multiple_of(64), "{}", plan.segment());
}

#[test]
fn experts_are_asked_for_once_in_a_segment_and_layer() {
    let mut r = rig("qwen3_5_moe-a", ask(Some(256)));
    let visits = weights::Visits::default();
    r.model.exec.set_tap(Some(Box::new(weights::Recorder::new(visits.clone()))));
    let seq = r.model.exec.open().unwrap();
    prefill(&mut r.model, seq, &r.expected.ids[..400]);
    let layers = r.model.exec.family().spec().n_layers;
    let seen: Vec<_> = visits.take().iter().map(|v| (v.layer, v.experts.len())).collect();
    // 400 rows are two segments of 256 at most, as even as the grid allows: 256 and 144.
    let want: Vec<_> = [256, 144].iter().flat_map(|&n| (0..layers).map(move |l| (l, n))).collect();
    assert_eq!(seen, want);
}

/// Kinds of layers that a segment must leave as they were: histories, recurrent states, rings, histories that are shared.
const KINDS: [&str; 5] = ["llama-a", "qwen3_next-a", "gemma3-a", "gemma4_e-b", "gpt_oss-a"];

#[test]
fn other_sequences_take_steps_between_layers_as_if_alone() {
    for name in KINDS {
        let mut r = rig(name, ask(Some(256)));
        let (m, ids) = (&mut r.model, &r.expected.ids);
        let other = m.exec.open().unwrap();
        prefill(m, other, &ids[..70]);
        let alone: Vec<f32> = ids[70..90].iter().flat_map(|&id| m.exec.decode(&[(other, id)]).unwrap()).collect();
        m.exec.close(other).unwrap();
        let seq = m.exec.open().unwrap();
        let want = prefill(m, seq, &ids[..250]);
        m.exec.close(seq).unwrap();

        let (other, seq) = (m.exec.open().unwrap(), m.exec.open().unwrap());
        prefill(m, other, &ids[..70]);
        let mut segment = m.exec.segment(seq, &ids[..250], &[]).unwrap();
        let (mut beside, mut at) = (Vec::new(), 70);
        loop {
            let done = m.exec.advance(&mut segment, &mut |_, _| Ok(())).unwrap();
            beside.extend(m.exec.decode(&[(other, ids[at])]).unwrap());
            at += 1;
            if done {
                break;
            }
        }
        assert!(matches!(m.exec.decode(&[(seq, 1)]), Err(Error::State(_))), "{name}: it is in a segment");
        assert!(m.exec.finish(segment, Some(Wanted::All)).unwrap() == want, "{name}: company changes the segment");
        beside.extend(ids[at..90].iter().flat_map(|&id| m.exec.decode(&[(other, id)]).unwrap()));
        assert!(beside == alone, "{name}: a segment changes its company");
    }
}

#[test]
fn a_segment_that_is_cancelled_abandoned_or_dropped_leaves_no_trace() {
    for name in KINDS {
        let mut r = rig(name, ask(Some(256)));
        let (m, ids) = (&mut r.model, &r.expected.ids);
        let seq = m.exec.open().unwrap();
        prefill(m, seq, &ids[..150]);
        let untouched = m.exec.verify(seq, &ids[150..154], |_| 0).unwrap();
        for how in 0..4 {
            let decoy: Vec<u32> = ids[..250].iter().rev().copied().collect();
            if how == 0 {
                let cancel = AtomicBool::new(true);
                let done = m.exec.prefill(seq, &decoy, Wanted::Last, &cancel, &mut |_| panic!("nothing is done"));
                assert!(matches!(done, Err(Error::Cancelled)));
            } else {
                let mut g = m.exec.segment(seq, &decoy, &[]).unwrap();
                // As far as the last layer, which wrote everything it may.
                while how > 1 && !m.exec.advance(&mut g, &mut |_, _| Ok(())).unwrap() {}
                match how {
                    1 => assert!(matches!(m.exec.finish(g, None), Err(Error::Unfinished { done: 0, .. }))),
                    2 => m.exec.abandon(g).unwrap(),
                    _ => drop(g),
                }
            }
            assert_eq!(m.exec.len(seq).unwrap(), 150);
            let again = m.exec.verify(seq, &ids[150..154], |_| 0).unwrap();
            assert!(again == untouched, "{name}: ended as {how}, a segment left a trace");
        }
        // And the sequence goes on as if there had been none.
        let after = prefill(m, seq, &ids[150..400]);
        m.exec.close(seq).unwrap();
        let seq = m.exec.open().unwrap();
        prefill(m, seq, &ids[..150]);
        assert!(prefill(m, seq, &ids[150..400]) == after, "{name}");
    }
}

#[test]
fn states_at_marks_are_those_of_a_sequence_that_ends_there() {
    for name in ["qwen3_next-a", "qwen3_5_moe-b"] {
        let mut r = rig(name, ask(Some(256)));
        let (m, ids) = (&mut r.model, &r.expected.ids);
        let read = |dev: &mut dyn device::Device, s: &engine::Recurrent| {
            [s.state, s.conv].map(|b| {
                let mut bytes = vec![0; b.bytes() as usize];
                dev.read(b, &mut bytes).unwrap();
                bytes
            })
        };
        let seq = m.exec.open().unwrap();
        let mut g = m.exec.segment(seq, &ids[..250], &[64, 192, 250]).unwrap();
        let mut passed = Vec::new();
        while !m
            .exec
            .advance(&mut g, &mut |dev, p| {
                passed.push(((p.rows, p.state.layer), read(dev, &p.state)));
                Ok(())
            })
            .unwrap()
        {}
        m.exec.finish(g, None).unwrap();
        let mut found = 0;
        for n in [64u32, 192, 250] {
            let seq = m.exec.open().unwrap();
            prefill(m, seq, &ids[..n as usize]);
            for s in m.exec.recurrent(seq).unwrap() {
                let want = read(m.exec.device(), &s);
                let got = passed.iter().find(|(at, _)| *at == (n, s.layer)).map(|(_, got)| got);
                assert!(got == Some(&want), "{name}: layer {} at {n}", s.layer);
                found += 1;
            }
            m.exec.close(seq).unwrap();
        }
        assert_eq!(found, passed.len(), "{name}");
        assert!(matches!(m.exec.segment(seq, &ids[..250], &[100]), Err(Error::BadMark { mark: 100, .. })));
    }
}

#[test]
fn a_segment_takes_exactly_the_metered_workspace() {
    use device::Region::{Carry, Step};
    for name in ["llama-b", "qwen3_5_moe-b", "gpt_oss-a", "gemma4_moe-b", "gemma4_e-a", "glm4_moe-b"] {
        for (segment, logit_rows) in [(128, 1), (320, 64)] {
            let dir = testkit::materialise(name).unwrap();
            let ask = Ask { segment: Some(segment), chunk: 64, logit_rows, ..Ask::default() };
            let how = OpenOptions { ask, ..OpenOptions::default() };
            let mut m = Model::open(dir.path().to_path_buf(), &how, &mut |_| {}).unwrap();
            let ids: Vec<u32> = (0..segment).map(|i| i % 200).collect();
            let seq = m.exec.open().unwrap();
            let wanted = if logit_rows == 1 { Wanted::Last } else { Wanted::All };
            let no = AtomicBool::new(false);
            m.exec.prefill(seq, &ids[..64], wanted, &no, &mut |_| {}).unwrap();
            m.exec.decode(&[(seq, 1)]).unwrap();
            m.exec.close(seq).unwrap();
            let seq = m.exec.open().unwrap();
            m.exec.prefill(seq, &ids, wanted, &no, &mut |_| {}).unwrap();
            let planned = m.exec.plan().workspace;
            let arena = m.exec.device().arena();
            let used = [arena.high_water(Step), arena.high_water(Carry)];
            assert_eq!(used, [planned.step, planned.carry], "{name}: segments of {segment}");
            let reserved = m.exec.ledger().usage()[&memory::Tier::Host].by_class[&memory::Class::Workspace];
            assert_eq!(reserved, m.exec.plan().workspace_bytes(), "{name}");
        }
    }
}
