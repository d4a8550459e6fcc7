//! A read-only import writes nothing: not after a crash, not with devices missing, not in the background.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;

use ashlar_device::{DeviceRef, Effect, Fault, FaultFilter, MemDevice, OpKind, Rule};
use ashlar_engine::{Array, Error, Import, VolumeError};
use ashlar_rt::{Buf, Rt, SECOND, Slice};

use crate::common::{devices, image, refs, small, volume};

const MIB: u64 = 1 << 20;
const BYTES: u64 = 16 * MIB;
const BLOCK: usize = 4096;
const BLOCKS: u64 = 150;

fn pattern(block: u64, round: u64) -> Slice {
    let mut buf = Buf::zeroed(BLOCK);
    for (chunk, at) in buf.chunks_mut(16).zip(0u64..) {
        chunk[..8].copy_from_slice(&(block + 1).to_le_bytes());
        chunk[8..].copy_from_slice(&(at << 8 ^ round).to_le_bytes());
    }
    buf.freeze()
}

/// An array that crashed with blocks in stripes, in the journal and in the map.
fn crashed() -> Vec<Rc<MemDevice>> {
    let disks: Vec<_> = devices(4, BYTES);
    let rt = Rt::simulated(1);
    let (handle, devices) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::create(&handle, devices, small("ec2+1"))
            .await
            .unwrap();
        array.volume_create("v", volume(MIB)).await.unwrap();
        let v = array.volume("v").unwrap();
        for (round, step) in [(1, 1), (2, 7)] {
            for block in (0..BLOCKS).step_by(step) {
                let durable = round == 2;
                let offset = block * BLOCK as u64;
                v.write(offset, pattern(block, round), durable)
                    .await
                    .unwrap();
            }
            v.flush().await.unwrap();
        }
    });
    rt.shutdown();
    disks
}

fn content(disks: &[Rc<MemDevice>]) -> Vec<Vec<u8>> {
    disks.iter().map(|disk| image(disk)).collect()
}

async fn check(array: &Array) {
    let v = array.volume("v").unwrap();
    for block in 0..BLOCKS {
        let bytes = v.read(block * BLOCK as u64, BLOCK).await.unwrap();
        let round = if block % 7 == 0 { 2 } else { 1 };
        assert_eq!(&*bytes, &*pattern(block, round), "block {block}");
    }
}

#[test]
fn a_read_only_import_changes_no_device() {
    let disks = crashed();
    let before = content(&disks);
    for missing in [None, Some(2)] {
        for exported in [false, true] {
            let rt = Rt::simulated(2);
            // Whatever would write would also fail.
            let devices: Vec<DeviceRef> = disks
                .iter()
                .enumerate()
                .filter(|(index, _)| Some(*index) != missing)
                .map(|(_, disk)| {
                    let filter = FaultFilter::new(disk.clone() as DeviceRef);
                    for op in [OpKind::Write, OpKind::Flush, OpKind::Discard] {
                        filter.add(Rule::always(op, Effect::Fail(Fault::ReadOnly)));
                    }
                    filter as DeviceRef
                })
                .collect();
            let handle = rt.clone();
            rt.block_on(async move {
                let options = Import {
                    read_only: true,
                    ..Import::default()
                };
                let array = Array::import(&handle, devices, options).await.unwrap();
                check(&array).await;
                let v = array.volume("v").unwrap();
                let refused = v.write(0, pattern(0, 9), true).await;
                assert!(matches!(refused, Err(VolumeError::ReadOnly)), "{refused:?}");
                let refused = array.volume_destroy("v").await;
                assert!(matches!(refused, Err(Error::ReadOnly)), "{refused:?}");
                let refused = array.fail(0, false).await;
                assert!(matches!(refused, Err(Error::ReadOnly)), "{refused:?}");
                handle.sleep(120 * SECOND).await;
                array.wait_idle(&[]).await;
                check(&array).await;
                let status = array.status().await;
                assert!(status.devices.iter().all(|d| d.errors.write == 0));
                if exported {
                    array.export().await.unwrap();
                }
            });
            rt.shutdown();
            let after = content(&disks);
            assert!(after == before, "a device changed, without {missing:?}");
        }
    }
    // The array is as it was left: recovery is still to be done, by an import that may write.
    let rt = Rt::simulated(3);
    let (handle, devices) = (rt.clone(), refs(&disks));
    rt.block_on(async move {
        let array = Array::import(&handle, devices, Import::default())
            .await
            .unwrap();
        check(&array).await;
    });
    rt.shutdown();
    assert!(content(&disks) != before);
}
