//! Addresses of NBD servers, as users write them.

use std::path::PathBuf;

use super::ClientError;

/// Where a server is, and which export is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdAddress {
    /// The socket.
    pub server: NbdServerAddress,
    /// The export; may be empty.
    pub export: String,
}

/// The socket of an NBD server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdServerAddress {
    /// `HOST:PORT`
    Tcp(String),
    /// A socket's path.
    Unix(PathBuf),
}

impl NbdAddress {
    /// Understands `nbd://HOST[:PORT]/EXPORT` and `nbd+unix:///EXPORT?socket=PATH`.
    ///
    /// # Errors
    /// [`ClientError::Address`].
    pub fn parse(text: &str) -> Result<NbdAddress, ClientError> {
        if let Some(rest) = text.strip_prefix("nbd+unix:///") {
            let (export, path) = rest.split_once("?socket=").ok_or(ClientError::Address)?;
            if path.is_empty() {
                return Err(ClientError::Address);
            }
            let server = NbdServerAddress::Unix(PathBuf::from(path));
            return Ok(NbdAddress {
                server,
                export: export.to_owned(),
            });
        }
        let rest = text.strip_prefix("nbd://").ok_or(ClientError::Address)?;
        let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
        if host.is_empty() {
            return Err(ClientError::Address);
        }
        let has_port = host
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let host = if has_port {
            host.to_owned()
        } else {
            format!("{host}:10809")
        };
        Ok(NbdAddress {
            server: NbdServerAddress::Tcp(host),
            export: export.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn addresses_are_read_as_users_write_them() {
        let tcp = |server: &str, export: &str| {
            Ok(NbdAddress {
                server: NbdServerAddress::Tcp(server.into()),
                export: export.into(),
            })
        };
        assert_eq!(
            NbdAddress::parse("nbd://127.0.0.1:9/a/b"),
            tcp("127.0.0.1:9", "a/b")
        );
        assert_eq!(NbdAddress::parse("nbd://host"), tcp("host:10809", ""));
        assert_eq!(NbdAddress::parse("nbd://[::1]:9/x"), tcp("[::1]:9", "x"));
        let unix = NbdAddress::parse("nbd+unix:///a/b?socket=/tmp/s").unwrap();
        assert_eq!(unix.server, NbdServerAddress::Unix("/tmp/s".into()));
        assert_eq!(unix.export, "a/b");
        for bad in [
            "",
            "nbd:",
            "nbd://",
            "nbd:///x",
            "http://h/x",
            "nbd+unix:///x",
            "nbd+unix:///x?socket=",
        ] {
            assert_eq!(NbdAddress::parse(bad), Err(ClientError::Address), "{bad}");
        }
    }
}
