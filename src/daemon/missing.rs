//! Devices of an array that are not here: their names, from what those that are here say.
//!
//! **Invariants**: devices are only read; one that nothing is known of is named by its UUID.

use std::path::Path;
use std::rc::Rc;

use ashlar_device::DeviceRef;
use ashlar_engine::uuid_text;
use ashlar_format::geometry::super_bytes;
use ashlar_format::superblock::{MemberEntry, Superblock};
use ashlar_rt::{BLOCK, Buf};

use crate::daemon::find::{Devices, identities, newest};
use crate::daemon::host::Host;
use crate::daemon::open::Access;

/// How many are named.
const NAMED: usize = 8;

impl Host {
    /// A name for each device that the newest of these counts and that is not among them: its number, its failure
    /// domain, where it was last and what drive that was, as far as that is known here.
    pub(crate) async fn missing(self: &Rc<Host>, devices: &Devices) -> Vec<String> {
        let Some(newest) = newest(devices) else {
            return Vec::new();
        };
        let here = identities(devices);
        let away: Vec<[u8; 16]> = newest.counted.clone();
        let away: Vec<[u8; 16]> = away.into_iter().filter(|u| !here.contains(u)).collect();
        if away.is_empty() {
            return Vec::new();
        }
        let mut of_newest = devices
            .iter()
            .filter(|(_, label)| label.generation == newest.generation);
        let table = match of_newest.next() {
            Some((path, _)) => self.table_at(path).await,
            None => Vec::new(),
        };
        let paths = self.state.paths.borrow();
        let drives = self.state.drives.known.borrow();
        let named = away.iter().take(NAMED).map(|identity| {
            let uuid = uuid_text(identity);
            let place = table.iter().position(|member| member.uuid == *identity);
            let domain = place.map_or("", |at| &table[at].domain);
            let drive = drives.get(&uuid).map_or_else(String::new, |d| d.words());
            let last = paths.get(&uuid).map(|path| {
                let other = devices.iter().any(|(here, _)| here == Path::new(path));
                match other {
                    true => format!("UUID {uuid}; was {path}, which is another device now"),
                    false => format!("last at {path}"),
                }
            });
            name(place, last, &uuid, domain, &drive)
        });
        let mut named: Vec<String> = named.collect();
        if away.len() > NAMED {
            named.push(format!("{} more", away.len() - NAMED));
        }
        named
    }

    /// The members of the array that the device at `path` is one of; none if that cannot be read.
    async fn table_at(&self, path: &Path) -> Vec<MemberEntry> {
        let Ok(device) = self.opener.open(path, Access::Look).await else {
            return Vec::new();
        };
        let size = device.info().size_bytes;
        for offset in [0, size.saturating_sub(super_bytes(size))] {
            if let Some(superblock) = superblock_at(&device, offset).await {
                return superblock.members;
            }
        }
        Vec::new()
    }
}

async fn superblock_at(device: &DeviceRef, offset: u64) -> Option<Superblock> {
    let (first, read) = device.read(offset, Buf::zeroed(BLOCK)).await;
    read.ok()?;
    let length = Superblock::encoded_bytes(&first).ok()?;
    let all = Buf::zeroed(length.next_multiple_of(BLOCK));
    let (all, read) = device.read(offset, all).await;
    read.ok()?;
    Superblock::decode(all.get(..length)?).ok()
}

/// The words for those that are missing, behind what is said of an array.
pub(crate) fn not_here(missing: &[String]) -> String {
    match missing {
        [] => String::new(),
        some => format!("; not here: {}", some.join(", ")),
    }
}

/// `device 4 (last at /dev/sdf; MODEL, serial SERIAL; domain rack2)`.
fn name(
    place: Option<usize>,
    last: Option<String>,
    uuid: &str,
    domain: &str,
    drive: &str,
) -> String {
    let known = last.unwrap_or_else(|| format!("UUID {uuid}"));
    let mut parts = vec![known];
    parts.extend((!drive.is_empty()).then(|| drive.to_string()));
    parts.extend((!domain.is_empty()).then(|| format!("domain {domain}")));
    let which = place.map_or_else(|| "a device".to_string(), |at| format!("device {at}"));
    format!("{which} ({})", parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_by_all_that_is_known_of_it() {
        let last = "last at /dev/sdf".to_string();
        let drive = "ACME 8T, serial X1";
        let named = name(Some(4), Some(last), "u", "rack2", drive);
        let all = "device 4 (last at /dev/sdf; ACME 8T, serial X1; domain rack2)";
        assert_eq!(named, all);
        assert_eq!(name(Some(0), None, "u", "", ""), "device 0 (UUID u)");
        assert_eq!(
            not_here(&[named.clone(), "x".into()]),
            format!("; not here: {named}, x")
        );
        assert_eq!(not_here(&[]), "");
        assert_eq!(name(None, None, "u", "", ""), "a device (UUID u)");
    }
}
