//! What is measured on: modelled devices under meters, an array on them, a volume; and the devices
//! raw.
//!
//! **Invariants**: a rig runs on its own simulated runtime; nothing of it is shared with another.

use std::rc::Rc;

use ashlar_device::{Content, DeviceRef, ModelDevice, ModelOptions, Profile};
use ashlar_engine::Work;
use ashlar_engine::{
    Array, Create, Import, PhaseTally, Settings, Volume, VolumeError, VolumeOptions, WriteCache,
    plan,
};
use ashlar_layout::Layout;
use ashlar_rt::{Nanos, Rt, SECOND, Stopped};

use super::values::BenchError;
use crate::load::{Durability, Load, Measured, Op, Pattern, Target, run};
use crate::meter::{Borders, Meter, Regions};

/// Polls after which a run is taken for endless.
const MAX_POLLS: u64 = 1 << 34;
/// After so long without a load the engine has merged what lies in the journal.
const SETTLE: Nanos = 65 * SECOND;
/// Memory while a volume is filled.
const FILL_MEMORY: u64 = 256 << 20;

/// No load takes nearly so long.
const MAX_SECONDS: u64 = 3600;

/// The sizes of an array.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Bytes of a device.
    pub(super) device_bytes: u64,
    /// Bytes of a slot.
    pub(super) slot_bytes: u64,
    /// Bytes of a strip.
    pub(super) strip_bytes: u32,
}

/// Devices for a layout: those asked for, else what it names, else the fewest that it fits.
pub(crate) fn device_count(layout: &Layout, asked: Option<u16>) -> Result<u16, BenchError> {
    let first = |from: u16| (from..=300).find(|n| layout.resolve(*n).is_ok());
    let named = layout.named_devices();
    let devices = asked.or(named).or_else(|| first(1)).unwrap_or(2);
    layout.resolve(devices)?;
    Ok(devices)
}

/// Runs a future of a simulated runtime to its end.
pub(super) fn finish<T: 'static>(
    rt: &Rt,
    future: impl Future<Output = T> + 'static,
) -> Result<T, BenchError> {
    rt.run_for(MAX_POLLS, future)
        .map_err(|stopped| match stopped {
            Stopped::Deadlock => BenchError::Deadlock,
            Stopped::Polls => BenchError::Endless(MAX_POLLS),
        })
}

/// An array on metered devices, with one volume.
pub(super) struct Rig {
    pub(super) rt: Rt,
    meters: Vec<Rc<Meter>>,
    /// A device that the array does not use.
    blank: Rc<Meter>,
    array: Array,
}

/// What the devices have done.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    /// By region.
    pub(super) regions: Regions,
    /// Busy nanoseconds, all devices.
    pub(super) busy: u64,
    /// Writes charged as random ones.
    pub(super) scattered: u64,
    /// Where the engine's time went.
    pub(super) phases: Vec<PhaseTally>,
    /// Blocks that the host wrote, and data blocks written.
    pub(super) blocks: (u64, u64),
}

impl Snapshot {
    /// What was done after another snapshot was taken; the longest pass of a phase is the longest ever.
    fn since(&self, first: &Snapshot) -> Snapshot {
        let passed = |(last, first): (&PhaseTally, &PhaseTally)| PhaseTally {
            count: last.count - first.count,
            sum: last.sum - first.sum,
            ..*last
        };
        Snapshot {
            regions: self.regions.since(first.regions),
            busy: self.busy - first.busy,
            scattered: self.scattered - first.scattered,
            phases: self.phases.iter().zip(&first.phases).map(passed).collect(),
            blocks: (
                self.blocks.0 - first.blocks.0,
                self.blocks.1 - first.blocks.1,
            ),
        }
    }
}

fn snapshot(meters: &[Rc<Meter>], array: &Array) -> Snapshot {
    let mut sum = Snapshot {
        phases: array.phases(),
        blocks: array.blocks_written(),
        ..Snapshot::default()
    };
    for meter in meters {
        sum.regions = sum.regions.plus(meter.regions());
        sum.busy += meter.busy();
        sum.scattered += meter.scattered();
    }
    sum
}

impl Rig {
    /// Makes the array and a volume of `volume_bytes`.
    pub(super) fn new(
        seed: u64,
        profile: Profile,
        layout: &Layout,
        devices: u16,
        sizes: Sizes,
        volume_bytes: u64,
        memory: u64,
    ) -> Result<Rig, BenchError> {
        let rt = Rt::simulated(seed);
        let options = ModelOptions {
            content: Content::Store,
            slot_bytes: sizes.slot_bytes,
            ..ModelOptions::new(sizes.device_bytes)
        };
        let meter = |index| {
            Meter::new(Rc::new(ModelDevice::new(
                &rt,
                &format!("model{index}"),
                profile,
                options,
            )))
        };
        let meters: Vec<Rc<Meter>> = (0..devices).map(meter).collect();
        let blank = meter(devices);
        let create = Create {
            name: "bench".to_string(),
            layout: *layout,
            strip_bytes: Some(sizes.strip_bytes),
            slot_bytes: Some(sizes.slot_bytes),
            spare: 0,
            domains: Vec::new(),
            settings: Settings {
                memory_bytes: memory,
                ..Settings::default()
            },
        };
        let geometry = plan(&vec![sizes.device_bytes; usize::from(devices)], &create)?.devices[0];
        for meter in meters.iter().chain([&blank]) {
            meter.lay_out(Borders {
                journal: (
                    geometry.delta_ring_offset(),
                    geometry.data_ring_offset() + geometry.data_ring_bytes,
                ),
                slots: geometry.slot_offset(0),
                end: geometry.slot_offset(geometry.slots),
                slot_bytes: sizes.slot_bytes,
            });
        }
        let handle = rt.clone();
        let members = members(&meters);
        let array = finish(&rt, async move {
            let array = Array::create(&handle, members, create).await?;
            let volume = VolumeOptions {
                size_bytes: volume_bytes,
                thin: true,
                write_cache: WriteCache::On,
                ..VolumeOptions::default()
            };
            array.volume_create("bench", volume).await?;
            Ok::<Array, BenchError>(array)
        })??;
        Ok(Rig {
            rt,
            meters,
            blank,
            array,
        })
    }

