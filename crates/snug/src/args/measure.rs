//! Arguments of commands that measure and foretell.

use super::{Ahead, MODEL_HELP, On};
use clap::Args;
use std::path::PathBuf;

/// `snug doctor`.
#[derive(Debug, Args)]
#[command(
    after_help = "Reads memory with one thread and with more, the disk in blocks of three sizes with one to eight reads at
once, and runs kernels on matrices of its own. Nothing else should run meanwhile. What is found is kept as
machine.json in $SNUG_HOME, else $XDG_DATA_HOME/snug, else ~/.local/share/snug.

Examples:
  snug doctor
  snug doctor --dir /models --json"
)]
pub struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Take seconds, not half a minute
    #[arg(long)]
    pub quick: bool,
    /// Where the disk is read: a file of at most 512 MiB comes and goes there [default: where models are kept,
    /// else where temporary files are]
    #[arg(long, value_name = "DIRECTORY")]
    pub dir: Option<PathBuf>,
}

/// `snug bench`.
#[derive(Debug, Args)]
#[command(
    after_help = "Reading a prompt and generating are measured apart, each behind a history of --depth positions.
The context is as long as all of them together, unless --context says otherwise.

Examples:
  snug bench
  snug bench smollm2 --prompt 512 --gen 128 --repeat 5 --json
  snug bench model.gguf --depth 16384 --kv tq4 --profile"
)]
pub struct BenchArgs {
    #[arg(help = MODEL_HELP)]
    pub model: Option<String>,
    /// Tokens of the prompt that is read
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt: u32,
    /// Tokens that are generated
    #[arg(long = "gen", value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub generate: u32,
    /// Times that each is measured, after a round that does not count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Sequences that are decoded together; rates count the tokens of all of them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub batch: u32,
    /// Enqueue decode steps op by op, where the device would record them once and replay them
    #[arg(long)]
    pub eager: bool,
    /// Positions of history before prompt and answer, filled with seeded random values instead of being read
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub depth: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Report what each kind of operation cost, on stderr or in the JSON
    #[arg(long)]
    pub profile: bool,
    /// Ask for the experts that a recorded trace asks for (see `snug experts`) in place of the router's: how fast a model
    /// with random weights would be if it chose like a trained one
    #[arg(long, value_name = "FILE")]
    pub route_trace: Option<PathBuf>,
    /// Load the model's own predictor, and measure what drafting up to N tokens ahead is made of
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=16))]
    pub draft: u32,
    #[command(flatten)]
    pub on: On,
}

/// `snug plan`.
#[derive(Debug, Args)]
#[command(
    after_help = "Counts bytes with a dry run of the model; no weight is read. How long things will take is forecast from what
`snug doctor` measured. In JSON, \"leased\" is what is not in memory all the time: \"predictor\", which no total counts,
and \"head\", of which \"head_in_turn\" lies where prompts have their workspace; the rest of the head is in the total.

Examples:
  snug plan smollm2
  snug plan smollm2 --serve --parallel 4
  snug plan model.gguf --memory 6GiB --context max
  snug plan model.gguf --context 32768 --parallel 4 --json"
)]
pub struct PlanArgs {
    #[arg(help = MODEL_HELP)]
    pub model: Option<String>,
    /// Print one JSON object; sizes are bytes
    #[arg(long)]
    pub json: bool,
    /// Count so many MiB of kept states too, as `snug serve` keeps them for models whose layers have some
    /// [default: none, with --serve 512]
    #[arg(long, value_name = "MIB")]
    pub snapshots: Option<u32>,
    /// Count what `snug serve` holds beside a model: connections, requests that wait, what answers to a schema need
    #[arg(long)]
    pub serve: bool,
    /// Requests that may wait there
    #[arg(long, value_name = "N", default_value_t = super::QUEUE, requires = "serve", value_parser = clap::value_parser!(u32).range(0..=65536))]
    pub queue: u32,
    /// Count what waits there on its way to this directory; nothing is written
    #[arg(long, value_name = "DIR", requires = "serve")]
    pub cache_dir: Option<PathBuf>,
    #[command(flatten)]
    pub ahead: Ahead,
    #[command(flatten)]
    pub on: On,
}

/// `snug perplexity`.
#[derive(Debug, Args)]
#[command(
    after_help = "Reads a text in windows of --context positions, with the history in the format of --kv and, side by side, in bf16
(f32 for f32 weights), and compares what the model says after every position.

Examples:
  snug perplexity -f book.txt
  snug perplexity smollm2 -f book.txt --kv f32 --context 2048 --json"
)]
pub struct PerplexityArgs {
    #[arg(help = MODEL_HELP)]
    pub model: Option<String>,
    /// The text, UTF-8
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Only the first N tokens of it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub tokens: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub on: On,
}
