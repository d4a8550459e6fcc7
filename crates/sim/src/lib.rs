//! The deterministic simulator (development only): random histories of a whole array, with crashes
//! and faults at any moment, checked against an independent model. One seed, one history.
//!
//! * [`disk`], [`pages`] and [`device`]: disks that lose, tear and damage what they were given.
//! * [`model`] and [`content`]: what every read must show; [`ledger`]: what every strip must hold;
//!   [`settings`] and [`scrubs`]: what these may be.
//! * [`config`] (`draw`: every choice of a seed), [`client`] (with `bulk`), [`nemesis`], [`driver`] (with `outage` and
//!   `judge`, and `takeover`: a host that stands still while another one has the array): one seed's history.
//! * `verifier`: the independent verifier over what a seed left; `beyond`: what is lost then without too many devices.
//! * [`store`]: what is driven; [`engine`] is the real one (with `late`: an accelerator that takes its time),
//!   [`toy`] tests the simulator itself.
//! * [`run`]: many seeds on several threads. [`shrink`]: the smallest history that fails.
//! * `planted` (a feature): how soon bugs made on purpose are found.
//! * [`enumerate`]: every crash of every short workload.
//!
//! Invariants: nothing here looks at the clock of the machine to decide anything, or iterates over
//! anything unordered; a failure names the seed that replays it.

mod beyond;
mod bulk;
pub mod client;
pub mod config;
pub mod content;
pub mod device;
pub mod disk;
pub mod driver;
pub mod engine;
pub mod enumerate;
mod former;
mod hosts;
mod judge;
mod late;
mod ledger;
mod machine;
pub mod model;
pub mod nemesis;
mod outage;
pub mod pages;
#[cfg(feature = "planted")]
pub mod planted;
mod refusals;
mod returns;
pub mod rng;
pub mod run;
pub mod scrubs;
pub mod settings;
pub mod shrink;
pub mod store;
mod takeover;
pub mod toy;
pub mod trace;
mod verifier;
pub mod world;
