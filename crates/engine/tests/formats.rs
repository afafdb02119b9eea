//! Tiny models written in every scheme of safetensors files: logits are those of the same blocks as f32, and the rules of
//! rows hold.

use checkpoint::{DType, Format, Global, NewTensor, PLANES, write_safetensors};
use device::CpuOptions;
use engine::open::On;
use engine::{Ask, Model, OpenOptions, Wanted};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use testkit::{Tensor, TinyModel};

/// Activations of fifteen bits and f32 sums in another order; logits are about ±3.
const TOLERANCE: f32 = 2e-3;

/// A tensor of the new file.
struct Part {
    new: NewTensor,
    bytes: Vec<u8>,
}

/// How a publisher stores a matrix.
#[derive(Copy, Clone, Debug)]
enum Scheme {
    Mlx(Format),
    Fp8(Format),
    Modelopt,
    Packed(Format),
    GptOss,
}

impl Scheme {
    fn format(self) -> Format {
        match self {
            Scheme::Mlx(f) | Scheme::Fp8(f) | Scheme::Packed(f) => f,
            Scheme::Modelopt => Format::Nvfp4 { global: Global::Multiplies },
            Scheme::GptOss => Format::Mxfp4Hf,
        }
    }
    /// Names, types and whether they have the shape of codes, plane by plane, behind the name without `.weight`.
    fn names(self) -> [(&'static str, Option<DType>); PLANES] {
        match self {
            Scheme::Mlx(f) => {
                let scale = if matches!(f, Format::Affine { .. }) { None } else { Some(DType::U8) };
                [(".weight", Some(DType::U32)), (".scales", scale), (".biases", None), ("", None)]
            }
            Scheme::Fp8(_) => [(".weight", None), (".weight_scale_inv", None), ("", None), ("", None)],
            Scheme::Modelopt => [(".weight", None), (".weight_scale", None), ("", None), (".weight_scale_2", None)],
            Scheme::Packed(f) => {
                let scale = if f == Format::Mxfp4Hf { Some(DType::U8) } else { None };
                let (scale, zero) = ((".weight_scale", scale), (".weight_zero_point", None));
                [(".weight_packed", None), scale, zero, (".weight_global_scale", None)]
            }
            Scheme::GptOss => [("_blocks", None), ("_scales", Some(DType::U8)), ("", None), ("", None)],
        }
    }
    fn config(self) -> (&'static str, Value) {
        let of = |bits: u32, group: u32, mode: &str| {
            ("quantization", json!({"bits": bits, "group_size": group, "mode": mode}))
        };
        match self {
            Scheme::Mlx(Format::Affine { bits, group, .. }) => of(bits.into(), group, "affine"),
            Scheme::Mlx(Format::Mxfp4Hf) => of(4, 32, "mxfp4"),
            Scheme::Mlx(Format::Nvfp4 { .. }) => of(4, 16, "nvfp4"),
            Scheme::Mlx(_) => of(8, 32, "mxfp8"),
            Scheme::Fp8(_) => ("quantization_config", json!({"quant_method": "fp8", "weight_block_size": [128, 128]})),
            Scheme::Modelopt => ("quantization_config", json!({"quant_method": "modelopt", "quant_algo": "NVFP4"})),
            Scheme::Packed(_) => ("quantization_config", json!({"quant_method": "compressed-tensors"})),
            Scheme::GptOss => ("quantization_config", json!({"quant_method": "mxfp4"})),
        }
    }
}

/// Scales take the place of elements in the last dimension (and, in tiles, of rows).
fn plane_shape(shape: &[u64], plane: checkpoint::Plane, dtype: DType) -> Vec<u64> {
    let (n, outer) = (shape[shape.len() - 2], &shape[..shape.len() - 2]);
    if plane.rows == 0 {
        return outer.to_vec();
    }
    let rows = n.div_ceil(plane.rows.into());
    outer.iter().copied().chain([rows, plane.bytes / dtype.bytes() as u64]).collect()
}

/// A tensor as the parts of a scheme, and the values they stand for.
fn parts(scheme: Scheme, name: &str, shape: &[u64], values: &[f32]) -> (Vec<Part>, Vec<f32>) {
    let (n, k) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    let format = scheme.format();
    let cuts = format.planes(k).unwrap();
    let mut planes: [Vec<u8>; PLANES] = Default::default();
    let mut decoded = Vec::new();
    for matrix in values.chunks((n * k) as usize) {
        let one = format.encode(n, matrix).unwrap();
        for row in 0..n {
            let mut y = vec![0.0; k as usize];
            format.decode_row(std::array::from_fn(|i| &one[i][..]), row, &mut y).unwrap();
            decoded.extend(y);
        }
        planes.iter_mut().zip(one).for_each(|(all, one)| all.extend(one));
    }
    let base = name.strip_suffix(".weight").unwrap_or(name);
    let mut out = Vec::new();
    for (i, (bytes, (suffix, dtype))) in planes.into_iter().zip(scheme.names()).enumerate() {
        let Some(cut) = cuts[i] else { continue };
        let dtype = dtype.unwrap_or(cut.dtype);
        let mut shape = plane_shape(shape, cut, dtype);
        if suffix == "_blocks" {
            let bytes = shape.pop().unwrap();
            shape.extend([bytes / 16, 16]);
        }
        out.push(Part { new: NewTensor::new(format!("{base}{suffix}"), dtype, &shape), bytes });
    }
    (out, decoded)
}

fn plain(t: &Tensor, shape: &[u64], values: &[f32]) -> Part {
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Part { new: NewTensor::new(t.name.clone(), DType::F32, shape), bytes }
}

fn write(dir: &Path, config: &Value, parts: &[Part]) {
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let announced: Vec<_> = parts.iter().map(|p| p.new.clone()).collect();
    write_safetensors::<checkpoint::Error>(&dir.join("model.safetensors"), &[], &announced, |i, w| {
        w.bytes(&parts[i].bytes)
    })
    .unwrap();
}

/// Writes the model twice: in the scheme where `which` picks one for a tensor, and with the same values as f32.
fn both(model: &TinyModel, dir: &Path, config: Value, which: impl Fn(&Tensor) -> Option<Scheme>) {
    let (mut packed, mut floats) = (Vec::new(), Vec::new());
    for t in &model.tensors {
        let shape: Vec<u64> = t.shape.iter().map(|&d| d as u64).collect();
        let mut values = t.values(model.seed);
        match which(t) {
            Some(scheme) => {
                let (parts, decoded) = parts(scheme, &t.name, &shape, &values);
                packed.extend(parts);
                values = decoded;
            }
            None => packed.push(plain(t, &shape, &values)),
        }
        floats.push(plain(t, &shape, &values));
    }
    write(&dir.join("packed"), &config, &packed);
    write(&dir.join("floats"), &model.config, &floats);
}

fn open(dir: &Path, on: On) -> Model {
    // History in f32 on both sides, whatever the embedding is stored as.
    let ask = Ask {
        logit_rows: 256,
        few: 8,
        parallel: 4,
        kv: Some(memory::KvSpec::of(memory::KvFormat::F32)),
        ..Ask::default()
    };
    Model::open(dir.to_path_buf(), &OpenOptions { ask, on, ..OpenOptions::default() }, &mut |_| {}).unwrap()
}

fn prefilled(model: &mut Model, ids: &[u32]) -> Vec<f32> {
    let seq = model.exec.open().unwrap();
    let all = model.exec.prefill(seq, ids, Wanted::All, &AtomicBool::new(false), &mut |_| {}).unwrap();
    model.exec.close(seq).unwrap();
    all
}

fn decoded(model: &mut Model, ids: &[u32]) -> Vec<f32> {
    let seq = model.exec.open().unwrap();
    let all = ids.iter().flat_map(|&id| model.exec.decode(&[(seq, id)]).unwrap()).collect();
    model.exec.close(seq).unwrap();
    all
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| if a.is_finite() { (a - b).abs() } else { f32::INFINITY }).fold(0.0, f32::max)
}

