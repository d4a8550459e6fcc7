//! A small file system on a loop device, for one run of `bench files` at a time.
//!
//! **Invariants**: mount and loop device live in the namespace of the run and end with it, also where it is killed.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::{ASHLAR, Scratch, have, have_kernel_devices, tool, try_tool, wait_until};

/// What runs in a mount namespace of its own: a loop device that ends with its mount, the mount, what a test prepares,
/// the program, and what is left in the folder.
const IN_NAMESPACE: &str = r#"
set -e
if [ "$DIO" = on ]; then
    loop=$(losetup --find --show --direct-io=on "$IMAGE" || losetup --find --show "$IMAGE")
else
    loop=$(losetup --find --show "$IMAGE")
fi
mount -o "$OPTIONS" "$loop" "$AT" || { losetup -d "$loop"; exit 99; }
losetup -d "$loop" # when the mount goes
set +e
(cd "$AT" && eval "$PREPARE")
timeout -k 5 120 "$@"
code=$?
ls -A "$AT" > "$LEFT"
umount "$AT"
exit $code
"#;

/// A small file system in a file.
#[derive(Debug)]
pub struct Bed {
    /// Its folder: the image, the mount's place, what else a test wants.
    pub scratch: Scratch,
    /// Whether the loop device goes around the page cache.
    pub direct_loop: bool,
    /// Options of the mount.
    pub options: &'static str,
    /// What a shell does in the mount first.
    pub prepare: String,
    /// Where programs are looked for.
    pub path: String,
}

impl Bed {
    /// With ext4; `None` where there cannot be one.
    pub fn ext4(name: &str) -> Option<Bed> {
        let quiet = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        Bed::new(name, &["mkfs.ext4", "-q", "-E", quiet])
    }

    /// With what `mkfs` makes.
    pub fn new(name: &str, mkfs: &[&str]) -> Option<Bed> {
        if !have(&[mkfs[0], "losetup", "unshare", "timeout"]) || !have_kernel_devices() {
            return None;
        }
        let scratch = Scratch::new(name);
        let image = scratch.path("image");
        let file = std::fs::File::create(&image).unwrap();
        file.set_len(320 << 20).unwrap();
        std::fs::create_dir(scratch.path("mnt")).unwrap();
        tool(mkfs[0], &[&mkfs[1..], &[image.to_str().unwrap()]].concat());
        Some(Bed {
            scratch,
            direct_loop: true,
            options: "defaults",
            prepare: String::new(),
            path: std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin",
        })
    }

    fn at(&self) -> PathBuf {
        self.scratch.path("mnt")
    }

    /// Runs `bench files` on it.
    pub fn run(&self, arguments: &[&str]) -> Output {
        let on = if self.direct_loop { "on" } else { "off" };
        let output = Command::new("unshare")
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                IN_NAMESPACE,
                "sh",
            ])
            .args([ASHLAR, "bench", "files", self.at().to_str().unwrap()])
            .args(arguments)
            .env("PATH", &self.path)
            .env("IMAGE", self.scratch.path("image"))
            .env("AT", self.at())
            .env("DIO", on)
            .env("OPTIONS", self.options)
            .env("PREPARE", &self.prepare)
            .env("LEFT", self.scratch.path("left"))
            .env("ASHLAR_SOCKET", self.scratch.path("none"))
            .current_dir(&self.scratch.0)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_ne!(output.status.code(), Some(99), "no mount: {error}");
        let image = self.scratch.path("image").display().to_string();
        wait_until("the loop device to go", Duration::from_secs(30), || {
            try_tool("losetup", &["-j", &image]).stdout.is_empty()
        });
        output
    }

    /// Runs it with `-j`; the document, and the exit code.
    pub fn json(&self, arguments: &[&str]) -> (Value, i32) {
        let output = self.run(&[&["-j"], arguments].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let value = serde_json::from_str(&text)
            .unwrap_or_else(|e| panic!("not JSON ({e}): {text}\n{error}"));
        (value, output.status.code().unwrap())
    }

    /// Names in the folder after the run.
    pub fn left(&self) -> String {
        let text = std::fs::read_to_string(self.scratch.path("left")).unwrap();
        let names: Vec<&str> = text.lines().filter(|name| *name != "lost+found").collect();
        names.join(" ")
    }
}

/// Rows of a target.
pub fn rows<'a>(document: &'a Value, target: &str) -> Vec<&'a Value> {
    let rows = document["rows"].as_array().unwrap().iter();
    rows.filter(|row| row["target"] == target).collect()
}

/// Reasons of the rows of a workload, or of all.
pub fn reasons(document: &Value, target: &str, workload: &str) -> Vec<String> {
    let rows = rows(document, target).into_iter();
    let of = rows.filter(|row| workload.is_empty() || row["workload"] == workload);
    let reasons = of.flat_map(|row| row["invalid"].as_array().unwrap());
    reasons
        .map(|reason| reason.as_str().unwrap().to_string())
        .collect()
}

/// One of the reasons has these words.
#[track_caller]
pub fn stamped(document: &Value, target: &str, workload: &str, words: &str) {
    let found = reasons(document, target, workload);
    let of = rows(document, target).len();
    let told = found.iter().any(|reason| reason.contains(words));
    assert!(
        told,
        "{words} is no reason of {workload} ({of} rows of {target}): {found:?}"
    );
}

/// No reason has any of these words.
#[track_caller]
pub fn not_stamped(document: &Value, target: &str, words: &[&str]) {
    let found = reasons(document, target, "");
    for words in words {
        let told = found.iter().any(|reason| reason.contains(words));
        assert!(!told, "{words} is a reason of {target}: {found:?}");
    }
}

/// Reasons that only a cheat gives, whatever else the machine does.
pub const CHEATS: [&str; 5] = [
    "less than twice",
    "sparse",
    "compressible",
    "a cache answered",
    "page cache answered",
];
