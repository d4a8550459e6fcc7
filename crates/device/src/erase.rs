//! Erases the signatures of a device: they lie at its ends, the backup of a partition table in its last sector.
//!
//! Invariants: what is zero already is not written, so a sparse file stays sparse; what cannot be read is written; the
//! last bytes of a device whose size is no whole number of blocks are erased too; on an error the rest is still erased.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::sync::Arc;

use ashlar_rt::{BLOCK, oneshot};

use crate::fault::Presence;
use crate::reread::reread_partitions;
use crate::{Fault, IoFuture, Part};

/// How much is erased at each end: all that `blkid` knows lies nearer (bcachefs and VMFS at 2 MiB, others below 1 MiB).
const END_BYTES: u64 = 4 << 20;
/// Read at a time.
const CHUNK: usize = 64 << 10;

/// Another open of the same device or file, through the page cache: that takes any offset, and needs no path.
pub(crate) fn reopen(file: &File, write: bool) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::options().read(true).write(write).open(path)
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

/// Erases both ends of a device that is served, and waits for it.
pub(crate) fn erase_now(mut file: &File, presence: &Presence) -> Result<(), Fault> {
    let bytes = file.seek(SeekFrom::End(0));
    let erased = bytes.and_then(|bytes| erase_ends(file, bytes, None));
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
