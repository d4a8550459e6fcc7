//! Many seeds on several threads: how fast, what they reached, and the first that failed.
//!
//! Invariants: a seed's result does not depend on the number of threads or on the machine's clock,
//! which only says when to begin no further seed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::Options;
use crate::driver::{Outcome, run_seed};
use crate::store::Subject;

/// What a batch of seeds came to.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Seeds run.
    pub seeds: u64,
    /// Operations done.
    pub operations: u64,
    /// The hashes of all histories, added: the same for the same seeds, in whatever order they ran.
    pub hash: u64,
    /// What was reached, and how often.
    pub marks: BTreeMap<&'static str, u64>,
    /// Failures, lowest seed first: seed and text.
    pub failures: Vec<(u64, String)>,
}

/// How to run a batch.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// Threads.
    pub jobs: usize,
    /// Failures after which the batch ends.
    pub most_failures: usize,
    /// Runs each seed twice and compares the histories.
    pub twice: bool,
    /// Begin no further seed after so many seconds.
    pub seconds: Option<u64>,
    /// The options of every seed.
    pub options: Options,
}

/// Runs `seeds`, each thread with its own subject from `make` (subjects need not cross threads).
pub fn run_batch<S: Subject>(
    seeds: Range<u64>,
    batch: Batch,
    make: impl Fn() -> S + Sync,
) -> Summary {
    run_batch_telling(seeds, batch, make, |_, _| ())
}

/// As [`run_batch`]; `tell` hears of each seed that failed, and of how, at once.
pub fn run_batch_telling<S: Subject>(
    seeds: Range<u64>,
    batch: Batch,
    make: impl Fn() -> S + Sync,
    tell: impl Fn(u64, &str) + Sync,
) -> Summary {
    let next = AtomicU64::new(seeds.start);
    let begun = std::time::Instant::now();
    let total = Mutex::new(Summary::default());
    std::thread::scope(|scope| {
        for _ in 0..batch.jobs.max(1) {
            scope.spawn(|| {
                let subject = make();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let late = batch
                        .seconds
                        .is_some_and(|most| begun.elapsed().as_secs() >= most);
                    if seed >= seeds.end || late {
                        return;
                    }
                    let outcome = one(&subject, seed, batch);
                    let mut total = lock(&total);
                    if let Some(failure) = &outcome.failure {
                        tell(seed, failure);
                    }
                    total.add(outcome);
                    if total.failures.len() >= batch.most_failures {
                        next.store(seeds.end, Ordering::Relaxed);
                        return;
                    }
                }
            });
        }
    });
    let mut total = lock(&total).clone();
    total.failures.sort();
    total
}

/// Crashes the first session of `seed` after every `step` polls, until it ends by itself before the
/// crash. Gives the number of crash points, and the first that failed with its text.
pub fn sweep(
    subject: &dyn Subject,
    seed: u64,
    step: u64,
    options: Options,
) -> (u64, Option<(u64, String)>) {
    let mut points = 0;
    loop {
        let at = points * step.max(1);
        let outcome = run_seed(
            subject,
            seed,
            Options {
                crash_at: Some(at),
                ..options
            },
        );
        points += 1;
        if let Some(failure) = outcome.failure {
            return (points, Some((at, failure)));
        }
        if !outcome.marks.contains_key("crash at work") {
            return (points, None);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn one(subject: &dyn Subject, seed: u64, batch: Batch) -> Outcome {
    let mut outcome = run_seed(subject, seed, batch.options);
    if batch.twice && outcome.failure.is_none() {
        let again = run_seed(subject, seed, batch.options);
        if again.hash != outcome.hash {
            outcome.failure = Some("NOT DETERMINISTIC: the second run differs".to_string());
        }
    }
    outcome
}

impl Summary {
    fn add(&mut self, outcome: Outcome) {
        self.seeds += 1;
        self.operations += outcome.operations;
        self.hash = self.hash.wrapping_add(outcome.hash);
        for (mark, count) in outcome.marks {
            *self.marks.entry(mark).or_default() += count;
        }
        if let Some(failure) = outcome.failure {
            self.failures.push((outcome.seed, failure));
        }
    }
}