    /// Exports the array, imports it with other memory, and waits until what an import finds in the
    /// journal has been merged: it would answer reads that are to go to the map.
    pub(super) fn reopen(&mut self, memory: u64) -> Result<(), BenchError> {
        let (array, rt, members) = (self.array.clone(), self.rt.clone(), members(&self.meters));
        self.array = finish(&self.rt, async move {
            array.export().await?;
            let settings = Settings {
                memory_bytes: memory,
                ..Settings::default()
            };
            let import = Import {
                settings,
                ..Import::default()
            };
            let array = Array::import(&rt, members, import).await?;
            rt.sleep(SETTLE).await;
            Ok::<Array, BenchError>(array)
        })??;
        Ok(())
    }

    fn volume(&self) -> Result<Volume, BenchError> {
        self.array
            .volume("bench")
            .ok_or(BenchError::Volume(VolumeError::Closed))
    }

    /// Writes the whole volume once, in order, and makes it durable.
    pub(super) fn fill(&self) -> Result<(), BenchError> {
        let volume = self.volume()?;
        let bytes = 128 << 10;
        let load = Load {
            op: Op::Write,
            pattern: Pattern::Sequential,
            bytes,
            depth: 32,
            durability: Durability::Cached,
            warm: 0,
            count: volume.info().size_bytes / bytes as u64,
        };
        self.load(load)?;
        self.flush()
    }

    /// Makes everything durable.
    pub(super) fn flush(&self) -> Result<(), BenchError> {
        let volume = self.volume()?;
        finish(&self.rt, async move { volume.flush().await })?.map_err(BenchError::Volume)
    }

    /// Takes a device out and does not let anything be rebuilt first.
    pub(super) fn fail(&self, device: u16) -> Result<(), BenchError> {
        let array = self.array.clone();
        Ok(finish(&self.rt, async move {
            array.fail(device, false).await
        })??)
    }

    /// Waits until what lies in the journal has been merged, and all is quiet.
    pub(super) fn settle(&self) -> Result<(), BenchError> {
        let rt = self.rt.clone();
        finish(&self.rt, async move { rt.sleep(SETTLE).await })
    }

    /// Takes a device out, puts another in its place if asked to, and waits until what it held has been rebuilt: how long
    /// that took, and what the devices did meanwhile.
    pub(super) fn rebuild(
        &mut self,
        device: u16,
        replaced: bool,
    ) -> Result<(Nanos, Snapshot), BenchError> {
        let (array, rt) = (self.array.clone(), self.rt.clone());
        let new = replaced.then(|| {
            self.meters.push(self.blank.clone());
            self.blank.clone() as DeviceRef
        });
        let before = snapshot(&self.meters, &self.array);
        let took = finish(&self.rt, async move {
            let begun = rt.now();
            array.fail(device, false).await?;
            if let Some(new) = new {
                array.replace(device, new, false).await?;
            }
            array.wait_idle(&[Work::Rebuild]).await;
            Ok::<Nanos, BenchError>(rt.now() - begun)
        })??;
        Ok((took, snapshot(&self.meters, &self.array).since(&before)))
    }

    /// Runs a load on the volume; what the devices did between its marks, and the data blocks
    /// written for each block of the host meanwhile.
    pub(super) fn load(&self, load: Load) -> Result<(Measured, Snapshot), BenchError> {
        let marks = Rc::new(std::cell::RefCell::new(Vec::new()));
        let (target, rt) = (Target::Volume(self.volume()?), self.rt.clone());
        let (meters, notes, array) = (self.meters.clone(), marks.clone(), self.array.clone());
        let mark = move || notes.borrow_mut().push(snapshot(&meters, &array));
        let measured = finish(&self.rt, async move {
            let done = run(&rt, &target, load, mark);
            rt.timeout(MAX_SECONDS * SECOND, done).await
        })?;
        let measured = measured.ok_or(BenchError::Stuck(MAX_SECONDS))??;
        let marks = marks.borrow();
        let (Some(first), Some(last)) = (marks.first(), marks.last()) else {
            return Ok((measured, Snapshot::default()));
        };
        Ok((measured, last.since(first)))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.rt.shutdown();
    }
}

fn members(meters: &[Rc<Meter>]) -> Vec<DeviceRef> {
    meters
        .iter()
        .map(|meter| meter.clone() as DeviceRef)
        .collect()
}

/// What `count` such devices give raw, preconditioned: written before, nothing discarded.
pub(super) fn raw(
    seed: u64,
    profile: Profile,
    count: u16,
    load: Load,
) -> Result<Measured, BenchError> {
    let rt = Rt::simulated(seed);
    let options = ModelOptions {
        content: Content::Discard,
        erased: false,
        ..ModelOptions::new(4 << 30)
    };
    let device = |_| Rc::new(ModelDevice::new(&rt, "raw", profile, options)) as DeviceRef;
    let target = Target::Raw((0..count).map(device).collect());
    let handle = rt.clone();
    let measured = finish(&rt, async move { run(&handle, &target, load, || {}).await })??;
    rt.shutdown();
    Ok(measured)
}

/// The memory to fill with: never less than what is measured with.
pub(super) fn fill_memory(memory: u64) -> u64 {
    memory.max(FILL_MEMORY)
}
