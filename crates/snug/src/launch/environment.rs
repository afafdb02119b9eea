//! What an agent must not inherit: keys and addresses of other services, so that nothing is sent there by mistake.

use std::ffi::OsString;

/// Switches that turn an agent to another service whatever its address says.
const SWITCHES: &[&str] = &[
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
    "CLAUDE_CODE_USE_FOUNDRY",
    "CLAUDE_CODE_USE_MANTLE",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_API_BASE_URL",
    "AWS_BEARER_TOKEN_BEDROCK",
    "OPENCODE_CONFIG",
    "OPENCODE_CONFIG_DIR",
    "GOOGLE_GENAI_USE_VERTEXAI",
    "GOOGLE_GENAI_USE_GCA",
];
/// Services that sell models. A variable of theirs is one that begins so and ends as [`ENDINGS`] say.
const SERVICES: &[&str] = &[
    "AI_GATEWAY",
    "ANTHROPIC",
    "AZURE",
    "AZURE_OPENAI",
    "CEREBRAS",
    "COHERE",
    "DASHSCOPE",
    "DEEPINFRA",
    "DEEPSEEK",
    "FIREWORKS",
    "GEMINI",
    "GLM",
    "GOOGLE",
    "GOOGLE_GENERATIVE_AI",
    "GROQ",
    "KIMI",
    "LLM",
    "MINIMAX",
    "MISTRAL",
    "MODELSCOPE",
    "MOONSHOT",
    "NEBIUS",
    "NVIDIA",
    "OLLAMA",
    "OPENAI",
    "OPENCODE",
    "OPENROUTER",
    "PERPLEXITY",
    "POE",
    "QIANFAN",
    "QWEN",
    "REPLICATE",
    "SAMBANOVA",
    "STEPFUN",
    "SYNTHETIC",
    "TOGETHER",
    "TOGETHERAI",
    "VENICE",
    "VERCEL_AI",
    "VOLCENGINE",
    "XAI",
    "ZAI",
    "ZHIPU",
    "ZHIPUAI",
    "BAILIAN_CODING_PLAN",
    "CODEX",
    "CLAUDE",
];
const ENDINGS: &[&str] = &[
    "_API_KEY",
    "_AUTH_TOKEN",
    "_API_TOKEN",
    "_ACCESS_TOKEN",
    "_BASE_URL",
    "_API_BASE",
    "_ENDPOINT",
    "_MODEL",
    "_CUSTOM_HEADERS",
    "_ORGANIZATION",
    "_ORG_ID",
    "_PROJECT_ID",
];

/// Whether a variable is taken out of an agent's environment.
pub fn is_of_another_service(name: &str) -> bool {
    let of_service = |s: &str| name.strip_prefix(s).is_some_and(|rest| ENDINGS.contains(&rest));
    SWITCHES.contains(&name)
        || SERVICES.iter().any(|s| of_service(s))
        // ANTHROPIC_DEFAULT_OPUS_MODEL, ANTHROPIC_BEDROCK_BASE_URL and their like.
        || (name.starts_with("ANTHROPIC_") && ENDINGS.iter().any(|e| name.ends_with(e)))
}

/// The variables to take out, of those there are.
pub fn to_remove(all: impl Iterator<Item = (OsString, OsString)>) -> Vec<String> {
    let names = all.filter_map(|(k, _)| k.into_string().ok());
    let mut out: Vec<String> = names.filter(|n| is_of_another_service(n)).collect();
    out.sort();
    out
}

/// `NO_PROXY` with the server's host in it, where a proxy is set: an agent would ask the proxy for it otherwise.
pub fn no_proxy(get: impl Fn(&str) -> Option<String>, host: &str) -> Option<String> {
    let set = |name: &str| get(name).or_else(|| get(&name.to_lowercase())).filter(|v| !v.is_empty());
    ["HTTP_PROXY", "ALL_PROXY", "HTTPS_PROXY"].into_iter().find_map(set)?;
    let old = set("NO_PROXY").unwrap_or_default();
    let there = old.split(',').any(|h| h.trim() == host || h.trim() == "*");
    (!there).then(|| if old.is_empty() { host.to_string() } else { format!("{old},{host}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_services_go_and_everything_else_stays() {
        for gone in [
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "ANTHROPIC_BASE_URL",
            "ANTHROPIC_BEDROCK_BASE_URL",
            "ANTHROPIC_DEFAULT_OPUS_MODEL",
            "CLAUDE_CODE_USE_BEDROCK",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "OPENAI_API_KEY",
            "OPENAI_BASE_URL",
            "AZURE_OPENAI_API_KEY",
            "GEMINI_API_KEY",
            "GOOGLE_API_KEY",
            "OPENROUTER_API_KEY",
            "DASHSCOPE_API_KEY",
            "CODEX_API_KEY",
            "XAI_API_KEY",
            "GROQ_API_KEY",
            "MISTRAL_API_KEY",
        ] {
            assert!(is_of_another_service(gone), "{gone}");
        }
        for kept in [
            "PATH",
            "HOME",
            "GITHUB_TOKEN",
            "AWS_ACCESS_KEY_ID",
            "HF_TOKEN",
            "SNUG_API_KEY",
            "CODEX_HOME",
            "QWEN_HOME",
            "OPENAI",
            "MY_OPENAI_API_KEY",
            "CLAUDE_CONFIG_DIR",
            "GOOGLE_CLOUD_PROJECT",
            "DATABASE_URL",
        ] {
            assert!(!is_of_another_service(kept), "{kept}");
        }
        let vars = ["XAI_API_KEY", "PATH", "OPENAI_API_KEY"].map(|k| (k.into(), "x".into()));
        assert_eq!(to_remove(vars.into_iter()), ["OPENAI_API_KEY", "XAI_API_KEY"]);
    }

    #[test]
    fn a_proxy_is_kept_away_from_the_server() {
        let with = |pairs: &'static [(&str, &str)]| {
            move |n: &str| pairs.iter().find(|(k, _)| *k == n).map(|(_, v)| (*v).to_string())
        };
        assert_eq!(no_proxy(with(&[]), "127.0.0.1"), None);
        assert_eq!(no_proxy(with(&[("https_proxy", "p")]), "127.0.0.1").as_deref(), Some("127.0.0.1"));
        let old = no_proxy(with(&[("HTTP_PROXY", "p"), ("no_proxy", "a, b")]), "127.0.0.1");
        assert_eq!(old.as_deref(), Some("a, b,127.0.0.1"));
        assert_eq!(no_proxy(with(&[("HTTP_PROXY", "p"), ("NO_PROXY", "x, 127.0.0.1")]), "127.0.0.1"), None);
    }
}
