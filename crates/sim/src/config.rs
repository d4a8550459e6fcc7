//! The random shape of one seed's history: swarm style, each seed enables another subset of
//! operations, faults and sizes.
//!
//! Invariants: a configuration follows from its seed and [`Options`] alone; geometry is biased
//! small, offsets are biased to collide.

use crate::rng::Rng;

/// What may go wrong in a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing: operations, exports and imports only.
    Calm,
    /// Power cuts and daemon deaths.
    Crash,
    /// As `Crash`, with faults on at most M devices at a time.
    Within,
    /// Faults without limit; only wrong bytes, hangs and panics count.
    Beyond,
}

impl Mode {
    /// The mode called `name`.
    pub fn named(name: &str) -> Option<Mode> {
        match name {
            "calm" => Some(Mode::Calm),
            "crash" => Some(Mode::Crash),
            "within" => Some(Mode::Within),
            "beyond" => Some(Mode::Beyond),
            _ => None,
        }
    }
}

/// A part of a history that can be left out, to see whether a failure needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Part {
    Read,
    Extents,
    Flush,
    Trim,
    Zeroes,
    Fill,
    Create,
    Destroy,
    Status,
    Fail,
    Wait,
    Pause,
    Durable,
    Nemesis,
    Outage,
    ImportCrash,
    OtherVolumes,
    OtherShards,
    PartsOfBlocks,
    LargeSlots,
    LargeMaps,
    Set,
    ForcedFail,
    MoreShards,
    Domains,
    LargeBlocks,
    OtherSizes,
    ManySlots,
    Bursts,
    FullThin,
    Spare,
    TightReserve,
    Piles,
    Refusals,
    FormerLife,
}

impl Part {
    /// All of them.
    pub const ALL: [Part; 35] = [
        Part::Read,
        Part::Extents,
        Part::Flush,
        Part::Trim,
        Part::Zeroes,
        Part::Fill,
        Part::Create,
        Part::Destroy,
        Part::Status,
        Part::Fail,
        Part::Wait,
        Part::Pause,
        Part::Durable,
        Part::Nemesis,
        Part::Outage,
        Part::ImportCrash,
        Part::OtherVolumes,
        Part::OtherShards,
        Part::PartsOfBlocks,
        Part::LargeSlots,
        Part::LargeMaps,
        Part::Set,
        Part::ForcedFail,
        Part::MoreShards,
        Part::Domains,
        Part::LargeBlocks,
        Part::OtherSizes,
        Part::ManySlots,
        Part::Bursts,
        Part::FullThin,
        Part::Spare,
        Part::TightReserve,
        Part::Piles,
        Part::Refusals,
        Part::FormerLife,
    ];

    /// Its bit in [`Options::without`].
    pub fn bit(self) -> u64 {
        1 << self as u64
    }
}

/// What the caller decides instead of the seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The mode of every seed.
    pub mode: Option<Mode>,
    /// At most this many rounds.
    pub rounds: Option<u64>,
    /// At most this many clients.
    pub clients: Option<u64>,
    /// Crash the first session after exactly so many polls, and have no other.
    pub crash_at: Option<u64>,
    /// Leave out the seeds' full arrays: volumes stay small against their array.
    pub roomy: bool,
    /// Nothing but full arrays.
    pub full: bool,
    /// Nothing but layouts of several groups.
    pub grouped: bool,
    /// Sessions that crash do so as the journal presses, and every import is slow.
    pub pressed: bool,
    /// A degraded array is taken at its word: as many more devices are lost as it says it survives.
    pub told: bool,
    /// Parity and lost columns are computed by an accelerator that answers late.
    pub late: bool,
    /// At most this many operations a client does in a session.
    pub operations: Option<u64>,
    /// Parts left out: bits of [`Part::bit`].
    pub without: u64,
    /// Keep a readable trace.
    pub trace: bool,
    /// Without ledger, probes and comparison of what is read: what is left is what a history costs.
    pub unchecked: bool,
    /// The independent verifier looks at one seed in so many; `None`: as many as cost little.
    pub verify: Option<u64>,
    /// It also looks at what is there before each import.
    pub verify_crashed: bool,
}

