//! What a case runs on: a bed with its drives, ports and links, and arrays on it, or the drives raw.
//!
//! **Invariants**: a rig has its own simulated runtime; a case gets a rig of its own, so that no case
//! leaves anything to another.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ashlar_device::{Bed, Built, Content, DeviceRef};
use ashlar_engine::status::ArrayState;
use ashlar_engine::{Array, Create, DigestKind, Settings, VolumeOptions, WriteCache};
use ashlar_layout::Layout;
use ashlar_rt::{MICROSECOND, Nanos, Rt, SECOND, Stopped};

use super::cases::{Case, Options, shape};
use super::check::Checks;
use super::load::{Amount, Order, Series, Work, run, units};
use crate::load::{Stop, Target};

/// Polls after which a run is taken for endless.
const MAX_POLLS: u64 = 1 << 34;
/// No load takes nearly so long.
const MAX_SECONDS: u64 = 3600;
/// After so long without a load the engine has merged what lies in the journal.
const SETTLE: Nanos = 65 * SECOND;
/// How often it is looked whether a rebuild has begun or ended.
const WATCH: Nanos = 200 * MICROSECOND;
/// A rebuild that has not begun by then does not begin.
const REBUILD_BEGINS: Nanos = 3 * SECOND;
/// Bytes of each raw namespace, and of what counts as a slot there.
pub(super) const RAW_BYTES: u64 = 1 << 30;
const RAW_SLOT: u64 = 1 << 20;
/// Digests of volumes: no digest takes virtual time, and this one takes least of the machine's.
const DIGEST: DigestKind = DigestKind::Xxh3;
/// Operations in flight while a volume is written for the first time.
const FILL_DEPTH: usize = 32;
/// Bytes of a block.
const BLOCK: u64 = 4096;
/// Blocks whose summary fits one block.
const SUMMARY: u64 = 64;

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
    /// Devices of each array that the states with losses take out.
    lost: Vec<u16>,
}

/// What a run on a rig gave.
pub(super) struct Outcome {
    pub(super) series: Series,
    /// Device bytes, operations and share of time busy.
    pub(super) device: Use,
    /// The busiest resource.
    pub(super) limit: String,
    /// Bytes that a check read meanwhile.
    pub(super) checked: u64,
}

/// Bytes of a slot and of a strip.
pub(super) type Sizes = (u64, u32);

