//! Arrays that the engine made, damaged by hand: what the verifier must find, and what it must survive.
//!
//! **Invariants**: an array is made once for each layout and copied for each test; a forged structure has
//! right seals and digests, so that only what it says is wrong.
#![allow(clippy::unwrap_used, reason = "tests")]

mod codes;
mod damage;
mod forge;
mod noise;

use std::rc::Rc;

use ashlar_device::{Device, DeviceRef, MemDevice};
use ashlar_engine::Work;
use ashlar_engine::status::ArrayState;
use ashlar_engine::{Array, Create, DigestKind, Import, Settings, VolumeOptions};
use ashlar_rt::{Buf, MILLISECOND, Rt, Slice};

use crate::{Kind, Report, Severity, Source, verify};

/// Bytes of the smallest device; others are larger.
const DEVICE: u64 = 6 << 20;

/// What is on the devices of an array.
#[derive(Clone)]
pub(crate) struct Images(pub(crate) Vec<Vec<u8>>);

impl Images {
    fn of(disks: &[Rc<MemDevice>]) -> Images {
        let image = |disk: &Rc<MemDevice>| {
            let mut bytes = vec![0; usize::try_from(disk.info().size_bytes).unwrap()];
            disk.peek(0, &mut bytes);
            bytes
        };
        Images(disks.iter().map(image).collect())
    }

    pub(crate) fn verify(&self) -> Report {
        let sources: Vec<&dyn Source> = self.0.iter().map(|d| d as &dyn Source).collect();
        verify(&sources)
    }

    /// As [`Images::verify`]; and only findings of these kinds and notes may be there.
    pub(crate) fn expect(&self, kinds: &[Kind]) -> Report {
        let report = self.verify();
        for kind in kinds {
            assert!(report.count_of(*kind) > 0, "no {kind:?} in\n{report}");
        }
        let other = report.totals.keys();
        let other: Vec<&Kind> = other
            .filter(|k| k.severity() > Severity::Note && !kinds.contains(k))
            .collect();
        assert!(other.is_empty(), "also {other:?} in\n{report}");
        report
    }
}

fn pattern(seed: u64, bytes: usize) -> Slice {
    let mut buf = Buf::zeroed(bytes);
    let mut state = seed;
    for chunk in buf.chunks_mut(8) {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    buf.freeze()
}

/// How an array ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Exported,
    /// Exported, a session earlier.
    Earlier,
    Crashed,
}

/// An array of a layout with two volumes, written to in several sessions.
pub(crate) fn array(layout: &str, count: usize, end: End) -> Images {
    let disks: Vec<Rc<MemDevice>> = (0..count)
        .map(|i| (i, DEVICE + (i as u64 % 3) * (200 << 10)))
        .map(|(i, bytes)| Rc::new(MemDevice::new(&format!("mem{i}"), bytes)))
        .collect();
    let refs = || -> Vec<DeviceRef> { disks.iter().map(|d| d.clone() as DeviceRef).collect() };
    let create = Create {
        name: "tank".into(),
        layout: layout.parse().unwrap(),
        strip_bytes: Some(8192),
        slot_bytes: Some(64 << 10),
        spare: 0,
        domains: Vec::new(),
        settings: Settings::default(),
    };
    let sessions = if end == End::Earlier { 2 } else { 3 };
    for session in 0..sessions {
        let rt = Rt::simulated(session + 1);
        let (handle, refs, create) = (rt.clone(), refs(), create.clone());
        rt.block_on(async move {
            let array = if session == 0 {
                let array = Array::create(&handle, refs, create).await.unwrap();
                let plain = VolumeOptions {
                    size_bytes: 1 << 20,
                    ..VolumeOptions::default()
                };
                array.volume_create("plain", plain.clone()).await.unwrap();
                let pieces = VolumeOptions {
                    block_bytes: 8192,
                    digest: DigestKind::Xxh3,
                    ..plain
                };
                array.volume_create("pieces", pieces).await.unwrap();
                array
            } else {
                Array::import(&handle, refs, Import::default())
                    .await
                    .unwrap()
            };
            for (name, at) in [("plain", 12_345), ("pieces", 65_536)] {
                let volume = array.volume(name).unwrap();
                let data = pattern(session + at, 200_000);
                volume
                    .write(at + session * 70_000, data, false)
                    .await
                    .unwrap();
                volume.flush().await.unwrap();
                volume
                    .write(800_000, pattern(session, 4096), true)
                    .await
                    .unwrap();
                volume.trim(100_000, 30_000, true).await.unwrap();
            }
            if session < 2 || end == End::Exported {
                array.export().await.unwrap();
            }
        });
        rt.shutdown();
    }
    Images::of(&disks)
}

