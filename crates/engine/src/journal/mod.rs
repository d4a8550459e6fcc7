//! The journal: two rings of records on the members, each record coded over a few of them.
//!
//! Invariants:
//! - One record is written at a time; it is durable when all its columns are flushed. So a record's
//!   `acknowledged` is the sequence before its own, and a record that exists proves that all before it
//!   were durable (rule R4).
//! - All records of an epoch use the epoch's device set. A column that cannot be written breaks the
//!   epoch: nothing is acknowledged until a new one has begun (rules R5, R10).
//! - Ring space is reused only once a durable delta record, or the root, carries a tail beyond it, so
//!   that recovery always knows where the needed part of each ring begins.

pub mod look;
pub mod recover;
pub mod sets;
pub mod window;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_codec::{Code, CodeKind};
use ashlar_format::BLOCK;
use ashlar_format::journal::{ColumnHeader, HEADER_BYTES, Ring};
use ashlar_format::root::{Epoch, RingPosition};
use ashlar_rt::{Buf, join_all};

use crate::journal::recover::Record;
use crate::journal::sets::RecordSet;
use crate::journal::window::Window;
use crate::planted::{self, Bug};
use crate::segment::table::Core;

/// Bytes of payload up to which one data column is used.
const SMALL_PAYLOAD: usize = 64 << 10;

/// Why a record was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendError {
    /// The ring has no room until its tail advances.
    Full,
    /// A device of the epoch failed: a new epoch is needed, then the record can be sent again.
    Broken,
}

/// The journal of an open array.
#[derive(Debug)]
pub struct Journal {
    core: Rc<Core>,
    ring_bytes: [u64; 2],
    /// Sets of members within one of which each record lies.
    groups: RefCell<Vec<RecordSet>>,
    epoch: RefCell<Epoch>,
    next: Cell<u64>,
    attempt: Cell<u32>,
    position: Cell<[RingPosition; 2]>,
    /// Where the needed part begins, by ring: known, and safe to reuse up to.
    tail: Cell<[RingPosition; 2]>,
    reusable: Cell<[RingPosition; 2]>,
    codes: RefCell<BTreeMap<(usize, usize), Code>>,
    /// The part that is still needed.
    pub window: Window,
}

fn slot(ring: Ring) -> usize {
    ring as usize
}

impl Journal {
    /// A journal that continues at `next` and `position` in `epoch`.
    pub fn new(
        core: &Rc<Core>,
        epoch: Epoch,
        next: u64,
        position: [RingPosition; 2],
        tail: [RingPosition; 2],
    ) -> Journal {
        let geometry = core.members[0].geometry();
        Journal {
            core: core.clone(),
            ring_bytes: [geometry.delta_ring_bytes, geometry.data_ring_bytes],
            groups: RefCell::default(),
            epoch: RefCell::new(epoch),
            next: Cell::new(next),
            attempt: Cell::new(0),
            position: Cell::new(position),
            tail: Cell::new(tail),
            reusable: Cell::new(tail),
            codes: RefCell::default(),
            window: Window::default(),
        }
    }

    /// Sets the sets of the present epoch: of members in use.
    pub fn set_groups(&self, groups: Vec<RecordSet>) {
        *self.groups.borrow_mut() = groups;
    }

    /// The next sequence.
    pub fn next(&self) -> u64 {
        self.next.get()
    }

    /// Begins a new epoch at the next sequence.
    pub fn begin_epoch(&self, epoch: Epoch, groups: Vec<RecordSet>) {
        assert_eq!(
            epoch.first,
            self.next.get(),
            "an epoch begins at the next sequence"
        );
        *self.epoch.borrow_mut() = epoch;
        self.set_groups(groups);
        self.attempt.set(self.attempt.get() + 1);
    }

    /// Positions of both rings: where the next records go.
    pub fn positions(&self) -> [RingPosition; 2] {
        self.position.get()
    }

    /// Where the data ring's needed part begins.
    pub fn data_tail(&self) -> RingPosition {
        self.tail.get()[1]
    }

    /// Where the needed parts of both rings begin.
    pub fn tails(&self) -> [RingPosition; 2] {
        self.tail.get()
    }

    /// Whether a record is needed still, and its place is no other's.
    pub fn needs(&self, record: &Record) -> bool {
        let at = slot(record.header.ring);
        record.header.position[at].count >= self.tail.get()[at].count
    }

