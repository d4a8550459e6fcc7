//! Stories found by reading: what a crash, a full array or a destroyed volume must not do.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use ashlar_device::{
    Delay, DelayFilter, Device, DeviceInfo, DeviceRef, Fault, FaultFilter, IoFuture, MemDevice,
};
use ashlar_engine::Work;
use ashlar_engine::status::{ArrayState, Frontend};
use ashlar_engine::{Array, Create, Error, Import, Settings, Volume, VolumeError};
use ashlar_rt::{Buf, MILLISECOND, Rt, SECOND, Slice};

use common::{BLOCK, devices, pattern, refs, small, thin_volume, volume};

const MIB: u64 = 1 << 20;

async fn put(v: &Volume, block: u64, version: u64) -> Result<(), VolumeError> {
    v.write(block * BLOCK, pattern(block, version), false).await
}

/// A new array, and a thick volume of so many blocks that was promised all the room there is.
async fn all_promised(rt: &Rt, disks: &[Rc<MemDevice>], layout: &str) -> (Array, Volume, u64) {
    let array = Array::create(rt, refs(disks), small(layout)).await.unwrap();
    let size = array.room_for(4096);
    array.volume_create("v", volume(size)).await.unwrap();
    let v = array.volume("v").unwrap();
    (array, v, size / BLOCK)
}

/// The same devices, with writes and flushes that take so long.
fn slow(rt: &Rt, disks: &[Rc<MemDevice>], write: u64) -> Vec<DeviceRef> {
    let delay = Delay {
        write,
        flush: write,
        ..Delay::default()
    };
    let filter =
        |d: &Rc<MemDevice>| DelayFilter::new(rt, d.clone() as DeviceRef, delay) as DeviceRef;
    disks.iter().map(filter).collect()
}

/// A device of a group is gone, room is short.
#[test]
fn groups_go_on_without_a_device_where_room_is_short() {
    for layout in ["raid60:2", "raid50:2", "raid10"] {
        let disks = devices(8, 8 * MIB);
        let rt = Rt::simulated(1);
        let handle = rt.clone();
        rt.block_on(async move {
            let (array, v, blocks) = all_promised(&handle, &disks, layout).await;
            for block in 0..blocks {
                put(&v, block, 1).await.unwrap();
            }
            v.flush().await.unwrap();
            array.fail(0, false).await.unwrap();
            for version in 2..4 {
                for block in 0..blocks {
                    let done = put(&v, block, version).await;
                    assert!(
                        done.is_ok(),
                        "{layout}: block {block} version {version}: {done:?}"
                    );
                }
                v.flush().await.unwrap();
            }
        });
        rt.shutdown();
    }
}

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
            handle.sleep(40 * SECOND).await; // folded
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

/// An import that takes its time, with the journal more than half full: nothing is freed, or cut from the
/// journal, that is still to be adopted.
#[test]
fn nothing_is_folded_before_the_journal_is_adopted() {
    let disks = devices(6, 32 * MIB);
    let rt = Rt::simulated(1);
    let (handle, slow_disks) = (rt.clone(), slow(&rt, &disks, 2 * MILLISECOND));
    let written = rt.block_on(async move {
        let mut options = small("ec4+2");
        options.strip_bytes = Some(16 << 10);
        options.settings.shards = 32;
        options.settings.partitions = Some(32);
        let array = Array::create(&handle, slow_disks, options).await.unwrap();
        let thin = thin_volume(512 * MIB);
        array.volume_create("v", thin).await.unwrap();
        let v = array.volume("v").unwrap();
        // A block of each shard but one stays in the data ring: recovery gives each a segment.
        let mut written: Vec<u64> = (0..24).map(|shard| 256 * shard).collect();
        for block in &written {
            let offset = block * BLOCK;
            v.write(offset, pattern(*block, 1), true).await.unwrap();
        }
        // The last one fills half of the delta ring.
        for block in (0..4096 * 32).filter(|b| b / 256 % 32 == 31) {
            put(&v, block, 1).await.unwrap();
            written.push(block);
            if written.len().is_multiple_of(64) {
                v.flush().await.unwrap();
                let journal = array.status().await.journal;
                if journal.used_bytes / journal.devices > (256 + 192) << 10 {
                    return written;
                }
            }
        }
        panic!("{:?}", array.status().await.journal);
    });
    rt.shutdown();
    let rt = Rt::simulated(2);
    let (handle, slow_disks) = (rt.clone(), slow(&rt, &disks, SECOND));
    let mut import = Import::default();
    import.settings.shards = 32;
    rt.block_on(async move {
        let array = Array::import(&handle, slow_disks, import).await.unwrap();
        let v = array.volume("v").unwrap();
        for block in written {
            let read = v.read(block * BLOCK, BLOCK as usize).await;
            assert_eq!(read.as_deref(), Ok(&*pattern(block, 1)), "block {block}");
        }
    });
    rt.shutdown();
}

