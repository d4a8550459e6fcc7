//! The array as its users see it: create, import, export, volumes, members, settings.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_codec::{Code, CodeKind};
use ashlar_device::DeviceRef;
use ashlar_digest::Kind;
use ashlar_format::catalog::{Catalog, VolumeEntry};
use ashlar_format::geometry::{DeviceGeometry, ROOT_BYTES, ROOT_COUNT, default_slot_bytes};
use ashlar_format::root::{Epoch, RingPosition, Root, TreeRoot};
use ashlar_format::slot::{ENTRIES_PER_PAGE, TablePage};
use ashlar_format::superblock::{Generation, MAX_DOMAIN, MemberEntry, MemberState, Superblock};
use ashlar_format::{BLOCK, BLOCK_U64};
use ashlar_layout::Layout;
use ashlar_rt::{Buf, Rt, Sender};

use crate::commit::choose_root_set;
use crate::core::Core;
use crate::error::{Error, VolumeError};
use crate::home::{CATALOG_TREE, FIRST_VOLUME, Home, HomeParts, LIVENESS_TREE};
use crate::import::{add_volume, start_shards};
use crate::journal::Journal;
use crate::member::Member;
use crate::messages::{HomeMessage, ShardMessage, ask};
use crate::status::{Event, Frontend};
use crate::systree::SysTree;
use crate::volume::{Volume, WriteCache};

/// How an array runs in this process.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Shards: 1 or more.
    pub shards: usize,
    /// Memory for open stripes, deltas and the map's cache, in bytes.
    pub memory_bytes: u64,
    /// Partitions of every volume, fixed at creation; `None`: 64, fewer in tiny arrays.
    pub partitions: Option<u16>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            shards: 1,
            memory_bytes: 256 << 20,
            partitions: None,
        }
    }
}

/// What to create.
#[derive(Debug, Clone)]
pub struct Create {
    /// The array's name.
    pub name: String,
    /// Its layout.
    pub layout: Layout,
    /// Bytes of a strip; `None`: 64 KiB up to K = 16, then less.
    pub strip_bytes: Option<u32>,
    /// Bytes of a slot; `None`: from the smallest device.
    pub slot_bytes: Option<u64>,
    /// Devices' worth of spare space.
    pub spare: u16,
    /// Failure domain of each device, or empty.
    pub domains: Vec<String>,
    /// How it runs.
    pub settings: Settings,
}

/// How to import.
#[derive(Debug, Clone, Default)]
pub struct Import {
    /// Start with fewer devices, or less of the journal, than the rules ask for.
    pub degraded: bool,
    /// Refuse writes, and write nothing to any device: recovery's own writes stay in memory, and nothing is
    /// reconstructed, healed or cleaned.
    pub read_only: bool,
    /// How it runs.
    pub settings: Settings,
}

/// What a device says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Label {
    pub array_uuid: [u8; 16],
    pub array_name: String,
    pub device_uuid: [u8; 16],
    pub index: u16,
    pub devices_total: u16,
    pub generation: u64,
    pub layout: String,
    pub size_bytes: u64,
}

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

pub(crate) struct Inner {
    pub(crate) home: Rc<Home>,
    pub(crate) to_home: Sender<HomeMessage>,
    pub(crate) read_only: bool,
    pub(crate) settings: Settings,
    pub(crate) counters: RefCell<BTreeMap<u32, Rc<crate::volume::Counters>>>,
    exporting: Cell<bool>,
}

/// An open array.
#[derive(Clone)]
pub struct Array(pub(crate) Rc<Inner>);

impl std::fmt::Debug for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Array({})", self.name())
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    let first = name
        .chars()
        .next()
        .is_some_and(|c| c.is_ascii_alphanumeric());
    let rest = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if first && rest && name.len() <= 64 {
        Ok(())
    } else {
        Err(Error::Name(name.to_string()))
    }
}

/// The strip that a layout gets if none is asked for: 64 KiB up to K = 16, then K x strip about 1 MiB.
pub fn default_strip_bytes(k: u16) -> u32 {
    if k <= 16 {
        64 << 10
    } else {
        ((1 << 20) / u32::from(k))
            .next_power_of_two()
            .clamp(4 << 10, 64 << 10)
    }
}

/// What creating would give: the sizes that `create -n` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Bytes of a strip.
    pub strip_bytes: u32,
    /// Bytes of all devices.
    pub raw_bytes: u64,
    /// Geometry of each device.
    pub devices: Vec<DeviceGeometry>,
}

