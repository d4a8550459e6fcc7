//! Scrubs: the one under way, and the reports of those before, which the catalog keeps.
//!
//! Invariants:
//! - One runs or rests at a time: that of the last report.
//! - Its cursor moves only past segments that have been looked at, together with what was found in them.
//! - It goes on after an import, which its report counts; one that was stopped counts for no schedule.
//!
//! Crash argument: nothing that recovery needs is written. A root has cursor and findings of one moment, so what was
//! looked at after it is looked at again; a fault that was repaired since is not found twice, nor told.

use std::cell::{Ref, RefCell};
use std::ops::Range;

use ashlar_format::catalog::Catalog;
use ashlar_format::scrub::{Finding, Report, Scrubs as Kept, State, TASK};
use ashlar_format::{BLOCK_U64, SegmentGeometry, SegmentNumber};
use ashlar_rt::Gate;

use crate::error::Error;
use crate::home::Home;
use crate::options::{SCRUB_EVERY, every};
use crate::planted::{self, Bug};
use crate::segment::Segment;
use crate::status::TaskState;

/// After one that has not looked at everything the next one that is due begins so much later, in seconds.
const AGAIN: u64 = 24 * 3600;

/// The scrubs of an array.
#[derive(Debug, Default)]
pub struct Scrubs {
    kept: RefCell<Kept>,
    /// Opens when one starts, rests or ends.
    changed: Gate,
}

/// What a scrub that runs is to look at.
#[derive(Clone, Copy, Debug)]
pub struct Aim {
    /// It only looks.
    pub check: bool,
    /// Which scrub it is, counted since the import.
    pub scrub: usize,
}

/// What was looked at.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Bytes that were looked at, and that could not be.
    pub bytes: (u64, u64),
    /// What was found.
    pub findings: Vec<Finding>,
}

impl Scrubs {
    /// As a catalog has them, of an array that is imported or made at this time.
    pub fn of(catalog: &Catalog, unix_seconds: u64) -> Scrubs {
        let mut tasks = catalog.tasks.iter();
        let task = tasks.find(|(kind, _)| kind == TASK);
        let kept = task.and_then(|(_, bytes)| Kept::decode(bytes).ok());
        let mut kept = kept.unwrap_or_default();
        if kept.since == 0 {
            kept.since = unix_seconds;
        }
        if let Some(report) = kept.reports.last_mut()
            && !report.state.has_ended()
        {
            report.interrupted += u32::from(!planted::on(Bug::InterruptionForgotten));
        }
        Scrubs {
            kept: RefCell::new(kept),
            changed: Gate::default(),
        }
    }

    /// Reports, the newest last.
    pub fn reports(&self) -> Ref<'_, [Report]> {
        Ref::map(self.kept.borrow(), |kept| &kept.reports[..])
    }

    /// The state of the last one, if there was any.
    pub fn state(&self) -> Option<State> {
        Some(self.kept.borrow().reports.last()?.state)
    }

    /// What the one that runs is to look at.
    pub fn aim(&self) -> Option<Aim> {
        let kept = self.kept.borrow();
        let report = kept.reports.last().filter(|r| r.state == State::Running)?;
        Some(Aim {
            check: report.check,
            scrub: kept.reports.len(),
        })
    }

    /// Whether that one has not ended: it runs, or it rests.
    pub fn is_open(&self, aim: &Aim) -> bool {
        let kept = self.kept.borrow();
        let open = kept.reports.last().is_some_and(|r| !r.state.has_ended());
        open && kept.reports.len() == aim.scrub
    }

    /// Waits until one starts, rests or ends.
    pub async fn changed(&self) {
        self.changed.wait().await;
    }

    /// When the next one is due that is repeated after so many seconds.
    fn due(&self, every: u64, now: u64) -> u64 {
        let kept = self.kept.borrow();
        let complete = kept.reports.iter().filter(|r| r.is_complete());
        let last = complete.map(|r| r.times[0].min(now)).max();
        let due = last.unwrap_or(kept.since).saturating_add(every);
        // One that was stopped, or could not look at everything, is not repeated at once.
        let tried = kept.reports.last().map_or(0, |r| r.times[1].min(now));
        due.max(tried.saturating_add(every.min(AGAIN)))
    }

    /// Changes the last report.
    fn change(&self, change: impl FnOnce(&mut Report)) {
        if let Some(report) = self.kept.borrow_mut().reports.last_mut() {
            change(report);
        }
        self.changed.open();
    }
}

