//! One operation of a ring: the entry it needs next, and what a completion means for it.
//!
//! Invariant: however often the kernel stops short, an operation ends after every byte was moved once
//! and in place, or in a fault.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;

use ashlar_rt::{Buf, OneshotSender, Slice};
use io_uring::{opcode, squeue, types};

use crate::Fault;
use crate::discard::Discards;
use crate::fault::Presence;

/// The most bytes asked of the kernel in one operation.
const PIECE_BYTES: usize = 1 << 30;
/// The most iovecs the kernel takes in one operation.
const IOVECS_MAX: usize = 1024;
/// How often an operation that the kernel interrupts or cannot start yet is tried again, and how often at once: then
/// after a [`PAUSE`] each. Together as long as an array waits for a device.
const RETRIES_MAX: u32 = 30_000;
const RETRIES_AT_ONCE: u32 = 16;
/// What an operation waits that finds no memory, or no request free.
static PAUSE: types::Timespec = types::Timespec::new().nsec(1_000_000);

/// The operations of one device.
pub(super) struct Lane {
    pub(super) file: Arc<File>,
    pub(super) presence: Arc<Presence>,
    /// How a block device discards; files have holes punched by the ring.
    pub(super) discards: Option<Discards>,
    /// Handing an operation to its file system may wait, so that threads of the kernel do it.
    pub(super) slow: bool,
    pub(super) in_flight: Cell<usize>,
    pub(super) waiting: RefCell<VecDeque<Op>>,
    /// Whether it is in the ring's list of lanes that wait for room.
    pub(super) starved: Cell<bool>,
}

pub(super) type Reply = OneshotSender<Result<(), Fault>>;

pub(super) enum Work {
    Read {
        buf: Buf,
        reply: OneshotSender<(Buf, Result<(), Fault>)>,
    },
    Write {
        _data: Vec<Slice>,
        iovecs: Vec<libc::iovec>,
        first: usize,
        reply: Reply,
    },
    Flush {
        reply: Reply,
    },
    Discard {
        reply: Reply,
    },
}

/// One operation, with all that the kernel uses while it is in flight.
/// Its pointers are made from what it owns; using them is the ring's business.
pub(super) struct Op {
    pub(super) lane: Rc<Lane>,
    pub(super) work: Work,
    /// Where the rest begins.
    pub(super) offset: u64,
    /// Bytes not yet transferred (of a discard: all of them).
    pub(super) left: u64,
    pub(super) retries: u32,
    /// Its entry is one that waits for a [`PAUSE`].
    pub(super) pausing: bool,
}

/// What the completion of an entry means for its operation.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// Go on with what is left.
    Again,
    /// The operation has ended.
    Done(Result<(), Fault>),
}

impl Op {
    /// Whether it changes the device, and nobody waits for it any more: it was given up, as one that a device has not
    /// taken in time. What was given up is not submitted later, when somebody else may have the device.
    pub(super) fn is_given_up(&self) -> bool {
        match &self.work {
            Work::Read { .. } => false,
            Work::Write { reply, .. } | Work::Flush { reply } | Work::Discard { reply } => {
                !reply.is_awaited()
            }
        }
    }

    /// The entry for what is left of the operation.
    pub(super) fn entry(&mut self) -> squeue::Entry {
        let flags = match self.lane.slow {
            true => squeue::Flags::ASYNC,
            false => squeue::Flags::empty(),
        };
        match self.pausing {
            true => opcode::Timeout::new(&PAUSE).build(),
            false => self.bare_entry().flags(flags),
        }
    }

