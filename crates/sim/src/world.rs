//! What outlives a crash: the disks, the model of every volume, the fault budget, the history and
//! the first failure.
//!
//! Invariants: nothing here belongs to an executor; in mode `Within` at most M devices of each group
//! are damaged at a time, counting what is lost, stale, failed by the operator or silently wrong.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use ashlar_rt::{Gate, Lock};

use crate::config::{Config, Mode, VolumeConfig};
use crate::content::Version;
use crate::disk::SimDisk;
use crate::hosts::Hosts;
use crate::model::VolumeModel;
use crate::pages::Pages;
use crate::rng::Rng;
use crate::scrubs::Scrubs;
use crate::settings::Settings;
use crate::store::StoreStatus;
use crate::trace::Trace;

/// Whether a volume is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is.
    Present,
    /// Its creation was under way when the array crashed, or is now.
    Appearing,
    /// Its destruction was or is.
    Vanishing,
}

/// A volume and what is known of it.
#[derive(Clone, Debug)]
pub struct VolumeEntry {
    /// What it must read as.
    pub model: VolumeModel,
    /// Whether it is there.
    pub presence: Presence,
    /// Operations in flight.
    pub busy: u64,
    /// How it was made.
    pub config: VolumeConfig,
    /// Where clients like to write.
    pub hot: Vec<u64>,
    /// Where the last write ended.
    pub cursor: u64,
    /// How many writes of bursts that go on where the last one ended it has had.
    pub strides: u64,
}

/// Which devices are damaged.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    /// Damaged now: whatever the array has on them may be missing or wrong.
    pub damaged: BTreeSet<usize>,
    /// Of those, the ones that may hold wrong bytes nobody has noticed.
    pub tainted: BTreeSet<usize>,
    /// Out of the array for good, its data rebuilt elsewhere.
    pub gone: BTreeSet<usize>,
    /// Not found at the next import.
    pub absent: BTreeSet<usize>,
    /// Holding a page of another device, which may be its superblock.
    pub foreign: BTreeSet<usize>,
    /// Smaller than they were.
    pub shrunken: BTreeSet<usize>,
    /// Not one of the array yet.
    pub unborn: BTreeSet<usize>,
    /// To leave for good, or gone for good, and whether the array has said so: they are spared.
    pub leaving: BTreeMap<usize, bool>,
    /// How much redundancy of each group has gone with those that are gone, as far as it is known.
    pub spent: BTreeMap<usize, usize>,
}

impl Budget {
    /// Nothing has happened yet.
    fn of(config: &Config) -> Budget {
        let unborn: BTreeSet<usize> = (config.first_devices()..config.devices).collect();
        Budget {
            gone: unborn.clone(),
            unborn,
            ..Budget::default()
        }
    }

    /// Of so many devices the array, of one group if anything is `spent`, does without those that are not `online`:
    /// they count no more, but for the redundancy `spent` with them; nor do those that are to leave.
    pub fn let_go(&mut self, devices: usize, online: &[usize], spent: usize) {
        let goes = |d: &usize| !online.contains(d) || self.leaving.contains_key(d);
        self.gone = (0..devices).filter(goes).collect();
        self.damaged.retain(|d| !self.gone.contains(d));
        self.unborn.retain(|d| !online.contains(d));
        self.spent = [(0, spent)].into();
    }

    /// A device is about to be added: if power goes it may count, and not know of it.
    pub fn is_added(&mut self, device: usize) {
        self.gone.remove(&device);
        self.damaged.insert(device);
    }

    /// It was: it is spared until the array says that it is optimal.
    pub fn was_added(&mut self, device: usize) {
        self.unborn.remove(&device);
        self.damaged.remove(&device);
        self.gone.insert(device);
    }

    /// A damaged device of `group` is a member again: until all is rebuilt, its redundancy is spent and it is spared. One
    /// that may hold wrong bytes is as damaged as it was.
    pub fn comes_back(&mut self, device: usize, group: usize) {
        if !self.tainted.contains(&device) && self.damaged.remove(&device) {
            self.gone.insert(device);
            *self.spent.entry(group).or_default() += 1;
        }
    }
}

