//! Coding agents pointed at a server of this program: each one's configuration, in a place of its own.
//!
//! What a person has configured is neither read nor changed. Everything an agent is told goes through its flags, its
//! environment, or a file under this program's directory that the flags or the environment name.

mod claude;
mod codex;
pub mod environment;
mod openclaw;
mod opencode;
pub mod pace;
mod qwen;
pub mod server;

use clap::ValueEnum;
use std::path::{Path, PathBuf};

/// The agents.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub enum Agent {
    /// Claude Code
    Claude,
    /// Codex CLI
    Codex,
    /// opencode
    Opencode,
    /// OpenClaw
    Openclaw,
    /// Qwen Code
    Qwen,
}

/// The server an agent is to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Its address, without a slash at the end.
    pub url: String,
    /// What it wants as a key; any word where it wants none.
    pub key: String,
    /// The model's id there.
    pub model: String,
    /// Positions of prompt and answer together.
    pub context: u32,
    /// Whether it can call tools.
    pub tools: bool,
}

impl Served {
    /// Where the OpenAI dialects are.
    fn v1(&self) -> String {
        format!("{}/v1", self.url)
    }
    /// The longest answer an agent is told to ask for: a quarter of the context, at most 32,000 tokens, so that three
    /// quarters are left for what it has read.
    fn longest_answer(&self) -> u32 {
        (self.context / 4).clamp(1, 32_000)
    }
    /// Where an agent should begin to shorten its history.
    fn compact_at(&self) -> u32 {
        self.context - self.longest_answer() / 2
    }
}

/// How an agent is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Its program.
    pub program: &'static str,
    /// How to install it.
    pub install: &'static str,
    /// Arguments before the person's own.
    pub args: Vec<String>,
    /// Arguments where the person gives none.
    pub default_args: &'static [&'static str],
    /// Variables that are set, after those of other services were taken out.
    pub env: Vec<(&'static str, String)>,
    /// Files to write.
    pub files: Vec<(PathBuf, String)>,
    /// The shortest context it works with, by its own documentation.
    pub least_context: u32,
}

impl Agent {
    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |v| v.get_name().to_string())
    }

    /// Its program, and how to install it.
    pub fn program(self) -> (&'static str, &'static str) {
        match self {
            Agent::Claude => claude::PROGRAM,
            Agent::Codex => codex::PROGRAM,
            Agent::Opencode => opencode::PROGRAM,
            Agent::Openclaw => openclaw::PROGRAM,
            Agent::Qwen => qwen::PROGRAM,
        }
    }

    /// How it is started against a server; its files go under `dir`.
    pub fn setup(self, served: &Served, dir: &Path) -> Setup {
        let dir = dir.join(self.name());
        match self {
            Agent::Claude => claude::setup(served, &dir),
            Agent::Codex => codex::setup(served),
            Agent::Opencode => opencode::setup(served),
            Agent::Openclaw => openclaw::setup(served, &dir),
            Agent::Qwen => qwen::setup(served, &dir),
        }
    }
}

/// The variable that holds the server's key, for configurations that name one.
const KEY_VARIABLE: &str = "SNUG_API_KEY";
/// How long an agent waits for a response, in milliseconds: an hour, because a long first prompt may take that long.
const PATIENCE_MS: u64 = 3_600_000;

/// JSON as a person would write it.
fn pretty(v: &serde_json::Value) -> String {
    format!("{v:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn served(context: u32) -> Served {
        Served {
            url: "http://127.0.0.1:8080".into(),
            key: "k\"1".into(),
            model: "a/model \"x\"".into(),
            context,
            tools: true,
        }
    }

    fn all() -> Vec<(Agent, Setup)> {
        let of = |a: &Agent| (*a, a.setup(&served(50_000), Path::new("/own")));
        Agent::value_variants().iter().map(of).collect()
    }

    /// Everything an agent is told, in one text.
    fn told(s: &Setup) -> String {
        let env = s.env.iter().map(|(k, v)| format!("{k}={v}"));
        let files = s.files.iter().map(|(_, text)| text.clone());
        s.args.iter().cloned().chain(env).chain(files).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn every_agent_is_told_where_which_model_and_how_long_its_context_is() {
        for (agent, s) in all() {
            let told = told(&s);
            assert!(told.contains("http://127.0.0.1:8080"), "{agent:?}: {told}");
            assert!(told.contains("50000"), "{agent:?} knows the true context: {told}");
            assert!(told.contains("a/model"), "{agent:?}: {told}");
            assert!(s.env.iter().any(|(_, v)| v == "k\"1"), "{agent:?} has the key");
        }
    }

    #[test]
    fn an_agent_is_not_told_of_tools_that_are_not_there() {
        let without = Served { tools: false, ..served(50_000) };
        let told = told(&Agent::Opencode.setup(&without, Path::new("/own")));
        assert!(told.contains("\"tool_call\":false"), "{told}");
    }

    #[test]
    fn files_are_in_our_own_directory_and_are_json() {
        for (agent, s) in all() {
            for (path, text) in &s.files {
                assert!(path.starts_with("/own"), "{agent:?}: {}", path.display());
                assert!(serde_json::from_str::<Value>(text).is_ok(), "{agent:?}: {text}");
                assert!(!text.contains("k\\\"1"), "{agent:?}: no key is written to disk");
            }
        }
    }

    #[test]
    fn an_answer_leaves_room_for_what_was_read() {
        assert_eq!(served(50_000).longest_answer(), 12_500);
        assert_eq!(served(1_000_000).longest_answer(), 32_000);
        assert_eq!((served(2).longest_answer(), served(2).compact_at()), (1, 2));
        assert_eq!(served(50_000).compact_at(), 43_750);
    }
}
