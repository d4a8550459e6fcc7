//! Scrubs that are started, paused, resumed, stopped and shown.
//!
//! **Invariants**: what cannot be done says so and what to do instead; nothing is changed then.

use ashlar_engine::{ScrubChange, Work};

use crate::api::{Scrub, ScrubReply, ScrubVerb};
use crate::daemon::host::{Host, failure_of};
use crate::failure::Failure;

impl Host {
    /// `scrub`.
    ///
    /// # Errors
    /// If there is no such array, or none that could be changed so.
    pub(super) async fn scrub(&self, call: Scrub) -> Result<ScrubReply, Failure> {
        let member = self.member(&call.array)?;
        let change = match call.change {
            ScrubVerb::Show => None,
            ScrubVerb::Start => Some(ScrubChange::Start {
                check: call.check,
                since: call.since,
            }),
            ScrubVerb::Pause => Some(ScrubChange::Pause),
            ScrubVerb::Resume => Some(ScrubChange::Resume),
            ScrubVerb::Stop => Some(ScrubChange::Stop),
        };
        let mut already = false;
        if let Some(change) = change {
            let changed = member.array.scrub(change).await;
            already = !changed.map_err(failure_of)?;
        }
        let status = self.status_of(&member).await;
        let every = member.array.get(Some("scrub.every"));
        let every = every.ok().and_then(|settings| settings.into_iter().next());
        let is_scrub = |kind: &str| kind == Work::Scrub.name();
        Ok(ScrubReply {
            array: call.array,
            already,
            every: every.map_or_else(String::new, |(_, value)| value),
            task: status.tasks.into_iter().find(|t| is_scrub(&t.kind)),
            reports: member.array.scrubs(),
        })
    }
}
