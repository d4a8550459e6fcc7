//! Creates, finds, changes and destroys volumes.
//!
//! Invariants:
//! - A volume is in the catalog, and what a thick one was promised is taken, before anything waits: another with its
//!   name, or for its space, sees it.
//! - A volume that is being destroyed has no name that anybody knows, and no number is given twice.

use ashlar_digest::Kind;
use ashlar_format::catalog::VolumeEntry;
use ashlar_format::{BLOCK, BLOCK_U64};

use crate::api::array::Array;
use crate::api::volume::{Volume, WriteCache};
use crate::error::Error;
use crate::options::{VOLUME_BLOCKS, check_name};
use crate::protocol::{ShardMessage, ask};
use crate::shard::start::{add_volume, volume_shape};
use crate::status::Frontend;

/// What a volume is to be.
#[derive(Debug, Clone)]
pub struct VolumeOptions {
    /// Bytes, a multiple of 4096.
    pub size_bytes: u64,
    /// May promise more than there is.
    pub thin: bool,
    /// Bytes of a volume block: 4096 to 131072, a power of two.
    pub block_bytes: u32,
    /// Digest.
    pub digest: Kind,
    /// When writes are acknowledged.
    pub write_cache: WriteCache,
}

impl Default for VolumeOptions {
    fn default() -> VolumeOptions {
        VolumeOptions {
            size_bytes: 0,
            thin: false,
            block_bytes: 4096,
            digest: Kind::Blake3,
            write_cache: WriteCache::Auto,
        }
    }
}

impl Array {
    /// The largest volume with blocks of so many bytes that can still be promised all its space, in bytes. Less
    /// than what is free where a stripe is no multiple of them: each lies whole in one.
    pub fn room_for(&self, block_bytes: u32) -> u64 {
        self.0.home.room_for(blocks_of(block_bytes))
    }

    /// Creates a volume; it is durable when this returns.
    pub async fn volume_create(&self, name: &str, options: VolumeOptions) -> Result<(), Error> {
        self.check_writable()?;
        check_name(name)?;
        self.check_free(name)?;
        self.check_sizes(&options)?;
        let block_blocks = blocks_of(options.block_bytes);
        if !options.thin {
            self.promise(0, options.size_bytes, block_blocks).await?;
            self.check_free(name)?; // made meanwhile
            self.promised(0, options.size_bytes, block_blocks);
        }
        let home = &self.0.home;
        let number = home.catalog.take_number();
        let entry = VolumeEntry {
            number,
            name: name.to_string(),
            size_bytes: options.size_bytes,
            block_blocks,
            digest: options.digest.tag(),
            write_cache: options.write_cache.tag(),
            thin: options.thin,
            destroying: false,
            mapped_bytes: 0,
            map_nodes: 0,
            snapshot_of: (0, 0),
            clone_of: 0,
            frontends: Vec::new(),
            maps: vec![None; usize::from(home.superblock.borrow().partitions)],
        };
        // In the catalog before anything waits: another with its name, or for its space, must see it.
        home.catalog.borrow_mut().volumes.push(entry.clone());
        self.keep(async move |home| {
            add_volume(&home.shards, &entry, home.packing_whole()).await;
            home.checkpoint(0).await;
            if !home.core.closed.get() {
                let text = format!("volume {} was created", entry.name);
                home.core.events.note("volume-created", None, text);
            }
        })
        .await
    }

    /// Whether a volume may have this name.
    fn check_free(&self, name: &str) -> Result<(), Error> {
        let catalog = self.0.home.catalog.borrow();
        if catalog.volumes.iter().any(|v| v.name == name) {
            return Err(Error::VolumeExists(name.to_string()));
        }
        Ok(())
    }

