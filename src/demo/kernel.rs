//! As root: an ext4 file system on a loop device of the demonstration's array.
//!
//! **Invariants**: skipped with the reason where the machine cannot do it; what was mounted is
//! unmounted before the step ends.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::api::{Call, FrontendSpec, VolumeCreate};
use crate::demo::show::Show;
use crate::demo::stage::{ARRAY, Stage};
use crate::failure::Failure;
use crate::units::size;

/// The volume made for it.
const KERNEL_VOLUME: &str = "ext4";
const VOLUME_BYTES: u64 = 64 << 20;

/// Why the machine cannot do it, if so.
fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root");
    }
    if !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
        return Some("no /dev/fuse or /dev/loop-control here");
    }
    let found = ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"]
        .iter()
        .any(|p| Path::new(p).exists());
    if found {
        None
    } else {
        Some("no mkfs.ext4 here")
    }
}

/// The step.
///
/// # Errors
/// If any part of it fails.
pub(super) fn ext4(stage: &Stage, show: &mut Show) -> Result<(), Failure> {
    if let Some(reason) = obstacle() {
        return show.note(&format!("(no kernel device shown: {reason})"));
    }
    let mount = stage.path("mnt");
    let step = |_: &mut Show| {
        let client = stage.client()?;
        let (array, volume) = (ARRAY.to_string(), KERNEL_VOLUME.to_string());
        client.call_value(&Call::VolumeCreate(VolumeCreate {
            array: array.clone(),
            volume: volume.clone(),
            size_bytes: Some(VOLUME_BYTES),
            thin: true,
            block_bytes: None,
            digest: None,
            write_cache: None,
        }))?;
        let attach = Call::Attach {
            array: array.clone(),
            volume: volume.clone(),
            frontend: FrontendSpec::Loop,
            sector_bytes: None,
            rights: None,
            force: false,
        };
        let reply = client.call_value(&attach)?;
        let device = reply["attached"]["address"]
            .as_str()
            .unwrap_or_default()
            .to_string();
        tool("mkfs.ext4", &["-q", "-F", &device])?;
        std::fs::create_dir(&mount)
            .map_err(|e| Failure::broken(format!("{}: {e}", mount.display())))?;
        let at = mount.display().to_string();
        tool("mount", &[&device, &at])?;
        stage.mounted(Some(mount.clone()));
        let bytes = copy_and_compare(&mount, &device)?;
        tool("umount", &[&at])?;
        stage.mounted(None);
        tool("fsck.ext4", &["-f", "-n", &device])?;
        client.call_value(&Call::Detach {
            array,
            volume,
            frontend: None,
            force: false,
        })?;
        Ok((device, bytes))
    };
    show.timed("ext4", step, |(device, bytes)| {
        format!(
            "on {device}: {} written, mounted again, compared, fsck clean",
            size(*bytes)
        )
    })?;
    Ok(())
}

/// Copies this program onto the file system, mounts it again so that nothing comes from the cache,
/// and compares.
fn copy_and_compare(mount: &Path, device: &str) -> Result<u64, Failure> {
    let io = |e: std::io::Error| Failure::broken(format!("{}: {e}", mount.display()));
    let program = std::env::current_exe().map_err(io)?;
    let mut bytes = std::fs::read(program).map_err(io)?;
    bytes.truncate(32 << 20);
    std::fs::write(mount.join("program"), &bytes).map_err(io)?;
    let at = mount.display().to_string();
    tool("umount", &[&at])?;
    tool("mount", &[device, &at])?;
    let read = std::fs::read(mount.join("program")).map_err(io)?;
    if read != bytes {
        return Err(Failure::broken(
            "WRONG BYTES: the file differs after mounting again",
        ));
    }
    Ok(bytes.len() as u64)
}

fn tool(name: &str, arguments: &[&str]) -> Result<(), Failure> {
    let path = format!(
        "{}:/usr/sbin:/sbin:/usr/bin:/bin",
        std::env::var("PATH").unwrap_or_default()
    );
    let output = Command::new(name)
        .args(arguments)
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Failure::broken(format!("{name} cannot be run: {e}")))?;
    if output.status.success() {
        return Ok(());
    }
    let error = String::from_utf8_lossy(&output.stderr);
    let line = error
        .lines()
        .last()
        .unwrap_or("no message")
        .trim()
        .to_string();
    Err(Failure::broken(format!(
        "{name} {}: {line}",
        arguments.join(" ")
    )))
}