/// Root mean square of the difference, of that of `b`.
fn rms(a: &[f32], b: &[f32]) -> f32 {
    let squares = |v: &mut dyn Iterator<Item = f32>| v.map(|x| x * x).sum::<f32>();
    (squares(&mut a.iter().zip(b).map(|(a, b)| a - b)) / squares(&mut b.iter().copied())).sqrt()
}

/// Close everywhere; in a mixture, close as a whole: a row whose experts nearly tie may choose others by the last bits of its activations, which every
/// later row sees. Wrong weights are off by about as much as there is.
#[track_caller]
fn close(got: &[f32], want: &[f32], mixture: bool, what: &str) {
    let (worst, rms) = (worst(got, want), rms(got, want));
    let near = if mixture { rms < 0.02 } else { worst < TOLERANCE };
    assert!(near, "{what}: logits are off by {worst} at most, {rms} of them all");
}

fn compare(dir: &Path, what: &str) {
    let cpu = || On::Cpu(CpuOptions::default());
    let ids: Vec<u32> = (0..70).map(|i| i * 37 % 251).collect();
    let want = prefilled(&mut open(&dir.join("floats"), On::Reference), &ids);
    let reference = prefilled(&mut open(&dir.join("packed"), On::Reference), &ids);
    assert!(want == reference, "{what}: the reference is off by {}", worst(&want, &reference));
    let mut model = open(&dir.join("packed"), cpu());
    let got = prefilled(&mut model, &ids);
    let mixture = model.exec.family().spec().experts.is_some();
    close(&got, &want, mixture, what);
    let single = decoded(&mut model, &ids[..12]);
    close(&single, &want[..single.len()], mixture, &format!("{what}, decoded one by one"));
    // A row's bits depend on itself alone.
    let (plan, usage) = (model.exec.plan(), model.exec.ledger().usage());
    assert_eq!(usage[&memory::Tier::Host].by_class[&memory::Class::Weights], plan.resident_bytes(), "{what}");
    let seqs: Vec<_> = [3u32, 9, 200].map(|id| (model.exec.open().unwrap(), id)).into();
    let together = model.exec.decode(&seqs).unwrap();
    let alone: Vec<f32> = [3u32, 9, 200].iter().flat_map(|&id| decoded(&mut model, &[id])).collect();
    assert!(together == alone, "{what}: company changes a row's bits");
}

