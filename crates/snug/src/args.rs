//! What can be typed.

mod measure;
mod serve;

use checkpoint::DType;
use clap::{Args, Parser, Subcommand, ValueEnum};
use engine::Context;
use memory::KvSpec;
use snug::quantize::{Rule, parse_type};
use snug::synth::Kind;
use std::path::PathBuf;

pub use measure::{BenchArgs, DoctorArgs, PerplexityArgs, PlanArgs};
pub use serve::{LaunchArgs, LogFormat, QUEUE, Reuse, SNAPSHOTS, ServeArgs};

const MODEL_HELP: &str = "a .gguf file, a Hugging Face directory, or a name in the store (see `snug list`); \
    without it, the model that is part of the program";

/// Serves language models larger than the memory they are given.
#[derive(Debug, Parser)]
#[command(name = "snug", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Example:\n  snug run smollm2 -p 'Why is the sky blue?'")]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
    /// Say on stderr what was decided and how fast it went
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer one prompt
    Run(RunArgs),
    /// Talk with a model
    Chat(ChatArgs),
    /// Show what a model file holds
    Inspect(InspectArgs),
    /// Print the logits that follow a sequence of token ids
    Logits(LogitsArgs),
    /// Turn text into token ids, or back
    Tokenize(TokenizeArgs),
    /// Write a model as a GGUF file in another type
    Quantize(QuantizeArgs),
    /// Write a model of a real geometry with random weights
    Synth(SynthArgs),
    /// Start a coding agent that uses a local model
    Launch(LaunchArgs),
    /// Record routing to experts, and compare what to keep in memory
    Experts(crate::cmd::experts::ExpertsArgs),
    /// Measure this machine
    Doctor(DoctorArgs),
    /// List the models in the store
    List(ListArgs),
    /// Measure how fast a model reads and answers
    Bench(BenchArgs),
    /// Say what fits, before anything is loaded
    Plan(PlanArgs),
    /// Measure what a format of history costs in quality
    Perplexity(PerplexityArgs),
    /// Answer over HTTP
    Serve(ServeArgs),
}

/// How a model is run: the same for every command that computes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Running")]
pub struct On {
    /// Most memory that the process may hold, such as 6GiB (KiB, MiB, GiB, TiB, or K, M, G, T, are powers of 1024; KB, MB,
    /// GB, TB powers of 1000) [default: what control groups allow and the system can spare]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// Positions of prompt and answer together; `max` is as many as fit
    /// [default: the model's, at most 65536, less if memory is short]
    #[arg(long, value_name = "N|max", value_parser = context)]
    pub context: Option<Context>,
    /// Sequences at a time. They share the room for history: one of them may be as long as the context, each other has 8192
    /// positions at least, and all have what memory gives
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub parallel: u32,
    /// Threads that compute [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Instruction set of the kernels [default: the best of this machine]
    #[arg(long, value_enum)]
    pub isa: Option<Isa>,
    /// Where to run: auto, cpu, cuda:N or reference. auto is the first NVIDIA GPU if there is a driver and the model fits
    /// on it, else the CPU; reference is plain f32 arithmetic, slow, the measure of the others
    #[arg(long, value_name = "DEVICE", value_parser = Device::parse, default_value = "auto")]
    pub device: Device,
    /// Most of the GPU's memory that may be used, such as 24GiB [default: what is free there]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub device_memory: Option<u64>,
    /// Format of the attention history: f32, bf16, q8 or tq4. Behind q8 and tq4 may stand +own-page (a position reads the
    /// 256 positions it is among as bf16) and +sink-page (the first 256 are read as bf16)
    /// [default: f32 for f32 weights; else q8 where heads have 64, 128, 256 or 512 columns, else bf16]
    #[arg(long, value_name = "FORMAT")]
    pub kv: Option<KvSpec>,
    /// Rows of a prompt that go through a layer together, so that its experts are read once for all of them
    /// [default: where experts are not all in memory, as many as the machine's profile says; else chunk by chunk]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    pub segment: Option<u32>,
    /// Keep at most N routed experts of a kind in memory and read the others when they are needed, even if all would fit;
    /// the fewest possible are two more than a token is routed to [default: as many as fit]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
    /// Read experts through the system's page cache, not past it
    #[arg(long)]
    pub page_cache: bool,
    /// When to ask the next layer's router ahead of its time, and to read the experts that it names ahead: off, on, or auto,
    /// which tries both by the clock and keeps what is faster
    #[arg(long, value_name = "WHEN", num_args = 0..=1, default_value = "auto", default_missing_value = "on", require_equals = true)]
    pub lookahead: Lookahead,
    /// Compare every expert, and every layer, that is read again with what it was when it was read first; rows of an
    /// embedding that stays in its file are not compared
    #[arg(long)]
    pub verify_reads: bool,
    /// Say what reading experts from disk did: hits, bytes a token reads, rate of the disk, share of the time spent waiting
    #[arg(long)]
    pub stats: bool,
}

