//! A hybrid as MLX writes it, in floats: other names, norms with their 1 in them, convolutions turned round, gate and up
//! of the experts apart. It computes what the published form computes.

use checkpoint::{DType, NewTensor, write_safetensors};
use engine::{Ask, Model, OpenOptions, Wanted};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use testkit::TinyModel;

type Written = (String, Vec<u64>, Vec<f32>);

/// A tensor of the published form as those that MLX makes of it.
fn turned(model: &TinyModel) -> Vec<Written> {
    let mut out = Vec::new();
    for t in model.tensors.iter().filter(|t| !t.name.starts_with("mtp.")) {
        let mut values = t.values(model.seed);
        let mut shape: Vec<u64> = t.shape.iter().map(|&n| n as u64).collect();
        let name = match t.name.strip_prefix("model.language_model.") {
            Some(rest) => format!("language_model.model.{rest}"),
            None => format!("language_model.{}", t.name),
        };
        let is_norm = name.ends_with("norm.weight") && !name.contains("linear_attn.norm");
        if is_norm {
            values.iter_mut().for_each(|x| *x += 1.0);
        }
        if name.ends_with("conv1d.weight") {
            shape.swap(1, 2);
        }
        let Some((root, proj)) = name.split_once(".experts.") else {
            out.push((name, shape, values));
            continue;
        };
        let stacked = |proj: &str| format!("{root}.switch_mlp.{proj}.weight");
        if proj == "down_proj" {
            out.push((stacked("down_proj"), shape, values));
            continue;
        }
        let each = (shape[1] * shape[2]) as usize;
        shape[1] /= 2;
        for (half, proj) in ["gate_proj", "up_proj"].into_iter().enumerate() {
            let of = values.chunks_exact(each).flat_map(|e| e[half * each / 2..][..each / 2].to_vec());
            out.push((stacked(proj), shape.clone(), of.collect()));
        }
    }
    out
}

fn write(model: &TinyModel, dir: &Path, tensors: &[Written]) {
    std::fs::write(dir.join("config.json"), model.config.to_string()).unwrap();
    let new: Vec<_> = tensors.iter().map(|(name, shape, _)| NewTensor::new(&**name, DType::F32, shape)).collect();
    let file = dir.join("model.safetensors");
    write_safetensors::<checkpoint::Error>(&file, &[("format", "mlx")], &new, |i, w| w.floats(&tensors[i].2)).unwrap();
}

fn logits(dir: &Path, ids: &[u32]) -> Vec<f32> {
    let ask = Ask { logit_rows: 256, ..Ask::default() };
    let mut m = Model::open(dir.to_path_buf(), &OpenOptions { ask, ..OpenOptions::default() }, &mut |_| {}).unwrap();
    let seq = m.exec.open().unwrap();
    m.exec.prefill(seq, ids, Wanted::All, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

#[test]
fn what_mlx_writes_computes_what_was_published() {
    let name = "qwen3_5_moe-b";
    let (model, want) = (testkit::model(name).unwrap(), testkit::expected(name).unwrap());
    let dir = tempfile::tempdir().unwrap();
    write(&model, dir.path(), &turned(&model));
    let got = logits(dir.path(), &want.ids);
    for row in &want.logits {
        let ours = &got[row.position * row.values.len()..][..row.values.len()];
        let off = ours.iter().zip(&row.values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 1e-4, "position {} is off by {off}", row.position);
    }
}

#[test]
fn a_head_that_the_configuration_says_is_there_must_be() {
    let mut model = testkit::model("qwen3-a").unwrap();
    model.tensors.retain(|t| t.name != "lm_head.weight");
    let dir = tempfile::tempdir().unwrap();
    testkit::write_checkpoint(&model, dir.path()).unwrap();
    let e = engine::open::Opened::open(dir.path().to_path_buf()).err().unwrap().to_string();
    assert!(e.contains("lm_head.weight"), "{e}");
}
