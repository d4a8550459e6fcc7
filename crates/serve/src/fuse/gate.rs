//! The one gate of the FUSE frontend: from a request to what the volume is to do, to an answer that
//! needs no volume, or to an error number.
//!
//! Invariant: an [`Action`] lies inside the volume and changes only a writable one.

use super::wire::MAX_REQUEST_BYTES;
use super::wire::{
    Call, MAJOR, ROOT, Request, Shown, attributes_reply, entry_reply, init_reply, open_reply,
    statfs_reply,
};
use crate::VolumeInfo;

/// What the volume is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Read {
        offset: u64,
        length: usize,
    },
    Write {
        offset: u64,
        length: u32,
        durable: bool,
    },
    Flush,
    Trim {
        offset: u64,
        length: u64,
    },
    WriteZeroes {
        offset: u64,
        length: u64,
    },
    /// The first data, or the first hole, from here on.
    Seek {
        offset: u64,
        hole: bool,
    },
}

/// What to do with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Do(Action),
    Answer(Vec<u8>),
    Silent,
}

pub(super) fn admit(request: &Request, info: &VolumeInfo, shown: Shown) -> Result<Verdict, i32> {
    match request.call {
        Call::Silent => return Ok(Verdict::Silent),
        Call::Init { major, .. } if major < MAJOR => return Err(libc::EPROTO),
        // A newer kernel learns the version from the answer and asks again.
        Call::Init {
            max_readahead,
            flags,
            ..
        } => {
            return Ok(Verdict::Answer(init_reply(max_readahead, flags)));
        }
        Call::Destroy => return Ok(Verdict::Answer(Vec::new())),
        _ => {}
    }
    if shown.folder && request.node == ROOT {
        return of_folder(request.call, info, shown);
    }
    if request.node != shown.file() {
        return Err(libc::ENOENT);
    }
    of_file(request.call, info, shown)
}

/// What the folder is asked that holds the file.
fn of_folder(call: Call, info: &VolumeInfo, shown: Shown) -> Result<Verdict, i32> {
    match call {
        Call::Lookup => Ok(Verdict::Answer(entry_reply(info, shown))),
        Call::GetAttr => Ok(Verdict::Answer(attributes_reply(info, shown, ROOT))),
        Call::StatFs => Ok(Verdict::Answer(statfs_reply(info))),
        Call::Nothing => Ok(Verdict::Answer(Vec::new())),
        _ => Err(libc::ENOSYS),
    }
}

/// What the file is asked that is the volume.
fn of_file(call: Call, info: &VolumeInfo, shown: Shown) -> Result<Verdict, i32> {
    let writes = matches!(
        call,
        Call::Write { .. } | Call::Fallocate { .. } | Call::Open { write: true }
    );
    if writes && info.read_only {
        return Err(libc::EROFS);
    }
    Ok(Verdict::Do(match call {
        Call::Lookup => return Err(libc::ENOTDIR),
        Call::GetAttr => return Ok(Verdict::Answer(attributes_reply(info, shown, shown.file()))),
        Call::SetAttr { size, refused } => {
            if refused || size.is_some_and(|size| size != info.size_bytes) {
                return Err(libc::EPERM);
            }
            return Ok(Verdict::Answer(attributes_reply(info, shown, shown.file())));
        }
        Call::Open { .. } => return Ok(Verdict::Answer(open_reply())),
        Call::Nothing => return Ok(Verdict::Answer(Vec::new())),
        Call::StatFs => return Ok(Verdict::Answer(statfs_reply(info))),
        Call::Read { offset, length } => {
            // Beyond the end a file reads as nothing.
            let left = usize::try_from(info.size_bytes.saturating_sub(offset));
            let length = (length as usize).min(MAX_REQUEST_BYTES);
            match length.min(left.unwrap_or(usize::MAX)) {
                0 => return Ok(Verdict::Answer(Vec::new())),
                length => Action::Read { offset, length },
            }
        }
        Call::Write {
            offset,
            length,
            sync,
        } => {
            if !info.contains(offset, u64::from(length)) {
                return Err(libc::ENOSPC);
            }
            Action::Write {
                offset,
                length,
                durable: sync,
            }
        }
        Call::Fsync => Action::Flush,
        Call::Fallocate {
            offset,
            length,
            mode,
        } => fallocate(info, offset, length, mode)?,
        Call::Seek { offset, whence } => {
            let hole = match whence.cast_signed() {
                libc::SEEK_DATA => false,
                libc::SEEK_HOLE => true,
                _ => return Err(libc::EINVAL),
            };
            if offset >= info.size_bytes {
                return Err(libc::ENXIO);
            }
            Action::Seek { offset, hole }
        }
        _ => return Err(libc::ENOSYS),
    }))
}

