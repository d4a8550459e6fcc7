//! Volumes of an array: making, destroying, changing, and how they are served.
//!
//! **Invariants**: what is served is what the array's catalog says is served, except while a
//! frontend could not be restored (then it says why); a frontend is stored before it is reported as
//! attached; a write cache that rule R17 forbids is refused, both ways round.

use std::rc::Rc;

use ashlar_engine::status::Frontend;
use ashlar_engine::{Array, DigestKind, VOLUME_BLOCKS, VolumeOptions, WriteCache};
use serde_json::{Value, json};

use crate::api::{
    Attached, Call, FrontendSpec, NotServed, Rights, VolumeCreate, VolumeDestroy, check_confirmed,
};
use crate::daemon::devices::check_name;
use crate::daemon::frontends::{self, How};
use crate::daemon::host::{Host, Member, failure_of, reply};
use crate::daemon::stopping::and_left;
use crate::failure::Failure;
use crate::units::{as_given, size};

/// Why an array or a volume is not there yet as the daemon starts.
pub(crate) const NOT_TRIED: &str = "not tried yet";

impl Host {
    /// The verbs of `volume`.
    pub(crate) async fn change_volume(self: Rc<Host>, call: Call) -> Result<Value, Failure> {
        match call {
            Call::VolumeCreate(create) => {
                check_name("a volume", &create.volume)?;
                let member = self.member(&create.array)?;
                make_volume(&member.array, &create).await?;
                reply(&json!({ "array": create.array, "volume": create.volume }))
            }
            Call::VolumeDestroy(name) => self.destroy_volume(&name).await,
            Call::VolumeRename {
                array,
                volume,
                new_name,
            } => {
                self.rename_volume(&array, &volume, &new_name).await?;
                reply(&json!({ "array": array, "volume": new_name, "was": volume }))
            }
            Call::VolumeResize(asked) => self.resize_volume(&asked).await,
            Call::VolumeSet {
                array,
                volume,
                key,
                value,
            } => {
                let member = self.member(&array)?;
                check_volume(&member.array, &volume)?;
                if key == "write-cache" {
                    self.set_write_cache(&member, &array, &volume, &value)
                        .await?;
                } else {
                    member
                        .array
                        .volume_set(&volume, &key, &value)
                        .await
                        .map_err(failure_of)?;
                }
                reply(&json!({ "array": array, "volume": volume, "key": key, "value": value }))
            }
            Call::Attach {
                array,
                volume,
                frontend,
                sector_bytes,
                rights,
                force,
            } => {
                check_rights(&frontend, rights)?;
                let small = small_sectors(&frontend, sector_bytes)?;
                let how = How { small, rights };
                let attached = self
                    .attach(&array, &volume, (&frontend, &how), force)
                    .await?;
                reply(&json!({ "array": array, "volume": volume, "attached": attached }))
            }
            Call::Detach {
                array,
                volume,
                frontend,
                force,
            } => {
                let (gone, left) = self
                    .detach(&array, &volume, frontend.as_deref(), force)
                    .await?;
                for Frontend { kind, address } in &gone {
                    let text = format!("{volume} is no longer served as {kind} {address}");
                    self.tell(&array, "detached", None, text);
                }
                reply(&json!({ "array": array, "volume": volume, "detached": gone, "left": left }))
            }
            other => Err(Failure::invalid(format!(
                "{} is not a verb of volumes",
                other.verb()
            ))),
        }
    }

    /// Destroys a volume, and serves it again if that fails.
    async fn destroy_volume(&self, name: &VolumeDestroy) -> Result<Value, Failure> {
        let member = self.member(&name.array)?;
        check_volume(&member.array, &name.volume)?;
        let whole = format!("{}/{}", name.array, name.volume);
        check_confirmed(&whole, name.confirm.as_deref())?;
        if member.read_only {
            return Err(failure_of(ashlar_engine::Error::ReadOnly));
        }
        if !name.force {
            let volume = Some(name.volume.as_str());
            let clients = self.frontends.check_no_clients(&name.array, volume, None);
            clients.await?;
        }
        if !member.array.is_open() {
            return Err(failure_of(ashlar_engine::Error::Closed)); // before anything is stopped for it
        }
        let mut stopped = self
            .stop_frontends(&member, Some(&name.volume), None, name.force)
            .await?;
        let left = std::mem::take(&mut stopped.left);
        if let Err(error) = member.array.volume_destroy(&name.volume).await {
            self.serve_again(&member, stopped).await;
            return Err(and_left(failure_of(error), &left));
        }
        reply(&json!({ "array": name.array, "volume": name.volume, "left": left }))
    }

