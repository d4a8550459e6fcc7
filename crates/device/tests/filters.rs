//! Filters: what rules do, what delays add, what traces remember.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;

use ashlar_device::{
    Delay, DelayFilter, Device, DeviceRef, Effect, Fault, FaultFilter, MemDevice, OpKind, Part,
    Rule, TraceFilter, Window,
};
use ashlar_rt::{BLOCK, Buf, MICROSECOND, MILLISECOND, Rt, SECOND, Slice};

const SIZE: u64 = 1 << 20;

fn faulty() -> (Rt, Rc<MemDevice>, Rc<FaultFilter>) {
    let disk = Rc::new(MemDevice::new("memory", SIZE));
    for block in 0..SIZE / BLOCK as u64 {
        disk.poke(block * BLOCK as u64, &[block as u8; BLOCK]);
    }
    let filter = FaultFilter::new(disk.clone());
    (Rt::simulated(1), disk, filter)
}

async fn read(device: &dyn Device, offset: u64, length: usize) -> Result<Buf, Fault> {
    let (buf, result) = device.read(offset, Buf::zeroed(length)).await;
    result.map(|()| buf)
}

fn data(byte: u8, blocks: usize) -> Vec<Slice> {
    let mut buf = Buf::zeroed(blocks * BLOCK);
    buf.fill(byte);
    vec![buf.freeze()]
}

#[test]
fn reads_fail_in_a_range_until_the_rule_is_removed() {
    let (rt, _, filter) = faulty();
    rt.block_on(async move {
        let media = Effect::Fail(Fault::Media);
        let id = filter.add(Rule::within(OpKind::Read, 8192..12288, media));
        assert_eq!(read(&*filter, 0, 8192).await.unwrap()[5000], 1);
        assert_eq!(read(&*filter, 4096, 8192).await.err(), Some(Fault::Media));
        assert_eq!(read(&*filter, 12288, 4096).await.unwrap()[0], 3);
        assert_eq!(filter.write(8192, data(9, 1)).await, Ok(()));
        assert_eq!(filter.hits(), 1);
        assert!(filter.remove(id));
        assert!(!filter.remove(id));
        assert_eq!(read(&*filter, 8192, 4096).await.unwrap()[0], 9);
    });
}

#[test]
fn operations_fail_by_count() {
    let (rt, _, filter) = faulty();
    rt.block_on(async move {
        filter.add(Rule::once(OpKind::Write, 2, Effect::Fail(Fault::NoSpace)));
        filter.add(Rule::once(OpKind::Flush, 0, Effect::Fail(Fault::Timeout)));
        let mut results = Vec::new();
        for i in 0..5 {
            results.push(filter.write(i * 4096, data(1, 1)).await.err());
        }
        assert_eq!(results, [None, None, Some(Fault::NoSpace), None, None]);
        assert_eq!(filter.flush().await, Err(Fault::Timeout));
        assert_eq!(filter.flush().await, Ok(()));
        assert_eq!(filter.hits(), 2);
    });
}

#[test]
fn offline_is_a_switch() {
    let (rt, _, filter) = faulty();
    rt.block_on(async move {
        filter.set_offline(true);
        assert!(filter.is_offline());
        assert_eq!(read(&*filter, 0, 4096).await.err(), Some(Fault::Offline));
        assert_eq!(filter.write(0, data(1, 1)).await, Err(Fault::Offline));
        assert_eq!(filter.flush().await, Err(Fault::Offline));
        assert_eq!(filter.discard(0, 4096).await, Err(Fault::Offline));
        filter.set_offline(false);
        assert_eq!(read(&*filter, 4096, 4096).await.unwrap()[0], 1);
    });
}