/// Checks what is asked and lays the devices out.
pub fn plan(sizes: &[u64], options: &Create) -> Result<Plan, Error> {
    check_name(&options.name)?;
    let shape = options.layout.resolve_with_spare(
        u16::try_from(sizes.len()).unwrap_or(u16::MAX),
        options.spare,
    )?;
    Code::new(
        CodeKind::IsalCauchy,
        usize::from(shape.k),
        usize::from(shape.m),
    )
    .map_err(|_| Error::Size {
        what: "a stripe width",
        value: u64::from(shape.width()),
        must: "at most 256",
    })?;
    let smallest = sizes.iter().copied().min().unwrap_or(0);
    let slot_bytes = options
        .slot_bytes
        .unwrap_or_else(|| default_slot_bytes(smallest));
    if !slot_bytes.is_power_of_two() || !(32 << 10..=1 << 30).contains(&slot_bytes) {
        return Err(Error::Size {
            what: "a slot",
            value: slot_bytes,
            must: "a power of two, 32K to 1G",
        });
    }
    let mut strip_bytes = options
        .strip_bytes
        .unwrap_or_else(|| default_strip_bytes(shape.k));
    if !strip_bytes.is_power_of_two() || !(4 << 10..=1 << 20).contains(&strip_bytes) {
        return Err(Error::Size {
            what: "a strip",
            value: u64::from(strip_bytes),
            must: "a power of two, 4K to 1M",
        });
    }
    if options.strip_bytes.is_none() {
        // At least a dozen stripes a segment.
        while strip_bytes > 4096 && u64::from(strip_bytes) * 12 > slot_bytes {
            strip_bytes /= 2;
        }
    }
    if u64::from(strip_bytes) * 3 > slot_bytes {
        return Err(Error::Size {
            what: "a strip",
            value: u64::from(strip_bytes),
            must: "at most a third of a slot",
        });
    }
    let ring = (smallest / 64).clamp(256 << 10, 64 << 20) / BLOCK_U64 * BLOCK_U64;
    let mut devices = Vec::new();
    for (device, size) in sizes.iter().enumerate() {
        // As many slots again as are kept back.
        let least = 2 * (crate::alloc::commit_slots(crate::commit::slot_blocks(slot_bytes)) + 6);
        let need = (least as u64 + 8) * slot_bytes + 2 * ring + (512 << 10);
        let least = u32::try_from(least).expect("a few dozen");
        let geometry = DeviceGeometry::lay_out(*size, slot_bytes, (ring, ring), least);
        devices.push(geometry.ok_or(Error::TooSmall {
            device,
            have: *size,
            need,
        })?);
    }
    Ok(Plan {
        slot_bytes,
        strip_bytes,
        raw_bytes: sizes.iter().sum(),
        devices,
    })
}

fn random_bytes<const N: usize>(rt: &Rt) -> [u8; N] {
    let mut bytes = [0; N];
    for chunk in bytes.chunks_mut(8) {
        let random = rt.random().to_le_bytes();
        chunk.copy_from_slice(&random[..chunk.len()]);
    }
    bytes
}

fn new_superblock(rt: &Rt, options: &Create, plan: &Plan) -> Superblock {
    let members: Vec<MemberEntry> = (0..plan.devices.len())
        .map(|index| MemberEntry {
            uuid: random_bytes(rt),
            slots: plan.devices[index].slots,
            state: MemberState::Online,
            domain: options
                .domains
                .get(index)
                .cloned()
                .unwrap_or_default()
                .chars()
                .take(MAX_DOMAIN)
                .collect(),
        })
        .collect();
    let all: Vec<u16> = (0..u16::try_from(members.len()).expect("checked by the layout")).collect();
    let most_lost = options
        .layout
        .resolve_with_spare(u16::try_from(all.len()).expect("checked"), options.spare)
        .map_or(1, |s| s.most_lost());
    let capacity: u64 = plan.raw_bytes;
    let partitions = options
        .settings
        .partitions
        .unwrap_or(if capacity < 4 << 30 { 8 } else { 64 });
    Superblock {
        features: [0; 3],
        array: random_bytes(rt),
        key: random_bytes(rt),
        device: members[0].uuid,
        index: 0,
        writes: 0,
        generation: Generation {
            number: 1,
            id: random_bytes(rt),
            parent: [0; 16],
            before: 0,
        },
        geometry: plan.devices[0],
        name: options.name.clone(),
        layout: options.layout.to_string(),
        code: CodeKind::IsalCauchy.tag(),
        strip_blocks: plan.strip_bytes / BLOCK as u32,
        partitions: partitions.max(1),
        spare: options.spare,
        root_set: choose_root_set(&all, most_lost),
        members,
    }
}

