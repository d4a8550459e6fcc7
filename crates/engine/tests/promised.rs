//! What volumes were promised fits: whatever their blocks, whatever the sizes of devices, and once some are gone.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;

use ashlar_device::MemDevice;
use ashlar_engine::Work;
use ashlar_engine::status::ArrayState;
use ashlar_engine::{Array, Create, Error, Import, Settings, VolumeOptions, plan};
use ashlar_rt::{Rt, SECOND};

use crate::common::room::{
    all_promised, all_thick, devices_of, far_apart, mostly_thick, put, scatter, starts_without,
};
use crate::common::{
    BLOCK, check, devices, fill, pattern, refs, small, thin_volume, volume, without,
};

const MIB: u64 = 1 << 20;

/// More devices than K+M, one is gone, and a thick volume was promised all the room there was: it keeps it,
/// and what room is left above that goes into redundancy.
#[test]
fn promised_space_outlives_a_device() {
    for (layout, count, lost) in [
        ("ec4+2", 7, 1),
        ("ec4+2", 8, 1),
        ("ec4+2", 8, 2),
        ("ec2+1", 5, 1),
        ("ec2+2", 8, 2),
    ] {
        for written in [30, 100] {
            let disks = devices(count, 16 * MIB);
            let rt = Rt::simulated(1);
            let handle = rt.clone();
            rt.block_on(async move {
                let (array, v, blocks) = all_promised(&handle, &disks, layout).await;
                for block in 0..blocks * written / 100 {
                    put(&v, block, 1).await.unwrap();
                }
                v.flush().await.unwrap();
                for device in 0..lost {
                    array.fail(device, false).await.unwrap();
                    array.wait_idle(&[Work::Rebuild]).await;
                }
                let status = array.status().await;
                assert!(status.capacity.overpromised, "not all can be redundant");
                if written < 50 {
                    let full = status.exposure.iter().all(|e| e.redundancy >= 1);
                    assert!(full, "{layout} {count}: {:?}", status.exposure);
                }
                for version in 2..4 {
                    for at in 0..blocks {
                        let block = at * 7919 % blocks;
                        let done = put(&v, block, version).await;
                        assert!(
                            done.is_ok(),
                            "{layout} on {count} without {lost}, {written} % written: block {at} \
                             version {version}: {done:?}"
                        );
                    }
                    v.flush().await.unwrap();
                }
                for block in 0..blocks {
                    let read = v.read(block * BLOCK, BLOCK as usize).await.unwrap();
                    assert!(*read == *pattern(block, 3), "block {block}");
                }
            });
            rt.shutdown();
        }
    }
}

/// A pair that lost a device has the most room left: new data go to pairs that keep two copies.
#[test]
fn new_data_go_where_they_are_redundant() {
    let disks = devices(4, 16 * MIB);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    rt.block_on(async move {
        let array = Array::create(&handle, refs(&disks), small("raid10"))
            .await
            .unwrap();
        let size = array.room_for(4096);
        array.volume_create("v", volume(size)).await.unwrap();
        let v = array.volume("v").unwrap();
        let blocks = size / BLOCK;
        for block in 0..blocks / 8 {
            put(&v, block, 1).await.unwrap();
        }
        v.flush().await.unwrap();
        array.fail(0, false).await.unwrap();
        array.wait_idle(&[Work::Rebuild]).await;
        let alone = || async {
            handle.sleep(40 * SECOND).await; // merged
            let status = array.status().await;
            let none = status.exposure.iter().filter(|e| e.redundancy == 0);
            none.map(|e| e.bytes).sum::<u64>()
        };
        let before = alone().await;
        for block in blocks / 8..blocks / 2 {
            put(&v, block, 1).await.unwrap();
        }
        v.flush().await.unwrap();
        assert_eq!(alone().await, before);
    });
    rt.shutdown();
}

/// Devices of different sizes: what is promised can be written.
#[test]
fn promised_space_fits_devices_of_different_sizes() {
    let mut disks = devices(5, 16 * MIB);
    disks.push(Rc::new(MemDevice::new("large", 160 * MIB)));
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    let story = rt.run_for(30_000_000, async move {
        let array = Array::create(&handle, refs(&disks), small("ec4+2"))
            .await
            .unwrap();
        let size = array.room_for(4096);
        array.volume_create("v", volume(size)).await.unwrap();
        let v = array.volume("v").unwrap();
        for block in 0..size / BLOCK {
            let done = put(&v, block, 1).await;
            assert!(done.is_ok(), "block {block} of {}: {done:?}", size / BLOCK);
        }
    });
    assert!(story.is_ok(), "{story:?}");
    rt.shutdown();
}

