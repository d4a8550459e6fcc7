//! The reads of a check of whole arrays, beside clients or alone.
//!
//! **Invariants**: each device is read in order, a piece at a time, from its begin again at its end; with a floor no device is
//! asked for more than that; nothing is compared: this stands for the load of a check, not for the check.

use std::cell::Cell;
use std::rc::Rc;

use ashlar_device::{Built, Device as _, Namespace};
use ashlar_rt::{Buf, Rt, SECOND};

/// Bytes that are read of a disk at a time: it seeks for each; and of other devices, whose runs are short.
const OF_DISK: u64 = 1 << 20;
const OF_OTHER: u64 = 64 << 10;
/// Pieces of a device in flight where no floor holds it back.
const AHEAD: usize = 2;

/// Readers of all devices.
#[derive(Clone)]
pub(super) struct Checks {
    rt: Rt,
    state: Rc<State>,
    devices: Vec<Rc<Namespace>>,
    floor: Option<u64>,
}

#[derive(Default)]
struct State {
    bytes: Cell<u64>,
    stopped: Cell<bool>,
}

impl Checks {
    /// Readers of all namespaces; with a `floor` in bytes a second of each device they begin at once.
    pub(super) fn start(rt: &Rt, built: &Built, floor: Option<u64>) -> Checks {
        let checks = Checks {
            rt: rt.clone(),
            state: Rc::default(),
            devices: built.arrays.iter().flatten().cloned().collect(),
            floor,
        };
        if floor.is_some() {
            for device in checks.devices.clone() {
                let checks = checks.clone();
                rt.spawn(async move { checks.read(&device, 0, 1).await });
            }
        }
        checks
    }

    /// Bytes read so far.
    pub(super) fn bytes(&self) -> u64 {
        self.state.bytes.get()
    }

    /// No more pieces are read.
    pub(super) fn stop(&self) {
        self.state.stopped.set(true);
    }

    /// Reads each device once.
    pub(super) async fn whole(&self) {
        let mut joins = Vec::new();
        for device in &self.devices {
            for reader in 0..AHEAD {
                let (checks, device) = (self.clone(), device.clone());
                joins.push(self.rt.spawn(async move {
                    checks.read(&device, reader as u64, AHEAD as u64).await;
                }));
            }
        }
        for join in joins {
            join.await;
        }
    }

    /// Reads every piece of a device whose number is `first` and each `step`-th after it; with a floor, over and over.
    async fn read(&self, device: &Namespace, first: u64, step: u64) {
        let bytes = if device.info().rotational {
            OF_DISK
        } else {
            OF_OTHER
        };
        let pieces = device.info().size_bytes / bytes;
        let mut due = self.rt.now();
        let mut piece = first;
        while !self.state.stopped.get() && pieces > 0 {
            if piece >= pieces {
                if self.floor.is_none() {
                    return;
                }
                piece = first;
            }
            let length = usize::try_from(bytes).unwrap_or(usize::MAX);
            let (_, read) = device.read(piece * bytes, Buf::zeroed(length)).await;
            if read.is_err() {
                return;
            }
            self.state.bytes.set(self.state.bytes.get() + bytes);
            piece += step;
            if let Some(floor) = self.floor {
                due += bytes * SECOND / floor.max(1);
                self.rt.sleep_until(due).await;
            }
        }
    }
}
