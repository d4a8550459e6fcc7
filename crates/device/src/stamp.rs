//! Tells whether two open devices are one, such as a file and the loop device over it: what is written to the one is
//! then read from the other.
//!
//! Invariants: what was there before is there again at the end, also after an error; it is written durably.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use ashlar_rt::{BLOCK, Buf};

use crate::{PART_FIRST, Unserved};

/// Where each is written, from the beginning of the whole device.
const AT: u64 = PART_FIRST;

fn read(file: &File) -> io::Result<Buf> {
    let mut block = Buf::zeroed(BLOCK);
    file.read_exact_at(&mut block, AT)?;
    Ok(block)
}

fn write(file: &File, block: &Buf) -> io::Result<()> {
    file.write_all_at(block, AT)?;
    file.sync_data()
}

/// The block that number `index` is given.
fn stamp(tag: [u8; 16], index: usize) -> Buf {
    let mut block = Buf::zeroed(BLOCK);
    block[..16].copy_from_slice(&tag);
    block[16..24].copy_from_slice(&(index as u64).to_le_bytes());
    block
}

/// Two of these devices that are one, by a random `tag`.
///
/// # Errors
/// Which device cannot be written, or read back.
pub fn find_same(
    all: &[&Unserved],
    tag: [u8; 16],
) -> Result<Option<(usize, usize)>, (usize, io::Error)> {
    let mut before = Vec::with_capacity(all.len());
    let found = stamp_all(all, tag, &mut before);
    let mut restored = Ok(());
    // The last first: of two that are one, the first has what was there.
    for (index, block) in before.iter().enumerate().rev() {
        if let Err(error) = write(&all[index].file, block) {
            restored = Err((index, error));
        }
    }
    let found = found?;
    restored.map(|()| found)
}

fn stamp_all(
    all: &[&Unserved],
    tag: [u8; 16],
    before: &mut Vec<Buf>,
) -> Result<Option<(usize, usize)>, (usize, io::Error)> {
    for (index, device) in all.iter().enumerate() {
        let at = |error| (index, error);
        before.push(read(&device.file).map_err(at)?);
        write(&device.file, &stamp(tag, index)).map_err(at)?;
    }
    for (index, device) in all.iter().enumerate() {
        let block = read(&device.file).map_err(|error| (index, error))?;
        let shows = |other: &usize| *other != index && block[..] == stamp(tag, *other)[..];
        if let Some(other) = (0..all.len()).find(shows) {
            return Ok(Some((index.min(other), index.max(other))));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::{OpenMode, open_unserved};

    #[test]
    fn two_names_of_one_file_are_found_and_nothing_is_changed() {
        let name = format!("ashlar-stamp-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let content = |byte: u8| vec![byte; 2 << 20];
        let paths: Vec<_> = (0..3u8).map(|n| folder.join(n.to_string())).collect();
        for (byte, path) in (1..).zip(&paths) {
            std::fs::write(path, content(byte)).unwrap();
        }
        let link = folder.join("link");
        std::fs::hard_link(&paths[1], &link).unwrap();
        let open = |path| open_unserved(path, OpenMode::default()).unwrap();
        let all = [&paths[0], &paths[1], &paths[2], &link].map(|p| open(p));
        let some = |numbers: &[usize]| {
            let some: Vec<&Unserved> = numbers.iter().map(|n| &all[*n]).collect();
            find_same(&some, [7; 16]).unwrap()
        };
        assert_eq!(some(&[0, 1, 2]), None);
        assert_eq!(some(&[0, 1, 2, 3]), Some((1, 3)));
        assert_eq!(some(&[3, 2, 0, 1]), Some((0, 3)));
        for (byte, path) in (1..).zip(&paths) {
            assert!(std::fs::read(path).unwrap() == content(byte), "{byte}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
