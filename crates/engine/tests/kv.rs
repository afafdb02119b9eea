//! Formats of history in a whole model, the one that the binary carries (heads of 64).

use engine::{Ask, Context, Error, Model, OpenOptions, Refusal, Wanted};
use memory::KvSpec;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

fn open(kv: &str, context: u32) -> Model {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/snug-tiny-moe.gguf"));
    let ask = Ask { kv: Some(kv.parse().unwrap()), context: Context::Exactly(context), few: 8, ..Ask::default() };
    Model::open(path, &OpenOptions { ask, ..OpenOptions::default() }, &mut |_| {}).unwrap()
}

fn ids(n: u32) -> Vec<u32> {
    (0..n).map(|i| 300 + i * 37 % 2000).collect()
}

fn prefill(m: &mut Model, seq: engine::SeqId, ids: &[u32], wanted: Wanted) -> Vec<f32> {
    m.exec.prefill(seq, ids, wanted, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

/// Bytes of workspace in use while a chunk of 256 rows is read behind `depth` positions, and those planned.
fn workspace(kv: &str, depth: u32) -> (u64, u64) {
    let mut m = open(kv, depth + 256);
    let seq = m.exec.open().unwrap();
    m.exec.fill(seq, depth, 1).unwrap();
    prefill(&mut m, seq, &ids(256), Wanted::Last);
    (m.exec.device().arena().high_water(device::Region::Step), m.exec.plan().workspace.step)
}

#[test]
fn workspace_of_a_chunk_does_not_grow_with_depth_and_is_what_was_planned() {
    for kv in ["bf16", "q8", "tq4", "tq4+own-page+sink-page"] {
        let first = workspace(kv, 100);
        assert_eq!(first.0, first.1, "{kv}: used and planned");
        for depth in [700, 1792] {
            assert_eq!(workspace(kv, depth), first, "{kv} at {depth}");
        }
    }
}

/// What is read from history does not depend on how the prompt was cut into chunks of the grid, for any format: the
/// logits are the same to the bit.
#[test]
fn logits_do_not_depend_on_how_a_prompt_was_cut() {
    for kv in ["q8", "tq4", "tq4+own-page", "tq4+own-page+sink-page"] {
        let mut m = open(kv, 600);
        let mut read = |cuts: &[usize]| {
            let (seq, mut rest, ids) = (m.exec.open().unwrap(), 0, ids(520));
            let mut logits = Vec::new();
            for &n in cuts {
                logits = prefill(&mut m, seq, &ids[rest..rest + n], Wanted::Last);
                rest += n;
            }
            assert_eq!(rest, ids.len());
            m.exec.close(seq).unwrap();
            logits
        };
        let whole = read(&[520]);
        assert!(whole.iter().all(|x| x.is_finite()));
        for cuts in [&[64, 192, 256, 8][..], &[448, 72]] {
            assert_eq!(read(cuts), whole, "{kv} in {cuts:?}");
        }
    }
}

/// Drafted rows that are not accepted leave no trace: what is decoded next has the same bits.
#[test]
fn rows_that_were_rolled_back_leave_no_trace() {
    for kv in ["tq4", "tq4+own-page+sink-page"] {
        let mut m = open(kv, 600);
        let mut decode = |drafted: bool| {
            let seq = m.exec.open().unwrap();
            prefill(&mut m, seq, &ids(254), Wanted::Last);
            if drafted {
                // Over the edge of a page, and none of them kept.
                m.exec.verify(seq, &[7, 8, 9, 10, 11], |_| 0).unwrap();
            }
            let logits: Vec<Vec<f32>> = ids(4).iter().map(|&id| m.exec.decode(&[(seq, id)]).unwrap()).collect();
            m.exec.close(seq).unwrap();
            logits
        };
        assert_eq!(decode(false), decode(true), "{kv}");
    }
}

#[test]
fn a_width_that_a_format_is_not_for_is_refused_by_its_flag() {
    let dir = testkit::materialise("llama-a").unwrap();
    let path = dir.path().to_path_buf();
    let ask = Ask { kv: Some("tq4".parse::<KvSpec>().unwrap()), ..Ask::default() };
    let e = Model::open(path, &OpenOptions { ask, ..OpenOptions::default() }, &mut |_| {}).err().unwrap();
    assert!(matches!(e, Error::Refused(Refusal::KvWidth { kv: "tq4", d: 16, .. })), "{e}");
    assert!(e.to_string().starts_with("--kv tq4 is for heads of 64"), "{e}");
}
