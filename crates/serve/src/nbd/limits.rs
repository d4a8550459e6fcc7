//! Limits of the requests of a peer.
//!
//! Invariants: values only.

use ashlar_rt::{Nanos, SECOND};

/// The longest payload of one request, in bytes: 32 MiB.
pub const MAX_REQUEST_BYTES: u32 = 32 << 20;

/// Payload bytes in flight on one connection: 64 MiB.
pub const MAX_IN_FLIGHT_BYTES: usize = 64 << 20;

/// Requests in flight on one connection.
pub const MAX_IN_FLIGHT: usize = 128;

/// What a server allows its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at one time; more are closed at once.
    pub connections: usize,
    /// Of these, how many may be in their handshake.
    pub handshakes: usize,
    /// How long a handshake may take.
    pub handshake: Nanos,
    /// Connections have descriptors below this number; what is above is kept for others of the process.
    pub descriptors: i32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 256,
            handshakes: 64,
            handshake: 10 * SECOND,
            descriptors: i32::MAX,
        }
    }
}
