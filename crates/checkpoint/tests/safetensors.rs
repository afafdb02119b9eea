//! Safetensors files, shards and Hugging Face directories, right and wrong.

mod common;

use checkpoint::{Checkpoint, Container, DType, Error};
use common::{error, open, safetensors, valid_safetensors};
use serde_json::json;

fn assert_says(message: &str, parts: &[&str]) {
    for p in parts {
        assert!(message.contains(p), "{message:?} does not say {p:?}");
    }
}

fn f32s(name: &str, n: usize, from: usize, to: usize) -> String {
    format!(r#""{name}":{{"dtype":"F32","shape":[{n}],"data_offsets":[{from},{to}]}}"#)
}

#[test]
fn a_valid_file_opens_in_the_order_of_its_data() {
    let c = open(valid_safetensors()).unwrap();
    assert_eq!(c.meta().container(), Container::Hf);
    let all: Vec<_> = c.tensors().map(|t| (&*t.name, t.dtype, t.shape.to_vec(), t.at.len)).collect();
    assert_eq!(all, [("a", DType::F32, vec![4], 16), ("b", DType::BF16, vec![2, 3], 12), ("s", DType::U8, vec![], 1)]);
    let row = c.tensor("b").unwrap().slice0(1, 1).unwrap();
    assert_eq!((row.off, row.len), (c.tensor("b").unwrap().at.off + 6, 6));
    assert!(c.tensor("s").unwrap().slice0(0, 1).is_err());
    assert!(c.meta().config().is_none());
    assert_eq!(c.meta().u32("general.alignment").unwrap(), None);
}

#[test]
fn metadata_may_be_anything() {
    for meta in ["null", "{}", r#"{"format":"pt"}"#, "[1,2]", "3"] {
        let json = format!(r#"{{"__metadata__":{meta},{}}}"#, f32s("a", 1, 0, 4));
        open(safetensors(&json, &[0; 4])).unwrap();
    }
    open(safetensors("{}", &[])).unwrap();
}

#[test]
fn header_lengths_are_checked() {
    for n in [0, 5, 7] {
        let e = error(vec![0x20; n]);
        assert!(matches!(e, Error::Truncated { .. } | Error::NotACheckpoint { .. }), "{e}");
    }
    for n in [1u64 << 63, u64::MAX, 100_000_001] {
        let e = error([&n.to_le_bytes()[..], b"{}"].concat());
        assert_says(&e.to_string(), &[&n.to_string()]);
    }
    let e = error([&64u64.to_le_bytes()[..], b"{}"].concat());
    assert!(matches!(e, Error::Truncated { need: 72, have: 10, container: "safetensors", .. }), "{e}");
    assert_says(&e.to_string(), &["it is cut short: up to byte 72 is needed", "the file has 10; download it again"]);
    for n in [99_993usize, 99_994, 100_000] {
        let mut json = format!("{{{}}}", f32s("a", 1, 0, 4));
        json.extend(std::iter::repeat_n(' ', n - json.len()));
        assert_eq!(open(safetensors(&json, &[0; 4])).unwrap().tensor("a").unwrap().at.off, n as u64 + 8);
    }
    assert_says(&error(safetensors("{not json", &[])).to_string(), &["damaged header"]);
    assert_says(&error(safetensors(r#"{"a":{"dtype":"F32"}}"#, &[])).to_string(), &["\"a\"", "shape"]);
    let deep = format!("{{\"__metadata__\":{}", "[".repeat(100_000));
    assert_says(&error(safetensors(&deep, &[])).to_string(), &["damaged header"]);
}

#[test]
fn data_must_be_covered_exactly() {
    let two = |b: &str, n| safetensors(&format!("{{{},{b}}}", f32s("a", 2, 0, 8)), &vec![0; n]);
    open(two(&f32s("b", 1, 8, 12), 12)).unwrap();
    assert_says(&error(two(&f32s("b", 1, 4, 8), 8)).to_string(), &["\"b\"", "overlaps", "\"a\""]);
    assert_says(&error(two(&f32s("b", 1, 12, 16), 16)).to_string(), &["\"b\"", "gap of 4"]);
    assert_says(&error(two(&f32s("b", 1, 8, 12), 13)).to_string(), &["1 bytes after the last tensor"]);
    assert_says(&error(two(&f32s("b", 2, 8, 12), 12)).to_string(), &["\"b\"", "takes 8 bytes", "[8, 12]"]);
    assert_says(&error(two(&f32s("b", 1, 12, 8), 12)).to_string(), &["\"b\"", "[12, 8]"]);
    assert_says(&error(two(&f32s("a", 1, 8, 12), 12)).to_string(), &["\"a\"", "twice"]);
    let e = error(two(&f32s("b", 100, 8, 408), 308));
    assert!(matches!(e, Error::DataCut { want, have, .. } if want == have + 100), "{e}");
    assert_says(&e.to_string(), &["\"b\"", "it is cut short: up to byte", "download it again"]);
    let e =
        error(two(r#""b":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[8,18446744073709551608]}"#, 8));
    assert_says(&e.to_string(), &["\"b\""]);
    let e = error(two(r#""b":{"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[8,8]}"#, 8));
    assert_says(&e.to_string(), &["\"b\"", "larger than any file"]);
}

#[test]
fn types_are_named() {
    let e = error(safetensors(r#"{"w":{"dtype":"F8_E9","shape":[1],"data_offsets":[0,1]}}"#, &[0]));
    assert_says(&e.to_string(), &["\"w\"", "F8_E9", "F8_E4M3"]);
    let e = error(safetensors(r#"{"w":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}}"#, &[0; 4]));
    assert_says(&e.to_string(), &["\"w\"", "dimensions"]);
}

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
    fn put(&self, name: &str, bytes: impl AsRef<[u8]>) -> &Self {
        std::fs::write(self.0.path().join(name), bytes).unwrap();
        self
    }
    fn open(&self, name: &str) -> Result<Checkpoint, Error> {
        Checkpoint::open(self.0.path().join(name))
    }
}

fn shard(name: &str) -> Vec<u8> {
    safetensors(&format!("{{{}}}", f32s(name, 1, 0, 4)), &[1; 4])
}

#[test]
fn directories_bring_their_configuration() {
    let d = Dir::new();
    d.put("model.safetensors", valid_safetensors());
    let c = d.open("").unwrap();
    assert!(c.meta().config().is_none() && c.meta().hf().unwrap().tokenizer_json().unwrap().is_none());

    d.put("config.json", json!({"model_type": "vl", "a": 1, "text_config": {"model_type": "lm", "b": 2}}).to_string())
        .put("generation_config.json", r#"{"temperature":0.6}"#)
        .put("tokenizer.json", "{}")
        .put(
            "tokenizer_config.json",
            json!({"chat_template": [{"name": "tool", "template": "T"}, {"name": "default", "template": "D"}]})
                .to_string(),
        );
    for name in ["", "model.safetensors"] {
        let c = d.open(name).unwrap();
        let hf = c.meta().hf().unwrap();
        assert_eq!(c.meta().config().unwrap()["model_type"], "vl");
        let text = hf.text_config().unwrap();
        assert_eq!((&text["model_type"], &text["a"], &text["b"]), (&json!("lm"), &json!(1), &json!(2)));
        assert!(!text.contains_key("text_config"));
        assert_eq!(hf.generation.as_ref().unwrap()["temperature"], 0.6);
        assert_eq!(hf.tokenizer_json().unwrap().unwrap(), b"{}");
        assert_eq!(c.meta().chat_template().unwrap(), Some("D"));
    }
    d.put("chat_template.jinja", "J");
    assert_eq!(d.open("").unwrap().meta().chat_template().unwrap(), Some("J"));
    d.put("config.json", "{");
    assert_says(&d.open("").unwrap_err().to_string(), &["config.json", "JSON"]);
}

#[test]
fn shards_follow_the_index() {
    let d = Dir::new();
    let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let index = |map: serde_json::Value| json!({"metadata": {"total_size": 8}, "weight_map": map}).to_string();
    d.put(names[0], shard("a")).put(names[1], shard("b"));
    assert_says(&d.open(names[0]).unwrap_err().to_string(), &["model.safetensors.index.json"]);
    d.put("model.safetensors.index.json", index(json!({"a": names[0], "b": names[1]})));
    for source in ["", names[1]] {
        let c = d.open(source).unwrap();
        assert_eq!(c.tensors().map(|t| (&*t.name, t.at.file.0)).collect::<Vec<_>>(), [("a", 0), ("b", 1)]);
        c.read_at(c.tensor("b").unwrap().at, &mut [0; 4]).unwrap();
    }

    // A tensor comes from the shard that the index says, even if another shard has one of that name.
    let both = safetensors(&format!("{{{},{}}}", f32s("a", 1, 0, 4), f32s("b", 1, 4, 8)), &[1; 8]);
    d.put(names[0], both);
    assert_eq!(
        d.open("").unwrap().tensors().map(|t| (&*t.name, t.at.file.0)).collect::<Vec<_>>(),
        [("a", 0), ("b", 1)]
    );

    d.put("model.safetensors.index.json", index(json!({"a": names[0], "c": names[1]})));
    assert_says(&d.open("").unwrap_err().to_string(), &["\"c\"", names[1]]);
    d.put("model.safetensors.index.json", index(json!({"a": names[0], "b": "gone.safetensors"})));
    let e = d.open("").unwrap_err();
    assert!(matches!(&e, Error::MissingParts { missing, .. } if missing == &["gone.safetensors"]), "{e}");
    for outside in ["../x.safetensors", "/etc/passwd", "", "a/b", "C:x"] {
        d.put("model.safetensors.index.json", index(json!({"a": outside})));
        assert_says(&d.open("").unwrap_err().to_string(), &["\"a\"", "name of a file"]);
    }
    d.put("model.safetensors.index.json", "{}");
    assert_says(&d.open("").unwrap_err().to_string(), &["weight_map"]);
    let cut = shard("b");
    d.put("model.safetensors.index.json", index(json!({"a": names[0], "b": names[1]})))
        .put(names[1], &cut[..cut.len() - 1]);
    assert_says(&d.open("").unwrap_err().to_string(), &[names[1], "\"b\""]);
}
