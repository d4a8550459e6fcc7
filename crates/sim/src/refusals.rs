//! Backing that is read-only or full: of single devices within the fault budget, and of all of them at once, as where
//! they share a file system or a pool. Then an array stops, and nothing is lost: all have what they were told to keep.
//!
//! Invariants: whether and how comes from a generator of its own; a device is entered in the budget before it refuses
//! anything, but for those that all do, which are sound; of these the ones that the array gave up are entered when it
//! has stopped.

use std::rc::Rc;

use ashlar_rt::Stopped;

use crate::client::Session;
use crate::config::{Align, Mode, Part};
use crate::disk::{Refusal, SimDisk};
use crate::judge::verify;
use crate::machine::{Driver, Machine, Opened};
use crate::store::Store;
use crate::world::World;

impl World {
    /// How a device comes to refuse writes now, if one does, in so many of 100 cases.
    pub(crate) fn a_device_refuses(&self, percent: u64) -> Option<Refusal> {
        let rng = &mut *self.chance.refusals.borrow_mut();
        let due = self.config.may(Part::Refusals) && rng.chance(percent);
        due.then(|| rng.pick(&Refusal::ALL))
    }

    /// `device`, which may be damaged, refuses writes from now on.
    pub(crate) fn refuse(&self, device: usize, refusal: Refusal) {
        self.damage(device, false);
        self.trace.mark(refusal.mark());
        self.trace
            .line(|| format!("    disk {device} refuses writes: {refusal:?}"));
        self.disks[device].refuse(Some(refusal));
    }

    /// Whether nothing is wrong with any device now.
    fn is_sound(&self) -> bool {
        let fine = |disk: &Rc<SimDisk>| !disk.is_offline() && disk.refusal().is_none();
        self.budget.borrow().damaged.is_empty() && self.disks.iter().all(fine)
    }
}

impl Driver<'_> {
    /// Whether all devices come to refuse writes at the end of this session, where nothing is wrong with any; if so
    /// clients go on until the power goes.
    pub(crate) fn all_refuse(&mut self, machine: &Machine, store: &Rc<dyn Store>) -> bool {
        let world = self.world.clone();
        let mode = matches!(world.config.mode, Mode::Crash | Mode::Within);
        let whole = world.config.crash_at.is_none() && self.subject.knows_devices();
        // Where more were given up than may be damaged, what is found is known by its cells.
        let cells = world.config.align != Align::Byte;
        if !mode || !whole || !cells || !world.is_sound() {
            return false;
        }
        let Some(refusal) = world.a_device_refuses(8) else {
            return false;
        };
        world.trace.mark("all devices refuse writes");
        world
            .trace
            .line(|| format!("======== all devices refuse writes: {refusal:?}"));
        let all = 0..world.config.devices;
        world.mishaps.touched.borrow_mut().extend(all.clone());
        world.mishaps.all_refuse.set(true);
        world.disks.iter().for_each(|d| d.refuse(Some(refusal)));
        let mut rng = world.chance.refusals.borrow_mut().fork(1);
        let (polls, operations) = (rng.magnitude(40_000), world.config.operations);
        let session = Session {
            world: world.clone(),
            rt: machine.0.clone(),
            store: store.clone(),
        };
        let work = async move { session.clients(&mut rng, operations).await };
        if machine.0.run_for(polls, work) == Err(Stopped::Deadlock) {
            world.fail(|| "all devices refuse writes: deadlock".to_string());
        }
        self.power_goes(machine, false);
        world.disks.iter().for_each(|disk| disk.refuse(None));
        world.mishaps.all_refuse.set(false);
        self.nothing_is_lost();
        true
    }

    /// The devices take writes again, and nothing else happened to them: everything is there. Those that the array
    /// gave up count as damaged from now on.
    fn nothing_is_lost(&mut self) {
        let world = self.world.clone();
        let machine = self.machine();
        let Opened::Store(store) = self.open(&machine.0, false) else {
            return;
        };
        self.check_volumes(&store);
        let session = Session {
            world: world.clone(),
            rt: machine.0.clone(),
            store,
        };
        let mut rng = world.chance.refusals.borrow_mut().fork(2);
        let read = async move {
            verify(&session, &mut rng, 100).await;
            session.store.status().await.online
        };
        let Some(online) = self.finish(&machine.0, "reading", read) else {
            return;
        };
        self.power_goes(&machine, false);
        let budget = &mut *world.budget.borrow_mut();
        let away = |d: &usize| !online.contains(d) && !budget.gone.contains(d);
        let given_up: Vec<usize> = (0..world.config.devices).filter(away).collect();
        if !given_up.is_empty() {
            world
                .trace
                .mark("all devices refused writes, and some were given up");
        }
        budget.damaged.extend(given_up);
    }
}
