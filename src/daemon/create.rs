//! Making arrays.
//!
//! **Invariants**: nothing is written to a device before every device was checked and its signature
//! was clean or overridden, and nothing stays written before no two of them were found to be one; whatever a failing
//! `create` made is taken back.

use std::collections::BTreeMap;
use std::rc::Rc;

use ashlar_device::{DeviceRef, MemDevice, Part, Unserved, find_same};
use ashlar_engine::{Array, Settings};
use ashlar_layout::Layout;
use tracing::Instrument;

use crate::api::{Attached, Create, CreateReply, Reserved, VolumeCreate};
use crate::daemon::devices::{self, Candidate};
use crate::daemon::frontends::{How, check_address};
use crate::daemon::holds::Held;
use crate::daemon::host::{Host, Member, clean_reserve, explain, failure_of};
use crate::daemon::open::{Access, on_thread};
use crate::daemon::volumes::make_volume;
use crate::failure::Failure;
use crate::units::size;
use crate::view;

/// How many devices are erased at a time.
const TAKES: usize = 64;

/// A device that nobody serves yet, what of it the array gets, and how it was given.
type Opened = (Unserved, Option<Part>, String);

impl Host {
    /// `create`.
    ///
    /// # Errors
    /// What stands against it; nothing is left behind then.
    pub(crate) async fn create(self: &Rc<Host>, create: Create) -> Result<CreateReply, Failure> {
        devices::check_name("an array", &create.array)?;
        if let Some((name, _)) = &create.volume {
            devices::check_name("a volume", name)?;
        }
        if let Some(how) = &create.attach {
            check_address(how)?;
        }
        self.check_unused_name(&create.array)?;
        let layout: Layout = create
            .layout
            .parse()
            .map_err(|e| Failure::invalid(format!("--layout {}: {e}", create.layout)))?;
        let count = u16::try_from(create.devices.len()).unwrap_or(u16::MAX);
        layout
            .resolve_with_spare(count, create.spare)
            .map_err(|e| {
                let spares = match create.spare {
                    0 => String::new(),
                    spare => format!(" with --spare {spare}"),
                };
                Failure::invalid(format!(
                    "--layout {} on {}{spares}: {e}",
                    create.layout,
                    view::count(usize::from(count), "device")
                ))
            })?;
        let (given, file_bytes) = (create.devices.clone(), create.file_bytes);
        let candidates = on_thread(move || devices::check(&given, file_bytes)).await??;
        let overwritten = self.check_free(&candidates, create.force).await?;
        let partitioned: Vec<String> = candidates
            .iter()
            .filter(|c| c.part.is_some())
            .map(|c| c.given.clone())
            .collect();
        let files: Vec<String> = candidates
            .iter()
            .filter(|c| c.to_make)
            .map(|c| c.path.display().to_string())
            .collect();
        // In memory first: what stands against it is known before a device is written to.
        let settings = self.settings_for_one_more().await;
        let options = || engine_options(&settings, &create, layout, &candidates);
        let array = self.rehearse(options()?, &create, &candidates);
        let (array, reserve) = array.instrument(tracing::info_span!("rehearsal")).await?;
        if create.dry_run {
            let (files_made, dry_run) = (files, true);
            let reserved = Some(Reserved::of(&array, reserve));
            return Ok(CreateReply {
                dry_run,
                reserved,
                array,
                attached: None,
                files_made,
                overwritten,
                partitioned,
            });
        }
        let made = devices::make_files(&candidates)?;
        match self.create_on(options()?, &create, &candidates).await {
            Ok((array, attached)) => Ok(CreateReply {
                dry_run: false,
                reserved: Some(Reserved::of(&array, reserve)),
                array,
                attached,
                files_made: files,
                overwritten,
                partitioned,
            }),
            Err(failure) => {
                devices::remove_files(&made);
                Err(failure)
            }
        }
    }

    /// The same on devices in memory, of which only what is written takes room: what `-n` prints
    /// is what `create` would give. With the percentage that is kept for cleaning.
    async fn rehearse(
        &self,
        mut options: ashlar_engine::Create,
        create: &Create,
        candidates: &[Candidate],
    ) -> Result<(ashlar_engine::status::ArrayStatus, u64), Failure> {
        let devices: Vec<DeviceRef> = candidates
            .iter()
            .map(|c| {
                let bytes = c.size_bytes / 4096 * 4096;
                Rc::new(MemDevice::new(&c.path.display().to_string(), bytes)) as DeviceRef
            })
            .collect();
        options.settings.accelerators = ashlar_engine::Accelerators::default(); // no GPU is opened for this
        let given: Vec<&str> = candidates.iter().map(|c| c.given.as_str()).collect();
        let array = Array::create(&self.rt, devices, options)
            .await
            .map_err(|error| explain(&error, &given))?;
        let volume = match &create.volume {
            Some((name, size)) => make_volume(&array, &plain_volume(create, name, *size)).await,
            None => Ok(()),
        };
        let (status, reserve) = (array.status().await, clean_reserve(&array));
        array.export().await.map_err(failure_of)?;
        volume.map(|()| (status, reserve))
    }

