//! Checkpoints of real geometries: they load, compute finite logits through every layer, and are the same for a seed.

mod common;

use common::{snug, str};
use engine::{Ask, Context, Model, OpenOptions, Wanted};
use snug::synth::{Format, Kind, Options, Report, Resize, Stopped, synth};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Real widths; few layers, experts and tokens, so that a test takes seconds.
fn small(geometry: &str, to: &str) -> Options {
    let dense = ["smollm2-135m", "llama-3.2-1b", "qwen3.8-27b", "gemma4-31b"].contains(&geometry);
    let experts = (!dense).then_some(4);
    Options {
        geometry: geometry.into(),
        resize: Resize { layers: Some(4), experts, vocab: Some(512) },
        to: Kind::parse(to).unwrap(),
        format: Format::Gguf,
        sparse: false,
        seed: 7,
        force: false,
    }
}

fn write(out: &Path, how: &Options) -> Report {
    synth(out, how, &mut |_, _| true).unwrap()
}

fn logits(path: &Path) -> Vec<f32> {
    let ask = Ask { logit_rows: 64, context: Context::Exactly(128), ..Ask::default() };
    let mut m = Model::open(path.to_path_buf(), &OpenOptions { ask, ..OpenOptions::default() }, &mut |_| {}).unwrap();
    let seq = m.exec.open().unwrap();
    m.exec.prefill(seq, &[72, 101, 108, 108, 111, 33], Wanted::All, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

/// Finite, not all alike, and of the size that logits have.
fn sane(logits: &[f32], what: &str) {
    assert!(logits.iter().all(|x| x.is_finite()), "{what}: not finite");
    let n = logits.len() as f32;
    let mean = logits.iter().sum::<f32>() / n;
    let spread = (logits.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / n).sqrt();
    assert!((0.3..3.0).contains(&spread), "{what}: logits spread by {spread}");
    assert!(mean.abs() < 0.5, "{what}: logits lie around {mean}");
}

#[test]
fn every_type_of_a_dense_model_gives_sane_logits() {
    let dir = tempfile::tempdir().unwrap();
    for to in ["f32", "bf16", "q8_0", "q4_0", "q4_k", "q5_1", "mxfp4"] {
        let file = dir.path().join(format!("{to}.gguf"));
        write(&file, &small("smollm2-135m", to));
        sane(&logits(&file), to);
    }
}

#[test]
fn a_mixture_with_its_predictor_gives_sane_logits() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.gguf");
    let report = write(&file, &small("qwen3.6-35b-a3b", "q4_k"));
    assert!(report.substituted.is_empty(), "{report:?}");
    sane(&logits(&file), "mixture");
    let ck = checkpoint::Checkpoint::open(file).unwrap();
    for name in ["blk.4.nextn.eh_proj.weight", "output.weight", "blk.3.attn_q.weight", "blk.0.ffn_gate_exps.weight"] {
        assert!(ck.tensor(name).is_some(), "{name}");
    }
    assert!(ck.meta().str("general.description").unwrap().unwrap().contains("seed 7"));
    // Other readers want one entry a block, and the predictor's is among them.
    let each = ck.meta().bools("qwen35moe.attention.recurrent_layers").unwrap().unwrap();
    assert_eq!(each, [true, true, true, false, false]);
    assert_eq!(ck.meta().u32("qwen35moe.block_count").unwrap(), Some(5));
}

#[test]
fn the_other_geometries_give_sane_logits_from_both_containers() {
    let dir = tempfile::tempdir().unwrap();
    for (geometry, layers) in [("qwen3-30b-a3b", 1), ("qwen3-next-80b-a3b", 1)] {
        for (format, to) in [(Format::Gguf, "q4_0"), (Format::Hf, "bf16")] {
            let out = dir.path().join(format!("{geometry}-{format:?}"));
            let resize = Resize { layers: Some(layers), experts: Some(2), ..small(geometry, to).resize };
            write(&out, &Options { format, resize, ..small(geometry, to) });
            sane(&logits(&out), &format!("{geometry} {format:?}"));
        }
    }
}

#[test]
fn formats_of_several_planes_give_sane_logits() {
    let dir = tempfile::tempdir().unwrap();
    let (hf, mlx) = (Format::Hf, Format::Mlx);
    let (dense, hybrid, gpt_oss) = ("smollm2-135m", "qwen3.6-35b-a3b", "gpt-oss-20b");
    for (format, to, geometry, says) in [
        (mlx, "mlx4", dense, "affine 4-bit g64"),
        (mlx, "mlx4", hybrid, "affine 4-bit g64"),
        (mlx, "mlx8", dense, "affine 8-bit g64"),
        (mlx, "bf16", dense, "BF16"),
        (hf, "fp8", dense, "FP8 E4M3 128x128"),
        (hf, "fp8", hybrid, "FP8 E4M3 128x128"),
        (hf, "nvfp4", dense, "NVFP4 planes"),
        (hf, "int4", dense, "int4 g128"),
        (hf, "mxfp4", gpt_oss, "MXFP4 planes"),
    ] {
        let out = dir.path().join(format!("{geometry}-{to}"));
        let few = Resize { layers: Some(2), experts: Some(2), vocab: Some(512) };
        let resize = if geometry == gpt_oss { few } else { small(geometry, to).resize };
        write(&out, &Options { format, resize, ..small(geometry, to) });
        sane(&logits(&out), &format!("{geometry} {to}"));
        let ck = checkpoint::Checkpoint::open(out.clone()).unwrap();
        let stored = ck.matrices().into_iter().filter(|m| m.format.to_string() == says).count();
        assert!(stored >= 4, "{geometry} {to}: {stored} matrices are {says}");
        std::fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn a_container_refuses_what_it_does_not_hold() {
    let dir = tempfile::tempdir().unwrap();
    for (format, to) in [
        (Format::Gguf, "mlx4"),
        (Format::Gguf, "fp8"),
        (Format::Mlx, "int4"),
        (Format::Hf, "mlx8"),
        (Format::Hf, "q4_0"),
    ] {
        let how = Options { format, ..small("smollm2-135m", to) };
        let e = synth(&dir.path().join("x"), &how, &mut |_, _| true).unwrap_err().to_string();
        assert!(e.contains("--format"), "{to}: {e}");
    }
    assert!(Kind::parse("fp7").unwrap_err().to_string().contains("nvfp4"));
}

#[test]
fn a_directory_computes_with_its_scaled_rope_and_tied_head() {
    let dir = tempfile::tempdir().unwrap();
    for (geometry, layers) in [("llama-3.2-1b", 1), ("qwen3.6-35b-a3b", 4)] {
        let out = dir.path().join(geometry);
        let resize = Resize { layers: Some(layers), ..small(geometry, "bf16").resize };
        write(&out, &Options { format: Format::Hf, resize, ..small(geometry, "bf16") });
        sane(&logits(&out), geometry);
        let ck = checkpoint::Checkpoint::open(out).unwrap();
        assert_eq!(ck.tensor("lm_head.weight").is_some(), geometry.starts_with("qwen"), "{geometry}");
    }
    // GGUF files carry the scaling as divisors.
    let file = dir.path().join("l.gguf");
    let resize = Resize { layers: Some(1), ..small("llama-3.2-1b", "q4_0").resize };
    write(&file, &Options { resize, ..small("llama-3.2-1b", "q4_0") });
    assert!(checkpoint::Checkpoint::open(file.clone()).unwrap().tensor("rope_freqs.weight").is_some());
    sane(&logits(&file), "llama as GGUF");
}

#[test]
fn a_seed_fixes_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, seed| {
        let path = dir.path().join(name);
        let how = Options { seed, ..small("smollm2-135m", "q4_0") };
        write(&path, &how);
        std::fs::read(path).unwrap()
    };
    let (a, b, c) = (file("a.gguf", 1), file("b.gguf", 1), file("c.gguf", 2));
    assert!(a == b, "the same seed");
    assert_eq!(a.len(), c.len());
    assert!(a != c, "another seed");
}

#[test]
fn text_goes_in_and_comes_out() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.gguf");
    write(&file, &small("smollm2-135m", "q4_0"));
    let ids = snug(&["tokenize", str(&file), "Hä <|im_end|>", "--json"]).json();
    assert_eq!(ids["ids"], serde_json::json!([72, 195, 164, 32, 258]), "{ids}");
    let answer = snug(&["run", str(&file), "-p", "Hello", "-n", "4", "--ignore-eos", "--json"]).json();
    assert_eq!(answer["ids"].as_array().map(Vec::len), Some(4), "{answer}");
}

#[test]
fn the_whole_35b_as_a_hole_is_inspected_and_takes_no_room() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.gguf");
    let r = snug(&["synth", "qwen3.6-35b-a3b", str(&file), "--sparse", "--type", "q4_0"]);
    assert_eq!((r.code, r.err.contains("hole")), (Some(0), true), "{r:?}");
    let on_disk = std::fs::metadata(&file).unwrap();
    assert!(on_disk.len() > 18 << 30 && on_disk.blocks() * 512 < 64 << 20, "{on_disk:?}");
    let seen = snug(&["inspect", str(&file), "--json"]).json();
    assert_eq!(seen["supported"], true, "{seen}");
    assert_eq!((&seen["model"]["n_layers"], &seen["model"]["mtp_layers"]), (&40.into(), &1.into()));
    // 34.661 B of text and 0.845 B of predictor.
    let elements = seen["elements"].as_f64().unwrap() / 1e9;
    assert!((elements - 35.506).abs() < 0.001, "{elements}");
}

