//! Qwen3-Coder, Qwen3.5, 3.6 and 3.8: functions and parameters in tags, values raw on lines of their own.

use super::{
    THINK,
    syntax::{Calls, Syntax, Tagged},
};

pub(super) const SYNTAX: Syntax = Syntax {
    name: "qwen3.5",
    marks: &["<tool_call>", "</tool_call>", "<think>", "</think>"],
    reasoning: Some(THINK),
    strays: &["</tool_call>"],
    calls: Calls::Tagged(&Tagged {
        open: "<tool_call>",
        call: "<function=",
        // Qwen3-Coder sometimes forgets the outer tag.
        bare: true,
        name_end: ">",
        param: "<parameter=",
        key_end: &[(">", None)],
        value_end: "</parameter>",
        value_lines: true,
        call_end: "</function>",
        close: "</tool_call>",
        many: false,
    }),
    short_ids: false,
};