    /// Bytes of both rings, and bytes in use.
    pub fn usage(&self, ring: Ring) -> (u64, u64) {
        let at = slot(ring);
        (
            self.ring_bytes[at],
            self.position.get()[at].bytes - self.reusable.get()[at].bytes,
        )
    }

    /// Notes that the data ring is needed only from `tail` on; reusable after the next delta record.
    pub fn settle_data(&self, tail: RingPosition) {
        let mut tails = self.tail.get();
        if tail.count > tails[1].count {
            tails[1] = tail;
            self.tail.set(tails);
        }
    }

    /// Notes that a durable root carries these tails.
    pub fn tails_are_durable(&self, delta: RingPosition, data: RingPosition) {
        let mut tails = self.tail.get();
        let mut reusable = self.reusable.get();
        for (at, tail) in [delta, data].into_iter().enumerate() {
            if tail.count > tails[at].count {
                tails[at] = tail;
            }
            if tail.count > reusable[at].count {
                reusable[at] = tail;
            }
        }
        self.tail.set(tails);
        self.reusable.set(reusable);
    }

    /// The largest payload of one record of a ring.
    pub fn max_payload(&self, ring: Ring) -> usize {
        let column = usize::try_from(self.ring_bytes[slot(ring)] / 8)
            .unwrap_or(1 << 30)
            .min(1 << 20);
        let w = self
            .groups
            .borrow()
            .iter()
            .map(|g| self.width_for(ring, g, usize::MAX).0)
            .min()
            .unwrap_or(1);
        (column.max(3 * BLOCK) - HEADER_BYTES) * w
    }

    /// Data and parity columns of a record. A column takes at most a sixteenth of a small ring.
    fn width_for(&self, ring: Ring, group: &RecordSet, payload: usize) -> (usize, usize) {
        let others = group.devices.len().saturating_sub(1);
        let m = usize::from(self.epoch.borrow().m).min(others);
        let most = group.most_data;
        let small = usize::try_from(self.ring_bytes[slot(ring)] / 16).unwrap_or(SMALL_PAYLOAD);
        let one = small.clamp(BLOCK, SMALL_PAYLOAD);
        (payload.div_ceil(one).clamp(1, most), m)
    }

    /// Whether `payload` bytes would fit into `ring`, leaving `share` 256ths of it free.
    pub fn has_room(&self, ring: Ring, payload: usize, share: u64) -> bool {
        let (size, used) = self.usage(ring);
        let max = self.max_payload(ring).max(1);
        let groups = self.groups.borrow();
        let Some(group) = groups.first() else {
            return false;
        };
        let records = payload.div_ceil(max).max(1);
        let (w, _) = self.width_for(ring, group, payload.min(max));
        let column = (HEADER_BYTES + payload.min(max).div_ceil(w)).next_multiple_of(BLOCK) as u64;
        // One more column for what is skipped at the ring's end.
        used + column * (records as u64 + 1) + size * share / 256 <= size
    }

    /// Writes one record and flushes it. On `Ok` it is durable, as is every record before it.
    ///
    /// Crash argument: every stripe and header that `payload` names has been flushed by the caller
    /// (R1). A record that is only partly written when power goes was never acknowledged: recovery
    /// takes it if w of its columns are whole, else it is the end. On an error nothing is
    /// acknowledged; the same sequence is sent again, as another attempt, under a new epoch whose root
    /// closes the old one before this sequence, so columns of the first attempt can never count.
    pub async fn append(&self, ring: Ring, payload: &[u8]) -> Result<Appended, AppendError> {
        let at = slot(ring);
        let sequence = self.next.get();
        let group = {
            let groups = self.groups.borrow();
            let live: Vec<&RecordSet> = groups.iter().filter(|g| !g.devices.is_empty()).collect();
            if live.is_empty() {
                return Err(AppendError::Broken);
            }
            live[usize::try_from(sequence).unwrap_or(0) % live.len()].clone()
        };
        let (w, m) = self.width_for(ring, &group, payload.len());
        let around = &group.devices;
        let rotation = usize::try_from(sequence).unwrap_or(0) % around.len();
        let devices: Vec<u16> = (0..w + m)
            .map(|c| around[(rotation + c) % around.len()])
            .collect();
        let (epoch, epoch_id) = {
            let epoch = self.epoch.borrow();
            (epoch.number, epoch.id)
        };
        let mut header = ColumnHeader {
            epoch,
            epoch_id,
            sequence,
            attempt: self.attempt.get(),
            ring,
            w: u16::try_from(w).expect("at most 8"),
            m: u16::try_from(m).expect("at most 255"),
            column: 0,
            payload_bytes: u32::try_from(payload.len()).expect("a record is below 4 GiB"),
            hash: ashlar_digest::plain(&[payload]),
            acknowledged: sequence - 1,
            position: self.position.get(),
            data_tail: self.tail.get()[1],
            share_digest: [0; 32],
            devices,
        };
        let column_bytes = header.column_bytes() as u64;
        let size = self.ring_bytes[at];
        let start = header.position[at].bytes;
        if start % size + column_bytes > size {
            header.position[at].bytes = start.next_multiple_of(size);
        }
        let end = header.position[at].bytes + column_bytes;
        if end - self.reusable.get()[at].bytes > size {
            return Err(AppendError::Full);
        }
        if !self.write_columns(&header, payload, None).await {
            return Err(AppendError::Broken);
        }
        let mut position = self.position.get();
        position[at] = RingPosition {
            count: position[at].count + 1,
            bytes: end,
        };
        self.position.set(position);
        if ring == Ring::Delta {
            let mut reusable = self.reusable.get();
            reusable[1] = header.data_tail;
            self.reusable.set(reusable);
        }
        self.next.set(sequence + 1);
        self.attempt.set(0);
        Ok(Appended {
            sequence,
            position: header.position[at],
        })
    }

