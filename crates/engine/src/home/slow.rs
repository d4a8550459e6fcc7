//! Devices that are slow: the array goes on without them, and takes them in again once they are as fast as the others.
//!
//! A device is slow if an operation is late (five eighths of `slow.timeout` have passed), or if it has been much slower than its
//! peers for some time. It is taken out of use as one that answers no more is: reads decode, what is written has its
//! full redundancy on the others, and what it misses meanwhile it is given as it comes back (`home/returning.rs`). It is
//! held, so that it can be looked at (`background/slow.rs`).
//!
//! Invariants:
//! - Nothing that is stored needs a device that is taken out for being slow, and no more are out for that at once than
//!   there is parity.
//! - Where more devices are late at once than that, it is not them: none is taken out.
//!
//! Crash argument: this only decides when a device is taken out (`home/generation.rs`) and taken in
//! (`home/returning.rs`), which carry their own. What was sent to it before it left counts as under way until the device
//! has ended it, so that no take-in begins before the last late write is there.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_device::DeviceRef;
use ashlar_format::superblock::MemberState;
use ashlar_rt::{Gate, MILLISECOND, Nanos, SECOND};

use crate::home::Home;
use crate::members::sent::{Answered, LEAST_ANSWERS};
use crate::planted::{self, Bug};

/// Speeds are compared over at least this time.
pub(crate) const WINDOW: Nanos = 2 * SECOND;
/// So many comparisons one after another must have found a device slow.
const STRIKES: u32 = 3;
/// And so many before must have found that it is not: one that was never as fast as the others is slower by nature.
const PROVEN: u32 = 4;
/// An answer is slow that takes so many times as long as those of the device in the middle, and half of the answers of a
/// slow device are: now and then every device is late.
const TIMES_AS_LONG: Nanos = 10;
/// An operation keeps it busy for so many times as long, too: one behind which others queue is not slow.
const TIMES_AS_BUSY: Nanos = 5;
/// Whatever its peers do, a device that is as fast as this is not slow.
pub(crate) const FAST: Nanos = 5 * MILLISECOND;
/// Nor is one that an operation keeps busy for no longer than this.
const BUSY_AT_LEAST: Nanos = 2 * MILLISECOND;
/// A device that was slow must be as fast as the others for this long.
const PROBATION: Nanos = 10 * SECOND;
/// Each time that it was slow again doubles that, so many times at most.
const DOUBLED_MOST: u32 = 8;
/// A device that was not slow for so long is slow for the first time.
const FORGIVEN: Nanos = 24 * 3600 * SECOND;

/// Why a device is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// An operation took longer than it may.
    Late(Nanos),
    /// Its operations take so long, those of its peers so long.
    Slower(Nanos, Nanos),
}

/// A device that is out of use because it is slow.
#[derive(Clone)]
pub(crate) struct Out {
    /// The device, which is held.
    pub device: DeviceRef,
    /// Why.
    pub why: Why,
    /// It must have been as fast as the others for this long.
    pub probation: Nanos,
}

/// How often a device was slow.
#[derive(Debug, Clone, Copy, Default)]
struct Record {
    times: u32,
    last: Nanos,
    strikes: u32,
    /// Comparisons that did not find it slow.
    fast: u32,
}

/// The slow devices of an array.
#[derive(Default)]
pub struct Slow {
    out: RefCell<BTreeMap<u16, Out>>,
    records: RefCell<BTreeMap<u16, Record>>,
    /// Opens when one is out, and when the array stops.
    pub(crate) changed: Gate,
    /// Opens when one is in use again.
    pub(crate) back: Gate,
}

impl std::fmt::Debug for Slow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.out.borrow().keys()).finish()
    }
}

impl Slow {
    /// Those that are out because they are slow.
    pub(crate) fn all(&self) -> Vec<u16> {
        self.out.borrow().keys().copied().collect()
    }

    /// One that is out because it is slow.
    pub(crate) fn one(&self, index: u16) -> Option<Out> {
        self.out.borrow().get(&index).cloned()
    }

    /// Why one is out, if it is because it is slow.
    pub(crate) fn why(&self, index: u16) -> Option<Why> {
        self.out.borrow().get(&index).map(|out| out.why)
    }

