//! How an NBD client's request, or its connection, can fail.

use std::io;

use super::wire::errno;
use crate::VolumeError;

/// Why a request, or connecting, failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The address could not be reached.
    #[error("cannot connect ({0}): is the server running, and is the address right?")]
    Connect(io::ErrorKind),
    /// No answer in time.
    #[error("the server does not answer: check the address and the network")]
    Timeout,
    /// The address is not one.
    #[error("not an NBD address: use nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH")]
    Address,
    /// The server said something that the protocol does not allow.
    #[error("the server breaks the NBD protocol: is it an NBD server?")]
    Protocol,
    /// The server does not know fixed newstyle or GO.
    #[error("the server's NBD protocol is too old: it must know NBD_OPT_GO")]
    TooOld,
    /// The server does not have this export.
    #[error("the server has no export of this name: list them with nbdinfo --list")]
    NoSuchExport,
    /// The server refused to open the export (an NBD option error number).
    #[error("the server refused the export (NBD option error {0}): does it want TLS?")]
    Refused(u32),
    /// The server failed the request (an NBD error number, as Linux numbers them).
    #[error("the server failed the request (error {0})")]
    Remote(u32),
    /// The server cannot do this at all.
    #[error("the server does not support this")]
    Unsupported,
    /// Longer than the server accepts, or not inside the export.
    #[error("the request is too long, or not inside the export")]
    OutOfRange,
    /// The connection has ended.
    #[error("the connection to the server has ended: connect again")]
    Disconnected,
}

impl From<ClientError> for VolumeError {
    fn from(error: ClientError) -> VolumeError {
        match error {
            ClientError::Remote(errno::NO_SPACE) => VolumeError::NoSpace,
            ClientError::Remote(errno::PERM) => VolumeError::ReadOnly,
            ClientError::OutOfRange | ClientError::Remote(errno::INVALID) => {
                VolumeError::OutOfRange
            }
            ClientError::Disconnected | ClientError::Remote(errno::SHUTDOWN) => VolumeError::Closed,
            _ => VolumeError::Lost,
        }
    }
}
