//! The journal's rings: which records are whole, and what they say of segments.
//!
//! **Invariants**: a column counts only as docs/format.md says; what blocks the records name is not looked at,
//! since nothing is replayed here.

use crate::code::{Code, ISAL_CAUCHY};
use crate::digest::{plain, unseal};
use crate::members::{Device, Members};
use crate::root::{Position, Root};
use crate::slots::Row;
use crate::wire::{BLOCK, BLOCK_BYTES, Fields};

/// Bytes of a column's header.
const HEADER: usize = 1024;

/// A column's header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Header {
    epoch: u64,
    /// The identity of the epoch.
    identity: [u8; 16],
    sequence: u64,
    attempt: u32,
    ring: u8,
    w: u16,
    m: u16,
    column: u16,
    payload: u32,
    hash: [u8; 32],
    /// Positions in both rings before it.
    positions: [Position; 2],
    data_tail: Position,
    share_digest: [u8; 32],
    device: u16,
}

impl Header {
    fn parse(array: &[u8; 16], bytes: &[u8]) -> Option<Header> {
        let mut f = Fields(unseal(array, bytes.get(..HEADER)?)?);
        if f.take(8)? != b"ASHJRNL1" {
            return None;
        }
        let (epoch, identity) = (f.u64()?, f.array()?);
        let (sequence, attempt) = (f.u64()?, f.u32()?);
        let (ring, flags) = (f.u8()?, f.u8()?);
        let (w, m, column, payload) = (f.u16()?, f.u16()?, f.u16()?, f.u32()?);
        let hash = f.array()?;
        f.take(8)?; // acknowledged
        let positions = [Position::read(&mut f)?, Position::read(&mut f)?];
        let data_tail = Position::read(&mut f)?;
        f.take(8)?; // arena
        let share_digest = f.array()?;
        let width = usize::from(w) + usize::from(m);
        if ring > 1
            || flags != 0
            || w == 0
            || width > 256
            || usize::from(column) >= width
            || payload > 1 << 30
        {
            return None;
        }
        f.take(2 * usize::from(column))?;
        Some(Header {
            epoch,
            identity,
            sequence,
            attempt,
            ring,
            w,
            m,
            column,
            payload,
            hash,
            positions,
            data_tail,
            share_digest,
            device: f.u16()?,
        })
    }

    fn share(&self) -> usize {
        (self.payload as usize).div_ceil(usize::from(self.w))
    }

    fn bytes(&self) -> u64 {
        ((HEADER + self.share()) as u64).next_multiple_of(BLOCK_BYTES)
    }

    fn same_record(&self, other: &Header) -> bool {
        let id = |h: &Header| (h.epoch, h.attempt, h.sequence, h.hash, h.w, h.m, h.payload);
        id(self) == id(other)
    }
}

/// A whole record.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) sequence: u64,
    pub(crate) ring: u8,
    /// Columns that were not there or not good.
    pub(crate) columns_bad: u64,
    pub(crate) payload: Vec<u8>,
    header: Header,
}

/// What the rings hold from their tails on.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// By sequence.
    pub(crate) records: Vec<Record>,
    /// Records that existed for certain and cannot be read.
    pub(crate) lost: u64,
}

impl Record {
    /// A record that says this, for tests: it is in no ring.
    #[cfg(test)]
    pub(crate) fn saying(payload: Vec<u8>) -> Record {
        Record {
            sequence: u64::MAX,
            ring: 0,
            columns_bad: 0,
            payload,
            header: Header::default(),
        }
    }
}

struct Reader<'r, 'a> {
    members: &'r Members<'a>,
    root: &'r Root,
}

impl Reader<'_, '_> {
    /// The header at a place of a ring on one device, if it counts there.
    fn header(&self, index: u16, device: &Device<'_>, ring: usize, offset: u64) -> Option<Header> {
        let mut bytes = vec![0; BLOCK];
        let at = device.geometry.ring(ring) + offset;
        device.source.read(at, &mut bytes).ok()?;
        if !bytes.starts_with(b"ASHJRNL1") {
            return None;
        }
        let header = Header::parse(&self.members.superblock.array, &bytes)?;
        let in_epoch = self.root.epochs.iter().any(|e| {
            (e.number, e.identity) == (header.epoch, header.identity)
                && e.first <= header.sequence
                && (e.end == 0 || header.sequence < e.end)
        });
        let here = usize::from(header.ring) == ring && header.device == index && in_epoch;
        here.then_some(header)
    }

