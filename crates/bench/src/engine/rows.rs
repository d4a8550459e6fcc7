//! The rows: how each is set up, run, and compared with its closed form.
//!
//! **Invariants**: fill and warm-up are not measured; the same load runs raw.

use std::time::Instant;

use ashlar_layout::Layout;

use super::account::{Counted, Cut};
use super::closed::{Cost, Given, write_amplification};
use super::loads::{LARGE, SMALL, load_of};
use super::rig::{Rig, Sizes, Snapshot, fill_memory, raw};
use super::values::{
    BenchError, Kind, MOST_AMPLIFICATION, MapCache, Options, PhaseRow, Row, Scale, TOLERANCE,
};
use crate::load::{Durability, Load, Measured, Op, Pattern};

const BLOCK: u64 = 4096;
const MIN_VOLUME: u64 = 8 << 20;

/// A row before it is run.
struct Setup {
    kind: Kind,
    k: u16,
    m: u16,
    devices: u16,
    map: MapCache,
    sizes: Sizes,
    volume_bytes: u64,
    memory: u64,
    fill: f64,
    load: Load,
}

/// Measures one row.
pub(super) fn measure(
    options: &Options,
    layout: &Layout,
    devices: u16,
    kind: Kind,
    map: MapCache,
) -> Result<Row, BenchError> {
    let shape = layout.resolve(devices)?;
    let setup = Setup::new(options, (shape.k, shape.m), devices, kind, map);
    let started = Instant::now();
    let mut row = setup.empty_row(options, layout);
    if kind == Kind::Rebuild {
        if let Err(error) = setup.rebuild(&mut row, options, layout) {
            row.reason = error.to_string();
        }
        row.real_seconds = started.elapsed().as_secs_f64();
        return Ok(row);
    }
    match setup.run(options, layout) {
        Ok((measured, done, raw)) => setup.fill_in(&mut row, options, measured, &done, raw),
        Err(error) => row.reason = error.to_string(),
    }
    row.real_seconds = started.elapsed().as_secs_f64();
    Ok(row)
}

/// Data strips that a slot holds, and the blocks written for them, as the format lays a slot out:
/// a header; courses of strips, each followed by a summary block for 126 blocks.
fn strips_of_slot(slot_blocks: u64, strip_blocks: u64) -> (u64, u64) {
    let summary = |strips: u64| (strips * strip_blocks).div_ceil(126);
    let course = (126 / strip_blocks).max(1);
    let full = course * strip_blocks + summary(course);
    let (courses, rest) = ((slot_blocks - 1) / full, (slot_blocks - 1) % full);
    let fits = |strips: &u64| strips * strip_blocks + summary(*strips) <= rest;
    let last = (1..=course).take_while(fits).last().unwrap_or(0);
    let strips = courses * course + last;
    (
        strips,
        1 + strips * strip_blocks + courses * summary(course) + summary(last),
    )
}

