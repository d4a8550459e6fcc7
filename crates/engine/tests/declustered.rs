//! A declustered array of 41 devices, and the share of its data that losses touch.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_engine::status::ArrayStatus;
use ashlar_engine::{Array, Create, Work};
use ashlar_rt::Rt;

use crate::common::{BLOCK, devices, fill, refs, small, thin_volume};

const MIB: u64 = 1 << 20;

/// Percent of the live bytes whose redundancy is less than this.
fn below(status: &ArrayStatus, redundancy: u16) -> f64 {
    let all: u64 = status.exposure.iter().map(|e| e.bytes).sum();
    let less = status.exposure.iter().filter(|e| e.redundancy < redundancy);
    let less: u64 = less.map(|e| e.bytes).sum();
    less as f64 * 100.0 / all as f64
}

/// Losses of fresh arrays of `grid:41(8+2+2)`, 60 % full, that nothing is rebuilt of: with one lost 24.4 % of the data
/// have lost a column, with two 5.5 % have lost two, within half a point (combinations: 10/41, times 9/40). With three
/// 1.1 % have lost three (times 8/39): of these the blocks on the lost columns are gone, three tenths, and no others. They
/// are those that `status` lists.
#[test]
fn losses_touch_as_much_as_the_combinations_say() {
    for lost in [[3, 20, 33], [0, 1, 2], [40, 11, 7]] {
        let rt = Rt::simulated(7);
        let handle = rt.clone();
        rt.block_on(async move {
            let disks = devices(41, 64 * MIB);
            let create = Create {
                slot_bytes: Some(32 << 10),
                ..small("grid:41(8+2+2)")
            };
            let array = Array::create(&handle, refs(&disks), create).await.unwrap();
            let capacity = array.status().await.capacity;
            let size = (capacity.usable_bytes * 6 / 10).next_multiple_of(MIB);
            array.volume_create("v", thin_volume(size)).await.unwrap();
            let v = array.volume("v").unwrap();
            fill(&v, size, 256 << 10, 1, "filled").await;
            array.pause(Work::Rebuild, true).unwrap();
            array.pause(Work::Rebalance, true).unwrap();

            let mut shares = Vec::new();
            for (device, redundancy) in lost.into_iter().zip([2, 1]) {
                array.fail(device, false).await.unwrap();
                shares.push(below(&array.status().await, redundancy));
            }
            array.fail(lost[2], true).await.unwrap();
            let mut gone = 0;
            for block in 0..size / BLOCK {
                gone += u64::from(v.read(block * BLOCK, BLOCK as usize).await.is_err());
            }
            shares.push((gone * BLOCK) as f64 * 100.0 / size as f64);
            let status = array.status().await;
            let listed: u64 = status.lost.iter().map(|range| range.length_bytes).sum();
            for (share, expected) in shares.iter().zip([24.39, 5.49, 0.338]) {
                assert!((share - expected).abs() <= 0.5, "{lost:?}: {shares:?}");
            }
            assert!(shares[2] > 0.1, "{lost:?}: {shares:?}");
            assert_eq!(listed, gone * BLOCK, "{lost:?}");
        });
        rt.shutdown();
    }
}