/// A write that waits for room while its volume is destroyed must not keep the journal for ever.
#[test]
fn a_destroyed_volume_lets_go_of_the_journal() {
    let disks = devices(6, 16 * MIB);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), slow(&rt, &disks, MILLISECOND));
    let story = rt.run_for(4_000_000, async move {
        let array = Array::create(&handle, kept, small("ec4+2")).await.unwrap();
        for name in ["gone", "kept"] {
            array.volume_create(name, volume(16 * MIB)).await.unwrap();
        }
        // Clients that go on writing to a volume that is being destroyed.
        let mut joins = Vec::new();
        for client in 0..8 {
            let (v, rt) = (array.volume("gone").unwrap(), handle.clone());
            joins.push(handle.spawn(async move {
                for round in 0..2000 {
                    let block = client * 512 + round % 512;
                    if put(&v, block, round).await.is_err() {
                        return true;
                    }
                    if round % 16 == 0 {
                        rt.sleep(MILLISECOND).await;
                    }
                }
                false
            }));
        }
        handle.sleep(100 * MILLISECOND).await;
        let before = array.room_for(4096);
        array.volume_destroy("gone").await.unwrap();
        for join in joins {
            assert!(join.await, "a write to a volume that is gone fails");
        }
        handle.sleep(10 * SECOND).await;
        assert!(
            array.room_for(4096) >= before + 16 * MIB,
            "its space is back"
        );
        let v = array.volume("kept").unwrap();
        for round in 0..30 {
            for block in 0..4096 {
                put(&v, block, round).await.unwrap();
            }
            v.flush().await.unwrap();
        }
        let full = array
            .events(0)
            .iter()
            .filter(|e| e.kind == "journal-full")
            .count();
        assert_eq!(full, 0);
    });
    assert!(story.is_ok(), "{story:?}");
    rt.shutdown();
}

/// Full redundancy comes back to what was written as wide as ever, without the columns of a device that is
/// gone, while room was short.
#[test]
fn redundancy_returns_when_there_is_room_again() {
    let disks = devices(5, 16 * MIB);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    let story = rt.run_for(8_000_000, async move {
        let array = Array::create(&handle, refs(&disks), small("ec4+1"))
            .await
            .unwrap();
        let size = array.room_for(4096);
        array.volume_create("v", volume(size)).await.unwrap();
        let v = array.volume("v").unwrap();
        let blocks = size / BLOCK;
        for block in 0..blocks / 4 {
            put(&v, block, 1).await.unwrap();
        }
        v.flush().await.unwrap();
        array.fail(0, false).await.unwrap();
        array.wait_idle(&[]).await;
        handle.sleep(100 * SECOND).await;
        let state = array.status().await.state;
        assert_eq!(state, ArrayState::Optimal);
        for block in 0..blocks {
            put(&v, block, 2).await.unwrap();
        }
        v.flush().await.unwrap();
        handle.sleep(100 * SECOND).await;
        let state = array.status().await.state;
        assert_eq!(
            state,
            ArrayState::Critical,
            "room is short: as wide as ever"
        );
        v.trim(blocks / 4 * BLOCK, size - blocks / 4 * BLOCK, true)
            .await
            .unwrap();
        for version in 3..20 {
            v.write(0, pattern(0, version), true).await.unwrap(); // enough to be folded
        }
        handle.sleep(100 * SECOND).await;
        array.wait_idle(&[]).await;
        assert_eq!(array.status().await.state, ArrayState::Optimal);
    });
    assert!(story.is_ok(), "{story:?}");
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

/// A device that takes a minute to discard, and then does.
struct SlowDiscard(Rt, Rc<MemDevice>);

impl Device for SlowDiscard {
    fn info(&self) -> &DeviceInfo {
        self.1.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        self.1.read(offset, buf)
    }
    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        self.1.write(offset, data)
    }
    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        self.1.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        let (rt, inner) = (self.0.clone(), self.1.clone());
        let work = async move {
            rt.sleep(60 * SECOND).await;
            inner.discard(offset, length).await
        };
        Box::pin(self.0.spawn(work)) // it goes on whether or not anybody waits
    }
}

