//! Which host this is, as the beat of its arrays says.
//!
//! **Invariants**: a boot has one identity; no two boots have the same; a machine keeps its own.

use std::path::Path;

use ashlar_engine::Identity;

use crate::failure::Failure;

const BOOT: &str = "/proc/sys/kernel/random/boot_id";
const MACHINE: &str = "/etc/machine-id";
/// Another random UUID at each read.
const RANDOM: &str = "/proc/sys/kernel/random/uuid";

/// This host. A machine without an identity gets one in the daemon's state directory.
///
/// # Errors
/// If its boot has no identity, or it cannot be given one.
pub(crate) fn identity(state: &Path) -> Result<Identity, Failure> {
    let boot = read(Path::new(BOOT)).ok_or_else(|| {
        Failure::broken(format!(
            "{BOOT} cannot be read, by which other hosts know this one; mount /proc"
        ))
    })?;
    let machine = match read(Path::new(MACHINE)) {
        Some(machine) => machine,
        None => of_state(&state.join("machine-id"))?,
    };
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    Ok(Identity {
        boot,
        machine,
        host,
    })
}

/// The identity in a file of the daemon's own, which is made if there is none.
fn of_state(path: &Path) -> Result<[u8; 16], Failure> {
    if let Some(machine) = read(path) {
        return Ok(machine);
    }
    let made = std::fs::read_to_string(RANDOM).and_then(|uuid| std::fs::write(path, uuid));
    made.map_err(|e| {
        let path = path.display();
        Failure::broken(format!(
            "{MACHINE} has no identity of this machine, and {path} cannot be written: {e}; 'systemd-machine-id-setup' \
             makes one"
        ))
    })?;
    Ok(read(path).unwrap_or_default())
}

/// The identity in a file: 32 hexadecimal digits, with or without hyphens.
fn read(path: &Path) -> Option<[u8; 16]> {
    parse(&std::fs::read_to_string(path).ok()?)
}

fn parse(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    let is_hex = digits.len() == 32 && digits.chars().all(|c| c.is_ascii_hexdigit());
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| is_hex)?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn an_identity_is_read_with_and_without_hyphens() {
        let mut bytes = [0; 16];
        (bytes[0], bytes[15]) = (0x5f, 0x11);
        let plain = "5f000000000000000000000000000011\n";
        let hyphens = "5f000000-0000-0000-0000-000000000011";
        assert_eq!((parse(plain), parse(hyphens)), (Some(bytes), Some(bytes)));
        for text in [
            "",
            "uninitialized",
            "5f",
            "+f000000000000000000000000000011",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn this_host_has_one() {
        let folder = std::env::temp_dir();
        let this = || identity(&folder).unwrap();
        assert!(this().boot != [0; 16] && this() == this());
    }

    #[test]
    fn a_machine_without_an_identity_gets_one() {
        let path = std::env::temp_dir().join(format!("ashlar-machine-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let made = of_state(&path).unwrap();
        assert!(made != [0; 16] && of_state(&path).unwrap() == made);
        std::fs::remove_file(&path).unwrap();
    }
}
