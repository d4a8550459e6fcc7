//! The modelled device: service times of a named drive on the clock of a runtime, in virtual time for
//! exact and repeatable measurements.
//!
//! The model. A drive is one busy-time resource. A read costs `max(1/read_iops, bytes/bandwidth)`. A
//! write that continues one of the last [`WRITE_POINTS`] write points, or begins a discarded slot,
//! costs `max(1/command_iops, bytes/bandwidth)`; any other write costs its mapping units divided by
//! `write_iops` (at least what its bytes cost). A flush costs what the profile says, a discard one
//! command. Operations are served in turns of [`QUANTUM`] bytes; a latency floor is added that keeps
//! nothing busy. There is no cache and no burst credit. A drive with a moving head serves whole
//! operations in order and pays seek and half a turn at every discontinuity, reads and writes alike; one that goes on a
//! little further ahead pays for what passes under the head instead, where that is less.
//! Profiles with a mixed row let reads run beside writes, or take longer after them, while the drive
//! is kept busy ([`Profile::read_gain_permille`]).
//!
//! Invariants:
//! - An operation takes effect on content and counters when it is submitted, and is answered at its
//!   time; the model never fails.
//! - The same operations at the same times cost the same: no randomness.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use ashlar_rt::{BLOCK, Buf, Nanos, Rt, Slice};

use super::profile::{Profile, Rotation};
use super::server::{Cost, PICOS, Picos, Server, Ticket};

use crate::trimmed::Trimmed;
use crate::{Counters, Device, DeviceInfo, Fault, IoFuture, OpKind, check_range, check_write};

/// Write points that a drive keeps open at once.
pub const WRITE_POINTS: usize = 64;
/// Bytes of an operation that are served in one turn.
pub const QUANTUM: u64 = 64 << 10;
/// Writes whose gain or loss for reads is carried over at most.
const GAIN_WRITES: i64 = 16;
/// Picoseconds of a second.
const SECOND_PICOS: u128 = 1_000_000_000_000;

/// Whether a modelled device keeps what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Reads give what was written; zeros at the end of a block take no memory.
    Store,
    /// Nothing is kept; reads give zeros.
    Discard,
}

/// How a [`ModelDevice`] is made.
#[derive(Clone, Copy, Debug)]
pub struct ModelOptions {
    /// Capacity in bytes, a multiple of `slot_bytes`.
    pub size_bytes: u64,
    /// Whether content is kept.
    pub content: Content,
    /// What counts as a slot where "a write begins a discarded slot"; a multiple of 4096.
    pub slot_bytes: u64,
    /// Whether all slots begin as discarded, as on a drive just erased; else as written.
    pub erased: bool,
}

impl ModelOptions {
    /// An erased drive of `size_bytes` that keeps its content, with slots of 1 MiB.
    pub fn new(size_bytes: u64) -> ModelOptions {
        ModelOptions {
            size_bytes,
            content: Content::Store,
            slot_bytes: 1 << 20,
            erased: true,
        }
    }
}

/// What a modelled device has done since the last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelCounters {
    /// Operations and bytes.
    pub io: Counters,
    /// Writes charged as random ones.
    pub scattered_writes: u64,
    /// Seeks of a drive with a moving head.
    pub seeks: u64,
    /// Time that the operations keep the drive busy, those still queued included.
    pub busy: Nanos,
}

/// What the cost of the next operation depends on.
struct Media {
    /// Ends of the last writes, most recent last.
    points: VecDeque<u64>,
    /// One bit for each slot: discarded, and not written since.
    discarded: Vec<u64>,
    /// Where the head is (with a rotation).
    head: u64,
}

/// A drive of a named [`Profile`].
pub struct ModelDevice {
    rt: Rt,
    info: DeviceInfo,
    profile: Profile,
    options: ModelOptions,
    server: Rc<RefCell<Server>>,
    media: RefCell<Media>,
    content: RefCell<Trimmed>,
    counters: Cell<ModelCounters>,
    slowdown: Cell<u32>,
    /// What the writes in the queue have done to the reads that follow, in picoseconds.
    gain: Cell<i64>,
}

impl std::fmt::Debug for ModelDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelDevice")
            .field("info", &self.info)
            .field("profile", &self.profile.name)
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

