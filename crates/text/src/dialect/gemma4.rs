//! Gemma 4: `<|tool_call>call:NAME{key:VALUE,..}<tool_call|>`, reasoning in `<|channel>thought\n..<channel|>`.

use super::syntax::{Calls, Syntax};

pub(super) const SYNTAX: Syntax = Syntax {
    name: "gemma4",
    marks: &[
        "<|tool_call>",
        "<tool_call|>",
        "<|\"|>",
        "<|channel>",
        "<channel|>",
        "<|tool_response>",
        "<tool_response|>",
        "<turn|>",
    ],
    reasoning: Some(("<|channel>thought", "<channel|>")),
    strays: &["<tool_call|>", "<|tool_response>", "<tool_response|>", "<turn|>"],
    calls: Calls::Gemma,
    short_ids: false,
};
