//! Replies of the NBD server, sans-IO: the bytes before a payload, and the pieces of block status.
//!
//! Invariant: one request gets one reply, in one piece; `DF` therefore needs nothing special.

use super::wire::{
    BASE_ALLOCATION_ID, SIMPLE_REPLY_MAGIC, STATE_HOLE, STATE_ZERO, STRUCTURED_REPLY_MAGIC, errno,
    piece,
};
use crate::{Extent, VolumeError};

/// Extents in one block status reply; the client asks again for the rest.
pub(super) const MAX_EXTENTS: usize = 4096;

/// The protocol's number for a volume's error.
pub(super) fn errno_of(error: VolumeError) -> u32 {
    match error {
        VolumeError::Lost => errno::IO,
        VolumeError::NoSpace => errno::NO_SPACE,
        VolumeError::OutOfRange => errno::INVALID,
        VolumeError::ReadOnly => errno::PERM,
        VolumeError::Closed => errno::SHUTDOWN,
    }
}

/// A simple reply: `error` is 0 for success, and then a read's data follow.
pub(super) fn put_simple(out: &mut Vec<u8>, cookie: u64, error: u32) {
    out.extend_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
}

fn put_piece(out: &mut Vec<u8>, cookie: u64, kind: u16, length: u32) {
    out.extend_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&piece::DONE.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
}

/// What stands before `length` bytes read at `offset`, as a structured reply.
pub(super) fn put_data_head(out: &mut Vec<u8>, cookie: u64, offset: u64, length: u32) {
    if length == 0 {
        put_piece(out, cookie, piece::NONE, 0); // a data piece must not be empty
    } else {
        put_piece(out, cookie, piece::OFFSET_DATA, length.saturating_add(8));
        out.extend_from_slice(&offset.to_be_bytes());
    }
}

/// An error as a structured reply, without a message.
pub(super) fn put_error_piece(out: &mut Vec<u8>, cookie: u64, error: u32) {
    put_piece(out, cookie, piece::ERROR, 6);
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&0u16.to_be_bytes());
}

/// A block status reply about `length` bytes, of at most `most` extents. Nothing is said beyond
/// `length`. `extents` must not be empty.
pub(super) fn put_block_status(
    out: &mut Vec<u8>,
    cookie: u64,
    length: u32,
    extents: &[Extent],
    most: usize,
) {
    let mut merged: Vec<(u32, bool)> = Vec::new();
    let mut left = length;
    for extent in extents {
        let take = u32::try_from(extent.length).unwrap_or(u32::MAX).min(left);
        if take == 0 {
            continue;
        }
        let full = merged.len() == most;
        match merged.last_mut() {
            Some(last) if last.1 == extent.hole => last.0 += take,
            _ if full => break,
            _ => merged.push((take, extent.hole)),
        }
        left -= take;
    }
    let bytes = u32::try_from(4 + 8 * merged.len()).expect("bounded by MAX_EXTENTS");
    put_piece(out, cookie, piece::BLOCK_STATUS, bytes);
    out.extend_from_slice(&BASE_ALLOCATION_ID.to_be_bytes());
    for (length, hole) in merged {
        let state = if hole { STATE_HOLE | STATE_ZERO } else { 0 };
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&state.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_status_merges_and_clips() {
        let extents = [(10, false), (5, false), (7, true), (9, false)]
            .map(|(length, hole)| Extent { length, hole });
        let words = |length, most| {
            let mut out = Vec::new();
            put_block_status(&mut out, 1, length, &extents, most);
            out[24..]
                .chunks(4)
                .map(|w| u32::from_be_bytes([w[0], w[1], w[2], w[3]]))
                .collect::<Vec<_>>()
        };
        assert_eq!(words(100, 9), [15, 0, 7, 3, 9, 0]);
        assert_eq!(words(100, 1), [15, 0]);
        assert_eq!(words(16, 9), [15, 0, 1, 3]);
        assert_eq!(words(3, 9), [3, 0]);
    }
}