    async fn create_on(
        self: &Rc<Host>,
        options: ashlar_engine::Create,
        create: &Create,
        candidates: &[Candidate],
    ) -> Result<(ashlar_engine::status::ArrayStatus, Option<Attached>), Failure> {
        let taken = self.take_all(candidates).await?;
        let given: Vec<&str> = candidates.iter().map(|c| c.given.as_str()).collect();
        let array = match Array::create(&self.rt, taken, options).await {
            Ok(array) => array,
            Err(error) => {
                self.give_back(candidates).await;
                return Err(explain(&error, &given));
            }
        };
        let devices = candidates
            .iter()
            .map(|c| c.path.display().to_string())
            .collect();
        let member = Rc::new(Member::new(array.clone(), devices, false));
        let saved = self.insert(member.clone());
        let devices = view::count(candidates.len(), "device");
        let what = format!("created: {}, {devices}", create.layout);
        self.tell(&create.array, "created", None, what);
        let finished = async {
            saved?;
            let Some((name, size)) = &create.volume else {
                return Ok(None);
            };
            make_volume(&array, &plain_volume(create, name, *size)).await?;
            match &create.attach {
                Some(how) => {
                    let plain = How::default();
                    let attached = self.attach(&create.array, name, (how, &plain), false);
                    attached.await.map(Some)
                }
                None => Ok(None),
            }
        };
        match finished.await {
            Ok(attached) => Ok((self.status_of(&member).await, attached)),
            Err(failure) => {
                let _ = self.frontends.stop(&array, None, None, true).await;
                if let Err(error) = array.destroy().await {
                    tracing::warn!(array = create.array, %error, "an array could not be made completely, nor its \
                        devices wiped; 'ashlar create --force' takes them again");
                }
                if let Err(error) = self.remove(&create.array) {
                    tracing::warn!(array = create.array, "{error}");
                }
                Err(failure)
            }
        }
    }

    /// Opens all devices; only then erases old signatures and gives whole disks their partition.
    pub(super) async fn take_all(
        self: &Rc<Host>,
        candidates: &[Candidate],
    ) -> Result<Vec<DeviceRef>, Failure> {
        let mut opened = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let bare = self.opener.open_bare(&candidate.path, Access::Exclusive);
            opened.push((bare.await?, candidate.part, candidate.given.clone()));
        }
        let opened = self.told_apart(opened).await?;
        let take = |(bare, part, given): Opened| {
            self.rt.spawn(async move {
                let broken = move |error: std::io::Error| {
                    Failure::broken(format!(
                        "{given}: old signatures on it cannot be erased: {error}; check the device, or leave it out"
                    ))
                };
                on_thread(move || bare.take(part)).await?.map_err(broken)
            })
        };
        let mut outcome = Ok(Vec::with_capacity(candidates.len()));
        let mut opened = opened.into_iter();
        while opened.len() > 0 {
            let some: Vec<_> = opened.by_ref().take(TAKES).map(take).collect();
            for taken in some {
                match (taken.await, &mut outcome) {
                    (Ok(taken), Ok(all)) => all.push(self.opener.serve(taken)),
                    (Err(failure), Ok(_)) => outcome = Err(failure),
                    (_, Err(_)) => {}
                }
            }
        }
        if outcome.is_err() {
            self.give_back(candidates).await;
        }
        outcome
    }

    /// Refuses two devices that are one under two names, before anything is erased.
    async fn told_apart(&self, opened: Vec<Opened>) -> Result<Vec<Opened>, Failure> {
        let tag = self.rt.random_bytes();
        let (opened, found) = on_thread(move || {
            let all: Vec<&Unserved> = opened.iter().map(|(bare, ..)| bare).collect();
            let found = find_same(&all, tag);
            (opened, found)
        })
        .await?;
        match found {
            Ok(None) => Ok(opened),
            Ok(Some((one, other))) => Err(Failure::refused(format!(
                "{} and {} are the same device: what is written to one is read from the other; leave one out",
                opened[one].2, opened[other].2
            ))),
            Err((at, error)) => Err(Failure::broken(format!(
                "{} cannot be written and read back: {error}; check the device, or leave it out",
                opened[at].2
            ))),
        }
    }

    /// Takes back what [`Host::take_all`] and a creation that failed have written.
    async fn give_back(&self, candidates: &[Candidate]) {
        for candidate in candidates.iter().filter(|c| !c.to_make) {
            let bare = self.opener.open_bare(&candidate.path, Access::Exclusive);
            let erased = match bare.await {
                Ok(bare) => {
                    let bare = bare.within(candidate.part);
                    let erased = on_thread(move || bare.erase_signatures()).await;
                    erased.and_then(|e| e.map_err(|e| Failure::broken(e.to_string())))
                }
                Err(failure) => Err(failure),
            };
            if let Err(failure) = erased {
                tracing::warn!(device = candidate.given, "not taken back: {failure}");
            }
        }
    }

    fn check_unused_name(&self, name: &str) -> Result<(), Failure> {
        let waiting = self
            .waiting
            .borrow()
            .iter()
            .any(|(known, _)| known.name == name);
        if self.arrays.borrow().contains_key(name) || waiting {
            return Err(Failure::refused(format!(
                "an array {name} exists here already; choose another name"
            )));
        }
        Ok(())
    }

    /// Refuses devices that are in use or hold something; returns what would be overwritten.
    async fn check_free(
        &self,
        candidates: &[Candidate],
        force: bool,
    ) -> Result<Vec<String>, Failure> {
        let mut overwritten = Vec::new();
        for candidate in candidates.iter().filter(|c| !c.to_make) {
            self.check_unused(candidate)?;
            overwritten.extend(self.check_holds_nothing(candidate, force).await?);
        }
        Ok(overwritten)
    }

    /// Refuses a device that belongs to an array here.
    pub(super) fn check_unused(&self, candidate: &Candidate) -> Result<(), Failure> {
        let user = self.user_of(&candidate.path);
        user.map_or(Ok(()), |array| {
            Err(Failure::refused(format!(
                "{} belongs to array {array}, which is in use here; leave the device out, or destroy that array first",
                candidate.given
            )))
        })
    }

    /// Refuses a device that holds something, unless it may be overwritten; returns what it holds.
    pub(super) async fn check_holds_nothing(
        &self,
        candidate: &Candidate,
        force: bool,
    ) -> Result<Option<String>, Failure> {
        let given = &candidate.given;
        let holds = self.holds(&candidate.path, Access::Exclusive).await?;
        match holds.held.first().map(Held::words) {
            Some(signature) if !force => Err(Failure::refused(format!(
                "{given} holds {signature}; leave it out, or overwrite it with --force"
            ))),
            found => Ok(found.map(|signature| format!("{given}: {signature}"))),
        }
    }
}

