//! A GPU and the three threads that work with it.
//!
//! The *starter* takes waiting jobs, finds a free slot and puts them onto its stream. The *finisher* sleeps
//! until the oldest is done and answers it. The *watch* counts how long jobs are under way. All driver
//! calls are made by these threads, so that whoever submits never waits for the driver.
//!
//! **Invariants.**
//! - Every job that was accepted is answered: by the finisher, or with a fault by whoever found it.
//! - After the first fault the device is not used any more. Jobs that were under way are kept until the
//!   device is closed, because it may still write to their memory.
//! - A device that hangs is never waited for: its threads and memory are left to it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::driver::{self, Context, DeviceMemory, PinnedMemory as Pinned, Stream};
use super::kernels::{self, Kernels};
use super::parts::Sizes;
use super::slot::{Common, Slot};
use crate::cost::DeviceRates;
use crate::flight::{Flight, Landed, lock};
use crate::job::Plan;
use crate::region::Arena;
use crate::{Fault, Options};

/// What a thread does.
type Body = fn(&Shared);

/// The least that a slot may have; below that a device is not used.
const SLOT_MIN: usize = 64 << 10;

/// A job under way.
struct Flying {
    flight: Arc<Flight>,
    ticks: u32,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Arc<Flight>>,
    free: Vec<usize>,
    /// On their streams, oldest first: slot, job, and how many had been started before.
    started: VecDeque<(usize, Arc<Flight>, Option<u64>)>,
    flying: Vec<Flying>,
    starts: u64,
    /// Nanoseconds of accepted work.
    backlog: u64,
    stopped: bool,
    starter_done: bool,
    threads: u32,
    lost: Option<Fault>,
    hung: bool,
}

pub(super) struct Shared {
    pub(super) context: Arc<Context>,
    pub(super) slots: Vec<Slot>,
    pub(super) common: Common,
    state: Mutex<State>,
    /// Anything in the state has changed.
    changed: Condvar,
    queue: usize,
    tick: Duration,
    ticks: u32,
    seconds: u32,
}

/// An open GPU.
pub(crate) struct Device {
    pub(super) shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    pub(crate) name: String,
    pub(crate) compute: (u32, u32),
    pub(crate) rates: DeviceRates,
    pub(crate) memory: (usize, usize),
    pub(super) sizes: Sizes,
}

impl Device {
    /// Opens a device, tests it, measures it and starts its threads. Takes seconds the first time, when
    /// the driver compiles the kernels.
    pub(crate) fn open(number: u16, options: &Options) -> Result<Device, Fault> {
        let (context, about) = Context::open(number)?;
        let kernels = Kernels::load(&context)?;
        let crc_tables = upload(&context, &kernels::crc_tables())?;
        let slots = make_slots(&context, options)?;
        let sizes = slots[0].sizes();
        let arena = match options.pinned_bytes {
            0 => None,
            // Without an arena everything is copied once more; that is slower, not wrong.
            bytes => Arena::new(&context, bytes).ok(),
        };
        let (on_device, pinned) = sizes.total();
        let arena_bytes = arena.as_ref().map_or(0, |_| options.pinned_bytes);
        let memory = (on_device * slots.len(), pinned * slots.len() + arena_bytes);
        let common = Common {
            kernels,
            crc_tables,
            arena,
            multiprocessors: about.multiprocessors,
        };
        let deadline = options.deadline_ms.max(8);
        let shared = Shared {
            context,
            slots,
            common,
            state: Mutex::default(),
            changed: Condvar::new(),
            queue: options.queue,
            tick: Duration::from_millis(u64::from(deadline / 8)),
            ticks: 8,
            seconds: deadline.div_ceil(1000),
        };
        shared.test()?;
        let rates = shared.measure(options)?;
        let shared = Arc::new(shared);
        lock(&shared.state).free = (0..shared.slots.len()).collect();
        let mut device = Device {
            shared,
            threads: Vec::new(),
            name: about.name,
            compute: about.compute,
            rates,
            memory,
            sizes,
        };
        device.start_threads()?;
        Ok(device)
    }

