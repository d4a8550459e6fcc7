//! `cargo xtask package`: a `.deb` and a tarball of the release build, in `target/package`.
//!
//! **Invariants**: what is packed is made from the tree and nothing else; the unit in `docs/operating.md` is the one
//! that is packed; the scripts of the package stop the daemon only where it is removed, never for an upgrade.

use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::place::root;

/// What goes where: a file of the tree, its place, its mode.
const FILES: &[(&str, &str, u32)] = &[
    (
        "packaging/ashlar.service",
        "usr/lib/systemd/system/ashlar.service",
        0o644,
    ),
    (
        "packaging/60-ashlar.rules",
        "usr/lib/udev/rules.d/60-ashlar.rules",
        0o644,
    ),
    (
        "packaging/sysusers.conf",
        "usr/lib/sysusers.d/ashlar.conf",
        0o644,
    ),
    (
        "packaging/tmpfiles.conf",
        "usr/lib/tmpfiles.d/ashlar.conf",
        0o644,
    ),
    (
        "packaging/alerts.yml",
        "usr/share/doc/ashlar/alerts.yml",
        0o644,
    ),
    (
        "packaging/grafana.json",
        "usr/share/doc/ashlar/grafana.json",
        0o644,
    ),
    (
        "packaging/notify-mail",
        "usr/share/ashlar/notify-mail",
        0o755,
    ),
    (
        "packaging/deb/copyright",
        "usr/share/doc/ashlar/copyright",
        0o644,
    ),
    (
        "docs/operating.md",
        "usr/share/doc/ashlar/operating.md",
        0o644,
    ),
    (
        "docs/releases.md",
        "usr/share/doc/ashlar/releases.md",
        0o644,
    ),
    (
        "packaging/deb/changelog",
        "usr/share/doc/ashlar/changelog",
        0o644,
    ),
    ("CHANGELOG.md", "usr/share/doc/ashlar/CHANGELOG.md", 0o644),
];
/// Shells, and where each looks for completions.
const SHELLS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/ashlar"),
    ("zsh", "usr/share/zsh/vendor-completions/_ashlar"),
    ("fish", "usr/share/fish/vendor_completions.d/ashlar.fish"),
];
const SCRIPTS: &[&str] = &["postinst", "prerm", "postrm"];

