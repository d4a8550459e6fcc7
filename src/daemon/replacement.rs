//! Devices in use that others take the place of.
//!
//! **Invariants**: all is checked before the new device is touched; what a dry run says is what is checked then. A
//! device that was added is known to the next start, also where the old one does not leave.

use std::rc::Rc;

use ashlar_engine::Error;
use ashlar_engine::status::DeviceStatus;

use crate::api::{Replace, TakenInReply};
use crate::daemon::devices;
use crate::daemon::host::{Host, Member, failure_of};
use crate::daemon::open::on_thread;
use crate::daemon::removal::leaving;
use crate::failure::Failure;

impl Host {
    /// `replace` of a device in use: the new one is added, then the old one leaves.
    ///
    /// # Errors
    /// What stands against it: nothing was changed then, unless the text says that the new one was added.
    pub(super) async fn replace_in_use(
        self: &Rc<Host>,
        member: &Rc<Member>,
        old: DeviceStatus,
        call: Replace,
    ) -> Result<TakenInReply, Failure> {
        let Some(new) = call.new.clone() else {
            return Err(no_new(&member.array.name(), &old));
        };
        let candidates = on_thread(move || devices::check(&[new], None)).await??;
        let candidate = &candidates[0];
        // Another name of a device of this array is told as what it is, whatever its size.
        self.check_new(member, candidate, call.force).await?;
        let array = &member.array;
        let check = || array.check_replacement_in_use(old.index, candidate.size_bytes);
        let without = check().map_err(failure_of)?;
        let more_losses = self.status_of(member).await.health.more_losses;
        let index = u16::try_from(array.next_device()).unwrap_or(u16::MAX);
        let old_index = old.index;
        let name = call.array.clone();
        let mut reply = TakenInReply {
            array: call.array,
            device: index,
            path: candidate.path.display().to_string(),
            kept: 0,
            lacking: 0,
            more_losses: None,
            stays: false,
            leaves: Some(leaving(name, old, without, more_losses, call.dry_run)),
            dry_run: call.dry_run,
        };
        if call.dry_run {
            return Ok(reply);
        }
        let device = self.take_one(candidate).await?;
        let taken = array.replace_in_use(old_index, device).await;
        if matches!(taken, Ok(_) | Err(Error::OldStays { .. })) {
            self.note_taken_in(member, &candidate.path);
        }
        reply.device = taken.map_err(failure_of)?.index;
        Ok(reply)
    }
}

/// What is said where no new device is named.
fn no_new(array: &str, old: &DeviceStatus) -> Failure {
    let index = old.index;
    Failure::refused(format!(
        "device {index} is in use; name the device that takes its place ('ashlar replace {array} {index} NEW'), or take \
         it out of use first ('ashlar fail {array} {index}')"
    ))
}