#[test]
fn arrays_of_every_layout_are_well() {
    for (layout, count) in [
        ("ec4+2", 6),
        ("ec4+2", 8),
        ("ec8+3", 11),
        ("raid0", 3),
        ("raid1", 2),
        ("raid1:3", 5),
        ("ec1+3", 4),
        ("raid10", 4),
        ("raid5", 4),
        ("raid50:2", 6),
        ("jbod", 3),
        ("draid2:3d:8c:1s", 8),
        ("grid:7(3+2+1)", 7),
    ] {
        let report = array(layout, count, End::Exported).verify();
        assert!(report.is_well(), "{layout}\n{report}");
        let c = report.counts;
        assert!(
            c.volumes == 2 && c.volume_blocks > 50 && c.nodes > 4,
            "{report}"
        );
        assert!(
            c.live_blocks > c.volume_blocks && c.stripes > 10,
            "{report}"
        );
        // Nodes have parity whatever the layout.
        assert!(c.parity_blocks > 0, "{layout}\n{report}");
        assert_eq!((c.healed, c.members_missing), (0, 0));
    }
}

/// Volumes of other sizes than they were made with: their maps are as high as the roots of these say.
#[test]
fn a_volume_that_was_resized_is_well() {
    const MIB: u64 = 1 << 20;
    let disks: Vec<Rc<MemDevice>> = (0..3)
        .map(|i| Rc::new(MemDevice::new(&format!("mem{i}"), 2 * DEVICE)))
        .collect();
    let refs = || -> Vec<DeviceRef> { disks.iter().map(|d| d.clone() as DeviceRef).collect() };
    let thin = VolumeOptions {
        size_bytes: 3 * MIB,
        thin: true,
        ..VolumeOptions::default()
    };
    let create = Create {
        name: "tank".into(),
        layout: "ec2+1".parse().unwrap(),
        strip_bytes: Some(8192),
        slot_bytes: Some(64 << 10),
        spare: 0,
        domains: Vec::new(),
        settings: Settings::default(),
    };
    // Higher maps, then lower sizes under them, nothing in them, and higher ones again.
    let sizes = [3 * MIB, 64 << 30, 16 << 40, MIB + 4096, 4096, 512 << 30];
    for (size, session) in sizes.into_iter().zip(1..) {
        let rt = Rt::simulated(session);
        let (handle, refs, create) = (rt.clone(), refs(), create.clone());
        let thin = thin.clone();
        rt.block_on(async move {
            let array = match session {
                1 => {
                    let array = Array::create(&handle, refs, create).await.unwrap();
                    array.volume_create("v", thin).await.unwrap();
                    array
                }
                _ => Array::import(&handle, refs, Import::default())
                    .await
                    .unwrap(),
            };
            array.volume_resize("v", size).await.unwrap();
            let v = array.volume("v").unwrap();
            for at in [0, size / 8192 * 4096, size - 4096] {
                let data = pattern(session + at, 4096);
                v.write(at, data, true).await.unwrap();
            }
            if size == 4096 {
                v.trim(0, 4096, true).await.unwrap();
            }
            array.export().await.unwrap();
        });
        rt.shutdown();
        let report = Images::of(&disks).expect(&[]);
        assert!(report.is_well(), "{size}\n{report}");
    }
}

#[test]
fn of_a_crashed_array_the_root_is_checked_and_the_journal_is_not_replayed() {
    let report = array("ec4+2", 6, End::Crashed).verify();
    assert!(!report.clean && !report.is_well());
    assert!(
        report.totals.keys().all(|k| k.severity() == Severity::Note),
        "{report}"
    );
    assert!(report.counts.journal_records > 0, "{report}");
    assert!(report.to_string().contains("NOT replayed"));
}

