//! Llama 3.x: an answer that is a JSON object `{"name": N, "parameters": {..}}` is a call; several are separated by `;`.

use super::{
    THINK,
    syntax::{Calls, JsonCalls, Syntax},
};

pub(super) const SYNTAX: Syntax = Syntax {
    name: "llama",
    marks: &["<|python_tag|>"],
    reasoning: Some(THINK),
    strays: &[],
    calls: Calls::Json(&JsonCalls {
        open: &["<|python_tag|>"],
        bare: true,
        arguments: &["parameters", "arguments"],
        named: None,
        between: &[',', ';'],
    }),
    short_ids: false,
};