/// A discard that comes late must not hit what has been written since.
#[test]
fn a_slot_is_not_used_while_it_is_discarded() {
    let disks = devices(3, 8 * MIB);
    let rt = Rt::simulated(1);
    let wrapped = disks
        .iter()
        .map(|d| Rc::new(SlowDiscard(rt.clone(), d.clone())) as DeviceRef);
    let (handle, wrapped) = (rt.clone(), wrapped.collect());
    rt.block_on(async move {
        let array = Array::create(&handle, wrapped, small("ec2+1"))
            .await
            .unwrap();
        array.volume_create("v", volume(4 * MIB)).await.unwrap();
        let v = array.volume("v").unwrap();
        for version in 0..40 {
            for block in 0..1024 {
                put(&v, block, version).await.unwrap();
            }
            v.flush().await.unwrap();
            handle.sleep(SECOND).await;
        }
        handle.sleep(200 * SECOND).await;
        for block in 0..1024 {
            let read = v.read(block * BLOCK, BLOCK as usize).await;
            assert_eq!(read.as_deref(), Ok(&*pattern(block, 39)), "block {block}");
        }
        assert_eq!(
            array
                .status()
                .await
                .devices
                .iter()
                .map(|d| d.errors.digest)
                .sum::<u64>(),
            0
        );
    });
    rt.shutdown();
}

/// An array that crashes after every import, before its first commit.
#[test]
fn an_array_may_crash_after_every_import() {
    let disks = devices(2, 1024 * MIB); // so large a journal that nothing presses for a commit
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let mut options = small("raid1");
        options.slot_bytes = Some(MIB);
        let array = Array::create(&handle, kept, options).await.unwrap();
        array.volume_create("v", volume(MIB)).await.unwrap();
    });
    rt.shutdown();
    for round in 0..560 {
        let rt = Rt::simulated(2 + round);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let array = Array::import(&handle, kept, Import::default())
                .await
                .unwrap();
            let v = array.volume("v").unwrap();
            v.write(0, pattern(0, round), true).await.unwrap();
        });
        rt.shutdown();
    }
}

/// Two ask for one name at once.
#[test]
fn a_name_is_given_once() {
    let disks = devices(2, 8 * MIB);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), slow(&rt, &disks, MILLISECOND));
    rt.block_on(async move {
        let array = Array::create(&handle, kept, small("raid1")).await.unwrap();
        let ask = || {
            let array = array.clone();
            handle.spawn(async move { array.volume_create("v", volume(MIB)).await.is_ok() })
        };
        let (first, second) = (ask(), ask());
        assert_eq!(u32::from(first.await) + u32::from(second.await), 1);
        assert_eq!(array.volume_names(), ["v"]);
    });
    rt.shutdown();
}

/// What has not been folded yet counts as well where a device is to be given up.
#[test]
fn a_device_that_unfolded_data_hang_on_is_not_given_up() {
    let disks = devices(5, 16 * MIB);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::create(&handle, kept, small("ec4+1")).await.unwrap();
        array.volume_create("v", volume(4 * MIB)).await.unwrap();
        let v = array.volume("v").unwrap();
        for block in 0..256 {
            put(&v, block, 1).await.unwrap();
        }
        v.flush().await.unwrap();
        array.fail(0, false).await.unwrap();
        let second = array.fail(1, false).await;
        assert!(matches!(second, Err(Error::WouldLose(1))), "{second:?}");
    });
    rt.shutdown();
}

