//! Mistral: `[TOOL_CALLS][{"name": N, "arguments": {..}}, ..]`, and since late 2025 `[TOOL_CALLS]NAME[ARGS]{..}`.

use super::syntax::{Calls, JsonCalls, Syntax};

pub(super) const SYNTAX: Syntax = Syntax {
    name: "mistral",
    marks: &["[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"],
    reasoning: Some(("[THINK]", "[/THINK]")),
    strays: &[],
    calls: Calls::Json(&JsonCalls {
        open: &["[TOOL_CALLS]"],
        bare: false,
        arguments: &["arguments", "parameters"],
        named: Some("[ARGS]"),
        between: &[',', ';', ']'],
    }),
    short_ids: true,
};
