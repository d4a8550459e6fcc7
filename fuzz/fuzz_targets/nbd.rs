//! An NBD client's bytes, handshake and transmission: see `targets.rs`.
#![no_main]

#[allow(dead_code, reason = "each target uses its own part")]
#[path = "../targets.rs"]
mod targets;

thread_local! {
    static SERVER: targets::Nbd = targets::Nbd::start();
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| SERVER.with(|server| server.client(bytes)));
