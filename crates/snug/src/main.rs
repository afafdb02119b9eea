//! The command line: arguments in, text or JSON out. Nothing that another crate could hold.
//!
//! stdout carries the answer and nothing else; what a person should know besides goes to stderr. Every failure is one
//! line there, beginning with `error:`.

mod args;
mod cmd;
mod fault;
mod interrupt;
mod leases;
mod load;
mod output;
mod places;
mod progress;
mod resolve;
mod serve;
mod streamed;

use clap::Parser;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let begun = Instant::now();
    let ended = match args::Cli::try_parse() {
        Ok(cli) => cmd::run(cli, begun),
        Err(e) => return fault::of_clap(&e),
    };
    match ended {
        Ok(e) => e.into(),
        Err(e) => fault::report(&e),
    }
}
