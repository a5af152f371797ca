//! The benchmark program.
//!
//! `cargo run --release -p fabric-bench -- help`

use std::process::ExitCode;

use clap::Parser;
use fabric_bench::Error;
use fabric_bench::cli::Cli;

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(()) | Err(Error::OutputClosed) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fabric-bench: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
