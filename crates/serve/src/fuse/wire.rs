//! The FUSE kernel protocol (Linux `include/uapi/linux/fuse.h`, 7.31 and later), as far as one
//! regular file needs it: requests from bytes, replies to bytes.
//!
//! Invariants: nothing here panics, whatever the bytes; a request whose length field is not the
//! length read, or whose arguments are cut short, is not a request. Numbers are in the byte order of
//! the machine, as the protocol has it.

use crate::VolumeInfo;

/// The longest write or read of one request, in bytes: what the kernel takes at most by default.
pub const MAX_REQUEST_BYTES: usize = 1 << 20;

/// Bytes of the header of a request, and of that of a reply.
pub(super) const IN_HEADER: usize = 40;
pub(super) const OUT_HEADER: usize = 16;
/// Where a write's payload begins.
pub(super) const WRITE_PAYLOAD: usize = IN_HEADER + 40;
/// The root: the file itself, or the folder that it is in.
pub(super) const ROOT: u64 = 1;
/// The file, where the root is a folder.
pub(super) const INSIDE: u64 = 2;
/// The version spoken: 7.31 has all that is used here; the kernel speaks down to it.
pub(super) const MAJOR: u32 = 7;
pub(super) const MINOR: u32 = 31;

const ASYNC_READ: u32 = 1;
const BIG_WRITES: u32 = 1 << 5;
const ASYNC_DIO: u32 = 1 << 15;
const MAX_PAGES: u32 = 1 << 22;

const FOPEN_DIRECT_IO: u32 = 1;
const FOPEN_NOFLUSH: u32 = 1 << 5;
const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

const SET_SIZE: u32 = 1 << 3;
/// Times, file handle and lock owner: nothing that is kept.
const SET_NOTHING: u32 = 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10;

/// Requests that the kernel may queue without waiting for them, and when it slows down.
const BACKGROUND: u16 = 128;
const CONGESTED: u16 = 96;
/// How long the kernel may keep the attributes, of which only the space in use changes: nobody asks for that of a
/// file that has no name.
const ATTRIBUTES_VALID: u64 = 3600;
const ATTRIBUTES_VALID_SEEN: u64 = 1;

/// A request as it came. Offsets and lengths are not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) unique: u64,
    pub(super) node: u64,
    pub(super) call: Call,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Init {
        major: u32,
        max_readahead: u32,
        flags: u32,
    },
    Destroy,
    Lookup,
    /// FORGET, BATCH_FORGET, INTERRUPT: no reply is expected.
    Silent,
    GetAttr,
    /// `refused`: asks for a change that is not possible. `size`: the new size, if one is asked for.
    SetAttr {
        size: Option<u64>,
        refused: bool,
    },
    Open {
        write: bool,
    },
    /// RELEASE, FLUSH: nothing to do.
    Nothing,
    StatFs,
    Read {
        offset: u64,
        length: u32,
    },
    /// The payload is the last `length` bytes of the request. `sync`: opened with O_SYNC or O_DSYNC.
    Write {
        offset: u64,
        length: u32,
        sync: bool,
    },
    Fsync,
    Fallocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    Seek {
        offset: u64,
        whence: u32,
    },
    /// Anything else.
    Other,
}

/// Takes values off the front of some bytes; `None` where they end.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }
    fn skip(&mut self, count: usize) -> Option<()> {
        self.0 = self.0.get(count..)?;
        Some(())
    }
}

/// Collects a reply's values.
#[derive(Default)]
struct Writer(Vec<u8>);

#[expect(
    clippy::host_endian_bytes,
    reason = "the protocol is in the byte order of the machine"
)]
impl Writer {
    fn u16(mut self, value: u16) -> Writer {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }
    fn u32(mut self, value: u32) -> Writer {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }
    fn u64(mut self, value: u64) -> Writer {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }
    fn zeros(mut self, count: usize) -> Writer {
        self.0.resize(self.0.len() + count, 0);
        self
    }
}

impl Request {
    /// The request in `bytes`, all that one read gave.
    pub(super) fn parse(bytes: &[u8]) -> Option<Request> {
        let mut input = Reader(bytes);
        let (length, opcode) = (input.u32()?, input.u32()?);
        let (unique, node) = (input.u64()?, input.u64()?);
        if length as usize != bytes.len() {
            return None;
        }
        let mut arguments = Reader(bytes.get(IN_HEADER..)?);
        let call = Call::parse(opcode, &mut arguments)?;
        if let Call::Write { length, .. } = call
            && arguments.0.len() != length as usize
        {
            return None;
        }
        Some(Request { unique, node, call })
    }

