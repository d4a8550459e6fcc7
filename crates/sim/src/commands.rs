//! The commands of `ashlar-sim` that have options of their own.
//!
//! Invariants: as in `main`: exit status 0, 1 when something failed, 2 for wrong usage.

use std::process::ExitCode;
use std::time::Instant;

use ashlar_sim::engine::Engine;
use ashlar_sim::enumerate::log::Effort;
use ashlar_sim::enumerate::ops::{ALPHABET, GEOMETRIES};
use ashlar_sim::enumerate::{Case, Cut, Plan, enumerate as run, replay};

pub(crate) const USAGE: &str = "\
usage: ashlar-sim run --seeds A..B [--jobs N] [--keep-going N] [--seconds N] [--twice] [OPTIONS]
       ashlar-sim sweep --seeds A..B [--step N] [OPTIONS]
       ashlar-sim replay SEED [--trace] [--lines N] [OPTIONS]
       ashlar-sim shrink SEED [--tries N] [OPTIONS]
       ashlar-sim enumerate [--length N] [--one-in N] [--jobs N] [--seconds N] [--quick]
                            [--layout L] [--workload A,B]
       ashlar-sim enumerate --layout L --workload A,B --at N --image I [--lost MASK] [--again N --again-image I]
       ashlar-sim planted [--most N] [--seconds N] [--jobs N] [BUG ...]      (built with --features planted)

  run     one random history a seed
  sweep   the first session of each seed, crashed after every N polls (default 1)
  replay  one history, with its story
  shrink  the smallest history that fails as this one does, and a test of it
  enumerate  every workload of up to --length letters (default 2; of the longest ones one in
             --one-in), or only --workload, the power cut after every device operation; or one case,
             with its story
  planted    in how many seeds each bug that was made on purpose is found

  --mode calm|crash|within|beyond   what may go wrong (default: the seed decides)
  --rounds N, --clients N, --operations N    at most so many
  --without MASK                    parts of the history left out, as shrink says
  --roomy                           no full arrays
  --full                            full arrays only, where K is at most 4
  --grouped                         layouts of several groups only
  --pressed                         crashes as the journal presses, and slow imports
  --told                            a degraded array loses as many more devices as it says it survives
  --late                            parity and lost columns are computed by what answers late
  --crash-at POLLS                  one session, crashed there
  --toy                             drive the built-in toy store instead of the engine
  --marks                           print what was reached, and how often
  --unchecked                       without the checkers, to measure what they cost
  --verify-one-in N                 the independent verifier looks at one seed in N (default: all; 0: none)
  --verify-crashed                  it also looks at what is there before each import (else in one of 16)
  --quiet-panics                    no message at each panic inside a seed
";

fn wrong() -> ExitCode {
    eprint!("{}", USAGE);
    ExitCode::from(2)
}

/// The value after `name`, if it is there.
fn value<'a>(words: &'a [String], name: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word == name)?;
    words.get(at + 1).map(String::as_str)
}

fn number(words: &[String], name: &str, default: u64) -> Option<u64> {
    value(words, name).map_or(Some(default), |text| text.parse().ok())
}

