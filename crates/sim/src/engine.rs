//! The engine as the driver sees it: the code that ships, unchanged.
//!
//! Invariants: nothing is added and nothing is hidden; errors are only sorted into what the model
//! distinguishes.

use std::collections::BTreeSet;
use std::rc::Rc;

use ashlar_device::DeviceRef;
use ashlar_engine::Work;
use ashlar_engine::status::{ArrayState, DeviceState, ScrubReport};
use ashlar_engine::{
    Array, Create, DigestKind, Error, Identity, Import, ScrubChange, Settings, Volume, VolumeError,
    VolumeOptions, WriteCache,
};
use ashlar_layout::Layout;
use ashlar_rt::{Buf, Rt, Slice};

use crate::config::{Config, VolumeConfig};
use crate::late;
use crate::store::{Store, StoreError, StoreFuture, StoreStatus, Subject};

/// Makes arrays of the real engine.
#[derive(Clone, Copy, Debug)]
pub struct Engine;

fn settings(config: &Config, rt: &Rt) -> Settings {
    let defaults = Settings::default();
    Settings {
        shards: config.shards,
        memory_bytes: config.memory_bytes,
        accelerators: if config.late {
            late::accelerators(rt)
        } else {
            defaults.accelerators
        },
        beat: config.beats.then(|| Identity {
            boot: [1 + config.host.1; 16],
            machine: [1 + config.host.0; 16],
            host: format!("host-{}", config.host.0),
        }),
        ..defaults
    }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> StoreError {
        match error {
            Error::NoSpace { .. } | Error::Promised { .. } => StoreError::NoSpace,
            Error::Closed => StoreError::Closed,
            Error::Duplicate(_) => StoreError::Twice(error.to_string()),
            Error::Diverged(_) => StoreError::Diverged(error.to_string()),
            Error::TooFew { .. } | Error::NoQuorum { .. } => {
                StoreError::Degraded(error.to_string())
            }
            other => StoreError::Other(other.to_string()),
        }
    }
}

impl From<VolumeError> for StoreError {
    fn from(error: VolumeError) -> StoreError {
        match error {
            VolumeError::Lost => StoreError::Lost,
            VolumeError::NoSpace => StoreError::NoSpace,
            other => StoreError::Other(other.to_string()),
        }
    }
}

impl Subject for Engine {
    fn create(
        &self,
        rt: &Rt,
        devices: Vec<DeviceRef>,
        config: &Config,
    ) -> StoreFuture<Result<Rc<dyn Store>, StoreError>> {
        let layout = config.layout.parse::<Layout>();
        let (rt, config) = (rt.clone(), config.clone());
        Box::pin(async move {
            let layout = layout.map_err(|error| StoreError::Other(error.to_string()))?;
            let options = Create {
                name: "sim".to_string(),
                layout,
                strip_bytes: config.strip_bytes,
                slot_bytes: Some(config.slot_bytes),
                spare: config.spare,
                domains: config.domains[..config.first_devices().min(config.domains.len())]
                    .iter()
                    .map(|d| format!("d{d}"))
                    .collect(),
                settings: settings(&config, &rt),
            };
            let array = Array::create(&rt, devices, options).await?;
            Ok(Rc::new(EngineStore(array)) as Rc<dyn Store>)
        })
    }

    fn import(
        &self,
        rt: &Rt,
        devices: Vec<DeviceRef>,
        config: &Config,
        degraded: bool,
    ) -> StoreFuture<Result<Rc<dyn Store>, StoreError>> {
        let (rt, settings, read_only) = (rt.clone(), settings(config, rt), config.read_only);
        let wanted = config.array;
        Box::pin(async move {
            let options = Import {
                array: wanted,
                name: None,
                degraded,
                read_only,
                take_over: true,
                settings,
                ..Import::default()
            };
            let array = Array::import(&rt, devices, options).await?;
            Ok(Rc::new(EngineStore(array)) as Rc<dyn Store>)
        })
    }
}

struct EngineStore(Array);

impl EngineStore {
    fn volume(&self, name: &str) -> Result<Volume, StoreError> {
        self.0
            .volume(name)
            .ok_or_else(|| StoreError::Other(format!("no volume {name}")))
    }
}

