//! The simulator tested with stores whose faults are known: the right one passes, each planted bug
//! is found.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_sim::config::Options;
use ashlar_sim::driver::run_seed;
use ashlar_sim::run::{Batch, run_batch};
use ashlar_sim::shrink::shrink;
use ashlar_sim::toy::{Plant, Toy};

fn batch(most_failures: usize, twice: bool) -> Batch {
    Batch {
        jobs: 2,
        most_failures,
        twice,
        seconds: None,
        options: Options::default(),
    }
}

#[test]
fn the_right_store_passes_and_repeats_itself() {
    let summary = run_batch(0..150, batch(1, true), || Toy(Plant::Nothing));
    assert_eq!(summary.failures, []);
    assert_eq!(summary.seeds, 150);
    for mark in [
        "crash at work",
        "crash during import",
        "export",
        "outage: device lost",
    ] {
        assert!(
            summary.marks.get(mark).is_some_and(|n| *n > 10),
            "{mark}: {:?}",
            summary.marks
        );
    }
}

fn found(make: fn() -> Toy, within: u64, text: &str) {
    let summary = run_batch(0..within, batch(1, false), make);
    let (_, failure) = summary.failures.first().expect("the planted bug is found");
    assert!(failure.contains(text), "{failure}");
}

#[test]
fn acknowledging_before_flushing_is_found() {
    found(|| Toy(Plant::NoFlush), 100, "WRONG BYTES");
}

#[test]
fn unverified_reads_are_found() {
    found(|| Toy(Plant::NoVerify), 1_200, "WRONG BYTES");
}

#[test]
fn overwriting_the_only_durable_copy_is_found() {
    found(|| Toy(Plant::NoOrder), 200, "WRONG BYTES");
}

#[test]
fn recovery_that_checkpoints_nothing_is_found() {
    found(|| Toy(Plant::NoCheckpoint), 400, "");
}

#[test]
fn a_lost_wakeup_is_found() {
    found(|| Toy(Plant::Hang), 50, "hangs");
}

#[test]
fn a_trim_that_reaches_too_far_is_found() {
    found(|| Toy(Plant::WideTrim), 200, "WRONG BYTES");
}

#[test]
fn a_trace_tells_the_story_without_changing_it() {
    let quiet = run_seed(&Toy(Plant::NoFlush), 3, Options::default());
    let traced = run_seed(
        &Toy(Plant::NoFlush),
        3,
        Options {
            trace: true,
            ..Options::default()
        },
    );
    assert_eq!((quiet.hash, &quiet.failure), (traced.hash, &traced.failure));
    assert!(quiet.lines.is_empty() && traced.lines.len() > 100);
}

#[test]
fn a_failure_is_shrunk_to_a_dozen_operations_and_a_test() {
    let toy = Toy(Plant::NoFlush);
    let seed = (0..100)
        .find(|seed| run_seed(&toy, *seed, Options::default()).failure.is_some())
        .expect("the planted bug is found");
    let small = shrink(&toy, seed, Options::default(), 8).unwrap();
    assert!(small.operations <= 12, "{small:?}");
    assert!(small.failure.contains("WRONG BYTES"), "{}", small.failure);
    assert!(!small.story.is_empty());
    let again = run_seed(&toy, small.seed, small.options);
    assert!(again.failure.is_some(), "what is given fails");
    let test = small.test();
    assert!(
        test.contains(&format!("fn seed_{}()", small.seed)),
        "{test}"
    );
    assert!(shrink(&Toy(Plant::Nothing), 3, Options::default(), 4).is_none());
}
