//! The writers: what they write opens again and is the same, and a failure leaves nothing behind.

mod common;

use checkpoint::{
    Block, Checkpoint, DType, Error, Meta, NewTensor, write_gguf, write_gguf_to, write_safetensors,
    write_safetensors_to,
};
use common::{open, valid_gguf};
use proptest::prelude::*;

fn plan() -> Vec<NewTensor> {
    vec![
        NewTensor::new("norm", DType::F32, &[3]),
        NewTensor::new("half", DType::BF16, &[2, 5]),
        NewTensor::new("q", DType::Block(Block::Q4K), &[2, 2, 256]),
        NewTensor::new("last", DType::F16, &[1]),
    ]
}

fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.37).sin()).collect()
}

fn meta() -> Meta {
    let mut m = Meta::gguf();
    m.set("gone", 1u8)
        .set("general.architecture", "llama")
        .set("llama.block_count", 2u32)
        .set("split.count", 3u16)
        .set("tokens", vec!["a", "b"])
        .set("none", Vec::<f32>::new())
        .set("llama.block_count", 4u32);
    // The keys after a removed one are still found.
    m.remove("gone");
    m.remove("gone");
    assert_eq!(m.u32("llama.block_count").unwrap(), Some(4));
    m
}

#[test]
fn a_written_gguf_opens_and_holds_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    let plan = plan();
    write_gguf(&path, &meta(), &plan, |i, w| {
        let n: u64 = plan[i].shape.iter().product();
        w.floats(&values(n as usize))
    })
    .unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    let c = Checkpoint::open(path.as_path()).unwrap();
    let m = c.meta();
    assert_eq!(m.u32("llama.block_count").unwrap(), Some(4));
    assert_eq!(m.strs("tokens").unwrap().unwrap(), ["a", "b"]);
    assert_eq!(m.f32s("none").unwrap().unwrap(), [0.0; 0]);
    assert!(!m.has("split.count") && !m.has("gone"));
    for t in &plan {
        let got = c.tensor(&t.name).unwrap();
        assert_eq!((got.dtype, &got.shape), (t.dtype, &t.shape));
        assert_eq!(got.at.off % 32, 0);
        let want = values(got.elems() as usize);
        let mut have = vec![0.0; want.len()];
        c.read_f32(got, 0, got.shape[0], &mut have).unwrap();
        let worst = want.iter().zip(&have).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Values between -1 and 1: a four-bit step over them is 2/15, rounding leaves half of one and a little for the six-bit scales.
        assert!(worst < 0.1, "{}: {worst}", t.name);
    }
}

#[test]
fn copying_a_file_keeps_every_byte_that_matters() {
    let source = open(valid_gguf()).unwrap();
    let plan: Vec<NewTensor> = source.tensors().map(|t| NewTensor::new(&*t.name, t.dtype, &t.shape)).collect();
    let tensors: Vec<_> = source.tensors().collect();
    let mut out = Vec::new();
    write_gguf_to(&mut out, source.meta(), &plan, |i, w| {
        let mut b = vec![0; tensors[i].at.len as usize];
        source.read_at(tensors[i].at, &mut b)?;
        b.chunks(7).try_for_each(|piece| w.bytes(piece))
    })
    .unwrap();
    let copy = open(out).unwrap();
    let shown = |c: &Checkpoint| c.meta().entries().map(|(k, v)| format!("{k}={v:?}{v}")).collect::<Vec<_>>();
    assert_eq!(shown(&copy), shown(&source));
    for t in source.tensors() {
        let (mut a, mut b) = (vec![0; t.at.len as usize], vec![1; t.at.len as usize]);
        source.read_at(t.at, &mut a).unwrap();
        copy.read_at(copy.tensor(&t.name).unwrap().at, &mut b).unwrap();
        assert_eq!(a, b, "{}", t.name);
    }
}

#[test]
fn a_failure_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.gguf");
    std::fs::write(&path, "old").unwrap();
    let one = [NewTensor::new("t", DType::F32, &[4])];
    let try_with = |bytes: usize| write_gguf(&path, &Meta::gguf(), &one, |_, w| w.bytes(&vec![0; bytes]));
    assert!(matches!(try_with(15), Err(Error::WrongSize { want: 16, have: 15, .. })));
    assert!(matches!(try_with(17), Err(Error::WrongSize { want: 16, have: 17, .. })));
    let nan = write_gguf(&path, &Meta::gguf(), &[NewTensor::new("t", DType::Block(Block::Q8_0), &[32])], |_, w| {
        w.floats(&[f32::NAN; 32])
    });
    assert!(nan.unwrap_err().to_string().contains("\"t\""));
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    try_with(16).unwrap();
    Checkpoint::open(path).unwrap();
}

