//! The values behind `ashlar status`. Every figure is observed; one that is not observed is `None`.

use serde::{Deserialize, Serialize};

/// How an array is. Derived from its segments and devices, never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArrayState {
    /// Every live stripe has its layout's redundancy.
    Optimal,
    /// Some live stripe has less.
    Degraded,
    /// Some live stripe has none left, though its layout has some.
    Critical,
    /// Some live stripe has lost data.
    Failed,
}

/// How a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceState {
    /// In use.
    Online,
    /// Taken out by the operator, expected back.
    Offline,
    /// Taken out for good, by its errors or by the operator.
    Failed,
    /// Counted until this import, which did not find it.
    Missing,
    /// Out of use because it is slow; it is taken in again by itself.
    Slow,
    /// Takes no writes; still read.
    Readonly,
    /// A hot spare.
    Spare,
    /// Being emptied.
    Removing,
}

impl DeviceState {
    /// Whether it serves.
    pub const fn is_in_use(self) -> bool {
        matches!(
            self,
            DeviceState::Online | DeviceState::Readonly | DeviceState::Removing
        )
    }
}

/// An array, as `ashlar status -j` prints it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ArrayStatus {
    /// Its name.
    pub name: String,
    /// Its identity, as a hyphenated UUID.
    pub uuid: String,
    /// The worst of its stripes.
    pub state: ArrayState,
    /// What it can still take, whatever its state: optimal with devices gone is not what it was.
    #[serde(default)]
    pub health: Health,
    /// What needs the operator, most urgent first; whoever shows the status writes these sentences.
    #[serde(default)]
    pub attention: Vec<String>,
    /// Whether and how it takes requests.
    #[serde(default)]
    pub service: Service,
    /// Membership changes so far.
    pub generation: u64,
    /// The notation it was created with.
    pub layout: String,
    /// Data strips a stripe.
    pub k: u16,
    /// Parity strips a stripe.
    pub m: u16,
    /// Devices it counts, missing ones included.
    pub devices_total: u16,
    /// Devices' worth of space kept free for rebuilds.
    pub spare: u16,
    /// Bytes a strip.
    pub strip_bytes: u64,
    /// Bytes a slot.
    pub slot_bytes: u64,
    /// Where the space is.
    pub capacity: Capacity,
    /// How the cleaner does.
    pub clean: Clean,
    /// The map's size and cache.
    pub map: MapStatus,
    /// The journal's size and fill.
    pub journal: JournalStatus,
    /// Memory.
    pub memory: MemoryStatus,
    /// What computes parity and digests.
    pub accelerator: Accelerator,
    /// Live bytes that can be read, by redundancy left, most first.
    pub exposure: Vec<Exposure>,
    /// Live bytes that cannot be read, since too few devices are in use that hold what belongs to them.
    #[serde(default)]
    pub unreadable_bytes: u64,
    /// Every device.
    pub devices: Vec<DeviceStatus>,
    /// Background work.
    pub tasks: Vec<TaskStatus>,
    /// Every volume.
    pub volumes: Vec<VolumeStatus>,
    /// Ranges that cannot be read.
    pub lost: Vec<LostRange>,
    /// The last scrub, if there was any.
    #[serde(default)]
    pub scrub: Option<ScrubReport>,
}

/// A kind of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Lost columns get new places.
    Rebuild,
    /// Segments that are partly dead are emptied.
    Clean,
    /// Single bad blocks are rewritten.
    Repair,
    /// Columns move to other devices: from those that are to leave, and where data lie unevenly.
    Rebalance,
    /// Everything that is stored is read and verified.
    Scrub,
}

impl Work {
    /// All kinds, in the order of their numbers in `status`, from 1 on.
    pub const ALL: [Work; 5] = [
        Work::Rebuild,
        Work::Clean,
        Work::Repair,
        Work::Rebalance,
        Work::Scrub,
    ];

    /// Its name in JSON and requests.
    pub const fn name(self) -> &'static str {
        match self {
            Work::Rebuild => "reconstruct",
            Work::Clean => "clean",
            Work::Repair => "heal",
            Work::Rebalance => "rebalance",
            Work::Scrub => "scrub",
        }
    }

    /// Its number in `status`.
    pub fn id(self) -> u64 {
        let before = Work::ALL.iter().take_while(|work| **work != self);
        before.count() as u64 + 1
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Work> {
        Work::ALL.into_iter().find(|work| work.name() == name)
    }
}