impl Store for EngineStore {
    fn volume_create(
        &self,
        name: &str,
        volume: &VolumeConfig,
    ) -> StoreFuture<Result<(), StoreError>> {
        let (array, name) = (self.0.clone(), name.to_string());
        let options = VolumeOptions {
            size_bytes: volume.size,
            thin: volume.thin,
            block_bytes: u32::try_from(volume.block_bytes).expect("a block is small"),
            digest: if volume.fast_digest {
                DigestKind::Xxh3
            } else {
                DigestKind::Blake3
            },
            write_cache: WriteCache::On,
        };
        Box::pin(async move { Ok(array.volume_create(&name, options).await?) })
    }

    fn volume_destroy(&self, name: &str) -> StoreFuture<Result<(), StoreError>> {
        let (array, name) = (self.0.clone(), name.to_string());
        Box::pin(async move { Ok(array.volume_destroy(&name).await?) })
    }

    fn volume_size(&self, name: &str) -> Option<u64> {
        Some(self.0.volume(name)?.info().size_bytes)
    }

    fn volume_resize(&self, name: &str, bytes: u64) -> StoreFuture<Result<(), StoreError>> {
        let (array, name) = (self.0.clone(), name.to_string());
        Box::pin(async move { Ok(array.volume_resize(&name, bytes).await?) })
    }

    fn volume_names(&self) -> Vec<String> {
        self.0.volume_names()
    }

    fn read(
        &self,
        volume: &str,
        offset: u64,
        length: usize,
    ) -> StoreFuture<Result<Buf, StoreError>> {
        let volume = self.volume(volume);
        Box::pin(async move { Ok(volume?.read(offset, length).await?) })
    }

    fn write(
        &self,
        volume: &str,
        offset: u64,
        data: Slice,
        durable: bool,
    ) -> StoreFuture<Result<(), StoreError>> {
        let volume = self.volume(volume);
        Box::pin(async move { Ok(volume?.write(offset, data, durable).await?) })
    }

    fn flush(&self, volume: &str) -> StoreFuture<Result<(), StoreError>> {
        let volume = self.volume(volume);
        Box::pin(async move { Ok(volume?.flush().await?) })
    }

    fn zero(
        &self,
        volume: &str,
        offset: u64,
        length: u64,
        trim: bool,
        durable: bool,
    ) -> StoreFuture<Result<(), StoreError>> {
        let volume = self.volume(volume);
        Box::pin(async move {
            let volume = volume?;
            if trim {
                Ok(volume.trim(offset, length, durable).await?)
            } else {
                Ok(volume.write_zeroes(offset, length, durable).await?)
            }
        })
    }

    fn extents(
        &self,
        volume: &str,
        offset: u64,
        length: u64,
    ) -> StoreFuture<Result<Vec<(u64, bool)>, StoreError>> {
        let volume = self.volume(volume);
        Box::pin(async move {
            let extents = volume?.block_status(offset, length, usize::MAX).await?;
            Ok(extents
                .into_iter()
                .map(|extent| (extent.length, extent.hole))
                .collect())
        })
    }

    fn fail(&self, device: u16, force: bool) -> StoreFuture<Result<(), StoreError>> {
        let array = self.0.clone();
        Box::pin(async move { Ok(array.fail(device, force).await?) })
    }

    fn takes_in(&self) -> bool {
        true
    }

    fn offline(&self, device: u16) -> StoreFuture<Result<(), StoreError>> {
        let array = self.0.clone();
        Box::pin(async move { Ok(array.offline(device).await?) })
    }

    fn online(&self, device: DeviceRef) -> StoreFuture<Result<(), StoreError>> {
        let array = self.0.clone();
        Box::pin(async move {
            // The operator's word comes second.
            match array.online(device.clone(), false).await {
                Err(Error::Untrusted(_)) => Ok(array.online(device, true).await.map(drop)?),
                taken => Ok(taken.map(drop)?),
            }
        })
    }

    fn remove(&self, device: u16) -> StoreFuture<Result<(), StoreError>> {
        let array = self.0.clone();
        Box::pin(async move { Ok(array.remove(device).await.map(drop)?) })
    }

    fn stay(&self, device: u16) -> StoreFuture<Result<(), StoreError>> {
        let array = self.0.clone();
        Box::pin(async move { Ok(array.stay(device).await?) })
    }

