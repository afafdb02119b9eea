//! Whatever pieces the same output comes in, streams say what whole responses say, on all three APIs.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fold::{Said, chat_stream, chat_whole, messages_stream, messages_whole, responses_stream, responses_whole};
use crate::rig::{MARKERS, Rig, Setup, with};

const PLAIN: &[&str] = &["<|im_start|>", "<|im_end|>"];

/// Whole and broken outputs in each dialect's own words.
fn fragments(dialect: &str) -> &'static [&'static str] {
    match dialect {
        "qwen3" => &[
            "<tool_call>",
            "</tool_call>",
            "{\"name\": \"f\", \"arguments\": {\"a\": \"x\"}}",
            "{\"name\": \"",
            "<think>",
            "</think>",
        ],
        "qwen3.5" => &[
            "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>",
            "<tool_call>",
            "<function=f>",
            "</tool_call>",
            "<think>",
            "</think>",
        ],
        "glm" => &[
            "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
            "<tool_call>f",
            "<arg_key>",
            "</arg_value>",
            "<think>",
            "</think>",
        ],
        "deepseek-v4" => &[
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
            "<｜DSML｜invoke",
            "｜DSML｜",
            "<think>",
            "</think>",
        ],
        "minimax-m2" => &[
            "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">x</parameter>\n</invoke>\n</minimax:tool_call>",
            "<minimax:tool_call>",
            "<invoke",
            "<think>",
            "</think>",
        ],
        "gemma4" => &[
            "<|tool_call>call:f{a:<|\"|>x<|\"|>}<tool_call|>",
            "<|tool_call>call:",
            "<|\"|>",
            "<|channel>thought\n",
            "<channel|>",
        ],
        "mistral" => &["[TOOL_CALLS]f[ARGS]{\"a\": \"x\"}", "[TOOL_CALLS]", "[ARGS]", "{\"a\"", "[THINK]", "[/THINK]"],
        "llama" => &["{\"name\": \"f\", \"parameters\": {\"a\": \"x\"}}", "<|python_tag|>", "{\"name\"", "; "],
        "harmony" => &[
            "<|channel|>analysis<|message|>",
            "<|end|>",
            "<|start|>assistant",
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": \"x\"}<|call|>",
            "<|channel|>final<|message|>",
        ],
        _ => &["<think>", "</think>", "{}"],
    }
}

fn output(dialect: &'static str) -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => prop::sample::select(fragments(dialect)).prop_map(str::to_owned),
        2 => "[a-c \n]{1,5}",
        1 => prop::sample::select(&["😀", "`", "<", "\"", "STO", "STOP", "é"][..]).prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 1..8).prop_map(|p| p.concat())
}

/// The output as steps of pieces of these lengths; markers that are tokens stay whole. Between pieces is time for a stream
/// to be sent.
fn steps(output: &str, cuts: &[usize], markers: &[&str]) -> Vec<Value> {
    let (mut out, mut rest, mut cuts) = (Vec::new(), output, cuts.iter().cycle());
    while !rest.is_empty() {
        let n = *cuts.next().unwrap_or(&1);
        let mut at = 0;
        for _ in 0..n {
            let marker = markers.iter().filter(|m| rest[at..].starts_with(**m)).map(|m| m.len()).max();
            at += marker.or_else(|| rest[at..].chars().next().map(char::len_utf8)).unwrap_or(0);
        }
        out.push(rest[..at].into());
        rest = &rest[at..];
        if n % 2 == 1 && out.len() < 12 {
            out.push(json!({"ms": 1}));
        }
    }
    out
}

fn agree(
    dialect: &'static str,
    output: &str,
    cuts: &[usize],
    markers: &'static [&'static str],
) -> Result<(), TestCaseError> {
    let rig = |steps: Vec<Value>| {
        let script = json!({"answers": [{"steps": steps}]});
        Rig::new(Setup { script, dialect: Some(dialect), markers, ..Setup::default() })
    };
    let (cut, whole) = (rig(steps(output, cuts, markers)), rig(vec![output.into()]));
    let tool = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let chat =
        json!({"stop": ["STOP"], "tools": [{"type": "function", "function": {"name": "f", "parameters": tool}}]});
    let responses = json!({"stop": ["STOP"], "tools": [{"type": "function", "name": "f", "parameters": tool}]});
    let messages = json!({"stop_sequences": ["STOP"], "tools": [{"name": "f", "input_schema": tool}]});
    let stream = |b: &Value| with(b.clone(), json!({"stream": true}));
    let same = |a: Said, b: Said, api: &str| {
        prop_assert_eq!(a, b, "{} {} {:?}", api, dialect, output);
        Ok(())
    };
    same(chat_stream(&cut.chat(stream(&chat))), chat_whole(&whole.chat(chat)), "chat")?;
    same(messages_stream(&cut.messages(stream(&messages))), messages_whole(&whole.messages(messages)), "messages")?;
    same(
        responses_stream(&cut.responses(stream(&responses))),
        responses_whole(&whole.responses(responses)),
        "responses",
    )
}

fn cases(dialect: &'static str) {
    let config = ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(output in output(dialect), cuts in prop::collection::vec(1usize..5, 1..6), tokens in any::<bool>())| {
        agree(dialect, &output, &cuts, if tokens { MARKERS } else { PLAIN })?;
    });
    // Every good output, one character at a time.
    for output in fragments(dialect) {
        if let Err(e) = agree(dialect, &format!("a {output} b"), &[1], PLAIN) {
            panic!("{e}");
        }
    }
}

macro_rules! every {
    ($($test:ident $dialect:literal)*) => {
        $( #[test] fn $test() { cases($dialect) } )*

        #[test]
        fn every_dialect_has_its_cases() {
            let have = [$($dialect),*];
            let mut missing = text::dialect::Dialect::names().filter(|n| !have.contains(n));
            assert_eq!(missing.next(), None);
        }
    };
}

every! {
    qwen3 "qwen3"
    qwen35 "qwen3.5"
    glm "glm"
    deepseek_v4 "deepseek-v4"
    minimax_m2 "minimax-m2"
    gemma4 "gemma4"
    mistral "mistral"
    llama "llama"
    harmony "harmony"
    plain "plain"
}
