//! The independent offline verifier; uses none of our crates.
