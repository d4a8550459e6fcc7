//! Arrays whose room is short, and what is written to them.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use ashlar_device::{Delay, DelayFilter, Device, DeviceRef, FaultFilter, MemDevice};
use ashlar_engine::status::ArrayState;
use ashlar_engine::{Array, Create, Import, Volume, VolumeError};
use ashlar_rt::Rt;

use super::{BLOCK, check, image, pattern, refs, small, thin_volume, volume, without};

const MIB: u64 = 1 << 20;

pub async fn put(v: &Volume, block: u64, version: u64) -> Result<(), VolumeError> {
    v.write(block * BLOCK, pattern(block, version), false).await
}

/// A new array, and a thick volume of so many blocks that was promised all the room there is.
pub async fn all_promised(rt: &Rt, disks: &[Rc<MemDevice>], layout: &str) -> (Array, Volume, u64) {
    let array = Array::create(rt, refs(disks), small(layout)).await.unwrap();
    let size = array.room_for(4096);
    array.volume_create("v", volume(size)).await.unwrap();
    let v = array.volume("v").unwrap();
    (array, v, size / BLOCK)
}

/// The same devices, with writes and flushes that take so long.
pub fn slow(rt: &Rt, disks: &[Rc<MemDevice>], write: u64) -> Vec<DeviceRef> {
    let delay = Delay {
        write,
        flush: write,
        ..Delay::default()
    };
    let filter =
        |d: &Rc<MemDevice>| DelayFilter::new(rt, d.clone() as DeviceRef, delay) as DeviceRef;
    disks.iter().map(filter).collect()
}

/// Polls `work` so many times, and then gives it up.
pub async fn give_up_after(polls: u64, work: impl Future) {
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

/// The power goes, and the array starts without some devices: on copies, so that the next start finds the same.
pub fn starts_without(
    disks: &[Rc<MemDevice>],
    gone: &[usize],
    size: u64,
    version: u64,
    what: &str,
) {
    let rt = Rt::simulated(7);
    let handle = rt.clone();
    let copy = |disk: &Rc<MemDevice>| {
        let copy = MemDevice::new(&disk.info().name, disk.info().size_bytes);
        copy.poke(0, &image(disk));
        Rc::new(copy)
    };
    let copies: Vec<Rc<MemDevice>> = disks.iter().map(copy).collect();
    let (kept, what) = (without(&copies, gone), what.to_string());
    // Also where half of them or more are gone.
    let degraded = Import {
        degraded: true,
        ..Import::default()
    };
    rt.block_on(async move {
        let array = Array::import(&handle, kept, degraded).await;
        let array = array.unwrap_or_else(|error| panic!("{what}: {error}"));
        check(&array.volume("v").unwrap(), size, version, &what).await;
    });
    rt.shutdown();
}

/// Writes every block of `v` in an order that leaps about, many at a time.
pub async fn scatter(rt: &Rt, v: &Volume, size: u64, version: u64, what: &str) {
    let blocks = size / BLOCK;
    let leap = (0..)
        .map(|n| 7919 + n)
        .find(|n| !blocks.is_multiple_of(*n))
        .unwrap();
    let order: Vec<u64> = (0..blocks).map(|n| n * leap % blocks).collect();
    for some in order.chunks(512) {
        let write = |block: u64| {
            let v = v.clone();
            rt.spawn(async move { v.write(block * BLOCK, pattern(block, version), false).await })
        };
        let under_way: Vec<_> = some.iter().map(|block| write(*block)).collect();
        for write in under_way {
            let done = write.await;
            assert!(done.is_ok(), "{what}, version {version}: {done:?}");
        }
    }
}

/// An array with a thick volume of so many percent of its space, and that.
pub async fn mostly_thick(
    rt: &Rt,
    disks: Vec<DeviceRef>,
    create: Create,
    percent: u64,
) -> (Array, Volume, u64) {
    let array = Array::create(rt, disks, create).await.unwrap();
    let size = array.room_for(4096) / 100 * percent / BLOCK * BLOCK;
    array.volume_create("v", volume(size)).await.unwrap();
    let v = array.volume("v").unwrap();
    (array, v, size)
}

/// Devices of so many MiB each.
pub fn devices_of(sizes: &[u64]) -> Vec<Rc<MemDevice>> {
    let sizes = sizes.iter().enumerate();
    let made = sizes.map(|(i, size)| Rc::new(MemDevice::new(&format!("mem{i}"), size * MIB)));
    made.collect()
}

/// An array is optimal, unless volumes were promised more than what is left of it holds.
pub async fn assert_whole(array: &Array, what: &str) {
    let status = array.status().await;
    let whole = status.state == ArrayState::Optimal || status.capacity.overpromised;
    assert!(whole, "{what}: {status:?}");
}

/// An array with a thin volume of all its space, and that.
pub async fn all_thin(rt: &Rt, disks: Vec<DeviceRef>, create: Create) -> (Array, Volume, u64) {
    let array = Array::create(rt, disks, create).await.unwrap();
    let size = array.room_for(4096) / BLOCK * BLOCK;
    let options = thin_volume(size);
    array.volume_create("v", options).await.unwrap();
    let v = array.volume("v").unwrap();
    (array, v, size)
}

/// An array that keeps as little as can be for cleaning, with a thick volume of all its space, and that.
pub async fn all_thick(rt: &Rt, disks: Vec<DeviceRef>, create: Create) -> (Array, Volume, u64) {
    let array = Array::create(rt, disks, create).await.unwrap();
    array.set("clean.reserve", "2%").await.unwrap();
    let size = array.room_for(4096) / BLOCK * BLOCK;
    array.volume_create("v", volume(size)).await.unwrap();
    let v = array.volume("v").unwrap();
    (array, v, size)
}

/// These devices, as an array takes them, and what makes the first one fail.
pub fn first_filtered(disks: &[Rc<MemDevice>]) -> (Vec<DeviceRef>, Rc<FaultFilter>) {
    let filter = FaultFilter::new(disks[0].clone() as DeviceRef);
    let mut kept = refs(disks);
    kept[0] = filter.clone();
    (kept, filter)
}

/// The `n`th address that is written far apart.
pub fn far_apart(n: u64) -> u64 {
    n * 7919 % (1 << 18) * BLOCK
}