    fn bare_entry(&mut self) -> squeue::Entry {
        let fd = types::Fd(self.lane.file.as_raw_fd());
        let (offset, left) = (self.offset, self.left);
        match &mut self.work {
            Work::Read { buf, .. } => {
                let done = buf.len() - usize::try_from(left).unwrap_or(0);
                let rest = &mut buf[done..];
                let len = rest.len().min(PIECE_BYTES) as u32;
                opcode::Read::new(fd, rest.as_mut_ptr(), len)
                    .offset(offset)
                    .build()
            }
            Work::Write { iovecs, first, .. } => match &iovecs[*first..] {
                [one] => {
                    let len = one.iov_len.min(PIECE_BYTES) as u32;
                    opcode::Write::new(fd, one.iov_base.cast(), len)
                        .offset(offset)
                        .build()
                }
                rest => {
                    let count = rest.len().min(IOVECS_MAX) as u32;
                    opcode::Writev::new(fd, rest.as_ptr(), count)
                        .offset(offset)
                        .build()
                }
            },
            Work::Flush { .. } => opcode::Fsync::new(fd)
                .flags(types::FsyncFlags::DATASYNC)
                .build(),
            Work::Discard { .. } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(fd, left)
                    .offset(offset)
                    .mode(mode)
                    .build()
            }
        }
    }

    /// Takes the result of an entry into account.
    pub(super) fn step(&mut self, result: i32) -> Step {
        if std::mem::take(&mut self.pausing) {
            return Step::Again;
        }
        if result < 0 {
            return self.failed(-result);
        }
        let moved = u64::from(result.unsigned_abs());
        match &mut self.work {
            Work::Flush { .. } | Work::Discard { .. } => return Step::Done(Ok(())),
            // The file has become shorter than it was when it was opened.
            Work::Read { .. } if moved == 0 => return Step::Done(Err(Fault::Media)),
            Work::Write { .. } if moved == 0 => return Step::Done(Err(Fault::NoSpace)),
            Work::Read { .. } => {}
            Work::Write { iovecs, first, .. } => advance(iovecs, first, moved),
        }
        assert!(
            moved <= self.left,
            "the kernel moves no more than it was asked to"
        );
        self.left -= moved;
        self.offset += moved;
        if self.left == 0 {
            Step::Done(Ok(()))
        } else {
            Step::Again
        }
    }

    fn failed(&mut self, errno: i32) -> Step {
        match (errno, &self.work) {
            (libc::EINTR | libc::EAGAIN | libc::ENOMEM, _) if self.retries < RETRIES_MAX => {
                self.retries += 1;
                self.pausing = errno != libc::EINTR && self.retries > RETRIES_AT_ONCE;
                Step::Again
            }
            (libc::EINTR | libc::EAGAIN | libc::ENOMEM, _) => Step::Done(Err(Fault::Timeout)),
            // Discarding is advice; what cannot take it goes without.
            (libc::EOPNOTSUPP | libc::ENOSYS, Work::Discard { .. }) => Step::Done(Ok(())),
            // The descriptor is ours and open: it was opened for reading only.
            (libc::EBADF, Work::Write { .. } | Work::Discard { .. }) => {
                Step::Done(Err(Fault::ReadOnly))
            }
            _ => Step::Done(Err(self.lane.presence.fault(errno))),
        }
    }

    pub(super) fn finish(self, result: Result<(), Fault>) {
        match self.work {
            Work::Read { buf, reply } => reply.send((buf, result)),
            Work::Write { reply, .. } | Work::Flush { reply } | Work::Discard { reply } => {
                reply.send(result);
            }
        }
    }
}

