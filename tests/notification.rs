//! How people hear of what happens: events and their severity, `notify`, `/metrics`, `iostat`, and volumes that refuse
//! writes.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use common::disk::pattern;
use common::{ASHLAR, Daemon, wait_until};

const SECOND: Duration = Duration::from_secs(1);
/// How soon people are told.
const SOON: Duration = Duration::from_secs(2);

/// What `/metrics` answers on the control socket.
fn metrics(daemon: &Daemon) -> String {
    let mut stream = UnixStream::connect(daemon.path("control.sock")).unwrap();
    get_metrics(&mut stream)
}

fn get_metrics(stream: &mut (impl Read + Write)) -> String {
    let request = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    text
}

/// The events of an array, as JSON.
fn events(daemon: &Daemon, more: &[&str]) -> Vec<Value> {
    let text = daemon.ok(&[&["events", "-j"], more].concat());
    text.lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// Answers each POST that comes with 200 and gives its body.
fn webhook(listener: TcpListener) -> std::sync::mpsc::Receiver<Value> {
    let (sender, bodies) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (mut line, mut length) = (String::new(), 0);
            while stream.read_line(&mut line).unwrap() > 2 {
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            stream.get_mut().write_all(answer).unwrap();
            if sender.send(serde_json::from_slice(&body).unwrap()).is_err() {
                return;
            }
        }
    });
    bodies
}

