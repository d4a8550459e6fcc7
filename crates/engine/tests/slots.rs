//! Slots of devices that do not keep what is written, and slots under a discard.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ops::Range;
use std::rc::Rc;

use ashlar_device::{
    Device, DeviceInfo, DeviceRef, Effect, Fault, IoFuture, MemDevice, OpKind, Rule,
};
use ashlar_engine::Array;
use ashlar_engine::status::DeviceState;
use ashlar_rt::{Buf, Rt, SECOND, Slice};

use crate::common::room::{all_thick, first_filtered, put};
use crate::common::{BLOCK, check, devices, fill, pattern, small, volume};

const MIB: u64 = 1 << 20;

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

/// Fills an array of volumes without a slot to spare, whose first device loses what is written to these eighths of it:
/// the device that was given up for it.
fn given_up_for_losing_writes(eighths: &Range<u64>) -> Option<u16> {
    let disks = devices(3, 8 * MIB);
    let (kept, filter) = first_filtered(&disks);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    let eighth = disks[0].info().size_bytes / 8;
    let area = eighth * eighths.start..eighth * eighths.end;
    let given_up = rt.block_on(async move {
        let (array, v, size) = all_thick(&handle, kept, small("ec2+1")).await;
        filter.add(Rule::within(OpKind::Write, area, Effect::Lose));
        for percent in (50..=100).step_by(10).chain([100; 4]) {
            let size = size * percent / 100 / BLOCK * BLOCK;
            fill(&v, size, BLOCK, percent, "while writes are lost").await;
            check(&v, size, percent, "while writes are lost").await;
            array.wait_idle(&[]).await;
        }
        let events = array.events(0);
        let given_up = events.iter().find(|e| e.text.contains("it is failed"));
        let given_up = given_up.and_then(|e| e.device);
        let state = array.status().await.devices[0].state;
        assert_eq!(state == DeviceState::Failed, given_up.is_some());
        given_up
    });
    rt.shutdown();
    given_up
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

/// Slots that did not keep what was written are used again where volumes need the room that they were promised: what
/// a device loses for a while takes none of it for good (#161).
#[test]
fn slots_that_did_not_keep_what_was_written_are_tried_again() {
    let disks = devices(3, 8 * MIB);
    let (kept, filter) = first_filtered(&disks);
    let rt = Rt::simulated(1);
    let handle = rt.clone();
    rt.block_on(async move {
        let (array, v, size) = all_thick(&handle, kept, small("ec2+1")).await;
        fill(&v, size, BLOCK, 1, "at first").await;
        let unkept = |array: &Array| {
            let events = array.events(0);
            events.iter().filter(|e| e.kind == "not-kept").count()
        };
        // Strips of many slots are overwritten behind the array's back, and what repairs them is lost.
        let bytes = disks[0].info().size_bytes;
        for part in 2..8 {
            let area = bytes / 8 * part..bytes / 8 * (part + 1);
            for at in area.clone().step_by(32 << 10) {
                disks[0].poke(at, &[0xA5; BLOCK as usize]);
            }
            filter.add(Rule::within(OpKind::Write, area, Effect::Lose));
            check(&v, size, 1, "while writes are lost").await;
            array.wait_idle(&[]).await;
            filter.clear();
        }
        assert!(unkept(&array) > 0);
        for version in 2..4 {
            fill(&v, size, BLOCK, version, "afterwards").await;
        }
        check(&v, size, 3, "afterwards").await;
    });
    rt.shutdown();
}

/// A device that never keeps what is written to a part of it takes room for good, also from slots that are tried again.
/// Where volumes were promised that room it is given up, as one that fails writes is, rather than clients be told that
/// there is no space (#180). Where they need none of it, it stays.
#[test]
fn a_device_whose_slots_keep_nothing_is_given_up_where_room_is_short() {
    let areas = [2..3, 2..4, 4..6];
    let given_up = areas.map(|eighths| given_up_for_losing_writes(&eighths));
    let known = given_up.iter().flatten().all(|device| *device == 0);
    assert!(known && given_up.contains(&Some(0)), "{given_up:?}");
}