/// Parameters and bytes of the published models, which `inspect` gives exactly.
#[test]
fn whole_geometries_as_holes_have_the_figures_of_the_real_models() {
    let dir = tempfile::tempdir().unwrap();
    // text, active, predictor, vision; bytes of a position, of states, of convolutions; of an expert, of a token's.
    let known = [
        ("qwen3-30b-a3b", [30_532_122_624, 3_353_032_704, 0, 0], [98_304, 0, 0], [2_654_208u64, 1_019_215_872]),
        (
            "qwen3-next-80b-a3b",
            [79_674_391_296, 3_874_929_408, 0, 0],
            [24_576, 75_497_472, 3_538_944],
            [1_769_472, 849_346_560],
        ),
        (
            "qwen3.6-35b-a3b",
            [34_660_610_688, 3_454_988_928, 844_640_768, 0],
            [20_480, 62_914_560, 2_949_120],
            [1_769_472, 566_231_040],
        ),
        (
            "qwen3.8-27b",
            [26_895_998_464, 26_895_998_464, 424_699_392, 460_730_096],
            [65_536, 150_994_944, 5_898_240],
            [0, 0],
        ),
    ];
    for (geometry, parameters, sequence, experts) in known {
        // Only safetensors files hold a vision tower.
        for format in if parameters[3] > 0 { &["gguf", "hf"][..] } else { &["gguf"] } {
            let out = dir.path().join(format!("{geometry}.{format}"));
            let to = if *format == "gguf" { "q4_0" } else { "bf16" };
            let r = snug(&["synth", geometry, str(&out), "--sparse", "--type", to, "--format", format]);
            assert_eq!(r.code, Some(0), "{r:?}");
            let seen = snug(&["inspect", str(&out), "--json"]).json();
            let get = |root: &str, name: &str| seen[root][name].as_u64().unwrap_or(0);
            let counted = ["text", "active", "predictor", "vision"].map(|n| get("parameters", n));
            let vision = if *format == "gguf" { 0 } else { parameters[3] };
            assert_eq!(counted, [parameters[0], parameters[1], parameters[2], vision], "{geometry} {format}");
            assert_eq!(get("parameters", "other"), 0, "{geometry} {format}");
            assert_eq!(
                ["bytes_per_position", "state_bytes", "conv_bytes"].map(|n| get("sequence", n)),
                sequence,
                "{geometry}"
            );
            if *format == "gguf" {
                assert_eq!(["bytes", "bytes_per_token"].map(|n| get("experts", n)), experts, "{geometry}");
            }
        }
    }
}

