//! What is observed around a test: processors, devices, the files themselves.
//!
//! **Invariant**: counters are read right before and right after; what is not there stays unknown.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::content;
use super::judge::{self, Seen};
use super::load::{self, Outcome, Work};
use super::machine::Processors;
use super::session::{SUITE, Session};
use super::stack::Moved;
use crate::report::honesty::{Facts, MOST_BUSY};
use crate::report::{Evidence, NORMAL, Sample};

/// How long the machine is watched before a test.
const WATCHED: Duration = Duration::from_millis(300);
/// Bytes of each file that are looked at for how well they compress, in pieces.
const LOOKED_AT: u64 = 1 << 20;
const PIECE: u64 = 64 << 10;

/// Counters of the machine at a moment.
pub(super) struct Mark {
    pub(super) at: Instant,
    moved: Vec<Moved>,
    busy: Vec<(String, u64)>,
    processors: Option<Processors>,
    fetched: Option<u64>,
}

/// What is known of the files of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Looked {
    allocated: Option<u64>,
    compression: Option<f64>,
}

impl Session {
    /// Waits for what is written, forgets what was read, and watches what others do.
    pub(super) fn settle(&self, files: &[PathBuf]) -> Foreign {
        if let Ok(dir) = File::open(&self.options.path) {
            let _ = rustix::fs::syncfs(&dir);
        }
        if !self.options.keep_cache {
            load::forget(files);
        }
        let begun = Instant::now();
        loop {
            let foreign = self.watch_others();
            let waited = begun.elapsed().as_secs() >= self.options.wait_quiet;
            if waited || foreign.is_quiet() {
                return foreign;
            }
            thread::sleep(WATCHED);
        }
    }

    /// What others do for a moment.
    fn watch_others(&self) -> Foreign {
        let mark = self.mark();
        thread::sleep(WATCHED);
        let seconds = mark.at.elapsed().as_secs_f64();
        let rate = |(now, before): (Moved, &Moved)| {
            let moved = now.since(*before);
            (moved.read + moved.written) as f64 / seconds
        };
        let now = self.stack.moved(&self.system).into_iter();
        let busy = || self.system.processors()?.share_since(mark.processors?);
        Foreign {
            processors: busy(),
            devices: now.zip(&mark.moved).map(rate).reduce(f64::max),
        }
    }

    pub(super) fn mark(&self) -> Mark {
        let names = self.stack.levels.iter().flat_map(|level| &level.devices);
        let ticks = |name: &String| {
            let text = self.system.text(&format!("/sys/class/block/{name}/stat"))?;
            let ticks = text.split_whitespace().nth(9)?.parse().ok()?;
            Some((name.clone(), ticks))
        };
        Mark {
            busy: names.filter_map(ticks).collect(),
            moved: self.stack.moved(&self.system),
            processors: self.system.processors(),
            fetched: self.system.fetched(),
            at: Instant::now(),
        }
    }

    pub(super) fn seen(
        &self,
        mark: &Mark,
        wrote: bool,
        asked: u64,
        seconds: f64,
        foreign: &Foreign,
    ) -> Seen {
        Seen {
            wrote,
            asked,
            levels: judge::levels(&self.system, &self.stack, &mark.moved),
            one_device: self
                .stack
                .levels
                .first()
                .is_some_and(|level| level.devices.len() == 1),
            fetched: self
                .system
                .fetched()
                .zip(mark.fetched)
                .map(|(now, before)| now.saturating_sub(before)),
            foreign: foreign.devices,
            seconds,
            degraded: self.options.state != NORMAL,
        }
    }

    pub(super) fn facts(&self, looked: Looked, foreign: &Foreign) -> Facts {
        Facts {
            data_bytes: self.data_bytes(),
            caches: self.caches(),
            allocated_bytes: looked.allocated,
            compression: looked.compression,
            device_bytes: None,
            busy_before: foreign.processors,
        }
    }

    /// A sample with what the machine's counters say.
    pub(super) fn sample(
        &self,
        target: &str,
        workload: &str,
        run: u32,
        mark: &Mark,
        seen: &Seen,
    ) -> Sample {
        let bottom = self.stack.levels.last();
        let busy = self.busy(mark);
        let processors = || self.system.processors()?.share_since(mark.processors?);
        let first = seen.levels.first();
        let bytes = first.map(|(_, moved)| {
            if seen.wrote {
                moved.written
            } else {
                moved.read
            }
        });
        let processors = processors();
        let mut all: Vec<(String, f64)> = busy.clone();
        all.extend(processors.map(|share| ("processors".to_string(), share)));
        let limit = all.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        Sample {
            suite: SUITE.to_string(),
            state: self.options.state.clone(),
            workload: workload.to_string(),
            target: target.to_string(),
            devices: bottom.map_or(0, |level| u32::try_from(level.devices.len()).unwrap_or(0)),
            run,
            seed: self.options.seed,
            evidence: Evidence::Real,
            cpu_percent: processors.map(|share| share * 100.0),
            device_bytes_per_host_byte: bytes.map(|bytes| bytes as f64 / seen.asked.max(1) as f64),
            device_busy: busy.iter().map(|(_, share)| *share).reduce(f64::max),
            limit: limit.map_or(String::new(), |(name, share)| {
                format!("{name} {:.0} %", share * 100.0)
            }),
            warnings: self.remarks(),
            ..Sample::default()
        }
    }

    /// Share of the time since `mark` that each device was busy.
    fn busy(&self, mark: &Mark) -> Vec<(String, f64)> {
        let millis = (mark.at.elapsed().as_secs_f64() * 1e3).max(1.0);
        let now = self.mark().busy.into_iter();
        now.zip(&mark.busy)
            .map(|((name, now), (_, before))| {
                (name, (now.saturating_sub(*before) as f64 / millis).min(1.0))
            })
            .collect()
    }
}

/// What others did before a test.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Foreign {
    processors: Option<f64>,
    devices: Option<f64>,
}

impl Foreign {
    /// Whether nothing of it speaks against a test.
    fn is_quiet(self) -> bool {
        self.processors.is_none_or(|share| share <= MOST_BUSY)
            && self.devices.is_none_or(|rate| rate <= judge::MOST_FOREIGN)
    }
}

pub(super) fn fill(sample: &mut Sample, outcome: &Outcome) {
    sample.bytes_per_second =
        (outcome.seconds > 0.0).then(|| outcome.bytes as f64 / outcome.seconds);
    sample.mean_us = Some(outcome.mean_us);
    sample.p99_us = Some(outcome.p99_us);
    if outcome.seconds >= judge::SHORTEST {
        sample.windows.clone_from(&outcome.windows);
    }
}

/// How much of the files is allocated, and how well a part of them compresses.
pub(super) fn look(work: &Work) -> Looked {
    let mut looked = Looked::default();
    let mut content = Vec::new();
    for path in &work.files {
        let Ok(file) = File::open(path) else {
            return Looked::default();
        };
        if let Ok(about) = file.metadata() {
            *looked.allocated.get_or_insert(0) += about.blocks() * 512;
        }
        let pieces = (LOOKED_AT / PIECE).min(work.size / PIECE).max(1);
        for piece in 0..pieces {
            let mut bytes = vec![0; usize::try_from(PIECE).unwrap_or(0)];
            let offset = piece * (work.size / pieces) / PIECE * PIECE;
            let read = file.read_at(&mut bytes, offset).unwrap_or(0);
            content.extend_from_slice(&bytes[..read]);
        }
    }
    looked.compression = (!content.is_empty()).then(|| content::compression(&content));
    looked
}
