//! Where the bytes come from: a device, a file, or an image in memory.
//!
//! **Invariants**: nothing here writes; a read that fails is an answer, not an end.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A device could not give the bytes asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

/// A device, or what is left of one.
pub trait Source {
    /// Its size in bytes.
    fn size(&self) -> u64;

    /// Fills `out` from `offset` on.
    ///
    /// # Errors
    /// If any of the bytes cannot be read, or lie beyond the end.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Unreadable>;
}

/// A file or block device, opened for reading only.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    first: u64,
    size: u64,
}

impl FileSource {
    /// Opens `path`.
    ///
    /// # Errors
    /// As the system says.
    pub fn open(path: &Path) -> std::io::Result<FileSource> {
        FileSource::new(File::open(path)?)
    }

    /// Opens `path` of which only `size` bytes from `first` on are the device, as with a partition of a disk.
    ///
    /// # Errors
    /// As the system says.
    pub fn open_part(path: &Path, first: u64, size: u64) -> std::io::Result<FileSource> {
        let file = File::open(path)?;
        Ok(FileSource { file, first, size })
    }

    /// Reads from `file`, which is open already.
    ///
    /// # Errors
    /// If its size cannot be found out.
    pub fn new(mut file: File) -> std::io::Result<FileSource> {
        // A block device has no length in its metadata; its end has.
        let size = file.seek(SeekFrom::End(0))?;
        let first = 0;
        Ok(FileSource { file, first, size })
    }
}

impl Source for FileSource {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Unreadable> {
        let end = offset.checked_add(out.len() as u64).ok_or(Unreadable)?;
        if end > self.size {
            return Err(Unreadable);
        }
        let read = self.file.read_exact_at(out, self.first + offset);
        read.map_err(|_| Unreadable)
    }
}

impl Source for [u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Unreadable> {
        let start = usize::try_from(offset).map_err(|_| Unreadable)?;
        let end = start.checked_add(out.len()).ok_or(Unreadable)?;
        out.copy_from_slice(self.get(start..end).ok_or(Unreadable)?);
        Ok(())
    }
}

impl Source for Vec<u8> {
    fn size(&self) -> u64 {
        self.as_slice().size()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Unreadable> {
        self.as_slice().read(offset, out)
    }
}
