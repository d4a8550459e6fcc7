//! The interface of a volume for frontends: bytes at any alignment, split over the shards.
//!
//! Invariant: every handle of a volume sees its size as it is now; a larger one only once that is durable.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use ashlar_block::{Extent, VolumeError};
use ashlar_format::catalog::VolumeEntry;
use ashlar_format::partition::Partitioning;
use ashlar_format::{BLOCK, BLOCK_U64};
use ashlar_rt::{Buf, Sender, Slice};

use crate::api::array::Array;
use crate::counters::{Counters, UnderWay, add};
use crate::planted::{self, Bug};
use crate::protocol::{ShardMessage, ask};

/// When a write is acknowledged, unless it asks to be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteCache {
    /// As the frontend's rule says (R17).
    Auto,
    /// When it is in memory.
    On,
    /// When it is durable.
    Off,
}

impl WriteCache {
    pub(crate) fn tag(self) -> u8 {
        match self {
            WriteCache::Auto => 0,
            WriteCache::On => 1,
            WriteCache::Off => 2,
        }
    }

    fn from_tag(tag: u8) -> WriteCache {
        match tag {
            1 => WriteCache::On,
            2 => WriteCache::Off,
            _ => WriteCache::Auto,
        }
    }

    /// From `on`, `off`, `auto`.
    pub fn parse(text: &str) -> Option<WriteCache> {
        match text {
            "on" => Some(WriteCache::On),
            "off" => Some(WriteCache::Off),
            "auto" => Some(WriteCache::Auto),
            _ => None,
        }
    }

    /// `on`, `off` or `auto`.
    pub fn name(self) -> &'static str {
        match self {
            WriteCache::Auto => "auto",
            WriteCache::On => "on",
            WriteCache::Off => "off",
        }
    }

    pub(crate) fn of(entry: &VolumeEntry) -> WriteCache {
        WriteCache::from_tag(entry.write_cache)
    }
}

/// A volume's properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Bytes.
    pub size_bytes: u64,
    /// Bytes of a volume block: smaller writes are read-merge-writes.
    pub block_bytes: u32,
    /// Bytes of a stripe's data: the best size of a write.
    pub optimal_bytes: u32,
    /// When writes are acknowledged.
    pub write_cache: WriteCache,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether what is not mapped may find no space: it was promised more than there is.
    pub thin: bool,
}

/// The sizes of volumes, by number, as their handles see them.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    seen: RefCell<BTreeMap<u32, Rc<Cell<u64>>>>,
    /// Volumes whose size is being changed.
    changing: RefCell<BTreeSet<u32>>,
}

impl Sizes {
    /// What handles of a volume see. The first one sees what the catalog has.
    pub(crate) fn of(&self, entry: &VolumeEntry) -> Rc<Cell<u64>> {
        let mut seen = self.seen.borrow_mut();
        let new = || Rc::new(Cell::new(entry.size_bytes));
        seen.entry(entry.number).or_insert_with(new).clone()
    }

    /// Takes the right to change a volume's size; false if someone has it.
    pub(crate) fn begin(&self, number: u32) -> bool {
        self.changing.borrow_mut().insert(number)
    }

    /// Whether someone has it.
    pub(crate) fn is_changing(&self, number: u32) -> bool {
        self.changing.borrow().contains(&number)
    }

    /// Gives it back.
    pub(crate) fn end(&self, number: u32) {
        self.changing.borrow_mut().remove(&number);
    }
}

/// An open volume; cheap to clone.
#[derive(Clone)]
pub struct Volume {
    array: Array,
    tree: u32,
    name: String,
    info: VolumeInfo,
    /// Its size in bytes, of which that in `info` is a copy from when it was opened.
    size: Rc<Cell<u64>>,
    partitioning: Partitioning,
    counters: Rc<Counters>,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Volume({})", self.name)
    }
}

