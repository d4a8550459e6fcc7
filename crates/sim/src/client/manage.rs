//! What clients do to the array as a whole: volumes made and destroyed, devices failed, settings changed.
//!
//! Invariants: as in [`super`].

use super::Session;
use crate::config::VolumeConfig;
use crate::rng::Rng;
use crate::settings;
use crate::store::StoreError;
use crate::world::{Presence, VolumeEntry};

impl Session {
    /// Makes a volume of a random size, unless there are enough.
    pub(super) async fn create_volume(&self, client: u64, rng: &mut Rng) {
        if self.world.volumes.borrow().len() >= 4 {
            return;
        }
        let name = format!("v{}", rng.below(6));
        if self.world.volumes.borrow().contains_key(&name) {
            return;
        }
        let config = VolumeConfig {
            size: 4096 * rng.range(16, 64),
            block_bytes: 4096,
            thin: rng.chance(30),
            fast_digest: rng.chance(30),
            sparse: false,
        };
        self.make_volume(client, &name, &config).await;
    }

    /// Makes a volume; a refusal for want of space is fine.
    pub async fn make_volume(&self, client: u64, name: &str, config: &VolumeConfig) {
        self.world.add_volume(name, config, Presence::Appearing);
        self.log(client, || format!("create volume {name} {config:?} ..."));
        let future = self.store.volume_create(name, config);
        let Some(result) = self.bounded("volume create", future).await else {
            return;
        };
        self.log(client, || format!("create volume {name}: {result:?}"));
        match result {
            Ok(()) => {
                self.world
                    .with_volume(name, |entry| entry.presence = Presence::Present);
                self.answered();
            }
            Err(StoreError::Unsupported | StoreError::NoSpace) => {
                self.world.volumes.borrow_mut().remove(name);
            }
            // An array that closes meanwhile may have it at its next import or not.
            Err(error) => self.judge("volume create", &error).await,
        }
    }

    /// Destroys a volume that nobody uses, unless it is the last.
    pub async fn destroy_volume(&self, client: u64, name: &str) {
        let last = self.world.volumes.borrow().len() <= 1;
        let free = self
            .world
            .with_volume(name, |entry| {
                let free = entry.busy == 0 && !last;
                if free {
                    entry.presence = Presence::Vanishing;
                }
                free
            })
            .unwrap_or(false);
        if !free {
            return;
        }
        self.log(client, || format!("destroy volume {name} ..."));
        let future = self.store.volume_destroy(name);
        let Some(result) = self.bounded("volume destroy", future).await else {
            return;
        };
        self.log(client, || format!("destroy volume {name}: {result:?}"));
        match result {
            Ok(()) => {
                self.world.volumes.borrow_mut().remove(name);
                self.answered();
            }
            Err(StoreError::Unsupported) => {
                self.world
                    .with_volume(name, |entry| entry.presence = Presence::Present);
            }
            // As for one that is made.
            Err(error) => self.judge("volume destroy", &error).await,
        }
    }

    /// Makes a volume smaller, and as large as it was: what lay beyond is zeros then. A crash in between leaves either
    /// size ([`crate::machine::Driver::restore_sizes`]).
    pub async fn shrink_and_grow(&self, client: u64, name: &str, to: u64) {
        let size = self.world.with_volume(name, |entry| entry.model.size());
        let (size, what) = (size.unwrap_or(0), "resize");
        if size <= to || !self.enter(name) {
            return;
        }
        let zeroed = |entry: &mut VolumeEntry| entry.model.begin_write(to, size - to, 0);
        let op = self.world.with_volume(name, zeroed);
        self.log(client, || format!("resize {name} to {to} and {size} ..."));
        let (smaller, larger) = (
            self.store.volume_resize(name, to),
            (self.store.clone(), name.to_string()),
        );
        let round = async move {
            smaller.await?;
            larger.0.volume_resize(&larger.1, size).await
        };
        let Some(result) = self.bounded(what, round).await else {
            return;
        };
        self.log(client, || {
            format!("resize {name} to {to} and {size}: {result:?}")
        });
        self.world.with_volume(name, |entry| {
            let done = result.is_ok();
            entry.model.end_write(op.unwrap_or(0), done, true);
        });
        self.leave(name);
        match result {
            Ok(()) => self.world.durable(what),
            Err(StoreError::Unsupported) => {}
            Err(error) => self.judge(what, &error).await,
        }
    }

