//! `device locate`: the light at the slot of a drive, by which people find it.
//!
//! **Invariants**: only files called `locate` of slots that hold the device are written, below the root of a sysfs that
//! is given; what was written is read back.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::api::LocateReply;
use crate::daemon::hardware::{block_name, whole_block};
use crate::daemon::host::Host;
use crate::daemon::open::on_thread;
use crate::failure::Failure;
use crate::seat::sysfs;

/// How many devices may lie on each other.
const DEEPEST: usize = 8;

/// Lights, each with the name of its slot.
type Lights = BTreeMap<PathBuf, String>;

impl Host {
    /// `device locate`.
    ///
    /// # Errors
    /// If there is no light, or it cannot be set.
    pub(super) async fn locate(&self, device: &str, on: bool) -> Result<LocateReply, Failure> {
        let given = device.to_string();
        on_thread(move || locate(&sysfs(), &given, on)).await?
    }
}

fn locate(sys: &Path, given: &str, on: bool) -> Result<LocateReply, Failure> {
    let metadata = std::fs::metadata(given).map_err(|error| {
        let why = match error.kind() {
            ErrorKind::NotFound => "there is no such device".to_string(),
            _ => error.to_string(),
        };
        Failure::not_found(format!(
            "{given}: {why}; a drive that is gone has no light: 'ashlar device list' has its serial number and slot"
        ))
    })?;
    let name = block_name(Path::new(given)).filter(|_| metadata.file_type().is_block_device());
    let Some(name) = name else {
        return Err(Failure::invalid(format!(
            "{given} is no block device, so it has no light; give a drive, such as /dev/sdf"
        )));
    };
    light(sys, &name, given, on)
}

/// Sets the lights of the block device that the kernel calls `name`.
fn light(sys: &Path, name: &str, given: &str, on: bool) -> Result<LocateReply, Failure> {
    let lights = lights(sys, name);
    let ledctl = format!(
        "'ledctl {}={given}' (package ledmon)",
        if on { "locate" } else { "locate_off" }
    );
    if lights.is_empty() {
        return Err(Failure::not_found(format!(
            "{given} is in no slot with a light that the kernel knows: there is neither \
             {0}/class/block/{name}/device/enclosure_device:*/locate nor a {0}/class/enclosure/*/*/locate of this \
             device; try {ledctl}, or 'modprobe ses' if the enclosure speaks SES",
            sys.display()
        )));
    }
    for light in lights.keys() {
        set(light, on).map_err(|error| {
            Failure::broken(format!(
                "{given}: its light cannot be set: {}: {error}; try {ledctl}",
                light.display()
            ))
        })?;
    }
    Ok(LocateReply {
        device: given.to_string(),
        on,
        slots: lights.into_values().collect(),
    })
}

fn set(light: &Path, on: bool) -> std::io::Result<()> {
    let wanted = if on { "1" } else { "0" };
    let mut file = std::fs::File::options().write(true).open(light)?;
    file.write_all(wanted.as_bytes())?;
    drop(file);
    let now = std::fs::read_to_string(light)?;
    match now.trim() == wanted {
        true => Ok(()),
        false => Err(std::io::Error::other(format!(
            "it was set to {wanted} and is {}",
            now.trim()
        ))),
    }
}

/// The lights of a block device, and of those that it is made of.
fn lights(sys: &Path, name: &str) -> Lights {
    let mut found = Lights::new();
    add_lights(sys, name, DEEPEST, &mut found);
    found
}

fn add_lights(sys: &Path, name: &str, deep: usize, found: &mut Lights) {
    let Some(block) = whole_block(sys, name) else {
        return;
    };
    let Ok(device) = std::fs::canonicalize(block.join("device")) else {
        // Device mapper and md: the drives below.
        if deep > 0 {
            for below in names_in(&block.join("slaves")) {
                add_lights(sys, &below, deep - 1, found);
            }
        }
        return;
    };
    for name in names_in(&device) {
        if name.starts_with("enclosure_device:") {
            add_light(&device.join(&name), found);
        }
    }
    let enclosures = sys.join("class/enclosure");
    for enclosure in names_in(&enclosures) {
        for slot in names_in(&enclosures.join(&enclosure)) {
            let slot = enclosures.join(&enclosure).join(slot);
            let holds = std::fs::canonicalize(slot.join("device"));
            if holds.is_ok_and(|held| held == device) {
                add_light(&slot, found);
            }
        }
    }
}

