//! Other contents of a device: file systems, partition tables and arrays, by the magic numbers that their formats
//! document. `create` refuses a device on which [`signature`] finds something.
//!
//! Invariant: only reads; bytes of any content are answered, never a panic. What cannot be read is
//! taken for empty, so a device with unreadable places is not refused for that.

use ashlar_rt::{BLOCK, Buf};

use crate::DeviceRef;

/// Where the head of a device, which holds most signatures, ends.
const HEAD_BYTES: u64 = 128 << 10;
/// How much of a device's end is looked at: md 0.90 lies up to 128 KiB before it.
const TAIL_BYTES: u64 = 128 << 10;
/// A ZFS label; two lie at the beginning and two at the end.
const ZFS_LABEL_BYTES: u64 = 256 << 10;
/// Where the uberblocks of a ZFS label begin; they fill its rest.
const ZFS_UBERBLOCKS: u64 = 128 << 10;

/// One magic number at a fixed offset from the beginning of the device.
type Fixed = (&'static str, usize, &'static [u8]);

/// Containers first, so that what lies inside them is not named instead.
const FIXED: &[Fixed] = &[
    ("a LUKS encrypted volume", 0, b"LUKS\xba\xbe"),
    ("a Ceph BlueStore OSD", 0, b"bluestore block device"),
    (
        "a member of an md array (1.1)",
        0,
        &[0xfc, 0x4e, 0x2b, 0xa9],
    ),
    (
        "a member of an md array (1.2)",
        4096,
        &[0xfc, 0x4e, 0x2b, 0xa9],
    ),
    ("an XFS file system", 0, b"XFSB"),
    ("a Squashfs file system", 0, b"hsqs"),
    ("a Btrfs file system", 65_600, b"_BHRfS_M"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 54, b"FAT12   "),
    ("a FAT file system", 54, b"FAT16   "),
    ("a FAT file system", 82, b"FAT32   "),
    ("an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("an ISO 9660 file system", 32_769, b"CD001"),
    ("a bcache or bcachefs device", 4120, &BCACHE),
    ("a bcache or bcachefs device", 4120, &BCACHEFS),
];

const BCACHE: [u8; 16] = [
    0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81,
];
const BCACHEFS: [u8; 16] = [
    0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef,
];

/// What the device holds, for people (with its article), or `None` if nothing is recognised.
///
/// Sources: the formats' own documents (kernel headers of ext4, md, LVM2, swap; UEFI for GPT; the
/// on-disk format papers of ZFS, XFS, Btrfs, LUKS, BlueStore).
pub async fn signature(device: &DeviceRef) -> Option<&'static str> {
    let size = device.info().size_bytes;
    let head = read(device, 0, HEAD_BYTES.min(size)).await;
    let tail_at = size - TAIL_BYTES.min(size);
    let tail = read(device, tail_at, size - tail_at).await;
    if let Some(found) = FIXED.iter().find(|(_, at, magic)| has(&head, *at, magic)) {
        return Some(found.0);
    }
    if let Some(found) = lvm(&head).or_else(|| swap(&head)).or_else(|| ext(&head)) {
        return Some(found);
    }
    if let Some(found) = at_the_end(&tail, size) {
        return Some(found);
    }
    if zfs(device, size).await {
        return Some("a member of a ZFS pool");
    }
    partition_table(&head, &tail)
}

async fn read(device: &DeviceRef, offset: u64, length: u64) -> Buf {
    let length = usize::try_from(length).expect("a small range");
    let (buf, result) = device.read(offset, Buf::zeroed(length)).await;
    match result {
        Ok(()) => buf,
        Err(_) => read_blocks(device, offset, length).await,
    }
}

/// Block by block, for a range that has unreadable places.
async fn read_blocks(device: &DeviceRef, offset: u64, length: usize) -> Buf {
    let mut all = Buf::zeroed(length);
    for at in (0..length).step_by(BLOCK) {
        let (block, result) = device.read(offset + at as u64, Buf::zeroed(BLOCK)).await;
        if result.is_ok() {
            all[at..at + BLOCK].copy_from_slice(&block);
        }
    }
    all
}

fn has(bytes: &[u8], at: usize, magic: &[u8]) -> bool {
    bytes.get(at..).is_some_and(|rest| rest.starts_with(magic))
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// The label is in one of the first four units of 512 bytes.
fn lvm(head: &[u8]) -> Option<&'static str> {
    (0..4)
        .any(|i| has(head, i * 512, b"LABELONE") && has(head, i * 512 + 24, b"LVM2 001"))
        .then_some("an LVM2 physical volume")
}

/// At the end of the first page, of whatever size the machine that made it had.
fn swap(head: &[u8]) -> Option<&'static str> {
    [4096, 8192, 16_384, 32_768, 65_536]
        .into_iter()
        .map(|page| page - 10)
        .any(|at| has(head, at, b"SWAPSPACE2") || has(head, at, b"SWAP-SPACE"))
        .then_some("swap space")
}

