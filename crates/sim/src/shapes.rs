//! What widens a seed's history beyond what [`Config::random`] draws: slots of several courses, maps
//! larger than their cache, more shards, more verbs,
//! failure domains, volume blocks of whole stripes, devices of different sizes, many slots to be filled, many
//! writes at once, batches journalled in parts, spare space in one group, little kept for cleaning.
//!
//! Invariants: every purpose has a generator of its own, so that a seed that one of them leaves alone
//! keeps its history; what is too large for a full array is not drawn for one.

use std::collections::BTreeSet;

use crate::config::{Config, Mode, Part, VolumeConfig};
use crate::rng::Rng;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

impl Config {
    /// The same, in some seeds with more of what this module has.
    pub fn widened(mut self) -> Config {
        let seed = self.seed;
        let purpose = |name: u64| Rng::new(seed ^ 0x0715_DE4E).fork(name);
        if self.may(Part::LargeSlots) {
            self.large_slots(&mut purpose(1));
        }
        if self.may(Part::Piles) {
            self.piles(&mut purpose(13));
        }
        if self.may(Part::ManySlots) {
            self.many_slots(&mut purpose(8));
        }
        if self.may(Part::TightReserve) {
            self.tight_reserve(&mut purpose(12));
        }
        if self.may(Part::LargeMaps) {
            self.large_maps(&mut purpose(2));
        }
        self.verbs(&mut purpose(3));
        if self.may(Part::MoreShards) && purpose(4).chance(25) {
            self.most_shards = Some(4);
        }
        if self.may(Part::Spare) {
            self.spare_space(&mut purpose(11));
        }
        if self.may(Part::Domains) {
            self.failure_domains(&mut purpose(5));
        }
        if self.may(Part::LargeBlocks) {
            self.large_blocks(&mut purpose(6));
        }
        if self.may(Part::OtherSizes) {
            self.other_sizes(&mut purpose(7));
        }
        if self.may(Part::Bursts) {
            self.bursts(&mut purpose(9));
        }
        if self.may(Part::FullThin) {
            self.thin_volumes(&mut purpose(10));
        }
        self
    }

    /// Slots of 128 KiB to 1 MiB, of which the largest have several courses.
    fn large_slots(&mut self, rng: &mut Rng) {
        let (slot_bytes, slots) = match rng.below(100) {
            0..72 => return,
            72..80 => (128 * KIB, rng.pick(&[128, 192, 256])),
            80..87 => (256 * KIB, rng.pick(&[64, 96, 128])),
            _ => (MIB, rng.pick(&[64, 96, 128])),
        };
        if self.full.is_some() {
            // As large as ever: each is filled several times.
            (self.slot_bytes, self.device_bytes) = (128 * KIB, 8 * MIB);
            return;
        }
        self.slot_bytes = slot_bytes;
        self.device_bytes = slot_bytes * slots;
        let strip = rng.pick(&[64, 128, 256]) * KIB;
        if slot_bytes == MIB && rng.chance(70) && strip * self.k as u64 <= MIB {
            // A course ends after few stripes, and few of these fill a slot.
            self.strip_bytes = u32::try_from(strip).ok();
        }
    }

    /// So many slots to be filled that what is kept of them grows with their number.
    fn many_slots(&mut self, rng: &mut Rng) {
        let (wanted, slots) = (rng.chance(8), rng.pick(&[640, 1024]));
        if wanted && self.full.is_some() {
            self.slot_bytes = 32 * KIB;
            self.device_bytes = self.slot_bytes * slots;
            self.strip_bytes = self.strip_bytes.map(|bytes| bytes.min(8 << 10));
            for volume in &mut self.volumes {
                volume.block_bytes = volume.block_bytes.min(8 * KIB);
            }
        }
    }

    /// As little as may be kept for cleaning, all the rest filled, and a little of each segment overwritten.
    fn tight_reserve(&mut self, rng: &mut Rng) {
        let (wanted, stride, weight) = (rng.chance(20), rng.range(4, 60), rng.range(2, 8));
        let (many, slots) = (rng.chance(20), rng.pick(&[640, 1024]));
        if wanted && self.full.is_some() {
            if many && self.may(Part::ManySlots) {
                // Few blocks of metadata for each of data: else what is kept for that is cleaned in.
                self.device_bytes = self.slot_bytes * slots;
            }
            (self.full, self.reserve, self.stride) = (Some(100), Some("2%"), Some(stride));
            // It is filled when it is made.
            (self.weights.burst, self.weights.fill) = (weight, 0);
        }
    }