    /// Gives a volume another name. Names of exports and of kernel devices have the volume's in them, so it must not
    /// be attached.
    async fn rename_volume(&self, array: &str, volume: &str, new: &str) -> Result<(), Failure> {
        check_name("a volume", new)?;
        let member = self.member(array)?;
        check_volume(&member.array, volume)?;
        let detached = self.check_detached(&member, array, volume, "rename");
        detached.await?;
        let renamed = member.array.volume_rename(volume, new).await;
        renamed.map_err(failure_of)
    }

    /// Refuses to do something to a volume that is attached.
    pub(crate) async fn check_detached(
        &self,
        member: &Member,
        array: &str,
        volume: &str,
        what: &str,
    ) -> Result<(), Failure> {
        let mut kept = self.stored_frontends(member, volume).await;
        kept.extend(self.frontends.running(array, volume)); // one that is being attached is not kept yet
        let Some(shown) = kept.first().map(frontends::shown) else {
            return Ok(());
        };
        Err(Failure::refused(format!(
            "{array}/{volume} is attached as {} {}; 'ashlar volume detach {array}/{volume}', then {what} it and attach \
             it again",
            shown.kind, shown.address
        )))
    }

    /// Serves a volume, and keeps that in the array.
    ///
    /// # Errors
    /// What stands against it; nothing is served then.
    pub(crate) async fn attach(
        &self,
        array: &str,
        volume: &str,
        (spec, how): (&FrontendSpec, &How),
        force: bool,
    ) -> Result<Attached, Failure> {
        self.compare_with_kernel().await;
        let member = self.member(array)?;
        check_volume(&member.array, volume)?;
        if member.array.is_resizing(volume) {
            let volume = volume.to_string();
            return Err(failure_of(ashlar_engine::Error::Resizing(volume)));
        }
        let cache = write_cache_of(&member.array, volume)?;
        frontends::check_write_cache(cache, spec)?;
        let stored = frontends::stored(array, volume, spec, how);
        let mut kept = self.stored_frontends(&member, volume).await;
        let same = |f: &Frontend| frontends::shown(f) == frontends::shown(&stored);
        if kept
            .iter()
            .any(|f| same(f) && self.frontends.runs(array, volume, f))
        {
            return Err(Failure::refused(format!(
                "{array}/{volume} is already attached as {} {}",
                stored.kind,
                frontends::shown(&stored).address
            )));
        }
        kept.retain(|f| !same(f) || *f == stored); // kept with other rights, and not served
        if !force && !member.read_only {
            check_alone(&kept, &stored, &format!("{array}/{volume}"))?;
        }
        let attached = self.serve(&member, array, volume, &stored).await?;
        self.forget_not_served(array, volume, &stored);
        if !kept.contains(&stored) && !member.read_only {
            kept.push(stored.clone());
            if let Err(error) = member.array.set_frontends(volume, kept).await {
                let one = Some(std::slice::from_ref(&stored));
                let stopped = self
                    .frontends
                    .stop(&member.array, Some(volume), one, true)
                    .await;
                if let Err((_, failure)) = stopped {
                    tracing::warn!("{failure}");
                }
                return Err(failure_of(error));
            }
        }
        let Attached { kind, address, .. } = &attached;
        let text = format!("{volume} is served as {kind} {address}");
        self.tell(array, "attached", None, text);
        Ok(attached)
    }

