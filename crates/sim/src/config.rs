//! The random shape of one seed's history: swarm style, each seed enables another subset of
//! operations, faults and sizes.
//!
//! Invariants: a configuration follows from its seed and [`Options`] alone; geometry is biased
//! small, offsets are biased to collide.

mod draw;

use std::collections::BTreeSet;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

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
    Returns,
    Beats,
    Discards,
    Scrubs,
}

impl Part {
    /// All of them.
    pub const ALL: [Part; 39] = [
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
        Part::Returns,
        Part::Beats,
        Part::Discards,
        Part::Scrubs,
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
    /// Have the devices discard all free slots, or set whether they discard freed ones.
    pub discard: u64,
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
    /// Chance in 100 that a session that crashes at work does so as the journal presses for a checkpoint.
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
    /// Devices come back while the array runs.
    pub returns: bool,
    /// Hosts renew a beat: one that stood still writes nothing after another has taken over.
    pub beats: bool,
    /// Scrubs are started, paused, resumed and stopped.
    pub scrubs: bool,
    /// Which host imports: the machine, and its boot.
    pub host: (u8, u8),
    /// Of the devices, the last ones that the array is not made of: they are added while it runs, or never.
    pub more: usize,
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

impl Config {
    /// The same in another geometry of one group, with imports that nothing slows down.
    pub fn reshaped(mut self, layout: &str, k: usize, m: usize, devices: usize) -> Config {
        self.layout = layout.to_string();
        (self.k, self.m, self.devices) = (k, m, devices);
        (self.groups, self.spare, self.more) = (1, 0, 0);
        self.domains.clear();
        self.more_slots.clear();
        self.slow_import_percent = 0;
        self
    }

    /// How many devices the array is made of.
    pub fn first_devices(&self) -> usize {
        self.devices - self.more
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
