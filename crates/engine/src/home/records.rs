//! Journal records of the home: deltas and data, and which records of data recovery still needs.

use std::rc::Rc;

use ashlar_format::journal::{DataEntry, Entry, Ring, encode_entries, entry_bytes};
use ashlar_format::root::RingPosition;
use ashlar_rt::SECOND;

use crate::home::Home;
use crate::journal::recover::Record;
use crate::journal::{AppendError, Appended};
use crate::planted::{self, Bug};
use crate::protocol::Collected;
use crate::segment::{Segment, stripe};

/// A data record that recovery would still need.
#[derive(Debug)]
pub(super) struct DataRecord {
    sequence: u64,
    /// Position before it.
    position: RingPosition,
    /// Items whose stripe has not been recorded.
    outstanding: usize,
}

impl Home {
    /// Notes where the records that an import found lie in the ring of deltas.
    pub(crate) fn note_positions(&self, records: &[Record]) {
        let deltas = records.iter().filter(|r| r.header.ring == Ring::Delta);
        let positions = deltas.map(|r| (r.header.sequence, r.header.position[0]));
        self.delta_positions.borrow_mut().extend(positions);
    }

    /// Writes delta entries, in as many records as they need; the first sequence. A commit cannot wait
    /// for a commit: it gets `None` if the ring is full.
    pub(crate) async fn journal_deltas(
        self: &Rc<Self>,
        entries: &[Entry],
        in_commit: bool,
    ) -> Option<u64> {
        let mut first = None;
        for group in split(entries, self.journal.max_payload(Ring::Delta)) {
            let payload = encode_entries(group);
            let Appended { sequence, position } =
                self.append(Ring::Delta, &payload, in_commit).await?;
            let mut positions = self.delta_positions.borrow_mut();
            assert!(
                positions
                    .back()
                    .is_none_or(|(s, p)| *s < sequence && p.count < position.count),
                "records stand in the order of the log"
            );
            positions.push_back((sequence, position));
            first.get_or_insert(sequence);
        }
        Some(first.unwrap_or_else(|| self.journal.next()))
    }

    pub(crate) async fn journal_data(self: &Rc<Self>, collected: &[Collected]) {
        let mut entries = Vec::new();
        let mut stripes = Vec::new();
        for (item, stripe, bytes) in collected.iter().flat_map(|c| &c.data) {
            entries.push(Entry::Data(DataEntry {
                tree: item.tree,
                address: item.address,
                place: stripe.segment.place(stripe.block_in_segment(item.block)),
                algorithm: item.algorithm,
                digest: item.digest,
                bytes: bytes.clone(),
            }));
            stripes.push((stripe.segment.number, stripe.number));
        }
        let mut stripes = stripes.into_iter();
        for group in split(&entries, self.journal.max_payload(Ring::Data)) {
            let payload = encode_entries(group);
            let Appended { sequence, position } = self
                .append(Ring::Data, &payload, false)
                .await
                .expect("only a commit gives up");
            let record = DataRecord {
                sequence,
                position,
                outstanding: group.len(),
            };
            let mut records = self.data_records.borrow_mut();
            assert!(
                records
                    .back()
                    .is_none_or(|r| r.sequence < sequence && r.position.count < position.count),
                "records stand in the order of the log"
            );
            records.push_back(record);
            drop(records);
            for stripe in stripes.by_ref().take(group.len()) {
                self.data_by_stripe
                    .borrow_mut()
                    .entry(stripe)
                    .or_default()
                    .push(sequence);
            }
        }
    }