    async fn detach(
        &self,
        array: &str,
        volume: &str,
        which: Option<&str>,
        force: bool,
    ) -> Result<(Vec<Frontend>, Vec<String>), Failure> {
        let member = self.member(array)?;
        check_volume(&member.array, volume)?;
        let kept = if member.read_only {
            self.frontends.running(array, volume)
        } else {
            self.stored_frontends(&member, volume).await
        };
        let address = |f: &Frontend| frontends::shown(f).address;
        let named = |f: &Frontend| which.is_none_or(|w| f.kind == w || address(f) == w);
        let (gone, left): (Vec<Frontend>, Vec<Frontend>) = kept.into_iter().partition(named);
        if gone.is_empty() {
            return Err(Failure::not_found(match which {
                Some(which) => format!("{array}/{volume} is not attached as {which}"),
                None => format!("{array}/{volume} is not attached"),
            }));
        }
        if !force {
            let clients = self
                .frontends
                .check_no_clients(array, Some(volume), Some(&gone));
            clients.await?;
        }
        if force && gone.iter().any(|f| f.kind != "nbd") {
            self.write_out().await;
        }
        let mut stopped = self
            .stop_frontends(&member, Some(volume), Some(&gone), force)
            .await?;
        let mut in_use = std::mem::take(&mut stopped.left);
        let kept = match member.read_only {
            true => Ok(()),
            false => member.array.set_frontends(volume, left).await,
        };
        match kept {
            Ok(()) => {}
            // What is detached from it stays so: nobody could be served.
            Err(ashlar_engine::Error::Closed) => in_use.push(format!(
                "{array}/{volume}: the array has stopped and cannot keep that this is detached; it is attached again \
                 when the array is imported"
            )),
            Err(error) => {
                self.serve_again(&member, stopped).await;
                return Err(and_left(failure_of(error), &in_use));
            }
        }
        for frontend in &gone {
            self.forget_not_served(array, volume, frontend);
        }
        let gone = gone.iter().map(frontends::shown).collect();
        Ok((gone, in_use))
    }

    /// What an array's catalog says is served; each counts as not served until [`Host::restore_frontends`] has it.
    pub(crate) async fn frontends_to_restore(&self, member: &Member) -> Vec<(String, Frontend)> {
        let array = member.array.name();
        let mut all = Vec::new();
        for volume in member.array.volume_names() {
            let kept = self.stored_frontends(member, &volume).await;
            let named: Vec<Frontend> = kept
                .iter()
                .map(|f| frontends::under_name(&array, &volume, f.clone()))
                .collect();
            if named != kept
                && !member.read_only
                && let Err(error) = member.array.set_frontends(&volume, named.clone()).await
            {
                tracing::warn!(array, volume, %error, "the name of its device is not kept");
            }
            for stored in named {
                self.note_not_served(&array, &volume, &stored, NOT_TRIED);
                all.push((volume.clone(), stored));
            }
        }
        all
    }

    /// Serves these, or keeps why not.
    pub(crate) async fn restore_frontends(
        &self,
        member: &Member,
        frontends: Vec<(String, Frontend)>,
        warnings: &mut Vec<String>,
    ) {
        let array = member.array.name();
        for (volume, stored) in frontends {
            match self.serve(member, &array, &volume, &stored).await {
                Ok(_) => self.forget_not_served(&array, &volume, &stored),
                Err(failure) => {
                    warnings.push(self.say_not_served(&array, &volume, &stored, &failure));
                }
            }
        }
    }

    /// Keeps for `status` why a frontend does not serve; the line that says so.
    pub(super) fn say_not_served(
        &self,
        array: &str,
        volume: &str,
        frontend: &Frontend,
        failure: &Failure,
    ) -> String {
        let line = format!(
            "{array}/{volume}: not attached again as {} {}: {failure}",
            frontend.kind,
            frontends::shown(frontend).address
        );
        self.tell(array, "not-served", None, line.clone());
        self.note_not_served(array, volume, frontend, &failure.text);
        line
    }

    /// Keeps for `status` that a frontend does not serve any more.
    pub(crate) fn say_gone(&self, array: &str, volume: &str, frontend: &Frontend, why: &str) {
        let shown = frontends::shown(frontend);
        let text = format!(
            "{volume} is not served as {} {}: {why}",
            shown.kind, shown.address
        );
        self.tell(array, "not-served", None, text);
        self.note_not_served(array, volume, frontend, why);
    }

