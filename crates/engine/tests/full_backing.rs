//! More devices refuse writes than an array can do without, as those do that share a file system or a pool which is
//! full: it stops, and with their backing mended nothing is lost.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ops::Range;
use std::rc::Rc;

use ashlar_device::{DeviceRef, Effect, Fault, FaultFilter, MemDevice, OpKind, Rule};
use ashlar_engine::Work;
use ashlar_engine::status::{ArrayState, Service};
use ashlar_engine::{Array, Error, Import};
use ashlar_rt::{Rt, SECOND};

use crate::common::{BLOCK, check, devices, fill, pattern, refs, run, small, volume};

const MIB: u64 = 1 << 20;
/// Bytes of a device.
const SIZE: u64 = 16 * MIB;
/// Where its slots lie: a full sparse backing takes superblocks, roots and the journal, which have their place.
const SLOTS: Range<u64> = MIB..SIZE - (64 << 10);
const VOLUME: u64 = 4 * MIB;

fn filtered(disks: &[Rc<MemDevice>]) -> (Vec<Rc<FaultFilter>>, Vec<DeviceRef>) {
    let filters: Vec<_> = refs(disks).into_iter().map(FaultFilter::new).collect();
    let seen = filters.iter().map(|f| f.clone() as DeviceRef).collect();
    (filters, seen)
}

/// The array made and filled; then all its devices refuse writes to `range`, and writes go on until one fails, the
/// number of which is returned: so many blocks of version 2 are durable.
fn until_writes_are_refused(
    disks: &[Rc<MemDevice>],
    layout: &str,
    range: &Range<u64>,
    fault: Fault,
) -> u64 {
    let (filters, seen) = filtered(disks);
    let rt = Rt::simulated(7);
    let (handle, options, range) = (rt.clone(), small(layout), range.clone());
    let what = layout.to_string();
    let durable = rt.block_on(async move {
        let array = Array::create(&handle, seen, options).await.unwrap();
        array.volume_create("v", volume(VOLUME)).await.unwrap();
        let v = array.volume("v").unwrap();
        fill(&v, VOLUME, 64 << 10, 1, &what).await;
        handle.sleep(5 * SECOND).await;
        for filter in &filters {
            filter.add(Rule::within(
                OpKind::Write,
                range.clone(),
                Effect::Fail(fault),
            ));
        }
        let mut durable = 0;
        let refused = loop {
            let write = v.write(durable * BLOCK, pattern(durable, 2), true);
            match handle.timeout(300 * SECOND, write).await {
                Some(Ok(())) => durable += 1,
                other => break other,
            }
        };
        assert!(matches!(refused, Some(Err(_))), "{what}: not answered");
        assert_eq!(array.status().await.service, Service::Stopped, "{what}");
        durable
    });
    rt.shutdown();
    durable
}

#[test]
fn an_array_whose_devices_all_refuse_writes_stops_and_loses_nothing() {
    for (layout, count) in [
        ("ec4+2", 12),
        ("ec4+2", 6),
        ("ec2+1", 30),
        ("raid10", 8),
        ("raid0", 4),
    ] {
        for (range, fault) in [
            (SLOTS, Fault::NoSpace),
            (0..u64::MAX, Fault::NoSpace),
            (0..u64::MAX, Fault::ReadOnly),
        ] {
            let what = format!("{layout} of {count}, {fault:?} in {range:?}");
            let disks = devices(count, SIZE);
            let durable = until_writes_are_refused(&disks, layout, &range, fault);

            // Imported while they still do: refused, or it stops again; nothing is given up by that.
            let (filters, seen) = filtered(&disks);
            for filter in &filters {
                filter.add(Rule::within(
                    OpKind::Write,
                    range.clone(),
                    Effect::Fail(fault),
                ));
            }
            let rt = Rt::simulated(8);
            let handle = rt.clone();
            rt.block_on(async move {
                if let Ok(array) = Array::import(&handle, seen, Import::default()).await {
                    handle.sleep(60 * SECOND).await;
                    drop(array);
                }
            });
            rt.shutdown();

            // Read-only it serves everything all the same, and with its backing mended it goes on.
            for read_only in [true, false] {
                let rt = Rt::simulated(9);
                let (handle, all, what) = (rt.clone(), refs(&disks), what.clone());
                rt.block_on(async move {
                    let options = Import {
                        read_only,
                        ..Import::default()
                    };
                    let array = Array::import(&handle, all, options).await;
                    let array = array.unwrap_or_else(|e| panic!("{what}: {e}"));
                    let v = array.volume("v").unwrap();
                    check(&v, durable * BLOCK, 2, &what).await;
                    // The one that was refused may have happened or not; all behind it did not.
                    for block in durable + 1..VOLUME / BLOCK {
                        let read = v.read(block * BLOCK, BLOCK as usize).await;
                        assert!(
                            *read.unwrap() == *pattern(block, 1),
                            "{what}: block {block}"
                        );
                    }
                    if !read_only {
                        v.write(0, run(0, 16, 3), true).await.unwrap();
                        array.wait_idle(&[Work::Rebuild]).await;
                        check(&v, 16 * BLOCK, 3, &what).await;
                    }
                });
                rt.shutdown();
            }
        }
    }
}

/// By the operator's word it goes on without a device that refuses writes: what only that one had is lost.
#[test]
fn the_operator_may_give_up_what_refuses_writes() {
    let disks = devices(4, SIZE);
    let rt = Rt::simulated(3);
    let (handle, all) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::create(&handle, all, small("raid0")).await.unwrap();
        array.volume_create("v", volume(VOLUME)).await.unwrap();
        let v = array.volume("v").unwrap();
        fill(&v, VOLUME, 64 << 10, 1, "before").await;
        array.export().await.unwrap();
    });
    rt.shutdown();
    for degraded in [false, true] {
        let (filters, seen) = filtered(&disks);
        filters[2].add(Rule::always(OpKind::Write, Effect::Fail(Fault::ReadOnly)));
        let rt = Rt::simulated(4);
        let handle = rt.clone();
        rt.block_on(async move {
            let options = Import {
                degraded,
                ..Import::default()
            };
            let found = Array::import(&handle, seen, options).await;
            if degraded {
                let array = found.unwrap();
                assert_eq!(array.status().await.state, ArrayState::Failed);
                let v = array.volume("v").unwrap();
                v.write(0, run(0, 16, 2), true).await.unwrap();
                check(&v, 16 * BLOCK, 2, "without device 2").await;
            } else {
                let Err(Error::Stopped(why)) = found else {
                    panic!("{found:?}");
                };
                assert!(
                    why.contains("2 (mem2)") && why.contains("--degraded"),
                    "{why}"
                );
            }
        });
        rt.shutdown();
    }
}
