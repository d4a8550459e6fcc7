//! Making and destroying volumes.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::cell::Cell;
use std::rc::Rc;

use ashlar_device::{Device, DeviceInfo, Fault, IoFuture, MemDevice};
use ashlar_engine::Array;
use ashlar_rt::{Buf, MILLISECOND, Rt, SECOND, Slice};

use common::room::{put, slow};
use common::{devices, refs, small, thin_volume, volume};

const MIB: u64 = 1 << 20;

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

/// A large volume is destroyed in steps, each a root: what one changes is in memory until it is written, and would grow
/// with the volume, again at every import, where there is not so much.
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
        handle.sleep(40 * SECOND).await; // all of it is merged
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
