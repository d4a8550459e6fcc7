//! Operations on an open device that no array uses: they name its contents, or take it for an array.
//!
//! Invariants: all of this may wait for the device, so it is for a thread of its own; writing is for who opened it
//! exclusively.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ashlar_rt::{BLOCK, Buf};

use crate::erase::{erase_device, erase_ends, forget_partitions, holds_data, reopen};
use crate::open::Unserved;
use crate::table::{own_part, write_table};
use crate::whole::{has_partition_there, is_whole_disk};
use crate::{Part, PartError, part_of};

impl Unserved {
    /// Whether it is a whole disk, by the sysfs under this root.
    pub fn is_whole_disk(&self, sysfs: &Path) -> bool {
        self.number.is_some_and(|n| is_whole_disk(sysfs, n))
    }

    /// Whether it is a disk of which the kernel knows a partition where an array's would begin.
    pub fn has_partition_there(&self, sysfs: &Path) -> bool {
        self.number.is_some_and(|n| has_partition_there(sysfs, n))
    }

    /// The part that an array is given of it as a whole disk.
    ///
    /// # Errors
    /// If there is none.
    pub fn part(&self) -> Result<Part, PartError> {
        part_of(self.size, self.sector)
    }

    /// The partition of Ashlar's type that its partition table has.
    pub fn own_partition(&self) -> Option<Part> {
        own_part(&reopen(&self.file, false).ok()?, self.size)
    }

    /// Whether the block at `offset` begins with `magic`.
    pub fn has(&self, offset: u64, magic: &[u8]) -> bool {
        let mut block = Buf::zeroed(BLOCK);
        let read = self.file.read_exact_at(&mut block, offset);
        read.is_ok() && block.starts_with(magic)
    }

    /// Shows `part` of it alone, once it is served; none for all of it.
    #[must_use]
    pub fn within(mut self, part: Option<Part>) -> Unserved {
        self.part = part;
        self
    }

    /// The part that it shows, if not all of it.
    pub fn shown(&self) -> Option<Part> {
        self.part
    }

    /// Whether it is a file that holds anything but zeros, as far as a bounded look finds; one that cannot be read may.
    pub fn holds_data(&self) -> bool {
        !matches!(holds_data(&self.file), Ok(false))
    }

    /// Erases what is recognisable at its ends; as a whole disk (`part`) it gets a partition table then, and shows the
    /// partition.
    ///
    /// # Errors
    /// What the system says.
    pub fn take(self, part: Option<Part>) -> io::Result<Unserved> {
        erase_ends(&self.file, self.size, part)?; // space that a file was given in advance stays its own
        let Some(part) = part else { return Ok(self) };
        let cached = reopen(&self.file, true)?;
        write_table(&cached, self.size, self.sector, part)?;
        drop(cached);
        forget_partitions(&self.file);
        Ok(self.within(Some(part)))
    }

    /// Erases what is recognisable at its ends, and at those of what it shows: what [`Unserved::take`] had erased is gone,
    /// and a file keeps the rest.
    ///
    /// # Errors
    /// What the system says.
    pub fn erase_signatures(&self) -> io::Result<()> {
        erase_ends(&self.file, self.size, self.part)
    }

    /// Erases a file, or what is recognisable at the ends of a device, and at those of what it shows.
    ///
    /// # Errors
    /// What the system says.
    pub fn erase(&self) -> io::Result<()> {
        erase_device(&self.file, self.size, self.part)
    }
}
