//! Decides which claims to slots count after an import, given the slot tables and the journal.
//!
//! Invariants: of two claims to a column the newer version counts; of two claims to a slot that of the newer segment;
//! no two columns of a segment lie on one device.

use std::collections::BTreeSet;

use crate::segment::Column;

/// A column lies where the newer of two claims says.
pub(super) fn newer(held: Column, claimed: Column) -> Column {
    if held.version < claimed.version {
        claimed
    } else {
        held
    }
}

/// Columns that no table names lie where their segment was opened: tables may know only some of them, their pages being
/// of different age.
pub(super) fn fill(held: &mut [Column], opened: impl Iterator<Item = Column>) {
    for (held, opened) in held.iter_mut().zip(opened) {
        if !held.is_placed() {
            *held = opened;
        }
    }
}

/// Columns of a segment whose claims do not count are missing, where `taken` are the slots of newer segments; its own
/// are added.
///
/// Two segments can name one slot only if a root newer than this one was lost beyond its redundancy: the newer segment
/// was given what that root had freed, and has overwritten it. And two columns of a segment are on one device only if
/// its table is older than it should be, of a time before the others were given what they have now: then one of them is
/// missing.
pub(super) fn drop_void(columns: &mut [Column], taken: &mut BTreeSet<(u16, u32)>) {
    let mut devices = BTreeSet::new();
    for column in columns.iter_mut().filter(|c| c.is_placed()) {
        let twice = !devices.insert(column.device);
        if !taken.insert((column.device, column.slot)) || twice {
            *column = Column::MISSING;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(device: u16, slot: u32, version: u32) -> Column {
        Column {
            device,
            slot,
            version,
        }
    }

    const NONE: Column = Column::MISSING;

    #[test]
    fn the_newer_claim_to_a_column_counts() {
        assert_eq!(newer(NONE, at(1, 5, 1)), at(1, 5, 1));
        assert_eq!(newer(at(1, 5, 1), at(2, 6, 2)), at(2, 6, 2));
        assert_eq!(newer(at(1, 5, 2), at(2, 6, 2)), at(1, 5, 2));
        let mut held = [at(0, 3, 2), NONE, NONE];
        fill(&mut held, [at(0, 9, 1), at(1, 9, 1), NONE].into_iter());
        assert_eq!(held, [at(0, 3, 2), at(1, 9, 1), NONE]);
    }

    #[test]
    fn a_slot_is_of_one_segment_and_a_device_holds_one_column() {
        let mut taken = BTreeSet::new();
        let mut t = |columns: &[Column], left: &[Column]| {
            let mut found = columns.to_vec();
            drop_void(&mut found, &mut taken);
            assert_eq!(found, left, "{columns:?}");
        };
        // The newest segment first.
        t(&[at(0, 1, 1), at(1, 1, 1)], &[at(0, 1, 1), at(1, 1, 1)]);
        t(&[at(0, 1, 1), at(2, 1, 1)], &[NONE, at(2, 1, 1)]);
        t(&[at(0, 2, 1), at(0, 3, 1)], &[at(0, 2, 1), NONE]);
        // The slot of a column that was dropped is not given to an older segment: who has overwritten it is not known.
        t(&[at(1, 2, 1), at(0, 3, 1)], &[at(1, 2, 1), NONE]);
        t(&[NONE, at(3, 1, 1), NONE], &[NONE, at(3, 1, 1), NONE]);
    }
}
