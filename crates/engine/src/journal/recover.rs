//! Reads the journal at an import: each ring from its tail to its first gap.
//!
//! Invariant: a record that was acknowledged and cannot be read is counted; nothing after a gap is taken for durable.

use std::rc::Rc;

use ashlar_codec::{Code, CodeKind};
use ashlar_format::journal::{ColumnHeader, HEADER_BYTES, Ring};
use ashlar_format::root::{Epoch, RingPosition};
use ashlar_format::{BLOCK, BLOCK_U64};

use crate::journal::{ring_start, slot};
use crate::segment::table::Core;

/// A record as recovery found it.
#[derive(Debug)]
pub struct Record {
    /// The header of one of its columns.
    pub header: ColumnHeader,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// What recovery found.
#[derive(Debug)]
pub struct Recovered {
    /// Needed records, by sequence.
    pub records: Vec<Record>,
    /// The next sequence.
    pub next: u64,
    /// Where the rings go on.
    pub position: [RingPosition; 2],
    /// Where their needed parts begin.
    pub tail: [RingPosition; 2],
    /// Records that were acknowledged and cannot be read.
    pub lost: u64,
}

/// Reads the needed records of both rings: from the tails on, to the first gap.
pub async fn recover(
    core: &Rc<Core>,
    epochs: &[Epoch],
    cut: u64,
    tail: [RingPosition; 2],
) -> Recovered {
    let deltas = walk(core, epochs, Ring::Delta, tail[0]).await;
    let mut data_tail = tail[1];
    for record in &deltas.records {
        if record.header.data_tail.count > data_tail.count {
            data_tail = record.header.data_tail;
        }
    }
    let data = walk(core, epochs, Ring::Data, data_tail).await;
    let mut lost = u64::from(deltas.beyond) + u64::from(data.beyond);
    let ends = [deltas.end, data.end];
    // A record proves that all before it were durable, in both rings.
    for record in deltas.records.iter().chain(&data.records) {
        for (position, end) in record.header.position.iter().zip(ends) {
            lost = lost.max(position.count.saturating_sub(end.count));
        }
    }
    let mut records: Vec<Record> = deltas.records.into_iter().chain(data.records).collect();
    records.sort_by_key(|r| r.header.sequence);
    let last_end = epochs.iter().filter_map(|e| e.end).max().unwrap_or(1);
    let open_first = epochs.last().map_or(1, |e| e.first);
    let next = records
        .last()
        .map_or(0, |r| r.header.sequence + 1)
        .max(last_end)
        .max(open_first)
        .max(cut);
    Recovered {
        records,
        next,
        position: ends,
        tail: [tail[0], data_tail],
        lost,
    }
}

struct Walk {
    records: Vec<Record>,
    end: RingPosition,
    /// Whether a later record of the ring exists beyond the end.
    beyond: bool,
}

async fn walk(core: &Rc<Core>, epochs: &[Epoch], ring: Ring, from: RingPosition) -> Walk {
    let geometry = core.members[0].geometry();
    let size = if ring == Ring::Delta {
        geometry.delta_ring_bytes
    } else {
        geometry.data_ring_bytes
    };
    let mut records: Vec<Record> = Vec::new();
    let mut at = from;
    loop {
        let Some(record) = read_at(core, epochs, ring, at, size).await else {
            break;
        };
        let start = record.header.position[slot(ring)].bytes;
        at = RingPosition {
            count: at.count + 1,
            bytes: start + record.header.column_bytes() as u64,
        };
        records.push(record);
    }
    let beyond = later_record(core, epochs, ring, at, size).await;
    Walk {
        records,
        end: at,
        beyond,
    }
}

fn in_epochs(epochs: &[Epoch], header: &ColumnHeader) -> bool {
    epochs.iter().any(|e| {
        (e.number, e.id) == (header.epoch, header.epoch_id)
            && e.first <= header.sequence
            && e.end.is_none_or(|end| header.sequence < end)
    })
}

/// Headers at a ring offset, one from every member that has a valid one of an epoch that counts.
async fn headers_at(
    core: &Rc<Core>,
    epochs: &[Epoch],
    ring: Ring,
    offset: u64,
) -> Vec<(u16, ColumnHeader)> {
    let mut joins = Vec::new();
    for device in core.readable() {
        let core2 = core.clone();
        joins.push((
            device,
            core.rt.spawn(async move {
                core2
                    .member(device)
                    .read(ring_start(&core2, device, ring) + offset, BLOCK)
                    .await
                    .ok()
            }),
        ));
    }
    let mut headers = Vec::new();
    for (device, join) in joins {
        if let Some(bytes) = join.await
            && let Ok(header) = ColumnHeader::decode(&core.identity.array, &bytes)
            && header.ring == ring
            && in_epochs(epochs, &header)
            && header.devices.get(usize::from(header.column)) == Some(&device)
        {
            headers.push((device, header));
        }
    }
    headers
}

/// The record at a position of a ring, or behind the end of the ring, which it may not have fitted before.
pub(super) async fn read_at(
    core: &Rc<Core>,
    epochs: &[Epoch],
    ring: Ring,
    at: RingPosition,
    size: u64,
) -> Option<Record> {
    let found = read_record(core, epochs, ring, at, size).await;
    if found.is_some() || at.bytes.is_multiple_of(size) {
        return found;
    }
    let wrapped = RingPosition {
        count: at.count,
        bytes: at.bytes.next_multiple_of(size),
    };
    read_record(core, epochs, ring, wrapped, size).await
}

async fn read_record(
    core: &Rc<Core>,
    epochs: &[Epoch],
    ring: Ring,
    at: RingPosition,
    size: u64,
) -> Option<Record> {
    let mut headers = headers_at(core, epochs, ring, at.bytes % size).await;
    headers.retain(|(_, h)| {
        h.position[slot(ring)] == at && at.bytes % size + h.column_bytes() as u64 <= size
    });
    headers.sort_by_key(|(_, h)| std::cmp::Reverse((h.epoch, h.attempt)));
    while let Some((_, first)) = headers.first().cloned() {
        let same = |h: &ColumnHeader| {
            (h.epoch, h.attempt, h.sequence, h.hash)
                == (first.epoch, first.attempt, first.sequence, first.hash)
        };
        let group: Vec<(u16, ColumnHeader)> =
            headers.iter().filter(|(_, h)| same(h)).cloned().collect();
        headers.retain(|(_, h)| !same(h));
        if let Some(payload) = read_payload(core, &group, ring, at.bytes % size).await {
            return Some(Record {
                header: first,
                payload,
            });
        }
    }
    None
}

async fn read_payload(
    core: &Rc<Core>,
    group: &[(u16, ColumnHeader)],
    ring: Ring,
    offset: u64,
) -> Option<Vec<u8>> {
    let first = &group.first()?.1;
    let (w, m) = (usize::from(first.w), usize::from(first.m));
    let mut shares: Vec<Option<Vec<u8>>> = vec![None; w + m];
    for (device, header) in group {
        let start = ring_start(core, *device, ring) + offset;
        if (header.w, header.m, header.payload_bytes) != (first.w, first.m, first.payload_bytes) {
            continue;
        }
        let Ok(bytes) = core
            .member(*device)
            .read(start, header.column_bytes())
            .await
        else {
            continue;
        };
        let share = &bytes[HEADER_BYTES..HEADER_BYTES + header.share_bytes()];
        if ashlar_digest::plain(&[share]) == header.share_digest {
            shares[usize::from(header.column)] = Some(share.to_vec());
        }
    }
    let code = Code::new(CodeKind::IsalCauchy, w, m).ok()?;
    let missing: Vec<usize> = (0..w).filter(|i| shares[*i].is_none()).collect();
    let mut decoded: Vec<Vec<u8>> = vec![vec![0; first.share_bytes()]; missing.len()];
    {
        let strips: Vec<Option<&[u8]>> = shares.iter().map(Option::as_deref).collect();
        let mut out: Vec<&mut [u8]> = decoded.iter_mut().map(Vec::as_mut_slice).collect();
        code.decode(&strips, &missing, &mut out).ok()?;
    }
    for (index, bytes) in missing.into_iter().zip(decoded) {
        shares[index] = Some(bytes);
    }
    let mut payload: Vec<u8> = shares.into_iter().take(w).flatten().flatten().collect();
    payload.truncate(first.payload_bytes as usize);
    (ashlar_digest::plain(&[&payload]) == first.hash).then_some(payload)
}

/// Whether, beyond the end of what could be read, a later record of the ring exists: then what lies
/// between was durable once and is lost.
async fn later_record(
    core: &Rc<Core>,
    epochs: &[Epoch],
    ring: Ring,
    end: RingPosition,
    size: u64,
) -> bool {
    let window = (size / 4).min(2 << 20);
    let mut distance = 0;
    while distance < window {
        let offset = (end.bytes + distance) % size;
        let headers = headers_at(core, epochs, ring, offset).await;
        if headers
            .iter()
            .any(|(_, h)| h.position[slot(ring)].count > end.count)
        {
            return true;
        }
        distance += BLOCK_U64;
    }
    false
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::journal::{AppendError, Journal, sets::RecordSet};
    use crate::testing::{Bed, bed};

    fn epoch() -> Epoch {
        Epoch {
            number: 1,
            id: [0; 16],
            first: 1,
            end: None,
            m: 1,
            excluded: Vec::new(),
        }
    }

    fn journal(bed: &Bed) -> Journal {
        let start = [RingPosition::default(); 2];
        let journal = Journal::new(&bed.core, epoch(), 1, start, start);
        let devices: Vec<u16> = bed.core.readable();
        journal.set_groups(vec![RecordSet {
            devices,
            most_data: 2,
            survives_domains: false,
        }]);
        journal
    }

    fn recovered(bed: &Bed, cut: u64) -> Recovered {
        let core = bed.core.clone();
        let start = [RingPosition::default(); 2];
        bed.rt
            .block_on(async move { recover(&core, &[epoch()], cut, start).await })
    }

    /// Records of both rings come back in order, also without a device that holds columns of them.
    #[test]
    fn records_are_found_again_without_a_device() {
        let bed = bed(4);
        let journal = journal(&bed);
        let payloads: Vec<Vec<u8>> = (1..=5).map(|n| vec![n; 5000 * usize::from(n)]).collect();
        let sent = payloads.clone();
        bed.rt.block_on(async move {
            for (payload, at) in sent.iter().zip(0..) {
                let ring = if at % 2 == 0 { Ring::Delta } else { Ring::Data };
                let appended = journal.append(ring, payload).await.unwrap();
                assert_eq!(appended.sequence, at + 1);
            }
        });
        for gone in 0..4 {
            let member = bed.core.member(gone);
            member.take_out(ashlar_format::superblock::MemberState::Failed);
            let found = recovered(&bed, 1);
            let bytes: Vec<Vec<u8>> = found.records.into_iter().map(|r| r.payload).collect();
            if gone == 0 {
                assert!(bytes == payloads);
                assert_eq!((found.next, found.lost), (6, 0));
            } else {
                assert!(bytes.len() < payloads.len(), "two of four devices are gone");
                break;
            }
        }
    }

    /// A record of which too little was written is the end; what is missing before a later one is counted.
    #[test]
    fn a_gap_is_told_from_the_end() {
        let bed = bed(3);
        let journal = journal(&bed);
        let (second, third) = bed.rt.block_on(async move {
            journal.append(Ring::Delta, &[1; 100]).await.unwrap();
            let second = journal.append(Ring::Delta, &[2; 100]).await.unwrap();
            let third = journal.append(Ring::Delta, &[3; 100]).await.unwrap();
            (second.position, third.position)
        });
        let wipe = |position: RingPosition| {
            for disk in &bed.disks {
                let start = bed.core.member(0).geometry().delta_ring_offset();
                disk.poke(start + position.bytes, &[0; BLOCK]);
            }
        };
        wipe(third);
        let found = recovered(&bed, 1);
        assert_eq!((found.records.len(), found.next, found.lost), (2, 3, 0));
        // With the third again, and the second gone: it was durable once.
        let journal = self::journal(&bed);
        bed.rt.block_on(async move {
            for n in 1..=3 {
                journal.append(Ring::Delta, &[n; 100]).await.unwrap();
            }
        });
        wipe(second);
        let found = recovered(&bed, 1);
        assert_eq!(found.records.len(), 1);
        assert!(found.lost > 0);
    }

    /// A full ring takes nothing until a tail beyond it is durable.
    #[test]
    fn a_full_ring_waits_for_its_tail() {
        let bed = bed(3);
        let journal = journal(&bed);
        bed.rt.block_on(async move {
            let mut last = None;
            let full = loop {
                match journal.append(Ring::Data, &[7; 6000]).await {
                    Ok(appended) => last = Some(appended.position),
                    Err(error) => break error,
                }
            };
            assert_eq!(full, AppendError::Full);
            journal.settle_data(last.unwrap());
            assert_eq!(
                journal.append(Ring::Data, &[7; 6000]).await.map(|_| ()),
                Err(AppendError::Full),
                "nothing durable says so yet"
            );
            journal.append(Ring::Delta, &[0; 10]).await.unwrap();
            journal.append(Ring::Data, &[7; 6000]).await.unwrap();
        });
    }
}