    /// Whether this device is one that is out because it is slow.
    pub(crate) fn is_out(&self, index: u16, device: &DeviceRef) -> bool {
        let out = self.out.borrow();
        out.get(&index)
            .is_some_and(|out| Rc::ptr_eq(&out.device, device))
    }

    /// The array stops: all are let go.
    pub(crate) fn close(&self) {
        self.out.borrow_mut().clear();
        self.changed.open();
        self.back.open();
    }

    /// It is out for another reason from now on, or in use: its device is let go.
    pub(crate) fn let_go(&self, index: u16) {
        self.out.borrow_mut().remove(&index);
    }

    /// It is slow once more; how long it must have been as fast as the others to be taken in.
    fn note(&self, index: u16, now: Nanos) -> Nanos {
        let mut records = self.records.borrow_mut();
        let record = records.entry(index).or_default();
        if now.saturating_sub(record.last) > FORGIVEN {
            record.times = 0;
        }
        let doubled = record.times.min(DOUBLED_MOST);
        *record = Record {
            times: record.times + 1,
            last: now,
            strikes: 0,
            ..*record
        };
        PROBATION << doubled
    }

    /// What was found slow by a comparison of all those measured; those that were so often enough, one after another.
    fn strike(&self, measured: &[u16], slow: &[(u16, Why)]) -> Vec<(u16, Why)> {
        let mut records = self.records.borrow_mut();
        for index in measured {
            let is_slow = slow.iter().any(|(slow, _)| slow == index);
            let record = records.entry(*index).or_default();
            record.strikes = if is_slow { record.strikes + 1 } else { 0 };
            record.fast = record.fast.saturating_add(u32::from(!is_slow));
        }
        let mut often = slow.to_vec();
        let is_often = |r: &Record| r.strikes >= STRIKES && r.fast >= PROVEN;
        often.retain(|(index, _)| is_often(&records[index]));
        often
    }
}

/// The value in the middle, the smaller one of two.
fn median(mut values: Vec<Nanos>) -> Nanos {
    values.sort_unstable();
    let middle = values.len().saturating_sub(1) / 2;
    values.get(middle).copied().unwrap_or(0)
}

/// What a comparison has found.
#[derive(Debug, PartialEq, Eq)]
struct Compared {
    /// Those that have answered enough to be compared.
    measured: Vec<u16>,
    /// Of them those that are much slower than the one in the middle.
    slow: Vec<(u16, Why)>,
    /// From now on an answer is slow that takes longer.
    slow_above: Nanos,
}

fn compare(answers: &[(u16, Answered)]) -> Compared {
    let enough = answers.iter().filter(|(_, a)| a.count >= LEAST_ANSWERS);
    let enough: Vec<&(u16, Answered)> = enough.collect();
    let usual = median(enough.iter().map(|(_, a)| a.took / a.parts).collect());
    let busy = median(enough.iter().map(|(_, a)| a.busy / a.parts).collect());
    let too_busy = BUSY_AT_LEAST.max(TIMES_AS_BUSY * busy);
    let is_slow = |a: &Answered| 2 * a.slow >= a.parts && a.busy / a.parts > too_busy;
    let slow = enough.iter().filter(|(_, a)| is_slow(a));
    Compared {
        slow: slow
            .map(|(index, a)| (*index, Why::Slower(a.took / a.parts, usual)))
            .collect(),
        measured: enough.iter().map(|(index, _)| *index).collect(),
        slow_above: FAST.max(TIMES_AS_LONG * usual),
    }
}

impl Home {
    /// What `slow.timeout` says holds from now on: some of the time is for asking the others, and for taking it out.
    pub(crate) fn set_patience(&self) {
        self.core.lateness.patience.set(self.slow_timeout() / 8 * 5);
    }

    /// Whether any device that is in use has an operation that is late.
    pub(crate) fn is_any_late(&self) -> bool {
        let mut members = self.core.members.iter();
        members.any(|m| m.is_counted() && m.sent.late() > 0)
    }

    /// Goes on without devices that are late.
    pub(crate) fn leave_late(&self) {
        let patience = self.core.lateness.patience.get();
        let late = |index: &u16| self.core.member(*index).sent.late() > 0;
        let late: Vec<u16> = self.core.counted().into_iter().filter(late).collect();
        let most = usize::from(self.topology().shape().m);
        if late.len() + self.slow.out.borrow().len() > most && !planted::on(Bug::SlowNeeded) {
            return;
        }
        for index in late {
            self.leave_slow(index, Why::Late(patience));
        }
    }

