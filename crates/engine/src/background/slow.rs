//! Devices that are slow: who finds them, and who looks at them until they are as fast as the others again.
//!
//! Invariant: a device that was slow is taken in only with nothing of its earlier life under way to it: a write that was
//! given up must not land on what the take-in has judged (`home/returning.rs` waits for that as well).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use ashlar_device::{DeviceRef, Fault};
use ashlar_format::BLOCK;
use ashlar_rt::{Buf, MILLISECOND, Nanos, SECOND, join_all};

use crate::background::Background;
use crate::error::Error;
use crate::home::Home;
use crate::home::slow::{FAST, Out, WINDOW};
use crate::members::arrival::Arrival;
use crate::members::{DEADLINE, Member};
use crate::planted::{self, Bug};

/// Where a device is late its peers are asked, which have so long.
const ANSWER: Nanos = 300 * MILLISECOND;
/// One that is late still is looked at again after this.
const AGAIN: Nanos = 200 * MILLISECOND;
/// A slow device is looked at this often.
const LOOK: Nanos = SECOND;
/// A take-in that was refused is tried again after this, and then after twice as long each time, up to that.
const PAUSE: Nanos = 4 * SECOND;
const PAUSE_MOST: Nanos = 60 * SECOND;
/// Bytes read to see how fast a device is.
const PROBE: usize = 16 * BLOCK;
/// Peers that are looked at beside it.
const PEERS: usize = 3;
/// It may take so many times as long as the slowest of them.
const TIMES_AS_LONG: Nanos = 4;

/// What a look at a slow device has shown.
#[derive(Debug, PartialEq, Eq)]
enum Sight {
    AsFastAsOthers,
    StillSlow,
    Gone,
}

/// When a take-in is tried again that was refused.
#[derive(Debug, Default)]
struct Tried {
    next: Nanos,
    pause: Nanos,
}

impl Tried {
    /// It was refused; whether for the first time.
    fn refused(&mut self, now: Nanos) -> bool {
        let first = self.pause == 0;
        self.pause = (2 * self.pause).clamp(PAUSE, PAUSE_MOST);
        self.next = now + self.pause;
        first
    }
}

/// What two times of a read mean, of the device and of its slowest peer.
fn judge(own: Option<Nanos>, peers: Nanos) -> Sight {
    match own {
        Some(own) if own <= FAST.max(peers.saturating_mul(TIMES_AS_LONG)) => Sight::AsFastAsOthers,
        Some(_) => Sight::StillSlow,
        None => Sight::Gone,
    }
}

impl Background {
    /// Finds devices that are late, and slower than their peers, and looks at those that were.
    pub(super) fn watch_slow(self: &Rc<Self>) {
        let rt = self.core.rt.clone();
        let background = self.clone();
        rt.spawn(async move { background.watch_late().await });
        let background = self.clone();
        rt.spawn(async move { background.watch_speeds().await });
        let background = self.clone();
        rt.spawn(async move { background.watch_out().await });
    }

    async fn watch_late(self: Rc<Self>) {
        let (core, home) = (&self.core, &self.home);
        home.set_patience();
        while !core.closed.get() {
            core.lateness.late.wait().await;
            while home.is_any_late() && !core.closed.get() {
                if self.peers_answer().await {
                    home.leave_late();
                }
                core.rt.sleep(AGAIN).await;
            }
        }
    }

    /// Whether devices that are not late answer: else it is what they all hang on, or this machine, that is late.
    async fn peers_answer(&self) -> bool {
        let peers = self.peers(|m| m.sent.late() == 0);
        let asked = peers.iter().map(|device| {
            let (rt, read) = (self.core.rt.clone(), self.time_of_read(device));
            self.core
                .rt
                .spawn(async move { rt.timeout(ANSWER, read).await.flatten() })
        });
        let answers = join_all(asked.collect::<Vec<_>>()).await;
        2 * answers.iter().flatten().count() >= answers.len()
    }

    /// Some of the members that are read and for which this holds.
    fn peers(&self, of: impl Fn(&Member) -> bool) -> Vec<DeviceRef> {
        let core = &self.core;
        let mut peers: Vec<&Member> = core
            .readable()
            .into_iter()
            .map(|i| core.member(i))
            .collect();
        peers.retain(|member| of(member));
        let mut some = Vec::new();
        while some.len() < PEERS && !peers.is_empty() {
            let at = core.rt.random_below(peers.len() as u64);
            some.extend(
                peers
                    .swap_remove(usize::try_from(at).expect("below their number"))
                    .held(),
            );
        }
        some
    }

    async fn watch_speeds(self: Rc<Self>) {
        let (rt, lateness) = (&self.core.rt, &self.core.lateness);
        while !self.core.closed.get() {
            lateness.compare_at.set(rt.now() + WINDOW);
            lateness.answered.wait().await;
            if !self.core.closed.get() {
                self.home.leave_slower();
            }
        }
    }

