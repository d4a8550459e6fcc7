//! Truth tables of the ledger.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::capacity::{Geometry, step_nodes};
use crate::domains::Domains;
use crate::floors::Facts;
use crate::plan::least_node_k;
use crate::template::Template;
use crate::topology::Member;

/// 2+1 on four devices, nodes as 1+2; floors of one segment of nodes a step.
fn ledger(slots: [u32; 4]) -> Ledger {
    let layout: ashlar_layout::Layout = "ec2+1".parse().unwrap();
    let shape = layout.resolve(4).unwrap();
    let members = slots.iter().map(|s| Member::in_use(*s)).collect();
    let topology = Topology::new(members, shape, Domains::default());
    let template = |k, m| Template {
        k,
        m,
        absent: 0,
        cap: k + m,
    };
    let plan = Plan {
        groups: vec![template(2, 1)],
        nodes: template(1, 2),
    };
    Ledger::new(topology, plan)
}

const DATA: Area = Area::Group(0);

fn reckoned(slots: [u32; 4]) -> Ledger {
    let mut ledger = ledger(slots);
    ledger.reckon(&Facts {
        movers: 1,
        step_nodes: 1,
        live_nodes: 1,
        node_slots: 9,
        segment_nodes: 10,
        step_segment_nodes: 10,
        segment_columns: 3,
    });
    assert_eq!(
        ledger.floors(),
        Floors {
            step: 1,
            growth: 0,
            round: 2
        }
    );
    ledger
}

/// Slots a device, and what each class is granted of data: floors are 0, 1 step, 2 steps and 1, 2 steps and 3, 2 steps
/// and 4.
#[test]
fn a_class_is_granted_what_is_above_its_floor() {
    for (slots, granted) in [
        ([12, 12, 12, 12], [16, 15, 13, 11, 10]),
        ([9, 9, 9, 9], [12, 11, 9, 7, 6]),
        ([4, 4, 4, 4], [5, 4, 2, 0, 0]),
        ([12, 12, 12, 0], [12, 11, 9, 7, 6]),
        ([12, 12, 0, 0], [0, 0, 0, 0, 0]),
        ([12, 12, 3, 3], [6, 5, 3, 1, 0]),
    ] {
        let ledger = reckoned(slots);
        assert_eq!(
            Class::ALL.map(|c| ledger.grant(c, DATA)),
            granted,
            "{slots:?}"
        );
    }
}

/// What a class has claimed binds it and those above.
#[test]
fn a_claim_binds_no_class_below() {
    for (at, granted) in [
        (Class::Checkpoint, [12, 11, 9, 7, 6]),
        (Class::Clean, [16, 15, 9, 7, 6]),
        (Class::Client, [16, 15, 13, 11, 6]),
    ] {
        let mut ledger = reckoned([12; 4]);
        let claim = ledger.claim(at, DATA, 4).unwrap();
        assert_eq!(Class::ALL.map(|c| ledger.grant(c, DATA)), granted, "{at:?}");
        ledger.give_back(claim);
        assert_eq!(ledger.grant(Class::Client, DATA), 10);
    }
}

/// A slot is lent for a discard only where a client could still be given a segment beside it, and whoever was to find
/// it free later still does.
#[test]
fn a_slot_that_clients_may_need_is_not_lent() {
    for (slots, lent) in [
        ([7, 7, 7, 7], [true; 4]),
        ([6, 6, 6, 6], [true, true, true, false]),
        ([5, 5, 5, 5], [false; 4]),
        ([8, 8, 8, 0], [true, true, true, false]),
    ] {
        let mut ledger = reckoned(slots);
        let (free, projected) = (slots.iter().sum::<u32>(), ledger.projection(DATA));
        assert_eq!([0, 1, 2, 3].map(|d| ledger.lend(d)), lent, "{slots:?}");
        ledger.audit().unwrap();
        assert_eq!(ledger.projection(DATA), projected, "{slots:?}");
        assert!(ledger.grant(Class::Client, DATA) > 0 || lent == [false; 4]);
        let taken: Vec<u16> = (0..4).filter(|d| lent[usize::from(*d)]).collect();
        ledger.release(&taken);
        assert_eq!((0..4).map(|d| ledger.book(d).free()).sum::<u32>(), free);
    }
}

