//! Chores of the repository that need more than cargo: `cargo xtask cuda` compiles the GPU kernels.

mod cuda;
mod nvrtc;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Chores of the repository.")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Compiles the CUDA kernels of crates/device for every architecture and writes them, compressed, beside their
    /// source. Needs no GPU and no CUDA installation: the compiler comes as Python wheels through pip.
    ///
    /// Examples: `cargo xtask cuda`, `cargo xtask cuda --check`
    Cuda(cuda::Options),
}

fn main() -> anyhow::Result<()> {
    match Args::parse().chore {
        Chore::Cuda(o) => cuda::run(&o),
    }
}