    /// The number of a request that cannot be understood, so that it can be refused.
    pub(super) fn unique_of(bytes: &[u8]) -> Option<u64> {
        let mut input = Reader(bytes);
        input.skip(8)?;
        input.u64()
    }
}

impl Call {
    fn parse(opcode: u32, input: &mut Reader<'_>) -> Option<Call> {
        Some(match opcode {
            1 => Call::Lookup,
            2 | 36 | 42 => Call::Silent,
            3 => Call::GetAttr,
            4 => {
                let valid = input.u32()?;
                input.skip(4 + 8)?;
                let size = input.u64()?;
                let refused = valid & !(SET_SIZE | SET_NOTHING) != 0;
                Call::SetAttr {
                    size: (valid & SET_SIZE != 0).then_some(size),
                    refused,
                }
            }
            14 => {
                let mode = input.u32()? & libc::O_ACCMODE.cast_unsigned();
                Call::Open {
                    write: mode != libc::O_RDONLY.cast_unsigned(),
                }
            }
            15 => {
                input.skip(8)?;
                Call::Read {
                    offset: input.u64()?,
                    length: input.u32()?,
                }
            }
            16 => {
                input.skip(8)?;
                let (offset, length) = (input.u64()?, input.u32()?);
                input.skip(4 + 8)?;
                let sync = input.u32()? & (libc::O_DSYNC | libc::O_SYNC).cast_unsigned() != 0;
                input.skip(4)?;
                Call::Write {
                    offset,
                    length,
                    sync,
                }
            }
            17 => Call::StatFs,
            18 | 25 => Call::Nothing,
            20 | 50 => Call::Fsync,
            26 => Call::Init {
                major: input.u32()?,
                max_readahead: {
                    input.skip(4)?;
                    input.u32()?
                },
                flags: input.u32()?,
            },
            38 => Call::Destroy,
            43 => {
                input.skip(8)?;
                Call::Fallocate {
                    offset: input.u64()?,
                    length: input.u64()?,
                    mode: input.u32()?,
                }
            }
            46 => {
                input.skip(8)?;
                Call::Seek {
                    offset: input.u64()?,
                    whence: input.u32()?,
                }
            }
            _ => Call::Other,
        })
    }
}

