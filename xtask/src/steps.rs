//! The steps of `cargo xtask test`, and the count of what passed.
//!
//! **Invariants**: a step without tests of its own counts as one; a test binary that dies without a
//! result line counts as one failure; output is shown as it comes.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use crate::place::root;
use crate::{arrows, cases, circles, folders, named, packages, parts, tidy};

/// Seeds of the simulator that every run tries, by mode: 20,004, 200 of which run twice and 154 of which fill
/// their arrays. More are in the tests of `ashlar-sim` itself, with gates on what they reach.
const SEEDS: [&[&str]; 10] = [
    &["--seeds", "600000..606800", "--roomy", "--mode", "crash"],
    &["--seeds", "610000..617500", "--roomy", "--mode", "within"],
    &["--seeds", "620000..623350", "--roomy", "--mode", "beyond"],
    &["--seeds", "630000..632000", "--roomy", "--mode", "calm"],
    &["--seeds", "640000..640200", "--roomy", "--twice"],
    &["--seeds", "650000..650150", "--full", "--mode", "within"],
    &["--seeds", "51001765..51001766", "--full"], // #191
    &["--seeds", "56861062..56861063", "--pressed"], // #197
    &["--seeds", "56020578..56020579", "--full", "--grouped"], // #198
    &["--seeds", "66358186..66358187", "--full"], // #212
];

/// What passed, what failed, and where.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    lines: Vec<String>,
}

impl Tally {
    fn add(&mut self, step: &str, passed: u64, failed: u64, started: Instant) {
        self.passed += passed;
        self.failed += failed;
        let mark = if failed == 0 { "ok  " } else { "FAIL" };
        let seconds = started.elapsed().as_secs();
        self.lines.push(format!(
            "{mark} {step:<12} {passed:>5} passed {failed:>3} failed {seconds:>5}s"
        ));
    }

