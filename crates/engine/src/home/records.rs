//! Journal records of the home: deltas and data, and which records of data recovery still needs.
//!
//! Invariant: a record says that a column lies on a member only if the member is read when the record is written. What
//! it says counts for an import for as long as the record is needed, and a member that comes back meanwhile holds none of
//! what was being placed on it when it left.

use std::borrow::Cow;
use std::rc::Rc;

use ashlar_format::journal::{DataEntry, Entry, Ring, encode_entries, entry_bytes};
use ashlar_rt::SECOND;

use crate::home::Home;
use crate::journal::{AppendError, Appended};
use crate::planted::{self, Bug};
use crate::protocol::Recorded;
use crate::segment::{NO_SLOT, Segment, stripe};

impl Home {
    /// Writes delta entries, in as many records as they need; the first sequence. A checkpoint cannot wait
    /// for a checkpoint: it gets `None` if the ring is full.
    pub(crate) async fn journal_deltas(
        self: &Rc<Self>,
        entries: &[Entry],
        in_checkpoint: bool,
    ) -> Option<u64> {
        let mut first = None;
        for group in split(entries, self.journal.max_payload(Ring::Delta)) {
            let out = |device: u16| !self.core.member(device).is_read();
            // Made with the log lock held: no member leaves or comes back meanwhile.
            let payload = || encode_entries(&places_that_count(group, out));
            let appended = self.append(Ring::Delta, payload, in_checkpoint).await?;
            self.journal.window.deltas_appended(appended);
            first.get_or_insert(appended.sequence);
        }
        Some(first.unwrap_or_else(|| self.journal.next()))
    }

    pub(crate) async fn journal_data(self: &Rc<Self>, told: &[Recorded]) {
        let mut entries = Vec::new();
        let mut stripes = Vec::new();
        for block in told.iter().flat_map(|t| &t.data) {
            entries.push(Entry::Data(DataEntry {
                tree: block.item.tree,
                address: block.item.address,
                place: block.place,
                algorithm: block.item.algorithm,
                digest: block.item.digest,
                bytes: block.bytes.clone(),
            }));
            stripes.push(block.stripe);
        }
        let mut stripes = stripes.into_iter();
        for group in split(&entries, self.journal.max_payload(Ring::Data)) {
            let appended = self
                .append(Ring::Data, || encode_entries(group), false)
                .await;
            let appended = appended.expect("only a commit gives up");
            let held = stripes.by_ref().take(group.len());
            self.journal.window.data_appended(appended, held);
        }
    }

    /// Appends one record, through as many epochs and checkpoints as it takes.
    ///
    /// Only this says where the record went: the position before is another's, if others waited for the
    /// log first.
    async fn append(
        self: &Rc<Self>,
        ring: Ring,
        payload: impl Fn() -> Vec<u8>,
        in_checkpoint: bool,
    ) -> Option<Appended> {
        let mut pause = SECOND;
        loop {
            let result = {
                let log = self.log.turn.lock().await;
                if *log {
                    drop(log);
                    return std::future::pending().await; // the array is about to stop
                }
                // After a failure nothing is sent before the epoch has changed: two records of one
                // sequence, epoch and attempt could not be told apart.
                if self.core.failing.is_empty() {
                    self.journal.append(ring, &payload()).await
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
                Err(AppendError::Full) if in_checkpoint => return None,
                Err(AppendError::Full) => {
                    let before = self.journal.usage(ring).1;
                    Box::pin(self.checkpoint(self.journal.next())).await;
                    if self.journal.usage(ring).1 >= before {
                        self.core.events.note(
                            "journal-full",
                            None,
                            "the journal is full and cannot be merged yet; writes wait until it can"
                                .to_string(),
                        );
                        let _ = self
                            .core
                            .rt
                            .timeout(pause, self.checkpoints.ended.wait())
                            .await;
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
            self.core.unsettled.borrow_mut().insert(segment.number);
        }
        self.liveness.mark_header(segment);
        self.journal.window.stripe_recorded(segment.number, stripe);
        self.settle_data();
    }

    /// Lets go of the data ring up to the oldest record that is still needed.
    pub(crate) fn settle_data(&self) {
        let end = self.journal.positions()[1];
        if let Some(tail) = self.journal.window.data_tail(end) {
            let freed_early = planted::on(Bug::DataFreedEarly);
            self.journal
                .settle_data(if freed_early { end } else { tail });
        }
    }

    /// One past the last sequence that every shard has been told of, if it concerns shards at all.
    pub(crate) fn applied(&self) -> u64 {
        self.journal.window.applied(self.journal.next())
    }
}

/// Entries without the places on devices that are `out` of use.
fn places_that_count(entries: &[Entry], out: impl Fn(u16) -> bool) -> Cow<'_, [Entry]> {
    let is_out = |device: u16, slot: u32| slot != NO_SLOT && out(device);
    let names_out = |entry: &Entry| match entry {
        Entry::Open { columns, .. } => columns.iter().any(|(device, slot)| is_out(*device, *slot)),
        Entry::Column { device, slot, .. } => is_out(*device, *slot),
        _ => false,
    };
    if !entries.iter().any(names_out) {
        return Cow::Borrowed(entries);
    }
    let mut counting = Vec::with_capacity(entries.len());
    for mut entry in entries.iter().cloned() {
        match &mut entry {
            Entry::Column { device, slot, .. } if is_out(*device, *slot) => continue,
            Entry::Open { columns, .. } => {
                let gone = columns
                    .iter_mut()
                    .filter(|(device, slot)| is_out(*device, *slot));
                gone.for_each(|(_, slot)| *slot = NO_SLOT);
            }
            _ => {}
        }
        counting.push(entry);
    }
    Cow::Owned(counting)
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

#[cfg(test)]
mod tests {
    use ashlar_format::slot::SegmentKind;

    use super::*;

    /// A member that comes back while a record is needed holds nothing of what that says (#200).
    #[test]
    fn a_record_names_no_place_on_a_device_that_is_out() {
        let open = |columns: &[(u16, u32)]| Entry::Open {
            segment: 5,
            kind: SegmentKind::Data,
            code: 1,
            k: 2,
            m: 1,
            strip_blocks: 1,
            columns: columns.to_vec(),
        };
        let column = |device| Entry::Column {
            segment: 6,
            column: 1,
            version: 2,
            device,
            slot: 9,
        };
        let entries = [open(&[(0, 3), (1, 4), (1, NO_SLOT)]), column(1), column(2)];
        let counting = [open(&[(0, 3), (1, NO_SLOT), (1, NO_SLOT)]), column(2)];
        assert_eq!(places_that_count(&entries, |d| d == 1)[..], counting);
        let all = places_that_count(&entries, |d| d == 3);
        assert!(matches!(all, Cow::Borrowed(all) if all.len() == 3));
    }
}