impl ModelDevice {
    /// A device called `name`, on the clock of `rt`.
    ///
    /// # Panics
    /// When the sizes in `options` are not as described there.
    pub fn new(rt: &Rt, name: &str, profile: Profile, options: ModelOptions) -> ModelDevice {
        let slot = options.slot_bytes;
        assert!(
            slot > 0 && slot.is_multiple_of(BLOCK as u64),
            "a slot is whole blocks"
        );
        assert_eq!(options.size_bytes % slot, 0, "a device is whole slots");
        let slots = options.size_bytes / slot;
        let words = usize::try_from(slots.div_ceil(64)).expect("slots fit the memory");
        let info = DeviceInfo {
            size_bytes: options.size_bytes,
            rotational: profile.rotation.is_some(),
            discard_bytes: if profile.rotation.is_some() {
                0
            } else {
                BLOCK as u64
            },
            name: name.to_string(),
            file: None,
        };
        let erased = if options.erased { u64::MAX } else { 0 };
        ModelDevice {
            rt: rt.clone(),
            info,
            profile,
            options,
            server: Rc::default(),
            media: RefCell::new(Media {
                points: VecDeque::with_capacity(WRITE_POINTS),
                discarded: vec![erased; words],
                head: 0,
            }),
            content: RefCell::default(),
            counters: Cell::default(),
            slowdown: Cell::new(1),
            gain: Cell::new(0),
        }
    }

    /// The profile it follows.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// What it has done since the last reset.
    pub fn counters(&self) -> ModelCounters {
        ModelCounters {
            busy: self.server.borrow().busy(),
            ..self.counters.get()
        }
    }

    /// Sets all counters to 0.
    pub fn reset_counters(&self) {
        self.counters.set(ModelCounters::default());
        self.server.borrow_mut().reset();
    }

    /// Marks every slot as written: a drive that was filled before.
    pub fn precondition(&self) {
        self.media.borrow_mut().discarded.fill(0);
    }

    /// Makes every operation from now on take `factor` times as long, latency included.
    pub fn set_slowdown(&self, factor: u32) {
        assert!(
            factor > 0,
            "a drive that never answers is a matter of FaultFilter"
        );
        self.slowdown.set(factor);
    }

    /// Bytes of memory that the content takes.
    pub fn memory_bytes(&self) -> u64 {
        self.content.borrow().bytes()
    }

    /// Queues an operation of `cost`; it is answered at the end of its service plus `latency`.
    fn serve<T: 'static>(&self, cost: Cost, latency: Nanos, value: T) -> IoFuture<T> {
        let factor = u64::from(self.slowdown.get());
        let cost = Cost {
            total: cost.total * factor,
            ..cost
        };
        let ticket = self.server.borrow_mut().add(self.rt.now(), cost);
        let (rt, server) = (self.rt.clone(), self.server.clone());
        Box::pin(async move {
            answer_time(&rt, &server, &ticket, latency * factor).await;
            value
        })
    }

    /// The cost of an operation of a mixed load.
    fn mixed(&self, is_read: bool, cost: Cost) -> Cost {
        let permille = self.profile.read_gain_permille;
        if permille == 0 {
            return cost;
        }
        let idle = self.server.borrow_mut().is_idle(self.rt.now());
        let gain = if idle { 0 } else { self.gain.get() };
        let own = i64::try_from(cost.total).expect("an operation takes less than months");
        if !is_read {
            let one = own * permille / 1000;
            let most = one.abs() * GAIN_WRITES;
            self.gain.set((gain + one).clamp(-most, most));
            return cost;
        }
        let used = gain.min(own - 1);
        self.gain.set(gain - used);
        let total = Picos::try_from(own - used).expect("at least 1");
        Cost { total, ..cost }
    }

    fn count(&self, change: impl FnOnce(&mut ModelCounters)) {
        let mut counters = self.counters.get();
        change(&mut counters);
        self.counters.set(counters);
    }

    /// The cost of a transfer, where the head goes first if there is one.
    fn transfer(&self, offset: u64, bytes: u64, electronics: Picos) -> Cost {
        let Some(rotation) = &self.profile.rotation else {
            return Cost {
                quanta: bytes.div_ceil(QUANTUM).max(1),
                total: electronics,
            };
        };
        let mut media = self.media.borrow_mut();
        let mut total = time(
            bytes,
            rotation.bandwidth(offset + bytes / 2, self.info.size_bytes),
        );
        if media.head != offset {
            let seek = (rotation.seek + rotation.half_turn) * PICOS;
            // A little ahead: what lies between passes under the head.
            let skip = offset
                .checked_sub(media.head)
                .map(|gap| time(gap, rotation.bandwidth(offset, self.info.size_bytes)));
            match skip.filter(|skip| *skip < seek) {
                Some(skip) => total += skip,
                None => {
                    total += seek;
                    self.count(|counters| counters.seeks += 1);
                }
            }
        }
        media.head = offset + bytes;
        Cost {
            quanta: 1,
            total: total.max(time(1, self.profile.command_iops)),
        }
    }

    /// The cost of a write for a drive without a head, and what it does to write points and slots.
    fn write_cost(&self, offset: u64, bytes: u64) -> Picos {
        let mut media = self.media.borrow_mut();
        let slot = self.options.slot_bytes;
        let continues = media.points.iter().position(|point| *point == offset);
        let begins = offset.is_multiple_of(slot) && media.is_discarded(offset / slot);
        if let Some(place) = continues {
            media.points.remove(place);
        } else if media.points.len() == WRITE_POINTS {
            media.points.pop_front();
        }
        media.points.push_back(offset + bytes);
        media.mark(offset / slot, (offset + bytes).div_ceil(slot), false);
        let moved = time(bytes, self.profile.write_bytes_per_second);
        if continues.is_some() || begins {
            return moved.max(time(1, self.profile.command_iops));
        }
        self.count(|counters| counters.scattered_writes += 1);
        let unit = self.profile.write_unit_bytes;
        let units = (offset + bytes).div_ceil(unit) - offset / unit;
        moved.max(time(units, self.profile.write_iops))
    }
}

