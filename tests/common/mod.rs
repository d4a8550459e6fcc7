//! What the end-to-end tests share: a daemon of their own in a folder of their own, the real
//! programs that talk to it, and a small NBD client.
//!
//! **Invariants**: nothing outlives its test: daemons are stopped, mounts undone, folders removed,
//! also when the test fails; only loopback addresses and Unix sockets are used; a program that is
//! missing is a failure in CI and is said loudly elsewhere.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "tests; each test file uses a part of this"
)]

pub mod bed;
pub mod disk;
pub mod tree;

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The program under test.
pub const ASHLAR: &str = env!("CARGO_BIN_EXE_ashlar");

/// A folder that is removed at the end.
#[derive(Debug)]
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// A new folder under the system's temporary one.
    pub fn new(name: &str) -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::SeqCst);
        let name = format!("ashlar-e2e-{name}-{}-{n}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Ok(log) = std::fs::read_to_string(self.path("daemon.log"))
        {
            let lines: Vec<&str> = log.lines().collect();
            let from = lines.len().saturating_sub(40);
            eprintln!("-- the daemon's last lines:\n{}", lines[from..].join("\n"));
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A daemon in a folder of its own.
#[derive(Debug)]
pub struct Daemon {
    child: Option<Child>,
    mounts: Vec<PathBuf>,
    /// Extra arguments.
    pub arguments: Vec<String>,
    /// Extra environment.
    pub environment: Vec<(String, String)>,
    /// Dropped last.
    pub scratch: Scratch,
}

impl Daemon {
    /// Starts one.
    pub fn start(name: &str) -> Daemon {
        Daemon::with(name, &["--memory", "256M"])
    }

    /// Starts one with these arguments.
    pub fn with(name: &str, arguments: &[&str]) -> Daemon {
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let scratch = Scratch::new(name);
        let mut daemon = Daemon {
            child: None,
            mounts: Vec::new(),
            arguments,
            environment: Vec::new(),
            scratch,
        };
        daemon.launch();
        daemon
    }

    /// A path in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path(name)
    }

    /// The same as text.
    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Starts the process, and waits until it answers and has tried every array it knows.
    pub fn launch(&mut self) {
        self.begin();
        wait_until(
            "the daemon to import and serve what it knows",
            Duration::from_secs(60),
            || {
                let status = self.json(&["status", "-j"]);
                let list = |name: &str| status[name].as_array().unwrap().clone();
                let tried = |reason: &str| {
                    reason != "not tried yet" && !reason.starts_with("waiting for its devices")
                };
                let mut waiting = [list("not_imported"), list("not_served")]
                    .concat()
                    .into_iter();
                waiting.all(|n| tried(n["reason"].as_str().unwrap()))
            },
        );
    }

    /// Starts the process, and waits until it answers.
    pub fn begin(&mut self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path("daemon.log"))
            .unwrap();
        let child = Command::new(ASHLAR)
            .arg("daemon")
            .arg("--socket")
            .arg(self.path("control.sock"))
            .arg("--state")
            .arg(self.path("state"))
            .args(&self.arguments)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .spawn()
            .unwrap();
        self.child = Some(child);
        wait_until("the daemon to answer", Duration::from_secs(30), || {
            self.run(&["status"]).status.success()
        });
    }

    /// Kills the process with SIGKILL.
    pub fn kill9(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// The process number.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        let _ = rustix::process::kill_process(pid, signal);
    }

    /// Stops the process in an orderly way; true if it ended with success.
    pub fn stop(&mut self) -> bool {
        if self.child.is_none() {
            return true;
        }
        self.signal(rustix::process::Signal::TERM);
        self.ended()
    }

    /// Waits for the end of the process; true if it ended with success.
    pub fn ended(&mut self) -> bool {
        let mut child = self.child.take().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            if let Ok(Some(status)) = child.try_wait() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        false
    }

    /// Runs the program against this daemon.
    pub fn run(&self, arguments: &[&str]) -> Output {
        Command::new(ASHLAR)
            .args(arguments)
            .env("ASHLAR_SOCKET", self.path("control.sock"))
            .current_dir(&self.scratch.0)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Runs it; it must succeed. Its output.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(
            output.status.success(),
            "ashlar {} failed: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs it; it must fail with one line on standard error and nothing on standard output. The
    /// line and the exit code.
    pub fn fails(&self, arguments: &[&str]) -> (String, i32) {
        let output = self.run(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        let shown = arguments.join(" ");
        assert!(!output.status.success(), "ashlar {shown} succeeded");
        assert!(
            output.stdout.is_empty(),
            "ashlar {shown} printed a result although it failed"
        );
        let code = output.status.code().unwrap();
        if code != 2 {
            assert_eq!(
                error.lines().count(),
                1,
                "ashlar {shown} did not fail with one line:\n{error}"
            );
        }
        (error, code)
    }

    /// What a line that is refused says.
    pub fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Runs it, and reads the JSON it prints.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let text = self.ok(arguments);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("not JSON ({e}): {text}"))
    }

    /// How much volumes may hold.
    pub fn usable(&self, array: &str) -> u64 {
        self.status(array)["capacity"]["usable_bytes"]
            .as_u64()
            .unwrap()
    }

    /// The status of an array.
    pub fn status(&self, array: &str) -> Value {
        self.json(&["status", array, "-j"])["arrays"][0].clone()
    }

    /// Makes an array of sparse files with a volume of all there is, served over NBD at
    /// `nbd.sock`. Paths of the files.
    pub fn create(
        &self,
        array: &str,
        layout: &str,
        devices: usize,
        file_size: &str,
        more: &[&str],
    ) -> Vec<PathBuf> {
        let files: Vec<String> = (0..devices).map(|i| format!("{array}-{i}.img")).collect();
        let attach = format!("nbd=unix:{}", self.text("nbd.sock"));
        let mut line = vec![
            "create",
            array,
            "--layout",
            layout,
            "--file-size",
            file_size,
            "--volume",
            "v",
            "--attach",
            &attach,
        ];
        line.extend(more);
        line.extend(files.iter().map(String::as_str));
        self.ok(&line);
        files.iter().map(|file| self.path(file)).collect()
    }

    /// Makes an array `t` of so many files of 64 MiB with a volume of 24 MiB, served over NBD; where the files are.
    pub fn create_served(&self, layout: &str, devices: usize) -> Vec<String> {
        let attach = format!("nbd=unix:{}", self.text("nbd.sock"));
        let file = |i| self.text(&format!("t-{i}.img"));
        let files: Vec<String> = (0..devices).map(file).collect();
        let line = ["create", "t", "--layout", layout, "--file-size", "64M"];
        let volume = ["--volume", "v=24M", "--attach", &attach];
        let line = line.into_iter().chain(volume);
        let line: Vec<&str> = line.chain(files.iter().map(String::as_str)).collect();
        self.ok(&line);
        files
    }

    /// Writes the first bytes of the volume of `t`.
    pub fn write(&self, bytes: u64, seed: u64) {
        let disk = self.disk("t");
        let written = disk.write_range((0, bytes), 256 << 10, 8, disk::pattern(seed));
        assert!(written.is_empty(), "{written:?}");
    }

    /// Reads them.
    pub fn read(&self, bytes: u64, seed: u64) {
        let disk = self.disk("t");
        let wrong = disk.compare_range((0, bytes), 256 << 10, 8, disk::pattern(seed));
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    /// Makes a blank file of so many bytes; where it is.
    pub fn blank(&self, name: &str, bytes: u64) -> String {
        let path = self.text(name);
        let file = File::create(&path).unwrap();
        file.set_len(bytes).unwrap();
        path
    }

    /// The state of a device of `t`, by its index; `None` if the array has none of that.
    pub fn device_state(&self, index: u64) -> Option<String> {
        let status = self.status("t");
        let devices = status["devices"].as_array().unwrap();
        let device = devices.iter().find(|d| d["index"] == index)?;
        Some(device["state"].as_str().unwrap().to_string())
    }

    /// A connection to the volume `v` of `array` at `nbd.sock`.
    pub fn disk(&self, array: &str) -> disk::Disk {
        disk::Disk::connect(&self.path("nbd.sock"), &format!("{array}/v"))
    }

    /// The NBD address of the volume `v` of `array` at `nbd.sock`, for other programs.
    pub fn uri(&self, array: &str) -> String {
        format!("nbd+unix:///{array}/v?socket={}", self.text("nbd.sock"))
    }

    /// Mounts `device` at `name` in the folder.
    pub fn mount(&mut self, device: &str, name: &str) -> PathBuf {
        let at = self.path(name);
        std::fs::create_dir_all(&at).unwrap();
        tool("mount", &[device, at.to_str().unwrap()]);
        self.mounts.push(at.clone());
        at
    }

    /// A disk of its own for files that are to vanish: see [`Daemon::lose`].
    pub fn mount_memory(&mut self, name: &str, mib: u64) -> PathBuf {
        let at = self.path(name);
        std::fs::create_dir_all(&at).unwrap();
        let place = at.to_str().unwrap();
        tool(
            "mount",
            &[
                "-t",
                "tmpfs",
                "-o",
                &format!("size={mib}M"),
                "ashlar-test",
                place,
            ],
        );
        self.mounts.push(at.clone());
        at
    }

    /// Takes all files at `at`, made by [`Daemon::mount_memory`], away at one moment: nothing can be
    /// read from them any more, nor written to them.
    pub fn lose(&self, at: &Path) {
        self.take_away(at, |_| {});
    }

    /// As [`Daemon::lose`], but what they held at that moment goes to the folder `kept`.
    pub fn pull(&self, at: &Path, kept: &Path) {
        self.take_away(at, |file| {
            std::fs::copy(file, kept.join(file.file_name().unwrap())).unwrap();
        });
    }

    /// Undoes [`Daemon::pull`].
    pub fn put_back(at: &Path, kept: &Path) {
        std::fs::remove_file(at.join("filler")).unwrap();
        for file in std::fs::read_dir(kept).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), at.join(file.file_name())).unwrap();
        }
    }

    fn take_away(&self, at: &Path, before: impl Fn(&Path)) {
        self.signal(rustix::process::Signal::STOP);
        for file in std::fs::read_dir(at).unwrap() {
            let path = file.unwrap().path();
            before(&path);
            let file = File::options().write(true).open(path);
            file.unwrap().set_len(0).unwrap();
        }
        let mut filler = File::create(at.join("filler")).unwrap();
        while std::io::Write::write_all(&mut filler, &[0; 4096]).is_ok() {}
        self.signal(rustix::process::Signal::CONT);
    }

    /// Undoes [`Daemon::mount`].
    pub fn unmount(&mut self, at: &Path) {
        tool("umount", &[at.to_str().unwrap()]);
        self.mounts.retain(|m| m != at);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        for mount in std::mem::take(&mut self.mounts) {
            let _ = Command::new("umount").arg("-l").arg(mount).status();
        }
        self.stop();
    }
}