/// The state of one seed.
pub struct World {
    /// Its shape.
    pub config: Config,
    /// Where its choices come from.
    pub chance: Chance,
    /// The disks.
    pub disks: Vec<Rc<SimDisk>>,
    /// The volumes, by name.
    pub volumes: RefCell<BTreeMap<String, VolumeEntry>>,
    /// What settings may be.
    pub settings: RefCell<Settings>,
    /// The damage.
    pub budget: RefCell<Budget>,
    /// The history.
    pub trace: Rc<Trace>,
    /// Set when the operator accepted that data is lost.
    pub loose: Cell<bool>,
    failure: RefCell<Option<String>>,
    pub(crate) next_volume: Cell<u16>,
    /// Every volume that ever had a name.
    names: RefCell<BTreeMap<String, Vec<u16>>>,
    pub(crate) next_version: Cell<Version>,
    /// A client opens it to say that power is to go now; only sessions that end so heed it.
    pub power: Gate,
    /// Operations done.
    pub operations: Cell<u64>,
    /// Answers that changed what a crash may leave.
    pub answers: Cell<u64>,
    /// What happened to its devices.
    pub mishaps: Mishaps,
    /// Moments of durable acknowledgements, kept to be tried: what the disks and the model were then.
    pub probes: RefCell<Vec<Probe>>,
    /// A device as it was at some outage: somebody copied it.
    pub copy: RefCell<Option<(usize, Pages)>>,
    /// The array that imports name.
    pub array: Cell<Option<[u8; 16]>>,
    /// The copy that turns up at the next import.
    pub offer: Cell<Option<Offer>>,
    /// Devices come and go one after the other: each addition takes the number that was the next when it began.
    pub turn: Lock<()>,
    /// The hosts.
    pub hosts: Hosts,
}

/// Generators, one for each kind of choice, so that a new kind leaves the histories of others as they are.
#[derive(Debug)]
pub struct Chance {
    /// The driver's.
    pub rng: RefCell<Rng>,
    /// Of slow imports.
    pub slowness: RefCell<Rng>,
    /// Of what histories were widened with later.
    pub widened: RefCell<Rng>,
    /// Of devices that refuse writes.
    pub refusals: RefCell<Rng>,
    /// Of devices that come back.
    pub returns: RefCell<Rng>,
    /// Of scrubs.
    pub scrubs: RefCell<Rng>,
}

/// What happened to the devices of a world.
#[derive(Debug, Default)]
pub struct Mishaps {
    /// What scrubs may have found of it, and how they may be.
    pub scrubs: RefCell<Scrubs>,
    /// Devices that anything ever happened to: only these may be blamed.
    pub touched: RefCell<BTreeSet<usize>>,
    /// Whether a device was slow since the last import: then reads may be given up that succeed.
    pub was_slow: Cell<bool>,
    /// Whether all devices refuse writes: an array may stop then.
    pub all_refuse: Cell<bool>,
    /// The operator asked for spare space: volumes have less.
    pub spared: Cell<bool>,
    /// Whether a change of members was given up, which may be made later.
    pub given_up: Cell<bool>,
    /// Devices that the last import with `--degraded` was without: they may hold a history of their own.
    pub left_out: RefCell<BTreeSet<usize>>,
}

/// A copy of a device that turns up beside it.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// The device.
    pub device: usize,
    /// Whether the copy stays in its place.
    pub stays: bool,
    /// Nothing is wrong with the device itself: its superblock is found.
    pub sound: bool,
}

/// The array at a durable acknowledgement, as a power cut that takes everything unflushed would leave
/// it.
#[derive(Debug)]
pub struct Probe {
    /// What is durable on each disk.
    pub disks: Vec<Pages>,
    /// The volumes.
    pub volumes: BTreeMap<String, VolumeEntry>,
    /// What settings may be.
    pub settings: Settings,
    /// Scrubs.
    pub scrubs: Scrubs,
    /// The damage.
    pub budget: Budget,
    /// What was acknowledged.
    pub what: String,
}

/// Probes of one session at most.
const PROBES: usize = 2;

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("seed", &self.config.seed)
            .finish_non_exhaustive()
    }
}