    /// Prints the table and the last line.
    pub(crate) fn finish(self) -> ExitCode {
        println!();
        for line in &self.lines {
            println!("{line}");
        }
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

type Step = (&'static str, fn(&mut Tally));

const STEPS: [Step; 11] = [
    ("packages", |tally| {
        check(tally, "packages", packages::install)
    }),
    ("tidy", |tally| {
        check(tally, "tidy", || {
            [tidy::check(&root()), named::check(&root())].concat()
        })
    }),
    ("arrows", |tally| {
        check(tally, "arrows", || {
            let root = root();
            [
                arrows::check(&root),
                folders::check(&root),
                parts::check(&root),
                circles::check(&root),
            ]
            .concat()
        })
    }),
    ("format", |tally| {
        command(tally, "format", &["fmt", "--all", "--check"], &[])
    }),
    ("clippy", |tally| {
        let line = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ];
        command(tally, "clippy", &line, &[]);
        // Without what the program's default feature adds.
        let line = [
            "clippy",
            "-p",
            "ashlar",
            "-p",
            "ashlar-engine",
            "-p",
            "ashlar-accel",
            "--no-default-features",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ];
        command(tally, "clippy: cpu", &line, &[]);
        // What only the feature for planted bugs adds.
        let line = [
            "clippy",
            "-p",
            "ashlar-sim",
            "--features",
            "planted",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ];
        command(tally, "clippy: bugs", &line, &[]);
    }),
    ("doc", |tally| {
        let line = [
            "doc",
            "--workspace",
            "--no-deps",
            "--document-private-items",
        ];
        command(
            tally,
            "doc",
            &line,
            &[(
                "RUSTDOCFLAGS",
                "-D warnings -A rustdoc::private-intra-doc-links",
            )],
        );
    }),
    // All that runs is built with one profile, so that nothing is built twice.
    ("unit", |tally| {
        let line = [
            "test",
            "--profile",
            "sim",
            "--workspace",
            "--lib",
            "--bins",
            "--tests",
            "--exclude",
            "ashlar",
            "--features",
            "ashlar-accel/cuda",
            "--no-fail-fast",
        ];
        tests(tally, "unit", &line);
        tests(
            tally,
            "unit: docs",
            &[
                "test",
                "--profile",
                "sim",
                "--workspace",
                "--doc",
                "--no-fail-fast",
            ],
        );
        tests(
            tally,
            "unit: program",
            &[
                "test",
                "--profile",
                "sim",
                "-p",
                "ashlar",
                "--bins",
                "--no-fail-fast",
            ],
        );
    }),
    ("sim", |tally| {
        let jobs = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let (jobs, run) = (
            jobs.to_string(),
            ["run", "--profile", "sim", "-p", "ashlar-sim"],
        );
        for seeds in SEEDS {
            let more = ["--quiet-panics", "--keep-going", "5"];
            let mut line = [&run[..], &["--", "run", "--jobs", &jobs], seeds].concat();
            line.extend(more);
            command(tally, "sim", &line, &[]);
        }
    }),
    ("end-to-end", |tally| {
        let line = [
            "test",
            "--profile",
            "sim",
            "-p",
            "ashlar",
            "--test",
            "*",
            "--no-fail-fast",
            "--",
            "--test-threads=1",
        ];
        tests(tally, "end-to-end", &line);
    }),
    ("cases", |tally| {
        let started = Instant::now();
        let outcome = cases::try_all(&[]);
        tally.add("cases", outcome.passed, outcome.failed, started);
    }),
    ("demo", |tally| {
        let line = [
            "run",
            "--profile",
            "sim",
            "-p",
            "ashlar",
            "--bin",
            "ashlar",
            "--",
            "demo",
        ];
        command(tally, "demo", &line, &[]);
    }),
];

/// Runs the steps named, or all; `None` if one is unknown.
pub(crate) fn run(wanted: &[String]) -> Option<Tally> {
    if wanted
        .iter()
        .any(|w| !STEPS.iter().any(|(name, _)| name == w))
    {
        return None;
    }
    let mut tally = Tally::default();
    for (name, step) in STEPS {
        if wanted.is_empty() || wanted.iter().any(|w| w == name) {
            println!("\n== {name}");
            step(&mut tally);
        }
    }
    Some(tally)
}

/// A check in this program: every line it gives is one thing wrong.
fn check(tally: &mut Tally, step: &str, action: impl FnOnce() -> Vec<String>) {
    let started = Instant::now();
    let wrong = action();
    for line in &wrong {
        println!("{step}: {line}");
    }
    tally.add(
        step,
        u64::from(wrong.is_empty()),
        wrong.len() as u64,
        started,
    );
}

fn cargo(line: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root()).args(line).stdin(Stdio::null());
    println!("$ cargo {}", line.join(" "));
    command
}

/// A command that counts as one.
fn command(tally: &mut Tally, step: &str, line: &[&str], environment: &[(&str, &str)]) {
    let started = Instant::now();
    let status = cargo(line).envs(environment.iter().copied()).status();
    let passed = status.is_ok_and(|status| status.success());
    tally.add(step, u64::from(passed), u64::from(!passed), started);
}

/// A run of test binaries: counts the tests.
fn tests(tally: &mut Tally, step: &str, line: &[&str]) {
    let started = Instant::now();
    let child = cargo(line).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = child else {
        println!("{step}: cargo cannot be started");
        return tally.add(step, 0, 1, started);
    };
    let (mut passed, mut failed) = (0, 0);
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            println!("{line}");
            if let Some((p, f)) = result_line(&line) {
                passed += p;
                failed += f;
            }
        }
    }
    let success = child.wait().is_ok_and(|status| status.success());
    if !success && failed == 0 {
        failed = 1; // it did not build, or a test binary died
    }
    tally.add(step, passed, failed, started);
}

/// Reads `test result: ok. 3 passed; 0 failed; ...`.
fn result_line(line: &str) -> Option<(u64, u64)> {
    let rest = line
        .trim()
        .strip_prefix("test result: ")?
        .split_once(". ")?
        .1;
    let count = |word: &str| {
        let part = rest.split("; ").find(|part| part.ends_with(word))?;
        part.split(' ').next()?.parse().ok()
    };
    Some((count("passed")?, count("failed")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_counted() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(result_line(line), Some((12, 3)));
        assert_eq!(result_line("test a::b ... ok"), None);
    }

    #[test]
    fn an_unknown_step_is_refused() {
        assert!(run(&["everything".to_string()]).is_none());
    }
}
