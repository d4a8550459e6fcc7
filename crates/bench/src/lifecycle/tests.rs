//! The test beds give what the papers measured without RAID, and an array goes through its life.
#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;

fn small(layout: &str, bed: &str) -> Options {
    Options {
        layouts: vec![layout.to_string()],
        bed: bed.to_string(),
        repeat: 1,
        volume_bytes: 16 << 20,
        ..Options::default()
    }
}

fn raw(bed: &str, workload: &str, columns: usize) -> Sample {
    let options = small("ec7+1", bed);
    let works = [Suite::Ssr, Suite::Sss].map(|suite| suite.works(State::Normal, columns));
    let work = works.iter().flatten().find(|w| w.name == workload).unwrap();
    let case = Case {
        suite: if work.bytes == 4096 {
            Suite::Ssr
        } else {
            Suite::Sss
        },
        state: State::Normal,
        work: *work,
        layout: None,
        columns,
        arrays: options.array_count(&options.bed().unwrap()),
        run: 1,
    };
    let sample = measure(&options, &case).unwrap();
    assert_eq!(sample.invalid, Vec::<String>::new());
    sample
}

#[track_caller]
fn close(value: Option<f64>, paper: f64) {
    let ratio = value.unwrap() / paper;
    assert!(
        (0.99..1.01).contains(&ratio),
        "{value:?} where the paper has {paper}"
    );
}

#[test]
fn the_bed_of_supremeraid_gives_its_baseline() {
    let iops = |workload| raw("data24", workload, 8).operations_per_second;
    close(iops("RR"), 15.3e6);
    close(iops("RM"), 12.0e6);
    close(iops("RW"), 6.26e6);
    close(raw("data24", "SR", 8).bytes_per_second, 71.5e9);
    close(raw("data24", "SW", 8).bytes_per_second, 39.6e9);
}

#[test]
fn the_bed_of_xiraid_reads_what_its_port_carries() {
    // 23.8 and 26.8 GB/s of drives behind one port of 11.8.
    for columns in [8, 9] {
        let sample = raw("data24-3200", "SR", columns);
        close(sample.bytes_per_second, 11.80e9);
        assert!(sample.limit.starts_with("host 0 "), "{}", sample.limit);
        assert!(sample.device_busy.unwrap() < 0.6);
    }
}

#[test]
fn one_seed_gives_one_order_and_each_case_once() {
    let options = Options {
        layouts: vec!["ec7+1".to_string(), "ec8+1".to_string()],
        ..Options::default()
    };
    let names =
        |o: &Options| -> Vec<String> { o.cases().unwrap().iter().map(Case::name).collect() };
    let first = names(&options);
    // Raw of both widths, and three states of both layouts: 7 workloads, 3 runs.
    assert_eq!(first.len(), (2 + 2 * 3) * 7 * 3);
    assert_eq!(first, names(&options));
    let other = Options { seed: 2, ..options };
    assert_ne!(first, names(&other));
    let (mut a, mut b) = (first, names(&other));
    a.sort();
    b.sort();
    assert_eq!(a, b);
    a.dedup();
    assert_eq!(a.len(), b.len());
}

#[test]
fn an_array_goes_through_its_life() {
    let options = Options {
        arrays: Some(1),
        depth: 8,
        volume_bytes: 8 << 20,
        fill: 0.25,
        ..small("ec3+1", "data24")
    };
    for case in options.cases().unwrap() {
        let (sample, name) = (measure(&options, &case).unwrap(), case.name());
        let reads = case.work.reads == 100;
        if case.state == State::Rebuild && !reads {
            // An array this small is soon whole again: the sample may say so.
            assert!(sample.rate().is_some() || sample.invalid[0].contains("rebuil"));
            continue;
        }
        assert!(sample.rate().is_some(), "{name}: {sample:?}");
        if !reads || case.layout.is_none() {
            continue;
        }
        // One block in four is read as three others until it is rebuilt.
        let (least, most) = match case.state {
            State::Normal => (0.97, 1.2),
            State::Down => (1.3, 1.7),
            // What is rebuilt is more than what is read meanwhile.
            State::Rebuild => (1.1, 6.0),
        };
        let per_byte = sample.device_bytes_per_host_byte.unwrap();
        assert!((least..most).contains(&per_byte), "{name}: {per_byte}");
    }
    let case = &options.cases().unwrap()[0];
    assert_eq!(measure(&options, case), measure(&options, case));
}

