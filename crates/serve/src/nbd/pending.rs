//! Outstanding requests of an NBD client, sans-IO: pieces of an answer in, the whole answer out.
//!
//! Invariant: a read is answered only when every byte has come, each once; anything else is
//! [`ClientError::Protocol`].

use std::collections::BTreeMap;

use ashlar_rt::{Buf, OneshotSender};

use super::ClientError;
use super::wire::{self, Reader, piece};
use crate::Extent;

/// Pieces in which one read may be answered.
const MAX_PIECES: usize = 8192;

/// What kind of answer, and who waits for it.
pub(super) enum Waiting {
    /// A read: its buffer, and which parts have come (start to end).
    Read {
        offset: u64,
        buf: Buf,
        came: BTreeMap<u32, u32>,
        reply: OneshotSender<Answer<Buf>>,
    },
    Status {
        extents: Vec<Extent>,
        length: u64,
        reply: OneshotSender<Answer<Vec<Extent>>>,
    },
    Done {
        reply: OneshotSender<Answer<()>>,
    },
}

/// What a request ends with.
pub(super) type Answer<T> = Result<T, ClientError>;

/// A request without its whole answer.
pub(super) struct Pending {
    pub(super) waiting: Waiting,
    /// The first error of a structured reply.
    pub(super) error: Option<ClientError>,
}

impl Pending {
    /// The answer is whole: delivers it.
    pub(super) fn settle(self) -> Result<(), ClientError> {
        let error = self.error.map_or(Ok(()), Err);
        match self.waiting {
            Waiting::Done { reply } => reply.send(error),
            Waiting::Read {
                buf, came, reply, ..
            } => {
                let covered: u64 = came.iter().map(|(start, end)| u64::from(end - start)).sum();
                if error.is_ok() && covered != buf.len() as u64 {
                    return Err(ClientError::Protocol);
                }
                reply.send(error.map(|()| buf));
            }
            Waiting::Status { extents, reply, .. } => {
                if error.is_ok() && extents.is_empty() {
                    return Err(ClientError::Protocol);
                }
                reply.send(error.map(|()| extents));
            }
        }
        Ok(())
    }

    /// The part of a read's buffer that a piece of the answer fills; each byte only once.
    pub(super) fn claim(&mut self, at: u64, length: u32) -> Result<&mut [u8], ClientError> {
        let Waiting::Read {
            offset, buf, came, ..
        } = &mut self.waiting
        else {
            return Err(ClientError::Protocol);
        };
        let claim = at.checked_sub(*offset).and_then(|start| {
            let start = u32::try_from(start).ok()?;
            let end = start.checked_add(length)?;
            (length > 0 && end as usize <= buf.len()).then_some((start, end))
        });
        let (start, end) = claim.ok_or(ClientError::Protocol)?;
        let clear = came
            .range(..end)
            .next_back()
            .is_none_or(|(_, last)| *last <= start);
        if !clear || came.len() >= MAX_PIECES {
            return Err(ClientError::Protocol);
        }
        came.insert(start, end);
        Ok(&mut buf[start as usize..end as usize])
    }

    /// A piece of a structured answer that is not data.
    pub(super) fn piece(&mut self, kind: u16, payload: &[u8]) -> Result<(), ClientError> {
        let mut reader = Reader(payload);
        match (kind, &mut self.waiting) {
            (piece::NONE, _) if payload.is_empty() => Ok(()),
            (piece::OFFSET_HOLE, Waiting::Read { .. }) => {
                let (at, length) = (reader.u64(), reader.u32());
                let (Some(at), Some(length)) = (at, length) else {
                    return Err(ClientError::Protocol);
                };
                self.claim(at, length)?.fill(0);
                Ok(())
            }
            (
                piece::BLOCK_STATUS,
                Waiting::Status {
                    extents, length, ..
                },
            ) => {
                reader.u32().ok_or(ClientError::Protocol)?;
                let mut left = *length;
                while left > 0 && !reader.is_empty() {
                    let (Some(length), Some(state)) = (reader.u32(), reader.u32()) else {
                        return Err(ClientError::Protocol);
                    };
                    if length == 0 {
                        return Err(ClientError::Protocol);
                    }
                    let hole = wire::STATE_HOLE | wire::STATE_ZERO;
                    let length = u64::from(length).min(left);
                    extents.push(Extent {
                        length,
                        hole: state & hole == hole,
                    });
                    left -= length;
                }
                *length = left;
                Ok(())
            }
            (kind, _) if kind & piece::ERROR_BIT != 0 => {
                let error = reader
                    .u32()
                    .filter(|e| *e != 0)
                    .ok_or(ClientError::Protocol)?;
                self.error.get_or_insert(ClientError::Remote(error));
                Ok(())
            }
            _ => Err(ClientError::Protocol),
        }
    }
}
