//! Crash enumeration in part: a sample of the workloads of one and two operations, the power cut
//! after every device operation. `ashlar-sim enumerate` runs all of them, and longer ones.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_sim::engine::Engine;
use ashlar_sim::enumerate::log::Effort;
use ashlar_sim::enumerate::ops::ALPHABET;
use ashlar_sim::enumerate::{Plan, Summary, enumerate};

fn run(length: usize, one_in: u64, only: Option<&[&str]>, effort: Effort) -> Summary {
    let number = |name: &&str| {
        ALPHABET
            .iter()
            .position(|letter| letter.0 == *name)
            .unwrap()
    };
    let plan = Plan {
        length,
        least: length,
        one_in,
        offset: 0,
        effort,
        again_one_in: 400,
        only: only.map(|names| names.iter().map(number).collect()),
        geometries: 0xF,
        jobs: std::thread::available_parallelism().map_or(2, |n| n.get().min(8)),
        seconds: None,
        most_failures: 1,
    };
    let summary = enumerate(&plan, || Engine);
    if let Some((command, failure)) = summary.failures.first() {
        panic!("{failure}\nreplay: {command}");
    }
    summary
}

#[test]
fn one_operation_survives_every_crash() {
    let effort = Effort {
        full: false,
        samples: 4,
        torn: 1,
    };
    let summary = run(1, 1, None, effort);
    assert_eq!(summary.workloads, 4 * 53);
    assert!(summary.lost > 500 && summary.again > 500, "{summary:?}");
}

#[test]
fn two_operations_survive_every_crash() {
    let effort = Effort {
        full: false,
        samples: 3,
        torn: 1,
    };
    let summary = run(2, 50, None, effort);
    assert!(summary.workloads > 150, "{summary:?}");
    assert!(summary.lost > 300, "{summary:?}");
}

/// A device hangs during a checkpoint, and is taken in again by itself: what was sent to it lands
/// before the crash, with it, or never.
#[test]
fn a_device_that_hung_and_is_back_survives_every_crash() {
    let effort = Effort {
        full: false,
        samples: 3,
        torn: 1,
    };
    let summary = run(2, 1, Some(&["hang1-create", "return1"]), effort);
    assert_eq!(summary.workloads, 4);
    assert!(summary.lost > 300, "{summary:?}");
}