/// When to look ahead.
#[derive(Copy, Clone, Debug, ValueEnum)]
pub enum Lookahead {
    /// Never
    Off,
    /// Always
    On,
    /// Where it is faster
    Auto,
}

/// Instruction sets by name.
#[derive(Copy, Clone, Debug, ValueEnum)]
pub enum Isa {
    /// Plain code
    Scalar,
    /// AVX2, FMA, F16C
    Avx2,
    /// AVX-512 with VNNI
    Avx512,
    /// AVX-512 and tiles (AMX)
    Amx,
}

/// Backends by name.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// The GPU if it can be used and the model fits on it, else the CPU.
    Auto,
    /// Plain f32 arithmetic: slow, the measure of the others.
    Reference,
    /// The CPU kernels.
    Cpu,
    /// An NVIDIA GPU by its number.
    Cuda(u8),
}

impl Device {
    fn parse(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(Device::Auto),
            "reference" => Ok(Device::Reference),
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            _ => s
                .strip_prefix("cuda:")
                .and_then(|n| n.parse().ok())
                .map(Device::Cuda)
                .ok_or_else(|| "it must be auto, cpu, cuda:N (such as cuda:0) or reference".into()),
        }
    }
}

/// Drafting ahead, for commands that answer.
#[derive(Copy, Clone, Debug, Default, Args)]
#[command(next_help_heading = "Running")]
pub struct Ahead {
    /// Most tokens that the model's own predictor drafts ahead of an answer that is made alone, 0 for none; answers stay the
    /// same, and where drafts do not win time there are none
    /// [default: 3 where the predictor takes no room from the context or from weights]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=16))]
    pub draft: Option<u32>,
}

/// How an answer is made. What is not given comes from the checkpoint.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct Sample {
    /// Most tokens of an answer [default: until the model ends it or the context is full]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true)]
    pub max_tokens: Option<u32>,
    /// Temperature; 0 always takes the likeliest token
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub temp: Option<f32>,
    /// Only the K likeliest tokens; 0 is all
    #[arg(long, value_name = "K")]
    pub top_k: Option<u32>,
    /// Only the likeliest tokens that together have this probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Only tokens with at least this share of the likeliest one's probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Divide the logits of tokens that were seen; 1 is off
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub repeat_penalty: Option<f32>,
    /// Lower the logits of tokens the answer has
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Lower the logits of tokens by how often the answer has them
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Key of the random draws: the same seed gives the same answer [default: another one each time]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Add to the logit of a token; may be repeated
    #[arg(long, value_name = "ID=BIAS", value_parser = logit_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// End the answer before this text; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Take tokens that end an answer for ordinary ones
    #[arg(long)]
    pub ignore_eos: bool,
}

/// `snug run`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  snug run -p 'Name three colours.'
  snug run smollm2 -p - --temp 0 < question.txt
  snug run model.gguf --raw -p 'Once upon a time' -n 100 --json")]
