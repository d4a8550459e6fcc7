//! Every kind of layout: filled to the last byte, overwritten, trimmed, M devices lost, killed,
//! imported, compared, and written again. (Copies on devices this small to nine tenths: with slots of
//! 64 KiB and one data column a liveness record is as large as 7 % of what it describes, and in the
//! last tenth a commit can still use the last slots up; see docs/bugs.md.)
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::PathBuf;

use common::disk::{Disk, pattern};
use common::{Daemon, Random};

const PIECE: usize = 512 << 10;

fn life(layout: &str, devices: usize, file_size: &str, m: usize) {
    let name = layout.replace(['+', ':', '(', ')'], "-");
    let mut daemon = Daemon::start(&name);
    let files = daemon.create("t", layout, devices, file_size, &[]);
    let size = daemon.disk("t").size();
    assert!(size > 0);
    println!(
        "{layout} on {devices} devices: a volume of {} MiB",
        size >> 20
    );

    // Filled, then overwritten in parts, then holes.
    let disk = daemon.disk("t");
    assert_eq!(
        disk.write_range((0, size), PIECE, 16, pattern(1)),
        [],
        "{layout}: filling"
    );
    let third = size / 3 / PIECE as u64 * PIECE as u64;
    assert_eq!(
        disk.write_range((third, 2 * third), PIECE, 16, pattern(2)),
        [],
        "{layout}: overwriting"
    );
    let hole = (size / 8 / 4096 * 4096, size / 6 / 4096 * 4096);
    disk.trim(hole.0, hole.1 - hole.0).unwrap();
    disk.flush().unwrap();
    let expected = move |at: u64, out: &mut [u8]| {
        for (at, block) in (at..).step_by(4096).zip(out.chunks_mut(4096)) {
            if (hole.0..hole.1).contains(&at) {
                block.fill(0);
            } else if (third..2 * third).contains(&at) {
                pattern(2)(at, block);
            } else {
                pattern(1)(at, block);
            }
        }
    };
    let whole = |disk: &Disk, when: &str| {
        let failed = disk.compare_range((0, size), PIECE, 16, expected);
        assert_eq!(failed, [], "{layout}: reading {when}");
    };
    whole(&disk, "when all is well");

    lose(&daemon, &files, m);
    whole(&disk, "with M devices lost");
    drop(disk);
    daemon.kill9();
    daemon.launch();
    whole(&daemon.disk("t"), "after a kill and import");
    // It still takes writes.
    let disk = daemon.disk("t");
    assert_eq!(
        disk.write_range((0, 8 << 20), PIECE, 8, pattern(9)),
        [],
        "{layout}: writing degraded"
    );
    assert_eq!(
        disk.compare_range((0, 8 << 20), PIECE, 8, pattern(9)),
        [],
        "{layout}: reading degraded"
    );
}

/// Takes `m` random devices out and destroys what is in their files.
fn lose(daemon: &Daemon, files: &[PathBuf], m: usize) {
    let mut random = Random::new(files.len() as u64);
    let mut left: Vec<usize> = (0..files.len()).collect();
    for _ in 0..m {
        let index = left.remove(usize::try_from(random.below(left.len() as u64)).unwrap());
        daemon.ok(&["fail", "t", &index.to_string()]);
        std::fs::File::options()
            .write(true)
            .open(&files[index])
            .unwrap()
            .set_len(0)
            .unwrap();
    }
}

#[test]
fn ec_4_2() {
    life("ec4+2", 6, "48M", 2);
}

#[test]
fn ec_8_2() {
    life("ec8+2", 10, "32M", 2);
}

#[test]
fn ec_8_3() {
    life("ec8+3", 12, "32M", 3);
}

#[test]
fn ec_20_4() {
    life("ec20+4", 24, "32M", 4);
}

#[test]
fn ec_80_20() {
    life("ec80+20", 100, "16M", 20);
}

#[test]
fn ec_1_3() {
    life("ec1+3", 4, "48M", 3);
}

#[test]
fn raid0() {
    life("raid0", 4, "32M", 0);
}

#[test]
fn mirror_of_two() {
    life("raid1", 2, "48M", 1);
}
