//! The arrays that are searched, and the mistakes that are found.

use std::time::Instant;

use ashlar_space::work::Narrow;

use crate::explore::explore;
use crate::state::{Array, Planted};

const NONE: &[&str] = &[];

const ARRAY: Array = Array {
    layout: "ec2+1",
    slots: &[],
    labels: NONE,
    losses: 1,
    promised: 4,
    jobs: 1,
    claims: 1,
    nodes: 2,
    narrow: Narrow::Critical,
    planted: Planted::Nothing,
};

fn holds(name: &str, array: &Array) {
    let since = Instant::now();
    let found = explore(array, 4_000_000);
    println!(
        "{name}: {} on {:?}, {} promised, {} losses, {} jobs: {} states, {} steps, {:.1} s",
        array.layout,
        array.slots,
        array.promised(),
        array.losses,
        array.jobs,
        found.states,
        found.steps,
        since.elapsed().as_secs_f64()
    );
    if let Some(story) = found.violation {
        panic!("{name}:\n{}", story.join("\n"));
    }
}

#[test]
fn as_many_devices_as_columns() {
    holds(
        "K+M = P",
        &Array {
            slots: &[16, 16, 16],
            claims: 2,
            ..ARRAY
        },
    );
}

/// As full as that: once a device is gone, narrow segments give way to segments without a column.
#[test]
fn as_many_devices_as_columns_and_twice_as_full() {
    holds(
        "K+M = P, fuller",
        &Array {
            slots: &[17, 17, 17],
            ..ARRAY
        },
    );
}

#[test]
fn as_many_devices_as_columns_written_narrower_always() {
    let array = Array {
        slots: &[16, 16, 16],
        narrow: Narrow::Always,
        ..ARRAY
    };
    holds("narrow always", &array);
}

#[test]
fn a_device_more_than_columns() {
    holds(
        "P > K+M",
        &Array {
            slots: &[11, 11, 11, 11],
            promised: 2,
            ..ARRAY
        },
    );
}

#[test]
fn two_jobs_at_once() {
    let array = Array {
        slots: &[11, 11, 11, 11],
        promised: 2,
        jobs: 2,
        ..ARRAY
    };
    holds("two jobs", &array);
}

#[test]
fn a_mirror_of_two() {
    holds(
        "mirror of two",
        &Array {
            layout: "raid1",
            slots: &[18, 18],
            ..ARRAY
        },
    );
}

#[test]
fn a_mirror_of_three_loses_two() {
    let array = Array {
        layout: "raid1",
        slots: &[18, 18, 18],
        losses: 2,
        ..ARRAY
    };
    holds("mirror of three", &array);
}

#[test]
fn copies_on_three_devices() {
    holds(
        "1+1 on three",
        &Array {
            layout: "ec1+1",
            slots: &[14, 14, 14],
            ..ARRAY
        },
    );
}

#[test]
fn two_pairs() {
    holds(
        "two pairs",
        &Array {
            layout: "raid10",
            slots: &[14, 14, 14, 14],
            ..ARRAY
        },
    );
}

#[test]
fn many_nodes() {
    let array = Array {
        layout: "raid1",
        slots: &[28; 2],
        nodes: 8,
        ..ARRAY
    };
    holds("many nodes", &array);
}

#[test]
fn unequal_devices() {
    holds(
        "unequal",
        &Array {
            slots: &[13, 11, 11, 8],
            ..ARRAY
        },
    );
}

#[test]
fn one_large_device() {
    holds(
        "one large",
        &Array {
            slots: &[16, 10, 10, 10],
            ..ARRAY
        },
    );
}

#[test]
fn failure_domains() {
    let array = Array {
        slots: &[9, 9, 12, 12],
        labels: &["a", "a", "b", "c"],
        ..ARRAY
    };
    holds("domains", &array);
}

#[test]
fn two_parities_lose_two() {
    let array = Array {
        layout: "ec2+2",
        slots: &[16; 4],
        losses: 2,
        ..ARRAY
    };
    holds("2+2 on four", &array);
}

#[test]
fn no_parity() {
    let array = Array {
        layout: "raid0",
        slots: &[16, 16],
        losses: 0,
        ..ARRAY
    };
    holds("no parity", &array);
}

/// Explores until the mistake shows.
fn finds(array: &Array, what: &str) {
    let since = Instant::now();
    let found = explore(array, 1_000_000);
    let story = found.violation.expect("the mistake is found");
    let last = story.last().unwrap();
    println!(
        "{:?}: {last} in {} steps, {} states, {:.1} s",
        array.planted,
        story.len() - 2,
        found.states,
        since.elapsed().as_secs_f64()
    );
    if std::env::var("ASHLAR_SHOW").is_ok() {
        println!("{}", story.join("\n"));
    }
    assert!(last.contains(what), "{last}");
}

/// A claim that binds those below: clients hold all that they are granted and wait for a checkpoint, a device goes, and
/// the checkpoint has no room.
#[test]
fn claims_that_bind_lower_classes_are_found() {
    let array = Array {
        slots: &[40; 4],
        planted: Planted::HoldAndWait,
        ..ARRAY
    };
    finds(&array, "a checkpoint does not end");
}

/// Waste as what was written less what lives: segments that were closed short are never emptied.
#[test]
fn waste_of_what_was_written_is_found() {
    let array = Array {
        slots: &[17; 3],
        planted: Planted::WasteOfUsed,
        ..ARRAY
    };
    finds(&array, "a client cannot go on");
}

/// Nodes' own slots promised to volumes, and not kept from clients.
#[test]
fn nodes_that_are_forgotten_are_found() {
    let array = Array {
        layout: "raid1",
        slots: &[20; 2],
        nodes: 8,
        promised: 9,
        planted: Planted::NodesForgotten,
        ..ARRAY
    };
    finds(&array, "");
}
