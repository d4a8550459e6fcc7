//! Members: the devices of an array, with their part in it, what is read and written, and their flushes.
//!
//! Invariants:
//! - A member gets only the I/O that its state is for ([`duties`]): one that is not read has no columns.
//! - [`Member::flush`] returns Ok only after a device flush that began after every write that had
//!   completed when it was called. A failed flush is never retried and trusted (rule R11): the caller
//!   must fail the member.
//! - After [`Member::keep_writes`] the device is only read: what is written stays in memory, and is what
//!   reads give.

pub mod arrival;
pub mod beat;
pub mod closed;
pub mod coming;
pub mod duties;
pub mod events;
pub mod failing;
pub mod fence;
pub mod quorum;
pub mod sent;
pub mod slots;

pub mod wipe;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_device::{DeviceRef, Fault, IoFuture};
use ashlar_format::BLOCK;
use ashlar_format::geometry::DeviceGeometry;
use ashlar_format::slot::SlotEntry;
use ashlar_format::superblock::MemberState;
use ashlar_rt::{Buf, Gate, Lock, Nanos, Rt, SECOND, Slice};

use elsa::FrozenVec;

use crate::counters::{Traffic, add};
use crate::locks;
use crate::members::duties::{ComesIn, Duties};
use crate::members::sent::{Asked, Change, Sent};
use crate::members::slots::Slots;
use crate::planted::{self, Bug};

/// How long an operation may take before the device counts as failed.
pub(crate) const DEADLINE: Nanos = 30 * SECOND;

/// What a member's faults and traffic were, since import.
#[derive(Debug, Default)]
pub struct Counters {
    /// Failed reads.
    pub read_errors: Cell<u64>,
    /// Failed writes and flushes.
    pub write_errors: Cell<u64>,
    /// Blocks whose digest did not match.
    pub digest_errors: Cell<u64>,
    /// Bytes read.
    pub read_bytes: Cell<u64>,
    /// Bytes written.
    pub written_bytes: Cell<u64>,
    /// Whether the last read got no answer.
    pub unanswered: Cell<bool>,
    /// Its I/O under way.
    pub traffic: Traffic,
}

/// A discard that is still under way.
pub type LateDiscard = IoFuture<Result<(), Fault>>;

/// What came of a discard.
pub enum Discard {
    /// It has ended.
    Ended(Result<(), Fault>),
    /// The device is still at it, and until it has ended the slot must not be written again.
    Late(LateDiscard),
}

/// A write that the device has, and that it is under way.
type Writing = (Asked, IoFuture<Result<(), Fault>>, Change);

/// The members of an array, by index. More come, and none goes: what is removed keeps its place.
pub type Members = FrozenVec<Box<Member>>;

/// The failure domain of a member.
struct FailureDomain {
    label: String,
    /// Epochs of the journal with a lower number are not laid by it.
    since: u64,
}

/// One device of an array.
pub struct Member {
    /// Its row in the member table.
    pub index: u16,
    domain: RefCell<FailureDomain>,
    uuid: Cell<[u8; 16]>,
    geometry: Cell<DeviceGeometry>,
    device: RefCell<Option<DeviceRef>>,
    /// How the device was reached that was let go.
    last_path: RefCell<String>,
    state: Cell<MemberState>,
    comes_in: Cell<ComesIn>,
    /// When it left, if it did.
    left_at: Cell<Nanos>,
    /// Of one that is out of use: the last checkpoint whose root counted it; 0: what it holds does not count.
    pub stale_since: Cell<u64>,
    /// The independent group that it belongs to.
    pub group: Option<u16>,
    /// Epochs of the journal with a lower number do not know of it.
    pub first_epoch: u64,
    /// By byte offset, the blocks written to a device that is only read.
    kept: RefCell<Option<BTreeMap<u64, Slice>>>,
    /// Faults and traffic.
    pub counters: Counters,
    /// Its slots.
    pub slots: Slots,
    /// Which copy of its superblock is the newer one: the next write goes to the other.
    pub super_copy: Cell<u32>,
    writes_done: Cell<u64>,
    flushed: Cell<u64>,
    flush_lock: Lock<()>,
    /// Opens when the state changes.
    pub changed: Gate,
    /// What is under way to it.
    pub sent: Rc<Sent>,
    rt: Rt,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Member({}, {:?})", self.index, self.state.get())
    }
}