impl Home {
    /// The catalog says how scrubs are: the next checkpoint writes it.
    pub(crate) fn keep_scrubs(&self) {
        let bytes = self.scrubs.kept.borrow().encode();
        let mut catalog = self.catalog.borrow_mut();
        catalog.tasks.retain(|(kind, _)| kind != TASK);
        catalog.tasks.push((TASK.to_string(), bytes));
    }

    /// Starts one: of all that is there, or of what was written since a time; `check`: it repairs nothing.
    pub(crate) fn start_scrub(&self, check: bool, since: Option<u64>) -> Result<(), Error> {
        match self.scrubs.state() {
            Some(State::Running) => return Err(Error::ScrubRuns),
            Some(State::Paused) => return Err(Error::ScrubPaused),
            _ => {}
        }
        let before = |since: u64| {
            let reports = self.scrubs.reports();
            let mut earlier = reports.iter().rev().filter(|r| r.times[0] <= since);
            let last = earlier.next();
            last.map(|r| (r.until, r.open.clone()))
        };
        let (from, also) = since.and_then(before).unwrap_or_default();
        let open = self.core.pin_unsettled(|s| !s.sealed.get());
        let cursor = also.iter().copied().chain([from]).min();
        let report = Report {
            state: State::Running,
            check,
            times: [self.core.rt.unix_seconds(), 0],
            from,
            also,
            until: self.root.next_segment(),
            open: open.iter().map(|s| s.number).collect(),
            cursor: cursor.unwrap_or(0),
            done_bytes: 0,
            skipped_bytes: 0,
            interrupted: 0,
            findings: Vec::new(),
        };
        self.scrubs.kept.borrow_mut().reports.push(report);
        self.scrubs.changed.open();
        self.keep_scrubs();
        self.show_scrub("");
        Ok(())
    }

    /// The one under way rests, or goes on; whether that changed anything.
    pub(crate) fn rest_scrub(&self, rests: bool) -> Result<bool, Error> {
        let (from, to) = match rests {
            true => (State::Running, State::Paused),
            false => (State::Paused, State::Running),
        };
        match self.scrubs.state() {
            Some(state) if state == from => {}
            Some(state) if state == to => return Ok(false),
            _ => return Err(Error::NoScrub),
        }
        self.scrubs.change(|report| report.state = to);
        self.keep_scrubs();
        self.show_scrub("");
        self.core.progress.open();
        Ok(true)
    }

    /// The one under way ends without having looked at everything.
    pub(crate) fn stop_scrub(&self) -> Result<(), Error> {
        match self.scrubs.state() {
            Some(state) if !state.has_ended() => self.end_scrub(State::Stopped),
            _ => return Err(Error::NoScrub),
        }
        Ok(())
    }

    /// Segments below this number were looked at; `None`: what devices keep of their own was.
    pub(crate) fn scrubbed(&self, cursor: Option<SegmentNumber>, seen: Seen) {
        self.scrubs.change(|report| {
            report.cursor = cursor.unwrap_or(report.cursor);
            report.done_bytes += seen.bytes.0;
            report.skipped_bytes += seen.bytes.1;
            seen.findings.into_iter().for_each(|f| report.add(f));
        });
        self.keep_scrubs();
        self.show_scrub("");
    }

    /// It has ended so.
    pub(crate) fn end_scrub(&self, state: State) {
        let now = self.core.rt.unix_seconds();
        self.scrubs.change(|report| {
            report.state = state;
            report.times[1] = now;
        });
        self.keep_scrubs();
        self.show_scrub("");
        self.core.progress.open();
    }

    /// Shows how the last one is, for people; `waits`: why it waits, or empty.
    pub(crate) fn show_scrub(&self, waits: &'static str) {
        let (reports, now) = (self.scrubs.reports(), self.core.rt.now());
        let Some(report) = reports.last() else { return };
        let mut tasks = self.tasks.borrow_mut();
        let task = &mut tasks.scrub;
        let state = match report.state {
            State::Running if !waits.is_empty() => TaskState::Waiting,
            State::Running => TaskState::Running,
            State::Paused => TaskState::Paused,
            State::Done => TaskState::Done,
            State::Stopped => TaskState::Stopped,
        };
        if state == TaskState::Running && task.state != state {
            task.speed.begin(now, report.done_bytes);
        }
        task.paused = match state {
            TaskState::Paused => task.paused.or(Some(now)),
            _ => None,
        };
        (task.state, task.reason) = (state, waits);
        (task.done, task.healed) = (report.done_bytes, report.found().1);
        task.speed.reach(now, task.done);
    }

