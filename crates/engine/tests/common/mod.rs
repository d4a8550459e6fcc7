//! What the engine's tests share: devices in memory, and small arrays on them.
#![allow(dead_code, clippy::unwrap_used, reason = "no test uses all of it")]

pub mod room;

use std::rc::Rc;

use ashlar_device::{Device, DeviceRef, MemDevice};
use ashlar_engine::{Array, Create, Settings, Volume, VolumeOptions};
use ashlar_format::DeviceGeometry;
use ashlar_format::superblock::Superblock;
use ashlar_rt::{Buf, Rt, Slice};

/// Polls after which something that should end counts as endless.
const ENDLESS: u64 = 3_000_000;

/// Bytes of a block.
pub const BLOCK: u64 = 4096;

/// `count` devices of `bytes` each.
pub fn devices(count: usize, bytes: u64) -> Vec<Rc<MemDevice>> {
    (0..count)
        .map(|i| Rc::new(MemDevice::new(&format!("mem{i}"), bytes)))
        .collect()
}

/// All bytes of a device.
pub fn image(disk: &MemDevice) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(disk.info().size_bytes).unwrap()];
    disk.peek(0, &mut bytes);
    bytes
}

/// The same devices, as an array takes them.
pub fn refs(devices: &[Rc<MemDevice>]) -> Vec<DeviceRef> {
    devices.iter().map(|d| d.clone() as DeviceRef).collect()
}

/// An array with strips and slots so small that much happens on little space.
pub fn small(layout: &str) -> Create {
    Create {
        name: "tank".into(),
        layout: layout.parse().unwrap(),
        strip_bytes: Some(4096),
        slot_bytes: Some(64 << 10),
        spare: 0,
        domains: Vec::new(),
        settings: Settings::default(),
    }
}

/// A volume of a size, all else by default.
pub fn volume(size_bytes: u64) -> VolumeOptions {
    VolumeOptions {
        size_bytes,
        ..VolumeOptions::default()
    }
}

/// A thin one.
pub fn thin_volume(size_bytes: u64) -> VolumeOptions {
    VolumeOptions {
        thin: true,
        ..volume(size_bytes)
    }
}

/// Bytes that tell where and when they were written.
pub fn pattern(block: u64, version: u64) -> Slice {
    let mut buf = Buf::zeroed(BLOCK as usize);
    for (chunk, at) in buf.chunks_mut(32).zip(0u64..) {
        chunk[..8].copy_from_slice(&(block + 1).to_le_bytes());
        chunk[8..16].copy_from_slice(&version.to_le_bytes());
        chunk[16..24].copy_from_slice(&at.to_le_bytes());
    }
    buf.freeze()
}

/// A run of such blocks.
pub fn run(first: u64, count: u64, version: u64) -> Slice {
    let mut buf = Buf::zeroed((count * BLOCK) as usize);
    for (block, bytes) in (first..).zip(buf.chunks_mut(BLOCK as usize)) {
        bytes.copy_from_slice(&pattern(block, version));
    }
    buf.freeze()
}

/// Writes the first `size` bytes of a volume, `unit` at a time.
pub async fn fill(v: &Volume, size: u64, unit: u64, version: u64, what: &str) {
    for first in (0..size / BLOCK).step_by((unit / BLOCK) as usize) {
        let data = run(first, unit / BLOCK, version);
        let done = v.write(first * BLOCK, data, false).await;
        assert!(
            done.is_ok(),
            "{what}: block {first}, version {version}: {done:?}"
        );
    }
    v.flush().await.unwrap();
}

/// Reads the first `size` bytes of a volume, block by block.
pub async fn check(v: &Volume, size: u64, version: u64, what: &str) {
    for block in 0..size / BLOCK {
        let read = v.read(block * BLOCK, BLOCK as usize).await;
        let read = read.unwrap_or_else(|e| panic!("{what}: block {block}: {e}"));
        assert!(*read == *pattern(block, version), "{what}: block {block}");
    }
}

/// All devices but some, as an array takes them.
pub fn without(disks: &[Rc<MemDevice>], gone: &[usize]) -> Vec<DeviceRef> {
    let here = disks.iter().enumerate().filter(|(i, _)| !gone.contains(i));
    refs(&here.map(|(_, d)| d.clone()).collect::<Vec<_>>())
}

/// Where the regions of a device lie.
pub fn geometry(disk: &MemDevice) -> DeviceGeometry {
    let mut bytes = vec![0; 4096];
    disk.peek(0, &mut bytes);
    bytes.resize(Superblock::encoded_bytes(&bytes).unwrap(), 0);
    disk.peek(0, &mut bytes);
    Superblock::decode(&bytes).unwrap().geometry
}

/// Both copies of a device's slot table.
pub fn tables(disk: &MemDevice) -> [std::ops::Range<u64>; 2] {
    let geometry = geometry(disk);
    let end = geometry.table_pages();
    [0, 1].map(|copy| geometry.page_offset(0, copy)..geometry.page_offset(end, copy))
}

/// Devices with the content of these.
pub fn copies(disks: &[Rc<MemDevice>]) -> Vec<Rc<MemDevice>> {
    let copy = |(i, disk): (usize, &Rc<MemDevice>)| {
        let content = image(disk);
        let new = MemDevice::new(&format!("mem{i}"), content.len() as u64);
        new.poke(0, &content);
        Rc::new(new)
    };
    disks.iter().enumerate().map(copy).collect()
}

/// Runs a story to its end, then the power goes.
pub fn story<T: 'static>(run: impl AsyncFnOnce(Rt) -> T + 'static) -> T {
    let rt = Rt::simulated(7);
    let handle = rt.clone();
    let done = rt.run_for(ENDLESS, async move { run(handle).await });
    rt.shutdown();
    done.expect("it ends")
}

/// Bytes of the volume of [`create`].
pub const SIZE: u64 = 2 << 20;
/// Bytes of a device that [`create`] is mostly given.
pub const DISK: u64 = 8 << 20;

/// An array with a volume `v`, all of which is written in version 1.
pub async fn create(rt: &Rt, disks: &[Rc<MemDevice>], layout: &str) -> Array {
    let array = Array::create(rt, refs(disks), small(layout)).await.unwrap();
    array.volume_create("v", volume(SIZE)).await.unwrap();
    write(&array, 1).await;
    array
}

/// Writes all of the volume of [`create`].
pub async fn write(array: &Array, version: u64) {
    let v = array.volume("v").unwrap();
    fill(&v, SIZE, 16 << 10, version, "written").await;
}

/// Reads all of it.
pub async fn read(array: &Array, version: u64, what: &str) {
    check(&array.volume("v").unwrap(), SIZE, version, what).await;
}
