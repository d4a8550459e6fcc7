//! Looks at the needed records of the journal as they are on the devices: which columns are bad, and how.
//!
//! Invariants:
//! - It changes nothing, and judges nothing that was cut off meanwhile: its place may be another record's.
//! - Members that were out of an epoch hold nothing of it.

use std::rc::Rc;

use ashlar_format::BLOCK;
use ashlar_format::journal::{ColumnHeader, HEADER_BYTES, Ring};
use ashlar_format::root::{Epoch, RingPosition};

use crate::journal::recover::{Record, read_at};
use crate::journal::{Journal, ring_start, slot};
use crate::segment::bad::{Found, fault_of};
use crate::segment::table::Core;

/// The needed records of which columns are bad, of a journal with these epochs; and whether all of them could be read: not
/// where the epochs have changed meanwhile, or more columns are bad than its parity covers.
pub async fn look(core: &Rc<Core>, journal: &Journal, epochs: &[Epoch]) -> (Vec<Record>, bool) {
    let (mut all, mut whole) = (Vec::new(), true);
    let ends = journal.positions();
    for ring in [Ring::Delta, Ring::Data] {
        let end = ends[slot(ring)];
        let mut at = journal.tails()[slot(ring)];
        while at.count < end.count && !core.closed.get() {
            let Some(record) =
                read_at(core, epochs, ring, at, journal.ring_bytes[slot(ring)]).await
            else {
                whole = false;
                break;
            };
            let start = record.header.position[slot(ring)];
            at = RingPosition {
                count: start.count + 1,
                bytes: start.bytes + record.header.column_bytes() as u64,
            };
            let offset = start.bytes % journal.ring_bytes[slot(ring)];
            let bad = bad_columns(core, &record, epochs, offset).await;
            if !bad.is_empty() && journal.needs(&record) {
                all.push(record);
            }
        }
    }
    (all, whole)
}

impl Journal {
    /// What is bad of the same record while nobody writes, on members in use. With the epochs of now: a record that broke
    /// was sent again, to the same place, under another one, and is no record any more.
    pub async fn look_again(&self, record: &Record, epochs: &[Epoch]) -> Vec<(u16, Found)> {
        let header = &record.header;
        let at = header.position[slot(header.ring)];
        let size = self.ring_bytes[slot(header.ring)];
        let Some(now) = read_at(&self.core, epochs, header.ring, at, size).await else {
            return Vec::new();
        };
        let identity = |h: &ColumnHeader| (h.epoch_id, h.sequence, h.attempt, h.hash);
        if identity(&now.header) != identity(header) {
            return Vec::new();
        }
        let offset = at.bytes % size;
        let mut still = bad_columns(&self.core, record, epochs, offset).await;
        still.retain(|(device, _)| self.core.member(*device).is_written());
        still
    }
}

/// The devices on which a record's columns are bad.
async fn bad_columns(
    core: &Core,
    record: &Record,
    epochs: &[Epoch],
    offset: u64,
) -> Vec<(u16, Found)> {
    let header = &record.header;
    let epoch = epochs.iter().find(|e| e.id == header.epoch_id);
    let excluded = epoch.map_or(&[][..], |e| &e.excluded);
    let mut bad = Vec::new();
    for (column, device) in header.devices.iter().enumerate() {
        let member = core.member(*device);
        if excluded.contains(device) || !member.is_read() {
            continue;
        }
        let start = ring_start(core, *device, header.ring) + offset;
        let bytes = member.read(start, header.column_bytes()).await;
        let found = fault_of(bytes, |bytes| is_column(core, header, column, bytes));
        bad.extend(found.filter(|_| member.is_read()).map(|f| (*device, f)));
    }
    bad
}

/// Whether these bytes are this column of a record.
fn is_column(core: &Core, header: &ColumnHeader, column: usize, bytes: &[u8]) -> bool {
    let Ok(held) = ColumnHeader::decode(&core.identity.array, &bytes[..BLOCK.min(bytes.len())])
    else {
        return false;
    };
    let share = &bytes[HEADER_BYTES..HEADER_BYTES + header.share_bytes()];
    (held.epoch_id, held.sequence, held.attempt, held.hash)
        == (
            header.epoch_id,
            header.sequence,
            header.attempt,
            header.hash,
        )
        && usize::from(held.column) == column
        && ashlar_digest::plain(&[share]) == held.share_digest
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::journal::sets::RecordSet;
    use crate::testing::bed;

    #[test]
    fn a_bad_column_is_told_with_its_device_and_written_again() {
        let bed = bed(4);
        let epoch = Epoch {
            number: 1,
            id: [0; 16],
            first: 1,
            end: None,
            m: 1,
            excluded: Vec::new(),
        };
        let start = [RingPosition::default(); 2];
        let journal = Journal::new(&bed.core, epoch.clone(), 1, start, start);
        journal.set_groups(vec![RecordSet {
            devices: bed.core.readable(),
            most_data: 2,
            survives_domains: false,
        }]);
        let (core, disks) = (bed.core.clone(), bed.disks.clone());
        bed.rt.block_on(async move {
            let epochs = [epoch.clone()];
            let look = async || {
                let (found, whole) = look(&core, &journal, &epochs).await;
                assert!(whole);
                let sequences: Vec<u64> = found.iter().map(|r| r.header.sequence).collect();
                let bad = match found.first() {
                    Some(record) => journal.look_again(record, &epochs).await,
                    None => Vec::new(),
                };
                (sequences, bad)
            };
            let mut third = 0;
            for n in 0..6 {
                let ring = if n % 2 == 0 { Ring::Delta } else { Ring::Data };
                let appended = journal.append(ring, &[n; 9000]).await.unwrap();
                if appended.sequence == 3 {
                    third = appended.position.bytes;
                }
            }
            assert_eq!(look().await, (Vec::new(), Vec::new()));
            let at = core.member(0).geometry().delta_ring_offset() + third;
            let mut held = [0; BLOCK];
            let holder = (0..4).find(|device| {
                disks[usize::from(*device)].peek(at, &mut held);
                ColumnHeader::decode(&core.identity.array, &held).is_ok()
            });
            let holder = holder.unwrap();
            disks[usize::from(holder)].peek(at, &mut held);
            held[HEADER_BYTES + 5] ^= 1;
            disks[usize::from(holder)].poke(at, &held);
            assert_eq!(look().await, (vec![3], vec![(holder, Found::Wrong)]));
            let (found, _) = super::look(&core, &journal, &epochs).await;
            let other = [Epoch {
                id: [9; 16],
                ..epoch.clone()
            }];
            assert_eq!(journal.look_again(&found[0], &other).await, Vec::new());
            assert!(
                !super::look(&core, &journal, &other).await.1,
                "none of these epochs"
            );
            journal.restore(&found[0], &[holder]).await;
            assert_eq!(look().await, (Vec::new(), Vec::new()));
        });
    }
}