/// The superblock at 1024; features that only ext4, or only a journal, has tell which one it is.
fn ext(head: &[u8]) -> Option<&'static str> {
    const HAS_JOURNAL: u32 = 0x4; // compatible
    const EXT3_INCOMPATIBLE: u32 = 0x2 | 0x4 | 0x8 | 0x10; // filetype, recover, journal, meta_bg
    const EXT3_READ_ONLY: u32 = 0x1 | 0x2 | 0x4; // sparse_super, large_file, btree_dir
    if !has(head, 1024 + 0x38, &[0x53, 0xef]) {
        return None;
    }
    let (compatible, incompatible) = (le32(head, 1024 + 0x5c), le32(head, 1024 + 0x60));
    let read_only = le32(head, 1024 + 0x64);
    if incompatible & !EXT3_INCOMPATIBLE != 0 || read_only & !EXT3_READ_ONLY != 0 {
        return Some("an ext4 file system");
    }
    if compatible & HAS_JOURNAL != 0 {
        return Some("an ext3 file system");
    }
    Some("an ext2 file system")
}

/// What lies at the end of the `size` bytes of a device, of which `tail` holds the last.
fn at_the_end(tail: &[u8], size: u64) -> Option<&'static str> {
    const MD: [u8; 4] = [0xfc, 0x4e, 0x2b, 0xa9];
    let tail_at = size - tail.len() as u64;
    let found = |at: u64, magic: &[u8]| {
        at.checked_sub(tail_at)
            .and_then(|at| usize::try_from(at).ok())
            .is_some_and(|at| has(tail, at, magic))
    };
    // md 0.90: 64 KiB aligned, at least 64 KiB before the end; in the byte order of its machine.
    let old = (size & !0xffff).checked_sub(64 << 10);
    let mut swapped = MD;
    swapped.reverse();
    if old.is_some_and(|at| found(at, &MD) || found(at, &swapped)) {
        return Some("a member of an md array (0.90)");
    }
    // md 1.0: 8 KiB before the end, 4 KiB aligned.
    if size
        .checked_sub(8192)
        .is_some_and(|at| found(at & !4095, &MD))
    {
        return Some("a member of an md array (1.0)");
    }
    if size
        .checked_sub(1024)
        .is_some_and(|at| found(at, b"Intel Raid ISM Cfg Sig. "))
    {
        return Some("a member of an Intel RAID array");
    }
    const DDF: [u8; 4] = [0xde, 0x11, 0xde, 0x11];
    if size.checked_sub(512).is_some_and(|at| found(at, &DDF)) {
        return Some("a member of a DDF RAID array");
    }
    None
}

/// Any uberblock in any of the four labels, in either byte order.
async fn zfs(device: &DeviceRef, size: u64) -> bool {
    const MAGIC: u64 = 0x00ba_b10c;
    if size < 4 * ZFS_LABEL_BYTES {
        return false;
    }
    let end = size - size % ZFS_LABEL_BYTES;
    for label in [
        0,
        ZFS_LABEL_BYTES,
        end - 2 * ZFS_LABEL_BYTES,
        end - ZFS_LABEL_BYTES,
    ] {
        let blocks = read(
            device,
            label + ZFS_UBERBLOCKS,
            ZFS_LABEL_BYTES - ZFS_UBERBLOCKS,
        )
        .await;
        let mut uberblocks = blocks.chunks_exact(1024);
        if uberblocks.any(|u| has(u, 0, &MAGIC.to_le_bytes()) || has(u, 0, &MAGIC.to_be_bytes())) {
            return true;
        }
    }
    false
}

