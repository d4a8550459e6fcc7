//! What is known of scrubs beside the array: how each may be found, and what it may have found.
//!
//! Invariants:
//! - A change is known here before the array hears of it; what was acknowledged survives every crash, and one that was
//!   under way may have happened or not.
//! - A scrub finds nothing on a device that no damage was done to in silence: being away is none.
//! - Reports are told apart by their order, and there are never more than the array keeps.

use std::collections::BTreeSet;

use ashlar_engine::ScrubChange;
use ashlar_engine::status::ScrubReport;

/// What sessions start at most, so that none is forgotten.
pub(crate) const MOST: usize = 10;

/// How a scrub is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Paused,
    Done,
    Stopped,
}

impl State {
    fn of(report: &ScrubReport) -> State {
        match report.state.as_str() {
            "running" => State::Running,
            "paused" => State::Paused,
            "done" => State::Done,
            _ => State::Stopped,
        }
    }

    fn has_ended(self) -> bool {
        matches!(self, State::Done | State::Stopped)
    }
}

/// What is durable of a scrub, at least.
#[derive(Clone, Copy, Debug)]
struct Least {
    state: State,
    done_bytes: u64,
    found: u64,
    interrupted: u32,
}

impl Least {
    const BEGUN: Least = Least {
        state: State::Running,
        done_bytes: 0,
        found: 0,
        interrupted: 0,
    };

    fn of(report: &ScrubReport) -> Least {
        Least {
            state: State::of(report),
            done_bytes: report.done_bytes,
            found: report.found,
            interrupted: report.interrupted,
        }
    }
}

/// What is known of the scrubs of an array.
#[derive(Clone, Debug, Default)]
pub struct Scrubs {
    known: Vec<Least>,
    /// A change that has no answer yet.
    asked: Option<ScrubChange>,
    /// Devices that may ever have had wrong bytes, or bytes that they did not give.
    suspects: BTreeSet<usize>,
    /// Beyond the promises anything may have come back: nothing is judged any more.
    loose: bool,
    /// Bytes of all segments that were begun.
    pub(crate) begun: u64,
    /// Several were compared while the array rested.
    pub(crate) was_at_rest: bool,
    /// One has just looked at everything, and nothing is bad.
    pub(crate) is_clean: bool,
}

/// Whether the last of these runs or rests.
pub(crate) fn is_under_way(reports: &[ScrubReport]) -> bool {
    reports.last().is_some_and(|r| !State::of(r).has_ended())
}

/// Whether the array may do this where its last scrubs are these.
pub(crate) fn is_possible(change: ScrubChange, reports: &[ScrubReport]) -> bool {
    let starts = matches!(change, ScrubChange::Start { .. });
    starts != is_under_way(reports)
}

impl Scrubs {
    /// How many are known of.
    pub(crate) fn count(&self) -> usize {
        self.known.len()
    }

    /// Whether a change has no answer.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// This device may have wrong bytes that nobody noticed.
    pub(crate) fn suspect(&mut self, device: usize) {
        self.suspects.insert(device);
    }

    /// The array is about to be asked for this.
    pub(crate) fn ask(&mut self, change: ScrubChange) {
        self.asked = Some(change);
    }

    /// It has answered; `before`: how its scrubs were when it was asked, if it has done it.
    pub(crate) fn answered(&mut self, before: Option<&[ScrubReport]>) {
        let (asked, Some(before)) = (self.asked.take(), before) else {
            return;
        };
        self.known = before.iter().map(Least::of).collect();
        let last = self.known.last_mut();
        match (asked, last) {
            (Some(ScrubChange::Start { .. }), _) => self.known.push(Least::BEGUN),
            (Some(ScrubChange::Pause), Some(last)) => last.state = State::Paused,
            (Some(ScrubChange::Resume), Some(last)) => last.state = State::Running,
            (Some(ScrubChange::Stop), Some(last)) => last.state = State::Stopped,
            _ => {}
        }
    }

    /// The array was exported; `before`: how its scrubs were then.
    pub(crate) fn exported(&mut self, before: &[ScrubReport]) {
        if self.asked.is_none() {
            self.known = before.iter().map(Least::of).collect();
        }
    }

