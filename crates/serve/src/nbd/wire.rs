//! Numbers and fixed structures of the NBD protocol, and a checked reader of big-endian bytes.
//!
//! Invariant: nothing here panics, whatever the bytes.

use super::limits::MAX_REQUEST_BYTES;
use crate::VolumeInfo;

pub(super) const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
pub(super) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(super) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(super) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags; server and client use the same two bits.
pub(super) const FIXED_NEWSTYLE: u16 = 1;
pub(super) const NO_ZEROES: u16 = 2;

pub(super) mod option {
    pub(in super::super) const EXPORT_NAME: u32 = 1;
    pub(in super::super) const ABORT: u32 = 2;
    pub(in super::super) const LIST: u32 = 3;
    pub(in super::super) const STARTTLS: u32 = 5;
    pub(in super::super) const INFO: u32 = 6;
    pub(in super::super) const GO: u32 = 7;
    pub(in super::super) const STRUCTURED_REPLY: u32 = 8;
    pub(in super::super) const LIST_META_CONTEXT: u32 = 9;
    pub(in super::super) const SET_META_CONTEXT: u32 = 10;
}

/// Types of option replies; errors have the top bit.
pub(super) mod rep {
    pub(in super::super) const ACK: u32 = 1;
    pub(in super::super) const SERVER: u32 = 2;
    pub(in super::super) const INFO: u32 = 3;
    pub(in super::super) const META_CONTEXT: u32 = 4;
    pub(in super::super) const ERROR: u32 = 1 << 31;
    pub(in super::super) const ERR_UNSUP: u32 = ERROR + 1;
    pub(in super::super) const ERR_INVALID: u32 = ERROR + 3;
    pub(in super::super) const ERR_UNKNOWN: u32 = ERROR + 6;
    pub(in super::super) const ERR_TOO_BIG: u32 = ERROR + 9;
}

pub(super) mod info {
    pub(in super::super) const EXPORT: u16 = 0;
    pub(in super::super) const NAME: u16 = 1;
    pub(in super::super) const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags.
pub(super) mod flag {
    pub(in super::super) const HAS_FLAGS: u16 = 1;
    pub(in super::super) const READ_ONLY: u16 = 1 << 1;
    pub(in super::super) const SEND_FLUSH: u16 = 1 << 2;
    pub(in super::super) const SEND_FUA: u16 = 1 << 3;
    pub(in super::super) const SEND_TRIM: u16 = 1 << 5;
    pub(in super::super) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(in super::super) const SEND_DF: u16 = 1 << 7;
    pub(in super::super) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(in super::super) const SEND_CACHE: u16 = 1 << 10;
    pub(in super::super) const SEND_FAST_ZERO: u16 = 1 << 11;
}

pub(super) mod command {
    pub(in super::super) const READ: u16 = 0;
    pub(in super::super) const WRITE: u16 = 1;
    pub(in super::super) const DISCONNECT: u16 = 2;
    pub(in super::super) const FLUSH: u16 = 3;
    pub(in super::super) const TRIM: u16 = 4;
    pub(in super::super) const CACHE: u16 = 5;
    pub(in super::super) const WRITE_ZEROES: u16 = 6;
    pub(in super::super) const BLOCK_STATUS: u16 = 7;
}

/// Command flags.
pub(super) mod cmd_flag {
    pub(in super::super) const FUA: u16 = 1;
    pub(in super::super) const NO_HOLE: u16 = 1 << 1;
    pub(in super::super) const DF: u16 = 1 << 2;
    pub(in super::super) const REQ_ONE: u16 = 1 << 3;
    pub(in super::super) const FAST_ZERO: u16 = 1 << 4;
}

/// Types and flag of structured reply pieces; errors have bit 15.
pub(super) mod piece {
    pub(in super::super) const DONE: u16 = 1;
    pub(in super::super) const NONE: u16 = 0;
    pub(in super::super) const OFFSET_DATA: u16 = 1;
    pub(in super::super) const OFFSET_HOLE: u16 = 2;
    pub(in super::super) const BLOCK_STATUS: u16 = 5;
    pub(in super::super) const ERROR_BIT: u16 = 1 << 15;
    pub(in super::super) const ERROR: u16 = ERROR_BIT + 1;
}

/// Error numbers of the protocol: the same as Linux has, but only these.
pub(super) mod errno {
    pub(in super::super) const PERM: u32 = 1;
    pub(in super::super) const IO: u32 = 5;
    pub(in super::super) const INVALID: u32 = 22;
    pub(in super::super) const NO_SPACE: u32 = 28;
    pub(in super::super) const NOT_SUPPORTED: u32 = 95;
    pub(in super::super) const SHUTDOWN: u32 = 108;
}

/// The metadata context that is spoken, its number on every connection, and its two bits.
pub(super) const BASE_ALLOCATION: &str = "base:allocation";
pub(super) const BASE_ALLOCATION_ID: u32 = 1;
pub(super) const STATE_HOLE: u32 = 1;
pub(super) const STATE_ZERO: u32 = 2;

/// Names on the wire may be this long; longer ones break the protocol.
pub(super) const MAX_NAME: usize = 4096;
/// The longest name that a server of ours gives to an export.
pub(super) const MAX_EXPORT_NAME: usize = 255;

/// What a server says about an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Capacity.
    pub size_bytes: u64,
    /// The NBD transmission flags.
    pub flags: u16,
    /// Every request must be a multiple of this, in bytes.
    pub minimum_bytes: u32,
    /// What requests should be a multiple of, in bytes.
    pub preferred_bytes: u32,
    /// The longest request, in bytes.
    pub maximum_bytes: u32,
    /// Reads come as structured replies.
    pub structured: bool,
    /// The server tells holes from data.
    pub allocation: bool,
}

