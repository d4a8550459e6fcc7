//! `cargo xtask campaign --hours N`: the simulator for as long as one likes, with a table of what was
//! run and what was found.
//!
//! **Invariants**: no seed is run twice by one campaign; a failure is printed with the command that
//! replays it and does not end the campaign; the exit status is 0 exactly if nothing failed.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::place::root;

/// The arguments of the simulator for a first seed and so many seconds.
type Arguments = fn(first: u64, seconds: u64) -> Vec<String>;

/// A part of each round.
struct Part {
    name: &'static str,
    /// Its share of a round, against those of the others.
    share: u64,
    arguments: Arguments,
}

/// Seeds that a round may take of one mode; what is left is for the next.
const ROUND: u64 = 1_000_000;
/// A round is not longer than this, so that an interrupted campaign has run a part of everything.
const ROUND_SECONDS: u64 = 900;

const PARTS: &[Part] = &[
    Part {
        name: "crash",
        share: 4,
        arguments: |first, seconds| seeds(first, seconds, "crash", "--roomy"),
    },
    Part {
        name: "within",
        share: 4,
        arguments: |first, seconds| seeds(first, seconds, "within", "--roomy"),
    },
    Part {
        name: "within, told",
        share: 1,
        arguments: |first, seconds| seeds(first, seconds, "within", "--roomy --told"),
    },
    Part {
        name: "within, late",
        share: 1,
        arguments: |first, seconds| seeds(first, seconds, "within", "--roomy --late"),
    },
    Part {
        name: "within, pressed",
        share: 1,
        arguments: |first, seconds| seeds(first, seconds, "within", "--roomy --pressed"),
    },
    Part {
        name: "within, groups",
        share: 1,
        arguments: |first, seconds| seeds(first, seconds, "within", "--roomy --grouped"),
    },
    Part {
        name: "beyond",
        share: 2,
        arguments: |first, seconds| seeds(first, seconds, "beyond", "--roomy"),
    },
    Part {
        name: "calm",
        share: 1,
        arguments: |first, seconds| seeds(first, seconds, "calm", "--roomy"),
    },
    Part {
        name: "full, crash",
        share: 2,
        arguments: |first, seconds| seeds(first, seconds, "crash", "--full"),
    },
    Part {
        name: "full, within",
        share: 2,
        arguments: |first, seconds| seeds(first, seconds, "within", "--full"),
    },
    Part {
        name: "full, groups",
        share: 1,
        arguments: |first, seconds| seeds(first, seconds, "within", "--full --grouped"),
    },
    Part {
        name: "enumerate 2",
        share: 3,
        arguments: |first, seconds| enumerate(first, seconds, "2", "1"),
    },
    Part {
        name: "enumerate 3",
        share: 3,
        arguments: |first, seconds| enumerate(first, seconds, "3", "50"),
    },
];

/// How many seconds `part` has of a round of so many.
fn seconds(part: &Part, round: u64) -> u64 {
    let all: u64 = PARTS.iter().map(|part| part.share).sum();
    (round * part.share / all).max(1)
}

fn seeds(first: u64, seconds: u64, mode: &str, kind: &str) -> Vec<String> {
    let range = format!("{first}..{}", first + ROUND);
    let seconds = seconds.to_string();
    let words = [
        "run",
        "--seeds",
        &range,
        "--mode",
        mode,
        "--seconds",
        &seconds,
    ];
    let words = words.into_iter().chain(kind.split(' '));
    words.map(ToString::to_string).collect()
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
    let budget = Duration::try_from_secs_f64(hours * 3_600.0).ok()?;
    let build = ["build", "--profile", "campaign", "-p", "ashlar-sim"];
    if !Command::new("cargo")
        .args(build)
        .current_dir(root())
        .status()
        .is_ok_and(|s| s.success())
    {
        println!("the simulator does not build");
        return Some(ExitCode::FAILURE);
    }
    let until = Instant::now() + budget;
    let mut totals: Vec<Total> = PARTS.iter().map(|_| Total::default()).collect();
    let mut failures = Vec::new();
    loop {
        let round = ROUND_SECONDS.min(left(until));
        for (part, total) in PARTS.iter().zip(&mut totals) {
            let arguments = (part.arguments)(first, seconds(part, round));
            run_part(part.name, arguments, total, &mut failures);
        }
        first += ROUND;
        table(&totals);
        // A rest too short for every part is left alone.
        if left(until) < 2 * PARTS.len() as u64 {
            break;
        }
    }
    println!("\ngo on with: cargo xtask campaign --hours {hours} --from {first}");
    Some(report(&failures))
}

/// Seconds until then.
fn left(until: Instant) -> u64 {
    until.saturating_duration_since(Instant::now()).as_secs()
}

fn run_part(name: &str, arguments: Vec<String>, total: &mut Total, failures: &mut Vec<String>) {
    let target =
        std::env::var("CARGO_TARGET_DIR").map_or_else(|_| root().join("target"), Into::into);
    let jobs = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let begun = Instant::now();
    let output = Command::new(target.join("campaign/ashlar-sim"))
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
    println!("{name:<14} {}", text.lines().last().unwrap_or_default());
    for line in text.lines() {
        if line.contains("FAILED") || line.contains("replay: ") {
            println!("    {}", line.trim());
            failures.push(format!("{name}: {}", line.trim()));
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

/// What every part has come to so far, and all of them together.
fn table(totals: &[Total]) {
    println!(
        "\n{:<14} {:>10} {:>8} {:>9} {:>9}",
        "part", "runs", "failed", "seconds", "a second"
    );
    let row = |name: &str, total: &Total| {
        println!(
            "{name:<14} {:>10} {:>8} {:>9.0} {:>9.1}",
            total.runs,
            total.failed,
            total.seconds,
            total.runs as f64 / total.seconds.max(1e-9)
        );
    };
    let mut all = Total::default();
    for (part, total) in PARTS.iter().zip(totals) {
        row(part.name, total);
        all.runs += total.runs;
        all.failed += total.failed;
        all.seconds += total.seconds;
    }
    row("all", &all);
    println!();
}

/// Every failure once more, at the end.
fn report(failures: &[String]) -> ExitCode {
    for failure in failures {
        println!("{failure}");
    }
    if failures.is_empty() {
        println!("nothing failed");
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
        let first = seeds(7, 60, "crash", "--roomy");
        assert_eq!(first[2], "7..1000007");
        let whole: u64 = PARTS.iter().map(|part| seconds(part, 900)).sum();
        assert!((800..=900).contains(&whole), "{whole}");
        assert!(run(&["--days".to_string()]).is_none());
        assert!(run(&["--hours".to_string(), "many".to_string()]).is_none());
    }
}
