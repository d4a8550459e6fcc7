//! What the driver judges beside the answers that clients get: which volumes are there, redundancy at
//! durable acknowledgements, repair, and who is blamed for what.
//!
//! Invariants: nothing here damages anything; a budget is given back only when the array says, and may
//! know, that it has its full redundancy.

use std::rc::Rc;

use ashlar_rt::{MILLISECOND, Nanos, Rt, SECOND};

use crate::client::Session;
use crate::config::Mode;
use crate::disk::SimDisk;
use crate::machine::{Driver, Machine, Opened, guarded};
use crate::model::VolumeModel;
use crate::returns;
use crate::rng::Rng;
use crate::store::{Store, StoreStatus, Subject};
use crate::trace::Trace;
use crate::world::{Budget, Presence, VolumeEntry, World, room_for};

/// Full redundancy must be back within this, in virtual time, once faults have stopped.
const REPAIR_BOUND: u64 = 4 * 3600 * SECOND;
/// An array that nobody asks for anything must have written nothing for ten seconds, and wait for nothing, at one of so
/// many looks.
const REST_LOOKS: u32 = 60;
/// Not a multiple of the time between two beats: each look is at another moment between them.
const LOOK_EVERY: Nanos = 10 * SECOND + 137 * MILLISECOND;
/// As many slots of a device and more are kept for checkpoints and cleaning, where slots have 64 KiB or more.
const KEPT_SLOTS: u64 = 24;

