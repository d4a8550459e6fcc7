//! What arrays hold by the new reckoning, beside the one before it: no more than 2 points less.
#![allow(clippy::unwrap_used, reason = "tests")]

use ashlar_format::SegmentGeometry;
use ashlar_format::liveness::RecordShape;
use ashlar_space::capacity::{Geometry, capacity};
use ashlar_space::domains::Domains;
use ashlar_space::ledger::Ledger;
use ashlar_space::plan::{least_node_k, plan};
use ashlar_space::promise::Promises;
use ashlar_space::topology::{Area, Member, Topology};

fn geometry(slot_blocks: u32, clean_reserve: u8) -> Geometry {
    Geometry {
        strip_blocks: 16,
        slot_blocks,
        least_data: 1,
        clean_reserve,
        step_nodes: 560, // 512 leaves, the nodes above them, and 40 more
        least_node_k: 8,
        open_segments: 8,
        fixed_nodes: 0,
    }
}

fn topology(layout: &str, devices: u16, slots: u32) -> Topology {
    let layout: ashlar_layout::Layout = layout.parse().unwrap();
    let shape = layout.resolve(devices).unwrap();
    let members = vec![Member::in_use(slots); devices.into()];
    Topology::new(members, shape, Domains::default())
}

/// Blocks by the reckoning before (`space/capacity.rs` of the engine), for equal devices without failure domains.
fn before(all: &Topology, slots: u32, blocks: u32, reserve: u64) -> u64 {
    let shape = all.shape();
    let checkpoint = (224 / blocks.saturating_sub(2).max(1)).max(6);
    let kept = checkpoint + (slots / 64).max(6) + 8;
    let devices = all.members().len() as u64;
    let segments = devices * u64::from(slots - kept) / u64::from(shape.width());
    let one = SegmentGeometry {
        k: shape.k,
        m: shape.m,
        strip_blocks: 16,
        slot_blocks: blocks,
    };
    let data = segments * u64::from(one.data_blocks());
    let left = data - data / 100 * reserve;
    let record = RecordShape::new(blocks, shape.k).leaves_per_record();
    let share = 32.0 / 4096.0 * (1.0 + 1.0 / 63.0) + record / f64::from(one.data_blocks());
    // Nodes as 8+(M+1), twice.
    let m = f64::from(shape.m) + 1.0;
    let wide = f64::from(shape.width()) / f64::from(shape.k);
    let overhead = (8.0 + m) / 8.0 / wide * 2.0;
    left - (data as f64 * share * overhead) as u64
}

#[test]
fn usable_space_is_no_more_than_two_points_less() {
    println!("layout   devices   slots x blocks   before    now  (percent of raw)");
    for (layout, devices) in [("ec8+2", 12), ("ec8+3", 14), ("ec80+20", 100)] {
        for (slots, blocks) in [(1_100, 240), (1_100, 4_096), (16_384, 256)] {
            let all = topology(layout, devices, slots);
            let geometry = geometry(blocks, 10);
            let best = plan(&all, &geometry, &Promises::default(), None);
            let now = capacity(&all, &geometry, &best);
            let before = before(&all, slots, blocks, 10);
            let raw = u64::from(devices) * u64::from(slots) * u64::from(blocks);
            let percent = |n: u64| n as f64 * 100.0 / raw as f64;
            println!(
                "{layout:<8} {devices:>7} {slots:>8} x {blocks:<6} {:>7.2} {:>6.2}",
                percent(before),
                percent(now)
            );
            assert!(
                percent(now) > percent(before) - 2.0,
                "{layout} {slots} x {blocks}"
            );
        }
    }
}

/// Of 1,100 slots clients may not take 25 at most: two steps, growth of the nodes of a full map, and what is kept for
/// cleaning, rebuild and rescue.
#[test]
fn few_slots_are_withheld_from_clients() {
    for (layout, devices) in [("ec8+2", 12), ("ec8+3", 14), ("ec80+20", 100)] {
        let all = topology(layout, devices, 1_100);
        let geometry = Geometry {
            least_node_k: least_node_k(&all),
            ..geometry(240, 10)
        };
        let best = plan(&all, &geometry, &Promises::default(), None);
        let full = capacity(&all, &geometry, &best) / geometry.data_blocks(best.groups[0].k);
        let nodes = geometry.nodes_for(full, best.groups[0].k);
        let once = nodes.div_ceil(geometry.node_blocks(best.nodes.k));
        let mut ledger = Ledger::new(all, best.clone());
        ledger.reckon(&geometry.facts(&best.nodes, nodes, once * u64::from(best.nodes.laid())));
        let withheld = ledger.withheld(Area::Group(0));
        println!(
            "{layout} on {devices}: {withheld} of 1,100 slots withheld, {:?}",
            ledger.floors()
        );
        if layout == "ec8+2" {
            assert!(withheld <= 25, "{withheld}");
        }
    }
}
