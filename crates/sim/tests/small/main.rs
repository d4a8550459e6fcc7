//! The protocols that decide whether data survive, as exhaustive models of a few states each: no
//! line of the engine is used, so that what is proved is the rule, and a mutant of each rule shows
//! that the model can tell.
//!
//! Invariants: every reachable state is visited once; a violation is told as the shortest story
//! that leads to it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod explore;
mod generations;
mod headers;
mod journal;
mod slots;
