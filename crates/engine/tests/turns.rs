//! A head that is away while prompts are read in segments: the same bits as with it there, in a room that never grows, and
//! whatever goes wrong, the next answer is made.

use device::Region;
use engine::open::Opened;
use engine::plan::{Slots, StreamAsk};
use engine::{Ask, Context, Error, Executor, Model, OpenOptions, SeqId, Wanted, argmax};
use memory::{Class, Component, Tier};
use std::path::Path;
use std::sync::atomic::AtomicBool;

const UNTIED: [&str; 7] =
    ["qwen3-a", "llama-b", "qwen3_moe-a", "qwen3_next-a", "qwen3_5_moe-a", "gpt_oss-a", "glm4_moe-a"];

fn open(dir: &Path, stream: StreamAsk, draft: u32) -> Executor {
    let ask =
        Ask { chunk: 64, few: 4, segment: Some(128), context: Context::Exactly(1024), stream, draft, ..Ask::default() };
    Model::open(dir.to_path_buf(), &OpenOptions { ask, ..OpenOptions::default() }, &mut |_| {}).unwrap().exec
}

fn away() -> StreamAsk {
    StreamAsk { away: true, ..StreamAsk::default() }
}

fn few() -> StreamAsk {
    StreamAsk { slots: Slots::Fewest, ..away() }
}

fn ids(exec: &Executor, n: u32) -> Vec<u32> {
    let vocab = exec.family().spec().vocab;
    (0..n).map(|i| (i * 37 + i * i / 5 + 11) % vocab).collect()
}

fn prefill(exec: &mut Executor, seq: SeqId, ids: &[u32]) -> engine::Result<Vec<f32>> {
    exec.prefill(seq, ids, Wanted::Last, &AtomicBool::new(false), &mut |_| {})
}

/// A long prompt, an answer, a short prompt, another long one and an answer.
fn everything(exec: &mut Executor) -> Vec<u32> {
    let ids = ids(exec, 700);
    let seq = exec.open().unwrap();
    let mut all = Vec::new();
    for (prompt, answer) in [(0..300, 300..303), (303..340, 340..341), (341..600, 600..604)] {
        all.extend(prefill(exec, seq, &ids[prompt]).unwrap());
        for &id in &ids[answer] {
            all.extend(exec.decode(&[(seq, id)]).unwrap());
        }
    }
    all.extend(exec.verify(seq, &ids[604..607], |_| 2).unwrap());
    exec.close(seq).unwrap();
    all.into_iter().map(f32::to_bits).collect()
}

fn held(exec: &Executor, class: Class) -> u64 {
    exec.ledger().usage()[&Tier::Host].by_class[&class]
}

#[test]
fn bits_are_those_of_a_head_that_is_there() {
    for name in UNTIED {
        let dir = testkit::materialise(name).unwrap();
        let want = everything(&mut open(dir.path(), StreamAsk::default(), 0));
        for stream in [away(), few()] {
            let mut exec = open(dir.path(), stream, 0);
            assert!(exec.plan().head_bytes() > 0, "{name}");
            assert!(everything(&mut exec) == want, "{name}");
            let l = exec.head().unwrap();
            assert_eq!((l.here, l.attached, l.refused), (true, 2, 0), "{name}: once for each long prompt");
            assert!(l.last > std::time::Duration::ZERO && l.attaching >= l.last);
        }
    }
}

#[test]
fn head_and_segments_are_in_one_room_that_is_never_larger_than_planned() {
    let dir = testkit::materialise("qwen3_moe-a").unwrap();
    let mut exec = open(dir.path(), few(), 0);
    let plan = exec.plan().clone();
    let (head, aside) = (plan.head_bytes(), plan.aside);
    assert!(head > 0 && aside > 0);
    let seq = exec.open().unwrap();
    let ids = ids(&exec, 400);
    let all = |exec: &Executor| exec.usage().reserved() - held(exec, Class::Kv);
    let (empty, weights) = (all(&exec), held(&exec, Class::Weights));
    assert_eq!(empty, plan.reserved_bytes() - plan.kv_bytes);
    let mut g = exec.segment(seq, &ids[..128], &[]).unwrap();
    assert_eq!((all(&exec), held(&exec, Class::Weights), exec.head().unwrap().here), (empty, weights, false));
    while !exec.advance(&mut g, &mut |_, _| Ok(())).unwrap() {}
    exec.finish(g, None).unwrap();
    assert_eq!(held(&exec, Class::Weights), weights, "nobody wanted logits");
    prefill(&mut exec, seq, &ids[128..]).unwrap();
    // Beside the head steps keep to their part of the workspace.
    exec.device().arena().reset_high_water();
    prefill(&mut exec, seq, &ids[..64]).unwrap();
    exec.verify(seq, &ids[..4], |_| 4).unwrap();
    let used = [Region::Step, Region::Carry].map(|r| exec.device().arena().high_water(r));
    assert!(used[0] <= plan.step_with_head() && used[1] == 0, "{used:?}");
    assert_eq!((all(&exec), held(&exec, Class::Weights), exec.head().unwrap().here), (empty, weights + head, true));
    assert_eq!(
        plan.step_with_head() + plan.workspace.carry + plan.row_bytes,
        plan.workspace_bytes() - (aside - plan.workspace.carry)
    );
}

