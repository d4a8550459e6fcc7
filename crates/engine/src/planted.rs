//! Bugs on purpose, for the test of the tests: each is one classic mistake, and `ashlar-sim planted` must
//! find every one.
//!
//! Invariants: without the feature `planted` [`on`] is a constant, and nothing of this is in the program;
//! with it nothing is planted until `plant` is called on the thread that runs the engine.

/// A mistake that can be made on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A journal record counts as durable when it is written, not when it is flushed.
    JournalNotFlushed,
    /// A journal record is written with one column fewer than M promises.
    JournalColumnLeftOut,
    /// The journal epochs have no redundancy of their own.
    JournalWithoutParity,
    /// The journal is cut at what was applied, though deltas older than that are not folded.
    CutTooLate,
    /// Data records are freed though their stripes have not been recorded.
    DataFreedEarly,
    /// A commit cuts the rows off that no summary holds yet.
    RowsNotPinned,
    /// Recovery answers before a root has closed the old epoch.
    RecoveryNotCommitted,
    /// Recovery forgets the data records.
    DataNotReplayed,
    /// Batches and commits begin while recovery still hands out what the journal had.
    BatchesBeforeAdoption,
    /// A root forgets closed epochs that the journal still needs.
    EpochDroppedEarly,
    /// A record names stripes that have not been flushed.
    StripeNotFlushed,
    /// A root is written before the nodes it names have been flushed.
    RootBeforeNodes,
    /// A root counts when one device of the root set holds it.
    RootOnOneDevice,
    /// A root counts before it is flushed.
    RootNotFlushed,
    /// A root is written before the slot table pages tagged with it are flushed.
    PagesNotFlushed,
    /// A slot table page is written over the copy that the last root uses.
    PagesInPlace,
    /// An import takes the root it sees last, not the newest.
    AnyRoot,
    /// Slots are free for reuse before the root that freed them is durable.
    SlotsFreedEarly,
    /// A segment is freed while readers and deltas still hold it.
    FreedInUse,
    /// A slot stays in the free list after it was handed out.
    DoubleAllocation,
    /// A block that comes to life is not marked in its record on disk.
    LivenessNotImaged,
    /// The block that a write replaces is not given up.
    OverwrittenStaysLive,
    /// Recovery hands out segment numbers again.
    SegmentNumberReused,
    /// A device that was taken out is used again as it comes back.
    StaleMemberTrusted,
    /// A device is taken out without the others being told.
    GenerationNotStored,
    /// Of the generations that devices know, an import takes the oldest.
    GenerationOldestWins,
    /// Full redundancy is reported while journal records lie on lost devices.
    OptimalTooSoon,
    /// A failed flush is tried again, and its success believed.
    FlushRetried,
    /// What a device returns is not compared with the digest.
    ReadUnverified,
    /// What was decoded is not compared with the digest.
    DecodedUnverified,
    /// A block beyond the redundancy reads as zeros.
    LostReadsAsZeros,
    /// Reconstruct computes from inputs that do not match their rows.
    ReconstructUnverified,
    /// Reconstruct writes a summary that says nothing of the column.
    ReconstructWithoutSummary,
    /// The parity of a stripe that was closed short is reconstructed as if never written.
    ShortParityForgotten,
    /// A place delta is applied though the entry no longer names the old place.
    UnconditionalMove,
    /// The cleaner moves a block that a client has just overwritten.
    MoveOverWrite,
    /// A small write is merged into a block that changed meanwhile.
    MergeUnchecked,
    /// A write that a trim of the same batch covers is journalled as live.
    TrimResurrects,
    /// A batch of trims alone is acknowledged without a record.
    TrimNotJournalled,
    /// A trim unmaps the block that it ends in.
    TrimRoundsUp,
    /// Of two writes of a block in a batch the older one counts.
    OlderVersionRecorded,
    /// A part of a batch settles a record of data whose block only a later part records (S167).
    SettledBeforeNewer,
    /// A durable write is acknowledged from memory.
    FuaAsCached,
    /// A flush waits for the first shard only.
    FlushOfOneShard,
    /// A flush that came after the batch was collected is answered with it.
    LateWaiterAnswered,
    /// A flush does not wait for stripes that are being written.
    WritingNotWaitedFor,
    /// Writers that wait for room are not woken.
    LostWakeup,
    /// Parity is computed of a stripe whose last strip is still zeros.
    ParityOfOldData,
    /// A node is looked for at its new place before its bytes are there (S81).
    NodeReadTooSoon,
    /// The last stripe of a course is written with the rows of those computed before it.
    RowsOutOfTurn,
    /// Devices that refuse writes are given up though what they hold is needed (S187).
    NeededGivenUp,
    /// A record names a segment whose headers are still being written.
    HeaderNotWaitedFor,
    /// All who wait for room are let in at once.
    AdmittedTogether,
}

