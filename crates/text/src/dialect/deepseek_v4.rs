//! DeepSeek-V4: a DSML section of invocations; each parameter says whether its value is a string or JSON.

use super::{
    THINK,
    syntax::{Calls, Syntax, Tagged},
};

pub(super) const SYNTAX: Syntax = Syntax {
    name: "deepseek-v4",
    marks: &["｜DSML｜", "<think>", "</think>"],
    reasoning: Some(THINK),
    strays: &["</｜DSML｜tool_calls>"],
    calls: Calls::Tagged(&Tagged {
        open: "<｜DSML｜tool_calls>",
        call: "<｜DSML｜invoke name=\"",
        bare: false,
        name_end: "\">",
        param: "<｜DSML｜parameter name=\"",
        key_end: &[("\" string=\"true\">", Some(true)), ("\" string=\"false\">", Some(false)), ("\">", None)],
        value_end: "</｜DSML｜parameter>",
        value_lines: false,
        call_end: "</｜DSML｜invoke>",
        close: "</｜DSML｜tool_calls>",
        many: true,
    }),
    short_ids: false,
};
