//! What the service manager is told (`sd_notify`): that the daemon is ready, that it still waits for devices, that it
//! stops.
//!
//! **Invariants**: without `NOTIFY_SOCKET` nothing is sent; a manager that does not listen costs nothing.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The manager that started this process, if it wants to hear of it.
#[derive(Debug)]
pub(crate) struct Manager(Option<(UnixDatagram, SocketAddr)>);

impl Manager {
    /// From the environment.
    pub(crate) fn from_environment() -> Manager {
        let address = std::env::var("NOTIFY_SOCKET").ok().and_then(|name| {
            // A name that begins with @ is one of the abstract kind.
            match name.strip_prefix('@') {
                Some(name) => SocketAddr::from_abstract_name(name).ok(),
                None => SocketAddr::from_pathname(name).ok(),
            }
        });
        let socket = UnixDatagram::unbound().ok();
        let socket = socket.filter(|socket| socket.set_nonblocking(true).is_ok());
        Manager(socket.zip(address))
    }

    /// Sends assignments, one a line.
    fn tell(&self, lines: &str) {
        if let Some((socket, address)) = &self.0 {
            let _ = socket.send_to_addr(lines.as_bytes(), address); // it waits for none
        }
    }

    /// Volumes are served.
    pub(crate) fn ready(&self) {
        self.tell("READY=1\nSTATUS=serving");
    }

    /// Not yet, for so many seconds at most from now on.
    pub(crate) fn wait_longer(&self, seconds: u64, what: &str) {
        let what: String = what.chars().filter(|c| !c.is_control()).collect();
        self.tell(&format!(
            "EXTEND_TIMEOUT_USEC={}\nSTATUS={what}",
            seconds * 1_000_000
        ));
    }

    /// It ends, within so many seconds.
    pub(crate) fn stopping(&self, seconds: u64) {
        self.tell(&format!(
            "STOPPING=1\nEXTEND_TIMEOUT_USEC={}\nSTATUS=closing arrays",
            seconds * 1_000_000
        ));
    }
}