fn with(mut config: Value, key: &str, value: Value) -> Value {
    config[key] = value;
    config
}

fn schemes() -> Vec<Scheme> {
    let kinds = Format::KINDS.into_iter().map(|(_, f)| match f {
        Format::Affine { .. } | Format::Mxfp4Hf | Format::Nvfp4 { global: Global::None } => Scheme::Mlx(f),
        Format::Fp8 { tile: [1, _], .. } => Scheme::Mlx(f),
        Format::Fp8 { .. } => Scheme::Fp8(f),
        Format::Nvfp4 { global: Global::Multiplies } => Scheme::Modelopt,
        _ => Scheme::Packed(f),
    });
    let others = [
        Scheme::Mlx(Format::Affine { bits: 4, group: 32, scale: DType::F32 }),
        Scheme::Fp8(Format::Fp8 { tile: [128, 128], scale: DType::BF16 }),
        Scheme::Packed(Format::Mxfp4Hf),
    ];
    kinds.chain(others).collect()
}

#[test]
fn a_dense_model_in_every_scheme() {
    let model = testkit::model("llama-a").unwrap();
    for scheme in schemes() {
        let dir = tempfile::tempdir().unwrap();
        let (key, value) = scheme.config();
        // MLX stores the embedding so too; the others leave it (and, as their configurations may say, single modules).
        let mlx = matches!(scheme, Scheme::Mlx(_));
        let ignored = |name: &str| !mlx && (name.contains("embed") || name.contains("layers.1.self_attn.o_proj"));
        let which = |t: &Tensor| (t.shape.len() == 2 && !ignored(&t.name)).then_some(scheme);
        both(&model, dir.path(), with(model.config.clone(), key, value), which);
        compare(dir.path(), &format!("{scheme:?}"));
    }
}

#[test]
fn single_paths_have_settings_of_their_own() {
    let model = testkit::model("llama-a").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let four = Format::Affine { bits: 4, group: 64, scale: DType::BF16 };
    let eight = Format::Affine { bits: 8, group: 32, scale: DType::BF16 };
    let config = json!({
        "bits": 4, "group_size": 64,
        "model.layers.0.mlp.down_proj": {"bits": 8, "group_size": 32},
        "model.layers.1.self_attn.v_proj": false,
    });
    let which = |t: &Tensor| match &t.name {
        n if t.shape.len() != 2 || n.contains("layers.1.self_attn.v_proj") => None,
        n if n.contains("layers.0.mlp.down_proj") => Some(Scheme::Mlx(eight)),
        _ => Some(Scheme::Mlx(four)),
    };
    both(&model, dir.path(), with(model.config.clone(), "quantization", config), which);
    compare(dir.path(), "paths of their own");
}