#[test]
fn corruption_is_one_bit_per_block_in_range_and_stays_the_same() {
    let (rt, disk, filter) = faulty();
    rt.block_on(async move {
        filter.add(Rule::within(OpKind::Read, 4096..12288, Effect::Corrupt));
        let wrong = read(&*filter, 0, 16384).await.unwrap();
        let again = read(&*filter, 4096, 8192).await.unwrap();
        assert!(wrong[4096..12288] == again[..]);
        let mut right = vec![0; 16384];
        disk.peek(0, &mut right);
        for block in 0..4 {
            let range = block * BLOCK..(block + 1) * BLOCK;
            let bits: u32 = wrong[range.clone()]
                .iter()
                .zip(&right[range])
                .map(|(a, b)| (a ^ b).count_ones())
                .sum();
            assert_eq!(bits, u32::from(block == 1 || block == 2), "block {block}");
        }
        // Written wrongly, it stays wrong without the filter.
        filter.clear();
        filter.add(Rule::once(OpKind::Write, 0, Effect::Corrupt));
        filter.write(0, data(5, 1)).await.unwrap();
        let mut stored = vec![0; BLOCK];
        disk.peek(0, &mut stored);
        let bits: u32 = stored.iter().map(|byte| (byte ^ 5).count_ones()).sum();
        assert_eq!(bits, 1);
    });
}

#[test]
fn writes_are_lost_or_go_astray_though_acknowledged() {
    let (rt, disk, filter) = faulty();
    rt.block_on(async move {
        filter.add(Rule::once(OpKind::Write, 0, Effect::Lose));
        filter.add(Rule::once(OpKind::Write, 0, Effect::Misdirect(8192)));
        assert_eq!(filter.write(4096, data(99, 1)).await, Ok(()));
        assert_eq!(filter.write(4096, data(99, 1)).await, Ok(()));
        let mut block = [0; BLOCK];
        disk.peek(4096, &mut block);
        assert_eq!(block[0], 1);
        disk.peek(12288, &mut block);
        assert_eq!(block[0], 99);
        // Beyond the end it begins again.
        filter.add(Rule::once(OpKind::Write, 0, Effect::Misdirect(8192)));
        assert_eq!(filter.write(SIZE - 4096, data(77, 1)).await, Ok(()));
        disk.peek(4096, &mut block);
        assert_eq!(block[0], 77);
        filter.add(Rule::once(OpKind::Read, 0, Effect::Misdirect(4096)));
        assert_eq!(read(&*filter, 0, 4096).await.unwrap()[0], 77);
    });
}

#[test]
fn a_hanging_operation_ends_when_released() {
    let (rt, disk, filter) = faulty();
    let handle = rt.clone();
    rt.block_on(async move {
        filter.add(Rule::once(OpKind::Write, 0, Effect::Hang));
        let mut write = filter.write(0, data(42, 1));
        assert_eq!(handle.timeout(SECOND, &mut write).await, None);
        let mut block = [0; BLOCK];
        disk.peek(0, &mut block);
        assert_eq!(block[0], 0);
        filter.release();
        assert_eq!(write.await, Ok(()));
        disk.peek(0, &mut block);
        assert_eq!(block[0], 42);
    });
}

#[test]
fn delays_add_time_and_bandwidth_limits_hold() {
    let rt = Rt::simulated(1);
    let disk: DeviceRef = Rc::new(MemDevice::new("memory", SIZE));
    let base = Delay {
        read: 100,
        write: 200,
        flush: 300,
        ..Delay::default()
    };
    let slow = DelayFilter::new(&rt, disk, base);
    // The factor multiplies what lies below: here the first filter's own delay.
    let below: DeviceRef = slow.clone();
    let slower = DelayFilter::new(
        &rt,
        below,
        Delay {
            factor: 10,
            ..Delay::default()
        },
    );
    let handle = rt.clone();
    rt.block_on(async move {
        let clock = || handle.now();
        let mut times = Vec::new();
        for device in [&slow, &slower] {
            let start = clock();
            read(&**device, 0, 4096).await.unwrap();
            let read_at = clock();
            device.write(0, data(1, 1)).await.unwrap();
            let written = clock();
            device.flush().await.unwrap();
            times.push((read_at - start, written - read_at, clock() - written));
        }
        assert_eq!(times, [(100, 200, 300), (1000, 2000, 3000)]);
        // 1 MiB at 1 MiB/s, all asked for at once.
        slow.set(Delay {
            bytes_per_second: 1 << 20,
            ..Delay::default()
        });
        let start = clock();
        let reads: Vec<_> = (0..16)
            .map(|i| slow.read(i << 16, Buf::zeroed(1 << 16)))
            .collect();
        for pending in reads {
            pending.await.1.unwrap();
        }
        assert_eq!(clock() - start, SECOND);
        slow.set(Delay::default());
        let start = clock();
        read(&*slow, 0, 4096).await.unwrap();
        assert_eq!(clock(), start);
    });
}

