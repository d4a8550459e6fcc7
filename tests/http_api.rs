//! The control API under bad input: every request is answered or its connection closed, and the
//! daemon goes on.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use common::{Daemon, Random};

/// Sends `bytes`, and reads what comes back until the end or a pause.
fn exchange(daemon: &Daemon, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(daemon.path("control.sock")).unwrap();
    // One that is closed after the answer is read to its end, however long that takes.
    let closes = String::from_utf8_lossy(bytes).contains("connection: close");
    let pause = Duration::from_millis(if closes { 20_000 } else { 500 });
    stream.set_read_timeout(Some(pause)).unwrap();
    let _ = stream.write_all(bytes); // the server may close before it read all
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(length) = stream.read(&mut piece) {
        if length == 0 {
            break;
        }
        answer.extend(&piece[..length]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

fn post(verb: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /v1/{verb} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

#[test]
fn requests_are_answered_with_the_right_status() {
    let daemon = Daemon::start("api");
    for (request, status) in [
        (
            "GET /v1/ping HTTP/1.1\r\nhost: x\r\n\r\n".to_string(),
            "200",
        ),
        (
            "GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n".to_string(),
            "200",
        ),
        ("GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_string(), "404"),
        (
            "GET /v1/destroy HTTP/1.1\r\nhost: x\r\n\r\n".to_string(),
            "400",
        ),
        (
            "DELETE /v1/status HTTP/1.1\r\nhost: x\r\n\r\n".to_string(),
            "400",
        ),
        (post("status", "{\"array\":\"none\"}"), "404"),
        (post("status", "{\"array\":7}"), "400"),
        (post("status", "{"), "400"),
        (post("status", "[]"), "400"),
        (post("no-such-verb", "{}"), "400"),
        (post("export", "{}"), "400"),
        (
            post(
                "create",
                "{\"array\":\"a b\",\"layout\":\"ec2+1\",\"devices\":[]}",
            ),
            "400",
        ),
        (
            post(
                "create",
                "{\"array\":\"t\",\"layout\":\"ec2+1\",\"devices\":[]}",
            ),
            "400",
        ),
        (
            post(
                "create",
                "{\"array\":\"t\",\"layout\":\"ec2+1\",\"devices\":[\"/none\"],\"spare\":99999}",
            ),
            "400",
        ),
        (
            post(
                "attach",
                "{\"array\":\"t\",\"volume\":\"v\",\"frontend\":{\"kind\":\"pigeon\"}}",
            ),
            "400",
        ),
        (
            "POST /v1/status HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n{}".to_string(),
            "400",
        ),
        ("nonsense\r\n\r\n".to_string(), "400"),
    ] {
        let answer = exchange(&daemon, request.as_bytes());
        let first = answer.lines().next().unwrap_or("nothing");
        let shown: String = request.chars().take(80).collect();
        assert!(
            first.contains(status),
            "{shown:?} was answered with {first:?}"
        );
    }
    let huge = post(
        "status",
        &format!("{{\"array\":\"{}\"}}", "x".repeat(2 << 20)),
    );
    assert!(
        exchange(&daemon, huge.as_bytes()).contains("400"),
        "a body of 2 MiB"
    );
    assert!(daemon.ok(&["status"]).contains("no arrays"));
}

#[test]
fn nothing_is_destroyed_without_a_second_word() {
    let daemon = Daemon::start("twice");
    daemon.create("t", "ec2+1", 3, "64M", &[]);
    for (verb, body) in [
        ("destroy", r#"{"array":"t"}"#),
        ("destroy", r#"{"array":"t","confirm":""}"#),
        ("destroy", r#"{"array":"t","confirm":"T"}"#),
        ("volume-destroy", r#"{"array":"t","volume":"v"}"#),
        (
            "volume-destroy",
            r#"{"array":"t","volume":"v","confirm":"v"}"#,
        ),
    ] {
        let answer = exchange(&daemon, post(verb, body).as_bytes());
        assert!(answer.contains("409"), "{verb} {body}: {answer}");
        assert!(answer.contains("confirm"), "{verb} {body}: {answer}");
    }
    let volumes = daemon.status("t")["volumes"].clone();
    assert_eq!(volumes.as_array().unwrap().len(), 1, "{volumes}");
    for (verb, body) in [
        (
            "volume-destroy",
            r#"{"array":"t","volume":"v","confirm":"t/v"}"#,
        ),
        ("destroy", r#"{"array":"t","confirm":"t"}"#),
    ] {
        let answer = exchange(&daemon, post(verb, body).as_bytes());
        assert!(answer.contains("200"), "{verb} {body}: {answer}");
    }
    assert!(daemon.ok(&["status"]).contains("no arrays"));
}

#[test]
fn garbage_and_silence_hurt_nobody() {
    let daemon = Daemon::start("garbage");
    let mut random = Random::new(9);
    for _ in 0..100 {
        let mut bytes = vec![0; usize::try_from(1 + random.below(2000)).unwrap()];
        random.fill(&mut bytes);
        let mut stream = UnixStream::connect(daemon.path("control.sock")).unwrap();
        let _ = stream.write_all(&bytes);
    }
    // More connections that say nothing than are served at once.
    let silent: Vec<UnixStream> = (0..300)
        .filter_map(|_| UnixStream::connect(daemon.path("control.sock")).ok())
        .collect();
    assert!(silent.len() > 128);
    drop(silent);
    common::wait_until(
        "the daemon to answer again",
        Duration::from_secs(20),
        || daemon.run(&["status"]).status.success(),
    );
}

#[test]
fn the_socket_is_for_root_and_the_group_only() {
    let daemon = Daemon::start("rights");
    let metadata = std::fs::symlink_metadata(daemon.path("control.sock")).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o660);
    assert_eq!(metadata.uid(), rustix::process::geteuid().as_raw());
}
