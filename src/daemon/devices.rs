//! Devices as the daemon meets them: what a path names, whether it may be used, and opening it.
//!
//! **Invariants**: every path is checked before any is opened for writing; two paths to one device
//! are one device; a refusal names the path as the operator gave it. Looking at devices may wait for
//! them: [`check`] and [`scan`] run on threads of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use ashlar_device::Part;

use crate::daemon::users;
use crate::failure::Failure;
use crate::seat::part_of_disk;
use crate::units::{as_given, size};

/// The smallest device worth an array: superblocks, roots, journal and a few slots fit.
pub(crate) const SMALLEST: u64 = 16 << 20;
/// The most devices an array can number.
const MOST: usize = 65_535;

/// A device that may be used, or made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// As the operator gave it.
    pub(crate) given: String,
    /// Its absolute path.
    pub(crate) path: PathBuf,
    /// Its size; of one to be made, what it will have.
    pub(crate) size_bytes: u64,
    /// Whether it is to be made as a sparse file.
    pub(crate) to_make: bool,
    /// Of a whole disk, the partition that it is given; `size_bytes` is the partition's.
    pub(crate) part: Option<Part>,
}

/// What a path names: equal for two paths to one device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identity {
    Block(u64),
    File(u64, u64),
    New(PathBuf),
}

/// Checks paths for a new array: each exists (or may be made), is a block device or file, is large
/// enough, and is given once.
///
/// # Errors
/// The first that is wrong, with what to do.
pub(crate) fn check(paths: &[String], file_bytes: Option<u64>) -> Result<Vec<Candidate>, Failure> {
    if paths.len() > MOST {
        return Err(Failure::invalid(format!(
            "{} devices; at most {MOST} can be used",
            paths.len()
        )));
    }
    if let Some(bytes) = file_bytes
        && (bytes < SMALLEST || bytes % 4096 != 0)
    {
        return Err(Failure::invalid(format!(
            "--file-size {}: give {} or more, a multiple of 4K",
            as_given(bytes),
            size(SMALLEST)
        )));
    }
    let mut seen: BTreeMap<Identity, &String> = BTreeMap::new();
    let mut candidates = Vec::with_capacity(paths.len());
    for given in paths {
        let (candidate, identity) = check_one(given, file_bytes)?;
        let below = backing(&candidate.path).and_then(|below| identity_of(&below));
        let names = [Some(identity), below];
        let first = names.into_iter().flatten().fold(None, |first, name| {
            let known = seen.insert(name, given);
            first.or(known)
        });
        if let Some(first) = first {
            return Err(Failure::invalid(if first == given {
                format!("{given} is given twice; name every device once")
            } else {
                format!("{first} and {given} are the same device; name every device once")
            }));
        }
        candidates.push(candidate);
    }
    Ok(candidates)
}

/// What a path names.
fn identity_of(path: &Path) -> Option<Identity> {
    let metadata = std::fs::metadata(path).ok()?;
    Some(match metadata.file_type().is_block_device() {
        true => Identity::Block(metadata.rdev()),
        false => Identity::File(metadata.dev(), metadata.ino()),
    })
}

/// The file, or other device, all of which a loop device shows; nothing is asked of that file.
fn backing(path: &Path) -> Option<PathBuf> {
    let node = path.starts_with("/dev").then_some(path)?;
    let metadata = std::fs::metadata(node).ok()?;
    if !metadata.file_type().is_block_device() {
        return None;
    }
    let entry = users::entry_of(Path::new("/sys"), &metadata).join("loop");
    let read = |name| std::fs::read_to_string(entry.join(name)).ok();
    let number = |name| read(name)?.trim().parse::<u64>().ok();
    if (number("offset"), number("sizelimit")) != (Some(0), Some(0)) {
        return None; // several may show parts of one file
    }
    Some(read("backing_file")?.trim_end_matches('\n').into())
}

/// These without what loop devices among them show: that is one device, and the loop device is kept.
pub(crate) fn without_backing(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    let below: BTreeSet<PathBuf> = paths.iter().filter_map(|path| backing(path)).collect();
    paths.retain(|path| !below.contains(path));
    paths
}

