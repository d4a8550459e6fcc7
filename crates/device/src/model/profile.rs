//! Named drives: what the service-time model needs to know of each, and where that comes from.
//!
//! Each profile describes a drive in steady state: full, preconditioned with random writes, without
//! caches that absorb bursts. Figures marked "assumed" have no published source; they are chosen once
//! and printed with results.

use ashlar_rt::{MICROSECOND, Nanos};

/// How a drive with a moving head turns and seeks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotation {
    /// Average seek.
    pub seek: Nanos,
    /// Half a turn: the average wait after a seek.
    pub half_turn: Nanos,
    /// Bandwidth at offset 0, bytes per second.
    pub outer_bytes_per_second: u64,
    /// Bandwidth at the end, bytes per second; linear in between.
    pub inner_bytes_per_second: u64,
}

/// A drive, for [`ModelDevice`](super::ModelDevice).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Its name in options and results.
    pub name: &'static str,
    /// Where the figures come from, for results.
    pub source: &'static str,
    /// Random reads per second, each of up to what the bandwidth moves in that time.
    pub read_iops: u64,
    /// Read bandwidth, bytes per second.
    pub read_bytes_per_second: u64,
    /// Random writes per second, each of one `write_unit_bytes`.
    pub write_iops: u64,
    /// What a random write is rounded out to: the drive's mapping unit.
    pub write_unit_bytes: u64,
    /// Writes that continue another, and discards, per second.
    pub command_iops: u64,
    /// Sequential write bandwidth, bytes per second.
    pub write_bytes_per_second: u64,
    /// What a flush costs.
    pub flush: Nanos,
    /// Added to every read, without keeping the drive busy.
    pub read_latency: Nanos,
    /// Added to every write, without keeping the drive busy.
    pub write_latency: Nanos,
    /// Mixed loads: thousandths of each write's time in which the drive also reads (above 0), or that
    /// it takes longer for the reads that follow (below 0). 0: a mixed load is the sum of its parts.
    pub read_gain_permille: i64,
    /// Set for a drive with a moving head; the figures above then hold for its electronics only.
    pub rotation: Option<Rotation>,
}

impl Profile {
    /// One of 24 drives (3.2 TB, 3 drive writes a day) in an NVMe-oF enclosure.
    ///
    /// Operations and bandwidths: the published no-RAID baseline of the SupremeRAID study of such an
    /// enclosure, divided by its 24 drives. Assumed: commands as reads; latencies of TLC over RDMA;
    /// flush of a drive whose cache survives power loss.
    pub const DATA24: Profile = Profile {
        name: "data24",
        source: "SupremeRAID SR-1000 on OpenFlex Data24, baseline / 24; commands, latency, flush assumed",
        read_iops: 637_000,
        read_bytes_per_second: 2_980_000_000,
        write_iops: 261_000,
        write_unit_bytes: 4096,
        command_iops: 637_000,
        write_bytes_per_second: 1_650_000_000,
        flush: 20 * MICROSECOND,
        read_latency: 95 * MICROSECOND,
        write_latency: 25 * MICROSECOND,
        read_gain_permille: 0,
        rotation: None,
    };

    /// A mainstream PCIe 4 data-centre drive of 7.68 TB with TLC flash, 1 drive write a day.
    ///
    /// Operations, bandwidths and latencies: the class of the Micron 7450 PRO (data sheet). Assumed:
    /// commands as reads; flush as for `data24`.
    pub const NVME_TLC: Profile = Profile {
        name: "nvme-tlc",
        source: "class of Micron 7450 PRO 7.68 TB, data sheet; commands and flush assumed",
        read_iops: 1_000_000,
        read_bytes_per_second: 6_800_000_000,
        write_iops: 215_000,
        write_unit_bytes: 4096,
        command_iops: 1_000_000,
        write_bytes_per_second: 5_600_000_000,
        flush: 20 * MICROSECOND,
        read_latency: 80 * MICROSECOND,
        write_latency: 15 * MICROSECOND,
        read_gain_permille: 0,
        rotation: None,
    };

    /// A large PCIe 4 drive with QLC flash and a mapping unit of 16 KiB.
    ///
    /// Operations and bandwidths: the class of the Solidigm D5-P5336 (data sheet: 16 KiB random
    /// writes). Assumed: commands as reads; latencies; flush as for `data24`.
    pub const QLC: Profile = Profile {
        name: "qlc",
        source: "class of Solidigm D5-P5336 30.72 TB, data sheet; commands, latency, flush assumed",
        read_iops: 1_005_000,
        read_bytes_per_second: 7_000_000_000,
        write_iops: 43_000,
        write_unit_bytes: 16_384,
        command_iops: 1_005_000,
        write_bytes_per_second: 3_000_000_000,
        flush: 20 * MICROSECOND,
        read_latency: 110 * MICROSECOND,
        write_latency: 20 * MICROSECOND,
        read_gain_permille: 0,
        rotation: None,
    };

