//! Renewing the beat: one task writes it on every device in use, stops the array when it is too old or another host has
//! taken the array over, and says at the end that the array is let go (rule R18).
//!
//! Invariants: a device that hangs keeps no other waiting; once the array is let go nothing says again that it is in
//! use.

use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_device::DeviceRef;
use ashlar_rt::{Nanos, SECOND, join_all};

use crate::error::Error;
use crate::home::Home;
use crate::members::beat::{PERIOD, Seen, Sight};
use crate::members::fence::FENCE;
use crate::members::{DEADLINE, Member};

/// How long the first and the last beat of an import wait for devices that hang.
const PATIENCE: Nanos = 5 * SECOND;
/// How long a newcomer waits before it looks whether its beat is still there: whoever saw the array free a moment before
/// it has written its own by then, and whoever used it has seen the newcomer's.
const SETTLE: Nanos = 5 * PERIOD / 2;

/// What a look at the beats of an array has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing but what this boot has written.
    Own,
    /// Nothing that was not seen before.
    Known,
    /// A program uses it that was not seen before, or has written since.
    New,
}

impl Home {
    /// Why the array stops once its beat is too old.
    fn overdue() -> String {
        format!(
            "fewer than half of its devices took the beat for {} s, as this machine stood still or they did not answer; \
             another host may use the array by now. Check the devices, then export it and import it again ('--degraded' \
             goes on without those that are gone, if no other host uses it)",
            FENCE / SECOND
        )
    }

    /// Stops the array if its beat is too old, or it was taken over. Whether it has stopped.
    pub(crate) fn stop_if_fenced(&self) -> bool {
        let beat = &self.core.beat;
        if self.core.closed.get() {
            return true;
        }
        if beat.fence.is_down() {
            self.halt(&Home::overdue());
            return true;
        }
        let other = beat.taken_over();
        match other {
            Some(host) => {
                self.halt(&format!(
                    "host {host} has taken it over: use it there, or export it there and import it here"
                ));
                true
            }
            None => false,
        }
    }

    /// A turn of the beat on every device in use that has none under way; waits so long at most.
    async fn beat_once(self: &Rc<Self>, patience: Nanos) {
        let written = self.core.written();
        self.core.beat.keep(&written);
        let mut turns = Vec::new();
        for index in written {
            if !self.core.beat.begin_turn(index) {
                continue;
            }
            let home = self.clone();
            turns.push(self.core.rt.spawn(async move {
                let core = &home.core;
                let (member, array) = (core.member(index), &core.identity.array);
                member.beat(array, &core.beat).await;
                home.stop_if_fenced();
            }));
        }
        let _ = self.core.rt.timeout(patience, join_all(turns)).await; // those that hang go on by themselves
    }

    /// Begins the beat of an array that nobody else can use, as one that was just made.
    pub(crate) async fn begin_beat(self: &Rc<Self>) {
        if self.core.beat.identity().is_some() && self.superblock.borrow().has_beat() {
            self.core.beat.begin(self.core.rt.random_bytes());
            self.beat_once(PATIENCE).await;
            self.renew();
        }
    }

    /// Renews it until the array stops or is let go.
    fn renew(self: &Rc<Self>) {
        let (home, rt) = (Rc::downgrade(self), self.core.rt.clone());
        self.core.rt.spawn(async move {
            loop {
                rt.sleep(PERIOD).await;
                let Some(home) = home.upgrade() else { return };
                if home.stop_if_fenced() || !home.core.beat.is_renewed() {
                    return;
                }
                home.beat_once(0).await;
            }
        });
    }

    /// One more look at the beats, after those in `seen`.
    pub(crate) async fn look_again(&self, seen: &mut BTreeMap<u16, Seen>) -> Look {
        let look = |index: u16| {
            let core = self.core.clone();
            let look = async move { core.member(index).read_beat(&core.identity.array).await };
            self.core.rt.spawn(look)
        };
        let readable = self.core.readable();
        let looks: Vec<_> = readable.iter().copied().map(look).collect();
        let mut found = Look::Own;
        for (index, block) in readable.iter().zip(join_all(looks).await) {
            let Some(block) = block else { continue };
            let sight = seen.entry(*index).or_default().look(&block);
            let is_own = self.core.beat.identity().is_some_and(|i| i.wrote(&block));
            match sight {
                // What was read before may have been old.
                Sight::Moved | Sight::New if block.in_use => found = Look::New,
                _ if !is_own && found == Look::Own => found = Look::Known,
                _ => {}
            }
        }
        found
    }

