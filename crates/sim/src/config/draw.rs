//! What a seed draws, in a fixed order.
//!
//! Invariants: what was drawn later than the rest has a generator of its own, so that no other draw moves.

use super::geometry::Geometry;
use super::{Align, Config, Mode, Options, Part, VolumeConfig, Weights};
use crate::rng::Rng;

/// 4 KiB.
const BLOCK: u64 = 4096;

impl Config {
    /// The configuration of `seed`.
    pub fn random(seed: u64, options: Options) -> Config {
        let rng = &mut Rng::new(seed);
        let later = &mut Rng::new(seed ^ 0x6800_07ED);
        let Geometry {
            layout,
            k,
            m,
            devices,
            groups,
            spare,
        } = Geometry::random(rng, later, options.grouped);
        let slow_import_percent = later.pick(&[0, 0, 30, 70]);
        let (press_percent, slow_import_percent) = if options.pressed {
            (100, 100)
        } else {
            (12, slow_import_percent)
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
        fail: if faulty { on(15, 1) } else { 0 },
        forced_fail: 0,
        set: 0,
        wait: on(15, 1),
        pause: on(40, 6),
    }
}
