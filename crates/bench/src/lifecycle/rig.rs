//! What a case runs on: a bed with its drives, ports and links, and arrays on it, or the drives raw.
//!
//! **Invariants**: a rig has its own simulated runtime; a case gets a rig of its own, so that no case
//! leaves anything to another.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ashlar_device::{Bed, Built, Content, DeviceRef};
use ashlar_engine::status::ArrayState;
use ashlar_engine::{Array, Create, Settings, VolumeOptions, WriteCache};
use ashlar_layout::Layout;
use ashlar_rt::{MICROSECOND, Nanos, Rt, SECOND, Stopped};

use super::load::{Amount, Series, Work, run};
use crate::load::{Stop, Target};

/// Polls after which a run is taken for endless.
const MAX_POLLS: u64 = 1 << 34;
/// No load takes nearly so long.
const MAX_SECONDS: u64 = 3600;
/// After so long without a load the engine has folded what lies in the journal.
const SETTLE: Nanos = 65 * SECOND;
/// How often it is looked whether a rebuild has begun or ended.
const WATCH: Nanos = 200 * MICROSECOND;
/// A rebuild that has not begun by then does not begin.
const REBUILD_BEGINS: Nanos = 3 * SECOND;
/// Bytes of a strip.
pub const STRIP_BYTES: u32 = 16 << 10;
/// Bytes of a slot.
pub const SLOT_BYTES: u64 = 256 << 10;
/// Data strips of a slot of that size: a header, strips of four blocks, their summary.
const STRIPS_OF_SLOT: u64 = 15;

/// What the bed's resources did between two marks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Use {
    pub(super) bytes: u64,
    pub(super) operations: u64,
    pub(super) drive_busy: f64,
    at: Nanos,
}

/// A bed and the arrays on it.
pub(super) struct Rig {
    rt: Rt,
    built: Rc<Built>,
    arrays: Vec<Array>,
    targets: Vec<Target>,
}

/// What a run on a rig gave.
pub(super) struct Outcome {
    pub(super) series: Series,
    /// Device bytes, operations and share of time busy.
    pub(super) device: Use,
    /// The busiest resource.
    pub(super) limit: String,
}

/// The size of an array's devices for a volume that fills a share `fill` of its data blocks.
pub(super) fn device_bytes(volume_bytes: u64, fill: f64, k: u16) -> u64 {
    let data = f64::from(k) * (STRIPS_OF_SLOT * u64::from(STRIP_BYTES)) as f64;
    let slots = (volume_bytes as f64 / fill / data).ceil() as u64 + 2;
    (slots * SLOT_BYTES * 102 / 100 + (2 << 20)).next_multiple_of(SLOT_BYTES)
}

/// Memory such that the whole map is cached and unwritten changes are a sixth of the blocks.
pub(super) fn memory_bytes(volume_bytes: u64) -> u64 {
    (volume_bytes as f64 / 4096.0 * 32.0 * 64.0 / 63.0 * 4.0) as u64
}

fn finish<T: 'static>(rt: &Rt, future: impl Future<Output = T> + 'static) -> Result<T, String> {
    rt.run_for(MAX_POLLS, future)
        .map_err(|stopped| match stopped {
            Stopped::Deadlock => {
                "the engine hangs: no task can run and no timer is set".to_string()
            }
            Stopped::Polls => format!("the engine made no end of it in {MAX_POLLS} polls"),
        })
}

impl Rig {
    /// The bed's drives raw, written before, as `arrays` sets of `columns`.
    pub(super) fn raw(seed: u64, bed: &Bed, arrays: usize, columns: usize) -> Result<Rig, String> {
        let rt = Rt::simulated(seed);
        let bytes = 1 << 30;
        let built = bed.build(&rt, (arrays, columns), bytes, 1 << 20, Content::Discard)?;
        let targets = sets(&built).into_iter().map(Target::Raw).collect();
        Ok(Rig {
            rt,
            built: Rc::new(built),
            arrays: Vec::new(),
            targets,
        })
    }

