//! Which device of an array is meant by what an operator gives.
//!
//! Invariant: names like `/dev/sdc` pass from one device to another. The one that has a name now is meant by it, before
//! one that had it last; of several that had it last none is.

use std::path::PathBuf;

use ashlar_engine::status::{DeviceState, DeviceStatus};

use crate::daemon::host::{Host, Member};
use crate::daemon::open::on_thread;
use crate::failure::Failure;

/// Which of these is meant by an index, a UUID or a path, as given or `resolved`; more than one where nobody can tell.
fn meant<'a>(
    devices: &'a [DeviceStatus],
    given: &str,
    resolved: Option<&str>,
) -> Vec<&'a DeviceStatus> {
    let named = |d: &&DeviceStatus| d.uuid == given || d.index.to_string() == given;
    if let Some(device) = devices.iter().find(named) {
        return vec![device];
    }
    let is = |path: &str| !path.is_empty() && (path == given || Some(path) == resolved);
    let here = |d: &&DeviceStatus| d.is_held() || d.state == DeviceState::Slow;
    let now = devices.iter().find(|d| here(d) && is(&d.path));
    match now {
        Some(device) => vec![device],
        None => devices.iter().filter(|d| is(&d.last_path)).collect(),
    }
}

impl Host {
    /// The device of an array that a path, UUID or index names.
    ///
    /// # Errors
    /// If none is meant, or nobody can tell which.
    pub(super) async fn device_named(
        &self,
        member: &Member,
        given: &str,
    ) -> Result<DeviceStatus, Failure> {
        let path = PathBuf::from(given);
        let resolved = on_thread(move || std::fs::canonicalize(path).ok()).await?;
        let resolved = resolved.as_deref().and_then(std::path::Path::to_str);
        let devices = self.status_of(member).await.devices;
        let name = member.array.name();
        match meant(&devices, given, resolved).as_slice() {
            [device] => Ok((*device).clone()),
            [] => Err(Failure::not_found(format!(
                "{given} is not a device of {name}; 'ashlar status {name} -v' lists them"
            ))),
            some => {
                let indexes: Vec<String> = some.iter().map(|d| d.index.to_string()).collect();
                Err(Failure::refused(format!(
                    "devices {} of {name} were last at {given}: give the index of the one that you mean",
                    indexes.join(" and ")
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests;

    fn device(index: u16, state: DeviceState, path: &str, last_path: &str) -> DeviceStatus {
        DeviceStatus {
            path: path.into(),
            last_path: last_path.into(),
            ..tests::device(index, state)
        }
    }

    #[test]
    fn the_device_that_has_a_name_now_is_meant_by_it() {
        use DeviceState::{Failed, Missing, Online, Slow};
        let all = [
            device(0, Online, "/dev/sdb", "/dev/sdb"),
            device(1, Missing, "", "/dev/sdc"), // it died, and names moved down
            device(2, Online, "/dev/sdc", "/dev/sdc"),
            device(3, Failed, "", "/dev/sde"),
            device(4, Missing, "", "/dev/sdf"),
            device(5, Failed, "", "/dev/sdf"),
            device(6, Failed, "/dev/sdg", "/dev/sdg"), // where it was
            device(7, Slow, "/dev/sdg", "/dev/sdg"),
        ];
        let found = |given: &str, resolved: Option<&str>| -> Vec<u16> {
            let found = meant(&all, given, resolved);
            found.into_iter().map(|d| d.index).collect()
        };
        assert_eq!(found("/dev/sdc", None), [2]);
        assert_eq!(found("/dev/disk/by-id/x", Some("/dev/sdc")), [2]);
        assert_eq!(found("1", None), [1]);
        assert_eq!(found("uuid-1", None), [1]);
        assert_eq!(found("/dev/sde", None), [3], "nobody has its name now");
        assert_eq!(found("/dev/sdf", None), [4, 5]);
        assert_eq!(found("/dev/sdg", None), [7]);
        assert!(found("/dev/sdz", None).is_empty() && found("", None).is_empty());
    }
}