    /// Compares what an import shows with what is known; what is wrong, if anything. `any`: it may have gone on from an
    /// older state.
    pub(crate) fn imported(&mut self, found: &[ScrubReport], any: bool) -> Option<String> {
        self.loose |= any;
        let asked = self.asked.take();
        let starts = matches!(asked, Some(ScrubChange::Start { .. }));
        let count = self.known.len();
        let as_many = found.len() == count || starts && found.len() == count + 1;
        let mut known = self.known.iter().zip(found).enumerate();
        let wrong = known.find_map(|(at, (least, report))| {
            let asked = asked.filter(|_| at + 1 == count && !starts);
            let wrong = wrong(least, asked, report)?;
            Some(format!("scrub {at} {wrong}: {report:?}, was {least:?}"))
        });
        for (at, report) in found.iter().enumerate() {
            let state = State::of(report);
            match self.known.get_mut(at) {
                None => self.known.push(Least::BEGUN),
                // What only an answer can have made of it is durable; that it is done may be new.
                Some(least) if least.state == State::Paused || state != State::Done => {
                    least.state = match state {
                        State::Done => State::Running,
                        state => state,
                    };
                }
                _ => {}
            }
        }
        if self.loose {
            return None;
        }
        match as_many {
            true => wrong,
            false => Some(format!("{count} scrubs are known, {asked:?}: {found:?}")),
        }
    }

    /// What was found where nothing can be bad, if anything.
    pub(crate) fn false_alarm(&self, reports: &[ScrubReport]) -> Option<String> {
        let findings = reports.iter().flat_map(|r| &r.findings);
        let mut alarms = findings.filter(|f| !self.suspects.contains(&usize::from(f.device)));
        let alarm = alarms.next().filter(|_| !self.loose)?;
        Some(format!("a scrub finds what cannot be there: {alarm:?}"))
    }
}

/// How a report contradicts what was durable of it, and what it was asked for since.
fn wrong(least: &Least, asked: Option<ScrubChange>, report: &ScrubReport) -> Option<&'static str> {
    let state = State::of(report);
    let runs = [State::Running, State::Done];
    let stands = match least.state {
        State::Running => runs.contains(&state),
        _ => state == least.state,
    };
    let follows = match asked {
        Some(ScrubChange::Pause) => state == State::Paused,
        Some(ScrubChange::Resume) => runs.contains(&state),
        Some(ScrubChange::Stop) => state == State::Stopped,
        _ => false,
    };
    let imports = u32::from(!least.state.has_ended() && !state.has_ended());
    if !stands && !follows {
        Some("is in another state")
    } else if report.done_bytes < least.done_bytes || report.found < least.found {
        Some("has forgotten what it looked at")
    } else if report.interrupted < least.interrupted + imports {
        Some("does not say that an import went on with it")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: ScrubChange = ScrubChange::Start {
        check: false,
        since: None,
    };

    fn report(state: &str, done_bytes: u64, interrupted: u32) -> ScrubReport {
        ScrubReport {
            state: state.to_string(),
            check: false,
            whole: true,
            started: 1,
            ended: None,
            done_bytes,
            skipped_bytes: 0,
            interrupted,
            found: 0,
            repaired: 0,
            findings: Vec::new(),
        }
    }

    #[test]
    fn what_was_acknowledged_must_be_found() {
        let mut scrubs = Scrubs::default();
        scrubs.ask(START);
        assert_eq!(scrubs.clone().imported(&[], false), None, "or not");
        assert_eq!(
            scrubs.clone().imported(&[report("running", 0, 1)], false),
            None
        );
        scrubs.answered(Some(&[]));
        assert!(scrubs.clone().imported(&[], false).is_some(), "forgotten");
        let found = |report| scrubs.clone().imported(&[report], false);
        assert_eq!(found(report("running", 9, 1)), None);
        assert_eq!(found(report("done", 9, 0)), None);
        assert!(found(report("paused", 9, 1)).is_some());
        assert!(found(report("running", 9, 0)).is_some(), "it is silent");
        scrubs.ask(ScrubChange::Pause);
        let rests = report("paused", 9, 1);
        assert_eq!(
            scrubs.clone().imported(std::slice::from_ref(&rests), false),
            None
        );
        scrubs.answered(Some(&[report("running", 9, 0)]));
        assert_eq!(scrubs.imported(std::slice::from_ref(&rests), false), None);
        assert!(scrubs.imported(&[report("running", 9, 2)], false).is_some());
        assert!(scrubs.imported(&[report("paused", 8, 2)], false).is_some());
        assert_eq!(scrubs.imported(&[report("stopped", 0, 0)], true), None);
    }

    #[test]
    fn only_a_suspect_may_be_bad() {
        let mut scrubs = Scrubs::default();
        let mut bad = report("done", 9, 0);
        assert_eq!(scrubs.false_alarm(&[bad.clone()]), None);
        bad.findings.push(ashlar_engine::status::ScrubFinding {
            device: 3,
            uuid: String::new(),
            part: "data".to_string(),
            unreadable: 0,
            wrong: 1,
            repaired: 1,
        });
        assert!(scrubs.false_alarm(&[bad.clone()]).is_some());
        scrubs.suspect(3);
        assert_eq!(scrubs.false_alarm(&[bad]), None);
    }
}