    /// Bytes of columns that the one under way has yet to look at.
    pub(crate) fn bytes_to_scrub(&self) -> u64 {
        let reports = self.scrubs.reports();
        let Some(report) = reports.last().filter(|r| !r.state.has_ended()) else {
            return 0;
        };
        let segments = self.core.segments.borrow();
        let range = report.cursor.min(report.until)..report.until;
        let left = segments.range(range).filter(|(n, _)| report.covers(**n));
        left.map(|(_, s)| bytes_of(s)).sum()
    }

    /// The next segments that the one under way is to look at.
    pub(crate) fn next_to_scrub(&self, count: usize) -> Vec<SegmentNumber> {
        let reports = self.scrubs.reports();
        let Some(report) = reports.last() else {
            return Vec::new();
        };
        let segments = self.core.segments.borrow();
        let range = report.cursor.min(report.until)..report.until;
        let left = segments.range(range).map(|(number, _)| *number);
        left.filter(|n| report.covers(*n)).take(count).collect()
    }

    /// Whether `scrub.every` wants one now.
    pub(crate) fn is_scrub_due(&self) -> bool {
        let now = self.core.rt.unix_seconds();
        let ended = self.scrubs.state().is_none_or(State::has_ended);
        let every = every(&self.setting(&SCRUB_EVERY)).flatten();
        ended && every.is_some_and(|every| now >= self.scrubs.due(every, now))
    }
}

/// Bytes of all columns of a segment that a scrub looks at: headers, strips and summaries.
fn bytes_of(segment: &Segment) -> u64 {
    let stripes = segment.recorded.get();
    let courses = 0..stripes.div_ceil(segment.geometry.course_strips());
    let header = u64::from(stripes > 0) * BLOCK_U64;
    let column = header + bytes_of_courses(segment.geometry, courses);
    column * segment.geometry.width() as u64
}

/// Bytes of a column that are read of these courses.
pub fn bytes_of_courses(geometry: SegmentGeometry, courses: Range<u32>) -> u64 {
    let strips = |course| geometry.strips_in(course);
    let of = |n: u32| u64::from(n * geometry.strip_blocks + geometry.summary_blocks(n));
    courses.map(|course| of(strips(course))).sum::<u64>() * BLOCK_U64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn report(state: State, started: u64) -> Report {
        Report {
            state,
            check: false,
            times: [started, 0],
            from: 0,
            also: Vec::new(),
            until: 90,
            open: vec![80],
            cursor: 40,
            done_bytes: 0,
            skipped_bytes: 0,
            interrupted: 0,
            findings: Vec::new(),
        }
    }

    /// Scrubs as an import finds them.
    fn scrubs(since: u64, reports: Vec<Report>) -> Scrubs {
        let mut catalog = Catalog::default();
        let kept = Kept { since, reports };
        catalog.tasks.push((TASK.to_string(), kept.encode()));
        Scrubs::of(&catalog, 7000)
    }

    #[test]
    fn an_import_goes_on_and_says_so() {
        for (state, interrupted) in [(State::Running, 1), (State::Paused, 1), (State::Done, 0)] {
            let scrubs = scrubs(1, vec![report(State::Done, 1), report(state, 2)]);
            assert_eq!(scrubs.reports()[0].interrupted, 0);
            assert_eq!(scrubs.reports()[1].interrupted, interrupted, "{state:?}");
            let aim = scrubs.aim().map(|aim| aim.scrub);
            assert_eq!(aim, (state == State::Running).then_some(2));
        }
    }

    #[test]
    fn the_schedule_counts_from_the_last_that_looked_at_everything() {
        let none = Scrubs::of(&Catalog::default(), 7000);
        assert_eq!(
            none.due(100, 7000),
            7100,
            "from now on, where none is known"
        );
        assert_eq!(scrubs(5000, Vec::new()).due(100, 7000), 5100);
        let all = vec![report(State::Done, 6000), report(State::Stopped, 6500)];
        assert_eq!(scrubs(5000, all.clone()).due(100, 7000), 6100);
        assert_eq!(scrubs(5000, all.clone()).due(900, 7000), 6900);
        let mut stopped = all.clone();
        stopped[1].times[1] = 6800;
        assert_eq!(scrubs(5000, stopped).due(900, 7000), 7700, "not at once");
        let mut part = all;
        (part[0].from, part[1].state, part[1].skipped_bytes) = (3, State::Done, 9);
        assert_eq!(
            scrubs(5000, part).due(100, 7000),
            5100,
            "neither looked at all"
        );
    }
}