    /// An array to be filled by a thin volume; or one beside it that is written far apart, and takes what room
    /// was not promised.
    fn thin_volumes(&mut self, rng: &mut Rng) {
        let (kind, blocks) = (rng.below(100), 1 << rng.range(12, 20));
        match (self.full, kind) {
            (Some(_), 0..25) => self.full_thin = true,
            (Some(_), 25..45) => self.volumes.insert(
                1,
                VolumeConfig {
                    size: 4 * KIB * blocks,
                    block_bytes: 4 * KIB,
                    thin: true,
                    fast_digest: false,
                    sparse: true,
                },
            ),
            _ => {}
        }
    }

    /// Many writes under way at once.
    fn bursts(&mut self, rng: &mut Rng) {
        let percent = if self.full.is_some() { 40 } else { 12 };
        let (wanted, weight) = (rng.chance(percent), rng.range(1, 3));
        if wanted {
            self.weights.burst = self.weights.burst.max(weight);
        }
    }

    /// So much written between two flushes that their batch is journalled in parts: stripes of many blocks, in a
    /// journal whose records have one column of data.
    fn piles(&mut self, rng: &mut Rng) {
        let (wanted, weight, shards) = (rng.chance(25), rng.range(4, 16), rng.pick(&[1, 1, 2]));
        if !wanted || self.full.is_some() || self.k > 1 || self.m == 0 {
            return;
        }
        (self.slot_bytes, self.device_bytes) = (512 * KIB, 20 * MIB);
        self.strip_bytes = Some(128 << 10);
        (self.shards, self.memory_bytes) = (shards, 64 * MIB);
        (self.volumes[0].size, self.volumes[0].thin) = (4608 * KIB, false);
        self.weights.pile = weight;
        // Power goes best between two parts: as the first makes the journal press, or as the pile says.
        (self.press_percent, self.clients) = (self.press_percent.max(60), self.clients.min(2));
    }

    /// A volume with a map of many nodes, a cache that holds few, or both.
    fn large_maps(&mut self, rng: &mut Rng) {
        let (sparse, thick) = (rng.chance(25), rng.chance(50));
        let blocks = 1 << rng.range(12, 20);
        let block_bytes = if rng.chance(85) { 4 * KIB } else { 8 * KIB };
        let tight = rng.chance(if sparse { 80 } else { 15 });
        let memory = rng.pick(&[64, 128, 256, 512]) * KIB;
        if tight {
            self.memory_bytes = memory;
        }
        if !sparse || self.full.is_some() {
            return;
        }
        let roomy = self.device_bytes >= 64 * MIB;
        self.volumes[0] = VolumeConfig {
            size: if roomy && thick {
                4 * KIB * 4096
            } else {
                4 * KIB * blocks
            },
            block_bytes: block_bytes.min(self.volumes[0].block_bytes),
            thin: !(roomy && thick),
            fast_digest: self.volumes[0].fast_digest,
            sparse: true,
        };
    }

    /// Settings that change while the array runs, and devices failed by force.
    fn verbs(&mut self, rng: &mut Rng) {
        let faulty = matches!(self.mode, Mode::Within | Mode::Beyond);
        let set = if rng.chance(20) { rng.range(1, 4) } else { 0 };
        let forced = u64::from(rng.chance(20) && faulty);
        if self.may(Part::Set) {
            self.weights.set = set;
        }
        if self.may(Part::ForcedFail) {
            self.weights.forced_fail = forced;
        }
    }

    /// One group with spare space for one or two devices.
    fn spare_space(&mut self, rng: &mut Rng) {
        let (wanted, spare) = (rng.chance(15), 1 + rng.index(2));
        let width = self.k + self.m;
        if wanted && self.layout.starts_with("ec") && width <= 12 {
            self.devices = self.devices.max(width + spare);
            self.spare = u16::try_from(spare).expect("a few");
        }
    }

