//! Devices over io_uring: files and block devices, with O_DIRECT where it works. One [`Ring`] per
//! runtime serves all its devices.
//!
//! Invariants:
//! - An operation belongs to the ring (its slot in `ops`) from its submission until its completion
//!   has been reaped, and with it its buffers, its iovecs and its file: dropping the future or the
//!   device changes nothing. Dropping the ring waits for all of them; what does not complete within
//!   [`DRAIN_SECONDS`] is leaked, never freed.
//! - At most as many operations are in flight as the completion queue has entries, so it cannot
//!   overflow; and at most [`LANE_MAX`] per device, so that a device that does not answer leaves room
//!   for the others. The rest queue in order of submission.
//! - Queued entries are handed to the kernel when [`SUBMIT_BATCH`] of them wait, and once per turn of
//!   the executor, always before it sleeps.

#![expect(
    unsafe_code,
    reason = "the kernel reads and writes buffers that the ring owns"
)]

mod op;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ashlar_rt::{Buf, Driver, Epoll, Rt, Slice, oneshot};
use io_uring::{IoUring, types};

use op::{Lane, Op, Reply, Step, Work};

use crate::discard::Discards;
use crate::erase::{aside, erase_now};
use crate::fault::Presence;
use crate::sync::size_of;
use crate::{Device, DeviceInfo, DeviceRef, Fault, IoFuture, aligned, check_range, check_write};

/// Operations in flight per device.
const LANE_MAX: usize = 128;
/// The same of a file on what may hang: each may hold a thread of the kernel then.
const SLOW_LANE_MAX: usize = 16;
/// Threads of the kernel for operations on files, at most: those that hang leave enough for others.
const THREADS_MAX: u32 = 1024;
/// Entries that wait before they are handed to the kernel within a turn.
const SUBMIT_BATCH: usize = 32;
/// Entries of the submission queue.
const SUBMISSION_ENTRIES: u32 = 256;
/// Entries of the completion queue, and the most operations in flight on a ring.
const COMPLETION_ENTRIES: u32 = 16_384;
/// Rounds of submitting and reaping in one turn, while completions make room for what waits.
const TURN_ROUNDS: u32 = 16;
/// How long the thread waits before it hands entries to a kernel again that had no memory for them.
const OUT_OF_MEMORY: Duration = Duration::from_millis(1);
/// How long dropping a ring waits for operations in flight.
const DRAIN_SECONDS: u32 = 10;

#[derive(Default)]
struct Slots {
    ops: Vec<Option<Op>>,
    free: Vec<usize>,
    in_flight: usize,
}

struct Inner {
    uring: RefCell<IoUring>,
    slots: RefCell<Slots>,
    starved: RefCell<VecDeque<Rc<Lane>>>,
    /// Entries in the submission queue that the kernel has not taken.
    unsubmitted: Cell<usize>,
    reaped: RefCell<Vec<(u64, i32)>>,
    lane_max: usize,
    in_flight_max: usize,
    epoll: Rc<Epoll>,
    token: Cell<u64>,
}

/// An io_uring instance of one runtime; cheap to clone, shared by all devices of that runtime.
#[derive(Clone)]
pub struct Ring(Rc<Inner>);

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

impl Ring {
    /// A ring whose completions the reactor of `rt` waits for.
    ///
    /// # Errors
    /// `Unsupported` when `rt` was not made by [`Rt::start`]; what the kernel says when it has no
    /// io_uring, or refuses it to this process.
    pub fn new(rt: &Rt) -> io::Result<Ring> {
        Ring::with_limits(rt, SUBMISSION_ENTRIES, COMPLETION_ENTRIES, LANE_MAX)
    }

