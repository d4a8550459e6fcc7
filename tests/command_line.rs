//! The command line as scripts use it: exit codes, JSON, and bad input answered with one clear line.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::process::{Command, Stdio};

use common::{ASHLAR, Daemon, Scratch};

#[test]
fn wrong_usage_exits_with_2_and_says_so() {
    let scratch = Scratch::new("usage");
    for line in [
        "",
        "frobnicate",
        "create",
        "create t",
        "create t --layout ec2+1",
        "create t --layout ec2+1 --strip 1x a b c",
        "create t --layout ec2+1 --attach loop a b c",
        "destroy",
        "status --watch x",
        "volume attach t/v",
        "volume create t --size 1G",
        "volume create t/v",
        "wait t --for coffee",
        "set t novalue",
        "completions klingon",
    ] {
        let output = Command::new(ASHLAR)
            .args(line.split_whitespace())
            .env("ASHLAR_SOCKET", scratch.path("none"))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "ashlar {line}");
        assert!(!output.stderr.is_empty(), "ashlar {line} says nothing");
    }
}

#[test]
fn an_unreachable_daemon_never_exits_0() {
    let scratch = Scratch::new("unreachable");
    for line in [
        "status",
        "status -j",
        "status -x",
        "status --mdstat",
        "list",
        "events",
        "import",
        "export t",
        "destroy t --yes",
        "volume list",
        "fail t 0",
        "wait t",
        "get t",
        "set t a=b",
    ] {
        let output = Command::new(ASHLAR)
            .args(line.split_whitespace())
            .env("ASHLAR_SOCKET", scratch.path("none"))
            .output()
            .unwrap();
        let mut error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "ashlar {line}: {error}");
        if line.ends_with("-j") {
            error = String::from_utf8(output.stdout).unwrap();
        } else {
            assert!(output.stdout.is_empty(), "ashlar {line} printed a result");
        }
        assert!(
            error.lines().count() == 1 && error.contains("ashlar daemon"),
            "{error}"
        );
    }
    let output = Command::new(ASHLAR)
        .args(["status", "--test"])
        .env("ASHLAR_SOCKET", scratch.path("none"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4), "status --test cannot tell");
}

#[test]
fn every_shell_gets_completions_and_every_verb_help() {
    for shell in ["bash", "zsh", "fish"] {
        let output = Command::new(ASHLAR)
            .args(["completions", shell])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success() && text.contains("_ASHLAR_COMPLETE"),
            "{shell}"
        );
    }
    for verb in [
        "create",
        "import",
        "status",
        "volume attach",
        "resilience",
        "plan",
        "demo",
    ] {
        let output = Command::new(ASHLAR)
            .args(verb.split(' '))
            .arg("--help")
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            text.contains(&format!("ashlar {verb}")) && text.contains("Example"),
            "{verb}: {text}"
        );
    }
}

/// What makes no sense, whatever devices and arrays there are: exit code 2, not 1.
const WRONG_USAGE: &[&str] = &[
    "given twice",
    "same device",
    "too small",
    "neither a block device nor a file",
    "--layout",
    "cannot name",
    "--strip",
    "--slot",
    "--domain",
    "--file-size 1000",
    "neither unix:PATH",
    "multiple of the volume's block",
    "--block-size",
    "--digest",
    "no setting",
    "use on, off or auto",
    "cannot be '",
];