/// Whether the array promises to go on with this damage: no group has more than M of it. What went before
/// and was repaired since does not count, as long as some group has the devices and the room for what is
/// written now; else it does, since new data then lie where the devices are missing.
fn within(config: &Config, budget: &Budget) -> bool {
    let born = |d: &usize| !budget.unborn.contains(d);
    let of = |group: usize| {
        let all = (0..config.devices).filter(born);
        all.filter(move |d| config.group_of(*d) == group)
    };
    let damaged = |group| of(group).filter(|d| budget.damaged.contains(d)).count();
    let ill = |d: &usize| budget.damaged.contains(d) || budget.gone.contains(d);
    let lacking = |group| of(group).filter(ill).count();
    let least = config.least_columns();
    let whole = |group| of(group).count() - lacking(group) >= least + config.m;
    // A thin volume may come to take what the devices left hold at full redundancy (#74, #90).
    let grows = config.full_thin || config.volumes.iter().any(|volume| volume.sparse);
    // What is written faster than it is cleaned finds no room in a whole group for a while.
    let crowded = config.full.is_some() || config.weights.pile > 0;
    let apart = grows || config.groups > 1 && (crowded || !(0..config.groups).any(whole));
    // One group lays ever narrower stripes of full redundancy, down to those that hold a volume block (#87).
    let holds_blocks = config.groups > 1 || of(0).count() - lacking(0) >= least;
    let spent = |group| budget.spent.get(&group).copied().unwrap_or(0);
    let redundant =
        |group| damaged(group) + spent(group) <= config.m && (!apart || lacking(group) <= config.m);
    holds_blocks && (0..config.groups).all(redundant)
}

/// Whether it promises to go on with this device damaged as well.
pub fn room_for(config: &Config, budget: &Budget, device: usize) -> bool {
    let mut budget = budget.clone();
    budget.damaged.insert(device) && within(config, &budget)
}

impl World {
    /// The world of `config`, its disks empty.
    pub fn new(config: Config, trace: bool) -> Rc<World> {
        let trace = Rc::new(Trace::new(trace));
        let disks = (0..config.devices)
            .map(|i| SimDisk::new(i, config.bytes_of(i), config.seed, trace.clone()))
            .collect();
        config.marks().for_each(|mark| trace.mark(mark));
        World::on(config, disks, trace)
    }

    /// The world of `config` on `disks` that are there already.
    pub fn on(config: Config, disks: Vec<Rc<SimDisk>>, trace: Rc<Trace>) -> Rc<World> {
        Rc::new(World {
            chance: Chance {
                rng: RefCell::new(Rng::new(config.seed ^ 0xD41F_0C11)),
                slowness: RefCell::new(Rng::new(config.seed ^ 0x510F)),
                widened: RefCell::new(Rng::new(config.seed ^ 0x0415_DE4E)),
                refusals: RefCell::new(Rng::new(config.seed ^ 0x0EF0_5A15)),
                returns: RefCell::new(Rng::new(config.seed ^ 0x02E7_0235)),
                scrubs: RefCell::new(Rng::new(config.seed ^ 0x05C2_0B5C)),
            },
            settings: RefCell::default(),
            disks,
            volumes: RefCell::default(),
            budget: RefCell::new(Budget::of(&config)),
            trace,
            loose: Cell::new(false),
            failure: RefCell::default(),
            next_volume: Cell::new(1),
            names: RefCell::default(),
            next_version: Cell::new(1),
            power: Gate::default(),
            operations: Cell::new(0),
            answers: Cell::new(0),
            mishaps: Mishaps::default(),
            probes: RefCell::default(),
            copy: RefCell::default(),
            array: Cell::new(config.array),
            offer: Cell::new(None),
            turn: Lock::new(()),
            hosts: Hosts::default(),
            config,
        })
    }

    /// Records a failure; the first one counts.
    pub fn fail(&self, text: impl FnOnce() -> String) {
        if self.failure.borrow().is_none() {
            let text = text();
            self.trace.line(|| format!("FAILURE: {text}"));
            *self.failure.borrow_mut() = Some(text);
        }
    }

    /// What failed in a world of its own fails here, with the end of its story.
    pub fn fail_as(&self, other: &World, text: impl FnOnce(String) -> String) {
        if let Some(failure) = other.failure() {
            for line in other.trace.tail(200) {
                self.trace.line(|| line);
            }
            self.fail(|| text(failure));
        }
    }