/// How background work of one kind is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskState {
    /// It never ran.
    #[default]
    New,
    /// It runs.
    Running,
    /// There is something to do, and it cannot be done now.
    Waiting,
    /// The operator has paused it.
    Paused,
    /// There is nothing to do.
    Done,
    /// It was given up.
    Stopped,
}

impl TaskState {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            TaskState::New => "",
            TaskState::Running => "running",
            TaskState::Waiting => "waiting",
            TaskState::Paused => "paused",
            TaskState::Done => "done",
            TaskState::Stopped => "stopped",
        }
    }
}

/// How much more may go wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Devices that the array counts and does not use any more.
    pub devices_gone: u16,
    /// Any so many more may be lost at once.
    pub more_losses: u16,
    /// So many more may be lost one after another with what was lost rebuilt each time.
    pub reconstructs: u16,
    /// Whether what is written with all devices there survives the loss of any one failure domain, and all columns lie
    /// where that wants them; absent where each device is a domain of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub survives_domain: Option<bool>,
}

/// Whether an array takes requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Service {
    /// Reads and writes.
    #[default]
    Full,
    /// Reads only: it was imported so.
    ReadOnly,
    /// Writes wait for the operator: too few devices agree.
    WritesWait,
    /// Nothing: it has stopped by itself.
    Stopped,
}

/// Where an array's space is, in bytes, on the devices in use: raw = usable + parity + spare + reserved, and
/// usable = used + promised + free, unless more is used or promised than these devices hold.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it; the contract fixes them")]
pub struct Capacity {
    pub raw_bytes: u64,
    /// What volumes may be promised at full redundancy.
    pub usable_bytes: u64,
    /// What volumes hold.
    pub used_bytes: u64,
    /// What volumes that are not thin were promised and have not taken yet.
    #[serde(default)]
    pub promised_bytes: u64,
    /// What may still be promised.
    pub free_bytes: u64,
    /// Parity of all that is usable.
    #[serde(default)]
    pub parity_bytes: u64,
    /// Kept for devices that are lost.
    pub spare_bytes: u64,
    /// Kept for metadata, journal, cleaning and recovery.
    pub reserved_bytes: u64,
    /// Devices are gone, and those in use do not hold at full redundancy all that volumes were promised.
    pub overpromised: bool,
}

/// The cleaner.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Clean {
    /// Data blocks written per block the clients wrote, since import; `None` before any.
    pub write_amplification: Option<f64>,
    /// Slots free on all devices.
    pub free_slots: u64,
    /// Slots kept for cleaning, checkpoints and recovery.
    pub reserve_slots: u64,
}

/// The map.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MapStatus {
    /// All nodes, in bytes.
    pub bytes: u64,
    /// Nodes in memory, in bytes.
    pub cached_bytes: u64,
}

/// The journal.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct JournalStatus {
    /// Capacity of both rings.
    pub bytes: u64,
    /// What recovery would replay now.
    pub used_bytes: u64,
    /// Devices of the present epoch.
    pub devices: u64,
}

/// Memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// What the engine may take.
    pub limit_bytes: u64,
    /// What its open stripes, deltas and map cache take.
    pub used_bytes: u64,
}

/// What computes parity and digests, and why.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Accelerator {
    /// `cpu` and the kernel's name, or a GPU.
    pub chosen: String,
    /// Why it was chosen.
    pub reason: String,
    /// Why a GPU that was asked for, or was in use, is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// Live bytes that have `redundancy` redundancies left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exposure {
    /// Losses they would still survive.
    pub redundancy: u16,
    /// How many bytes.
    pub bytes: u64,
}

/// A device of an array.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Its number in the array.
    pub index: u16,
    /// Its identity.
    pub uuid: String,
    /// How it was reached, empty if missing.
    pub path: String,
    /// Where it was last seen from here, empty if that is not known.
    #[serde(default)]
    pub last_path: String,
    /// What is wrong with the file or block device under it, as far as is known here; empty if nothing is.
    #[serde(default)]
    pub storage: String,
    /// Its capacity.
    pub size_bytes: u64,
    /// Its failure domain, empty if none was given.
    pub domain: String,
    /// How it is.
    pub state: DeviceState,
    /// Faults seen since import.
    pub errors: DeviceErrors,
    /// Bytes in allocated slots.
    pub used_bytes: u64,
    /// Read since import.
    pub read_bytes: u64,
    /// Written since import.
    pub written_bytes: u64,
}

