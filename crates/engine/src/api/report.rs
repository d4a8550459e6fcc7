//! Builds the status report from the state of the engine.

use std::collections::BTreeMap;

use ashlar_accel::{Choice, Fault};
use ashlar_format::BLOCK_U64;
use ashlar_format::journal::Ring;
use ashlar_format::slot::SegmentKind;
use ashlar_format::superblock::MemberState;
use ashlar_space::floors::Class;
use ashlar_space::topology::Area;

use crate::api::array::Array;
use crate::api::lost::lost_ranges;
use crate::api::volume::WriteCache;
use crate::home::Home;
use crate::home::work::{Bound, Progress};
use crate::options::{Setting, rates_of, uuid_text};
use crate::protocol::{ShardMessage, ask};
use crate::segment::Segment;
use crate::status::{
    Accelerator, ArrayStatus, Clean, DeviceErrors, DeviceState, DeviceStatus, Exposure, Frontend,
    HostCounters, JournalStatus, MapStatus, MemoryStatus, Service, TaskState, TaskStatus,
    VolumeStatus, Work,
};

impl Array {
    /// How the array is, in full.
    pub async fn status(&self) -> ArrayStatus {
        let home = &self.0.home;
        let (mut cached, mut dirty) = (0, 0);
        for shard in &home.shards {
            let stats = ask(shard, ShardMessage::Stats).await.unwrap_or_default();
            cached += stats.cached_bytes;
            dirty += stats.dirty_bytes;
        }
        let superblock = home.superblock.borrow();
        let (delta_size, delta_used) = home.journal.usage(Ring::Delta);
        let (data_size, data_used) = home.journal.usage(Ring::Data);
        let columns = home.core.written().len() as u64;
        let (exposure, unreadable_bytes) = exposure(home);
        ArrayStatus {
            name: superblock.name.clone(),
            uuid: uuid_text(&home.core.identity.array),
            state: home.state(),
            health: home.health(),
            attention: Vec::new(),
            service: self.service(),
            generation: superblock.generation.number,
            layout: superblock.layout.clone(),
            k: home.topology().shape().k,
            m: home.topology().shape().m,
            devices_total: u16::try_from(home.topology().shape().devices())
                .expect("16-bit indexes"),
            spare: home.topology().shape().spare,
            strip_bytes: u64::from(superblock.strip_blocks) * BLOCK_U64,
            slot_bytes: u64::from(home.core.slot_blocks) * BLOCK_U64,
            capacity: home.capacity(),
            clean: clean_status(home),
            map: MapStatus {
                bytes: map_bytes(home),
                cached_bytes: cached,
            },
            journal: JournalStatus {
                bytes: (delta_size + data_size) * columns,
                used_bytes: (delta_used + data_used) * columns,
                devices: columns,
            },
            memory: MemoryStatus {
                limit_bytes: self.0.memory.get(),
                used_bytes: cached + dirty,
            },
            accelerator: self.accelerator(),
            exposure,
            unreadable_bytes,
            devices: home
                .core
                .members
                .iter()
                .filter_map(|m| device_status(m, home))
                .collect(),
            tasks: task_status(home),
            volumes: self.volume_status(),
            lost: lost_ranges(home),
            scrub: self.scrubs().pop(),
        }
    }

    fn accelerator(&self) -> Accelerator {
        let (home, best) = (&self.0.home, "the fastest kernel this processor has");
        let status = home.core.coder.status();
        let (reason, fault) = match (status.choice, status.fault) {
            (Choice::Cpu, _) => (best.to_string(), None),
            (Choice::Auto, Some(Fault::NoDriver)) => (format!("{best}; no GPU here"), None),
            // Nobody asked for it, and it has done nothing yet.
            (Choice::Auto, Some(fault)) if status.device.is_none() => {
                (format!("{best}; no GPU: {fault}"), None)
            }
            (_, Some(fault)) => (status.reason(), Some(fault.to_string())),
            (_, None) => (status.reason(), None),
        };
        let chosen = if status.is_on_device() {
            status.chosen()
        } else {
            format!("cpu ({})", kernel(home))
        };
        Accelerator {
            chosen,
            reason,
            fault,
        }
    }

    fn service(&self) -> Service {
        let home = &self.0.home;
        if home.core.closed.get() {
            Service::Stopped
        } else if home.agreement.waiting().is_some() {
            Service::WritesWait
        } else if self.0.read_only {
            Service::ReadOnly
        } else {
            Service::Full
        }
    }