/// No device is left: whoever waits is told.
#[test]
fn nobody_waits_for_an_array_that_has_stopped() {
    for what in 0..3 {
        let disks = devices(3, 8 * MIB);
        let filters: Vec<_> = disks
            .iter()
            .map(|d| FaultFilter::new(d.clone() as DeviceRef))
            .collect();
        let rt = Rt::simulated(1);
        let (handle, kept) = (
            rt.clone(),
            filters.iter().map(|f| f.clone() as DeviceRef).collect(),
        );
        rt.block_on(async move {
            let array = Array::create(&handle, kept, small("ec2+1")).await.unwrap();
            array.volume_create("v", volume(MIB)).await.unwrap();
            let v = array.volume("v").unwrap();
            for block in 0..100 {
                put(&v, block, 1).await.unwrap();
            }
            for filter in &filters {
                filter.set_offline(true);
            }
            let work = async {
                match what {
                    0 => array.volume_create("w", volume(MIB)).await,
                    1 => array.set("clean.reserve", "12%").await,
                    _ => array.export().await,
                }
            };
            let ended = handle.timeout(1000 * SECOND, work).await;
            assert!(
                matches!(ended, Some(Err(Error::Closed))),
                "{what}: {ended:?}"
            );
        });
        rt.shutdown();
    }
}

/// Polls `work` so many times, and then gives it up.
async fn give_up_after(polls: u64, work: impl Future) {
    let mut work = pin!(work);
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 || work.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        left -= 1;
        if left == 0 {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await;
}

/// Whoever gives up waiting for a change leaves nothing half done: it is made to its end, and so are all that
/// come after it.
#[test]
fn a_change_that_was_begun_is_made() {
    for (what, polls) in (0..7).flat_map(|what| (1..40).map(move |polls| (what, polls))) {
        let disks = devices(5, 8 * MIB);
        let rt = Rt::simulated(polls);
        let (handle, members) = (rt.clone(), slow(&rt, &disks, MILLISECOND));
        let kept = rt.block_on(async move {
            let array = Array::create(&handle, members, small("ec3+2"));
            let array = array.await.unwrap();
            array.volume_create("v", volume(MIB)).await.unwrap();
            array.volume_create("x", volume(MIB)).await.unwrap();
            let v = array.volume("v").unwrap();
            for block in 0..50 {
                put(&v, block, 1).await.unwrap();
            }
            match what {
                0 => give_up_after(polls, array.set("clean.reserve", "12%")).await,
                1 => give_up_after(polls, array.volume_create("w", volume(MIB))).await,
                2 => give_up_after(polls, array.volume_destroy("x")).await,
                3 => give_up_after(polls, array.volume_set("x", "write-cache", "off")).await,
                4 => {
                    let nbd = Frontend {
                        kind: "nbd".into(),
                        address: "10809".into(),
                    };
                    give_up_after(polls, array.set_frontends("x", vec![nbd])).await;
                }
                5 => give_up_after(polls, array.fail(1, true)).await,
                _ => give_up_after(polls, array.export()).await,
            }
            if what < 6 {
                for block in 50..100 {
                    put(&v, block, 1).await.unwrap();
                }
                array.set("reconstruct.narrow", "never").await.unwrap();
                let told = |kind: &str| array.events(0).iter().any(|e| e.kind == kind);
                match what {
                    // The first of its waits is for room: nothing has changed yet.
                    1 => assert!(polls == 1 || array.volume("w").is_some()),
                    2 => assert!(told("volume-destroyed") && array.volume("x").is_none()),
                    5 => assert!(told("device-failed")),
                    _ => {}
                }
                array.export().await.unwrap();
            }
            handle.sleep(60 * SECOND).await;
            assert!(!array.is_open());
            disks
        });
        rt.shutdown();

        let rt = Rt::simulated(1);
        let handle = rt.clone();
        rt.block_on(async move {
            let title = format!("change {what} given up after {polls} polls");
            let array = Array::import(&handle, refs(&kept), Import::default()).await;
            let array = array.unwrap_or_else(|e| panic!("{title}: {e}"));
            let v = array.volume("v").unwrap();
            for block in 0..if what < 6 { 100 } else { 50 } {
                let read = v.read(block * BLOCK, 4096).await.unwrap();
                assert!(*read == *pattern(block, 1), "{title}: block {block}");
            }
            let status = array.status().await;
            let named = |name: &str| status.volumes.iter().find(|v| v.name == name);
            let made = match what {
                0 => array.get(Some("clean.reserve")).unwrap()[0].1 == "12%",
                1 => polls == 1 || named("w").is_some(),
                2 => named("x").is_none(),
                3 => named("x").unwrap().write_cache == "off",
                4 => named("x").unwrap().frontends.len() == 1,
                _ => true,
            };
            assert!(made, "{title}");
        });
        rt.shutdown();
    }
}

/// A flipped bit of the format version, in both superblocks of one device: one damaged device, not a newer
/// program's array.
#[test]
fn a_damaged_version_costs_its_device_only() {
    let bytes = 16 * MIB;
    let disks = devices(3, bytes);
    let rt = Rt::simulated(1);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::create(&handle, kept, small("ec2+1")).await.unwrap();
        array.export().await.unwrap();
    });
    rt.shutdown();
    let area = ashlar_format::geometry::super_bytes(bytes);
    for offset in [0, bytes - area] {
        let mut held = vec![0; BLOCK as usize];
        disks[0].peek(offset, &mut held);
        held[9] ^= 1;
        disks[0].poke(offset, &held);
    }
    let rt = Rt::simulated(2);
    let (handle, kept) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::import(&handle, kept, Import::default()).await;
        array.unwrap().export().await.unwrap();
    });
    rt.shutdown();
}

