//! Bugs that the simulator found, each as the shortest history that showed it. Seeds do not outlive
//! a change to the engine; these do. `docs/bugs.md` lists them.
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
        let mut config = Config::random(1, options).reshaped(layout, k, m, devices);
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
            sparse: false,
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
        self.crash_without(cut, &[]);
    }

    /// Cuts the power; then the devices `absent` are gone.
    fn crash_without(&mut self, cut: Cut, absent: &[usize]) {
        self.rt.shutdown();
        *self.store.borrow_mut() = None;
        for disk in &self.disks {
            disk.power_cut(cut);
        }
        self.import_without(absent);
    }

    /// Exports; then the devices `absent` are gone.
    fn export_without(&mut self, absent: &[usize]) {
        self.with(|store| store.export()).unwrap();
        self.rt.shutdown();
        *self.store.borrow_mut() = None;
        self.import_without(absent);
    }

    /// Imports; with `--degraded` only where the start rule asks the operator.
    fn import_without(&mut self, absent: &[usize]) {
        for degraded in [false, true] {
            self.rt = Rt::simulated(4);
            let present = self
                .disks
                .iter()
                .filter(|disk| !absent.contains(&disk.index()));
            let devices = present
                .map(|disk| SimDevice::attach(&self.rt, disk))
                .collect();
            let future = Engine.import(&self.rt, devices, &self.config, degraded);
            match self.rt.block_on(future) {
                Ok(store) => return *self.store.borrow_mut() = Some(store),
                Err(StoreError::Degraded(_)) if !degraded => self.rt.shutdown(),
                Err(error) => panic!("import without {absent:?}: {error:?}"),
            }
        }
    }

    /// Waits, for at most an hour of virtual time, until every stripe has its redundancy again.
    fn repair(&self) {
        let rt = self.rt.clone();
        let optimal = self.with(|store| async move {
            for _ in 0..360 {
                store.wait_idle().await;
                if store.status().await.optimal {
                    return true;
                }
                rt.sleep(10_000_000_000).await;
            }
            false
        });
        assert!(optimal, "full redundancy returns");
    }

    fn sleep(&self, seconds: u64) {
        let rt = self.rt.clone();
        self.rt
            .block_on(async move { rt.sleep(seconds * 1_000_000_000).await });
    }

    /// Writes whole blocks durably, one by one, so that every stripe is closed short or journalled.
    fn write(&self, blocks: std::ops::Range<u64>, byte: u8) {
        self.with(|store| async move {
            for number in blocks {
                store
                    .write(VOLUME, number * 4096, block(byte), true)
                    .await
                    .unwrap();
            }
        });
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

/// Merging removed the newer write from the deltas while the older run of holes stayed: it then read
/// as zeros, and the next checkpoint unmapped it for good.
#[test]
fn a_write_after_a_trim_survives_checkpoints() {
    let rig = Rig::new("ec2+1", 2, 1, 3);
    rig.write(0..40, 1);
    rig.sleep(61);
    for round in 2..12 {
        rig.with(|store| async move {
            store.zero(VOLUME, 0, 40 * 4096, true, false).await.unwrap();
        });
        rig.write(0..20, round);
        rig.sleep(31);
        let mut expected = vec![round; 20];
        expected.resize(40, 0);
        assert_eq!(rig.first_bytes(40), Ok(expected));
    }
}

/// The node of the liveness tree lay in a stripe that was closed short; its unwritten strips were
/// decoded as if they held data.
#[test]
fn an_exported_array_opens_without_m_devices() {
    let mut rig = Rig::new("ec8+3", 8, 3, 11);
    rig.write(0..30, 7);
    rig.export_without(&[4, 5, 9]);
    assert_eq!(rig.first_bytes(30), Ok(vec![7; 30]));
}

/// After the first loss had been repaired, journal records of the closed epoch still lay on the lost device:
/// the next loss took acknowledged data.
#[test]
fn redundancy_that_is_reported_back_counts_for_the_journal_too() {
    let mut rig = Rig::new("ec2+1", 2, 1, 4);
    rig.write(0..9, 3);
    rig.with(|store| store.fail(1, false)).unwrap();
    rig.write(4..12, 4);
    rig.repair();
    rig.crash_without(Cut::None, &[2]);
    assert_eq!(rig.first_bytes(12), Ok([vec![3; 4], vec![4; 8]].concat()));
}

/// Two segments shared one liveness record, and the older one was gone after the next import.
#[test]
fn segments_keep_their_liveness_over_many_imports() {
    let mut rig = Rig::new("ec3+1", 3, 1, 7);
    for round in 1..8 {
        rig.write(u64::from(round)..10 + u64::from(round), round);
        if round % 2 == 0 {
            rig.export_without(&[])
        } else {
            rig.crash(Cut::None)
        }
        let expected: Vec<u8> = (0..round).chain([round; 10]).collect();
        assert_eq!(rig.first_bytes(expected.len()), Ok(expected));
    }
}

/// The parity of a stripe closed short was taken for unwritten and rebuilt as nothing.
#[test]
fn short_stripes_are_rebuilt() {
    for (first, second) in [(0, 1), (1, 2), (2, 3), (3, 0)] {
        let mut rig = Rig::new("ec2+1", 2, 1, 4);
        for number in 0..24 {
            rig.with(|store| async move {
                store
                    .write(VOLUME, number * 4096, block(9), false)
                    .await
                    .unwrap();
                store.flush(VOLUME).await.unwrap();
            });
        }
        rig.sleep(61);
        rig.crash_without(Cut::None, &[first]);
        rig.repair();
        rig.crash_without(Cut::None, &[first, second]);
        assert_eq!(
            rig.first_bytes(24),
            Ok(vec![9; 24]),
            "lost {first}, then {second}"
        );
    }
}

/// Metadata segments as wide as the array had no free device for their missing columns.
#[test]
fn redundancy_returns_with_k_plus_m_devices_left() {
    let mut rig = Rig::new("ec1+3", 1, 3, 6);
    rig.write(0..20, 5);
    rig.crash_without(Cut::None, &[2, 3]);
    rig.repair();
    assert_eq!(rig.first_bytes(20), Ok(vec![5; 20]));
}

/// A column that slot tables claimed on some devices only hid the journal's entry for the others.
#[test]
fn repeated_crashes_before_a_checkpoint_keep_every_column() {
    let mut rig = Rig::new("ec8+2", 8, 2, 10);
    rig.write(0..20, 6);
    rig.crash_without(Cut::None, &[2]);
    rig.write(10..25, 8);
    for _ in 0..4 {
        rig.crash_without(Cut::Units(50), &[2, 9]);
        assert_eq!(rig.first_bytes(25), Ok([vec![6; 10], vec![8; 15]].concat()));
    }
}

/// An array that lost every device waits for the operator; so did everyone who waited for its cleaner.
#[test]
fn nobody_waits_for_work_that_waits_for_the_operator() {
    let rig = Rig::new("raid1", 1, 1, 2);
    rig.write(0..8, 1);
    for disk in &rig.disks {
        disk.set_offline();
    }
    let rt = rig.rt.clone();
    let ended = rig.with(|store| async move {
        let writing = store.clone();
        rt.spawn(async move {
            let _ = writing.write(VOLUME, 0, block(2), true).await;
        });
        rt.sleep(5_000_000_000).await;
        assert!(!store.status().await.optimal);
        rt.timeout(3_600_000_000_000, store.wait_idle()).await
    });
    assert!(ended.is_some(), "waiting for background work ends");
}

/// What reconstruct was writing was still under way when an export had returned.
#[test]
fn an_export_leaves_no_write_in_flight() {
    for delay in 0..40 {
        let rig = Rig::new("ec2+1", 2, 1, 4);
        rig.write(0..200, 1);
        rig.sleep(61);
        rig.disks[3].set_slow(20);
        let rt = rig.rt.clone();
        rig.with(|store| async move {
            store.fail(1, false).await.unwrap();
            rt.sleep(delay * 1_500_000).await;
            store.export().await.unwrap();
        });
        let in_flight: usize = rig.disks.iter().map(|d| d.in_flight()).sum();
        assert_eq!(in_flight, 0, "export {delay} x 1.5 ms after the failure");
    }
}

/// #124: what a daemon that died had left in the caches of its devices counted as if it were durable. An import
/// wrote the other copy of a superblock, and power that went meanwhile took both: that device was lost.
#[test]
fn an_import_makes_durable_what_it_found() {
    let mut cut = 0;
    for died in (0..40).step_by(4) {
        for polls in (900..1300).step_by(12) {
            let mut rig = Rig::new("ec2+1", 2, 1, 5);
            let store = rig.store.take().unwrap();
            // A generation without the first device is being stored.
            let failed = rig.rt.run_for(died, store.fail(0, false));
            drop(store);
            rig.rt.shutdown();
            rig.disks.iter().for_each(|disk| disk.settle_in_flight());
            rig.rt = Rt::simulated(4);
            let import = Engine.import(&rig.rt, rig.devices(), &rig.config, false);
            let imported = rig.rt.run_for(polls, import);
            cut += u32::from(failed.is_err() && imported.is_err());
            drop(imported);
            rig.rt.shutdown();
            for disk in &rig.disks {
                disk.power_cut(Cut::Garbage);
            }
            rig.import_without(&[]);
            let online = rig.with(|store| store.status()).online;
            let all = (1..5).all(|device| online.contains(&device));
            assert!(all, "died {died}, cut {polls}: {online:?} are left");
        }
    }
    assert!(cut > 0, "power goes in an import after a death");
}