pub struct RunArgs {
    #[arg(help = MODEL_HELP)]
    pub model: Option<String>,
    /// The prompt; `-` (or nothing, when something is piped in) reads it from stdin, without its last line break
    #[arg(short, long, value_name = "TEXT", conflicts_with = "ids", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Token ids as the prompt, exactly these
    #[arg(long, value_name = "1,2,3", value_parser = ids)]
    pub ids: Option<Ids>,
    /// System message
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["raw", "ids"], allow_hyphen_values = true)]
    pub system: Option<String>,
    /// Continue the prompt as it is, without the model's chat template
    #[arg(long)]
    pub raw: bool,
    /// Print one JSON object instead of streaming text
    #[arg(long)]
    pub json: bool,
    /// Report the logprob of every token and of the N likeliest (with --json)
    #[arg(long, value_name = "N", requires = "json")]
    pub logprobs: Option<u32>,
    /// Report what each kind of operation cost, on stderr or in the JSON
    #[arg(long)]
    pub profile: bool,
    #[command(flatten)]
    pub sample: Sample,
    #[command(flatten)]
    pub ahead: Ahead,
    #[command(flatten)]
    pub on: On,
}

/// `snug chat`.
#[derive(Debug, Args)]
#[command(after_help = "Ctrl-C stops an answer; at an empty prompt Ctrl-D or Ctrl-C twice leaves.
/reset forgets the conversation, /help lists the commands.

Examples:
  snug chat
  snug chat smollm2 --system 'You answer in one sentence.'
  printf 'Hello\\nAnd again\\n' | snug chat")]
pub struct ChatArgs {
    #[arg(help = MODEL_HELP)]
    pub model: Option<String>,
    /// System message
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub system: Option<String>,
    #[command(flatten)]
    pub sample: Sample,
    #[command(flatten)]
    pub ahead: Ahead,
    #[command(flatten)]
    pub on: On,
}

/// `snug inspect`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  snug inspect smollm2 --tensors")]
pub struct InspectArgs {
    #[arg(help = MODEL_HELP)]
    pub model: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// List every tensor with type, shape and bytes
    #[arg(long)]
    pub tensors: bool,
}

/// `snug logits`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  snug logits smollm2 --ids 1,2,3 --json")]
pub struct LogitsArgs {
    #[arg(help = MODEL_HELP)]
    pub model: Option<String>,
    /// The token ids
    #[arg(long, value_name = "1,2,3", value_parser = ids)]
    pub ids: Ids,
    /// A row of logits for every position, not only the last
    #[arg(long)]
    pub all: bool,
    /// Print {"logits": [...]}, with --all a list of rows, instead of the ten likeliest tokens
    #[arg(long)]
    pub json: bool,
    /// Also print the experts every position chose in each layer, by falling weight: "routing" in JSON
    #[arg(long)]
    pub routing: bool,
    #[command(flatten)]
    pub on: On,
}

/// `snug tokenize`.
#[derive(Debug, Args)]
#[command(
    override_usage = "snug tokenize [OPTIONS] [MODEL] <TEXT|->\n       snug tokenize [OPTIONS] [MODEL] --decode 1,2,3"
)]
#[command(after_help = "Examples:
  snug tokenize 'How many tokens?'
  snug tokenize smollm2 - < book.txt
  snug tokenize smollm2 --decode 19556,905")]
pub struct TokenizeArgs {
    /// The model (as elsewhere) and the text; `-` reads the text from stdin
    #[arg(value_names = ["MODEL", "TEXT"], num_args = 0..=2)]
    pub words: Vec<String>,
    /// Turn these ids into text
    #[arg(long, value_name = "1,2,3", value_parser = ids)]
    pub decode: Option<Ids>,
    /// Read special tokens such as <|im_end|> as ordinary text; with --decode, leave them out
    #[arg(long)]
    pub no_specials: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `snug quantize`.
#[derive(Debug, Args)]
#[command(
    after_help = "Types: f32, f16, bf16, q8_0, q6_k, q5_k, q5_1, q5_0, q4_k, q4_1, q4_0, mxfp4. Vectors and small sensitive matrices
stay floats, and rows that the blocks of a type do not divide get a like one.

Examples:
  snug quantize path/to/hf-model model.gguf --type q8_0
  snug quantize big.gguf small.gguf --type q4_k --tensor-type 'ffn_down=q5_0'"
)]
pub struct QuantizeArgs {
    /// A .gguf file, a Hugging Face directory, or a name in the store
    pub model: String,
    /// The file to write
    pub out: PathBuf,
    /// Type of the matrices
    #[arg(long = "type", value_name = "TYPE", value_parser = parse_type)]
    pub to: DType,
    /// Another type for tensors with PATTERN in their GGUF name (`*` is anything); the first that matches wins
    #[arg(long = "tensor-type", value_name = "PATTERN=TYPE", value_parser = Rule::parse)]
    pub rules: Vec<Rule>,
    /// Set a metadata string, such as general.license; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub meta: Vec<(String, String)>,
    /// Replace OUT if it exists
    #[arg(long)]
    pub force: bool,
}