    /// A 7,200 rpm SAS drive of the GridRAID study, with its write cache off.
    ///
    /// Zones: 98 to 58 MB/s per drive, as seen there while reconstructing. Seek: 8.5 ms, the class's
    /// data sheet. Assumed: 20,000 commands a second through its interface, nothing to flush beyond
    /// one command, no reordering of queued commands.
    pub const HDD: Profile = Profile {
        name: "hdd",
        source: "GridRAID study (98 to 58 MB/s), 8.5 ms + half a turn at 7,200 rpm; rest assumed",
        read_iops: 20_000,
        read_bytes_per_second: 98_000_000,
        write_iops: 20_000,
        write_unit_bytes: 4096,
        command_iops: 20_000,
        write_bytes_per_second: 98_000_000,
        flush: 50 * MICROSECOND,
        read_latency: 0,
        write_latency: 0,
        read_gain_permille: 0,
        rotation: Some(Rotation {
            seek: 8_500 * MICROSECOND,
            half_turn: 4_167 * MICROSECOND,
            outer_bytes_per_second: 98_000_000,
            inner_bytes_per_second: 58_000_000,
        }),
    };

    /// A drive of `data24` with the enclosure's mixed baseline as well.
    ///
    /// 12.0 M mixed operations a second (70 % reads) on 24 drives are 500 K a drive, where the sum of
    /// the parts would be 445 K: reads run in 216 thousandths of the writes' time. All else as `data24`.
    pub const DATA24_DRIVE: Profile = Profile {
        name: "data24-drive",
        source: "SupremeRAID SR-1000 on OpenFlex Data24, baseline / 24, mixed row included; commands, latency, flush assumed",
        read_gain_permille: 216,
        ..Profile::DATA24
    };

    /// One of 24 drives in the later enclosure (Data24 3200).
    ///
    /// Operations: 16.7 M reads a second / 24, as its maker states. Assumed: all else as
    /// `data24-drive`, for the drives are the same.
    pub const DATA24_3200: Profile = Profile {
        name: "data24-3200",
        source: "OpenFlex Data24 3200, 16.7 M reads/s / 24 (xiRAID white paper); rest as data24-drive, assumed",
        read_iops: 696_000,
        command_iops: 696_000,
        ..Profile::DATA24_DRIVE
    };

    /// A PCIe 5 data-centre drive of 6.4 TB with TLC flash, 3 drive writes a day.
    ///
    /// Operations, bandwidths, latencies and the mixed row (720 K): the Micron 9550 MAX as
    /// StorageReview prints its specification. Assumed: commands as reads; flush as for `data24`.
    pub const NVME5_TLC: Profile = Profile {
        name: "nvme5-tlc",
        source: "Micron 9550 MAX 6.4 TB, specification as printed by StorageReview; commands and flush assumed",
        read_iops: 3_300_000,
        read_bytes_per_second: 14_000_000_000,
        write_iops: 640_000,
        write_unit_bytes: 4096,
        command_iops: 3_300_000,
        write_bytes_per_second: 10_000_000_000,
        flush: 20 * MICROSECOND,
        read_latency: 60 * MICROSECOND,
        write_latency: 15 * MICROSECOND,
        read_gain_permille: -1510,
        rotation: None,
    };

    /// 64 GB of memory that keeps its content, as a device: NSULATE's write-hole protection and cache.
    ///
    /// The paper gives its size and no rates. Assumed: all of it, low for DDR4 behind a block layer.
    pub const NVDIMM: Profile = Profile {
        name: "nvdimm",
        source: "all assumed: DDR4-2400 behind a block layer; size from the NSULATE white paper",
        read_iops: 2_000_000,
        read_bytes_per_second: 10_000_000_000,
        write_iops: 2_000_000,
        write_unit_bytes: 4096,
        command_iops: 2_000_000,
        write_bytes_per_second: 10_000_000_000,
        flush: MICROSECOND,
        read_latency: MICROSECOND,
        write_latency: MICROSECOND,
        read_gain_permille: 0,
        rotation: None,
    };

    /// A 7,200 rpm SATA drive of 2 TB: one of the 100 in NSULATE's test machine.
    ///
    /// Zones 175 to 83 MB/s and half a turn: Seagate Constellation ES.3 (product manual); seek 8.2 ms:
    /// HGST Ultrastar 7K4000 (specification). They stand for the paper's Toshiba MG04, a drive of the
    /// same class whose data sheet was not at hand. Assumed: commands and flush as for `hdd`.
    pub const ORION: Profile = Profile {
        name: "orion100",
        source: "class of the paper's Toshiba MG04 2 TB: zones of Seagate ES.3, seek of HGST 7K4000 (manuals); rest assumed",
        read_bytes_per_second: 175_000_000,
        write_bytes_per_second: 175_000_000,
        rotation: Some(Rotation {
            seek: 8_200 * MICROSECOND,
            half_turn: 4_167 * MICROSECOND,
            outer_bytes_per_second: 175_000_000,
            inner_bytes_per_second: 83_000_000,
        }),
        ..Profile::HDD
    };

    /// A drive of the GridRAID study: `hdd` under the name of its machine.
    pub const SONEXION: Profile = Profile {
        name: "sonexion",
        ..Profile::HDD
    };

    /// All named profiles.
    pub const ALL: [Profile; 10] = [
        Profile::DATA24,
        Profile::NVME_TLC,
        Profile::QLC,
        Profile::HDD,
        Profile::DATA24_DRIVE,
        Profile::DATA24_3200,
        Profile::NVME5_TLC,
        Profile::NVDIMM,
        Profile::ORION,
        Profile::SONEXION,
    ];

    /// The profile of this name.
    pub fn named(name: &str) -> Option<Profile> {
        Profile::ALL
            .into_iter()
            .find(|profile| profile.name == name)
    }
}