    /// Goes on without devices that have been much slower than the others for some time.
    pub(crate) fn leave_slower(&self) {
        let (now, members) = (self.core.rt.now(), self.core.members.iter());
        // Those of the others add up.
        let enough = members.filter(|m| m.is_read() && m.sent.has_answered_enough());
        let answers: Vec<_> = enough
            .map(|m| (m.index, m.sent.take_answered(now)))
            .collect();

        let found = compare(&answers);
        self.core.lateness.slow_above.set(found.slow_above);
        let often = self.slow.strike(&found.measured, &found.slow);
        // Where others are late, or fail, it is not the moment to go on with one less.
        if self.is_any_late() || !self.core.failing.is_empty() {
            return;
        }
        for (index, why) in often {
            if self.core.member(index).takes_slots() {
                self.leave_slow(index, why);
            }
        }
    }

    /// Goes on without a device, if nothing needs it.
    fn leave_slow(&self, index: u16, why: Why) {
        let (core, slow) = (&self.core, &self.slow);
        let member = core.member(index);
        let failing = core.failing.contains(index);
        let Some(device) = member.held().filter(|_| member.is_written() && !failing) else {
            return;
        };
        if !self.can_do_without(index) && !planted::on(Bug::SlowNeeded) {
            return;
        }
        let probation = slow.note(index, core.rt.now());
        let out = Out {
            device,
            why,
            probation,
        };
        slow.out.borrow_mut().insert(index, out);
        slow.changed.open();
        core.failing.ask(index, MemberState::Stale);
        member.sent.give_up();
        core.report_failed(index);
    }

    /// Of devices that are failing, those that are only slow stay in use where something would be lost without all of
    /// them: but for one that a write was given up on, which has not what it was told.
    pub(super) fn keep_slow(&self, failing: &mut Vec<u16>) {
        let slow = |index: &u16| {
            self.slow.why(*index).is_some() && !self.core.member(*index).sent.has_left()
        };
        if !failing.iter().any(slow) || !self.needs_devices(failing, &[]) {
            return;
        }
        for index in failing.extract_if(.., |index| slow(index)) {
            self.slow.let_go(index);
            self.core.failing.take_asked(index);
            self.core.member(index).sent.wait_again();
        }
    }

    /// Whether nothing that is stored needs a device, with those gone that are failing, and fewer are out for being slow
    /// than there is parity.
    fn can_do_without(&self, index: u16) -> bool {
        let failing = |m: &&u16| self.core.failing.contains(**m);
        let counted = self.core.counted();
        let gone: Vec<u16> = counted.iter().filter(failing).copied().collect();
        let most = usize::from(self.topology().shape().m);
        let out = self.slow.out.borrow().len();
        gone.len().max(out) < most && !self.needs_devices(&[index], &gone)
    }

    /// How a device that answers no more left, for people.
    pub(crate) fn told_awaited(index: u16, path: &str) -> String {
        format!(
            "device {index} ({path}) answers no more; it is taken in again when it does, and its data is rebuilt onto the \
             other devices after rebuild.delay: see 'ashlar status'"
        )
    }