/// Clears a member's roots and slot table.
async fn clear_member(member: &Member, array: &[u8; 16]) -> Result<(), ashlar_device::Fault> {
    let geometry = member.geometry;
    let roots = Buf::zeroed(usize::try_from(ROOT_BYTES * ROOT_COUNT).expect("64 KiB")).freeze();
    member.write(geometry.root_offset(0), vec![roots]).await?;
    for page in 0..geometry.table_pages() {
        let count = (geometry.slots - page * ENTRIES_PER_PAGE).min(ENTRIES_PER_PAGE);
        let table = TablePage {
            page,
            root: 0,
            entries: vec![None; count as usize],
        };
        let mut both = Buf::zeroed(2 * BLOCK);
        both[..BLOCK].copy_from_slice(&table.encode(array, member.index));
        member
            .write(geometry.page_offset(page, 0), vec![both.freeze()])
            .await?;
    }
    for ring in [geometry.delta_ring_offset(), geometry.data_ring_offset()] {
        member
            .write(ring, vec![Buf::zeroed(BLOCK).freeze()])
            .await?;
    }
    member.flush().await
}

impl Array {
    /// Creates an array on these devices and opens it. What was on them is lost.
    pub async fn create(rt: &Rt, devices: Vec<DeviceRef>, options: Create) -> Result<Array, Error> {
        let sizes: Vec<u64> = devices.iter().map(|d| d.info().size_bytes).collect();
        let plan = plan(&sizes, &options)?;
        let shape = options
            .layout
            .resolve_with_spare(u16::try_from(sizes.len()).expect("checked"), options.spare)?;
        let superblock = new_superblock(rt, &options, &plan);
        let members: Vec<Member> = devices
            .into_iter()
            .zip(&plan.devices)
            .zip(&superblock.members)
            .zip(0u16..)
            .map(|(((device, geometry), entry), index)| {
                Member::new(
                    rt,
                    index,
                    entry.uuid,
                    entry.domain.clone(),
                    *geometry,
                    Some(device),
                    MemberState::Online,
                )
            })
            .collect();
        let core = Core::new(
            rt,
            superblock.array,
            superblock.key,
            crate::commit::slot_blocks(plan.slot_bytes),
            members,
        );
        for member in &core.members {
            let device = usize::from(member.index);
            clear_member(member, &core.array)
                .await
                .map_err(|fault| Error::Device { device, fault })?;
        }
        let birth = Rc::new(Cell::new(0));
        let (shards, to_home, at_home) =
            start_shards(&core, &shape, &superblock, &options.settings, &birth);
        let epoch = Epoch {
            number: 1,
            first: 1,
            end: None,
            m: shape.m.max(1),
            excluded: Vec::new(),
        };
        let root = Root {
            generation: 1,
            number: 0,
            clean: false,
            next_segment: 1,
            next_tree: FIRST_VOLUME,
            cut: 1,
            imaged: 1,
            delta_tail: RingPosition::default(),
            data_tail: RingPosition::default(),
            epochs: vec![epoch.clone()],
            catalog: TreeRoot::default(),
            liveness: TreeRoot::default(),
            forwarding: TreeRoot::default(),
            dead: TreeRoot::default(),
        };
        let start = [RingPosition::default(); 2];
        let journal = Journal::new(&core, epoch, 1, start, start, [0; 32]);
        let home = Home::new(HomeParts {
            core,
            journal,
            shards,
            shape,
            superblock,
            catalog: Catalog::default(),
            root,
            birth,
            liveness: SysTree::new(LIVENESS_TREE),
            catalog_tree: SysTree::new(CATALOG_TREE),
        });
        home.journal.set_groups(home.journal_groups());
        for _ in 0..2 {
            home.store_superblocks().await;
        }
        home.start(at_home);
        home.start_batches();
        home.commit(0).await;
        Ok(Array::open(home, to_home, false, options.settings))
    }

    /// Imports the array on these devices.
    pub async fn import(rt: &Rt, devices: Vec<DeviceRef>, options: Import) -> Result<Array, Error> {
        let (home, to_home) = crate::import::import(rt, devices, &options).await?;
        Ok(Array::open(
            home,
            to_home,
            options.read_only,
            options.settings,
        ))
    }