impl Member {
    /// A member; `device` is `None` if it is missing.
    pub fn new(
        rt: &Rt,
        index: u16,
        uuid: [u8; 16],
        domain: String,
        geometry: DeviceGeometry,
        device: Option<DeviceRef>,
        state: MemberState,
    ) -> Member {
        Member {
            index,
            domain: RefCell::new(FailureDomain {
                label: domain,
                since: 0,
            }),
            uuid: Cell::new(uuid),
            geometry: Cell::new(geometry),
            device: RefCell::new(device),
            last_path: RefCell::default(),
            state: Cell::new(state),
            comes_in: Cell::default(),
            left_at: Cell::new(rt.now()),
            stale_since: Cell::new(0),
            group: None,
            first_epoch: 0,
            kept: RefCell::default(),
            counters: Counters::default(),
            slots: Slots::new(geometry.slots, geometry.table_pages()),
            super_copy: Cell::new(0),
            // A daemon that died may have left writes in the device's cache.
            writes_done: Cell::new(1),
            flushed: Cell::new(0),
            flush_lock: Lock::ranked((), locks::FLUSH),
            changed: Gate::default(),
            sent: Rc::default(),
            rt: rt.clone(),
        }
    }

    /// Its identity.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid.get()
    }

    /// Where things lie on it.
    pub fn geometry(&self) -> DeviceGeometry {
        self.geometry.get()
    }

    /// The label of its failure domain.
    pub fn domain(&self) -> String {
        self.domain.borrow().label.clone()
    }

    /// Epochs of the journal with a lower number are not laid by that label.
    pub fn domain_since(&self) -> u64 {
        self.domain.borrow().since
    }

    /// It is in another failure domain, since this epoch of the journal.
    pub fn set_domain(&self, label: String, since: u64) {
        self.domain.replace(FailureDomain { label, since });
    }

    /// Its part in the array.
    pub fn state(&self) -> MemberState {
        self.state.get()
    }

    /// What it is used for.
    fn duties(&self) -> Duties {
        let there = self.device.borrow().is_some();
        match self.comes_in.get().joining {
            true if there => Duties::JOINING,
            _ => Duties::of(self.state.get(), there),
        }
    }

    /// Whether it is read, and what lies on it counts as there.
    pub fn is_read(&self) -> bool {
        self.duties().read
    }

    /// Whether it is written.
    pub fn is_written(&self) -> bool {
        self.duties().written
    }

    /// Whether it is one of those that must agree on a generation.
    pub fn is_counted(&self) -> bool {
        self.duties().counted
    }

    /// Whether it holds records of new epochs of the journal, and roots.
    pub fn journals(&self) -> bool {
        self.duties().journals
    }

    /// Whether new columns are placed on it.
    pub fn takes_slots(&self) -> bool {
        self.duties().takes_slots
    }

    /// Takes it out: no more I/O goes to it, and the device is let go, so that it can be opened again.
    pub fn take_out(&self, state: MemberState) {
        if self.is_counted() {
            self.left_at.set(self.rt.now());
        }
        let leaves = self.state.replace(state) == MemberState::Removing;
        self.come_in(|c| {
            c.joining = false;
            c.was_leaving |= leaves;
        });
        self.last_path.replace(self.path());
        self.close();
        self.changed.open();
    }

    /// One in use is to leave, or is to stay after all.
    pub fn leave_or_stay(&self, leaves: bool) {
        self.state.set(match leaves {
            true => MemberState::Removing,
            false => MemberState::Online,
        });
        self.changed.open();
    }

    /// Whether it is out of use, and was in use before.
    pub fn is_missed(&self) -> bool {
        let never = matches!(self.state.get(), MemberState::Spare | MemberState::Removed);
        !self.is_counted() && !never
    }

    /// Since when it has been out of use, if it is.
    pub fn left_at(&self) -> Nanos {
        self.left_at.get()
    }

    /// Lets the device go: nothing is read or written any more, and whoever holds its lock may have it.
    pub fn close(&self) {
        self.device.borrow_mut().take();
    }

    /// A device is held for this row as a hot spare: nothing is read from it or written to it.
    pub fn hold(&self, device: DeviceRef, geometry: DeviceGeometry) {
        self.geometry.set(geometry);
        self.device.replace(Some(device));
    }

    /// Its device has grown: this is the same with its present size, and its newer superblock says that it is laid out so.
    pub fn grow(&self, device: DeviceRef, geometry: DeviceGeometry) {
        self.device.replace(Some(device));
        self.geometry.set(geometry);
        self.slots.grow(geometry.slots, geometry.table_pages());
        self.super_copy.set(0);
    }

    fn come_in(&self, change: impl FnOnce(&mut ComesIn)) {
        let mut now = self.comes_in.get();
        change(&mut now);
        self.comes_in.set(now);
    }

    /// How it was reached, or is; empty if it never was.
    pub fn path(&self) -> String {
        let device = self.device.borrow();
        let path = device.as_ref().map(|d| d.info().name.clone());
        path.unwrap_or_else(|| self.last_path.borrow().clone())
    }

    /// Whether its device is held open.
    pub fn is_held(&self) -> bool {
        self.device.borrow().is_some()
    }

    /// Its device, if it is held open.
    pub fn held(&self) -> Option<DeviceRef> {
        self.device.borrow().clone()
    }

    /// The device, if it is used so.
    fn device(&self, used: bool) -> Result<DeviceRef, Fault> {
        let device = self.device.borrow().clone();
        device.filter(|_| used).ok_or(Fault::Offline)
    }

    /// From now on nothing changes the device: writes stay in memory, which bounds them. For the recovery of
    /// an array that is imported read-only.
    pub fn keep_writes(&self) {
        self.kept.borrow_mut().get_or_insert_default();
    }

    fn keeps_writes(&self) -> bool {
        self.kept.borrow().is_some()
    }

    /// Takes a write into memory.
    fn keep(&self, offset: u64, data: &[Slice]) {
        let bytes: Vec<u8> = data.iter().flat_map(|s| s.iter().copied()).collect();
        assert!(
            offset.is_multiple_of(BLOCK as u64) && bytes.len().is_multiple_of(BLOCK),
            "whole blocks are written"
        );
        if let Some(kept) = &mut *self.kept.borrow_mut() {
            for (block, at) in bytes.chunks(BLOCK).zip((offset..).step_by(BLOCK)) {
                kept.insert(at, Buf::copy_of(block).freeze());
            }
        }
    }

    /// Puts what was written to memory over what the device gave for these bytes; whether that was all.
    fn overlay(&self, offset: u64, bytes: &mut [u8]) -> bool {
        let kept = self.kept.borrow();
        let Some(kept) = &*kept else { return false };
        let end = offset + bytes.len() as u64;
        let mut covered = 0;
        for (at, block) in kept.range(offset.saturating_sub(BLOCK as u64 - 1)..end) {
            let (from, to) = ((*at).max(offset), (at + BLOCK as u64).min(end));
            let part = |base: u64| {
                let place = |byte: u64| usize::try_from(byte - base).expect("in memory");
                place(from)..place(to)
            };
            bytes[part(offset)].copy_from_slice(&block[part(*at)]);
            covered += to - from;
        }
        covered == bytes.len() as u64
    }

    /// Whether the device still reaches that far: one may have shrunk since it was taken in, and what lay
    /// beyond its end is gone.
    pub(crate) fn reaches(device: &DeviceRef, end: u64) -> Result<(), Fault> {
        let there = end <= device.info().size_bytes;
        there.then_some(()).ok_or(Fault::Media)
    }

    /// Reads `length` bytes.
    pub async fn read(&self, offset: u64, length: usize) -> Result<Buf, Fault> {
        let device = self.device(self.is_read())?;
        if let Err(fault) = Member::reaches(&device, offset + length as u64) {
            add(&self.counters.read_errors, 1);
            return Err(fault);
        }
        add(&self.counters.read_bytes, length as u64);
        let mut written = Buf::zeroed(if self.keeps_writes() { length } else { 0 });
        if !written.is_empty() && self.overlay(offset, &mut written) {
            return Ok(written);
        }
        let _under_way = self.counters.traffic.begin(&self.rt);
        let asked = Asked::now(&self.rt, length as u64);
        let mut read = device.read(offset, Buf::scratch(length));
        match self.sent.answer(&self.rt, asked, &mut read).await {
            Some((mut buf, Ok(()))) => {
                self.counters.unanswered.set(false);
                self.overlay(offset, &mut buf);
                Ok(buf)
            }
            Some((_, Err(fault))) => {
                add(&self.counters.read_errors, 1);
                self.counters.unanswered.set(fault != Fault::Media);
                Err(fault)
            }
            None => {
                self.count_failed(&self.counters.read_errors, Fault::Timeout);
                self.counters.unanswered.set(true);
                Err(Fault::Timeout)
            }
        }
    }

    /// Whether the device answered when it was read last, if only that it does not give the bytes.
    pub fn answers(&self) -> bool {
        !self.counters.unanswered.get()
    }

    /// Writes slices one after another. The device has the write when this returns, so that writes reach it in the
    /// order of the calls; the future gives the result.
    pub fn write(
        &self,
        offset: u64,
        data: Vec<Slice>,
    ) -> impl Future<Output = Result<(), Fault>> + use<'_> {
        let begun = self.begin_write(offset, data);
        let counted = self.counters.traffic.begin(&self.rt);
        async move {
            let Some((asked, write, under_way)) = begun? else {
                return Ok(());
            };
            let result = self.answer_of(asked, write, under_way).await;
            drop(counted);
            self.writes_done.set(self.writes_done.get() + 1);
            if let Err(fault) = result {
                self.count_failed(&self.counters.write_errors, fault);
            }
            result
        }
    }

    /// Submits a write; `None` if it stays in memory.
    fn begin_write(&self, offset: u64, data: Vec<Slice>) -> Result<Option<Writing>, Fault> {
        let device = self.device(self.is_written())?;
        if self.keeps_writes() {
            self.keep(offset, &data);
            return Ok(None);
        }
        let length = data.iter().map(|s| s.len() as u64).sum();
        if let Err(fault) = Member::reaches(&device, offset + length) {
            add(&self.counters.write_errors, 1);
            return Err(fault);
        }
        add(&self.counters.written_bytes, length);
        let (asked, under_way) = (Asked::now(&self.rt, length), self.sent.change());
        Ok(Some((asked, device.write(offset, data), under_way)))
    }

    /// What came of a change that was begun then. One that nobody waits for any more stays under way until the device has
    /// ended it.
    async fn answer_of(
        &self,
        asked: Asked,
        mut change: IoFuture<Result<(), Fault>>,
        under_way: Change,
    ) -> Result<(), Fault> {
        let answer = self.sent.answer(&self.rt, asked, &mut change).await;
        answer.unwrap_or_else(|| {
            self.sent.leave(&self.rt, asked.begun, change, under_way);
            Err(Fault::Timeout)
        })
    }

    /// Makes durable every write completed so far.
    pub async fn flush(&self) -> Result<(), Fault> {
        if self.keeps_writes() {
            return self.device(self.is_written()).map(drop);
        }
        let target = self.writes_done.get();
        loop {
            if self.flushed.get() >= target && self.is_written() {
                return Ok(());
            }
            let _one = self.flush_lock.lock().await;
            let device = self.device(self.is_written())?;
            if self.flushed.get() >= target {
                return Ok(());
            }
            let covers = self.writes_done.get();
            let _counted = self.counters.traffic.begin(&self.rt);
            let under_way = self.sent.change();
            let (asked, flush) = (Asked::now(&self.rt, 0), device.flush());
            match self.answer_of(asked, flush, under_way).await {
                Ok(()) => self.flushed.set(covers),
                Err(_) if planted::on(Bug::FlushRetried) => {}
                Err(fault) => {
                    self.count_failed(&self.counters.write_errors, fault);
                    return Err(fault);
                }
            }
        }
    }

    /// Counts an operation that failed: not one that was not answered since nobody waited for it any more.
    pub(super) fn count_failed(&self, errors: &Cell<u64>, fault: Fault) {
        if fault != Fault::Timeout || !self.sent.is_given_up() {
            add(errors, 1);
        }
    }

    /// Whether its device discards slots.
    pub fn discards(&self) -> bool {
        let unit = self.held().map_or(0, |device| device.info().discard_bytes);
        unit > 0 && self.geometry().slot_bytes.is_multiple_of(unit)
    }

    /// Tells the device that a slot's content is no longer needed. Failing to is no fault of the device, and where it
    /// does not discard there is nothing to do.
    pub async fn discard_slot(&self, slot: u32) -> Discard {
        if self.keeps_writes() || !self.discards() {
            return Discard::Ended(Ok(()));
        }
        let (offset, length) = (
            self.geometry().slot_offset(slot),
            self.geometry().slot_bytes,
        );
        let device = self.device(self.is_written());
        let device = device.and_then(|d| Member::reaches(&d, offset + length).map(|()| d));
        let device = match device {
            Ok(device) => device,
            Err(fault) => return Discard::Ended(Err(fault)),
        };
        let (_counted, _under_way) = (self.counters.traffic.begin(&self.rt), self.sent.change());
        let mut discard = device.discard(offset, length);
        let ended = self.sent.unless_late(&self.rt, DEADLINE, &mut discard);
        match ended.await {
            Some(ended) => Discard::Ended(ended),
            None => Discard::Late(discard),
        }
    }

    /// A page of its slot table under a root, with the entries that count.
    pub fn table_page(
        &self,
        array: &[u8; 16],
        page: u32,
        root: u64,
        counts: impl Fn(&SlotEntry) -> bool,
    ) -> Slice {
        let table = self.slots.page(page, root, counts);
        Buf::copy_of(&table.encode(array, self.index)).freeze()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::testing::bed;

    /// What is written to a device that is only read is read back, and is not on the device.
    #[test]
    fn kept_writes_are_read_and_not_written() {
        let bed = bed(1);
        let core = bed.core.clone();
        bed.rt.block_on(async move {
            let member = core.member(0);
            member.keep_writes();
            let bytes = Buf::copy_of(&[0xAB; BLOCK]).freeze();
            member
                .write(BLOCK as u64, vec![bytes.clone()])
                .await
                .unwrap();
            member.flush().await.unwrap();
            assert_eq!(*member.read(BLOCK as u64, BLOCK).await.unwrap(), *bytes);
        });
        let mut held = [1; BLOCK];
        bed.disks[0].peek(BLOCK as u64, &mut held);
        assert_eq!(held, [0; BLOCK]);
    }

    #[test]
    fn one_change_of_a_member_at_a_time() {
        let bed = bed(1);
        let first = bed.core.member(0).come();
        assert!(first.is_some() && (0..2).all(|_| bed.core.member(0).come().is_none()));
    }

    #[test]
    fn a_member_that_is_out_is_not_read() {
        let bed = bed(1);
        let core = bed.core.clone();
        bed.rt.block_on(async move {
            let member = core.member(0);
            member.take_out(MemberState::Failed);
            assert!(!member.is_read() && !member.is_held());
            assert_eq!(member.path(), "mem0", "for people");
            assert!(member.read(0, BLOCK).await.is_err());
            assert!(member.flush().await.is_err());
        });
    }
}
