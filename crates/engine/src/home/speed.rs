//! How fast background work goes.
//!
//! Invariant: what is told is of the last [`WINDOW`], or of all the time if the work began within it: not of a time when it
//! waited, was held back, or had no clients beside it.

use std::collections::VecDeque;

use ashlar_rt::{MILLISECOND, Nanos, SECOND};

/// A speed is that of so long: long enough for work that goes on by whole segments, short enough to see a change.
const WINDOW: Nanos = 30 * SECOND;

/// How much work had been done, and when, at most once a second.
#[derive(Debug, Default, Clone)]
pub struct Speed(VecDeque<(Nanos, u64)>);

impl Speed {
    /// The work begins, or goes on, with so many bytes done.
    pub fn begin(&mut self, now: Nanos, done: u64) {
        self.0 = [(now, done)].into();
    }

    /// So many bytes are done now.
    pub fn reach(&mut self, now: Nanos, done: u64) {
        if self.0.back().is_none_or(|(at, _)| now >= at + SECOND) {
            self.0.push_back((now, done));
        }
        while self.0.get(1).is_some_and(|(at, _)| at + WINDOW <= now) {
            self.0.pop_front();
        }
    }

    /// Bytes a second, now that so many are done.
    pub fn bytes_per_second(&self, now: Nanos, done: u64) -> u64 {
        let old = |(at, _): &&(Nanos, u64)| at + WINDOW <= now;
        let Some((at, before)) = self.0.iter().rev().find(old).or(self.0.front()) else {
            return 0;
        };
        let elapsed = now.saturating_sub(*at) / MILLISECOND;
        let bytes = done.saturating_sub(*before);
        bytes.saturating_mul(1000).checked_div(elapsed).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes a second at each second, of work that does so many in each.
    fn told(each: &[u64]) -> Vec<u64> {
        let (mut speed, mut done, mut told) = (Speed::default(), 0, Vec::new());
        speed.begin(SECOND, 0);
        for (second, bytes) in (2..).zip(each) {
            done += bytes;
            speed.reach(second * SECOND, done);
            told.push(speed.bytes_per_second(second * SECOND, done));
        }
        told
    }

    #[test]
    fn a_speed_is_of_the_last_half_minute() {
        assert_eq!(told(&[100; 5]), [100; 5]);
        let all = told(&[&[100; 60][..], &[10; 60]].concat());
        assert_eq!((all[59], all[74], all[89], all[119]), (100, 55, 10, 10));
    }

    #[test]
    fn what_has_stopped_has_no_speed_and_what_goes_on_has_that_of_now() {
        let mut speed = Speed::default();
        assert_eq!(speed.bytes_per_second(SECOND, 0), 0);
        speed.begin(SECOND, 0);
        speed.reach(2 * SECOND, 500);
        assert_eq!(speed.bytes_per_second(2 * SECOND, 500), 500);
        assert_eq!(speed.bytes_per_second(100 * SECOND, 500), 0);
        speed.begin(100 * SECOND, 500);
        speed.reach(101 * SECOND, 800);
        assert_eq!(speed.bytes_per_second(101 * SECOND, 800), 300);
    }

    #[test]
    fn few_marks_are_kept() {
        let mut speed = Speed::default();
        for step in 0..10_000 {
            speed.reach(step * SECOND / 10, step);
        }
        assert!(speed.0.len() <= 32, "{}", speed.0.len());
    }
}