/// How writes are aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Whole volume blocks.
    Block,
    /// 512 bytes.
    Unit,
    /// Any byte.
    Byte,
}

/// A volume to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeConfig {
    /// Its size in bytes.
    pub size: u64,
    /// Bytes a volume block.
    pub block_bytes: u64,
    /// Whether it is thin.
    pub thin: bool,
    /// Whether its digest is xxh3 rather than blake3.
    pub fast_digest: bool,
    /// Whether it is large, and written in a few places far apart.
    pub sparse: bool,
}

/// How likely each kind of operation is, in any unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// Write, acknowledged from memory.
    pub write: u64,
    /// Write, acknowledged when durable.
    pub durable: u64,
    /// Read.
    pub read: u64,
    /// Ask which parts are holes.
    pub extents: u64,
    /// Flush.
    pub flush: u64,
    /// Trim.
    pub trim: u64,
    /// Write zeroes.
    pub zeroes: u64,
    /// Overwrite a whole volume in order.
    pub fill: u64,
    /// Write many blocks at once.
    pub burst: u64,
    /// Write much over what was durable, and flush.
    pub pile: u64,
    /// Make a volume.
    pub create: u64,
    /// Destroy a volume.
    pub destroy: u64,
    /// Ask for the status.
    pub status: u64,
    /// Fail a device.
    pub fail: u64,
    /// Fail a device whatever it costs.
    pub forced_fail: u64,
    /// Change a setting.
    pub set: u64,
    /// Wait for background work.
    pub wait: u64,
    /// Do nothing for a while.
    pub pause: u64,
}

/// One seed's history, before it happens.
#[derive(Clone, Debug)]
pub struct Config {
    /// The seed.
    pub seed: u64,
    /// The array's layout, in its notation.
    pub layout: String,
    /// Data strips a stripe.
    pub k: usize,
    /// Parity strips a stripe: how many devices of each group may be damaged at a time.
    pub m: usize,
    /// Devices.
    pub devices: usize,
    /// Groups that no segment of data crosses: so many runs of devices of equal length.
    pub groups: usize,
    /// Devices' worth of spare space, over all groups.
    pub spare: u16,
    /// The failure domain of each device, if there are any.
    pub domains: Vec<usize>,
    /// Bytes of the smallest device.
    pub device_bytes: u64,
    /// How many slots each device has beyond those of the smallest, if there are any.
    pub more_slots: Vec<u64>,
    /// Bytes a slot.
    pub slot_bytes: u64,
    /// Bytes a strip, if not the default.
    pub strip_bytes: Option<u32>,
    /// Shards.
    pub shards: usize,
    /// Whether each import has another number of them, up to so many.
    pub most_shards: Option<usize>,
    /// Memory limit.
    pub memory_bytes: u64,
    /// Makes one volume of this share in 100 of the usable space instead of `volumes`.
    pub full: Option<u64>,
    /// Whether that volume is thin.
    pub full_thin: bool,
    /// What `clean.reserve` is set to before it is made, if to anything.
    pub reserve: Option<&'static str>,
    /// A burst writes each n-th block; `None`: anywhere.
    pub stride: Option<u64>,
    /// The volumes made at the start.
    pub volumes: Vec<VolumeConfig>,
    /// What may go wrong.
    pub mode: Mode,
    /// Sessions.
    pub rounds: u64,
    /// Clients at once.
    pub clients: u64,
    /// Operations a client does in a session, about.
    pub operations: u64,
    /// Operation kinds.
    pub weights: Weights,
    /// Alignment of writes.
    pub align: Align,
    /// The longest usual write.
    pub longest: u64,
    /// Chance in 100 that a session ends in a crash rather than an export.
    pub crash_percent: u64,
    /// Chance in 100 that an import crashes.
    pub import_crash_percent: u64,
    /// Chance in 100 that a session that crashes at work does so as the journal presses for a commit.
    pub press_percent: u64,
    /// Chance in 100 that devices are slow while an import runs.
    pub slow_import_percent: u64,
    /// Whether a power cut treats every disk alike.
    pub same_cut: bool,
    /// The poll after which the first session crashes, if not a random one.
    pub crash_at: Option<u64>,
    /// Parts left out: bits of [`Part::bit`].
    pub without: u64,
    /// A degraded array is taken at its word.
    pub told: bool,
    /// What is computed comes late.
    pub late: bool,
    /// The array is imported to be read only.
    pub read_only: bool,
    /// The array that an import names; `None`: none.
    pub array: Option<[u8; 16]>,
    /// Whether nothing is checked, to measure what checking costs.
    pub unchecked: bool,
    /// One seed in so many is verified offline.
    pub verify: Option<u64>,
    /// And what is there before each import.
    pub verify_crashed: bool,
}

