//! Changes the size of a volume.
//!
//! Invariants:
//! - A root that has a volume's new size names no block beyond it: what lies there when the volume grows is zeros.
//! - What clients see is never larger than what the catalog of the last root says: nobody can have written beyond it.
//! - The size of a volume is changed by one caller at a time.

use std::cell::Cell;
use std::rc::Rc;

use ashlar_block::VolumeError;
use ashlar_format::BLOCK_U64;
use ashlar_format::catalog::VolumeEntry;
use ashlar_rt::Buf;

use crate::api::array::Array;
use crate::api::volumes::check_size;
use crate::error::Error;
use crate::protocol::{ShardMessage, ask};
use crate::shard::start::{resize_volume, volume_shape};

/// How often what lies beyond a volume's new end is merged, at most: something of it may have been under way.
const MERGES: usize = 4;

/// What is to be cleared of a volume that becomes smaller.
#[derive(Debug, PartialEq, Eq)]
struct Beyond {
    /// Bytes of the last block that stays which are beyond the new end: where they begin, and how many.
    tail: (u64, u64),
    /// Volume blocks that go, the first and how many.
    blocks: (u64, u64),
}

fn beyond(old: u64, new: u64, unit: u64) -> Beyond {
    let (first, end) = (new.div_ceil(unit), old.div_ceil(unit));
    Beyond {
        tail: (new, old.min(first * unit).saturating_sub(new)),
        blocks: (first, end.saturating_sub(first)),
    }
}

impl Array {
    /// Changes the size of a volume, which is durable when this returns. What lies beyond a smaller one is lost. Nobody
    /// should use the volume: who does sees the new size when he looks, and gets an error beyond it.
    ///
    /// Crash argument: in [`Array::grow`] and [`Array::shrink`]. At any time a volume has the old size or the new one,
    /// and nothing below the smaller of them is touched.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where a thick volume's new size cannot be promised, [`Error::Resizing`], and others.
    pub async fn volume_resize(&self, name: &str, size_bytes: u64) -> Result<(), Error> {
        self.check_writable()?;
        check_size(size_bytes)?;
        let number = self.volume_entry(|v| v.name == name);
        let number = number.ok_or_else(|| Error::NoVolume(name.to_string()))?;
        let (number, name) = (number.number, name.to_string());
        if !self.0.sizes.begin(number) {
            return Err(Error::Resizing(name));
        }
        // What is half done must come to an end, whether or not the caller waits for it.
        self.to_its_end(async move |array| {
            let resized = array.resize(number, &name, size_bytes).await;
            array.0.sizes.end(number);
            resized
        })
        .await
    }

    /// Whether a volume's size is being changed.
    pub fn is_resizing(&self, name: &str) -> bool {
        let entry = self.volume_entry(|v| v.name == name);
        entry.is_some_and(|v| self.0.sizes.is_changing(v.number))
    }

    /// A volume that is not being destroyed.
    fn volume_entry(&self, which: impl Fn(&VolumeEntry) -> bool) -> Option<VolumeEntry> {
        let catalog = self.0.home.catalog.borrow();
        let mut there = catalog.volumes.iter().filter(|v| !v.destroying);
        there.find(|v| which(v)).cloned()
    }

    async fn resize(&self, number: u32, name: &str, size: u64) -> Result<(), Error> {
        let entry = self.volume_entry(|v| v.number == number);
        let entry = entry.ok_or_else(|| Error::NoVolume(name.to_string()))?;
        let old = entry.size_bytes;
        // Handles made from here on see what this says, not what the catalog has before it is durable.
        let seen = self.0.sizes.of(&entry);
        if size > old {
            self.grow(&entry, size).await?;
            seen.set(size);
        } else if size < old {
            self.shrink(&entry, size, &seen).await?;
        } else {
            return Ok(());
        }
        let text = format!(
            "volume {} has {size} bytes now, it had {old}",
            entry.name.as_str()
        );
        self.0.home.core.events.note("volume-resized", None, text);
        Ok(())
    }

    /// Makes a volume larger.
    ///
    /// Crash argument: one root has the new size, all before it the old one. Nothing is written beyond the old size
    /// before that root is durable, since handles and shards are told of the new one after it. What lies there reads
    /// as zeros: no map and no delta names a block beyond a volume's size ([`Array::shrink`]), and the bytes of its
    /// last block which are beyond it are zeros, since a write holds what was read, zeros at first, where it holds
    /// nothing of its own. The map's trees stay as they are, and say themselves how far they reach.
    async fn grow(&self, entry: &VolumeEntry, size: u64) -> Result<(), Error> {
        let number = entry.number;
        let still_there = || self.volume_entry(|v| v.number == number);
        let gone = || Error::NoVolume(entry.name.clone());
        if !entry.thin {
            let (had, blocks) = (entry.size_bytes, entry.block_blocks);
            self.promise(had, size, blocks).await?;
            still_there().ok_or_else(gone)?; // destroyed meanwhile
            self.promised(had, size, blocks);
        }
        self.set_size(number, size).await?;
        let entry = still_there().ok_or_else(gone)?;
        self.tell_shards(&entry).await;
        Ok(())
    }