    fn volume_status(&self) -> Vec<VolumeStatus> {
        let home = &self.0.home;
        let catalog = home.catalog.borrow();
        let layout = home.superblock.borrow().layout.clone();
        catalog
            .volumes
            .iter()
            .filter(|v| !v.destroying)
            .map(|v| {
                let counters = self
                    .0
                    .counters
                    .borrow()
                    .get(&v.number)
                    .cloned()
                    .unwrap_or_default();
                VolumeStatus {
                    name: v.name.clone(),
                    size_bytes: v.size_bytes,
                    used_bytes: v.mapped_bytes,
                    block_bytes: u64::from(v.block_blocks) * BLOCK_U64,
                    digest: ashlar_digest::Kind::from_tag(v.digest)
                        .map_or("unknown", |k| k.name())
                        .to_string(),
                    compress: "off".to_string(),
                    layout: layout.clone(),
                    write_cache: WriteCache::of(v).name().to_string(),
                    frontends: v
                        .frontends
                        .iter()
                        .map(|(kind, address)| Frontend {
                            kind: kind.clone(),
                            address: address.clone(),
                        })
                        .collect(),
                    host: HostCounters {
                        reads: counters.reads.get(),
                        writes: counters.writes.get(),
                        flushes: counters.flushes.get(),
                        read_bytes: counters.read_bytes.get(),
                        written_bytes: counters.written_bytes.get(),
                    },
                }
            })
            .collect()
    }
}

/// `None` for one that is no member any more.
fn device_status(member: &crate::members::Member, home: &Home) -> Option<DeviceStatus> {
    let used = member.slots.used() as u64;
    let state = match member.state() {
        MemberState::Online => DeviceState::Online,
        MemberState::Failed => DeviceState::Failed,
        MemberState::Stale if home.slow.why(member.index).is_some() => DeviceState::Slow,
        MemberState::Stale => DeviceState::Missing,
        MemberState::Offline => DeviceState::Offline,
        MemberState::Spare => DeviceState::Spare,
        MemberState::Removing => DeviceState::Removing,
        MemberState::Removed => return None,
    };
    Some(DeviceStatus {
        index: member.index,
        uuid: uuid_text(&member.uuid()),
        path: member.path(),
        last_path: String::new(),
        storage: String::new(),
        size_bytes: member.geometry().size_bytes,
        domain: member.domain(),
        state,
        errors: DeviceErrors {
            read: member.counters.read_errors.get(),
            write: member.counters.write_errors.get(),
            digest: member.counters.digest_errors.get(),
        },
        used_bytes: used * member.geometry().slot_bytes,
        read_bytes: member.counters.read_bytes.get(),
        written_bytes: member.counters.written_bytes.get(),
    })
}

/// Slots that clients leave to others.
fn reserve_slots(home: &Home) -> u64 {
    let ledger = home.space.ledger();
    let (nodes, each) = ledger.floors().of(Class::Client);
    let columns =
        |area, segments: u32| u64::from(ledger.plan().of(area).laid()) * u64::from(segments);
    let groups = (0..ledger.topology().groups()).map(Area::Group);
    columns(Area::Nodes, nodes) + groups.map(|area| columns(area, each)).sum::<u64>()
}

fn clean_status(home: &Home) -> Clean {
    let (host, all) = (home.core.meters.host.get(), home.core.meters.data.get());
    Clean {
        write_amplification: (host > 0).then(|| all as f64 / host as f64),
        free_slots: home.free_slots() as u64,
        reserve_slots: reserve_slots(home),
    }
}

fn map_bytes(home: &Home) -> u64 {
    let segments = home.core.segments.borrow();
    segments
        .values()
        .filter(|s| s.kind == SegmentKind::Meta)
        .map(|s| u64::from(s.live.borrow().count()) * BLOCK_U64)
        .sum()
}

fn kernel(home: &Home) -> String {
    let code = ashlar_codec::Code::new(
        ashlar_codec::CodeKind::IsalCauchy,
        usize::from(home.topology().shape().k),
        usize::from(home.topology().shape().m),
    );
    code.map_or_else(|_| "-".to_string(), |c| c.kernel().to_string())
}

/// What can be read, by redundancy left, and how many bytes cannot.
fn exposure(home: &Home) -> (Vec<Exposure>, u64) {
    let mut by_redundancy: BTreeMap<u16, u64> = BTreeMap::new();
    let mut unreadable = 0;
    let segments = home.core.segments.borrow();
    for segment in segments.values().filter(|s| s.kind == SegmentKind::Data) {
        let mut live = u64::from(segment.live.borrow().count());
        let left = home.core.redundancy(segment);
        if left.is_none() {
            let gone = blocks_on_missing_columns(home, segment);
            unreadable += gone;
            live -= gone;
        }
        if live > 0 {
            let left = u16::try_from(left.unwrap_or(0)).expect("at most 255");
            *by_redundancy.entry(left).or_default() += live * BLOCK_U64;
        }
    }
    let exposure = |(redundancy, bytes)| Exposure { redundancy, bytes };
    let by_redundancy = by_redundancy.into_iter().rev().map(exposure);
    (by_redundancy.collect(), unreadable * BLOCK_U64)
}

