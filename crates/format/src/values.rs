//! Units, numbers and errors of the whole format.
//!
//! Invariants: values only; those on disk never change.

/// 4 KiB: the smallest unit of device space, of checksums and of the default volume block.
pub const BLOCK: usize = 4096;

/// The same, as a `u64`.
pub const BLOCK_U64: u64 = BLOCK as u64;

/// The format version that this crate reads and writes. A reader refuses any other.
pub const VERSION: u32 = 2;

/// A segment's number: never reused, from 1 up, below 2^40.
pub type SegmentNumber = u64;

/// Why bytes were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Not this kind of structure at all.
    #[error("not an Ashlar structure of this kind")]
    Magic,
    /// Its digest does not match: torn, rotten or foreign.
    #[error("its digest does not match its bytes")]
    Digest,
    /// Its digest matches, but its values make no sense.
    #[error("its values are out of range")]
    Value,
    /// Written in another version of the format.
    #[error(
        "it has format version {0} and this program reads version {VERSION} only: use the program that made it"
    )]
    Version(u32),
    /// Written with a feature this program does not know.
    #[error(
        "it uses feature bits or code points {0:#x} that this program does not know: use a newer one"
    )]
    Unsupported(u32),
}

/// What a digest is bound to (rule R19), first in every digest's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DigestContext {
    /// A volume block: volume where it was born, address.
    Block = 1,
    /// One 4 KiB piece of a larger volume block: volume, address, piece.
    Piece = 2,
    /// A node of a tree: tree, level, index.
    Node = 3,
    /// A parity block: segment, stripe, strip, block.
    Parity = 4,
    /// The content root of a part of a volume: volume, level, index.
    Content = 5,
}