    fn start_threads(&mut self) -> Result<(), Fault> {
        let bodies: [(&str, Body); 3] = [
            ("accel-start", Shared::starter),
            ("accel-finish", Shared::finisher),
            ("accel-watch", Shared::watch),
        ];
        for (name, body) in bodies {
            let shared = self.shared.clone();
            lock(&self.shared.state).threads += 1;
            let run = move || {
                let _ending = Ending(&shared);
                body(&shared);
            };
            match std::thread::Builder::new()
                .name(name.to_string())
                .spawn(run)
            {
                Ok(thread) => self.threads.push(thread),
                Err(_) => {
                    lock(&self.shared.state).threads -= 1;
                    return Err(Fault::NoThread);
                }
            }
        }
        Ok(())
    }

    /// Whether a slot and the kernels can take a job.
    pub(crate) fn fits(&self, plan: &Plan) -> bool {
        Slot::fits(&self.sizes, plan)
    }

    /// Bytes of input, and of output, that one job may have.
    pub(crate) fn job_bytes(&self) -> usize {
        self.sizes.data()
    }

    /// Nanoseconds of work before a new job; `None` if there is no room for it.
    pub(crate) fn backlog(&self) -> Option<u64> {
        let state = lock(&self.shared.state);
        let room = state.waiting.len() < self.shared.queue && state.lost.is_none();
        room.then_some(state.backlog)
    }

    /// Takes a job, or gives a fault if the device was lost meanwhile.
    pub(crate) fn submit(&self, flight: Arc<Flight>) {
        let mut state = lock(&self.shared.state);
        if let Some(fault) = state.lost {
            drop(state);
            flight.answer(Err(fault));
            return;
        }
        state.backlog += flight.cost;
        state.waiting.push_back(flight);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Not to be used any more.
    pub(crate) fn give_up(&self, fault: Fault) {
        self.shared.fail(fault, false);
    }

    /// Why it is not used any more, if so.
    pub(crate) fn lost(&self) -> Option<Fault> {
        lock(&self.shared.state).lost
    }

    pub(crate) fn arena(&self) -> Option<&Arc<Arena>> {
        // What a lost device may still write to is not handed out.
        self.shared
            .common
            .arena
            .as_ref()
            .filter(|_| self.lost().is_none())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let shared = &self.shared;
        let mut state = lock(&shared.state);
        state.stopped = true;
        let waiting: Vec<_> = state.waiting.drain(..).collect();
        shared.changed.notify_all();
        drop(state);
        for flight in waiting {
            flight.answer(Err(Fault::Closed));
        }
        let mut state = lock(&shared.state);
        while state.threads > 0 && !state.hung {
            state = sleep(&shared.changed, state);
        }
        let hung = state.hung;
        drop(state);
        if hung {
            return;
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Tells that a thread ends, however it does.
struct Ending<'a>(&'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(Fault::Panic, false);
        }
        lock(&self.0.state).threads -= 1;
        self.0.changed.notify_all();
    }
}

fn sleep<'a>(condition: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    condition
        .wait(state)
        .unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that stay on the device.
fn upload(context: &Arc<Context>, bytes: &[u8]) -> Result<DeviceMemory, Fault> {
    let memory = DeviceMemory::new(context, bytes.len())?;
    let staging = Pinned::new(context, bytes.len())?;
    let stream = Stream::new(context)?;
    driver::fill(&stream, &memory, &staging, bytes)?;
    Ok(memory)
}

/// As many slots as asked for, smaller ones if memory is short.
fn make_slots(context: &Arc<Context>, options: &Options) -> Result<Vec<Slot>, Fault> {
    let mut bytes = options.slot_bytes.max(SLOT_MIN).next_multiple_of(4096);
    loop {
        let sizes = Sizes::new(bytes);
        let slots: Result<Vec<Slot>, Fault> = (0..options.slots.max(1))
            .map(|_| Slot::new(context, sizes))
            .collect();
        match slots {
            Err(Fault::Memory { .. }) if bytes / 2 >= SLOT_MIN => {
                bytes = (bytes / 2).next_multiple_of(4096);
            }
            other => return other,
        }
    }
}

impl Shared {
    fn starter(&self) {
        let mut failed = self.context.make_current().err();
        loop {
            if let Some(fault) = failed.take() {
                self.fail(fault, false);
            }
            let mut state = lock(&self.state);
            let (slot, flight) = loop {
                if state.stopped || state.lost.is_some() {
                    state.starter_done = true;
                    self.changed.notify_all();
                    return;
                }
                if !state.free.is_empty()
                    && let Some(flight) = state.waiting.pop_front()
                {
                    break (state.free.pop().unwrap_or(0), flight);
                }
                state = sleep(&self.changed, state);
            };
            state.starts += 1;
            let alone = state.flying.is_empty().then_some(state.starts);
            state.flying.push(Flying {
                flight: flight.clone(),
                ticks: 0,
            });
            drop(state);
            self.changed.notify_all();
            match self.slots[slot].start(&self.common, &flight) {
                Ok(()) => {
                    lock(&self.state).started.push_back((slot, flight, alone));
                    self.changed.notify_all();
                }
                Err(fault) => failed = Some(fault),
            }
        }
    }

