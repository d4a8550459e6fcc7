//! Whether the file or block device under each device in use is still there, and as large as the array needs.
//!
//! **Invariants**: looking waits for file systems, so it has a thread of its own; what is open is compared with what
//! lies at the path now, so a file that was deleted or replaced is told however that was done; what is seen twice in a
//! row is one event, for a device may be closing while it is looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::rc::{Rc, Weak};

use ashlar_rt::{Nanos, SECOND};

use crate::daemon::drives::Stored;
use crate::daemon::host::Host;
use crate::daemon::open::on_thread;
use crate::daemon::users;
use crate::units::size;

/// How often it is looked.
const LOOK_EVERY: Nanos = 2 * SECOND;

/// A device in use, as the array has it.
#[derive(Clone, Debug)]
struct Place {
    array: String,
    index: u16,
    uuid: String,
    path: String,
    bytes: u64,
}

impl Host {
    /// Looks for as long as the daemon runs.
    pub(crate) fn watch_storage(self: &Rc<Host>) {
        let (host, rt) = (Rc::downgrade(self), self.rt.clone());
        self.rt.spawn(async move {
            loop {
                rt.sleep(LOOK_EVERY).await;
                let Some(host) = Weak::upgrade(&host) else {
                    return;
                };
                host.look_at_storage().await;
            }
        });
    }

    async fn look_at_storage(&self) {
        let places = self.places();
        let look = on_thread(move || {
            let open = open_here();
            let wrong = |place: Place| Some((wrong_with(&place, &open)?, place));
            places.into_iter().filter_map(wrong).collect::<Vec<_>>()
        });
        let Ok(found) = look.await else { return };
        let here: BTreeSet<String> = self.places().into_iter().map(|p| p.uuid).collect();
        let mut before = self.state.drives.stored.take();
        let mut now = BTreeMap::new();
        for (wrong, place) in found.into_iter().filter(|(_, p)| here.contains(&p.uuid)) {
            let known = before.remove(&place.uuid).filter(|k| k.wrong == wrong);
            if known.as_ref().is_some_and(|known| !known.sure) {
                let text = format!("device {} ({}): {wrong}", place.index, place.path);
                self.tell(&place.array, "storage-lost", Some(place.index), text);
            }
            let sure = known.is_some();
            now.insert(place.uuid, Stored { wrong, sure });
        }
        self.state.drives.stored.replace(now);
    }

    /// What is wrong with what lies under a device; empty if nothing is known.
    pub(crate) fn wrong_storage(&self, uuid: &str) -> String {
        let stored = self.state.drives.stored.borrow();
        let known = stored.get(uuid).filter(|stored| stored.sure);
        known.map_or_else(String::new, |stored| stored.wrong.clone())
    }

    fn places(&self) -> Vec<Place> {
        let arrays = self.arrays.borrow();
        let places = arrays.iter().flat_map(|(name, member)| {
            let held = member.array.device_places().into_iter();
            held.map(|(index, uuid, path, bytes)| Place {
                array: name.clone(),
                index,
                uuid,
                path,
                bytes,
            })
        });
        places.collect()
    }
}

/// The files that this process has open, by file system and inode.
fn open_here() -> BTreeSet<(u64, u64)> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let files = entries.flatten().filter_map(|entry| {
        let metadata = std::fs::metadata(entry.path()).ok()?;
        metadata.is_file().then(|| identity(&metadata))
    });
    files.collect()
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// What is wrong with what lies at the place, for people; that a block device is gone is found by its errors.
fn wrong_with(place: &Place, open: &BTreeSet<(u64, u64)>) -> Option<String> {
    const OWN: &str = "its data is there only while the array is imported";
    let path = Path::new(&place.path);
    let node = path.starts_with("/dev") && !path.starts_with("/dev/shm");
    let (what, bytes) = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => {
            if !open.contains(&identity(&metadata)) {
                return Some(format!("another file is at this path now; {OWN}"));
            }
            ("file", metadata.len())
        }
        Ok(metadata) if metadata.file_type().is_block_device() => {
            let blocks = users::entry_of(Path::new("/sys"), &metadata).join("size");
            let blocks = std::fs::read_to_string(blocks).ok()?;
            ("device", blocks.trim().parse::<u64>().ok()? * 512)
        }
        Err(error) if error.kind() == ErrorKind::NotFound && !node => {
            return Some(format!("the file was deleted or moved; {OWN}"));
        }
        _ => return None,
    };
    // Writes make a file longer again: how long it is now is not said, so that this stays one event.
    (bytes < place.bytes).then(|| {
        format!(
            "the {what} has become smaller than the {} that the array uses of it, and what lay beyond is lost",
            size(place.bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_file_that_is_open_whole_and_in_its_place_is_right() {
        let dir = std::env::temp_dir().join(format!("ashlar-storage-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("image");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(8192).unwrap();
        let place = Place {
            array: "tank".into(),
            index: 2,
            uuid: String::new(),
            path: path.display().to_string(),
            bytes: 8192,
        };
        let said = || wrong_with(&place, &open_here()).unwrap_or_default();
        assert_eq!(said(), "");
        file.set_len(4096).unwrap();
        assert!(said().contains("smaller than the 8K"), "{}", said());
        std::fs::remove_file(&path).unwrap();
        assert!(said().contains("deleted or moved"), "{}", said());
        std::fs::write(&path, [0; 8192]).unwrap();
        assert!(
            said().contains("another file is at this path"),
            "{}",
            said()
        );
        std::fs::remove_dir_all(&dir).unwrap();
        let gone = Place {
            path: "/dev/no-such-device".into(),
            ..place
        };
        assert_eq!(wrong_with(&gone, &open_here()), None);
    }
}
