//! Qwen Code, through the chat dialect. See `docs/agents/qwen.md` for where its keys are documented.

use super::{KEY_VARIABLE, PATIENCE_MS, Served, Setup, pretty};
use serde_json::json;
use std::path::Path;

/// Its program, and how to install it.
pub const PROGRAM: (&str, &str) = ("qwen", "npm install -g @qwen-code/qwen-code");

/// A file of system settings, which win over the person's and the project's. It takes the place of one an administrator
/// may have put in `/etc`, for this one process.
pub fn setup(s: &Served, dir: &Path) -> Setup {
    let how = json!({
        "timeout": PATIENCE_MS, "contextWindowSize": s.context,
        "samplingParams": {"max_tokens": s.longest_answer()},
    });
    let settings = json!({
        "security": {"auth": {"selectedType": "openai"}},
        "model": {"name": s.model},
        "modelProviders": {"openai": [{
            "id": s.model, "name": s.model, "baseUrl": s.v1(), "envKey": KEY_VARIABLE, "generationConfig": how,
        }]},
    });
    let file = dir.join("settings.json");
    Setup {
        program: PROGRAM.0,
        install: PROGRAM.1,
        args: vec![],
        default_args: &[],
        env: vec![
            ("QWEN_CODE_SYSTEM_SETTINGS_PATH", file.display().to_string()),
            ("OPENAI_BASE_URL", s.v1()),
            ("OPENAI_API_KEY", s.key.clone()),
            ("OPENAI_MODEL", s.model.clone()),
            (KEY_VARIABLE, s.key.clone()),
        ],
        files: vec![(file, pretty(&settings))],
        least_context: 0,
    }
}
