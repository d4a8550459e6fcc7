//! Development commands. `cargo xtask test` runs everything that CI runs, and ends with one line:
//! `N passed, N failed`.
//!
//! **Invariants**: the exit status is 0 exactly if nothing failed; what could not be run is said
//! loudly, and is a failure where `CI=true`; no step hides another's result.

mod arrows;
mod campaign;
mod cases;
mod circles;
mod folders;
mod golden;
mod named;
mod package;
mod packages;
mod papers;
mod parts;
mod paths;
mod place;
mod soak;
mod steps;
mod tidy;
mod trial;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask test [STEP...]
       cargo xtask campaign [--hours N] [--from SEED]
       cargo xtask cases [NN...]
       cargo xtask golden make | unpack NAME FOLDER | expected
       cargo xtask package
       cargo xtask papers [PAPER... | all]
       cargo xtask soak [day | devices | upgrade [COMMIT]]
       cargo xtask trial [SUITE...]

steps: packages tidy arrows format clippy doc unit sim end-to-end cases demo   (default: all, in this order)
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.split_first() {
        Some((verb, wanted)) if verb == "test" => match steps::run(wanted) {
            Some(tally) => tally.finish(),
            None => usage(),
        },
        Some((verb, words)) if verb == "campaign" => campaign::run(words).unwrap_or_else(usage),
        Some((verb, words)) if verb == "golden" => golden::run(words),
        Some((verb, [])) if verb == "package" => package::run(),
        Some((verb, words)) if verb == "papers" => papers::run(words).unwrap_or_else(usage),
        Some((verb, suites)) if verb == "trial" => trial::run(suites),
        Some((verb, words)) if verb == "soak" => soak::run(words).unwrap_or_else(usage),
        Some((verb, words)) if verb == "cases" => cases::run(words).unwrap_or_else(usage),
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprint!("{USAGE}");
    ExitCode::from(2)
}
