//! Whether recovered records are one history: each names the hash of the record before it.
//!
//! An array that lost its newest root beyond its redundancy goes on from an older one, and writes other
//! records with the sequences and the epoch that the lost history had used. What is left of both then lies
//! in the rings side by side.
//!
//! Invariant: of records that came from two histories only the first run of one is kept; that anything was
//! left out counts as lost, so that an import without `--degraded` is refused.

use ashlar_format::journal::Ring;
use ashlar_format::root::{RingPosition, Root};

use crate::journal::recover::{Record, Recovered};

/// `found` up to the first record of the open epoch that does not follow the one before it. A break in a
/// closed epoch is only counted: its records cannot be put out of reach of the next import.
pub fn end_at_break(mut found: Recovered, root: &Root) -> Recovered {
    let Some(at) = first_break(&found.records) else {
        return found;
    };
    found.lost += (found.records.len() - at) as u64;
    let closed = root.epochs.iter().filter_map(|e| e.end).max().unwrap_or(1);
    let open = root.epochs.last().map_or(1, |e| e.first);
    let next = found.records[at - 1].header.sequence + 1;
    if next < closed.max(open).max(root.cut) {
        return found;
    }
    found.records.truncate(at);
    found.next = next;
    found.previous = found.records[at - 1].header.hash;
    for (index, ring) in [Ring::Delta, Ring::Data].into_iter().enumerate() {
        let last = found.records.iter().rev().find(|r| r.header.ring == ring);
        found.position[index] = last.map_or(found.tail[index], |r| {
            let before = r.header.position[index];
            RingPosition {
                count: before.count + 1,
                bytes: before.bytes + r.header.column_bytes() as u64,
            }
        });
    }
    found
}

/// The first record that has the sequence of the one before it, or names another predecessor.
fn first_break(records: &[Record]) -> Option<usize> {
    let broken = records.windows(2).position(|pair| {
        let (before, after) = (&pair[0].header, &pair[1].header);
        let unknown = after.previous == [0; 32];
        after.sequence == before.sequence
            || after.sequence == before.sequence + 1 && !unknown && after.previous != before.hash
    });
    broken.map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use ashlar_format::journal::ColumnHeader;
    use ashlar_format::root::{Epoch, TreeRoot};

    use super::*;

    fn record(sequence: u64, own: u8, previous: u8) -> Record {
        let at = RingPosition {
            count: sequence,
            bytes: sequence * 4096,
        };
        Record {
            header: ColumnHeader {
                epoch: 1,
                sequence,
                attempt: 0,
                ring: Ring::Delta,
                w: 1,
                m: 1,
                column: 0,
                payload_bytes: 0,
                hash: [own; 32],
                previous: [previous; 32],
                acknowledged: sequence - 1,
                position: [at, at],
                data_tail: RingPosition::default(),
                share_digest: [0; 32],
                devices: vec![0, 1],
            },
            payload: Vec::new(),
        }
    }

    fn found(records: Vec<Record>) -> Recovered {
        Recovered {
            next: records.last().map_or(1, |r| r.header.sequence + 1),
            records,
            position: [RingPosition::default(); 2],
            tail: [RingPosition::default(); 2],
            previous: [0; 32],
            lost: 0,
        }
    }

    fn root(epochs: Vec<Epoch>) -> Root {
        Root {
            number: 1,
            generation: 1,
            generation_id: [0; 16],
            clean: false,
            next_segment: 1,
            next_tree: 16,
            cut: 1,
            imaged: 1,
            delta_tail: RingPosition::default(),
            data_tail: RingPosition::default(),
            catalog: TreeRoot::default(),
            liveness: TreeRoot::default(),
            forwarding: TreeRoot::default(),
            dead: TreeRoot::default(),
            epochs,
        }
    }

    fn epoch(first: u64, end: Option<u64>) -> Epoch {
        Epoch {
            number: first,
            first,
            end,
            m: 1,
            excluded: Vec::new(),
        }
    }

    #[test]
    fn records_that_follow_each_other_are_kept() {
        let records = vec![record(5, 1, 0), record(6, 2, 1), record(9, 3, 2)];
        let kept = end_at_break(found(records), &root(vec![epoch(1, None)]));
        assert_eq!((kept.records.len(), kept.lost, kept.next), (3, 0, 10));
    }

    #[test]
    fn another_history_ends_it_and_counts_as_lost() {
        let records = vec![
            record(5, 1, 0),
            record(6, 2, 1),
            record(7, 9, 8),
            record(8, 10, 9),
        ];
        let kept = end_at_break(found(records), &root(vec![epoch(1, None)]));
        assert_eq!((kept.records.len(), kept.lost, kept.next), (2, 2, 7));
        assert_eq!(kept.previous, [2; 32]);
        assert_eq!(kept.position[0].count, 7);
    }

    #[test]
    fn a_break_in_a_closed_epoch_only_counts() {
        let records = vec![record(5, 1, 0), record(6, 9, 8), record(7, 3, 9)];
        let epochs = vec![epoch(1, Some(7)), epoch(7, None)];
        let kept = end_at_break(found(records), &root(epochs));
        assert_eq!((kept.records.len(), kept.lost, kept.next), (3, 2, 8));
    }
}
