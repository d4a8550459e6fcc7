//! Capacity of an array: how its space is used, and how much more volumes may be promised.
//!
//! Invariants:
//! - The parts add up: raw = usable + parity + spare + reserved, and usable = used + promised + free unless
//!   more is used or promised than the devices in use hold.
//! - Free is what one volume more can be promised: the nodes of its map are not part of it.
//! - Devices that are gone count nowhere. Spare space stands for them first: with S of it, S losses leave
//!   the space that can be promised as it was.

use ashlar_format::BLOCK_U64;
use ashlar_layout::Placement;
use ashlar_space::fits::greatest;
use ashlar_space::promise::{Charged, Packing, node_blocks};
use ashlar_space::template::{Plan, Template};
use ashlar_space::topology::{Presence, Topology};
use ashlar_space::usable::{Spare, usable, usable_whole};

use crate::home::Home;
use crate::journal::sets::record_sets;
use crate::members::Member;
use crate::space::geometry::CLEAN_RESERVE;
use crate::space::thin::ThinCount;
use crate::status::{Capacity, Health};

/// The template of the group that lays data narrowest.
pub(super) fn narrowest(plan: &Plan) -> Template {
    let least = plan.groups.iter().min_by_key(|t| t.k);
    *least.expect("an array has a group")
}

impl Home {
    /// How volume blocks fill stripes with all devices there.
    pub(crate) fn packing_whole(&self) -> Packing {
        let strip_blocks = self.superblock.borrow().strip_blocks;
        Packing::new(self.topology().shape().k, strip_blocks)
    }

    /// How they fill those on the devices in use.
    fn packing_now(&self) -> Packing {
        let strip_blocks = self.superblock.borrow().strip_blocks;
        Packing::new(narrowest(&self.best_plan()).k, strip_blocks)
    }

    /// Blocks of stripes that volumes were promised, and that their mapped blocks take, on the devices in use.
    fn promised_blocks(&self) -> (u64, u64) {
        let plan = self.best_plan();
        (self.promises()).blocks(&self.geometry(), &narrowest(&plan), &plan.nodes)
    }

    /// Where usable space ends with all devices there, in bytes.
    fn usable_whole_bytes(&self) -> u64 {
        self.usable_whole() * BLOCK_U64
    }

    /// The largest volume of such blocks that can be promised all its space, in bytes, as of the last merge.
    pub(crate) fn room_for(&self, block: u16) -> u64 {
        let geometry = self.geometry_with(self.clean_reserve_percent(), 1);
        let topology = self.topology();
        let usable =
            usable(&topology, &geometry, Spare::Left).min(usable_whole(&topology, &geometry));
        let left = usable.saturating_sub(self.promised_blocks().0);
        self.packing_now().fits(left, block) * BLOCK_U64
    }

    /// Recounts what thin volumes may still take: see [`crate::space::thin::Thin::count`].
    ///
    /// Their blocks count as with all devices there, since they do without the columns of those that are gone where
    /// room is short. Nodes do not.
    pub(crate) fn count_thin(&self, oldest: Option<u64>, pending: u64, before: Charged) {
        let (best, shape) = (self.best_plan(), self.topology().shape().clone());
        let (all, online) = (shape.devices(), self.core.taking_slots().len());
        let data = Template {
            k: shape.k,
            m: shape.m,
            absent: 0,
            cap: shape.width(),
        };
        let nodes = best.nodes;
        let more = |blocks: u64| (blocks * all as u64).div_ceil(online.max(1) as u64);
        let node_bytes = more(node_blocks(&nodes, &data)) * BLOCK_U64;
        let promises = self.promises();
        let promised = promises.volumes.iter().map(|v| {
            let bytes = if v.thin { v.mapped_bytes } else { v.size_bytes };
            let blocks = bytes.div_ceil(BLOCK_U64);
            let taken = self.packing_whole().taken(blocks, v.block_blocks);
            taken * BLOCK_U64 + v.nodes_apart * node_bytes
        });
        let merged = self.usable_whole_bytes().saturating_sub(promised.sum());
        let counted = ThinCount { merged, oldest };
        (self.core.thin).count(counted, pending, before, node_bytes);
    }

    /// Whether devices are gone without which not all of what volumes were promised can be redundant.
    pub(crate) fn lacks_room(&self) -> bool {
        self.core.members.iter().any(Member::is_missed) && self.is_overpromised()
    }

    /// Whether a group has fewer devices in use than segments have columns.
    pub(crate) fn lacks_devices(&self) -> bool {
        let topology = self.topology();
        let need = usize::from(topology.shape().width());
        (0..topology.groups()).any(|group| topology.taking(group).count() < need)
    }

    /// Whether the devices in use would not hold at full redundancy what volumes were promised.
    fn is_overpromised(&self) -> bool {
        self.promised_blocks().0 > self.usable_without_spare()
    }

    /// Up to how many percent may be kept for cleaning, so that what volumes were promised still fits; `None`
    /// if not even the least. Were more kept, what is written once devices are gone would have to do without
    /// their columns for the sake of room that there is.
    pub(crate) fn clean_reserve_that_fits(&self) -> Option<u8> {
        let (topology, promised) = (self.topology(), self.promised_blocks().0);
        let fits = |percent: &u8| {
            promised <= usable(&topology, &self.geometry_with(*percent, 0), Spare::Left)
        };
        CLEAN_RESERVE.rev().find(fits)
    }

