//! A former life: in some seeds the devices were another array's, which was destroyed, or was being destroyed when
//! the power went; then a new one is made of them. Nothing of the former one may ever be seen in it.
//!
//! Invariants: it has a generator of its own, and a world of its own but for the disks and the history, so that a
//! seed that has none is the history it was; volumes and versions of the new array go on where the former's ended, so
//! that no byte of the one can be taken for one of the other.

use ashlar_format::geometry::super_bytes;
use ashlar_format::superblock::Superblock;
use ashlar_rt::{BLOCK, Stopped};

use crate::client::Session;
use crate::config::{Align, Mode, Part};
use crate::machine::{Driver, Machine};
use crate::rng::Rng;
use crate::store::{StoreError, StoreFuture};
use crate::world::World;

impl Driver<'_> {
    /// The former life of the devices, if they had one.
    pub(crate) fn former_life(&self) {
        let world = &self.world;
        let mut rng = Rng::new(world.config.seed ^ 0xF0_12E5);
        if !self.subject.knows_devices() || !world.config.may(Part::FormerLife) || !rng.chance(12) {
            return;
        }
        world.trace.mark("a former life");
        world
            .trace
            .line(|| "======== a former life of the devices".to_string());
        let mut config = world.config.clone();
        (config.mode, config.crash_at) = (Mode::Calm, None);
        if config.align == Align::Byte {
            config.align = Align::Unit; // what an import beyond the redundancy gives back is known by its cells
        }
        if config.full.is_none() && config.device_bytes >= 128 * config.slot_bytes && rng.chance(50)
        {
            // Its structures lie elsewhere.
            config.slot_bytes *= 2;
        }
        let life = World::on(config, world.disks.clone(), world.trace.clone());
        let mut driver = Driver {
            world: life.clone(),
            subject: self.subject,
            rng: rng.fork(1),
            read_only: false,
            paused: None,
        };
        driver.live_and_end(&mut rng);
        if let Some(failure) = life.failure() {
            world.fail(|| format!("in the former life: {failure}"));
        }
        world.next_volume.set(life.next_volume.get());
        world.next_version.set(life.next_version.get());
    }

    /// An array is made, used and destroyed.
    fn live_and_end(&mut self, rng: &mut Rng) {
        let world = self.world.clone();
        let machine = self.machine();
        let Some(store) = self.create(&machine.0) else {
            return;
        };
        let session = Session {
            world: world.clone(),
            rt: machine.0.clone(),
            store: store.clone(),
        };
        let operations = rng.below(world.config.operations + 1);
        let mut own = rng.fork(2);
        let work = async move { session.clients(&mut own, operations).await };
        if self.finish(&machine.0, "a former life", work).is_none() || world.failed() {
            return;
        }
        let destroying = store.destroy();
        drop(store);
        if rng.chance(50) {
            self.crash_in(&machine, destroying, rng);
            return;
        }
        match self.finish(&machine.0, "destroy", destroying) {
            Some(Ok(())) => {
                world.trace.mark("destroyed");
                self.power_off(&machine);
                self.is_gone();
            }
            Some(Err(error)) => world.fail(|| format!("destroy failed: {error:?}")),
            None => {}
        }
    }

    /// The power goes while the array is being destroyed, most often while its superblocks are wiped.
    fn crash_in(
        &mut self,
        machine: &Machine,
        destroying: StoreFuture<Result<(), StoreError>>,
        rng: &mut Rng,
    ) {
        let (world, rt) = (&self.world, &machine.0);
        let idle = std::future::pending::<()>;
        let mut ended = rt.run_for(rng.magnitude(400), destroying) != Err(Stopped::Polls);
        if rng.chance(70) {
            while !ended && world.arrays_on(0).len() == 2 {
                ended = rt.run_for(10, idle()) != Err(Stopped::Polls);
            }
            if !ended && rt.run_for(rng.below(200), idle()) == Err(Stopped::Polls) {
                world.trace.mark("crash as superblocks are wiped");
            }
        }
        world.trace.mark("crash while it is destroyed");
        self.crash(machine, false);
        self.is_gone_or_right();
    }

    /// No array is found any more, however one asks.
    fn is_gone(&mut self) {
        for degraded in [false, true] {
            let machine = self.machine();
            let devices = self.attach(&machine.0, false);
            let config = &self.world.config;
            let import = self.subject.import(&machine.0, devices, config, degraded);
            if let Some(Ok(_)) = self.finish(&machine.0, "import of what was destroyed", import) {
                self.world
                    .fail(|| "an array that was destroyed was imported".to_string());
            }
            self.power_off(&machine);
        }
    }

    /// The power went while superblocks were wiped: as many as may be missing, or more. What is read is right.
    fn is_gone_or_right(&mut self) {
        let world = self.world.clone();
        world.loose.set(true);
        (0..world.config.devices).for_each(|device| world.damage(device, true));
        let machine = self.machine();
        let rng = self.rng.fork(1);
        if self.open_and_read(&machine, rng) {
            world.trace.mark("half destroyed, and imported");
        }
        self.power_off(&machine);
    }
}

impl World {
    /// Whether a superblock of `device` names another array, as one of the former life does that came back as another
    /// was lost. Only damage can make one: of a device that nothing happened to this is never said.
    pub(crate) fn says_another(&self, device: usize) -> bool {
        let touched = self.mishaps.touched.borrow().contains(&device);
        touched
            && self
                .arrays_on(device)
                .iter()
                .any(|array| Some(*array) != self.array.get())
    }

    /// The arrays that the superblocks of `device` name.
    pub(crate) fn arrays_on(&self, device: usize) -> Vec<[u8; 16]> {
        let disk = &self.disks[device];
        let (image, size) = (disk.at_rest(false), disk.size_bytes());
        let area = super_bytes(size);
        let read = |offset: u64| {
            let mut first = vec![0; BLOCK];
            image.copy_to(offset, &mut first)?;
            let length = Superblock::encoded_bytes(&first).ok()?;
            let mut bytes = vec![0; length.next_multiple_of(BLOCK)];
            image.copy_to(offset, &mut bytes)?;
            Some(Superblock::decode(&bytes[..length]).ok()?.array)
        };
        let places = [Some(0), size.checked_sub(area)];
        places.into_iter().flatten().filter_map(read).collect()
    }
}
