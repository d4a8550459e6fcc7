//! `cargo xtask campaign --hours N`: the simulator for as long as one likes, with a table of what was
//! run and what was found.
//!
//! **Invariants**: no seed is run twice by one campaign; a failure is printed with the command that
//! replays it and does not end the campaign; the exit status is 0 exactly if nothing failed.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::steps::root;

/// What a part runs: its name, and its arguments for a first seed or offset, a count, and seconds.
type Arguments = fn(first: u64, seconds: u64) -> Vec<String>;

/// Seeds that a round may take of one mode; what is left is for the next.
const ROUND: u64 = 1_000_000;

const PARTS: &[(&str, Arguments)] = &[
    ("crash", |first, seconds| {
        seeds(first, seconds, "crash", &["--roomy"])
    }),
    ("within", |first, seconds| {
        seeds(first, seconds, "within", &["--roomy"])
    }),
    ("calm", |first, seconds| {
        seeds(first, seconds / 4, "calm", &["--roomy"])
    }),
    ("full, crash", |first, seconds| {
        seeds(first, seconds / 2, "crash", &["--full"])
    }),
    ("full, within", |first, seconds| {
        seeds(first, seconds / 2, "within", &["--full"])
    }),
    ("beyond", |first, seconds| {
        seeds(first, seconds / 2, "beyond", &["--roomy"])
    }),
    ("enumerate 2", |first, seconds| {
        enumerate(first, seconds, "2", "1")
    }),
    ("enumerate 3", |first, seconds| {
        enumerate(first, seconds, "3", "50")
    }),
];

fn seeds(first: u64, seconds: u64, mode: &str, more: &[&str]) -> Vec<String> {
    let range = format!("{first}..{}", first + ROUND);
    let seconds = seconds.max(1).to_string();
    let fixed = [
        "run",
        "--seeds",
        &range,
        "--mode",
        mode,
        "--seconds",
        &seconds,
    ];
    fixed.iter().chain(more).map(ToString::to_string).collect()
}

fn enumerate(first: u64, seconds: u64, length: &str, one_in: &str) -> Vec<String> {
    let (offset, seconds) = ((first / ROUND).to_string(), seconds.to_string());
    let words = [
        "enumerate",
        "--length",
        length,
        "--one-in",
        one_in,
        "--offset",
        &offset,
        "--seconds",
        &seconds,
    ];
    words.iter().map(ToString::to_string).collect()
}

/// What one part has come to.
#[derive(Default)]
struct Total {
    runs: u64,
    failed: u64,
    seconds: f64,
}

/// Runs the campaign that `words` ask for.
pub(crate) fn run(words: &[String]) -> Option<ExitCode> {
    let mut hours = 1.0;
    let mut first = 10_000_000;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--hours" => hours = words.next()?.parse::<f64>().ok()?,
            "--from" => first = words.next()?.parse().ok()?,
            _ => return None,
        }
    }
    let until = Instant::now() + Duration::try_from_secs_f64(hours * 3_600.0).ok()?;
    let build = ["build", "--profile", "sim", "-p", "ashlar-sim"];
    if !Command::new("cargo")
        .args(build)
        .current_dir(root())
        .status()
        .is_ok_and(|s| s.success())
    {
        println!("the simulator does not build");
        return Some(ExitCode::FAILURE);
    }
    let mut totals: Vec<Total> = PARTS.iter().map(|_| Total::default()).collect();
    let mut failures = Vec::new();
    // Rounds of some ten minutes, so that an interrupted campaign has run a part of everything.
    while Instant::now() < until {
        for ((name, arguments), total) in PARTS.iter().zip(&mut totals) {
            let left = until.saturating_duration_since(Instant::now()).as_secs();
            if left == 0 {
                break;
            }
            part(name, arguments(first, left.min(120)), total, &mut failures);
        }
        first += ROUND;
    }
    Some(report(&totals, &failures))
}

fn part(name: &str, arguments: Vec<String>, total: &mut Total, failures: &mut Vec<String>) {
    let target =
        std::env::var("CARGO_TARGET_DIR").map_or_else(|_| root().join("target"), Into::into);
    let jobs = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let begun = Instant::now();
    let output = Command::new(target.join("sim/ashlar-sim"))
        .args(arguments)
        .args([
            "--jobs",
            &jobs.to_string(),
            "--keep-going",
            "1000",
            "--quiet-panics",
        ])
        .output();
    total.seconds += begun.elapsed().as_secs_f64();
    let Ok(output) = output else {
        total.failed += 1;
        failures.push(format!("{name}: the simulator cannot be started"));
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    for line in text.lines() {
        if line.contains("FAILED") || line.contains("replay: ") {
            println!("{name}: {line}");
            failures.push(format!("{name}: {line}"));
            total.failed += u64::from(line.contains("FAILED"));
        }
    }
    let runs = text.lines().last().and_then(|line| line.split(' ').next());
    match runs.and_then(|word| word.parse::<u64>().ok()) {
        Some(runs) => total.runs += runs,
        None => {
            total.failed += 1;
            failures.push(format!("{name}: the simulator died: {}", output.status));
        }
    }
}

fn report(totals: &[Total], failures: &[String]) -> ExitCode {
    println!(
        "\n{:<14} {:>10} {:>8} {:>9} {:>8}",
        "part", "runs", "failed", "seconds", "a second"
    );
    for ((name, _), total) in PARTS.iter().zip(totals) {
        println!(
            "{name:<14} {:>10} {:>8} {:>9.0} {:>8.1}",
            total.runs,
            total.failed,
            total.seconds,
            total.runs as f64 / total.seconds.max(1e-9)
        );
    }
    for failure in failures {
        println!("{failure}");
    }
    if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_take_seeds_of_their_own_and_nonsense_is_refused() {
        let first = seeds(7, 60, "crash", &["--roomy"]);
        assert_eq!(first[2], "7..1000007");
        assert!(run(&["--days".to_string()]).is_none());
        assert!(run(&["--hours".to_string(), "many".to_string()]).is_none());
    }
}