    /// The first failure.
    pub fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    /// Whether there was one.
    pub fn failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Whether the faults so far are ones the array has promised to survive.
    pub fn promised(&self) -> bool {
        self.promised_of(&self.budget.borrow())
    }

    /// Whether this damage is one that the array has promised to survive.
    pub fn promised_of(&self, budget: &Budget) -> bool {
        !self.loose.get() && within(&self.config, budget)
    }

    /// Whether the array has so many of its devices that it owes the space it promised: it may have given
    /// some up itself after errors.
    pub fn promised_space(&self, status: &StoreStatus) -> bool {
        let budget = self.budget.borrow();
        let left = budget.leaving.keys().filter(|d| !status.online.contains(d));
        let born = self.config.devices - budget.unborn.len();
        status.online.len() + left.count() + self.config.m >= born
    }

    /// Whether a thin volume has all usable space to itself: there is room for each of its blocks.
    pub fn thin_fits(&self) -> bool {
        let others = &self.config.weights;
        let all_there = self.budget.borrow().leaving.is_empty();
        self.config.full_thin
            && others.create + others.set == 0
            && all_there
            && !self.mishaps.spared.get()
    }

    /// A new identity for a write.
    pub fn version(&self) -> Version {
        let version = self.next_version.get();
        self.next_version.set(version + 1);
        version
    }

    /// Adds a volume to the model.
    pub fn add_volume(&self, name: &str, config: &VolumeConfig, presence: Presence) {
        let id = self.next_volume.get();
        self.next_volume.set(id + 1);
        let mut model = VolumeModel::new(id, config.size, config.block_bytes);
        let mut names = self.names.borrow_mut();
        let bearers = names.entry(name.to_string()).or_default();
        model.former.clone_from(bearers);
        bearers.push(id);
        let rng = &mut *self.chance.rng.borrow_mut();
        let mut hot: Vec<u64> = (0..rng.range(2, 6))
            .map(|_| rng.below(config.size))
            .collect();
        if config.sparse {
            // Far apart, each under a leaf of its own.
            let rng = &mut Rng::new(self.config.seed ^ u64::from(id));
            hot.extend((0..rng.range(30, 90)).map(|_| rng.below(config.size)));
        }
        let config = config.clone();
        let entry = VolumeEntry {
            model,
            presence,
            busy: 0,
            config,
            hot,
            cursor: 0,
            strides: 0,
        };
        self.settings.borrow_mut().forget(name);
        self.volumes.borrow_mut().insert(name.to_string(), entry);
    }

    /// Runs `f` on the volume `name`, if the model has it.
    pub fn with_volume<T>(&self, name: &str, f: impl FnOnce(&mut VolumeEntry) -> T) -> Option<T> {
        self.volumes.borrow_mut().get_mut(name).map(f)
    }

    /// `future`, as long as the array stays with this machine.
    pub(crate) fn heard<F: Future>(
        self: &Rc<Self>,
        future: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let (world, machine) = (self.clone(), self.hosts.this().0);
        let mut future = Box::pin(future);
        poll_fn(move |cx| match world.hosts.this().0 == machine {
            true => future.as_mut().poll(cx),
            false => Poll::Pending,
        })
    }

    /// The array stops at once; volumes keep what the model says a crash may leave.
    pub fn crash_models(&self) {
        self.settings.borrow_mut().stopped();
        for entry in self.volumes.borrow_mut().values_mut() {
            entry.model.crash();
            entry.model.rolled_back |= self.loose.get();
            entry.busy = 0;
        }
    }

    /// Something was acknowledged as durable: now and then the moment is kept, to be tried later.
    pub fn durable(&self, what: &str) {
        if !self.may_keep() {
            return;
        }
        let chosen = self.chance.rng.borrow_mut().below(24) == 0;
        if chosen && self.probes.borrow().len() < PROBES {
            self.keep(what, self.budget.borrow().clone());
        }
    }

    /// Whether moments are kept: as long as the array promises anything.
    fn may_keep(&self) -> bool {
        let config = &self.config;
        let promises = self.promised() && !self.mishaps.all_refuse.get();
        config.mode != Mode::Calm && promises && !self.failed() && !config.unchecked
    }