    fn headers(&self, ring: usize, offset: u64) -> Vec<(Device<'_>, Header)> {
        let devices = self.members.here.iter();
        devices
            .filter_map(|(index, d)| Some((*d, self.header(*index, d, ring, offset)?)))
            .collect()
    }

    fn record(&self, ring: usize, at: Position) -> Option<Record> {
        let size = self.members.superblock.geometry.rings[ring];
        let offset = at.bytes % size;
        let mut found = self.headers(ring, offset);
        found.retain(|(_, h)| h.positions[ring] == at && offset + h.bytes() <= size);
        found.sort_by_key(|(_, h)| std::cmp::Reverse((h.epoch, h.attempt)));
        while let Some((_, first)) = found.first().cloned() {
            let (same, other): (Vec<_>, Vec<_>) =
                found.into_iter().partition(|(_, h)| h.same_record(&first));
            if let Some(record) = payload(&same, &first, ring, offset) {
                return Some(record);
            }
            found = other;
        }
        None
    }

    /// Reads a ring from `at` on: the records, where it ends, and whether one lies beyond the end.
    fn walk(&self, ring: usize, mut at: Position) -> (Vec<Record>, Position, bool) {
        let size = self.members.superblock.geometry.rings[ring];
        let mut records = Vec::new();
        loop {
            let mut found = self.record(ring, at);
            if found.is_none() && !at.bytes.is_multiple_of(size) {
                let bytes = at.bytes.checked_next_multiple_of(size);
                found = bytes.and_then(|bytes| self.record(ring, Position { bytes, ..at }));
            }
            let Some(record) = found else { break };
            let start = record.header.positions[ring].bytes;
            let Some(bytes) = start.checked_add(record.header.bytes()) else {
                break;
            };
            at = Position {
                count: at.count.saturating_add(1),
                bytes,
            };
            records.push(record);
        }
        let window = (size / 4).min(2 << 20);
        let beyond = (0..window.div_ceil(BLOCK_BYTES)).any(|block| {
            let offset = (at.bytes % size + block * BLOCK_BYTES) % size;
            let headers = self.headers(ring, offset);
            headers
                .iter()
                .any(|(_, h)| h.positions[ring].count > at.count)
        });
        (records, at, beyond)
    }
}

/// The payload of a record from its columns, if enough of them are good.
fn payload(
    columns: &[(Device<'_>, Header)],
    first: &Header,
    ring: usize,
    offset: u64,
) -> Option<Record> {
    let (w, m) = (usize::from(first.w), usize::from(first.m));
    let mut shares: Vec<Option<Vec<u8>>> = vec![None; w + m];
    for (device, header) in columns {
        let mut bytes = vec![0; usize::try_from(header.bytes()).ok()?];
        let at = device.geometry.ring(ring) + offset;
        let share = device.source.read(at, &mut bytes).ok();
        let share = share.and_then(|()| bytes.get(HEADER..HEADER + header.share()));
        if let Some(share) = share.filter(|share| plain(share) == header.share_digest) {
            shares[usize::from(header.column)] = Some(share.to_vec());
        }
    }
    let good: Vec<(usize, &[u8])> = shares
        .iter()
        .enumerate()
        .filter_map(|(column, share)| Some((column, share.as_deref()?)))
        .collect();
    let columns_bad = (w + m - good.len()) as u64;
    let data: Vec<usize> = (0..w).collect();
    let code = Code::new(ISAL_CAUCHY, w, m)?;
    let mut payload = code.decode(&good, &data)?.concat();
    payload.truncate(first.payload as usize);
    (plain(&payload) == first.hash).then(|| Record {
        sequence: first.sequence,
        ring: first.ring,
        columns_bad,
        payload,
        header: first.clone(),
    })
}

/// Reads both rings from the root's tails to their ends.
pub(crate) fn read(members: &Members<'_>, root: &Root) -> Journal {
    let reader = Reader { members, root };
    let (deltas, delta_end, delta_beyond) = reader.walk(0, root.tails[0]);
    let tails = deltas.iter().map(|r| r.header.data_tail);
    let tail = tails.fold(root.tails[1], |newest, tail| {
        if tail.count > newest.count {
            tail
        } else {
            newest
        }
    });
    let (data, data_end, data_beyond) = reader.walk(1, tail);
    let mut lost = u64::from(delta_beyond) + u64::from(data_beyond);
    for record in deltas.iter().chain(&data) {
        for (position, end) in record.header.positions.iter().zip([delta_end, data_end]) {
            lost = lost.max(position.count.saturating_sub(end.count));
        }
    }
    let mut records: Vec<Record> = deltas.into_iter().chain(data).collect();
    records.sort_by_key(|record| record.sequence);
    Journal { records, lost }
}

/// What a record says of segments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Open(Open),
    Stripe(Stripe),
    Column(Moved),
    /// About blocks, or nothing.
    Other,
}

/// A segment begins.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) segment: u64,
    pub(crate) kind: u8,
    pub(crate) code: u8,
    pub(crate) k: u16,
    pub(crate) m: u16,
    pub(crate) strip: u32,
    /// Device and slot of each column.
    pub(crate) columns: Vec<(u16, u32)>,
}

