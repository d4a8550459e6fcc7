//! What a simulated disk keeps over a power cut, unit by unit.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;

use ashlar_device::Fault;
use ashlar_rt::{Buf, Rt, Slice};
use ashlar_sim::device::SimDevice;
use ashlar_sim::disk::{Cut, FaultRates, Refusal, Rot, SimDisk, UNIT};
use ashlar_sim::trace::Trace;

fn page(byte: u8) -> Slice {
    Buf::copy_of(&[byte; 4096]).freeze()
}

fn disk(seed: u64) -> Rc<SimDisk> {
    SimDisk::new(0, 1 << 20, seed, Rc::new(Trace::new(false)))
}

/// Writes `old` durably, then `new` without a flush, to pages 0 to 3; `wait`: until completion.
fn old_then_new(disk: &Rc<SimDisk>, seed: u64, wait: bool) {
    let rt = Rt::simulated(seed);
    let device = SimDevice::attach(&rt, disk);
    rt.block_on(async move {
        device
            .write(0, (0..4).map(|_| page(1)).collect())
            .await
            .unwrap();
        device.flush().await.unwrap();
        let write = device.write(0, (0..4).map(|_| page(2)).collect());
        if wait {
            write.await.unwrap();
        }
    });
    rt.shutdown();
}

/// The units of pages 0 to 3 after the cut.
fn units(disk: &SimDisk) -> Vec<u8> {
    (0..4)
        .flat_map(|n| {
            let content = disk.peek(n).unwrap();
            content.chunks(UNIT).map(|unit| unit[0]).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn each_cut_keeps_what_it_says() {
    for wait in [false, true] {
        for seed in 0..50 {
            let news = |cut: Cut| {
                let disk = disk(seed);
                old_then_new(&disk, seed, wait);
                disk.power_cut(cut);
                assert_eq!(disk.unflushed(), 0);
                let units = units(&disk);
                assert_eq!(units.len(), 32);
                (units.iter().filter(|unit| **unit == 2).count(), units)
            };
            assert_eq!(news(Cut::None).0, 0);
            assert_eq!(news(Cut::All).0, 32);
            assert_eq!(news(Cut::OnlyOne).0, 1);
            assert_eq!(news(Cut::AllButOne).0, 31);
            assert!(
                [0, 32].contains(&news(Cut::Writes(50)).0),
                "one write, whole or not"
            );
            let (count, units) = news(Cut::Prefix);
            assert!(units[..count].iter().all(|unit| *unit == 2));
            assert!(units[count..].iter().all(|unit| *unit == 1));
        }
    }
}

#[test]
fn subsets_reach_every_unit_both_ways_and_garbage_shows() {
    let (mut kept, mut lost, mut garbage) = ([false; 32], [false; 32], false);
    for seed in 0..100 {
        let disk = disk(seed);
        old_then_new(&disk, seed, true);
        disk.power_cut(if seed % 2 == 0 {
            Cut::Units(50)
        } else {
            Cut::Garbage
        });
        for (at, unit) in units(&disk).into_iter().enumerate() {
            match unit {
                1 => lost[at] = true,
                2 => kept[at] = true,
                _ => garbage = true,
            }
        }
    }
    assert!(kept.iter().all(|k| *k) && lost.iter().all(|l| *l) && garbage);
}

#[test]
fn a_flush_covers_only_writes_completed_before_it() {
    let mut lost = false;
    for seed in 0..50 {
        let (disk, rt) = (disk(seed), Rt::simulated(seed));
        let device = SimDevice::attach(&rt, &disk);
        rt.block_on(async move {
            device.write(0, vec![page(1)]).await.unwrap();
            let late = device.write(4096, vec![page(2)]);
            device.flush().await.unwrap();
            late.await.unwrap();
        });
        rt.shutdown();
        disk.power_cut(Cut::None);
        assert_eq!(disk.peek(0).unwrap()[0], 1, "flushed");
        lost |= disk.peek(1).is_none();
    }
    assert!(lost, "what was in flight at the flush is not flushed");
}

#[test]
fn reads_see_what_has_completed_and_a_daemon_death_keeps_it() {
    let disk = disk(5);
    old_then_new(&disk, 5, true);
    disk.settle_in_flight();
    assert_eq!(units(&disk), [2; 32]);
    assert!(disk.unflushed() > 0, "still volatile");
    disk.power_cut(Cut::None);
    assert_eq!(units(&disk), [1; 32]);
}

#[test]
fn faults_are_what_they_are_called() {
    let rt = Rt::simulated(1);
    let run = |rates: FaultRates| {
        let disk = disk(3);
        let device = SimDevice::attach(&rt, &disk);
        disk.arm(rates);
        let written = rt.block_on({
            let device = device.clone();
            async move { device.write(0, vec![page(9)]).await }
        });
        let read = rt.block_on(async move {
            let (buf, result) = device.read(0, Buf::zeroed(4096)).await;
            result.map(|()| buf.iter().filter(|byte| **byte == 9).count())
        });
        (written, read)
    };
    let always = 65_536;
    let none = FaultRates::default();
    assert_eq!(run(none), (Ok(()), Ok(4096)));
    assert_eq!(
        run(FaultRates {
            lost_write: always,
            ..none
        }),
        (Ok(()), Ok(0))
    );
    assert_eq!(
        run(FaultRates {
            latent_error: always,
            ..none
        }),
        (Ok(()), Err(Fault::Media))
    );
    assert_eq!(
        run(FaultRates {
            read_corruption: always,
            ..none
        }),
        (Ok(()), Ok(4095))
    );
    assert_eq!(
        run(FaultRates {
            write_error: always,
            ..none
        })
        .0,
        Err(Fault::Media)
    );
}

#[test]
fn an_unreadable_page_is_readable_once_rewritten() {
    let (disk, rt) = (disk(4), Rt::simulated(4));
    let device = SimDevice::attach(&rt, &disk);
    rt.block_on(async move {
        device.write(0, vec![page(1)]).await.unwrap();
        device.flush().await.unwrap();
        assert!(disk.rot(Rot::Unreadable));
        assert_eq!(device.read(0, Buf::zeroed(4096)).await.1, Err(Fault::Media));
        device.write(0, vec![page(2)]).await.unwrap();
        let (buf, result) = device.read(0, Buf::zeroed(4096)).await;
        assert_eq!((buf[0], result), (2, Ok(())));
        disk.set_offline();
        assert_eq!(device.flush().await, Err(Fault::Offline));
        disk.set_online(false);
        assert_eq!(device.flush().await, Ok(()));
    });
}

/// A backing that is read-only or full refuses writes and nothing else, over power cuts too, until it is mended; a
/// sparse one that is full keeps what has its place already.
#[test]
fn a_backing_refuses_writes_until_it_is_mended() {
    for refusal in Refusal::ALL {
        let disk = disk(6);
        old_then_new(&disk, 6, true);
        disk.power_cut(Cut::All);
        disk.refuse(Some(refusal));
        disk.power_cut(Cut::All);
        let (rt, sparse) = (Rt::simulated(6), refusal == Refusal::FullForNew);
        let device = SimDevice::attach(&rt, &disk);
        rt.block_on({
            let (disk, device) = (disk.clone(), device.clone());
            async move {
                let held = device.write(0, vec![page(3)]).await;
                let part = device.write(3 * 4096, vec![page(3), page(3)]).await;
                let new = device.write(8 * 4096, vec![page(3)]).await;
                let refused = Err(refusal.fault());
                assert_eq!(held, if sparse { Ok(()) } else { refused });
                assert_eq!((part, new), (refused, refused));
                assert_eq!(device.flush().await, Ok(()));
                let (buf, read) = device.read(0, Buf::zeroed(9 * 4096)).await;
                assert_eq!(read, Ok(()));
                let first = if sparse { 3 } else { 2 };
                let bytes = [first, 2, 2, first, 0, 0, 0, 0, 0];
                let read = buf.chunks(4096).map(|page| page[0]);
                assert!(read.eq(bytes), "{refusal:?}");
                assert_eq!(disk.in_flight(), 0);
                disk.refuse(None);
                assert_eq!(device.write(8 * 4096, vec![page(3)]).await, Ok(()));
            }
        });
        rt.shutdown();
    }
}