impl Setup {
    fn new(
        options: &Options,
        (k, m): (u16, u16),
        devices: u16,
        kind: Kind,
        map: MapCache,
    ) -> Setup {
        let sustained = if let Kind::Sustained(percent) = kind {
            Some(f64::from(percent) / 100.0)
        } else {
            None
        };
        // A rebuild goes through slots in order: with a head they are as large as on devices of 128 GiB, and on larger
        // ones larger.
        let rotates = kind == Kind::Rebuild && options.profile.rotation.is_some();
        let strip_bytes: u32 = match () {
            () if rotates => 128 << 10,
            () if sustained.is_some() || k > 16 => 8 << 10,
            () => 16 << 10,
        };
        let slot_bytes: u64 = match () {
            () if rotates => 8 << 20,
            () if sustained.is_some() => 128 << 10,
            () => 1 << 20,
        };
        let device_bytes = match sustained {
            // Slots, and room for what lies before them.
            Some(_) => (u64::from(options.slots) * slot_bytes * 102 / 100 + (2 << 20))
                .next_multiple_of(slot_bytes),
            None => 16384 * slot_bytes,
        };
        let sizes = Sizes {
            device_bytes,
            slot_bytes,
            strip_bytes,
        };
        let (strips, _) = sizes.slot();
        let all_blocks = u64::from(devices) * u64::from(options.slots) / u64::from(k + m)
            * u64::from(k)
            * strips
            * (u64::from(strip_bytes) / BLOCK);
        let volume_bytes = match sustained {
            Some(fill) => (all_blocks as f64 * fill) as u64 * BLOCK,
            None => options.volume_bytes,
        };
        let volume_bytes = volume_bytes.max(MIN_VOLUME) / LARGE as u64 * LARGE as u64;
        let map_bytes = volume_bytes as f64 / BLOCK as f64 * 32.0 * 64.0 / 63.0;
        let memory = match map {
            MapCache::Cached => map_bytes * 4.0,
            MapCache::Ratio(ratio) => map_bytes * 2.0 / ratio,
        };
        let fill = sustained.map_or(0.0, |_| (volume_bytes / BLOCK) as f64 / all_blocks as f64);
        let memory = memory as u64;
        let depth = options.depth * usize::from(devices);
        let load = load_of(
            kind,
            volume_bytes,
            depth,
            options.overwrites.clamp(0.1, 64.0),
        );
        Setup {
            kind,
            k,
            m,
            devices,
            map,
            sizes,
            volume_bytes,
            memory,
            fill,
            load,
        }
    }

    fn run(
        &self,
        options: &Options,
        layout: &Layout,
    ) -> Result<(Measured, Snapshot, Measured), BenchError> {
        let raw_devices = if self.load.depth == 1 {
            1
        } else {
            self.devices
        };
        let raw_load = Load {
            warm: self.load.warm.min(20_000),
            count: self.load.count.min(200_000),
            ..self.load
        };
        let raw = raw(options.seed, options.profile, raw_devices, raw_load)?;
        let fresh_start = self.kind == Kind::SequentialWrite;
        let memory = if fresh_start {
            self.memory
        } else {
            fill_memory(self.memory)
        };
        let mut rig = self.rig(options, layout, memory)?;
        if !fresh_start {
            rig.fill()?;
            rig.reopen(self.memory)?;
        }
        if self.is_degraded() {
            rig.fail(0)?;
        }
        let (measured, done) = rig.load(self.load)?;
        Ok((measured, done, raw))
    }

    /// An array with its volume, as the row wants them.
    fn rig(&self, options: &Options, layout: &Layout, memory: u64) -> Result<Rig, BenchError> {
        Rig::new(
            options.seed,
            options.profile,
            layout,
            self.devices,
            self.sizes,
            self.volume_bytes,
            memory,
        )
    }

    /// Fills an array, takes a device out and measures how fast what it held comes back: to the devices left, or, where
    /// these are fewer than K+M, to one in its place.
    ///
    /// Closed form, for each lost byte: K bytes read, one written, and that read back, shared by the devices left; to a
    /// replacement, what that one writes and reads back.
    fn rebuild(&self, row: &mut Row, options: &Options, layout: &Layout) -> Result<(), BenchError> {
        let replaced = self.devices <= self.k + self.m;
        let memory = fill_memory(self.memory);
        let mut rig = self.rig(options, layout, memory)?;
        rig.fill()?;
        rig.settle()?;
        let (took, done) = rig.rebuild(self.devices / 2, replaced)?;
        let (k, m, devices) = (
            f64::from(self.k),
            f64::from(self.m),
            f64::from(self.devices),
        );
        let columns = self.volume_bytes as f64 * (k + m) / k * self.given().slot_overhead;
        let lost = columns / devices;
        let left = devices - 1.0;
        let (read, write) = (
            options.profile.read_bytes_per_second as f64,
            options.profile.write_bytes_per_second as f64,
        );
        let total = done.regions.total();
        let shared = left / ((k + 1.0) / read + 1.0 / write);
        let value = lost * 1e9 / took as f64;
        let form = match replaced {
            true => shared.min(1.0 / (1.0 / read + 1.0 / write)),
            false => shared,
        };
        let bytes = (total.read_bytes + total.written_bytes) as f64 / lost;
        row.onto_replacement = replaced;
        row.value = Some(value);
        row.raw = Some(write);
        row.share_of_raw = Some(value / write);
        row.closed_form = Some(form);
        row.device_bytes_per_host_byte = Some(bytes);
        row.closed_form_device_bytes = Some(k + 2.0);
        let busy = left + f64::from(u8::from(replaced));
        row.busy = Some(done.busy as f64 / took as f64 / busy);
        row.regions = done.regions;
        row.valid = (bytes / (k + 2.0) - 1.0).abs() <= TOLERANCE;
        if !row.valid {
            row.reason = format!(
                "device bytes {bytes:.3} for each lost byte, closed form {:.3}",
                k + 2.0
            );
        }
        Ok(())
    }

