//! Where a job runs, and what becomes of it.
//!
//! **Invariants.**
//! - [`Accelerator::submit`] never waits: a job goes to a device that has room, or runs on the calling thread.
//! - [`Pending`] yields once, whatever the device did.
//! - Counters add up: every job is counted where its result came from.

use std::fmt;
use std::ops::DerefMut;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use crate::choice::Choice;
use crate::cost::{Rates, Seen, Work};
use crate::cpu::{self, Found};
use crate::cuda::Device;
use crate::done::{Counters, Done, Ran};
use crate::flight::{Flight, Landed, lock};
use crate::job::{Coding, Digests, Form, Job, Of, Piece, Plan};
use crate::options::Options;
use crate::pending::{Pending, State};
use crate::region::Region;
use crate::status::Status;
use crate::{Fault, Function};

/// Under so many bytes of input a device is never the choice of `auto`.
const DEVICE_MIN: usize = 64 << 10;

struct Inner {
    choice: Choice,
    number: u16,
    options: Options,
    /// Measured when a device has been opened.
    rates: OnceLock<Rates>,
    device: Mutex<Opening>,
    opened: Condvar,
    seen: Mutex<Seen>,
    counters: Mutex<Counters>,
}

/// How far the device has come.
enum Opening {
    /// A thread is opening it.
    Under,
    Open(Arc<Device>),
    Failed(Fault),
}

/// The seam: takes jobs, runs them where they are cheaper. Cheap to clone; may be used from any thread.
#[derive(Clone)]
pub struct Accelerator(Arc<Inner>);

impl Accelerator {
    /// Begins to open what was chosen, on a thread of its own, and returns at once: until that is done,
    /// and if it fails, the processor does everything. [`Accelerator::status`] says how it stands.
    pub fn new(choice: Choice, options: Options) -> Accelerator {
        let number = match choice {
            Choice::Cuda(number) => number,
            Choice::Auto | Choice::Cpu => 0,
        };
        let accelerator = Accelerator(Arc::new(Inner {
            choice,
            number,
            options,
            rates: OnceLock::new(),
            device: Mutex::new(Opening::Failed(Fault::NotBuilt)),
            opened: Condvar::new(),
            seen: Mutex::default(),
            counters: Mutex::default(),
        }));
        accelerator.reopen();
        accelerator
    }

    /// The processor only.
    pub fn cpu() -> Accelerator {
        Accelerator::new(Choice::Cpu, Options::default())
    }

    /// Begins to open the device again after it was lost, or after a driver was installed. Does nothing
    /// while the device is in use or being opened.
    pub fn reopen(&self) {
        let inner = &*self.0;
        if inner.choice == Choice::Cpu || !cfg!(feature = "cuda") {
            return;
        }
        let mut device = lock(&inner.device);
        let needed = match &*device {
            Opening::Under => false,
            Opening::Open(device) => device.lost().is_some(),
            Opening::Failed(_) => true,
        };
        if !needed {
            return;
        }
        let before = std::mem::replace(&mut *device, Opening::Under);
        drop(device);
        let (weak, number, options) =
            (Arc::downgrade(&self.0), inner.number, inner.options.clone());
        let open = move || {
            drop(before); // gives its memory back before more is asked for
            opened(&weak, Device::open(number, &options).map(Arc::new));
        };
        let thread = std::thread::Builder::new().name("accel-open".to_string());
        if thread.spawn(open).is_err() {
            opened(&Arc::downgrade(&self.0), Err(Fault::NoThread));
        }
    }

    /// Sleeps until the device has been opened or has failed to, at most so long; whether it takes jobs.
    /// Not for executors.
    pub fn wait_until_open(&self, longest: Duration) -> bool {
        let guard = lock(&self.0.device);
        let under = |opening: &mut Opening| matches!(opening, Opening::Under);
        let waited = self.0.opened.wait_timeout_while(guard, longest, under);
        let (guard, _) = waited.unwrap_or_else(PoisonError::into_inner);
        matches!(&*guard, Opening::Open(device) if device.lost().is_none())
    }

    fn device(&self) -> Option<Arc<Device>> {
        match &*lock(&self.0.device) {
            Opening::Open(device) if device.lost().is_none() => Some(device.clone()),
            _ => None,
        }
    }

    /// Memory for inputs and outputs: pinned if there is a device and room, ordinary and zeroed otherwise.
    /// What pinned memory contains is not said.
    pub fn region(&self, bytes: usize) -> Region {
        let device = self.device();
        let arena = device.as_ref().and_then(|device| device.arena());
        arena
            .and_then(|arena| Region::pinned(arena, bytes))
            .unwrap_or_else(|| Region::heap(bytes))
    }

    /// Bytes of input, and of output, that a job for the device may have; 0 without one.
    pub fn job_bytes(&self) -> usize {
        self.device().map_or(0, |device| device.job_bytes())
    }