/// Opens a device file past the page cache, as the daemon does: the two do not mix.
pub fn open_direct(path: &Path) -> File {
    use std::os::unix::fs::OpenOptionsExt;
    let direct = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).unwrap();
    let mut options = File::options();
    options.read(true).write(true);
    let opened = options.clone().custom_flags(direct).open(path);
    opened.or_else(|_| options.open(path)).unwrap() // tmpfs may know no O_DIRECT
}

/// Waits for `condition`.
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + limit;
    while !condition() {
        assert!(
            Instant::now() < until,
            "waited {}s for {what}",
            limit.as_secs()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether all of these programs are here; if not, the test says so, and fails in CI.
pub fn have(programs: &[&str]) -> bool {
    let path = search_path();
    let missing: Vec<&&str> = programs
        .iter()
        .filter(|program| {
            !path
                .split(':')
                .any(|dir| Path::new(dir).join(program).exists())
        })
        .collect();
    unavailable(
        &missing
            .iter()
            .map(|m| (**m).to_string())
            .collect::<Vec<_>>(),
    )
}

/// Whether this machine can have loop devices over FUSE; if not, as [`have`].
pub fn have_kernel_devices() -> bool {
    unavailable(&lacking(&["/dev/fuse", "/dev/loop-control"]))
}

/// Whether a test can mount a FUSE file system of its own; if not, as [`have`].
pub fn have_fuse() -> bool {
    unavailable(&lacking(&["/dev/fuse"]))
}

/// Which of these devices, and root, this machine lacks.
fn lacking(devices: &[&str]) -> Vec<String> {
    let root = (!rustix::process::geteuid().is_root()).then_some("root");
    let gone = devices.iter().filter(|path| !Path::new(path).exists());
    root.iter().chain(gone).map(ToString::to_string).collect()
}

fn unavailable(missing: &[String]) -> bool {
    if missing.is_empty() {
        return true;
    }
    let line = format!("!!! NOT RUN: this test needs {}", missing.join(", "));
    assert!(std::env::var("CI").is_err(), "{line}");
    eprintln!("{line}");
    false
}

fn search_path() -> String {
    format!(
        "{}:/usr/sbin:/sbin:/usr/bin:/bin",
        std::env::var("PATH").unwrap_or_default()
    )
}

/// Runs another program; it must succeed. What it printed.
pub fn tool(program: &str, arguments: &[&str]) -> String {
    let output = try_tool(program, arguments);
    assert!(
        output.status.success(),
        "{program} {} failed ({}):\n{}{}",
        arguments.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs another program.
pub fn try_tool(program: &str, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .env("PATH", search_path())
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}"))
}

/// Starts another program in the background.
pub fn spawn_tool(program: &str, arguments: &[&str], log: &Path) -> Child {
    let log = File::create(log).unwrap();
    Command::new(program)
        .args(arguments)
        .env("PATH", search_path())
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap_or_else(|e| panic!("{program}: {e}"))
}

/// Has the kernel forget clean pages, so that what is read comes from the device.
pub fn drop_caches() {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
}

/// Pseudo-random numbers that follow from a seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed, which a failing test prints.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Fills `out`.
    pub fn fill(&mut self, out: &mut [u8]) {
        for word in out.chunks_mut(8) {
            word.copy_from_slice(&self.next().to_le_bytes()[..word.len()]);
        }
    }
}
