//! The `ashlar` program: the command line, the daemon, the demonstration; one binary.
//!
//! **Invariants**: exit codes are those of the contract: 0 done, 1 failed, 2 wrong usage; an error
//! is one line on standard error. No `unsafe`: system calls go through well-kept crates.

#![forbid(unsafe_code)]

mod api;
mod cli;
mod client;
mod command;
mod daemon;
mod demo;
mod failure;
mod units;
mod view;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use failure::Kind;

fn main() -> ExitCode {
    match command::run(cli::Cli::parse()) {
        Ok(code) => code,
        Err(failure) => {
            // Whoever reads it may be gone: that is no reason to abort.
            let _ = writeln!(std::io::stderr(), "ashlar: {failure}");
            match failure.kind {
                Kind::Invalid => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}
