//! What every other crate runs on: a single-threaded executor, a clock, seeded randomness, timers,
//! message channels and aligned buffers. It knows no storage.
//!
//! Invariants:
//! - One [`Rt`] belongs to one thread. Everything spawned on it runs on that thread, to completion
//!   or to its next await; nothing else runs in between.
//! - Time and randomness come from the [`Rt`] only. A simulated [`Rt`] has virtual time, which
//!   advances to the next timer when no task can run, and picks the next ready task by its seed:
//!   one seed, one history.
//! - I/O futures own their buffers. Dropping one never cancels what the kernel has been asked to do.

mod buf;
mod channel;
mod executor;
mod fd;
mod memory;
pub mod net;
mod order;
mod reactor;
mod sync;
mod tasks;
mod time;

pub use buf::{BLOCK, Buf, Slice, ask_large_pages};
pub use channel::{Mailbox, OneshotReceiver, OneshotSender, Sender, mailbox, oneshot};
pub use executor::{Remote, Rt, Stopped};
pub use fd::AsyncFd;
pub use memory::give_back_memory;
pub use order::Rank;
pub use reactor::{Driver, Epoll, Reactor};
pub use sync::{Gate, Lock, LockGuard, Permits, PermitsGuard};
pub use tasks::{Join, join_all};
pub use time::{MICROSECOND, MILLISECOND, Nanos, SECOND};
