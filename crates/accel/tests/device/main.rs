//! The device's code on a stand-in for the driver, which these tests build with the system's `g++`.
//!
//! The library that is built is named and exported like NVIDIA's, so the program's own code loads it and
//! cannot tell the difference; kernels run in a host emulator, under the address sanitizer. Since a library
//! path and a sanitizer must be there before a program starts, this program starts itself again, once for
//! each group of scenarios. It has no harness for that reason; its last line reads like that of one.

#![allow(clippy::unwrap_used, reason = "tests")]

mod arrays;
mod build;
mod digests;
mod faults;
mod machine;
mod mistakes;
mod pipeline;
mod products;
mod standin;

use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A scenario: its name, and what panics if it fails.
type Scenario = (&'static str, fn());

/// Where a group runs.
#[derive(Clone, Copy, PartialEq)]
enum On {
    /// The stand-in.
    StandIn,
    /// Whatever driver the machine has, which may be none.
    Machine,
    /// A process that starts others.
    Parent,
}

const GROUPS: &[(&str, On, &[Scenario])] = &[
    ("faults", On::StandIn, faults::ALL),
    ("arrays", On::StandIn, arrays::ALL),
    ("mistakes", On::Parent, mistakes::ALL),
    ("pipeline", On::StandIn, pipeline::ALL),
    ("digests", On::StandIn, digests::ALL),
    ("products", On::StandIn, products::ALL),
    ("machine", On::Machine, machine::ALL),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, name, filter @ ..] = arguments.as_slice()
        && flag == "--group"
    {
        return run_group(name, filter.first().map_or("", String::as_str));
    }
    if arguments.iter().any(|a| a == "--list") {
        for (name, _) in GROUPS.iter().flat_map(|(_, _, all)| *all) {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let wanted = arguments.iter().find(|a| !a.starts_with("--"));
    let wanted = wanted.map_or("", String::as_str);
    let of = |all: &[Scenario]| all.iter().filter(|(name, _)| name.contains(wanted)).count();
    let library = match build::standin() {
        Ok(library) => library,
        Err(error) => {
            println!("the stand-in driver cannot be built: {error}");
            println!(
                "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out"
            );
            return ExitCode::FAILURE;
        }
    };
    let groups: Vec<_> = GROUPS.iter().filter(|(_, _, all)| of(all) > 0).collect();
    // Two at a time, the longest first.
    let next = AtomicUsize::new(0);
    let work = || {
        let (mut passed, mut failed) = (0, 0);
        while let Some((name, on, all)) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
            let ok = supervise(name, *on, &library, wanted);
            passed += ok;
            failed += of(all) - ok;
        }
        (passed, failed)
    };
    let (passed, failed) = std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let (passed, failed) = work();
        let others = other.join().unwrap();
        (passed + others.0, failed + others.1)
    });
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "test result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out"
    );
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// This program on a library.
fn on_library(group: &str, library: &build::Library) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--group", group])
        .env("LD_LIBRARY_PATH", &library.folder)
        .env("LD_PRELOAD", &library.sanitizer)
        .env("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1")
        .env("UBSAN_OPTIONS", "print_stacktrace=1")
        .env(standin::PATH, library.folder.join("libcuda.so"))
        .stdin(Stdio::null());
    command
}

/// Runs a group in a process of its own; how many of its scenarios passed.
fn supervise(name: &str, on: On, library: &build::Library, wanted: &str) -> usize {
    let started = Instant::now();
    let mut command = on_library(name, library);
    if on != On::StandIn {
        command = Command::new(std::env::current_exe().unwrap());
        command.args(["--group", name]).stdin(Stdio::null());
    }
    let output = command.arg(wanted).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{text}");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    let seconds = started.elapsed().as_secs_f64();
    println!("group {name}: {}, {seconds:.1} s", output.status);
    let passed = |line: &&str| line.starts_with("test ") && line.ends_with("... ok");
    text.lines().filter(passed).count()
}

fn run_group(name: &str, wanted: &str) -> ExitCode {
    let group = GROUPS.iter().find(|(group, _, _)| *group == name);
    let all = match group {
        Some((_, _, all)) => *all,
        None if name == mistakes::VICTIM => mistakes::VICTIM_SCENARIOS,
        None => return ExitCode::FAILURE,
    };
    let mut failed = false;
    for (name, scenario) in all.iter().filter(|(name, _)| name.contains(wanted)) {
        let ok = std::panic::catch_unwind(scenario).is_ok();
        println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
        failed |= !ok;
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