    /// As [`Ring::new`], with the sizes of the two queues and the most operations in flight per
    /// device.
    ///
    /// # Errors
    /// As [`Ring::new`].
    pub fn with_limits(
        rt: &Rt,
        submission_entries: u32,
        completion_entries: u32,
        lane_max: usize,
    ) -> io::Result<Ring> {
        assert!(
            lane_max > 0,
            "a device has at least one operation in flight"
        );
        let epoll = rt.epoll().ok_or(io::ErrorKind::Unsupported)?;
        let uring = set_up(submission_entries, completion_entries)?;
        // Older kernels (before 5.15) have a limit of their own.
        let _ = uring
            .submitter()
            .register_iowq_max_workers(&mut [THREADS_MAX, 0]);
        let in_flight_max = uring.params().cq_entries() as usize;
        let inner = Rc::new(Inner {
            slots: RefCell::default(),
            starved: RefCell::default(),
            unsubmitted: Cell::new(0),
            reaped: RefCell::default(),
            lane_max,
            in_flight_max,
            epoll,
            token: Cell::new(0),
            uring: RefCell::new(uring),
        });
        let weak = Rc::downgrade(&inner);
        inner
            .token
            .set(inner.with_fd(|fd| inner.epoll.attach(fd, weak))?);
        Ok(Ring(inner))
    }

    /// Operations that the kernel has and has not completed.
    pub fn in_flight(&self) -> usize {
        self.0.slots.borrow().in_flight
    }
}

/// A ring with what this kernel offers: completions without interrupts to the submitting thread
/// (5.19, 6.0), else as before.
fn set_up(submission: u32, completion: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_cqsize(completion).setup_submit_all();
    builder
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_taskrun_flag();
    if let Ok(uring) = builder.build(submission) {
        return Ok(uring);
    }
    let mut plain = IoUring::builder();
    plain.setup_cqsize(completion);
    plain.build(submission)
}

impl Inner {
    fn with_fd<T>(&self, call: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        let uring = self.uring.borrow();
        // SAFETY: the ring's descriptor is open while `uring` is borrowed.
        call(unsafe { BorrowedFd::borrow_raw(uring.as_raw_fd()) })
    }

    /// Queues `op` behind the others of its device and starts what there is room for.
    fn add(&self, op: Op) {
        let lane = op.lane.clone();
        lane.waiting.borrow_mut().push_back(op);
        self.pump(&lane);
        if self.unsubmitted.get() >= SUBMIT_BATCH {
            self.submit();
        }
    }

    /// Starts operations of `lane` in order, as far as there is room.
    fn pump(&self, lane: &Rc<Lane>) {
        let most = match lane.slow {
            true => self.lane_max.min(SLOW_LANE_MAX),
            false => self.lane_max,
        };
        while lane.in_flight.get() < most {
            let Some(op) = lane.waiting.borrow_mut().pop_front() else {
                return;
            };
            if op.is_given_up() {
                continue;
            }
            let full = self.slots.borrow().in_flight >= self.in_flight_max;
            let refused = if full { Some(op) } else { self.start(op) };
            if let Some(op) = refused {
                lane.waiting.borrow_mut().push_front(op);
                if !lane.starved.replace(true) {
                    self.starved.borrow_mut().push_back(lane.clone());
                }
                return;
            }
            lane.in_flight.set(lane.in_flight.get() + 1);
        }
    }

    fn pump_starved(&self) {
        let count = self.starved.borrow().len();
        for _ in 0..count {
            let Some(lane) = self.starved.borrow_mut().pop_front() else {
                return;
            };
            lane.starved.set(false);
            self.pump(&lane);
        }
    }

    /// Gives `op` a slot and queues its entry; gives it back when the kernel takes no more entries.
    fn start(&self, op: Op) -> Option<Op> {
        if self.uring.borrow_mut().submission().is_full() {
            self.submit();
            if self.uring.borrow_mut().submission().is_full() {
                return Some(op);
            }
        }
        let mut slots = self.slots.borrow_mut();
        let index = slots.free.pop().unwrap_or_else(|| {
            slots.ops.push(None);
            slots.ops.len() - 1
        });
        let entry = slots.ops[index].insert(op).entry().user_data(index as u64);
        slots.in_flight += 1;
        // SAFETY: everything the entry points to is owned by the operation's slot, on the heap, and
        // stays there until its completion has been reaped.
        let pushed = unsafe { self.uring.borrow_mut().submission().push(&entry) };
        pushed.expect("the queue was seen not to be full");
        self.unsubmitted.set(self.unsubmitted.get() + 1);
        None
    }

