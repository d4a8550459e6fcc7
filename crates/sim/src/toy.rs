//! A small store that is right, and the same store with a planted bug: the test of the simulator.
//! Every device mirrors everything; every volume block has two places that are written in turn.
//!
//! Invariants (when nothing is planted): a place is overwritten only when the other one is durable;
//! a block's newest place is the valid one with the highest number; an import rewrites every block
//! under a higher epoch, durably, before it answers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_device::DeviceRef;
use ashlar_rt::{BLOCK, Buf, Permits, Rt, Slice};

use crate::config::{Config, VolumeConfig};
use crate::rng::mix;
use crate::store::{Store, StoreError, StoreFuture, StoreStatus, Subject};

/// A bug to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// None.
    Nothing,
    /// A flush, or a durable write, is acknowledged without flushing the devices.
    NoFlush,
    /// A read does not compare content with its digest.
    NoVerify,
    /// A place is overwritten while the other one is still volatile.
    NoOrder,
    /// Recovery does not make what it chose durable.
    NoCheckpoint,
    /// A flush is forgotten now and then: the client waits for ever.
    Hang,
    /// A trim of part of a block zeroes the whole block.
    WideTrim,
}

/// Makes toy stores.
#[derive(Clone, Copy, Debug)]
pub struct Toy(pub Plant);

/// Pages at the front of each device: the list of volumes, twice.
const CATALOG: u64 = 2;
const MAGIC: u64 = 0x0070_7974_2d61_6c61;

#[derive(Clone, Debug)]
struct VolumeInfo {
    first: u64,
    size: u64,
    pages: u64,
}

/// Where a block's newest content is.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    number: u64,
    place: u64,
    digest: u64,
    volatile: bool,
}

struct Inner {
    rt: Rt,
    devices: Vec<(DeviceRef, Cell<bool>)>,
    volumes: RefCell<BTreeMap<String, VolumeInfo>>,
    blocks: RefCell<BTreeMap<(u64, u64), Entry>>,
    number: Cell<u64>,
    lock: Rc<Permits>,
    plant: Plant,
    m: usize,
}

#[derive(Clone)]
struct ToyStore(Rc<Inner>);

