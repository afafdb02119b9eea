//! Formats that are read and not written: a GGUF with NVFP4 and a scale apart, packed safetensors as a source.

use checkpoint::{Block, Checkpoint, DType, Format, NewTensor, TensorInfo, write_gguf, write_safetensors};
use engine::{Ask, Model, OpenOptions, Wanted};
use snug::quantize::{Options, parse_type, quantize};
use std::path::Path;
use std::sync::atomic::AtomicBool;

fn to(from: &Path, out: &Path, kind: &str) {
    let how = Options { to: parse_type(kind).unwrap(), rules: vec![], meta: vec![], force: false };
    quantize(from.to_path_buf(), out, &how, &mut |_, _| {}).unwrap();
}

fn logits(path: &Path) -> Vec<f32> {
    let ids: Vec<u32> = (0..60).map(|i| i * 37 % 251).collect();
    let ask = Ask { logit_rows: 64, kv: Some(memory::KvSpec::of(memory::KvFormat::F32)), ..Ask::default() };
    let mut m = Model::open(path.to_path_buf(), &OpenOptions { ask, ..OpenOptions::default() }, &mut |_| {}).unwrap();
    let seq = m.exec.open().unwrap();
    m.exec.prefill(seq, &ids, Wanted::All, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| if a.is_finite() { (a - b).abs() } else { f32::INFINITY }).fold(0.0, f32::max)
}

fn values(ck: &Checkpoint, t: &TensorInfo) -> Vec<f32> {
    let mut out = vec![0.0; t.elems() as usize];
    ck.read_f32(t, 0, t.shape[0], &mut out).unwrap();
    out
}

/// A tensor to write.
struct Part {
    new: NewTensor,
    bytes: Vec<u8>,
}

fn floats(name: &str, shape: &[u64], v: &[f32]) -> Part {
    Part { new: NewTensor::new(name, DType::F32, shape), bytes: v.iter().flat_map(|x| x.to_le_bytes()).collect() }
}

/// Blocks of random codes whose scales are about one, and the values they stand for under `scale`.
fn blocks(name: &str, shape: &[u64], scale: f32, seed: &mut u64) -> (Part, Vec<f32>) {
    let mut random = || {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*seed >> 33) as u8
    };
    let dtype = DType::Block(Block::Nvfp4);
    let (rows, k) = (shape[..shape.len() - 1].iter().product::<u64>(), *shape.last().unwrap());
    let bytes: Vec<u8> = (0..dtype.row_bytes(k).unwrap() * rows)
        .map(|i| if i % 36 < 4 { 0x34 + random() % 8 } else { random() })
        .collect();
    let mut values = vec![0.0; (rows * k) as usize];
    for (row, y) in values.chunks_mut(k as usize).enumerate() {
        let (scale, format) = (scale.to_le_bytes(), Format::Scaled(Block::Nvfp4));
        format.decode_row([&bytes, &[], &[], &scale], row as u64, y).unwrap();
    }
    (Part { new: NewTensor::new(name, dtype, shape), bytes }, values)
}

fn write(out: &Path, meta: &checkpoint::Meta, parts: &[Part]) {
    let announced: Vec<_> = parts.iter().map(|p| p.new.clone()).collect();
    write_gguf::<checkpoint::Error>(out, meta, &announced, |i, w| w.bytes(&parts[i].bytes)).unwrap();
}

