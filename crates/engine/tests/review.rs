//! Stories found by reading: what a crash, a full array or a destroyed volume must not do.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::rc::Rc;

use ashlar_device::{Delay, DelayFilter, DeviceRef, MemDevice};
use ashlar_engine::{Array, Import, Volume, VolumeError};
use ashlar_rt::{Buf, MILLISECOND, Rt, SECOND, Slice};

use common::{devices, refs, small, volume};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// Bytes that tell where and when they were written.
fn pattern(block: u64, version: u64) -> Slice {
    let mut buf = Buf::zeroed(BLOCK as usize);
    for (chunk, at) in buf.chunks_mut(32).zip(0u64..) {
        chunk[..8].copy_from_slice(&(block + 1).to_le_bytes());
        chunk[8..16].copy_from_slice(&version.to_le_bytes());
        chunk[16..24].copy_from_slice(&at.to_le_bytes());
    }
    buf.freeze()
}

async fn put(v: &Volume, block: u64, version: u64) -> Result<(), VolumeError> {
    v.write(block * BLOCK, pattern(block, version), false).await
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
            let array = Array::create(&handle, refs(&disks), small(layout))
                .await
                .unwrap();
            let size = array.unpromised_bytes();
            array.volume_create("v", volume(size)).await.unwrap();
            let v = array.volume("v").unwrap();
            for block in 0..size / BLOCK {
                put(&v, block, 1).await.unwrap();
            }
            v.flush().await.unwrap();
            array.fail(0, false).await.unwrap();
            for version in 2..4 {
                for block in 0..size / BLOCK {
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
        let size = array.unpromised_bytes();
        array.volume_create("v", volume(size)).await.unwrap();
        let v = array.volume("v").unwrap();
        let blocks = size / BLOCK;
        for block in 0..blocks / 8 {
            put(&v, block, 1).await.unwrap();
        }
        v.flush().await.unwrap();
        array.fail(0, false).await.unwrap();
        array.wait_idle(&["reconstruct"]).await;
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
        let thin = ashlar_engine::VolumeOptions {
            thin: true,
            ..volume(512 * MIB)
        };
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
            if written.len() % 64 == 0 {
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
