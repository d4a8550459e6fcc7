//! A volume as one regular file, served to the kernel over `/dev/fuse`. Either the file covers an
//! existing one ([`Place::File`]), or it has no name at all ([`Place::Hidden`]), which is all that a
//! loop device on top of it needs and leaves nothing behind that others could hold or see.
//!
//! `wire` reads requests and writes replies, `gate` says what may be done (both sans-IO); `session`
//! moves them; `mount` and `sys` ask the kernel.
//!
//! ```text
//! file system - /dev/loopN - the file, direct I/O - /dev/fuse - session - Volume
//!       flush ->  fsync   ->  FUSE_FSYNC  ->  flush      discard -> punch hole -> trim
//! ```
//!
//! Invariants:
//! - The file is opened with FOPEN_DIRECT_IO: no page of it is ever cached above the volume, so what
//!   the volume acknowledged is what a reader sees, and an fsync has nothing left to write.
//! - Its size is the volume's and never changes.
//! - When the session ends, by unmounting or abort, nothing is in flight and the kernel answers
//!   every later request with an error by itself.

mod gate;
mod mount;
mod session;
mod sys;
mod wire;

pub use mount::{FuseError, FuseMount, Place};
pub use wire::MAX_REQUEST_BYTES;
