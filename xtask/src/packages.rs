//! The programs that the tests with real clients need: installed where that is possible (root on a
//! Debian), else said loudly.
//!
//! **Invariants**: nothing is installed that is there already; in CI a missing program is a failure,
//! elsewhere the tests that need it say that they did not run.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::place::is_ci;

/// Program, and the Debian package that has it.
const PROGRAMS: &[(&str, &str)] = &[
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("fio", "fio"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdcopy", "libnbd-bin"),
    ("qemu-img", "qemu-utils"),
    ("nbdkit", "nbdkit"),
    ("fusermount3", "fuse3"),
    ("losetup", "mount"),
    ("sgdisk", "gdisk"),
    ("fsck.ext4", "e2fsprogs"),
    ("xfs_repair", "xfsprogs"),
    ("g++", "g++"),
    ("nbdfuse", "libnbd-bin"),
    ("jq", "jq"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("python3", "python3"),
    ("systemd-analyze", "systemd"),
    ("udevadm", "udev"),
    ("zsh", "zsh"),
    ("fish", "fish"),
    (PROMTOOL, PROMETHEUS),
];

/// Of its package only the program is taken: a server would come with it, and start.
const PROMTOOL: &str = "promtool";
const PROMETHEUS: &str = "prometheus";

/// Where programs lie; `sbin` is not always in a user's path.
pub(crate) fn find(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let dirs = path
        .split(':')
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"]);
    dirs.into_iter()
        .any(|dir| Path::new(dir).join(program).exists())
}

fn missing() -> Vec<(&'static str, &'static str)> {
    PROGRAMS
        .iter()
        .filter(|(program, _)| !find(program))
        .copied()
        .collect()
}

/// Installs what is missing; returns what is wrong.
pub(crate) fn install() -> Vec<String> {
    let before = missing();
    if before.is_empty() {
        println!("every program that the tests need is here");
        return Vec::new();
    }
    let mut packages: Vec<&str> = before.iter().map(|(_, package)| *package).collect();
    packages.retain(|package| *package != PROMETHEUS);
    packages.sort_unstable();
    packages.dedup();
    if is_root() && find("apt-get") {
        apt(
            &packages,
            before.iter().any(|(program, _)| *program == PROMTOOL),
        );
    }
    let mut lines = Vec::new();
    for (program, package) in missing() {
        let line =
            format!("{program} (package {package}) is missing: tests that need it cannot run");
        if is_ci() {
            lines.push(line);
        } else {
            println!("!!! {line}");
        }
    }
    lines
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).trim() == "0")
}

fn apt(packages: &[&str], promtool: bool) {
    // An archive directory of our own: images for containers empty the usual one behind dpkg's back.
    let archives = std::env::temp_dir().join(format!("ashlar-apt-{}", std::process::id()));
    let partial = archives.join("partial");
    let options = [
        "-y".to_string(),
        "-o".to_string(),
        format!("Dir::Cache::archives={}", archives.display()),
        "-o".to_string(),
        "DPkg::Lock::Timeout=120".to_string(),
    ];
    let run = |arguments: &[&str]| {
        println!("$ apt-get {}", arguments.join(" "));
        let status = Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(&options)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status();
        if !status.is_ok_and(|s| s.success()) {
            println!("!!! apt-get {} failed", arguments.join(" "));
        }
    };
    if let Err(error) = std::fs::create_dir_all(&partial) {
        println!("!!! {}: {error}", partial.display());
        return;
    }
    run(&["update", "-q"]);
    let mut line = vec!["install", "-q", "--no-install-recommends"];
    line.extend(packages);
    if !packages.is_empty() {
        run(&line);
    }
    if promtool {
        run(&[
            "install",
            "-q",
            "--download-only",
            "--no-install-recommends",
            PROMETHEUS,
        ]);
        let take = "dpkg --fsys-tarfile \"$0\"/prometheus_*.deb | tar -x -O ./usr/bin/promtool > /usr/local/bin/promtool && chmod 755 /usr/local/bin/promtool";
        println!("$ {take}");
        let status = Command::new("sh")
            .args(["-c", take])
            .arg(&archives)
            .status();
        if !status.is_ok_and(|s| s.success()) {
            println!("!!! promtool cannot be taken out of its package");
            let _ = std::fs::remove_file("/usr/local/bin/promtool");
        }
    }
    let _ = std::fs::remove_dir_all(&archives);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found() {
        assert!(find("sh"));
        assert!(!find("no-such-program-for-ashlar"));
    }
}
