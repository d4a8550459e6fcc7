//! The partition table of a whole disk: GPT with one partition of Ashlar's own type, so that whoever looks sees that
//! the disk is taken. It is for others; the engine knows where the partition is without.
//!
//! Invariants: the table is written at the sector size that the disk has now, and found at either; bytes of any
//! content are answered, never a panic.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use gpt::GptConfig;
use gpt::disk::LogicalBlockSize;
use gpt::mbr::ProtectiveMBR;
use gpt::partition_types::{OperatingSystem, Type};

use crate::Part;

/// Ashlar's type of partition, as tables of types have it.
pub const PARTITION_TYPE: &str = "a495c460-4815-4467-b938-b8cdfc7dee1c";
/// The name of the partition.
const NAME: &str = "ashlar";
/// The same as it stands on disk: the first three fields are little-endian.
const TYPE_BYTES: [u8; 16] = [
    0x60, 0xc4, 0x95, 0xa4, 0x15, 0x48, 0x67, 0x44, 0xb9, 0x38, 0xb8, 0xcd, 0xfc, 0x7d, 0xee, 0x1c,
];

/// Writes a table, both copies of it and the protective MBR, with `part` as its only partition. `file` takes any
/// offset.
pub(crate) fn write_table(file: &File, bytes: u64, sector: u32, part: Part) -> io::Result<()> {
    let other = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
    let size = LogicalBlockSize::try_from(u64::from(sector))?;
    let config = GptConfig::new().writable(true).logical_block_size(size);
    let mut device = file;
    let sectors = u32::try_from(bytes / size.as_u64() - 1).unwrap_or(u32::MAX);
    ProtectiveMBR::with_lb_size(sectors)
        .overwrite_lba0(&mut device)
        .map_err(|error| other(&error))?;
    let mut table = config
        .create_from_device(device, None)
        .map_err(|error| other(&error))?;
    let own = Type {
        guid: PARTITION_TYPE.parse().map_err(|error| other(&error))?,
        os: OperatingSystem::Custom(NAME.to_string()),
    };
    let (first, length) = (part.first / size.as_u64(), part.length / size.as_u64());
    table
        .add_partition_at(NAME, 1, first, length, own, 0)
        .map_err(|error| other(&error))?;
    table.write().map_err(|error| other(&error))?;
    file.sync_all()
}

/// The partition of Ashlar's type that a table of this disk has first, from either copy, written at either sector
/// size.
pub(crate) fn own_part(file: &File, bytes: u64) -> Option<Part> {
    [512, 4096].into_iter().find_map(|sector| {
        let last = (bytes / sector).checked_sub(1)?;
        [1, last]
            .into_iter()
            .find_map(|header| own_part_by(file, bytes, sector, header))
    })
}

fn own_part_by(file: &File, bytes: u64, sector: u64, header: u64) -> Option<Part> {
    let number = |from: &[u8], at: usize| {
        let eight = from.get(at..at + 8)?.try_into().ok()?;
        Some(u64::from_le_bytes(eight))
    };
    let mut head = [0; 512];
    file.read_exact_at(&mut head, header.checked_mul(sector)?)
        .ok()?;
    if !head.starts_with(b"EFI PART") {
        return None;
    }
    let mut entry = [0; 128];
    file.read_exact_at(&mut entry, number(&head, 72)?.checked_mul(sector)?)
        .ok()?;
    let first = number(&entry, 32)?.checked_mul(sector)?;
    let end = number(&entry, 40)?.checked_add(1)?.checked_mul(sector)?;
    let length = end.checked_sub(first)?;
    let fits = end <= bytes && first.is_multiple_of(4096) && length.is_multiple_of(4096);
    (entry.starts_with(&TYPE_BYTES) && fits && length > 0).then_some(Part { first, length })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::part_of;
    use crate::scratch::Scratch;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_table_is_found_by_either_copy_at_either_sector_size() {
        for sector in [512, 4096] {
            // The last size is no whole number of blocks: its backup header lies in the odd end.
            for bytes in [64 * MIB, 1 << 40, 64 * MIB + u64::from(sector)] {
                let disk = Scratch::new("table-copies", bytes);
                let part = part_of(bytes, sector).unwrap();
                assert_eq!(own_part(&disk.0, bytes), None);
                write_table(&disk.0, bytes, sector, part).unwrap();
                assert_eq!(own_part(&disk.0, bytes), Some(part), "{bytes}, {sector}");
                let mut mark = [0; 2];
                disk.0.read_exact_at(&mut mark, 510).unwrap();
                assert_eq!(mark, [0x55, 0xaa]);
                disk.0.write_all_at(&[0; 16_384], 0).unwrap();
                assert_eq!(own_part(&disk.0, bytes), Some(part), "the backup");
                let last = bytes / u64::from(sector) - 1;
                let zeros = vec![0; usize::try_from(sector).unwrap()];
                disk.0
                    .write_all_at(&zeros, last * u64::from(sector))
                    .unwrap();
                assert_eq!(own_part(&disk.0, bytes), None);
            }
        }
    }

    #[test]
    fn a_table_of_others_or_of_noise_is_none_of_ours() {
        let bytes = 64 * MIB;
        let disk = Scratch::new("table-noise", bytes);
        let part = part_of(bytes, 512).unwrap();
        write_table(&disk.0, bytes, 512, part).unwrap();
        // A header alone, with places of every size for its entries.
        for place in [0, 1, u64::MAX, u64::MAX / 512, u64::MAX / 4096 + 1] {
            disk.0.write_all_at(&place.to_le_bytes(), 512 + 72).unwrap();
            disk.0
                .write_all_at(&place.to_le_bytes(), bytes - 512 + 72)
                .unwrap();
            assert_eq!(own_part(&disk.0, bytes), None, "{place}");
        }
        write_table(&disk.0, bytes, 512, part).unwrap();
        // A partition that ends behind the disk.
        disk.0
            .write_all_at(&u64::MAX.to_le_bytes(), 1024 + 40)
            .unwrap();
        disk.0.write_all_at(&[0; 512], bytes - 512).unwrap();
        assert_eq!(own_part(&disk.0, bytes), None);
        assert_eq!(own_part(&disk.0, 0), None);
    }
}
