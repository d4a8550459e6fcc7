//! Devices that are taken out of an array for good, and those that stay after all.
//!
//! **Invariants**: a device in use serves until what lies on it lies elsewhere; what a dry run says is what is checked
//! before anything is changed.

use ashlar_engine::Without;
use ashlar_engine::status::DeviceStatus;

use crate::api::{Remove, RemoveReply, TakenInReply};
use crate::daemon::host::{Host, Member, failure_of};
use crate::failure::Failure;
use crate::units::seconds_to_move;

/// What is said of a device that is taken out for good.
pub(super) fn leaving(
    array: String,
    known: DeviceStatus,
    without: Without,
    more_losses: u16,
    dry_run: bool,
) -> RemoveReply {
    RemoveReply {
        array,
        device: known.index,
        in_use: known.state.is_in_use(),
        path: known.last_path,
        moved_bytes: without.moved_bytes,
        moved_seconds: seconds_to_move(without.moved_bytes, 1),
        usable_bytes: without.usable_bytes,
        promised_bytes: without.promised_bytes,
        more_losses,
        dry_run,
    }
}

impl Host {
    /// `remove`.
    ///
    /// # Errors
    /// Why the array cannot do without the device: nothing was changed.
    pub(super) async fn remove_device(&self, call: Remove) -> Result<RemoveReply, Failure> {
        let member = self.member(&call.array)?;
        let known = self.device_named(&member, &call.device).await?;
        let more_losses = self.status_of(&member).await.health.more_losses;
        let without = match call.dry_run {
            true => member.array.check_removal(known.index),
            false => member.array.remove(known.index).await,
        };
        let without = without.map_err(failure_of)?;
        Ok(leaving(
            call.array,
            known,
            without,
            more_losses,
            call.dry_run,
        ))
    }

    /// `online` of a device that was to leave.
    pub(super) async fn stay(
        &self,
        member: &Member,
        known: &DeviceStatus,
    ) -> Result<TakenInReply, Failure> {
        let stays = member.array.stay(known.index).await;
        stays.map_err(failure_of)?;
        Ok(TakenInReply {
            array: member.array.name(),
            device: known.index,
            path: known.last_path.clone(),
            kept: 0,
            lacking: 0,
            more_losses: None,
            stays: true,
            leaves: None,
            dry_run: false,
        })
    }
}
