//! gpt-oss: messages with a channel and perhaps a recipient. A call is a message to `functions.NAME` with a JSON body.

use super::syntax::{Calls, Syntax};

pub(super) const SYNTAX: Syntax = Syntax {
    name: "harmony",
    marks: &["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"],
    reasoning: None,
    strays: &[],
    calls: Calls::Harmony,
    short_ids: false,
};
