//! `cargo xtask golden`: the golden images of the format, by the example that makes and unpacks them.
//!
//! Invariant: nothing but what the example prints goes to the standard output.

use std::process::{Command, ExitCode};

/// Runs the example with these words.
pub(crate) fn run(words: &[String]) -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args([
        "run",
        "-q",
        "-p",
        "ashlar-verify",
        "--example",
        "golden",
        "--",
    ]);
    match command.args(words).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cargo cannot be started: {error}");
            ExitCode::FAILURE
        }
    }
}