/// The size of an array's devices for a volume that fills a share `fill` of its data blocks.
pub(super) fn device_bytes(
    volume_bytes: u64,
    fill: f64,
    shape: &ashlar_layout::Shape,
    (slot, strip): Sizes,
) -> u64 {
    // A header, strips, a block of their summary for each 64 of their blocks.
    let strip = u64::from(strip);
    let strips = (slot - BLOCK) / (strip + strip.div_ceil(BLOCK * SUMMARY) * BLOCK);
    let data = f64::from(shape.k) * (strips * strip) as f64;
    let width = f64::from(shape.width());
    let held = shape.devices() as f64 - f64::from(shape.spare);
    let slots = (volume_bytes as f64 / fill / data * width / held).ceil() as u64 + 2;
    (slots * slot * 102 / 100 + (2 << 20)).next_multiple_of(slot)
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
    /// The bed's drives raw, written before, as sets for the arrays of a case.
    pub(super) fn raw(seed: u64, bed: &Bed, case: &Case) -> Result<Rig, String> {
        let rt = Rt::simulated(seed);
        let shape = (case.arrays, case.columns);
        let built = bed.build(&rt, shape, RAW_BYTES, RAW_SLOT, Content::Discard)?;
        let targets = sets(&built).into_iter().map(Target::Raw).collect();
        Ok(Rig {
            rt,
            built: Rc::new(built),
            arrays: Vec::new(),
            targets,
            lost: Vec::new(),
        })
    }

    /// The arrays of a case, each with one volume, nothing written.
    pub(super) fn arrays(
        seed: u64,
        options: &Options,
        bed: &Bed,
        case: &Case,
        layout: &str,
    ) -> Result<Rig, String> {
        let rt = Rt::simulated(seed);
        let volume_bytes = case.volume_bytes(options.volume_bytes);
        let parsed = layout
            .parse::<Layout>()
            .map_err(|e| format!("'{layout}': {e}"))?;
        let shape = shape(layout)?;
        let sizes = options.sizes(bed, case.work, shape.k);
        let bytes = device_bytes(volume_bytes, case.fill(options.fill), &shape, sizes);
        let sets_of = (case.arrays, case.columns);
        let built = bed.build(&rt, sets_of, bytes, sizes.0, Content::Store)?;
        let mut rig = Rig {
            rt,
            arrays: Vec::new(),
            targets: Vec::new(),
            built: Rc::new(built),
            lost: options.down.devices(&shape),
        };
        for members in sets(&rig.built) {
            let (rt, layout) = (rig.rt.clone(), parsed);
            let array = finish(&rig.rt, async move {
                create(&rt, members, layout, sizes, volume_bytes, DIGEST).await
            })??;
            let volume = array.volume("bench").ok_or("the volume is gone")?;
            rig.targets.push(Target::Volume(volume));
            rig.arrays.push(array);
        }
        Ok(rig)
    }

    /// Writes each volume once in order.
    pub(super) fn fill(&self) -> Result<(), String> {
        self.write_once(Work::FILL)?;
        self.settle()
    }

    /// Does a writing workload once on each volume, one by one: each is written once, however fast the others are.
    pub(super) fn write_once(&self, work: Work) -> Result<(), String> {
        for target in &self.targets {
            let all = units(target, work.bytes as u64);
            let count = match work.order {
                Order::Part(_, of) => all / u64::from(of),
                _ => all,
            };
            let amount = Amount {
                depth: FILL_DEPTH,
                warm: 0,
                count: count.max(1),
                in_flight: FILL_DEPTH as u64,
            };
            self.load(vec![target.clone()], work, amount, Rc::default(), None)?;
        }
        Ok(())
    }

    /// Makes everything durable and waits until nothing is left to merge.
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

    /// Takes devices out of each array, lets nothing be rebuilt, and waits until all is quiet.
    pub(super) fn fail(&self) -> Result<(), String> {
        let (arrays, lost) = (self.arrays.clone(), self.lost.clone());
        finish(&self.rt, async move {
            for array in arrays {
                take_out(&array, &lost, "never").await?;
            }
            Ok::<(), String>(())
        })??;
        self.settle()
    }

    /// Runs a workload on all targets.
    pub(super) fn run(&self, work: Work, amount: Amount) -> Result<Outcome, String> {
        self.load(self.targets.clone(), work, amount, Rc::default(), None)
    }

    /// Runs a workload on all targets while a check reads all devices, `floor` bytes a second of each.
    pub(super) fn run_checked(
        &self,
        work: Work,
        amount: Amount,
        floor: u64,
    ) -> Result<Outcome, String> {
        let checks = Checks::start(&self.rt, &self.built, Some(floor));
        let targets = self.targets.clone();
        self.load(targets, work, amount, Rc::default(), Some(checks))
    }

    /// A check with nobody else, as fast as the devices give: bytes that it reads in a second.
    pub(super) fn check_alone(&self) -> Result<f64, String> {
        let checks = Checks::start(&self.rt, &self.built, None);
        let rt = self.rt.clone();
        let from = finish(&self.rt, async move {
            let begun = rt.now();
            checks.whole().await;
            (checks.bytes(), rt.now() - begun)
        })?;
        Ok(from.0 as f64 * 1e9 / from.1.max(1) as f64)
    }

    /// Takes devices out of each array, and runs a workload on all of them once their rebuilds have begun and until
    /// the first of them is done.
    pub(super) fn run_rebuilding(&self, work: Work, amount: Amount) -> Result<Outcome, String> {
        let (rt, arrays, lost) = (self.rt.clone(), self.arrays.clone(), self.lost.clone());
        finish(
            &self.rt,
            async move { begin_rebuilds(&rt, arrays, lost).await },
        )??;
        let before = self.rebuilt_bytes()?;
        let over = Rc::new(Cell::new(false));
        for array in self.arrays.clone() {
            let (over, rt) = (over.clone(), self.rt.clone());
            self.rt.spawn(async move {
                // Idle does not mean done: it rests while it waits for checkpoints.
                while array.status().await.state != ArrayState::Optimal && !over.get() {
                    rt.sleep(WATCH).await;
                }
                over.set(true);
            });
        }
        let outcome = self.load(self.targets.clone(), work, amount, over.clone(), None)?;
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
        checks: Option<Checks>,
    ) -> Result<Outcome, String> {
        let marks = Rc::new(RefCell::new(Vec::new()));
        let (built, notes, clock) = (self.built.clone(), marks.clone(), self.rt.clone());
        let counted = checks.clone();
        let mark = move || {
            let checked = counted.as_ref().map_or(0, Checks::bytes);
            let used = usage(&built, clock.now());
            notes.borrow_mut().push((used, links(&built), checked));
        };
        let rt = self.rt.clone();
        let series: Result<Series, Stop> = finish(&self.rt, async move {
            let done = run(&rt, targets, work, amount, over, mark);
            rt.timeout(MAX_SECONDS * SECOND, done).await
        })?
        .ok_or_else(|| format!("not done after {MAX_SECONDS} seconds of virtual time"))?;
        if let Some(checks) = checks {
            checks.stop();
        }
        let series = series.map_err(|stop| stop.to_string())?;
        let marks = marks.borrow();
        let (Some(first), Some(last)) = (marks.first(), marks.last()) else {
            return Err("measuring never began".to_string());
        };
        let elapsed = (last.0.at - first.0.at).max(1) as f64;
        let drives = self.built.drives.len() as f64;
        let checked = last.2 - first.2;
        let device = Use {
            bytes: (last.0.bytes - first.0.bytes).saturating_sub(checked),
            operations: last.0.operations - first.0.operations,
            drive_busy: (last.0.drive_busy - first.0.drive_busy) / elapsed / drives,
            at: last.0.at,
        };
        let limit = self.limit(device.drive_busy, &first.1, &last.1, elapsed);
        Ok(Outcome {
            series,
            device,
            limit,
            checked,
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

/// Takes devices out of an array; `narrow` says whether it rebuilds without free devices. Clients do not hold the rebuild
/// back, as with those that it is compared with.
pub(super) async fn take_out(array: &Array, lost: &[u16], narrow: &str) -> Result<(), String> {
    for (key, value) in [("reconstruct.narrow", narrow), ("reconstruct.min", "none")] {
        let set = array.set(key, value).await;
        set.map_err(|error| error.to_string())?;
    }
    for index in lost {
        let failed = array.fail(*index, false).await;
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
async fn begin_rebuilds(rt: &Rt, arrays: Vec<Array>, lost: Vec<u16>) -> Result<(), String> {
    let out = |array: Array| {
        let lost = lost.clone();
        rt.spawn(async move { take_out(&array, &lost, "always").await })
    };
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

pub(super) async fn create(
    rt: &Rt,
    members: Vec<DeviceRef>,
    layout: Layout,
    (slot_bytes, strip_bytes): Sizes,
    volume_bytes: u64,
    digest: DigestKind,
) -> Result<Array, String> {
    let create = Create {
        name: "bench".to_string(),
        layout,
        strip_bytes: Some(strip_bytes),
        slot_bytes: Some(slot_bytes),
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
        digest,
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