    fn open(
        home: Rc<Home>,
        to_home: Sender<HomeMessage>,
        read_only: bool,
        settings: Settings,
    ) -> Array {
        if !read_only {
            home.start_background();
        }
        let array = Array(Rc::new(Inner {
            home,
            to_home,
            read_only,
            settings,
            counters: RefCell::default(),
            exporting: Cell::new(false),
        }));
        let unfinished: Vec<String> = array
            .0
            .home
            .catalog
            .borrow()
            .volumes
            .iter()
            .filter(|v| v.destroying && !read_only)
            .map(|v| v.name.clone())
            .collect();
        for name in unfinished {
            let (array, rt) = (array.clone(), array.0.home.core.rt.clone());
            rt.spawn(async move {
                let _ = array.release_volume(&name).await; // resumed at the next import if it fails again
            });
        }
        array
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.0.home.superblock.borrow().name.clone()
    }

    /// Its identity.
    pub fn uuid(&self) -> [u8; 16] {
        self.0.home.core.array
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.0.home.core.closed.get() || self.0.exporting.get() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    fn check_writable(&self) -> Result<(), Error> {
        self.check_open()?;
        if self.0.read_only {
            Err(Error::ReadOnly)
        } else {
            Ok(())
        }
    }

    /// Folds everything, says in the root that it is clean, and stops. Every later call is refused.
    pub async fn export(&self) -> Result<(), Error> {
        if self.0.read_only {
            self.check_open()?;
            self.0.exporting.set(true);
        } else {
            self.finish().await?;
        }
        self.let_go("exported").await;
        Ok(())
    }

    /// Stops, and waits for what is still under way on the devices: whoever opens them next must not be
    /// written over.
    async fn let_go(&self, why: &str) {
        self.0.home.halt(why);
        for member in &self.0.home.core.members {
            member.quiet().await;
        }
    }

    /// Makes the last root, which says that the array is clean.
    async fn finish(&self) -> Result<(), Error> {
        self.check_open()?;
        self.0.exporting.set(true);
        let home = &self.0.home;
        let work = async {
            home.fold().await;
            home.batch(true).await;
            let _one = home.commit_lock.lock().await;
            home.seal_idle().await;
            home.commit_locked(home.journal.next(), true).await;
        };
        self.keep(work).await
    }

    /// Does `work`; an error if the array stopped before it was done.
    async fn keep(&self, work: impl Future<Output = ()>) -> Result<(), Error> {
        self.0.home.unless_closed(work).await;
        if self.0.home.core.closed.get() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    /// Exports the array and wipes the superblocks of its devices: it is gone.
    pub async fn destroy(&self) -> Result<(), Error> {
        self.check_writable()?;
        self.finish().await?;
        for member in self.0.home.core.members.iter().filter(|m| m.is_online()) {
            for copy in 0..2 {
                let zero = Buf::zeroed(BLOCK).freeze();
                let device = usize::from(member.index);
                let failed = |fault| Error::Device { device, fault };
                member
                    .write(member.geometry.super_offset(copy), vec![zero])
                    .await
                    .map_err(failed)?;
                member.flush().await.map_err(failed)?;
            }
        }
        self.let_go("destroyed").await;
        Ok(())
    }

    // ---- volumes ----------------------------------------------------------------------------------

    /// What thick volumes may still promise, in bytes.
    pub fn unpromised_bytes(&self) -> u64 {
        self.0.home.unpromised_bytes()
    }

    /// Creates a volume; it is durable when this returns.
    pub async fn volume_create(&self, name: &str, options: VolumeOptions) -> Result<(), Error> {
        self.check_writable()?;
        check_name(name)?;
        let home = &self.0.home;
        if home.catalog.borrow().volumes.iter().any(|v| v.name == name) {
            return Err(Error::VolumeExists(name.to_string()));
        }
        let size = options.size_bytes;
        if size == 0 || !size.is_multiple_of(BLOCK_U64) || size > 1 << 60 {
            return Err(Error::Size {
                what: "a volume",
                value: size,
                must: "a multiple of 4K, above 0",
            });
        }
        let block = options.block_bytes;
        if !block.is_power_of_two() || !(4096..=131_072).contains(&block) {
            return Err(Error::Size {
                what: "a volume block",
                value: u64::from(block),
                must: "a power of two, 4K to 128K",
            });
        }
        let stripe =
            u64::from(home.shape.k) * u64::from(home.superblock.borrow().strip_blocks) * BLOCK_U64;
        if u64::from(block) > stripe {
            return Err(Error::Size {
                what: "a volume block",
                value: u64::from(block),
                must: "at most a stripe (K x strip)",
            });
        }
        if !options.thin {
            // Thin volumes may have taken more than the map says by now.
            self.keep(home.fold()).await?;
            let free = home.core.thin_left.get();
            if size > free {
                return Err(Error::NoSpace { asked: size, free });
            }
            if home.catalog.borrow().volumes.iter().any(|v| v.name == name) {
                return Err(Error::VolumeExists(name.to_string())); // made meanwhile
            }
            home.core.thin_left.set(free - size);
        }
        let number = home.next_tree.get();
        home.next_tree.set(number + 1);
        let entry = VolumeEntry {
            number,
            name: name.to_string(),
            size_bytes: size,
            block_blocks: u16::try_from(block as usize / BLOCK).expect("at most 32"),
            digest: options.digest.tag(),
            digest_bytes: 16,
            compression: 0,
            layout: String::new(),
            write_cache: options.write_cache.tag(),
            thin: options.thin,
            destroying: false,
            mapped_bytes: 0,
            snapshot_of: (0, 0),
            clone_of: 0,
            frontends: Vec::new(),
            maps: vec![None; usize::from(home.superblock.borrow().partitions)],
        };
        // In the catalog before anything waits: another with its name, or for its space, must see it.
        home.catalog.borrow_mut().volumes.push(entry.clone());
        add_volume(&home.shards, &entry).await;
        self.keep(home.commit(0)).await?;
        home.core
            .event("volume-created", None, format!("volume {name} was created"));
        Ok(())
    }

    /// Destroys a volume: it is gone when this returns; its space comes back in the background, also
    /// over a restart.
    pub async fn volume_destroy(&self, name: &str) -> Result<(), Error> {
        self.check_writable()?;
        let home = &self.0.home;
        let hidden = {
            let mut catalog = home.catalog.borrow_mut();
            let found = catalog
                .volumes
                .iter_mut()
                .find(|v| v.name == name && !v.destroying);
            let volume = found.ok_or_else(|| Error::NoVolume(name.to_string()))?;
            volume.destroying = true;
            volume.frontends.clear();
            volume.name = format!("{name}#{}", volume.number); // the name is free at once
            volume.name.clone()
        };
        self.keep(home.commit(0)).await?;
        home.core.event(
            "volume-destroyed",
            None,
            format!("volume {name} was destroyed"),
        );
        let (array, rt) = (self.clone(), home.core.rt.clone());
        rt.spawn(async move {
            let _ = array.release_volume(&hidden).await; // resumed at the next import if it fails
        });
        Ok(())
    }

    async fn release_volume(&self, name: &str) -> Result<(), Error> {
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
        let shape = crate::import::volume_shape(&volume);
        for shard in &home.shards {
            ask(shard, |reply| ShardMessage::Leave(shape.tree, reply)).await;
            ask(shard, |reply| {
                ShardMessage::Trim(shape.tree, 0, shape.blocks, reply)
            })
            .await;
        }
        home.fold().await;
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
            self.keep(home.commit(0)).await?;
        }
        home.tasks.borrow_mut().releasing -= 1;
        home.core.progress.open();
        Ok(())
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
        Some(Volume::new(self.clone(), entry, counters))
    }

    /// Changes a property of a volume: `write-cache` is `on`, `off` or `auto`.
    pub async fn volume_set(&self, name: &str, key: &str, value: &str) -> Result<(), Error> {
        self.check_writable()?;
        let home = &self.0.home;
        let wrong = || Error::Setting {
            key: key.to_string(),
            value: value.to_string(),
        };
        {
            let mut catalog = home.catalog.borrow_mut();
            let found = catalog
                .volumes
                .iter_mut()
                .find(|v| v.name == name && !v.destroying);
            let volume = found.ok_or_else(|| Error::NoVolume(name.to_string()))?;
            match key {
                "write-cache" => {
                    volume.write_cache = WriteCache::parse(value).ok_or_else(wrong)?.tag()
                }
                _ => return Err(wrong()),
            }
        }
        self.keep(home.commit(0)).await?;
        Ok(())
    }

    /// Keeps in the array how a volume is served.
    pub async fn set_frontends(&self, name: &str, frontends: Vec<Frontend>) -> Result<(), Error> {
        self.check_writable()?;
        let home = &self.0.home;
        {
            let mut catalog = home.catalog.borrow_mut();
            let found = catalog
                .volumes
                .iter_mut()
                .find(|v| v.name == name && !v.destroying);
            let volume = found.ok_or_else(|| Error::NoVolume(name.to_string()))?;
            volume.frontends = frontends.into_iter().map(|f| (f.kind, f.address)).collect();
        }
        self.keep(home.commit(0)).await?;
        Ok(())
    }

    // ---- members, settings, events ----------------------------------------------------------------

    /// Takes a device out of use. Refused without `force` if data would be left without a copy. With
    /// `force` it also lets an array go on that waits for enough devices to agree.
    pub async fn fail(&self, index: u16, force: bool) -> Result<(), Error> {
        self.check_writable()?;
        let home = &self.0.home;
        if usize::from(index) >= home.core.members.len() {
            return Err(Error::NoDevice(index));
        }
        if force {
            home.forced.set(true);
            home.force_gate.open();
        }
        if !home.core.member(index).is_online() {
            return Ok(());
        }
        // What is written and not folded yet is nobody's live block, but somebody holds its segment.
        let would_lose = home.core.segments.borrow().values().any(|s| {
            (!s.live.borrow().is_empty() || Rc::strong_count(s) > 1)
                && !s.columns_on(index).is_empty()
                && home.core.missing_columns(s) + s.columns_on(index).len()
                    > usize::from(s.geometry.m)
        });
        if (would_lose || home.journal_needs(index)) && !force {
            return Err(Error::WouldLose(index));
        }
        home.core.report_failed(index);
        home.members_settled().await;
        Ok(())
    }

    /// Settings and their values.
    pub fn get(&self, key: Option<&str>) -> Result<Vec<(String, String)>, Error> {
        let catalog = self.0.home.catalog.borrow();
        let value = |key: &str| {
            catalog
                .settings
                .iter()
                .find(|(k, _)| k == key)
                .map(|(_, v)| v.clone())
        };
        let all: Vec<(String, String)> = SETTINGS
            .iter()
            .map(|(k, default)| {
                (
                    k.to_string(),
                    value(k).unwrap_or_else(|| default.to_string()),
                )
            })
            .collect();
        match key {
            None => Ok(all),
            Some(key) => {
                let found: Vec<_> = all.into_iter().filter(|(k, _)| k == key).collect();
                if found.is_empty() {
                    Err(Error::Setting {
                        key: key.to_string(),
                        value: String::new(),
                    })
                } else {
                    Ok(found)
                }
            }
        }
    }

    /// Changes a setting.
    pub async fn set(&self, key: &str, value: &str) -> Result<(), Error> {
        self.check_writable()?;
        let wrong = || Error::Setting {
            key: key.to_string(),
            value: value.to_string(),
        };
        let good = match key {
            "clean.reserve" => value
                .trim_end_matches('%')
                .parse::<u64>()
                .is_ok_and(|v| (2..=50).contains(&v)),
            "reconstruct.narrow" => ["critical", "always", "never"].contains(&value),
            _ => false,
        };
        if !good {
            return Err(wrong());
        }
        let home = &self.0.home;
        {
            let mut catalog = home.catalog.borrow_mut();
            catalog.settings.retain(|(k, _)| k != key);
            catalog.settings.push((key.to_string(), value.to_string()));
        }
        self.keep(home.commit(0)).await?;
        Ok(())
    }

    /// Events with a number above `after`.
    pub fn events(&self, after: u64) -> Vec<Event> {
        self.0.home.core.events(after)
    }

    /// Waits until there is an event with a number above `number`, or the array is closed.
    pub async fn event_after(&self, number: u64) {
        let home = &self.0.home;
        home.core
            .event_gate
            .until(|| home.core.last_event() > number || home.core.closed.get())
            .await;
    }

    /// Waits until no background work of these kinds (none: of any kind) runs that can make progress.
    pub async fn wait_idle(&self, kinds: &[&str]) {
        let home = &self.0.home;
        // Nothing runs in the background of a read-only array.
        while !self.0.read_only && !home.core.closed.get() && !home.is_idle(kinds) {
            let _ = home
                .core
                .rt
                .timeout(100 * ashlar_rt::MILLISECOND, home.core.progress.wait())
                .await;
        }
    }

    /// Makes durable everything acknowledged so far.
    pub(crate) async fn durable(&self) -> Result<(), VolumeError> {
        ask(&self.0.to_home, HomeMessage::Durable)
            .await
            .unwrap_or(Err(VolumeError::Closed))
    }
}

/// Settings and their defaults.
const SETTINGS: &[(&str, &str)] = &[("clean.reserve", "10%"), ("reconstruct.narrow", "critical")];
