//! `support FILE.tar.gz`: what whoever helps needs to see, in one file: versions, status, events, who did what,
//! settings, the log, what stands on devices, what the kernel says.
//!
//! **Invariants**: nothing is changed but the file, which only its maker can read and which must not be there yet; no
//! data of volumes is in it; what cannot be collected is listed in it, and keeps nothing else out; each part is
//! bounded in size and time; addresses that people are told at are cut down to their host.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::api::{Call, StatusReply};
use crate::failure::Failure;
use crate::print::Context;
use crate::view::progress::Progress;
use crate::view::{cut_addresses, safe};

/// Bytes of a part; of what is longer the end is kept.
const LARGEST: usize = 4 << 20;
/// How long a program or the daemon may take for a part.
const LIMIT: Duration = Duration::from_secs(20);
/// Events and actions.
const LAST: usize = 5000;

/// Files of the system that say what kind of machine it is.
const SYSTEM_FILES: &[&str] = &[
    "/etc/os-release",
    "/proc/cmdline",
    "/proc/cpuinfo",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/modules",
    "/proc/partitions",
    "/proc/pressure/io",
    "/proc/pressure/memory",
    "/proc/self/mountinfo",
    "/proc/swaps",
    "/proc/version",
];
/// Programs that say more, each with what its part is called.
const PROGRAMS: &[(&str, &[&str])] = &[
    (
        "log.txt",
        &["journalctl", "-u", "ashlar", "-n", "20000", "--no-pager"],
    ),
    ("kernel-log.txt", &["dmesg", "-T"]),
    (
        "unit.txt",
        &["systemctl", "status", "ashlar", "--no-pager", "-l"],
    ),
    ("lsblk.json", &["lsblk", "-J", "-O"]),
    ("losetup.json", &["losetup", "-J", "-l"]),
];

const README: &str = "What 'ashlar support' has collected. No data of volumes is in it. There are names of arrays,
volumes and devices, serial numbers, command lines of who changed something, mount points, and the kernel's log:
look through it before you give it away. missing.txt says what could not be collected.
";

/// The file that is written.
struct Bundle {
    tar: tar::Builder<GzEncoder<File>>,
    folder: String,
    seconds: u64,
    missing: Vec<String>,
    parts: usize,
}

impl Bundle {
    fn add(&mut self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        let cut = bytes.len().saturating_sub(LARGEST);
        let bytes = &bytes[cut..];
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.seconds);
        self.parts += 1;
        let path = format!("{}/{name}", self.folder);
        self.tar.append_data(&mut header, path, bytes)
    }

    /// Adds what was found, or notes why it was not.
    fn add_found(&mut self, name: &str, found: Result<Vec<u8>, String>) -> std::io::Result<()> {
        match found {
            Ok(bytes) => self.add(
                name,
                cut_addresses(&String::from_utf8_lossy(&bytes)).as_bytes(),
            ),
            Err(why) => {
                self.missing.push(format!("{name}: {}", safe(&why)));
                Ok(())
            }
        }
    }
}

/// `support`.
///
/// # Errors
/// If the file is there already, or cannot be written.
pub(crate) fn support(context: &Context, path: &Path) -> Result<(), Failure> {
    let at = path.display();
    let mut options = File::options();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Failure::refused(format!("{at} exists already; give another FILE"))
        }
        _ => Failure::broken(format!("{at}: {e}; give another FILE")),
    })?;
    let outcome = fill(context, file).map_err(|e| {
        let _ = std::fs::remove_file(path); // a part of it helps nobody
        Failure::broken(format!("{at}: {e}; give a FILE where there is room"))
    });
    let bundle = outcome?;
    let bytes = std::fs::metadata(path).map_or(0, |m| m.len());
    let value = json!({ "file": path, "bytes": bytes, "parts": bundle.0, "missing": bundle.1 });
    context.print("support", &value, || {
        let mut text = format!(
            "{at}: {}, {} parts; look through it before you give it away\n",
            crate::units::size(bytes),
            bundle.0
        );
        for line in &bundle.1 {
            text += &format!("  not in it: {line}\n");
        }
        text
    })
}