/// A commit gives nodes new places long before their bytes are there: whoever looks for one meanwhile must
/// not look on the devices, also where the cache is far smaller than what the commit changed.
#[test]
fn a_leaf_that_is_being_written_is_not_read_from_its_new_place() {
    let disks = devices(6, 64 * MIB);
    let rt = Rt::simulated(3);
    let handle = rt.clone();
    rt.block_on(async move {
        let mut create = small("ec4+2");
        create.settings.memory_bytes = 0;
        let array = Array::create(&handle, slow(&handle, &disks, 20 * MILLISECOND), create)
            .await
            .unwrap();
        let thin = thin_volume(128 * MIB);
        array.volume_create("v", thin).await.unwrap();
        let v = array.volume("v").unwrap();
        let spread: Vec<u64> = (0..200).map(|leaf| leaf * 128).collect();
        for block in &spread {
            put(&v, block + 1, 9).await.unwrap();
        }
        v.flush().await.unwrap();
        let (writer, places) = (v.clone(), spread.clone());
        let written = Rc::new(Cell::new(false));
        let done = written.clone();
        handle.spawn(async move {
            for version in 1..3 {
                for block in &places {
                    put(&writer, *block, version).await.unwrap();
                }
            }
            done.set(true);
        });
        while !written.get() {
            for block in &spread {
                let found = v.read((block + 1) * BLOCK, BLOCK as usize).await.unwrap();
                assert_eq!(found[8..16], 9u64.to_le_bytes(), "beside {block}");
            }
            handle.sleep(MILLISECOND).await;
        }
        let status = array.status().await;
        assert!(status.lost.is_empty(), "{:?}", status.lost);
        assert!(status.devices.iter().all(|d| d.errors.digest == 0));
        assert_eq!(status.state, ArrayState::Optimal);
    });
    rt.shutdown();
}

