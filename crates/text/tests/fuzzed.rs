//! Ten thousand generated texts: our ids are those of Hugging Face `tokenizers`, of which hashes were recorded
//! (`scripts/fuzz_tokenizers.py`, where the same generator stands).

use serde::Deserialize;
use std::path::Path;
use text::{HfFiles, Specials, Tokenizer};

const FIXED: &str = "Hello, world! 12345 naïve café 你好 🙂";
const WORDS: [&str; 32] = [
    "the",
    " the",
    "The",
    " and",
    "I'm",
    "don't",
    "we'LL",
    " naïve",
    "café",
    "Straße",
    "привет",
    " мир",
    "你好",
    "世界",
    "こんにちは",
    "안녕",
    "नमस्ते",
    "مرحبا",
    "שלום",
    "สวัสดี",
    "return",
    "def ",
    "x**2",
    "http://a.b/c?d=e",
    "3.14",
    "1,000",
    "<b>",
    "</div>",
    "{\"a\": 1}",
    "🙂",
    "👩‍👩‍👧",
    "e\u{301}",
];
const SPACES: [&str; 12] =
    [" ", "  ", "\n", "\n\n", "\r\n", "\t", "\t\t", "\u{a0}", "\u{3000}", "\u{2028}", "     ", "\u{200b}"];
const RANGES: [(u32, u32); 28] = [
    (0x21, 0x7E),
    (0x30, 0x39),
    (0x61, 0x7A),
    (0x41, 0x5A),
    (0xA1, 0xFF),
    (0x100, 0x17F),
    (0x300, 0x36F),
    (0x391, 0x3C9),
    (0x410, 0x44F),
    (0x5D0, 0x5EA),
    (0x621, 0x64A),
    (0x660, 0x669),
    (0x905, 0x939),
    (0x93E, 0x94D),
    (0xE01, 0xE3A),
    (0x1100, 0x1112),
    (0x1E00, 0x1EFF),
    (0x2010, 0x203A),
    (0x2150, 0x218B),
    (0x2200, 0x22FF),
    (0x3041, 0x3096),
    (0x30A1, 0x30FA),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),
    (0xFB00, 0xFB06),
    (0xFF01, 0xFF5E),
    (0x1F300, 0x1F64F),
    (0x20000, 0x2A6DF),
];

#[derive(Deserialize)]
struct Recorded {
    texts: Vec<String>,
    byte_bpe: Answers,
    qwen3: Answers,
    gemma3: Answers,
}

#[derive(Deserialize)]
struct Answers {
    ids: usize,
    hashes: Vec<String>,
    fixed: Vec<u32>,
}

fn recorded() -> Recorded {
    serde_json::from_str(include_str!("data/fuzzed.json")).unwrap()
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One to sixteen pieces: a word, white space, or up to eight characters of one range.
fn text(number: u64) -> String {
    let (key, mut at) = (mix(number + 1), 0u64);
    let mut below = |n: usize| {
        at += 1;
        (mix(key.wrapping_add(at.wrapping_mul(0x9E37_79B9_7F4A_7C15))) % n as u64) as usize
    };
    let mut out = String::new();
    for _ in 0..1 + below(16) {
        match below(8) {
            0..3 => out += WORDS[below(WORDS.len())],
            3..5 => out += SPACES[below(SPACES.len())],
            _ => {
                let (first, last) = RANGES[below(RANGES.len())];
                let n = 1 + below(8);
                out.extend((0..n).map(|_| char::from_u32(first + below((last - first + 1) as usize) as u32).unwrap()));
            }
        }
    }
    out
}

fn hashed(all: &[Vec<u32>]) -> String {
    let words = all.iter().flat_map(|ids| ids.iter().copied().chain([u32::MAX]));
    let bytes = words.flat_map(u32::to_le_bytes);
    let h = bytes.fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("{h:016x}")
}

fn agrees(json: &[u8], want: &Answers) {
    let t = Tokenizer::from_hf(&HfFiles { tokenizer: json, ..Default::default() }).unwrap();
    assert_eq!(t.encode(FIXED, Specials::Parse).unwrap(), want.fixed);
    let mut count = 0;
    for (block, hash) in want.hashes.iter().enumerate() {
        let first = 100 * block as u64;
        let ids: Vec<Vec<u32>> = (first..first + 100).map(|i| t.encode(&text(i), Specials::Parse).unwrap()).collect();
        count += ids.iter().map(Vec::len).sum::<usize>();
        assert_eq!(hashed(&ids), *hash, "texts {first} to {}", first + 99);
        // Nothing in these texts is rewritten for good by all of these tokenizers: what decodes is what byte fallback and
        // normalisation left of it, and encodes to the same ids again.
        for ids in ids.iter().step_by(25) {
            let back = t.decode(ids, false);
            assert_eq!(t.decode(&t.encode(&back, Specials::Parse).unwrap(), false), back);
        }
    }
    assert_eq!(count, want.ids);
}

#[test]
fn both_generators_are_the_same() {
    for (i, want) in recorded().texts.iter().enumerate() {
        assert_eq!(text(i as u64), *want);
    }
}

#[test]
fn the_small_vocabulary_answers_as_hugging_face() {
    agrees(include_bytes!("data/byte_bpe.json"), &recorded().byte_bpe);
}

/// Real vocabularies, which `scripts/get-tokenizers` fetches.
mod long {
    use super::*;

    fn real(name: &str) -> Vec<u8> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../target/tokenizers/{name}.json"));
        std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}; run scripts/get-tokenizers first", path.display()))
    }

    #[test]
    fn qwen3_answers_as_hugging_face() {
        agrees(&real("qwen3"), &recorded().qwen3);
    }

    #[test]
    fn gemma3_answers_as_hugging_face() {
        agrees(&real("gemma3"), &recorded().gemma3);
    }
}