#[test]
fn a_smollm2_has_the_parameters_of_the_real_one() {
    let dir = tempfile::tempdir().unwrap();
    for format in [Format::Gguf, Format::Hf] {
        let out = dir.path().join(format!("{format:?}"));
        let how = Options { format, sparse: true, resize: Resize::default(), ..small("smollm2-135m", "bf16") };
        write(&out, &how);
        let ck = checkpoint::Checkpoint::open(out).unwrap();
        assert_eq!(ck.tensors().map(checkpoint::TensorInfo::elems).sum::<u64>(), 134_515_008);
    }
}

/// Parameters as their publishers count them, and what is stored beside them: numbers that are no parameters there.
const SIZES: [(&str, u64, u64); 6] = [
    ("smollm2-135m", 134_515_008, 0),
    ("gemma4-26b-a4b", 25_233_141_760, 30),
    ("gemma4-31b", 30_697_345_280, 60),
    ("gpt-oss-20b", 20_914_757_184, 0),
    ("gpt-oss-120b", 116_829_156_672, 0),
    ("glm-4.5-air", 106_852_245_504, 45 * 128),
];

#[test]
fn geometries_have_the_parameters_of_the_real_models() {
    let dir = tempfile::tempdir().unwrap();
    for (geometry, parameters, buffers) in SIZES {
        let out = dir.path().join(geometry);
        let r = snug(&["synth", geometry, str(&out), "--sparse", "--type", "bf16", "--format", "hf"]);
        assert_eq!(r.code, Some(0), "{r:?}");
        let seen = snug(&["inspect", str(&out), "--json"]).json();
        assert_eq!(seen["supported"], true, "{seen}");
        assert_eq!(seen["elements"], parameters + buffers, "{geometry}");
    }
}