#[test]
fn what_cannot_be_done_is_told_by_the_sample() {
    let options = Options {
        states: vec![State::Down],
        down: Down::Count(2),
        ..small("ec3+1", "data24")
    };
    let all = options.cases().unwrap();
    let case = all.iter().find(|case| case.layout.is_some()).unwrap();
    let sample = measure(&options, case).unwrap();
    assert_eq!(sample.rate(), None);
    assert!(sample.invalid[0].contains("1"), "{:?}", sample.invalid);
    assert!(
        small("ec7+1", "floppy")
            .bed()
            .unwrap_err()
            .contains("data24-3200")
    );
}

#[test]
fn a_run_that_falls_is_stamped() {
    let falling: Vec<f64> = (0..10).map(|i| f64::from(100 - 4 * i)).collect();
    assert!(unsteady(&falling).unwrap().starts_with("not steady"));
    assert_eq!(unsteady(&[100.0; 10]), None);
}

/// The reasons of a run of `count` operations of 4 KiB, one each microsecond, 8 in flight.
fn stamps(state: State, reads: u64, count: u64, device_bytes: u64) -> Vec<String> {
    let case = Case {
        suite: Suite::Ssr,
        state,
        work: *Work::RANDOM.iter().find(|w| w.reads == reads).unwrap(),
        layout: Some("ec3+1".to_string()),
        columns: 4,
        arrays: 1,
        run: 1,
    };
    let mut device = rig::Use::default();
    device.bytes = device_bytes;
    let outcome = Outcome {
        device,
        series: load::Series {
            ends: (1..=count).map(|i| i * 1000).collect(),
            times: vec![8000; usize::try_from(count).unwrap()],
        },
        limit: String::new(),
        checked: 0,
    };
    let amount = Amount {
        depth: 8,
        warm: 0,
        count,
        in_flight: 8,
    };
    let mut sample = Sample::default();
    fill_in(&mut sample, &case, &outcome, amount);
    sample.invalid
}

#[test]
fn each_reason_in_virtual_time_is_told() {
    let all = 1000 * 4096;
    assert_eq!(stamps(State::Normal, 100, 1000, all), Vec::<String>::new());
    let cached = stamps(State::Normal, 100, 1000, all / 2);
    assert!(
        cached[0].ends_with("each byte read: a cache answered"),
        "{cached:?}"
    );
    // Writes may be held back, and are not judged so.
    assert_eq!(stamps(State::Normal, 0, 1000, 0), Vec::<String>::new());
    let short = stamps(State::Rebuild, 0, 20, all);
    assert!(
        short[0].starts_with("the rebuild lasted for 20 operations"),
        "{short:?}"
    );
    let none = stamps(State::Rebuild, 0, 0, all);
    assert_eq!(none, ["the rebuild was over before an operation ended"]);
}

#[test]
fn read_modify_write_is_what_arithmetic_says() {
    let samples = closed_form(&small("ec7+1", "data24")).unwrap();
    let of = |name: &str| samples.iter().find(|s| s.workload == name).unwrap().clone();
    close(of("RR").operations_per_second, 15.29e6);
    // 24 drives / (2 reads + 2 writes, the reads partly beside the writes).
    close(of("RW").operations_per_second, 2.62e6);
    close(of("SW").bytes_per_second, 34.65e9);
    // One host's link of 11.8 GB/s before eight drives of 23.8.
    let samples = closed_form(&small("ec7+1", "data24-3200")).unwrap();
    let of = |name: &str| samples.iter().find(|s| s.workload == name).unwrap().clone();
    close(of("SR").bytes_per_second, 11.80e9);
    close(of("SW").bytes_per_second, 11.80e9 * 7.0 / 8.0);
    assert_eq!(of("SW").limit, "closed form: hosts' links");
    assert_eq!(of("RW").limit, "closed form: drives");
}