/// Makes both.
pub(crate) fn run() -> ExitCode {
    match make() {
        Ok(made) => {
            for path in made {
                println!("{}", path.display());
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("package: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The `.deb`, and the tarball.
///
/// # Errors
/// The command that failed.
pub(crate) fn make() -> Result<Vec<PathBuf>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(root()).args([
        "build",
        "--release",
        "--locked",
        "-p",
        "ashlar",
        "--bin",
        "ashlar",
    ]);
    done(&mut build)?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let out = target.join("package");
    let stage = out.join("stage");
    let _ = std::fs::remove_dir_all(&out); // of the last time
    let program = stage.join("usr/bin/ashlar");
    place(&target.join("release/ashlar"), &program, 0o755)?;
    done(
        Command::new("strip")
            .args([
                "--strip-unneeded",
                "--remove-section=.comment",
                "--remove-section=.note",
            ])
            .arg(&program),
    )?;
    for (from, to, mode) in FILES {
        place(&root().join(from), &stage.join(to), *mode)?;
    }
    for (shell, to) in SHELLS {
        let text = output(Command::new(&program).args(["completions", shell]))?;
        write(&stage.join(to), text.as_bytes(), 0o644)?;
    }
    let pages = stage.join("usr/share/man/man1");
    done(Command::new(&program).arg("man-pages").arg(&pages))?;
    done(
        Command::new("sh")
            .args([
                "-c",
                "gzip -9n \"$0\"/*.1 \"$1\"/changelog \"$1\"/CHANGELOG.md && chmod 644 \"$0\"/*",
            ])
            .arg(&pages)
            .arg(stage.join("usr/share/doc/ashlar")),
    )?;
    let (version, arch) = (
        env!("CARGO_PKG_VERSION"),
        output(Command::new("dpkg").arg("--print-architecture"))?,
    );
    let arch = arch.trim();
    let tarball = out.join(format!("ashlar-{version}-{arch}.tar.gz"));
    let same = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner"];
    done(
        Command::new("tar")
            .args(same)
            .arg("-czf")
            .arg(&tarball)
            .arg("-C")
            .arg(&stage)
            .arg("usr"),
    )?;
    let control = control(&stage, &program, version, arch)?;
    write(&stage.join("DEBIAN/control"), control.as_bytes(), 0o644)?;
    for script in SCRIPTS {
        place(
            &root().join("packaging/deb").join(script),
            &stage.join("DEBIAN").join(script),
            0o755,
        )?;
    }
    let sums = "cd \"$0\" && find usr -type f -print0 | sort -z | xargs -0 md5sum > DEBIAN/md5sums && find . -type d -exec chmod 755 {} +";
    done(Command::new("sh").args(["-c", sums]).arg(&stage))?;
    let deb = out.join(format!("ashlar_{version}_{arch}.deb"));
    done(
        Command::new("dpkg-deb")
            .args(["--build", "--root-owner-group"])
            .arg(&stage)
            .arg(&deb),
    )?;
    Ok(vec![deb, tarball])
}

/// What the package says of itself.
fn control(stage: &Path, program: &Path, version: &str, arch: &str) -> Result<String, String> {
    let symbols = output(Command::new("objdump").arg("-T").arg(program))?;
    let libc = newest_glibc(&symbols).ok_or("the program needs no glibc, which it should")?;
    let size = output(Command::new("du").args(["-sk"]).arg(stage.join("usr")))?;
    let size = size.split_whitespace().next().unwrap_or("0");
    let mut text = String::new();
    let _ = writeln!(
        text,
        "Package: ashlar\nVersion: {version}\nArchitecture: {arch}\nInstalled-Size: {size}"
    );
    let _ = writeln!(
        text,
        "Depends: libc6 (>= {libc}), libgcc-s1, passwd\nRecommends: fuse3, smartmontools"
    );
    text += "Section: admin\nPriority: optional\nMaintainer: The Ashlar authors <ashlar@invalid.invalid>\n";
    text += "Description: software-defined, erasure-coded storage instead of RAID\n";
    text += " Ashlar makes one array of many drives that survives the loss of as many as its\n";
    text += " layout says, verifies every block it reads, and serves volumes as kernel block\n";
    text += " devices, over NBD and as files.\n";
    Ok(text)
}

/// The newest version of glibc that these symbols name.
fn newest_glibc(symbols: &str) -> Option<String> {
    let named = symbols.split("GLIBC_").skip(1);
    let version = |text: &str| -> Option<(u32, u32)> {
        let end = text
            .find(|c: char| c != '.' && !c.is_ascii_digit())
            .unwrap_or(text.len());
        let mut parts = text[..end].split('.').map_while(|p| p.parse().ok());
        Some((parts.next()?, parts.next().unwrap_or(0)))
    };
    let (major, minor) = named.filter_map(version).max()?;
    Some(format!("{major}.{minor}"))
}

fn place(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    let bytes = std::fs::read(from).map_err(|e| format!("{}: {e}", from.display()))?;
    write(to, &bytes, mode)
}

fn write(to: &Path, bytes: &[u8], mode: u32) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", to.display());
    if let Some(dir) = to.parent() {
        std::fs::create_dir_all(dir).map_err(failed)?;
    }
    std::fs::write(to, bytes).map_err(failed)?;
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(mode)).map_err(failed)
}

/// Runs a command to its end.
///
/// # Errors
/// How it ended, if not with success.
pub(crate) fn done(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// Runs a command to its end, and gives what it says.
///
/// # Errors
/// How it ended, if not with success.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    match command.output() {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => Err(format!("{command:?} ended with {}", output.status)),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn the_newest_of_several_versions_counts() {
        let symbols =
            "0 DF *UND* (GLIBC_2.2.5) close\n0 DF *UND* (GLIBC_2.34) stat\n0 (GLIBC_2.9)\n";
        assert_eq!(newest_glibc(symbols).unwrap(), "2.34");
        assert!(newest_glibc("nothing").is_none());
    }

    /// A root with nothing but the Rust toolchain has no linker, and no C compiler for mimalloc and blake3.
    #[test]
    fn a_bare_debian_is_told_what_it_needs_before_the_first_command() {
        let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
        let at = |text: &str| readme.find(text).unwrap_or(usize::MAX);
        assert!(at("apt install gcc libc6-dev`") < at("```\ncargo run"));
        // Whatever else a build script would want stands in that line too.
        let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
        for other in [
            "cmake",
            "pkg-config",
            "bindgen",
            "openssl-sys",
            "nasm-rs",
            "autotools",
        ] {
            assert!(!lock.contains(&format!("name = \"{other}\"")), "{other}");
        }
    }

    #[test]
    fn the_unit_in_the_handbook_is_the_one_that_is_packed() {
        let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
        let unit = read("packaging/ashlar.service");
        assert!(read("docs/operating.md").contains(&format!("```\n{unit}```\n")));
    }

    /// Runs a program of systemd on a folder that stands for the root; without it nothing is tried, loudly.
    fn systemd(program: &str, arguments: &[&str], dir: &Path) -> Option<String> {
        if !crate::packages::find(program) {
            assert!(!crate::place::is_ci(), "{program} is not installed");
            eprintln!("NOT TRIED: {program} is not installed");
            return None;
        }
        let output = Command::new(program).args(arguments).arg(dir).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // There is no manual page in a folder.
        let lines: Vec<&str> = said.lines().filter(|l| !l.contains("'man ")).collect();
        Some(lines.join("\n"))
    }

    #[test]
    fn systemd_takes_the_unit_the_group_and_the_directories() {
        let dir = std::env::temp_dir().join(format!("ashlar-systemd-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("etc")).unwrap();
        let unit = std::fs::read_to_string(root().join("packaging/ashlar.service")).unwrap();
        let unit = unit.replace("/usr/bin/ashlar", "/bin/true");
        std::fs::write(dir.join("ashlar.service"), unit).unwrap();
        let said = systemd("systemd-analyze", &["verify"], &dir.join("ashlar.service"));
        let (group, folders) = (
            root().join("packaging/sysusers.conf"),
            root().join("packaging/tmpfiles.conf"),
        );
        let at = format!("--root={}", dir.display());
        let made = systemd("systemd-sysusers", &[&at], &group);
        let groups = std::fs::read_to_string(dir.join("etc/group"));
        let laid = systemd("systemd-tmpfiles", &[&at, "--create"], &folders);
        let state = std::fs::metadata(dir.join("var/lib/ashlar"));
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(said.unwrap_or_default(), "");
        if made.is_some() {
            assert!(groups.unwrap().contains("ashlar:x:"));
        }
        if laid.is_some() {
            assert_eq!(state.unwrap().permissions().mode() & 0o777, 0o700);
        }
    }

    /// The mail that is sent has its headers and the text, whatever the text is.
    #[test]
    fn the_packed_script_sends_a_mail() {
        let dir = std::env::temp_dir().join(format!("ashlar-mail-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        write(&dir.join("sendmail"), b"#!/bin/sh\ncat > \"$OUT\"\n", 0o755).unwrap();
        std::fs::write(dir.join("defaults"), "MAILTO=storage@example.org\n").unwrap();
        let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
        let sent = Command::new(root().join("packaging/notify-mail"))
            .env("PATH", path)
            .env("OUT", dir.join("mail"))
            .env("ASHLAR_DEFAULTS", dir.join("defaults"))
            .env("ASHLAR_HOST", "shelf1")
            .env("ASHLAR_ARRAY", "tank")
            .env("ASHLAR_SEVERITY", "error")
            .env("ASHLAR_KIND", "device-failed\nBcc: all")
            .env("ASHLAR_ID", "7")
            .env("ASHLAR_TIME", "1700000000")
            .env("ASHLAR_TEXT", "device 3 ($(reboot)) failed")
            .status();
        assert!(sent.unwrap().success());
        let mail = std::fs::read_to_string(dir.join("mail")).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        let (head, body) = mail.split_once("\n\n").unwrap();
        assert!(head.contains("To: storage@example.org\n"), "{mail}");
        assert!(
            head.contains("Subject: shelf1: array tank: error: device-failed Bcc: all\n"),
            "{mail}"
        );
        assert!(body.starts_with("device 3 ($(reboot)) failed\n"), "{mail}");
        assert!(body.contains("event 7, 2023-11-14"), "{mail}");
    }

    #[test]
    fn what_is_packed_is_there() {
        let changes = std::fs::read_to_string(root().join("packaging/deb/changelog")).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        assert!(changes.starts_with(&format!("ashlar ({version}) ")));
        for (from, _, _) in FILES {
            assert!(root().join(from).exists(), "{from}");
        }
        for script in SCRIPTS {
            let text = std::fs::read_to_string(root().join("packaging/deb").join(script)).unwrap();
            assert!(text.starts_with("#!/bin/sh\nset -e\n"), "{script}");
        }
    }
}