/// The header of a reply with `length` bytes behind it; `error` is a positive error number or 0.
#[expect(
    clippy::host_endian_bytes,
    reason = "the protocol is in the byte order of the machine"
)]
pub(super) fn reply_header(unique: u64, error: i32, length: usize) -> [u8; OUT_HEADER] {
    let mut header = [0; OUT_HEADER];
    let total = u32::try_from(OUT_HEADER + length).expect("replies are bounded");
    header[..4].copy_from_slice(&total.to_ne_bytes());
    header[4..8].copy_from_slice(&(-error).to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// The answer to INIT.
pub(super) fn init_reply(max_readahead: u32, flags: u32) -> Vec<u8> {
    let wanted = ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES;
    let pages = u16::try_from(MAX_REQUEST_BYTES / 4096).expect("256");
    let writer = Writer::default()
        .u32(MAJOR)
        .u32(MINOR)
        .u32(max_readahead)
        .u32(flags & wanted);
    let max_write = u32::try_from(MAX_REQUEST_BYTES).expect("1 MiB");
    let writer = writer.u16(BACKGROUND).u16(CONGESTED).u32(max_write).u32(1);
    writer.u16(pages).zeros(2 + 4 + 28).0
}

/// How the file is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// It is in a folder of its own, in which it has any name.
    pub(super) folder: bool,
    /// What it takes of the space.
    pub(super) used_bytes: u64,
}

impl Shown {
    /// The node of the file.
    pub(super) fn file(&self) -> u64 {
        if self.folder { INSIDE } else { ROOT }
    }
}

/// The attributes of a node.
fn attributes(writer: Writer, info: &VolumeInfo, shown: Shown, node: u64) -> Writer {
    let (mode, size, blocks) = if node == shown.file() {
        // Never none of a file that has a size: archivers do not read such a one at all, and what was written last
        // may not be counted yet.
        let blocks = (shown.used_bytes / 512).max(8).min(info.size_bytes / 512);
        let rights = if info.read_only { 0o400 } else { 0o600 };
        (libc::S_IFREG | rights, info.size_bytes, blocks)
    } else {
        (libc::S_IFDIR | 0o500, 0, 0)
    };
    let writer = writer.u64(node).u64(size).u64(blocks);
    let writer = writer.zeros(3 * 8 + 3 * 4).u32(mode).u32(1);
    let writer = writer.u32(shown.uid).u32(shown.gid);
    writer.u32(0).u32(info.block_bytes).u32(0)
}

/// The answer to GETATTR and SETATTR of a node.
pub(super) fn attributes_reply(info: &VolumeInfo, shown: Shown, node: u64) -> Vec<u8> {
    let valid = if shown.folder {
        ATTRIBUTES_VALID
    } else {
        ATTRIBUTES_VALID_SEEN
    };
    let writer = Writer::default().u64(valid).u32(0).u32(0);
    attributes(writer, info, shown, node).0
}

/// The answer to LOOKUP in the folder: the file, whatever its name.
pub(super) fn entry_reply(info: &VolumeInfo, shown: Shown) -> Vec<u8> {
    let writer = Writer::default().u64(INSIDE).u64(0);
    let writer = writer.u64(ATTRIBUTES_VALID).u64(ATTRIBUTES_VALID);
    let writer = writer.u32(0).u32(0);
    attributes(writer, info, shown, INSIDE).0
}

/// The answer to OPEN. Writes of one file go side by side: the volume orders them.
pub(super) fn open_reply() -> Vec<u8> {
    let flags = FOPEN_DIRECT_IO | FOPEN_NOFLUSH | FOPEN_PARALLEL_DIRECT_WRITES;
    Writer::default().u64(0).u32(flags).u32(0).0
}

/// The answer to WRITE.
pub(super) fn write_reply(length: u32) -> Vec<u8> {
    Writer::default().u32(length).u32(0).0
}

/// The answer to LSEEK.
pub(super) fn seek_reply(offset: u64) -> Vec<u8> {
    Writer::default().u64(offset).0
}

/// The answer to STATFS. A loop device takes its unit of discard from the block size.
pub(super) fn statfs_reply(info: &VolumeInfo) -> Vec<u8> {
    let blocks = info.size_bytes / u64::from(info.block_bytes.max(1));
    let writer = Writer::default().u64(blocks).u64(0).u64(0).u64(1).u64(0);
    writer
        .u32(info.block_bytes)
        .u32(255)
        .u32(info.block_bytes)
        .zeros(4 + 24)
        .0
}

#[cfg(test)]
#[expect(
    clippy::host_endian_bytes,
    reason = "the protocol is in the byte order of the machine"
)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// A request of these bytes behind its header.
    pub(in super::super) fn request(opcode: u32, arguments: &[u8]) -> Vec<u8> {
        let length = u32::try_from(IN_HEADER + arguments.len()).unwrap();
        let mut out = length.to_ne_bytes().to_vec();
        out.extend_from_slice(&opcode.to_ne_bytes());
        out.extend_from_slice(&77u64.to_ne_bytes());
        out.extend_from_slice(&ROOT.to_ne_bytes());
        out.resize(IN_HEADER, 0);
        out.extend_from_slice(arguments);
        out
    }

    fn write_arguments(offset: u64, length: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![0; 8];
        out.extend_from_slice(&offset.to_ne_bytes());
        out.extend_from_slice(&length.to_ne_bytes());
        out.extend_from_slice(&[0; 12]);
        out.extend_from_slice(&flags.to_ne_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(payload);
        out
    }

    #[test]
    fn requests_are_read_or_refused_as_the_table_says() {
        let call = |bytes: &[u8]| Request::parse(bytes).map(|r| r.call);
        let whole = request(16, &write_arguments(9, 3, 0, b"abc"));
        assert_eq!(
            call(&whole),
            Some(Call::Write {
                offset: 9,
                length: 3,
                sync: false
            })
        );
        assert_eq!(&whole[WRITE_PAYLOAD..], b"abc");
        let sync = request(16, &write_arguments(9, 3, libc::O_DSYNC as u32, b"abc"));
        assert_eq!(
            call(&sync),
            Some(Call::Write {
                offset: 9,
                length: 3,
                sync: true
            })
        );
        assert_eq!(call(&request(16, &write_arguments(9, 4, 0, b"abc"))), None);
        assert_eq!(
            call(&request(16, &write_arguments(9, u32::MAX, 0, b"abc"))),
            None
        );
        assert_eq!(call(&request(16, &[0; 39])), None);
        assert_eq!(call(&request(15, &[0; 19])), None);
        assert_eq!(
            call(&request(15, &[0; 40])),
            Some(Call::Read {
                offset: 0,
                length: 0
            })
        );
        assert_eq!(call(&request(26, &[7; 8])), None);
        assert_eq!(call(&request(43, &[0; 27])), None);
        assert_eq!(call(&request(46, &[0; 19])), None);
        assert_eq!(call(&request(2, &[])), Some(Call::Silent));
        assert_eq!(call(&request(999, &[])), Some(Call::Other));
        for cut in 0..whole.len() {
            assert_eq!(call(&whole[..cut]), None, "the length field says more");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert_eq!(call(&longer), None);
        assert_eq!(Request::unique_of(&whole[..16]), Some(77));
        assert_eq!(Request::unique_of(&whole[..15]), None);
    }

    #[test]
    fn setattr_knows_what_cannot_be_changed() {
        let ask = |valid: u32, size: u64| {
            let mut arguments = valid.to_ne_bytes().to_vec();
            arguments.extend_from_slice(&[0; 12]);
            arguments.extend_from_slice(&size.to_ne_bytes());
            arguments.resize(88, 0);
            Request::parse(&request(4, &arguments)).unwrap().call
        };
        assert_eq!(
            ask(SET_SIZE | 1 << 6, 9),
            Call::SetAttr {
                size: Some(9),
                refused: false
            }
        );
        assert_eq!(
            ask(1 << 4, 9),
            Call::SetAttr {
                size: None,
                refused: false
            }
        );
        assert_eq!(
            ask(1, 9),
            Call::SetAttr {
                size: None,
                refused: true
            }
        );
    }

    #[test]
    fn replies_have_the_lengths_of_the_protocol() {
        let info = VolumeInfo {
            size_bytes: 1 << 20,
            block_bytes: 4096,
            optimal_bytes: 4096,
            read_only: false,
            write_cache: true,
        };
        assert_eq!(init_reply(0, u32::MAX).len(), 64);
        let shown = Shown {
            uid: 0,
            gid: 0,
            folder: true,
            used_bytes: 0,
        };
        assert_eq!(attributes_reply(&info, shown, ROOT).len(), 104);
        assert_eq!(entry_reply(&info, shown).len(), 128);
        assert_eq!(statfs_reply(&info).len(), 80);
        assert_eq!(
            (
                open_reply().len(),
                write_reply(1).len(),
                seek_reply(1).len()
            ),
            (16, 8, 8)
        );
        assert_eq!(reply_header(5, libc::EIO, 0)[4..8], (-5i32).to_ne_bytes());
    }

    #[test]
    fn the_space_in_use_is_shown_and_never_none() {
        let info = VolumeInfo {
            size_bytes: 1 << 20,
            block_bytes: 4096,
            optimal_bytes: 4096,
            read_only: false,
            write_cache: true,
        };
        for (used_bytes, blocks) in [(0, 8), (64 << 10, 128), (1 << 20, 2048), (u64::MAX, 2048)] {
            let shown = Shown {
                uid: 0,
                gid: 0,
                folder: false,
                used_bytes,
            };
            let reply = attributes_reply(&info, shown, ROOT);
            assert_eq!(reply[32..40], u64::to_ne_bytes(blocks), "{used_bytes}");
        }
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut state = 3u64;
        let mut next = move || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 48) as u8
        };
        for round in 0..100_000u32 {
            let arguments: Vec<u8> = (0..next() % 100).map(|_| next()).collect();
            let mut bytes = request(round % 60, &arguments);
            if round % 7 == 0 {
                bytes.truncate(usize::from(next()) % (bytes.len() + 1));
            }
            let _ = Request::parse(&bytes);
            let _ = Request::unique_of(&bytes);
        }
    }
}