#[test]
fn a_check_keeps_its_floor_beside_clients_and_takes_all_without() {
    let options = Options {
        suites: vec![Suite::RaidCheck],
        states: vec![State::Normal],
        arrays: Some(1),
        depth: 4,
        check_floor: 100_000_000,
        ..small("ec3+1", "data24")
    };
    let cases = options.cases().unwrap();
    let sample = |name: &str| {
        let mut found = cases
            .iter()
            .filter(|case| case.layout.is_some() && case.work.label() == name);
        measure(&options, found.next().unwrap()).unwrap()
    };
    let beside = sample("check beside RW").bytes_per_second.unwrap();
    // Four devices; a piece that is under way at either end counts or not.
    assert!((3.8e8..4.2e8).contains(&beside), "{beside}");
    let alone = sample("check").bytes_per_second.unwrap();
    assert!(alone > 5.0 * beside, "{alone}");
    assert!(sample("RW while checked").rate().is_some());
    let raw = cases.iter().filter(|case| case.layout.is_none());
    assert!(raw.clone().count() > 0);
    for case in raw {
        assert_eq!(case.work.figure, load::Figure::Clients);
    }
}

#[test]
fn arrays_side_by_side_share_the_data_and_the_streams() {
    let options = Options {
        suites: vec![Suite::Streams],
        states: vec![State::Normal],
        layouts: vec!["ec3+1".to_string(), "2xec3+1".to_string()],
        arrays: Some(1),
        repeat: 1,
        ..small("ec3+1", "data24")
    };
    let cases = options.cases().unwrap();
    let of = |layout: &str| {
        let mut found = cases.iter().filter(|case| {
            case.layout.as_deref() == Some(layout) && case.work.label() == "direct read x4"
        });
        found.next().unwrap().clone()
    };
    let (one, two) = (of("ec3+1"), of("2xec3+1"));
    assert_eq!((one.arrays, two.arrays), (1, 2));
    assert_eq!(two.volume_bytes(64 << 20) * 2, one.volume_bytes(64 << 20));
    assert!(!cases.iter().any(|case| case.layout.is_none()));
    for case in [one, two] {
        let sample = measure(&options, &case).unwrap();
        assert!(sample.rate().is_some(), "{sample:?}");
    }
}

#[test]
fn zones_of_a_disk_are_slower_towards_its_end() {
    let zone = |name: &str| {
        let options = Options {
            suites: vec![Suite::Zones],
            ..small("ec3+1", "sonexion")
        };
        let cases = options.cases().unwrap();
        let mut found = cases
            .iter()
            .filter(|case| case.layout.is_none() && case.work.label() == name);
        let sample = measure(&options, found.next().unwrap()).unwrap();
        assert_eq!(sample.invalid, Vec::<String>::new());
        sample.bytes_per_second.unwrap() / f64::from(sample.devices)
    };
    // 98 to 58 MB/s: the middles of the first and of the last fifth.
    close(Some(zone("read to 20 %")), 94e6);
    close(Some(zone("read to 100 %")), 62e6);
}

#[test]
fn bounds_of_disks_are_what_a_head_must_do() {
    let options = Options {
        suites: vec![Suite::Iozone, Suite::Ssr],
        states: vec![State::Normal, State::Down],
        rivals: vec![Rival {
            name: "raidz2".to_string(),
            layout: "raid60:10".to_string(),
            devices: 100,
        }],
        ..small("ec80+20", "orion100")
    };
    let samples = closed_form(&options).unwrap();
    let of = |target: &str, state: &str, workload: &str| {
        let found = samples
            .iter()
            .find(|s| s.target == target && s.state == state && s.workload == workload);
        found
            .unwrap_or_else(|| panic!("{target} {state} {workload}"))
            .clone()
    };
    // The controller's 6.4 GB/s carry parity too; reads leave it out.
    close(
        of("read-modify-write 80+20", "normal", "write").bytes_per_second,
        6.4e9 * 0.8,
    );
    close(
        of("raidz2", "normal", "write").bytes_per_second,
        6.4e9 * 0.8,
    );
    close(of("raidz2", "normal", "read").bytes_per_second, 6.4e9);
    // Down: the eight that are left hold the data alone.
    close(of("raidz2", "down", "write").bytes_per_second, 6.4e9);
    // 100 disks, 12.4 ms a read; an update is 21 of them and as many turns of 8.3 ms.
    let read = of("read-modify-write 80+20", "normal", "RR")
        .operations_per_second
        .unwrap();
    assert!((8050.0..8100.0).contains(&read), "{read}");
    let write = of("read-modify-write 80+20", "normal", "RW")
        .operations_per_second
        .unwrap();
    assert!((225.0..235.0).contains(&write), "{write}");
    assert!(samples.iter().all(|s| s.limit.starts_with("closed form")));
}
