//! Whether the file or block device under each device in use is still there, and as large as the array needs.
//!
//! **Invariants**: looking waits for file systems, so each folder is looked at on a thread of its own, and a file system
//! that hangs delays only its own folders; the file that was opened is compared with the one at its path now, so a file
//! that was deleted or replaced is told however that was done; what is seen twice in a row is one event, for a device
//! may be closing while it is looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use ashlar_engine::status::DevicePlace;
use ashlar_rt::{Nanos, SECOND};

use crate::daemon::drives::Stored;
use crate::daemon::host::Host;
use crate::daemon::open::on_thread;
use crate::daemon::users;
use crate::units::size;

/// How often it is looked.
const LOOK_EVERY: Nanos = 2 * SECOND;

/// A device in use of the array with this name.
type Place = (String, DevicePlace);

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
                host.look_at_storage();
            }
        });
    }

    /// Begins to look at each folder that has devices in use, except those at which the last look has not ended.
    fn look_at_storage(self: &Rc<Self>) {
        let mut folders: BTreeMap<PathBuf, Vec<Place>> = BTreeMap::new();
        for place in self.places() {
            let folder = Path::new(&place.1.path).parent().unwrap_or(Path::new("/"));
            folders.entry(folder.into()).or_default().push(place);
        }
        for (folder, places) in folders {
            let new = self
                .state
                .drives
                .looking
                .borrow_mut()
                .insert(folder.clone());
            if new {
                let host = Rc::downgrade(self);
                self.rt.spawn(look_at(host, folder, places));
            }
        }
    }

    /// Notes what a look has found at these places, and tells what it has found for the second time.
    fn note_storage(&self, looked: Vec<(Place, Option<String>)>) {
        let here: BTreeSet<String> = self.places().into_iter().map(|(_, p)| p.uuid).collect();
        let mut stored = self.state.drives.stored.take();
        stored.retain(|uuid, _| here.contains(uuid));
        for ((array, place), wrong) in looked {
            let before = stored.remove(&place.uuid);
            let Some(wrong) = wrong.filter(|_| here.contains(&place.uuid)) else {
                continue;
            };
            let known = before.filter(|before| before.wrong == wrong);
            if known.as_ref().is_some_and(|known| !known.sure) {
                let text = format!("device {} ({}): {wrong}", place.index, place.path);
                self.tell(&array, "storage-lost", Some(place.index), text);
            }
            let sure = known.is_some();
            stored.insert(place.uuid, Stored { wrong, sure });
        }
        self.state.drives.stored.replace(stored);
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
            held.map(|place| (name.clone(), place))
        });
        places.collect()
    }
}

/// Looks at the devices in a folder.
async fn look_at(host: Weak<Host>, folder: PathBuf, places: Vec<Place>) {
    let look = on_thread(move || {
        let looked = places.into_iter().map(|place| {
            let wrong = wrong_with(&place.1);
            (place, wrong)
        });
        looked.collect()
    });
    let looked = look.await.unwrap_or_default();
    if let Some(host) = Weak::upgrade(&host) {
        host.state.drives.looking.borrow_mut().remove(&folder);
        host.note_storage(looked);
    }
}

/// What is wrong with what lies at the place, for people; that a block device is gone is found by its errors.
fn wrong_with(place: &DevicePlace) -> Option<String> {
    const OWN: &str = "its data is there only while the array is imported";
    let path = Path::new(&place.path);
    let (what, bytes) = match (std::fs::metadata(path), place.file) {
        (Ok(metadata), Some(file)) => {
            if (metadata.dev(), metadata.ino()) != file {
                return Some(format!("another file is at this path now; {OWN}"));
            }
            ("file", metadata.len())
        }
        (Ok(metadata), None) if metadata.file_type().is_block_device() => {
            let blocks = users::entry_of(Path::new("/sys"), &metadata).join("size");
            let blocks = std::fs::read_to_string(blocks).ok()?;
            ("device", blocks.trim().parse::<u64>().ok()? * 512)
        }
        (Err(error), Some(_)) if error.kind() == ErrorKind::NotFound => {
            return Some(format!("the file was deleted or moved; {OWN}"));
        }
        _ => return None,
    };
    // Writes make a file longer again: how long it is now is not said, so that this stays one event.
    (bytes < place.size_bytes).then(|| {
        format!(
            "the {what} has become smaller than the {} that the array uses of it, and what lay beyond is lost",
            size(place.size_bytes)
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
        let opened = file.metadata().unwrap();
        let place = DevicePlace {
            index: 2,
            uuid: String::new(),
            path: path.display().to_string(),
            file: Some((opened.dev(), opened.ino())),
            size_bytes: 8192,
        };
        let said = || wrong_with(&place).unwrap_or_default();
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
        let gone = DevicePlace {
            path: "/dev/no-such-device".into(),
            file: None,
            ..place
        };
        assert_eq!(wrong_with(&gone), None);
    }
}
