//! Every choice of a seed before its history begins: its range or weights, and what overrides it.
//!
//! | generator | what it draws | overridden by |
//! |---|---|---|
//! | `seed` | a layout of one group, mode, strip, volumes, alignment, clients, rounds, what is filled, slots, weights
//! of operations, shards, memory, operations, longest write, crashes | `mode`, `clients`, `rounds`, `crash_at`,
//! `roomy`, `full`, `operations`, `pressed`, `without` |
//! | [`GROUPED`] | a layout of several groups, slow imports | `grouped`, `pressed` |
//! | purpose 1 | slots of several courses, their strips | [`Part::LargeSlots`] |
//! | purpose 2 | maps larger than their cache | [`Part::LargeMaps`] |
//! | purpose 3 | weights of settings and forced failures | [`Part::Set`], [`Part::ForcedFail`] |
//! | purpose 4 | up to four shards | [`Part::MoreShards`] |
//! | purpose 5 | failure domains | [`Part::Domains`] |
//! | purpose 6 | volume blocks of up to a stripe | [`Part::LargeBlocks`] |
//! | purpose 7 | devices of different sizes | [`Part::OtherSizes`] |
//! | purpose 8 | many slots to be filled | [`Part::ManySlots`] |
//! | purpose 9 | the weight of bursts | [`Part::Bursts`] |
//! | purpose 10 | thin volumes in arrays to be filled | [`Part::FullThin`] |
//! | purpose 11 | spare space in one group | [`Part::Spare`] |
//! | purpose 12 | little kept for cleaning | [`Part::TightReserve`] |
//! | purpose 13 | batches that are journalled in parts | [`Part::Piles`] |
//! | purpose 14 | whether devices come back while the array runs | [`Part::Returns`] |
//! | purpose 15 | whether hosts renew a beat | [`Part::Beats`] |
//! | purpose 16 | the weight of trims of all free slots | [`Part::Discards`] |
//! | purpose 17 | whether there are scrubs | [`Part::Scrubs`] |
//!
//! Invariants: draws of one generator have a fixed order; each purpose has a generator of its own, so that a seed that
//! one of them leaves alone keeps its history; what is too large for a full array is not drawn for one.

use super::{Align, Config, Mode, Options, Part, VolumeConfig, Weights};
use crate::rng::Rng;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
/// 4 KiB.
const BLOCK: u64 = 4 * KIB;
/// Makes the generator of layouts of several groups.
const GROUPED: u64 = 0x6800_07ED;
/// Makes the generators of purposes.
const PURPOSES: u64 = 0x0715_DE4E;

impl Config {
    /// The configuration of `seed`.
    pub fn random(seed: u64, options: Options) -> Config {
        let rng = &mut Rng::new(seed);
        let later = &mut Rng::new(seed ^ GROUPED);
        let Geometry {
            layout,
            k,
            m,
            devices,
            groups,
            spare,
        } = Geometry::random(rng, later, options.grouped);
        let slow_import_percent = later.pick(&[0, 0, 30, 70]);
        let (press_percent, slow_import_percent) = match options.pressed {
            true => (100, 100),
            false => (12, slow_import_percent),
        };
        let mode = mode(rng, options);
        let strip_bytes = rng.pick(&[None, Some(4096), Some(8192), Some(16_384)]);
        let volumes = volumes(rng, devices > 8, strip_bytes);
        let align = align(rng, mode);
        let clients = if rng.chance(40) { 1 } else { rng.range(2, 4) };
        let rounds = rounds(rng, options);
        let full = full(rng, k, options);
        let slots = slots(rng, full.is_some());
        let mut weights = weights(rng, mode);
        if full.is_some() {
            weights.fill += 1;
        }
        Config {
            seed,
            layout,
            k,
            m,
            devices,
            groups,
            spare,
            domains: Vec::new(),
            device_bytes: 64 * 1024 * slots,
            more_slots: Vec::new(),
            slot_bytes: 64 * 1024,
            strip_bytes,
            shards: if rng.chance(30) { 2 } else { 1 },
            most_shards: None,
            memory_bytes: rng.pick(&[8, 16, 64]) << 20,
            full,
            full_thin: false,
            reserve: None,
            stride: None,
            volumes,
            mode,
            rounds,
            clients: options.clients.map_or(clients, |most| clients.min(most)),
            operations: rng.magnitude(60) + 4,
            weights,
            align,
            longest: BLOCK << rng.below(6),
            crash_percent: crash_percent(rng, mode),
            import_crash_percent: match (mode, options.pressed) {
                (Mode::Calm, _) => 0,
                (_, true) => 60,
                (_, false) => rng.pick(&[0, 20, 60]),
            },
            press_percent,
            slow_import_percent,
            same_cut: rng.chance(30),
            crash_at: options.crash_at,
            without: options.without,
            told: options.told,
            returns: false,
            beats: false,
            scrubs: false,
            host: (0, 0),
            more: 0,
            late: options.late,
            read_only: false,
            array: None,
            unchecked: options.unchecked,
            verify: options.verify,
            verify_crashed: options.verify_crashed,
        }
        .reduced(options)
    }
}

