//! GLM-4.5 to 5.x: `<tool_call>NAME<arg_key>k</arg_key><arg_value>v</arg_value>..</tool_call>`, white space between the
//! parts or none.

use super::{
    THINK,
    syntax::{Calls, Syntax, Tagged},
};

pub(super) const SYNTAX: Syntax = Syntax {
    name: "glm",
    marks: &[
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "<think>",
        "</think>",
    ],
    reasoning: Some(THINK),
    strays: &["</tool_call>"],
    calls: Calls::Tagged(&Tagged {
        open: "<tool_call>",
        call: "",
        bare: false,
        name_end: "",
        param: "<arg_key>",
        key_end: &[("</arg_key>␣<arg_value>", None)],
        value_end: "</arg_value>",
        value_lines: false,
        call_end: "",
        close: "</tool_call>",
        many: false,
    }),
    short_ids: false,
};
