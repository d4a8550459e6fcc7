//! Failure domains: a whole one may be lost where the layout can carry it.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::rc::Rc;

use ashlar_device::{DeviceRef, FaultFilter, MemDevice};
use ashlar_engine::Work;
use ashlar_engine::status::ArrayState;
use ashlar_engine::{Array, Create, Import, Volume};
use ashlar_rt::{Rt, SECOND};

use crate::common::room::{all_thick, mostly_thick, starts_without};
use crate::common::{self, BLOCK, devices, pattern, refs, small, volume};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 2 * MIB;

async fn fill(v: &Volume, version: u64) {
    common::fill(v, SIZE, BLOCK, version, "").await;
}

async fn check(v: &Volume, version: u64, what: &str) {
    common::check(v, SIZE, version, what).await;
}

fn filtered(disks: &[Rc<MemDevice>]) -> (Vec<Rc<FaultFilter>>, Vec<DeviceRef>) {
    let filter = |d: &Rc<MemDevice>| FaultFilter::new(d.clone() as DeviceRef);
    let filters: Vec<Rc<FaultFilter>> = disks.iter().map(filter).collect();
    let members = filters.iter().map(|f| f.clone() as DeviceRef).collect();
    (filters, members)
}

/// An array on four enclosures, with a volume that is written once; devices `0..count`, of which `enclosure` tells
/// the place.
async fn on_enclosures(
    rt: &Rt,
    members: Vec<DeviceRef>,
    layout: &str,
    enclosure: impl Fn(usize) -> usize,
) -> (Array, Volume) {
    let domain = |device: usize| format!("enclosure {}", enclosure(device));
    let create = Create {
        domains: (0..members.len()).map(domain).collect(),
        ..small(layout)
    };
    let array = Array::create(rt, members, create).await.unwrap();
    array.volume_create("v", volume(2 * MIB)).await.unwrap();
    let v = array.volume("v").unwrap();
    fill(&v, 1).await;
    (array, v)
}

/// Four enclosures of more devices than M: one is lost while data are written; then, with its devices gone for
/// good, power goes and the array starts by itself. What was written before, meanwhile and after can be read.
#[test]
fn an_enclosure_may_be_lost() {
    for (layout, count) in [("ec4+2", 12), ("ec8+3", 20), ("ec2+1", 8), ("ec8+4", 24)] {
        let each = count / 4;
        for lost in 0..4 {
            let what = format!("{layout} on {count} without enclosure {lost}");
            let disks = devices(count, 16 * MIB);
            let rt = Rt::simulated(lost as u64);
            let handle = rt.clone();
            rt.block_on(async move {
                let (filters, members) = filtered(&disks);
                let made = on_enclosures(&handle, members, layout, |d| d / each);
                let (array, v) = made.await;
                for filter in &filters[lost * each..(lost + 1) * each] {
                    filter.set_offline(true);
                }
                fill(&v, 2).await;
                check(&v, 2, &what).await;
                let status = array.status().await;
                assert_ne!(status.state, ArrayState::Failed, "{what}");
                // Power goes.
                for filter in &filters {
                    filter.set_offline(true);
                }
                let left: Vec<_> = (0..count).filter(|d| d / each != lost).collect();
                let left: Vec<Rc<MemDevice>> = left.iter().map(|d| disks[*d].clone()).collect();
                let (_, members) = filtered(&left);
                let import = Array::import(&handle, members, Import::default());
                let array = import.await.unwrap_or_else(|e| panic!("{what}: {e}"));
                let v = array.volume("v").unwrap();
                check(&v, 2, &what).await;
                fill(&v, 3).await;
                check(&v, 3, &what).await;
            });
            rt.shutdown();
        }
    }
}

/// Power and an enclosure go at once.
#[test]
fn an_enclosure_may_be_lost_with_the_power() {
    for lost in 0..4 {
        let what = format!("without enclosure {lost}");
        let disks = devices(12, 16 * MIB);
        let rt = Rt::simulated(lost as u64);
        let handle = rt.clone();
        rt.block_on(async move {
            let (filters, members) = filtered(&disks);
            let made = on_enclosures(&handle, members, "ec4+2", |d| d % 4);
            let _crashed = made.await;
            for filter in &filters {
                filter.set_offline(true);
            }
            let left: Vec<_> = (0..12).filter(|d| d % 4 != lost).collect();
            let left: Vec<Rc<MemDevice>> = left.iter().map(|d| disks[*d].clone()).collect();
            let (_, members) = filtered(&left);
            let import = Array::import(&handle, members, Import::default());
            let array = import.await.unwrap_or_else(|e| panic!("{what}: {e}"));
            check(&array.volume("v").unwrap(), 1, &what).await;
        });
        rt.shutdown();
    }
}

