//! Starting the shards of an array, and telling them of volumes.
//!
//! Invariants: what a shard may hold fits one checkpoint (R15); every shard knows every volume.

use std::cell::Cell;
use std::rc::Rc;

use ashlar_format::node::LEAF_ENTRIES;
use ashlar_format::partition::Partitioning;
use ashlar_format::superblock::Superblock;
use ashlar_format::{BLOCK, SegmentGeometry};
use ashlar_layout::Shape;
use ashlar_rt::{Sender, mailbox};
use ashlar_space::promise::Packing;

use super::{Bounds, Shard};
use crate::map::delta::DELTA_BYTES;
use crate::map::height_for;
use crate::options::Settings;
use crate::protocol::{ShardMessage, ask};
use crate::segment::table::Core;
use crate::space::shape::VolumeShape;

/// Bytes in memory of a leaf that is changed, and of what it no longer maps.
const UNMAPPED_LEAF: usize = BLOCK + LEAF_ENTRIES * 32;
/// Stripes that a shard fills and writes at once, so that devices have work: at least so many, and so many bytes of
/// data for each device; and at most so many, or what that comes to.
const BUSY_STRIPES: usize = 16;
const BUSY_BYTES: usize = 64 << 10;
const MOST_STRIPES: usize = 32;
/// For each of these, stripes that are written and wait to be recorded.
const UNRECORDED: usize = 8;
/// Nodes that a step of a checkpoint may write, however little room there is.
const LEAST_NODES: usize = 512;
/// So many leaves a step of a checkpoint may unmap, however little memory there is.
const LEAST_UNMAPPED: usize = 1024;

/// The bounds of a shard: what it may hold so that one checkpoint fits the last reserve (R15).
/// With the bytes of its map's cache: a half of its share of the array's memory, a quarter each is for open
/// stripes and deltas.
pub fn limits(
    core: &Core,
    shape: &Shape,
    strip_blocks: u32,
    memory_bytes: u64,
    shards: usize,
) -> (u64, Bounds) {
    let devices = core.members.len();
    let meta = SegmentGeometry {
        k: 8,
        m: 1,
        strip_blocks: 1,
        slot_blocks: core.slot_blocks,
    };
    let fits = (2 * meta.data_blocks() as usize).max(LEAST_NODES);
    let stripe_blocks = usize::from(shape.k) * strip_blocks as usize;
    let share = memory_bytes / shards.max(1) as u64;
    let memory = usize::try_from(share).unwrap_or(usize::MAX);
    // Stripes being filled and written: what keeps the devices busy, if at most half of the memory holds so many.
    let fitting = memory / 4 / (stripe_blocks * BLOCK);
    let busy = (devices * BUSY_BYTES / (stripe_blocks * BLOCK)).max(BUSY_STRIPES);
    let stripes = fitting
        .clamp(busy.min(2 * fitting), busy.max(MOST_STRIPES))
        .max(2);
    let unrecorded = fitting.clamp(stripes, UNRECORDED * stripes);
    let deltas = (memory / 4 / DELTA_BYTES).max(4 * stripe_blocks).max(256);
    let bounds = Bounds {
        blocks: stripes * stripe_blocks,
        unrecorded,
        leaves: 4 * stripe_blocks,
        deltas: deltas.min((fits * 64).max(4 * stripe_blocks)),
        unmapped: (memory / 2 / UNMAPPED_LEAF).max(LEAST_UNMAPPED),
    };
    (share / 2, bounds)
}

/// Starts the shards of an array.
pub fn start_shards(
    core: &Rc<Core>,
    shape: &Shape,
    superblock: &Superblock,
    settings: &Settings,
    birth: &Rc<Cell<u64>>,
) -> (
    Vec<Sender<ShardMessage>>,
    Sender<crate::protocol::HomeMessage>,
    ashlar_rt::Mailbox<crate::protocol::HomeMessage>,
) {
    let (to_home, at_home) = mailbox();
    let shards = settings.shards.clamp(1, usize::from(superblock.partitions));
    let strip_blocks = superblock.strip_blocks;
    let (cache, bounds) = limits(core, shape, strip_blocks, settings.memory_bytes, shards);
    let mut senders = Vec::new();
    for index in 0..shards {
        let (sender, receiver) = mailbox();
        Shard::start(
            core,
            to_home.clone(),
            receiver,
            index,
            shards,
            superblock.partitions,
            birth.clone(),
            cache,
            bounds,
        );
        senders.push(sender);
    }
    (senders, to_home, at_home)
}

/// Tells every shard of a volume.
pub async fn add_volume(
    shards: &[Sender<ShardMessage>],
    volume: &ashlar_format::catalog::VolumeEntry,
    packing: Packing,
) {
    let shape = volume_shape(volume, packing);
    for shard in shards {
        ask(shard, |reply| {
            ShardMessage::AddVolume(shape, volume.maps.clone(), reply)
        })
        .await;
    }
}

/// Tells every shard that a volume has another size; whether in all of them nothing beyond it is left to merge.
pub async fn resize_volume(shards: &[Sender<ShardMessage>], shape: VolumeShape) -> bool {
    let mut clear = true;
    for shard in shards {
        let told = ask(shard, |reply| ShardMessage::Resize(shape, reply)).await;
        clear &= told == Some(true);
    }
    clear
}

/// A catalog entry as shards need it.
pub fn volume_shape(volume: &ashlar_format::catalog::VolumeEntry, packing: Packing) -> VolumeShape {
    let unit = u64::from(volume.block_blocks) * BLOCK as u64;
    let (blocks, pieces) = (volume.size_bytes.div_ceil(unit), volume.block_blocks.into());
    let partitions = u16::try_from(volume.maps.len()).expect("partitions have 16-bit numbers");
    let full = height_for(Partitioning::new(partitions, pieces).leaves(blocks));
    let there = volume.maps.iter().flatten();
    let highest = there.filter_map(|top| top.height().ok()).max();
    VolumeShape {
        tree: volume.number,
        blocks,
        pieces,
        height: highest.unwrap_or(0).max(full),
        algorithm: volume.digest,
        takes_bytes: packing.taken(volume.block_blocks.into(), volume.block_blocks) * BLOCK as u64,
        thin: volume.thin,
        leaving: volume.destroying,
    }
}
