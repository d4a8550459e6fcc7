//! Other people's failures, tried on this program: `tests/cases/NN-name.sh`, each of which makes a daemon of its own
//! (`common.sh`).
//!
//! **Invariants**: a case exits with 0 (right), 1 (the fault) or 77 (cannot be tried here); 77 is a failure in CI; a
//! case that is not run is named, with what it waits for; none runs longer than [`LIMIT`].

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::place::{is_ci, root};

/// No case takes longer.
const LIMIT: Duration = Duration::from_secs(150);

/// What became of the cases.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Those that were right.
    pub(crate) passed: u64,
    /// Those that were not, or could not be tried in CI.
    pub(crate) failed: u64,
}

/// `cargo xtask cases [NN...]`: these cases, or all. `ASHLAR` names the program to try;
/// without it the one of the end-to-end tests is built.
pub(crate) fn run(wanted: &[String]) -> Option<ExitCode> {
    let all = all_cases();
    let unknown = |w: &&String| !all.iter().any(|(number, _)| number == *w);
    if let Some(word) = wanted.iter().find(unknown) {
        eprintln!("no case {word} in tests/cases");
        return None;
    }
    let outcome = try_all(wanted);
    println!("{} passed, {} failed", outcome.passed, outcome.failed);
    Some(if outcome.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs these cases, or all.
pub(crate) fn try_all(wanted: &[String]) -> Outcome {
    let mut outcome = Outcome::default();
    let Some(program) = program() else {
        println!("cases: the program cannot be built");
        outcome.failed = 1;
        return outcome;
    };
    for (number, path) in all_cases() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !wanted.is_empty() && !wanted.contains(&number) {
            continue;
        }
        let started = Instant::now();
        let (code, said) = try_one(&program, &path);
        let seconds = started.elapsed().as_secs();
        let (mark, failed) = match code {
            Some(0) => ("ok   ", false),
            Some(77) if !is_ci() => ("!!! NOT RUN", false),
            _ => ("FAIL ", true),
        };
        println!("{mark} {name:<32} {seconds:>3}s  {said}");
        outcome.passed += u64::from(code == Some(0));
        outcome.failed += u64::from(failed);
    }
    outcome
}

/// Number and path of every case, in order.
fn all_cases() -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(root().join("tests/cases"));
    let mut cases: Vec<(String, PathBuf)> = Vec::new();
    for entry in entries.into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.extension().is_some_and(|e| e == "sh")
            && let Some((number, _)) = name.split_once('-')
        {
            cases.push((number.to_string(), path));
        }
    }
    cases.sort();
    cases
}

fn program() -> Option<PathBuf> {
    if let Some(given) = std::env::var_os("ASHLAR") {
        return std::fs::canonicalize(given).ok();
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let line = [
        "build",
        "--profile",
        "sim",
        "-p",
        "ashlar",
        "--bin",
        "ashlar",
    ];
    let built = Command::new(cargo).current_dir(root()).args(line).status();
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let path = target.join("sim/ashlar");
    (built.is_ok_and(|s| s.success()) && path.exists()).then_some(path)
}

/// The exit code of a case, none if it did not end by itself in time, and the last line it said.
fn try_one(program: &Path, case: &Path) -> (Option<i32>, String) {
    let path = std::env::var("PATH").unwrap_or_default();
    let child = Command::new("bash")
        .arg(case)
        .current_dir(root())
        .env("A", program)
        .env("DOC", root().join("docs/operating.md"))
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .env_remove("ASHLAR_SOCKET")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return (None, format!("bash cannot be started: {error}")),
    };
    // It says one line, which fits the pipe.
    let code = ended(&mut child);
    let mut said = String::new();
    if code.is_some()
        && let Some(mut out) = child.stdout.take()
    {
        let _ = std::io::Read::read_to_string(&mut out, &mut said);
    }
    let last = said.lines().last().unwrap_or("nothing was said");
    (code, last.to_string())
}

fn ended(child: &mut Child) -> Option<i32> {
    let until = Instant::now() + LIMIT;
    while Instant::now() < until {
        if let Ok(Some(status)) = child.try_wait() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    // Asked first, so that the case cleans up: its daemon is stopped, its mounts undone.
    for signal in ["-TERM", "-KILL"] {
        let group = format!("-{}", child.id());
        let _ = Command::new("kill").args([signal, "--", &group]).status();
        std::thread::sleep(Duration::from_secs(8));
    }
    let _ = child.wait();
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_can_say_no() {
        let cases = all_cases();
        assert!(cases.len() >= 25);
        let common = root().join("tests/cases/common.sh");
        let common = std::fs::read_to_string(common).unwrap_or_default();
        assert!(common.contains("trap clean EXIT"));
        for (_, path) in cases {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                text.contains("/common.sh\"\n") && text.contains("bad "),
                "{}",
                path.display()
            );
        }
    }
}
