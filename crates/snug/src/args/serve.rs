//! Arguments of commands that put a model behind HTTP, or use one that is.

use super::{Ahead, MODEL_HELP, On};
use clap::{Args, ValueEnum};
use snug::launch::Agent;

/// Requests that may wait where nobody says otherwise.
pub const QUEUE: u32 = 64;
/// Most MiB of kept states where nobody says otherwise.
pub const SNAPSHOTS: u32 = 512;

/// `snug launch`.
#[derive(Debug, Args)]
#[command(
    after_help = "The agent is told where the server is, which model it has and how long its context is, by flags, variables
and files of this program's own (in agents/ beside the store); its own configuration stays as it is. Keys of
other services are taken out of its environment. Where no server runs, one is started, and ends with the agent.

Examples:
  snug launch claude
  snug launch codex --model qwen3.6-35b-a3b -- exec 'What does this repository do?'
  snug launch opencode --url http://192.168.1.9:8080 --api-key secret --dry-run"
)]
pub struct LaunchArgs {
    /// Which agent
    #[arg(value_enum)]
    pub agent: Agent,
    /// The model: of a server that runs, its name there; else what to start one with [default: the server's, else the
    /// model that is part of the program]
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// The server; one is started there if nobody answers and it is this machine [default: http://127.0.0.1:8080]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// The server's key
    #[arg(long, value_name = "KEY", env = "SNUG_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Print what would be written and started, and do neither
    #[arg(long)]
    pub dry_run: bool,
    /// Arguments for the agent
    #[arg(last = true, value_name = "ARGS")]
    pub args: Vec<String>,
}

/// `snug serve`.
#[derive(Debug, Args)]
#[command(after_help = "It speaks OpenAI's chat completions, completions and responses, and Anthropic's messages.
Ctrl-C or SIGTERM lets requests that are here end first.

Examples:
  snug serve
  snug serve smollm2 --port 9000
  snug serve smollm2 --host 0.0.0.0 --api-key secret
  snug serve --backend script:answers.json")]
pub struct ServeArgs {
    #[arg(help = MODEL_HELP)]
    pub model: Option<String>,
    /// Address to listen on; others than this machine's own need --api-key
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub port: u16,
    /// Key that clients must show
    #[arg(long, value_name = "KEY", env = "SNUG_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Let other machines in without a key
    #[arg(long)]
    pub allow_open: bool,
    /// Let web pages of this origin in, beside those of this machine; may be repeated, `*` is all
    #[arg(long, value_name = "ORIGIN")]
    pub cors_origin: Vec<String>,
    /// What to call the model [default: its own name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// How the model writes reasoning and tool calls [default: found from its template]
    #[arg(long, value_name = "NAME")]
    pub dialect: Option<String>,
    /// Requests that may wait
    #[arg(long, value_name = "N", default_value_t = QUEUE, value_parser = clap::value_parser!(u32).range(0..=65536))]
    pub queue: u32,
    /// Most time between two tokens of an answer while another prompt is read, in times of what it takes alone
    #[arg(long, value_name = "TIMES", default_value_t = 2.0)]
    pub patience: f64,
    /// What is kept of earlier prompts so that they are not read again: usual, exact (only what leaves every answer as it
    /// is without it), off
    #[arg(long, value_enum, default_value_t = Reuse::Usual)]
    pub reuse: Reuse,
    /// Most MiB of kept states, for models whose layers have some; fewer where memory is short
    #[arg(long, value_name = "MIB", default_value_t = SNAPSHOTS)]
    pub snapshots: u32,
    /// Keep what was read in this directory, so that a server that is started again goes on where this one ended; it holds
    /// prompts and answers, and nothing else should be in it
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<std::path::PathBuf>,
    /// Most bytes of it; what was used longest ago goes first
    #[arg(long, value_name = "SIZE", default_value = "16GiB", value_parser = super::size, requires = "cache_dir")]
    pub cache_size: u64,
    /// Most MiB of a request's body
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub max_body: u32,
    /// Seconds that requests may go on once the server is told to stop
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub drain: u32,
    /// Leave the line in place that some clients put before a system prompt and change with every request
    #[arg(long)]
    pub keep_volatile: bool,
    /// Form of the log on stderr
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log: LogFormat,
    /// Say what a file says instead of running the model: script:FILE
    #[arg(long, value_name = "script:FILE")]
    pub backend: Option<String>,
    #[command(flatten)]
    pub ahead: Ahead,
    #[command(flatten)]
    pub on: On,
}

/// What of earlier prompts is used again.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub enum Reuse {
    /// All that fits.
    Usual,
    /// What changes no answer.
    Exact,
    /// Nothing.
    Off,
}

/// Forms of logs by name.
#[derive(Copy, Clone, Debug, ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    Text,
    /// A JSON object a line
    Json,
    /// None
    Off,
}
