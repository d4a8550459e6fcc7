//! Scrubs as operators use them: started, paused, resumed and stopped at any moment; and, once the array rests, run to
//! their end one after the other and compared.
//!
//! Invariants: as in [`super`]; what becomes of scrubs follows from a generator of their own.

use ashlar_engine::ScrubChange;
use ashlar_engine::status::ScrubReport;
use ashlar_rt::{MICROSECOND, SECOND};

use super::Session;
use crate::config::Mode;
use crate::rng::Rng;
use crate::scrubs;
use crate::settings;
use crate::store::StoreError;
use crate::world::World;

/// A whole scrub of a small array at rest takes less, in virtual time.
const SCRUB_BOUND: u64 = 4 * 3600 * SECOND;
/// The rate of one that is to be under way for a while.
const SLOW: &str = "64K";
const WHOLE: ScrubChange = ScrubChange::Start {
    check: false,
    since: None,
};
const CHECK: ScrubChange = ScrubChange::Start {
    check: true,
    since: None,
};

impl World {
    /// Judges what scrubs say that they have found.
    pub(crate) fn judge_scrubs(&self, reports: &[ScrubReport]) {
        for report in reports {
            if report.found > 0 {
                self.trace.mark("scrub found");
            }
            if report.interrupted > 0 {
                self.trace.mark("scrub interrupted");
            }
        }
        if let Some(alarm) = self.mishaps.scrubs.borrow().false_alarm(reports)
            && self.promised()
        {
            self.fail(|| alarm);
        }
    }

    /// Scrubs that an import shows are what they were.
    pub(crate) fn check_scrubs(&self, reports: &[ScrubReport]) {
        let any = !self.promised();
        let wrong = self.mishaps.scrubs.borrow_mut().imported(reports, any);
        if let Some(wrong) = wrong {
            self.fail(|| wrong);
        }
        self.judge_scrubs(reports);
    }
}

impl Session {
    /// In a life with scrubs they come and go from now on.
    pub(crate) fn begin_scrubs(&self) {
        if self.world.config.scrubs {
            let rng = self.world.chance.scrubs.borrow_mut().fork(1);
            let scrubs = self.clone().scrubs(rng);
            self.rt.spawn(self.world.heard(scrubs));
        }
    }

    /// Until the session ends.
    async fn scrubs(self, mut rng: Rng) {
        for _ in 0..rng.range(1, 8) {
            let bits = rng.range(12, 27);
            self.rt.sleep(rng.below(1 << bits)).await;
            if self.world.failed() || self.world.mishaps.scrubs.borrow().is_asked() {
                return;
            }
            if rng.chance(25) {
                let (key, values) = rng.pick(&settings::RATES);
                if !self.set_to(0, &(None, key), rng.pick(values)).await {
                    return;
                }
            }
            let reports = self.store.scrubs();
            let rests = reports.last().is_some_and(|r| r.state == "paused");
            let change = match (scrubs::is_under_way(&reports), rng.below(20)) {
                (false, 0..3) => ScrubChange::Start {
                    check: false,
                    since: reports.first().map(|r| r.started),
                },
                (false, 3..7) => CHECK,
                (false, _) | (true, 0) => WHOLE,
                (true, 1..4) => ScrubChange::Stop,
                (true, 4) => ScrubChange::Pause,
                (true, 5) => ScrubChange::Resume,
                (true, _) if rests => ScrubChange::Resume,
                (true, _) => ScrubChange::Pause,
            };
            let starts = matches!(change, ScrubChange::Start { .. });
            if !starts || self.world.mishaps.scrubs.borrow().count() < scrubs::MOST {
                self.scrub(change).await;
            }
        }
    }

    /// Changes the scrub of the array; false if it did not. What failed may have happened.
    pub(crate) async fn scrub(&self, change: ScrubChange) -> bool {
        let world = &self.world;
        let before = self.store.scrubs();
        let possible = scrubs::is_possible(change, &before);
        world.mishaps.scrubs.borrow_mut().ask(change);
        self.log(0, || format!("scrub {change:?} ..."));
        let Some(result) = self.bounded("scrub", self.store.scrub(change)).await else {
            return false;
        };
        self.log(0, || format!("scrub {change:?}: {result:?}"));
        if result.is_ok() || !possible {
            let done = result.is_ok().then_some(&before[..]);
            world.mishaps.scrubs.borrow_mut().answered(done);
        }
        self.answered();
        let after = self.store.scrubs();
        world.judge_scrubs(&after);
        world.trace.mark(match (change, &result) {
            (_, Err(_)) => "scrub refused",
            (ScrubChange::Start { .. }, Ok(_)) => "scrub started",
            (ScrubChange::Pause, Ok(_)) => "scrub paused",
            (ScrubChange::Resume, Ok(_)) => "scrub resumed",
            (ScrubChange::Stop, Ok(_)) => "scrub stopped",
        });
        match &result {
            Ok(_) if !possible => world.fail(|| format!("scrub {change:?} is done: {before:?}")),
            Err(StoreError::Closed) => {} // the export beside it was faster
            Err(error) if possible => self.judge("scrub", error).await,
            _ => {}
        }
        result.is_ok()
    }