/// What is rebuilt goes where a domain may still be lost.
#[test]
fn an_enclosure_may_be_lost_after_rebuild() {
    for failed in [0, 5] {
        for lost in 0..4 {
            let what = format!("device {failed} failed, then without enclosure {lost}");
            let disks = devices(12, 16 * MIB);
            let rt = Rt::simulated(lost as u64);
            let handle = rt.clone();
            rt.block_on(async move {
                let (filters, members) = filtered(&disks);
                let made = on_enclosures(&handle, members, "ec4+2", |d| d / 3);
                let (array, v) = made.await;
                array.fail(failed, false).await.unwrap();
                array.wait_idle(&[Work::Rebuild]).await;
                assert_eq!(array.status().await.state, ArrayState::Optimal, "{what}");
                for filter in &filters[lost * 3..(lost + 1) * 3] {
                    filter.set_offline(true);
                }
                handle.sleep(10 * SECOND).await;
                check(&v, 1, &what).await;
            });
            rt.shutdown();
        }
    }
}

/// Whether a whole domain may be lost is told as it is: without each of them in turn, all can be read or, without
/// some, it cannot.
#[test]
fn what_is_told_of_domains_is_so() {
    for (layout, domains, told) in [
        ("ec4+2", &[0, 0, 0, 1, 1, 1, 2, 2, 2][..], true),
        ("ec4+2", &[0, 0, 1, 1, 1, 1, 2, 2], true),
        ("ec4+2", &[0, 0, 0, 0, 1, 1, 1, 1], false),
        ("ec2+1", &[0, 0, 1, 2], true),
        ("ec2+1", &[0, 0, 1, 1], false),
        ("raid1", &[0, 0, 1, 1], true),
        ("raid10", &[0, 1, 0, 1], true),
        ("raid10", &[0, 0, 1, 1], false),
        ("raid60:2", &[0, 1, 2, 3, 0, 1, 2, 3], true),
        ("raid60:2", &[0, 0, 1, 1, 2, 2, 3, 3], true),
        ("raid60:2", &[0, 0, 0, 0, 1, 1, 1, 1], false),
        ("raid0", &[0, 0, 1, 1], false),
    ] {
        let disks = devices(domains.len(), 16 * MIB);
        let (rt, members) = (Rt::simulated(1), filtered(&disks).1);
        let handle = rt.clone();
        rt.block_on(async move {
            let (array, _) = on_enclosures(&handle, members, layout, |d| domains[d]).await;
            let health = array.status().await.health;
            assert_eq!(health.survives_domain, Some(told), "{layout} {domains:?}");
            array.export().await.unwrap();
        });
        rt.shutdown();
        let most = domains.iter().max().copied().unwrap();
        let survived = (0..=most).filter(|lost| {
            let gone: Vec<usize> = (0..domains.len())
                .filter(|d| domains[*d] == *lost)
                .collect();
            let (rt, left) = (Rt::simulated(2), common::without(&disks, &gone));
            let handle = rt.clone();
            let all = rt.block_on(async move {
                let options = Import {
                    degraded: true,
                    read_only: true,
                    ..Import::default()
                };
                let Ok(array) = Array::import(&handle, left, options).await else {
                    return false;
                };
                let v = array.volume("v").unwrap();
                v.read(0, SIZE as usize).await.is_ok()
            });
            rt.shutdown();
            all
        });
        let survived = survived.count() == most + 1;
        assert_eq!(survived, told, "{layout} {domains:?}");
    }
}

/// A domain of more than half of the devices: data survive its loss, records of the journal may not.
#[test]
fn a_domain_of_most_devices_is_not_promised() {
    let disks = devices(5, 16 * MIB);
    let (rt, members) = (Rt::simulated(1), filtered(&disks).1);
    let handle = rt.clone();
    rt.block_on(async move {
        let (array, _) = on_enclosures(&handle, members, "ec2+1", |d| d.saturating_sub(2)).await;
        assert_eq!(array.status().await.health.survives_domain, Some(false));
    });
    rt.shutdown();
}

/// Failure domains of different sizes: what is promised is what fits with no more than M columns in a domain,
/// and a full array still loses any domain.
#[test]
fn a_full_array_may_lose_any_domain() {
    for (layout, domains) in [
        ("ec2+1", &[0, 0, 1, 2][..]),
        ("ec4+2", &[0, 0, 0, 0, 1, 1, 1, 2, 2, 2]),
        ("ec2+2", &[0, 0, 0, 1, 1, 2, 2]),
        ("ec4+2", &[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]),
    ] {
        for lost in 0..3 {
            let disks = devices(domains.len(), 8 * MIB);
            let rt = Rt::simulated(1);
            let (handle, kept) = (rt.clone(), refs(&disks));
            let size = rt.block_on(async move {
                let create = Create {
                    domains: domains.iter().map(|d| format!("enclosure {d}")).collect(),
                    ..small(layout)
                };
                let array = Array::create(&handle, kept, create).await.unwrap();
                let size = array.room_for(4096);
                array.volume_create("v", volume(size)).await.unwrap();
                let v = array.volume("v").unwrap();
                for version in 1..3 {
                    common::fill(&v, size, BLOCK, version, layout).await;
                }
                size
            });
            rt.shutdown();
            let gone = (0..domains.len()).filter(|d| domains[*d] == lost);
            let what = format!("{layout} without domain {lost}");
            starts_without(&disks, &gone.collect::<Vec<_>>(), size, 2, &what);
        }
    }
}

