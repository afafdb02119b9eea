//! One file for each command.

mod ahead;
mod answer;
mod bench;
mod chat;
mod doctor;
pub mod experts;
mod inspect;
mod launch;
mod list;
mod logits;
mod perplexity;
mod plan;
mod profile;
mod quantize;
mod run;
mod serve;
mod synth;
mod tokenize;

use crate::args::{Cli, Command};
use crate::fault::Ended;
use std::time::Instant;

/// Runs what was typed. `begun` is when the process started.
pub fn run(cli: Cli, begun: Instant) -> anyhow::Result<Ended> {
    // A server that is told to stop has its own way.
    if !matches!(cli.command, Command::Serve(_)) {
        crate::interrupt::install()?;
    }
    let v = cli.verbose;
    match cli.command {
        Command::Run(a) => run::run(&a, begun, v),
        Command::Chat(a) => chat::run(&a, v),
        Command::Inspect(a) => inspect::run(&a),
        Command::Logits(a) => logits::run(&a, v),
        Command::Tokenize(a) => tokenize::run(&a),
        Command::Quantize(a) => quantize::run(&a),
        Command::Synth(a) => synth::run(&a),
        Command::Launch(a) => launch::run(&a),
        Command::Doctor(a) => doctor::run(&a),
        Command::Experts(a) => experts::run(&a, v),
        Command::List(a) => list::run(&a),
        Command::Bench(a) => bench::run(&a, v),
        Command::Plan(a) => plan::run(&a),
        Command::Perplexity(a) => perplexity::run(&a, v),
        Command::Serve(a) => serve::run(&a, v),
    }
}
