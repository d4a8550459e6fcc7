//! Sessions on real folders: sizes, refusals, what stays.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::beside::say;
use super::load::Test;
use super::*;
use crate::report::Evidence;

fn options(path: &Path) -> Options {
    Options {
        path: path.to_path_buf(),
        tests: vec![Test::Write, Test::Read],
        threads: 2,
        record: 64 << 10,
        size: Some(1 << 20),
        direct: false,
        repeat: 1,
        seed: 1,
        zeros: 0,
        keep_cache: false,
        keep: false,
        existing: false,
        assumed_cache: None,
        memory_limit: None,
        label: "files".to_string(),
        state: "normal".to_string(),
        wait_quiet: 0,
        left: None,
        tools: Vec::new(),
    }
}

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("ashlar-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn small_data_are_told_and_stamped_and_nothing_stays() {
    let dir = Dir::new("files-small");
    let session = Session::prepare(options(&dir.0), &[]).unwrap();
    assert_eq!(session.data_bytes(), 2 << 20);
    assert!(
        session
            .too_small()
            .unwrap()
            .contains("less than twice all caches (page cache")
    );
    let samples = session.run(&mut |_| {}).unwrap();
    assert_eq!(samples.len(), 2);
    for sample in &samples {
        assert!(
            sample.invalid.iter().any(|r| r.contains("less than twice")),
            "{sample:?}"
        );
        assert!(sample.bytes_per_second.unwrap() > 0.0);
        assert_eq!(sample.evidence, Evidence::Real);
        assert!(sample.warnings.iter().any(|w| w.contains("too short")));
    }
    assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 0);
}

#[test]
fn what_is_assumed_is_said_and_decides() {
    let dir = Dir::new("files-assumed");
    let assumed = Options {
        assumed_cache: Some(1 << 20),
        ..options(&dir.0)
    };
    let session = Session::prepare(assumed.clone(), &[]).unwrap();
    assert_eq!(session.too_small(), None);
    assert!(session.remarks()[0].contains("1048576 bytes by --assume-cache"));
    let larger = Options {
        assumed_cache: Some((1 << 20) + 1),
        ..assumed.clone()
    };
    assert!(Session::prepare(larger, &[]).unwrap().too_small().is_some());
    let derived = Options {
        size: None,
        ..assumed
    };
    assert_eq!(
        Session::prepare(derived.clone(), &[]).unwrap().size(),
        1 << 20
    );
    let none = Options {
        assumed_cache: Some(0),
        ..derived
    };
    assert_eq!(
        Session::prepare(none, &[]).unwrap().data_bytes(),
        PLENTY,
        "a size is wanted also where no cache counts"
    );
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let dir = Dir::new("files-bad");
    let refused = |options: Options| Session::prepare(options, &[]).unwrap_err();
    let odd = Options {
        record: 5000,
        ..options(&dir.0)
    };
    assert!(refused(odd).contains("multiple of 4K"));
    assert!(refused(options(&dir.0.join("none"))).contains("give a folder"));
    let existing = Options {
        existing: true,
        ..options(&dir.0)
    };
    assert!(refused(existing).contains("--keep"));
    let endless = Options {
        size: Some(u64::MAX),
        ..options(&dir.0)
    };
    assert!(refused(endless).contains("too large"));
    let huge = Options {
        size: Some(1 << 60),
        ..options(&dir.0)
    };
    assert!(Session::prepare(huge, &[]).unwrap().no_room().is_some());
    fs::create_dir(dir.0.join(FOLDER)).unwrap();
    let session = Session::prepare(options(&dir.0), &[]).unwrap();
    assert!(
        session
            .run(&mut |_| {})
            .unwrap_err()
            .contains("left from another run")
    );
    assert!(dir.0.join(FOLDER).exists(), "what another run left stays");
}

#[test]
fn a_program_that_fails_gives_a_reason_and_no_figure() {
    let mut sample = Sample::default();
    say(&mut sample, Err("fio: exit status: 1: no".to_string()));
    assert_eq!(sample.rate(), None);
    assert_eq!(sample.invalid, ["fio: exit status: 1: no"]);
}

#[test]
fn files_of_an_earlier_session_are_read_with_their_content_and_then_written_anew() {
    let dir = Dir::new("files-left");
    let first = Options {
        tests: vec![Test::Write, Test::Rewrite, Test::Read],
        keep: true,
        repeat: 2,
        ..options(&dir.0)
    };
    let session = Session::prepare(first.clone(), &[]).unwrap();
    session.run(&mut |_| {}).unwrap();
    let left = session.leaves();
    assert_eq!((left.run, left.passes), (2, 2));
    let second = |left| Options {
        state: "down".to_string(),
        left: Some(left),
        keep: false,
        ..first.clone()
    };
    // Other content than the last run wrote is noticed.
    let wrong = Left { passes: 1, ..left };
    let session = Session::prepare(second(wrong), &[]).unwrap();
    let folder = session.folder();
    let kept = dir.0.join("kept");
    fs::create_dir(&kept).unwrap();
    for index in 0..2 {
        let name = format!("file.{index}");
        fs::copy(folder.join(&name), kept.join(&name)).unwrap();
    }
    let error = session.run(&mut |_| {}).unwrap_err();
    assert!(error.contains("is not what was written"), "{error}");
    fs::rename(&kept, &folder).unwrap();
    let session = Session::prepare(second(left), &[]).unwrap();
    let samples = session.run(&mut |_| {}).unwrap();
    let ran: Vec<(&str, u32)> = samples
        .iter()
        .map(|sample| (sample.workload.as_str(), sample.run))
        .collect();
    let writes = [("write", 1), ("rewrite", 1), ("write", 2), ("rewrite", 2)];
    assert_eq!(ran[..2], [("read", 1), ("read", 2)]);
    assert_eq!(ran[2..], writes);
    assert!(samples.iter().all(|sample| sample.state == "down"));
    assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 0);
}