#[test]
fn a_trace_keeps_the_last_operations_and_counts_all() {
    let rt = Rt::simulated(1);
    let (_, _, faults) = faulty();
    faults.add(Rule::once(OpKind::Read, 1, Effect::Fail(Fault::Media)));
    let wait = Delay {
        read: 5 * MICROSECOND,
        ..Delay::default()
    };
    let trace = TraceFilter::new(&rt, DelayFilter::new(&rt, faults, wait), 4);
    let handle = rt.clone();
    rt.block_on(async move {
        trace.write(4096, data(1, 2)).await.unwrap();
        trace.flush().await.unwrap();
        read(&*trace, 0, 4096).await.unwrap();
        assert!(read(&*trace, 8192, 4096).await.is_err());
        trace.discard(0, 65536).await.unwrap();
        drop(trace.read(0, Buf::zeroed(4096)));
        handle.sleep(MILLISECOND).await;
        let entries = trace.entries();
        assert_eq!(entries.len(), 4);
        let numbers: Vec<u64> = entries.iter().map(|entry| entry.number).collect();
        assert_eq!(numbers, [2, 3, 4, 5]);
        let failed = entries[1];
        assert_eq!(
            (failed.op, failed.offset, failed.length),
            (OpKind::Read, 8192, 4096)
        );
        assert_eq!(
            failed.answered,
            Some((failed.submitted + 5000, Err(Fault::Media)))
        );
        assert_eq!(entries[3].answered, None);
        let counters = trace.counters();
        assert_eq!((counters.reads, counters.read_bytes), (3, 3 * 4096));
        assert_eq!((counters.writes, counters.written_bytes), (1, 8192));
        assert_eq!((counters.flushes, counters.discards), (1, 1));
        assert_eq!((counters.discarded_bytes, counters.faults), (65536, 1));
        trace.reset();
        read(&*trace, 0, 4096).await.unwrap();
        assert_eq!((trace.entries().len(), trace.counters().reads), (1, 1));
        assert_eq!(trace.entries()[0].number, 6);
    });
}

#[test]
fn a_window_shows_a_part_and_touches_nothing_else() {
    let (rt, disk, filter) = faulty();
    let part = Part {
        first: 16_384,
        length: 32_768,
    };
    let window = Window::new(filter.clone(), part);
    assert_eq!(window.info().size_bytes, 32_768);
    assert_eq!(window.info().name, filter.info().name);
    rt.block_on(async move {
        assert_eq!(read(&*window, 0, 4096).await.unwrap()[0], 4);
        assert_eq!(read(&*window, 28_672, 4096).await.unwrap()[0], 11);
        assert_eq!(window.write(4096, data(9, 7)).await, Ok(()));
        assert_eq!(window.flush().await, Ok(()));
        for block in 0..20 {
            let expected = if (5..12).contains(&block) { 9 } else { block };
            let mut found = [0; BLOCK];
            disk.peek(u64::from(block) * BLOCK as u64, &mut found);
            assert_eq!(found, [expected; BLOCK], "{block}");
        }
        filter.add(Rule::once(OpKind::Discard, 0, Effect::Fail(Fault::Media)));
        assert_eq!(window.discard(0, 4096).await, Err(Fault::Media));
        assert_eq!(window.discard(28_672, 4096).await, Ok(()));
        assert_eq!(window.erase().await, Ok(()));
        let beyond = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            drop(window.read(32_768, Buf::zeroed(4096)));
        }));
        assert!(beyond.is_err(), "outside of the part");
    });
}
