//! Finding the tensors of a matrix: every scheme's names, settings of single paths, and parts that do not fit.

mod common;

use checkpoint::{Checkpoint, DType, Format, Global, MatrixInfo};
use serde_json::{Value, json};

/// A directory with these tensors, (name, dtype, shape); bytes count up.
struct Dir(tempfile::TempDir);

impl Dir {
    fn new(config: Value, tensors: &[(&str, &str, &[u64])]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut header = serde_json::Map::new();
        let mut at = 0;
        for (name, dtype, shape) in tensors {
            let size = match *dtype {
                "F32" | "U32" | "I32" => 4,
                "BF16" | "F16" => 2,
                "I64" => 8,
                _ => 1,
            };
            let end = at + size * shape.iter().product::<u64>();
            header.insert(name.to_string(), json!({"dtype": dtype, "shape": shape, "data_offsets": [at, end]}));
            at = end;
        }
        let mut text = Value::Object(header).to_string();
        text += &" ".repeat(text.len().next_multiple_of(8) - text.len());
        let data: Vec<u8> = (0..at).map(|i| i as u8).collect();
        std::fs::write(dir.path().join("model.safetensors"), common::safetensors(&text, &data)).unwrap();
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        Dir(dir)
    }
    fn open(&self) -> Checkpoint {
        Checkpoint::open(self.0.path().to_path_buf()).unwrap()
    }
    fn find(&self, name: &str) -> MatrixInfo {
        self.open().matrix(name).unwrap().unwrap()
    }
    fn error(&self, name: &str) -> String {
        self.open().matrix(name).unwrap_err().to_string()
    }
}

/// Name, type and shape of a tensor.
type Listed<'a> = (&'a str, &'a str, &'a [u64]);

fn planes(m: &MatrixInfo) -> Vec<Option<&str>> {
    m.planes.iter().map(|p| p.as_ref().map(|t| &*t.name)).collect()
}

#[test]
fn plain_tensors_are_themselves_and_missing_ones_none() {
    let d = Dir::new(json!({}), &[("a.weight", "BF16", &[4, 64])]);
    let m = d.find("a.weight");
    assert_eq!((m.format, m.n(), m.k(), m.count()), (Format::Plain(DType::BF16), 4, 64, 1));
    assert!(d.open().matrix("b.weight").unwrap().is_none());
}

#[test]
fn mlx_bits_and_groups_come_from_the_configuration_path_by_path() {
    let config = json!({"quantization": {
        "group_size": 64, "bits": 4, "mode": "affine",
        "language_model.model.layers.0.mlp.gate": {"group_size": 64, "bits": 8},
        "model.layers.1.x": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
        "lm_head": false,
    }});
    let d = Dir::new(
        config,
        &[
            ("model.layers.0.mlp.switch_mlp.up_proj.weight", "U32", &[3, 8, 16]),
            ("model.layers.0.mlp.switch_mlp.up_proj.scales", "BF16", &[3, 8, 2]),
            ("model.layers.0.mlp.switch_mlp.up_proj.biases", "BF16", &[3, 8, 2]),
            ("model.layers.0.mlp.gate.weight", "U32", &[3, 32]),
            ("model.layers.0.mlp.gate.scales", "F16", &[3, 2]),
            ("model.layers.0.mlp.gate.biases", "F16", &[3, 2]),
            ("language_model.model.layers.1.x.weight", "U32", &[3, 8]),
            ("language_model.model.layers.1.x.scales", "U8", &[3, 2]),
            ("lm_head.weight", "BF16", &[8, 128]),
        ],
    );
    let m = d.find("model.layers.0.mlp.switch_mlp.up_proj.weight");
    assert_eq!(m.format, Format::Affine { bits: 4, group: 64, scale: DType::BF16 });
    assert_eq!((m.shape.to_vec(), m.count(), m.step(0), m.step(1), m.step(2)), (vec![3, 8, 128], 3, 512, 32, 32));
    let m = d.find("model.layers.0.mlp.gate.weight");
    assert_eq!((m.format, m.k()), (Format::Affine { bits: 8, group: 64, scale: DType::F16 }, 128));
    assert_eq!(d.find("language_model.model.layers.1.x.weight").format, Format::Mxfp4Hf);
    assert_eq!(d.find("lm_head.weight").format, Format::Plain(DType::BF16));
}

#[test]
fn gpt_oss_blocks_and_scales_are_a_stack() {
    let d = Dir::new(
        json!({"quantization_config": {"quant_method": "mxfp4"}}),
        &[("experts.gate_up_proj_blocks", "U8", &[2, 6, 3, 16]), ("experts.gate_up_proj_scales", "U8", &[2, 6, 3])],
    );
    let m = d.find("experts.gate_up_proj");
    assert_eq!((m.format, m.shape.to_vec()), (Format::Mxfp4Hf, vec![2, 6, 96]));
    assert_eq!((m.step(0), m.step(1)), (6 * 48, 18));
    assert_eq!(planes(&m)[..2], [Some("experts.gate_up_proj_blocks"), Some("experts.gate_up_proj_scales")]);
}

