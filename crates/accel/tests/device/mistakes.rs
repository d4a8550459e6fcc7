//! Mistakes planted in kernels, to see that the stand-in and the device's own test find them.

use std::time::Duration;

use ashlar_accel::{Accelerator, Choice};

use crate::standin::{self, Random, device, small};
use crate::{build, on_library, products};

pub const ALL: &[crate::Scenario] = &[
    ("mistakes::a_barrier_left_out", a_barrier_left_out),
    ("mistakes::a_wrong_rotation", a_wrong_rotation),
    (
        "mistakes::a_step_of_a_reduction_left_out",
        a_step_of_a_reduction_left_out,
    ),
    (
        "mistakes::a_byte_read_past_the_end",
        a_byte_read_past_the_end,
    ),
];

/// The group that a library with a mistake runs.
pub const VICTIM: &str = "victim";
pub const VICTIM_SCENARIOS: &[crate::Scenario] = &[("victim", victim)];

/// Opens the device, and fills a slot to its last byte.
fn victim() {
    standin::reset(1);
    let accelerator = Accelerator::new(Choice::Cuda(0), small(96 << 10));
    if !accelerator.wait_until_open(Duration::from_secs(60)) {
        println!("{}", accelerator.status());
        return;
    }
    drop(accelerator);
    fills_a_slot();
    println!("nothing found");
}

/// A job whose input and output end where the slot's memory ends, with a row less than the tile.
pub fn fills_a_slot() {
    let device = device(small(96 << 10));
    products::encode(
        &mut Random::new(1),
        ashlar_codec::CodeKind::IsalCauchy,
        3,
        3,
        32 << 10,
        1,
    )
    .compare(&device);
}

/// What the victim says: output and errors.
fn found(name: &str, file: &str, right: &str, wrong: &str) -> String {
    let library = build::with_mistake(name, file, right, wrong).unwrap();
    let output = on_library(VICTIM, &library).output().unwrap();
    [output.stdout, output.stderr]
        .iter()
        .map(|text| String::from_utf8_lossy(text))
        .collect()
}

fn a_barrier_left_out() {
    let right = "__syncthreads();\n                    loaded = true;";
    let text = found("barrier", "gf.cu", right, "loaded = true;");
    assert!(
        text.contains("computed a wrong product in its test"),
        "{text}"
    );
}

fn a_wrong_rotation() {
    let text = found("rotation", "sha3.cu", "{0,  1,  62,", "{0,  1,  61,");
    assert!(
        text.contains("computed a wrong sha3-256 in its test"),
        "{text}"
    );
}

fn a_step_of_a_reduction_left_out() {
    let text = found("reduction", "crc32c.cu", "o > 0; o >>= 1", "o > 1; o >>= 1");
    assert!(
        text.contains("computed a wrong crc32c in its test"),
        "{text}"
    );
}

/// Nothing that is computed depends on it, so only the sanitizer sees it, where memory ends.
fn a_byte_read_past_the_end() {
    let right = "bool loaded = false;";
    let wrong =
        "bool loaded = *(const volatile u8*)(job.in + job.stripes * job.k * job.strip) > 255;";
    let text = found("byte", "gf.cu", right, wrong);
    assert!(
        text.contains("AddressSanitizer: heap-buffer-overflow"),
        "{text}"
    );
    assert!(text.contains("gf.cu"), "{text}");
}
