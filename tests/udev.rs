//! The udev rule of the packages, by udev itself (`udevadm test`), on a real kernel device of a volume: systemd hears of its
//! name, so that mounts in `/etc/fstab` wait for it. Nothing is changed outside a mount namespace.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Daemon, have, have_kernel_devices, tool, try_tool};

/// Runs the rules on a device of sysfs, with `/run` and `/dev` of their own; what udev knows of it then.
const TEST: &str = r#"set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/udev/rules.d /run/udev/data /run/dev
cp "$1" /run/udev/rules.d/
cp -a "/dev/$2" /dev/null /run/dev/
mount --bind /run/dev /dev
udevadm test --action="$3" "/sys/block/$2" 2>&1"#;

fn properties(device: &str, action: &str) -> String {
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/60-ashlar.rules");
    let name = device.trim_start_matches("/dev/");
    tool(
        "unshare",
        &["-m", "sh", "-c", TEST, "sh", rules, name, action],
    )
}

fn alias(text: &str) -> Option<&str> {
    text.lines().find_map(|l| l.strip_prefix("SYSTEMD_ALIAS="))
}

#[test]
fn systemd_hears_of_the_names_of_kernel_devices() {
    if !have_kernel_devices() || !have(&["udevadm", "unshare"]) {
        return;
    }
    let daemon = Daemon::start("udev");
    daemon.create("tank.1", "ec2+1", 3, "64M", &[]);
    daemon.ok(&["volume", "detach", "tank.1/v"]);
    daemon.ok(&["volume", "destroy", "tank.1/v", "--yes"]);
    for volume in ["tank.1/home", "tank.1/a.b-c_D9"] {
        daemon.ok(&["volume", "create", volume, "--size", "4M"]);
        let attached = daemon.json(&["volume", "attach", volume, "--loop", "-j"]);
        let device = attached["attached"]["device"].as_str().unwrap().to_string();
        for action in ["add", "change"] {
            let text = properties(&device, action);
            let expected = format!("/dev/ashlar/{volume}");
            assert_eq!(alias(&text), Some(expected.as_str()), "{text}");
            assert!(text.contains("TAGS=:systemd:"), "{text}");
        }
        assert_eq!(alias(&properties(&device, "remove")), None);
        daemon.ok(&["volume", "detach", volume]);
        // A loop device that is nobody's, or another's, has no such name.
        assert_eq!(alias(&properties(&device, "change")), None);
    }
}

#[test]
fn udev_finds_nothing_wrong_with_the_rules() {
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/60-ashlar.rules");
    // Debian 12 has a udev without this verb.
    let knows = have(&["udevadm"]) && try_tool("udevadm", &["verify", "--help"]).status.success();
    if knows {
        tool("udevadm", &["verify", "--no-style", rules]);
    } else {
        eprintln!("!!! NOT RUN: udevadm verify (systemd 254)");
    }
}
