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
    let mut works = Suite::Ssr.works().iter().chain(Suite::Sss.works());
    let work = works.find(|w| w.name == workload).unwrap();
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
            State::Rebuild => (1.1, 3.5),
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
        down: 2,
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
    };
    let amount = Amount {
        depth: 8,
        warm: 0,
        count,
    };
    let mut sample = Sample::default();
    fill_in(&mut sample, &case, &outcome, amount, 1);
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
