//! Damaged files of all kinds: nothing may panic, whatever the bytes are. The same entry points serve the fuzz targets; here a seeded loop mutates valid files,
//! so that every run of the tests covers the parsers without special tools.

mod common;

use checkpoint::{Checkpoint, Error, fuzzing};
use common::{open, safetensors, valid_gguf, valid_safetensors};
use proptest::prelude::*;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// One change of the kinds that break parsers.
fn mutate(b: &mut Vec<u8>, r: &mut Rng) {
    let at = r.below(b.len());
    match r.below(8) {
        0 => b.truncate(at),
        1 => b.extend((0..r.below(64)).map(|i| i as u8)),
        2 if !b.is_empty() => b[at] = r.next() as u8,
        3 => {
            let interesting = [0, 1, 31, 1 << 31, 1 << 32, (1 << 32) - 1, 1 << 62, 1 << 63, u64::MAX, b.len() as u64];
            let v = interesting[r.below(interesting.len())].to_le_bytes();
            let n = [4, 8][r.below(2)].min(b.len() - at);
            b[at..at + n].copy_from_slice(&v[..n]);
        }
        4 => {
            let n = r.below(40).min(b.len() - at);
            let piece = b[at..at + n].to_vec();
            let to = r.below(b.len());
            b.splice(to..to, piece);
        }
        5 => {
            let n = r.below(24).min(b.len() - at);
            b.drain(at..at + n);
        }
        6 if !b.is_empty() => {
            // Numbers in JSON, types and counts in GGUF.
            b[at] = b"0123456789{}[]\":,"[r.below(17)];
        }
        _ if !b.is_empty() => b[at] ^= 1 << r.below(8),
        _ => {}
    }
}

#[test]
fn thousands_of_mutated_files_open_or_are_refused() {
    let mut r = Rng(0x5EED);
    let (mut opened, mut refused) = (0, 0);
    for round in 0..20_000 {
        let mut b = if round % 2 == 0 { valid_gguf() } else { valid_safetensors() };
        for _ in 0..1 + r.below(3) {
            mutate(&mut b, &mut r);
        }
        fuzzing::open_all(&b);
        match open(b) {
            Ok(_) => opened += 1,
            Err(_) => refused += 1,
        }
    }
    // Both must happen, or the loop tests nothing.
    assert!(opened > 500 && refused > 5000, "{opened} opened, {refused} refused");
}

/// One small matrix in every scheme, and a configuration that fits.
fn schemes() -> (Vec<u8>, Vec<u8>) {
    let tensors = [
        ("a.weight", "U32", vec![4, 8]),
        ("a.scales", "BF16", vec![4, 1]),
        ("a.biases", "BF16", vec![4, 1]),
        ("b.weight", "F8_E4M3", vec![20, 40]),
        ("b.weight_scale_inv", "F32", vec![2, 3]),
        ("c.weight", "U8", vec![3, 16]),
        ("c.weight_scale", "F8_E4M3", vec![3, 2]),
        ("c.weight_scale_2", "F32", vec![]),
        ("d.weight_packed", "I32", vec![8, 4]),
        ("d.weight_scale", "F16", vec![8, 1]),
        ("d.weight_zero_point", "I32", vec![1, 1]),
        ("d.weight_shape", "I64", vec![2]),
        ("e_blocks", "U8", vec![2, 3, 1, 16]),
        ("e_scales", "U8", vec![2, 3, 1]),
        ("f.weight_packed", "U8", vec![3, 16]),
        ("f.weight_scale", "F8_E4M3", vec![3, 2]),
        ("f.weight_global_scale", "F32", vec![1]),
    ];
    let (mut at, mut entries, mut data) = (0, Vec::new(), Vec::new());
    for (name, dtype, shape) in tensors {
        let size = match dtype {
            "F32" | "U32" | "I32" => 4,
            "BF16" | "F16" => 2,
            "I64" => 8,
            _ => 1,
        };
        let end = at + size * shape.iter().product::<usize>();
        entries.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{at},{end}]}}"#));
        match dtype {
            "I64" => data.extend([8i64, 32].iter().flat_map(|d| d.to_le_bytes())),
            _ => data.extend((at..end).map(|i| i as u8)),
        }
        at = end;
    }
    let config = r#"{"quantization":{"bits":4,"group_size":64,"x":{"bits":8}},"quantization_config":{"weight_block_size":[16,16]}}"#;
    (config.into(), safetensors(&format!("{{{}}}", entries.join(",")), &data))
}

#[test]
fn matrices_of_mutated_files_and_configurations_fit_or_are_refused() {
    let mut r = Rng(0xF0F0);
    let (config, file) = schemes();
    for round in 0..6_000 {
        let (mut config, mut file) = (config.clone(), file.clone());
        for _ in 0..r.below(4) {
            if round % 2 == 0 { mutate(&mut config, &mut r) } else { mutate(&mut file, &mut r) }
        }
        fuzzing::matrices(&config, &file);
    }
}

#[test]
fn every_truncation_is_refused() {
    for whole in [valid_gguf(), valid_safetensors()] {
        open(whole.clone()).unwrap();
        for n in 0..whole.len() {
            assert!(open(&whole[..n]).is_err(), "{n} of {} bytes", whole.len());
        }
    }
}

#[test]
fn every_single_bit_flip_is_survived() {
    for whole in [valid_gguf(), valid_safetensors()] {
        for bit in 0..whole.len() * 8 {
            let mut b = whole.clone();
            b[bit / 8] ^= 1 << (bit % 8);
            fuzzing::open_all(&b);
        }
    }
}

#[test]
fn a_damaged_file_on_disk_gives_the_same_error_as_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut r = Rng(77);
    for _ in 0..300 {
        let mut b = valid_gguf();
        mutate(&mut b, &mut r);
        std::fs::write(&path, &b).unwrap();
        let kind = |e: Error| format!("{e}").split_once(": ").map(|(_, why)| why.to_owned());
        assert_eq!(Checkpoint::open(path.as_path()).err().map(kind), open(b).err().map(kind));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn random_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        fuzzing::open_all(&bytes);
        fuzzing::gguf(&bytes);
        fuzzing::safetensors(&bytes);
    }

    #[test]
    fn random_json_is_survived(text in r#"[{}\[\]",:0-9a-z]{0,80}"#) {
        fuzzing::safetensors(format!(r#"{{"a":{{"dtype":"F32","shape":[{text}],"data_offsets":[0,4]}}}}0000"#).as_bytes());
        fuzzing::safetensors(format!("{{{text}}}").as_bytes());
    }
}