/// Volume blocks that do not fill a stripe leave a part of each empty: that counts as taken, and a thick volume
/// that was promised all the room can be written again and again.
#[test]
fn volume_blocks_that_do_not_fill_stripes_have_room() {
    for (layout, count, strip, block) in [
        ("ec3+1", 6, 8 << 10, 16 << 10),
        ("ec3+1", 8, 4 << 10, 8 << 10),
        ("ec5+2", 8, 4 << 10, 16 << 10),
    ] {
        let disks = devices(count, 8 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = Create {
                strip_bytes: Some(strip),
                ..small(layout)
            };
            let array = Array::create(&handle, kept, create).await.unwrap();
            let unit = u64::from(block);
            let size = array.room_for(block) / unit * unit;
            assert!(size < array.room_for(4096), "{layout}");
            let options = VolumeOptions {
                block_bytes: block,
                ..volume(size)
            };
            array.volume_create("v", options).await.unwrap();
            let v = array.volume("v").unwrap();
            for version in 1..4 {
                fill(&v, size, unit, version, layout).await;
            }
            check(&v, size, 3, layout).await;
            let c = array.status().await.capacity;
            assert_eq!(
                c.usable_bytes,
                c.used_bytes + c.free_bytes,
                "{layout}: {c:?}"
            );
        });
        rt.shutdown();
    }
}

/// Where the largest devices are gone, what is written does without the columns that it would have had on these, which
/// are more than their number says: with as many as on any device a full array had no room for what was promised
/// (#139).
#[test]
fn large_devices_that_are_gone_take_their_share_along() {
    for (layout, gone) in [
        ("ec1+3", &[1, 4][..]),
        ("ec2+2", &[1, 4]),
        ("ec1+3", &[1, 3, 4]),
    ] {
        let disks = devices_of(&[10, 15, 10, 15, 15, 10, 15]);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let array = Array::create(&handle, kept, small(layout)).await.unwrap();
            array.set("clean.reserve", "2%").await.unwrap();
            let size = array.room_for(4096) / 100 * 95 / BLOCK * BLOCK;
            array.volume_create("v", volume(size)).await.unwrap();
            let thin = thin_volume(4 << 30);
            array.volume_create("thin", thin).await.unwrap();
            let (v, thin) = (array.volume("v").unwrap(), array.volume("thin").unwrap());
            scatter(&handle, &v, size, 1, layout).await;
            for n in 0..400 {
                let _ = thin.write(far_apart(n), pattern(n, 1), false).await; // until it is full
            }
            for device in gone {
                array.fail(*device, false).await.unwrap();
            }
            for version in 2..8 {
                scatter(&handle, &v, size, version, layout).await;
            }
            check(&v, size, 7, layout).await;
        });
        rt.shutdown();
    }
}

/// A device that is gone counts with the slots that it had, also where it was gone before: it was given those of
/// the device that its superblock was read from, so a thin volume was refused what an array has room for (#131).
#[test]
fn a_device_that_was_gone_before_counts_with_its_own_size() {
    let sizes = [8 * MIB, 8 * MIB, 16 * MIB, 16 * MIB, 16 * MIB];
    let disks: Vec<Rc<MemDevice>> = (sizes.iter().enumerate())
        .map(|(i, bytes)| Rc::new(MemDevice::new(&format!("mem{i}"), *bytes)))
        .collect();
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    let usable = rt.block_on(async move {
        let array = Array::create(&handle, kept, small("ec2+1")).await.unwrap();
        let usable = array.room_for(4096);
        let options = thin_volume(usable);
        array.volume_create("v", options).await.unwrap();
        usable
    });
    rt.shutdown();
    // At the first start it goes, at the second it was gone.
    for start in 1..3 {
        let rt = Rt::simulated(start);
        let (handle, kept) = (rt.clone(), without(&disks, &[4]));
        rt.block_on(async move {
            let array = Array::import(&handle, kept, Import::default()).await;
            let array = array.unwrap();
            let gone = &array.status().await.devices[4];
            assert!(gone.size_bytes > 15 * MIB, "start {start}: {gone:?}");
            let v = array.volume("v").unwrap();
            fill(&v, usable, BLOCK, start, "without one").await;
        });
        rt.shutdown();
    }
}