    /// Whether a volume may have this size, and blocks of this one.
    fn check_sizes(&self, options: &VolumeOptions) -> Result<(), Error> {
        let home = &self.0.home;
        check_size(options.size_bytes)?;
        let block = options.block_bytes;
        if !block.is_power_of_two() || !VOLUME_BLOCKS.contains(&block.into()) {
            return Err(Error::Size {
                what: "a volume block",
                value: u64::from(block),
                must: "a power of two, 4K to 128K",
            });
        }
        let stripe = u64::from(home.topology().shape().k)
            * u64::from(home.superblock.borrow().strip_blocks)
            * BLOCK_U64;
        if u64::from(block) > stripe {
            return Err(Error::Size {
                what: "a volume block",
                value: u64::from(block),
                must: "at most a stripe (K x strip)",
            });
        }
        Ok(())
    }

    /// Looks whether a volume that is not thin, and has been promised `had` bytes, can be promised `size` of them. The
    /// caller takes them before it waits for anything ([`Array::promised`]).
    pub(super) async fn promise(
        &self,
        had: u64,
        size: u64,
        block_blocks: u16,
    ) -> Result<(), Error> {
        // Thin volumes may have taken more than the map says by now.
        self.keep(async |home| home.merge().await).await?;
        let home = &self.0.home;
        let left = home.core.thin.left();
        let packing = home.packing_whole();
        let left = packing.fits(left / BLOCK_U64, block_blocks) * BLOCK_U64;
        let free = left.min(home.room_for(block_blocks));
        let asked = size.saturating_sub(had);
        if asked > free {
            return Err(Error::NoSpace { asked, free });
        }
        Ok(())
    }

    /// Takes the space that [`Array::promise`] has found.
    pub(super) fn promised(&self, had: u64, size: u64, block_blocks: u16) {
        let home = &self.0.home;
        let packing = home.packing_whole();
        let taken = |bytes: u64| packing.taken(bytes / BLOCK_U64, block_blocks) * BLOCK_U64;
        let more = taken(size).saturating_sub(taken(had));
        home.core.thin.promise(more);
    }

    /// Destroys a volume: it is gone when this returns; its space comes back in the background, also
    /// over a restart.
    pub async fn volume_destroy(&self, name: &str) -> Result<(), Error> {
        self.check_writable()?;
        let home = &self.0.home;
        let hidden = {
            let mut catalog = home.catalog.borrow_mut();
            let volume = named(&mut catalog.volumes, name)?;
            volume.destroying = true;
            volume.frontends.clear();
            volume.name = format!("{name}#{}", volume.number); // the name is free at once
            volume.name.clone()
        };
        let (array, text) = (self.clone(), format!("volume {name} was destroyed"));
        self.keep(async move |home| {
            home.checkpoint(0).await;
            if home.core.closed.get() {
                return;
            }
            home.core.events.note("volume-destroyed", None, text);
            home.core.rt.spawn(async move {
                let _ = array.release_volume(&hidden).await; // resumed at the next import if it fails
            });
        })
        .await
    }

    /// Gives back the space of a volume that is being destroyed.
    pub(crate) async fn release_volume(&self, name: &str) -> Result<(), Error> {
        let home = &self.0.home;
        let found = home
            .catalog
            .borrow()
            .volumes
            .iter()
            .find(|v| v.name == name)
            .cloned();
        let volume = found.ok_or_else(|| Error::NoVolume(name.to_string()))?;
        home.tasks.borrow_mut().releasing += 1;
        let shape = volume_shape(&volume, home.packing_whole());
        for shard in &home.shards {
            ask(shard, |reply| ShardMessage::Leave(shape.tree, reply)).await;
            ask(shard, |reply| {
                ShardMessage::Trim(shape.tree, 0, shape.blocks, reply)
            })
            .await;
        }
        self.keep(async |home| home.merge().await).await?;
        let empty =
            |v: &VolumeEntry| v.number != volume.number || v.maps.iter().all(Option::is_none);
        if home.catalog.borrow().volumes.iter().all(empty) {
            for shard in &home.shards {
                ask(shard, |reply| {
                    ShardMessage::RemoveVolume(volume.number, reply)
                })
                .await;
            }
            home.catalog
                .borrow_mut()
                .volumes
                .retain(|v| v.number != volume.number);
            self.keep(async |home| home.checkpoint(0).await).await?;
        }
        home.tasks.borrow_mut().releasing -= 1;
        home.core.progress.open();
        Ok(())
    }