impl Driver<'_> {
    /// Compares the volumes that are there with those that must be.
    pub(crate) fn check_volumes(&self, store: &Rc<dyn Store>) {
        let names = store.volume_names();
        let mut volumes = self.world.volumes.borrow_mut();
        let known: Vec<String> = volumes.keys().cloned().collect();
        for name in known {
            let there = names.contains(&name);
            let presence = volumes[&name].presence;
            match (presence, there) {
                (Presence::Present, false) if !self.world.loose.get() => {
                    self.world
                        .fail(|| format!("volume {name} is gone after import"));
                }
                (_, false) => {
                    volumes.remove(&name);
                }
                (_, true) => {
                    if let Some(entry) = volumes.get_mut(&name) {
                        entry.presence = Presence::Present;
                    }
                }
            }
        }
        for name in names {
            if !volumes.contains_key(&name) && !self.world.loose.get() {
                self.world
                    .fail(|| format!("volume {name} is back after it was destroyed"));
            }
        }
        drop(volumes);
        let any = !self.world.promised();
        let wrong = self.world.settings.borrow_mut().check(&**store, any);
        if let Some(wrong) = wrong {
            self.world.fail(|| wrong);
        }
        self.world.check_scrubs(&store.scrubs());
    }

    /// Volumes that a crash has left smaller than they are to be become as large again, with zeros at their end.
    pub(crate) fn restore_sizes(&self, rt: &Rt, store: &Rc<dyn Store>) {
        let volumes = self.world.volumes.borrow();
        let sizes = volumes.iter().map(|(name, v)| (name, v.model.size()));
        let smaller = sizes.filter_map(|(name, size)| {
            let is = store.volume_size(name)?;
            (is != size).then(|| (name.clone(), is, size))
        });
        let smaller: Vec<(String, u64, u64)> = smaller.collect();
        drop(volumes);
        for (name, is, size) in smaller {
            self.world.trace.mark("a smaller volume after a crash");
            let (store, of) = (store.clone(), name.clone());
            let beyond = usize::try_from(size.saturating_sub(is)).expect("volumes are small");
            let grown = self.finish(rt, "resize", async move {
                store.volume_resize(&of, size).await?;
                store.read(&of, is, beyond).await
            });
            match grown {
                Some(Ok(bytes)) if bytes.iter().all(|byte| *byte == 0) => {}
                None => {}
                Some(other) => self.world.fail(|| {
                    let what = other.map(|_| "something is beyond its old end");
                    format!("volume {name} grows from {is} to {size}: {what:?}")
                }),
            }
        }
    }

    /// Opens the array, compares its volumes with those that must be, and reads all of them; false if it was not
    /// opened.
    pub(crate) fn open_and_read(&mut self, machine: &Machine, mut rng: Rng) -> bool {
        let Opened::Store(store) = self.open(&machine.0, false) else {
            return false;
        };
        self.check_volumes(&store);
        self.restore_sizes(&machine.0, &store);
        let session = Session {
            world: self.world.clone(),
            rt: machine.0.clone(),
            store,
        };
        let read = async move { verify(&session, &mut rng, 100).await };
        self.finish(&machine.0, "reading", read);
        true
    }

    /// Within the redundancy nothing that the array keeps may contradict itself.
    pub(crate) fn check_consistent(&self, store: &Rc<dyn Store>) {
        if store.inconsistent() {
            self.world.trace.mark("inconsistent beyond M");
            if self.world.promised() && !self.world.loose.get() {
                self.world
                    .fail(|| "what the array keeps contradicts itself".to_string());
            }
        }
    }

    /// Redundancy counted at durable acknowledgements: what was durable then, without as many devices
    /// as may be lost, is opened and read. On disks of its own; this history does not notice.
    pub(crate) fn try_probes(&mut self) {
        let probes = std::mem::take(&mut *self.world.probes.borrow_mut());
        for probe in probes {
            if self.world.failed() {
                return;
            }
            self.world.trace.mark("redundancy tried");
            let mut budget = probe.budget;
            let config = &self.world.config;
            for device in self.rng.shuffled(config.devices) {
                let known = budget.damaged.contains(&device);
                let room = room_for(config, &budget, device);
                // One that is just being added may count already: it is as sound as the others.
                let not_lost = [&budget.gone, &budget.unborn];
                let counts = !not_lost.iter().any(|devices| devices.contains(&device));
                if counts && (known || room) {
                    budget.damaged.insert(device);
                    budget.absent.insert(device);
                    self.world.trace.mark("redundancy tried without a device");
                }
            }
            let trace = Rc::new(Trace::new(self.world.trace.is_on()));
            let disks = probe.disks.into_iter().enumerate();
            let disks = disks
                .map(|(index, pages)| SimDisk::with_pages(index, pages, 0x920BE, trace.clone()))
                .collect();
            let mut config = config.clone();
            config.array = self.world.array.get();
            let world = World::on(config, disks, trace.clone());
            *world.volumes.borrow_mut() = probe.volumes;
            *world.settings.borrow_mut() = probe.settings;
            *world.mishaps.scrubs.borrow_mut() = probe.scrubs;
            let absent = budget.absent.clone();
            *world.budget.borrow_mut() = budget;
            world.crash_models();
            if self.subject.knows_devices() && self.rng.chance(30) {
                self.world.trace.mark("redundancy tried, only reading");
                read_only(self.subject, &world);
            }
            if !world.failed() {
                inspect(self.subject, &world);
            }
            self.world.fail_as(&world, |failure| {
                let what = probe.what;
                format!("after a {what} a power cut without {absent:?} loses it: {failure}")
            });
        }
    }

    /// Detection accounting (P6): nobody is blamed for nothing, and no failed read goes uncounted. The
    /// superblocks, the roots of a generation that may not be in effect, and the reads of an import that is
    /// refused are looked at before a device counts; beyond the redundancy imports are refused so often that
    /// these are most.
    fn account(&self, status: &StoreStatus) {
        const BEFORE_IT_COUNTS: u64 = 2 + ashlar_format::geometry::ROOT_COUNT;
        let touched = self.world.mishaps.touched.borrow();
        for (device, (reads, writes, digests)) in status.errors.clone() {
            let disk = &self.world.disks[device];
            let text = || format!("{reads} reads, {writes} writes, {digests} digests");
            // Beyond the redundancy an import may go on from an older root, whose blocks newer ones have
            // replaced: what does not match then is nobody's fault.
            let older = self.world.config.mode == Mode::Beyond;
            let blamed = reads + writes + if older { 0 } else { digests };
            if !touched.contains(&device) && blamed > 0 {
                self.world.fail(|| {
                    format!(
                        "device {device} did nothing, yet it is blamed (P6): {}",
                        text()
                    )
                });
            }
            let failed = disk.failed_reads();
            let unknown =
                self.world.mishaps.was_slow.get() || self.world.config.mode == Mode::Beyond;
            if failed > reads + BEFORE_IT_COUNTS && !unknown {
                self.world.fail(|| {
                    format!(
                        "device {device} failed {failed} reads, told are (P6): {}",
                        text()
                    )
                });
            }
        }
        self.world.trace.mark("errors accounted for");
    }

    /// Waits for full redundancy and, if it is back, gives the budget back.
    pub(crate) fn repair(&mut self, rt: &Rt, store: &Rc<dyn Store>) {
        for disk in &self.world.disks {
            disk.behave();
        }
        let session = Session {
            world: self.world.clone(),
            rt: rt.clone(),
            store: store.clone(),
        };
        let waiting = session.clone();
        let handle = rt.clone();
        // A checkpoint that ends a repair may still be due; nothing else can bring redundancy back.
        let online: Vec<usize> = (0..self.world.config.devices).collect();
        let looks = if self.has_devices(&online) { 30 } else { 2 };
        let status = self.finish(rt, "healing", async move {
            returns::at_rest(&waiting.world, &handle, &waiting.store).await;
            let idle = handle
                .timeout(REPAIR_BOUND, waiting.store.wait_idle())
                .await;
            let written = || waiting.world.disks.iter().map(|d| d.work()).sum::<u64>();
            let mut rests = false;
            for _ in 0..REST_LOOKS {
                let before = written();
                handle.sleep(LOOK_EVERY).await;
                // The array may still be waiting for a device that hangs, and give it up only then.
                let waits = waiting.world.disks.iter().any(|d| d.is_busy());
                rests = written() == before && !waits;
                if rests {
                    break;
                }
            }
            // Last, since a nemesis may still be at work, and what is judged and given back is what is now.
            let mut status = waiting.store.status().await;
            for _ in 0..looks {
                let stays = stays(&waiting.world.budget.borrow(), &status);
                if status.optimal && !stays {
                    break;
                }
                handle.sleep(10 * SECOND).await;
                status = waiting.store.status().await;
            }
            let stays = stays(&waiting.world.budget.borrow(), &status);
            if idle.is_none() || !status.optimal || !rests || stays {
                waiting.describe().await;
            }
            idle.filter(|()| rests).map(|()| status)
        });
        let Some(status) = status else { return };
        let Some(status) = status else {
            self.world
                .fail(|| "background work does not end (P5)".to_string());
            return;
        };
        self.world.trace.line(|| format!("healed: {status:?}"));
        self.mark_reached(&status);
        self.account(&status);
        self.settle_accounts(&status);
    }

    /// Gives the budget back of an array at rest that is optimal; else it has to say why it is not.
    fn settle_accounts(&self, status: &StoreStatus) {
        let config = &self.world.config;
        let mut budget = self.world.budget.borrow_mut();
        let offline = |d: &usize| self.world.disks[*d].is_offline();
        if status.online.iter().any(&offline) {
            return; // nothing has been asked of it since: the array does not know, and has repaired nothing
        }
        if status.optimal && self.world.promised_of(&budget) && stays(&budget, status) {
            self.world
                .fail(|| format!("a device is not emptied (P5): {status:?}"));
        }
        if status.optimal {
            budget.let_go(config.devices, &status.online, 0);
            let Budget {
                damaged, tainted, ..
            } = &mut *budget;
            // One that refuses writes, and was asked for none since, is not known to yet.
            let refuses = |d: &usize| self.world.disks[*d].refusal().is_some();
            damaged.retain(|d| tainted.contains(d) || refuses(d));
            self.world.trace.mark("full redundancy back");
            if config.full.is_some() && !budget.gone.is_empty() {
                self.world
                    .trace
                    .mark("full redundancy in a full array without some devices");
            }
            let left = budget.clone();
            drop(budget);
            self.world.keep("word that it is optimal", left);
            return;
        }
        drop(budget);
        self.take_its_word(status);
        if self.must_repair(status) {
            self.world
                .fail(|| format!("no full redundancy though it is possible (P5): {status:?}"));
        }
    }

    /// Where as many devices are left as new data need, a degraded array may lose as many more as it says:
    /// those that it does without do not count any more.
    fn take_its_word(&self, status: &StoreStatus) {
        let config = &self.world.config;
        let mut budget = self.world.budget.borrow_mut();
        let enough = status.online.len() >= config.least_columns() + config.m;
        let plain = config.groups == 1 && config.domains.is_empty();
        if !config.told || config.mode != Mode::Within || !plain || !enough || status.overpromised {
            return;
        }
        let spent = config.m.saturating_sub(status.more_losses);
        budget.let_go(config.devices, &status.online, spent);
        if !budget.gone.is_empty() && status.more_losses > 0 {
            self.world.trace.mark("a degraded array that may lose more");
        }
    }

    /// Marks what the shape of this seed has led to.
    fn mark_reached(&self, status: &StoreStatus) {
        let config = &self.world.config;
        if config.least_columns() > 1 {
            self.world.trace.mark("volume blocks larger than a strip");
        }
        if status.map_nodes > 2 * self.world.config.cached_nodes() {
            self.world.trace.mark("a map larger than its cache");
        }
    }

    /// The devices that nothing is wrong with.
    fn healthy(&self) -> Vec<usize> {
        let budget = self.world.budget.borrow();
        let sound = |d: &usize| !budget.damaged.contains(d) && !budget.gone.contains(d);
        (0..self.world.config.devices).filter(sound).collect()
    }

    /// Whether there are devices for full redundancy among those that are `online`: they keep what is written to them
    /// now, whatever they did before.
    fn has_devices(&self, online: &[usize]) -> bool {
        let config = &self.world.config;
        let budget = self.world.budget.borrow();
        let whole = |d: &&usize| {
            let away = budget.absent.contains(d) || budget.shrunken.contains(d);
            !away && !self.world.disks[**d].is_offline()
        };
        let whole: Vec<usize> = online.iter().filter(whole).copied().collect();
        let of = |group| whole.iter().filter(move |d| config.group_of(**d) == group);
        let wide = (0..config.groups).all(|group| of(group).count() >= config.k + config.m);
        drop(budget);
        self.world.promised() && wide
    }

    /// Whether full redundancy must be back: there are devices and room, or the array says that there is.
    fn must_repair(&self, status: &StoreStatus) -> bool {
        // What lies on a device that is expected back is not rebuilt.
        status.offline.is_empty()
            && status.awaited.is_empty()
            && self.has_devices(&status.online)
            && (!status.overpromised || self.roomy(self.healthy().len()))
    }

    /// Whether `healthy` devices certainly have the room for everything at full width, beside the slots that each keeps
    /// for checkpoints and cleaning. (The map of a volume that is written far apart may take more than its data.)
    fn roomy(&self, healthy: usize) -> bool {
        let config = &self.world.config;
        let volumes = self.world.volumes.borrow();
        let sparse = volumes.values().any(|v| v.config.sparse);
        let volumes: u64 = volumes.values().map(|v| v.model.size()).sum();
        let width = (config.k + config.m) as u64;
        let room = config
            .device_bytes
            .saturating_sub(KEPT_SLOTS * config.slot_bytes);
        !sparse && volumes * width / config.k as u64 * 4 < room * healthy as u64
    }
}

