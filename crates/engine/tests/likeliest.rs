//! Steps that give back only the likeliest ids.

use engine::{Ask, Context, Model, OpenOptions, Wanted};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

#[test]
fn the_likeliest_ids_of_a_step_are_those_of_its_logits() {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/snug-tiny-moe.gguf"));
    let ask = Ask { context: Context::Exactly(300), parallel: 3, ..Ask::default() };
    let mut model = Model::open(path, &OpenOptions { ask, ..OpenOptions::default() }, &mut |_| {}).unwrap();
    let planned = model.exec.plan().workspace.step;
    let vocab = model.exec.family().spec().vocab as usize;
    let mut step = |k: Option<u32>| {
        let seqs: Vec<_> = (0..3).map(|_| model.exec.open().unwrap()).collect();
        for (i, &seq) in seqs.iter().enumerate() {
            let ids: Vec<u32> = (0..20 + i as u32).map(|j| 300 + j * 37).collect();
            model.exec.prefill(seq, &ids, Wanted::Last, &AtomicBool::new(false), &mut |_| {}).unwrap();
        }
        let rows: Vec<_> = seqs.iter().map(|&s| (s, 400)).collect();
        let all = match k {
            Some(k) => model.exec.decode_likeliest(&rows, k).unwrap(),
            None => {
                let logits = model.exec.decode(&rows).unwrap();
                logits.chunks_exact(vocab).map(|row| device::op::likeliest(row, 64)).collect()
            }
        };
        seqs.into_iter().for_each(|s| model.exec.close(s).unwrap());
        all
    };
    let want = step(None);
    for k in [1, 40, 64] {
        for (got, want) in step(Some(k)).iter().zip(&want) {
            assert_eq!(got[..], want[..k as usize]);
        }
    }
    assert!(model.exec.device().arena().high_water(device::Region::Step) <= planned);
}