    /// Hands queued entries to the kernel, and lets it post deferred completions.
    fn submit(&self) {
        loop {
            let waiting = self.unsubmitted.get();
            if waiting == 0 && !self.uring.borrow_mut().submission().taskrun() {
                return;
            }
            let result = self.uring.borrow().submit();
            match result {
                Ok(taken) => {
                    self.unsubmitted.set(waiting - taken.min(waiting));
                    return;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // Out of memory or of requests for now: the next turn tries again.
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => return,
                    _ => panic!("submitting to a ring that is ours: {error}"),
                },
            }
        }
    }

    /// Takes completions: how many there were.
    fn reap(&self) -> usize {
        let mut reaped = self.reaped.take();
        {
            let mut uring = self.uring.borrow_mut();
            reaped.extend(
                uring
                    .completion()
                    .map(|entry| (entry.user_data(), entry.result())),
            );
        }
        let count = reaped.len();
        for (index, result) in reaped.drain(..) {
            self.complete(index, result);
        }
        *self.reaped.borrow_mut() = reaped;
        count
    }

    fn complete(&self, index: u64, result: i32) {
        let op = {
            let mut slots = self.slots.borrow_mut();
            let index = usize::try_from(index).expect("an index of ours");
            let op = slots.ops[index]
                .take()
                .expect("one completion per operation");
            slots.free.push(index);
            slots.in_flight -= 1;
            op
        };
        let (lane, mut op) = (op.lane.clone(), op);
        lane.in_flight.set(lane.in_flight.get() - 1);
        match op.step(result) {
            Step::Done(result) => op.finish(result),
            // At the head: it was submitted before all that wait.
            Step::Again => lane.waiting.borrow_mut().push_front(op),
        }
        self.pump(&lane);
    }

    /// Waits up to a second for a completion.
    fn wait(&self) {
        let second = types::Timespec::new().sec(1);
        let uring = self.uring.borrow();
        // A timeout or a signal ends the wait: the caller counts.
        if let Ok(taken) = uring
            .submitter()
            .submit_with_args(1, &types::SubmitArgs::new().timespec(&second))
        {
            self.unsubmitted
                .set(self.unsubmitted.get().saturating_sub(taken));
        }
    }
}

impl Driver for Inner {
    fn turn(&self) -> bool {
        for round in 0..TURN_ROUNDS {
            if !self.starved.borrow().is_empty() {
                self.pump_starved();
            }
            self.submit();
            if self.reap() > 0 {
                continue;
            }
            if self.unsubmitted.get() == 0 {
                return round > 0;
            }
            // The kernel is out of memory or of requests: nothing wakes the executor when it has some again.
            std::thread::sleep(OUT_OF_MEMORY);
            return true;
        }
        true
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.with_fd(|fd| self.epoll.deregister(self.token.get(), fd));
        for _ in 0..DRAIN_SECONDS {
            while self.slots.borrow().in_flight > 0 || !self.starved.borrow().is_empty() {
                let before = self.slots.borrow().in_flight;
                self.pump_starved();
                self.wait();
                if self.reap() == 0 && before == self.slots.borrow().in_flight {
                    break;
                }
            }
        }
        let slots = self.slots.take();
        if slots.in_flight > 0 {
            // The kernel may still write into these buffers.
            std::mem::forget(slots);
        }
    }
}

/// A file or block device over a [`Ring`].
pub struct UringDevice {
    ring: Ring,
    lane: Rc<Lane>,
    info: DeviceInfo,
}

impl std::fmt::Debug for UringDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UringDevice")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

