//! The names of kernel devices: links `/dev/ashlar/ARRAY/VOL`.
//!
//! **Invariants**: a name is there or not, never half made; after [`clear_dead`] every name leads to a device
//! that a daemon serves; a name that leads to a device of another daemon is never taken from it, and none is
//! removed that leads elsewhere than expected.

use std::path::{Path, PathBuf};

use crate::daemon::users::hold_on;
use crate::failure::Failure;

const DEVICE_DIR: &str = "/dev/ashlar";

/// The name of a volume's kernel device.
pub(crate) fn name_of(array: &str, volume: &str) -> String {
    format!("{DEVICE_DIR}/{array}/{volume}")
}

/// Makes `name` a link to `device`, also if an older link is there.
///
/// # Errors
/// If another daemon serves a device of this name, or something that is no link is there.
pub(crate) fn link(name: &str, device: &Path) -> Result<(), Failure> {
    let name = Path::new(name);
    let at = name.display();
    let failed = |e: std::io::Error| {
        Failure::broken(format!(
            "the link {at} cannot be made: {e}; check that nothing else has that name, then attach again"
        ))
    };
    match leads_to(name) {
        Some(other) if other == device => return Ok(()),
        Some(other) if ashlar_serve::loopdev::is_anothers(&other) => {
            return Err(Failure::refused(format!(
                "the link {at} belongs to {} of another Ashlar daemon on this machine, with an array of the same \
                 name; detach it there first",
                other.display()
            )));
        }
        Some(_) => {}
        None if std::fs::symlink_metadata(name).is_ok() => {
            return Err(Failure::refused(format!(
                "{at} exists and is not a link; move it away, then attach again"
            )));
        }
        None => {}
    }
    if let Some(dir) = name.parent() {
        std::fs::create_dir_all(dir).map_err(failed)?;
    }
    // No volume's name begins with a dot.
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name.file_name().unwrap_or_default());
    let beside = name.with_file_name(beside);
    let _ = std::fs::remove_file(&beside); // left by a daemon that died here
    std::os::unix::fs::symlink(device, &beside).map_err(failed)?;
    std::fs::rename(&beside, name).map_err(failed)
}

/// Where a name leads, if it is a link.
pub(crate) fn leads_to(name: &Path) -> Option<PathBuf> {
    let to = std::fs::read_link(name).ok()?;
    // udev's links are relative.
    Some(match name.parent() {
        Some(dir) if to.is_relative() => std::fs::canonicalize(dir.join(&to)).unwrap_or(to),
        _ => to,
    })
}

/// Removes a link if it leads to `device`, and the directories that are empty then.
pub(crate) fn unlink(name: &Path, device: &Path) {
    if leads_to(name).is_none_or(|to| to != device) {
        return; // gone already, or another's
    }
    let _ = std::fs::remove_file(name);
    for dir in name.ancestors().skip(1).take(2) {
        let _ = std::fs::remove_dir(dir); // fails if another volume's link is there
    }
}

/// Takes away what daemons that are gone have left: their loop devices, and names of devices that no daemon
/// serves, since the kernel may give these to anybody.
pub(crate) async fn clear_dead() {
    for (device, gone) in ashlar_serve::loopdev::clear_stale().await {
        let at = device.display();
        if gone {
            tracing::info!(device = %at, "the loop device of a daemon that was killed was removed");
            continue;
        }
        let hold = hold_on(Path::new("/sys"), Path::new("/proc"), &device);
        let (what, next) = hold.map_or_else(
            || ("open in a program".to_string(), "end that".to_string()),
            |hold| (hold.what, hold.next),
        );
        tracing::warn!(
            device = %at,
            "the loop device of a daemon that was killed is still {what}, and gives errors: {next}, and it disappears"
        );
    }
    let inside = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
    for array in inside(Path::new(DEVICE_DIR)) {
        for volume in inside(&array.path()) {
            let name = volume.path();
            let Some(device) = leads_to(&name) else {
                continue;
            };
            // Asking may take long, and its daemon may have made the name again meanwhile.
            let served = ashlar_serve::loopdev::is_served(&device);
            if !served {
                unlink(&name, &device);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_link_leaves_those_of_other_volumes_alone() {
        let dir = std::env::temp_dir().join(format!("ashlar-links-{}", std::process::id()));
        let name = |volume: &str| dir.join("t").join(volume).display().to_string();
        let all = ["db.new", "vm.new", "db", "vm.1", "vm.2"];
        for round in ["/dev/one", "/dev/two"] {
            for volume in all {
                link(&name(volume), Path::new(&format!("{round}-{volume}"))).unwrap();
            }
            for volume in all {
                let to = std::fs::read_link(name(volume)).unwrap();
                assert_eq!(to, PathBuf::from(format!("{round}-{volume}")));
            }
        }
        assert_eq!(std::fs::read_dir(dir.join("t")).unwrap().count(), all.len());
        // Only what leads where it is expected to is removed.
        let db = PathBuf::from(name("db"));
        unlink(&db, Path::new("/dev/one-db"));
        assert!(leads_to(&db).is_some());
        unlink(&db, Path::new("/dev/two-db"));
        assert!(leads_to(&db).is_none());
        // Something else of that name stays, and is said.
        std::fs::create_dir(&db).unwrap();
        let refused = link(&name("db"), Path::new("/dev/two-db")).unwrap_err();
        assert!(refused.text.contains("not a link"), "{refused}");
        assert!(db.is_dir());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
