//! The modelled test beds give the papers' own figures for drives without RAID.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_bench::load::{Durability, Load, Op, Pattern, Target, run};
use ashlar_device::{Bed, Content, DeviceRef};
use ashlar_rt::Rt;

/// Operations a second on `arrays` sets of `columns` namespaces together, and the busy time of the
/// first host's link towards it.
fn rate(bed: Bed, (arrays, columns): (usize, usize), op: Op, bytes: usize) -> (f64, u64) {
    let rt = Rt::simulated(3);
    let built = bed
        .build(&rt, (arrays, columns), 1 << 30, 1 << 20, Content::Discard)
        .unwrap();
    let namespaces = built.arrays.iter().flatten();
    let devices: Vec<DeviceRef> = namespaces.map(|n| n.clone() as DeviceRef).collect();
    let (small, count) = (bytes == 4096, devices.len());
    let depth = if small { 128 } else { 8 } * count;
    let load = Load {
        op,
        pattern: if small {
            Pattern::Random
        } else {
            Pattern::Sequential
        },
        bytes,
        depth,
        durability: Durability::Cached,
        warm: depth as u64 * 16,
        count: depth as u64 * 64,
    };
    let (handle, target) = (rt.clone(), Target::Raw(devices));
    let measured = rt.block_on(async move { run(&handle, &target, load, || {}).await });
    (measured.unwrap().per_second(), built.hosts[0].busy().0)
}

#[track_caller]
fn close(measured: f64, paper: f64) {
    let ratio = measured / paper;
    assert!(
        (0.99..1.01).contains(&ratio),
        "{measured} where the paper has {paper}"
    );
}

const LARGE: usize = 128 << 10;

/// 24 drives as 48 namespaces, six servers. The mixed row, 12.0 M, is a test of the device crate.
#[test]
fn the_bed_of_supremeraid_gives_its_baseline() {
    let of = |op, bytes| rate(Bed::DATA24, (6, 8), op, bytes).0;
    close(of(Op::Read, 4096), 15.3e6);
    close(of(Op::Write, 4096), 6.26e6);
    close(of(Op::Read, LARGE) * LARGE as f64, 71.5e9);
    close(of(Op::Write, LARGE) * LARGE as f64, 39.6e9);
}

/// 23.8 and 26.8 GB/s of drives behind one port of 100 Gb/s.
#[test]
fn the_bed_of_xiraid_reads_what_its_port_carries() {
    for columns in [8, 9] {
        let (rate, busy) = rate(Bed::DATA24_3200, (1, columns), Op::Read, LARGE);
        close(rate * LARGE as f64, 11.80e9);
        assert!(busy > 0);
    }
}