    /// Writes the columns of the last record that are not there, where it lies: power may have gone after only
    /// some of them were written.
    ///
    /// Crash argument: those that are there may be all that an acknowledged write has. They are durable by now
    /// (`import::recover`), and not written: power that goes meanwhile can leave anything where a write was, also one
    /// of the same bytes.
    pub async fn complete(&self, record: &Record) {
        let all = &record.header.devices;
        self.write_columns(&record.header, &record.payload, Some(all))
            .await;
    }

    /// Writes the columns of a record on these devices again, where they are not what was written; the caller holds the
    /// log lock, and the record is needed still.
    ///
    /// Crash argument: only bad columns are written, in their place: torn, they are as bad as before. While the lock is
    /// held no other record takes their place.
    pub async fn restore(&self, record: &Record, devices: &[u16]) {
        self.write_columns(&record.header, &record.payload, Some(devices))
            .await;
    }

    fn code(&self, w: usize, m: usize) -> Code {
        self.codes
            .borrow_mut()
            .entry((w, m))
            .or_insert_with(|| {
                Code::new(CodeKind::IsalCauchy, w, m)
                    .expect("a Cauchy code exists for any w + m <= 256")
            })
            .clone()
    }

    /// Writes and flushes the columns of a record; `missing`: of those on these devices what is not there.
    /// Whether all devices took theirs.
    async fn write_columns(
        &self,
        header: &ColumnHeader,
        payload: &[u8],
        missing: Option<&[u16]>,
    ) -> bool {
        let (w, m) = (usize::from(header.w), usize::from(header.m));
        let share = header.share_bytes();
        let mut columns: Vec<Buf> = (0..w + m)
            .map(|_| Buf::zeroed(header.column_bytes()))
            .collect();
        for (column, bytes) in columns.iter_mut().zip(payload.chunks(share.max(1))) {
            column[HEADER_BYTES..HEADER_BYTES + bytes.len()].copy_from_slice(bytes);
        }
        {
            let (data, parity) = columns.split_at_mut(w);
            let data: Vec<&[u8]> = data
                .iter()
                .map(|c| &c[HEADER_BYTES..HEADER_BYTES + share])
                .collect();
            let mut parity: Vec<&mut [u8]> = parity
                .iter_mut()
                .map(|c| &mut c[HEADER_BYTES..HEADER_BYTES + share])
                .collect();
            self.code(w, m).encode(&data, &mut parity);
        }
        let ring_offset =
            header.position[slot(header.ring)].bytes % self.ring_bytes[slot(header.ring)];
        let (mut joins, compare) = (Vec::new(), missing.is_some());
        for (index, mut column) in columns.into_iter().enumerate() {
            let left_out =
                planted::on(Bug::JournalColumnLeftOut) && index > 0 && index + 1 == w + m;
            if left_out || missing.is_some_and(|m| !m.contains(&header.devices[index])) {
                continue;
            }
            let mut header = header.clone();
            header.column = u16::try_from(index).expect("at most 256");
            header.share_digest =
                ashlar_digest::plain(&[&column[HEADER_BYTES..HEADER_BYTES + share]]);
            column[..HEADER_BYTES].copy_from_slice(&header.encode(&self.core.identity.array));
            let core = self.core.clone();
            let device = header.devices[index];
            let offset = ring_start(&core, device, header.ring) + ring_offset;
            joins.push(self.core.rt.spawn(async move {
                let member = core.member(device);
                let there = compare
                    && (member.read(offset, column.len()).await).is_ok_and(|b| *b == *column);
                let done = (there || member.write(offset, vec![column.freeze()]).await.is_ok())
                    && (planted::on(Bug::JournalNotFlushed) || member.flush().await.is_ok());
                if !done {
                    core.report_failed(device);
                }
                done
            }));
        }
        join_all(joins).await.into_iter().all(|done| done)
    }
}

