//! Disks that lie. The members of an array lie on a FUSE file system of this test, which lies about one of them or, as many
//! as ec4+2 survives, about two: in each way that `docs/testing.md` lists, while clients write and read.
//!
//! **Invariants**: clients read every byte as they wrote it, and no request fails; errors are counted against the lying
//! members, under their kind, and against no other; after the lies a scrub leaves nothing, and the independent verifier
//! finds the array sound.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
#[path = "lying/files.rs"]
mod files;
#[path = "lying/wire.rs"]
mod wire;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ashlar_rt::Buf;
use rustix::io::Errno;
use serde_json::Value;

use common::disk::{Disk, pattern};
use common::{Daemon, Random};
use files::{Files, Lie};

const MEMBERS: usize = 8;
const MEMBER_BYTES: u64 = 48 << 20;
const VOLUME: u64 = 12 << 20;
const PIECE: usize = 256 << 10;
/// Who lies: one, then as many as ec4+2 survives.
const LIARS: [&[usize]; 2] = [&[2], &[2, 5]];

/// How long a member hangs.
const HANG: Duration = Duration::from_secs(10);
/// How long a request of a client may take while it does: `slow.timeout` is 2 s, and this machine may be busy.
const LONGEST_STALL: Duration = Duration::from_secs(4);
/// How long `status` may take while it does, the program's own start included.
const STATUS_WITHIN: Duration = Duration::from_secs(1);

/// How long a member that was slow may be out of use.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// How long repair may take to find what counts against a member.
const BLAMED_WITHIN: Duration = Duration::from_secs(20);

/// A way of lying, and what is expected.
struct Case {
    lie: Lie,
    /// About each place the first time only.
    once: bool,
    /// Under which kinds errors are counted against the liar; under others none are.
    kinds: &'static [&'static str],
    /// The liar is taken out of use.
    taken_out: bool,
    /// How much is written in each of three rounds.
    round: u64,
    /// What a scrub finds once the lies are over: nothing, or what was not stored.
    scrub_finds: bool,
}

impl Case {
    fn new(lie: Lie, kinds: &'static [&'static str]) -> Case {
        Case {
            lie,
            once: false,
            kinds,
            taken_out: false,
            round: VOLUME / 3,
            scrub_finds: false,
        }
    }
}

/// Tries it with one liar and with two, side by side.
fn tried(case: &Case) {
    if !common::have_fuse() {
        return;
    }
    std::thread::scope(|scope| {
        for liars in LIARS {
            scope.spawn(move || Bed::new().lied_to(case, liars));
        }
    });
}

/// An array on files that can lie. The daemon ends before its files do.
struct Bed {
    daemon: Daemon,
    files: Files,
}

impl Bed {
    /// Its volume was written twice, so that there are earlier versions of what is stored.
    fn new() -> Bed {
        let (daemon, files) = (
            Daemon::start("lied-to"),
            Files::start(MEMBERS, MEMBER_BYTES),
        );
        let (attach, paths) = (
            format!("nbd=unix:{}", daemon.text("nbd.sock")),
            files.paths(),
        );
        let line = [
            "create", "t", "--layout", "ec4+2", "--volume", "v=12M", "--attach", &attach,
        ];
        let line: Vec<&str> = line
            .into_iter()
            .chain(paths.iter().map(String::as_str))
            .collect();
        daemon.ok(&line);
        daemon.ok(&["set", "t", "rebuild.delay=0s"]);
        let disk = daemon.disk("t");
        for seed in [1, 2] {
            assert_eq!(disk.write_range((0, VOLUME), PIECE, 8, pattern(seed)), []);
            disk.flush().unwrap();
        }
        Bed { daemon, files }
    }

    fn lied_to(self, case: &Case, liars: &[usize]) {
        for liar in liars {
            self.files.tell(*liar, case.lie, case.once);
        }
        let disk = self.daemon.disk("t");
        work(&disk, case.round);
        drop(disk);
        self.ends(liars, case);
    }

    fn ends(self, liars: &[usize], case: &Case) {
        self.are_blamed(liars, case);
        self.files.end_lies();
        for member in 0..MEMBERS {
            let lied = self.files.lies(member) > 0;
            assert_eq!(
                lied,
                liars.contains(&member),
                "member {member} lied: {lied}"
            );
        }
        self.becomes_sound(liars, case);
    }

