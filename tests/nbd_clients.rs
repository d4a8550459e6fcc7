//! NBD clients of others: fio, qemu-img, nbdinfo, nbdcopy.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Daemon, have, spawn_tool, tool};

/// fio's arguments for a job that writes and verifies.
fn fio(uri: &str, name: &str, more: &[&str]) -> Vec<String> {
    let mut line: Vec<String> = [
        "--ioengine=nbd",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0", // no files left where it runs
        "--randrepeat=1",
        "--output-format=terse",
        "--group_reporting",
    ]
    .map(str::to_string)
    .to_vec();
    line.push(format!("--uri={uri}"));
    line.push(format!("--name={name}"));
    line.extend(more.iter().map(ToString::to_string));
    line
}

fn run_fio(uri: &str, name: &str, more: &[&str]) {
    let line = fio(uri, name, more);
    tool("fio", &line.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn fio_verifies_random_and_sequential_writes() {
    if !have(&["fio"]) {
        return;
    }
    let daemon = Daemon::start("fio");
    daemon.create("t", "ec4+2", 6, "128M", &[]);
    let uri = daemon.uri("t");
    run_fio(
        &uri,
        "random",
        &["--rw=randwrite", "--bs=4k", "--size=32M", "--iodepth=32"],
    );
    run_fio(
        &uri,
        "sequential",
        &["--rw=write", "--bs=256k", "--size=128M", "--iodepth=8"],
    );
    run_fio(
        &uri,
        "odd",
        &[
            "--rw=randwrite",
            "--bsrange=512-70k",
            "--bs_unaligned",
            "--size=32M",
            "--iodepth=8",
        ],
    );
    run_fio(
        &uri,
        "mixed",
        &[
            "--rw=randrw",
            "--bs=8k",
            "--size=48M",
            "--iodepth=16",
            "--fsync=32",
        ],
    );
}

#[test]
fn fio_with_one_four_and_eight_connections() {
    if !have(&["fio"]) {
        return;
    }
    let daemon = Daemon::start("connections");
    daemon.create("t", "ec4+2", 6, "128M", &[]);
    for jobs in ["1", "4", "8"] {
        let jobs = format!("--numjobs={jobs}");
        let line = [
            "--rw=randwrite",
            "--bs=4k",
            "--size=8M",
            "--iodepth=16",
            "--offset_increment=8M",
            &jobs,
        ];
        run_fio(&daemon.uri("t"), "jobs", &line);
    }
}

#[test]
fn fio_with_trims() {
    if !have(&["fio"]) {
        return;
    }
    let daemon = Daemon::start("trims");
    daemon.create("t", "ec4+2", 6, "128M", &[]);
    let line = [
        "--rw=randtrim",
        "--bs=64k",
        "--size=64M",
        "--iodepth=8",
        "--verify=0",
    ];
    run_fio(
        &daemon.uri("t"),
        "fill",
        &["--rw=write", "--bs=256k", "--size=64M", "--iodepth=8"],
    );
    run_fio(&daemon.uri("t"), "trim", &line);
    let disk = daemon.disk("t");
    assert!(
        disk.read(0, 64 << 20 >> 4)
            .unwrap()
            .iter()
            .all(|byte| *byte == 0),
        "trimmed bytes show"
    );
    drop(disk);
    run_fio(
        &daemon.uri("t"),
        "again",
        &["--rw=write", "--bs=256k", "--size=64M", "--iodepth=8"],
    );
}

#[test]
fn fio_through_the_loss_of_devices() {
    if !have(&["fio"]) {
        return;
    }
    let daemon = Daemon::start("loss");
    let files = daemon.create("t", "ec4+2", 8, "128M", &[]);
    let line = fio(
        &daemon.uri("t"),
        "loss",
        &["--rw=randwrite", "--bs=16k", "--size=96M", "--iodepth=16"],
    );
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let log = daemon.path("fio.log");
    let mut child = spawn_tool("fio", &line, &log);
    for index in [1usize, 6] {
        std::thread::sleep(std::time::Duration::from_millis(700));
        daemon.ok(&["fail", "t", &index.to_string()]);
        std::fs::File::options()
            .write(true)
            .open(&files[index])
            .unwrap()
            .set_len(0)
            .unwrap();
    }
    let status = child.wait().unwrap();
    assert!(
        status.success(),
        "{}",
        std::fs::read_to_string(log).unwrap()
    );
    // Verified once more, from the array alone.
    let more = [
        "--rw=randwrite",
        "--bs=16k",
        "--size=96M",
        "--iodepth=16",
        "--verify_only",
    ];
    run_fio(&daemon.uri("t"), "loss", &more);
}

#[test]
fn fio_finds_its_durable_writes_after_a_kill() {
    if !have(&["fio"]) {
        return;
    }
    let mut daemon = Daemon::start("kill");
    daemon.create("t", "ec4+2", 6, "128M", &[]);
    // A job that ends: all of it was acknowledged.
    run_fio(
        &daemon.uri("t"),
        "kept",
        &[
            "--rw=randwrite",
            "--bs=4k",
            "--size=24M",
            "--iodepth=32",
            "--do_verify=0",
        ],
    );
    // Another, far from it, is running when the daemon dies.
    let more = [
        "--rw=randwrite",
        "--bs=4k",
        "--offset=64M",
        "--size=64M",
        "--iodepth=32",
        "--do_verify=0",
    ];
    let line = fio(&daemon.uri("t"), "torn", &more);
    let log = daemon.path("fio.log");
    let mut child = spawn_tool(
        "fio",
        &line.iter().map(String::as_str).collect::<Vec<_>>(),
        &log,
    );
    std::thread::sleep(std::time::Duration::from_millis(900));
    daemon.kill9();
    child.wait().unwrap();
    daemon.launch();
    drop(daemon.disk("t"));
    let more = [
        "--rw=randwrite",
        "--bs=4k",
        "--size=24M",
        "--iodepth=32",
        "--verify_only",
    ];
    run_fio(&daemon.uri("t"), "kept", &more);
}

#[test]
fn qemu_img_converts_and_compares() {
    if !have(&["qemu-img"]) {
        return;
    }
    let daemon = Daemon::start("qemu");
    daemon.create("t", "ec4+2", 6, "64M", &[]);
    let size = daemon.disk("t").size();
    let raw = daemon.text("source.raw");
    {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::create(&raw).unwrap();
        file.set_len(size).unwrap();
        let mut random = common::Random::new(4);
        let mut block = vec![0; 1 << 20];
        for _ in 0..40 {
            let at =
                random.below(size / block.len() as u64 - 1) * (1 << 20) + random.below(200) * 4096;
            random.fill(&mut block);
            file.write_all_at(&block, at).unwrap();
        }
    }
    let uri = daemon.uri("t");
    tool(
        "qemu-img",
        &["convert", "-n", "-f", "raw", "-O", "raw", &raw, &uri],
    );
    let said = tool(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", &raw, &uri],
    );
    assert!(said.contains("identical"), "{said}");
    let qcow = daemon.text("copy.qcow2");
    tool(
        "qemu-img",
        &["convert", "-f", "raw", "-O", "qcow2", &uri, &qcow],
    );
    tool(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "qcow2", &raw, &qcow],
    );
}

#[test]
fn nbdinfo_and_nbdcopy_find_their_way() {
    if !have(&["nbdinfo", "nbdcopy"]) {
        return;
    }
    let daemon = Daemon::start("libnbd");
    daemon.create("t", "ec4+2", 6, "64M", &[]);
    let uri = daemon.uri("t");
    let info: serde_json::Value =
        serde_json::from_str(&tool("nbdinfo", &["--json", &uri])).unwrap();
    let export = &info["exports"][0];
    assert_eq!(
        export["export-size"].as_u64(),
        Some(daemon.disk("t").size())
    );
    assert_eq!(export["can_flush"], true);
    assert_eq!(export["can_trim"], true);
    assert_eq!(export["can_multi_conn"], true);
    let empty = format!("nbd+unix:///?socket={}", daemon.text("nbd.sock"));
    assert!(
        tool("nbdinfo", &["--size", &empty])
            .trim()
            .parse::<u64>()
            .is_ok(),
        "the empty name"
    );
    let listed = tool("nbdinfo", &["--list", &empty]);
    assert!(listed.contains("t/v"), "{listed}");
    let disk = daemon.disk("t");
    let end = 16 << 20;
    assert_eq!(
        disk.write_range((0, end), 1 << 20, 8, common::disk::pattern(6)),
        []
    );
    drop(disk);
    let copy = daemon.text("copy.raw");
    tool("nbdcopy", &[&uri, &copy]);
    let bytes = std::fs::read(&copy).unwrap();
    let mut expected = vec![0; usize::try_from(end).unwrap()];
    common::disk::pattern(6)(0, &mut expected);
    assert!(bytes[..expected.len()] == expected[..], "the copy differs");
    assert!(bytes[expected.len()..].iter().all(|byte| *byte == 0));
    let map = tool("nbdinfo", &["--map", &uri]);
    assert!(
        map.contains("hole"),
        "an empty part is not shown as a hole:\n{map}"
    );
}

/// Zeros whose space is to stay take it: what is written there later cannot fail for want of space.
#[test]
fn zeros_that_leave_no_hole_have_their_space() {
    let daemon = Daemon::start("nohole");
    let files = "create t --layout ec2+1 --file-size 64M d0 d1 d2";
    daemon.ok(&files.split(' ').collect::<Vec<_>>());
    let address = format!("unix:{}", daemon.text("nbd.sock"));
    daemon.ok(&["volume", "create", "t/v", "--size", "16M", "--thin"]);
    daemon.ok(&["volume", "attach", "t/v", "--nbd", &address]);
    let disk = daemon.disk("t");
    let (mib, all) = (1 << 20, 16 << 20);
    disk.write(0, &[7; 65_536]).unwrap();
    disk.write_zeroes(4096, 3 * mib, false).unwrap();
    assert_eq!(disk.holes(0, 3 * mib), 0);
    assert_eq!(disk.holes(0, all), all - 3 * mib - 4096);
    let head = disk.read(0, 65_536).unwrap();
    assert!(head[..4096].iter().all(|b| *b == 7) && head[4096..].iter().all(|b| *b == 0));
    disk.write_zeroes(4096, 3 * mib, true).unwrap();
    assert_eq!(disk.holes(0, all), all - 4096);
    // A thick volume's space is its own, so a hole in it costs nothing.
    daemon.ok(&["volume", "create", "t/thick", "--size", "16M"]);
    daemon.ok(&["volume", "attach", "t/thick", "--nbd", &address]);
    let thick = common::disk::Disk::connect(&daemon.path("nbd.sock"), "t/thick");
    thick.write_zeroes(0, all, false).unwrap();
    assert_eq!(thick.holes(0, all), all);
    // More than there is cannot be promised.
    daemon.ok(&["volume", "create", "t/large", "--size", "1G", "--thin"]);
    daemon.ok(&["volume", "attach", "t/large", "--nbd", &address]);
    let large = common::disk::Disk::connect(&daemon.path("nbd.sock"), "t/large");
    assert!(large.write_zeroes(0, 1 << 30, false).is_err());
    large.write_zeroes(0, 1 << 30, true).unwrap();
}
