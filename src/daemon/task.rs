//! Background work that is paused, resumed and cancelled.
//!
//! **Invariants**: what cannot be paused or cancelled says so, and what to do instead; nothing is changed then.

use ashlar_engine::status::{ArrayState, DeviceState};
use ashlar_engine::{ScrubChange, Work};

use crate::api::{Task, TaskChange, TaskReply};
use crate::daemon::host::{Host, Member, failure_of};
use crate::failure::Failure;

impl Host {
    /// `task` with a change.
    ///
    /// # Errors
    /// If there is no such task, or it cannot be changed so.
    pub(super) async fn change_task(&self, call: Task) -> Result<TaskReply, Failure> {
        let member = self.member(&call.array)?;
        let work = work_of(&call)?;
        let (mut already, mut stay) = (false, Vec::new());
        match call.change {
            TaskChange::Cancel if work == Work::Scrub => {
                let stopped = member.array.scrub(ScrubChange::Stop).await;
                stopped.map_err(failure_of)?;
            }
            TaskChange::Pause | TaskChange::Resume if work == Work::Scrub => {
                let change = match call.change {
                    TaskChange::Pause => ScrubChange::Pause,
                    _ => ScrubChange::Resume,
                };
                already = !member.array.scrub(change).await.map_err(failure_of)?;
            }
            TaskChange::Cancel => stay = self.cancel(&member, &call, work).await?,
            TaskChange::Pause | TaskChange::Resume => {
                let paused = call.change == TaskChange::Pause;
                let changed = member.array.pause(work, paused);
                already = !changed.map_err(failure_of)?;
            }
        }
        let status = self.status_of(&member).await;
        let offline = |d: &&ashlar_engine::status::DeviceStatus| d.state == DeviceState::Offline;
        let bare = status.exposure.iter().filter(|e| e.redundancy == 0);
        Ok(TaskReply {
            array: call.array,
            id: call.id,
            kind: work.name().to_string(),
            change: call.change,
            already,
            stay,
            offline: (status.devices.iter().filter(offline))
                .map(|d| d.index)
                .collect(),
            degraded: status.state != ArrayState::Optimal,
            unprotected_bytes: bare.map(|e| e.bytes).sum(),
            more_losses: status.health.more_losses,
        })
    }

    /// Gives work up; the devices that stay for it.
    async fn cancel(&self, member: &Member, call: &Task, work: Work) -> Result<Vec<u16>, Failure> {
        if let Some(why) = not_cancelled(work, &call.array) {
            return Err(Failure::refused(why));
        }
        let leaving = member.array.leaving();
        let (mut stay, mut refused) = (Vec::new(), None);
        for index in leaving {
            match member.array.stay(index).await {
                Ok(()) => stay.push(index),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if stay.is_empty() => return Err(failure_of(error)),
            None if stay.is_empty() => {
                return Err(Failure::refused(format!(
                    "{}: no device is to leave, so there is nothing to cancel; 'ashlar task {0} {1} pause' holds off \
                     moves to emptier devices",
                    call.array, call.id
                )));
            }
            _ => {}
        }
        // What is given up is not paused either.
        member.array.pause(work, false).map_err(failure_of)?;
        Ok(stay)
    }
}

fn work_of(call: &Task) -> Result<Work, Failure> {
    let mut all = Work::ALL.into_iter();
    all.find(|work| work.id() == call.id).ok_or_else(|| {
        Failure::not_found(format!(
            "{} has no task {}; 'ashlar task {0}' lists its work, and 1 is rebuild, 4 rebalance in any array",
            call.array, call.id
        ))
    })
}

/// Why work of a kind is not given up, and what to do instead; `None` if it is.
fn not_cancelled(work: Work, array: &str) -> Option<String> {
    let why = match work {
        Work::Rebalance | Work::Scrub => return None,
        Work::Rebuild => format!(
            "a rebuild cannot be cancelled: data would stay without redundancy; 'ashlar task {array} {} pause' holds \
             it off, and 'ashlar online {array} DEV' takes a device in again that still works",
            work.id()
        ),
        Work::Clean => "cleaning cannot be cancelled: writes would fail for want of the room that it makes; it runs \
                        only while room is short, and ends by itself"
            .to_string(),
        Work::Repair => "repair of single blocks cannot be cancelled: what is known to be bad would stay so; it ends \
                         by itself"
            .to_string(),
    };
    Some(format!("{array}: {why}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn each_task_has_a_number_and_says_why_it_is_not_cancelled() {
        let mut call = Task {
            array: "tank".into(),
            id: 1,
            change: TaskChange::Cancel,
        };
        for work in Work::ALL {
            call.id = work.id();
            assert_eq!(work_of(&call).unwrap(), work);
            let why = not_cancelled(work, "tank");
            let can_be = matches!(work, Work::Rebalance | Work::Scrub);
            assert_eq!(why.is_none(), can_be, "{why:?}");
        }
        call.id = 9;
        assert!(work_of(&call).unwrap_err().text.contains("no task 9"));
    }
}
