//! What the kernel and the drives under an array say of themselves: model, serial number, slot, temperature from sysfs,
//! wear and warnings from the drives.
//!
//! **Invariants**: who waits for a drive is a thread of its own; what a device was is remembered by its UUID, so that
//! one that is gone can still be named, and a warning is told once; a value nobody gives is absent.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use ashlar_engine::status::{ArrayStatus, DeviceState};
use ashlar_rt::{Nanos, SECOND};

use crate::api::{DeviceHardware, Hardware, Warning};
use crate::daemon::health;
use crate::daemon::host::Host;
use crate::daemon::open::on_thread;
use crate::daemon::smartctl::Asker;

/// How often temperatures are read.
const LOOK_EVERY: Nanos = 60 * SECOND;
/// How often drives are asked for their health.
const ASK_EVERY: Nanos = 600 * SECOND;
/// Longest value that is taken, in bytes.
const LONGEST: usize = 80;

impl Host {
    /// Looks at drives for as long as the daemon runs.
    pub(crate) fn watch_hardware(self: &Rc<Host>) {
        let (host, rt) = (Rc::downgrade(self), self.rt.clone());
        let drives = self.state.drives.clone();
        self.rt.spawn(async move {
            let (mut asker, mut next) = (Asker::default(), 0);
            loop {
                let Some(host) = Weak::upgrade(&host) else {
                    return;
                };
                host.look_at_hardware().await;
                if drives.take_new() || rt.now() >= next {
                    asker = host.ask_drives(asker).await;
                    next = rt.now() + ASK_EVERY;
                }
                drop(host);
                rt.timeout(LOOK_EVERY, drives.until_new()).await;
            }
        });
    }

    /// Asks every drive for its health, and tells what it warns of that it did not before.
    async fn ask_drives(&self, mut asker: Asker) -> Asker {
        let paths = self.device_paths();
        let asked = on_thread(move || {
            let mut found = Vec::new();
            for (drive, uuids) in drives_of(paths) {
                match asker.ask(&drive) {
                    Ok(answer) => {
                        let told = answer.as_deref().and_then(health::parse);
                        found.extend(told.map(|hardware| (uuids, hardware)));
                    }
                    Err(error) => return (asker, Err(error)),
                }
            }
            (asker, Ok(found))
        });
        let Ok((mut asker, found)) = asked.await else {
            return Asker::default(); // no thread: next time
        };
        match found {
            Ok(found) => self.note_health(found),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if !std::mem::replace(&mut asker.missing_told, true) {
                    tracing::info!(
                        "smartctl is not installed, so drive wear and warnings are unknown; install the package \
                         smartmontools"
                    );
                }
            }
            Err(error) => {
                tracing::warn!(%error, "smartctl cannot be run, so drive wear and warnings are unknown")
            }
        }
        asker
    }

    fn note_health(&self, found: Vec<(Vec<String>, Hardware)>) {
        let (mut news, mut changed) = (Vec::new(), false);
        for (uuids, told) in found {
            for uuid in uuids {
                let mut known = self.state.drives.known.borrow_mut();
                let drive = known.entry(uuid.clone()).or_default();
                let before = drive.clone();
                drive.model = drive.model.take().or_else(|| told.model.clone());
                drive.serial = drive.serial.take().or_else(|| told.serial.clone());
                drive.celsius = told.celsius.or(drive.celsius);
                drive.health.clone_from(&told.health);
                let new = new_warnings(&before, drive);
                changed |= before.identity() != drive.identity() || before.health != drive.health;
                news.extend((!new.is_empty()).then_some((uuid, new)));
            }
        }
        if changed && let Err(failure) = self.save() {
            tracing::warn!("{failure}");
        }
        for (uuid, warnings) in news {
            self.tell_warnings(&uuid, &warnings);
        }
    }

    fn tell_warnings(&self, uuid: &str, warnings: &[Warning]) {
        let members: Vec<_> = self.arrays.borrow().values().cloned().collect();
        for member in members {
            let uuids = member.array.device_uuids();
            let Some(index) = uuids.iter().position(|u| u == uuid) else {
                continue;
            };
            let failing = warnings.iter().any(|w| w.kind == "failing");
            let kind = if failing {
                "drive-failing"
            } else {
                "drive-warning"
            };
            let texts: Vec<&str> = warnings.iter().map(|w| w.text.as_str()).collect();
            let text = format!("the drive of device {index} reports: {}", texts.join("; "));
            let index = u16::try_from(index).ok();
            self.tell(&member.array.name(), kind, index, text);
        }
    }

    /// UUID and path of every device of every array.
    fn device_paths(&self) -> Vec<(String, String)> {
        let arrays = self.arrays.borrow();
        let paths = arrays.values().flat_map(|m| m.array.device_paths());
        paths.collect()
    }

    /// Notes what the drives of all arrays are.
    pub(crate) async fn look_at_hardware(&self) {
        let asked = self.device_paths();
        let found = on_thread(move || {
            let look = |(uuid, path): (String, String)| {
                Some((uuid, of_path(Path::new("/sys"), Path::new(&path))?))
            };
            asked.into_iter().filter_map(look).collect::<Vec<_>>()
        });
        let Ok(found) = found.await else { return };
        let mut changed = false;
        for (uuid, hardware) in found {
            let mut all = self.state.drives.known.borrow_mut();
            let drive = all.entry(uuid).or_default();
            let before = drive.clone();
            // What only the drive itself tells stays until it is asked again.
            *drive = Hardware {
                model: hardware.model.or(before.model.clone()),
                serial: hardware.serial.or(before.serial.clone()),
                slot: hardware.slot,
                celsius: hardware.celsius.or(before.celsius),
                health: before.health.clone(),
            };
            changed |= before.identity() != drive.identity();
        }
        if changed && let Err(failure) = self.save() {
            tracing::warn!("{failure}");
        }
    }

    /// What is known of the drives of an array.
    pub(crate) fn hardware_of(&self, status: &ArrayStatus) -> Vec<DeviceHardware> {
        let all = self.state.drives.known.borrow();
        let devices = status.devices.iter();
        let known = devices.filter_map(|d| {
            let mut hardware = all.get(&d.uuid)?.clone();
            if matches!(d.state, DeviceState::Missing | DeviceState::Failed) {
                hardware.celsius = None; // nobody looks any more
            }
            Some(DeviceHardware {
                array: status.name.clone(),
                index: d.index,
                hardware,
            })
        });
        known.collect()
    }

    /// The drive at a place of an array, for whoever goes to pull it.
    pub(crate) fn drive_at(&self, array: &str, index: u16) -> Option<Hardware> {
        let member = self.arrays.borrow().get(array)?.clone();
        let uuid = member.array.device_uuids().get(usize::from(index))?.clone();
        self.state.drives.known.borrow().get(&uuid).cloned()
    }
}

