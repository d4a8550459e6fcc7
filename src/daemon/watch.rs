//! What changes by itself: frontends that the kernel does not have any more, and the states of arrays, devices and
//! volumes, each change of which is an event.
//!
//! **Invariants**: a frontend that is gone is told as not served, with what to do, within [`LOOK_EVERY`], and its name
//! leads nowhere; looking never waits for a device; a change of state is one event, looked for at once when the engine
//! tells something; what lasts is told again once a day.

use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use ashlar_engine::status::{ArrayState, ArrayStatus, DeviceState};
use ashlar_rt::{Nanos, SECOND};

use crate::api::Refusing;
use crate::daemon::frontends::attach_flag;
use crate::daemon::host::{Host, Member};
use crate::daemon::watched::Watched;
use crate::view::advice::{advice, device_name};
use crate::view::picture::state_word;

/// How often it is looked.
const LOOK_EVERY: Nanos = SECOND;
/// Looking at arrays takes one in so many parts of the time.
const PART_OF_TIME: Nanos = 200;
/// In how many looks the space that volumes take is noted once.
const NOTE_USED: u32 = 10;
/// In how many looks memory is given back once, if clients have gone meanwhile: it was theirs.
const GIVE_BACK: u32 = 10;
/// How long what volumes take may not be counted while they are written to all the time.
const COUNT_EVERY: Nanos = 60 * SECOND;
/// How long a volume that accepts writes again is not trusted: others may still be refused.
const STILL_REFUSING: Nanos = 30 * SECOND;
/// With so many bytes free a volume that refused writes accepts them again, though none has come since.
const ENOUGH_ROOM: u64 = 16 << 20;
/// How often what is wrong with an array is told again.
const REMIND_EVERY: Nanos = 24 * 3600 * SECOND;

impl Host {
    /// Looks for as long as the daemon runs.
    pub(crate) fn watch(self: &Rc<Host>) {
        let (host, rt) = (Rc::downgrade(self), self.rt.clone());
        self.rt.spawn(async move {
            let (mut next, mut ended) = (0, 0);
            for count in 1u32.. {
                rt.sleep(LOOK_EVERY).await;
                let Some(host) = Weak::upgrade(&host) else {
                    return;
                };
                host.compare_with_kernel().await;
                if count.is_multiple_of(NOTE_USED) {
                    host.note_used_space().await;
                }
                if count.is_multiple_of(GIVE_BACK) {
                    let now = host.frontends.connections_ended();
                    if std::mem::replace(&mut ended, now) != now {
                        ashlar_rt::give_back_memory();
                    }
                }
                let members: Vec<Rc<Member>> = host.arrays.borrow().values().cloned().collect();
                let open = || members.iter().filter(|m| m.array.is_open());
                for member in open() {
                    host.count_used_space(member);
                    host.tell_refusals(member, &mut member.watched.borrow_mut());
                }
                let began = rt.now();
                if began < next {
                    continue;
                }
                for member in open() {
                    host.tell_changes_of(member).await;
                }
                // The status of large arrays takes a while: no more than this part of the time.
                next = began + (rt.now() - began) * PART_OF_TIME;
            }
        });
    }

    /// Tells what is not as it was of an array.
    pub(crate) async fn tell_changes_of(&self, member: &Member) {
        let at = self.rt.now();
        let status = self.status_of(member).await;
        if at < member.watched.borrow().looked {
            return; // who began later was sooner
        }
        member.watched.borrow_mut().looked = at;
        self.tell_changes(member, &status);
    }

    /// Takes out the frontends that the kernel does not have any more.
    pub(crate) async fn compare_with_kernel(&self) {
        let compared = self.frontends.compare();
        for ((array, volume), stored, why) in compared.gone {
            let how = attach_flag(&stored);
            let line =
                format!("{why}; 'ashlar volume attach {array}/{volume} {how}' serves it again");
            self.say_gone(&array, &volume, &stored, &line);
        }
        for ((array, volume), text) in compared.nameless {
            let text = format!("volume {volume} is {text}");
            self.tell(&array, "name-lost", None, text);
        }
        for mount in compared.ending {
            mount.abort().await;
        }
    }

    /// Has what volumes take counted once their clients rest, and now and then while they do not: the engine counts by
    /// itself only when its journal fills, which may be never.
    fn count_used_space(&self, member: &Rc<Member>) {
        let changes = self.frontends.changes(&member.array.name());
        let mut watched = member.watched.borrow_mut();
        let rest = watched.changes == changes;
        watched.changes.clone_from(&changes);
        let late = self.rt.now() >= watched.counted_at + COUNT_EVERY;
        if watched.counting || watched.counted == changes || !(rest || late) {
            return;
        }
        watched.counting = true;
        let (member, rt) = (member.clone(), self.rt.clone());
        self.rt.spawn(async move {
            let merged = member.array.merge().await;
            let mut watched = member.watched.borrow_mut();
            watched.counting = false;
            watched.counted_at = rt.now();
            if merged.is_ok() {
                watched.counted = changes;
            }
        });
    }

    async fn note_used_space(&self) {
        for name in self.frontends.arrays_with_files() {
            let Ok(member) = self.member(&name) else {
                continue;
            };
            for volume in member.array.status().await.volumes {
                self.frontends
                    .note_used(&name, &volume.name, volume.used_bytes);
            }
        }
    }

