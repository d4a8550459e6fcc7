//! The threads that tell people: one runs a program, one posts to an address.
//!
//! **Invariants**: the engine's thread waits for neither; each takes what happened in order, and bounds both what waits
//! for it and how long one takes; no shell reads what comes from outside.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use ashlar_rt::OneshotSender;
use http_body_util::Full;
use hyper::body::Bytes;
use serde_json::{Value, json};

use crate::api::{ArrayEvent, VERSION};

/// News that wait for one way of telling them.
const QUEUE: usize = 1000;

/// How long a program may take.
const EXEC_LIMIT: Duration = Duration::from_secs(30);

/// How long an address may take to answer.
const WEBHOOK_LIMIT: Duration = Duration::from_secs(5);

/// How long to wait before trying an address again.
const AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// Something to tell.
pub(super) struct News {
    pub(super) target: String,
    pub(super) event: ArrayEvent,
    /// Whoever waits to hear whether it worked: then it is tried once.
    pub(super) outcome: Option<OneshotSender<Result<(), String>>>,
}

/// The threads that tell.
#[derive(Debug)]
pub(crate) struct Notifier {
    pub(super) exec: Option<SyncSender<News>>,
    pub(super) webhook: Option<SyncSender<News>>,
}

impl Notifier {
    /// Starts them.
    pub(crate) fn start() -> Notifier {
        Notifier {
            exec: thread("ashlar-exec", run_program),
            webhook: thread("ashlar-webhook", post),
        }
    }
}

type Way = fn(&str, &ArrayEvent) -> Result<(), String>;

fn thread(name: &str, way: Way) -> Option<SyncSender<News>> {
    let (sender, news) = sync_channel(QUEUE);
    let thread = std::thread::Builder::new().name(name.to_string());
    thread.spawn(move || tell_all(&news, way)).ok()?;
    Some(sender)
}

fn tell_all(news: &Receiver<News>, way: Way) {
    while let Ok(one) = news.recv() {
        let mut result = way(&one.target, &one.event);
        if let Some(outcome) = one.outcome {
            outcome.send(result);
            continue;
        }
        let is_address = one.target.contains("://");
        for pause in AGAIN.iter().filter(|_| is_address) {
            if result.is_ok() {
                break;
            }
            std::thread::sleep(*pause);
            result = way(&one.target, &one.event);
        }
        if let Err(error) = result {
            let (array, id) = (&one.event.array, one.event.id);
            tracing::warn!(
                array,
                id,
                "event could not be sent to {}: {error}",
                one.target
            );
        }
    }
}

/// What is told of an event, as JSON.
fn document(event: &ArrayEvent) -> Value {
    let mut value = json!(event);
    value["version"] = VERSION.into();
    value["command"] = "notify".into();
    value["host"] = host_name().into();
    value
}

fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// Runs `program`: the event is in its environment, and as JSON on its standard input.
pub(super) fn run_program(program: &str, event: &ArrayEvent) -> Result<(), String> {
    let device = event.event.device.map_or(String::new(), |d| d.to_string());
    let child = Command::new(program)
        .env("ASHLAR_HOST", host_name())
        .env("ASHLAR_ARRAY", &event.array)
        .env("ASHLAR_ID", event.id.to_string())
        .env("ASHLAR_SEVERITY", event.severity.name())
        .env("ASHLAR_KIND", &event.event.kind)
        .env("ASHLAR_DEVICE", device)
        .env("ASHLAR_TIME", event.unix_seconds.to_string())
        .env("ASHLAR_TEXT", event.event.text.replace('\0', " "))
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.map_err(|e| format!("it cannot be started: {e}"))?;
    if let Some(mut input) = child.stdin.take() {
        let _ = writeln!(input, "{}", document(event)); // it need not read that; a pipe holds it
    }
    let until = Instant::now() + EXEC_LIMIT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("it ended with {status}")),
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                let seconds = EXEC_LIMIT.as_secs();
                return Err(format!("it did not end within {seconds} s and was killed"));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Posts the event as JSON.
pub(super) fn post(address: &str, event: &ArrayEvent) -> Result<(), String> {
    let (host, path) = parse_address(address)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    let body = Bytes::from(document(event).to_string());
    let exchange = async {
        let stream = tokio::net::TcpStream::connect(&host)
            .await
            .map_err(|e| format!("no connection: {e}"))?;
        let io = hyper_util::rt::TokioIo::new(stream);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io)
            .await
            .map_err(|e| e.to_string())?;
        tokio::spawn(connection);
        let request = hyper::Request::post(path)
            .header("host", host.as_str())
            .header("content-type", "application/json")
            .header("user-agent", concat!("ashlar/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(body))
            .map_err(|e| e.to_string())?;
        let response = sender.send_request(request).await;
        let status = response.map_err(|e| e.to_string())?.status();
        if status.is_success() {
            Ok(())
        } else {
            Err(format!("it answered {status}"))
        }
    };
    runtime.block_on(async {
        let limited = tokio::time::timeout(WEBHOOK_LIMIT, exchange);
        let late = |_| Err(format!("no answer in {} s", WEBHOOK_LIMIT.as_secs()));
        limited.await.unwrap_or_else(late)
    })
}

/// Host with port, and path, of an address.
pub(super) fn parse_address(address: &str) -> Result<(String, String), String> {
    let wrong = || format!("'{address}' is not http://HOST[:PORT]/PATH");
    if address.starts_with("https://") {
        return Err(
            "https is not supported; use notify.exec with a script that runs curl".to_string(),
        );
    }
    let uri: hyper::Uri = address.parse().map_err(|_| wrong())?;
    if uri.scheme_str() != Some("http") {
        return Err(wrong());
    }
    let host = uri.host().filter(|h| !h.is_empty()).ok_or_else(wrong)?;
    let port = uri.port_u16().unwrap_or(80);
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    Ok((format!("{host}:{port}"), path.to_string()))
}