    fn note_not_served(&self, array: &str, volume: &str, frontend: &Frontend, reason: &str) {
        self.forget_not_served(array, volume, frontend);
        let Frontend { kind, address } = frontends::shown(frontend);
        self.not_served.borrow_mut().push(NotServed {
            array: array.to_string(),
            volume: volume.to_string(),
            kind,
            address,
            reason: reason.to_string(),
        });
    }

    /// Forgets that a frontend could not be restored: it serves now, or is not wanted any more.
    fn forget_not_served(&self, array: &str, volume: &str, frontend: &Frontend) {
        let shown = frontends::shown(frontend);
        self.not_served.borrow_mut().retain(|n| {
            n.array != array
                || n.volume != volume
                || n.kind != shown.kind
                || n.address != shown.address
        });
    }

    pub(super) async fn serve(
        &self,
        member: &Member,
        array: &str,
        volume: &str,
        stored: &Frontend,
    ) -> Result<Attached, Failure> {
        let handle = member
            .array
            .volume(volume)
            .ok_or_else(|| no_volume(array, volume))?;
        let used = match stored.kind.as_str() {
            "fuse" => self.used_bytes(member, volume).await,
            _ => 0,
        };
        self.frontends
            .start(array, volume, stored, handle, (member.read_only, used))
            .await
    }

    async fn used_bytes(&self, member: &Member, volume: &str) -> u64 {
        let status = member.array.status().await;
        let found = status.volumes.iter().find(|v| v.name == volume);
        found.map_or(0, |v| v.used_bytes)
    }

    async fn stored_frontends(&self, member: &Member, volume: &str) -> Vec<Frontend> {
        let status = member.array.status().await;
        let found = status.volumes.into_iter().find(|v| v.name == volume);
        found.map(|v| v.frontends).unwrap_or_default()
    }

    async fn set_write_cache(
        &self,
        member: &Member,
        array: &str,
        volume: &str,
        value: &str,
    ) -> Result<(), Failure> {
        let cache = parse_write_cache(value)?;
        let stored = self.stored_frontends(member, volume).await;
        for frontend in &stored {
            frontends::check_write_cache(cache, &frontends::spec(frontend)?)?;
        }
        if let Some(busy) = stored
            .iter()
            .find(|f| self.frontends.runs(array, volume, f))
        {
            return Err(Failure::refused(format!(
                "{array}/{volume} is attached as {}; detach it, change the write cache, attach it again",
                busy.kind
            )));
        }
        member
            .array
            .volume_set(volume, "write-cache", value)
            .await
            .map_err(failure_of)
    }
}

/// Refuses rights that would not hold, or that nobody could use.
fn check_rights(spec: &FrontendSpec, rights: Option<Rights>) -> Result<(), Failure> {
    match (rights, spec) {
        (None, _) => Ok(()),
        (Some(_), FrontendSpec::Nbd(address)) if !address.starts_with("unix:") => {
            Err(Failure::invalid(
                "--owner and --mode are for a Unix socket; every user of the machine can use a TCP port",
            ))
        }
        (Some(rights), FrontendSpec::Nbd(_)) if rights.mode > 0o777 => {
            Err(Failure::invalid("--mode: give permissions such as 660"))
        }
        (Some(_), FrontendSpec::Nbd(_)) => Ok(()),
        (Some(_), _) => Err(Failure::invalid(
            "--owner and --mode are for --nbd unix:PATH",
        )),
    }
}

/// Whether a kernel device with sectors of 512 bytes is asked for.
///
/// # Errors
/// For another size, and for what is no kernel device.
fn small_sectors(spec: &FrontendSpec, sector_bytes: Option<u64>) -> Result<bool, Failure> {
    match (sector_bytes, spec) {
        (None, _) | (Some(4096), FrontendSpec::Loop) => Ok(false),
        (Some(512), FrontendSpec::Loop) => Ok(true),
        (Some(bytes), FrontendSpec::Loop) => Err(Failure::invalid(format!(
            "--sector-size {}: a kernel device has sectors of 512 or 4096 bytes",
            size(bytes)
        ))),
        (Some(_), _) => Err(Failure::invalid(
            "--sector-size is for --loop; NBD and FUSE take requests of any size",
        )),
    }
}

