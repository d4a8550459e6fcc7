//! One writer (rule R18): of two hosts that see the same devices one uses the array, and the other waits, is refused, or
//! takes it over by the operator's word.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;

use ashlar_device::{Delay, DelayFilter, DeviceRef, FaultFilter, MemDevice};
use ashlar_engine::{Array, Create, Error, FENCE, Identity, Import, Settings};
use ashlar_rt::{Buf, Rt, SECOND, Stopped};

use crate::common::{
    self, BLOCK, DISK, SIZE, devices, geometry, image, read, refs, run, small, volume, write,
};

/// Polls after which something that should end counts as endless.
const ENDLESS: u64 = 3_000_000;

fn identity(host: &str, machine: u8, boot: u8) -> Identity {
    Identity {
        boot: [boot; 16],
        machine: [machine; 16],
        host: host.into(),
    }
}

fn one() -> Identity {
    identity("one", 1, 11)
}

fn two() -> Identity {
    identity("two", 2, 21)
}

fn settings(host: &Identity) -> Settings {
    Settings {
        beat: Some(host.clone()),
        ..Settings::default()
    }
}

fn options(host: &Identity, take_over: bool) -> Import {
    Import {
        take_over,
        settings: settings(host),
        ..Import::default()
    }
}

/// An array of host one, with a volume of version 1.
async fn create(rt: &Rt, disks: Vec<DeviceRef>, layout: &str) -> Array {
    let options = Create {
        settings: settings(&one()),
        ..small(layout)
    };
    let array = Array::create(rt, disks, options).await.unwrap();
    array.volume_create("v", volume(SIZE)).await.unwrap();
    write(&array, 1).await;
    array
}

fn on<T: 'static>(rt: &Rt, story: impl AsyncFnOnce(Rt) -> T + 'static) -> T {
    let handle = rt.clone();
    let done = rt.run_for(ENDLESS, async move { story(handle).await });
    done.expect("it ends")
}

/// The process goes on for so long, whatever it does.
fn goes_on(rt: &Rt, seconds: u64) {
    let handle = rt.clone();
    let rest = async move { handle.sleep(seconds * SECOND).await };
    assert_ne!(rt.run_for(ENDLESS, rest), Err(Stopped::Polls));
}

fn images(disks: &[Rc<MemDevice>]) -> Vec<Vec<u8>> {
    disks.iter().map(|disk| image(disk)).collect()
}

/// Devices of an array that host one used when it died.
fn left_in_use() -> Vec<Rc<MemDevice>> {
    let disks = devices(3, DISK);
    let kept = disks.clone();
    let rt = Rt::simulated(1);
    on(&rt, async move |rt| {
        let _array = create(&rt, refs(&kept), "ec2+1").await;
        rt.sleep(3 * SECOND).await;
    });
    rt.shutdown();
    disks
}

#[test]
fn an_array_whose_beat_moves_is_refused() {
    let disks = devices(3, DISK);
    let rt = Rt::simulated(1);
    on(&rt, async move |rt| {
        let array = create(&rt, refs(&disks), "ec2+1").await;
        for (take_over, read_only, degraded) in [
            (false, false, false),
            (true, false, false),
            (true, true, false),
            (true, false, true),
        ] {
            let begun = rt.now();
            let import = Import {
                read_only,
                degraded,
                ..options(&two(), take_over)
            };
            let refused = Array::import(&rt, refs(&disks), import).await.unwrap_err();
            assert!(
                matches!(&refused, Error::UsedBy(host) if host == "one"),
                "{refused}"
            );
            assert!(rt.now() - begun < 5 * SECOND);
        }
        write(&array, 2).await;
        array.export().await.unwrap();
    });
}