    /// Where the space of the devices in use is.
    pub(crate) fn capacity(&self) -> Capacity {
        let online = || self.core.members.iter().filter(|m| m.takes_slots());
        let raw = online().map(|m| m.geometry().size_bytes).sum::<u64>();
        let usable = self.usable_now() * BLOCK_U64;
        let (promised, used) = self.promised_blocks();
        let (promised, used) = (promised * BLOCK_U64, used * BLOCK_U64);
        let left = usable.saturating_sub(promised);
        let free = left.min(self.room_for(1));
        let usable = usable - (left - free);
        let promised = promised.saturating_sub(used);
        let topology = self.topology();
        let (k, width) = (
            u128::from(topology.shape().k),
            u128::from(topology.shape().width()),
        );
        let with_parity =
            |data: u64| u64::try_from(u128::from(data) * width / k).unwrap_or(u64::MAX);
        let without_spare = self.usable_without_spare() * BLOCK_U64;
        let parity = with_parity(usable) - usable;
        let spare = with_parity(without_spare.saturating_sub(usable));
        Capacity {
            raw_bytes: raw,
            usable_bytes: usable,
            used_bytes: used,
            promised_bytes: promised,
            free_bytes: free,
            parity_bytes: parity,
            spare_bytes: spare,
            reserved_bytes: raw.saturating_sub(usable + parity + spare),
            overpromised: self.lacks_room(),
        }
    }

    /// How much more may go wrong.
    pub(crate) fn health(&self) -> Health {
        let gone = self.core.members.iter().filter(|m| m.is_missed());
        let topology = self.topology();
        let groups = || 0..topology.groups();
        let devices = groups().map(|g| topology.taking(g).count()).max();
        let new_data = usize::from(topology.shape().m).min(devices.unwrap_or(0).saturating_sub(1));
        let more_losses = self.losses_left().min(new_data);
        let reconstructs = groups().map(|g| self.reconstructs(&topology, g)).min();
        let count = |n: usize| u16::try_from(n).expect("16-bit indexes");
        Health {
            devices_gone: count(gone.count()),
            more_losses: count(more_losses),
            reconstructs: count(reconstructs.unwrap_or(0)),
            survives_domain: survives_domain(&topology).map(|may| may && self.lies_by_domains()),
        }
    }

    /// Whether all that is there lies by the failure domains as they are now.
    fn lies_by_domains(&self) -> bool {
        let (topology, plan) = (self.topology(), self.plan());
        let heeds = |(group, t): (u16, &Template)| {
            topology.is_whole(group) || (t.absent == 0 && t.cap <= t.m)
        };
        if !(0..).zip(&plan.groups).all(heeds) {
            return false; // room is short, and columns are wanted where they are
        }
        let since = self.core.members.iter().map(Member::domain_since);
        let since = since.max().unwrap_or(0);
        let root = self.root.borrow();
        root.epochs.iter().all(|e| e.number >= since) && self.columns_elsewhere() == 0
    }

    /// How many more devices of a group can be lost, one after another, and what is written now be
    /// rebuilt onto the others.
    fn reconstructs(&self, topology: &Topology, group: u16) -> usize {
        let mut largest: Vec<u16> = topology.taking(group).collect();
        largest.sort_by_key(|d| std::cmp::Reverse(topology.slots(*d)));
        let (used, geometry) = (self.promised_blocks().1, self.geometry());
        let fits = |gone: u32| {
            let gone = largest.iter().take(gone as usize);
            let without = gone.fold(topology.clone(), |all, d| all.with(*d, Presence::Gone));
            used <= usable(&without, &geometry, Spare::None)
        };
        let width = usize::from(topology.shape().width());
        let most = largest.len().saturating_sub(width);
        greatest(most as u32, fits) as usize
    }

    /// An event when 80, 90 or 95 % of usable space are reached; again only after it was 3 % below.
    pub(crate) fn warn_of_space(&self) {
        let (usable, used) = (self.usable_now(), self.promised_blocks().1);
        let percent = used.saturating_mul(100) / usable.max(1);
        let reached = |percent: u64| {
            [95, 90, 80]
                .into_iter()
                .find(|p| percent >= *p)
                .unwrap_or(0)
        };
        let warned = self.space.warned.get();
        if reached(percent) > warned {
            let text = match usable {
                0 => "the devices in use have no space for data: reconnect the missing devices"
                    .to_string(),
                _ => format!(
                    "{percent} % of usable space is used: delete files and trim ('fstrim'), destroy a volume, or \
                     add devices ('ashlar add')"
                ),
            };
            self.core.events.note("space-low", None, text);
        }
        self.space
            .warned
            .set(reached(percent).max(warned.min(reached(percent + 3))));
    }
}

/// See [`Health::survives_domain`].
fn survives_domain(topology: &Topology) -> Option<bool> {
    let (shape, domains) = (topology.shape(), topology.domains());
    let (width, m) = (shape.width().into(), shape.m.into());
    let sizes = |group: &Vec<u16>| topology.domain_sizes(group);
    let shared = sizes(&shape.groups.concat()).iter().any(|n| *n > 1);
    let data = |g: &Vec<u16>| Placement::survives_domain(&sizes(g), width, m);
    let records = || record_sets(shape, domains, |_| true).0;
    shared
        .then(|| shape.groups.iter().all(data) && records().iter().all(|set| set.survives_domains))
}