/// One device is gone and all is redundant again, on the others; then a second goes, which leaves too little
/// room for that. What is written from then on has to do without one column, not two: one device more may go.
#[test]
fn shares_are_those_of_the_devices_that_had_room() {
    let disks = devices(10, 7 * MIB);
    let create = small("ec4+2");
    let size = plan(&[7 * MIB; 9], &create).unwrap().usable_bytes; // all that nine of them hold
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::create(&handle, kept, create).await.unwrap();
        array.volume_create("v", volume(size)).await.unwrap();
        let v = array.volume("v").unwrap();
        fill(&v, size, BLOCK, 1, "all there").await;
        array.fail(6, false).await.unwrap();
        array.wait_idle(&[Work::Rebuild]).await;
        let status = array.status().await;
        assert_eq!(status.state, ArrayState::Optimal);
        assert!(!status.capacity.overpromised);
        array.fail(4, false).await.unwrap();
        fill(&v, size, BLOCK, 2, "without two").await;
        let status = array.status().await;
        assert!(status.capacity.overpromised);
    });
    rt.shutdown();
    for gone in [0, 9] {
        starts_without(&disks, &[4, 6, gone], size, 2, "without three");
    }
}

/// The room that is kept for cleaning does not grow at the cost of what volumes were promised.
#[test]
fn a_reserve_takes_nothing_that_was_promised() {
    let disks = devices(6, 16 * MIB);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    rt.block_on(async move {
        let array = Array::create(&handle, refs(&disks), small("ec4+2"));
        let array = array.await.unwrap();
        let size = array.room_for(4096) / 4 * 3 / BLOCK * BLOCK;
        array.volume_create("v", volume(size)).await.unwrap();
        array.set("clean.reserve", "25%").await.unwrap();
        let refused = array.set("clean.reserve", "50%").await.unwrap_err();
        let Error::Promised { most } = refused else {
            panic!("{refused}");
        };
        assert!((26..50).contains(&most), "{most}");
        array
            .set("clean.reserve", &format!("{most}%"))
            .await
            .unwrap();
        assert!(
            array
                .set("clean.reserve", &format!("{}%", most + 1))
                .await
                .is_err()
        );
        array.set("clean.reserve", "2%").await.unwrap();
    });
    rt.shutdown();
}

/// #125: the segments that streams of many shards were filling took more of a small array than is reckoned for
/// them: a thick volume that had all its space got `NoSpace` as it was overwritten.
#[test]
fn an_array_of_many_shards_can_be_overwritten() {
    for shards in [1, 2, 4] {
        let disks = devices(4, 16 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let settings = Settings {
                shards,
                ..Settings::default()
            };
            let create = Create {
                settings,
                ..small("ec2+1")
            };
            let (_array, v, size) = all_thick(&handle, kept, create).await;
            let v = Rc::new(v);
            let writers = (0..4).map(|writer: u64| {
                let v = v.clone();
                handle.spawn(async move {
                    let blocks = size / BLOCK;
                    for number in 0..3 * blocks / 4 {
                        let block = (number * 7919 + writer * blocks / 4) % blocks;
                        let done = v.write(block * BLOCK, pattern(block, number), false).await;
                        assert!(done.is_ok(), "{shards} shards, write {number}: {done:?}");
                    }
                })
            });
            for writer in writers.collect::<Vec<_>>() {
                writer.await;
            }
        });
        rt.shutdown();
    }
}

/// Where devices are gone, metadata gives back what full redundancy takes of it once what volumes were promised needs
/// that: there was room while a thick volume had not been written yet, which then got `NoSpace` (#148). Until then it
/// is redundant.
#[test]
fn narrow_metadata_leaves_what_was_promised() {
    for (percent, nodes) in [(95, 50), (95, 100), (95, 200), (80, 400)] {
        let disks = devices(6, 10 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = Create {
                strip_bytes: Some(8 << 10),
                ..small("ec4+2")
            };
            let (array, v, size) = mostly_thick(&handle, kept, create, percent).await;
            array.set("clean.reserve", "4%").await.unwrap();
            let thin = thin_volume(1 << 30);
            array.volume_create("thin", thin).await.unwrap();
            let thin = array.volume("thin").unwrap();
            let mut written = 0;
            for n in 0..nodes {
                written += u64::from(thin.write(far_apart(n), pattern(n, 1), false).await.is_ok());
            }
            for device in [2, 4] {
                array.fail(device, false).await.unwrap();
            }
            let what = format!("{percent} %, {written} blocks far apart");
            array.wait_idle(&[]).await;
            let status = array.status().await;
            assert_eq!(status.state, ArrayState::Optimal, "{what}: {status:?}");
            for version in 1..4 {
                scatter(&handle, &v, size, version, &what).await;
            }
            check(&v, size, 3, &what).await;
        });
        rt.shutdown();
    }
}