/// Whether a device that is to leave is a member still: the array has said that it can do without it.
fn stays(budget: &Budget, status: &StoreStatus) -> bool {
    let mut leaving = budget.leaving.iter();
    !status.overpromised && leaving.any(|(d, told)| *told && status.online.contains(d))
}

/// Reads about `percent` of every volume and checks it; of a sparse one what was ever written, and a few
/// other places.
pub(crate) async fn verify(session: &Session, rng: &mut Rng, percent: u64) {
    let names: Vec<(String, Vec<(u64, u64)>)> = {
        let volumes = session.world.volumes.borrow();
        let ranges = |entry: &VolumeEntry| match entry.config.sparse {
            true => sample(&entry.model, &mut rng.clone()),
            false => vec![(0, entry.model.size())],
        };
        let named = volumes.iter().map(|(name, e)| (name.clone(), ranges(e)));
        named.collect()
    };
    for (name, ranges) in names {
        let step = 4096 << rng.below(7);
        for (start, length) in ranges {
            let mut at = start;
            while at < start + length && !session.world.failed() {
                let length = step.min(start + length - at);
                if rng.chance(percent) {
                    session.read(0, &name, at, length).await;
                }
                at += length;
            }
        }
    }
}

/// What was ever written of a volume, and a few other places.
fn sample(model: &VolumeModel, rng: &mut Rng) -> Vec<(u64, u64)> {
    let mut ranges = model.touched();
    for _ in 0..8 {
        let at = rng.below(model.size());
        ranges.push((at, model.block_bytes().min(model.size() - at)));
    }
    ranges
}

/// Opens what a power cut left in `world`, reads all of it and checks it.
pub(crate) fn inspect(subject: &dyn Subject, world: &Rc<World>) {
    open_and_read(subject, world, false);
}

/// The same by an import that is only to read: nothing may be written.
fn read_only(subject: &dyn Subject, world: &Rc<World>) {
    let written = || world.disks.iter().map(|disk| disk.writes()).sum::<u64>();
    let before = written();
    open_and_read(subject, world, true);
    if written() != before {
        world.fail(|| "a read-only import has written".to_string());
    }
}

fn open_and_read(subject: &dyn Subject, world: &Rc<World>, read_only: bool) {
    guarded(world, || {
        let mut driver = Driver {
            world: world.clone(),
            subject,
            rng: Rng::new(0x1A5),
            read_only,
            paused: None,
        };
        let machine = driver.machine();
        driver.open_and_read(&machine, Rng::new(0));
    });
}