impl Volume {
    pub(crate) fn new(
        array: Array,
        entry: &VolumeEntry,
        counters: Rc<Counters>,
        size: Rc<Cell<u64>>,
    ) -> Volume {
        let home = &array.0.home;
        let superblock = home.superblock.borrow();
        let stripe = u32::from(home.topology().shape().k) * superblock.strip_blocks * BLOCK as u32;
        let info = VolumeInfo {
            size_bytes: size.get(),
            block_bytes: u32::from(entry.block_blocks) * BLOCK as u32,
            optimal_bytes: stripe,
            write_cache: WriteCache::of(entry),
            read_only: array.0.read_only,
            thin: entry.thin,
        };
        let partitioning = Partitioning::new(superblock.partitions, u32::from(entry.block_blocks));
        drop(superblock);
        Volume {
            tree: entry.number,
            name: entry.name.clone(),
            info,
            size,
            partitioning,
            counters,
            array,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its properties.
    pub fn info(&self) -> VolumeInfo {
        VolumeInfo {
            size_bytes: self.size.get(),
            ..self.info
        }
    }

    fn check(&self, offset: u64, length: u64) -> Result<(), VolumeError> {
        if self.array.check_open().is_err() {
            return Err(VolumeError::Closed);
        }
        let end = offset.checked_add(length).ok_or(VolumeError::OutOfRange)?;
        if end > self.size.get() {
            Err(VolumeError::OutOfRange)
        } else {
            Ok(())
        }
    }

    /// The answer to a request, unless another host may have the array by now.
    fn answer<T>(&self, result: Result<T, VolumeError>) -> Result<T, VolumeError> {
        let fenced = self.array.check_fence();
        fenced.map_or(Err(VolumeError::Closed), |()| result)
    }

    fn check_write(&self, offset: u64, length: u64) -> Result<(), VolumeError> {
        self.check(offset, length)?;
        if self.info.read_only {
            Err(VolumeError::ReadOnly)
        } else {
            Ok(())
        }
    }

    fn shard_of(&self, address: u64) -> usize {
        usize::from(self.partitioning.partition(address)) % self.array.0.home.shards.len()
    }

    /// Cuts a byte range at tile borders: offset and length of each piece.
    fn pieces(&self, offset: u64, length: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let tile = self.partitioning.tile_blocks() * u64::from(self.info.block_bytes);
        let (mut at, end) = (offset, offset + length);
        std::iter::from_fn(move || {
            let piece = (at, end.min((at / tile + 1) * tile) - at);
            at += piece.1;
            (piece.1 > 0).then_some(piece)
        })
    }

    /// The only piece of a byte range, if it has one.
    fn one_piece(&self, offset: u64, length: u64) -> Option<(u64, u64)> {
        self.pieces(offset, length)
            .next()
            .filter(|(_, bytes)| *bytes == length)
    }

    fn shard_at(&self, offset: u64) -> Sender<ShardMessage> {
        let block = offset / u64::from(self.info.block_bytes);
        self.array.0.home.shards[self.shard_of(block)].clone()
    }

    /// A client is at work, until this is dropped.
    fn note_asked(&self) -> UnderWay<'_> {
        let core = &self.array.0.home.core;
        core.clients.begin(&core.rt)
    }

    /// Reads `length` bytes at `offset`. Unmapped blocks are zeros.
    pub async fn read(&self, offset: u64, length: usize) -> Result<Buf, VolumeError> {
        self.check(offset, length as u64)?;
        let _asked = self.note_asked();
        add(&self.counters.reads, 1);
        add(&self.counters.read_bytes, length as u64);
        if let Some(piece) = self.one_piece(offset, length as u64) {
            let (blocks, part) = self.answer(self.read_piece(piece).await)?;
            return Ok(if part.len() == blocks.len() {
                blocks
            } else {
                Buf::copy_of(&blocks[part])
            });
        }
        let mut joins = Vec::new();
        for piece in self.pieces(offset, length as u64) {
            joins.push((
                piece,
                self.array.0.home.core.rt.spawn(self.read_piece(piece)),
            ));
        }
        let mut out = Buf::scratch(length);
        let mut result = Ok(());
        for ((at, bytes), join) in joins {
            match join.await {
                Ok((blocks, part)) => {
                    let start = usize::try_from(at - offset).expect("a part of the read");
                    let bytes = usize::try_from(bytes).expect("a part of the read");
                    out[start..start + bytes].copy_from_slice(&blocks[part]);
                }
                Err(error) => result = Err(error),
            }
        }
        self.answer(result.map(|()| out))
    }

    /// The blocks of a piece, and where in them it is.
    fn read_piece(
        &self,
        (at, bytes): (u64, u64),
    ) -> impl Future<Output = Result<(Buf, Range<usize>), VolumeError>> + use<> {
        let unit = u64::from(self.info.block_bytes);
        let (first, end) = (at / unit, (at + bytes).div_ceil(unit));
        let skip = usize::try_from(at % unit).expect("below a block");
        let part = skip..skip + usize::try_from(bytes).expect("a part of a tile");
        let (shard, tree) = (self.shard_at(at), self.tree);
        async move {
            let read = |reply| ShardMessage::Read(tree, first, end - first, reply);
            let blocks = ask(&shard, read).await;
            blocks
                .unwrap_or(Err(VolumeError::Closed))
                .map(|blocks| (blocks, part))
        }
    }

    /// Writes bytes at `offset`. With `durable` this returns when they would survive a power cut, else
    /// when they are in memory.
    pub async fn write(&self, offset: u64, data: Slice, durable: bool) -> Result<(), VolumeError> {
        self.check_write(offset, data.len() as u64)?;
        let _asked = self.note_asked();
        add(&self.counters.writes, 1);
        add(&self.counters.written_bytes, data.len() as u64);
        self.write_pieces(offset, &data).await?;
        self.settled(durable && !planted::on(Bug::FuaAsCached))
            .await
    }

    /// Answers a change once it is as durable as was asked for.
    async fn settled(&self, durable: bool) -> Result<(), VolumeError> {
        let done = match durable {
            true => self.array.durable().await,
            false => Ok(()),
        };
        self.answer(done)
    }

    /// The same, also beyond the volume's end, and counted nowhere.
    pub(super) async fn write_pieces(&self, offset: u64, data: &Slice) -> Result<(), VolumeError> {
        let length = data.len() as u64;
        if let Some((at, _)) = self.one_piece(offset, length) {
            return self.write_piece(at, data.clone()).await;
        }
        let mut joins = Vec::new();
        for (at, bytes) in self.pieces(offset, length) {
            let start = usize::try_from(at - offset).expect("a part of the write");
            let end = start + usize::try_from(bytes).expect("a part of the write");
            let writing = self.write_piece(at, data.cut(start..end));
            joins.push(self.array.0.home.core.rt.spawn(writing));
        }
        let mut result = Ok(());
        for join in joins {
            if let Err(error) = join.await {
                result = Err(error);
            }
        }
        result
    }

    fn write_piece(
        &self,
        at: u64,
        part: Slice,
    ) -> impl Future<Output = Result<(), VolumeError>> + use<> {
        let (shard, tree) = (self.shard_at(at), self.tree);
        async move {
            let asked = ask(&shard, |reply| ShardMessage::Write(tree, at, part, reply)).await;
            asked.unwrap_or(Err(VolumeError::Closed))
        }
    }

    /// Makes everything acknowledged before durable, on whatever connection it was acknowledged.
    pub async fn flush(&self) -> Result<(), VolumeError> {
        self.check(0, 0)?;
        let _asked = self.note_asked();
        add(&self.counters.flushes, 1);
        self.settled(true).await
    }

    /// Unmaps the range; it reads as zeros afterwards.
    pub async fn trim(&self, offset: u64, length: u64, durable: bool) -> Result<(), VolumeError> {
        self.write_zeroes(offset, length, durable).await
    }

    /// Makes the range read as zeros: whole blocks are unmapped, parts of blocks written.
    pub async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        durable: bool,
    ) -> Result<(), VolumeError> {
        self.check_write(offset, length)?;
        let _asked = self.note_asked();
        let unit = u64::from(self.info.block_bytes);
        let (end, first) = (offset + length, offset.div_ceil(unit));
        // The last block of a volume may be cut off by its end: unmapping it is whole all the same.
        let last = if end == self.size.get() || planted::on(Bug::TrimRoundsUp) {
            end.div_ceil(unit)
        } else {
            end / unit
        };
        if first >= last {
            let zeros = Buf::zeroed(usize::try_from(length).expect("below a block")).freeze();
            self.write_pieces(offset, &zeros).await?;
        } else {
            if offset < first * unit {
                let zeros =
                    Buf::zeroed(usize::try_from(first * unit - offset).expect("below a block"))
                        .freeze();
                self.write_pieces(offset, &zeros).await?;
            }
            self.unmap(first, last - first).await?;
            if last * unit < end {
                let zeros = Buf::zeroed(usize::try_from(end - last * unit).expect("below a block"))
                    .freeze();
                self.write_pieces(last * unit, &zeros).await?;
            }
        }
        self.settled(durable).await
    }