/// 4 KiB.
const BLOCK: u64 = 4096;

impl Config {
    /// The configuration of `seed`.
    pub fn random(seed: u64, options: Options) -> Config {
        let rng = &mut Rng::new(seed);
        let (layout, k, m, devices) = geometry(rng);
        // What was drawn later than the rest has a generator of its own, so that no other draw moves.
        let later = &mut Rng::new(seed ^ 0x6800_07ED);
        let flat = Grouped {
            layout,
            k,
            m,
            devices,
            groups: 1,
            spare: 0,
        };
        let wanted = later.chance(GROUPED_PERCENT) || options.grouped;
        let drawn = grouped(later);
        let Grouped {
            layout,
            k,
            m,
            devices,
            groups,
            spare,
        } = if wanted { drawn } else { flat };
        let slow_import_percent = later.pick(&[0, 0, 30, 70]);
        let (press_percent, slow_import_percent) = if options.pressed {
            (100, 100)
        } else {
            (12, slow_import_percent)
        };
        let mode = match rng.below(100) {
            0..8 => Mode::Calm,
            8..40 => Mode::Crash,
            40..88 => Mode::Within,
            _ => Mode::Beyond,
        };
        let mode = options.mode.unwrap_or(mode);
        let wide = devices > 8;
        let strip_bytes = rng.pick(&[None, Some(4096), Some(8192), Some(16_384)]);
        let mut volumes: Vec<VolumeConfig> =
            (0..rng.range(1, 3)).map(|_| volume(rng, wide)).collect();
        for volume in &mut volumes {
            // In a narrow stripe too a block is no larger than a strip; `widened` has larger ones.
            volume.block_bytes = volume.block_bytes.min(strip_bytes.map_or(BLOCK, u64::from));
        }
        let align = match rng.below(10) {
            0..5 => Align::Block,
            5..9 => Align::Unit,
            _ => Align::Byte,
        };
        let clients = if rng.chance(40) { 1 } else { rng.range(2, 4) };
        let rounds = if options.crash_at.is_some() {
            1
        } else {
            rng.range(1, 5)
        };
        let full = (k <= 4 && rng.chance(8)).then(|| rng.pick(&[80, 95, 100]));
        let full = full.filter(|_| !options.roomy);
        let full = if options.full && k <= 4 {
            full.or(Some(95))
        } else {
            full
        };
        let slots = if full.is_some() {
            rng.pick(&[112, 160])
        } else {
            rng.pick(&[256, 384, 512])
        };
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
            rounds: options.rounds.map_or(rounds, |most| rounds.min(most)),
            clients: options.clients.map_or(clients, |most| clients.min(most)),
            operations: rng.magnitude(60) + 4,
            weights,
            // After an accepted loss the model checks whole cells only.
            align: if mode == Mode::Beyond && align == Align::Byte {
                Align::Unit
            } else {
                align
            },
            longest: BLOCK << rng.below(6),
            crash_percent: if mode == Mode::Calm {
                0
            } else {
                rng.pick(&[50, 80, 100])
            },
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
            late: options.late,
            read_only: false,
            array: None,
            unchecked: options.unchecked,
            verify: options.verify,
            verify_crashed: options.verify_crashed,
        }
        .reduced(options)
    }

    /// The same in another geometry of one group, with imports that nothing slows down.
    pub fn reshaped(mut self, layout: &str, k: usize, m: usize, devices: usize) -> Config {
        self.layout = layout.to_string();
        (self.k, self.m, self.devices) = (k, m, devices);
        (self.groups, self.spare) = (1, 0);
        self.domains.clear();
        self.more_slots.clear();
        self.slow_import_percent = 0;
        self
    }

    /// Bytes of a device.
    pub fn bytes_of(&self, device: usize) -> u64 {
        let more = self.more_slots.get(device).copied().unwrap_or(0);
        self.device_bytes + more * self.slot_bytes
    }

    /// The group that a device belongs to.
    pub fn group_of(&self, device: usize) -> usize {
        device * self.groups / self.devices.max(1)
    }

    /// The devices of a domain.
    pub fn domain(&self, domain: usize) -> Vec<usize> {
        let devices = 0..self.domains.len();
        devices.filter(|d| self.domains[*d] == domain).collect()
    }

    /// The most devices that can be damaged within the promises: M of each group.
    pub fn most_damaged(&self) -> usize {
        self.groups * self.m
    }

    /// Whether a part has not been left out.
    pub fn may(&self, part: Part) -> bool {
        self.without & part.bit() == 0
    }

    /// Without what `options` leave out.
    fn reduced(mut self, options: Options) -> Config {
        self.operations = options
            .operations
            .map_or(self.operations, |most| self.operations.min(most));
        let w = &mut self.weights;
        for (part, weight) in [
            (Part::Read, &mut w.read),
            (Part::Extents, &mut w.extents),
            (Part::Flush, &mut w.flush),
            (Part::Trim, &mut w.trim),
            (Part::Zeroes, &mut w.zeroes),
            (Part::Fill, &mut w.fill),
            (Part::Create, &mut w.create),
            (Part::Destroy, &mut w.destroy),
            (Part::Status, &mut w.status),
            (Part::Fail, &mut w.fail),
            (Part::Wait, &mut w.wait),
            (Part::Pause, &mut w.pause),
            (Part::Durable, &mut w.durable),
        ] {
            if options.without & part.bit() != 0 {
                *weight = 0;
            }
        }
        if !self.may(Part::ImportCrash) {
            self.import_crash_percent = 0;
        }
        if !self.may(Part::OtherVolumes) {
            self.volumes.truncate(1);
        }
        if !self.may(Part::OtherShards) {
            self.shards = 1;
        }
        if !self.may(Part::PartsOfBlocks) {
            self.align = Align::Block;
        }
        self
    }
}