    /// How a device that is slow left, for people.
    pub(super) fn told_slow(index: u16, path: &str, why: Why) -> String {
        let time = |nanos: Nanos| format!("{:.1} ms", nanos as f64 / MILLISECOND as f64);
        let why = match why {
            Why::Late(limit) => {
                format!("has not answered for {:.1} s", limit as f64 / SECOND as f64)
            }
            Why::Slower(took, usual) => format!(
                "takes {} an operation where the other devices take {}",
                time(took),
                time(usual)
            ),
        };
        format!(
            "device {index} ({path}) is slow: it {why}; it is taken in again by itself once it is as fast as the others, \
             and its data is rebuilt onto the other devices after rebuild.delay: see 'ashlar status'"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = MILLISECOND;

    fn answered(count: u64, slow: u64, each: Nanos, busy: Nanos) -> Answered {
        Answered {
            count,
            parts: count,
            slow,
            took: each * count,
            busy: busy * count,
        }
    }

    /// One that takes much longer for itself is slow; one behind which others queue is not, nor one that is late at times.
    #[test]
    fn one_that_is_much_slower_than_its_peers_is_found() {
        let found = |own: Answered| {
            let mut all = vec![(0, own)];
            all.extend((1..8).map(|index| (index, answered(100, 0, MS, MS / 2))));
            compare(&all).slow
        };
        let slow = [(0, Why::Slower(50 * MS, MS))];
        assert_eq!(found(answered(10, 5, 50 * MS, 20 * MS)), slow);
        assert_eq!(found(answered(100, 90, 50 * MS, MS)), [], "a queue");
        assert_eq!(
            found(answered(10, 4, 50 * MS, 20 * MS)),
            [],
            "late at times"
        );
        assert_eq!(
            found(answered(3, 3, 50 * MS, 20 * MS)),
            [],
            "too few answers"
        );
        let large = Answered {
            parts: 90,
            ..answered(10, 5, 50 * MS, 20 * MS)
        };
        assert_eq!(found(large), [], "large operations");
        assert_eq!(
            found(answered(10, 10, 50 * MS, 2 * MS)),
            [],
            "2 ms at most for each"
        );
        let all: Vec<_> = (0..4)
            .map(|i| (i, answered(10, 10, 900 * MS, MS)))
            .collect();
        let none = Compared {
            measured: vec![0, 1, 2, 3],
            slow: vec![],
            slow_above: 9 * SECOND,
        };
        assert_eq!(compare(&all), none, "all are");
    }

    /// Twelve hard disks, of which one in a hundred operations takes six times as long, and one in a thousand half a
    /// second: in 10^4 hours of a comparison each two seconds none is found slow.
    #[test]
    fn disks_that_are_late_at_times_are_not_slow() {
        const WINDOWS: u64 = 10_000 * 3600 / 2;
        let (slow, mut state) = (Slow::default(), 0x9E37_79B9_7F4A_7C15_u64);
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut slow_above = Nanos::MAX;
        let mut answers = [(0, Answered::default()); 12];
        let mut suspected = 0;
        for _ in 0..WINDOWS {
            for (index, answers) in (0..).zip(&mut answers) {
                let mut now = Answered::default();
                for _ in 0..LEAST_ANSWERS {
                    let random = random();
                    let took = match random % 1000 {
                        0 => 500 * MS,
                        1..10 => 48 * MS,
                        _ => 4 * MS + (random >> 40) % (8 * MS),
                    };
                    now.count += 1;
                    now.parts += 1;
                    now.slow += u64::from(took > slow_above);
                    (now.took, now.busy) = (now.took + took, now.busy + took);
                }
                *answers = (index, now);
            }
            let found = compare(&answers);
            slow_above = found.slow_above;
            suspected += found.slow.len();
            assert_eq!(slow.strike(&found.measured, &found.slow), []);
        }
        assert!(suspected > 0, "the model is no easier than disks are");
    }

    /// Comparisons count that come one after another, and each time it must prove itself for longer.
    #[test]
    fn one_that_is_slow_again_and_again_is_out_for_longer() {
        let slow = Slow::default();
        let found = [(3, Why::Slower(9, 1))];
        let measured = [1, 3];
        for _ in 0..9 {
            assert!(
                slow.strike(&measured, &found).is_empty(),
                "slower by nature"
            );
        }
        for _ in 0..PROVEN {
            assert!(slow.strike(&measured, &[]).is_empty());
        }
        assert!(slow.strike(&measured, &found).is_empty());
        assert!(slow.strike(&measured, &found).is_empty());
        assert!(slow.strike(&measured, &[]).is_empty());
        assert!(slow.strike(&measured, &found).is_empty());
        assert!(
            slow.strike(&[1], &[]).is_empty(),
            "not measured, not acquitted"
        );
        assert!(slow.strike(&measured, &found).is_empty());
        assert_eq!(slow.strike(&measured, &found), found);
        let day = FORGIVEN + SECOND;
        let times: Vec<Nanos> = [0, 1, 2, 3 + day].map(|at| slow.note(3, day + at)).to_vec();
        assert_eq!(times, [PROBATION, 2 * PROBATION, 4 * PROBATION, PROBATION]);
        let many = (0..20).map(|at| slow.note(4, day + at)).last();
        assert_eq!(many, Some(PROBATION << DOUBLED_MOST));
    }
}