    /// Failure domains: mostly so many that no more than M columns of a segment need lie in one.
    fn failure_domains(&mut self, rng: &mut Rng) {
        let (wanted, more) = (rng.chance(15), rng.index(7));
        let (enough, any) = (rng.chance(70), rng.range(2, 5));
        let neighbours = rng.chance(50);
        if !wanted || self.devices < 2 {
            return;
        }
        let width = self.k + self.m;
        if self.layout.starts_with("ec") && width <= 12 {
            self.devices = self.devices.max(width + more);
        }
        let any = usize::try_from(any).expect("a few");
        let count = match width.checked_div(self.m) {
            Some(_) if enough => width.div_ceil(self.m),
            _ => any,
        };
        let count = count.clamp(2, self.devices);
        let domain = |device: usize| match neighbours {
            true => device * count / self.devices,
            false => device % count,
        };
        self.domains = (0..self.devices).map(domain).collect();
    }

    /// Volume blocks of up to a whole stripe: larger than the strips of a narrow one.
    fn large_blocks(&mut self, rng: &mut Rng) {
        let wanted = rng.chance(15);
        let stripe = (self.strip() * self.k as u64).min(128 * KIB);
        for volume in &mut self.volumes {
            let bytes = (8 * KIB) << rng.below(5);
            if wanted {
                // The largest power of two that fits a stripe.
                let most = 1 << stripe.ilog2();
                volume.block_bytes = bytes.min(most);
                volume.size = volume.size.next_multiple_of(volume.block_bytes);
            }
        }
    }

    /// Devices up to four times as large as the smallest, or twice where each is to be filled.
    fn other_sizes(&mut self, rng: &mut Rng) {
        let (wanted, few) = (rng.chance(20), rng.chance(50));
        let most = self.device_bytes / self.slot_bytes * if self.full.is_some() { 1 } else { 3 };
        let kinds = [
            0,
            rng.range(1, most),
            rng.range(1, most),
            rng.range(1, most),
        ];
        // Two kinds of device, as after a purchase, or several.
        let kinds = &kinds[..if few { 2 } else { 4 }];
        let more = (0..self.devices).map(|_| rng.pick(kinds)).collect();
        if wanted {
            self.more_slots = more;
        }
    }

    /// What of this it has that no status tells.
    pub fn marks(&self) -> impl Iterator<Item = &'static str> {
        let sizes = |d| self.bytes_of(d);
        let kinds: BTreeSet<u64> = (0..self.devices).map(sizes).collect();
        let sparse = self.volumes.iter().any(|volume| volume.sparse);
        let many = self.full.is_some() && self.device_bytes / self.slot_bytes >= 640;
        let marks = [
            (kinds.len() > 1, "devices of different sizes"),
            (
                self.spare > 0 && self.groups == 1,
                "spare space in one group",
            ),
            (many, "many slots to be filled"),
            (self.full_thin, "a thin volume to be filled"),
            (self.reserve.is_some(), "little kept for cleaning"),
            (
                self.full.is_some() && sparse,
                "a thin volume beside a full one",
            ),
        ];
        marks
            .into_iter()
            .filter_map(|(has, mark)| has.then_some(mark))
    }

    /// The strip, or the least that it may be where the array chooses it.
    pub fn strip(&self) -> u64 {
        match self.strip_bytes {
            Some(bytes) => u64::from(bytes),
            None if self.slot_bytes == MIB => 64 * KIB,
            None => 4 * KIB, // or more: a slot has a dozen stripes
        }
    }

    /// Data columns that the largest volume block may take, which comes before the redundancy of what is written
    /// with too few devices (#87).
    pub fn least_columns(&self) -> usize {
        let blocks = self.volumes.iter().map(|v| v.block_bytes);
        let columns = blocks.max().unwrap_or(1).div_ceil(self.strip());
        usize::try_from(columns).expect("at most K")
    }

    /// How many nodes of maps its shards keep in memory, together.
    pub fn cached_nodes(&self) -> u64 {
        let shards = self.most_shards.unwrap_or(self.shards) as u64;
        (self.memory_bytes / 2 / shards / (4 * KIB)).max(16) * shards
    }
}
