//! The modelled device gives its profile's own numbers under a plain load generator, and follows its
//! rules.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::rc::Rc;

use ashlar_device::{Content, Device, ModelDevice, ModelOptions, Profile};
use ashlar_rt::{BLOCK, Buf, MILLISECOND, Nanos, Rt, SECOND, Slice};

const SIZE: u64 = 1 << 30;

#[derive(Clone, Copy)]
enum Load {
    RandomRead,
    RandomWrite,
    SequentialRead,
    SequentialWrite,
}

fn device(rt: &Rt, profile: Profile, erased: bool) -> Rc<ModelDevice> {
    let content = Content::Discard;
    let options = ModelOptions {
        content,
        erased,
        ..ModelOptions::new(SIZE)
    };
    Rc::new(ModelDevice::new(rt, "modelled", profile, options))
}

/// Operations per second: `depth` workers, each with one operation of `bytes` after another, for
/// `span` of virtual time; the first quarter is not counted.
fn rate(profile: Profile, load: Load, bytes: usize, depth: usize, span: Nanos) -> f64 {
    let rt = Rt::simulated(11);
    let device = device(&rt, profile, false);
    let next = Rc::new(Cell::new(0u64));
    let done = Rc::new(Cell::new(0u64));
    let data = Slice::zeroed(bytes);
    for _ in 0..depth {
        let (rt2, device, next, done) = (rt.clone(), device.clone(), next.clone(), done.clone());
        let data = data.clone();
        rt.spawn(async move {
            let units = SIZE / bytes as u64;
            let mut buf = Buf::zeroed(bytes);
            loop {
                let unit = match load {
                    Load::RandomRead | Load::RandomWrite => rt2.random_below(units),
                    Load::SequentialRead | Load::SequentialWrite => {
                        next.replace((next.get() + 1) % units)
                    }
                };
                let offset = unit * bytes as u64;
                match load {
                    Load::RandomRead | Load::SequentialRead => {
                        let (back, result) = device.read(offset, buf).await;
                        result.unwrap();
                        buf = back;
                    }
                    Load::RandomWrite | Load::SequentialWrite => {
                        device.write(offset, vec![data.clone()]).await.unwrap();
                    }
                }
                done.set(done.get() + 1);
            }
        });
    }
    let handle = rt.clone();
    let counted = done.clone();
    let count = rt.block_on(async move {
        handle.sleep(span / 4).await;
        let before = counted.get();
        handle.sleep(span - span / 4).await;
        counted.get() - before
    });
    rt.shutdown();
    count as f64 * SECOND as f64 / (span - span / 4) as f64
}

#[track_caller]
fn close(measured: f64, expected: f64) {
    let ratio = measured / expected;
    assert!(
        (0.99..1.01).contains(&ratio),
        "measured {measured}, expected {expected}"
    );
}

#[test]
fn flash_profiles_give_their_own_numbers() {
    for profile in [Profile::DATA24, Profile::NVME_TLC, Profile::QLC] {
        let span = 40 * MILLISECOND;
        let random = |load, bytes| rate(profile, load, bytes, 256, span);
        close(random(Load::RandomRead, 4096), profile.read_iops as f64);
        let unit = usize::try_from(profile.write_unit_bytes).unwrap();
        close(random(Load::RandomWrite, unit), profile.write_iops as f64);
        let bytes = 128 << 10;
        let long = 16 * span; // turns end in bursts of `depth`
        let read = rate(profile, Load::SequentialRead, bytes, 32, long) * bytes as f64;
        close(read, profile.read_bytes_per_second as f64);
        let write = rate(profile, Load::SequentialWrite, bytes, 32, long) * bytes as f64;
        close(write, profile.write_bytes_per_second as f64);
        // Small sequential writes are bound by the same bandwidth, not by random writes.
        let write = rate(profile, Load::SequentialWrite, 4096, 64, span) * 4096.0;
        let commands = (profile.command_iops * 4096) as f64;
        close(write, (profile.write_bytes_per_second as f64).min(commands));
    }
}