    /// Arrays of `layout`, each with one volume, written once in order.
    pub(super) fn arrays(
        seed: u64,
        bed: &Bed,
        (arrays, columns): (usize, usize),
        layout: &Layout,
        volume_bytes: u64,
        fill: f64,
    ) -> Result<Rig, String> {
        let rt = Rt::simulated(seed);
        let shape = layout
            .resolve(u16::try_from(columns).map_err(|_| "too many devices".to_string())?)
            .map_err(|error| error.to_string())?;
        let bytes = device_bytes(volume_bytes, fill, shape.k);
        let built = bed.build(&rt, (arrays, columns), bytes, SLOT_BYTES, Content::Store)?;
        let mut rig = Rig {
            rt,
            arrays: Vec::new(),
            targets: Vec::new(),
            built: Rc::new(built),
        };
        for members in sets(&rig.built) {
            let (rt, layout) = (rig.rt.clone(), *layout);
            let array = finish(&rig.rt, async move {
                create(&rt, members, layout, volume_bytes).await
            })??;
            let volume = array.volume("bench").ok_or("the volume is gone")?;
            rig.targets.push(Target::Volume(volume));
            rig.arrays.push(array);
        }
        let amount = Amount {
            depth: 32,
            warm: 0,
            count: volume_bytes / Work::FILL.bytes as u64,
        };
        // One by one: each is written once, however fast the others are.
        for target in &rig.targets {
            rig.load(vec![target.clone()], Work::FILL, amount, Rc::default())?;
        }
        rig.settle()?;
        Ok(rig)
    }

    /// Makes everything durable and waits until nothing is left to fold.
    pub(super) fn settle(&self) -> Result<(), String> {
        let (targets, rt) = (self.targets.clone(), self.rt.clone());
        finish(&self.rt, async move {
            for target in targets {
                if let Target::Volume(volume) = target {
                    volume.flush().await.map_err(|e| format!("flush: {e:?}"))?;
                }
            }
            rt.sleep(SETTLE).await;
            Ok::<(), String>(())
        })?
    }

    /// Takes `count` devices out of each array, lets nothing be rebuilt, and waits until all is quiet.
    pub(super) fn fail(&self, count: u16) -> Result<(), String> {
        let arrays = self.arrays.clone();
        finish(&self.rt, async move {
            for array in arrays {
                take_out(&array, count, "never").await?;
            }
            Ok::<(), String>(())
        })??;
        self.settle()
    }

    /// Runs a workload on all targets.
    pub(super) fn run(&self, work: Work, amount: Amount) -> Result<Outcome, String> {
        self.load(self.targets.clone(), work, amount, Rc::default())
    }

    /// Takes `down` devices out of each array, and runs a workload on all of them once their rebuilds have begun and until
    /// the first of them is done.
    pub(super) fn run_rebuilding(
        &self,
        work: Work,
        amount: Amount,
        down: u16,
    ) -> Result<Outcome, String> {
        let (rt, arrays) = (self.rt.clone(), self.arrays.clone());
        finish(
            &self.rt,
            async move { begin_rebuilds(&rt, arrays, down).await },
        )??;
        let before = self.rebuilt_bytes()?;
        let over = Rc::new(Cell::new(false));
        for array in self.arrays.clone() {
            let (over, rt) = (over.clone(), self.rt.clone());
            self.rt.spawn(async move {
                // Idle does not mean done: it rests while it waits for commits.
                while array.status().await.state != ArrayState::Optimal && !over.get() {
                    rt.sleep(WATCH).await;
                }
                over.set(true);
            });
        }
        let outcome = self.load(self.targets.clone(), work, amount, over.clone())?;
        over.set(true);
        if self.rebuilt_bytes()? == before {
            return Err("nothing was rebuilt while it was measured".to_string());
        }
        Ok(outcome)
    }

    fn load(
        &self,
        targets: Vec<Target>,
        work: Work,
        amount: Amount,
        over: Rc<Cell<bool>>,
    ) -> Result<Outcome, String> {
        let marks = Rc::new(RefCell::new(Vec::new()));
        let (built, notes, clock) = (self.built.clone(), marks.clone(), self.rt.clone());
        let mark = move || {
            notes
                .borrow_mut()
                .push((usage(&built, clock.now()), links(&built)))
        };
        let rt = self.rt.clone();
        let series: Result<Series, Stop> = finish(&self.rt, async move {
            let done = run(&rt, targets, work, amount, over, mark);
            rt.timeout(MAX_SECONDS * SECOND, done).await
        })?
        .ok_or_else(|| format!("not done after {MAX_SECONDS} seconds of virtual time"))?;
        let series = series.map_err(|stop| stop.to_string())?;
        let marks = marks.borrow();
        let (Some(first), Some(last)) = (marks.first(), marks.last()) else {
            return Err("measuring never began".to_string());
        };
        let elapsed = (last.0.at - first.0.at).max(1) as f64;
        let drives = self.built.drives.len() as f64;
        let device = Use {
            bytes: last.0.bytes - first.0.bytes,
            operations: last.0.operations - first.0.operations,
            drive_busy: (last.0.drive_busy - first.0.drive_busy) / elapsed / drives,
            at: last.0.at,
        };
        let limit = self.limit(device.drive_busy, &first.1, &last.1, elapsed);
        Ok(Outcome {
            series,
            device,
            limit,
        })
    }

