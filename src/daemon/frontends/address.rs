//! Where and how a volume is served: what is asked, how that is kept in the array, what is shown.
//!
//! **Invariants**: what is kept reads back as it was asked; what is shown is what a client opens; an address that
//! no client can use is refused before anything is made for it.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ashlar_engine::WriteCache;
use ashlar_engine::status::Frontend;
use rustix::fs::{Gid, Uid};

use crate::api::FrontendSpec;
pub(crate) use crate::api::Rights;
use crate::daemon::names::name_of;
use crate::failure::Failure;

/// What a stored address ends with where a kernel device has sectors of 512 bytes.
const SMALL_SECTORS: &str = "?sector-size=512";
/// What stands before a socket's `USER:GROUP:MODE` at the end of its stored address.
const RIGHTS: &str = "?rights=";
/// A socket's path is no longer, with the zero at its end: `sun_path` of Linux.
const SOCKET_PATH: usize = 107;

impl Rights {
    /// Gives the socket at `path` to its users. It was for its maker alone.
    pub(super) fn give(&self, path: &Path) -> std::io::Result<()> {
        let (user, group) = (Uid::from_raw(self.user), Gid::from_raw(self.group));
        rustix::fs::chown(path, Some(user), Some(group))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(self.mode))
    }
}

/// Where NBD listens.
pub(super) enum NbdAt {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

pub(super) fn nbd_address(text: &str) -> Result<NbdAt, Failure> {
    if let Some(path) = text.strip_prefix("unix:") {
        if !path.starts_with('/') {
            return Err(Failure::invalid(format!(
                "--nbd {text}: give an absolute path"
            )));
        }
        if path.len() > SOCKET_PATH {
            return Err(Failure::invalid(format!(
                "--nbd {text}: the path of a socket has at most {SOCKET_PATH} bytes, this has {}; give a shorter one",
                path.len()
            )));
        }
        return Ok(NbdAt::Unix(path.into()));
    }
    let resolved = text.to_socket_addrs().ok().and_then(|mut all| all.next());
    if resolved.is_some_and(|address| address.port() == 0) {
        return Err(Failure::invalid(format!(
            "--nbd {text}: port 0 changes with each start; give a fixed port, such as 10809"
        )));
    }
    resolved.map(NbdAt::Tcp).ok_or_else(|| {
        Failure::invalid(format!(
            "--nbd {text}: neither unix:PATH nor HOST:PORT, for example unix:/run/v.sock or 127.0.0.1:10809"
        ))
    })
}

/// Checks an address before anything is made for it.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check_address(spec: &FrontendSpec) -> Result<(), Failure> {
    match spec {
        FrontendSpec::Nbd(text) => match nbd_address(text)? {
            NbdAt::Tcp(address) if !address.ip().is_loopback() => Err(Failure::refused(format!(
                "cannot serve NBD at {text}: {}",
                ashlar_serve::nbd::ListenError::NotLoopback
            ))),
            _ => Ok(()),
        },
        FrontendSpec::Fuse(_) | FrontendSpec::Loop => Ok(()),
    }
}

/// What is asked of a frontend beside its address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct How {
    /// A kernel device with sectors of 512 bytes.
    pub(crate) small: bool,
    /// Who may use a socket, beside root.
    pub(crate) rights: Option<Rights>,
}

/// How a frontend is kept in the array.
pub(crate) fn stored(array: &str, volume: &str, spec: &FrontendSpec, how: &How) -> Frontend {
    let (kind, address) = match (spec, &how.rights) {
        (FrontendSpec::Nbd(address), Some(r)) if address.starts_with("unix:") => (
            "nbd",
            format!("{address}{RIGHTS}{}:{}:{:o}", r.user, r.group, r.mode),
        ),
        (FrontendSpec::Nbd(address), _) => ("nbd", address.clone()),
        (FrontendSpec::Fuse(dir), _) => ("fuse", dir.clone()),
        (FrontendSpec::Loop, _) if how.small => ("loop", name_of(array, volume) + SMALL_SECTORS),
        (FrontendSpec::Loop, _) => ("loop", name_of(array, volume)),
    };
    Frontend {
        kind: kind.to_string(),
        address,
    }
}

/// A stored frontend as it is of this volume: the name of a kernel device has the array's in it, which may have got
/// another one since.
pub(crate) fn under_name(array: &str, volume: &str, stored: Frontend) -> Frontend {
    match spec(&stored) {
        Ok(spec @ FrontendSpec::Loop) => {
            let how = How {
                small: small_sectors(&stored),
                rights: None,
            };
            self::stored(array, volume, &spec, &how)
        }
        _ => stored,
    }
}

/// A stored NBD address without its rights, and these.
fn split_rights(address: &str) -> (&str, Option<Rights>) {
    let read = |text: &str| {
        let mut parts = text.split(':');
        let user = parts.next()?.parse().ok()?;
        let group = parts.next()?.parse().ok()?;
        let mode = u32::from_str_radix(parts.next()?, 8).ok()?;
        Some(Rights { user, group, mode })
    };
    match address.rsplit_once(RIGHTS) {
        Some((plain, rights)) => match read(rights) {
            Some(rights) => (plain, Some(rights)),
            None => (address, None),
        },
        None => (address, None),
    }
}