    /// Keeps this moment, at which so much is damaged, to be tried.
    pub fn keep(&self, what: &str, budget: Budget) {
        if !self.may_keep() {
            return;
        }
        let probe = Probe {
            disks: self.disks.iter().map(|disk| disk.durable()).collect(),
            volumes: self.volumes.borrow().clone(),
            settings: self.settings.borrow().clone(),
            scrubs: self.mishaps.scrubs.borrow().clone(),
            budget,
            what: what.to_string(),
        };
        self.probes.borrow_mut().push(probe);
    }

    /// A device that may be damaged now, within the budget; `None` if there is none.
    pub fn victim(&self) -> Option<usize> {
        let rng = &mut *self.chance.rng.borrow_mut();
        let budget = self.budget.borrow();
        // Besides all of them refusing writes nothing happens to any.
        if matches!(self.config.mode, Mode::Calm | Mode::Crash) || self.mishaps.all_refuse.get() {
            return None;
        }
        let known: Vec<usize> = budget
            .damaged
            .iter()
            .copied()
            .filter(|d| !budget.gone.contains(d) && !budget.unborn.contains(d))
            .collect();
        let fresh: Vec<usize> = (0..self.config.devices)
            .filter(|d| !budget.damaged.contains(d) && !budget.gone.contains(d))
            .filter(|d| self.config.mode == Mode::Beyond || self.one_more(&budget, *d))
            .collect();
        if !known.is_empty() && (fresh.is_empty() || rng.chance(60)) {
            return Some(known[rng.index(known.len())]);
        }
        (!fresh.is_empty()).then(|| fresh[rng.index(fresh.len())])
    }

    /// Whether `device` may be damaged now, within the budget.
    pub fn may_damage(&self, device: usize) -> bool {
        let budget = self.budget.borrow();
        match self.config.mode {
            Mode::Calm | Mode::Crash => false,
            Mode::Within if budget.unborn.contains(&device) => false,
            Mode::Within if budget.damaged.contains(&device) => !budget.gone.contains(&device),
            Mode::Within => !budget.gone.contains(&device) && self.one_more(&budget, device),
            Mode::Beyond => true,
        }
    }

    /// Whether, where there are domains, one fails as a whole now, in so many of 100 cases.
    pub fn a_domain_fails(&self, percent: u64) -> bool {
        !self.config.domains.is_empty() && self.chance.widened.borrow_mut().chance(percent)
    }

    /// Damages the devices of `device`'s domain, as many of them as may be; which ones. `device` may.
    pub fn damage_domain(&self, device: usize) -> Vec<usize> {
        let domain = self.config.domain(self.config.domains[device]);
        let others = domain.into_iter().filter(|d| *d != device);
        let mut lost = Vec::new();
        for device in [device].into_iter().chain(others) {
            if self.may_damage(device) {
                self.damage(device, false);
                lost.push(device);
            }
        }
        if lost.len() > 1 {
            self.trace.mark("several devices of a domain at once");
        }
        lost
    }

    /// Whether `device`, which is sound, may be damaged besides the others within the promises.
    fn one_more(&self, budget: &Budget, device: usize) -> bool {
        room_for(&self.config, budget, device) && self.agree_without_one_more(budget)
    }

    /// Whether, with one more device damaged, half of those that count would still be sound: fewer
    /// cannot agree on a generation, and writes wait for the operator by design.
    fn agree_without_one_more(&self, budget: &Budget) -> bool {
        let counted = self.config.devices - budget.gone.len();
        let damaged = budget.damaged.difference(&budget.gone).count() + 1;
        (counted - damaged.min(counted)) * 2 >= counted
    }

    /// Whether a hang is by design: too few sound devices to agree on a generation.
    pub fn waits_for_operator(&self) -> bool {
        let budget = self.budget.borrow();
        let counted = self.config.devices - budget.gone.len();
        let sound = counted - budget.damaged.difference(&budget.gone).count();
        self.config.mode == Mode::Beyond && sound * 2 <= counted
    }

    /// Notes that `device` is damaged; `silent` if nobody may notice.
    pub fn damage(&self, device: usize, silent: bool) {
        self.mishaps.touched.borrow_mut().insert(device);
        let mut budget = self.budget.borrow_mut();
        budget.damaged.insert(device);
        if silent {
            budget.tainted.insert(device);
            self.mishaps.scrubs.borrow_mut().suspect(device);
        }
    }
}
