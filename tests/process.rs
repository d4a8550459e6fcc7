//! The daemon as a process among others: signals, its log, its socket and state directory, the service manager,
//! clients of the control socket that ask much and read little.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use common::{Daemon, have_kernel_devices, wait_until};
use rustix::process::Signal;

const SECOND: Duration = Duration::from_secs(1);

fn log(daemon: &Daemon) -> String {
    std::fs::read_to_string(daemon.path("daemon.log")).unwrap_or_default()
}

#[test]
fn a_hangup_opens_the_log_anew_and_other_signals_end_nothing() {
    let daemon = Daemon::start("hangup");
    std::fs::rename(daemon.path("daemon.log"), daemon.path("daemon.log.1")).unwrap();
    daemon.signal(Signal::HUP);
    wait_until("the new log", 5 * SECOND, || {
        log(&daemon).contains("SIGHUP")
    });
    for signal in [Signal::USR1, Signal::QUIT, Signal::ALARM, Signal::XFSZ] {
        daemon.signal(signal);
    }
    for number in ["-34", "-50", "-64"] {
        common::tool("kill", &[number, &daemon.pid().to_string()]);
    }
    wait_until("the signals in the log", 5 * SECOND, || {
        let log = log(&daemon);
        ["SIGUSR1", "SIGQUIT", "SIGALRM", "SIGXFSZ", "SIGRT"]
            .iter()
            .all(|s| log.contains(s))
    });
    assert!(daemon.ok(&["status"]).contains("no arrays"));
}

#[test]
fn readiness_is_told_when_volumes_are_served_and_more_time_is_asked_for_before() {
    let mut daemon = Daemon::start("ready");
    let files = daemon.create("t", "ec2+1", 3, "64M", &[]);
    assert!(daemon.stop());
    std::fs::create_dir(daemon.path("away")).unwrap();
    let away = daemon.path("away/d.img");
    std::fs::rename(&files[0], &away).unwrap();
    let manager = UnixDatagram::bind(daemon.path("manager")).unwrap();
    manager.set_read_timeout(Some(20 * SECOND)).unwrap();
    let next = || {
        let mut bytes = [0; 4096];
        let length = manager.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    daemon
        .environment
        .push(("NOTIFY_SOCKET".into(), daemon.text("manager")));
    daemon.begin();
    let first = next();
    assert!(
        first.contains("EXTEND_TIMEOUT_USEC=") && first.contains("2 of 3 are here"),
        "{first}"
    );
    let waiting = daemon.json(&["status", "-j"]);
    assert!(
        waiting["not_imported"][0]["reason"]
            .as_str()
            .unwrap()
            .contains("2 of 3"),
        "{waiting}"
    );
    std::fs::rename(&away, &files[0]).unwrap();
    let asked = Instant::now();
    daemon.ok(&["wait", "t"]);
    assert!(
        daemon.path("nbd.sock").exists(),
        "wait ends when it serves, after {:?}",
        asked.elapsed()
    );
    let mut told = next();
    while !told.contains("READY=1") {
        assert!(told.contains("EXTEND_TIMEOUT_USEC="), "{told}");
        told = next();
    }
    assert!(daemon.stop());
    assert!(next().contains("STOPPING=1"));
}

#[test]
fn what_belongs_to_others_is_left_alone() {
    let mut daemon = Daemon::start("others");
    assert!(daemon.stop());
    // A socket at which another program answers; one that nobody serves any more is replaced.
    let socket = daemon.path("control.sock");
    let other = UnixListener::bind(&socket).unwrap();
    let line = |daemon: &Daemon| {
        let (socket, state) = (daemon.text("control.sock"), daemon.text("state"));
        daemon
            .fails(&["daemon", "--socket", &socket, "--state", &state])
            .0
    };
    let refused = line(&daemon);
    assert!(
        refused.contains("another program listens there"),
        "{refused}"
    );
    assert!(socket.exists(), "the other program's socket is still there");
    drop(other);
    // A state directory in which others can put links.
    let mode = |m| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(m);
        std::fs::set_permissions(daemon.path("state"), mode).unwrap();
    };
    mode(0o777);
    let refused = line(&daemon);
    assert!(refused.contains("chmod 700"), "{refused}");
    mode(0o700);
    daemon.launch();
    assert!(daemon.ok(&["status"]).contains("no arrays"));
}

#[test]
fn a_long_request_makes_a_short_answer_and_a_short_line_in_the_log() {
    let daemon = Daemon::start("long");
    let name = "x".repeat(900_000);
    let body = format!("{{\"array\":\"{name}\",\"layout\":\"ec2+1\",\"devices\":[]}}");
    let mut stream = UnixStream::connect(daemon.path("control.sock")).unwrap();
    let head = format!(
        "POST /v1/create HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(
        answer.contains(" 400 ") && answer.len() < 5_000,
        "{} bytes",
        answer.len()
    );
    assert!(log(&daemon).len() < 20_000, "{} bytes", log(&daemon).len());
}

fn ask(daemon: &Daemon, request: &str, times: usize) -> UnixStream {
    let mut stream = UnixStream::connect(daemon.path("control.sock")).unwrap();
    stream.set_nonblocking(true).unwrap();
    let _ = stream.write_all(request.repeat(times).as_bytes()); // as much as it takes
    stream
}