    /// Whether one device is taken out before the load.
    fn is_degraded(&self) -> bool {
        matches!(self.kind, Kind::DegradedRead | Kind::DegradedWrite)
    }

    fn given(&self) -> Given {
        let (strips, written) = self.sizes.slot();
        let strip_blocks = u64::from(self.sizes.strip_bytes) / BLOCK;
        let (mut k, m, mut devices) = (
            f64::from(self.k),
            f64::from(self.m),
            f64::from(self.devices),
        );
        if self.kind == Kind::DegradedWrite {
            // What is written has its M parity columns, and as many of data as devices are left for them.
            devices -= 1.0;
            k = k.min(devices - m).max(1.0);
        }
        Given {
            k,
            m,
            devices,
            slot_overhead: written as f64 / (strips * strip_blocks) as f64,
            blocks: (self.volume_bytes / BLOCK) as f64,
            fill: self.fill,
            map_to_cache: if let MapCache::Ratio(ratio) = self.map {
                ratio
            } else {
                0.5
            },
            memory_bytes: self.memory as f64,
        }
    }

    /// How the array is cut, for the account.
    fn cut(&self, given: &Given) -> Cut {
        let slot_blocks = self.sizes.slot_bytes / BLOCK;
        let strip_blocks = u64::from(self.sizes.strip_bytes) / BLOCK;
        let segment_blocks = given.k * (self.sizes.slot().0 * strip_blocks) as f64;
        let (nodes, written) = strips_of_slot(slot_blocks, 1);
        let of_operation = (self.load.bytes / SMALL) as f64;
        let before = if self.kind == Kind::SequentialWrite {
            0.0
        } else {
            given.blocks
        };
        let writes = match self.load.op {
            Op::Mixed(reads) => 1.0 - f64::from(reads) / 100.0,
            _ => 1.0,
        };
        let written_blocks = (self.load.warm as f64 + self.load.count as f64 / 2.0) * of_operation;
        let segments = (before + written_blocks * writes) / segment_blocks;
        let all = self.sizes.device_bytes as f64 / self.sizes.slot_bytes as f64;
        Cut {
            strip_blocks: strip_blocks as f64,
            slot_blocks: slot_blocks as f64,
            segment_blocks,
            node_overhead: written as f64 / nodes as f64,
            partitions: if self.sizes.device_bytes * u64::from(self.devices) < 4 << 30 {
                8.0
            } else {
                64.0
            },
            segments: segments.min(all * given.devices / (given.k + given.m)),
        }
    }

    /// Device bytes for each host byte, given what the run counted.
    fn account(&self, options: &Options, done: &Snapshot, operations: f64) -> f64 {
        let count = |phase: &str| {
            let mut tallies = done.phases.iter().filter(|p| p.name == phase);
            tallies.next().map_or(0.0, |p| p.count as f64)
        };
        let counted = Counted {
            host_blocks: done.blocks.0 as f64,
            data_blocks: done.blocks.1 as f64,
            records: count("group commit: record"),
            checkpoints: count("checkpoint: root"),
        };
        let given = self.given();
        let sequential = self.load.pattern == Pattern::Sequential;
        let writes = given.account(&self.cut(&given), &counted, sequential);
        let host = operations * self.load.bytes as f64;
        match self.load.op {
            Op::Read => self.read_cost(options).bytes / self.load.bytes as f64,
            Op::Write => writes / host,
            Op::Mixed(reads) => {
                let reads = operations * f64::from(reads) / 100.0;
                (writes + reads * self.read_cost(options).bytes) / host
            }
        }
    }