fn check_one(given: &str, file_bytes: Option<u64>) -> Result<(Candidate, Identity), Failure> {
    let path = Path::new(given);
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return new_file(given, path, file_bytes);
        }
        Err(error) => {
            return Err(Failure::broken(format!(
                "{given}: cannot be examined: {error}; check the path and its permissions"
            )));
        }
    };
    let absolute = std::fs::canonicalize(path).map_err(|e| {
        Failure::broken(format!("{given}: cannot be resolved: {e}; check the path"))
    })?;
    let kind = metadata.file_type();
    if kind.is_file() && metadata.len() == 0 && file_bytes.is_some() {
        return new_file(given, path, file_bytes); // left by a crash between making it and giving it a size
    }
    let part = part_of_disk(path, &metadata).map_err(Failure::invalid)?;
    let (identity, all_bytes) = if kind.is_block_device() {
        (Identity::Block(metadata.rdev()), block_size(given, path)?)
    } else if kind.is_file() {
        (
            Identity::File(metadata.dev(), metadata.ino()),
            metadata.len(),
        )
    } else {
        return Err(Failure::invalid(format!(
            "{given}: neither a block device nor a file; give the path of one"
        )));
    };
    let size_bytes = part.map_or(all_bytes, |part| part.length);
    if size_bytes < SMALLEST {
        return Err(Failure::invalid(format!(
            "{given}: {} is too small; a device needs at least {}",
            size(size_bytes),
            size(SMALLEST)
        )));
    }
    let candidate = Candidate {
        given: given.to_string(),
        path: absolute,
        size_bytes,
        to_make: false,
        part,
    };
    Ok((candidate, identity))
}

fn new_file(
    given: &str,
    path: &Path,
    file_bytes: Option<u64>,
) -> Result<(Candidate, Identity), Failure> {
    let Some(size_bytes) = file_bytes else {
        if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
            return Err(Failure::not_found(format!(
                "{given}: no such device; check the path ('lsblk' lists devices)"
            )));
        }
        return Err(Failure::not_found(format!(
            "{given}: no such device; check the path (only 'create --file-size SIZE' makes files)"
        )));
    };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let (Ok(parent), Some(name)) = (std::fs::canonicalize(parent), path.file_name()) else {
        return Err(Failure::not_found(format!(
            "{given}: its directory does not exist; make it first"
        )));
    };
    if parent.starts_with("/dev") && !parent.starts_with("/dev/shm") {
        return Err(Failure::not_found(format!(
            "{given}: no such device; check the path ('lsblk' lists devices; files are not made in /dev)"
        )));
    }
    let absolute = parent.join(name);
    let candidate = Candidate {
        given: given.to_string(),
        path: absolute.clone(),
        size_bytes,
        to_make: true,
        part: None,
    };
    Ok((candidate, Identity::New(absolute)))
}

fn block_size(given: &str, path: &Path) -> Result<u64, Failure> {
    use std::io::{Seek, SeekFrom};
    let unreadable = |e: std::io::Error| {
        Failure::broken(format!(
            "{given}: cannot be opened: {e}; run the daemon as root, and check the device"
        ))
    };
    let mut file = std::fs::File::open(path).map_err(unreadable)?;
    file.seek(SeekFrom::End(0)).map_err(unreadable)
}

/// Makes the sparse files among `candidates`; on failure none is left.
///
/// # Errors
/// Which file, and why.
pub(crate) fn make_files(candidates: &[Candidate]) -> Result<Vec<PathBuf>, Failure> {
    let mut made: Vec<PathBuf> = Vec::new();
    for candidate in candidates.iter().filter(|c| c.to_make) {
        match ashlar_device::create_file(&candidate.path, candidate.size_bytes) {
            Ok(()) => made.push(candidate.path.clone()),
            Err(error) => {
                remove_files(&made);
                return Err(Failure::broken(error.to_string()));
            }
        }
    }
    Ok(made)
}

/// Removes files that [`make_files`] made.
pub(crate) fn remove_files(made: &[PathBuf]) {
    for path in made {
        if let Err(error) = std::fs::remove_file(path) {
            tracing::warn!(path = %path.display(), %error, "a file that was made could not be removed");
        }
    }
}

/// The directories in which files of these paths were, as far as they are there. Block devices are
/// found without.
pub(crate) fn folders(paths: &[PathBuf]) -> Vec<String> {
    let parents = paths.iter().filter_map(|path| path.parent());
    let of_files = parents.filter(|dir| *dir != Path::new("/dev") && dir.is_dir());
    let all: BTreeSet<String> = of_files.map(|dir| dir.display().to_string()).collect();
    all.into_iter().collect()
}

/// Files and devices in which an array may be found: what `dirs` hold, and the machine's whole
/// block devices, but for those that are volumes of this daemon.
pub(crate) fn scan(dirs: &[String]) -> Result<Vec<PathBuf>, Failure> {
    let mut found: BTreeMap<Identity, PathBuf> = BTreeMap::new();
    for dir in dirs {
        let entries = std::fs::read_dir(dir).map_err(|e| {
            Failure::broken(format!(
                "{dir}: cannot be scanned: {e}; give a directory that exists"
            ))
        })?;
        for entry in entries.flatten() {
            consider(&entry.path(), &mut found);
        }
    }
    if let Ok(entries) = std::fs::read_dir("/sys/class/block") {
        for entry in entries.flatten() {
            consider(&Path::new("/dev").join(entry.file_name()), &mut found);
        }
    }
    let mut paths: Vec<PathBuf> = found.into_values().collect();
    paths.sort();
    Ok(paths)
}