/// Failure domains that cannot be lost in any case cost no room: a thick volume of all of it can be written also where
/// some have fewer devices than others (#153).
#[test]
fn domains_that_cannot_be_lost_cost_no_room() {
    for (layout, domains) in [
        ("ec4+2", &[0, 0, 0, 0, 0, 0, 1, 1, 1][..]),
        ("ec4+2", &[0, 1, 0, 1, 0, 1, 0]),
        ("ec3+1", &[0, 0, 0, 1, 1]),
        ("ec5+1", &[0, 0, 0, 1, 1, 2, 2]),
    ] {
        let disks = devices(domains.len(), 16 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = Create {
                domains: domains.iter().map(|d| format!("enclosure {d}")).collect(),
                ..small(layout)
            };
            let (array, v, size) = all_thick(&handle, kept, create).await;
            let what = format!("{layout} on {domains:?}");
            let survives = array.status().await.health.survives_domain;
            assert_eq!(survives, Some(false), "{what}");
            for version in 1..3 {
                common::fill(&v, size, BLOCK, version, &what).await;
            }
            common::check(&v, size, 2, &what).await;
        });
        rt.shutdown();
    }
}

/// Where the domains can carry their loss only with all devices there, spare ones included, they constrain placement
/// until one is gone: a thick volume is promised no more than that holds (#157).
#[test]
fn domains_that_need_the_spare_devices_have_room() {
    for (layout, domains, spare) in [
        ("ec3+1", &[0, 0, 1, 1, 2, 2, 3][..], 1),
        ("ec2+1", &[0, 0, 0, 1, 1, 1, 2], 1),
        ("ec4+2", &[0, 0, 0, 1, 1, 1, 2, 2], 1),
    ] {
        let disks = devices(domains.len(), 10 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = Create {
                domains: domains.iter().map(|d| format!("enclosure {d}")).collect(),
                spare,
                ..small(layout)
            };
            let (array, v, size) = all_thick(&handle, kept, create).await;
            let what = format!("{layout} on {domains:?}");
            let survives = array.status().await.health.survives_domain;
            assert_eq!(survives, Some(true), "{what}");
            for version in 1..3 {
                common::fill(&v, size, BLOCK, version, &what).await;
            }
            common::check(&v, size, 2, &what).await;
        });
        rt.shutdown();
    }
}

/// Failure domains of different sizes fill unequally. Once devices of the small ones are gone, what a thick volume
/// was promised needs the room that is left in the large one as well (#106).
#[test]
fn a_full_array_goes_on_without_devices_of_small_domains() {
    let domains = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2];
    for percent in [80, 84, 88] {
        let disks = devices(domains.len(), 7 * MIB);
        let rt = Rt::simulated(1);
        let (handle, kept) = (rt.clone(), refs(&disks));
        rt.block_on(async move {
            let create = Create {
                domains: domains.iter().map(|d| format!("enclosure {d}")).collect(),
                ..small("ec4+2")
            };
            let (array, v, size) = mostly_thick(&handle, kept, create, percent).await;
            common::fill(&v, size, BLOCK, 1, "all there").await;
            for device in [4, 7] {
                array.fail(device, false).await.unwrap();
                array.wait_idle(&[Work::Rebuild]).await;
            }
            let status = array.status().await;
            assert_eq!(status.state, ArrayState::Optimal);
            assert!(!status.capacity.overpromised);
            // Here and there, so that every segment keeps most of what it holds.
            let blocks = size / BLOCK;
            for n in 0..2 * blocks {
                let block = n * 7919 % blocks;
                let done = v.write(block * BLOCK, pattern(block, 2), false).await;
                let what = format!("{percent} % full, write {n} of {}", 2 * blocks);
                assert!(done.is_ok(), "{what}: {done:?}");
            }
            common::check(&v, size, 2, "without two").await;
            let status = array.status().await;
            assert_eq!(status.state, ArrayState::Optimal);
            let survives = status.health.survives_domain;
            assert_eq!(survives, Some(false), "columns lie where there is room");
        });
        rt.shutdown();
    }
}