#[test]
fn nvfp4_of_gguf_files_with_its_scale() {
    let (dir, out) = (testkit::materialise("llama-a").unwrap(), tempfile::tempdir().unwrap());
    let at = |name: &str| out.path().join(name);
    to(dir.path(), &at("f32.gguf"), "f32");
    let ck = Checkpoint::open(at("f32.gguf")).unwrap();
    let (mut packed, mut plain, mut seed) = (Vec::new(), Vec::new(), 1);
    for (i, t) in ck.tensors().enumerate() {
        let v = values(&ck, t);
        if t.shape.len() < 2 || t.name.contains("embd") {
            packed.push(floats(&t.name, &t.shape, &v));
            plain.push(floats(&t.name, &t.shape, &v));
            continue;
        }
        // Every third matrix has no scale of its own.
        let scale = if i % 3 == 0 { 1.0 } else { 0.05 };
        let (part, v) = blocks(&t.name, &t.shape, scale, &mut seed);
        packed.push(part);
        plain.push(floats(&t.name, &t.shape, &v));
        if i % 3 != 0 {
            packed.push(floats(&t.name.replace(".weight", ".scale"), &[1], &[scale]));
        }
    }
    write(&at("packed.gguf"), ck.meta(), &packed);
    write(&at("plain.gguf"), ck.meta(), &plain);
    let want = logits(&at("plain.gguf"));
    let off = worst(&logits(&at("packed.gguf")), &want);
    let size = want.iter().fold(0f32, |m, x| m.max(x.abs()));
    assert!(off < 1e-3 * size, "logits are off by {off} of {size}");
    // As a source, the scale goes into the values, and is gone where they are.
    to(&at("packed.gguf"), &at("again.gguf"), "f32");
    let (again, plain) = (Checkpoint::open(at("again.gguf")).unwrap(), Checkpoint::open(at("plain.gguf")).unwrap());
    assert_eq!(again.tensors().len(), plain.tensors().len());
    for t in plain.tensors() {
        assert_eq!(values(&again, again.tensor(&t.name).unwrap()), values(&plain, t), "{}", t.name);
    }
}

/// A packed checkpoint as a source of a GGUF: row by row what its planes say, with q and k rearranged.
#[test]
fn packed_safetensors_become_a_gguf() {
    let model = testkit::model("llama-a").unwrap();
    let out = tempfile::tempdir().unwrap();
    let format = Format::Fp8 { tile: [128, 128], scale: DType::BF16 };
    let (mut packed, mut plain) = (Vec::new(), Vec::new());
    for t in &model.tensors {
        let shape: Vec<u64> = t.shape.iter().map(|&d| d as u64).collect();
        let v = t.values(model.seed);
        if shape.len() != 2 {
            packed.push(floats(&t.name, &shape, &v));
            plain.push(floats(&t.name, &shape, &v));
            continue;
        }
        let (n, k) = (shape[0], shape[1]);
        let [codes, scales, ..] = format.encode(n, &v).unwrap();
        let mut decoded = vec![0.0; v.len()];
        for (row, y) in decoded.chunks_mut(k as usize).enumerate() {
            format.decode_row([&codes, &scales, &[], &[]], row as u64, y).unwrap();
        }
        let tiles = [n.div_ceil(128), k.div_ceil(128)];
        packed.push(Part { new: NewTensor::new(t.name.clone(), DType::F8E4M3, &shape), bytes: codes });
        packed.push(Part { new: NewTensor::new(format!("{}_scale_inv", t.name), DType::BF16, &tiles), bytes: scales });
        plain.push(floats(&t.name, &shape, &decoded));
    }
    for (name, parts) in [("packed", &packed), ("plain", &plain)] {
        let dir = out.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("config.json"), model.config.to_string()).unwrap();
        let announced: Vec<_> = parts.iter().map(|p| p.new.clone()).collect();
        let file = dir.join("model.safetensors");
        write_safetensors::<checkpoint::Error>(&file, &[], &announced, |i, w| w.bytes(&parts[i].bytes)).unwrap();
    }
    for kind in ["f32", "q8_0"] {
        let file = |name: &str| out.path().join(format!("{name}-{kind}.gguf"));
        for name in ["packed", "plain"] {
            to(&out.path().join(name), &file(name), kind);
        }
        let (a, b) = (Checkpoint::open(file("packed")).unwrap(), Checkpoint::open(file("plain")).unwrap());
        let bytes = |ck: &Checkpoint, t: &TensorInfo| {
            let mut out = vec![0; t.at.len as usize];
            ck.read_at(t.at, &mut out).unwrap();
            out
        };
        assert_eq!(a.tensors().len(), b.tensors().len());
        for t in b.tensors() {
            assert!(bytes(&a, a.tensor(&t.name).unwrap()) == bytes(&b, t), "{kind}: {}", t.name);
        }
    }
}
