//! The uses of a member in each state: the only place that defines them.
//!
//! Invariant: whoever asks names the use. `takes_slots` also stands for "not gone" where room is reckoned
//! (`home/capacity.rs`, `home/allocate.rs`, `home/room.rs`).

use ashlar_format::geometry::DeviceGeometry;
use ashlar_format::superblock::MemberState;

/// What a member is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Duties {
    /// Its columns, tables and records are read, and count as there.
    pub read: bool,
    /// It gets records, roots, tables, superblocks, and the columns that lie on it.
    pub written: bool,
    /// It is one of those that must agree on a generation.
    pub counted: bool,
    /// It holds records of new epochs of the journal, and roots.
    pub journals: bool,
    /// New columns are placed on it.
    pub takes_slots: bool,
}

/// How far a member is that comes or goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ComesIn {
    /// Its slot table is being judged and written anew: by one take-in at a time.
    pub judged: bool,
    /// It is written and counted, and not read yet.
    pub joining: bool,
    /// Where another device is joining in its row: what the row was before.
    pub before: Option<Row>,
    /// It was to leave when it was lost.
    pub was_leaving: bool,
    /// Its slot table has not been read since the import, which had no use for it.
    pub unread: bool,
}

/// What a row of the member table says of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Its identity.
    pub uuid: [u8; 16],
    /// Where things lie on it.
    pub geometry: DeviceGeometry,
    /// Its part in the array.
    pub state: MemberState,
    /// The last checkpoint whose root counted it.
    pub stale_since: u64,
}

impl Duties {
    const ALL: Duties = Duties {
        read: true,
        written: true,
        counted: true,
        journals: true,
        takes_slots: true,
    };

    /// Those of a member that is to leave, once nothing lies on it.
    const LEAVING: Duties = Duties {
        read: true,
        written: true,
        counted: true,
        journals: false,
        takes_slots: false,
    };

    /// Those of a member that is being taken in.
    pub const JOINING: Duties = Duties {
        read: false,
        written: true,
        counted: true,
        journals: true,
        takes_slots: false,
    };

    const NONE: Duties = Duties {
        read: false,
        written: false,
        counted: false,
        journals: false,
        takes_slots: false,
    };

    /// Those of a member in this state, whose device is `present` or not.
    pub fn of(state: MemberState, present: bool) -> Duties {
        match (state, present) {
            (MemberState::Online, true) => Duties::ALL,
            (MemberState::Removing, true) => Duties::LEAVING,
            (MemberState::Online | MemberState::Removing, false) => Duties::NONE,
            (
                MemberState::Failed
                | MemberState::Offline
                | MemberState::Removed
                | MemberState::Spare
                | MemberState::Stale,
                _,
            ) => Duties::NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_present_member_that_is_online_or_leaves_is_used() {
        use MemberState::{Failed, Offline, Online, Removed, Removing, Spare, Stale};
        for state in [Online, Failed, Offline, Removing, Removed, Spare, Stale] {
            for present in [true, false] {
                let expected = match (state, present) {
                    (Online, true) => Duties::ALL,
                    (Removing, true) => Duties::LEAVING,
                    _ => Duties::NONE,
                };
                assert_eq!(Duties::of(state, present), expected, "{state:?} {present}");
            }
        }
    }
}