    /// Begins the beat of an array that is imported; `looked`: when the devices were looked at last, if no other host can
    /// be at the same. Nothing else has been written yet.
    ///
    /// Crash argument: two hosts that import at once both find the array free. Each writes its beat where it finds none
    /// of the other, waits longer than the other takes from its last look to its own beat, and looks whether its own is
    /// still on half of the devices and no other on half. Of two beats on a device the later one stays: at most one host
    /// goes on, and the other has written nothing else. One that need not wait, since its boot used the array last, has
    /// written within a second of its look. A newcomer that looked before that finds another beat than its own, as it
    /// still waits; one that is done has made a root that is not the one that was found, unless it has written nothing.
    ///
    /// # Errors
    /// Another host uses the array, or too few devices take the beat.
    pub(crate) async fn claim_array(self: &Rc<Self>, looked: Option<Nanos>) -> Result<(), Error> {
        self.begin_beat().await;
        let (beat, rt) = (&self.core.beat, &self.core.rt);
        if !beat.is_renewed() {
            return Ok(());
        }
        let until = rt.now() + 2 * DEADLINE;
        while !beat.is_taken() {
            self.uncontested(until).await?;
            rt.sleep(PERIOD).await;
        }
        if looked.is_none_or(|looked| beat.fence.now() > looked + PERIOD) {
            rt.sleep(SETTLE).await;
        }
        loop {
            self.rested().await;
            self.beat_once(PATIENCE).await;
            self.uncontested(until).await?;
            if beat.is_kept() {
                beat.hold();
                return Ok(());
            }
            rt.sleep(PERIOD).await;
        }
    }

    /// Waits for turns that are under way, but not for devices that hang.
    pub(crate) async fn rested(&self) {
        let (beat, rt) = (&self.core.beat, &self.core.rt);
        let until = rt.now() + PATIENCE;
        while beat.is_busy() && rt.now() < until {
            rt.sleep(PERIOD / 100).await;
        }
    }

    /// No other host is at the same. One device may have fallen back to a block of long ago, which does not move.
    async fn uncontested(&self, until: Nanos) -> Result<(), Error> {
        let (beat, rt) = (&self.core.beat, &self.core.rt);
        if beat.contested().is_some() {
            rt.sleep(2 * PERIOD).await;
        }
        match beat.contested() {
            Some(host) => Err(Error::UsedBy(host)),
            None if self.core.closed.get() || rt.now() > until => Err(Error::NoBeat),
            None => Ok(()),
        }
    }

    /// Waits for what is still under way on the devices, as long as a device may take; whether all of it has ended. Whoever
    /// opens them next must not be written over.
    pub(crate) async fn quiet(&self) -> bool {
        let all = async {
            for member in &self.core.members {
                member.sent.quiet().await;
            }
        };
        self.core.rt.timeout(DEADLINE, all).await.is_some()
    }

    /// Stops, and says as the last thing that is written that nobody uses the array any more. Where something is still
    /// under way it does not: the next host waits, then.
    ///
    /// Crash argument: the root that says that the array is clean is durable. Nothing is submitted once the array has
    /// stopped, and the last block is written after all that was has ended. Without this block, or with it on some
    /// devices only, the next import waits in vain, or not at all.
    pub(crate) async fn let_go(self: &Rc<Self>, why: &str) {
        let (beat, core) = (&self.core.beat, &self.core);
        let had_beat = beat.is_renewed();
        beat.end();
        let late = |m: &Member| m.slots.are_coming_back() || m.sent.is_unknown();
        let late = core.members.iter().any(late);
        let place = |index: u16| {
            let member = core.member(index);
            Some((member.held()?, member.geometry().beat_offset()))
        };
        let places: Vec<_> = core.written().into_iter().filter_map(place).collect();
        self.halt(why);
        let quiet = self.quiet().await;
        if !had_beat || late || !quiet {
            return;
        }
        let let_go = |(device, offset): (DeviceRef, u64)| {
            let core = core.clone();
            let last = async move {
                let (array, rt) = (&core.identity.array, &core.rt);
                core.beat.let_go_of(rt, array, device, offset).await;
            };
            self.core.rt.spawn(last)
        };
        join_all(places.into_iter().map(let_go).collect::<Vec<_>>()).await;
    }
}