/// Who may use the socket of a stored frontend, beside root.
pub(super) fn rights(stored: &Frontend) -> Option<Rights> {
    match stored.kind.as_str() {
        "nbd" => split_rights(&stored.address).1,
        _ => None,
    }
}

/// Whether a stored frontend is a kernel device with sectors of 512 bytes.
pub(crate) fn small_sectors(stored: &Frontend) -> bool {
    stored.kind == "loop" && stored.address.ends_with(SMALL_SECTORS)
}

/// A frontend as people and scripts see it: its address is what a client opens.
pub(crate) fn shown(stored: &Frontend) -> Frontend {
    let address = match stored.kind.as_str() {
        "loop" => stored.address.trim_end_matches(SMALL_SECTORS),
        "nbd" => split_rights(&stored.address).0,
        _ => &stored.address,
    };
    Frontend {
        kind: stored.kind.clone(),
        address: address.to_string(),
    }
}

/// What `volume attach` is given for a stored frontend.
pub(crate) fn attach_flag(stored: &Frontend) -> String {
    let address = shown(stored).address;
    match (stored.kind.as_str(), rights(stored)) {
        ("loop", _) if small_sectors(stored) => "--loop --sector-size 512".to_string(),
        ("loop", _) => "--loop".to_string(),
        (kind, Some(r)) => format!(
            "--{kind} {address} --owner {}:{} --mode {:o}",
            r.user, r.group, r.mode
        ),
        (kind, None) => format!("--{kind} {address}"),
    }
}

/// Reads what [`stored`] wrote.
///
/// # Errors
/// For a kind that this version does not know.
pub(crate) fn spec(stored: &Frontend) -> Result<FrontendSpec, Failure> {
    match stored.kind.as_str() {
        "nbd" => Ok(FrontendSpec::Nbd(shown(stored).address)),
        "fuse" => Ok(FrontendSpec::Fuse(stored.address.clone())),
        "loop" => Ok(FrontendSpec::Loop),
        other => Err(Failure::broken(format!(
            "this version has no frontend '{other}'; detach it, or use a newer version"
        ))),
    }
}

/// Refuses a write cache where a client could outlive it (rule R17).
///
/// # Errors
/// What to set instead.
pub(crate) fn check_write_cache(cache: WriteCache, spec: &FrontendSpec) -> Result<(), Failure> {
    match (cache, spec) {
        (WriteCache::On, FrontendSpec::Nbd(_)) => Err(Failure::refused(
            "write-cache=on cannot be served over NBD: its clients outlive the daemon and would lose \
             acknowledged writes if it died; set write-cache=auto or off",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_frontend_is_stored_and_read_back() {
        for wanted in [
            FrontendSpec::Nbd("unix:/tmp/s".into()),
            FrontendSpec::Nbd("127.0.0.1:10809".into()),
            FrontendSpec::Fuse("/run/v".into()),
            FrontendSpec::Loop,
        ] {
            assert_eq!(
                spec(&stored("a", "v", &wanted, &How::default())).unwrap(),
                wanted
            );
        }
        let small = How {
            small: true,
            ..How::default()
        };
        let small = stored("a", "v", &FrontendSpec::Loop, &small);
        assert_eq!(spec(&small).unwrap(), FrontendSpec::Loop);
        assert_eq!(shown(&small).address, "/dev/ashlar/a/v");
        let given = How {
            rights: Some(Rights {
                user: 107,
                group: 64055,
                mode: 0o660,
            }),
            ..How::default()
        };
        let wanted = FrontendSpec::Nbd("unix:/run/a?rights=b".into());
        let kept = stored("a", "v", &wanted, &given);
        assert_eq!(rights(&kept), given.rights);
        assert_eq!(spec(&kept).unwrap(), wanted);
        assert_eq!(shown(&kept).address, "unix:/run/a?rights=b");
        assert_eq!(
            attach_flag(&kept),
            "--nbd unix:/run/a?rights=b --owner 107:64055 --mode 660"
        );
        let odd = Frontend {
            kind: "carrier-pigeon".into(),
            address: String::new(),
        };
        assert!(spec(&odd).unwrap_err().text.contains("carrier-pigeon"));
    }

    #[test]
    fn a_write_cache_is_refused_where_clients_outlive_the_daemon() {
        let nbd = FrontendSpec::Nbd("unix:/s".into());
        assert!(check_write_cache(WriteCache::On, &nbd).is_err());
        for (cache, spec) in [
            (WriteCache::Auto, &nbd),
            (WriteCache::Off, &nbd),
            (WriteCache::On, &FrontendSpec::Loop),
            (WriteCache::Auto, &FrontendSpec::Loop),
        ] {
            check_write_cache(cache, spec).unwrap();
        }
    }

    #[test]
    fn addresses_are_checked() {
        for good in ["unix:/tmp/s", "127.0.0.1:10809", "[::1]:1"] {
            assert!(nbd_address(good).is_ok(), "{good}");
        }
        for bad in [
            "unix:relative",
            "nonsense",
            "127.0.0.1",
            "127.0.0.1:99999",
            "127.0.0.1:0",
            &format!("unix:/{}", "x".repeat(SOCKET_PATH)),
            "",
        ] {
            assert!(nbd_address(bad).is_err(), "{bad}");
        }
    }
}