#[test]
fn a_failed_device_is_told_in_every_way_within_two_seconds() {
    let daemon = Daemon::start("told");
    daemon.create("t", "ec2+1", 4, "64M", &[]);
    assert_eq!(
        daemon
            .disk("t")
            .write_range((0, 8 << 20), 256 << 10, 8, pattern(1)),
        []
    );
    let (error, _) = daemon.fails(&["notify", "test"]);
    assert!(error.contains("ashlar set ARRAY notify.exec"), "{error}");
    let script = daemon.path("tell");
    let text = format!(
        "#!/bin/sh\necho \"$ASHLAR_ARRAY $ASHLAR_KIND $ASHLAR_SEVERITY $ASHLAR_DEVICE $ASHLAR_TEXT\" >> {}\n",
        daemon.text("told")
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/hook?a=b", listener.local_addr().unwrap());
    let bodies = webhook(listener);
    daemon.ok(&["set", "t", &format!("notify.exec={}", script.display())]);
    daemon.ok(&["set", "t", &format!("notify.webhook={address}")]);
    assert!(daemon.ok(&["get", "t"]).contains(&address));
    let said = daemon.ok(&["notify", "test"]);
    assert_eq!(said.matches(": told").count(), 2, "{said}");
    let test = bodies.recv_timeout(SECOND).unwrap();
    assert_eq!(
        (&test["kind"], &test["array"]),
        (&"test".into(), &"t".into())
    );

    let began = Instant::now();
    daemon.ok(&["fail", "t", "2"]);
    let told = || std::fs::read_to_string(daemon.path("told")).unwrap_or_default();
    wait_until("the program", SOON, || {
        told().contains("t device-failed error 2 ")
    });
    let posted = bodies.recv_timeout(SOON).unwrap();
    assert_eq!(posted["kind"], "device-failed", "{posted}");
    assert_eq!(
        (&posted["severity"], &posted["device"]),
        (&"error".into(), &2.into())
    );
    let failed = "ashlar_device_state{array=\"t\",device=\"2\",state=\"failed\"} 1\n";
    wait_until("the metrics", SOON, || metrics(&daemon).contains(failed));
    let all = events(&daemon, &["t"]);
    assert!(
        all.iter()
            .any(|e| e["kind"] == "device-failed" && e["severity"] == "error"),
        "{all:?}"
    );
    assert!(
        began.elapsed() < SOON,
        "all of it took {:?}",
        began.elapsed()
    );
    // What becomes of the array is told too, up to its good end.
    wait_until("the array to be whole", 30 * SECOND, || {
        told().contains("t optimal info")
    });
    assert!(
        told().contains("t degraded warning") || told().contains("t critical critical"),
        "{}",
        told()
    );

    // A way that does not work is said.
    daemon.ok(&["set", "t", "notify.webhook="]);
    std::fs::write(&script, "#!/bin/sh\nexit 3\n").unwrap();
    let output = daemon.run(&["notify", "test"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("exit status: 3"));
    daemon.ok(&["set", "t", "notify.exec="]);
    daemon.fails(&["notify", "test"]);
}

#[test]
fn a_full_thin_volume_is_told_as_one_that_refuses_writes() {
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let daemon = Daemon::with("full", &["--memory", "256M", "--metrics", &address]);
    let files: Vec<String> = (0..3).map(|i| daemon.text(&format!("d{i}"))).collect();
    let mut line = vec!["create", "t", "--layout", "ec2+1", "--file-size", "64M"];
    line.extend(files.iter().map(String::as_str));
    daemon.ok(&line);
    daemon.ok(&["volume", "create", "t/v", "--size", "1G", "--thin"]);
    daemon.ok(&[
        "volume",
        "attach",
        "t/v",
        "--nbd",
        &format!("unix:{}", daemon.text("nbd.sock")),
    ]);
    assert_eq!(daemon.run(&["status", "--test"]).status.code(), Some(0));
    let disk = daemon.disk("t");
    let refused = disk.write_range((0, 200 << 20), 1 << 20, 4, pattern(1));
    assert!(!refused.is_empty(), "it took more than there is");
    wait_until("the exit code of --test", SOON, || {
        daemon.run(&["status", "--test"]).status.code() == Some(2)
    });
    let text = daemon.ok(&["status", "-x"]);
    assert!(text.contains("t/v  WRITES REFUSED"), "{text}");
    let series = "ashlar_volume_writes_refused{array=\"t\",volume=\"v\"} 1\n";
    assert!(metrics(&daemon).contains(series));
    let text = get_metrics(&mut TcpStream::connect(&address).unwrap());
    assert!(
        text.contains(series) && text.contains("volume_request_seconds_bucket{"),
        "{text}"
    );
    let all = events(&daemon, &["t"]);
    assert!(
        all.iter()
            .any(|e| e["kind"] == "writes-refused" && e["severity"] == "critical"),
        "{all:?}"
    );
}

#[test]
fn events_are_numbered_on_and_followed_over_a_restart() {
    let mut daemon = Daemon::start("follow");
    daemon.create("t", "ec2+1", 3, "64M", &[]);
    let files: Vec<String> = (0..3).map(|i| daemon.text(&format!("u{i}"))).collect();
    let mut line = vec!["create", "u", "--layout", "ec2+1", "--file-size", "64M"];
    line.extend(files.iter().map(String::as_str));
    daemon.ok(&line);
    let follower = Command::new(ASHLAR)
        .args(["events", "-f", "-j", "-n", "1"])
        .env("ASHLAR_SOCKET", daemon.path("control.sock"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut follower = follower.unwrap();
    let lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let (sender, seen) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let event: Value = serde_json::from_str(&line).unwrap();
            let _ = sender.send((event["id"].as_u64().unwrap(), event["kind"].clone()));
        }
    });
    let last = events(&daemon, &[]).pop().unwrap();
    let first = seen.recv_timeout(5 * SECOND).unwrap();
    assert_eq!(first.0, last["id"], "it begins with the last one");
    daemon.kill9();
    daemon.launch();
    daemon.ok(&["volume", "create", "u/w", "--size", "4M"]);
    let mut ids = vec![first.0];
    loop {
        let (id, kind) = seen.recv_timeout(20 * SECOND).unwrap();
        ids.push(id);
        if kind == "volume-created" {
            break;
        }
    }
    let _ = follower.kill();
    let _ = follower.wait();
    let expected: Vec<u64> = (first.0..=*ids.last().unwrap()).collect();
    assert_eq!(ids, expected, "none is skipped, none comes twice");

    let since = first.0.to_string();
    let after = events(&daemon, &["--since", &since]);
    assert_eq!(after.len(), ids.len() - 1);
    assert_eq!(
        events(&daemon, &["--since", &since, "-n", "1"])[0]["id"],
        *ids.last().unwrap()
    );
    assert!(events(&daemon, &["--since", "1h"]).len() > after.len());
    assert!(events(&daemon, &["u", "--since", "2100-01-01"]).is_empty());
    let (error, code) = daemon.fails(&["events", "--since", "yesterday"]);
    assert!(code == 2 && error.contains("2026-01-31"), "{error}");
}

#[test]
fn iostat_shows_what_clients_did_meanwhile() {
    let daemon = Daemon::start("iostat");
    daemon.create("t", "ec2+1", 3, "64M", &[]);
    let report = Command::new(ASHLAR)
        .args(["iostat", "t", "0.5", "120", "-j"])
        .env("ASHLAR_SOCKET", daemon.path("control.sock"))
        .stdout(Stdio::piped())
        .spawn();
    let mut report = report.unwrap();
    let mut lines = BufReader::new(report.stdout.take().unwrap()).lines();
    let mut next = || -> Value {
        let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        line["volumes"][0].clone()
    };
    let first = next();
    assert_eq!(
        (&first["array"], &first["volume"]),
        (&"t".into(), &"v".into())
    );
    assert_eq!(first["writes_per_second"], 0.0);
    let disk = daemon.disk("t");
    assert_eq!(disk.write_range((0, 8 << 20), 1 << 20, 4, pattern(1)), []);
    let (mut requests, mut bytes) = (0, 0.0);
    while requests < 8 {
        let row = next();
        let operations = row["operations"].as_array().unwrap();
        let write = operations
            .iter()
            .find(|o| o["operation"] == "write")
            .unwrap();
        let counts = write["counts"].as_array().unwrap();
        requests += counts.iter().map(|c| c.as_u64().unwrap()).sum::<u64>();
        bytes += row["written_bytes_per_second"].as_f64().unwrap() / 2.0;
    }
    let _ = report.kill();
    let _ = report.wait();
    assert_eq!(requests, 8);
    let expected = f64::from(8 << 20);
    assert!((expected * 0.7..expected * 1.3).contains(&bytes), "{bytes}");
    let text = daemon.ok(&["iostat", "-l", "-q", "0.1", "1"]);
    assert!(
        text.contains("WRITE TIME") && text.contains("t/v"),
        "{text}"
    );
    assert!(daemon.ok(&["iostat", "-w", "0.1", "1"]).contains("UP TO"));
}

#[test]
fn promtool_takes_the_alert_rules_their_tests_and_what_the_daemon_serves() {
    if !common::have(&["promtool"]) {
        return;
    }
    let packaging = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging");
    let file = |name: &str| packaging.join(name).display().to_string();
    let said = common::tool("promtool", &["check", "rules", &file("alerts.yml")]);
    assert!(said.contains("rules found"), "{said}");
    let said = common::tool("promtool", &["test", "rules", &file("alerts_test.yml")]);
    assert!(said.contains("SUCCESS"), "{said}");
    // A test of the rules that does not hold fails.
    let daemon = Daemon::start("promtool");
    let wrong = std::fs::read_to_string(file("alerts_test.yml")).unwrap();
    let wrong = wrong
        .replace("device 4 of array tank is failed", "device 4 is well")
        .replace("[alerts.yml]", &format!("[{}]", file("alerts.yml")));
    std::fs::write(daemon.path("wrong.yml"), wrong).unwrap();
    let output = common::try_tool("promtool", &["test", "rules", &daemon.text("wrong.yml")]);
    assert!(!output.status.success());
    daemon.create("t", "ec2+1", 4, "64M", &[]);
    daemon.ok(&["fail", "t", "3"]);
    let text = metrics(&daemon);
    let body = text.split_once("\r\n\r\n").unwrap().1;
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    check
        .stdin
        .take()
        .unwrap()
        .write_all(body.as_bytes())
        .unwrap();
    let output = check.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}
