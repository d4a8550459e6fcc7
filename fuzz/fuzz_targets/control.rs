//! Requests to the daemon (the first line is the verb, the rest the body), and sizes.
#![no_main]

#[allow(dead_code, reason = "only reading is of interest")]
#[path = "../../src/api.rs"]
mod api;
#[allow(dead_code, reason = "only reading is of interest")]
#[path = "../../src/failure.rs"]
mod failure;
#[allow(dead_code, reason = "only reading is of interest")]
#[path = "../../src/units.rs"]
mod units;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (verb, body) = match bytes.iter().position(|b| *b == b'\n') {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[][..]),
    };
    let verb = String::from_utf8_lossy(verb);
    if let Ok(call) = api::Call::parse(&verb, body) {
        assert!(
            api::Call::parse(call.verb(), &call.body()).is_ok(),
            "{call:?}"
        );
    }
    let _ = units::parse_size(&verb);
});
