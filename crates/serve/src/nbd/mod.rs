//! The Network Block Device protocol, fixed newstyle, as in the NBD project's `doc/proto.md`:
//! [`NbdServer`] and [`NbdClient`].
//!
//! `wire`, `negotiation`, `gate` and `reply` (server), `hello` and `pending` (client) are sans-IO: bytes in, bytes
//! or typed values out, no awaits. `connection`, `server` and `client` move the bytes.
//!
//! Invariants:
//! - A peer holds at most one option's payload (4.5 KiB) before transmission, and
//!   [`MAX_IN_FLIGHT_BYTES`] and [`MAX_IN_FLIGHT`] after.
//! - A volume is looked up only by an option that names it and touched only in transmission.
//! - A peer that breaks the protocol loses its connection and nothing else.
//! - TLS is not spoken: STARTTLS is refused, and nothing negotiated before it changes.

mod address;
mod client;
mod client_error;
mod connection;
mod gate;
mod hello;
mod limits;
mod listen;
mod negotiation;
mod pending;
#[cfg(test)]
mod pipe;
mod reply;
mod server;
mod stream;
mod wire;

pub use address::{NbdAddress, NbdServerAddress};
pub use client::NbdClient;
pub use client_error::ClientError;
pub use limits::{Limits, MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES, MAX_REQUEST_BYTES};
pub use listen::{ListenError, NbdListener};
pub use negotiation::{Catalog, Export, Exports};
pub use server::NbdServer;
pub use wire::ExportInfo;