#[cfg(feature = "planted")]
mod switch {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    impl Bug {
        /// All of them, with what each one does.
        pub const ALL: &[(Bug, &str)] = &[
            (
                Bug::JournalNotFlushed,
                "A journal record counts as durable when it is written, not when it is flushed.",
            ),
            (
                Bug::JournalColumnLeftOut,
                "A journal record is written with one column fewer than M promises.",
            ),
            (
                Bug::JournalWithoutParity,
                "The journal epochs have no redundancy of their own.",
            ),
            (
                Bug::CutTooLate,
                "The journal is cut at what was applied, though deltas older than that are not folded.",
            ),
            (
                Bug::DataFreedEarly,
                "Data records are freed though their stripes have not been recorded.",
            ),
            (
                Bug::RowsNotPinned,
                "A commit cuts the rows off that no summary holds yet.",
            ),
            (
                Bug::RecoveryNotCommitted,
                "Recovery answers before a root has closed the old epoch.",
            ),
            (Bug::DataNotReplayed, "Recovery forgets the data records."),
            (
                Bug::BatchesBeforeAdoption,
                "Batches and commits begin while recovery still hands out what the journal had.",
            ),
            (
                Bug::EpochDroppedEarly,
                "A root forgets closed epochs that the journal still needs.",
            ),
            (
                Bug::StripeNotFlushed,
                "A record names stripes that have not been flushed.",
            ),
            (
                Bug::RootBeforeNodes,
                "A root is written before the nodes it names have been flushed.",
            ),
            (
                Bug::RootOnOneDevice,
                "A root counts when one device of the root set holds it.",
            ),
            (Bug::RootNotFlushed, "A root counts before it is flushed."),
            (
                Bug::PagesNotFlushed,
                "A root is written before the slot table pages tagged with it are flushed.",
            ),
            (
                Bug::PagesInPlace,
                "A slot table page is written over the copy that the last root uses.",
            ),
            (
                Bug::AnyRoot,
                "An import takes the root it sees last, not the newest.",
            ),
            (
                Bug::SlotsFreedEarly,
                "Slots are free for reuse before the root that freed them is durable.",
            ),
            (
                Bug::FreedInUse,
                "A segment is freed while readers and deltas still hold it.",
            ),
            (
                Bug::DoubleAllocation,
                "A slot stays in the free list after it was handed out.",
            ),
            (
                Bug::LivenessNotImaged,
                "A block that comes to life is not marked in its record on disk.",
            ),
            (
                Bug::OverwrittenStaysLive,
                "The block that a write replaces is not given up.",
            ),
            (
                Bug::SegmentNumberReused,
                "Recovery hands out segment numbers again.",
            ),
            (
                Bug::StaleMemberTrusted,
                "A device that was taken out is used again as it comes back.",
            ),
            (
                Bug::GenerationNotStored,
                "A device is taken out without the others being told.",
            ),
            (
                Bug::GenerationOldestWins,
                "Of the generations that devices know, an import takes the oldest.",
            ),
            (
                Bug::OptimalTooSoon,
                "Full redundancy is reported while journal records lie on lost devices.",
            ),
            (
                Bug::FlushRetried,
                "A failed flush is tried again, and its success believed.",
            ),
            (
                Bug::ReadUnverified,
                "What a device returns is not compared with the digest.",
            ),
            (
                Bug::DecodedUnverified,
                "What was decoded is not compared with the digest.",
            ),
            (
                Bug::LostReadsAsZeros,
                "A block beyond the redundancy reads as zeros.",
            ),
            (
                Bug::ReconstructUnverified,
                "Reconstruct computes from inputs that do not match their rows.",
            ),
            (
                Bug::ReconstructWithoutSummary,
                "Reconstruct writes a summary that says nothing of the column.",
            ),
            (
                Bug::ShortParityForgotten,
                "The parity of a stripe that was closed short is reconstructed as if never written.",
            ),
            (
                Bug::UnconditionalMove,
                "A place delta is applied though the entry no longer names the old place.",
            ),
            (
                Bug::MoveOverWrite,
                "The cleaner moves a block that a client has just overwritten.",
            ),
            (
                Bug::MergeUnchecked,
                "A small write is merged into a block that changed meanwhile.",
            ),
            (
                Bug::TrimResurrects,
                "A write that a trim of the same batch covers is journalled as live.",
            ),
            (
                Bug::TrimNotJournalled,
                "A batch of trims alone is acknowledged without a record.",
            ),
            (
                Bug::TrimRoundsUp,
                "A trim unmaps the block that it ends in.",
            ),
            (
                Bug::OlderVersionRecorded,
                "Of two writes of a block in a batch the older one counts.",
            ),
            (
                Bug::SettledBeforeNewer,
                "A part of a batch settles a record of data whose block only a later part records.",
            ),
            (
                Bug::FuaAsCached,
                "A durable write is acknowledged from memory.",
            ),
            (
                Bug::FlushOfOneShard,
                "A flush waits for the first shard only.",
            ),
            (
                Bug::LateWaiterAnswered,
                "A flush that came after the batch was collected is answered with it.",
            ),
            (
                Bug::WritingNotWaitedFor,
                "A flush does not wait for stripes that are being written.",
            ),
            (Bug::LostWakeup, "Writers that wait for room are not woken."),
            (
                Bug::ParityOfOldData,
                "Parity is computed of a stripe whose last strip is still zeros.",
            ),
            (
                Bug::NodeReadTooSoon,
                "A node is looked for at its new place before its bytes are there (S81).",
            ),
            (
                Bug::RowsOutOfTurn,
                "The last stripe of a course is written with the rows of those computed before it.",
            ),
            (
                Bug::NeededGivenUp,
                "Devices that refuse writes are given up though what they hold is needed (S187).",
            ),
            (
                Bug::HeaderNotWaitedFor,
                "A record names a segment whose headers are still being written.",
            ),
            (
                Bug::AdmittedTogether,
                "All who wait for room are let in at once.",
            ),
        ];
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