    /// Takes a job: gives it to the device if that has room and is cheaper, else runs it now.
    pub fn submit<W: DerefMut<Target = [u8]> + Send + 'static>(&self, job: Job<W>) -> Pending<W> {
        let work = Work::of(&job.plan);
        let Some((device, cost)) = self.route(&job.plan, &work) else {
            return Pending(State::Done(Some(self.run_here(&job.plan, job.write, None))));
        };
        let lengths: Vec<usize> = job.write.iter().map(|piece| piece.len()).collect();
        let fresh = job.fresh;
        let flight = Flight::new(job.plan, forgotten(job.write), cost);
        device.submit(flight.clone());
        let (accelerator, started) = (self.clone(), flight.clone());
        let settle = move |answer| {
            let again = || lengths.iter().map(|bytes| fresh(*bytes)).collect();
            accelerator.settle(&started, answer, again)
        };
        Pending(State::Flying(flight, Box::new(settle)))
    }

    /// The device, if the job goes there, and what it costs of the device.
    fn route(&self, plan: &Plan, work: &Work) -> Option<(Arc<Device>, u64)> {
        let inner = &*self.0;
        let device = self.device()?;
        if !device.fits(plan) {
            return None;
        }
        let Some(backlog) = device.backlog() else {
            lock(&inner.counters).full += 1;
            return None;
        };
        let mut seen = lock(&inner.seen);
        let small = plan.shape.read * plan.shape.strip < DEVICE_MIN;
        let chosen = match inner.choice {
            Choice::Cpu => false,
            Choice::Cuda(_) => true,
            Choice::Auto => {
                !small && seen.prefers_device(work, inner.rates(), &device.rates, backlog)
            }
        };
        chosen.then(|| {
            let cost = seen.occupancy(work, &device.rates);
            (device, cost)
        })
    }

    fn run_here<W: DerefMut<Target = [u8]> + Send + 'static>(
        &self,
        plan: &Plan,
        write: Vec<W>,
        fault: Option<Fault>,
    ) -> Done<W> {
        let inner = &*self.0;
        let mut pieces = forgotten(write);
        let clock = inner
            .options
            .clock
            .as_ref()
            .filter(|_| inner.rates.get().is_some());
        let from = clock.map(|clock| clock());
        let found = cpu::run(plan, &mut pieces);
        if let (Some(clock), Some(from)) = (clock, from) {
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let nanos = clock().saturating_sub(from) as f64;
            lock(&inner.seen).cpu_took(&Work::of(plan), inner.rates(), nanos);
        }
        let mut counters = lock(&inner.counters);
        counters.cpu_jobs += 1;
        counters.cpu_bytes += (plan.shape.read * plan.shape.strip) as u64;
        counters.redone += u64::from(fault.is_some());
        drop(counters);
        done(pieces, found, Ran::Cpu, fault)
    }

    /// What came of a job that was given to the device; `again` is memory to do it once more.
    fn settle<W: DerefMut<Target = [u8]> + Send + 'static>(
        &self,
        flight: &Flight,
        answer: Result<Landed, Fault>,
        again: impl Fn() -> Vec<W>,
    ) -> Done<W> {
        match answer {
            Ok(landed) => {
                let done = self.landed(flight, landed);
                let other = self.is_check_due();
                let other = other.then(|| self.compared(&flight.plan, &done, again()));
                other.flatten().unwrap_or(done)
            }
            Err(fault) => self.run_here(&flight.plan, again(), Some(fault)),
        }
    }

    fn landed<W: DerefMut<Target = [u8]> + Send + 'static>(
        &self,
        flight: &Flight,
        landed: Landed,
    ) -> Done<W> {
        let inner = &*self.0;
        if landed.alone
            && let Some(device) = self.device()
        {
            let work = Work::of(&flight.plan);
            lock(&inner.seen).device_took(&work, &device.rates, landed.nanos);
        }
        let mut counters = lock(&inner.counters);
        counters.device_jobs += 1;
        counters.device_bytes += (flight.plan.shape.read * flight.plan.shape.strip) as u64;
        drop(counters);
        let pieces = std::mem::take(&mut *lock(&flight.write));
        done(pieces, landed.found, Ran::Cuda(inner.number), None)
    }

    /// Whether it is another one's turn to be compared.
    fn is_check_due(&self) -> bool {
        let inner = &*self.0;
        let mut counters = lock(&inner.counters);
        let nth = counters.device_jobs.checked_rem(inner.options.check_one_in);
        let due = nth.is_some_and(|nth| nth == 0);
        counters.checked += u64::from(due);
        due
    }

    /// What the processor makes of a job, if that is something else than what the device made of it, which then
    /// is given up.
    fn compared<W: DerefMut<Target = [u8]> + Send + 'static>(
        &self,
        plan: &Plan,
        theirs: &Done<W>,
        write: Vec<W>,
    ) -> Option<Done<W>> {
        let mut pieces = forgotten(write);
        let found = cpu::run(plan, &mut pieces);
        let ours: Done<W> = done(pieces, found, Ran::Cpu, Some(Fault::Unequal));
        let strips = ours.write.iter().zip(&theirs.write);
        let equal = ours.digests == theirs.digests && ours.roots == theirs.roots;
        if equal && strips.into_iter().all(|(ours, theirs)| **ours == **theirs) {
            return None;
        }
        if let Some(device) = self.device() {
            device.give_up(Fault::Unequal);
        }
        let mut counters = lock(&self.0.counters);
        counters.cpu_jobs += 1;
        counters.redone += 1;
        Some(ours)
    }

    /// What was chosen, why, and what has been done.
    pub fn status(&self) -> Status {
        let inner = &*self.0;
        let device = lock(&inner.device);
        let (name, rates, memory, fault) = match &*device {
            Opening::Open(device) => {
                let (major, minor) = device.compute;
                let name = format!("{} (compute {major}.{minor})", device.name);
                (Some(name), Some(device.rates), device.memory, device.lost())
            }
            Opening::Under => (None, None, (0, 0), None),
            Opening::Failed(fault) => (None, None, (0, 0), Some(*fault)),
        };
        Status {
            choice: inner.choice,
            number: inner.number,
            device: name,
            fault: fault.filter(|_| inner.choice != Choice::Cpu),
            device_rates: rates,
            cpu_rates: *inner.rates(),
            device_memory: memory.0,
            pinned_memory: memory.1,
            counters: *lock(&inner.counters),
        }
    }
}