/// `snug synth`.
#[derive(Debug, Args)]
#[command(after_help = synth_help())]
pub struct SynthArgs {
    /// Which model's sizes
    pub geometry: String,
    /// The file to write, with --format hf the directory
    pub out: PathBuf,
    /// Layers [default: the geometry's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub layers: Option<u32>,
    /// Routed experts of a layer [default: the geometry's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub experts: Option<u32>,
    /// Length of the vocabulary [default: the geometry's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub vocab: Option<u32>,
    /// Type of the matrices [default: q4_0, with --format hf bf16, mlx mlx4]
    #[arg(long = "type", value_name = "TYPE", value_parser = Kind::parse)]
    pub to: Option<Kind>,
    /// Kind of file
    #[arg(long, value_enum, default_value_t = Container::Gguf)]
    pub format: Container,
    /// Leave a hole where the weights would be: to look at and plan with, not to run
    #[arg(long)]
    pub sparse: bool,
    /// Key of the weights
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Replace OUT if it exists
    #[arg(long)]
    pub force: bool,
}

fn synth_help() -> String {
    let geometries: Vec<_> = snug::synth::names().collect();
    format!(
        "Geometries: {}.

For measuring speed and planning: what such a model says means nothing. The same seed gives the same bytes.

Examples:
  snug synth smollm2-135m small.gguf --type q4_0
  snug synth qwen3.6-35b-a3b slice.gguf --type q4_k --layers 8
  snug synth qwen3.6-35b-a3b plan.gguf --sparse",
        geometries.join(", ")
    )
}

/// Containers by name.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub enum Container {
    /// One file
    Gguf,
    /// A Hugging Face directory with safetensors
    Hf,
    /// The same as MLX writes it
    Mlx,
}

/// `snug list`.
#[derive(Debug, Args)]
#[command(
    after_help = "The store is $SNUG_HOME/models, else $XDG_DATA_HOME/snug/models, else ~/.local/share/snug/models.

Example:\n  snug list"
)]
pub struct ListArgs {
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

/// Token ids as typed: separated by commas or spaces, brackets allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids(pub Vec<u32>);

fn ids(s: &str) -> Result<Ids, String> {
    let inner = s.trim().trim_start_matches('[').trim_end_matches(']');
    let words = inner.split([',', ' ', '\n']).map(str::trim).filter(|w| !w.is_empty());
    let one = |w: &str| w.parse().map_err(|_| format!("'{w}' is not a token id"));
    words.map(one).collect::<Result<_, _>>().map(Ids)
}

fn context(s: &str) -> Result<Context, String> {
    match s {
        "max" => Ok(Context::Most),
        n => match n.parse::<u32>() {
            Ok(n) if n > 0 => Ok(Context::Exactly(n)),
            _ => Err("it must be a number of positions, or max".into()),
        },
    }
}

/// Bytes as typed: a number, whole or with a fraction, and a unit (KiB, MiB, GiB, TiB, or K, M, G, T for the same; KB, MB,
/// GB, TB for powers of ten).
fn size(s: &str) -> Result<u64, String> {
    let like = || "it must look like 6GiB, 512MiB, 6GB (powers of ten) or a number of bytes".to_string();
    let digits = s.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(s.len());
    let (number, unit) = s.split_at(digits);
    let one: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(like()),
    };
    if let Ok(n) = number.parse::<u64>() {
        return n.checked_mul(one).filter(|n| *n > 0).ok_or_else(like);
    }
    let n = number.parse::<f64>().map_err(|_| like())? * one as f64;
    if n >= 1.0 && n < u64::MAX as f64 { Ok(n as u64) } else { Err(like()) }
}