fn fallocate(info: &VolumeInfo, offset: u64, length: u64, mode: u32) -> Result<Action, i32> {
    let end = offset
        .checked_add(length)
        .filter(|_| length > 0)
        .ok_or(libc::EINVAL)?;
    let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE.cast_unsigned() != 0;
    if end > info.size_bytes && !keeps_size {
        return Err(libc::EFBIG);
    }
    // What lies beyond the end is nothing, and stays so.
    let length = length.min(info.size_bytes.saturating_sub(offset));
    let offset = offset.min(info.size_bytes);
    match mode.cast_signed() & !libc::FALLOC_FL_KEEP_SIZE {
        libc::FALLOC_FL_PUNCH_HOLE => Ok(Action::Trim { offset, length }),
        libc::FALLOC_FL_ZERO_RANGE => Ok(Action::WriteZeroes { offset, length }),
        _ => Err(libc::EOPNOTSUPP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;
    const SHOWN: Shown = Shown {
        uid: 0,
        gid: 0,
        folder: false,
        used_bytes: 0,
    };

    fn verdict(call: Call, read_only: bool) -> Result<Verdict, i32> {
        let info = VolumeInfo {
            size_bytes: SIZE,
            block_bytes: 4096,
            optimal_bytes: 4096,
            read_only,
            write_cache: true,
        };
        admit(
            &Request {
                unique: 1,
                node: ROOT,
                call,
            },
            &info,
            SHOWN,
        )
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table of cases")]
    fn requests_are_admitted_or_refused_as_the_table_says() {
        let write = |offset, length| Call::Write {
            offset,
            length,
            sync: false,
        };
        let punch = |offset, length, mode| Call::Fallocate {
            offset,
            length,
            mode,
        };
        let act = |action| Ok(Verdict::Do(action));
        let nothing = || Ok(Verdict::Answer(Vec::new()));
        let table = [
            (
                Call::Read {
                    offset: 5,
                    length: 9,
                },
                act(Action::Read {
                    offset: 5,
                    length: 9,
                }),
            ),
            (
                Call::Read {
                    offset: SIZE - 1,
                    length: 9,
                },
                act(Action::Read {
                    offset: SIZE - 1,
                    length: 1,
                }),
            ),
            (
                Call::Read {
                    offset: SIZE,
                    length: 9,
                },
                nothing(),
            ),
            (
                Call::Read {
                    offset: u64::MAX,
                    length: u32::MAX,
                },
                nothing(),
            ),
            (
                Call::Read {
                    offset: 0,
                    length: u32::MAX,
                },
                act(Action::Read {
                    offset: 0,
                    length: MAX_REQUEST_BYTES,
                }),
            ),
            (
                write(5, 9),
                act(Action::Write {
                    offset: 5,
                    length: 9,
                    durable: false,
                }),
            ),
            (write(SIZE - 8, 9), Err(libc::ENOSPC)),
            (write(u64::MAX, 2), Err(libc::ENOSPC)),
            (Call::Fsync, act(Action::Flush)),
            (
                punch(0, 4096, 3),
                act(Action::Trim {
                    offset: 0,
                    length: 4096,
                }),
            ),
            (
                punch(4096, u64::MAX - 4096, 3),
                act(Action::Trim {
                    offset: 4096,
                    length: SIZE - 4096,
                }),
            ),
            (punch(1, u64::MAX, 3), Err(libc::EINVAL)),
            (punch(0, 0, 3), Err(libc::EINVAL)),
            (punch(0, SIZE + 1, 0x10), Err(libc::EFBIG)),
            (
                punch(0, SIZE, 0x10),
                act(Action::WriteZeroes {
                    offset: 0,
                    length: SIZE,
                }),
            ),
            (
                punch(0, 8, 0x11),
                act(Action::WriteZeroes {
                    offset: 0,
                    length: 8,
                }),
            ),
            (punch(0, 8, 0), Err(libc::EOPNOTSUPP)),
            (punch(0, 8, 0x13), Err(libc::EOPNOTSUPP)),
            (
                Call::Seek {
                    offset: 0,
                    whence: 3,
                },
                act(Action::Seek {
                    offset: 0,
                    hole: false,
                }),
            ),
            (
                Call::Seek {
                    offset: 0,
                    whence: 4,
                },
                act(Action::Seek {
                    offset: 0,
                    hole: true,
                }),
            ),
            (
                Call::Seek {
                    offset: SIZE,
                    whence: 3,
                },
                Err(libc::ENXIO),
            ),
            (
                Call::Seek {
                    offset: 0,
                    whence: 0,
                },
                Err(libc::EINVAL),
            ),
            (Call::Lookup, Err(libc::ENOTDIR)),
            (Call::Other, Err(libc::ENOSYS)),
            (
                Call::SetAttr {
                    size: Some(0),
                    refused: false,
                },
                Err(libc::EPERM),
            ),
            (
                Call::Init {
                    major: 6,
                    max_readahead: 0,
                    flags: 0,
                },
                Err(libc::EPROTO),
            ),
            (Call::Silent, Ok(Verdict::Silent)),
            (Call::Destroy, nothing()),
            (Call::Nothing, nothing()),
        ];
        for (call, expected) in table {
            assert_eq!(verdict(call, false), expected, "{call:?}");
        }
        let info = VolumeInfo {
            size_bytes: SIZE,
            block_bytes: 4096,
            optimal_bytes: 4096,
            read_only: false,
            write_cache: true,
        };
        let elsewhere = Request {
            unique: 1,
            node: 2,
            call: Call::GetAttr,
        };
        assert_eq!(admit(&elsewhere, &info, SHOWN), Err(libc::ENOENT));
        // In a folder it is the file, and the root is none.
        let folder = Shown {
            folder: true,
            ..SHOWN
        };
        assert!(admit(&elsewhere, &info, folder).is_ok());
        let ask = |call| Request {
            unique: 1,
            node: ROOT,
            call,
        };
        let read = Call::Read {
            offset: 0,
            length: 9,
        };
        assert_eq!(admit(&ask(read), &info, folder), Err(libc::ENOSYS));
        let entry = Verdict::Answer(entry_reply(&info, folder));
        assert_eq!(admit(&ask(Call::Lookup), &info, folder), Ok(entry));
    }

    #[test]
    fn a_read_only_volume_refuses_every_change() {
        for call in [
            Call::Write {
                offset: 0,
                length: 1,
                sync: false,
            },
            Call::Fallocate {
                offset: 0,
                length: 1,
                mode: 3,
            },
            Call::Open { write: true },
        ] {
            assert_eq!(verdict(call, true), Err(libc::EROFS));
        }
        assert!(verdict(Call::Open { write: false }, true).is_ok());
    }
}