    /// Makes a volume smaller.
    ///
    /// Crash argument: first nobody can write beyond the new end any more; then what lies there is unmapped, durably,
    /// by an entry of the journal as that of any TRIM, and merged; of a block that stays in part, zeros are written as
    /// any client would. Only a root after that has the new size. A crash before it leaves the old size, with zeros
    /// beyond the new end as far as the journal has them. From it on no map names a block beyond the new end, and
    /// replay adds none: a delta of such a block that the journal's window still has is older than the entry, which
    /// the window has too, since it is cut from its old end only.
    async fn shrink(
        &self,
        entry: &VolumeEntry,
        size: u64,
        seen: &Rc<Cell<u64>>,
    ) -> Result<(), Error> {
        let (number, old) = (entry.number, entry.size_bytes);
        let failed = |why: VolumeError| match why {
            VolumeError::Closed if self.0.home.core.closed.get() => Error::Closed,
            VolumeError::Closed => Error::NoVolume(entry.name.clone()), // it is being destroyed
            why => Error::NotCleared {
                volume: entry.name.clone(),
                size,
                why,
            },
        };
        let beyond = beyond(old, size, u64::from(entry.block_blocks) * BLOCK_U64);
        seen.set(size);
        let smaller = VolumeEntry {
            size_bytes: size,
            ..entry.clone()
        };
        self.tell_shards(&smaller).await;
        let cleared = self.clear_beyond(&smaller, beyond).await;
        if cleared.is_ok() {
            return self.set_size(number, size).await;
        }
        seen.set(old);
        self.tell_shards(entry).await;
        cleared.map_err(failed)
    }

    /// Takes the volume blocks beyond a volume's end out of its map, and writes zeros over what is beyond it in the
    /// block before; both are durable, and merged.
    async fn clear_beyond(&self, entry: &VolumeEntry, beyond: Beyond) -> Result<(), VolumeError> {
        let home = &self.0.home;
        let (at, bytes) = beyond.tail;
        if bytes > 0 {
            let named = self.volume_entry(|v| v.number == entry.number);
            let volume = named.and_then(|v| self.volume(&v.name));
            let zeros = Buf::zeroed(usize::try_from(bytes).expect("below a block")).freeze();
            let volume = volume.ok_or(VolumeError::Closed)?;
            volume.write_pieces(at, &zeros).await?;
        }
        let (first, count) = beyond.blocks;
        for shard in home.shards.iter().filter(|_| count > 0) {
            let trim = |reply| ShardMessage::Trim(entry.number, first, count, reply);
            ask(shard, trim).await.unwrap_or(Err(VolumeError::Closed))?;
        }
        for _ in 0..MERGES {
            let merged = self.keep(async |home| home.merge().await).await;
            merged.map_err(|_| VolumeError::Closed)?;
            if self.tell_shards(entry).await {
                return Ok(());
            }
        }
        Err(VolumeError::Lost) // part of the map cannot be read
    }

    /// Tells the shards of a volume's size; whether nothing beyond it is left to merge.
    async fn tell_shards(&self, entry: &VolumeEntry) -> bool {
        let home = &self.0.home;
        resize_volume(&home.shards, volume_shape(entry, home.packing_whole())).await
    }

    /// Makes a volume's size durable.
    async fn set_size(&self, number: u32, size: u64) -> Result<(), Error> {
        let home = &self.0.home;
        for volume in &mut home.catalog.borrow_mut().volumes {
            if volume.number == number {
                volume.size_bytes = size;
            }
        }
        self.keep(async |home| home.checkpoint(0).await).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_is_a_part_of_the_last_block_and_whole_blocks() {
        let case = |old, new, unit| {
            let Beyond { tail, blocks } = beyond(old, new, unit);
            (tail.1, blocks)
        };
        assert_eq!(case(100, 40, 10), (0, (4, 6)));
        assert_eq!(case(100, 44, 10), (6, (5, 5)));
        assert_eq!(case(100, 91, 10), (9, (10, 0)));
        assert_eq!(case(95, 91, 10), (4, (10, 0)), "both end in one block");
        assert_eq!(case(95, 85, 10), (5, (9, 1)));
    }
}