/// `fail -f` speaks for the devices that are gone then, not for a majority that goes later (R10), also where
/// the operator did not wait for its end (#127).
#[test]
fn the_operators_word_is_for_one_change_of_devices() {
    for polls in [1, u64::MAX] {
        let disks = devices(5, 16 * MIB);
        let filters: Vec<Rc<FaultFilter>> = disks
            .iter()
            .map(|d| FaultFilter::new(d.clone() as DeviceRef))
            .collect();
        let rt = Rt::simulated(6);
        let handle = rt.clone();
        rt.block_on(async move {
            let members = filters.iter().map(|f| f.clone() as DeviceRef).collect();
            let array = Array::create(&handle, members, small("raid1"))
                .await
                .unwrap();
            array.volume_create("v", volume(MIB)).await.unwrap();
            let v = array.volume("v").unwrap();
            give_up_after(polls, array.fail(4, true)).await;
            handle.sleep(SECOND).await;
            for gone in &filters[1..4] {
                gone.set_offline(true);
            }
            let done = handle.spawn(async move { v.write(0, pattern(0, 1), true).await });
            handle.sleep(200 * SECOND).await;
            let waits = |array: &Array| array.events(0).iter().any(|e| e.kind == "writes-wait");
            assert!(waits(&array), "one device of four went on by itself");
            // Said once, it is for all of them, though one alone was named.
            let said = handle.timeout(100 * SECOND, array.fail(1, true)).await;
            said.expect("no second word is asked for").unwrap();
            let written = handle.timeout(100 * SECOND, done).await;
            written.expect("writes go on").unwrap();
        });
        rt.shutdown();
    }
}

/// A device that says it is smaller than its superblock does is one that answers with errors there.
#[test]
fn a_device_that_shrank_costs_no_more_than_itself() {
    let mut disks = devices(8, 32 * MIB);
    let rt = Rt::simulated(8);
    let (handle, all) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::create(&handle, all, small("ec4+2")).await.unwrap();
        array.volume_create("v", volume(16 * MIB)).await.unwrap();
        let v = array.volume("v").unwrap();
        for block in 0..1000 {
            put(&v, block, 1).await.unwrap();
        }
        v.flush().await.unwrap();
    });
    rt.shutdown();
    let mut kept = vec![0; 24 << 20];
    disks[4].peek(0, &mut kept);
    let shrunk = MemDevice::new("shrunk", 24 * MIB);
    shrunk.poke(0, &kept);
    disks[4] = Rc::new(shrunk);

    for seed in [9, 10] {
        let rt = Rt::simulated(seed);
        let (handle, all) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let array = Array::import(&handle, all, Import::default())
                .await
                .unwrap();
            let v = array.volume("v").unwrap();
            for block in 0..1000 {
                let found = v.read(block * BLOCK, BLOCK as usize).await.unwrap();
                assert_eq!(found[8..16], 1u64.to_le_bytes(), "block {block}");
                put(&v, block + 1000, seed).await.unwrap();
            }
            v.flush().await.unwrap();
            array.fail(0, false).await.unwrap(); // every superblock is written, also at the end
            array.wait_idle(&[Work::Rebuild]).await;
            assert_eq!(array.status().await.state, ArrayState::Optimal);
            array.export().await.unwrap();
        });
        rt.shutdown();
    }
}

/// What the cleaner moves at once takes more of the journal than its ring has: records have one data column, since
/// failure domains leave no more.
#[test]
fn a_batch_may_be_larger_than_its_ring() {
    let disks = devices(20, 8 * MIB);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    rt.block_on(async move {
        let domains = (0..20).map(|device| format!("enclosure {}", device % 2));
        let create = Create {
            domains: domains.collect(),
            slot_bytes: Some(128 << 10),
            strip_bytes: Some(16384),
            ..small("ec3+1")
        };
        let array = Array::create(&handle, refs(&disks), create).await.unwrap();
        let size = array.room_for(4096);
        array.volume_create("v", volume(size)).await.unwrap();
        let v = array.volume("v").unwrap();
        let blocks = size / BLOCK;
        for round in 0..4 {
            for i in 0..blocks {
                let block = if round == 0 {
                    i
                } else {
                    (i * 7919 + round) % blocks
                };
                let done = handle.timeout(1000 * SECOND, put(&v, block, 1)).await;
                assert!(
                    done.is_some_and(|done| done.is_ok()),
                    "a write hangs, round {round}"
                );
            }
            v.flush().await.unwrap();
        }
        let events = array.events(0);
        let full = events.iter().find(|e| e.kind == "journal-full");
        assert!(full.is_none(), "{full:?}");
    });
    rt.shutdown();
}

