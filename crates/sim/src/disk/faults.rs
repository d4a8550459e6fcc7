//! What may go wrong with a simulated disk, in words: the kinds of faults and of power cuts.
//!
//! Invariants: nothing here touches a disk.

use ashlar_device::Fault;

use crate::rng::Rng;

/// How often, in 65,536 operations, a disk misbehaves while its faults are armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// A write reported done that changed nothing.
    pub lost_write: u32,
    /// A write that landed elsewhere on the disk.
    pub misdirected_write: u32,
    /// A write that failed, its units partly written.
    pub write_error: u32,
    /// A read that failed and goes on failing until the page is rewritten.
    pub latent_error: u32,
    /// A flush that failed, with some of the cache gone.
    pub flush_error: u32,
    /// A read whose bytes were changed on the way.
    pub read_corruption: u32,
    /// A flush reported done that made nothing durable.
    pub lying_flush: u32,
    /// A read that gave a page as it was before its last write.
    pub stale_read: u32,
    /// A read that gave another page instead of one of those asked for.
    pub misdirected_read: u32,
    /// A write that is done once more, some time later.
    pub duplicate_write: u32,
    /// A write that failed, and lands some time later all the same.
    pub late_write: u32,
}

/// How a power cut treats what was not flushed; see [`power_cut`](super::SimDisk::power_cut).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Nothing unflushed remains.
    None,
    /// Everything does.
    All,
    /// The units up to some point of the order of submission.
    Prefix,
    /// Each unit with this chance in 100.
    Units(u64),
    /// Each write, whole, with this chance in 100.
    Writes(u64),
    /// All units but one.
    AllButOne,
    /// One unit.
    OnlyOne,
    /// As `Units(50)`, and some of the units are garbage.
    Garbage,
}

impl Cut {
    /// A random way.
    pub fn random(rng: &mut Rng) -> Cut {
        match rng.below(12) {
            0 | 1 => Cut::None,
            2 | 3 => Cut::All,
            4 => Cut::Prefix,
            5 => Cut::Units(10),
            6 => Cut::Units(50),
            7 => Cut::Units(90),
            8 => Cut::Writes(50),
            9 => Cut::AllButOne,
            10 => Cut::OnlyOne,
            _ => Cut::Garbage,
        }
    }
}

/// Damage at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rot {
    /// One bit.
    Bit,
    /// A whole page of noise.
    Garbage,
    /// A whole page of zeros.
    Zeros,
    /// The content of another page of this disk.
    OtherPage,
    /// What the page held before: a lost write, seen later.
    Earlier,
    /// It cannot be read until it is rewritten.
    Unreadable,
}

/// Which writes a disk refuses until what lies under it is mended; it goes on reading, and its flushes end well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// All: its backing was made read-only.
    ReadOnly,
    /// All: its backing is full, and writes nothing in place.
    Full,
    /// To pages that hold nothing but zeros: its backing is sparse, and full. A write keeps what comes before the
    /// first of them.
    FullForNew,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Refusal; 3] = [Refusal::ReadOnly, Refusal::Full, Refusal::FullForNew];

    /// What it marks in a history.
    pub fn mark(self) -> &'static str {
        match self {
            Refusal::ReadOnly => "fault: read-only backing",
            Refusal::Full => "fault: full backing",
            Refusal::FullForNew => "fault: full sparse backing",
        }
    }

    /// How a write ends that it refuses.
    pub fn fault(self) -> Fault {
        match self {
            Refusal::ReadOnly => Fault::ReadOnly,
            Refusal::Full | Refusal::FullForNew => Fault::NoSpace,
        }
    }
}
