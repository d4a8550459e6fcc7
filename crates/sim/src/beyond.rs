//! Beyond the redundancy exactly the right blocks fail (R20): what a seed has exported is opened without more
//! devices than it promises to survive, and read. Which blocks are lost then is what the independent verifier says.
//!
//! Invariants: all of it is on disks of its own, with a generator of its own: the seed's history does not notice.

use std::rc::Rc;

use ashlar_verify::{Kind, Report, Source, verify};

use crate::client::Session;
use crate::config::Mode;
use crate::device::SimDevice;
use crate::disk::SimDisk;
use crate::machine::{Driver, guarded};
use crate::rng::Rng;
use crate::store::Store;
use crate::trace::Trace;
use crate::world::{Budget, World};

/// One seed in so many is tried.
const ONE_IN: u64 = 3;

impl Driver<'_> {
    /// Tries it in some seeds, with what was exported last.
    pub(crate) fn try_beyond(&self) {
        let world = &self.world;
        let mut rng = Rng::new(world.config.seed ^ 0x0BE7_0D11);
        let promises = matches!(world.config.mode, Mode::Crash | Mode::Within) && world.promised();
        if !promises || world.failed() || world.config.unchecked || !self.subject.knows_devices() {
            return;
        }
        if rng.below(ONE_IN) > 0 {
            return;
        }
        let Some((present, lost)) = self.without_too_many(&mut rng) else {
            return;
        };
        world.trace.mark("beyond M: opened");
        let trace = Rc::new(Trace::new(world.trace.is_on()));
        let pages = |disk: &usize| world.disks[*disk].durable();
        let disk = |d: &usize| SimDisk::with_pages(*d, pages(d), 0xBE7, trace.clone());
        let disks: Vec<Rc<SimDisk>> = present.iter().map(disk).collect();
        let images: Vec<_> = disks.iter().map(|disk| disk.at_rest(true)).collect();
        let sources: Vec<&dyn Source> = images.iter().map(|image| image as &dyn Source).collect();
        let report = verify(&sources);
        let mut config = world.config.clone();
        (config.read_only, config.array) = (true, world.array.get());
        let beyond = World::on(config, disks, trace.clone());
        *beyond.volumes.borrow_mut() = world.volumes.borrow().clone();
        let unborn = world.budget.borrow().unborn.clone();
        *beyond.budget.borrow_mut() = Budget {
            damaged: lost.iter().copied().collect(),
            gone: unborn.clone(),
            unborn,
            ..Budget::default()
        };
        guarded(&beyond, || self.read_all(&beyond, &report));
        beyond.trace.line(|| report.to_string());
        world.fail_as(&beyond, |failure| {
            format!("beyond M, without {lost:?} as well: {failure}")
        });
    }

    /// Devices in use but for one more of a group than it promises to survive, or two; and which are left out.
    /// `None` where it cannot be said which are in use.
    fn without_too_many(&self, rng: &mut Rng) -> Option<(Vec<usize>, Vec<usize>)> {
        let config = &self.world.config;
        let budget = self.world.budget.borrow();
        if !budget.foreign.is_empty() || !budget.shrunken.is_empty() {
            return None;
        }
        if (0..config.devices).any(|device| self.world.says_another(device)) {
            return None;
        }
        let stays = |d: &usize| !self.world.arrays_on(*d).is_empty();
        if budget.leaving.keys().any(stays) {
            return None;
        }
        let not_used = [&budget.gone, &budget.absent, &budget.unborn];
        let used = |d: &usize| !not_used.iter().any(|devices| devices.contains(d));
        let mut present: Vec<usize> = (0..config.devices).filter(used).collect();
        let group = rng.index(config.groups);
        let of_group = rng.shuffled(config.devices).into_iter();
        let of_group = of_group.filter(|d| config.group_of(*d) == group && used(d));
        let lost: Vec<usize> = of_group.take(config.m + 1 + rng.index(2)).collect();
        present.retain(|d| !lost.contains(d));
        // One that nothing is wrong with has the newest root; without it an older one may be all there is.
        let sound = present.iter().any(|d| !budget.damaged.contains(d));
        (lost.len() > config.m && sound).then_some((present, lost))
    }

    /// Reads all that was ever written, block by block: as many are lost as the verifier says, and the others are as
    /// they were.
    fn read_all(&self, world: &Rc<World>, report: &Report) {
        let machine = crate::machine::Machine(ashlar_rt::Rt::simulated(0xBE7));
        let rt = &machine.0;
        let devices = world.disks.iter().map(|disk| SimDevice::attach(rt, disk));
        let devices = devices.collect();
        let none = |kinds: &[Kind]| kinds.iter().all(|kind| report.count_of(*kind) == 0);
        let found = none(&[
            Kind::NoArray,
            Kind::Diverged,
            Kind::NoRoot,
            Kind::LivenessLost,
            Kind::CatalogLost,
        ]);
        let judge = Driver {
            world: world.clone(),
            subject: self.subject,
            rng: Rng::new(0),
            read_only: true,
            paused: None,
        };
        let import = self.subject.import(rt, devices, &world.config, true);
        let store: Rc<dyn Store> = match judge.finish(rt, "import", import) {
            Some(Ok(store)) => store,
            Some(Err(error)) if found => {
                return world.fail(|| format!("refused, though all can be found: {error:?}"));
            }
            _ => return,
        };
        let session = Session {
            world: world.clone(),
            rt: rt.clone(),
            store,
        };
        let blocks: Vec<(String, u64, u64)> = {
            let volumes = world.volumes.borrow();
            let of_volume = |(name, entry): (&String, &crate::world::VolumeEntry)| {
                let (name, block) = (name.clone(), entry.model.block_bytes());
                let ranges = entry.model.touched().into_iter();
                let cut = move |(at, length): (u64, u64)| {
                    let starts = (at..at + length).step_by(usize::try_from(block).expect("small"));
                    let end = at + length;
                    starts.map(move |start| (start, block.min(end - start)))
                };
                let cut = ranges.flat_map(cut).collect::<Vec<_>>();
                cut.into_iter()
                    .map(move |(at, len)| (name.clone(), at, len))
            };
            volumes.iter().flat_map(of_volume).collect()
        };
        let reading = async move {
            for (name, at, length) in blocks {
                session.read(0, &name, at, length).await;
            }
            session.store.status().await.lost
        };
        let Some(listed) = judge.finish(rt, "reading", reading) else {
            return;
        };
        let answers = world
            .trace
            .marks()
            .get("answer: lost")
            .copied()
            .unwrap_or(0);
        let lost = report.count_of(Kind::BlockLost);
        if !found || !none(&[Kind::NodeLost, Kind::EntryLost]) {
            return;
        }
        self.world.trace.mark(match lost {
            0 => "beyond M: nothing is lost",
            _ => "beyond M: exactly what is lost",
        });
        if answers != lost {
            world.fail(|| format!("{answers} blocks cannot be read, and {lost} are lost"));
        }
        if (listed == 0) != (lost == 0) {
            world.fail(|| format!("{listed} ranges are listed as lost, and {lost} blocks are"));
        }
    }
}
