//! The part of the kernel's FUSE protocol that a folder of files of fixed sizes needs. Written for the tests, apart from
//! the program's own: it can answer short.
//!
//! **Invariant**: files are opened with FOPEN_DIRECT_IO, so every read and write of the daemon gets here.
#![expect(
    clippy::host_endian_bytes,
    reason = "the protocol is in the byte order of the machine"
)]

use std::fs::File;
use std::io::Write;

/// The largest read or write.
pub const LARGEST: usize = 1 << 20;
/// Room for any request.
pub const REQUEST: usize = LARGEST + 4096;

const HEADER: usize = 40;
/// The root; file `i` is node `i + 2`.
const ROOT: u64 = 1;
const FIRST: u64 = 2;
/// Asynchronous direct I/O, requests of more than 128 KiB, lookups side by side, large writes. As libfuse has it: without
/// the first Linux 6.18 goes on behind a short write of io_uring at the wrong place, and with it answers EIO.
const INIT_FLAGS: u32 = 1 << 15 | 1 << 22 | 1 << 18 | 1 << 5;
/// Direct I/O, and several writes at once.
const OPEN_FLAGS: u32 = 1 | 1 << 6;

/// What the kernel asks.
#[derive(Debug)]
pub enum Call {
    Init,
    /// A name in the root.
    Lookup(String),
    Attributes,
    Open,
    Read {
        offset: u64,
        length: usize,
    },
    Write {
        offset: u64,
        data: Vec<u8>,
    },
    Sync,
    Statistics,
    /// Is answered with nothing.
    Nothing,
    /// Wants no answer.
    Silent,
    /// Not known here.
    Other,
}

/// A request: its number, whom it is about, what it asks.
#[derive(Debug)]
pub struct Request {
    pub unique: u64,
    /// The file; none for the root.
    pub file: Option<usize>,
    pub call: Call,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl Request {
    /// Reads one.
    pub fn parse(bytes: &[u8]) -> Request {
        let body = &bytes[HEADER..];
        let call = match word(bytes, 4) {
            1 => Call::Lookup(String::from_utf8_lossy(&body[..body.len() - 1]).into_owned()),
            2 | 36 | 42 => Call::Silent,
            3 | 4 => Call::Attributes,
            14 | 27 => Call::Open,
            15 => Call::Read {
                offset: long(body, 8),
                length: word(body, 16) as usize,
            },
            16 => Call::Write {
                offset: long(body, 8),
                data: body[40..40 + word(body, 16) as usize].to_vec(),
            },
            17 => Call::Statistics,
            20 => Call::Sync,
            18 | 25 | 29 | 38 => Call::Nothing,
            26 => Call::Init,
            _ => Call::Other,
        };
        let node = long(bytes, 16);
        Request {
            unique: long(bytes, 8),
            file: node
                .checked_sub(FIRST)
                .and_then(|file| usize::try_from(file).ok()),
            call,
        }
    }
}

/// Sends an answer. A connection that has ended takes none.
pub fn answer(mut fuse: &File, unique: u64, result: Result<&[u8], i32>) {
    let (error, body) = match result {
        Ok(body) => (0, body),
        Err(errno) => (-errno, &[][..]),
    };
    let length = u32::try_from(16 + body.len()).unwrap();
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(error.to_ne_bytes());
    bytes.extend(unique.to_ne_bytes());
    bytes.extend(body);
    let _ = fuse.write(&bytes);
}

fn longs(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

/// The answer to `Init`.
pub fn init() -> Vec<u8> {
    let largest = u32::try_from(LARGEST).unwrap();
    let queues = 64 | 64 << 16;
    let pages = u32::try_from(LARGEST / 4096).unwrap();
    let mut body = words(&[7, 31, 0, INIT_FLAGS, queues, largest, 1, pages]);
    body.resize(64, 0);
    body
}

fn attributes_of(file: Option<usize>, bytes: u64) -> Vec<u8> {
    let node = file.map_or(ROOT, |file| file as u64 + FIRST);
    let mode = file.map_or(0o040_700, |_| 0o100_600);
    let mut out = longs(&[node, bytes, bytes / 512, 0, 0, 0]);
    out.extend(words(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]));
    out
}

/// The answer to `Attributes`.
pub fn attributes(file: Option<usize>, bytes: u64) -> Vec<u8> {
    [longs(&[3600, 0]), attributes_of(file, bytes)].concat()
}

/// The answer to `Lookup` of a file that is there.
pub fn entry(file: usize, bytes: u64) -> Vec<u8> {
    let node = file as u64 + FIRST;
    let times = longs(&[node, 0, 3600, 3600, 0]);
    [times, attributes_of(Some(file), bytes)].concat()
}

/// The answer to `Open`.
pub fn open() -> Vec<u8> {
    [longs(&[0]), words(&[OPEN_FLAGS, 0])].concat()
}

/// The answer to `Write`: how many bytes were taken.
pub fn written(bytes: usize) -> Vec<u8> {
    words(&[u32::try_from(bytes).unwrap(), 0])
}

/// The answer to `Statistics`.
pub fn statistics() -> Vec<u8> {
    vec![0; 80]
}