/// Skips the first `moved` bytes of the iovecs from `first` on.
fn advance(iovecs: &mut [libc::iovec], first: &mut usize, moved: u64) {
    let mut moved = usize::try_from(moved).expect("a transfer fits the address space");
    while moved > 0 {
        let iovec = &mut iovecs[*first];
        if moved < iovec.iov_len {
            // Still inside the slice that this iovec describes.
            iovec.iov_base = iovec.iov_base.cast::<u8>().wrapping_add(moved).cast();
            iovec.iov_len -= moved;
            return;
        }
        moved -= iovec.iov_len;
        *first += 1;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::cell::{Cell, RefCell};
    use std::fs::File;
    use std::sync::Arc;

    use ashlar_rt::oneshot;

    use super::*;

    fn op(work: Work, left: u64) -> Op {
        let lane = Lane {
            file: Arc::new(File::open("/dev/null").unwrap()),
            presence: Arc::default(),
            discards: None,
            slow: false,
            in_flight: Cell::new(0),
            waiting: RefCell::default(),
            starved: Cell::new(false),
        };
        Op {
            lane: Rc::new(lane),
            work,
            offset: 8192,
            left,
            retries: 0,
            pausing: false,
        }
    }

    fn write_op(lens: &[usize]) -> Op {
        let data: Vec<Slice> = lens.iter().map(|len| Slice::zeroed(*len)).collect();
        let iovecs = data
            .iter()
            .map(|s| libc::iovec {
                iov_base: s.as_ptr().cast_mut().cast(),
                iov_len: s.len(),
            })
            .collect();
        let work = Work::Write {
            _data: data,
            iovecs,
            first: 0,
            reply: oneshot().0,
        };
        op(work, lens.iter().sum::<usize>() as u64)
    }

    fn rest(op: &Op) -> Vec<usize> {
        let Work::Write { iovecs, first, .. } = &op.work else {
            panic!("a write")
        };
        iovecs[*first..].iter().map(|iovec| iovec.iov_len).collect()
    }

    #[test]
    fn short_writes_go_on_where_they_stopped() {
        let mut op = write_op(&[4096, 8192, 4096]);
        let start = match &op.work {
            Work::Write { iovecs, .. } => iovecs[1].iov_base as usize,
            _ => unreachable!(),
        };
        assert_eq!(op.step(6144), Step::Again);
        assert_eq!((op.offset, op.left), (8192 + 6144, 16384 - 6144));
        assert_eq!(rest(&op), [6144, 4096]);
        let Work::Write { iovecs, first, .. } = &op.work else {
            unreachable!()
        };
        assert_eq!(iovecs[*first].iov_base as usize, start + 2048);
        assert_eq!(op.step(6144), Step::Again);
        assert_eq!(rest(&op), [4096]);
        assert_eq!(op.step(4096), Step::Done(Ok(())));
        assert!(rest(&op).is_empty());
    }

    #[test]
    fn results_that_end_an_operation() {
        let (reply, _receiver) = oneshot();
        let mut read = op(
            Work::Read {
                buf: Buf::zeroed(8192),
                reply,
            },
            8192,
        );
        assert_eq!(read.step(4096), Step::Again);
        assert_eq!((read.offset, read.left), (12288, 4096));
        assert_eq!(read.step(0), Step::Done(Err(Fault::Media)));
        assert_eq!(write_op(&[4096]).step(0), Step::Done(Err(Fault::NoSpace)));
        assert_eq!(
            write_op(&[4096]).step(-libc::ENOSPC),
            Step::Done(Err(Fault::NoSpace))
        );
        assert_eq!(
            write_op(&[4096]).step(-libc::EIO),
            Step::Done(Err(Fault::Media))
        );
        let mut discard = op(Work::Discard { reply: oneshot().0 }, 4096);
        assert_eq!(discard.step(-libc::EOPNOTSUPP), Step::Done(Ok(())));
        assert_eq!(discard.step(-libc::EIO), Step::Done(Err(Fault::Media)));
    }

    #[test]
    fn interrupted_operations_are_tried_again_but_not_for_ever() {
        let mut op = write_op(&[4096]);
        for errno in [libc::EINTR, libc::EAGAIN]
            .iter()
            .cycle()
            .take(RETRIES_MAX as usize)
        {
            assert_eq!(op.step(-errno), Step::Again);
            if op.pausing {
                assert_eq!(op.step(-libc::ETIME), Step::Again);
            }
        }
        assert_eq!(op.step(-libc::EAGAIN), Step::Done(Err(Fault::Timeout)));
        assert_eq!((op.offset, op.left), (8192, 4096));
    }

    /// A kernel without memory for an operation has some a moment later: that is no fault of the device.
    #[test]
    fn an_operation_that_finds_no_memory_waits_between_tries() {
        let mut op = write_op(&[4096]);
        for _ in 0..RETRIES_AT_ONCE {
            assert_eq!(op.step(-libc::ENOMEM), Step::Again);
            assert!(!op.pausing);
        }
        for _ in 0..3 {
            assert_eq!(op.step(-libc::ENOMEM), Step::Again);
            assert!(op.pausing);
            assert_eq!(op.step(-libc::ETIME), Step::Again, "the pause is over");
            assert!(!op.pausing);
        }
        assert_eq!((op.offset, op.left), (8192, 4096));
        assert_eq!(op.step(4096), Step::Done(Ok(())));
    }
}
