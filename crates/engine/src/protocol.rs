//! Messages between shards and the home. The journal, the allocator and liveness belong to the home; partitions,
//! deltas and streams belong to shards. Everything between them is one of these.

use std::collections::BTreeMap;

use ashlar_block::VolumeError;
use ashlar_format::SegmentNumber;
use ashlar_format::journal::StripeEntry;
use ashlar_format::node::{NodeEntry, Place};
use ashlar_rt::{Buf, OneshotSender, Sender, Slice, oneshot};
use ashlar_space::floors::Class;

use crate::map::delta::UnmappedRange;
use crate::map::{Key, NodeWrite};
use crate::segment::stream::Item;
use crate::space::shape::{MergeLimit, VolumeShape};

/// How far a group commit reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Stripes that are written: nobody waits for it.
    Written,
    /// Everything acknowledged: stripes that are being written are waited for, blocks of unfinished ones are journalled
    /// as data.
    All,
    /// The same, and unfinished stripes are closed rather than journalled.
    Closed,
}

/// A segment to write into, and how many a stream should keep open at once.
#[derive(Debug)]
pub struct Allocated {
    /// The segment.
    pub segment: SegmentNumber,
    /// Segments that together cover the eligible devices.
    pub row: usize,
}

/// To the home.
#[derive(Debug)]
pub enum HomeMessage {
    /// Everything acknowledged to its sender so far is to become durable.
    Durable(OneshotSender<Result<(), VolumeError>>),
    /// A data segment is needed, in this group if one is named; `None` if there is no space for this class of work.
    Allocate(Class, Option<u16>, OneshotSender<Option<Allocated>>),
    /// Merge everything written so far.
    Merge(OneshotSender<()>),
    /// Places for so many nodes, during a checkpoint.
    Places(usize, OneshotSender<Vec<Place>>),
    /// Deltas near their bound: a checkpoint would help.
    Pressure,
    /// Many stripes are written and only have to be recorded.
    Record,
    /// A shard cannot go on, for this reason: the array stops.
    Halt(&'static str),
}

/// A stripe: its segment, and its number there. Its shard holds both until it is recorded.
pub type StripeId = (SegmentNumber, u32);

/// A closed stripe that is to be recorded.
#[derive(Debug)]
pub struct ClosedStripe {
    /// What the record says of it, with the deltas of `live`; its birth is the home's to say.
    pub entry: StripeEntry,
    /// Whether it was written: else it is void, and what it held lies in others.
    pub written: bool,
    /// Whether it held anything.
    pub held: bool,
    /// The items that are to count, in order.
    pub live: Vec<Item>,
}

/// A block of an unfinished stripe, which is recorded as data.
#[derive(Debug)]
pub struct Unfinished {
    /// The block.
    pub item: Item,
    /// Its stripe.
    pub stripe: StripeId,
    /// Where it will lie.
    pub place: Place,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// What a shard has that is to be made durable.
#[derive(Debug, Default)]
pub struct Collected {
    /// Closed stripes, in order within each segment.
    pub stripes: Vec<ClosedStripe>,
    /// So many of these, the first ones, hold what records of data do, or come before such a stripe in its segment.
    pub settling: usize,
    /// Unmapped ranges.
    pub unmapped: Vec<UnmappedRange>,
    /// Blocks of unfinished stripes.
    pub data: Vec<Unfinished>,
}

/// A stripe that a record names.
#[derive(Debug)]
pub struct Named {
    /// The stripe.
    pub stripe: StripeId,
    /// Whether it was written.
    pub written: bool,
    /// The items that count.
    pub live: Vec<Item>,
}

/// What of a shard a record holds.
#[derive(Debug, Default)]
pub struct Recorded {
    /// Stripes, in order within each segment.
    pub stripes: Vec<Named>,
    /// Unmapped ranges.
    pub unmapped: Vec<UnmappedRange>,
    /// Blocks of unfinished stripes.
    pub data: Vec<Unfinished>,
}

/// What a shard's part of a checkpoint is.
#[derive(Debug, Default)]
pub struct Prepared {
    /// Map roots by volume and partition.
    pub roots: Vec<((u32, u16), Option<NodeEntry>)>,
    /// Nodes to write.
    pub writes: Vec<NodeWrite>,
    /// Blocks that the trees now reach: place and count.
    pub born: Vec<(Place, u32)>,
    /// Blocks that they no longer reach.
    pub dead: Vec<(Place, u32)>,
    /// The oldest sequence its deltas hang on.
    pub oldest: Option<u64>,
    /// Some leaves were merged, and more are due.
    pub more: bool,
    /// Bytes of blocks of thin volumes that have been written and are not merged yet.
    pub thin_pending: u64,
    /// By volume: blocks mapped more (or fewer) than before.
    pub mapped: BTreeMap<u32, i64>,
    /// By volume: nodes of its maps more (or fewer) than before.
    pub map_nodes: BTreeMap<u32, i64>,
}

/// A live block the mover wants moved.
#[derive(Debug, Clone)]
pub struct Move {
    /// The volume.
    pub tree: u32,
    /// The volume block.
    pub address: u64,
    /// Where it lies.
    pub from: Place,
    /// The group that it goes to, and for whom.
    pub into: (u16, Class),
    /// Digest algorithm.
    pub algorithm: u8,
    /// Its bytes, verified.
    pub bytes: Slice,
    /// Its digest for the map.
    pub digest: [u8; 16],
}

/// What came of moves.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moved {
    /// Bytes that were moved.
    pub bytes: u64,
    /// Whether there was no room for all of them.
    pub refused: bool,
}

/// What a shard may hold before writers wait.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Blocks in stripes that are being filled or written.
    pub blocks: usize,
    /// Stripes that are written and not recorded.
    pub unrecorded: usize,
    /// Deltas.
    pub deltas: usize,
    /// Leaves that deltas are of, where free space has no room for more nodes; more than unfinished stripes hold.
    pub leaves: usize,
    /// Leaves that unmapped ranges bring into one step of a checkpoint: what it changes is in memory until it is
    /// written.
    pub unmapped: usize,
}

