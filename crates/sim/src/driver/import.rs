//! How the array is imported: with faults and slow devices beside it, crashed in the middle of it, refused and
//! asked again.
//!
//! Invariants: what an import may answer follows from the budget; a refusal that it does not allow fails the seed.

use ashlar_rt::{Rt, Stopped};

use crate::config::{Config, Mode, Part};
use crate::machine::{Driver, LIVELOCK, Opened};
use crate::nemesis;
use crate::store::StoreError;

impl Driver<'_> {
    /// Now and then faults go on, or begin, while an import runs.
    pub(super) fn faults_at_import(&self, rt: &Rt) {
        let world = self.world.clone();
        let faulty = matches!(world.config.mode, Mode::Within | Mode::Beyond);
        let mut rng = world.chance.widened.borrow_mut().fork(5);
        if !faulty || !world.config.may(Part::Nemesis) || !rng.chance(25) {
            return;
        }
        let handle = rt.clone();
        let faults = {
            let world = world.clone();
            async move {
                world.trace.mark("faults during an import");
                world.mishaps.was_slow.set(true); // reads fail before a device counts
                nemesis::run(world, handle, rng).await;
            }
        };
        rt.spawn(world.heard(faults));
    }

    /// Now and then devices take their time while an import runs: longer than it takes until what runs
    /// beside it would begin by itself, but not so long that they count as failed. How many times as long.
    fn slow_import(&self) -> Option<u64> {
        let world = &self.world;
        let rng = &mut *world.chance.slowness.borrow_mut();
        if !rng.chance(world.config.slow_import_percent) {
            return None;
        }
        let (mut factor, mut percent) = (rng.pick(&[30, 4000, 20_000]), rng.pick(&[20, 100]));
        if world.config.press_percent == 100 {
            // What would run beside it is to begin.
            (factor, percent) = (factor.max(4000), 100);
        }
        world.trace.mark("a slow import");
        world
            .trace
            .line(|| format!("a slow import: x{factor}, {percent} % of the devices"));
        for disk in &world.disks {
            if rng.chance(percent) {
                disk.set_slow(factor);
                world.mishaps.was_slow.set(true);
            }
        }
        Some(factor)
    }

    /// When a slow import crashes, in virtual time: at any moment, since few polls take most of it.
    fn slow_crash(&self, factor: u64) -> u64 {
        self.world
            .chance
            .slowness
            .borrow_mut()
            .below(factor * 8_000_000)
    }

    fn as_fast_as_usual(&self) {
        for disk in &self.world.disks {
            disk.set_slow(1);
        }
    }

    /// Another device's superblock was written to one: it says that it is that device, and the import asks
    /// for one of the two to be taken away. The operator knows which; false if there is none.
    fn impostor_goes(&self) -> bool {
        let budget = &mut *self.world.budget.borrow_mut();
        let foreign = budget.foreign.difference(&budget.absent).copied().next();
        foreign.is_some_and(|device| {
            self.world
                .trace
                .mark("a device with another's superblock is taken away");
            budget.absent.insert(device)
        })
    }

    /// Imports, with `--degraded` if the start rule asks for it, and of the devices that hold different histories only
    /// those that the array, or the operator, has not given up. Devices that were slow for it are so no longer, whatever it answers.
    pub(crate) fn open(&mut self, rt: &Rt, crash: bool) -> Opened {
        let opened = self.open_slow_or_not(rt, crash);
        self.as_fast_as_usual();
        opened
    }

    fn open_slow_or_not(&mut self, rt: &Rt, crash: bool) -> Opened {
        self.faults_stop();
        let slow = self.slow_import();
        let mut absent = self.world.budget.borrow().absent.clone();
        for degraded in [false, true] {
            let devices = self.attach_without(rt, false, &absent);
            self.world
                .trace
                .line(|| format!("import, degraded {degraded}, without {absent:?}"));
            // An import beyond what was promised may go on from an older state, and writes before it returns.
            let loose = self.world.loose.get();
            self.world.loose.set(!self.world.promised());
            let config = self.import_config();
            let future = self.subject.import(rt, devices, &config, degraded);
            let result = if crash {
                let polls = self.rng.magnitude(6_000);
                let crashed = match slow {
                    Some(factor) => {
                        let until = self.slow_crash(factor);
                        let handle = rt.clone();
                        let import = async move { handle.timeout(until, future).await };
                        rt.run_for(LIVELOCK, import)
                    }
                    None => rt.run_for(polls, async move { Some(future.await) }),
                };
                match crashed {
                    Ok(Some(result)) => result,
                    Ok(None) | Err(Stopped::Polls) => return Opened::Crashed,
                    Err(Stopped::Deadlock) => {
                        self.world.fail(|| "import: deadlock".to_string());
                        return Opened::Ended;
                    }
                }
            } else {
                match self.finish(rt, "import", future) {
                    Some(result) => result,
                    None => return Opened::Ended,
                }
            };
            match result {
                Ok(store) => {
                    // So may one during which that came about.
                    self.world.loose.set(!self.world.promised());
                    self.opened(degraded);
                    if degraded {
                        self.world.mishaps.left_out.replace(absent);
                    }
                    return Opened::Store(store);
                }
                Err(error) => {
                    self.world.trace.line(|| format!("import: {error:?}"));
                    self.world.loose.set(loose); // a refused one has written nothing
                    if matches!(error, StoreError::Twice(_)) && self.impostor_goes() {
                        return self.open_slow_or_not(rt, crash);
                    }
                    if !self.may_refuse(degraded, &error) {
                        return Opened::Ended;
                    }
                    if matches!(error, StoreError::Diverged(_)) {
                        self.world.trace.mark("the operator chooses a history");
                        absent.extend(&self.world.budget.borrow().gone);
                        absent.extend(self.world.mishaps.left_out.borrow().iter());
                    }
                }
            }
        }
        self.world.trace.mark("import refused beyond M");
        Opened::Ended
    }

    /// How the array runs from the next import on.
    fn import_config(&self) -> Config {
        let world = &self.world;
        let mut config = world.config.clone();
        (config.read_only, config.array) = (self.read_only, world.array.get());
        config.host = world.hosts.this();
        if let Some(most) = config.most_shards {
            config.shards = 1 + world.chance.widened.borrow_mut().index(most);
            if config.shards > 2 {
                world.trace.mark("more than two shards");
            }
        }
        config
    }

    /// Whether an import may be refused; if not, the failure is recorded.
    fn may_refuse(&self, degraded: bool, error: &StoreError) -> bool {
        let world = &self.world;
        let (good, counted) = {
            let budget = world.budget.borrow();
            let counted = world.config.devices - budget.gone.len();
            (
                counted - budget.damaged.difference(&budget.gone).count(),
                counted,
            )
        };
        if world.loose.get() || !world.promised() {
            return true;
        }
        let asks = world.config.mode == Mode::Beyond
            || matches!(error, StoreError::Degraded(_) | StoreError::Diverged(_));
        if !degraded && asks && good * 2 <= counted {
            world.trace.mark("start rule asks the operator");
            return true;
        }
        world.fail(|| {
            let budget = world.budget.borrow();
            format!(
                "import refused, degraded {degraded}, damaged {:?}, absent {:?}, gone {:?}: {error:?}",
                budget.damaged, budget.absent, budget.gone
            )
        });
        false
    }

    fn opened(&self, degraded: bool) {
        let world = &self.world;
        if !world.promised() {
            // More is damaged than was promised: whether the newest state survived is luck.
            world.trace.mark(if degraded {
                "degraded import beyond M"
            } else {
                "import beyond M"
            });
            for entry in world.volumes.borrow_mut().values_mut() {
                entry.model.rolled_back = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;
    use crate::engine::Engine;
    use crate::rng::Rng;
    use crate::world::World;

    /// Devices were slow for an import that was refused, and then for all that came after it: a new array on them did
    /// not answer for 900 seconds.
    #[test]
    fn devices_are_slow_no_longer_than_the_import() {
        let mut config = Config::random(1, Options::default());
        (config.slow_import_percent, config.press_percent) = (100, 100);
        let world = World::new(config, false);
        world.loose.set(true);
        let mut driver = Driver {
            world: world.clone(),
            subject: &Engine,
            rng: Rng::new(1),
            read_only: false,
            paused: None,
        };
        let machine = driver.machine();
        let opened = driver.open(&machine.0, false);
        assert!(matches!(opened, Opened::Ended), "there is no array");
        assert!(world.mishaps.was_slow.get() && !world.failed());
        assert!(world.disks.iter().all(|disk| disk.slowness() == 1));
    }
}