    /// Events for what is not as it was when it was last looked.
    fn tell_changes(&self, member: &Member, status: &ArrayStatus) {
        let name = &status.name;
        let mut watched = member.watched.borrow_mut();
        let now = self.rt.now();
        if let Some((kind, text)) = change_of_state(watched.state, status) {
            watched.told = now;
            self.tell(name, kind, None, text);
        } else if status.state != ArrayState::Optimal && now >= watched.told + REMIND_EVERY {
            watched.told = now;
            self.tell(
                name,
                kind_of(status.state),
                None,
                format!("still: {}", why(status)),
            );
        }
        watched.state = Some(status.state);
        let lost = !status.lost.is_empty();
        if lost && !watched.lost {
            self.tell(name, "data-lost", None, why(status));
        }
        watched.lost = lost;
        let odd = odd_devices(status);
        for (index, kind) in odd.difference(&watched.odd) {
            let device = status.devices.iter().find(|d| d.index == *index);
            let which = device.map(device_name).unwrap_or_default();
            let text = format!("device {which} refuses writes; it is still read");
            self.tell(name, kind, Some(*index), text);
        }
        watched.odd = odd;
        self.tell_refusals(member, &mut watched);
    }

    fn tell_refusals(&self, member: &Member, watched: &mut Watched) {
        let (name, now) = (&member.array.name(), self.rt.now());
        let refused = self.frontends.refused(name);
        let is_full = || member.array.room_for(4096) < ENOUGH_ROOM;
        let refused: Vec<String> = refused
            .into_iter()
            .filter(|r| still_refuses(r.last, r.accepted, now, is_full))
            .map(|r| r.volume)
            .collect();
        for volume in &refused {
            if !watched.refusing.iter().any(|(known, _)| known == volume) {
                watched
                    .refusing
                    .push((volume.clone(), self.unix_seconds(now)));
                let text = format!(
                    "volume {volume} refuses writes: no free space is left for it; add devices ('ashlar add \
                     {name} DEV...'), delete files and trim ('fstrim'), or destroy a volume"
                );
                self.tell(name, "writes-refused", None, text);
            }
        }
        watched.refusing.retain(|(volume, _)| {
            let still = refused.contains(volume);
            if !still {
                let text = format!("volume {volume} accepts writes again");
                self.tell(name, "writes-accepted", None, text);
            }
            still
        });
    }

    /// Volumes that refuse writes, of an array or of all.
    pub(crate) fn refusing(&self, array: Option<&str>) -> Vec<Refusing> {
        let mut all = Vec::new();
        for (name, member) in self.arrays.borrow().iter() {
            if array.is_some_and(|a| a != name) {
                continue;
            }
            for (volume, since) in &member.watched.borrow().refusing {
                all.push(Refusing {
                    array: name.clone(),
                    volume: volume.clone(),
                    since: *since,
                });
            }
        }
        all
    }
}

/// Whether a volume still refuses writes that refused one last and accepted one at these times.
fn still_refuses(last: Nanos, accepted: Nanos, now: Nanos, is_full: impl Fn() -> bool) -> bool {
    now < last + STILL_REFUSING || accepted < last && is_full()
}

fn kind_of(state: ArrayState) -> &'static str {
    match state {
        ArrayState::Optimal => "optimal",
        ArrayState::Degraded => "degraded",
        ArrayState::Critical => "critical",
        ArrayState::Failed => "failed",
    }
}

/// The event for a change of state; none where there is none, nor for an array that is optimal from the first.
fn change_of_state(
    before: Option<ArrayState>,
    status: &ArrayStatus,
) -> Option<(&'static str, String)> {
    let now = status.state;
    if before == Some(now) || before.is_none() && now == ArrayState::Optimal {
        return None;
    }
    let text = match before {
        Some(before) => format!("{}, was {}", state_word(now).0, state_word(before).0),
        None => state_word(now).0.to_string(),
    };
    Some((
        kind_of(now),
        format!("{}: {}", text.to_lowercase(), why(status)),
    ))
}

/// The most urgent of what there is to say.
fn why(status: &ArrayStatus) -> String {
    let all = "all data has full redundancy";
    advice(status)
        .into_iter()
        .next()
        .unwrap_or_else(|| all.to_string())
}

fn odd_devices(status: &ArrayStatus) -> BTreeSet<(u16, &'static str)> {
    let devices = status.devices.iter();
    let odd = devices.filter_map(|d| match d.state {
        DeviceState::Readonly => Some((d.index, "device-readonly")),
        _ => None,
    });
    odd.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_with_room_again_accepts_writes_though_none_has_come() {
        const S: Nanos = SECOND;
        for (accepted, now, full, still) in [
            (0, 10 * S + STILL_REFUSING - 1, false, true),
            (0, 10 * S + STILL_REFUSING, false, false),
            (0, 10 * S + STILL_REFUSING, true, true),
            (11 * S, 10 * S + STILL_REFUSING, true, false),
            (11 * S, 11 * S, false, true),
        ] {
            assert_eq!(still_refuses(10 * S, accepted, now, || full), still);
        }
    }
}
