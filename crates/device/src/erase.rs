//! Erases a device: of a block device the signatures, which lie at its ends (the backup of a partition table in its last
//! sector); a file becomes one hole, as new.
//!
//! Invariants: what is zero already is not written; what cannot be read is written; the last bytes of a device whose size
//! is no whole number of blocks are erased too; on an error the rest is still erased; a file keeps its size.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::sync::Arc;

use ashlar_rt::{BLOCK, oneshot};

use crate::fault::Presence;
use crate::holes::{punch_hole, seek};
use crate::reread::reread_partitions;
use crate::{Fault, IoFuture, Part};

/// How much is erased at each end: all that `blkid` knows lies nearer (bcachefs and VMFS at 2 MiB, others below 1 MiB).
const END_BYTES: u64 = 4 << 20;
/// How much of a file's zeros is read in a row, and in how many places the rest is looked at.
const DATA_BYTES: u64 = 64 << 20;
const DATA_SAMPLES: u64 = 256;
/// Read at a time.
const CHUNK: usize = 64 << 10;

/// Another open of the same device or file, through the page cache: that takes any offset, and needs no path.
pub(crate) fn reopen(file: &File, write: bool) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::options().read(true).write(write).open(path)
}

/// Erases a file; of a block device both ends, and those of `part` of it; then the kernel forgets partitions.
pub(crate) fn erase_device(file: &File, bytes: u64, part: Option<Part>) -> io::Result<()> {
    if file.metadata()?.is_file() {
        return erase_file(file, bytes);
    }
    erase_ends(file, bytes, part)
}

/// Makes one hole of a file. Where the file system has no holes to punch, the file is cut off and grows again.
fn erase_file(file: &File, bytes: u64) -> io::Result<()> {
    match punch_hole(file, 0, bytes.max(1)) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            file.set_len(0)?;
            file.set_len(bytes)?;
        }
        outcome => outcome?,
    }
    file.sync_all()
}

/// Erases both ends of what `file` is open on, and those of `part` of it; then the kernel forgets partitions.
pub(crate) fn erase_ends(file: &File, bytes: u64, part: Option<Part>) -> io::Result<()> {
    let cached = reopen(file, true)?;
    let mut outcome = Ok(());
    let all = Part {
        first: 0,
        length: bytes,
    };
    for part in [all].into_iter().chain(part) {
        let (first, end) = (part.first, part.first + part.length);
        let middle = first.saturating_add(END_BYTES).min(end);
        for range in [
            first..middle,
            end.saturating_sub(END_BYTES).max(middle)..end,
        ] {
            outcome = outcome.and(erase(&cached, range.start, range.end));
        }
    }
    outcome = outcome.and(cached.sync_all());
    drop(cached);
    forget_partitions(file);
    outcome
}

/// Erases a device that is served, and waits for it.
pub(crate) fn erase_now(mut file: &File, presence: &Presence) -> Result<(), Fault> {
    let bytes = file.seek(SeekFrom::End(0));
    let erased = bytes.and_then(|bytes| erase_device(file, bytes, None));
    erased.map_err(|error| match error.raw_os_error() {
        Some(errno) => presence.fault(errno),
        None => Fault::from_io(&error),
    })
}

/// Does what may wait for a device on a thread of its own, so that no other device waits; in place if there is no thread
/// to be had.
pub(crate) fn aside<T: Send + 'static>(
    file: &Arc<File>,
    presence: &Arc<Presence>,
    work: fn(&File, &Presence) -> Result<T, Fault>,
) -> IoFuture<Result<T, Fault>> {
    let (reply, receiver) = oneshot();
    let (own, known) = (file.clone(), presence.clone());
    let thread = std::thread::Builder::new().name("aside".into());
    let started = thread.spawn(move || reply.send(work(&own, &known)));
    if started.is_err() {
        return Box::pin(std::future::ready(work(file, presence)));
    }
    Box::pin(async move { receiver.await.unwrap_or(Err(Fault::Offline)) })
}

/// Has the kernel read the partition table again, where that can be: not while partitions are in use.
pub(crate) fn forget_partitions(file: &File) {
    let meta = file.metadata();
    if meta.is_ok_and(|meta| meta.file_type().is_block_device()) {
        let _ = reread_partitions(file); // udev does it too, and so does the next boot
    }
}

/// Whether a regular file holds a byte that is not zero. Holes are skipped; of what has data the first [`DATA_BYTES`] are
/// read, so a file that is allocated and zero is judged in a moment however large it is; of one with more, also its last
/// MiB and blocks all over it. Other files hold none: what block devices hold is known by signatures.
pub(crate) fn holds_data(file: &File) -> io::Result<bool> {
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Ok(false);
    }
    let cached = reopen(file, false)?;
    let (bytes, mut at, mut left) = (meta.len(), 0, DATA_BYTES);
    while at < bytes && left > 0 {
        let Some(data) = seek(&cached, at, libc::SEEK_DATA)? else {
            return Ok(false); // holes up to its end
        };
        let hole = seek(&cached, data, libc::SEEK_HOLE)?.unwrap_or(bytes);
        let end = hole.clamp(data, data + left);
        if has_data(&cached, data, end)? {
            return Ok(true);
        }
        (at, left) = (end, left - (end - data).min(left));
        if end == data {
            break; // the file was cut off meanwhile
        }
    }
    if at >= bytes {
        return Ok(false);
    }
    let step = (bytes / DATA_SAMPLES).max(1);
    let mut samples = (0..DATA_SAMPLES).map(|n| n * step);
    let sampled = samples.try_fold(false, |any, at| {
        let end = bytes.min(at + BLOCK as u64);
        Ok::<bool, io::Error>(any || has_data(&cached, at, end)?)
    })?;
    Ok(sampled || has_data(&cached, bytes.saturating_sub(1 << 20), bytes)?)
}