impl DeviceStatus {
    /// Whether the array has its device open for good: it serves, or is a hot spare that is here.
    pub fn is_held(&self) -> bool {
        let waits = self.state == DeviceState::Spare && !self.path.is_empty();
        self.state.is_in_use() || waits
    }
}

/// Faults seen on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceErrors {
    /// Reads that failed.
    pub read: u64,
    /// Writes and flushes that failed.
    pub write: u64,
    /// Blocks whose digest did not match.
    pub digest: u64,
}

/// A piece of background work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskStatus {
    /// Its number.
    pub id: u64,
    /// `reconstruct`, `rebalance`, `scrub`, `clean` or `convert`.
    pub kind: String,
    /// `running`, `paused`, `waiting`, `done` or `stopped`.
    pub state: String,
    /// Done so far.
    pub done_bytes: u64,
    /// All there is to do, as known now.
    pub total_bytes: u64,
    /// Present speed.
    pub bytes_per_second: u64,
    /// Time left at that speed; `None` if it does not move.
    pub eta_seconds: Option<u64>,
    /// Why it waits or is held back, or empty.
    pub reason: String,
    /// Bad blocks found.
    pub found: u64,
    /// Bad blocks repaired.
    pub healed: u64,
}

/// A scrub: what it was to do, how far it is or got, and what it has found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// `running`, `paused`, `done` or `stopped`.
    pub state: String,
    /// It only looks, and repairs nothing.
    pub check: bool,
    /// It looks at everything, not only at what was written since some time.
    pub whole: bool,
    /// When it was started, in seconds since 1970.
    pub started: u64,
    /// When it ended; `None`: it has not.
    pub ended: Option<u64>,
    /// Bytes looked at.
    pub done_bytes: u64,
    /// Bytes that it could not look at, since their device was away.
    pub skipped_bytes: u64,
    /// How often the array was imported meanwhile.
    pub interrupted: u32,
    /// Blocks found bad.
    pub found: u64,
    /// Of these, those that were repaired.
    pub repaired: u64,
    /// The same by device and part.
    pub findings: Vec<ScrubFinding>,
}

/// What a scrub has found in a part of a device, in blocks of 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubFinding {
    /// The device's number.
    pub device: u16,
    /// Its identity.
    pub uuid: String,
    /// `data`, `parity`, `summary`, `header`, `superblock`, `root`, `table` or `journal`.
    pub part: String,
    /// The device did not give them.
    pub unreadable: u64,
    /// It gave other bytes than were written.
    pub wrong: u64,
    /// Of both, those that were repaired.
    pub repaired: u64,
}

/// A volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes of it that are mapped (as of the last merge).
    pub used_bytes: u64,
    /// Bytes a volume block.
    pub block_bytes: u64,
    /// Its digest.
    pub digest: String,
    /// Its compression.
    pub compress: String,
    /// Its layout.
    pub layout: String,
    /// `on`, `off` or `auto`.
    pub write_cache: String,
    /// How it is served.
    pub frontends: Vec<Frontend>,
    /// What its clients did.
    pub host: HostCounters,
}

/// A way a volume is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frontend {
    /// `nbd`, `fuse`, `loop`.
    pub kind: String,
    /// Where.
    pub address: String,
}

/// What a volume's clients did since import.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it; the contract fixes them")]
pub struct HostCounters {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

/// A range that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it; the contract fixes them")]
pub struct LostRange {
    pub volume: String,
    pub offset_bytes: u64,
    pub length_bytes: u64,
}

/// A device in use, and where it lies.
#[derive(Clone, Debug)]
pub struct DevicePlace {
    /// Its index.
    pub index: u16,
    /// Its UUID.
    pub uuid: String,
    /// Where it was opened.
    pub path: String,
    /// The file system and the inode of the file that was opened, if it is a file.
    pub file: Option<(u64, u64)>,
    /// How much of it is used.
    pub size_bytes: u64,
}

/// Something that happened: one line of `ashlar events`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Its number, counted from 1 since import.
    pub number: u64,
    /// When, on the runtime's clock, in nanoseconds.
    pub at: u64,
    /// What kind, e.g. `device-failed`, `digest-mismatch`, `healed`, `reconstructed`.
    pub kind: String,
    /// The device concerned.
    pub device: Option<u16>,
    /// What happened, where, and what to do if anything.
    pub text: String,
    /// How often: what comes in numbers is one event now and then.
    #[serde(default = "once")]
    pub count: u64,
}

fn once() -> u64 {
    1
}