    /// What one operation costs by the closed form.
    fn cost(&self, options: &Options) -> Cost {
        match self.load.op {
            Op::Read => self.read_cost(options),
            Op::Write => self.write_cost(options),
            Op::Mixed(reads) => {
                let share = f64::from(reads) / 100.0;
                let (read, write) = (self.read_cost(options), self.write_cost(options));
                Cost {
                    bytes: share * read.bytes + (1.0 - share) * write.bytes,
                    busy: share * read.busy + (1.0 - share) * write.busy,
                }
            }
        }
    }

    fn read_cost(&self, options: &Options) -> Cost {
        let bytes = self.load.bytes as f64;
        let mut cost = self.given().read(&options.profile, bytes);
        if self.kind == Kind::DegradedRead {
            // One device in P: K reads instead of one, for what lies on it.
            let (p, more) = (f64::from(self.devices), f64::from(self.k) - 1.0);
            cost.busy *= (1.0 + more / p) * p / (p - 1.0);
            cost.bytes += bytes * more / p;
        }
        cost
    }

    fn write_cost(&self, options: &Options) -> Cost {
        let given = self.given();
        let leaves = match self.load.pattern {
            Pattern::Random => given.leaves_per_change(),
            Pattern::Sequential => 1.0 / 128.0,
        };
        let mut cost = given.write(&options.profile, self.load.bytes as f64, leaves);
        cost.busy *= f64::from(self.devices) / given.devices;
        cost
    }

    fn empty_row(&self, options: &Options, layout: &Layout) -> Row {
        let durable = self.load.durability == Durability::Durable;
        Row {
            row: self.kind.name(),
            profile: options.profile.name,
            layout: layout.to_string(),
            devices: self.devices,
            onto_replacement: false,
            map_to_cache: self.map,
            durability: if durable { "durable" } else { "cached" },
            value: None,
            unit: if self.kind == Kind::Rebuild {
                "B/s"
            } else if self.load.depth == 1 {
                "us"
            } else if self.load.bytes == SMALL {
                "iops"
            } else {
                "B/s"
            },
            raw: None,
            share_of_raw: None,
            closed_form: None,
            device_bytes_per_host_byte: None,
            closed_form_device_bytes: None,
            accounted_device_bytes: None,
            device_operations_per_host_operation: None,
            valid: false,
            reason: String::new(),
            busy: None,
            scattered_writes: None,
            p99_us: None,
            write_amplification: None,
            closed_form_write_amplification: write_amplification(self.fill),
            leaves_per_change: self.given().leaves_per_change(),
            regions: crate::meter::Regions::default(),
            scale: Scale {
                volume_bytes: self.volume_bytes,
                device_bytes: self.sizes.device_bytes,
                slot_bytes: self.sizes.slot_bytes,
                strip_bytes: u64::from(self.sizes.strip_bytes),
                memory_bytes: self.memory,
                operations: self.load.count,
                warm: self.load.warm,
                depth: self.load.depth,
            },
            phases: Vec::new(),
            real_seconds: 0.0,
        }
    }

