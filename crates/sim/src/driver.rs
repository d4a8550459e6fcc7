//! One seed from creation to the last check: sessions of clients and nemesis, ended by crashes and
//! exports, with outages in between.
//!
//! Invariants: each session has its own executor, ended by [`Rt::shutdown`] whatever happens; what
//! a session may do follows from the seed; a seed that runs twice gives the same history.

mod import;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use ashlar_device::DeviceRef;
use ashlar_rt::{Gate, Rt, Stopped};

use crate::client::Session;
use crate::config::{Config, Mode, Options, Part};
use crate::device::SimDevice;
use crate::judge::verify;
use crate::ledger;
use crate::machine::{Driver, LIVELOCK, Machine, Opened, guarded};
use crate::nemesis;
use crate::outage::until_power_goes;
use crate::returns;
use crate::rng::Rng;
use crate::store::{Store, StoreError, Subject};
use crate::world::World;

/// How a seed ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What went wrong, if anything.
    pub failure: Option<String>,
    /// The hash of its history.
    pub hash: u64,
    /// Operations done.
    pub operations: u64,
    /// What it reached.
    pub marks: std::collections::BTreeMap<&'static str, u64>,
    /// The last lines of its trace, if one was kept.
    pub lines: Vec<String>,
}

/// Runs one seed of `subject`.
pub fn run_seed(subject: &dyn Subject, seed: u64, options: Options) -> Outcome {
    let mut config = Config::random(seed, options);
    if !subject.knows_devices() {
        // A toy knows no groups.
        let layout = config.layout.clone();
        let (k, m, devices) = (config.k, config.m, config.first_devices());
        config = config.reshaped(&layout, k, m, devices);
    } else {
        config = config.widened();
    }
    let world = World::new(config, options.trace);
    run_world(subject, &world)
}

/// Runs the history of `world`.
pub fn run_world(subject: &dyn Subject, world: &Rc<World>) -> Outcome {
    world.trace.line(|| format!("{:#?}", world.config));
    let driver = Driver {
        world: world.clone(),
        subject,
        rng: Rng::new(world.config.seed ^ 0xD01),
        read_only: false,
        paused: None,
    };
    guarded(world, || driver.former_life());
    let ledger = (!world.config.unchecked).then(|| ledger::watch(world));
    guarded(world, move || {
        let mut driver = driver;
        if !driver.world.failed() {
            driver.history();
        }
    });
    let (compared, rows) = ledger.map_or((0, 0), |ledger| ledger.counts());
    world
        .trace
        .mark_times("ledger: strip block written again", compared);
    world.trace.mark_times("ledger: parity computed", rows);
    Outcome {
        seed: world.config.seed,
        failure: world.failure(),
        hash: world.trace.hash(),
        operations: world.operations.get(),
        marks: world.trace.marks(),
        lines: world.trace.tail(usize::MAX),
    }
}

