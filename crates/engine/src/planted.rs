//! Bugs on purpose, for the test of the tests: each is one classic mistake, and `ashlar-sim planted` must
//! find every one.
//!
//! Invariants: without the feature `planted` [`on`] is a constant, and nothing of this is in the program;
//! with it nothing is planted until `plant` is called on the thread that runs the engine.

macro_rules! bugs {
    ($($name:ident: $what:literal,)*) => {
        /// A mistake that can be made on purpose.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $(#[doc = $what] $name,)*
        }

        #[cfg(feature = "planted")]
        impl Bug {
            /// All of them, with what each one does.
            pub const ALL: &[(Bug, &str)] = &[$((Bug::$name, $what),)*];
        }
    };
}

bugs! {
    JournalNotFlushed: "A journal record counts as durable when it is written, not when it is flushed.",
    JournalColumnLeftOut: "A journal record is written with one column fewer than M promises.",
    JournalWithoutParity: "The journal epochs have no redundancy of their own.",
    CutTooLate: "The journal is cut at what was applied, though deltas older than that are not merged.",
    DataFreedEarly: "Data records are freed though their stripes have not been recorded.",
    RowsNotPinned: "A checkpoint cuts the rows off that no summary holds yet.",
    RecoveryNotCheckpointed: "Recovery answers before a root has closed the old epoch.",
    DataNotReplayed: "Recovery forgets the data records.",
    GroupCommitsBeforeAdoption: "Group commits and checkpoints begin while recovery still hands out what the journal had.",
    EpochDroppedEarly: "A root forgets closed epochs that the journal still needs.",
    StripeNotFlushed: "A record names stripes that have not been flushed.",
    RootBeforeNodes: "A root is written before the nodes it names have been flushed.",
    RootOnOneDevice: "A root counts when one device of the root set holds it.",
    RootNotFlushed: "A root counts before it is flushed.",
    PagesNotFlushed: "A root is written before the slot table pages tagged with it are flushed.",
    PagesInPlace: "A slot table page is written over the copy that the last root uses.",
    StalePage: "Of the two copies of a slot table page an import believes the older.",
    PagesAdopted: "An import believes slot table pages of a checkpoint that died.",
    AnyRoot: "An import takes the root it sees last, not the newest.",
    SlotsFreedEarly: "Slots are free for reuse before the root that freed them is durable.",
    FreedInUse: "A segment is freed while readers and deltas still hold it.",
    DoubleAllocation: "A slot stays in the free list after it was handed out.",
    LivenessNotImaged: "A block that comes to life is not marked in its record on disk.",
    OverwrittenStaysLive: "The block that a write replaces is not given up.",
    SegmentNumberReused: "Recovery hands out segment numbers again.",
    StaleMemberTrusted: "A device that was taken out is used again as it comes back.",
    GenerationNotStored: "A device is taken out without the others being told.",
    GenerationOldestWins: "Of the generations that devices know, an import takes the oldest.",
    OptimalTooSoon: "Full redundancy is reported while journal records lie on lost devices.",
    FlushRetried: "A failed flush is tried again, and its success believed.",
    ReadUnverified: "What a device returns is not compared with the digest.",
    DecodedUnverified: "What was decoded is not compared with the digest.",
    LostReadsAsZeros: "A block beyond the redundancy reads as zeros.",
    RebuildUnverified: "Rebuild computes from inputs that do not match their rows.",
    RebuildWithoutSummary: "Rebuild writes a summary that says nothing of the column.",
    ShortParityForgotten: "The parity of a stripe that was closed short is rebuilt as if never written.",
    UnconditionalMove: "A place delta is applied though the entry no longer names the old place.",
    MoveOverWrite: "The cleaner moves a block that a client has just overwritten.",
    MergeUnchecked: "A small write is merged into a block that changed meanwhile.",
    TrimResurrects: "A write that a trim of the same group commit covers is journalled as live.",
    TrimNotJournalled: "A group commit of trims alone is acknowledged without a record.",
    TrimRoundsUp: "A trim unmaps the block that it ends in.",
    OlderVersionRecorded: "Of two writes of a block in a group commit the older one counts.",
    SettledBeforeNewer: "A part of a group commit settles a record of data whose block only a later part records (#167).",
    FuaAsCached: "A durable write is acknowledged from memory.",
    FlushOfOneShard: "A flush waits for the first shard only.",
    LateWaiterAnswered: "A flush that came after the group commit was collected is answered with it.",
    WritingNotWaitedFor: "A flush does not wait for stripes that are being written.",
    LostWakeup: "Writers that wait for room are not woken.",
    ParityOfOldData: "Parity is computed of a stripe whose last strip is still zeros.",
    NodeReadTooSoon: "A node is looked for at its new place before its bytes are there (#81).",
    RowsOutOfTurn: "The last stripe of a course is written with the rows of those computed before it.",
    NeededGivenUp: "Devices that refuse writes are given up though what they hold is needed (#187).",
    HeaderNotWaitedFor: "A record names a segment whose headers are still being written.",
    RemovedBeforeEmpty: "A device that is to leave is no member any more before what lies on it has moved.",
    NewcomerInOldEpochs: "Epochs of the journal from before a device was added are looked for on it.",
    SpareUsedTwice: "A hot spare that has taken the place of a device stays a hot spare as well.",
    StaleColumnTrusted: "Every column that a device brings back counts as whole.",
    FenceForgotten: "A host goes on though its beat is too old.",
    BeatNotWatched: "An import does not wait whether another host's beat moves.",
    ScrubSkips: "The cursor of a scrub moves past a segment that was not looked at.",
    InterruptionForgotten: "The report of a scrub does not say that an import went on with it.",
    SlowNeeded: "A device that is late is given up though what it holds is needed.",
    LateWriteForgotten: "A device that was late is taken in again before the last late write is there.",
    AdmittedTogether: "All who wait for room are let in at once.",
}

#[cfg(feature = "planted")]
mod switch {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Makes this mistake, and no other, on this thread from now on.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    pub(crate) fn on(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(feature = "planted")]
pub(crate) use switch::on;
#[cfg(feature = "planted")]
pub use switch::plant;

/// Whether a mistake is to be made.
#[cfg(not(feature = "planted"))]
pub(crate) const fn on(_: Bug) -> bool {
    false
}
