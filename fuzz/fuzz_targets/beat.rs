//! A beat with a right seal: see `targets.rs`.
#![no_main]

#[allow(dead_code, reason = "each target uses its own part")]
#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::beat(bytes));