/// Acquiring fails once one below has taken what was claimed, and works again when that is back.
#[test]
fn acquiring_waits_for_those_below() {
    let mut ledger = reckoned([6; 4]);
    assert_eq!(ledger.grant(Class::Client, DATA), 2);
    let claim = ledger.claim(Class::Client, DATA, 1).unwrap();
    let mut taken = Vec::new();
    for _ in 0..2 {
        taken.push(
            ledger
                .take_segment(Class::Checkpoint, Area::Nodes, &[])
                .unwrap(),
        );
    }
    assert!(ledger.acquire(&claim, &[]).is_none());
    assert_eq!(ledger.left(&claim), (1, 0));
    for devices in &taken {
        ledger.free_later(devices, false);
        assert!(ledger.acquire(&claim, &[]).is_none(), "not before the root");
    }
    taken.iter().for_each(|devices| ledger.release(devices));
    let devices = ledger.acquire(&claim, &[3, 1, 0]).unwrap();
    assert_eq!(devices, [3, 1, 0]);
    assert_eq!(ledger.left(&claim), (0, 0));
    ledger.give_back(claim);
    ledger.audit().unwrap();
}

/// Devices that are asked for are taken if that leaves room; else those with most free.
#[test]
fn devices_are_chosen_so_that_room_is_left() {
    for (slots, preferred, chosen) in [
        ([9, 9, 9, 9], &[0, 1, 2][..], [0, 1, 2]),
        ([9, 9, 9, 9], &[0, 0, 2], [0, 1, 2]),
        ([9, 9, 9, 9], &[0, 1], [0, 1, 2]),
        ([9, 9, 9, 9], &[7, 1, 2], [0, 1, 2]),
        ([0, 9, 9, 9], &[0, 1, 2], [1, 2, 3]),
        ([2, 8, 9, 7], &[], [2, 1, 3]),
    ] {
        let mut ledger = reckoned(slots);
        let is = ledger.take_segment(Class::Clean, DATA, preferred);
        assert_eq!(is.unwrap(), chosen, "{slots:?} {preferred:?}");
    }
}

/// Devices that are asked for are not taken if more of them are of one failure domain than the plan says.
#[test]
fn devices_are_chosen_by_their_domains() {
    let mut ledger = reckoned([9; 4]);
    let (all, mut plan) = (ledger.topology().clone(), ledger.plan().clone());
    let labels = ["a", "a", "b", "c"];
    let labelled = Topology::new(
        all.members().to_vec(),
        all.shape().clone(),
        Domains::new(labels.into_iter()),
    );
    plan.groups[0].cap = 1;
    ledger.change(labelled, plan);
    for (preferred, chosen) in [([0, 1, 2], [0, 2, 3]), ([3, 1, 2], [3, 1, 2])] {
        let is = ledger.take_segment(Class::Clean, DATA, &preferred);
        assert_eq!(is.unwrap(), chosen, "{preferred:?}");
    }
}

/// A device that is gone takes its slots and what was claimed of it along.
#[test]
fn a_loss_ends_what_was_claimed_there() {
    let mut ledger = reckoned([12; 4]);
    let slots = ledger.claim_slots(Class::Rebuild, &[2, 3]).unwrap();
    let segments = ledger.claim(Class::Client, DATA, 1).unwrap();
    let there = ledger.take_segment(Class::Client, DATA, &[]).unwrap();
    let without = ledger.topology().with(2, Presence::Gone);
    let plan = ledger.plan().clone();
    ledger.change(without, plan);
    assert_eq!(ledger.left(&slots), (0, 1));
    assert!(!ledger.acquire_slot(&slots, 2) && ledger.acquire_slot(&slots, 3));
    assert_eq!(ledger.book(2), Book::default());
    ledger.free_later(&there, false);
    ledger.release(&there);
    let devices = ledger.acquire(&segments, &[]).unwrap();
    assert!(!devices.contains(&2));
    ledger.give_back(slots);
    ledger.give_back(segments);
    ledger.audit().unwrap();
}

/// What is being emptied counts in the projection alone.
#[test]
fn a_projection_counts_what_comes_back() {
    let mut ledger = reckoned([9; 4]);
    let devices = ledger.take_segment(Class::Client, DATA, &[]).unwrap();
    let more = ledger.take_segment(Class::Client, DATA, &[]).unwrap();
    let at = |ledger: &Ledger| (ledger.grant(Class::Client, DATA), ledger.projection(DATA));
    assert_eq!(at(&ledger), (4, 4));
    ledger.expect(&devices);
    assert_eq!(at(&ledger), (4, 5));
    ledger.free_later(&devices, true);
    assert_eq!(at(&ledger), (4, 5));
    ledger.release(&devices);
    assert_eq!(at(&ledger), (5, 5));
    let claim = ledger.claim(Class::Clean, DATA, 1).unwrap();
    ledger.expect(&more);
    assert_eq!(at(&ledger), (4, 5));
    ledger.give_back(claim);
}