#[test]
fn a_host_that_is_off_is_followed_by_the_operators_word() {
    let disks = left_in_use();
    let rt = Rt::simulated(2);
    on(&rt, async move |rt| {
        let import = async |take_over| {
            let begun = rt.now();
            let done = Array::import(&rt, refs(&disks), options(&two(), take_over)).await;
            assert!(rt.now() - begun >= FENCE + 30 * SECOND);
            done
        };
        let before = images(&disks);
        let refused = import(false).await.unwrap_err();
        assert!(
            matches!(&refused, Error::LastUsedBy(host) if host == "one"),
            "{refused}"
        );
        assert!(images(&disks) == before, "nothing was written");
        let array = import(true).await.unwrap();
        read(&array, 1, "taken over").await;
        write(&array, 2).await;
        array.export().await.unwrap();
        // Exported, it is anybody's.
        let begun = rt.now();
        let array = Array::import(&rt, refs(&disks), options(&one(), false)).await;
        assert!(rt.now() - begun < 5 * SECOND);
        let array = array.unwrap();
        read(&array, 2, "and back").await;
        array.export().await.unwrap();
    });
}

#[test]
fn the_same_boot_does_not_wait_and_another_of_the_machine_waits_shortly() {
    for (boot, seconds) in [(11, 0..1), (12, 10..15)] {
        let disks = left_in_use();
        let rt = Rt::simulated(2);
        on(&rt, async move |rt| {
            let begun = rt.now();
            let host = identity("one", 1, boot);
            let array = Array::import(&rt, refs(&disks), options(&host, false))
                .await
                .unwrap();
            assert!(
                seconds.contains(&((rt.now() - begun) / SECOND)),
                "{seconds:?}"
            );
            read(&array, 1, "the same machine").await;
        });
    }
}

/// Blank blocks are of nobody; torn ones are of somebody who may write again, and are watched as anybody's.
#[test]
fn blocks_that_say_nothing_keep_nobody_out() {
    for (byte, seconds) in [(0, 0..5), (0xAA, 75..85)] {
        let disks = left_in_use();
        for disk in &disks {
            disk.poke(geometry(disk).beat_offset(), &[byte; 4096]);
        }
        let rt = Rt::simulated(2);
        on(&rt, async move |rt| {
            let array = Array::import(&rt, refs(&disks), options(&two(), false))
                .await
                .unwrap();
            assert!(seconds.contains(&(rt.now() / SECOND)), "{seconds:?}");
            read(&array, 1, "torn").await;
        });
    }
}

/// The process is stopped (SIGSTOP), another host takes the array over, and the process goes on.
#[test]
fn a_host_that_stood_still_writes_nothing_when_it_goes_on() {
    for exported in [true, false] {
        let disks = devices(4, DISK);
        let first = Rt::simulated(1);
        let kept = disks.clone();
        let (array, v) = on(&first, async move |rt| {
            let array = create(&rt, refs(&kept), "ec2+2").await;
            let v = array.volume("v").unwrap();
            // What is not durable yet is written as soon as it goes on, or not.
            v.write(0, run(0, 64, 7), false).await.unwrap();
            (array, v)
        });
        let second = Rt::simulated(2);
        let kept = disks.clone();
        on(&second, async move |rt| {
            let array = Array::import(&rt, refs(&kept), options(&two(), true))
                .await
                .unwrap();
            write(&array, 2).await;
            if exported {
                array.export().await.unwrap();
            }
        });
        let before = images(&disks);
        first.stand_still(second.now());
        on(&first, async move |_| {
            assert!(v.write(0, run(0, 4, 8), false).await.is_err());
            assert!(
                v.read(0, BLOCK as usize).await.is_err(),
                "what it has may be old"
            );
            assert!(v.flush().await.is_err());
        });
        goes_on(&first, 100);
        assert!(images(&disks) == before, "nothing was written");
        assert!(!array.is_open());
        let why = array.events(0).into_iter().find(|e| e.kind == "halted");
        assert!(why.unwrap().text.contains("took the beat"), "it says why");
        first.shutdown();
        second.shutdown();
        let third = Rt::simulated(3);
        on(&third, async move |rt| {
            let array = Array::import(&rt, refs(&disks), options(&two(), false))
                .await
                .unwrap();
            read(&array, 2, "what the second wrote").await;
        });
    }
}