impl Inner {
    fn rates(&self) -> &Rates {
        self.rates.get().unwrap_or(&UNMEASURED)
    }
}

/// Ends an opening; what was opened for an accelerator that is gone is closed.
fn opened(accelerator: &Weak<Inner>, result: Result<Arc<Device>, Fault>) {
    let Some(inner) = accelerator.upgrade() else {
        return;
    };
    if result.is_ok() {
        inner.rates.get_or_init(|| measure_cpu(&inner.options));
    }
    *lock(&inner.device) = match result {
        Ok(device) => Opening::Open(device),
        Err(fault) => Opening::Failed(fault),
    };
    inner.opened.notify_all();
}

impl fmt::Debug for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Accelerator({})", self.0.choice)
    }
}

/// Pieces without their type.
fn forgotten<W: DerefMut<Target = [u8]> + Send + 'static>(write: Vec<W>) -> Vec<Box<dyn Piece>> {
    let boxed = |piece: W| Box::new(piece) as Box<dyn Piece>;
    write.into_iter().map(boxed).collect()
}

fn done<W: 'static>(
    pieces: Vec<Box<dyn Piece>>,
    found: Found,
    ran: Ran,
    fault: Option<Fault>,
) -> Done<W> {
    let typed = |piece: Box<dyn Piece>| {
        let piece = piece.into_any().downcast::<W>();
        *piece.expect("a job's pieces come back as what they went in")
    };
    Done {
        write: pieces.into_iter().map(typed).collect(),
        digests: found.digests,
        roots: found.roots,
        ran,
        fault,
    }
}

const UNMEASURED: Rates = Rates {
    products: f64::INFINITY,
    digests: [f64::INFINITY; 7],
};

/// One core's rates, the best of three.
#[expect(clippy::cast_precision_loss, reason = "rates")]
fn measure_cpu(options: &Options) -> Rates {
    const K: usize = 8;
    const ROWS: usize = 4;
    let Some(clock) = &options.clock else {
        return UNMEASURED;
    };
    let bytes = (options.calibrate_bytes / 8).clamp(32 << 10, 1 << 20);
    let rate = |work: usize, coding: Option<Arc<Coding>>, function: Option<Function>| {
        let strip = 4096;
        let stripes = bytes / (K * strip);
        let digests = function.map(|function| Digests {
            function,
            block: 4096,
            of: Of::Read,
            form: Form::Plain,
            tree: None,
        });
        let rows = coding.as_ref().map_or(0, |_| ROWS);
        let fresh = |n| vec![0u8; n];
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            let read = vec![Box::new(vec![0x5au8; stripes * K * strip]) as crate::Input];
            let write = vec![fresh(stripes * rows * strip)];
            let Ok(job) = Job::new(strip, read, write, fresh, coding.clone(), digests.clone())
            else {
                break;
            };
            let mut pieces = forgotten(job.write);
            let from = clock();
            cpu::run(&job.plan, &mut pieces);
            best = best.min(clock().saturating_sub(from) as f64);
        }
        (stripes * K * strip * work) as f64 / best.max(1e-3) * 1e9
    };
    let code = ashlar_codec::Code::new(ashlar_codec::CodeKind::IsalCauchy, K, ROWS);
    let coding = code.ok().map(|code| Arc::new(Coding::encode(&code)));
    Rates {
        products: rate(ROWS, coding, None),
        digests: Function::ALL.map(|function| rate(1, None, Some(function))),
    }
}
