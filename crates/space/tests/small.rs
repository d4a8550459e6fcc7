//! Small model of space: every state of small arrays, over the functions that the engine uses.
//!
//! Actors take turns in every order: clients (claim, acquire, write, give back), jobs (start, acquire, move, end), a
//! checkpoint of two steps whose roots become durable later, losses, reckonings. An adversary chooses which block is
//! overwritten, which node is written again, and which device is lost when.
//!
//! In every state:
//! - no device has more columns than slots, and the ledger's sums are those of the segments;
//! - within M losses no data are lost;
//! - a checkpoint that may begin finds room for its step;
//! - once jobs and checkpoints have run to rest (they do), clients are granted a segment or have one open.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "small/arrays.rs"]
mod arrays;
#[path = "small/explore.rs"]
mod explore;
#[path = "small/state.rs"]
mod state;
#[path = "small/steps.rs"]
mod steps;