fn key_value(s: &str) -> Result<(String, String), String> {
    let (key, value) = s.split_once('=').filter(|(k, _)| !k.is_empty()).ok_or("it must look like key=value")?;
    Ok((key.to_string(), value.to_string()))
}

fn logit_bias(s: &str) -> Result<(u32, f32), String> {
    let (id, bias) = s.split_once('=').ok_or("it must look like 42=-1.5")?;
    let id = id.trim().parse().map_err(|_| format!("'{id}' is not a token id"))?;
    Ok((id, bias.trim().parse().map_err(|_| format!("'{bias}' is not a number"))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent_and_every_help_has_an_example() {
        let mut all = Cli::command();
        all.clone().debug_assert();
        for c in all.get_subcommands_mut().filter(|c| c.get_name() != "help") {
            let help = c.render_long_help().to_string();
            assert!(help.contains("Example"), "{}", c.get_name());
            let examples = help.lines().map(str::trim).filter(|l| l.starts_with("snug "));
            for example in examples.filter(|l| !l.contains("[OPTIONS]")) {
                let line = example.split(" < ").next().unwrap_or(example);
                if let Err(e) = Cli::try_parse_from(words(line)) {
                    panic!("'{example}' is not accepted: {e}");
                }
            }
        }
    }

    /// A command line as a shell cuts it, for single quotes.
    fn words(line: &str) -> Vec<String> {
        let mut out = vec![String::new()];
        let mut quoted = false;
        for c in line.chars() {
            match c {
                '\'' => quoted = !quoted,
                ' ' if !quoted => out.push(String::new()),
                c => out.last_mut().unwrap().push(c),
            }
        }
        out
    }

    #[test]
    fn ids_are_read_as_people_and_json_write_them() {
        assert_eq!(ids("1,2, 3").unwrap().0, [1, 2, 3]);
        assert_eq!(ids("[4, 5]").unwrap().0, [4, 5]);
        assert!(ids("").unwrap().0.is_empty());
        assert!(ids("1,x").unwrap_err().contains("'x'"));
        assert!(ids("-1").is_err() && ids("4294967296").is_err());
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(size("6GiB").unwrap(), 6 << 30);
        assert_eq!((size("1.5g").unwrap(), size("512 MiB").unwrap(), size("77").unwrap()), (3 << 29, 512 << 20, 77));
        assert_eq!((size("200MB").unwrap(), size("1.5 gb").unwrap()), (200_000_000, 1_500_000_000));
        assert_eq!((size("3KB").unwrap(), size("2TB").unwrap()), (3_000, 2_000_000_000_000));
        for bad in ["", "GiB", "GB", "-1", "6PB", "0", "0.0", "1e3", "99999999999T", "1.2.3M", "nan"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_help_of_synth_lists_every_geometry() {
        let mut cli = Cli::command();
        let help = cli.find_subcommand_mut("synth").unwrap().render_long_help().to_string();
        let words: Vec<_> = help.split([' ', '\n']).map(|w| w.trim_end_matches([',', '.'])).collect();
        assert!(snug::synth::names().count() > 5);
        for name in snug::synth::names() {
            assert!(words.contains(&name), "{name} in {help}");
        }
    }

    #[test]
    fn a_gpu_is_named_by_its_number() {
        assert_eq!((Device::parse("cuda:1"), Device::parse("cuda")), (Ok(Device::Cuda(1)), Ok(Device::Cuda(0))));
        assert_eq!((Device::parse("auto"), Device::parse("cpu")), (Ok(Device::Auto), Ok(Device::Cpu)));
        for bad in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:256"] {
            assert!(Device::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_context_is_a_number_or_the_most() {
        assert_eq!((context("max"), context("4096")), (Ok(Context::Most), Ok(Context::Exactly(4096))));
        assert!(context("0").is_err() && context("many").is_err() && context("4294967296").is_err());
    }

    #[test]
    fn a_bias_names_a_token() {
        assert_eq!(logit_bias("7=-2.5").unwrap(), (7, -2.5));
        assert!(logit_bias("7").is_err() && logit_bias("x=1").is_err() && logit_bias("1=x").is_err());
    }
}