#[test]
fn eight_bit_floats_know_their_tiles() {
    let of = |config: Value, scale: &str, dtype: &str, shape: &[u64]| {
        let d = Dir::new(config, &[("a.weight", "F8_E4M3", &[200, 300]), (&format!("a.{scale}"), dtype, shape)]);
        d.find("a.weight").format
    };
    let fp8 = |tile, scale| Format::Fp8 { tile, scale };
    let block = json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 32]}});
    assert_eq!(of(json!({}), "weight_scale_inv", "F32", &[2, 3]), fp8([128, 128], DType::F32));
    assert_eq!(of(block, "weight_scale_inv", "BF16", &[4, 10]), fp8([64, 32], DType::BF16));
    assert_eq!(of(json!({}), "scale", "F8_E8M0", &[2, 3]), fp8([128, 128], DType::E8M0));
    assert_eq!(of(json!({}), "weight_scale", "F32", &[]), fp8([0, 0], DType::F32));
    assert_eq!(of(json!({}), "weight_scale", "BF16", &[200, 1]), fp8([1, 0], DType::BF16));
}

#[test]
fn four_bit_floats_of_three_publishers() {
    let scales = |name: &str, dtype: &str, cols: u64| (format!("a.{name}"), dtype.to_string(), vec![4, cols]);
    let build = |codes: (&str, &str), more: &[(String, String, Vec<u64>)]| {
        let mut t: Vec<(&str, &str, &[u64])> = vec![(codes.0, codes.1, &[4, 32])];
        t.extend(more.iter().map(|(n, d, s)| (&**n, &**d, &s[..])));
        Dir::new(json!({}), &t)
    };
    let one = |name: &str| (format!("a.{name}"), "F32".to_string(), vec![]);
    let d =
        build(("a.weight", "U8"), &[scales("weight_scale", "F8_E4M3", 4), one("weight_scale_2"), one("input_scale")]);
    let m = d.find("a.weight");
    assert_eq!((m.format, m.k()), (Format::Nvfp4 { global: Global::Multiplies }, 64));
    assert_eq!(planes(&m), [Some("a.weight"), Some("a.weight_scale"), None, Some("a.weight_scale_2")]);
    let d = build(("a.weight_packed", "U8"), &[scales("weight_scale", "F8_E4M3", 4), one("weight_global_scale")]);
    assert_eq!(d.find("a.weight").format, Format::Nvfp4 { global: Global::Divides });
    let d = build(("a.weight_packed", "U8"), &[scales("weight_scale", "U8", 2)]);
    assert_eq!(d.find("a.weight").format, Format::Mxfp4Hf);
    let d = build(("a.weight", "I8"), &[scales("scale", "F8_E8M0", 2)]);
    assert_eq!(d.find("a.weight").format, Format::Mxfp4Hf);
}

#[test]
fn packed_integers_with_and_without_zeros() {
    let codes: (&str, &str, &[u64]) = ("a.weight_packed", "I32", &[16, 16]);
    let d = Dir::new(json!({}), &[codes, ("a.weight_scale", "BF16", &[16, 1])]);
    assert_eq!(d.find("a.weight").format, Format::Int4 { group: 128, zero: false, scale: DType::BF16 });
    let zero: (&str, &str, &[u64]) = ("a.weight_zero_point", "I32", &[2, 4]);
    let d = Dir::new(json!({}), &[codes, ("a.weight_scale", "F16", &[16, 4]), zero]);
    let m = d.find("a.weight");
    assert_eq!((m.format, m.n(), m.k()), (Format::Int4 { group: 32, zero: true, scale: DType::F16 }, 16, 128));
    // Another width shows in the shape.
    let d = Dir::new(json!({}), &[codes, ("a.weight_scale", "BF16", &[16, 1]), ("a.weight_shape", "I64", &[2])]);
    assert!(d.error("a.weight").contains("weight_shape"));
}