#[test]
fn a_drive_with_a_head_pays_for_every_discontinuity() {
    let profile = Profile::HDD;
    let rotation = profile.rotation.unwrap();
    let access = (rotation.seek + rotation.half_turn) as f64 / 1e9;
    for load in [Load::RandomRead, Load::RandomWrite] {
        let rate = rate(profile, load, 4096, 1, 200 * SECOND);
        close(rate, 1.0 / (access + 4096.0 / 78e6));
    }
    // From the outer edge to the inner one: the mean time per byte, not the mean bandwidth.
    let rt = Rt::simulated(1);
    let disk = device(&rt, profile, false);
    let handle = rt.clone();
    let shared = disk.clone();
    let (outer, inner) = rt.block_on(async move {
        let mib = 1 << 20;
        let mut times = Vec::new();
        for at in 0..SIZE / mib {
            let start = handle.now();
            shared
                .write(at * mib, vec![Slice::zeroed(1 << 20)])
                .await
                .unwrap();
            times.push(handle.now() - start);
        }
        (times[1], *times.last().unwrap())
    });
    close(1048576.0 * 1e9 / outer as f64, 98e6);
    close(1048576.0 * 1e9 / inner as f64, 58e6);
    assert_eq!(disk.counters().seeks, 0);
    assert!(disk.info().rotational && disk.info().discard_bytes == 0);
}

/// How long one operation after another takes, each alone.
fn alone(device: Rc<ModelDevice>, rt: &Rt, writes: &[(u64, usize)]) -> Vec<Nanos> {
    let writes = writes.to_vec();
    let handle = rt.clone();
    rt.block_on(async move {
        let mut times = Vec::new();
        for (offset, bytes) in writes {
            let start = handle.now();
            device
                .write(offset, vec![Slice::zeroed(bytes)])
                .await
                .unwrap();
            times.push(handle.now() - start);
        }
        times
    })
}

#[test]
fn appends_are_cheap_and_other_writes_are_not() {
    let profile = Profile::DATA24;
    let rt = Rt::simulated(1);
    let disk = device(&rt, profile, true);
    let mib = 1u64 << 20;
    let writes = [
        (3 * mib, 4096),        // begins a discarded slot
        (3 * mib + 4096, 4096), // continues
        (3 * mib + 4096, 4096), // overwrites
        (3 * mib, 4096),        // the slot is not discarded any more
        (5 * mib + 4096, 4096), // inside a discarded slot, not at its beginning
        (5 * mib, 4096),        // which is written now
        (5 * mib + 8192, 8192), // continues the write before last
    ];
    let cheap = 4096 * SECOND / profile.write_bytes_per_second;
    let dear = SECOND / profile.write_iops;
    let expected = [cheap, cheap, dear, dear, dear, dear, 2 * cheap];
    for (time, cost) in alone(disk.clone(), &rt, &writes).iter().zip(expected) {
        let expected = cost + profile.write_latency;
        assert!(time.abs_diff(expected) <= 3, "{time} against {expected}");
    }
    assert_eq!(disk.counters().scattered_writes, 4);
    // After a discard a slot can be begun again; a discard of half a slot changes nothing.
    let shared = disk.clone();
    rt.block_on(async move {
        shared.discard(3 * mib, mib).await.unwrap();
        shared.discard(5 * mib, mib / 2).await.unwrap();
    });
    let times = alone(disk.clone(), &rt, &[(3 * mib, 4096), (5 * mib, 4096)]);
    assert!(times[0] < times[1]);
    let io = disk.counters().io;
    assert_eq!(
        (io.writes, io.written_bytes, io.discards),
        (9, 10 * 4096, 2)
    );
}

#[test]
fn only_the_last_write_points_are_continued() {
    let rt = Rt::simulated(1);
    let disk = device(&rt, Profile::DATA24, false);
    let stream = |i: u64| i * (8 << 20);
    let first: Vec<_> = (0..64).map(|i| (stream(i), 4096)).collect();
    let second: Vec<_> = (0..64).map(|i| (stream(i) + 4096, 4096)).collect();
    alone(disk.clone(), &rt, &first);
    assert_eq!(disk.counters().scattered_writes, 64);
    alone(disk.clone(), &rt, &second);
    assert_eq!(disk.counters().scattered_writes, 64);
    // One more than there are points, in turn: none is found again.
    let third: Vec<_> = (0..65).map(|i| (stream(i) + 8192, 4096)).collect();
    alone(disk.clone(), &rt, &third);
    let fourth: Vec<_> = (0..65).map(|i| (stream(i) + 12288, 4096)).collect();
    alone(disk.clone(), &rt, &fourth);
    assert_eq!(disk.counters().scattered_writes, 64 + 1 + 65);
}

