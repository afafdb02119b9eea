//! MiniMax-M2: a section of invocations with raw values.

use super::{
    THINK,
    syntax::{Calls, Syntax, Tagged},
};

pub(super) const SYNTAX: Syntax = Syntax {
    name: "minimax-m2",
    marks: &["<minimax:tool_call>", "</minimax:tool_call>", "<think>", "</think>"],
    reasoning: Some(THINK),
    strays: &["</minimax:tool_call>"],
    calls: Calls::Tagged(&Tagged {
        open: "<minimax:tool_call>",
        call: "<invoke name=\"",
        bare: false,
        name_end: "\">",
        param: "<parameter name=\"",
        key_end: &[("\">", None)],
        value_end: "</parameter>",
        value_lines: false,
        call_end: "</invoke>",
        close: "</minimax:tool_call>",
        many: true,
    }),
    short_ids: false,
};
