//! The control API's server: HTTP/1.1 on the Unix socket, on a thread of its own, so that a slow
//! client never delays data. Requests cross to the engine's thread as [`Job`]s.
//!
//! **Invariants**: this thread touches no array; every request is answered or its connection
//! closed; bodies, headers, their time, that of answers nobody reads, and the number of connections are bounded; those
//! who wait for something never take the places of those who ask.

use std::convert::Infallible;
use std::os::unix::net::UnixListener as StdListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ashlar_rt::{Sender, oneshot};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::Value;

use crate::api::{Call, Caller, ErrorReply, StatusReply, VERSION};
use crate::daemon::job::Job;
use crate::daemon::unread::Unread;
use crate::daemon::{actions, signals};
use crate::failure::{Failure, Kind};

/// Largest request body: a thousand device paths fit.
const MAX_BODY: usize = 1 << 20;
/// How long a client may take for its header, and again for its body.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// Connections served at once; more are told so and closed.
const MAX_CONNECTIONS: usize = 256;
/// Of these, how many may wait for something to happen: the rest is for those who ask how things are.
const MAX_WAITING: usize = 128;
/// More that are told, at a time, that there are too many.
const MAX_TURNED_AWAY: usize = 32;
/// Scrapers of metrics served at once.
const MAX_SCRAPERS: usize = 16;
/// How long one may take.
const SCRAPE_LIMIT: Duration = Duration::from_secs(30);
/// How long a client may take to read of its answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Serves `listener`, metrics to those who connect to `metrics`, and the process's signals until the process ends.
/// `hurry` hears of the second.
///
/// # Errors
/// If the thread cannot start.
pub(crate) fn start(
    listener: StdListener,
    metrics: Option<std::net::TcpListener>,
    jobs: Sender<Job>,
    hurry: Sender<()>,
) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    if let Some(metrics) = &metrics {
        metrics.set_nonblocking(true)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let signals = {
        let _entered = runtime.enter();
        signals::ask()?
    };
    std::thread::Builder::new()
        .name("ashlar-http".to_string())
        .spawn(move || {
            runtime.block_on(async {
                signals.serve(&jobs, &hurry);
                if let Some(metrics) = metrics {
                    tokio::spawn(serve_metrics(metrics, jobs.clone()));
                }
                accept(listener, jobs).await;
            });
        })?;
    Ok(())
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
    let counts = Arc::new(Counts::default());
    let mut told = None;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                if told.is_none_or(|at: std::time::Instant| at.elapsed() > READ_LIMIT) {
                    tracing::warn!(%error, "a control connection could not be accepted");
                    told = Some(std::time::Instant::now());
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Some(place) = Place::take(&counts, |c| &c.open, MAX_CONNECTIONS) else {
            if let Some(place) = Place::take(&counts, |c| &c.turned_away, MAX_TURNED_AWAY) {
                tokio::spawn(async move {
                    turn_away(stream).await;
                    drop(place);
                });
            }
            continue; // dropping the stream closes it
        };
        let (jobs, counts) = (jobs.clone(), counts.clone());
        tokio::spawn(async move {
            let caller = actions::caller(&stream);
            let service = service_fn(move |request| {
                answer(request, caller.clone(), jobs.clone(), counts.clone())
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(READ_LIMIT)
                .max_buf_size(64 << 10)
                .serve_connection(TokioIo::new(Unread::new(stream, ANSWER_LIMIT)), service)
                .await;
            if let Err(error) = served {
                tracing::debug!(%error, "a control connection ended early");
            }
            drop(place);
        });
    }
}

/// How many of each kind there are.
#[derive(Debug, Default)]
struct Counts {
    open: AtomicUsize,
    waiting: AtomicUsize,
    turned_away: AtomicUsize,
}

/// One of a bounded number, given back when dropped.
struct Place {
    counts: Arc<Counts>,
    of: fn(&Counts) -> &AtomicUsize,
}

impl Place {
    fn take(counts: &Arc<Counts>, of: fn(&Counts) -> &AtomicUsize, most: usize) -> Option<Place> {
        if of(counts).fetch_add(1, Ordering::SeqCst) >= most {
            of(counts).fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        let counts = counts.clone();
        Some(Place { counts, of })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        (self.of)(&self.counts).fetch_sub(1, Ordering::SeqCst);
    }
}

/// Says that there are too many, so that nobody takes it for the end of the daemon.
async fn turn_away(mut stream: tokio::net::UnixStream) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let error = Failure::refused(format!(
        "the daemon already serves {MAX_CONNECTIONS} requests, its limit; try again, or end some that wait \
         ('wait', 'events -f')"
    ));
    let body = serde_json::to_string(&ErrorReply {
        version: VERSION,
        error,
    });
    let body = body.expect("answers are plain data");
    let text = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let all = async {
        let _ = stream.read(&mut [0; 4096]).await; // the question, or most of it
        let _ = stream.write_all(text.as_bytes()).await;
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), all).await;
}

async fn answer(
    request: Request<Incoming>,
    caller: Caller,
    jobs: Sender<Job>,
    counts: Arc<Counts>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path() == "/metrics" {
        return Ok(metrics(&request, &jobs).await);
    }
    let outcome = match read_call(request).await {
        Ok(call) => match wait_place(&call, &counts) {
            Ok(place) => {
                let outcome = dispatch(call, caller, &jobs).await;
                drop(place);
                outcome
            }
            Err(failure) => Err(failure),
        },
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
                Kind::Absent => StatusCode::NOT_IMPLEMENTED,
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

/// The status for Prometheus.
async fn metrics(request: &Request<Incoming>, jobs: &Sender<Job>) -> Response<Full<Bytes>> {
    let answer = |status, text: String| {
        Response::builder()
            .status(status)
            .header("content-type", "text/plain; version=0.0.4; charset=utf-8")
            .body(Full::new(Bytes::from(text)))
            .expect("a response of fixed form")
    };
    if request.method() != Method::GET {
        return answer(
            StatusCode::METHOD_NOT_ALLOWED,
            "asked with GET\n".to_string(),
        );
    }
    let asked = Call::Status { array: None };
    let status = dispatch(asked, Caller::default(), jobs).await;
    let reply = status.and_then(|value| {
        let read = serde_json::from_value::<StatusReply>(value);
        read.map_err(|e| Failure::broken(format!("the status cannot be read: {e}")))
    });
    match reply {
        Ok(reply) => answer(StatusCode::OK, crate::view::metrics::metrics(&reply)),
        Err(failure) => answer(StatusCode::SERVICE_UNAVAILABLE, format!("{failure}\n")),
    }
}

/// Serves `/metrics`, and nothing else, to whoever connects.
async fn serve_metrics(listener: std::net::TcpListener, jobs: Sender<Job>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "metrics cannot be served"),
    };
    let counts = Arc::new(Counts::default());
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await; // out of descriptors, or it left
            continue;
        };
        let Some(place) = Place::take(&counts, |c| &c.open, MAX_SCRAPERS) else {
            continue;
        };
        let jobs = jobs.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let jobs = jobs.clone();
                async move {
                    if request.uri().path() == "/metrics" {
                        return Ok::<_, Infallible>(metrics(&request, &jobs).await);
                    }
                    let mut none = Response::new(Full::new(Bytes::from("only /metrics is here\n")));
                    *none.status_mut() = StatusCode::NOT_FOUND;
                    Ok(none)
                }
            });
            let serving = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(READ_LIMIT)
                .max_buf_size(64 << 10)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(SCRAPE_LIMIT, serving).await; // whoever is too slow asks again
            drop(place);
        });
    }
}

/// A place among those that wait, for a call that may.
fn wait_place(call: &Call, counts: &Arc<Counts>) -> Result<Option<Place>, Failure> {
    let waits = match call {
        Call::Events { wait_seconds, .. } => *wait_seconds > 0,
        Call::Wait { .. } => true,
        _ => false,
    };
    if !waits {
        return Ok(None);
    }
    let place = Place::take(counts, |c| &c.waiting, MAX_WAITING);
    let full = || {
        Failure::refused(format!(
            "{MAX_WAITING} requests wait already, the daemon's limit; end some of them ('wait', 'events -f'), \
             then try again"
        ))
    };
    place.map(Some).ok_or_else(full)
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

async fn dispatch(call: Call, caller: Caller, jobs: &Sender<Job>) -> Result<Value, Failure> {
    let (reply, answer) = oneshot();
    let stopping =
        || Failure::refused("the daemon is stopping; start it again with 'ashlar daemon'");
    jobs.send(Job::Call(Box::new(call), caller, reply))
        .map_err(|_| stopping())?;
    answer.await.unwrap_or_else(|| Err(stopping()))
}
