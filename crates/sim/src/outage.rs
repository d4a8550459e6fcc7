//! What happens when the array goes down: how power cuts and deaths end a session, and what may have
//! become of the devices when somebody looks at them again.
//!
//! Invariants: a device is entered in the budget before anything happens to it.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use ashlar_rt::{Rt, Stopped};

use crate::client::Session;
use crate::config::{Mode, Part};
use crate::device::SimDevice;
use crate::disk::{Cut, SimDisk};
use crate::judge::verify;
use crate::machine::{Driver, Machine, Opened};
use crate::nemesis;
use crate::store::{Store, StoreError};
use crate::world::{Offer, World};

/// Does `work` to its end, or until the journal is so full that a checkpoint is due: what a crash then leaves is the
/// most that an import may have to take over; or until a client says that power is to go. How the crash that
/// follows is to be marked.
pub(crate) async fn until_power_goes(
    rt: Rt,
    store: Rc<dyn Store>,
    world: Rc<World>,
    work: impl Future<Output = ()>,
) -> &'static str {
    const PRESSES: u64 = 28;
    let began = rt.now();
    let watch = async {
        while store.status().await.journal_percent < PRESSES {
            // Seldomer and seldomer: clients may wait for minutes for devices that do not come back.
            rt.sleep(((rt.now() - began) / 1024).max(200_000)).await;
        }
    };
    let (mut work, mut watch, mut power) = (pin!(work), pin!(watch), pin!(world.power.wait()));
    poll_fn(|cx| {
        if power.as_mut().poll(cx).is_ready() {
            Poll::Ready("crash beside the flush of a pile")
        } else if watch.as_mut().poll(cx).is_ready() {
            Poll::Ready("crash as the journal presses")
        } else {
            work.as_mut().poll(cx).map(|()| "crash at rest")
        }
    })
    .await
}