/// Layouts of several groups among all, in 100.
const GROUPED_PERCENT: u64 = 10;

/// A layout and what it comes to.
#[derive(Debug)]
struct Grouped {
    layout: String,
    k: usize,
    m: usize,
    devices: usize,
    groups: usize,
    spare: u16,
}

/// A layout of several groups: small ones, since there are several.
fn grouped(rng: &mut Rng) -> Grouped {
    let groups = 2 + rng.index(2);
    let (name, m, k) = match rng.below(100) {
        0..30 => {
            let groups = 2 + rng.index(3);
            return Grouped {
                layout: "raid10".to_string(),
                k: 1,
                m: 1,
                devices: 2 * groups,
                groups,
                spare: 0,
            };
        }
        30..36 => {
            return Grouped {
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
    Grouped {
        layout: format!("{name}:{groups}"),
        k,
        m,
        devices: groups * (k + m + each),
        groups,
        spare: u16::try_from(groups * each).expect("a few"),
    }
}

fn geometry(rng: &mut Rng) -> (String, usize, usize, usize) {
    let extra = if rng.chance(40) { rng.index(4) } else { 0 };
    let ec = |k: usize, m: usize, extra: usize| (format!("ec{k}+{m}"), k, m, k + m + extra);
    match rng.below(100) {
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
    }
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
        fail: if faulty { on(15, 1) } else { 0 },
        forced_fail: 0,
        set: 0,
        wait: on(15, 1),
        pause: on(40, 6),
    }
}