#[test]
fn clients_that_wait_or_do_not_read_leave_room_for_those_who_ask() {
    let daemon = Daemon::start("clients");
    daemon.create("t", "ec2+1", 3, "64M", &[]);
    // Those who wait have places of their own.
    let body = "{\"since_id\":1000000,\"wait_seconds\":50}";
    let wait = format!(
        "POST /v1/events HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let waiting: Vec<UnixStream> = (0..150).map(|_| ask(&daemon, &wait, 1)).collect();
    std::thread::sleep(SECOND);
    assert_eq!(daemon.run(&["status", "--test"]).status.code(), Some(0));
    let (error, _) = daemon.fails(&["wait", "t"]);
    assert!(error.contains("wait already"), "{error}");
    drop(waiting);
    wait_until("the places of those who left", 5 * SECOND, || {
        daemon.run(&["wait", "t"]).status.success()
    });
    // Those who do not read lose their connections, and who is turned away meanwhile hears why.
    let status = "GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n";
    let deaf: Vec<UnixStream> = (0..256).map(|_| ask(&daemon, status, 500)).collect();
    let began = Instant::now();
    let mut why = String::new();
    wait_until(
        "an answer beside clients that read none",
        40 * SECOND,
        || {
            let output = daemon.run(&["status"]);
            if !output.status.success() {
                why = String::from_utf8_lossy(&output.stderr).into_owned();
            }
            output.status.success()
        },
    );
    assert!(
        why.contains("already serves 256 requests"),
        "{why:?} for {:?}",
        began.elapsed()
    );
    drop(deaf);
}

#[test]
fn devices_left_by_a_daemon_that_was_killed_delay_no_start() {
    if !have_kernel_devices() {
        return;
    }
    let mut daemon = Daemon::start("left-devices");
    daemon.create("t", "ec2+1", 3, "128M", &[]);
    daemon.ok(&["volume", "detach", "t/v"]);
    daemon.ok(&["volume", "destroy", "t/v", "--yes"]);
    let mut held = Vec::new();
    for n in 0..6 {
        let volume = format!("t/v{n}");
        daemon.ok(&["volume", "create", &volume, "--size", "4M"]);
        let attached = daemon.json(&["volume", "attach", &volume, "--loop", "-j"]);
        let device = attached["attached"]["device"].as_str().unwrap().to_string();
        held.push(std::fs::File::open(device).unwrap());
    }
    daemon.kill9();
    let began = Instant::now();
    daemon.begin();
    let took = began.elapsed();
    assert!(took < 4 * SECOND, "the first answer took {took:?}");
    drop(held);
    daemon.ok(&["wait", "t"]);
    for n in 0..6 {
        daemon.ok(&["volume", "detach", &format!("t/v{n}")]);
    }
}

#[test]
fn importing_what_is_imported_is_no_error() {
    let mut daemon = Daemon::start("again");
    daemon.create("t", "ec2+1", 3, "64M", &[]);
    let uuid = daemon.status("t")["uuid"].as_str().unwrap().to_string();
    daemon.kill9();
    daemon.launch();
    for name in ["t", &uuid] {
        let output = daemon.run(&["import", name]);
        assert!(output.status.success());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("already imported"), "{said}");
    }
    let (error, _) = daemon.fails(&["import", "t", "--read-only"]);
    assert!(
        error.contains("already imported, for reading and writing"),
        "{error}"
    );
}

#[test]
fn the_log_has_each_event_once_with_its_array() {
    let daemon = Daemon::start("log-once");
    daemon.create("t", "ec2+1", 4, "64M", &[]);
    daemon.ok(&["fail", "t", "3", "-w"]);
    daemon.ok(&["export", "t"]);
    let log = log(&daemon);
    for kind in ["created", "volume-created", "device-failed", "exported"] {
        let line = format!("kind=\"{kind}\"");
        let lines: Vec<&str> = log.lines().filter(|l| l.contains(&line)).collect();
        assert_eq!(lines.len(), 1, "{kind}:\n{log}");
        assert!(lines[0].contains("array=\"t\""), "{}", lines[0]);
    }
    assert!(!log.contains("halted"), "{log}");
}

#[test]
fn a_daemon_that_does_not_answer_is_told_of_after_a_while() {
    let daemon = Daemon::start("no-answer");
    let asked = |daemon: &Daemon| daemon.run(&["status", "-j"]);
    let quick = asked(&daemon);
    assert!(quick.status.success() && quick.stderr.is_empty());
    daemon.signal(rustix::process::Signal::STOP);
    let slow = std::thread::scope(|scope| {
        let asking = scope.spawn(|| asked(&daemon));
        std::thread::sleep(Duration::from_secs(7));
        daemon.signal(rustix::process::Signal::CONT);
        asking.join().unwrap()
    });
    let said = String::from_utf8_lossy(&slow.stderr).into_owned();
    assert!(
        said.contains("has not answered for 5s; it is waited for until 60s have passed"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        slow.status.success() && slow.stdout == quick.stdout,
        "clean"
    );
}
