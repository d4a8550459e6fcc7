//! The `ashlar` program: the command line, the daemon, the demonstration; one binary.
//!
//! **Invariants**: exit codes are those of the contract: 0 done, 1 failed, 2 wrong usage; an error
//! is one line on standard error, or with `-j` a JSON document on
//! standard output. No `unsafe`: system calls go through well-kept crates.

#![forbid(unsafe_code)]

mod api;
mod cli;
mod client;
mod command;
mod daemon;
mod demo;
mod failure;
mod print;
mod seat;
mod units;
mod view;

use std::io::Write;
use std::process::ExitCode;

use cli::usage::{self, Typed};
use failure::Kind;

fn main() -> ExitCode {
    command::completions::answer();
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let typed = Typed::new(&words);
    match usage::read(&typed).and_then(command::run) {
        Ok(code) => code,
        Err(failure) => {
            // Whoever reads it may be gone: that is no reason to abort.
            if typed.json {
                let error = serde_json::json!({ "error": failure.to_json() });
                let text = print::document(&typed.verb, &error).unwrap_or_default();
                let _ = std::io::stdout().write_all(text.as_bytes());
            } else {
                let _ = writeln!(std::io::stderr(), "ashlar: {failure}");
            }
            match failure.kind {
                Kind::Invalid => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}
