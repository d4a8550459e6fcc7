//! What is told of arrays: the engine's status, and what only the daemon knows beside it.
//!
//! **Invariants**: nothing here waits for a device; what is used is told with whether it is still to be counted.

use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_engine::status::{ArrayStatus, DeviceState, DeviceStatus};
use ashlar_rt::SECOND;

use super::settings::rebuild_delay;
use super::{Host, Member, clean_reserve};
use crate::api::{NotImported, Reserved, StatusReply, VolumeNote};
use crate::failure::Failure;
use crate::units::duration;
use crate::view::advice::{advice, of_drives};

/// How the engine says that a rebuild waits.
const DELAYED: &str = "once rebuild.delay has passed";

impl Host {
    pub(super) async fn status(&self, array: Option<&str>) -> Result<StatusReply, Failure> {
        let members: Vec<Rc<Member>> = match array {
            Some(name) => vec![self.member(name)?],
            None => self.arrays.borrow().values().cloned().collect(),
        };
        let (mut arrays, mut reserved) = (Vec::new(), BTreeMap::new());
        let (mut hardware, mut volumes) = (Vec::new(), Vec::new());
        for member in members {
            let status = self.status_of(&member).await;
            let for_what = Reserved::of(&status, clean_reserve(&member.array));
            reserved.insert(status.name.clone(), for_what);
            hardware.extend(self.hardware_of(&status));
            volumes.extend(self.notes_on_volumes(&member, &status));
            arrays.push(status);
        }
        let not_imported = match array {
            Some(_) => Vec::new(),
            None => self.not_imported(),
        };
        self.compare_with_kernel().await;
        let list_lost = self.state.list_lost();
        let not_served = self.not_served.borrow();
        let not_served = not_served
            .iter()
            .filter(|n| array.is_none_or(|a| a == n.array));
        let not_served = not_served.cloned().collect();
        Ok(StatusReply {
            arrays,
            not_imported,
            not_served,
            list_lost,
            refusing: self.refusing(array),
            latency: self.frontends.latency(array),
            reserved,
            hardware,
            volumes,
        })
    }

    /// Known arrays that are not open, each with what it waits for, or why it could not be started.
    fn not_imported(&self) -> Vec<NotImported> {
        let awaited = self.awaited.borrow();
        let waiting = self.waiting.borrow();
        let all = waiting.iter().map(|(known, reason)| NotImported {
            name: known.name.clone(),
            uuid: known.uuid.clone(),
            reason: reason.clone(),
            waits: awaited.get(&known.uuid).copied(),
        });
        all.collect()
    }

    /// An array's status, with what only the daemon knows: where devices were, and what needs the operator.
    /// How a volume is served stands in the array, but nothing is written to one that is only read: there it
    /// is what serves now.
    pub(crate) async fn status_of(&self, member: &Member) -> ArrayStatus {
        let mut status = member.array.status().await;
        for device in &mut status.devices {
            let paths = self.state.paths.borrow();
            let last = paths.get(&device.uuid).cloned().unwrap_or_default();
            device.last_path = if device.path.is_empty() {
                last
            } else {
                device.path.clone()
            };
        }
        for device in status.devices.iter_mut().filter(|d| d.is_held()) {
            device.storage = self.wrong_storage(&device.uuid);
        }
        if member.read_only {
            for volume in &mut status.volumes {
                volume.frontends = self.frontends.running(&status.name, &volume.name);
            }
        }
        for volume in &mut status.volumes {
            let found = |f| self.frontends.found_at(&status.name, &volume.name, f);
            volume.frontends = volume.frontends.iter().map(found).collect();
        }
        self.tell_delay(member, &mut status);
        status.attention = advice(&status);
        let hardware = self.hardware_of(&status);
        status.attention.extend(of_drives(&status, &hardware));
        self.note_lost(member, &status);
        status
    }

    /// Has a rebuild that waits for a device to come back say for how long it still does.
    fn tell_delay(&self, member: &Member, status: &mut ArrayStatus) {
        let now = self.rt.now();
        let away = |d: &&DeviceStatus| matches!(d.state, DeviceState::Missing | DeviceState::Slow);
        let away: Vec<u16> = status
            .devices
            .iter()
            .filter(away)
            .map(|d| d.index)
            .collect();
        let mut watched = member.watched.borrow_mut();
        watched.away.retain(|index, _| away.contains(index));
        for index in away {
            watched.away.entry(index).or_insert(now);
        }
        let (delay, setting) = rebuild_delay(&member.array);
        let ends = watched.away.values().map(|since| since + delay * SECOND);
        let Some(end) = ends.filter(|end| *end > now).min() else {
            return;
        };
        let left = duration((end - now).div_ceil(SECOND));
        for task in &mut status.tasks {
            let words = format!("in {left} (rebuild.delay={setting})");
            task.reason = task.reason.replace(DELAYED, &words);
        }
    }

    /// What the engine does not tell of an array's volumes.
    fn notes_on_volumes(&self, member: &Member, status: &ArrayStatus) -> Vec<VolumeNote> {
        let changes = self.frontends.changes(&status.name);
        let watched = member.watched.borrow();
        let names = status.volumes.iter().map(|v| v.name.as_str());
        let notes = names.map(|name| VolumeNote {
            array: status.name.clone(),
            volume: name.to_string(),
            thin: member.array.volume(name).is_some_and(|v| v.info().thin),
            counting: !member.read_only && changes.get(name) != watched.counted.get(name),
        });
        notes.collect()
    }
}
