//! No calls: all is content, but for reasoning in `<think>`.

use super::{
    THINK,
    syntax::{Calls, Syntax},
};

pub(super) const SYNTAX: Syntax = Syntax {
    name: "plain",
    marks: &["<think>", "</think>"],
    reasoning: Some(THINK),
    strays: &[],
    calls: Calls::None,
    short_ids: false,
};