    /// What is counted against members comes to what is expected, and no further.
    fn are_blamed(&self, liars: &[usize], case: &Case) {
        let begun = Instant::now();
        let told = |liar: &usize| {
            let all = case.kinds.iter().all(|kind| self.errors(*liar, kind) > 0);
            all && self.is_out(*liar) == case.taken_out
        };
        while !liars.iter().all(told) && begun.elapsed() < BLAMED_WITHIN {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.others_are_innocent(liars);
        for liar in liars {
            let out = self.is_out(*liar);
            let lie = case.lie;
            assert_eq!(out, case.taken_out, "{lie:?}: member {liar} is out: {out}");
        }
        for (liar, kind) in liars.iter().flat_map(|l| KINDS.map(|kind| (*l, kind))) {
            let (errors, expected) = (self.errors(liar, kind), case.kinds.contains(&kind));
            let lie = case.lie;
            assert_eq!(
                errors > 0,
                expected,
                "{lie:?}: member {liar} has {errors} {kind} errors"
            );
        }
    }

    fn others_are_innocent(&self, liars: &[usize]) {
        for member in (0..MEMBERS).filter(|member| !liars.contains(member)) {
            assert!(
                !self.is_out(member),
                "member {member} told no lie and was taken out"
            );
            for kind in KINDS {
                let errors = self.errors(member, kind);
                assert_eq!(
                    errors, 0,
                    "member {member} told no lie and has {kind} errors"
                );
            }
        }
    }

    fn errors(&self, member: usize, kind: &str) -> u64 {
        let status = self.daemon.status("t");
        let errors = &status["devices"][member]["errors"][kind];
        errors.as_u64().unwrap()
    }

    fn is_out(&self, member: usize) -> bool {
        match self.daemon.device_state(member as u64).unwrap().as_str() {
            "online" | "slow" => false,
            "failed" => true,
            other => panic!("member {member} is {other}"),
        }
    }

    /// The lies are over: what they left is found on the liars and repaired.
    fn becomes_sound(&self, liars: &[usize], case: &Case) {
        let is_slow = |member| self.daemon.device_state(member as u64).unwrap() == "slow";
        let begun = Instant::now();
        while liars.iter().any(|liar| is_slow(*liar)) {
            assert!(begun.elapsed() < BACK_WITHIN, "members are slow still");
            std::thread::sleep(Duration::from_millis(100));
        }
        self.daemon.ok(&["wait", "t", "--for", "reconstruct"]);
        assert_eq!(self.daemon.status("t")["state"], "optimal");
        let found = self.scrubbed(liars);
        assert_eq!(
            found > 0,
            case.scrub_finds,
            "a scrub found {found} bad blocks"
        );
        assert_eq!(self.scrubbed(liars), 0, "a second scrub finds nothing");
        self.others_are_innocent(liars);
        self.daemon.read(case.round * 3, 3);
        self.daemon.ok(&["export", "t"]);
        let paths = self.files.paths();
        let line: Vec<&str> = ["verify"]
            .into_iter()
            .chain(paths.iter().map(String::as_str))
            .collect();
        let said = self.daemon.ok(&line);
        assert!(said.contains("all is well"), "{said}");
    }

    /// How many bad blocks a scrub found, all of which it repaired.
    fn scrubbed(&self, liars: &[usize]) -> u64 {
        self.daemon.ok(&["scrub", "t", "start", "-w"]);
        let document = self.daemon.json(&["scrub", "t", "-j"]);
        let report = document["reports"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()
            .clone();
        assert_eq!(report["found"], report["repaired"], "{report}");
        let on = |finding: &Value| usize::try_from(finding["device"].as_u64().unwrap()).unwrap();
        for finding in report["findings"].as_array().unwrap() {
            assert!(liars.contains(&on(finding)), "{finding}");
        }
        report["found"].as_u64().unwrap()
    }
}

const KINDS: [&str; 3] = ["read", "write", "digest"];

/// Three rounds of writing, flushing and reading. No request may fail, no byte be wrong.
fn work(disk: &Disk, round: u64) {
    for from in [0, round, 2 * round] {
        let (to, end) = (from + round, (3 * round).min(VOLUME));
        assert_eq!(disk.write_range((from, to), PIECE, 8, pattern(3)), []);
        disk.flush().unwrap();
        assert_eq!(disk.compare_range((0, to), PIECE, 8, pattern(3)), []);
        assert_eq!(disk.compare_range((to, end), PIECE, 8, pattern(2)), []);
    }
}

#[test]
fn reads_fail() {
    tried(&Case::new(Lie::ReadError, &["read"]));
}

#[test]
fn writes_fail() {
    tried(&Case {
        taken_out: true,
        ..Case::new(Lie::WriteError(Errno::IO), &["write"])
    });
}

#[test]
fn writes_find_no_space() {
    tried(&Case {
        taken_out: true,
        ..Case::new(Lie::WriteError(Errno::NOSPC), &["write"])
    });
}

#[test]
fn flushes_fail() {
    tried(&Case {
        taken_out: true,
        ..Case::new(Lie::SyncError, &["write"])
    });
}

#[test]
fn writes_are_short() {
    // Over FUSE Linux makes an error of them.
    tried(&Case {
        taken_out: true,
        ..Case::new(Lie::ShortWrite, &["write"])
    });
}

#[test]
fn reads_are_short() {
    tried(&Case::new(Lie::ShortRead, &[])); // the rest is asked for
}

#[test]
fn reads_are_stale() {
    // A block that is repaired twice is right in both versions.
    tried(&Case::new(Lie::Stale, &["digest"]));
}

#[test]
fn reads_are_stale_once() {
    // A block whose second read is right is counted too, and there is nothing to repair.
    tried(&Case {
        once: true,
        ..Case::new(Lie::Stale, &["digest"])
    });
}

#[test]
fn reads_are_misdirected() {
    tried(&Case::new(Lie::ReadAstray, &["digest", "write"]));
}

#[test]
fn reads_are_garbage() {
    tried(&Case::new(Lie::Garbage, &["digest", "write"]));
}

#[test]
fn reads_are_torn() {
    tried(&Case::new(Lie::Torn, &["digest", "write"]));
}

#[test]
fn bits_flip() {
    tried(&Case::new(Lie::BitFlip, &["digest", "write"]));
}

#[test]
fn writes_are_dropped() {
    tried(&Case {
        scrub_finds: true,
        ..Case::new(Lie::Dropped, &["digest", "write"])
    });
}

#[test]
fn writes_are_misdirected() {
    tried(&Case {
        scrub_finds: true,
        ..Case::new(Lie::WriteAstray, &["digest", "write"])
    });
}

#[test]
fn everything_takes_200_ms() {
    tried(&Case {
        round: 512 << 10,
        ..Case::new(Lie::Delay(Duration::from_millis(200)), &[])
    });
}

/// A member that answers nothing for a while and then all: clients wait at most as long as promised, nothing fails.
#[test]
fn a_hang_stalls_clients_for_a_while_only() {
    if !common::have_fuse() {
        return;
    }
    let hung = |liars: &'static [usize]| {
        let case = Case::new(Lie::Hang, &[]);
        let bed = Bed::new();
        let disk = bed.daemon.disk("t");
        for liar in liars {
            bed.files.tell(*liar, case.lie, false);
        }
        let (mut longest, mut status) = (Duration::ZERO, Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(HANG);
                bed.files.end_lies();
            });
            let mut timed = |what: &dyn Fn()| {
                let begun = Instant::now();
                what();
                longest = longest.max(begun.elapsed());
            };
            for at in (0..VOLUME).step_by(1 << 20) {
                timed(&|| assert_eq!(disk.compare_range((at, at + 4096), 4096, 1, pattern(2)), []));
                timed(&|| assert_eq!(disk.write_range((at, at + 4096), 4096, 1, pattern(2)), []));
                timed(&|| disk.flush().unwrap());
                let begun = Instant::now();
                bed.daemon.status("t");
                status.push(begun.elapsed());
            }
        });
        status.sort_unstable();
        let (median, most) = (status[status.len() / 2], status[status.len() - 1]);
        assert!(median < STATUS_WITHIN, "'status' took {median:?}");
        assert!(most < LONGEST_STALL, "'status' took {most:?}");
        println!("{} hung: the longest request took {longest:?}", liars.len());
        assert!(longest < LONGEST_STALL, "a client waited {longest:?}");
        work(&disk, case.round);
        drop(disk);
        bed.ends(liars, &case);
    };
    std::thread::scope(|scope| {
        for liars in LIARS {
            scope.spawn(move || hung(liars));
        }
    });
}

