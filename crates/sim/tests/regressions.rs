//! Bugs that the simulator found, each as the shortest history that showed it. Seeds do not outlive
//! a change to the engine; these do. `docs/reliability.md` lists them.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use ashlar_rt::{Buf, Rt};
use ashlar_sim::config::{Config, Mode, Options, VolumeConfig};
use ashlar_sim::device::SimDevice;
use ashlar_sim::disk::{Cut, SimDisk};
use ashlar_sim::engine::Engine;
use ashlar_sim::store::{Store, StoreError, Subject};
use ashlar_sim::trace::Trace;

/// An array on simulated disks that is opened, used, crashed and opened again.
struct Rig {
    config: Config,
    disks: Vec<Rc<SimDisk>>,
    rt: Rt,
    store: RefCell<Option<Rc<dyn Store>>>,
}

const VOLUME: &str = "v0";

impl Rig {
    fn new(layout: &str, k: usize, m: usize, devices: usize) -> Rig {
        let options = Options {
            mode: Some(Mode::Crash),
            ..Options::default()
        };
        let mut config = Config::random(1, options);
        config.layout = layout.to_string();
        (config.k, config.m, config.devices) = (k, m, devices);
        config.device_bytes = 16 << 20;
        (config.strip_bytes, config.shards) = (Some(16_384), 1);
        let trace = Rc::new(Trace::new(false));
        let disks: Vec<_> = (0..devices)
            .map(|i| SimDisk::new(i, config.device_bytes, 7, trace.clone()))
            .collect();
        let rig = Rig {
            config,
            disks,
            rt: Rt::simulated(3),
            store: RefCell::default(),
        };
        let created = Engine.create(&rig.rt, rig.devices(), &rig.config);
        let store = rig.rt.block_on(created).unwrap();
        let volume = VolumeConfig {
            size: 1 << 20,
            block_bytes: 4096,
            thin: false,
            fast_digest: false,
        };
        rig.rt
            .block_on(store.volume_create(VOLUME, &volume))
            .unwrap();
        *rig.store.borrow_mut() = Some(store);
        rig
    }

    fn devices(&self) -> Vec<ashlar_device::DeviceRef> {
        self.disks
            .iter()
            .map(|disk| SimDevice::attach(&self.rt, disk))
            .collect()
    }

    fn with<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        act: impl FnOnce(Rc<dyn Store>) -> F,
    ) -> T {
        let store = self.store.borrow().clone().unwrap();
        self.rt.block_on(act(store))
    }

    /// Cuts the power and imports what is left.
    fn crash(&mut self, cut: Cut) {
        self.rt.shutdown();
        *self.store.borrow_mut() = None;
        for disk in &self.disks {
            disk.power_cut(cut);
        }
        self.rt = Rt::simulated(4);
        let imported = Engine.import(&self.rt, self.devices(), &self.config, false);
        *self.store.borrow_mut() = Some(self.rt.block_on(imported).unwrap());
    }

    /// The first byte of each of the first `count` blocks.
    fn first_bytes(&self, count: usize) -> Result<Vec<u8>, StoreError> {
        let bytes = self.with(|store| store.read(VOLUME, 0, count * 4096))?;
        Ok(bytes.chunks(4096).map(|block| block[0]).collect())
    }
}

fn block(byte: u8) -> ashlar_rt::Slice {
    Buf::copy_of(&[byte; 4096]).freeze()
}

/// The hole was journalled after the stripe entry of the same batch, so replay unmapped the write.
#[test]
fn a_write_after_a_trim_in_one_batch_survives() {
    for blocks in [1, 64] {
        let mut rig = Rig::new("ec2+1", 2, 1, 3);
        rig.with(|store| async move {
            store.zero(VOLUME, 0, 1 << 20, true, false).await.unwrap();
            for number in 0..blocks {
                store
                    .write(VOLUME, number * 4096, block(5), false)
                    .await
                    .unwrap();
            }
            store.flush(VOLUME).await.unwrap();
        });
        rig.crash(Cut::None);
        assert_eq!(rig.first_bytes(1), Ok(vec![5]));
        let last = usize::try_from(blocks).unwrap();
        assert_eq!(rig.first_bytes(last).unwrap()[last - 1], 5);
    }
}