    async fn watch_out(self: Rc<Self>) {
        let watched: Rc<RefCell<BTreeSet<u16>>> = Rc::default();
        while !self.core.closed.get() {
            for index in self.home.slow.all() {
                if !watched.borrow_mut().insert(index) {
                    continue;
                }
                let (background, watched) = (self.clone(), watched.clone());
                self.core.rt.spawn(async move {
                    background.watch_one(index).await;
                    watched.borrow_mut().remove(&index);
                    background.home.slow.changed.open();
                });
            }
            self.home.slow.changed.wait().await;
        }
    }

    /// Looks at a device that is out because it is slow until it is in use again, or out for another reason.
    async fn watch_one(&self, index: u16) {
        let (core, slow) = (&self.core, &self.home.slow);
        let member = core.member(index);
        let (mut fast_since, mut tried) = (None, Tried::default());
        loop {
            core.rt.sleep(LOOK).await;
            let Some(out) = slow.one(index) else { return };
            if member.is_counted() {
                continue; // it is being taken out
            }
            let mut sight = Sight::StillSlow;
            let look = async { sight = self.look_at(&out.device).await };
            self.home.unless_closed(look).await;
            if !slow.is_out(index, &out.device) {
                continue;
            }
            // Only once it was let go, and could be opened again, is nothing under way that nobody knows of.
            if sight == Sight::Gone || member.sent.is_unknown() {
                return self.is_gone(index);
            }
            let quiet = member.sent.is_quiet() || planted::on(Bug::LateWriteForgotten);
            let needed = self.home.has_last_copy(index);
            if !quiet || sight == Sight::StillSlow && !needed {
                fast_since = None;
                continue;
            }
            let now = core.rt.now();
            let since = *fast_since.get_or_insert(now);
            if now >= tried.next && (needed || now >= since + out.probation) {
                self.take_back(index, out, &mut tried).await;
                fast_since = None;
            }
        }
    }

    /// It does not answer, or is no good: whoever looks for devices that come back tries it now and then.
    fn is_gone(&self, index: u16) {
        self.home.slow.let_go(index);
        let text = Home::told_awaited(index, &self.core.member(index).path());
        self.core.events.note("device-awaited", Some(index), text);
    }

    async fn take_back(&self, index: u16, out: Out, tried: &mut Tried) {
        let (core, member) = (&self.core, self.core.member(index));
        let path = member.path();
        match self
            .home
            .take_in(Arrival::held(member, out.device), false)
            .await
        {
            Ok(_) => {
                let text =
                    format!("device {index} ({path}) is as fast as the others again, and in use");
                core.events.note("device-back", Some(index), text);
                self.home.slow.back.open();
            }
            Err(Error::Device { .. }) => self.is_gone(index),
            Err(error) => {
                let first = tried.refused(core.rt.now());
                if first && matches!(error, Error::LastCopy(_) | Error::Shrunk { .. }) {
                    let text =
                        format!("device {index} ({path}) is not taken in by itself: {error}");
                    core.events.note("device-slow", Some(index), text);
                }
            }
        }
    }

    /// How fast a device is beside some of those in use.
    async fn look_at(&self, device: &DeviceRef) -> Sight {
        let core = &self.core;
        let peers = self.peers(|_| true);
        let others = peers.iter().map(|device| {
            let time = self.time_of_read(device);
            core.rt.spawn(time)
        });
        let others: Vec<_> = others.collect();
        let own = self.time_of_read(device).await;
        let slowest = join_all(others).await.into_iter().flatten().max();
        judge(own, slowest.unwrap_or(0))
    }

    /// How long a read at a random place takes; `None`: the device does not answer.
    fn time_of_read(&self, device: &DeviceRef) -> impl Future<Output = Option<Nanos>> + use<> {
        let (rt, device) = (self.core.rt.clone(), device.clone());
        async move {
            let begun = rt.now();
            let blocks = device.info().size_bytes.saturating_sub(PROBE as u64) / BLOCK as u64;
            let offset = rt.random_below(blocks.max(1)) * BLOCK as u64;
            Member::reaches(&device, offset + PROBE as u64).ok()?;
            let read = device.read(offset, Buf::scratch(PROBE));
            let (_, given) = rt.timeout(DEADLINE, read).await?;
            let answers = matches!(given, Ok(()) | Err(Fault::Media));
            answers.then(|| rt.now().saturating_sub(begun))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_take_in_that_was_refused_is_tried_less_and_less_often() {
        let mut tried = Tried::default();
        let pauses: Vec<_> = (0..6)
            .map(|_| (tried.refused(0), tried.next / SECOND))
            .collect();
        let rest = [8, 16, 32, 60, 60].map(|pause| (false, pause));
        assert_eq!(pauses, [&[(true, 4)], &rest[..]].concat());
    }

    #[test]
    fn a_device_is_judged_by_its_slowest_peer() {
        for (own, peers, sight) in [
            (Some(FAST), 0, Sight::AsFastAsOthers),
            (Some(4 * FAST), FAST, Sight::AsFastAsOthers),
            (Some(4 * FAST + 1), FAST, Sight::StillSlow),
            (None, FAST, Sight::Gone),
        ] {
            assert_eq!(judge(own, peers), sight, "{own:?} {peers}");
        }
    }
}
