//! Files that belong together: a predictor published as a GGUF of its own is found beside its model.

use checkpoint::{Checkpoint, Meta, NewTensor, TensorInfo, write_gguf};
use engine::{Ask, Model, OpenOptions};
use snug::quantize::{Options, parse_type, quantize};
use std::path::{Path, PathBuf};

const NAME: &str = "qwen3_5-a";
/// The tiny model's layers; its predictor is the block behind them.
const LAYERS: u32 = 4;

/// Writes the tensors that `keep` names, under the names it gives them.
fn part(from: &Checkpoint, out: &Path, meta: &Meta, keep: impl Fn(&str) -> Option<String>) {
    let kept: Vec<(&TensorInfo, String)> = from.tensors().filter_map(|t| Some((t, keep(&t.name)?))).collect();
    let new: Vec<NewTensor> = kept.iter().map(|(t, name)| NewTensor::new(&**name, t.dtype, &t.shape)).collect();
    write_gguf::<checkpoint::Error>(out, meta, &new, |i, w| {
        let mut bytes = vec![0; kept[i].0.at.len as usize];
        from.read_at(kept[i].0.at, &mut bytes)?;
        w.bytes(&bytes)
    })
    .unwrap();
}

fn keys(of: &Checkpoint, blocks: u32, nextn: Option<u32>) -> Meta {
    let mut meta = of.meta().clone();
    meta.set("qwen35.block_count", blocks).remove("qwen35.nextn_predict_layers");
    if let Some(n) = nextn {
        meta.set("qwen35.nextn_predict_layers", n);
    }
    meta
}

/// A model without its predictor, and the predictor under block `number` with a copy of the embedding.
fn split(dir: &Path, number: u32) -> (PathBuf, PathBuf) {
    let whole = dir.join("whole.gguf.tmp");
    let tiny = testkit::materialise(NAME).unwrap();
    let how = Options { to: parse_type("f32").unwrap(), rules: vec![], meta: vec![], force: true };
    quantize(tiny.path().to_path_buf(), &whole, &how, &mut |_, _| {}).unwrap();
    let ck = Checkpoint::open(whole).unwrap();
    let (model, mtp) = (dir.join("model.gguf"), dir.join("mtp-model.gguf"));
    let block = format!("blk.{LAYERS}.");
    part(&ck, &model, &keys(&ck, LAYERS, None), |n| (!n.starts_with(&block)).then(|| n.to_string()));
    part(&ck, &mtp, &keys(&ck, number + 1, Some(1)), |n| match n.strip_prefix(&block) {
        Some(rest) => Some(format!("blk.{number}.{rest}")),
        None => (n == "token_embd.weight").then(|| n.to_string()),
    });
    (model, mtp)
}

fn open(path: &Path) -> Model {
    let ask = Ask { logit_rows: 256, draft: 4, ..Ask::default() };
    Model::open(path.to_path_buf(), &OpenOptions { ask, ..OpenOptions::default() }, &mut |_| {}).unwrap()
}

#[test]
fn a_predictor_beside_its_model_is_used_and_one_in_the_file_is_the_same() {
    let want = testkit::expected(NAME).unwrap();
    let mtp = want.mtp.unwrap();
    for number in [LAYERS, 0] {
        let dir = tempfile::tempdir().unwrap();
        let (model, _) = split(dir.path(), number);
        let mut m = open(&model);
        assert_eq!(m.exec.family().spec().n_layers, LAYERS);
        let seq = m.exec.open().unwrap();
        let (_, ahead) = m.exec.foretell(seq, &want.ids).unwrap();
        let vocab = mtp.logits[0].values.len();
        for r in &mtp.logits {
            let ours = &ahead[(r.position + 1) * vocab..][..vocab];
            let off = ours.iter().zip(&r.values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < 1e-4, "row {} is off by {off}", r.position);
        }
        let ck = Checkpoint::open(model).unwrap();
        assert_eq!((ck.files(), ck.tensor("blk.4.nextn.eh_proj.weight").is_some()), (2, true));
        // A directory with both is the model, with its predictor.
        assert_eq!(Checkpoint::open(dir.path().to_path_buf()).unwrap().files(), 2);
    }
}

#[test]
fn a_predictor_of_another_model_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (model, mtp) = split(dir.path(), LAYERS);
    let other = Checkpoint::open(mtp.clone()).unwrap();
    let mut meta = other.meta().clone();
    meta.set("qwen35.embedding_length", 128u32);
    part(&other, &dir.path().join("x.tmp"), &meta, |n| Some(n.to_string()));
    drop(other);
    std::fs::rename(dir.path().join("x.tmp"), &mtp).unwrap();
    assert_eq!(Checkpoint::open(model.clone()).unwrap().files(), 1);
    // Of several without the model's name none is taken.
    std::fs::remove_file(&mtp).unwrap();
    let (again, fits) = split(dir.path(), LAYERS);
    for name in ["mtp-a.gguf", "mtp-b.gguf"] {
        std::fs::copy(&fits, dir.path().join(name)).unwrap();
    }
    assert_eq!(Checkpoint::open(again).unwrap().files(), 2, "the one with the model's name");
    std::fs::remove_file(&fits).unwrap();
    assert_eq!(Checkpoint::open(model).unwrap().files(), 1);
}

#[test]
fn a_vision_tower_is_named_and_refused_politely() {
    let dir = tempfile::tempdir().unwrap();
    let (model, mtp) = split(dir.path(), LAYERS);
    let tower = dir.path().join("mmproj-model.gguf");
    let mut meta = Meta::gguf();
    meta.set("general.architecture", "clip");
    part(&Checkpoint::open(mtp).unwrap(), &tower, &meta, |n| (n == "token_embd.weight").then(|| "v.x".into()));
    let ck = Checkpoint::open(tower.clone()).unwrap();
    let e = model::open(&ck).err().unwrap().to_string();
    assert!(e.contains("vision") && e.contains("language model"), "{e}");
    let ck = Checkpoint::open(model).unwrap();
    assert_eq!(ck.vision_files(), [tower]);
}