/// A virtual machine whose own clock stood still sees no time pass, but the beat of the other.
#[test]
fn a_host_whose_clock_stood_still_sees_the_other() {
    let disks = devices(4, DISK);
    let first = Rt::simulated(1);
    let kept = disks.clone();
    let array = on(&first, async move |rt| {
        create(&rt, refs(&kept), "ec2+2").await
    });
    let second = Rt::simulated(2);
    let other = on(&second, async move |rt| {
        Array::import(&rt, refs(&disks), options(&two(), true))
            .await
            .unwrap()
    });
    goes_on(&first, 2);
    assert!(!array.is_open());
    let why = array.events(0).into_iter().find(|e| e.kind == "halted");
    assert!(why.unwrap().text.contains("host two has taken it over"));
    goes_on(&second, 60);
    assert!(other.is_open());
    let disturbed = other.events(0).iter().any(|e| e.kind == "halted");
    assert!(!disturbed);
}

/// Devices that answer nothing for a time.
#[test]
fn half_of_the_devices_keep_the_beat_and_fewer_do_not() {
    for (hang, goes_on) in [(1, true), (2, true), (3, false)] {
        let disks = devices(4, DISK);
        let rt = Rt::simulated(1);
        on(&rt, async move |rt| {
            let delayed = |disk| DelayFilter::new(&rt, disk, Delay::default());
            let slow: Vec<_> = refs(&disks).into_iter().map(delayed).collect();
            let given = slow.iter().map(|d| d.clone() as DeviceRef).collect();
            let array = create(&rt, given, "ec2+2").await;
            array.merge().await.unwrap();
            array.wait_idle(&[]).await;
            for disk in &slow[..hang] {
                disk.set(Delay {
                    read: 1000 * SECOND,
                    write: 1000 * SECOND,
                    flush: 1000 * SECOND,
                    ..Delay::default()
                });
            }
            rt.sleep(FENCE - 2 * SECOND).await;
            assert!(array.is_open(), "{hang}");
            rt.sleep(300 * SECOND).await;
            assert_eq!(array.is_open(), goes_on, "{hang}");
        });
    }
}