fn crash_percent(rng: &mut Rng, mode: Mode) -> u64 {
    match mode {
        Mode::Calm => 0,
        _ => rng.pick(&[50, 80, 100]),
    }
}

fn mode(rng: &mut Rng, options: Options) -> Mode {
    let mode = match rng.below(100) {
        0..8 => Mode::Calm,
        8..40 => Mode::Crash,
        40..88 => Mode::Within,
        _ => Mode::Beyond,
    };
    options.mode.unwrap_or(mode)
}

fn align(rng: &mut Rng, mode: Mode) -> Align {
    match rng.below(10) {
        0..5 => Align::Block,
        5..9 => Align::Unit,
        // After an accepted loss the model checks whole cells only.
        _ if mode == Mode::Beyond => Align::Unit,
        _ => Align::Byte,
    }
}

fn rounds(rng: &mut Rng, options: Options) -> u64 {
    let rounds = if options.crash_at.is_some() {
        1
    } else {
        rng.range(1, 5)
    };
    options.rounds.map_or(rounds, |most| rounds.min(most))
}

/// Slots of the smallest device.
fn slots(rng: &mut Rng, full: bool) -> u64 {
    if full {
        rng.pick(&[112, 160])
    } else {
        rng.pick(&[256, 384, 512])
    }
}

/// The share of an array that is to be filled, if it is to be.
fn full(rng: &mut Rng, k: usize, options: Options) -> Option<u64> {
    let full = (k <= 4 && rng.chance(8)).then(|| rng.pick(&[80, 95, 100]));
    let full = full.filter(|_| !options.roomy);
    if options.full && k <= 4 {
        full.or(Some(95))
    } else {
        full
    }
}

fn volumes(rng: &mut Rng, wide: bool, strip_bytes: Option<u32>) -> Vec<VolumeConfig> {
    let mut volumes: Vec<VolumeConfig> = (0..rng.range(1, 3)).map(|_| volume(rng, wide)).collect();
    for volume in &mut volumes {
        // In a narrow stripe too a block is no larger than a strip; `widened` has larger ones.
        volume.block_bytes = volume.block_bytes.min(strip_bytes.map_or(BLOCK, u64::from));
    }
    volumes
}

fn volume(rng: &mut Rng, wide: bool) -> VolumeConfig {
    let most = if wide { 256 } else { 512 };
    let size = BLOCK * rng.magnitude(most).max(16);
    VolumeConfig {
        size,
        block_bytes: if rng.chance(85) {
            BLOCK
        } else {
            rng.pick(&[2 * BLOCK, 4 * BLOCK])
        },
        thin: rng.chance(20),
        fast_digest: rng.chance(30),
        sparse: false,
    }
}

fn weights(rng: &mut Rng, mode: Mode) -> Weights {
    let mut on = |percent: u64, high: u64| {
        if rng.chance(percent) {
            rng.range(1, high)
        } else {
            0
        }
    };
    let faulty = matches!(mode, Mode::Within | Mode::Beyond);
    Weights {
        write: on(85, 40) + 2,
        durable: on(70, 20),
        read: on(80, 30),
        extents: on(20, 4),
        flush: on(75, 12) + 1,
        trim: on(40, 8),
        zeroes: on(30, 5),
        fill: on(15, 2),
        burst: 0,
        pile: 0,
        create: on(12, 1),
        destroy: on(10, 1),
        status: on(20, 2),
        discard: 0,
        fail: if faulty { on(15, 1) } else { 0 },
        forced_fail: 0,
        set: 0,
        wait: on(15, 1),
        pause: on(40, 6),
    }
}

/// Layouts of several groups among all, in 100.
const GROUPED_PERCENT: u64 = 10;

/// A layout and what it comes to.
#[derive(Debug)]
struct Geometry {
    layout: String,
    k: usize,
    m: usize,
    devices: usize,
    groups: usize,
    spare: u16,
}