    /// Gives a volume another name, which is durable when this returns. Whoever uses the volume goes on.
    pub async fn volume_rename(&self, name: &str, new: &str) -> Result<(), Error> {
        self.check_writable()?;
        check_name(new)?;
        let home = &self.0.home;
        self.volume(name)
            .ok_or_else(|| Error::NoVolume(name.to_string()))?;
        self.check_free(new)?;
        named(&mut home.catalog.borrow_mut().volumes, name)?.name = new.to_string();
        let text = format!("volume {name} is called {new} now");
        self.keep(async move |home| {
            home.checkpoint(0).await;
            if !home.core.closed.get() {
                home.core.events.note("volume-renamed", None, text);
            }
        })
        .await
    }

    /// Names of the volumes.
    pub fn volume_names(&self) -> Vec<String> {
        self.0
            .home
            .catalog
            .borrow()
            .volumes
            .iter()
            .filter(|v| !v.destroying)
            .map(|v| v.name.clone())
            .collect()
    }

    /// A volume by name.
    pub fn volume(&self, name: &str) -> Option<Volume> {
        let catalog = self.0.home.catalog.borrow();
        let entry = catalog
            .volumes
            .iter()
            .find(|v| v.name == name && !v.destroying)?;
        let counters = self
            .0
            .counters
            .borrow_mut()
            .entry(entry.number)
            .or_default()
            .clone();
        let size = self.0.sizes.of(entry);
        Some(Volume::new(self.clone(), entry, counters, size))
    }

    /// Changes a property of a volume: `write-cache` is `on`, `off` or `auto`.
    pub async fn volume_set(&self, name: &str, key: &str, value: &str) -> Result<(), Error> {
        self.check_writable()?;
        let home = &self.0.home;
        let wrong = || Error::Setting {
            key: "write-cache",
            value: value.to_string(),
            takes: "on, off or auto",
            default: "auto",
        };
        {
            let mut catalog = home.catalog.borrow_mut();
            let volume = named(&mut catalog.volumes, name)?;
            match key {
                "write-cache" => {
                    volume.write_cache = WriteCache::parse(value).ok_or_else(wrong)?.tag()
                }
                _ => {
                    return Err(Error::NoSetting {
                        key: key.to_string(),
                        known: "write-cache".to_string(),
                    });
                }
            }
        }
        self.keep(async |home| home.checkpoint(0).await).await
    }

    /// Keeps in the array how a volume is served.
    pub async fn set_frontends(&self, name: &str, frontends: Vec<Frontend>) -> Result<(), Error> {
        self.check_writable()?;
        let home = &self.0.home;
        {
            let mut catalog = home.catalog.borrow_mut();
            let volume = named(&mut catalog.volumes, name)?;
            volume.frontends = frontends.into_iter().map(|f| (f.kind, f.address)).collect();
        }
        self.keep(async |home| home.checkpoint(0).await).await
    }
}

/// The volume of this name, to be changed.
fn named<'a>(volumes: &'a mut [VolumeEntry], name: &str) -> Result<&'a mut VolumeEntry, Error> {
    let mut there = volumes.iter_mut();
    let found = there.find(|v| v.name == name && !v.destroying);
    found.ok_or_else(|| Error::NoVolume(name.to_string()))
}

/// Whether a volume may have this size.
pub(super) fn check_size(size: u64) -> Result<(), Error> {
    if size == 0 || !size.is_multiple_of(BLOCK_U64) || size > 1 << 60 {
        return Err(Error::Size {
            what: "a volume",
            value: size,
            must: "a multiple of 4K, above 0, at most 1E",
        });
    }
    Ok(())
}

/// A volume block's size in blocks.
fn blocks_of(block_bytes: u32) -> u16 {
    u16::try_from(block_bytes as usize / BLOCK).unwrap_or(u16::MAX)
}