fn has_data(file: &File, first: u64, end: u64) -> io::Result<bool> {
    let mut chunk = vec![0; CHUNK];
    let mut at = first;
    while at < end {
        let length = usize::try_from(end - at).map_or(CHUNK, |left| left.min(CHUNK));
        let chunk = &mut chunk[..length];
        file.read_exact_at(chunk, at)?;
        if chunk.iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
        at += length as u64;
    }
    Ok(false)
}

fn erase(file: &File, first: u64, end: u64) -> io::Result<()> {
    let mut outcome = Ok(());
    let mut chunk = vec![0; CHUNK];
    let mut at = first;
    while at < end {
        let length = usize::try_from(end - at).map_or(CHUNK, |left| left.min(CHUNK));
        let chunk = &mut chunk[..length];
        if file.read_exact_at(chunk, at).is_err() {
            chunk.fill(1);
        }
        for (index, block) in chunk.chunks(BLOCK).enumerate() {
            if block.iter().any(|byte| *byte != 0) {
                let at = at + (index * BLOCK) as u64;
                outcome = outcome.and(file.write_all_at(&[0; BLOCK][..block.len()], at));
            }
        }
        at += length as u64;
    }
    outcome
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_file_becomes_one_hole_and_keeps_its_size() {
        for bytes in [32 << 20, (32 << 20) + 100, 10] {
            let scratch = Scratch::new("erase-file", bytes);
            let file = &scratch.0;
            file.write_all_at(&vec![7; usize::try_from(bytes).unwrap()], 0)
                .unwrap();
            erase_device(file, bytes, None).unwrap();
            let mut all = vec![1; usize::try_from(bytes).unwrap()];
            file.read_exact_at(&mut all, 0).unwrap();
            assert!(all.iter().all(|byte| *byte == 0), "{bytes}");
            assert_eq!(file.metadata().unwrap().len(), bytes);
            assert!(!holds_data(file).unwrap(), "{bytes}");
        }
    }

    #[test]
    fn data_is_found_wherever_a_file_has_it_and_zeros_are_none() {
        let mib = |n: u64| n << 20;
        let scratch = Scratch::new("data", mib(1 << 20)); // 1 TiB
        let file = &scratch.0;
        assert!(!holds_data(file).unwrap(), "a hole");
        file.write_all_at(&[0; BLOCK], mib(5)).unwrap();
        assert!(!holds_data(file).unwrap(), "zeros");
        file.write_all_at(&[1], mib(700_000) + 5).unwrap();
        assert!(holds_data(file).unwrap(), "one byte far inside");
        let scratch = Scratch::new("data-end", mib(2 * (DATA_BYTES >> 20)));
        let file = &scratch.0;
        let zeros = vec![0; 1 << 20];
        for at in 0..2 * (DATA_BYTES >> 20) {
            file.write_all_at(&zeros, mib(at)).unwrap();
        }
        assert!(!holds_data(file).unwrap(), "more zeros than are read");
        file.write_all_at(&[1], 2 * DATA_BYTES - 1).unwrap();
        assert!(holds_data(file).unwrap(), "the last byte");
    }

    #[test]
    fn ends_are_zero_afterwards_and_the_middle_is_as_it_was() {
        let mib = |n: u64| n << 20;
        // Odd sizes; ends that meet.
        for bytes in [mib(32), mib(32) + 512, mib(32) + 100, mib(6) + 1, 4096, 10] {
            let scratch = Scratch::new("erase", bytes);
            let file = &scratch.0;
            file.write_all_at(&vec![7; usize::try_from(bytes).unwrap()], 0)
                .unwrap();
            let part = Part {
                first: mib(10),
                length: mib(12),
            };
            let part = (bytes >= mib(32)).then_some(part);
            erase_ends(file, bytes, part).unwrap();
            let mut all = vec![0; usize::try_from(bytes).unwrap()];
            file.read_exact_at(&mut all, 0).unwrap();
            let kept = |at: u64| {
                let near = |first: u64, end: u64| {
                    (first..first + mib(4)).contains(&at)
                        || (end.saturating_sub(mib(4))..end).contains(&at)
                };
                !near(0, bytes) && !part.is_some_and(|p| near(p.first, p.first + p.length))
            };
            for (at, byte) in (0..).zip(&all) {
                assert_eq!(*byte == 7, kept(at), "{at} of {bytes}");
            }
        }
        let scratch = Scratch::new("erase", mib(1024));
        let file = &scratch.0;
        erase_ends(file, mib(1024), None).unwrap();
        assert_eq!(file.metadata().unwrap().blocks(), 0, "it is still sparse");
    }
}
