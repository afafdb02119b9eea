//! Qwen3: `<tool_call>\n{"name": N, "arguments": {..}}\n</tool_call>`; also Hermes and others that copied it.

use super::{
    THINK,
    syntax::{Calls, JsonCalls, Syntax},
};

pub(super) const SYNTAX: Syntax = Syntax {
    name: "qwen3",
    marks: &["<tool_call>", "</tool_call>", "<think>", "</think>"],
    reasoning: Some(THINK),
    strays: &["</tool_call>"],
    calls: Calls::Json(&JsonCalls {
        open: &["<tool_call>"],
        bare: false,
        arguments: &["arguments", "parameters"],
        named: None,
        between: &[],
    }),
    short_ids: false,
};
