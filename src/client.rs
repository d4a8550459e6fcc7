//! The command line's end of the HTTP API: one request at a time over the daemon's Unix socket.
//!
//! **Invariants**: a daemon that cannot be reached, hangs or answers nonsense is a [`Failure`],
//! never an empty result; an answer is at most [`MAX_ANSWER`] bytes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::body::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::{Call, ErrorReply};
use crate::failure::Failure;
use crate::units::duration;
use crate::view::progress::Progress;

/// Largest answer taken: a status of a thousand devices is under one MiB.
const MAX_ANSWER: usize = 64 << 20;
/// What takes longer says how long it has taken.
const SAY_AFTER: Duration = Duration::from_secs(2);
/// What should be answered at once, and is not after this time, says that the daemon does not answer.
const NO_ANSWER: Duration = Duration::from_secs(5);
/// Where the daemon listens unless told otherwise.
pub(crate) const DEFAULT_SOCKET: &str = "/run/ashlar/ashlar.sock";

/// A way to reach a daemon.
#[derive(Debug)]
pub(crate) struct Client {
    socket: PathBuf,
    runtime: tokio::runtime::Runtime,
    shows_progress: bool,
}

/// The socket to use: the flag, else `$ASHLAR_SOCKET`, else [`DEFAULT_SOCKET`].
pub(crate) fn socket_path(flag: Option<&Path>) -> PathBuf {
    if let Some(path) = flag {
        return path.to_path_buf();
    }
    match std::env::var_os("ASHLAR_SOCKET") {
        Some(path) if !path.is_empty() => path.into(),
        _ => DEFAULT_SOCKET.into(),
    }
}

