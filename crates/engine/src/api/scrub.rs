//! Scrubs as callers see them: started, paused, resumed, stopped, and their reports.
//!
//! Invariant: what a caller was told of a scrub's state is durable.

use ashlar_format::scrub::{Report, State};

use crate::api::array::Array;
use crate::error::Error;
use crate::options::uuid_text;
use crate::status::{ScrubFinding, ScrubReport};

/// What is to become of the scrub of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubChange {
    /// One starts.
    Start {
        /// It only looks, and repairs nothing.
        check: bool,
        /// It looks at what was written since this time, in seconds since 1970; else at everything.
        since: Option<u64>,
    },
    /// The one under way rests.
    Pause,
    /// It goes on.
    Resume,
    /// It ends.
    Stop,
}

impl Array {
    /// Starts a scrub, or changes the one under way; whether that changed anything.
    ///
    /// # Errors
    /// [`Error::ScrubRuns`], [`Error::ScrubPaused`], [`Error::NoScrub`].
    pub async fn scrub(&self, change: ScrubChange) -> Result<bool, Error> {
        self.check_writable()?;
        let home = &self.0.home;
        let (changed, kind, text) = match change {
            ScrubChange::Start { check, since } => {
                home.start_scrub(check, since)?;
                (true, "scrub-started", "a scrub was started")
            }
            ScrubChange::Pause => {
                let changed = home.rest_scrub(true)?;
                (
                    changed,
                    "work-paused",
                    "the scrub was paused; an import does not resume it",
                )
            }
            ScrubChange::Resume => {
                let changed = home.rest_scrub(false)?;
                (changed, "work-resumed", "the scrub was resumed")
            }
            ScrubChange::Stop => {
                home.stop_scrub()?;
                (
                    true,
                    "scrub-stopped",
                    "the scrub was stopped before it had looked at everything",
                )
            }
        };
        if changed {
            home.core.events.note(kind, None, text.to_string());
        }
        self.keep(async |home| home.checkpoint(0).await).await?;
        Ok(changed)
    }

    /// Reports of the last scrubs, the newest last.
    pub fn scrubs(&self) -> Vec<ScrubReport> {
        let reports = self.0.home.scrubs.reports();
        reports.iter().map(shown).collect()
    }
}

fn shown(report: &Report) -> ScrubReport {
    let (found, repaired) = report.found();
    let finding = |f: &ashlar_format::scrub::Finding| ScrubFinding {
        device: f.device,
        uuid: uuid_text(&f.uuid),
        part: f.part.name().to_string(),
        unreadable: f.unreadable,
        wrong: f.wrong,
        repaired: f.repaired,
    };
    ScrubReport {
        state: report.state.name().to_string(),
        check: report.check,
        whole: report.from == 0,
        started: report.times[0],
        ended: State::has_ended(report.state).then_some(report.times[1]),
        done_bytes: report.done_bytes,
        skipped_bytes: report.skipped_bytes,
        interrupted: report.interrupted,
        found,
        repaired,
        findings: report.findings.iter().map(finding).collect(),
    }
}