fn fill(context: &Context, file: File) -> std::io::Result<(usize, Vec<String>)> {
    let seconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seconds = seconds.map_or(0, |d| d.as_secs());
    let mut bundle = Bundle {
        tar: tar::Builder::new(GzEncoder::new(file, Compression::default())),
        folder: format!("ashlar-support-{seconds}"),
        seconds,
        missing: Vec::new(),
        parts: 0,
    };
    let mut progress = Progress::new(context.json).on_terminals();
    bundle.add("README.txt", README.as_bytes())?;
    let version = format!("ashlar {}\n", env!("CARGO_PKG_VERSION"));
    bundle.add("version.txt", version.as_bytes())?;
    progress.show("support: asking the daemon");
    let devices = of_daemon(context, &mut bundle)?;
    let program = std::env::current_exe();
    for (index, device) in devices.iter().enumerate() {
        progress.show(&format!("support: looking at {}", safe(device)));
        let found = match &program {
            Ok(program) => run(
                program,
                &["inspect".as_ref(), device.as_ref(), "-j".as_ref()],
            ),
            Err(e) => Err(e.to_string()),
        };
        bundle.add_found(&format!("inspect/{index}.json"), found)?;
    }
    for path in SYSTEM_FILES {
        let found = std::fs::read(path).map_err(|e| e.to_string());
        bundle.add_found(&format!("system{path}"), found)?;
    }
    for (name, words) in PROGRAMS {
        progress.show(&format!("support: {}", words.join(" ")));
        let arguments: Vec<&std::ffi::OsStr> = words[1..].iter().map(AsRef::as_ref).collect();
        bundle.add_found(name, run(Path::new(words[0]), &arguments))?;
    }
    progress.end();
    let missing = bundle.missing.join("\n") + "\n";
    bundle.add("missing.txt", missing.as_bytes())?;
    let file = bundle.tar.into_inner()?.finish()?;
    file.sync_all()?;
    Ok((bundle.parts, bundle.missing))
}

/// What the daemon says. The devices of its arrays.
fn of_daemon(context: &Context, bundle: &mut Bundle) -> std::io::Result<Vec<String>> {
    let ask = |call: &Call| {
        let answer = context.client.call_within::<Value>(call, Some(LIMIT));
        answer.map_err(|failure| failure.text)
    };
    let pretty = |value: &Value| serde_json::to_vec_pretty(value).map_err(|e| e.to_string());
    let status = ask(&Call::Status { array: None });
    bundle.add_found("status.json", status.clone().and_then(|v| pretty(&v)))?;
    let events = ask(&Call::Events {
        array: None,
        after: std::collections::BTreeMap::new(),
        since_id: 0,
        since_seconds: 0,
        newest: Some(LAST),
        wait_seconds: 0,
    });
    bundle.add_found("events.json", events.and_then(|v| pretty(&v)))?;
    let history = ask(&Call::History {
        array: None,
        newest: Some(LAST),
    });
    bundle.add_found("history.json", history.and_then(|v| pretty(&v)))?;
    let reply = status.ok().and_then(|v| serde_json::from_value(v).ok());
    let reply: StatusReply = reply.unwrap_or_default();
    let mut devices = Vec::new();
    for array in reply.arrays {
        let get = ask(&Call::Get {
            array: array.name.clone(),
            key: None,
        });
        let get = get.and_then(|v| pretty(&v));
        bundle.add_found(&format!("settings/{}.json", array.name), get)?;
        devices.extend(array.devices.into_iter().map(|d| d.last_path));
    }
    devices.retain(|path| !path.is_empty());
    Ok(devices)
}

/// What a program prints, within the limit of time.
fn run(program: &Path, arguments: &[&std::ffi::OsStr]) -> Result<Vec<u8>, String> {
    let name = PathBuf::from(program.file_name().unwrap_or_default());
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| format!("{}: {e}", name.display()))?;
    let mut pipe = child.stdout.take().ok_or("no output")?;
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let limit = 8 * LARGEST as u64;
        let _ = pipe.by_ref().take(limit).read_to_end(&mut bytes);
        let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        bytes
    });
    let until = Instant::now() + LIMIT;
    loop {
        match child.try_wait() {
            Ok(Some(_)) => break,
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{}: no end after {LIMIT:?}", name.display()));
            }
        }
    }
    let bytes = reader.join().map_err(|_| "not read".to_string())?;
    if bytes.is_empty() {
        return Err(format!("{}: says nothing", name.display()));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_or_says_nothing_is_a_reason() {
        let missing = run(Path::new("/no/such/program"), &[]);
        assert!(missing.is_err_and(|why| why.starts_with("program: ")));
        assert!(run(Path::new("true"), &[]).is_err_and(|why| why.contains("says nothing")));
        assert_eq!(run(Path::new("echo"), &["x".as_ref()]), Ok(b"x\n".to_vec()));
    }
}