    async fn unmap(&self, first: u64, count: u64) -> Result<(), VolumeError> {
        let home = &self.array.0.home;
        let tile = self.partitioning.tile_blocks();
        let one = first / tile == (first + count - 1) / tile;
        let shards: Vec<usize> = if one {
            vec![self.shard_of(first)]
        } else {
            (0..home.shards.len()).collect()
        };
        for shard in shards {
            let tree = self.tree;
            let asked = ask(&home.shards[shard], |reply| {
                ShardMessage::Trim(tree, first, count, reply)
            })
            .await;
            asked.unwrap_or(Err(VolumeError::Closed))?;
        }
        Ok(())
    }

    /// Which parts of the range are mapped: extents from `offset` on. Once there are more than `most`,
    /// what follows is not looked at.
    pub async fn block_status(
        &self,
        offset: u64,
        length: u64,
        most: usize,
    ) -> Result<Vec<Extent>, VolumeError> {
        self.check(offset, length)?;
        let unit = u64::from(self.info.block_bytes);
        let mut extents: Vec<Extent> = Vec::new();
        for (at, bytes) in self.pieces(offset, length) {
            let (first, end) = (at / unit, (at + bytes).div_ceil(unit));
            let (shard, tree) = (self.shard_at(at), self.tree);
            let asked = ask(&shard, |reply| {
                ShardMessage::Mapped(tree, first, end - first, reply)
            })
            .await;
            let mapped = asked.unwrap_or(Err(VolumeError::Closed))?;
            for (block, mapped) in (first..end).zip(mapped) {
                let from = (block * unit).max(at);
                let to = ((block + 1) * unit).min(at + bytes);
                let extent = Extent {
                    length: to - from,
                    hole: !mapped,
                };
                match extents.last_mut() {
                    Some(last) if last.hole == extent.hole => last.length += extent.length,
                    _ => extents.push(extent),
                }
            }
            if extents.len() > most {
                break;
            }
        }
        self.answer(Ok(extents))
    }

    /// Bytes of a block of device space.
    pub const BLOCK_BYTES: u64 = BLOCK_U64;
}
