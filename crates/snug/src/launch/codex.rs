//! Codex CLI, which speaks the Responses dialect. See `docs/agents/codex.md` for where its keys are documented.

use super::{KEY_VARIABLE, PATIENCE_MS, Served, Setup};

/// Its program, and how to install it.
pub const PROGRAM: (&str, &str) = ("codex", "npm install -g @openai/codex");

/// All of it as `-c key=value`, which win over every file: nothing is written.
pub fn setup(s: &Served) -> Setup {
    let provider = [
        ("name", quoted("Snug")),
        ("base_url", quoted(&s.v1())),
        ("env_key", quoted(KEY_VARIABLE)),
        ("wire_api", quoted("responses")),
        // While a long prompt is read only pings come, and those may not count.
        ("stream_idle_timeout_ms", PATIENCE_MS.to_string()),
        ("request_max_retries", "1".into()),
        ("stream_max_retries", "1".into()),
    ];
    let mut keys = vec![
        ("model".to_string(), quoted(&s.model)),
        ("model_provider".to_string(), quoted("snug")),
        ("model_context_window".to_string(), s.context.to_string()),
        ("model_auto_compact_token_limit".to_string(), s.compact_at().to_string()),
    ];
    keys.extend(provider.into_iter().map(|(k, v)| (format!("model_providers.snug.{k}"), v)));
    Setup {
        program: PROGRAM.0,
        install: PROGRAM.1,
        args: keys.into_iter().flat_map(|(k, v)| ["-c".to_string(), format!("{k}={v}")]).collect(),
        default_args: &[],
        env: vec![(KEY_VARIABLE, s.key.clone())],
        files: vec![],
        least_context: 0,
    }
}

/// A basic string of TOML. JSON's escapes are among its own.
fn quoted(s: &str) -> String {
    serde_json::Value::from(s).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_toml() {
        let model = "a \"b\" \\ c".to_string();
        let s = Served { url: "http://h:1".into(), key: "k".into(), model, context: 32_768, tools: true };
        let args = setup(&s).args;
        assert!(args.contains(&r#"model="a \"b\" \\ c""#.to_string()), "{args:?}");
        assert!(args.contains(&r#"model_providers.snug.base_url="http://h:1/v1""#.to_string()));
        assert!(args.contains(&"model_context_window=32768".to_string()));
        assert_eq!(args.iter().filter(|a| *a == "-c").count() * 2, args.len());
    }
}