fn refused(daemon: &Daemon, line: &str, words: &str) {
    let (error, code) = daemon.fails(&line.split(' ').collect::<Vec<_>>());
    assert!(error.contains(words), "ashlar {line}: {error}");
    assert!(!error.contains("panick"), "ashlar {line}: {error}");
    assert_eq!(error.lines().count(), 1, "ashlar {line}: {error}");
    let usage = WRONG_USAGE.iter().any(|w| error.contains(w));
    assert_eq!(code, if usage { 2 } else { 1 }, "ashlar {line}: {error}");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn bad_devices_and_names_are_refused_with_one_line_each() {
    let daemon = Daemon::start("refusals");
    let size = 64 << 20;
    for name in ["a", "b", "c", "small", "ext4", "part"] {
        let file = std::fs::File::create(daemon.path(name)).unwrap();
        file.set_len(if name == "small" { 1 << 20 } else { size })
            .unwrap();
    }
    if common::have(&["mkfs.ext4"]) {
        common::tool("mkfs.ext4", &["-q", "-F", &daemon.text("ext4")]);
    }
    {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options()
            .write(true)
            .open(daemon.path("part"))
            .unwrap();
        file.write_all_at(&[0x55, 0xAA], 510).unwrap();
        let entry = [0x80, 1, 1, 0, 0x83, 254, 255, 255, 0, 8, 0, 0, 0, 0, 1, 0];
        file.write_all_at(&entry, 446).unwrap();
    }
    std::os::unix::fs::symlink(daemon.path("a"), daemon.path("link-to-a")).unwrap();
    for (line, words) in [
        ("create t --layout ec2+1 a b none", "none: no such device"),
        ("create t --layout ec2+1 a b a", "given twice"),
        ("create t --layout ec2+1 a b link-to-a", "same device"),
        ("create t --layout ec2+1 a b small", "too small"),
        (
            "create t --layout ec2+1 a b /dev/null",
            "neither a block device nor a file",
        ),
        (
            "create t --layout ec2+1 a b .",
            "neither a block device nor a file",
        ),
        ("create t --layout ec2+1 a b part", "partition"),
        ("create t --layout ec9+9 a b c", "layout"),
        ("create t --layout raid17 a b c", "layout"),
        ("create t --layout ec2+1 --spare 7 a b c", "layout"),
        (
            "create bad/name --layout ec2+1 a b c",
            "cannot name an array",
        ),
        ("create t --layout ec2+1 --strip 5000 a b c", "strip"),
        ("create t --layout ec2+1 --slot 5000 a b c", "slot"),
        (
            "create t --layout ec2+1 --domain x=y a b c",
            "is not one of the devices",
        ),
        ("create t --layout ec2+1 --domain a=y a b c", "no --domain"),
        (
            "create t --layout ec2+1 --file-size 1000 a b new",
            "file-size",
        ),
        (
            "create t --layout ec2+1 --file-size 64M a b no/dir/new",
            "directory",
        ),
        (
            "create t --layout ec2+1 --volume a/b a b c",
            "cannot name a volume",
        ),
        ("create t --layout ec2+1 --volume v=64P a b c", ""),
        (
            "create t --layout ec2+1 --volume v --attach nbd=nowhere a b c",
            "nbd",
        ),
        (
            "create t --layout ec2+1 --volume v --attach nbd=0.0.0.0:10809 a b c",
            "loopback",
        ),
        ("import nothere", "no device of an array"),
        ("import --all --scan /no/such/dir", "cannot be scanned"),
        ("status nothere", "no array"),
        ("export nothere", "no array"),
        ("destroy nothere --yes", "no array"),
        ("destroy nothere", "--yes"),
        ("fail nothere 0", "no array"),
        ("wait nothere", "no array"),
        ("get nothere", "no array"),
        ("set nothere a=b", "no array"),
        ("events nothere", "no array"),
        ("volume create nothere/v --size 1G", "no array"),
        ("volume attach nothere/v --loop", "no array"),
        ("inspect a", "not a device of an array"),
        ("inspect none", "no such"),
    ] {
        refused(&daemon, line, words);
    }
    if common::have(&["mkfs.ext4"]) {
        let (error, _) = daemon.fails(&["create", "t", "--layout", "ec2+1", "a", "b", "ext4"]);
        assert!(
            error.contains("ext4") && error.contains("--force"),
            "{error}"
        );
    }
    assert_eq!(
        daemon.json(&["status", "-j"])["arrays"]
            .as_array()
            .unwrap()
            .len(),
        0
    );
    // Nothing was touched, so all of them can still be used.
    daemon.ok(&["create", "t", "--layout", "ec2+1", "a", "b", "c"]);
    daemon.ok(&["volume", "create", "t/v", "--size", "1M"]);
    for (line, words) in [
        (
            "create t --layout ec2+1 --file-size 64M x y z",
            "exists here already",
        ),
        (
            "create u --layout ec2+1 a y z --file-size 64M",
            "belongs to array t",
        ),
        ("volume create t/w --size 4097", "multiple"),
        ("volume create t/w --size 64P", ""),
        ("volume create t/w --size 1M --block-size 5000", "block"),
        ("volume create t/w --size 1M --digest md5", "digest"),
        ("volume attach t/nothere --loop", "no volume"),
        ("volume detach t/nothere", "no volume"),
        ("volume destroy t/nothere --yes", "no volume"),
        ("fail t nothere", "not a device of t"),
        ("fail t 99", "not a device of t"),
        ("get t no.such.key", "no.such.key"),
        (
            "set t no.such.key=1",
            "clean.reserve, discard, rebalance.max",
        ),
        (
            "set t slow.timeout=31s",
            "1s to 30s, such as 2s (default: 2s)",
        ),
        (
            "set t rebuild.min=1",
            "bytes a second and device, at least 64K",
        ),
        ("set t rebuild.mni=1M", "did you mean 'rebuild.min'?"),
        ("set t spare=two", "a number of devices, such as 1"),
        ("set t spare=9", "devices in each group"),
        (
            "set t accelerator=gpu",
            "auto, cpu or cuda:N (default: auto)",
        ),
        ("set t clean.reserve=99%", "2% to 50% (default: 10%)"),
        ("set t clean.reserve=1", "2% to 50%"),
        ("set t clean.reserve=ten", "cannot be 'ten'"),
        ("set t clean.reserve=10%%", "cannot be '10%%'"),
        ("set t clean.reserve=+5", "cannot be '+5'"),
        (
            "set t rebuild.narrow=maybe",
            "rebuild.narrow cannot be 'maybe': it takes critical, always or never",
        ),
        ("volume set t/v color=red", "no setting 'color'"),
        ("volume set t/v write-cache=maybe", "use on, off or auto"),
    ] {
        refused(&daemon, line, words);
    }
    assert!(
        !daemon.path("x").exists() && !daemon.path("y").exists(),
        "a refused create left files"
    );
}

#[test]
fn a_second_daemon_is_turned_away() {
    let daemon = Daemon::start("second");
    daemon.ok(&[
        "create",
        "t",
        "--layout",
        "ec2+1",
        "--file-size",
        "64M",
        "a",
        "b",
        "c",
    ]);
    let second = |socket: &str, state: &str| {
        let output = Command::new(ASHLAR)
            .args([
                "daemon",
                "--socket",
                &daemon.text(socket),
                "--state",
                &daemon.text(state),
            ])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, error) = second("control.sock", "state2");
    assert!(
        code == Some(1) && error.contains("already serves"),
        "{error}"
    );
    let (code, error) = second("other.sock", "state");
    assert!(
        code == Some(1) && error.contains("another daemon uses the state"),
        "{error}"
    );
    // With its own socket and state it runs, but cannot have the devices.
    let other = Daemon::start("third");
    for name in ["a", "b", "c"] {
        let (error, code) = other.fails(&[
            "create",
            "u",
            "--layout",
            "ec2+1",
            &daemon.text("a"),
            &daemon.text("b"),
            &daemon.text("c"),
            "--force",
        ]);
        assert!(code == 1 && error.contains("in use"), "{name}: {error}");
    }
    let (error, _) = other.fails(&["import", "t", "--scan", daemon.scratch.0.to_str().unwrap()]);
    assert!(error.contains("in use"), "{error}");
    assert_eq!(daemon.status("t")["state"], "optimal");
}

#[test]
fn a_dry_run_changes_nothing_and_tells_what_create_gives() {
    let daemon = Daemon::start("dry");
    let line = [
        "create",
        "t",
        "--layout",
        "ec4+2",
        "--file-size",
        "64M",
        "-j",
    ];
    let files = ["0", "1", "2", "3", "4", "5", "6", "7"];
    let dry = daemon.json(&[&line[..], &["-n"], &files[..]].concat());
    assert_eq!(dry["dry_run"], true);
    assert!(!daemon.path("0").exists());
    assert_eq!(
        daemon.json(&["list", "-j"])["arrays"]
            .as_array()
            .unwrap()
            .len(),
        0
    );
    let made = daemon.json(&[&line[..], &files[..]].concat());
    assert_eq!(
        dry["array"]["capacity"]["usable_bytes"],
        made["array"]["capacity"]["usable_bytes"]
    );
    assert!(made["array"]["capacity"]["usable_bytes"].as_u64().unwrap() > 100 << 20);
}

#[test]
fn create_tells_whether_a_whole_domain_may_be_lost() {
    let daemon = Daemon::start("domains");
    let create = |layout: &str, domains: &[&str]| {
        let names: Vec<String> = (0..domains.len()).map(|n| n.to_string()).collect();
        let given: Vec<String> = names
            .iter()
            .zip(domains)
            .map(|(name, domain)| format!("--domain={name}={domain}"))
            .collect();
        let line = [
            "create",
            "t",
            "-n",
            "--file-size",
            "64M",
            "--layout",
            layout,
        ];
        let rest = given.iter().chain(&names).map(String::as_str);
        let all: Vec<&str> = line.into_iter().chain(rest).collect();
        daemon.ok(&all)
    };
    let three = create("ec4+2", &["a", "a", "b", "b", "c", "c", "c"]);
    assert!(
        three.contains("or the failure of any one whole domain"),
        "{three}"
    );
    let two = create("ec4+2", &["a", "a", "a", "b", "b", "b", "b"]);
    assert!(
        two.contains("not a whole domain: for that it takes 3 domains of 2 devices"),
        "{two}"
    );
    // Mirrors within an enclosure, and across two.
    let within = create("raid10", &["a", "a", "b", "b"]);
    assert!(
        within.contains("takes 2 domains of 1 device or more"),
        "{within}"
    );
    let across = create("raid10", &["a", "b", "a", "b"]);
    assert!(
        across.contains("or the failure of any one whole domain"),
        "{across}"
    );
    let apart = create("ec4+2", &["a", "b", "c", "d", "e", "f"]);
    assert!(!apart.contains("domain"), "{apart}");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn status_keeps_its_contract() {
    let daemon = Daemon::start("contract");
    let test = |expected: i32| {
        let output = daemon.run(&["status", "--test"]);
        assert_eq!(output.status.code(), Some(expected));
    };
    test(4); // no array: nothing to tell
    // Three devices, all of which a stripe needs: what is lost here stays lost, so that nothing races
    // with reconstruct.
    daemon.create("t", "ec1+2", 3, "64M", &[]);
    test(0);
    let status = daemon.json(&["status", "-j"]);
    assert_eq!(status["version"], 1);
    assert_eq!(status["command"], "status");
    let array = &status["arrays"][0];
    for field in [
        "name",
        "uuid",
        "state",
        "generation",
        "layout",
        "k",
        "m",
        "devices_total",
        "spare",
        "strip_bytes",
        "slot_bytes",
        "capacity",
        "clean",
        "map",
        "journal",
        "memory",
        "accelerator",
        "exposure",
        "devices",
        "tasks",
        "volumes",
        "lost",
    ] {
        assert!(!array[field].is_null(), "no {field} in {array}");
    }
    for field in [
        "raw_bytes",
        "usable_bytes",
        "used_bytes",
        "free_bytes",
        "spare_bytes",
        "reserved_bytes",
    ] {
        assert!(array["capacity"][field].is_u64(), "no capacity.{field}");
    }
    for field in [
        "index",
        "uuid",
        "path",
        "size_bytes",
        "domain",
        "state",
        "errors",
        "used_bytes",
        "read_bytes",
        "written_bytes",
    ] {
        assert!(!array["devices"][0][field].is_null(), "no devices.{field}");
    }
    for field in [
        "name",
        "size_bytes",
        "used_bytes",
        "block_bytes",
        "digest",
        "compress",
        "layout",
        "write_cache",
        "frontends",
        "host",
    ] {
        assert!(!array["volumes"][0][field].is_null(), "no volumes.{field}");
    }
    let row = daemon.ok(&["list", "-Hp"]);
    assert_eq!(row.trim_end().split('\t').count(), 8, "{row}");
    assert!(daemon.ok(&["status", "--mdstat"]).contains("[3/3] [UUU]"));
    assert!(daemon.ok(&["status", "-x"]).contains("nothing is wrong"));
    daemon.ok(&["fail", "t", "2"]);
    test(1);
    assert!(daemon.ok(&["status", "--mdstat"]).contains("[3/2] [UU_]"));
    assert!(daemon.ok(&["status", "-x"]).contains("is out of use: 2"));
    let events = daemon.ok(&["events", "t", "-j"]);
    let events: Vec<serde_json::Value> = events
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(events.iter().any(|e| e["device"] == 2), "{events:?}");
}

#[test]
fn the_worst_that_is_known_outranks_what_cannot_be_told() {
    let mut daemon = Daemon::start("worst");
    let test = |daemon: &Daemon| daemon.run(&["status", "--test"]).status.code().unwrap();
    let make = |name: &str| {
        let line = format!("create {name} --layout ec1+2 --file-size 64M {name}0 {name}1 {name}2");
        daemon.ok(&line.split(' ').collect::<Vec<_>>());
    };
    make("a");
    make("b");
    assert_eq!(test(&daemon), 0);
    daemon.ok(&["fail", "a", "0"]);
    assert_eq!(test(&daemon), 1);
    // One of two arrays cannot be told: a degraded one does not hide that.
    let away = daemon.path("away");
    std::fs::create_dir(&away).unwrap();
    daemon.ok(&["set", "b", "start.wait=1s"]);
    assert!(daemon.stop());
    for file in ["b0", "b1", "b2"] {
        std::fs::rename(daemon.path(file), away.join(file)).unwrap();
    }
    daemon.launch();
    assert_eq!(test(&daemon), 4);
    // A critical one is not hidden by what cannot be told.
    daemon.ok(&["fail", "a", "1", "-f"]);
    assert_eq!(test(&daemon), 2);
}