    /// Bytes that the arrays have rebuilt.
    fn rebuilt_bytes(&self) -> Result<u64, String> {
        let arrays = self.arrays.clone();
        finish(&self.rt, async move {
            let mut sum = 0;
            for array in arrays {
                sum += rebuilt(&array).await;
            }
            sum
        })
    }

    /// Which resource was busiest, and how busy.
    fn limit(&self, drives: f64, first: &[Nanos], last: &[Nanos], elapsed: f64) -> String {
        let names = self.built.ports.iter().chain(&self.built.hosts);
        let mut busiest = ("drives".to_string(), drives);
        for (index, link) in names.enumerate() {
            let busy = [2 * index, 2 * index + 1].map(|i| (last[i] - first[i]) as f64 / elapsed);
            let busy = busy[0].max(busy[1]);
            if busy > busiest.1 {
                busiest = (link.name().to_string(), busy);
            }
        }
        format!("{} {:.0} %", busiest.0, busiest.1.min(1.0) * 100.0)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.rt.shutdown();
    }
}

/// Takes `count` devices out of an array; `narrow` says whether it rebuilds without free devices.
async fn take_out(array: &Array, count: u16, narrow: &str) -> Result<(), String> {
    let set = array.set("reconstruct.narrow", narrow).await;
    set.map_err(|error| error.to_string())?;
    for index in 0..count {
        let failed = array.fail(index, false).await;
        failed.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Bytes that an array has rebuilt.
async fn rebuilt(array: &Array) -> u64 {
    let tasks = array.status().await.tasks;
    let rebuilds = tasks.iter().filter(|task| task.kind == "reconstruct");
    rebuilds.map(|task| task.done_bytes).sum()
}

/// Takes devices out of all arrays at once, and waits until each has rebuilt something: it looks at them a second after
/// nothing could be done.
async fn begin_rebuilds(rt: &Rt, arrays: Vec<Array>, down: u16) -> Result<(), String> {
    let out = |array: Array| rt.spawn(async move { take_out(&array, down, "always").await });
    let joins: Vec<_> = arrays.iter().cloned().map(out).collect();
    for join in joins {
        join.await?;
    }
    let begun = rt.now();
    for array in &arrays {
        while rebuilt(array).await == 0 {
            if rt.now() - begun > REBUILD_BEGINS {
                return Err("no rebuild began".to_string());
            }
            rt.sleep(WATCH).await;
        }
    }
    for array in &arrays {
        if array.status().await.state == ArrayState::Optimal {
            return Err("the rebuild was over before the load began".to_string());
        }
    }
    Ok(())
}

async fn create(
    rt: &Rt,
    members: Vec<DeviceRef>,
    layout: Layout,
    volume_bytes: u64,
) -> Result<Array, String> {
    let create = Create {
        name: "bench".to_string(),
        layout,
        strip_bytes: Some(STRIP_BYTES),
        slot_bytes: Some(SLOT_BYTES),
        spare: 0,
        domains: Vec::new(),
        settings: Settings {
            memory_bytes: memory_bytes(volume_bytes),
            ..Settings::default()
        },
    };
    let volume = VolumeOptions {
        size_bytes: volume_bytes,
        thin: true,
        write_cache: WriteCache::On,
        ..VolumeOptions::default()
    };
    let array = Array::create(rt, members, create)
        .await
        .map_err(|error| error.to_string())?;
    array
        .volume_create("bench", volume)
        .await
        .map_err(|error| error.to_string())?;
    Ok(array)
}

fn sets(built: &Built) -> Vec<Vec<DeviceRef>> {
    let set = |set: &Vec<Rc<ashlar_device::Namespace>>| -> Vec<DeviceRef> {
        set.iter().map(|n| n.clone() as DeviceRef).collect()
    };
    built.arrays.iter().map(set).collect()
}

fn usage(built: &Built, at: Nanos) -> Use {
    let mut sum = Use {
        at,
        ..Use::default()
    };
    for drive in &built.drives {
        let counters = drive.counters();
        sum.bytes += counters.io.read_bytes + counters.io.written_bytes;
        sum.operations += counters.io.reads + counters.io.writes;
        sum.drive_busy += counters.busy as f64;
    }
    sum
}

fn links(built: &Built) -> Vec<Nanos> {
    let links = built.ports.iter().chain(&built.hosts);
    links
        .flat_map(|link| {
            let (to_host, to_drive) = link.busy();
            [to_host, to_drive]
        })
        .collect()
}
