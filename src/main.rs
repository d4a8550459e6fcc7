//! The `ashlar` program.
fn main() {}