#[test]
fn a_map_says_where_every_block_lies() {
    for (layout, count) in [("ec4+2", 8), ("raid1", 2), ("raid10", 4)] {
        let mut images = array(layout, count, End::Exported);
        let blocks = images.verify().counts.volume_blocks;
        let map = |images: &Images, name: &str| {
            let sources: Vec<&dyn Source> = images.0.iter().map(|d| d as &dyn Source).collect();
            crate::map(&sources, name)
        };
        let (plain, pieces) = (
            map(&images, "plain").unwrap(),
            map(&images, "pieces").unwrap(),
        );
        let mut found = 0;
        for (map, block) in [(&plain, 4096), (&pieces, 8192)] {
            assert!(map.whole && map.block_bytes == block && !map.extents.is_empty());
            let mut end = 0;
            for extent in &map.extents {
                assert!(extent.offset_bytes >= end && extent.length_bytes % block == 0);
                end = extent.offset_bytes + extent.length_bytes;
                found += extent.length_bytes / block;
                let there = |d: &Option<u16>| d.is_some_and(|d| usize::from(d) < count);
                assert!(!extent.devices.is_empty() && extent.devices.iter().all(there));
            }
        }
        assert_eq!(found, blocks, "{layout}");
        // What an extent names is where the bytes are: without them the volume's blocks are decoded.
        let holder = usize::from(plain.extents[0].devices[0].unwrap());
        let before = images.verify().counts.healed;
        images.0.swap_remove(holder);
        assert!(images.verify().counts.healed > before, "{layout}");
        let again = map(&images, "plain").unwrap();
        let places = |m: &crate::VolumeMap| -> Vec<(u64, u64, u32)> {
            let of = |e: &crate::Extent| (e.offset_bytes, e.segment, e.block);
            m.extents.iter().map(of).collect()
        };
        assert!(again.whole && places(&again) == places(&plain), "{layout}");
        let error = map(&images, "nothere").unwrap_err();
        assert!(error.contains("plain, pieces"), "{error}");
        images.0.truncate(1);
        if layout != "raid1" {
            let error = map(&images, "plain").unwrap_err();
            assert!(error.contains("other devices"), "{error}");
        }
    }
}

/// An array that is optimal on fewer devices than its metadata was as wide as is well. With a device less than that, a
/// segment of metadata has a column nowhere, and still survives as many losses as data do.
#[test]
fn an_array_that_is_optimal_on_few_devices_is_well() {
    for seed in 0..12 {
        let disks: Vec<Rc<MemDevice>> = (0..5)
            .map(|i| Rc::new(MemDevice::new(&format!("mem{i}"), 16 << 20)))
            .collect();
        let refs: Vec<DeviceRef> = disks.iter().map(|d| d.clone() as DeviceRef).collect();
        let rt = Rt::simulated(seed);
        let handle = rt.clone();
        rt.block_on(async move {
            let create = Create {
                name: "tank".into(),
                layout: "ec2+1".parse().unwrap(),
                strip_bytes: Some(8192),
                slot_bytes: Some(64 << 10),
                spare: 0,
                domains: Vec::new(),
                settings: Settings::default(),
            };
            let array = Array::create(&handle, refs, create).await.unwrap();
            let volume = VolumeOptions {
                size_bytes: 1 << 20,
                ..VolumeOptions::default()
            };
            for name in ["v", "x"] {
                array.volume_create(name, volume.clone()).await.unwrap();
            }
            array.volume_destroy("x").await.unwrap();
            for (device, force) in [(4, false), (3, true)] {
                array.fail(device, force).await.unwrap();
                array.wait_idle(&[Work::Rebuild]).await;
                handle.sleep((seed * 20 + 1) * MILLISECOND).await;
            }
            assert_eq!(array.status().await.state, ArrayState::Optimal);
            array.export().await.unwrap();
        });
        rt.shutdown();
        let report = Images::of(&disks[..3]).expect(&[]);
        assert!(report.is_well(), "{report}");
        let report = Images::of(&disks[..2]).verify();
        assert!(report.count_of(Kind::ColumnToSpare) > 0, "{report}");
        assert_eq!(report.count(Severity::Lost), 0, "{report}");
    }
}
