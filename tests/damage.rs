//! Devices that lie: every wrong block is found, counted on the device that gave it, and healed;
//! beyond M exactly the blocks concerned fail, and no wrong byte is ever given out.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;

use ashlar_rt::Buf;

use common::disk::{Disk, pattern};
use common::{Daemon, Random};

const PIECE: usize = 256 << 10;
const SIZE: u64 = 64 << 20;

/// Overwrites random places of a device file with noise, past the page cache as the daemon does;
/// how many of them held anything.
fn corrupt(path: &Path, places: usize, random: &mut Random) -> u64 {
    let file = common::open_direct(path);
    let blocks = file.metadata().unwrap().len() / 4096;
    let mut hit = 0;
    for _ in 0..places {
        // Not the first and last 2 MiB: superblocks and roots have copies and tests of their own.
        let at = (512 + random.below(blocks - 1024)) * 4096;
        let mut block = Buf::zeroed(4096);
        file.read_exact_at(&mut block, at).unwrap();
        hit += u64::from(block.iter().any(|byte| *byte != 0));
        random.fill(&mut block);
        file.write_all_at(&block, at).unwrap();
    }
    file.sync_all().unwrap();
    hit
}

fn digest_errors(daemon: &Daemon, index: usize) -> u64 {
    daemon.status("t")["devices"][index]["errors"]["digest"]
        .as_u64()
        .unwrap()
}

fn filled(name: &str, layout: &str, devices: usize) -> (Daemon, Vec<std::path::PathBuf>) {
    let daemon = Daemon::start(name);
    let files = daemon.create("t", layout, devices, "48M", &[]);
    let disk = daemon.disk("t");
    assert_eq!(disk.write_range((0, SIZE), PIECE, 16, pattern(1)), []);
    disk.flush().unwrap();
    (daemon, files)
}

fn all_there(disk: &Disk) {
    assert_eq!(disk.compare_range((0, SIZE), PIECE, 16, pattern(1)), []);
}

#[test]
fn random_strips_on_m_devices_are_found_counted_and_healed() {
    let (daemon, files) = filled("strips", "ec4+2", 8);
    let mut random = Random::new(77);
    let liars = [2, 5];
    let hit: u64 = liars
        .iter()
        .map(|i| corrupt(&files[*i], 1500, &mut random))
        .sum();
    assert!(
        hit > 500,
        "the noise hit only {hit} blocks that held something"
    );
    let disk = daemon.disk("t");
    all_there(&disk);
    for index in 0..8 {
        let errors = digest_errors(&daemon, index);
        if liars.contains(&index) {
            assert!(
                errors > 50,
                "device {index} lied and has only {errors} errors"
            );
        } else {
            assert_eq!(errors, 0, "device {index} is innocent");
        }
    }
    // What was found is healed: reading again finds nothing, once healing has caught up.
    common::wait_until("healing", std::time::Duration::from_secs(60), || {
        let before: u64 = liars.iter().map(|i| digest_errors(&daemon, *i)).sum();
        all_there(&disk);
        before
            == liars
                .iter()
                .map(|i| digest_errors(&daemon, *i))
                .sum::<u64>()
    });
    let events = daemon.ok(&["events", "t"]);
    assert!(
        events.contains("heal"),
        "no event tells of healing:\n{events}"
    );
    assert!(daemon.status("t")["lost"].as_array().unwrap().is_empty());
}

#[test]
fn m_lost_and_one_more_lying_loses_exactly_the_blocks_concerned() {
    let (mut daemon, files) = filled("beyond", "ec4+2", 6);
    // Else data without redundancy would be rewritten narrower before they are hit.
    daemon.ok(&["set", "t", "reconstruct.narrow=never"]);
    for index in ["0", "3"] {
        daemon.ok(&["fail", "t", index]);
    }
    let mut random = Random::new(5);
    let hit = corrupt(&files[1], 400, &mut random);
    let disk = daemon.disk("t");
    // Each block either reads as it should or fails; compare_range panics on a wrong byte.
    let failed = disk.compare_range((0, SIZE), 4096, 64, pattern(1));
    println!(
        "{hit} blocks hit, {} blocks of the volume unreadable",
        failed.len()
    );
    assert!(
        !failed.is_empty(),
        "nothing was lost although M devices are gone and one lies"
    );
    // A noise block takes with it at most the four data blocks of its own column.
    assert!(
        failed.len() as u64 <= hit * 4 * 2,
        "{} blocks fail for {hit} hit",
        failed.len()
    );
    let status = daemon.status("t");
    assert_eq!(status["state"], "failed", "{}", status["state"]);
    let listed: u64 = status["lost"]
        .as_array()
        .unwrap()
        .iter()
        .map(|l| l["length_bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(
        listed,
        failed.len() as u64 * 4096,
        "the list of lost ranges is exact"
    );
    assert_eq!(daemon.run(&["status", "--test"]).status.code(), Some(2));
    // The same blocks after a restart, and a full overwrite clears them.
    drop(disk);
    daemon.kill9();
    daemon.launch();
    let disk = daemon.disk("t");
    assert_eq!(
        disk.compare_range((0, SIZE), 4096, 64, pattern(1)).len(),
        failed.len()
    );
    for (at, _) in &failed {
        let mut block = vec![0; 4096];
        pattern(1)(*at, &mut block);
        disk.write(*at, &block).unwrap();
    }
    all_there(&disk);
}

#[test]
fn devices_that_die_while_files_are_written_lose_nothing() {
    let daemon = Daemon::start("dying");
    let files = daemon.create("t", "ec8+3", 16, "48M", &[]);
    let disk = daemon.disk("t");
    let third = SIZE / 3 / PIECE as u64 * PIECE as u64;
    for (n, index) in [(0u64, 4usize), (1, 9), (2, 14)] {
        let from = third * n;
        let half = from + third / 2 / PIECE as u64 * PIECE as u64;
        assert_eq!(disk.write_range((from, half), PIECE, 8, pattern(1)), []);
        // Not declared: the file is cut off under the daemon, which finds out by itself.
        std::fs::File::options()
            .write(true)
            .open(&files[index])
            .unwrap()
            .set_len(0)
            .unwrap();
        assert_eq!(
            disk.write_range((half, from + third), PIECE, 8, pattern(1)),
            []
        );
        assert_eq!(
            disk.compare_range((0, from + third), PIECE, 8, pattern(1)),
            []
        );
        daemon.run(&["fail", "t", &index.to_string()]); // it may be out already
    }
    assert_eq!(
        disk.write_range((3 * third, SIZE), PIECE, 8, pattern(1)),
        []
    );
    all_there(&disk);
    daemon.ok(&["wait", "t", "--for", "reconstruct"]);
    let status = daemon.status("t");
    assert_eq!(status["state"], "optimal", "{status}");
    all_there(&disk);
    // Full redundancy again: three more may go.
    for index in ["0", "1", "2"] {
        daemon.ok(&["fail", "t", index]);
    }
    all_there(&disk);
}