#[test]
fn a_small_read_does_not_wait_for_a_whole_large_write() {
    let profile = Profile::DATA24;
    let rt = Rt::simulated(1);
    let disk = device(&rt, profile, false);
    let handle = rt.clone();
    let (read, write) = rt.block_on(async move {
        let write = disk.write(0, vec![Slice::zeroed(16 << 20)]);
        let start = handle.now();
        let join = handle.spawn({
            let rt = handle.clone();
            async move {
                write.await.unwrap();
                rt.now()
            }
        });
        handle.sleep(MILLISECOND).await;
        let asked = handle.now();
        disk.read(1 << 29, Buf::zeroed(BLOCK)).await.1.unwrap();
        (
            handle.now() - asked - profile.read_latency,
            join.await - start,
        )
    });
    let quantum = (64 << 10) * SECOND / profile.write_bytes_per_second;
    // At most the rest of one quantum of each operation queued, and its own service.
    assert!(read <= 2 * quantum + SECOND / profile.read_iops, "{read}");
    close(
        write as f64,
        (16u64 << 20) as f64 * 1e9 / 261e3 / 4096.0 + 26_600.0,
    );
}

#[test]
fn content_is_kept_or_not_and_times_are_the_same() {
    let history = |content| {
        let rt = Rt::simulated(3);
        let options = ModelOptions {
            content,
            ..ModelOptions::new(SIZE)
        };
        let disk = Rc::new(ModelDevice::new(
            &rt,
            "modelled",
            Profile::NVME_TLC,
            options,
        ));
        let handle = rt.clone();
        let shared = disk.clone();
        let first = rt.block_on(async move {
            let mut data = Buf::zeroed(64 << 10);
            data.fill(7);
            shared
                .write(1 << 20, vec![data.freeze(), Slice::zeroed(4096)])
                .await
                .unwrap();
            shared.flush().await.unwrap();
            let (buf, result) = shared.read(1 << 20, Buf::zeroed(68 << 10)).await;
            result.unwrap();
            assert!(buf[64 << 10..].iter().all(|byte| *byte == 0));
            shared.discard(1 << 20, 64 << 10).await.unwrap();
            (buf[100], handle.now())
        });
        assert_eq!(disk.memory_bytes(), 0, "discarded or never kept");
        (first, disk.counters())
    };
    let (kept, kept_counters) = history(Content::Store);
    let (lost, lost_counters) = history(Content::Discard);
    assert_eq!((kept.0, lost.0), (7, 0));
    assert_eq!(kept.1, lost.1);
    assert_eq!(kept_counters, lost_counters);
    assert_eq!(kept_counters.io.flushes, 1);
}

#[test]
fn a_slow_drive_is_slower_by_its_factor_and_counters_add_up() {
    let rt = Rt::simulated(1);
    let disk = device(&rt, Profile::DATA24, false);
    let normal = alone(disk.clone(), &rt, &[(0, 4096), (1 << 20, 4096)]);
    let busy = disk.counters().busy;
    disk.reset_counters();
    disk.set_slowdown(100);
    let slow = alone(disk.clone(), &rt, &[(0, 4096), (1 << 20, 4096)]);
    for (slow, normal) in slow.iter().zip(&normal) {
        close(*slow as f64, *normal as f64 * 100.0);
    }
    close(disk.counters().busy as f64, busy as f64 * 100.0);
    assert_eq!(disk.counters().io.writes, 2);
}

#[test]
fn profiles_are_found_by_name() {
    for profile in Profile::ALL {
        assert_eq!(Profile::named(profile.name), Some(profile));
    }
    assert_eq!(Profile::named("floppy"), None);
}

#[test]
fn what_lies_a_little_ahead_passes_under_the_head() {
    let rt = Rt::simulated(1);
    let options = ModelOptions {
        size_bytes: 1 << 30,
        ..ModelOptions::new(1 << 30)
    };
    let disk = ModelDevice::new(&rt, "disk", Profile::HDD, options);
    let read = |offset: u64| {
        let (started, reading) = (rt.now(), disk.read(offset, Buf::zeroed(4096)));
        let (_, result) = rt.block_on(reading);
        assert!(result.is_ok());
        rt.now() - started
    };
    read(0);
    read(4096);
    // 4 KiB that are left out and 4 KiB that are read, at 98 MB/s.
    let skipped = read(12 << 10);
    assert!((80_000..90_000).contains(&skipped), "{skipped}");
    assert_eq!(disk.counters().seeks, 0);
    // Far ahead, and back, the head moves.
    let far = read(512 << 20);
    let back = read(0);
    assert!(far > 10 * skipped && back > 10 * skipped, "{far} {back}");
    assert_eq!(disk.counters().seeks, 2);
}