/// What a drive warns of that it did not before.
fn new_warnings(before: &Hardware, now: &Hardware) -> Vec<Warning> {
    let warnings = |drive: &Hardware| drive.health.clone().unwrap_or_default().warnings;
    let known = warnings(before);
    let is_new = |w: &Warning| !known.iter().any(|k| k.kind == w.kind);
    warnings(now).into_iter().filter(is_new).collect()
}

/// Drives as the kernel names them, each with the devices on it: several may be partitions of one. Files are on none.
fn drives_of(devices: Vec<(String, String)>) -> BTreeMap<PathBuf, Vec<String>> {
    let mut drives: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    for (uuid, path) in devices {
        if let Some(name) = block_name(Path::new(&path)) {
            let whole = whole_block(Path::new("/sys"), &name).unwrap_or_default();
            let whole = whole.file_name().and_then(|n| n.to_str()).unwrap_or(&name);
            let drive = Path::new("/dev").join(whole.replace('!', "/"));
            drives.entry(drive).or_default().push(uuid);
        }
    }
    drives
}

/// The kernel's name of the block device at `path`; `None` for what is not below `/dev`.
pub(super) fn block_name(path: &Path) -> Option<String> {
    let path = std::fs::canonicalize(path).ok()?;
    let name = path.strip_prefix("/dev").ok()?.to_string_lossy();
    Some(name.replace('/', "!"))
}

/// Where sysfs has a block device; that which a partition is on.
pub(super) fn whole_block(sys: &Path, name: &str) -> Option<PathBuf> {
    let mut block = std::fs::canonicalize(sys.join("class/block").join(name)).ok()?;
    if block.join("partition").exists() {
        block.pop();
    }
    Some(block)
}

/// What sysfs under `sys` says of the drive that holds `path`; `None` for what is no drive.
pub(super) fn of_path(sys: &Path, path: &Path) -> Option<Hardware> {
    let found = of_block(sys, &block_name(path)?);
    (found != Hardware::default()).then_some(found)
}

fn of_block(sys: &Path, name: &str) -> Hardware {
    let Some(block) = whole_block(sys, name) else {
        return Hardware::default();
    };
    let device = block.join("device");
    let read = |path: PathBuf| {
        let text = std::fs::read(path).ok()?;
        let text = String::from_utf8_lossy(&text[..text.len().min(LONGEST)]).into_owned();
        let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        (!text.is_empty()).then(|| text.to_string())
    };
    let vendor = read(device.join("vendor")).filter(|v| v != "ATA" && !v.starts_with("0x"));
    let model = read(device.join("model"));
    let model = match (vendor, model) {
        (Some(vendor), Some(model)) => Some(format!("{vendor} {model}")),
        (None, model) => model,
        (vendor, None) => vendor,
    };
    Hardware {
        model,
        serial: read(device.join("serial"))
            .or_else(|| read(block.join("serial")))
            .or_else(|| vital_serial(&device)),
        slot: slot(&device).or_else(|| pci_slot(sys, &block)),
        celsius: celsius(&device),
        health: None,
    }
}

/// The unit's serial number of a SCSI or SATA device: page 0x80 of its vital product data.
fn vital_serial(device: &Path) -> Option<String> {
    let page = std::fs::read(device.join("vpd_pg80")).ok()?;
    let length = usize::from(u16::from_be_bytes([*page.get(2)?, *page.get(3)?]));
    let text = page.get(4..4 + length.min(LONGEST).min(page.len() - 4))?;
    let text = String::from_utf8_lossy(text);
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!text.is_empty()).then(|| text.to_string())
}

