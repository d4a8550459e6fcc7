//! Background work beside clients: an array on modelled devices that note every request, clients that come and go, and
//! the rates of both over time.
//!
//! **Invariants**: clients read, at most [`MOST`] bytes at once, and background work reads and writes more: so the two are
//! told apart on the devices. All of it is in virtual time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ashlar_device::{
    Content, DeviceRef, ModelDevice, ModelOptions, OpKind, Profile, TraceEntry, TraceFilter,
};
use ashlar_engine::status::TaskStatus;
use ashlar_engine::{
    Array, Create, DigestKind, Settings, Volume, VolumeError, VolumeOptions, Work,
};
use ashlar_rt::{Join, Nanos, Rt, SECOND};

use crate::engine::BenchError;
use crate::lifecycle::load::{self, Amount, Figure, Order, Series};
use crate::load::{Durability, Load, Op, Pattern, Stop, Target, run};

/// The most that clients read at once.
pub const MOST: usize = 64 << 10;
/// After so long without a load the engine has merged what lies in the journal.
const SETTLE: Nanos = 65 * SECOND;
/// Requests that are kept of each device.
const KEPT: usize = 1 << 22;

/// An array.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The drive.
    pub profile: Profile,
    /// The layout as written.
    pub layout: &'static str,
    /// Its devices.
    pub devices: u16,
    /// How many of them it can lose and rebuild.
    pub spare: u16,
    /// Bytes of a device.
    pub device_bytes: u64,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Bytes of its volume, all of them written.
    pub volume_bytes: u64,
}

/// An array with a volume that is written, under traces.
#[derive(Debug)]
pub struct Bed {
    rt: Rt,
    shape: Shape,
    /// The array.
    pub array: Array,
    traces: RefCell<Vec<Rc<TraceFilter>>>,
}

/// Requests of a kind to devices, in order: a run ends where the next request to the device does not follow on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runs {
    /// How many runs.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Runs {
    /// Bytes of a run.
    pub fn mean(self) -> f64 {
        self.bytes as f64 / self.count.max(1) as f64
    }
}

/// Clients at work.
#[derive(Debug)]
pub struct Clients {
    over: Rc<Cell<bool>>,
    join: Join<Result<Series, Stop>>,
    /// When they began.
    pub begun: Nanos,
}

impl Clients {
    /// Ends them: what they had.
    ///
    /// # Errors
    /// What ended them before.
    pub async fn end(self) -> Result<Series, Stop> {
        self.over.set(true);
        self.join.await
    }
}

fn device(rt: &Rt, shape: Shape, name: &str) -> Rc<TraceFilter> {
    let options = ModelOptions {
        content: Content::Store,
        slot_bytes: shape.slot_bytes,
        ..ModelOptions::new(shape.device_bytes)
    };
    let model = ModelDevice::new(rt, name, shape.profile, options);
    TraceFilter::new(rt, Rc::new(model), KEPT)
}

impl Bed {
    /// Makes the array and writes its volume.
    ///
    /// # Errors
    /// The engine's.
    pub async fn new(rt: &Rt, shape: Shape) -> Result<Bed, BenchError> {
        let devices = 0..shape.devices;
        let traces: Vec<_> = devices
            .map(|n| device(rt, shape, &format!("d{n}")))
            .collect();
        let strip: u32 = if shape.profile.rotation.is_some() {
            128
        } else {
            16
        };
        // All of the map is cached.
        let map = shape.volume_bytes / 4096 * 33;
        let default = Settings::default();
        let create = Create {
            name: "bench".to_string(),
            layout: shape.layout.parse()?,
            strip_bytes: Some(strip << 10),
            slot_bytes: Some(shape.slot_bytes),
            spare: shape.spare,
            domains: Vec::new(),
            settings: Settings {
                memory_bytes: default.memory_bytes.max(4 * map),
                ..default
            },
        };
        let members = traces.iter().map(|t| t.clone() as DeviceRef).collect();
        let array = Array::create(rt, members, create).await?;
        let volume = VolumeOptions {
            size_bytes: shape.volume_bytes,
            thin: true,
            // No digest takes virtual time, and this one takes least of the machine's.
            digest: DigestKind::Xxh3,
            ..VolumeOptions::default()
        };
        array.volume_create("v", volume).await?;
        let bed = Bed {
            rt: rt.clone(),
            shape,
            array,
            traces: RefCell::new(traces),
        };
        let fill = Load {
            op: Op::Write,
            pattern: Pattern::Sequential,
            bytes: 128 << 10,
            depth: 32,
            durability: Durability::Cached,
            warm: 0,
            count: shape.volume_bytes >> 17,
        };
        run(rt, &bed.target()?, fill, || {}).await?;
        bed.volume()?.flush().await.map_err(BenchError::Volume)?;
        rt.sleep(SETTLE).await;
        bed.forget();
        Ok(bed)
    }

    fn volume(&self) -> Result<Volume, BenchError> {
        let volume = self.array.volume("v");
        volume.ok_or(BenchError::Volume(VolumeError::Closed))
    }

    /// Its volume, for a load.
    ///
    /// # Errors
    /// It is gone.
    pub fn target(&self) -> Result<Target, BenchError> {
        Ok(Target::Volume(self.volume()?))
    }

