//! Vocabularies of bytes: id `n` below 256 is that byte, then come the markers.

use text::{GgufVocab, Tokenizer};

/// Markers of all dialects.
pub const MARKERS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<|channel>",
    "<channel|>",
    "<|tool_response>",
    "<turn|>",
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
    "｜DSML｜",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[THINK]",
    "[/THINK]",
];

fn build(markers: &[&str]) -> Tokenizer {
    let mut tokens: Vec<String> = (0..256).map(|b| format!("<0x{b:02X}>")).collect();
    let mut types = vec![6; 256];
    tokens.extend(["<unk>".to_owned(), "<eos>".to_owned()]);
    types.extend([2, 3]);
    tokens.extend(markers.iter().map(|m| m.to_string()));
    types.extend(vec![3; markers.len()]);
    let vocab = GgufVocab {
        model: "llama",
        tokens: tokens.iter().map(String::as_str).collect(),
        scores: Some(vec![0.0; tokens.len()]),
        token_types: Some(types),
        eos: Some(257),
        ..Default::default()
    };
    Tokenizer::from_gguf(&vocab).unwrap()
}

/// Bytes, an end token and no marker.
pub fn bytes_only() -> Tokenizer {
    build(&[])
}

/// Bytes and every marker.
pub fn with_markers() -> Tokenizer {
    build(MARKERS)
}

/// The ids of a text under such a vocabulary, in which these markers become their ids if it has them.
pub fn ids(tokenizer: &Tokenizer, text: &str, markers: &[&str]) -> Vec<u32> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let marker = markers.iter().filter(|m| rest.starts_with(**m)).max_by_key(|m| m.len());
        if let Some((marker, id)) = marker.and_then(|m| Some((*m, tokenizer.id_of(m)?))) {
            out.push(id);
            rest = &rest[marker.len()..];
        } else {
            out.extend(rest.as_bytes()[..c.len_utf8()].iter().map(|b| u32::from(*b)));
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}