impl ExportInfo {
    /// What we say about a volume.
    pub(super) fn of(volume: &VolumeInfo, structured: bool, allocation: bool) -> ExportInfo {
        let mut flags =
            flag::HAS_FLAGS | flag::SEND_FLUSH | flag::CAN_MULTI_CONN | flag::SEND_CACHE;
        if volume.read_only {
            flags |= flag::READ_ONLY;
        } else {
            flags |=
                flag::SEND_FUA | flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        if structured {
            flags |= flag::SEND_DF;
        }
        let preferred_bytes = volume
            .block_bytes
            .clamp(512, MAX_REQUEST_BYTES)
            .next_power_of_two();
        ExportInfo {
            size_bytes: volume.size_bytes,
            flags,
            minimum_bytes: 1,
            preferred_bytes,
            maximum_bytes: MAX_REQUEST_BYTES,
            structured,
            allocation,
        }
    }

    /// Whether a transmission flag is set.
    pub(super) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// A request as it came: nothing checked but the magic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestHeader {
    pub(super) flags: u16,
    pub(super) command: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
}

impl RequestHeader {
    pub(super) const BYTES: usize = 28;

    /// `None`: not a request, so the stream is out of step.
    pub(super) fn parse(bytes: &[u8; Self::BYTES]) -> Option<RequestHeader> {
        let mut input = Reader(bytes);
        if input.u32()? != REQUEST_MAGIC {
            return None;
        }
        Some(RequestHeader {
            flags: input.u16()?,
            command: input.u16()?,
            cookie: input.u64()?,
            offset: input.u64()?,
            length: input.u32()?,
        })
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out.extend_from_slice(&self.flags.to_be_bytes());
        out.extend_from_slice(&self.command.to_be_bytes());
        out.extend_from_slice(&self.cookie.to_be_bytes());
        out.extend_from_slice(&self.offset.to_be_bytes());
        out.extend_from_slice(&self.length.to_be_bytes());
    }
}

/// Takes big-endian values off the front of some bytes; `None` where they end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string with its length in front.
    pub(super) fn string(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.u32()?).ok()?;
        if length > MAX_NAME {
            return None;
        }
        std::str::from_utf8(self.bytes(length)?).ok()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Appends one option reply.
pub(super) fn put_option_reply(out: &mut Vec<u8>, option: u32, kind: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("our option replies are short");
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Appends one option request.
pub(super) fn put_option(out: &mut Vec<u8>, option: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("our options are short");
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Appends a string with its length in front.
pub(super) fn put_string(out: &mut Vec<u8>, text: &str) {
    let length = u32::try_from(text.len()).expect("names are short");
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}
