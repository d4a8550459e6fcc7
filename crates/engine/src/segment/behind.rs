//! Columns on a member that was away: which of them count when it is back.
//!
//! A column is whole or missing. Whole is a column of a segment that was sealed before the member left: nothing is
//! written to such a segment any more. All others are computed anew.
//!
//! Invariants:
//! - A member is judged by what it proves itself, and never past the last checkpoint whose root counted it.
//! - Pure functions: small models explore them as they are (`stale`).

use ashlar_format::slot::{SegmentKind, SlotEntry};

use crate::planted::{self, Bug};

/// The last checkpoint that a member proves to have seen: the highest number on its slot table pages that is not above
/// `stale_since`, the last checkpoint whose root counted it; 0: none.
///
/// Crash argument: each checkpoint writes a page to each member in use after all devices were flushed, and flushes it
/// before the root. So a member with such a page holds all that was written before. A page above `stale_since` is of a
/// checkpoint that the member did not see to its end. An older image of the device proves less, and is judged by less.
pub fn bound_of(pages: impl Iterator<Item = u64>, stale_since: u64) -> u64 {
    pages.filter(|page| *page <= stale_since).max().unwrap_or(0)
}

/// What the array knows of the segment that a slot of a member is said to hold a column of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The entry of a slot with this column; its version does not matter.
    pub entry: SlotEntry,
    /// The checkpoint that first said that the segment is sealed; 0: none has.
    pub sealed_in: u64,
    /// Whether the column can be read elsewhere.
    pub elsewhere: bool,
}

/// Whether a column counts that a member's table names, and the header of the slot with it.
///
/// Crash argument: `sealed_in` is not above what the member proves, so all of the column was flushed there. The slot
/// held nothing else since: a slot is reused only after a root under which the table page no longer names the column,
/// and of the pages of an older image the header speaks.
pub fn is_whole(known: &Known, table: &SlotEntry, header: Option<&SlotEntry>, bound: u64) -> bool {
    let version = table.version;
    let same = SlotEntry {
        version,
        ..known.entry
    } == *table
        && header == Some(table);
    let seen = (1..=bound).contains(&known.sealed_in) || planted::on(Bug::StaleColumnTrusted);
    let data = known.entry.kind == SegmentKind::Data;
    same && seen && data && !known.elsewhere
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_proves_no_more_than_it_has_seen() {
        let t = |pages: &[u64], since, bound| {
            assert_eq!(
                bound_of(pages.iter().copied(), since),
                bound,
                "{pages:?} {since}"
            );
        };
        t(&[3, 7, 5], 7, 7);
        t(&[3, 8, 5], 7, 5);
        t(&[3, 2], 7, 3);
        t(&[8, 9], 7, 0);
        t(&[], 7, 0);
        t(&[1, 2], 0, 0);
    }

    #[test]
    fn a_column_counts_that_was_sealed_before_and_is_nowhere_else() {
        let entry = SlotEntry {
            segment: 9,
            column: 2,
            version: 1,
            k: 2,
            m: 1,
            code: 0,
            kind: SegmentKind::Data,
            strip_blocks: 1,
        };
        let known = Known {
            entry,
            sealed_in: 5,
            elsewhere: false,
        };
        let of = |known: Known| is_whole(&known, &entry, Some(&entry), 5);
        assert!(of(known));
        assert!(
            !of(Known {
                sealed_in: 6,
                ..known
            }),
            "sealed later"
        );
        assert!(
            !of(Known {
                sealed_in: 0,
                ..known
            }),
            "not sealed"
        );
        assert!(!of(Known {
            elsewhere: true,
            ..known
        }));
        let nodes = SlotEntry {
            kind: SegmentKind::Meta,
            ..entry
        };
        let known_nodes = Known {
            entry: nodes,
            ..known
        };
        assert!(
            !is_whole(&known_nodes, &nodes, Some(&nodes), 5),
            "nodes are computed anew"
        );
        let later = SlotEntry {
            version: 3,
            ..entry
        };
        assert!(
            is_whole(&known, &later, Some(&later), 5),
            "whatever its version"
        );
        assert!(!is_whole(&known, &later, Some(&entry), 5), "another header");
        assert!(!is_whole(&known, &entry, None, 5), "no header");
        let other = SlotEntry {
            segment: 8,
            ..entry
        };
        assert!(
            !is_whole(&known, &entry, Some(&other), 5),
            "the slot was given away"
        );
    }
}
