//! Devices that are added to an array while it serves.
//!
//! **Invariants**: all are checked before the first is touched; what a dry run says is what is checked then. What could
//! be a device of this array under another name is never overwritten, whatever is forced.

use std::rc::Rc;

use ashlar_engine::status::DeviceState;
use ashlar_engine::uuid_text;

use crate::api::{Add, AddReply};
use crate::daemon::create::domains;
use crate::daemon::devices::{self, Candidate};
use crate::daemon::host::{Host, Member, failure_of};
use crate::daemon::open::on_thread;
use crate::failure::Failure;
use crate::units::seconds_to_move;

impl Host {
    /// `add`: one device after the other.
    ///
    /// # Errors
    /// What stands against it: nothing was changed then, unless the text says which were added.
    pub(super) async fn add(self: &Rc<Host>, call: Add) -> Result<AddReply, Failure> {
        let member = self.member(&call.array)?;
        let given = call.devices.clone();
        let candidates = on_thread(move || devices::check(&given, None)).await??;
        let domains = domains(&call.domains, &candidates)?;
        let label = |at: usize| domains.get(at).cloned().unwrap_or_default();
        let sizes: Vec<(u64, String)> = (0..)
            .zip(&candidates)
            .map(|(at, candidate)| (candidate.size_bytes, label(at)))
            .collect();
        let with = member.array.check_addition(&sizes).map_err(failure_of)?;
        for (size, domain) in sizes.iter().filter(|_| call.hot_spare) {
            let laid = member.array.check_hot_spare(*size, domain);
            laid.map_err(failure_of)?;
        }
        for candidate in &candidates {
            self.check_new(&member, candidate, call.force).await?;
        }
        let path = |c: &Candidate| c.path.display().to_string();
        let mut reply = AddReply {
            array: call.array.clone(),
            devices: Vec::new(),
            paths: candidates.iter().map(path).collect(),
            usable_before: with.usable_before,
            moved_bytes: with.moved_bytes,
            moved_seconds: seconds_to_move(with.moved_bytes, candidates.len()),
            usable_bytes: with.usable_bytes,
            hot_spare: call.hot_spare,
            dry_run: call.dry_run,
        };
        if call.hot_spare {
            (reply.moved_bytes, reply.moved_seconds) = (0, 0);
            reply.usable_bytes = with.usable_before;
        }
        if call.dry_run {
            return Ok(reply);
        }
        for (candidate, (_, domain)) in candidates.iter().zip(&sizes) {
            match self.add_one(&member, candidate, domain, &call).await {
                Ok(index) => reply.devices.push(index),
                Err(failure) => return Err(after(&reply, failure)),
            }
        }
        let status = self.status_of(&member).await;
        reply.usable_bytes = status.capacity.usable_bytes;
        Ok(reply)
    }

    async fn add_one(
        self: &Rc<Host>,
        member: &Rc<Member>,
        candidate: &Candidate,
        domain: &str,
        call: &Add,
    ) -> Result<u16, Failure> {
        // Those before took their time, and of two names of one device the first has made it one of this array.
        self.check_new(member, candidate, call.force).await?;
        let device = self.take_one(candidate).await?;
        let added = match call.hot_spare {
            true => member.array.add_hot_spare(device, domain).await,
            false => member.array.add(device, domain).await.map(|a| a.index),
        };
        let index = added.map_err(failure_of)?;
        self.note_taken_in(member, &candidate.path);
        Ok(index)
    }

    /// Refuses a device that holds something, or that is in use.
    pub(super) async fn check_new(
        self: &Rc<Host>,
        member: &Rc<Member>,
        candidate: &Candidate,
        force: bool,
    ) -> Result<(), Failure> {
        self.check_other(member, candidate).await?;
        self.check_unused(candidate)?;
        self.check_holds_nothing(candidate, force).await.map(drop)
    }

    /// Refuses a device that is one of this array by what its superblock says.
    async fn check_other(
        self: &Rc<Host>,
        member: &Rc<Member>,
        candidate: &Candidate,
    ) -> Result<(), Failure> {
        let label = self.label_at(&candidate.path).await;
        let Some(label) = label.filter(|label| label.array_uuid == member.array.uuid()) else {
            return Ok(());
        };
        let (array, uuid) = (member.array.name(), uuid_text(&label.device_uuid));
        let devices = self.status_of(member).await.devices;
        let Some(known) = devices.into_iter().find(|d| d.uuid == uuid) else {
            return Ok(()); // it was one: what it holds is refused as anything else is
        };
        let next = match known.state {
            DeviceState::Spare if known.is_held() => "it is a hot spare".to_string(),
            state if state.is_in_use() => "it is in use".to_string(),
            _ => format!("'ashlar online {array} {}' takes that in", known.index),
        };
        Err(Failure::refused(format!(
            "{} is device {} of {array}, or a copy of it; {next}",
            candidate.given, known.index
        )))
    }
}

/// A failure, and what was done before it.
fn after(reply: &AddReply, failure: Failure) -> Failure {
    let done: Vec<&str> = reply
        .paths
        .iter()
        .take(reply.devices.len())
        .map(String::as_str)
        .collect();
    match &done[..] {
        [] => failure,
        done => Failure {
            text: format!(
                "{} (before that {} were added)",
                failure.text,
                done.join(", ")
            ),
            ..failure
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_half_way_says_what_was_done() {
        let mut reply = AddReply {
            array: "tank".into(),
            devices: vec![7],
            paths: vec!["/dev/sdh".into(), "/dev/sdi".into()],
            usable_before: 1,
            moved_bytes: 0,
            moved_seconds: 0,
            usable_bytes: 2,
            hot_spare: false,
            dry_run: false,
        };
        let said = after(&reply, Failure::refused("no room")).text;
        assert_eq!(said, "no room (before that /dev/sdh were added)");
        reply.devices.clear();
        assert_eq!(after(&reply, Failure::refused("no room")).text, "no room");
    }
}