fn ring_start(core: &Core, device: u16, ring: Ring) -> u64 {
    let geometry = core.member(device).geometry();
    match ring {
        Ring::Delta => geometry.delta_ring_offset(),
        Ring::Data => geometry.data_ring_offset(),
    }
}

/// Where a record went.
#[derive(Debug, Clone, Copy)]
pub struct Appended {
    /// Its sequence.
    pub sequence: u64,
    /// Where it begins in its ring.
    pub position: RingPosition,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::testing::{RING_BYTES, bed};

    fn set(devices: &[u16], most_data: usize) -> RecordSet {
        RecordSet {
            devices: devices.to_vec(),
            most_data,
            survives_domains: false,
        }
    }

    fn journal(core: &Rc<Core>, m: u16) -> Journal {
        let epoch = Epoch {
            number: 1,
            id: [0; 16],
            first: 1,
            end: None,
            m,
            excluded: Vec::new(),
        };
        let start = [RingPosition::default(); 2];
        Journal::new(core, epoch, 1, start, start)
    }

    /// A record is as wide as its payload wants, and never wider than its set allows.
    #[test]
    fn a_record_grows_with_its_payload() {
        let bed = bed(6);
        let journal = journal(&bed.core, 2);
        let wide = set(&[0, 1, 2, 3, 4, 5], 4);
        for (payload, columns) in [
            (1, (1, 2)),
            (4096, (1, 2)),
            (4097, (2, 2)),
            (1 << 20, (4, 2)),
        ] {
            assert_eq!(
                journal.width_for(Ring::Delta, &wide, payload),
                columns,
                "{payload}"
            );
        }
        let pair = set(&[0, 1], 1);
        assert_eq!(
            journal.width_for(Ring::Delta, &pair, 1 << 20),
            (1, 1),
            "one other device"
        );
    }

    #[test]
    fn room_is_what_is_left_less_what_the_ring_end_may_skip() {
        let bed = bed(3);
        let journal = journal(&bed.core, 1);
        assert!(!journal.has_room(Ring::Delta, 1, 0), "no set, no record");
        journal.set_groups(vec![set(&[0, 1, 2], 1)]);
        assert!(journal.has_room(Ring::Delta, 1, 0));
        assert!(
            !journal.has_room(Ring::Delta, 1, 256),
            "all of it is to stay free"
        );
        assert_eq!(journal.usage(Ring::Delta), (RING_BYTES, 0));
        assert!(!journal.has_room(Ring::Delta, usize::try_from(RING_BYTES).unwrap(), 0));
    }

    /// With no device of a set in use a record breaks; the next epoch goes on with the same sequence.
    #[test]
    fn a_broken_epoch_sends_the_record_again() {
        let bed = bed(3);
        let journal = journal(&bed.core, 1);
        journal.set_groups(vec![set(&[0, 1], 1)]);
        let core = bed.core.clone();
        bed.rt.block_on(async move {
            let state = ashlar_format::superblock::MemberState::Failed;
            core.member(1).take_out(state);
            let broken = journal.append(Ring::Delta, &[1]).await.map(|_| ());
            assert_eq!(broken, Err(AppendError::Broken));
            assert_eq!(journal.next(), 1);
            let epoch = Epoch {
                number: 2,
                id: [0; 16],
                first: 1,
                end: None,
                m: 1,
                excluded: vec![1],
            };
            journal.begin_epoch(epoch, vec![set(&[0, 2], 1)]);
            assert_eq!(journal.append(Ring::Delta, &[1]).await.unwrap().sequence, 1);
        });
    }
}