impl UringDevice {
    /// Serves `file`, which is open for what will be asked of it and at least `info.size_bytes` long.
    pub fn new(ring: &Ring, file: File, info: DeviceInfo) -> UringDevice {
        UringDevice::on(ring, file, info, false)
    }

    /// The same; `slow` if already handing an operation to its file system may wait.
    pub(crate) fn on(ring: &Ring, file: File, info: DeviceInfo, slow: bool) -> UringDevice {
        let presence = Arc::new(Presence::of(&file));
        let file = Arc::new(file);
        let lane = Lane {
            discards: presence
                .is_block()
                .then(|| Discards::new(file.clone(), presence.clone())),
            presence,
            file,
            slow,
            in_flight: Cell::new(0),
            waiting: RefCell::default(),
            starved: Cell::new(false),
        };
        UringDevice {
            ring: ring.clone(),
            lane: Rc::new(lane),
            info,
        }
    }

    fn add(&self, work: Work, offset: u64, left: u64) {
        self.ring.0.add(Op {
            lane: self.lane.clone(),
            work,
            offset,
            left,
            retries: 0,
            pausing: false,
        });
    }

    /// Submits what `make` makes; the future is its result. Without a reply the ring is gone.
    fn run(
        &self,
        offset: u64,
        left: u64,
        make: impl FnOnce(Reply) -> Work,
    ) -> IoFuture<Result<(), Fault>> {
        let (reply, receiver) = oneshot();
        self.add(make(reply), offset, left);
        Box::pin(async move { receiver.await.unwrap_or(Err(Fault::Offline)) })
    }
}

impl Device for UringDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        check_range(&self.info, offset, buf.len() as u64);
        let len = buf.len();
        if len == 0 {
            return Box::pin(std::future::ready((buf, Ok(()))));
        }
        let (reply, receiver) = oneshot();
        self.add(Work::Read { buf, reply }, offset, len as u64);
        Box::pin(async move {
            receiver
                .await
                .unwrap_or_else(|| (Buf::zeroed(len), Err(Fault::Offline)))
        })
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        let total = check_write(&self.info, offset, &data);
        if total == 0 {
            return Box::pin(std::future::ready(Ok(())));
        }
        let data: Vec<Slice> = data
            .into_iter()
            .filter(|s| !s.is_empty())
            .map(aligned)
            .collect();
        let iovecs = data
            .iter()
            .map(|slice| libc::iovec {
                // The kernel only reads through it.
                iov_base: slice.as_ptr().cast_mut().cast(),
                iov_len: slice.len(),
            })
            .collect();
        self.run(offset, total, |reply| Work::Write {
            _data: data,
            iovecs,
            first: 0,
            reply,
        })
    }

    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        self.run(0, 0, |reply| Work::Flush { reply })
    }

    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        check_range(&self.info, offset, length);
        if length == 0 || self.info.discard_bytes == 0 {
            return Box::pin(std::future::ready(Ok(())));
        }
        if let Some(discards) = &self.lane.discards {
            let (reply, receiver) = oneshot();
            discards.add(offset, length, reply);
            return Box::pin(async move { receiver.await.unwrap_or(Err(Fault::Offline)) });
        }
        self.run(offset, length, |reply| Work::Discard { reply })
    }

    fn resized(&self) -> IoFuture<Result<Option<DeviceRef>, Fault>> {
        let (ring, lane, info) = (self.ring.clone(), self.lane.clone(), self.info.clone());
        let size = aside(&lane.file, &lane.presence, |file, _| {
            size_of(file).map_err(|error| Fault::from_io(&error))
        });
        Box::pin(async move {
            let info = DeviceInfo {
                size_bytes: size.await?,
                ..info
            };
            Ok(Some(Rc::new(UringDevice { ring, lane, info }) as DeviceRef))
        })
    }

    fn erase(&self) -> IoFuture<Result<(), Fault>> {
        aside(&self.lane.file, &self.lane.presence, erase_now)
    }
}
