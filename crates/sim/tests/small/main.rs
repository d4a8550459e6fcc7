//! The protocols that decide whether data survive, as exhaustive models of a few states each. Where the engine has a
//! rule as a pure function the model runs that, in the place of a second writing: which generation a start goes on
//! from, which copy of a page of the slot table counts. A mutant of each rule shows that the model can tell.
//!
//! Invariants: every reachable state is visited once; a violation is told as the shortest story
//! that leads to it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod checkpoints;
mod explore;
mod generations;
mod headers;
mod journal;
mod slots;
mod stale;
