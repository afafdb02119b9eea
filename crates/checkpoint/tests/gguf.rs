//! GGUF files, right and wrong: what opens, and what the messages say about the rest.

mod common;

use checkpoint::{Block, Checkpoint, Container, DType, Error, Meta, Source, Value};
use common::{Raw, error, open, string, valid_gguf};

fn assert_says(message: &str, parts: &[&str]) {
    for p in parts {
        assert!(message.contains(p), "{message:?} does not say {p:?}");
    }
}

#[test]
fn a_valid_file_opens_with_everything_in_it() {
    let c = open(valid_gguf()).unwrap();
    let m = c.meta();
    assert_eq!(m.container(), Container::Gguf);
    assert_eq!(m.str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(m.u32("llama.block_count").unwrap(), Some(2));
    assert_eq!(m.f32("llama.rope.freq_base").unwrap(), Some(1e4));
    assert_eq!(m.bool("a.bool").unwrap(), Some(true));
    assert_eq!(m.bools("a.bools").unwrap(), Some(vec![true, false]));
    assert_eq!(m.strs("tokenizer.ggml.tokens").unwrap().unwrap(), ["a", "bc", ""]);
    assert_eq!(m.i32s("tokenizer.ggml.token_type").unwrap().unwrap(), [1, 1, 3]);
    assert_eq!(m.u32("no.such.key").unwrap(), None);
    assert!(matches!(m.value("a.nested"), Some(Value::Array(a)) if a.len == 2));

    let names: Vec<_> = c.tensors().map(|t| &*t.name).collect();
    assert_eq!(names, ["norm", "q8", "exps"]);
    let exps = c.tensor("exps").unwrap();
    assert_eq!((exps.dtype, exps.shape.as_slice(), exps.at.len), (DType::Block(Block::Q4_0), &[4, 2, 32][..], 144));
    assert!(c.tensor("none").is_none());
}

#[test]
fn reads_and_slices_give_the_files_bytes() {
    let bytes = valid_gguf();
    let c = open(bytes.clone()).unwrap();
    let t = c.tensor("exps").unwrap();
    let expert = t.slice0(2, 1).unwrap();
    assert_eq!((expert.off, expert.len), (t.at.off + 2 * 36, 36));
    let mut got = vec![0; 36];
    c.read_at(expert, &mut got).unwrap();
    assert_eq!(got, bytes[expert.off as usize..][..36]);
    let mut values = vec![0.0; 64];
    c.read_f32(t, 2, 1, &mut values).unwrap();
    let mut want = vec![0.0; 64];
    Block::Q4_0.decode(&got, &mut want);
    assert_eq!(values, want);

    assert!(matches!(t.slice0(3, 2), Err(Error::Slice { first: 3, n: 2, .. })));
    assert!(t.slice0(u64::MAX, 2).is_err());
    assert_eq!(t.slice0(4, 0).unwrap().len, 0);
    // A range of another length than the buffer is an error, not a panic.
    assert!(c.read_at(expert, &mut [0; 35]).is_err());
}

#[test]
fn embedded_bytes_are_not_copied() {
    let bytes: &'static [u8] = valid_gguf().leak();
    let c = Checkpoint::open(Source::Embedded(bytes)).unwrap();
    let at = c.tensor("q8").unwrap().at;
    let got = c.embedded(at).unwrap();
    assert_eq!((got.as_ptr(), got.len()), (bytes[at.off as usize..].as_ptr(), 102));
    let token = c.meta().strs("tokenizer.ggml.tokens").unwrap().unwrap()[1];
    assert!(bytes.as_ptr_range().contains(&token.as_ptr()), "strings lie where they were");
    assert!(c.embedded(checkpoint::ByteRange { len: u64::MAX, ..at }).is_none());
    assert!(c.path(at.file).is_none());
}

#[test]
fn version_two_is_read_others_are_named() {
    let raw = |version| Raw { version, ..Raw::new() };
    raw(2).open().unwrap();
    assert_says(&raw(1).error(), &["version 1", "convert it again"]);
    assert_says(&raw(4).error(), &["version 4"]);
    assert_says(&raw(3u32.swap_bytes()).error(), &["big-endian"]);
}

#[test]
fn truncated_at_the_magic() {
    let whole = Raw::new().bytes();
    for n in [0, 4, 5, 23] {
        let e = error(&whole[..n]);
        assert!(matches!(e, Error::Truncated { need: 24, have, .. } if have == n as u64), "{e}");
        assert_says(
            &e.to_string(),
            &["it is cut short: up to byte 24 is needed", &format!("the file has {n}; download it again")],
        );
    }
}

#[test]
fn other_files_are_recognised() {
    for (bytes, says) in [
        (&b"GGML\x01\x00\x00\x00"[..], "old GGML format"),
        (b"tjgg\x03\x00\x00\x00", "old GGML format"),
        (b"<!DOCTYPE html><html><head>", "web page"),
        (b"\n<html lang=en>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        (b"PK\x03\x04........", "PyTorch or zip"),
        (b"{\"model_type\":\"llama\"}", "JSON"),
        (b"hello, world", "not a model"),
    ] {
        let e = error(bytes);
        assert!(matches!(e, Error::NotACheckpoint { .. }), "{e}");
        assert_says(&e.to_string(), &[says]);
    }
}

#[test]
fn alignment_must_make_sense() {
    for bad in [0u32, 3, 1 << 31] {
        let e = Raw::new().key("general.alignment", bad).open().unwrap_err();
        assert!(matches!(&e, Error::Key { key, .. } if key == "general.alignment"), "{e}");
        assert_says(&e.to_string(), &["power of two"]);
    }
    let e = Raw::new().key("general.alignment", "32").open().unwrap_err();
    assert!(matches!(&e, Error::WrongType { want: "an integer", have, .. } if have == "a string"), "{e}");
    let raw = Raw { alignment: 256, ..Raw::new().key("general.alignment", 256u64).tensor("t", &[4], 0, 256).data(272) };
    assert_eq!(raw.open().unwrap().tensor("t").unwrap().at.off % 256, 0);
    assert_says(&Raw::new().tensor("t", &[4], 0, 16).data(64).error(), &["\"t\"", "multiple of 32"]);
}

#[test]
fn sizes_are_checked_without_wrapping() {
    let one = |dims: &[u64], ty| Raw::new().tensor("weird", dims, ty, 0).data(64);
    assert_says(&one(&[8, 0], 0).error(), &["\"weird\"", "empty"]);
    assert_says(&one(&[1024, (1 << 54) + 1], 0).error(), &["\"weird\"", "larger than any file"]);
    assert_says(&one(&[1 << 62], 0).error(), &["\"weird\"", "larger than any file"]);
    assert_says(&one(&[u64::MAX; 4], 0).error(), &["\"weird\""]);
    assert_says(&one(&[48, 32], 12).error(), &["\"weird\"", "48", "Q4_K", "256"]);
    assert_says(&one(&[2; 5], 0).error(), &["\"weird\"", "5 dimensions"]);
    assert_says(&one(&[], 0).error(), &["\"weird\"", "0 dimensions"]);

    let mut b = Raw { n_tensors: Some(1), ..Raw::new() }.bytes();
    b.extend(string("weird"));
    b.extend(u32::MAX.to_le_bytes());
    b.extend([0; 64]);
    assert_says(&error(b).to_string(), &["\"weird\"", "4294967295 dimensions"]);

    for huge in [1 << 63, u64::MAX, 1 << 40] {
        let e = Raw { n_tensors: Some(huge), ..Raw::new() }.open().unwrap_err();
        assert!(matches!(e, Error::Truncated { .. }), "{e}");
        let e = Raw { n_pairs: Some(huge), ..Raw::new() }.open().unwrap_err();
        assert!(matches!(e, Error::Truncated { .. }), "{e}");
    }
}

#[test]
fn lengths_inside_values_are_checked() {
    let with_value = |kind: u32, value: &[u8]| {
        let mut pair = string("some.key");
        pair.extend(kind.to_le_bytes());
        pair.extend(value);
        Raw { pairs: vec![pair], ..Raw::new() }.error()
    };
    let array = |kind: u32, n: u64| [&kind.to_le_bytes()[..], &n.to_le_bytes(), &[0; 16]].concat();
    assert_says(&with_value(8, &u64::MAX.to_le_bytes()), &["\"some.key\"", "it is cut short"]);
    for kind in [0, 4, 8, 9, 12] {
        assert_says(&with_value(9, &array(kind, 1 << 61)), &["\"some.key\"", "it is cut short"]);
    }
    assert_says(&with_value(13, &[0; 8]), &["\"some.key\"", "unknown type 13"]);
    assert_says(&with_value(9, &array(99, 1)), &["\"some.key\"", "unknown type 99"]);
    assert_says(&with_value(7, &[2]), &["\"some.key\"", "bool"]);
    let deep: Vec<u8> = (0..6).flat_map(|_| [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat()).collect();
    assert_says(&with_value(9, &[&deep[..], &array(0, 1)].concat()), &["\"some.key\"", "deeper"]);
}

#[test]
fn data_must_be_in_the_file() {
    let raw = Raw::new().tensor("far", &[1024], 0, 0).data(4096);
    let whole = raw.bytes();
    open(&whole[..]).unwrap();
    let e = error(&whole[..whole.len() - 1]);
    assert!(matches!(e, Error::DataCut { want, have, .. } if want == have + 1), "{e}");
    assert_says(&e.to_string(), &["it is cut short: up to byte", "download it again"]);
    assert_says(&e.to_string(), &["\"far\"", &whole.len().to_string(), &(whole.len() - 1).to_string()]);
    let e = Raw::new().tensor("far", &[1024], 0, 1 << 63).data(4096).error();
    assert_says(&e, &["\"far\""]);
    let e = Raw::new().tensor("far", &[1024], 0, u64::MAX - 31).data(4096).error();
    assert_says(&e, &["\"far\""]);
    let e = Raw::new().tensor("a", &[16], 0, 0).tensor("b", &[16], 0, 32).data(96).error();
    assert_says(&e, &["\"a\"", "\"b\"", "overlaps"]);
}

#[test]
fn a_file_that_shrinks_after_opening_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let whole = Raw::new().tensor("w", &[1024], 0, 0).data(4096).bytes();
    std::fs::write(&path, &whole).unwrap();
    let c = Checkpoint::open(path.as_path()).unwrap();
    let at = c.tensor("w").unwrap().at;
    let mut dst = vec![0; 4096];
    c.read_at(at, &mut dst).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(whole.len() as u64 - 100).unwrap();
    let e = c.read_at(at, &mut dst).unwrap_err();
    assert!(matches!(e, Error::Shrunk { off, want: 4096, have: 3996, .. } if off == at.off), "{e}");
    assert_says(&e.to_string(), &["m.gguf"]);
}

#[test]
fn names_must_be_there_and_unique() {
    assert_says(&Raw::new().key("", 1u32).error(), &["metadata key 0", "0 bytes"]);
    assert_says(&Raw::new().key("k", 1u32).key("k", 2u32).error(), &["\"k\"", "twice"]);
    let t = |n| Raw::new().tensor("w", &[4], 0, 0).tensor(n, &[4], 0, 32).data(64);
    t("v").open().unwrap();
    assert_says(&t("w").error(), &["\"w\"", "twice"]);
    assert_says(&t("").error(), &["tensor 1", "0 bytes"]);
}

#[test]
fn types_are_named_or_listed() {
    let of = |ty, n| Raw::new().tensor("w", &[n], ty, 0).data(2048);
    // Known by size: it can be listed, and is refused by name when it is used.
    let c = of(16, 256).open().unwrap();
    let t = c.tensor("w").unwrap();
    assert_eq!((t.dtype.name(), t.at.len), ("IQ2_XXS", 66));
    let e = c.usable(t).unwrap_err().to_string();
    assert_says(&e, &["\"w\"", "IQ2_XXS", "not supported", "Q4_K"]);
    assert!(c.read_f32(t, 0, 256, &mut [0.0; 256]).is_err());
    assert_says(&of(31, 256).error(), &["\"w\"", "Q4_0_4_4", "quantise the model again"]);
    assert_says(&of(77, 256).error(), &["\"w\"", "unknown type 77"]);
}

#[test]
fn integers_of_any_width_are_read() {
    let raw = Raw::new()
        .key("k.u8", 7u8)
        .key("k.i16", 7i16)
        .key("k.i32", 7i32)
        .key("k.u64", 7u64)
        .key("k.big", 1u64 << 40)
        .key("k.minus", -1i32)
        .key("k.text", "seven")
        .key("k.f64", 7.5f64)
        .key("type.u32", vec![1u32, 3])
        .key("type.i64", vec![1i64, 3])
        .key("type.big", vec![1i64, 1 << 40])
        .key("type.text", vec!["x"])
        .key("heads", vec![8u32, 4, 8])
        .key("model", "gpt2");
    let c = raw.open().unwrap();
    let m = c.meta();
    for k in ["k.u8", "k.i16", "k.i32", "k.u64"] {
        assert_eq!(m.u32(k).unwrap(), Some(7), "{k}");
        assert_eq!(m.f32(k).unwrap(), Some(7.0), "{k}");
    }
    assert_eq!(m.f32("k.f64").unwrap(), Some(7.5));
    assert_eq!(m.u64("k.big").unwrap(), Some(1 << 40));
    for k in ["k.big", "k.minus"] {
        assert_says(&m.u32(k).unwrap_err().to_string(), &[k, "out of range"]);
    }
    assert_says(&m.u32("k.text").unwrap_err().to_string(), &["k.text", "a string", "an integer"]);
    assert_says(&m.u32("k.f64").unwrap_err().to_string(), &["k.f64", "f64", "an integer"]);
    for k in ["type.u32", "type.i64"] {
        assert_eq!(m.i32s(k).unwrap().unwrap(), [1, 3], "{k}");
    }
    assert_says(&m.i32s("type.big").unwrap_err().to_string(), &["type.big", "out of range"]);
    assert_says(&m.u32s("type.text").unwrap_err().to_string(), &["type.text", "an array of a string", "integers"]);
    assert_says(&m.strs("model").unwrap_err().to_string(), &["\"model\"", "a string", "an array of strings"]);
    assert_eq!(m.u32_per_layer("heads", 3).unwrap().unwrap(), [8, 4, 8]);
    assert_eq!(m.u32_per_layer("k.u8", 3).unwrap().unwrap(), [7, 7, 7]);
    assert_says(&m.u32_per_layer("heads", 4).unwrap_err().to_string(), &["\"heads\"", "3 values for 4 layers"]);
}

#[test]
fn missing_keys_are_listed_together() {
    let c = Raw::new().key("general.architecture", "llama").open().unwrap();
    let keys = ["general.architecture", "llama.block_count", "llama.context_length"];
    let e = c.meta().require(&keys).unwrap_err();
    assert!(matches!(&e, Error::MissingKeys { keys, .. } if keys.len() == 2), "{e}");
    assert_says(&e.to_string(), &["llama.block_count", "llama.context_length"]);
    assert!(c.meta().need("llama.block_count", Meta::u32).is_err());
    assert_eq!(c.meta().need("general.architecture", Meta::str).unwrap(), "llama");
}

#[test]
fn strings_that_are_not_utf8_are_reported_when_used() {
    let mut pair = string("bad");
    pair.extend(8u32.to_le_bytes());
    pair.extend(2u64.to_le_bytes());
    pair.extend([0xff, 0xfe]);
    let c = Raw { pairs: vec![pair], ..Raw::new() }.key("good", "x").open().unwrap();
    assert_eq!(c.meta().str("good").unwrap(), Some("x"));
    assert_says(&c.meta().str("bad").unwrap_err().to_string(), &["\"bad\"", "UTF-8"]);
}

fn part(no: u16, count: u16, total: i32, tensor: &str) -> Raw {
    Raw::new()
        .key("split.no", no)
        .key("split.count", count)
        .key("split.tensors.count", total)
        .key("from.part", u32::from(no))
        .tensor(tensor, &[8], 0, 0)
        .data(32)
}

#[test]
fn split_sets_open_from_any_part() {
    let dir = tempfile::tempdir().unwrap();
    let path = |i: u32| dir.path().join(format!("m-{i:05}-of-00003.gguf"));
    for (i, t) in ["a", "b", "c"].iter().enumerate() {
        std::fs::write(path(i as u32 + 1), part(i as u16, 3, 3, t).bytes()).unwrap();
    }
    for source in [path(1), path(3), dir.path().to_path_buf()] {
        let c = Checkpoint::open(source).unwrap();
        assert_eq!(c.tensors().map(|t| (&*t.name, t.at.file.0)).collect::<Vec<_>>(), [("a", 0), ("b", 1), ("c", 2)]);
        assert_eq!(c.meta().u32("from.part").unwrap(), Some(0), "the first part has the metadata");
        assert_eq!(c.path(c.tensor("b").unwrap().at.file).unwrap(), path(2));
        c.read_at(c.tensor("c").unwrap().at, &mut [0; 32]).unwrap();
        assert_eq!(c.identity().0.len(), 3);
    }

    std::fs::write(path(3), part(1, 3, 3, "c").bytes()).unwrap();
    assert_says(&Checkpoint::open(path(1)).unwrap_err().to_string(), &["00003-of-00003", "split.no", "is 1"]);
    std::fs::write(path(3), part(2, 3, 3, "a").bytes()).unwrap();
    assert_says(&Checkpoint::open(path(1)).unwrap_err().to_string(), &["\"a\"", "two parts"]);
    std::fs::write(path(3), part(2, 3, 4, "c").bytes()).unwrap();
    std::fs::write(path(1), part(0, 3, 4, "a").bytes()).unwrap();
    assert_says(&Checkpoint::open(path(1)).unwrap_err().to_string(), &["split.tensors.count", "4", "3"]);
    std::fs::remove_file(path(2)).unwrap();
    std::fs::remove_file(path(3)).unwrap();
    let e = Checkpoint::open(path(1)).unwrap_err();
    assert!(matches!(&e, Error::MissingParts { missing, .. } if missing.len() == 2), "{e}");
    assert_says(&e.to_string(), &["m-00002-of-00003.gguf", "m-00003-of-00003.gguf"]);

    let renamed = dir.path().join("renamed.gguf");
    std::fs::rename(path(1), &renamed).unwrap();
    assert_says(&Checkpoint::open(renamed).unwrap_err().to_string(), &["split.count", "several parts"]);
}

#[test]
fn directories_hold_one_model() {
    let dir = tempfile::tempdir().unwrap();
    assert_says(&Checkpoint::open(dir.path()).unwrap_err().to_string(), &["without"]);
    std::fs::write(dir.path().join("one.gguf"), valid_gguf()).unwrap();
    assert_eq!(Checkpoint::open(dir.path()).unwrap().tensors().len(), 3);
    std::fs::write(dir.path().join("two.gguf"), valid_gguf()).unwrap();
    assert_says(&Checkpoint::open(dir.path()).unwrap_err().to_string(), &["several", "one.gguf", "two.gguf"]);
    let e = Checkpoint::open(dir.path().join("none.gguf")).unwrap_err();
    assert!(matches!(e, Error::Io { action: "open", .. }), "{e}");
}

#[test]
fn identity_follows_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, valid_gguf()).unwrap();
    let (a, b) =
        (Checkpoint::open(path.as_path()).unwrap().identity(), Checkpoint::open(path.as_path()).unwrap().identity());
    assert_eq!(a, b);
    let other = dir.path().join("new.gguf");
    std::fs::write(&other, valid_gguf()).unwrap();
    std::fs::rename(&other, &path).unwrap();
    assert_ne!(a, Checkpoint::open(path.as_path()).unwrap().identity());

    let mut bytes = valid_gguf();
    let before = open(bytes.clone()).unwrap().identity();
    *bytes.last_mut().unwrap() ^= 1;
    assert_ne!(before, open(bytes).unwrap().identity(), "memory is known by its contents");
}

#[test]
fn a_header_longer_than_the_first_read_is_read_from_a_file() {
    let tokens: Vec<String> = (0..40_000).map(|i| format!("token-{i}")).collect();
    let raw = Raw::new().key("tokens", tokens.clone()).tensor("w", &[8], 0, 0).data(32);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, raw.bytes()).unwrap();
    assert!(raw.bytes().len() > 600_000);
    let c = Checkpoint::open(path).unwrap();
    assert_eq!(c.meta().strs("tokens").unwrap().unwrap(), tokens);
    assert_eq!(c.tensor("w").unwrap().at.len, 32);
}