#[test]
fn of_two_hosts_that_import_at_once_at_most_one_gets_the_array() {
    let mut won = [0, 0];
    for seed in 0..40 {
        let disks = devices(3, DISK);
        let rt = Rt::simulated(seed);
        let winner = on(&rt, async move |rt| {
            let slow = |disk| {
                let delay = Delay {
                    read: rt.random_below(SECOND / 50),
                    write: rt.random_below(SECOND / 50),
                    ..Delay::default()
                };
                DelayFilter::new(&rt, disk, delay) as DeviceRef
            };
            let third = identity("three", 3, 31);
            let array = Array::create(
                &rt,
                refs(&disks),
                Create {
                    settings: settings(&third),
                    ..small("ec2+1")
                },
            );
            let array = array.await.unwrap();
            array.volume_create("v", volume(SIZE)).await.unwrap();
            write(&array, 1).await;
            array.export().await.unwrap();
            let import = |host: Identity| {
                let disks = refs(&disks).into_iter().map(slow).collect();
                let (rt, late) = (rt.clone(), rt.random_below(SECOND / 2));
                let again = rt.clone();
                rt.spawn(async move {
                    again.sleep(late).await;
                    Array::import(&again, disks, options(&host, false)).await
                })
            };
            let (a, b) = (import(one()), import(two()));
            let mut open = Vec::new();
            for (at, done) in [a.await, b.await].into_iter().enumerate() {
                match done {
                    Ok(array) => open.push((at, array)),
                    Err(Error::UsedBy(_) | Error::UsedMeanwhile | Error::LastUsedBy(_)) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            assert!(open.len() < 2, "{seed}");
            let (at, array) = open.pop()?;
            write(&array, 2).await;
            rt.sleep(10 * SECOND).await;
            assert!(array.is_open());
            read(&array, 2, "the one that got it").await;
            array.export().await.unwrap();
            Some(at)
        });
        winner.into_iter().for_each(|at| won[at] += 1);
    }
    assert!(won[0] + won[1] > 20, "{won:?}");
}

/// A device that comes in has the beat, too.
#[test]
fn a_device_that_is_added_takes_the_beat() {
    let disks = devices(4, DISK);
    let rt = Rt::simulated(1);
    on(&rt, async move |rt| {
        let array = create(&rt, refs(&disks[..3]), "ec2+1").await;
        array.add(disks[3].clone(), "").await.unwrap();
        let at = usize::try_from(geometry(&disks[3]).beat_offset()).unwrap();
        let block = || image(&disks[3])[at..at + 4096].to_vec();
        rt.sleep(2 * SECOND).await;
        let before = block();
        rt.sleep(2 * SECOND).await;
        assert!(before[..8] == *b"ASHBEAT1" && block() != before);
    });
}

/// Without a host there is no beat, and a block of another host says nothing.
#[test]
fn an_array_without_a_host_is_as_before() {
    let disks = devices(3, DISK);
    let rt = Rt::simulated(1);
    on(&rt, async move |rt| {
        let array = common::create(&rt, &disks, "ec2+1").await;
        rt.stand_still(1000 * SECOND);
        write(&array, 2).await;
        read(&array, 2, "late").await;
        let at = usize::try_from(geometry(&disks[0]).beat_offset()).unwrap();
        assert!(
            image(&disks[0])[at..at + 4096]
                .iter()
                .all(|byte| *byte == 0)
        );
    });
}

/// A host that can reach only a minority has a beat on that alone, and a majority may be in use elsewhere by then: it
/// stops, also where its writes wait for the operator meanwhile.
#[test]
fn a_host_that_is_left_with_a_minority_stops() {
    let disks = devices(3, DISK);
    let rt = Rt::simulated(3);
    on(&rt, async move |rt| {
        let filters: Vec<_> = refs(&disks).into_iter().map(FaultFilter::new).collect();
        let seen = filters.iter().map(|f| f.clone() as DeviceRef).collect();
        let array = create(&rt, seen, "raid1:3").await;
        filters[1..].iter().for_each(|f| f.set_offline(true));
        let writing = {
            let array = array.clone();
            rt.spawn(async move {
                let volume = array.volume("v").unwrap();
                let zeros = Buf::zeroed(4096).freeze();
                volume.write(0, zeros, true).await.is_ok()
            })
        };
        rt.sleep(FENCE + 35 * SECOND).await;
        assert!(!array.is_open() && !writing.await);
        let volume = array.volume("v").unwrap();
        assert!(volume.read(0, 4096).await.is_err(), "it may be old");
    });
}

/// Devices that come back have blocks of whoever used the array before: of this host, too. They stop nobody.
#[test]
fn devices_that_come_back_with_an_older_beat_stop_nobody() {
    let disks = devices(3, DISK);
    let rt = Rt::simulated(4);
    on(&rt, async move |rt| {
        let array = create(&rt, refs(&disks), "raid1:3").await;
        rt.sleep(2 * SECOND).await;
        array.export().await.unwrap();
        let alone = Import {
            degraded: true,
            ..options(&one(), false)
        };
        let array = Array::import(&rt, refs(&disks[..1]), alone).await.unwrap();
        rt.sleep(2 * SECOND).await;
        for disk in &disks[1..] {
            array.online(disk.clone(), false).await.unwrap();
        }
        rt.sleep(10 * SECOND).await;
        assert!(array.is_open());
        read(&array, 1, "all are back").await;
        for disk in &disks {
            let at = usize::try_from(geometry(disk).beat_offset()).unwrap();
            let before = image(disk)[at..at + 4096].to_vec();
            rt.sleep(2 * SECOND).await;
            assert!(image(disk)[at..at + 4096] != before, "it has the beat");
        }
    });
}