/// Stacks of experts in the schemes that have them: gpt-oss' blocks, MLX's stacked matrices, FP8 and packed ones apart.
#[test]
fn experts_in_every_scheme() {
    let moe = |t: &Tensor| t.name.contains(".experts.") && !t.name.starts_with("mtp");
    for name in ["qwen3_5_moe-a", "qwen3_5_moe-b"] {
        let model = testkit::model(name).unwrap();
        let fused = model.tensors.iter().any(|t| t.name.ends_with(".layers.1.mlp.experts.gate_up_proj"));
        let affine = Scheme::Mlx(Format::Affine { bits: 4, group: 32, scale: DType::BF16 });
        let schemes = if fused {
            vec![Scheme::GptOss]
        } else {
            let fp8 = Scheme::Fp8(Format::Fp8 { tile: [128, 128], scale: DType::F32 });
            let int4 = Scheme::Packed(Format::Int4 { group: 32, zero: true, scale: DType::BF16 });
            vec![affine, fp8, Scheme::Modelopt, Scheme::Packed(Format::Nvfp4 { global: Global::Divides }), int4]
        };
        for scheme in schemes {
            let dir = tempfile::tempdir().unwrap();
            let (key, value) = scheme.config();
            both(&model, dir.path(), with(model.config.clone(), key, value), |t| moe(t).then_some(scheme));
            compare(dir.path(), &format!("{name} {scheme:?}"));
        }
    }
}

/// MLX stacks the experts of a layer under another name.
#[test]
fn stacked_experts_of_mlx() {
    let model = testkit::model("qwen3_5_moe-a").unwrap();
    let scheme = Scheme::Mlx(Format::Affine { bits: 4, group: 32, scale: DType::BF16 });
    let (mut packed, mut floats) = (Vec::new(), Vec::new());
    for t in &model.tensors {
        let shape: Vec<u64> = t.shape.iter().map(|&d| d as u64).collect();
        let Some((root, rest)) = t.name.split_once(".experts.").filter(|(root, _)| !root.starts_with("mtp")) else {
            let values = t.values(model.seed);
            packed.push(plain(t, &shape, &values));
            floats.push(plain(t, &shape, &values));
            continue;
        };
        let (number, proj) = rest.split_once('.').unwrap();
        if number != "0" {
            continue;
        }
        let all: Vec<&Tensor> = (0..8).map(|e| model.tensor(&format!("{root}.experts.{e}.{proj}")).unwrap()).collect();
        let values: Vec<f32> = all.iter().flat_map(|t| t.values(model.seed)).collect();
        let name = format!("{root}.switch_mlp.{proj}");
        let (parts, decoded) = parts(scheme, &name, &[8, shape[0], shape[1]], &values);
        packed.extend(parts);
        floats.extend(all.iter().zip(decoded.chunks(t.numel())).map(|(t, v)| plain(t, &shape, v)));
    }
    let dir = tempfile::tempdir().unwrap();
    let (key, value) = scheme.config();
    write(&dir.path().join("packed"), &with(model.config.clone(), key, value), &packed);
    write(&dir.path().join("floats"), &model.config, &floats);
    compare(dir.path(), "stacked");
}

/// gpt-oss as it is published: blocks of rows, gate and up row by row in turn, where float checkpoints are transposed.
#[test]
fn gpt_oss_in_its_own_format() {
    for name in ["gpt_oss-a", "gpt_oss-b"] {
        let model = testkit::model(name).unwrap();
        let (mut packed, mut floats) = (Vec::new(), Vec::new());
        for t in &model.tensors {
            let shape: Vec<u64> = t.shape.iter().map(|&d| d as u64).collect();
            let mut values = t.values(model.seed);
            if t.name.ends_with("experts.gate_up_proj") || t.name.ends_with("experts.down_proj") {
                let [e, k, n] = [t.shape[0], t.shape[1], t.shape[2]];
                let turned = |v: &[f32], k: usize, n: usize| -> Vec<f32> {
                    let one = |m: &[f32]| {
                        (0..n).flat_map(|i| m[i..].iter().step_by(n).copied().collect::<Vec<_>>()).collect::<Vec<_>>()
                    };
                    v.chunks(k * n).flat_map(one).collect()
                };
                let rows = turned(&values, k, n);
                let (parts, decoded) = parts(Scheme::GptOss, &t.name, &[e as u64, n as u64, k as u64], &rows);
                packed.extend(parts);
                values = turned(&decoded, n, k);
            } else {
                packed.push(plain(t, &shape, &values));
            }
            floats.push(plain(t, &shape, &values));
        }
        let dir = tempfile::tempdir().unwrap();
        let (key, value) = Scheme::GptOss.config();
        write(&dir.path().join("packed"), &with(model.config.clone(), key, value), &packed);
        write(&dir.path().join("floats"), &model.config, &floats);
        compare(dir.path(), name);
    }
}
