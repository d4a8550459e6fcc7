//! Development commands: `cargo xtask test`, `cargo xtask campaign`.
fn main() {}