/// A batch too large for one part dies between two of them. In the first is the stripe whose blocks an earlier
/// record holds; of one of these a newer version is in the last: the first part settles that record, so it has to
/// say itself where the older version lies.
#[test]
fn a_batch_in_parts_keeps_what_was_durable_before() {
    let mut found = Vec::new();
    for polls in 0.. {
        let disks = devices(4, 16 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        let v = rt.block_on(async move {
            let create = Create {
                slot_bytes: Some(256 << 10),
                strip_bytes: Some(64 << 10),
                ..small("raid1:4")
            };
            let array = Array::create(&handle, kept, create).await.unwrap();
            array.volume_create("v", volume(4 * MIB)).await.unwrap();
            let v = array.volume("v").unwrap();
            v.write(0, pattern(0, 1), true).await.unwrap();
            for block in 1..480 {
                put(&v, block, 1).await.unwrap();
            }
            put(&v, 0, 2).await.unwrap();
            v
        });
        let done = rt.run_for(polls, async move { v.flush().await }).is_ok();
        rt.shutdown();
        let rt = Rt::simulated(2);
        let handle = rt.clone();
        let version = rt.block_on(async move {
            let array = Array::import(&handle, refs(&disks), Import::default()).await;
            let v = array.unwrap().volume("v").unwrap();
            let read = v.read(0, BLOCK as usize).await.unwrap();
            let is = |version| *read == *pattern(0, version);
            let version = (1..3).find(|version| is(*version)).unwrap_or(0);
            assert!(version > 0, "after {polls} polls block 0 is gone");
            version
        });
        rt.shutdown();
        found.push(version);
        if done {
            break;
        }
    }
    assert!(found.contains(&1) && found.is_sorted() && found.ends_with(&[2]));
}

/// Each shard has a block in the data ring, which its open stripe settles, and then more to record than the delta ring
/// takes: the ring can be cut only once all of those stripes are recorded, so they come before all others (#179).
#[test]
fn a_batch_in_parts_lets_go_of_the_data_ring_first() {
    let disks = devices(8, 16 * MIB);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    rt.block_on(async move {
        let create = Create {
            slot_bytes: Some(256 << 10),
            strip_bytes: Some(64 << 10),
            settings: Settings {
                shards: 4,
                ..Settings::default()
            },
            ..small("ec1+7")
        };
        let array = Array::create(&handle, refs(&disks), create).await.unwrap();
        array.volume_create("v", volume(4 * MIB)).await.unwrap();
        let v = array.volume("v").unwrap();
        for round in 1..4 {
            for block in (0..1024).step_by(170) {
                put(&v, block, round).await.unwrap();
            }
            v.flush().await.unwrap();
            for block in 0..1024 {
                put(&v, block, round).await.unwrap();
            }
            let flushed = handle.timeout(100 * SECOND, v.flush()).await;
            assert!(flushed.is_some(), "a flush hangs, round {round}");
        }
        let events = array.events(0);
        let full = events.iter().find(|e| e.kind == "journal-full");
        assert!(full.is_none(), "{full:?}");
    });
    rt.shutdown();
}

/// A device whose reads take a while: the bytes of those under way, on all devices, and the most there were.
struct Reading(Rt, Rc<MemDevice>, Rc<[Cell<usize>; 2]>);

impl Device for Reading {
    fn info(&self) -> &DeviceInfo {
        self.1.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        let (rt, inner, counts) = (self.0.clone(), self.1.clone(), self.2.clone());
        let bytes = buf.len();
        counts[0].set(counts[0].get() + bytes);
        counts[1].set(counts[1].get().max(counts[0].get()));
        Box::pin(self.0.spawn(async move {
            rt.sleep(MILLISECOND).await;
            counts[0].set(counts[0].get() - bytes);
            inner.read(offset, buf).await
        }))
    }
    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        self.1.write(offset, data)
    }
    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        self.1.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        self.1.discard(offset, length)
    }
}