    fn finisher(&self) {
        if let Err(fault) = self.context.make_current() {
            self.fail(fault, false);
        }
        loop {
            let mut state = lock(&self.state);
            let (slot, flight, alone) = loop {
                if state.lost.is_some() {
                    return;
                }
                if let Some(next) = state.started.pop_front() {
                    break next;
                }
                if state.starter_done {
                    return;
                }
                state = sleep(&self.changed, state);
            };
            drop(state);
            let (found, nanos) = match self.slots[slot].finish(&self.common, &flight) {
                Ok(done) => done,
                Err(fault) => {
                    self.fail(fault, false);
                    return;
                }
            };
            let mut state = lock(&self.state);
            if state.lost.is_some() {
                return;
            }
            let alone = alone == Some(state.starts);
            state
                .flying
                .retain(|flying| !Arc::ptr_eq(&flying.flight, &flight));
            state.backlog = state.backlog.saturating_sub(flight.cost);
            state.free.push(slot);
            drop(state);
            self.changed.notify_all();
            flight.answer(Ok(Landed {
                found,
                nanos,
                alone,
            }));
        }
    }

    fn watch(&self) {
        let mut state = lock(&self.state);
        loop {
            let others_done = state.threads <= 1;
            if state.lost.is_some() || (state.stopped && others_done) {
                return;
            }
            if state.flying.is_empty() {
                state = sleep(&self.changed, state);
                continue;
            }
            let (guard, waited) = self
                .changed
                .wait_timeout(state, self.tick)
                .unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if !waited.timed_out() {
                continue;
            }
            for flying in &mut state.flying {
                flying.ticks += 1;
            }
            if state.flying.iter().any(|flying| flying.ticks > self.ticks) {
                drop(state);
                self.fail(
                    Fault::Timeout {
                        seconds: self.seconds,
                    },
                    true,
                );
                return;
            }
        }
    }

    /// Gives the device up: whoever waits is told, and nothing of it is used again.
    fn fail(&self, fault: Fault, hung: bool) {
        let mut state = lock(&self.state);
        // The first one counts, whoever finds another meanwhile.
        let fault = *state.lost.get_or_insert(fault);
        state.hung |= hung;
        let mut told: Vec<_> = state.waiting.drain(..).collect();
        told.extend(state.flying.iter().map(|flying| flying.flight.clone()));
        drop(state);
        self.changed.notify_all();
        for flight in told {
            flight.answer(Err(fault));
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Nothing of what follows may still be in use by the device.
        let _ = self.context.make_current();
        let _ = self.context.synchronize();
    }
}