impl Driver<'_> {
    fn history(&mut self) {
        let machine = self.machine();
        let Some(store) = self.create(&machine.0) else {
            return;
        };
        if !self.session(&machine, store, true) {
            return;
        }
        drop(machine);
        for round in 1..self.world.config.rounds {
            self.world
                .trace
                .line(|| format!("======== session {round}"));
            if !self.reopen(false) {
                return;
            }
        }
        self.world
            .trace
            .line(|| "======== last session: faults stop".to_string());
        if self.reopen(true) && self.reopen(true) {
            self.verify_exported();
            self.try_beyond();
        }
    }

    /// Runs `future` on `rt` to its end; hanging or spinning is a failure.
    pub(crate) fn finish<T: 'static>(
        &self,
        rt: &Rt,
        what: &str,
        future: impl std::future::Future<Output = T> + 'static,
    ) -> Option<T> {
        let (ended, value) = (Rc::new(Gate::default()), Rc::new(RefCell::new(None)));
        let (end, result) = (ended.clone(), value.clone());
        rt.spawn(async move {
            *result.borrow_mut() = Some(future.await);
            end.open();
        });
        // More slots are more to move.
        let config = &self.world.config;
        let most = LIVELOCK * (1 + config.device_bytes / config.slot_bytes / 256);
        let mut stopped;
        loop {
            let answers = self.world.answers.get();
            let (ended, value) = (ended.clone(), value.clone());
            let waiting = async move { ended.until(|| value.borrow().is_some()).await };
            stopped = rt.run_for(most, waiting);
            if stopped != Err(Stopped::Polls) || self.world.answers.get() == answers {
                break;
            }
        }
        match stopped {
            Ok(()) => value.take(),
            Err(Stopped::Deadlock) => {
                self.world
                    .fail(|| format!("{what}: deadlock, no task can run and no timer is set"));
                None
            }
            Err(Stopped::Polls) => {
                let at = rt.now() / 1_000;
                self.world.fail(|| {
                    format!("{what}: no end after {most} polls, at {at} us of virtual time")
                });
                None
            }
        }
    }

    pub(crate) fn attach(&self, rt: &Rt, first: bool) -> Vec<DeviceRef> {
        let absent = self.world.budget.borrow().absent.clone();
        self.attach_without(rt, first, &absent)
    }

    fn attach_without(&self, rt: &Rt, first: bool, absent: &BTreeSet<usize>) -> Vec<DeviceRef> {
        let present = self
            .world
            .disks
            .iter()
            .filter(|disk| !absent.contains(&disk.index()));
        let mut devices: Vec<DeviceRef> = present.map(|disk| SimDevice::attach(rt, disk)).collect();
        // Names and order mean nothing: now and then devices have changed places.
        let rng = &mut *self.world.chance.rng.borrow_mut();
        if !first && rng.chance(30) {
            self.world.trace.mark("devices change places");
            let order = rng.shuffled(devices.len());
            devices = order.into_iter().map(|at| devices[at].clone()).collect();
        }
        devices
    }

    pub(crate) fn create(&mut self, rt: &Rt) -> Option<Rc<dyn Store>> {
        let mut devices = self.attach(rt, true);
        devices.truncate(self.world.config.first_devices());
        let future = self.subject.create(rt, devices, &self.world.config);
        let store = match self.finish(rt, "create", future)? {
            Ok(store) => store,
            Err(error) => {
                self.world.fail(|| format!("create refused: {error:?}"));
                return None;
            }
        };
        let array = self.world.arrays_on(0).first().copied();
        self.world.array.set(array);
        let session = Session {
            world: self.world.clone(),
            rt: rt.clone(),
            store: store.clone(),
        };
        let (mut volumes, full) = (self.world.config.volumes.clone(), self.world.config.full);
        let (thin, reserve) = (self.world.config.full_thin, self.world.config.reserve);
        let k = self.world.config.k;
        let mut rng = Rng::new(self.world.config.seed);
        self.finish(rt, "volume create", async move {
            if let Some(percent) = full {
                if let Some(value) = reserve {
                    let key = (None, "clean.reserve");
                    session.set_to(0, &key, value).await;
                }
                let beside: Vec<_> = volumes.drain(1..).filter(|v| v.sparse).collect();
                let status = session.store.status().await;
                // A volume block lies whole in a stripe; what is left of that stays empty.
                let (stripe, block) = (status.strip_bytes * k as u64, volumes[0].block_bytes);
                let whole = stripe / block * block;
                let usable = match whole {
                    0 => status.usable_bytes,
                    _ => status.usable_bytes / stripe * whole,
                };
                volumes[0].size = (usable * percent / 100 / 65_536).max(1) * 65_536;
                volumes[0].thin = thin;
                volumes.extend(beside);
                session.world.trace.mark("an array to be filled");
            }
            for (number, volume) in volumes.iter().enumerate() {
                session.make_volume(0, &format!("v{number}"), volume).await;
            }
            if reserve.is_some() {
                session.fill(0, "v0", &mut rng).await;
            }
        })?;
        if self.world.volumes.borrow().is_empty() {
            self.world.trace.mark("no volume fits");
        }
        (!self.world.failed()).then_some(store)
    }

    /// The array is down: opens it again and runs a session. False ends the seed.
    fn reopen(&mut self, last: bool) -> bool {
        self.verify_crashed();
        if self.world.failed() || !self.two_copies() {
            return false;
        }
        for attempt in 0.. {
            let machine = self.machine();
            let percent = self.world.config.import_crash_percent;
            let crash = !last && attempt < 4 && self.rng.chance(percent);
            if !last {
                self.faults_at_import(&machine.0);
            }
            match self.open(&machine.0, crash) {
                Opened::Store(store) => {
                    self.goes_on(&machine);
                    return if last {
                        self.last_session(&machine, store)
                    } else {
                        self.session(&machine, store, false)
                    };
                }
                Opened::Crashed => {
                    self.world.trace.mark("crash during import");
                    self.time_passes(&machine);
                    self.crash(&machine, false);
                }
                Opened::Ended => return false,
            }
        }
        false
    }

    /// From now on the disks behave.
    pub(crate) fn faults_stop(&self) {
        for disk in &self.world.disks {
            disk.behave();
            disk.forget_failed_reads();
        }
        self.world.mishaps.was_slow.set(false);
    }

    /// Clients and nemesis until they end or the crash; then the outage. False ends the seed.
    fn session(&mut self, machine: &Rc<Machine>, store: Rc<dyn Store>, first: bool) -> bool {
        let rt = &machine.0;
        let world = self.world.clone();
        let session = Session {
            world: world.clone(),
            rt: rt.clone(),
            store: store.clone(),
        };
        if !first {
            self.check_volumes(&store);
        }
        let check = if first {
            0
        } else {
            self.rng.pick(&[0, 30, 100, 100])
        };
        let most = world.config.operations;
        let mut rng = self.rng.fork(3);
        let faulty = matches!(world.config.mode, Mode::Within | Mode::Beyond);
        let nemesis = (faulty && rng.chance(60)).then(|| rng.fork(4));
        let nemesis = nemesis.filter(|_| world.config.may(Part::Nemesis));
        let returns = world.chance.returns.borrow_mut().fork(6);
        let coming = returns::may_return(&world, &store) && world.config.may(Part::Nemesis);
        let coming = coming && world.chance.returns.borrow_mut().chance(70);
        let coming = coming.then(|| (store.clone(), returns));
        let repair = faulty && self.rng.chance(40);
        let work = {
            let (world, rt) = (world.clone(), rt.clone());
            async move {
                verify(&session, &mut rng, check).await;
                if let Some((store, returns)) = coming {
                    let come = returns::run(world.clone(), rt.clone(), store, returns);
                    rt.spawn(world.heard(come));
                }
                session.begin_scrubs();
                if let Some(nemesis) = nemesis {
                    let run = nemesis::run(world.clone(), rt.clone(), nemesis);
                    rt.spawn(world.heard(run));
                }
                session.clients(&mut rng, most).await;
            }
        };
        let work = world.heard(work);
        let crash = self.rng.chance(world.config.crash_percent) || world.config.crash_at.is_some();
        let at_work = crash && self.rng.chance(75);
        let polls = world.config.crash_at.unwrap_or(self.rng.magnitude(40_000));
        let pressed = at_work && world.config.crash_at.is_none();
        let pressed = pressed
            && world
                .chance
                .slowness
                .borrow_mut()
                .chance(world.config.press_percent);
        if pressed {
            let crash = until_power_goes(rt.clone(), store.clone(), world.clone(), work);
            match rt.run_for(LIVELOCK, crash) {
                Ok(how) => world.trace.mark(how),
                Err(Stopped::Polls) => world.trace.mark("crash at rest"),
                Err(Stopped::Deadlock) => world.fail(|| "session: deadlock".to_string()),
            }
        } else if at_work || world.config.crash_at.is_some() {
            match rt.run_for(polls, work) {
                Ok(()) => world.trace.mark("crash at rest"),
                Err(Stopped::Polls) => {
                    world.trace.mark("crash at work");
                    if world.config.beats && self.rng.chance(25) {
                        return self.stands_still(machine, store);
                    }
                    self.second_host(machine);
                }
                Err(Stopped::Deadlock) => world.fail(|| "session: deadlock".to_string()),
            }
        } else if self.finish(rt, "session", work).is_none() {
            return false;
        } else if repair {
            self.repair(rt, &store);
        }
        self.end_session(machine, store, crash)
    }

    /// What was done is checked; then the array goes down, by an export or a crash. False ends the seed.
    fn end_session(&mut self, machine: &Machine, store: Rc<dyn Store>, crash: bool) -> bool {
        self.check_consistent(&store);
        self.world.judge_scrubs(&store.scrubs());
        self.try_probes();
        if self.world.failed() {
            return false;
        }
        if self.all_refuse(machine, &store) {
            return !self.world.failed();
        }
        let crash = self.crash_or_export(&machine.0, &store, crash);
        drop(store);
        if self.world.failed() {
            return false;
        }
        if crash {
            let process_only = self.rng.chance(15);
            self.crash(machine, process_only);
        } else {
            self.power_off(machine);
            self.outage();
        }
        true
    }

    /// Exports, or crashes before, or, sometimes, during it. Whether there was a crash.
    fn crash_or_export(&mut self, rt: &Rt, store: &Rc<dyn Store>, crash: bool) -> bool {
        if crash {
            return true;
        }
        if self.world.config.mode != Mode::Calm && self.rng.chance(20) {
            let exporting = store.clone();
            let polls = self.rng.magnitude(4_000);
            match rt.run_for(polls, async move { exporting.export().await }) {
                Ok(result) => return !self.exported(Some(result)),
                Err(Stopped::Polls) => self.world.trace.mark("crash during export"),
                Err(Stopped::Deadlock) if self.world.waits_for_operator() => {
                    self.world.trace.mark("writes wait for the operator");
                }
                Err(Stopped::Deadlock) => self.world.fail(|| "export: deadlock".to_string()),
            }
            return true;
        }
        !self.export(rt, store)
    }

    pub(crate) fn export(&self, rt: &Rt, store: &Rc<dyn Store>) -> bool {
        let session = Session {
            world: self.world.clone(),
            rt: rt.clone(),
            store: store.clone(),
        };
        let scrubs = store.scrubs();
        let result = self.finish(rt, "export", async move {
            session.bounded("export", session.store.export()).await
        });
        let done = self.exported(result.flatten());
        if done {
            self.world.mishaps.scrubs.borrow_mut().exported(&scrubs);
        }
        done
    }

    /// Judges an export.
    fn exported(&self, result: Option<Result<(), StoreError>>) -> bool {
        match result {
            Some(Ok(())) => {
                self.world.trace.mark("export");
                self.world.trace.line(|| "export: done".to_string());
                for entry in self.world.volumes.borrow_mut().values_mut() {
                    entry.model.all_durable();
                }
                true
            }
            Some(Err(error)) => {
                if self.world.promised() {
                    self.world.fail(|| format!("export failed: {error:?}"));
                }
                false
            }
            None => false,
        }
    }

    /// Faults have stopped: everything is repaired, everything is read, everything is closed.
    fn last_session(&mut self, machine: &Machine, store: Rc<dyn Store>) -> bool {
        self.check_volumes(&store);
        let rt = &machine.0;
        let session = Session {
            world: self.world.clone(),
            rt: rt.clone(),
            store: store.clone(),
        };
        let at_rest = session.clone();
        let mut rng = self.rng.fork(8);
        let read = async move { verify(&session, &mut rng, 100).await };
        if self.finish(rt, "last check", read).is_none() || self.world.failed() {
            return false;
        }
        self.repair(rt, &store);
        let rng = self.world.chance.scrubs.borrow_mut().fork(2);
        let scrubs = async move { at_rest.scrub_at_rest(rng).await };
        if self.finish(rt, "scrubs", scrubs).is_none() {
            return false;
        }
        self.check_consistent(&store);
        self.try_probes();
        if self.world.failed() {
            return false;
        }
        let closed = self.export(rt, &store);
        drop(store);
        self.power_off(machine);
        closed
    }
}
