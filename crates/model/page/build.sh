#!/bin/sh
# Builds page/answer.wasm, what the page of `ashlar resilience --html` computes with, from this
# crate's own code. Needs the target: rustup target add wasm32-wasip1
# The test `tests/page.rs` fails when the code has changed since.
set -eu
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-../../target}"
CARGO_PROFILE_RELEASE_STRIP=symbols CARGO_PROFILE_RELEASE_OPT_LEVEL=s \
CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_DEBUG=0 \
CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1 \
RUSTFLAGS="--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo --remap-path-prefix=$(cd ../.. && pwd)=." \
cargo build --release --bin ashlar-model-answer --no-default-features --target wasm32-wasip1
cp "$target/wasm32-wasip1/release/ashlar-model-answer.wasm" page/answer.wasm
# A checksum of the code it was built from: comments and white space left out.
cat ../layout/src/*.rs src/answer.rs src/assumptions.rs src/chain.rs src/declustered.rs src/exact.rs src/life.rs src/ln.rs \
    src/montecarlo.rs src/random.rs src/system.rs src/bin/answer.rs |
    grep -v '^ *//' | tr -d ' \t\n' | cksum > page/answer.sources
