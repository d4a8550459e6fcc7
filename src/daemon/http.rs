//! The control API's server: HTTP/1.1 on the Unix socket, on a thread of its own, so that a slow
//! client never delays data. Requests cross to the engine's thread as [`Job`]s.
//!
//! **Invariants**: this thread touches no array; every request is answered or its connection
//! closed; bodies, headers, their time and the number of connections are bounded.

use std::convert::Infallible;
use std::os::unix::net::UnixListener as StdListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ashlar_rt::{OneshotSender, Sender, oneshot};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use crate::api::{Call, ErrorReply, VERSION};
use crate::failure::{Failure, Kind};

/// Largest request body: a thousand device paths fit.
const MAX_BODY: usize = 1 << 20;
/// How long a client may take for its header, and again for its body.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// Connections served at once; more are closed.
const MAX_CONNECTIONS: usize = 128;

/// What crosses to the engine's thread.
#[derive(Debug)]
pub(crate) enum Job {
    /// A request, and where its answer goes.
    Call(Box<Call>, OneshotSender<Result<Value, Failure>>),
    /// Close everything and end.
    Stop,
}

/// Serves `listener` and the process's signals until the process ends. `hurry` hears of the second.
///
/// # Errors
/// If the thread cannot start.
pub(crate) fn start(
    listener: StdListener,
    jobs: Sender<Job>,
    hurry: Sender<()>,
) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (terminate, interrupt) = {
        let _entered = runtime.enter();
        (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        )
    };
    std::thread::Builder::new()
        .name("ashlar-http".to_string())
        .spawn(move || {
            runtime.block_on(async {
                let asked = Arc::new(AtomicUsize::new(0));
                for signal in [terminate, interrupt] {
                    let (jobs, hurry) = (jobs.clone(), hurry.clone());
                    tokio::spawn(stop_on(signal, asked.clone(), jobs, hurry));
                }
                accept(listener, jobs).await;
            });
        })?;
    Ok(())
}

/// The first signal, of either kind, asks for an orderly end; the second, that it waits for no client;
/// the third ends at once (arrays stay importable).
async fn stop_on(
    mut signal: tokio::signal::unix::Signal,
    asked: Arc<AtomicUsize>,
    jobs: Sender<Job>,
    hurry: Sender<()>,
) {
    while signal.recv().await.is_some() {
        match asked.fetch_add(1, Ordering::SeqCst) {
            0 => {
                let _ = jobs.send(Job::Stop); // unless it is stopping already
            }
            1 => {
                tracing::warn!("second signal: clients are cut off");
                let _ = hurry.send(()); // unless it has stopped already
            }
            _ => {
                tracing::warn!("third signal: ending without closing the arrays");
                std::process::exit(1);
            }
        }
    }
}

async fn accept(listener: StdListener, jobs: Sender<Job>) {
    let listener = match tokio::net::UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the control socket cannot be served");
            let _ = jobs.send(Job::Stop);
            return;
        }
    };
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a control connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if open.fetch_add(1, Ordering::SeqCst) >= MAX_CONNECTIONS {
            open.fetch_sub(1, Ordering::SeqCst);
            continue; // dropping the stream closes it
        }
        let (jobs, open) = (jobs.clone(), open.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, jobs.clone()));
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(READ_LIMIT)
                .max_buf_size(64 << 10)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            if let Err(error) = served {
                tracing::debug!(%error, "a control connection ended early");
            }
            open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    jobs: Sender<Job>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let outcome = match read_call(request).await {
        Ok(call) => dispatch(call, &jobs).await,
        Err(failure) => Err(failure),
    };
    let (status, body) = match outcome {
        Ok(value) => (StatusCode::OK, serde_json::to_vec(&value)),
        Err(error) => {
            let status = match error.kind {
                Kind::Invalid => StatusCode::BAD_REQUEST,
                Kind::NotFound => StatusCode::NOT_FOUND,
                Kind::Refused => StatusCode::CONFLICT,
                Kind::Broken => StatusCode::INTERNAL_SERVER_ERROR,
            };
            (
                status,
                serde_json::to_vec(&ErrorReply {
                    version: VERSION,
                    error,
                }),
            )
        }
    };
    let body = Bytes::from(body.expect("answers are plain data"));
    Ok(Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .body(Full::new(body))
        .expect("a response of fixed form"))
}

async fn read_call(request: Request<Incoming>) -> Result<Call, Failure> {
    let path = request.uri().path().to_string();
    let Some(verb) = path.strip_prefix("/v1/") else {
        return Err(Failure::not_found(format!(
            "no {path} here; requests go to /v1/<verb>"
        )));
    };
    if request.method() == Method::GET {
        return match verb {
            "ping" | "status" => Call::parse(verb, b""),
            _ => Err(Failure::invalid(format!("{verb} is asked with POST"))),
        };
    }
    if request.method() != Method::POST {
        return Err(Failure::invalid(format!("{verb} is asked with POST")));
    }
    if request.body().size_hint().lower() > MAX_BODY as u64 {
        return Err(Failure::invalid(format!(
            "the body is larger than {MAX_BODY} bytes"
        )));
    }
    let body = Limited::new(request.into_body(), MAX_BODY).collect();
    let body = match tokio::time::timeout(READ_LIMIT, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(e)) => return Err(Failure::invalid(format!("the body cannot be read: {e}"))),
        Err(_) => return Err(Failure::invalid("the body did not arrive in time")),
    };
    Call::parse(verb, &body)
}

async fn dispatch(call: Call, jobs: &Sender<Job>) -> Result<Value, Failure> {
    let (reply, answer) = oneshot();
    let stopping =
        || Failure::refused("the daemon is stopping; start it again with 'ashlar daemon'");
    jobs.send(Job::Call(Box::new(call), reply))
        .map_err(|_| stopping())?;
    answer.await.unwrap_or_else(|| Err(stopping()))
}