#[test]
fn what_does_not_fit_names_the_tensor() {
    let mlx = json!({"quantization": {"group_size": 64, "bits": 4}});
    let codes: (&str, &str, &[u64]) = ("a.weight", "U32", &[8, 16]);
    let (scales, biases): (Listed, Listed) = (("a.scales", "BF16", &[8, 2]), ("a.biases", "BF16", &[8, 2]));
    let of = |config: &Value, t: &[(&str, &str, &[u64])], name: &str| Dir::new(config.clone(), t).error(name);
    let cases: [(&Value, &[Listed], &[&str]); 14] = [
        (&mlx, &[codes], &["a.weight", "'a.scales' is missing"]),
        (&mlx, &[codes, scales], &["a.weight", "'a.biases' is missing"]),
        (&mlx, &[codes, ("a.scales", "BF16", &[8, 3]), biases], &["a.scales", "[8, 3]"]),
        (&mlx, &[codes, scales, ("a.biases", "BF16", &[7, 2])], &["a.biases", "[7, 2]"]),
        (&mlx, &[codes, scales, ("a.biases", "F32", &[8, 2])], &["a.biases", "F32"]),
        (&mlx, &[codes, ("a.scales", "I32", &[8, 2]), biases], &["a.scales", "I32"]),
        (&json!({}), &[codes, scales, biases], &["a.weight", "bits and group_size"]),
        (
            &json!({"quantization": {"group_size": 96, "bits": 4}}),
            &[codes, scales, biases],
            &["a.weight", "groups of 96"],
        ),
        (&json!({"quantization": {"group_size": 64, "bits": 7}}), &[codes, scales, biases], &["a.weight", "7 bits"]),
        (
            &json!({"quantization": {"group_size": 64, "bits": 4, "mode": "new"}}),
            &[codes, scales],
            &["a.weight", "mode"],
        ),
        (&json!({}), &[("a.weight", "F8_E4M3", &[200, 300])], &["a.weight", "weight_scale_inv"]),
        (
            &json!({}),
            &[("a.weight", "F8_E4M3", &[200, 300]), ("a.weight_scale_inv", "F32", &[3, 2])],
            &["a.weight_scale_inv", "[3, 2]", "[2, 3]"],
        ),
        (
            &json!({}),
            &[("a.weight", "U8", &[4, 32]), ("a.weight_scale", "F8_E4M3", &[4, 4])],
            &["a.weight", "weight_scale_2' is missing"],
        ),
        (
            &json!({"quantization_config": {"quant_method": "bitsandbytes"}}),
            &[("a.weight", "U8", &[4, 32])],
            &["a.weight", "bitsandbytes"],
        ),
    ];
    for (config, tensors, says) in cases {
        let e = of(config, tensors, "a.weight");
        assert!(says.iter().all(|s| e.contains(s)), "{e}: not {says:?}");
    }
    let e =
        of(&json!({"quantization_config": {"quant_method": "gptq"}}), &[("a.qweight", "I32", &[16, 8])], "a.weight");
    assert!(e.contains("a.qweight") && e.contains("gptq"), "{e}");
    let blocks: (&str, &str, &[u64]) = ("g_blocks", "U8", &[2, 3, 16]);
    assert!(of(&json!({}), &[blocks], "g").contains("'g_scales' is missing"));
    assert!(of(&json!({}), &[blocks, ("g_scales", "U8", &[2, 2])], "g").contains("g_scales"));
    assert!(of(&json!({}), &[("g_blocks", "U8", &[2, 3, 8]), ("g_scales", "U8", &[2, 3])], "g").contains("sixteen"));
}

#[test]
fn companions_are_listed_with_their_matrix() {
    let d = Dir::new(
        json!({}),
        &[
            ("a.weight_packed", "U8", &[4, 32]),
            ("a.weight_scale", "U8", &[4, 2]),
            ("b_blocks", "U8", &[4, 2, 16]),
            ("b_scales", "U8", &[4, 2]),
            ("norm.weight", "F32", &[64]),
            ("broken.weight", "F8_E4M3", &[4, 64]),
        ],
    );
    let names: Vec<String> = d.open().matrices().iter().map(|m| format!("{} {}", m.name, m.format)).collect();
    assert_eq!(names, ["a.weight MXFP4 planes", "b MXFP4 planes", "norm.weight F32", "broken.weight F8_E4M3"]);
}

#[test]
fn rows_are_read_from_every_plane() {
    // Rows 2 and 3 of four, in tiles of sixteen rows and zeros of eight, are decoded as in the whole.
    for (format, n, k) in [
        (Format::Fp8 { tile: [16, 32], scale: DType::F32 }, 40u64, 96usize),
        (Format::Int4 { group: 32, zero: true, scale: DType::BF16 }, 24, 64),
        (Format::Nvfp4 { global: Global::Divides }, 9, 64),
    ] {
        let values: Vec<f32> = (0..n as usize * k).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0).collect();
        let planes = format.encode(n, &values).unwrap();
        let file: Vec<u8> = planes.concat();
        let json = format!(r#"{{"all":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}}}}"#, file.len());
        let ck = common::open(common::safetensors(&json, &file)).unwrap();
        let all = ck.tensor("all").unwrap().at;
        let mut off = all.off;
        let ranges = std::array::from_fn(|i| {
            let len = planes[i].len() as u64;
            off += len;
            (len > 0).then_some(checkpoint::ByteRange { file: all.file, off: off - len, len })
        });
        let mut whole = vec![0.0; values.len()];
        ck.read_rows(format, ranges, 0, k, &mut whole).unwrap();
        for (first, rows) in [(0, 1), (1, 2), (n as usize - 1, 1), (7, 2)] {
            let mut part = vec![0.0; rows * k];
            ck.read_rows(format, ranges, first as u64, k, &mut part).unwrap();
            assert_eq!(part, whole[first * k..(first + rows) * k], "{format} {first} {rows}");
        }
    }
}
