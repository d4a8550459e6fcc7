//! What the driver drives: an array seen through the few operations that the model understands.
//! The engine implements it, and so do the toy stores that test the simulator itself.
//!
//! Invariants: nothing here knows the model; errors keep only what a check needs.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use ashlar_device::DeviceRef;
use ashlar_engine::status::ScrubReport;
use ashlar_engine::{ScrubChange, Work};
use ashlar_rt::{Buf, Rt, Slice};

use crate::config::{Config, VolumeConfig};

/// A future of a store.
pub type StoreFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The bytes are beyond the array's redundancy.
    Lost,
    /// No space.
    NoSpace,
    /// The operator has to decide (import): more devices are missing than the start rule allows.
    Degraded(String),
    /// The operator has to decide (import): devices hold different histories, and each may be the one to go on with.
    Diverged(String),
    /// Two devices say that they are the same one (import).
    Twice(String),
    /// It is being exported, or has stopped.
    Closed,
    /// The store cannot do this at all (a toy).
    Unsupported,
    /// Anything else, in words.
    Other(String),
}

/// What the driver needs to know of an array's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStatus {
    /// Every live stripe has its layout's redundancy.
    pub optimal: bool,
    /// So many more devices may be lost.
    pub more_losses: usize,
    /// The devices in use do not hold what volumes were promised.
    pub overpromised: bool,
    /// The state's name.
    pub state: String,
    /// Ranges reported as lost.
    pub lost: usize,
    /// Bytes that volumes can have in all.
    pub usable_bytes: u64,
    /// Bytes of a strip; 0 where there are none.
    pub strip_bytes: u64,
    /// Nodes of maps and of other metadata.
    pub map_nodes: u64,
    /// How full the journal is, in 100.
    pub journal_percent: u64,
    /// Devices that are in use, by number.
    pub online: Vec<usize>,
    /// Devices that the operator has taken out for a while, by number.
    pub offline: Vec<usize>,
    /// Devices that are out of use because they are slow, by number.
    pub slow: Vec<usize>,
    /// Devices that answer nothing and are expected back, where that counts: what lies on them may not be rebuilt yet.
    pub awaited: Vec<usize>,
    /// What is held against each device, by number: failed reads, failed writes, wrong digests.
    pub errors: BTreeMap<usize, (u64, u64, u64)>,
}

/// How to make and find arrays.
pub trait Subject {
    /// Whether devices say who they are and how large they were: else none shrinks or is there twice.
    fn knows_devices(&self) -> bool {
        true
    }
    /// Creates an array on empty devices.
    fn create(
        &self,
        rt: &Rt,
        devices: Vec<DeviceRef>,
        config: &Config,
    ) -> StoreFuture<Result<Rc<dyn Store>, StoreError>>;
    /// Finds the array on `devices`, some of which may be missing, after a crash or an export.
    fn import(
        &self,
        rt: &Rt,
        devices: Vec<DeviceRef>,
        config: &Config,
        degraded: bool,
    ) -> StoreFuture<Result<Rc<dyn Store>, StoreError>>;
}

