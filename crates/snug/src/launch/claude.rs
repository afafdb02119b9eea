//! Claude Code, which speaks the Messages dialect. See `docs/agents/claude.md` for where its variables are documented.

use super::{PATIENCE_MS, Served, Setup, pretty};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Its program, and how to install it.
pub const PROGRAM: (&str, &str) = ("claude", "npm install -g @anthropic-ai/claude-code");

/// The same variables twice: in the environment, and in a file for `--settings`, since an `env` block of the person's own
/// settings would otherwise win over the environment. The key is only in the environment.
pub fn setup(s: &Served, dir: &Path) -> Setup {
    let mut env = vec![("ANTHROPIC_BASE_URL", s.url.clone())];
    // Whatever name the agent uses for a model, it is this one.
    for name in [
        "ANTHROPIC_MODEL",
        "ANTHROPIC_DEFAULT_OPUS_MODEL",
        "ANTHROPIC_DEFAULT_SONNET_MODEL",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL",
        "ANTHROPIC_SMALL_FAST_MODEL",
        "CLAUDE_CODE_SUBAGENT_MODEL",
    ] {
        env.push((name, s.model.clone()));
    }
    // Without these it takes 200,000 tokens for granted.
    env.push(("CLAUDE_CODE_MAX_CONTEXT_TOKENS", s.context.to_string()));
    env.push(("CLAUDE_CODE_AUTO_COMPACT_WINDOW", s.context.to_string()));
    env.push(("CLAUDE_CODE_MAX_OUTPUT_TOKENS", s.longest_answer().to_string()));
    env.push(("API_TIMEOUT_MS", PATIENCE_MS.to_string()));
    env.push(("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".into()));
    // A line that changes with every request, at the head of the prompt: nothing behind it could be reused.
    env.push(("CLAUDE_CODE_ATTRIBUTION_HEADER", "0".into()));
    let block: Map<String, Value> = env.iter().map(|(k, v)| ((*k).to_string(), v.clone().into())).collect();
    let file = dir.join("settings.json");
    env.push(("ANTHROPIC_AUTH_TOKEN", s.key.clone()));
    Setup {
        program: PROGRAM.0,
        install: PROGRAM.1,
        args: vec!["--settings".into(), file.display().to_string()],
        default_args: &[],
        env,
        files: vec![(file, pretty(&json!({ "env": block })))],
        least_context: 0,
    }
}