impl Media {
    fn is_discarded(&self, slot: u64) -> bool {
        let word = usize::try_from(slot / 64).expect("a slot of this device");
        self.discarded[word] >> (slot % 64) & 1 == 1
    }

    /// Marks the slots from `first` to before `end`.
    fn mark(&mut self, first: u64, end: u64, discarded: bool) {
        for slot in first..end {
            let word = usize::try_from(slot / 64).expect("a slot of this device");
            let bit = 1 << (slot % 64);
            if discarded {
                self.discarded[word] |= bit;
            } else {
                self.discarded[word] &= !bit;
            }
        }
    }
}

impl Rotation {
    /// Bytes per second at `offset` of a drive of `size` bytes.
    fn bandwidth(&self, offset: u64, size: u64) -> u64 {
        let fall = u128::from(self.outer_bytes_per_second - self.inner_bytes_per_second);
        let part = fall * u128::from(offset.min(size)) / u128::from(size.max(1));
        self.outer_bytes_per_second - u64::try_from(part).expect("less than the bandwidth")
    }
}

/// How long `amount` takes at `per_second`.
pub(super) fn time(amount: u64, per_second: u64) -> Picos {
    let picos = u128::from(amount) * SECOND_PICOS / u128::from(per_second);
    Picos::try_from(picos).unwrap_or(Picos::MAX)
}

pub(super) async fn answer_time(
    rt: &Rt,
    server: &RefCell<Server>,
    ticket: &Rc<Ticket>,
    latency: Nanos,
) {
    loop {
        let (end, certain) = server.borrow_mut().end(rt.now(), ticket);
        rt.sleep_until(end.div_ceil(PICOS) + latency).await;
        if certain {
            return;
        }
    }
}

impl Device for ModelDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        let bytes = buf.len() as u64;
        check_range(&self.info, offset, bytes);
        if bytes == 0 {
            return Box::pin(std::future::ready((buf, Ok(()))));
        }
        self.count(|counters| counters.io.count(OpKind::Read, bytes));
        match self.options.content {
            Content::Store => self.content.borrow().read(offset, &mut buf),
            Content::Discard => buf.fill(0),
        }
        let moved = time(bytes, self.profile.read_bytes_per_second);
        let electronics = moved.max(time(1, self.profile.read_iops));
        let cost = self.mixed(true, self.transfer(offset, bytes, electronics));
        self.serve(cost, self.profile.read_latency, (buf, Ok(())))
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        let bytes = check_write(&self.info, offset, &data);
        if bytes == 0 {
            return Box::pin(std::future::ready(Ok(())));
        }
        self.count(|counters| counters.io.count(OpKind::Write, bytes));
        if self.options.content == Content::Store {
            let mut content = self.content.borrow_mut();
            let mut at = offset;
            for slice in &data {
                content.write(at, slice);
                at += slice.len() as u64;
            }
        }
        let electronics = if self.profile.rotation.is_none() {
            self.write_cost(offset, bytes)
        } else {
            0
        };
        let cost = self.mixed(false, self.transfer(offset, bytes, electronics));
        self.serve(cost, self.profile.write_latency, Ok(()))
    }

    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        self.count(|counters| counters.io.count(OpKind::Flush, 0));
        let total = self.profile.flush * PICOS;
        self.serve(Cost { quanta: 1, total }, 0, Ok(()))
    }

    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        check_range(&self.info, offset, length);
        self.count(|counters| counters.io.count(OpKind::Discard, length));
        if self.options.content == Content::Store {
            self.content.borrow_mut().clear(offset, length);
        }
        let slot = self.options.slot_bytes;
        let (first, end) = (offset.div_ceil(slot), (offset + length) / slot);
        self.media.borrow_mut().mark(first, end, true);
        let total = time(1, self.profile.command_iops);
        self.serve(Cost { quanta: 1, total }, 0, Ok(()))
    }
}