/// The file system itself: each lie changes what its file gives or keeps, and a file without one does neither.
#[test]
fn a_file_lies_as_it_is_told() {
    if !common::have_fuse() {
        return;
    }
    let files = Files::start(2, 16 << 20);
    let open = |i: usize| common::open_direct(Path::new(&files.paths()[i]));
    let (liar, honest) = (open(0), open(1));
    let block = |seed| {
        let mut bytes = Buf::zeroed(8192);
        Random::new(seed).fill(&mut bytes);
        bytes
    };
    let read = |file: &std::fs::File| {
        let mut bytes = Buf::zeroed(8192);
        file.read_at(&mut bytes, 4096).map(|length| (length, bytes))
    };
    for lie in [
        Lie::Stale,
        Lie::ReadAstray,
        Lie::Garbage,
        Lie::Torn,
        Lie::BitFlip,
    ] {
        files.end_lies();
        for seed in [1, 2] {
            liar.write_all_at(&block(seed), 4096).unwrap();
            honest.write_all_at(&block(seed), 4096).unwrap();
        }
        files.tell(0, lie, true);
        let told = read(&liar).unwrap();
        assert!(told.0 == 8192 && *told.1 != *block(2), "{lie:?}");
        assert_eq!(*told.1 == *block(1), lie == Lie::Stale, "{lie:?}");
        assert!(*read(&liar).unwrap().1 == *block(2), "{lie:?} once");
    }
    files.tell(0, Lie::ReadError, false);
    assert_eq!(
        read(&liar).unwrap_err().raw_os_error(),
        Some(Errno::IO.raw_os_error())
    );
    files.tell(0, Lie::ShortRead, false);
    assert_eq!(read(&liar).unwrap().0, 4096);
    for lie in [Lie::Dropped, Lie::WriteAstray] {
        files.tell(0, lie, false);
        liar.write_all_at(&block(4), 4096).unwrap();
        assert!(*read(&liar).unwrap().1 == *block(2), "{lie:?}");
    }
    files.tell(0, Lie::WriteError(Errno::NOSPC), false);
    let full = liar.write_at(&block(4), 4096).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    files.tell(0, Lie::SyncError, false);
    assert!(liar.sync_data().is_err() && honest.sync_data().is_ok());
    let slow = Duration::from_millis(300);
    for lie in [Lie::Delay(slow), Lie::Hang] {
        files.tell(0, lie, false);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(slow);
                files.end_lies();
            });
            assert!(*read(&liar).unwrap().1 == *block(2));
        });
        assert!(begun.elapsed() >= slow, "{lie:?}");
    }
    assert!(*read(&honest).unwrap().1 == *block(2));
    assert_eq!(files.lies(1), 0);
}