/// A stripe is written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stripe {
    pub(crate) segment: u64,
    pub(crate) stripe: u32,
    pub(crate) used: u16,
    pub(crate) rows: Vec<Row>,
}

/// A column lies elsewhere.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) segment: u64,
    pub(crate) column: u16,
    pub(crate) version: u32,
    pub(crate) device: u16,
    pub(crate) slot: u32,
}

/// The entries of a payload; `None` if it is no payload.
pub(crate) fn entries(payload: &[u8]) -> Option<Vec<Entry>> {
    let mut f = Fields(payload);
    let mut entries = Vec::new();
    while !f.0.is_empty() {
        entries.push(entry(&mut f)?);
    }
    Some(entries)
}

fn entry(f: &mut Fields<'_>) -> Option<Entry> {
    Some(match f.u8()? {
        1 => {
            let (segment, kind, code) = (f.u64()?, f.u8()?, f.u8()?);
            let (k, m, strip) = (f.u16()?, f.u16()?, f.u32()?);
            if f.u32()? != 0 {
                return None; // rotation of roles, local groups
            }
            let columns = (0..usize::from(k) + usize::from(m)).map(|_| Some((f.u16()?, f.u32()?)));
            Entry::Open(Open {
                columns: columns.collect::<Option<_>>()?,
                segment,
                kind,
                code,
                k,
                m,
                strip,
            })
        }
        2 => Entry::Stripe(stripe(f)?),
        3 => {
            f.take(41)?;
            let bytes = f.u32()? as usize;
            if bytes == 0 || !bytes.is_multiple_of(BLOCK) || bytes > 32 * BLOCK {
                return None;
            }
            f.take(bytes)?;
            Entry::Other
        }
        4 => {
            f.take(20)?;
            let (of, rest) = (f.u16()?, f.u16()?);
            (rest < of).then_some(Entry::Other)?
        }
        6 => Entry::Column(Moved {
            segment: f.u64()?,
            column: f.u16()?,
            version: f.u32()?,
            device: f.u16()?,
            slot: f.u32()?,
        }),
        _ => return None,
    })
}

fn stripe(f: &mut Fields<'_>) -> Option<Stripe> {
    let (segment, stripe, _first) = (f.u64()?, f.u32()?, f.u32()?);
    let (used, _birth) = (f.u16()?, f.u64()?);
    let mut rows = Fields(
        f.take(
            (f.clone().u32()? as usize)
                .checked_mul(32)?
                .checked_add(4)?,
        )?,
    );
    rows.u32()?;
    let rows = std::iter::from_fn(|| (!rows.0.is_empty()).then(|| Row::read(&mut rows)));
    let rows = rows.collect::<Option<_>>()?;
    for _ in 0..f.u32()? {
        f.take(20)?;
        if f.u8()? != 0 {
            f.take(12)?;
        }
    }
    Some(Stripe {
        segment,
        stripe,
        used,
        rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_read_to_the_byte() {
        let mut bytes = vec![2];
        bytes.extend(5u64.to_le_bytes());
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(12u32.to_le_bytes());
        bytes.extend(1u16.to_le_bytes());
        bytes.extend(9u64.to_le_bytes());
        bytes.extend(2u32.to_le_bytes());
        bytes.extend([7; 64]);
        bytes.extend(2u32.to_le_bytes());
        bytes.extend([0; 21]);
        bytes.extend([1; 33]);
        bytes.extend([4; 21]);
        bytes.extend([1, 0, 0, 0]);
        let found = entries(&bytes).unwrap_or_default();
        let [Entry::Stripe(stripe), Entry::Other] = &found[..] else {
            panic!("a stripe and a hole")
        };
        assert_eq!((stripe.segment, stripe.stripe, stripe.used), (5, 3, 1));
        assert_eq!(stripe.rows.len(), 2);
        for cut in 0..bytes.len() {
            let _ = entries(&bytes[..cut]);
        }
        assert!(entries(&[9]).is_none());
    }
}
