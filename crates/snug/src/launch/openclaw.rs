//! OpenClaw, through the chat dialect. See `docs/agents/openclaw.md` for where its keys are documented.

use super::{KEY_VARIABLE, PATIENCE_MS, Served, Setup, pretty};
use serde_json::json;
use std::path::Path;

/// Its program, and how to install it.
pub const PROGRAM: (&str, &str) = ("openclaw", "npm install -g openclaw");

/// A configuration and a state directory of their own, and the terminal without a gateway: a gateway that runs already
/// would go on with the person's configuration.
pub fn setup(s: &Served, dir: &Path) -> Setup {
    let free = json!({"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0});
    let model = json!({
        "id": s.model, "name": s.model, "reasoning": false, "input": ["text"], "cost": free,
        "contextWindow": s.context, "maxTokens": s.longest_answer(),
    });
    let provider = json!({
        "baseUrl": s.v1(), "apiKey": format!("${{{KEY_VARIABLE}}}"), "api": "openai-completions",
        "timeoutSeconds": PATIENCE_MS / 1000, "models": [model],
    });
    let config = json!({
        "models": {"mode": "replace", "providers": {"snug": provider}},
        "agents": {"defaults": {"model": {"primary": format!("snug/{}", s.model)}}},
    });
    let file = dir.join("openclaw.json");
    let state = dir.join("state").display().to_string();
    Setup {
        program: PROGRAM.0,
        install: PROGRAM.1,
        args: vec![],
        default_args: &["chat"],
        env: vec![
            ("OPENCLAW_CONFIG_PATH", file.display().to_string()),
            ("OPENCLAW_STATE_DIR", state),
            (KEY_VARIABLE, s.key.clone()),
        ],
        files: vec![(file, pretty(&config))],
        least_context: 16_000,
    }
}