    /// Appends one record, through as many epochs and commits as it takes.
    ///
    /// Only this says where the record went: the position before is another's, if others waited for the
    /// log first.
    async fn append(
        self: &Rc<Self>,
        ring: Ring,
        payload: &[u8],
        in_commit: bool,
    ) -> Option<Appended> {
        let mut pause = SECOND;
        loop {
            let result = {
                let log = self.log_lock.lock().await;
                if self.log_ended.get() {
                    drop(log);
                    return std::future::pending().await; // the array is about to stop
                }
                // After a failure nothing is sent before the epoch has changed: two records of one
                // sequence, epoch and attempt could not be told apart.
                if self.core.failing.borrow().is_empty() {
                    self.journal.append(ring, payload).await
                } else {
                    Err(AppendError::Broken)
                }
            };
            match result {
                Ok(appended) => return Some(appended),
                Err(AppendError::Broken) if self.core.closed.get() => {
                    return std::future::pending().await;
                }
                Err(AppendError::Broken) => self.members_settled().await,
                Err(AppendError::Full) if self.core.closed.get() => {
                    return std::future::pending().await;
                }
                Err(AppendError::Full) if in_commit => return None,
                Err(AppendError::Full) => {
                    let before = self.journal.usage(ring).1;
                    Box::pin(self.commit(self.journal.next())).await;
                    if self.journal.usage(ring).1 >= before {
                        self.core.event(
                            "journal-full",
                            None,
                            "the journal is full of what cannot be folded yet; writes wait"
                                .to_string(),
                        );
                        let _ = self.core.rt.timeout(pause, self.committed.wait()).await;
                        pause = (2 * pause).min(60 * SECOND);
                    }
                }
            }
        }
    }

    /// A stripe is named by a durable record.
    pub(crate) fn stripe_recorded(&self, segment: &Segment, stripe: u32, sequence: u64) {
        assert_eq!(
            segment.recorded.get(),
            stripe,
            "stripes are recorded in order"
        );
        segment.recorded.set(stripe + 1);
        let course = segment.geometry.course_of(stripe);
        let end = course * segment.geometry.course_strips() + segment.geometry.strips_in(course);
        if stripe + 1 == end {
            stripe::finish_course(segment, end);
        } else if segment.rows_since.get().is_none() {
            segment.rows_since.set(Some(sequence));
        }
        self.mark_header(segment);
        let settled = self
            .data_by_stripe
            .borrow_mut()
            .remove(&(segment.number, stripe));
        for sequence in settled.into_iter().flatten() {
            let mut records = self.data_records.borrow_mut();
            if let Some(record) = records.iter_mut().find(|r| r.sequence == sequence) {
                record.outstanding -= 1;
            }
        }
        self.settle_data();
    }

    /// Lets go of the data ring up to the oldest record that is still needed. Crash argument: while
    /// recovery places what the ring had, the ring is all that has it until the batch of these stripes is
    /// durable; a commit before that must not name a later tail.
    pub(crate) fn settle_data(&self) {
        if self.recovering.get().is_some() {
            return;
        }
        let mut records = self.data_records.borrow_mut();
        while records.front().is_some_and(|r| r.outstanding == 0) {
            records.pop_front();
        }
        let tail = records
            .front()
            .filter(|_| !planted::on(Bug::DataFreedEarly))
            .map_or(self.journal.positions()[1], |r| r.position);
        self.journal.settle_data(tail);
    }

    /// One past the last sequence that every shard has been told of, if it concerns shards at all.
    pub(crate) fn applied(&self) -> u64 {
        self.untold.get().unwrap_or_else(|| self.journal.next())
    }

    /// The oldest sequence that unsettled data records hold.
    pub(crate) fn oldest_data(&self) -> Option<u64> {
        self.data_records.borrow().front().map(|r| r.sequence)
    }
}

/// Cuts entries into runs of at most `max` bytes (a larger entry stands alone).
fn split(entries: &[Entry], max: usize) -> Vec<&[Entry]> {
    let mut runs = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, entry) in entries.iter().enumerate() {
        let size = entry_bytes(entry);
        if index > start && bytes + size > max {
            runs.push(&entries[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += size;
    }
    if start < entries.len() {
        runs.push(&entries[start..]);
    }
    runs
}