    fn add(&self, device: DeviceRef, domain: &str) -> StoreFuture<Result<usize, StoreError>> {
        let (array, domain) = (self.0.clone(), domain.to_string());
        Box::pin(async move { Ok(array.add(device, &domain).await?.index.into()) })
    }

    fn replace_in_use(
        &self,
        old: u16,
        device: DeviceRef,
    ) -> StoreFuture<Result<(usize, bool), StoreError>> {
        let array = self.0.clone();
        Box::pin(async move {
            match array.replace_in_use(old, device).await {
                Ok(taken) => Ok((taken.index.into(), true)),
                Err(Error::OldStays { index, .. }) => Ok((index.into(), false)),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn pause(&self, work: Work, paused: bool) -> Result<(), StoreError> {
        Ok(self.0.pause(work, paused).map(drop)?)
    }

    fn use_all_of(&self, device: u16) -> StoreFuture<Result<(), StoreError>> {
        let array = self.0.clone();
        Box::pin(async move { Ok(array.use_all_of(device).await.map(drop)?) })
    }

    fn set_domain(&self, device: u16, label: &str) -> StoreFuture<Result<(), StoreError>> {
        let (array, label) = (self.0.clone(), label.to_string());
        Box::pin(async move { Ok(array.set_domain(device, &label).await.map(drop)?) })
    }

    fn next_device(&self) -> usize {
        self.0.next_device()
    }

    fn replace(&self, index: u16, device: DeviceRef) -> StoreFuture<Result<(), StoreError>> {
        let array = self.0.clone();
        Box::pin(async move { Ok(array.replace(index, device, false).await.map(drop)?) })
    }

    fn take_place(&self, index: u16, device: DeviceRef) -> StoreFuture<Result<(), StoreError>> {
        let array = self.0.clone();
        Box::pin(async move {
            let status = array.status().await;
            let lost = status.devices.iter().find(|d| d.index == index);
            let domain = lost.map_or(String::new(), |lost| lost.domain.clone());
            if lost.is_some_and(|lost| lost.state != DeviceState::Failed) {
                array.fail(index, false).await?; // it is not awaited
            }
            let spare = array.add_hot_spare(device, &domain).await?;
            // In the place of no other: the simulator's disks keep their numbers.
            let due = array.hot_spares_due();
            let used = match due
                .into_iter()
                .find(|due| (due.spare, due.lost) == (spare, index))
            {
                Some(due) => array.use_hot_spare_for(due).await,
                None => Err(Error::InUse(index)),
            };
            if used.is_err() {
                array.remove(spare).await?;
            }
            Ok(used?)
        })
    }

    fn set(
        &self,
        volume: Option<&str>,
        key: &str,
        value: &str,
    ) -> StoreFuture<Result<(), StoreError>> {
        let (array, volume) = (self.0.clone(), volume.map(String::from));
        let (key, value) = (key.to_string(), value.to_string());
        Box::pin(async move {
            match volume {
                Some(volume) => Ok(array.volume_set(&volume, &key, &value).await?),
                None => Ok(array.set(&key, &value).await?),
            }
        })
    }

    fn setting(&self, volume: Option<&str>, key: &str) -> Option<String> {
        match volume {
            // The only one that a volume has.
            Some(volume) => {
                let cache = self.0.volume(volume)?.info().write_cache;
                (key == "write-cache").then(|| cache.name().to_string())
            }
            None => Some(self.0.get(Some(key)).ok()?.pop()?.1),
        }
    }

    fn set_memory(&self, bytes: u64) -> StoreFuture<()> {
        let array = self.0.clone();
        Box::pin(async move { array.set_memory(bytes).await })
    }

    fn trim_all(&self) -> StoreFuture<Result<bool, StoreError>> {
        let array = self.0.clone();
        Box::pin(async move {
            let trimmed = array.trim().await?;
            Ok(trimmed.iter().all(|t| t.left.is_none()))
        })
    }

    fn status(&self) -> StoreFuture<StoreStatus> {
        let array = self.0.clone();
        Box::pin(async move {
            let status = array.status().await;
            let mut awaited: Vec<u16> = array.awaited().iter().map(|a| a.0).collect();
            let slow = status.devices.iter();
            let slow = slow.filter(|d| d.state == DeviceState::Slow);
            let slow: Vec<u16> = slow.map(|d| d.index).collect();
            awaited.extend(&slow);
            let delay = array.get(Some("reconstruct.delay"));
            let delayed = delay.is_ok_and(|set| set.iter().any(|(_, value)| value != "0s"));
            let in_use = [
                DeviceState::Online,
                DeviceState::Readonly,
                DeviceState::Removing,
            ];
            StoreStatus {
                // Where what is written next cannot be redundant, past losses still count.
                optimal: status.state == ArrayState::Optimal && !status.capacity.overpromised,
                more_losses: usize::from(status.health.more_losses),
                overpromised: status.capacity.overpromised,
                state: format!("{:?}", status.state),
                lost: status.lost.len(),
                journal_percent: status.journal.used_bytes * 100 / status.journal.bytes.max(1),
                map_nodes: status.map.bytes / 4096,
                usable_bytes: status.capacity.usable_bytes,
                strip_bytes: status.strip_bytes,
                online: status
                    .devices
                    .iter()
                    .filter(|device| in_use.contains(&device.state))
                    .map(|device| usize::from(device.index))
                    .collect(),
                offline: status
                    .devices
                    .iter()
                    .filter(|device| device.state == DeviceState::Offline)
                    .map(|device| usize::from(device.index))
                    .collect(),
                slow: slow.into_iter().map(usize::from).collect(),
                awaited: match delayed {
                    true => awaited.iter().map(|index| usize::from(*index)).collect(),
                    false => Vec::new(),
                },
                errors: status
                    .devices
                    .iter()
                    .filter(|d| d.state != DeviceState::Spare) // its row is the number of no disk
                    .map(|d| {
                        let errors = (d.errors.read, d.errors.write, d.errors.digest);
                        (usize::from(d.index), errors)
                    })
                    .collect(),
            }
        })
    }

    fn inconsistent(&self) -> bool {
        let devices = self.0.device_paths();
        let paths: BTreeSet<&String> = devices.iter().map(|(_, path)| path).collect();
        let twice = paths.len() < devices.len();
        twice || self.0.events(0).iter().any(|e| e.kind == "inconsistent")
    }

    fn describe(&self) -> StoreFuture<Vec<String>> {
        let array = self.0.clone();
        Box::pin(async move {
            let mut lines = vec!["---- events".to_string()];
            for event in array.events(0) {
                lines.push(format!(
                    "{:>9} us {}: {}",
                    event.at / 1_000,
                    event.kind,
                    event.text
                ));
            }
            let status = array.status().await;
            lines.push(format!("---- {:?}, {:?}", status.state, status.capacity));
            lines.push(format!("{:?}", status.clean));
            lines.push(format!("{:?} {:?}", status.journal, status.exposure));
            lines.extend(status.tasks.iter().map(|task| format!("{task:?}")));
            let states = status
                .devices
                .iter()
                .map(|d| format!("{}: {:?}", d.index, d.state));
            lines.push(states.collect::<Vec<_>>().join(", "));
            lines.push(format!("lost {:?}", status.lost));
            lines
        })
    }

    fn wait_idle(&self) -> StoreFuture<()> {
        let array = self.0.clone();
        Box::pin(async move { array.wait_idle(&[Work::Rebuild, Work::Clean]).await })
    }

    fn scrub(&self, change: ScrubChange) -> StoreFuture<Result<bool, StoreError>> {
        let array = self.0.clone();
        Box::pin(async move { Ok(array.scrub(change).await?) })
    }

    fn wait_scrubbed(&self) -> StoreFuture<()> {
        let array = self.0.clone();
        Box::pin(async move { array.wait_idle(&[Work::Scrub]).await })
    }

    fn scrubs(&self) -> Vec<ScrubReport> {
        self.0.scrubs()
    }

    fn export(&self) -> StoreFuture<Result<(), StoreError>> {
        let array = self.0.clone();
        Box::pin(async move { Ok(array.export().await?) })
    }

    fn destroy(&self) -> StoreFuture<Result<(), StoreError>> {
        let array = self.0.clone();
        Box::pin(async move { Ok(array.destroy().await?) })
    }
}