/// An array that is open.
pub trait Store {
    /// Makes a volume.
    fn volume_create(
        &self,
        name: &str,
        volume: &VolumeConfig,
    ) -> StoreFuture<Result<(), StoreError>>;
    /// Destroys a volume.
    fn volume_destroy(&self, name: &str) -> StoreFuture<Result<(), StoreError>>;
    /// The size of a volume, if that may change.
    fn volume_size(&self, _name: &str) -> Option<u64> {
        None
    }
    /// Gives a volume another size.
    fn volume_resize(&self, _name: &str, _bytes: u64) -> StoreFuture<Result<(), StoreError>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }
    /// The volumes there are.
    fn volume_names(&self) -> Vec<String>;
    /// Reads.
    fn read(
        &self,
        volume: &str,
        offset: u64,
        length: usize,
    ) -> StoreFuture<Result<Buf, StoreError>>;
    /// Writes.
    fn write(
        &self,
        volume: &str,
        offset: u64,
        data: Slice,
        durable: bool,
    ) -> StoreFuture<Result<(), StoreError>>;
    /// Makes durable what was acknowledged before.
    fn flush(&self, volume: &str) -> StoreFuture<Result<(), StoreError>>;
    /// Zeros a range (`trim`: as a discard does).
    fn zero(
        &self,
        volume: &str,
        offset: u64,
        length: u64,
        trim: bool,
        durable: bool,
    ) -> StoreFuture<Result<(), StoreError>>;
    /// The runs of a range: length in bytes, and whether it is a hole.
    fn extents(
        &self,
        volume: &str,
        offset: u64,
        length: u64,
    ) -> StoreFuture<Result<Vec<(u64, bool)>, StoreError>>;
    /// Takes a device out; with `force` whatever it costs.
    fn fail(&self, device: u16, force: bool) -> StoreFuture<Result<(), StoreError>>;
    /// Whether devices can come back.
    fn takes_in(&self) -> bool {
        false
    }
    /// Takes a device out of use that is expected back.
    fn offline(&self, _device: u16) -> StoreFuture<Result<(), StoreError>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }
    /// Takes a device in that was out of use.
    fn online(&self, _device: DeviceRef) -> StoreFuture<Result<(), StoreError>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }
    /// Takes a device out for good, once it is emptied.
    fn remove(&self, _device: u16) -> StoreFuture<Result<(), StoreError>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }
    /// Lets a device stay that was to leave.
    fn stay(&self, _device: u16) -> StoreFuture<Result<(), StoreError>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }
    /// Puts a blank device in the place of one that is out of use.
    fn replace(&self, _index: u16, _device: DeviceRef) -> StoreFuture<Result<(), StoreError>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }
    /// Adds a blank device as a hot spare, and has it take the place of one that is out of use.
    fn take_place(&self, index: u16, device: DeviceRef) -> StoreFuture<Result<(), StoreError>> {
        self.replace(index, device)
    }
    /// Adds a device, in this failure domain; its number.
    fn add(&self, _device: DeviceRef, _domain: &str) -> StoreFuture<Result<usize, StoreError>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }
    /// Adds a device in the place of one in use, which leaves; its number, and whether the other leaves indeed.
    fn replace_in_use(
        &self,
        _old: u16,
        _device: DeviceRef,
    ) -> StoreFuture<Result<(usize, bool), StoreError>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }
    /// Pauses work, or resumes it.
    fn pause(&self, _work: Work, _paused: bool) -> Result<(), StoreError> {
        Err(StoreError::Unsupported)
    }
    /// Uses all of a device that has grown.
    fn use_all_of(&self, _device: u16) -> StoreFuture<Result<(), StoreError>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }
    /// Puts a device into another failure domain.
    fn set_domain(&self, _device: u16, _label: &str) -> StoreFuture<Result<(), StoreError>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }
    /// The number that the next device gets that is added.
    fn next_device(&self) -> usize {
        0
    }
    /// Changes a setting of a volume, or of the array.
    fn set(
        &self,
        _volume: Option<&str>,
        _key: &str,
        _value: &str,
    ) -> StoreFuture<Result<(), StoreError>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }
    /// The value of a setting; `None` if there is no such volume or setting.
    fn setting(&self, _volume: Option<&str>, _key: &str) -> Option<String> {
        None
    }
    /// Takes at most so many bytes of memory from now on.
    fn set_memory(&self, _bytes: u64) -> StoreFuture<()> {
        Box::pin(async {})
    }
    /// Has the devices discard all free slots; whether all of them were.
    fn trim_all(&self) -> StoreFuture<Result<bool, StoreError>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }
    /// How it is.
    fn status(&self) -> StoreFuture<StoreStatus>;
    /// Whether what it keeps contradicts itself: it has noticed that, or a device is two of the array.
    fn inconsistent(&self) -> bool {
        false
    }
    /// What it says of itself, for the story of a failure.
    fn describe(&self) -> StoreFuture<Vec<String>>;
    /// Waits until no background work runs or is due.
    fn wait_idle(&self) -> StoreFuture<()>;
    /// Starts a scrub, or changes the one under way; whether that changed anything.
    fn scrub(&self, _change: ScrubChange) -> StoreFuture<Result<bool, StoreError>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }
    /// Waits until no scrub runs.
    fn wait_scrubbed(&self) -> StoreFuture<()> {
        Box::pin(async {})
    }
    /// Reports of scrubs, the newest last.
    fn scrubs(&self) -> Vec<ScrubReport> {
        Vec::new()
    }
    /// Closes cleanly.
    fn export(&self) -> StoreFuture<Result<(), StoreError>>;
    /// Closes for good: its devices hold no array any more.
    fn destroy(&self) -> StoreFuture<Result<(), StoreError>> {
        Box::pin(std::future::ready(Err(StoreError::Unsupported)))
    }
}