/// A quarantined slot is neither free nor used until it is tried again.
#[test]
fn slots_that_keep_nothing_are_set_aside() {
    let mut ledger = reckoned([9; 4]);
    ledger
        .take_segment(Class::Client, DATA, &[0, 1, 2])
        .unwrap();
    ledger.quarantine(0);
    let book = ledger.book(0);
    assert_eq!((book.used, book.quarantined, book.free()), (0, 1, 8));
    assert!(ledger.retry(0) && !ledger.retry(0));
    ledger.release(&[0]); // with the next root
    assert_eq!(ledger.book(0).free(), 9);
    ledger.audit().unwrap();
}

/// A number from a seed, the same in each run.
fn random(seed: &mut u64, below: u64) -> u64 {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

/// Where a segment is granted its devices are found, and what is granted after is one less at most: for devices with
/// free slots at random, in groups and failure domains, for each class.
#[test]
fn what_is_granted_can_be_acquired() {
    let mut seed = 1;
    let mut granted = 0;
    for (layout, count, labels) in [
        ("ec2+1", 5, &["", "", "", "", ""][..]),
        ("ec2+1", 6, &["a", "a", "b", "b", "c", "c"]),
        ("ec2+2", 7, &["a", "a", "a", "b", "b", "c", "d"]),
        ("ec4+2", 9, &["a", "a", "a", "b", "b", "b", "c", "c", "c"]),
        ("ec8+2", 12, &[""; 12]),
        ("raid10", 6, &["a", "b", "a", "b", "a", "b"]),
        (
            "raid60:2",
            10,
            &["a", "b", "c", "d", "e", "a", "b", "c", "d", "e"],
        ),
    ] {
        let layout: ashlar_layout::Layout = layout.parse().unwrap();
        let shape = layout.resolve(count).unwrap();
        for _ in 0..400 {
            let slots = |_| Member::in_use(1 + random(&mut seed, 24) as u32);
            let members: Vec<Member> = (0..count).map(slots).collect();
            let domains = Domains::new(labels.iter().copied());
            let topology = Topology::new(members, shape.clone(), domains);
            let geometry = crate::capacity::Geometry {
                strip_blocks: 1,
                slot_blocks: 16,
                least_data: 1,
                clean_reserve: 10,
                step_nodes: 8,
                least_node_k: 8,
                open_segments: 2,
                fixed_nodes: 0,
            };
            let none = crate::promise::Promises::default();
            let plan = crate::plan::plan(&topology, &geometry, &none, None);
            let groups = topology.groups();
            let mut ledger = Ledger::new(topology, plan.clone());
            ledger.reckon(&geometry.facts(&plan.nodes, random(&mut seed, 30), 0));
            for _ in 0..6 {
                let class = Class::ALL[random(&mut seed, 5) as usize];
                let area = match random(&mut seed, u64::from(groups) + 1) {
                    0 => Area::Nodes,
                    group => Area::Group(group as u16 - 1),
                };
                let before = ledger.grant(class, area);
                let taken = ledger.take_segment(class, area, &[]);
                assert_eq!(
                    taken.is_some(),
                    before > 0,
                    "{layout} {class:?} {area:?} {ledger:?}"
                );
                let after = ledger.grant(class, area);
                assert!(
                    after + 1 >= before,
                    "{layout} {class:?} {area:?}: {before}, then {after}"
                );
                granted += u32::from(before > 0);
            }
        }
    }
    assert!(granted > 5_000, "{granted} granted");
}

/// An array of so many equal devices, of 1,000 slots of 8 blocks each.
fn with_small_slots(layout: &str, count: u16) -> (Topology, Geometry) {
    let layout: ashlar_layout::Layout = layout.parse().unwrap();
    let shape = layout.resolve(count).unwrap();
    let members = vec![Member::in_use(1000); usize::from(count)];
    let whole = Topology::new(members, shape, Domains::default());
    let geometry = Geometry {
        strip_blocks: 1,
        slot_blocks: 8,
        least_data: 1,
        clean_reserve: 10,
        step_nodes: step_nodes(&whole, 8, 10),
        least_node_k: least_node_k(&whole),
        open_segments: 8,
        fixed_nodes: 10,
    };
    (whole, geometry)
}

/// Clients have taken all that they may, and as many devices go as may, one after another: the cleaner has room on
/// those that are left, however much less their nodes hold. Else nobody could use what is dead there, and clients would
/// be told that there is no space.
#[test]
fn a_loss_leaves_the_cleaner_its_room() {
    use crate::capacity::capacity;
    use crate::plan::plan;
    use crate::promise::{Promises, Volume};

    for (layout, count) in [
        ("ec1+3", 6u16),
        ("ec1+3", 4),
        ("ec2+1", 3),
        ("ec2+2", 4),
        ("ec4+2", 6),
        ("ec4+2", 8),
        ("ec8+2", 12),
        ("raid1", 3),
    ] {
        let (whole, geometry) = with_small_slots(layout, count);
        let none = Promises::default();
        let mut laid = plan(&whole, &geometry, &none, None);
        let bytes = capacity(&whole, &geometry, &laid) * 4096 / 100 * 95;
        let promises = Promises {
            volumes: vec![Volume {
                size_bytes: bytes,
                mapped_bytes: bytes,
                block_blocks: 1,
                ..Volume::default()
            }],
        };
        let mut ledger = Ledger::new(whole.clone(), laid.clone());
        ledger.reckon(&geometry.facts(&laid.nodes, 0, 3 * u64::from(count)));
        while ledger.take_segment(Class::Client, DATA, &[]).is_some() {}
        let mut left = whole.clone();
        for gone in 0..whole.shape().m {
            left = left.with(count - 1 - gone, Presence::Gone);
            laid = plan(&left, &geometry, &promises, Some(&laid));
            ledger.change(left.clone(), laid.clone());
            ledger.reckon(&geometry.facts(&laid.nodes, 0, 3 * u64::from(count)));
            assert!(
                ledger.grant(Class::Clean, DATA) > 0,
                "{layout} on {count} without {}: {laid:?} {:?}",
                gone + 1,
                ledger.floors()
            );
        }
    }
}

/// Where nodes lie on all devices but a few, which are full, and another goes: as many segments of nodes as before
/// have room all the same, of one column fewer. As wide as before each would need a device that is full.
#[test]
fn a_loss_leaves_steps_their_room_beside_a_full_device() {
    use crate::plan::plan;
    use crate::promise::Promises;

    for (layout, count) in [
        ("raid50:3", 12u16),
        ("ec2+1", 11),
        ("ec2+1", 16),
        ("ec8+2", 12),
        ("ec8+2", 14),
        ("raid10", 20),
    ] {
        let (whole, geometry) = with_small_slots(layout, count);
        let none = Promises::default();
        let laid = plan(&whole, &geometry, &none, None);
        let mut ledger = Ledger::new(whole.clone(), laid.clone());
        ledger.reckon(&geometry.facts(&laid.nodes, 0, 100 * u64::from(laid.nodes.laid())));
        let floors = ledger.floors();
        assert_eq!((floors.growth, laid.nodes.absent), (0, 0));
        // As many devices as a segment has columns have two steps' room.
        let full = count - laid.nodes.laid();
        assert!(full > 0, "{layout} on {count}");
        for device in 0..count {
            let room = if device < full { 0 } else { 2 * floors.step };
            ledger.occupy(device, 1000 - room);
        }
        assert_eq!(ledger.with_room_for_steps(laid.clone(), &geometry), laid);
        let left = whole.with(count - 1, Presence::Gone);
        let now = plan(&left, &geometry, &none, Some(&laid));
        ledger.change(left, now.clone());
        let fitted = ledger.with_room_for_steps(now.clone(), &geometry);
        ledger.replan(fitted.clone());
        ledger.reckon(&geometry.facts(&fitted.nodes, 0, 100 * u64::from(fitted.nodes.laid())));
        let what = format!("{layout} on {count}: {now:?}, {fitted:?}");
        assert_eq!(fitted.nodes.redundancy(), now.nodes.redundancy(), "{what}");
        let granted = ledger.grant(Class::Checkpoint, Area::Nodes);
        assert_eq!(granted, 2 * floors.step, "{what}");
        assert!(
            granted > ledger.floors().step && ledger.is_tight(),
            "{what}"
        );
    }
}