/// Refuses what would be a second cache of a volume's bytes beside the first: a file system that is
/// mounted on both is destroyed. NBD clients of several connections or addresses are left to know each
/// other, as multi-conn has it.
fn check_alone(kept: &[Frontend], new: &Frontend, volume: &str) -> Result<(), Failure> {
    let alike = |f: &&Frontend| *f == new || f.kind == "nbd" && new.kind == "nbd";
    match kept.iter().find(|f| !alike(f)) {
        None => Ok(()),
        Some(other) => Err(Failure::refused(format!(
            "{volume} is attached as {} {} already, and two kernels writing to one file system destroy it; \
             detach that first, or give -f if the users coordinate their writes",
            other.kind,
            frontends::shown(other).address
        ))),
    }
}

/// Makes a volume as asked.
///
/// # Errors
/// What is wrong with the wish, or the engine's reason.
pub(crate) async fn make_volume(array: &Array, create: &VolumeCreate) -> Result<(), Failure> {
    let block_bytes = match create.block_bytes {
        None => 4096,
        Some(bytes) if bytes.is_power_of_two() && VOLUME_BLOCKS.contains(&bytes) => {
            u32::try_from(bytes).unwrap_or(4096)
        }
        Some(bytes) => {
            return Err(Failure::invalid(format!(
                "--block-size {}: give a power of two from 4K to 128K",
                size(bytes)
            )));
        }
    };
    let size_bytes = volume_size(array, create, u64::from(block_bytes)).await?;
    let digest = create.digest.as_deref().unwrap_or("blake3");
    let digest = DigestKind::from_name(digest).ok_or_else(|| {
        let names = DigestKind::ALL.map(DigestKind::name).join(" or ");
        Failure::invalid(format!("--digest {digest}: use {names}"))
    })?;
    let write_cache = parse_write_cache(create.write_cache.as_deref().unwrap_or("auto"))?;
    let options = VolumeOptions {
        size_bytes,
        thin: create.thin,
        block_bytes,
        digest,
        write_cache,
    };
    array
        .volume_create(&create.volume, options)
        .await
        .map_err(failure_of)
}

/// The size asked for, or all that is left for thick volumes.
async fn volume_size(array: &Array, create: &VolumeCreate, unit: u64) -> Result<u64, Failure> {
    let wrong = |bytes: u64| {
        Failure::invalid(format!(
            "--size {}: give a multiple of the volume's block, {}, and not 0",
            as_given(bytes),
            size(unit)
        ))
    };
    if let Some(bytes) = create.size_bytes {
        return if bytes == 0 || bytes % unit != 0 {
            Err(wrong(bytes))
        } else {
            Ok(bytes)
        };
    }
    let block = u32::try_from(unit).unwrap_or(u32::MAX);
    let left = array.room_for(block) / unit * unit;
    if left == 0 {
        return Err(Failure::refused(format!(
            "array {} has no free space for another volume; give --size and --thin, or destroy a volume",
            create.array
        )));
    }
    Ok(left)
}

fn parse_write_cache(text: &str) -> Result<WriteCache, Failure> {
    match text {
        "on" => Ok(WriteCache::On),
        "off" => Ok(WriteCache::Off),
        "auto" => Ok(WriteCache::Auto),
        other => Err(Failure::invalid(format!(
            "write-cache={other}: use on, off or auto"
        ))),
    }
}

fn write_cache_of(array: &Array, volume: &str) -> Result<WriteCache, Failure> {
    let handle = array
        .volume(volume)
        .ok_or_else(|| no_volume(&array.name(), volume))?;
    Ok(handle.info().write_cache)
}

fn check_volume(array: &Array, volume: &str) -> Result<(), Failure> {
    match array.volume(volume) {
        Some(_) => Ok(()),
        None => Err(no_volume(&array.name(), volume)),
    }
}

pub(crate) fn no_volume(array: &str, volume: &str) -> Failure {
    Failure::not_found(format!(
        "no volume {volume} in array {array}; 'ashlar volume list {array}' shows its volumes"
    ))
}