    /// Waits for the end of the scrub that runs; its report, unless it does not end.
    async fn end_of_scrub(&self) -> Option<ScrubReport> {
        let waiting = self.store.wait_scrubbed();
        let ended = self.rt.timeout(SCRUB_BOUND, waiting).await;
        let report = self.store.scrubs().pop()?;
        self.answered();
        self.log(0, || format!("scrub ended: {report:?}"));
        self.world.judge_scrubs(std::slice::from_ref(&report));
        if report.state == "done" {
            self.world.trace.mark("scrub ended");
            return Some(report);
        }
        if ended.is_none() {
            self.describe().await;
        }
        self.world
            .fail(|| format!("a scrub does not end: {report:?}"));
        None
    }

    /// Everything is scrubbed.
    pub(crate) async fn scrub_now(&self) {
        self.scrub_whole(WHOLE).await;
    }

    /// Runs one to its end.
    async fn scrub_whole(&self, change: ScrubChange) -> Option<ScrubReport> {
        match self.scrub(change).await {
            true => self.end_of_scrub().await,
            false => None,
        }
    }

    /// The one under way goes on, rests now and then, and ends.
    async fn end_under_way(&self, rng: &mut Rng) -> Option<ScrubReport> {
        if !scrubs::is_under_way(&self.store.scrubs()) {
            return None;
        }
        for _ in 0..rng.below(8) {
            self.rt.sleep(rng.magnitude(2000) * MICROSECOND).await;
            let reports = self.store.scrubs();
            if !scrubs::is_under_way(&reports) {
                return reports.last().cloned();
            }
            let change = match reports.last()?.state == "paused" {
                true => ScrubChange::Resume,
                false => ScrubChange::Pause,
            };
            self.scrub(change).await;
        }
        if self.store.scrubs().last()?.state == "paused" {
            self.scrub(ScrubChange::Resume).await;
        }
        self.end_of_scrub().await
    }

    /// At rest and without faults, in both sessions that end a life: what is under way ends; one that looks at
    /// everything leaves nothing bad.
    pub(crate) async fn scrub_at_rest(&self, mut rng: Rng) {
        let world = &self.world;
        let refuses = world.disks.iter().any(|disk| disk.refusal().is_some());
        if !world.config.scrubs || !world.promised() || world.config.mode == Mode::Beyond || refuses
        {
            return;
        }
        self.set_to(0, &(None, "scrub.max"), "none").await;
        self.end_under_way(&mut rng).await;
        let was_at_rest = world.mishaps.scrubs.borrow().was_at_rest;
        if !was_at_rest && rng.chance(30) {
            let checked = self.scrub_whole(CHECK).await;
            if checked.is_some_and(|report| report.repaired > 0) {
                world.fail(|| "a scrub repairs that is only to look".to_string());
            }
        }
        let Some(first) = self.scrub_whole(WHOLE).await else {
            return;
        };
        if was_at_rest {
            if first.found > 0 {
                world.fail(|| format!("nothing has happened since the last scrub: {first:?}"));
            }
            world.mishaps.scrubs.borrow_mut().is_clean = first.skipped_bytes == 0;
        } else {
            self.scrub_again(first, &mut rng).await;
            world.mishaps.scrubs.borrow_mut().was_at_rest = true;
        }
    }

    /// One that rests on its way looks at as much as one that does not, and neither finds anything after the first.
    /// Then one is left under way.
    async fn scrub_again(&self, first: ScrubReport, rng: &mut Rng) {
        let world = &self.world;
        let begun = || world.mishaps.scrubs.borrow().begun;
        let before = begun();
        self.scrub(WHOLE).await;
        let rested = self.end_under_way(rng).await;
        let begun = begun() - before; // it is not to look at these
        let (Some(rested), Some(last)) = (rested, self.scrub_whole(WHOLE).await) else {
            return;
        };
        if rested.found > 0 || last.found > 0 {
            world.fail(|| format!("a scrub leaves something bad: {rested:?} {last:?}"));
        }
        let bytes = |report: &ScrubReport| report.done_bytes + report.skipped_bytes;
        if bytes(&rested) + begun < bytes(&first).min(bytes(&last)) && !world.config.unchecked {
            world.fail(|| format!("a scrub has not looked at everything: {rested:?} {last:?}"));
        }
        // A device that does not take what is to be repaired is given up: one that shrank.
        let shrunken = !world.budget.borrow().shrunken.is_empty();
        if first.repaired < first.found && !shrunken {
            world.fail(|| format!("a scrub does not repair what it finds: {first:?}"));
        }
        world.trace.mark("scrubs at rest agree");
        self.set_to(0, &(None, "scrub.max"), SLOW).await;
        if self.scrub(WHOLE).await {
            self.rt.sleep(rng.magnitude(2_000_000) * MICROSECOND).await;
            if rng.chance(50) {
                self.scrub(ScrubChange::Pause).await;
            }
        }
    }
}