    fn fill_in(
        &self,
        row: &mut Row,
        options: &Options,
        measured: Measured,
        done: &Snapshot,
        raw: Measured,
    ) {
        let figure = |m: &Measured| match row.unit {
            "us" => m.mean / 1000.0,
            "iops" => m.per_second(),
            _ => m.per_second() * self.load.bytes as f64,
        };
        let (value, raw) = (figure(&measured), figure(&raw));
        let host_bytes = measured.count as f64 * self.load.bytes as f64;
        let total = done.regions.total();
        let bytes = (total.read_bytes + total.written_bytes) as f64 / host_bytes;
        row.device_bytes_per_host_byte = Some(bytes);
        let cost = self.cost(options);
        let expected = cost.bytes / self.load.bytes as f64;
        let rate = f64::from(self.devices) / cost.busy;
        row.value = Some(value);
        row.raw = Some(raw);
        row.share_of_raw = Some(value / raw);
        let operations = total.reads + total.writes;
        row.device_operations_per_host_operation = Some(operations as f64 / measured.count as f64);
        row.busy = Some(done.busy as f64 / measured.elapsed as f64 / f64::from(self.devices));
        row.scattered_writes =
            (total.writes > 0).then(|| done.scattered as f64 / total.writes as f64);
        row.p99_us = Some(measured.p99 as f64 / 1000.0);
        if self.load.op == Op::Write {
            let given = self.given();
            let overhead = given.slot_overhead * (given.k + given.m) / given.k;
            row.write_amplification =
                Some(done.regions.data.written_bytes as f64 / overhead / host_bytes);
        }
        row.regions = done.regions;
        row.phases = (done.phases.iter().filter(|p| p.count > 0))
            .map(|p| PhaseRow {
                phase: p.name,
                count: p.count,
                share: p.sum as f64 / measured.elapsed as f64,
                mean_us: p.sum as f64 / p.count as f64 / 1000.0,
                most_us: p.most as f64 / 1000.0,
            })
            .collect();
        let share = |t: crate::meter::Traffic| (t.read_bytes + t.written_bytes) as f64 / host_bytes;
        let r = done.regions;
        let parts = format!(
            "data {:.3}, map {:.3}, journal {:.3}, roots {:.3}",
            share(r.data),
            share(r.map),
            share(r.journal),
            share(r.roots)
        );
        if self.load.durability != Durability::Cached {
            row.reason = format!(
                "no closed form for durable writes; device bytes {bytes:.3} per host byte ({parts})"
            );
            return;
        }
        if options.profile.rotation.is_some() {
            row.reason = format!(
                "no closed form for drives that seek; device bytes {bytes:.3} per host byte ({parts})"
            );
            return;
        }
        row.closed_form = Some(if row.unit == "iops" {
            rate
        } else {
            rate * self.load.bytes as f64
        });
        row.closed_form_device_bytes = Some(expected);
        let account = self.account(options, done, measured.count as f64);
        row.accounted_device_bytes = Some(account);
        let form = row.closed_form_write_amplification;
        let amplification = done.blocks.1 as f64 / done.blocks.0.max(1) as f64;
        if (bytes / account - 1.0).abs() > TOLERANCE {
            row.reason = format!(
                "device bytes {bytes:.3} per host byte, by the account {account:.3} ({parts})"
            );
        } else if self.fill > 0.0 && amplification > MOST_AMPLIFICATION * form {
            row.reason = format!(
                "write amplification {amplification:.2}, more than {MOST_AMPLIFICATION} times the closed form's {form:.2}"
            );
        } else {
            row.valid = true;
        }
    }
}

impl Sizes {
    fn slot(&self) -> (u64, u64) {
        strips_of_slot(self.slot_bytes / BLOCK, u64::from(self.strip_bytes) / BLOCK)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn slots_are_cut_as_the_format_says() {
        assert_eq!(strips_of_slot(256, 16), (15, 244));
        assert_eq!(strips_of_slot(32, 2), (15, 32));
        assert_eq!(strips_of_slot(256, 4), (63, 256));
    }

    /// Checkpoints in steps, in the little room that cleaning had left, once used it up to the last slot: no
    /// step freed any, and the array hung for good. Needs many small slots, so that all nodes together
    /// take most of what is kept for checkpoints, and memory for deltas of the whole map. And a thin volume's new
    /// blocks were refused when others took what was counted first, though these only overwrote (#128): in seven
    /// histories of twenty.
    #[test]
    fn a_volume_of_most_of_an_array_can_be_overwritten_at_random() {
        for seed in 0..4 {
            let options = Options {
                slots: 1100,
                overwrites: 0.5,
                seed,
                ..Options::default()
            };
            let layout = "raid1".parse().unwrap();
            let row = measure(&options, &layout, 2, Kind::Sustained(70), MapCache::Cached).unwrap();
            assert!(row.value.is_some(), "{row:?}");
        }
    }
}
