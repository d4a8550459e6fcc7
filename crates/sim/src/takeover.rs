//! A host that stands still while another one has the array, and then goes on (rule R18).
//!
//! Invariants: what a host had submitted when it stopped has happened, or never will, by the time at which another one
//! reads; of the clients of a host that another one follows nothing is heard any more.

use std::rc::Rc;

use ashlar_engine::FENCE;
use ashlar_rt::{Buf, SECOND, Stopped};

use crate::machine::{Driver, Machine, Paused};
use crate::store::Store;

impl Driver<'_> {
    /// This host stands still, and another one will have the array. False ends the seed.
    pub(crate) fn stands_still(&mut self, machine: &Rc<Machine>, store: Rc<dyn Store>) -> bool {
        let world = self.world.clone();
        world.trace.mark("a host stands still");
        world.trace.line(|| "======== another host".to_string());
        world.hosts.next();
        world.crash_models();
        for disk in &world.disks {
            disk.settle_in_flight();
        }
        self.paused = Some(Paused {
            machine: machine.clone(),
            store,
            time: 0,
        });
        self.outage();
        !world.failed()
    }

    /// For the host that stands still: as much as on this machine.
    pub(crate) fn time_passes(&mut self, machine: &Machine) {
        if let Some(paused) = &mut self.paused {
            paused.time += machine.0.now();
        }
    }

    /// The host that stood still goes on, beside `other` that has the array: it changes nothing any more, and answers
    /// nothing.
    pub(crate) fn goes_on(&mut self, other: &Machine) {
        self.time_passes(other);
        let Some(paused) = self.paused.take() else {
            return;
        };
        let (world, rt) = (self.world.clone(), paused.machine.0.clone());
        world.trace.mark("a host goes on beside another");
        world.trace.line(|| {
            format!(
                "======== the first host goes on after {} us",
                paused.time / 1_000
            )
        });
        if paused.time < FENCE + 30 * SECOND {
            // It saw none: damage beyond the redundancy took the last block of it. The first one knows of nothing then.
            if world.promised() {
                world.fail(|| "a host did not wait for another one's beat".to_string());
            }
            return;
        }
        rt.stand_still(paused.time);
        let writes = || world.disks.iter().map(|disk| disk.writes()).sum::<u64>();
        let before = writes();
        let (polls, volume) = (
            self.rng.magnitude(40_000),
            world.volumes.borrow().keys().next().cloned(),
        );
        let work = async move {
            let Some(volume) = volume else { return false };
            let (store, zeros) = (paused.store, Buf::zeroed(4096).freeze());
            let read = store.read(&volume, 0, 512).await.is_ok();
            let written = store.write(&volume, 0, zeros, true).await.is_ok();
            read || written || store.flush(&volume).await.is_ok()
        };
        match rt.run_for(polls, work) {
            Ok(true) => world.fail(|| "a host that was followed answers".to_string()),
            Ok(false) => {
                let rest = rt.run_for(polls, std::future::pending::<()>());
                if rest == Err(Stopped::Deadlock) {
                    world.trace.mark("a host that was followed rests");
                }
            }
            Err(Stopped::Polls) => {}
            Err(Stopped::Deadlock) => {
                world.fail(|| "a host that was followed: deadlock".to_string());
            }
        }
        if writes() != before {
            world.fail(|| "a host that was followed has written".to_string());
        }
        rt.shutdown();
    }
}