/// The light of a slot, by its real path: two ways lead to it.
fn add_light(slot: &Path, found: &mut Lights) {
    if let Ok(light) = std::fs::canonicalize(slot.join("locate")) {
        let slot = light.parent().and_then(Path::file_name);
        let slot = slot.unwrap_or_default().to_string_lossy();
        let slot = slot.trim_start_matches("enclosure_device:").trim();
        found.insert(light.clone(), slot.to_string());
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::failure::Kind;

    /// A sysfs that is gone at the end.
    struct Sysfs(PathBuf);

    impl Sysfs {
        fn new(name: &str) -> Sysfs {
            let root =
                std::env::temp_dir().join(format!("ashlar-light-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&root).unwrap();
            Sysfs(std::fs::canonicalize(root).unwrap())
        }
        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        fn link(&self, to: &str, at: &str) {
            let at = self.0.join(at);
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(self.0.join(to), at).unwrap();
        }
        fn read(&self, path: &str) -> String {
            std::fs::read_to_string(self.0.join(path)).unwrap()
        }
        /// A SCSI disk with a partition.
        fn disk(&self, name: &str, target: &str) {
            let device = format!("devices/host0/{target}");
            self.write(&format!("{device}/block/{name}/{name}1/partition"), "1\n");
            self.link(&device, &format!("{device}/block/{name}/device"));
            self.link(
                &format!("{device}/block/{name}"),
                &format!("class/block/{name}"),
            );
            self.link(
                &format!("{device}/block/{name}/{name}1"),
                &format!("class/block/{name}1"),
            );
        }
        /// Two slots of an enclosure, of which the second holds a disk.
        fn enclosure(&self, target: &str) {
            for slot in ["Slot 01", "Slot 02"] {
                let slot = format!("devices/enclosure0/{slot}");
                self.write(&format!("{slot}/locate"), "0\n");
            }
            self.link("devices/enclosure0", "class/enclosure/0:0:24:0");
            self.link(
                &format!("devices/host0/{target}"),
                "devices/enclosure0/Slot 02/device",
            );
        }
    }

    impl Drop for Sysfs {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_light_of_the_slot_that_holds_the_disk_goes_on_and_off() {
        let sys = Sysfs::new("slot");
        sys.disk("sdb", "0:0:4:0");
        sys.disk("sdc", "0:0:5:0");
        sys.enclosure("0:0:4:0");
        // The way from the disk to its slot, as kernels make it too: one light, not two.
        sys.link(
            "devices/enclosure0/Slot 02",
            "devices/host0/0:0:4:0/enclosure_device:Slot 02",
        );
        for name in ["sdb", "sdb1"] {
            let set = light(&sys.0, name, "/dev/x", true).unwrap();
            assert!(set.on && set.slots == ["Slot 02"], "{set:?}");
            assert_eq!(sys.read("devices/enclosure0/Slot 02/locate").trim(), "1");
            assert_eq!(sys.read("devices/enclosure0/Slot 01/locate").trim(), "0");
            light(&sys.0, name, "/dev/x", false).unwrap();
            assert_eq!(sys.read("devices/enclosure0/Slot 02/locate").trim(), "0");
        }
        let none = light(&sys.0, "sdc", "/dev/sdc", true).unwrap_err();
        assert_eq!(none.kind, Kind::NotFound);
        for words in [
            "class/block/sdc/device/enclosure_device:*/locate",
            "class/enclosure/*/*/locate",
            "'ledctl locate=/dev/sdc'",
        ] {
            assert!(none.text.contains(words), "{none}");
        }
        let off = light(&sys.0, "sdc", "/dev/sdc", false).unwrap_err();
        assert!(off.text.contains("'ledctl locate_off=/dev/sdc'"), "{off}");
    }

    #[test]
    fn each_way_to_a_light_is_enough_and_drives_under_a_device_are_found() {
        let sys = Sysfs::new("ways");
        sys.disk("sdb", "0:0:4:0");
        sys.disk("sdc", "0:0:5:0");
        sys.enclosure("0:0:4:0"); // from the slot alone
        sys.write(
            "devices/host0/0:0:5:0/enclosure_device:Bay 9/locate", // from the disk alone
            "0\n",
        );
        assert_eq!(
            lights(&sys.0, "sdb").into_values().collect::<Vec<_>>(),
            ["Slot 02"]
        );
        assert_eq!(
            lights(&sys.0, "sdc").into_values().collect::<Vec<_>>(),
            ["Bay 9"]
        );
        sys.write("devices/virtual/dm-0/slaves/sdb", "");
        sys.write("devices/virtual/dm-0/slaves/sdc", "");
        sys.link("devices/virtual/dm-0", "class/block/dm-0");
        let both = light(&sys.0, "dm-0", "/dev/dm-0", true).unwrap();
        assert_eq!(both.slots.len(), 2, "{both:?}");
        assert!(lights(&sys.0, "none").is_empty());
    }

    #[test]
    fn a_light_that_is_not_set_is_said_and_so_is_what_has_none() {
        let sys = Sysfs::new("refuses");
        sys.disk("sdb", "0:0:4:0");
        std::fs::create_dir_all(
            sys.0
                .join("devices/host0/0:0:4:0/enclosure_device:Slot 1/locate"),
        )
        .unwrap();
        let refused = light(&sys.0, "sdb", "/dev/sdb", true).unwrap_err();
        assert_eq!(refused.kind, Kind::Broken);
        assert!(refused.text.contains("cannot be set"), "{refused}");
        sys.write("image", "x");
        let file = sys.0.join("image").display().to_string();
        let failure = locate(&sys.0, &file, true).unwrap_err();
        assert!(failure.text.contains("no block device"), "{failure}");
        let failure = locate(&sys.0, "/dev/no-such-disk", true).unwrap_err();
        assert!(failure.text.contains("a drive that is gone"), "{failure}");
    }
}