    /// Asks for the status.
    pub async fn status(&self, client: u64) {
        let Some(status) = self.bounded("status", self.store.status()).await else {
            return;
        };
        self.log(client, || format!("status: {status:?}"));
        if status.lost > 0 && self.world.promised() {
            self.world
                .fail(|| format!("status lists lost ranges within the promise: {status:?}"));
        }
    }

    /// Has the devices discard all that is free while clients go on, or sets whether they discard what is freed.
    pub(super) async fn discard(&self, client: u64, rng: &mut Rng) {
        if rng.chance(30) {
            let value = if rng.chance(50) { "off" } else { "on" };
            if self
                .set_to(client, &(None, settings::DISCARD.0), value)
                .await
            {
                self.answered();
            }
            return;
        }
        let session = self.clone();
        self.rt.spawn(async move {
            session.log(client, || "trim all ...".to_string());
            let done = session.store.trim_all().await;
            session.log(client, || format!("trim all: {done:?}"));
            session.world.trace.mark(match done {
                Ok(true) => "free slots trimmed",
                Ok(false) => "free slots trimmed in part",
                Err(_) => "a trim of free slots ends early",
            });
        });
    }

    /// Fails a device that may still be damaged, if there is one.
    pub(super) async fn fail_device(&self, client: u64, force: bool) {
        let Some(device) = self.world.victim() else {
            return;
        };
        let number = u16::try_from(device).expect("few devices");
        self.world.damage(device, false);
        let how = if force { "fail -f" } else { "fail" };
        self.log(client, || format!("{how} device {device} ..."));
        let future = self.store.fail(number, force);
        let Some(result) = self.bounded("fail device", future).await else {
            return;
        };
        self.world.trace.mark(match force {
            true => "device failed by force",
            false => "device failed by the operator",
        });
        self.log(client, || format!("{how} device {device}: {result:?}"));
        if let (Err(error), true) = (&result, force) {
            self.judge("fail -f", error).await;
        }
    }

    /// Changes a setting of the array or of a volume.
    pub(super) async fn set(&self, client: u64, rng: &mut Rng) {
        if rng.chance(25) {
            let bytes = (64 << 10) << rng.below(8);
            self.log(client, || format!("memory {bytes} ..."));
            let done = self.bounded("memory", self.store.set_memory(bytes)).await;
            self.log(client, || format!("memory {bytes}: {done:?}"));
            self.world.trace.mark("memory changes");
            return;
        }
        let volume = self.pick_volume(rng).filter(|_| rng.chance(25));
        let (key, value) = settings::draw(volume.clone(), rng);
        let entered = volume.as_ref().is_none_or(|name| self.enter(name));
        if !entered {
            return;
        }
        if !self.set_to(client, &key, value).await {
            return;
        }
        self.answered();
        if let Some(name) = volume {
            self.leave(&name);
        }
    }

    /// Changes this setting, unless another change of it is under way; false if the array did not answer.
    pub async fn set_to(&self, client: u64, key: &settings::Key, value: &'static str) -> bool {
        if !self.world.settings.borrow_mut().begin(key, value) {
            return true;
        }
        self.log(client, || format!("set {key:?} to {value} ..."));
        let future = self.store.set(key.0.as_deref(), key.1, value);
        let Some(result) = self.bounded("set", future).await else {
            return false;
        };
        self.log(client, || format!("set {key:?} to {value}: {result:?}"));
        self.world.trace.mark("a setting changes");
        self.world.settings.borrow_mut().end(key, result.is_ok());
        match &result {
            Ok(()) => {}
            // A reserve that would take what volumes were promised.
            Err(StoreError::NoSpace) if key.1 == "clean.reserve" => {
                self.world.trace.mark("a setting is refused");
            }
            // Who starts scrubs goes on beside the export.
            Err(StoreError::Closed) if settings::is_rate(key.1) => return false,
            Err(error) => self.judge("set", error).await,
        }
        true
    }
}