    /// Puts a new device in the place of one that is out of use.
    ///
    /// # Errors
    /// The engine's.
    pub async fn replace(&self, index: u16) -> Result<(), BenchError> {
        let new = device(&self.rt, self.shape, &format!("new{index}"));
        self.traces.borrow_mut()[usize::from(index)] = new.clone();
        self.array.replace(index, new, false).await?;
        Ok(())
    }

    /// Clients that read at random until they are ended: so many requests at once.
    ///
    /// # Errors
    /// The volume is gone.
    pub fn clients(&self, bytes: usize, depth: usize) -> Result<Clients, BenchError> {
        assert!(bytes <= MOST, "as background work");
        let work = load::Work {
            name: "clients",
            reads: 100,
            bytes,
            order: Order::Random,
            slot_bytes: 0,
            figure: Figure::Clients,
        };
        let amount = Amount {
            depth,
            warm: 0,
            count: u64::MAX,
            in_flight: depth as u64,
        };
        let over = Rc::new(Cell::new(false));
        let (rt, until, targets) = (self.rt.clone(), over.clone(), vec![self.target()?]);
        let join = async move { load::run(&rt, targets, work, amount, until, || {}).await };
        Ok(Clients {
            over,
            join: self.rt.spawn(join),
            begun: self.rt.now(),
        })
    }

    /// What the array says of such work.
    pub async fn task(&self, work: Work) -> Option<TaskStatus> {
        let tasks = self.array.status().await.tasks;
        tasks.into_iter().find(|task| task.id == work.id())
    }

    /// Forgets all requests.
    pub fn forget(&self) {
        for trace in self.traces.borrow().iter() {
            trace.reset();
        }
    }

    fn requests(&self) -> Vec<Vec<TraceEntry>> {
        let is_transfer = |e: &TraceEntry| matches!(e.op, OpKind::Read | OpKind::Write);
        let of = |t: &Rc<TraceFilter>| t.entries().into_iter().filter(is_transfer).collect();
        self.traces.borrow().iter().map(of).collect()
    }

    /// Bytes a second that background work moved of each device, in `count` steps.
    pub fn moved(&self, from: Nanos, step: Nanos, count: usize) -> Vec<Vec<f64>> {
        let of = |requests: Vec<TraceEntry>| {
            let large = requests.into_iter().filter(|e| e.length > MOST as u64);
            let answered = large.filter_map(|e| Some((e.answered?.0, e.length as f64)));
            steps(answered, from, step, count)
        };
        self.requests().into_iter().map(of).collect()
    }

    /// How long after a time the last piece of background work is answered that was asked for before.
    pub fn answered_after(&self, at: Nanos) -> Nanos {
        let requests = self.requests().into_iter().flatten();
        let before = requests.filter(|e| e.length > MOST as u64 && e.submitted <= at);
        let answered = before.filter_map(|e| Some(e.answered?.0));
        answered.max().unwrap_or(at).saturating_sub(at)
    }

    /// The runs of reads and of writes that devices saw since they were forgotten.
    pub fn runs(&self) -> [Runs; 2] {
        runs(&self.requests())
    }
}

/// The runs of reads and of writes among the requests of each device.
fn runs(devices: &[Vec<TraceEntry>]) -> [Runs; 2] {
    let mut runs = [Runs::default(); 2];
    for requests in devices {
        let mut last = None;
        for request in requests {
            let kind = usize::from(request.op == OpKind::Write);
            runs[kind].bytes += request.length;
            runs[kind].count += u64::from(last != Some((kind, request.offset)));
            last = Some((kind, request.offset + request.length));
        }
    }
    runs
}

/// What happens in a second, in `count` steps: each event has a time and an amount.
pub fn steps(
    events: impl Iterator<Item = (Nanos, f64)>,
    from: Nanos,
    step: Nanos,
    count: usize,
) -> Vec<f64> {
    let mut sums = vec![0.0; count];
    for (at, amount) in events {
        let place = at.checked_sub(from).map(|after| after / step);
        if let Some(sum) = place.and_then(|place| sums.get_mut(usize::try_from(place).ok()?)) {
            *sum += amount;
        }
    }
    let seconds = step as f64 / SECOND as f64;
    sums.into_iter().map(|sum| sum / seconds).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_where_the_next_request_does_not_follow_on() {
        let request = |(op, offset, length)| TraceEntry {
            number: 0,
            op,
            offset,
            length,
            submitted: 0,
            answered: None,
        };
        use OpKind::{Read, Write};
        let one = [(Read, 0, 10), (Read, 10, 20), (Read, 40, 5), (Write, 45, 1)];
        let two = [(Write, 46, 2), (Write, 48, 3), (Read, 51, 7)];
        let devices = [one.to_vec(), two.to_vec()].map(|of| of.into_iter().map(request).collect());
        let [reads, writes] = runs(&devices);
        assert_eq!((reads.count, reads.bytes), (3, 42));
        assert_eq!((writes.count, writes.bytes), (2, 6));
        assert!((reads.mean() - 14.0).abs() < 1e-9);
    }

    #[test]
    fn events_are_counted_in_the_step_that_they_fall_into() {
        let events = [(9, 100.0), (10, 1.0), (14, 2.0), (15, 4.0), (20, 8.0)];
        let found = steps(events.into_iter(), 10, 5, 2);
        assert_eq!(found, [3.0 / 5e-9, 4.0 / 5e-9]);
    }
}