fn consider(path: &Path, found: &mut BTreeMap<Identity, PathBuf>) {
    let Ok(metadata) = std::fs::metadata(path) else {
        return;
    };
    let kind = metadata.file_type();
    let identity = if kind.is_block_device() {
        if ashlar_serve::loopdev::is_own(path) {
            return;
        }
        // Opening it may wait for the device, and there may be hundreds.
        let bytes = users::bytes_of(Path::new("/sys"), &metadata);
        if bytes.is_some_and(|bytes| bytes < SMALLEST) {
            return; // an empty loop or card reader slot
        }
        Identity::Block(metadata.rdev())
    } else if kind.is_file() && metadata.len() >= SMALLEST {
        Identity::File(metadata.dev(), metadata.ino())
    } else {
        return;
    };
    if let Ok(absolute) = std::fs::canonicalize(path) {
        found.entry(identity).or_insert(absolute);
    }
}

/// Checks the name of a new array or volume.
///
/// # Errors
/// What names look like.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), Failure> {
    let fine = name.len() <= 63
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if fine {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "'{name}' cannot name {what}; use up to 63 letters, digits, '-', '_' and '.', a letter or digit first"
    )))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    struct Scratch(PathBuf);
    impl Scratch {
        fn new(name: &str) -> Scratch {
            let dir =
                std::env::temp_dir().join(format!("ashlar-dev-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            Scratch(dir)
        }
        fn file(&self, name: &str, bytes: u64) -> String {
            let path = self.0.join(name);
            std::fs::File::create(&path)
                .unwrap()
                .set_len(bytes)
                .unwrap();
            path.display().to_string()
        }
    }
    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn bad_devices_are_refused_with_their_name() {
        let s = Scratch::new("bad");
        let (good, small) = (s.file("good", SMALLEST), s.file("small", 4096));
        let link = s.0.join("link").display().to_string();
        std::os::unix::fs::symlink(&good, &link).unwrap();
        let dir = s.0.display().to_string();
        let none = s.0.join("none").display().to_string();
        for (paths, expected) in [
            (vec![good.clone(), good.clone()], "given twice"),
            (vec![good.clone(), link], "the same device"),
            (vec![good.clone(), small], "too small"),
            (vec![good.clone(), dir], "neither a block device nor a file"),
            (vec![good.clone(), none], "no such device"),
            (
                vec!["/dev/null".to_string()],
                "neither a block device nor a file",
            ),
        ] {
            let failure = check(&paths, None).unwrap_err();
            let last = paths.last().unwrap();
            assert!(
                failure.text.contains(expected) && failure.text.contains(last),
                "{failure}"
            );
        }
        assert_eq!(
            check(std::slice::from_ref(&good), None).unwrap()[0].size_bytes,
            SMALLEST
        );
    }

    #[test]
    fn files_are_made_sparse_and_removed_when_one_fails() {
        let s = Scratch::new("make");
        let paths: Vec<String> = (0..3)
            .map(|i| s.0.join(format!("d{i}")).display().to_string())
            .collect();
        let candidates = check(&paths, Some(1 << 30)).unwrap();
        let made = make_files(&candidates).unwrap();
        assert_eq!(made.len(), 3);
        let metadata = std::fs::metadata(&made[0]).unwrap();
        assert_eq!(metadata.len(), 1 << 30);
        assert!(metadata.blocks() < 64);
        remove_files(&made);
        s.file("d2", 1); // appears between check and make
        assert!(make_files(&candidates).is_err());
        assert!(!s.0.join("d0").exists() && s.0.join("d2").exists());
        let nowhere = s.0.join("no/such/dir").display().to_string();
        assert!(
            check(&[nowhere], Some(1 << 30))
                .unwrap_err()
                .text
                .contains("directory")
        );
        assert!(check(&["/dev/sdzz9".to_string()], Some(1 << 30)).is_err());
        assert!(check(&paths, Some(4095)).is_err());
    }

    #[test]
    fn names_are_plain() {
        for good in ["tank", "t0.a-b_c", &"x".repeat(63)] {
            check_name("an array", good).unwrap();
        }
        for bad in [
            "",
            "a/b",
            "-a",
            ".a",
            "a b",
            "a\n",
            "\u{e4}",
            &"x".repeat(64),
        ] {
            assert!(check_name("an array", bad).is_err(), "{bad:?}");
        }
    }
}