impl Client {
    /// A client of the daemon at `socket`; connects at the first call.
    ///
    /// # Errors
    /// If the process can have no more descriptors.
    pub(crate) fn new(socket: PathBuf) -> Result<Client, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Failure::broken(format!("cannot start the client: {e}")))?;
        Ok(Client {
            socket,
            runtime,
            shows_progress: false,
        })
    }

    /// The same, and what takes long says how long it has taken.
    #[must_use]
    pub(crate) fn with_progress(self) -> Client {
        Client {
            shows_progress: true,
            ..self
        }
    }

    /// Asks `call`, and reads the answer as `T`.
    ///
    /// # Errors
    /// The daemon's own line, or why it could not be asked.
    pub(crate) fn call<T: DeserializeOwned>(&self, call: &Call) -> Result<T, Failure> {
        let value = self.call_value(call)?;
        serde_json::from_value(value).map_err(|e| self.nonsense(&e.to_string()))
    }

    /// As [`Client::call`], with an answer within `limit`, if one is given.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub(crate) fn call_within<T: DeserializeOwned>(
        &self,
        call: &Call,
        limit: Option<Duration>,
    ) -> Result<T, Failure> {
        let value = self.ask(call, limit)?;
        serde_json::from_value(value).map_err(|e| self.nonsense(&e.to_string()))
    }

    /// Asks `call`, and gives the answer as it is.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub(crate) fn call_value(&self, call: &Call) -> Result<Value, Failure> {
        self.ask(call, None)
    }

    fn ask(&self, call: &Call, limit: Option<Duration>) -> Result<Value, Failure> {
        let usual = match call {
            Call::Ping | Call::Status { .. } | Call::Get { .. } => Duration::from_secs(60),
            Call::Events {
                wait_seconds: s, ..
            }
            | Call::Wait { seconds: s, .. } => Duration::from_secs(60 + s),
            // As long as the devices take; it ends by itself.
            Call::Trim { .. } => Duration::from_secs(7 * 24 * 3_600),
            _ => Duration::from_secs(3_600),
        };
        let limit = limit.unwrap_or(usual);
        self.runtime.block_on(async {
            let exchange = tokio::time::timeout(limit, self.exchange(call));
            let mut exchange = std::pin::pin!(exchange);
            let mut says = std::pin::pin!(self.say_how_long(call, limit));
            let both = std::future::poll_fn(|cx| {
                let _ = says.as_mut().poll(cx); // it says so for ever
                exchange.as_mut().poll(cx)
            });
            both.await
                .unwrap_or_else(|_| {
                    Err(Failure::broken(format!(
                        "the daemon at {} has not answered for {}s; see its log, and 'ps' to see whether it is \
                         stopped or waits for a disk",
                        self.socket.display(),
                        limit.as_secs()
                    )))
                })
        })
    }

    /// Says on a terminal, every second, that the daemon is still at it; what has an end of its own to show says
    /// nothing. What should be answered at once says on standard error, once, that it is not.
    async fn say_how_long(&self, call: &Call, limit: Duration) -> std::convert::Infallible {
        let at_once = matches!(call, Call::Ping | Call::Status { .. } | Call::Get { .. });
        if at_once && limit > NO_ANSWER {
            tokio::time::sleep(NO_ANSWER).await;
            eprintln!("ashlar: {}", self.no_answer(limit));
        }
        let quick = matches!(
            call,
            Call::Ping
                | Call::Status { .. }
                | Call::Get { .. }
                | Call::Events { .. }
                | Call::Wait { .. }
        );
        let begun = std::time::Instant::now();
        let mut progress = Progress::new(quick || !self.shows_progress).on_terminals();
        tokio::time::sleep(SAY_AFTER).await;
        loop {
            let seconds = begun.elapsed().as_secs();
            progress.show(&format!("{}: {} so far", call.verb(), duration(seconds)));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    fn no_answer(&self, limit: Duration) -> String {
        format!(
            "the daemon at {} has not answered for {}s; it is waited for until {}s have passed",
            self.socket.display(),
            NO_ANSWER.as_secs(),
            limit.as_secs()
        )
    }

    async fn exchange(&self, call: &Call) -> Result<Value, Failure> {
        let stream = tokio::net::UnixStream::connect(&self.socket)
            .await
            .map_err(|e| self.unreachable(&e))?;
        let io = hyper_util::rt::TokioIo::new(stream);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io)
            .await
            .map_err(|e| self.nonsense(&e.to_string()))?;
        let connection = tokio::spawn(connection);
        let request = Request::post(format!("/v1/{}", call.verb()))
            .header("host", "ashlar")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(call.body())))
            .expect("a request of fixed form");
        let response = sender
            .send_request(request)
            .await
            .map_err(|e| self.cut_off(&e))?;
        let success = response.status().is_success();
        let body = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await
            .map_err(|e| self.nonsense(&e.to_string()))?
            .to_bytes();
        connection.abort();
        if success {
            return serde_json::from_slice(&body).map_err(|e| self.nonsense(&e.to_string()));
        }
        match serde_json::from_slice::<ErrorReply>(&body) {
            Ok(reply) => Err(reply.error),
            Err(e) => Err(self.nonsense(&e.to_string())),
        }
    }

    fn unreachable(&self, error: &std::io::Error) -> Failure {
        let at = self.socket.display();
        Failure::broken(match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                format!("no permission to talk to the daemon at {at}; be root or in group ashlar")
            }
            std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                format!("no daemon at {at}; start one with 'ashlar daemon', or give its --socket")
            }
            _ => format!("cannot reach the daemon at {at}: {error}; give another --socket"),
        })
    }

    fn cut_off(&self, error: &hyper::Error) -> Failure {
        Failure::broken(format!(
            "the daemon at {} ended before it answered ({error}); see its log, then start it again",
            self.socket.display()
        ))
    }

    fn nonsense(&self, detail: &str) -> Failure {
        Failure::broken(format!(
            "the program that answers at {} is not an ashlar daemon of this version ({detail}); give the \
             daemon's --socket",
            self.socket.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn no_daemon_is_a_failure_that_says_what_to_do() {
        let path = std::env::temp_dir().join(format!("ashlar-none-{}.sock", std::process::id()));
        let failure = Client::new(path)
            .unwrap()
            .call_value(&Call::Ping)
            .unwrap_err();
        assert!(failure.text.contains("ashlar daemon"), "{failure}");
    }

    #[test]
    fn a_stranger_at_the_socket_is_a_failure() {
        let path = std::env::temp_dir().join(format!("ashlar-odd-{}.sock", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let stranger = std::thread::spawn(move || {
            use std::io::{Read, Write};
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 512]);
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
                .unwrap();
        });
        let failure = Client::new(path.clone())
            .unwrap()
            .call_value(&Call::Ping)
            .unwrap_err();
        stranger.join().unwrap();
        std::fs::remove_file(path).unwrap();
        assert!(failure.text.contains("not an ashlar daemon"), "{failure}");
    }
}