/// History that grows with every position, and rings of whole windows, both in two bytes an element; bytes of one routed
/// expert in the type that experts of the model usually have.
#[test]
fn geometries_keep_and_read_the_bytes_of_the_real_models() {
    use memory::{Component, KvFormat, KvSpec};
    use state::Stream;
    let dir = tempfile::tempdir().unwrap();
    for (geometry, to, a_token, windows, expert) in [
        ("gemma4-26b-a4b", "q4_0", 20_480, 209_715_200, 3_345_408),
        ("gemma4-31b", "q4_0", 81_920, 838_860_800, 0),
        // Without the biases of 8,640 numbers.
        ("gpt-oss-20b", "mxfp4", 24_576, 3_145_728, 24_883_200 / 32 * 17),
        ("gpt-oss-120b", "mxfp4", 36_864, 4_718_592, 24_883_200 / 32 * 17),
        ("glm-4.5-air", "q4_0", 188_416, 0, 9_732_096),
    ] {
        let out = dir.path().join(geometry);
        write(
            &out,
            &Options { sparse: true, resize: Resize { vocab: Some(512), ..Resize::default() }, ..small(geometry, to) },
        );
        let o = engine::open::Opened::open(out).unwrap();
        let kv = vec![KvSpec::of(KvFormat::Bf16); o.family.spec().n_layers as usize];
        let (mut grows, mut rings) = (0, 0);
        for d in o.family.state(&kv) {
            match d.stream {
                Stream::Ring { window, .. } => rings += d.stream.read_bytes(window),
                _ => grows += d.stream.read_bytes(1),
            }
        }
        assert_eq!((grows, rings), (a_token, windows), "{geometry}");
        let (last, of) = (o.family.spec().n_layers - 1, o.family.spec().experts.map_or(1, |(n, _)| n as u64));
        let experts = o.bounds.iter().filter(|b| b.component == Component::Experts(last));
        assert_eq!(experts.map(|b| b.loaded_bytes()).sum::<u64>() / of, expert, "{geometry}");
    }
}

#[test]
fn q4_k_steps_down_where_rows_do_not_divide() {
    let dir = tempfile::tempdir().unwrap();
    for (geometry, tensor) in [("gemma4-26b-a4b", "blk.0.ffn_down_exps.weight"), ("gpt-oss-20b", "blk.0.attn_q.weight")]
    {
        let out = dir.path().join(geometry);
        let report = write(&out, &Options { sparse: true, ..small(geometry, "q4_k") });
        assert!(!report.substituted.is_empty());
        let ck = checkpoint::Checkpoint::open(out).unwrap();
        assert_eq!(ck.tensor(tensor).unwrap().dtype.name(), "Q5_0");
    }
}

#[test]
fn windowed_mixtures_give_sane_logits() {
    let dir = tempfile::tempdir().unwrap();
    for (geometry, to) in [("gemma4-26b-a4b", "q4_0"), ("gpt-oss-20b", "mxfp4"), ("gpt-oss-20b", "bf16")] {
        let resize = Resize { layers: Some(2), experts: Some(4), vocab: Some(512) };
        for format in if to == "bf16" { &[Format::Hf][..] } else { &[Format::Gguf] } {
            let out = dir.path().join(format!("{geometry}-{to}"));
            write(&out, &Options { resize, format: *format, ..small(geometry, to) });
            sane(&logits(&out), geometry);
        }
    }
}

#[test]
fn what_cannot_be_written_is_said_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.gguf");
    let fails = |args: &[&str]| snug(&[&["synth"], args].concat()).failed(2);
    assert!(fails(&["gpt-9", str(&file)]).contains("smollm2-135m, llama-3.2-1b, qwen3-30b-a3b"));
    assert!(fails(&["smollm2-135m", str(&file), "--experts", "4"]).contains("--experts"));
    assert!(fails(&["smollm2-135m", str(&file), "--type", "q9"]).contains("q4_k"));
    let hf = ["smollm2-135m", str(&file), "--type", "q4_0", "--format", "hf"];
    assert!(fails(&hf).contains("safetensors"));
    // More than any disk of a test machine has.
    let huge = ["qwen3.6-35b-a3b", str(&file), "--type", "f32", "--layers", "1024", "--experts", "4096"];
    let e = fails(&huge);
    assert!(e.contains("are needed") && e.contains("--sparse"), "{e}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
    std::fs::write(&file, "mine").unwrap();
    assert!(fails(&["smollm2-135m", str(&file)]).contains("--force"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn stopping_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let e = synth(&dir.path().join("m.gguf"), &small("smollm2-135m", "q4_0"), &mut |_, _| false).unwrap_err();
    assert!(e.is::<Stopped>(), "{e}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn force_replaces_a_file_and_moves_into_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    for format in [Format::Gguf, Format::Hf] {
        let out = dir.path().join(format!("{format:?}"));
        let how = |seed, force| Options { format, seed, force, ..small("smollm2-135m", "bf16") };
        write(&out, &how(1, false));
        let before = logits(&out);
        assert!(synth(&out, &how(2, false), &mut |_, _| true).unwrap_err().to_string().contains("--force"));
        write(&out, &how(2, true));
        assert!(logits(&out) != before, "{format:?}");
    }
}