/// Live blocks of a segment that lie on columns which are missing.
fn blocks_on_missing_columns(home: &Home, segment: &Segment) -> u64 {
    let live = segment.live.borrow();
    let missing: Vec<usize> = home.core.missing(segment).collect();
    let strip = segment.geometry.strip_blocks;
    let data: Vec<u32> = (0..)
        .zip(0..segment.geometry.k)
        .filter(|(column, _)| missing.contains(column))
        .map(|(_, column)| column.into())
        .collect();
    let of_stripe = |stripe: u32| {
        let first = stripe * u32::from(segment.geometry.k) * strip;
        let of = |column: &u32| live.count_in(first + column * strip..first + (column + 1) * strip);
        data.iter().map(of).sum::<u32>()
    };
    (0..segment.geometry.stripes())
        .map(of_stripe)
        .sum::<u32>()
        .into()
}

fn task_status(home: &Home) -> Vec<TaskStatus> {
    let tasks = home.tasks.borrow();
    let now = home.core.rt.now();
    let bad = home.core.bad.repairs.borrow().bad() as u64;
    let scrubbed = home.scrubs.reports().last().map_or(0, |r| r.found().0);
    let found = |work, p: &Progress| match work {
        Work::Repair => p.healed + bad,
        Work::Scrub => scrubbed,
        _ => 0,
    };
    let status = |(work, p): (Work, &Progress)| {
        let (state, total, reason) = match p.paused {
            Some(_) => (
                TaskState::Paused,
                left_to_do(home, work),
                home.why_paused(work),
            ),
            // What waits grows with each device that is lost meanwhile.
            None if work == Work::Rebuild && p.state == TaskState::Waiting => {
                (p.state, left_to_do(home, work), p.reason.to_string())
            }
            None if work == Work::Scrub => (p.state, left_to_do(home, work), p.reason.to_string()),
            None => (p.state, p.total, p.reason.to_string()),
        };
        let reason = match reason.is_empty() && state == TaskState::Running {
            true => why_held(home, work, p).unwrap_or_default(),
            false => reason,
        };
        let speed = p.speed.bytes_per_second(p.paused.unwrap_or(now), p.done);
        // Paused before there is anything to do, nothing of that is done.
        let (done, total) = match state {
            TaskState::Paused if p.is_over() => (0, total - p.done),
            _ => (p.done, total.max(p.done)),
        };
        TaskStatus {
            id: work.id(),
            kind: work.name().to_string(),
            state: state.name().to_string(),
            done_bytes: done,
            total_bytes: total,
            bytes_per_second: speed,
            eta_seconds: (state == TaskState::Running && speed > 0)
                .then(|| total.saturating_sub(p.done) / speed),
            reason,
            found: found(work, p),
            healed: p.healed,
        }
    };
    let has_run = |(work, p): &(Work, &Progress)| {
        let rested = p.done == 0 && found(*work, p) == 0 && p.state == TaskState::Done;
        p.paused.is_some() || p.state != TaskState::New && !rested
    };
    Work::ALL
        .into_iter()
        .map(|work| (work, tasks.progress(work)))
        .filter(has_run)
        .map(status)
        .collect()
}

/// Which rate holds work back that runs, if one did within the last second.
fn why_held(home: &Home, work: Work, p: &Progress) -> Option<String> {
    let (at, bound) = p.held?;
    if home.core.rt.now().saturating_sub(at) > ashlar_rt::SECOND {
        return None;
    }
    let [min, max] = rates_of(work)?;
    let rate = |setting: &Setting| {
        let name = setting.key.replace("reconstruct", "rebuild");
        format!(
            "held to {name} ({} a second and device)",
            home.setting(setting)
        )
    };
    Some(match bound {
        Bound::Min => format!("clients are at work: {}", rate(min)),
        Bound::Max => rate(max),
    })
}

/// All that paused or waiting work is about, what was done of it included.
fn left_to_do(home: &Home, work: Work) -> u64 {
    let done = home.tasks.borrow().progress(work).done;
    match work {
        Work::Rebuild => done + home.bytes_missing(),
        Work::Scrub => done + home.bytes_to_scrub(),
        _ => done + home.bytes_to_move().unwrap_or(0),
    }
}