#[test]
fn what_a_container_cannot_hold_is_named() {
    let fill = |_: usize, _: &mut checkpoint::TensorWriter<'_>| Ok::<(), Error>(());
    let gguf = |t: &[NewTensor]| write_gguf_to(Vec::new(), &Meta::gguf(), t, fill).unwrap_err().to_string();
    let t = |name: &str, d, shape: &[u64]| NewTensor::new(name, d, shape);
    assert!(gguf(&[t("w", DType::U32, &[4])]).contains("U32"));
    assert!(gguf(&[t("w", DType::F32, &[1; 5])]).contains("dimensions"));
    assert!(gguf(&[t("w", DType::F32, &[0])]).contains("empty"));
    assert!(gguf(&[t("w", DType::Block(Block::Q4K), &[128])]).contains("Q4_K"));
    assert!(gguf(&[t("w", DType::F32, &[0; 0])]).contains("dimensions"));
    assert!(gguf(&[t("", DType::F32, &[1])]).contains("name"));
    let e = write_safetensors_to(Vec::new(), &[], &[t("w", DType::Block(Block::Q8_0), &[32])], fill).unwrap_err();
    assert!(e.to_string().contains("Q8_0"));
    let mut m = Meta::gguf();
    m.set("general.alignment", 24u32);
    assert!(write_gguf_to(Vec::new(), &m, &[], fill).unwrap_err().to_string().contains("power of two"));
}

#[test]
fn a_written_safetensors_opens_and_holds_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let plan = [
        NewTensor::new("b", DType::F32, &[2, 3]),
        NewTensor::new("a \"quoted\"", DType::BF16, &[3]),
        NewTensor::new("codes", DType::U8, &[5]),
        NewTensor::new("scalar", DType::F32, &[]),
    ];
    write_safetensors(&dir.path().join("model.safetensors"), &[("format", "pt")], &plan, |i, w| match i {
        2 => w.bytes(&[1, 2, 3, 4, 5]),
        _ => w.floats(&values(plan[i].shape.iter().product::<u64>() as usize)),
    })
    .unwrap();
    let c = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(c.tensors().map(|t| t.name.to_string()).collect::<Vec<_>>(), plan.clone().map(|t| t.name));
    assert_eq!(c.tensor("b").unwrap().at.off % 8, 0);
    let mut got = [0.0; 6];
    c.read_f32(c.tensor("b").unwrap(), 0, 2, &mut got).unwrap();
    assert_eq!(got[..], values(6));
    c.read_f32(c.tensor("scalar").unwrap(), 0, 1, &mut got[..1]).unwrap();
    let mut codes = [0; 5];
    c.read_at(c.tensor("codes").unwrap().at, &mut codes).unwrap();
    assert_eq!(codes, [1, 2, 3, 4, 5]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn any_plan_round_trips(
        shapes in proptest::collection::vec((0usize..5, proptest::collection::vec(1u64..5, 1..4)), 0..6),
        ints in proptest::collection::vec(any::<i64>(), 0..5),
        text in ".*",
    ) {
        let types = [DType::F32, DType::F16, DType::I32, DType::Block(Block::Q8_0), DType::Block(Block::Q6K)];
        let plan: Vec<NewTensor> = shapes.iter().enumerate().map(|(i, (d, shape))| {
            let mut shape = shape.clone();
            *shape.last_mut().unwrap() *= types[*d].elems() as u64;
            NewTensor::new(format!("t{i}"), types[*d], &shape)
        }).collect();
        let data = |i: usize| -> Vec<u8> {
            let t = &plan[i];
            let n = t.dtype.row_bytes(t.shape.iter().product()).unwrap();
            (0..n).map(|j| (j as usize * 31 + i) as u8).collect()
        };
        let mut m = Meta::gguf();
        m.set("ints", ints.clone()).set("text", text.as_str());
        let mut out = Vec::new();
        write_gguf_to(&mut out, &m, &plan, |i, w| w.bytes(&data(i))).unwrap();
        let c = open(out).unwrap();
        prop_assert_eq!(c.meta().str("text").unwrap(), Some(text.as_str()));
        prop_assert_eq!(c.tensors().len(), plan.len());
        for (i, t) in plan.iter().enumerate() {
            let info = c.tensor(&t.name).unwrap();
            prop_assert_eq!((info.dtype, &info.shape), (t.dtype, &t.shape));
            let mut got = vec![0; info.at.len as usize];
            c.read_at(info.at, &mut got).unwrap();
            prop_assert_eq!(got, data(i));
        }
    }
}