fn partition_table(head: &[u8], tail: &[u8]) -> Option<&'static str> {
    const GPT: &[u8] = b"EFI PART";
    // The second logical block; the last holds a copy.
    let first = [512, 4096].into_iter().any(|at| has(head, at, GPT));
    let last = [512, 4096].into_iter().any(|unit| {
        tail.len()
            .checked_sub(unit)
            .is_some_and(|at| has(tail, at, GPT))
    });
    if first || last {
        return Some("a GPT partition table");
    }
    if !has(head, 510, &[0x55, 0xaa]) {
        return None;
    }
    // A boot block alone has the same mark: entries must look like entries, and one must be used.
    let entries = head.get(446..510)?.chunks_exact(16);
    let plausible = entries.clone().all(|entry| matches!(entry[0], 0x00 | 0x80));
    let used = entries
        .clone()
        .any(|entry| entry[4] != 0 && le32(entry, 12) != 0);
    (plausible && used).then_some("an MBR partition table")
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::MemDevice;
    use ashlar_rt::Rt;

    const SIZE: u64 = (3 << 20) + (200 << 10);

    fn found(size: u64, places: &[(u64, &[u8])]) -> Option<&'static str> {
        let device = Rc::new(MemDevice::new("probe", size));
        for (at, bytes) in places {
            let first = at - at % BLOCK as u64;
            let mut area = vec![0; 2 * BLOCK.min(usize::try_from(size - first).expect("small"))];
            area.truncate(usize::try_from(size - first).expect("small"));
            device.peek(first, &mut area);
            let start = usize::try_from(at - first).expect("small");
            area[start..start + bytes.len()].copy_from_slice(bytes);
            device.poke(first, &area);
        }
        let device: DeviceRef = device;
        Rt::simulated(1).block_on(async move { signature(&device).await })
    }

    #[test]
    fn each_format_is_recognised_at_its_place() {
        let rows: &[(&str, u64, &[u8])] = &[
            ("LUKS", 0, b"LUKS\xba\xbe\x00\x02"),
            ("BlueStore", 0, b"bluestore block device\n"),
            ("XFS", 0, b"XFSB"),
            ("Squashfs", 0, b"hsqs"),
            ("NTFS", 3, b"NTFS    "),
            ("FAT", 54, b"FAT16   "),
            ("FAT", 82, b"FAT32   "),
            ("Btrfs", 0x10040, b"_BHRfS_M"),
            ("ISO 9660", 0x8001, b"CD001"),
            ("swap", 4086, b"SWAPSPACE2"),
            ("swap", 65_526, b"SWAPSPACE2"),
            ("md array (1.1)", 0, b"\xfc\x4e\x2b\xa9"),
            ("md array (1.2)", 4096, b"\xfc\x4e\x2b\xa9"),
            ("md array (1.0)", SIZE - 8192, b"\xfc\x4e\x2b\xa9"),
            (
                "md array (0.90)",
                (3 << 20) + (128 << 10),
                b"\xfc\x4e\x2b\xa9",
            ),
            ("Intel RAID", SIZE - 1024, b"Intel Raid ISM Cfg Sig. 1.0.00"),
            ("DDF", SIZE - 512, b"\xde\x11\xde\x11"),
            ("GPT", 512, b"EFI PART"),
            ("GPT", 4096, b"EFI PART"),
            ("GPT", SIZE - 512, b"EFI PART"),
            (
                "ZFS",
                (128 << 10) + 7 * 1024,
                b"\x0c\xb1\xba\x00\x00\x00\x00\x00",
            ),
            (
                "ZFS",
                (3 << 20) - (128 << 10),
                b"\x00\x00\x00\x00\x00\xba\xb1\x0c",
            ),
            ("ext2", 1080, b"\x53\xef"),
            ("F2FS", 1024, b"\x10\x20\xf5\xf2"),
        ];
        for (name, at, magic) in rows {
            let text = found(SIZE, &[(*at, magic)]).unwrap_or("nothing");
            assert!(text.contains(name), "{name} at {at}: {text}");
            // One byte further it is not there.
            assert_eq!(found(SIZE, &[(*at + 1, magic)]), None, "{name} after {at}");
        }
        let label = [(512, &b"LABELONE"[..]), (536, b"LVM2 001")];
        assert_eq!(found(SIZE, &label), Some("an LVM2 physical volume"));
    }

    #[test]
    fn generations_of_ext_are_told_apart() {
        let magic: (u64, &[u8]) = (1080, b"\x53\xef");
        let journal: (u64, &[u8]) = (1024 + 0x5c, b"\x04");
        let extents: (u64, &[u8]) = (1024 + 0x60, b"\x40");
        assert_eq!(found(SIZE, &[magic]), Some("an ext2 file system"));
        assert_eq!(found(SIZE, &[magic, journal]), Some("an ext3 file system"));
        assert_eq!(
            found(SIZE, &[magic, journal, extents]),
            Some("an ext4 file system")
        );
    }

    #[test]
    fn an_mbr_needs_plausible_entries() {
        let mark: (u64, &[u8]) = (510, b"\x55\xaa");
        let entry = [0x80, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1, 0];
        assert_eq!(found(SIZE, &[mark]), None);
        assert_eq!(
            found(SIZE, &[mark, (446, &entry)]),
            Some("an MBR partition table")
        );
        assert_eq!(found(SIZE, &[mark, (447, &entry)]), None);
    }

    #[test]
    fn empty_noisy_and_tiny_devices_hold_nothing() {
        for blocks in [1, 2, 3, 16, 17, 32, 300] {
            assert_eq!(found(blocks * BLOCK as u64, &[]), None);
        }
        let noise: Vec<u8> = (0..BLOCK as u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        assert_eq!(found(SIZE, &[(0, &noise), (SIZE - 4096, &noise)]), None);
    }
}