impl Bounds {
    /// How many volume blocks of so many pieces a write is admitted with at once.
    pub fn run(&self, pieces: usize) -> usize {
        (self.blocks / 4 / pieces).max(1)
    }

    /// Whether so many blocks more fit beside those that are held. Alone any number does.
    pub fn fits(&self, held: usize, more: usize) -> bool {
        held == 0 || held + more <= self.blocks
    }
}

/// What a shard tells about itself.
#[derive(Debug, Default, Clone, Copy)]
pub struct ShardStats {
    /// Bytes of nodes in memory.
    pub cached_bytes: u64,
    /// Bytes of open stripes and deltas.
    pub dirty_bytes: u64,
}

/// To a shard.
#[derive(Debug)]
pub enum ShardMessage {
    /// Read volume blocks: volume, first, count, out as 4 KiB blocks.
    Read(u32, u64, u64, OneshotSender<Result<Buf, VolumeError>>),
    /// Write bytes at a byte offset, all in one partition.
    Write(u32, u64, Slice, OneshotSender<Result<(), VolumeError>>),
    /// Unmap volume blocks (those of this shard's partitions).
    Trim(u32, u64, u64, OneshotSender<Result<(), VolumeError>>),
    /// Which of the volume blocks are mapped: volume, first, count, in one partition.
    Mapped(u32, u64, u64, OneshotSender<Result<Vec<bool>, VolumeError>>),
    /// What is to be made durable.
    Collect(Reach, OneshotSender<Collected>),
    /// A record is durable, under this sequence.
    Recorded(Recorded, u64, OneshotSender<()>),
    /// Merge what was recorded up to a sequence, as far as the limit goes, and place all dirty nodes.
    Prepare(u64, MergeLimit, OneshotSender<Prepared>),
    /// The nodes of the last [`ShardMessage::Prepare`] are written.
    Written(OneshotSender<()>),
    /// Move live blocks into the streams of cold data.
    Relocate(Vec<Move>, OneshotSender<Moved>),
    /// How many nodes the next checkpoint writes if those of these that lie there are rewritten, with those above them;
    /// and, if told so, that it does.
    Touch(Vec<(Key, Place)>, bool, OneshotSender<usize>),
    /// A volume exists, with its map roots.
    AddVolume(VolumeShape, Vec<Option<NodeEntry>>, OneshotSender<()>),
    /// A volume has another size, and takes no writes beyond it. Whether nothing beyond it is left to merge.
    Resize(VolumeShape, OneshotSender<bool>),
    /// A volume is being destroyed: it takes no more writes.
    Leave(u32, OneshotSender<()>),
    /// A volume is gone.
    RemoveVolume(u32, OneshotSender<()>),
    /// It may hold so much from now on: bytes of the map's cache, and what else.
    Memory(u64, crate::protocol::Bounds, OneshotSender<()>),
    /// Figures for status.
    Stats(OneshotSender<ShardStats>),
    /// The array has stopped.
    Close,
    /// Adopt a delta from recovery.
    Adopt(Adopted, OneshotSender<()>),
}

/// A delta found by recovery.
#[derive(Debug)]
pub enum Adopted {
    /// A block at a place.
    Block {
        /// The volume.
        tree: u32,
        /// The volume block.
        address: u64,
        /// The segment.
        segment: SegmentNumber,
        /// First data block in it.
        block: u32,
        /// Digest for the map.
        digest: [u8; 16],
        /// Digest algorithm.
        algorithm: u8,
        /// Birth.
        birth: u64,
        /// Condition.
        from: Option<Place>,
        /// The record's sequence.
        sequence: u64,
    },
    /// Unmapped ranges.
    Unmapped {
        /// The volume.
        tree: u32,
        /// First volume block.
        first: u64,
        /// How many.
        count: u64,
        /// In which partitions: modulus and rest.
        part: (u16, u16),
        /// The record's sequence.
        sequence: u64,
    },
    /// A block whose stripe was never written: placed again.
    Data {
        /// The volume.
        tree: u32,
        /// The volume block.
        address: u64,
        /// Digest algorithm.
        algorithm: u8,
        /// Digest for the map.
        digest: [u8; 16],
        /// Its bytes.
        bytes: Slice,
    },
}

/// Actors may be on threads of their own: what they say to each other can cross.
const fn crosses<T: Send>() {}
const _: () = crosses::<HomeMessage>();
const _: () = crosses::<ShardMessage>();

/// Sends a message that carries a reply, and waits for the reply; `None` if the other side is gone.
pub async fn ask<M, T>(
    sender: &Sender<M>,
    message: impl FnOnce(OneshotSender<T>) -> M,
) -> Option<T> {
    let (reply, answer) = oneshot();
    sender.send(message(reply)).ok()?;
    answer.await
}