/// `ashlar-sim enumerate`.
pub fn enumerate(words: &[String]) -> ExitCode {
    if words.iter().any(|word| word == "--quiet-panics") {
        std::panic::set_hook(Box::new(|_| ()));
    }
    if words.iter().any(|word| word == "--at") {
        return case(words).map_or_else(wrong, |case| one(&case, words));
    }
    let Some(plan) = plan(words) else {
        return wrong();
    };
    let begun = Instant::now();
    let summary = run(&plan, || Engine);
    for (command, failure) in &summary.failures {
        println!("FAILED: {failure}\n  replay: {command}");
    }
    println!(
        "{} workloads ({} unfinished), {} crash points, {} recoveries ({} with devices lost, {} crashed again), {} failed, {:.1} s",
        summary.workloads,
        summary.unfinished,
        summary.points,
        summary.recoveries,
        summary.lost,
        summary.again,
        summary.failures.len(),
        begun.elapsed().as_secs_f64()
    );
    if summary.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn plan(words: &[String]) -> Option<Plan> {
    let quick = words.iter().any(|word| word == "--quick");
    let effort = if quick {
        Effort {
            full: false,
            samples: 4,
            torn: 1,
        }
    } else {
        Effort {
            full: true,
            samples: 256,
            torn: 4,
        }
    };
    let geometries = match value(words, "--layout") {
        Some(layout) => 1 << GEOMETRIES.iter().position(|g| g.0 == layout)?,
        None => 0xF,
    };
    let only = match value(words, "--workload") {
        Some(names) => Some(letters(names)?),
        None => None,
    };
    Some(Plan {
        only,
        length: usize::try_from(number(words, "--length", 2)?).ok()?,
        least: 1,
        one_in: number(words, "--one-in", 1)?,
        offset: number(words, "--offset", 0)?,
        effort,
        again_one_in: if quick { 200 } else { 20 },
        geometries,
        jobs: usize::try_from(number(words, "--jobs", 1)?).ok()?,
        seconds: match value(words, "--seconds") {
            Some(text) => Some(text.parse().ok()?),
            None => None,
        },
        most_failures: usize::try_from(number(words, "--keep-going", 1)?).ok()?,
    })
}

/// The numbers of these letters.
fn letters(names: &str) -> Option<Vec<usize>> {
    let number = |name| ALPHABET.iter().position(|letter| letter.0 == name);
    names.split(',').map(number).collect()
}

fn case(words: &[String]) -> Option<Case> {
    let layout = value(words, "--layout")?;
    let letters = letters(value(words, "--workload")?)?;
    let cut = |at: &str, image: &str| -> Option<Cut> {
        Some(Cut {
            at: value(words, at)?.parse().ok()?,
            image: value(words, image)?.parse().ok()?,
        })
    };
    Some(Case {
        geometry: GEOMETRIES.iter().position(|g| g.0 == layout)?,
        letters,
        cut: cut("--at", "--image")?,
        lost: u64::from_str_radix(value(words, "--lost").unwrap_or("0"), 16).ok()?,
        again: cut("--again", "--again-image"),
    })
}

fn one(case: &Case, words: &[String]) -> ExitCode {
    let lines = number(words, "--lines", 400).unwrap_or(400);
    let (failure, story) = replay(&Engine, case);
    let from = story
        .len()
        .saturating_sub(usize::try_from(lines).unwrap_or(400));
    for line in &story[from..] {
        println!("{line}");
    }
    match failure {
        Some(failure) => {
            println!("FAILED: {failure}");
            ExitCode::FAILURE
        }
        None => {
            println!("passed");
            ExitCode::SUCCESS
        }
    }
}

/// `ashlar-sim planted`: each bug in a process of its own, since some never end.
#[cfg(feature = "planted")]
pub fn planted(words: &[String]) -> ExitCode {
    use ashlar_sim::planted::Bug;

    let (Some(most), Some(seconds), Some(jobs)) = (
        number(words, "--most", 20_000),
        number(words, "--seconds", 600),
        number(words, "--jobs", 1),
    ) else {
        return wrong();
    };
    let known = |name: &String| Bug::ALL.iter().any(|(bug, _)| format!("{bug:?}") == *name);
    let named = words.iter().any(known);
    let (mut all, mut found) = (0, 0);
    for (bug, what) in Bug::ALL {
        let name = format!("{bug:?}");
        if named && !words.contains(&name) {
            continue;
        }
        all += 1;
        let options = [most, seconds, jobs].map(|n| n.to_string());
        match hunt_apart(&name, &options, seconds + 20) {
            Some(line) => {
                found += u64::from(!line.contains("NOT FOUND"));
                println!("{name:<26} {line}");
            }
            None => {
                println!("{name:<26} NOT FOUND: a seed did not end, which proves nothing: {what}")
            }
        }
    }
    println!("{found} of {all} bugs found");
    if found == all {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Hunts one bug in a child; its line, or `None` if it had to be ended after `seconds`.
#[cfg(feature = "planted")]
fn hunt_apart(name: &str, options: &[String], seconds: u64) -> Option<String> {
    let program = std::env::current_exe().ok()?;
    let mut child = std::process::Command::new(program)
        .arg("planted-one")
        .arg(name)
        .args(options)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .ok()?;
    let begun = Instant::now();
    while child.try_wait().ok()?.is_none() {
        if begun.elapsed().as_secs() >= seconds {
            child.kill().ok()?;
            child.wait().ok()?;
            return None;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let output = child.wait_with_output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// `ashlar-sim planted-one BUG MOST SECONDS JOBS`: the child of `planted`.
#[cfg(feature = "planted")]
pub fn planted_one(words: &[String]) -> ExitCode {
    use ashlar_sim::planted::{Bug, hunt};

    std::panic::set_hook(Box::new(|_| ()));
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
    let bug = words
        .first()
        .and_then(|name| Bug::ALL.iter().find(|(bug, _)| format!("{bug:?}") == *name));
    let (Some((bug, what)), Some(most), Some(seconds), Some(jobs)) =
        (bug, number(1), number(2), number(3))
    else {
        return wrong();
    };
    let begun = Instant::now();
    let answer = hunt(*bug, most, seconds, usize::try_from(jobs).unwrap_or(1));
    let (runs, seconds) = (answer.runs, begun.elapsed().as_secs_f64());
    let kind = answer.kind;
    match answer.found {
        Some((how, failure)) => {
            let failure: String = failure.chars().take(90).collect();
            println!("{runs:>7} {kind} {seconds:>6.1} s  {how}: {failure}");
        }
        None => println!("NOT FOUND in {runs} {kind}, {seconds:.1} s: {what}"),
    }
    ExitCode::SUCCESS
}