fn engine_options(
    settings: &Settings,
    create: &Create,
    layout: Layout,
    candidates: &[Candidate],
) -> Result<ashlar_engine::Create, Failure> {
    let strip_bytes = match create.strip_bytes {
        None => None,
        Some(bytes) if bytes.is_power_of_two() && (4096..=1 << 20).contains(&bytes) => {
            u32::try_from(bytes).ok()
        }
        Some(bytes) => {
            return Err(Failure::invalid(format!(
                "--strip {}: give a power of two from 4K to 1M",
                size(bytes)
            )));
        }
    };
    if let Some(bytes) = create.slot_bytes
        && !(bytes.is_power_of_two() && (64 << 10..=1 << 30).contains(&bytes))
    {
        return Err(Failure::invalid(format!(
            "--slot {}: give a power of two from 64K to 1G",
            size(bytes)
        )));
    }
    Ok(ashlar_engine::Create {
        name: create.array.clone(),
        layout,
        strip_bytes,
        slot_bytes: create.slot_bytes,
        spare: create.spare,
        domains: domains(&create.domains, candidates)?,
        settings: settings.clone(),
    })
}

/// One label per device, in the order of the devices, of what was `given` for each; none if nothing was.
///
/// # Errors
/// If one is of no device, or a device has none.
pub(super) fn domains(
    given: &[(String, String)],
    candidates: &[Candidate],
) -> Result<Vec<String>, Failure> {
    if given.is_empty() {
        return Ok(Vec::new());
    }
    let mut labels: BTreeMap<String, String> = BTreeMap::new();
    for (device, label) in given {
        let known = candidates.iter().any(|c| c.given == *device);
        if !known {
            return Err(Failure::invalid(format!(
                "--domain {device}={label}: {device} is not one of the devices given"
            )));
        }
        labels.insert(device.clone(), label.clone());
    }
    let label = |c: &Candidate| {
        labels.get(&c.given).cloned().ok_or_else(|| {
            Failure::invalid(format!(
                "{} has no --domain; give one for every device",
                c.given
            ))
        })
    };
    candidates.iter().map(label).collect()
}

fn plain_volume(create: &Create, name: &str, size_bytes: Option<u64>) -> VolumeCreate {
    VolumeCreate {
        array: create.array.clone(),
        volume: name.to_string(),
        size_bytes,
        thin: false,
        block_bytes: None,
        digest: None,
        write_cache: None,
    }
}
