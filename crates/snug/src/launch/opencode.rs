//! opencode, through the chat dialect. See `docs/agents/opencode.md` for where its keys are documented.

use super::{KEY_VARIABLE, Served, Setup};
use serde_json::json;

/// Its program, and how to install it.
pub const PROGRAM: (&str, &str) = ("opencode", "npm install -g opencode-ai");

/// One variable with a whole configuration, which wins over the person's and the project's files: nothing is written.
pub fn setup(s: &Served) -> Setup {
    let model = format!("snug/{}", s.model);
    let limit = json!({"context": s.context, "output": s.longest_answer()});
    let config = json!({
        "$schema": "https://opencode.ai/config.json",
        "model": model,
        "small_model": model,
        "enabled_providers": ["snug"],
        "provider": {"snug": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Snug",
            "options": {"baseURL": s.v1(), "apiKey": format!("{{env:{KEY_VARIABLE}}}"), "timeout": false},
            "models": {&s.model: {"name": s.model, "tool_call": s.tools, "limit": limit}},
        }},
    });
    Setup {
        program: PROGRAM.0,
        install: PROGRAM.1,
        args: vec![],
        default_args: &[],
        env: vec![("OPENCODE_CONFIG_CONTENT", config.to_string()), (KEY_VARIABLE, s.key.clone())],
        files: vec![],
        least_context: 0,
    }
}