impl Geometry {
    /// One of one group, drawn from `rng`, or, seldom or as `wanted`, one of several groups, drawn from `later`.
    fn random(rng: &mut Rng, later: &mut Rng, wanted: bool) -> Geometry {
        let flat = flat(rng);
        let wanted = later.chance(GROUPED_PERCENT) || wanted;
        let grouped = grouped(later);
        if wanted { grouped } else { flat }
    }
}

/// A layout of several groups: small ones, since there are several.
fn grouped(rng: &mut Rng) -> Geometry {
    let groups = 2 + rng.index(2);
    let (name, m, k) = match rng.below(100) {
        0..30 => {
            let groups = 2 + rng.index(3);
            return Geometry {
                layout: "raid10".to_string(),
                k: 1,
                m: 1,
                devices: 2 * groups,
                groups,
                spare: 0,
            };
        }
        30..36 => {
            return Geometry {
                layout: "jbod".to_string(),
                k: 1,
                m: 0,
                devices: groups,
                groups,
                spare: 0,
            };
        }
        36..66 => ("raid50", 1, 1 + rng.index(3)),
        66..92 => ("raid60", 2, 1 + rng.index(3)),
        _ => ("raid70", 3, 1 + rng.index(2)),
    };
    // With a device to spare in each group redundancy can return within it.
    let each = usize::from(rng.chance(40));
    Geometry {
        layout: format!("{name}:{groups}"),
        k,
        m,
        devices: groups * (k + m + each),
        groups,
        spare: u16::try_from(groups * each).expect("a few"),
    }
}

/// A layout of one group.
fn flat(rng: &mut Rng) -> Geometry {
    let extra = if rng.chance(40) { rng.index(4) } else { 0 };
    let ec = |k: usize, m: usize, extra: usize| (format!("ec{k}+{m}"), k, m, k + m + extra);
    let (layout, k, m, devices) = match rng.below(100) {
        0..8 => {
            let devices = 1 + rng.index(4);
            ("raid0".to_string(), devices, 0, devices)
        }
        8..24 => ("raid1".to_string(), 1, 1, 2),
        24..34 => ec(1, 3, extra),
        34..44 => ec(3, 1, 2 + rng.index(4)),
        44..54 => ec(2, 1, extra),
        54..64 => ec(2, 2, extra),
        64..80 => ec(4, 2, extra),
        80..89 => ec(8, 2, extra.min(2)),
        89..98 => ec(8, 3, extra.min(2)),
        _ => ec(20, 4, 0),
    };
    Geometry {
        layout,
        k,
        m,
        devices,
        groups: 1,
        spare: 0,
    }
}

impl Config {
    /// The same, in some seeds with more of what the purposes have.
    pub fn widened(mut self) -> Config {
        let seed = self.seed;
        let purpose = |name: u64| Rng::new(seed ^ PURPOSES).fork(name);
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
        self.beats = self.may(Part::Beats) && self.mode != Mode::Calm && purpose(15).chance(40);
        self.returns = self.may(Part::Returns) && purpose(14).chance(50);
        self.weights.discard = u64::from(self.may(Part::Discards) && purpose(16).chance(30));
        self.scrubs = self.may(Part::Scrubs) && purpose(17).chance(30);
        if self.may(Part::MoreShards) && purpose(4).chance(25) {
            self.most_shards = Some(4);
        }
        if self.may(Part::Spare) {
            self.spare_space(&mut purpose(11));
        }
        if self.may(Part::Domains) {
            self.failure_domains(&mut purpose(5));
        }
        if self.returns {
            self.more_devices(&mut purpose(15));
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

    /// Devices that are added: to an array of one group, so that nobody has to know which of them they belong to.
    fn more_devices(&mut self, rng: &mut Rng) {
        let (wanted, more) = (rng.chance(40), 1 + rng.index(3));
        let domains = self.domains.iter().max().copied();
        let domain = |_| domains.map(|last| rng.index(last + 2));
        let domains: Vec<usize> = (0..more).filter_map(domain).collect();
        if wanted && self.groups == 1 {
            (self.more, self.devices) = (more, self.devices + more);
            self.domains.extend(domains);
        }
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
        let mut more = || rng.range(1, most);
        let kinds = [0, more(), more(), more()];
        // Two kinds of device, as after a purchase, or several.
        let kinds = &kinds[..if few { 2 } else { 4 }];
        let more = (0..self.devices).map(|_| rng.pick(kinds)).collect();
        if wanted {
            self.more_slots = more;
        }
    }
}