impl Driver<'_> {
    /// The array stops at once; then the power goes, unless only the process died.
    pub(crate) fn crash(&mut self, machine: &Machine, process_only: bool) {
        self.power_goes(machine, process_only);
        self.outage();
    }

    /// As [`Driver::crash`], but nothing happens to the disks while the array is down.
    pub(crate) fn power_goes(&mut self, machine: &Machine, process_only: bool) {
        machine.0.shutdown();
        self.world.crash_models();
        self.world
            .trace
            .line(|| format!("CRASH, process only {process_only}"));
        if process_only {
            self.world.trace.mark("daemon death");
            for disk in &self.world.disks {
                disk.settle_in_flight();
            }
        } else {
            self.world.hosts.boots();
            let same = self.world.config.same_cut;
            let mut cut = Cut::random(&mut self.rng);
            for disk in &self.world.disks {
                if !same {
                    cut = Cut::random(&mut self.rng);
                }
                disk.power_cut(cut);
            }
        }
    }

    /// After an export: what is still in flight happens, or not, before anything else can.
    pub(crate) fn power_off(&self, machine: &Machine) {
        machine.0.shutdown();
        for disk in &self.world.disks {
            disk.settle_in_flight();
        }
    }

    /// What happens to the disks while the array is down.
    pub(crate) fn outage(&mut self) {
        let world = self.world.clone();
        self.returns();
        for _ in 0..=world.config.most_damaged() {
            if !self.rng.chance(35) || !world.config.may(Part::Outage) {
                continue;
            }
            let Some(device) = world.victim() else { break };
            match self.rng.below(100) {
                0..62 => {
                    world.trace.mark("outage: device lost");
                    world.damage(device, false);
                    world.budget.borrow_mut().absent.insert(device);
                }
                62..72 if self.subject.knows_devices() => self.shrink(device),
                _ => {
                    world.trace.mark("outage: damage at rest");
                    nemesis::rot(&world, &world.disks[device], &mut self.rng);
                }
            }
        }
        if world.config.may(Part::Outage)
            && world.a_domain_fails(30)
            && let Some(device) = world.victim()
        {
            let lost = world.damage_domain(device);
            world.trace.mark("outage: a domain lost");
            world
                .trace
                .line(|| format!("outage: devices {lost:?} lost, a domain"));
            world.budget.borrow_mut().absent.extend(lost);
        }
        if world.config.may(Part::Outage)
            && let Some(refusal) = world.a_device_refuses(6)
            && let Some(device) = world.victim()
        {
            world.refuse(device, refusal);
        }
        if matches!(world.config.mode, Mode::Within | Mode::Beyond) {
            self.copies();
        }
        for disk in &world.disks {
            if disk.is_offline() {
                disk.set_online(true);
            }
        }
    }

    /// Devices that were away, smaller than they are, or refused writes, come back as they were.
    fn returns(&mut self) {
        let world = self.world.clone();
        let (absent, shrunken) = {
            let budget = world.budget.borrow();
            (budget.absent.clone(), budget.shrunken.clone())
        };
        for device in absent {
            if self.rng.chance(40) {
                world.trace.mark("outage: an old device returns");
                world.budget.borrow_mut().absent.remove(&device);
            }
        }
        for device in shrunken {
            if self.rng.chance(40) {
                world.trace.mark("outage: a shrunken device is whole again");
                world.budget.borrow_mut().shrunken.remove(&device);
                world.disks[device].shrink(None);
            }
        }
        for disk in world.disks.iter().filter(|d| d.refusal().is_some()) {
            if world.chance.refusals.borrow_mut().chance(40) {
                world.trace.mark("outage: a device takes writes again");
                disk.refuse(None);
            }
        }
    }

    /// A device says that it has fewer bytes than its superblock knows of.
    fn shrink(&mut self, device: usize) {
        let world = &self.world;
        world.trace.mark("outage: a device shrinks");
        world.damage(device, true);
        world.budget.borrow_mut().shrunken.insert(device);
        let disk = &world.disks[device];
        let most = disk.pages() as u64;
        let left = match self.rng.below(3) {
            0 => most - 1,
            1 => self.rng.range(most / 2, most - 1),
            _ => self.rng.magnitude(most - 1),
        };
        disk.shrink(usize::try_from(left).ok());
        world
            .trace
            .line(|| format!("outage: device {device} has {left} of {most} pages"));
    }

    /// Somebody copies a device, or a copy made earlier turns up beside its original.
    fn copies(&mut self) {
        let world = self.world.clone();
        if !world.config.may(Part::Outage) || !self.subject.knows_devices() {
            return;
        }
        let known = world.copy.borrow().as_ref().map(|(device, _)| *device);
        match known {
            None if self.rng.chance(30) => {
                let device = self.rng.index(world.config.devices);
                if world.budget.borrow().unborn.contains(&device) {
                    return; // of a blank device nobody keeps a copy
                }
                *world.copy.borrow_mut() = Some((device, world.disks[device].durable()));
            }
            Some(device) if self.rng.chance(30) => {
                if world.budget.borrow().absent.contains(&device) {
                    return;
                }
                let sound = !world.budget.borrow().damaged.contains(&device);
                let stays = self.rng.chance(50) && world.may_damage(device);
                if stays {
                    world.damage(device, true);
                }
                let offer = Offer {
                    device,
                    stays,
                    sound,
                };
                world.offer.set(Some(offer));
            }
            _ => {}
        }
    }

    /// An import that finds a device twice: which is the right one nobody can know, so it must be refused
    /// without a write; then one of the two is taken away. False ends the seed.
    pub(crate) fn two_copies(&mut self) -> bool {
        let world = self.world.clone();
        let Some(offer) = world.offer.take() else {
            return true;
        };
        let Offer { device, stays, .. } = offer;
        let Some((_, content)) = world.copy.take() else {
            return true;
        };
        if world.budget.borrow().absent.contains(&device) {
            return true; // lost meanwhile: there are no two of it
        }
        self.faults_stop();
        world
            .trace
            .line(|| format!("import with a copy of device {device}; it stays: {stays}"));
        let machine = self.machine();
        let seed = self.rng.draw();
        let copy = SimDisk::with_pages(device, content.clone(), seed, world.trace.clone());
        let mut devices = self.attach(&machine.0, false);
        let place = self.rng.index(devices.len() + 1);
        devices.insert(place, SimDevice::attach(&machine.0, &copy));
        let writes = |disks: &[Rc<SimDisk>]| disks.iter().map(|disk| disk.writes()).sum::<u64>();
        let before = writes(&world.disks);
        let future = self
            .subject
            .import(&machine.0, devices, &world.config, false);
        let Some(result) = self.finish(&machine.0, "import with a copy", future) else {
            return false;
        };
        let opened = result.is_ok();
        match result {
            Err(StoreError::Twice(_)) => {
                world.trace.mark("a device found twice is refused");
                if writes(&world.disks) + copy.writes() != before {
                    world.fail(|| "an import that was refused has written".to_string());
                }
            }
            Err(_) => world
                .trace
                .mark("an import with a device twice is refused otherwise"),
            // One that the array does without may be there twice, and one that says nothing of itself.
            Ok(store) => {
                world.trace.mark("a device found twice that does not count");
                let status = self.finish(&machine.0, "status", store.status());
                // Its superblocks may have been damaged since the offer.
                let sound = offer.sound && !world.budget.borrow().damaged.contains(&device);
                let used = |online: &[usize]| sound && online.contains(&device);
                if status.is_some_and(|status| used(&status.online)) {
                    world.fail(|| format!("opened with two copies of device {device}"));
                }
            }
        }
        machine.0.shutdown();
        for disk in &world.disks {
            disk.settle_in_flight();
        }
        if opened {
            world.crash_models();
        }
        if stays {
            world.trace.mark("an old copy takes a device's place");
            world.disks[device].shrink(None);
            world.budget.borrow_mut().shrunken.remove(&device);
            world.disks[device].replace_content(&content);
        }
        !world.failed()
    }

    /// Now and then, while this host is paused another one takes the devices, works, and stops; then this one goes on
    /// as if nothing had happened. Nothing keeps hosts without a beat apart, so what was acknowledged may be lost; but
    /// no byte may be wrong, and nobody may panic.
    pub(crate) fn second_host(&mut self, first: &Machine) {
        let world = self.world.clone();
        if world.config.beats || world.config.mode != Mode::Beyond || !self.rng.chance(12) {
            return;
        }
        world.trace.mark("two hosts, one paused");
        world.trace.line(|| "======== a second host".to_string());
        world.loose.set(true);
        (0..world.config.devices).for_each(|device| world.damage(device, true));
        for entry in world.volumes.borrow_mut().values_mut() {
            entry.model.rolled_back = true;
        }
        let second = self.machine();
        if let Opened::Store(store) = self.open(&second.0, false) {
            world.trace.mark("two hosts: the second has the array");
            self.check_volumes(&store);
            let session = Session {
                world: world.clone(),
                rt: second.0.clone(),
                store,
            };
            let mut rng = self.rng.fork(12);
            let polls = self.rng.magnitude(40_000);
            let work = async move {
                verify(&session, &mut rng, 50).await;
                let own = rng.fork(1);
                session.client(9, own, 20).await;
            };
            if second.0.run_for(polls, work) == Err(Stopped::Deadlock) {
                world.trace.mark("two hosts: the second waits for ever");
            }
        }
        drop(second);
        world
            .trace
            .line(|| "======== the first host goes on".to_string());
        let polls = self.rng.magnitude(40_000);
        let rest = std::future::pending::<()>();
        if first.0.run_for(polls, rest) == Err(Stopped::Deadlock) {
            world.trace.mark("two hosts: the first waits for ever");
        }
    }
}