/// What is read to move the live blocks of a segment does not grow with the segment: one of 1 GiB slots would take as
/// much memory as many a machine has. Here segments of 128 MiB have lost their last redundancy, and are written anew.
#[test]
fn a_large_segment_is_moved_in_parts() {
    let disks = devices(9, 1 << 30);
    let rt = Rt::simulated(1);
    let counts = Rc::new([const { Cell::new(0) }; 2]);
    let reading = |d: &Rc<MemDevice>| Reading(rt.clone(), d.clone(), counts.clone());
    let kept = disks
        .iter()
        .map(|d| Rc::new(reading(d)) as DeviceRef)
        .collect();
    let (handle, most) = (rt.clone(), counts.clone());
    rt.block_on(async move {
        let create = Create {
            slot_bytes: Some(16 << 20),
            strip_bytes: Some(64 << 10),
            ..small("ec8+1")
        };
        let array = Array::create(&handle, kept, create).await.unwrap();
        array.volume_create("v", volume(256 * MIB)).await.unwrap();
        let v = array.volume("v").unwrap();
        for block in 0..40_000 {
            put(&v, block, 1).await.unwrap();
        }
        v.flush().await.unwrap();
        most[1].set(0);
        array.fail(3, false).await.unwrap();
        array.wait_idle(&[]).await;
        let status = array.status().await;
        assert_eq!(status.state, ArrayState::Optimal);
        let most = most[1].get();
        assert!(most > 16 << 20 && most <= 66 << 20, "{most} bytes at once");
        for block in (0..40_000).step_by(97) {
            let read = v.read(block * BLOCK, BLOCK as usize).await.unwrap();
            assert!(*read == *pattern(block, 1), "block {block}");
        }
    });
    rt.shutdown();
}

/// A device that counts the roots written to it.
struct Roots(Rc<MemDevice>, Rc<Cell<usize>>);

impl Device for Roots {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> IoFuture<(Buf, Result<(), Fault>)> {
        self.0.read(offset, buf)
    }
    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<Result<(), Fault>> {
        let roots = data.iter().filter(|d| d.starts_with(b"ASHROOT1")).count();
        self.1.set(self.1.get() + roots);
        self.0.write(offset, data)
    }
    fn flush(&self) -> IoFuture<Result<(), Fault>> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> IoFuture<Result<(), Fault>> {
        self.0.discard(offset, length)
    }
}

/// A large volume is destroyed in steps, each a root: what one changes is in memory until it is written, and would grow
/// with the volume, at every import anew where there is not so much.
#[test]
fn a_large_volume_is_destroyed_in_steps() {
    let leaves = 5000;
    let disks = devices(3, 256 * MIB);
    let rt = Rt::simulated(1);
    let roots = Rc::new(Cell::new(0));
    let mut kept = refs(&disks);
    kept[0] = Rc::new(Roots(disks[0].clone(), roots.clone()));
    let handle = rt.clone();
    rt.block_on(async move {
        let mut create = small("ec2+1");
        create.settings.memory_bytes = 1 << 20;
        let array = Array::create(&handle, kept, create).await.unwrap();
        let thin = thin_volume(leaves * 512 * 1024);
        array.volume_create("v", thin).await.unwrap();
        let v = array.volume("v").unwrap();
        for leaf in 0..leaves {
            put(&v, leaf * 128, 1).await.unwrap();
        }
        handle.sleep(40 * SECOND).await; // all of it is folded
        let before = roots.get();
        array.volume_destroy("v").await.unwrap();
        array.wait_idle(&[]).await;
        handle.sleep(40 * SECOND).await;
        let steps = roots.get() - before;
        assert!((5..20).contains(&steps), "{steps} roots");
        let capacity = array.status().await.capacity;
        assert_eq!(capacity.used_bytes, 0, "{capacity:?}");
        array.export().await.unwrap();
    });
    rt.shutdown();
}
