//! A checkpoint looks at no settled segment: its time does not grow with their number.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;
use std::time::{Duration, Instant};

use ashlar_device::{DeviceRef, MemDevice};
use ashlar_format::slot::{SegmentKind, SlotEntry};
use ashlar_format::{BLOCK, SegmentGeometry};
use ashlar_rt::{Buf, Rt};
use ashlar_space::floors::Class;
use ashlar_space::topology::Area;

use crate::home::Home;
use crate::segment::{Column, Segment};
use crate::status::ArrayState;
use crate::{Array, Create, Import, Settings, VolumeOptions};

const SLOT_BYTES: u64 = 64 << 10;
const STRIP_BYTES: u32 = 4096;

/// Sealed segments of live data on three quarters of all slots; how many.
fn fill(home: &Rc<Home>, slots: u32) -> u64 {
    let topology = home.topology();
    let template = home.plan().of(Area::Group(0));
    let (k, m, code) = (template.k, template.m, home.superblock.borrow().code);
    let geometry = SegmentGeometry {
        k,
        m,
        strip_blocks: STRIP_BYTES / 4096,
        slot_blocks: home.core.slot_blocks,
    };
    let all = u64::from(slots) * topology.members().len() as u64 / u64::from(template.laid());
    let wanted = all * 3 / 4;
    for _ in 0..wanted {
        let devices = home
            .space
            .ledger()
            .take_segment(Class::Client, Area::Group(0), &[])
            .expect("there is room");
        let number = home.root.take_segment_number();
        let mut columns = Vec::new();
        for (device, column) in devices.into_iter().zip(0u16..) {
            let entry = SlotEntry {
                segment: number,
                column,
                version: 1,
                k,
                m,
                code,
                kind: SegmentKind::Data,
                strip_blocks: geometry.strip_blocks,
            };
            let slot = home.core.member(device).slots.take(entry).expect("free");
            columns.push(Column {
                device,
                slot,
                version: 1,
            });
        }
        let record = home.liveness.take_record(number);
        let kind = SegmentKind::Data;
        let segment = Segment::create(number, kind, geometry, code, columns, record);
        for block in 0..geometry.data_blocks() {
            segment.live.borrow_mut().set(block);
        }
        segment.next_stripe.set(geometry.stripes());
        segment.recorded.set(geometry.stripes());
        segment.sealed.set(true);
        home.core.add_segment(&segment);
        home.liveness.mark_header(&segment);
    }
    wanted
}

/// Devices in memory, of so many slots each.
fn devices(count: usize, slots: u32) -> Vec<DeviceRef> {
    let size = u64::from(slots) * SLOT_BYTES + (64 << 20);
    let device = |d| Rc::new(MemDevice::new(&format!("mem{d}"), size)) as DeviceRef;
    (0..count).map(device).collect()
}

fn create(layout: &str) -> Create {
    Create {
        name: "tank".into(),
        layout: layout.parse().unwrap(),
        strip_bytes: Some(STRIP_BYTES),
        slot_bytes: Some(SLOT_BYTES),
        spare: 0,
        domains: Vec::new(),
        settings: Settings::default(),
    }
}

/// The median time of a merge of a few random writes, on an array with so many slots a device; and its segments. With a
/// device gone, all of them lack a column that no device can take.
fn merge_takes(slots: u32, gone: bool) -> (Duration, u64) {
    let disks = devices(3, slots);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    let taken = rt.block_on(async move {
        let array = Array::create(&handle, disks, create("ec2+1"))
            .await
            .unwrap();
        let blocks = 2048u64;
        let options = VolumeOptions {
            size_bytes: blocks * BLOCK as u64,
            ..VolumeOptions::default()
        };
        array.volume_create("v", options).await.unwrap();
        let v = array.volume("v").unwrap();
        let home = array.0.home.clone();
        let segments = fill(&home, slots);
        home.merge().await;
        if gone {
            array.set("reconstruct.narrow", "never").await.unwrap();
            array.fail(0, false).await.unwrap();
            array.wait_idle(&[]).await;
            assert_eq!(home.state(), ArrayState::Critical);
        }
        home.merge().await;
        let mut times = Vec::new();
        for round in 0..41u64 {
            for n in 0..16u64 {
                let block = (round * 16 + n) * 1021 % blocks;
                let data = Buf::zeroed(BLOCK).freeze();
                v.write(block * BLOCK as u64, data, false).await.unwrap();
            }
            let begun = Instant::now();
            home.merge().await;
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        home.halt("the test is done");
        (times[times.len() / 2], segments)
    });
    rt.shutdown();
    taken
}

#[test]
fn a_checkpoint_takes_no_longer_with_more_segments() {
    for gone in [false, true] {
        let (least, few) = merge_takes(1_000, gone);
        for slots in [16_384, 262_144] {
            let (time, many) = merge_takes(slots, gone);
            println!("gone: {gone}; {few} segments: {least:?} a merge; {many}: {time:?}");
            assert!(time < 3 * least, "{few}: {least:?}, {many}: {time:?}");
        }
    }
}

/// All that an array held is there after an export and an import. How long each takes is printed: with `ASHLAR_LARGE` set
/// and `--nocapture` for 250 devices and 2.6 million slots, three quarters of them in use. Devices are memory, so it is
/// the processor's time.
#[test]
fn a_large_array_is_created_and_imported() {
    let (count, slots) = match std::env::var_os("ASHLAR_LARGE") {
        Some(_) => (250, 10_400),
        None => (25, 1_000),
    };
    let disks = devices(count, slots);
    let (before, left) = (disks.clone(), disks.clone());
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    let filled = rt.block_on(async move {
        let begun = Instant::now();
        let array = Array::create(&handle, before, create("ec8+2"))
            .await
            .unwrap();
        println!("create: {:?}", begun.elapsed());
        let home = array.0.home.clone();
        let segments = fill(&home, slots);
        let begun = Instant::now();
        array.export().await.unwrap();
        println!("{segments} segments; export: {:?}", begun.elapsed());
        segments
    });
    rt.shutdown();
    let rt = Rt::simulated(2);
    let handle = rt.clone();
    rt.block_on(async move {
        let begun = Instant::now();
        let array = Array::import(&handle, left, Import::default())
            .await
            .unwrap();
        println!("import: {:?}", begun.elapsed());
        let home = &array.0.home;
        let held = home.core.segments.borrow();
        let data = held.values().filter(|s| s.kind == SegmentKind::Data);
        assert_eq!(data.count() as u64, filled);
        drop(held);
        home.halt("it is done");
    });
    rt.shutdown();
}
