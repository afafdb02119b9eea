//! The functions that fuzzers call, on mutated inputs, for a bounded time, with any toolchain.

use proptest::prelude::*;
use text::{dialect::Dialect, fuzzing};

/// Pieces that lead far into a parser, with bytes that stand for special tokens.
const PIECES: &[&[u8]] = &[
    b"\xF8",
    b"\xF9",
    b"\xFA",
    b"\xFB",
    b"\xFC",
    b"\xFD",
    b"\xFE",
    b"\xFF",
    b"<tool_call>",
    b"</tool_call>",
    b"{\"name\": \"f\", \"arguments\": {",
    b"\"s\": \"",
    b"\\ud83d",
    b"\\",
    b"\"}}",
    b"<function=f>\n",
    b"<parameter=s>\n",
    b"<parameter=o>\n",
    b"\n</parameter>\n",
    b"</function>",
    b"<|tool_call>call:f{",
    b"s:<|\"|>",
    b"n:1,",
    b"}<tool_call|>",
    b"<|channel|>commentary to=functions.f",
    b"<|message|>",
    b"<|end|>",
    b"<|start|>assistant",
    b"<minimax:tool_call>",
    b"<invoke name=\"f\">",
    b"<parameter name=\"u\">nul",
    b"</parameter>",
    b"</invoke>",
    b"<arg_key>n</arg_key>",
    b"<arg_value>007",
    b"</arg_value>",
    b"f",
    b"[TOOL_CALLS]",
    b"[ARGS]{",
    b"[{",
    b"]",
    b"}",
    b"\xF0\x9F",
    b"\x98\x80",
    b"\xC0",
    b"<think>",
    b"</think>",
    b"`",
    b" ",
    b"\n",
    b"<",
    b",",
    b":",
    b"1e999",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn outputs(name in prop::sample::select(Dialect::names().collect::<Vec<_>>()), flags in 0u8..4, parts in prop::collection::vec(prop::sample::select(PIECES), 0..30)) {
        let bytes: Vec<u8> = [flags].into_iter().chain(parts.concat()).collect();
        fuzzing::dialect(name, &bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzzing::dialects(&bytes);
    }

    #[test]
    fn conversations(cuts in prop::collection::vec((0usize..400, "[\\[\\]{}\",:a0]{0,3}"), 1..4)) {
        fuzzing::history(&mutated(r#"[{"role":"system","content":null},{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"}]},{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":{"a":1},"is_error":true}]"#, &cuts));
    }

    #[test]
    fn schemas(which in 0usize..64, cuts in prop::collection::vec((0usize..400, "[\\[\\]{}\",:a0]{0,3}"), 1..3)) {
        let all: Vec<serde_json::Value> = serde_json::from_str(include_str!("data/schemas.json")).unwrap();
        fuzzing::schema(&mutated(&all[which % all.len()]["schema"].to_string(), &cuts));
    }
}

/// The text with a few characters replaced.
fn mutated(text: &str, cuts: &[(usize, String)]) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for (at, with) in cuts {
        let at = at % bytes.len();
        let end = (at + with.len().max(1)).min(bytes.len());
        bytes.splice(at..end, with.bytes());
        if bytes.is_empty() {
            return bytes;
        }
    }
    bytes
}