fn digest(bytes: &[u8]) -> u64 {
    let mut hash = 17_u64;
    for word in bytes.chunks(8) {
        let word = word
            .try_into()
            .map_or(word.len() as u64, u64::from_le_bytes);
        hash = (hash.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    mix(hash)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at * 8..at * 8 + 8)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}

fn header(words: [u64; 4]) -> Buf {
    let mut page = Buf::zeroed(BLOCK);
    for (at, value) in words.iter().enumerate() {
        page[at * 8..at * 8 + 8].copy_from_slice(&value.to_le_bytes());
    }
    let check = digest(&page[..32]);
    page[32..40].copy_from_slice(&check.to_le_bytes());
    page
}

/// The words of a valid header page.
fn parse(page: &[u8]) -> Option<[u64; 4]> {
    let words = [word(page, 0), word(page, 1), word(page, 2), word(page, 3)];
    (words[0] == MAGIC && word(page, 4) == digest(&page[..32])).then_some(words)
}

impl ToyStore {
    fn alive(&self) -> impl Iterator<Item = &(DeviceRef, Cell<bool>)> {
        self.0.devices.iter().filter(|(_, failed)| !failed.get())
    }

    fn next_number(&self) -> u64 {
        self.0.number.set(self.0.number.get() + 1);
        self.0.number.get()
    }

    async fn write_all(&self, page: u64, data: Vec<Slice>) -> Result<(), StoreError> {
        let writes: Vec<_> = self
            .alive()
            .map(|(device, failed)| (device.write(page * BLOCK as u64, data.clone()), failed))
            .collect();
        for (write, failed) in writes {
            if write.await.is_err() {
                failed.set(true);
            }
        }
        if self.alive().next().is_none() {
            Err(StoreError::Lost)
        } else {
            Ok(())
        }
    }

    /// The flush that a client asked for.
    async fn flush_for_client(&self) -> Result<(), StoreError> {
        if self.0.plant == Plant::NoFlush {
            Ok(())
        } else {
            self.flush_all().await
        }
    }

    async fn flush_all(&self) -> Result<(), StoreError> {
        let flushes: Vec<_> = self
            .alive()
            .map(|(device, failed)| (device.flush(), failed))
            .collect();
        for (flush, failed) in flushes {
            if flush.await.is_err() {
                failed.set(true);
            }
        }
        if self.alive().next().is_none() {
            return Err(StoreError::Lost);
        }
        self.0
            .blocks
            .borrow_mut()
            .values_mut()
            .for_each(|entry| entry.volatile = false);
        Ok(())
    }

    fn place(volume: &VolumeInfo, block: u64, place: u64) -> u64 {
        volume.first + (block * 2 + place) * (1 + volume.pages)
    }

    async fn read_block(&self, volume: &VolumeInfo, block: u64) -> Result<Buf, StoreError> {
        let len = usize::try_from(volume.pages).expect("small") * BLOCK;
        let entry = self.0.blocks.borrow().get(&(volume.first, block)).copied();
        let Some(entry) = entry else {
            return Ok(Buf::zeroed(len));
        };
        let at = (Self::place(volume, block, entry.place) + 1) * BLOCK as u64;
        for (device, _) in self.alive() {
            let (bytes, result) = device.read(at, Buf::zeroed(len)).await;
            let good = self.0.plant == Plant::NoVerify || digest(&bytes) == entry.digest;
            if result.is_ok() && good {
                return Ok(bytes);
            }
        }
        Err(StoreError::Lost)
    }

    async fn write_block(
        &self,
        volume: &VolumeInfo,
        block: u64,
        data: Slice,
    ) -> Result<(), StoreError> {
        let key = (volume.first, block);
        let old = self
            .0
            .blocks
            .borrow()
            .get(&key)
            .copied()
            .unwrap_or_default();
        if old.volatile && self.0.plant != Plant::NoOrder {
            self.flush_all().await?;
        }
        let number = self.next_number();
        let place = 1 - old.place;
        let page = header([MAGIC, number, block, digest(&data)]).freeze();
        let entry = Entry {
            number,
            place,
            digest: digest(&data),
            volatile: true,
        };
        self.write_all(Self::place(volume, block, place), vec![page, data])
            .await?;
        self.0.blocks.borrow_mut().insert(key, entry);
        Ok(())
    }

    fn volume(&self, name: &str) -> Result<VolumeInfo, StoreError> {
        let volumes = self.0.volumes.borrow();
        volumes
            .get(name)
            .cloned()
            .ok_or_else(|| StoreError::Other("no such volume".to_string()))
    }

    /// Replaces a range: `None` is zeros.
    async fn put(
        self,
        name: String,
        offset: u64,
        length: u64,
        data: Option<Slice>,
        durable: bool,
    ) -> Result<(), StoreError> {
        let volume = self.volume(&name)?;
        let _one = self.0.lock.take(1).await;
        let size = volume.pages * BLOCK as u64;
        let wide = data.is_none() && self.0.plant == Plant::WideTrim;
        for block in offset / size..(offset + length).div_ceil(size) {
            let start = block * size;
            let (mut from, mut to) = (offset.max(start), (offset + length).min(start + size));
            let mut bytes = self.read_block(&volume, block).await?;
            if wide {
                (from, to) = (start, start + size);
            }
            let range = small(from - start)..small(to - start);
            match &data {
                Some(data) => {
                    bytes[range].copy_from_slice(&data[small(from - offset)..small(to - offset)])
                }
                None => bytes[range].fill(0),
            }
            self.write_block(&volume, block, bytes.freeze()).await?;
        }
        if durable {
            self.flush_all().await
        } else {
            Ok(())
        }
    }

    /// Chooses each block's newest valid place, over all devices, and makes it durable on all.
    async fn recover(&self) -> Result<(), StoreError> {
        let epoch = 1 << 32;
        for volume in self.load_catalog().await? {
            let blocks = volume.size.div_ceil(volume.pages * BLOCK as u64);
            let len = usize::try_from(volume.pages + 1).expect("small") * BLOCK;
            for block in 0..blocks {
                let mut best: Option<(Entry, Slice)> = None;
                for place in 0..2 {
                    let at = Self::place(&volume, block, place) * BLOCK as u64;
                    for (device, _) in self.alive() {
                        let (bytes, result) = device.read(at, Buf::zeroed(len)).await;
                        let Some(words) = parse(&bytes[..BLOCK]) else {
                            continue;
                        };
                        let digest = digest(&bytes[BLOCK..]);
                        let newest = best.as_ref().is_none_or(|(e, _)| e.number < words[1]);
                        let fits = words[2] == block && words[3] == digest;
                        if result.is_ok() && fits && newest {
                            let entry = Entry {
                                number: words[1],
                                place,
                                digest,
                                volatile: true,
                            };
                            best = Some((entry, bytes.freeze().cut(BLOCK..len)));
                        }
                    }
                }
                let (entry, data) = match best {
                    Some((entry, data)) => (entry, data),
                    // Nothing found is a choice too: zeros, which an old device must not undo.
                    None => (
                        Entry {
                            place: 1,
                            ..Entry::default()
                        },
                        Slice::zeroed(len - BLOCK),
                    ),
                };
                let number = self.0.number.get().max(entry.number);
                self.0.number.set(number);
                if self.0.plant != Plant::NoCheckpoint {
                    self.0
                        .blocks
                        .borrow_mut()
                        .insert((volume.first, block), entry);
                    self.0.number.set((number / epoch + 1) * epoch);
                    self.write_block(&volume, block, data).await?;
                } else if entry.number > 0 {
                    self.0
                        .blocks
                        .borrow_mut()
                        .insert((volume.first, block), entry);
                }
            }
        }
        self.0.number.set((self.0.number.get() / epoch + 1) * epoch);
        self.flush_all().await
    }

    async fn load_catalog(&self) -> Result<Vec<VolumeInfo>, StoreError> {
        let mut best: Option<Buf> = None;
        for place in 0..CATALOG {
            for (device, _) in self.alive() {
                let (bytes, result) = device.read(place * BLOCK as u64, Buf::zeroed(BLOCK)).await;
                let whole = word(&bytes, 511) == digest(&bytes[..4088]);
                let newest = best.as_ref().is_none_or(|b| word(b, 0) < word(&bytes, 0));
                if result.is_ok() && whole && newest {
                    best = Some(bytes);
                }
            }
        }
        let best = best.ok_or_else(|| StoreError::Other("no catalog".to_string()))?;
        self.0.number.set(word(&best, 0));
        let count = usize::try_from(word(&best, 1)).unwrap_or(0);
        let volumes: Vec<(String, VolumeInfo)> = (0..count)
            .map(|i| {
                let at = 2 + i * 4;
                let info = VolumeInfo {
                    first: word(&best, at + 1),
                    size: word(&best, at + 2),
                    pages: word(&best, at + 3),
                };
                (format!("v{}", word(&best, at)), info)
            })
            .collect();
        *self.0.volumes.borrow_mut() = volumes.iter().cloned().collect();
        self.save_catalog().await?;
        Ok(volumes.into_iter().map(|(_, info)| info).collect())
    }

    async fn save_catalog(&self) -> Result<(), StoreError> {
        let mut page = Buf::zeroed(BLOCK);
        let mut words = vec![self.next_number(), self.0.volumes.borrow().len() as u64];
        for (name, info) in &*self.0.volumes.borrow() {
            let number = name.trim_start_matches('v').parse().unwrap_or(0);
            words.extend([number, info.first, info.size, info.pages]);
        }
        for (at, value) in words.iter().enumerate() {
            page[at * 8..at * 8 + 8].copy_from_slice(&value.to_le_bytes());
        }
        let check = digest(&page[..4088]);
        page[4088..].copy_from_slice(&check.to_le_bytes());
        let page = page.freeze();
        for place in 0..CATALOG {
            self.write_all(place, vec![page.clone()]).await?;
            self.flush_all().await?;
        }
        Ok(())
    }
}

fn small(n: u64) -> usize {
    usize::try_from(n).expect("small")
}

fn open(rt: &Rt, devices: Vec<DeviceRef>, m: usize, plant: Plant) -> ToyStore {
    ToyStore(Rc::new(Inner {
        rt: rt.clone(),
        devices: devices
            .into_iter()
            .map(|device| (device, Cell::new(false)))
            .collect(),
        volumes: RefCell::default(),
        blocks: RefCell::default(),
        number: Cell::new(0),
        lock: Permits::new(1),
        plant,
        m,
    }))
}

impl Subject for Toy {
    fn knows_devices(&self) -> bool {
        false
    }

    fn create(
        &self,
        rt: &Rt,
        devices: Vec<DeviceRef>,
        config: &Config,
    ) -> StoreFuture<Result<Rc<dyn Store>, StoreError>> {
        let store = open(rt, devices, config.m, self.0);
        Box::pin(async move {
            store.save_catalog().await?;
            Ok(Rc::new(store) as Rc<dyn Store>)
        })
    }

    fn import(
        &self,
        rt: &Rt,
        devices: Vec<DeviceRef>,
        config: &Config,
        _degraded: bool,
    ) -> StoreFuture<Result<Rc<dyn Store>, StoreError>> {
        let store = open(rt, devices, config.m, self.0);
        Box::pin(async move {
            store.recover().await?;
            Ok(Rc::new(store) as Rc<dyn Store>)
        })
    }
}

impl Store for ToyStore {
    fn volume_create(
        &self,
        name: &str,
        volume: &VolumeConfig,
    ) -> StoreFuture<Result<(), StoreError>> {
        let (this, name) = (self.clone(), name.to_string());
        let pages = volume.block_bytes / BLOCK as u64;
        let size = volume.size;
        Box::pin(async move {
            let _one = this.0.lock.take(1).await;
            let length = |info: &VolumeInfo| {
                info.size.div_ceil(info.pages * BLOCK as u64) * 2 * (1 + info.pages)
            };
            let first = {
                let volumes = this.0.volumes.borrow();
                volumes
                    .values()
                    .map(|i| i.first + length(i))
                    .max()
                    .unwrap_or(CATALOG)
            };
            let info = VolumeInfo { first, size, pages };
            let room = this.0.devices[0].0.info().size_bytes / BLOCK as u64;
            if first + length(&info) > room {
                return Err(StoreError::NoSpace);
            }
            this.0.volumes.borrow_mut().insert(name, info);
            this.save_catalog().await
        })
    }

    fn volume_destroy(&self, _name: &str) -> StoreFuture<Result<(), StoreError>> {
        Box::pin(std::future::ready(Err(StoreError::Unsupported)))
    }

    fn volume_names(&self) -> Vec<String> {
        self.0.volumes.borrow().keys().cloned().collect()
    }

    fn read(
        &self,
        volume: &str,
        offset: u64,
        length: usize,
    ) -> StoreFuture<Result<Buf, StoreError>> {
        let (this, name) = (self.clone(), volume.to_string());
        Box::pin(async move {
            let volume = this.volume(&name)?;
            let _one = this.0.lock.take(1).await;
            let size = volume.pages * BLOCK as u64;
            let end = offset + length as u64;
            let mut out = Buf::zeroed(length);
            for block in offset / size..end.div_ceil(size) {
                let bytes = this.read_block(&volume, block).await?;
                let start = block * size;
                let (from, to) = (offset.max(start), end.min(start + size));
                out[small(from - offset)..small(to - offset)]
                    .copy_from_slice(&bytes[small(from - start)..small(to - start)]);
            }
            Ok(out)
        })
    }

    fn write(
        &self,
        volume: &str,
        offset: u64,
        data: Slice,
        durable: bool,
    ) -> StoreFuture<Result<(), StoreError>> {
        let length = data.len() as u64;
        Box::pin(
            self.clone()
                .put(volume.to_string(), offset, length, Some(data), durable),
        )
    }

    fn flush(&self, _volume: &str) -> StoreFuture<Result<(), StoreError>> {
        let this = self.clone();
        Box::pin(async move {
            if this.0.plant == Plant::Hang && this.0.rt.random_below(20) == 0 {
                std::future::pending::<()>().await;
            }
            let _one = this.0.lock.take(1).await;
            this.flush_for_client().await
        })
    }

    fn zero(
        &self,
        volume: &str,
        offset: u64,
        length: u64,
        _trim: bool,
        durable: bool,
    ) -> StoreFuture<Result<(), StoreError>> {
        Box::pin(
            self.clone()
                .put(volume.to_string(), offset, length, None, durable),
        )
    }

    fn extents(
        &self,
        _volume: &str,
        _offset: u64,
        length: u64,
    ) -> StoreFuture<Result<Vec<(u64, bool)>, StoreError>> {
        Box::pin(std::future::ready(Ok(vec![(length, false)])))
    }

    fn fail(&self, _device: u16, _force: bool) -> StoreFuture<Result<(), StoreError>> {
        Box::pin(std::future::ready(Err(StoreError::Unsupported)))
    }

    fn status(&self) -> StoreFuture<StoreStatus> {
        let online: Vec<usize> = (0..self.0.devices.len())
            .filter(|i| !self.0.devices[*i].1.get())
            .collect();
        let optimal = online.len() > self.0.m;
        let state = "toy".to_string();
        let status = StoreStatus {
            optimal,
            state,
            online,
            usable_bytes: self.0.devices[0].0.info().size_bytes / 5,
            ..StoreStatus::default()
        };
        Box::pin(std::future::ready(status))
    }

    fn describe(&self) -> StoreFuture<Vec<String>> {
        Box::pin(std::future::ready(Vec::new()))
    }

    fn wait_idle(&self) -> StoreFuture<()> {
        Box::pin(std::future::ready(()))
    }

    fn export(&self) -> StoreFuture<Result<(), StoreError>> {
        let this = self.clone();
        Box::pin(async move { this.flush_all().await })
    }
}