/// Answers beside a prompt need it between layers.
#[test]
fn beside_others_it_stays() {
    let dir = testkit::materialise("qwen3_moe-a").unwrap();
    let ask = Ask { parallel: 2, chunk: 64, segment: Some(128), stream: few(), ..Ask::default() };
    let how = OpenOptions { ask, ..OpenOptions::default() };
    let exec = Model::open(dir.path().to_path_buf(), &how, &mut |_| {}).unwrap().exec;
    assert!(exec.plan().head_bytes() == 0 && exec.head().is_none() && exec.embed_rows().is_some());
}

/// A segment that is cancelled, abandoned or dropped leaves no trace, and the head comes for who decodes next.
#[test]
fn a_segment_that_does_not_end_gives_the_room_back() {
    let dir = testkit::materialise("qwen3_moe-a").unwrap();
    let mut plain = open(dir.path(), StreamAsk::default(), 0);
    let mut exec = open(dir.path(), few(), 0);
    let ids = ids(&exec, 300);
    let step = |exec: &mut Executor, seq| exec.decode(&[(seq, 9)]).unwrap();
    let (a, b) = (plain.open().unwrap(), exec.open().unwrap());
    assert_eq!(step(&mut exec, b), step(&mut plain, a));
    let mut g = exec.segment(b, &ids[..128], &[]).unwrap();
    exec.advance(&mut g, &mut |_, _| Ok(())).unwrap();
    assert!(exec.decode(&[(b, 9)]).is_err(), "the segment is in the room");
    exec.abandon(g).unwrap();
    assert_eq!(step(&mut exec, b), step(&mut plain, a));
    drop(exec.segment(b, &ids[..128], &[]).unwrap());
    assert_eq!(step(&mut exec, b), step(&mut plain, a));
    let stop = AtomicBool::new(true);
    assert!(matches!(exec.prefill(b, &ids, Wanted::Last, &stop, &mut |_| {}), Err(Error::Cancelled)));
    assert_eq!(step(&mut exec, b), step(&mut plain, a));
    let want = prefill(&mut plain, a, &ids).unwrap();
    assert_eq!(prefill(&mut exec, b, &ids).unwrap(), want);
    assert_eq!(exec.len(b).unwrap(), plain.len(a).unwrap());
}

/// A head that cannot be read is the error of who wanted logits. Nothing of it stays, and when the file is whole again it comes.
#[test]
fn a_head_that_cannot_be_read_is_tried_again() {
    let dir = testkit::materialise("llama-b").unwrap();
    let mut plain = open(dir.path(), StreamAsk::default(), 0);
    let mut exec = open(dir.path(), away(), 0);
    let ids = ids(&exec, 300);
    let (a, b) = (plain.open().unwrap(), exec.open().unwrap());
    let rest = |exec: &Executor| exec.usage().reserved() - held(exec, Class::Kv);
    let before = rest(&exec);
    let opened = Opened::open(dir.path().to_path_buf()).unwrap();
    let head = opened.bounds.iter().find(|b| b.component == Component::Head).unwrap();
    let weights::Data::Whole { range, .. } = head.data else { panic!("a single tensor") };
    let path = dir.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(range.off + 100).unwrap();
    for _ in 0..2 {
        assert!(prefill(&mut exec, b, &ids[..100]).is_err());
        assert!(exec.decode(&[(b, 9)]).is_err());
    }
    let l = exec.head().unwrap();
    assert_eq!((l.here, l.attached, l.refused, exec.len(b).unwrap()), (false, 0, 4, 0));
    exec.close(b).unwrap();
    let b = exec.open().unwrap();
    assert_eq!(rest(&exec), before, "the room is as it was");
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(prefill(&mut exec, b, &ids).unwrap(), prefill(&mut plain, a, &ids).unwrap());
    assert!(exec.head().unwrap().here);
}

#[test]
fn drafts_need_it_too() {
    for name in ["qwen3_5-a", "qwen3_5_moe-a"] {
        let dir = testkit::materialise(name).unwrap();
        let drafted = |exec: &mut Executor| {
            let ids = ids(exec, 300);
            let seq = exec.open().unwrap();
            let first = argmax(&prefill(exec, seq, &ids).unwrap()).unwrap();
            exec.draft(seq, first, 3, &mut |l| argmax(l)).unwrap()
        };
        let want = drafted(&mut open(dir.path(), StreamAsk::default(), 3));
        assert_eq!(drafted(&mut open(dir.path(), away(), 3)), want, "{name}");
    }
}