/// A change that waits for its turn is not made any more once whoever asked for it has gone.
#[test]
fn a_change_that_was_given_up_is_not_made() {
    if !common::have_fuse() {
        return;
    }
    // The daemon ends before its files do.
    let (files, daemon) = (Files::start(1, MEMBER_BYTES), Daemon::start("turn"));
    daemon.create_served("raid1", 2);
    let (hung, other) = (&files.paths()[0], daemon.blank("other", MEMBER_BYTES));
    files.tell(0, Lie::Hang, false);
    std::thread::scope(|scope| {
        scope.spawn(|| daemon.run(&["create", "u", "--layout", "raid1", hung, &other]));
        common::wait_until("a change that waits for a device", BLAMED_WITHIN, || {
            files.lies(0) > 0
        });
        let line = ["volume", "create", "t/refrained", "--size", "1M"];
        let mut client = Command::new(common::ASHLAR)
            .args(line)
            .env("ASHLAR_SOCKET", daemon.path("control.sock"))
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(500));
        let waits = client.try_wait().unwrap();
        client.kill().unwrap();
        client.wait().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        files.end_lies();
        assert_eq!(waits, None, "it has had its turn");
    });
    daemon.ok(&["volume", "create", "t/asked", "--size", "1M"]);
    let list = daemon.ok(&["volume", "list", "t"]);
    assert!(
        list.contains("asked") && !list.contains("refrained"),
        "{list}"
    );
}

/// A device that is there and hangs is not given up: after an export nothing else says that it is one of the array.
#[test]
fn a_device_that_hangs_is_not_done_without_at_an_import() {
    if !common::have_fuse() {
        return;
    }
    let bed = Bed::new();
    let (daemon, paths) = (&bed.daemon, bed.files.paths());
    // The file system does not list its files.
    let folder = daemon.text("links");
    std::fs::create_dir(&folder).unwrap();
    for (member, path) in paths.iter().enumerate() {
        std::os::unix::fs::symlink(path, Path::new(&folder).join(member.to_string())).unwrap();
    }
    daemon.ok(&["export", "t"]);
    bed.files.tell(2, Lie::Hang, false);
    let refused = daemon.refused(&["import", "t", "--scan", &folder]);
    assert!(
        refused.contains(&format!("{}: no answer within 30 s", paths[2]))
            && refused.contains("--degraded"),
        "{refused}"
    );
    bed.files.end_lies();
    daemon.ok(&["import", "t", "--scan", &folder]);
    assert_eq!(daemon.status("t")["state"], "optimal");
}