/// The slot of an enclosure that speaks SES.
fn slot(device: &Path) -> Option<String> {
    let entries = std::fs::read_dir(device).ok()?;
    let mut names = entries.flatten().map(|e| e.file_name());
    names.find_map(|name| {
        let name = name.to_string_lossy().into_owned();
        let slot = name.strip_prefix("enclosure_device:")?.trim();
        (!slot.is_empty()).then(|| slot.to_string())
    })
}

/// The slot of a PCI device, as NVMe drives have: that whose address is in the drive's path.
fn pci_slot(sys: &Path, block: &Path) -> Option<String> {
    let slots = std::fs::read_dir(sys.join("bus/pci/slots")).ok()?;
    let mut found: Vec<String> = slots
        .flatten()
        .filter(|slot| {
            let address = std::fs::read_to_string(slot.path().join("address"));
            let address = address.unwrap_or_default();
            let address = address.trim();
            let mut parts = block.components();
            !address.is_empty()
                && parts.any(|p| {
                    let part = p.as_os_str().to_string_lossy();
                    part.split_once('.').is_some_and(|(a, _)| a == address)
                })
        })
        .map(|slot| slot.file_name().to_string_lossy().into_owned())
        .collect();
    found.sort();
    found.pop()
}

/// What the drive's own sensor says (NVMe; SATA and SAS with the kernel's `drivetemp`).
fn celsius(device: &Path) -> Option<i32> {
    let monitors = ["hwmon", ""].map(|folder| device.join(folder));
    let entries = monitors
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flat_map(Iterator::flatten);
    let mut sensors = entries
        .filter(|e| e.file_name().to_string_lossy().starts_with("hwmon"))
        .filter_map(|e| std::fs::read_to_string(e.path().join("temp1_input")).ok());
    let millis: i32 = sensors.next()?.trim().parse().ok()?;
    Some(millis.div_euclid(1000))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn write(path: &Path, bytes: &[u8]) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn drives_are_named_as_sysfs_has_them() {
        let sys = std::env::temp_dir().join(format!("ashlar-sys-{}", std::process::id()));
        let link = |to: &Path, at: &str| {
            let at = sys.join(at);
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(to, at).unwrap();
        };
        // An NVMe drive in a slot of PCI, and a partition of it.
        let nvme = sys.join("devices/pci0000:5d/0000:5e:00.0/nvme/nvme0");
        write(&nvme.join("model"), b"SAMSUNG MZWLR7T6HALA   \n");
        write(&nvme.join("serial"), b"S64HNE0T500123      \n");
        write(&nvme.join("hwmon3/temp1_input"), b"41850\n");
        write(&nvme.join("nvme0n1/nvme0n1p1/partition"), b"1\n");
        link(
            &nvme,
            "devices/pci0000:5d/0000:5e:00.0/nvme/nvme0/nvme0n1/device",
        );
        link(&nvme.join("nvme0n1"), "class/block/nvme0n1");
        link(&nvme.join("nvme0n1/nvme0n1p1"), "class/block/nvme0n1p1");
        write(&sys.join("bus/pci/slots/17/address"), b"0000:5e:00\n");
        write(&sys.join("bus/pci/slots/18/address"), b"0000:5f:00\n");
        let drive = of_block(&sys, "nvme0n1");
        assert_eq!(
            drive.words(),
            "SAMSUNG MZWLR7T6HALA, serial S64HNE0T500123, slot 17"
        );
        assert_eq!(drive.celsius, Some(41));
        assert_eq!(of_block(&sys, "nvme0n1p1"), drive);
        assert!(whole_block(&sys, "nvme0n1p1").unwrap().ends_with("nvme0n1"));
        // A SAS drive in an enclosure.
        let sas = sys.join("devices/host0/target0:0:4/0:0:4:0");
        write(&sas.join("vendor"), b"SEAGATE \n");
        write(&sas.join("model"), b"ST16000NM002G\n");
        write(&sas.join("vpd_pg80"), b"\0\x80\0\x0aZL2ABCDE  ");
        write(&sas.join("enclosure_device:Slot 07/slot"), b"7\n");
        write(&sas.join("hwmon/hwmon5/temp1_input"), b"33000\n");
        std::fs::create_dir_all(sas.join("block/sdk")).unwrap();
        link(&sas, "devices/host0/target0:0:4/0:0:4:0/block/sdk/device");
        link(&sas.join("block/sdk"), "class/block/sdk");
        let drive = of_block(&sys, "sdk");
        assert_eq!(
            drive.words(),
            "SEAGATE ST16000NM002G, serial ZL2ABCDE, slot Slot 07"
        );
        assert_eq!(drive.celsius, Some(33));
        assert_eq!(of_block(&sys, "none"), Hardware::default());
        assert!(of_path(&sys, &sys.join("bus/pci/slots/17/address")).is_none());
        std::fs::remove_dir_all(&sys).unwrap();
    }
}
