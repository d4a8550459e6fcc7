//! A device measured: its link alone, kernels on data that is in its memory, and whole jobs from host
//! memory to host memory, beside the same jobs on one core.
//!
//! **Invariants**: one run, one device, one batch size for the link and the jobs that are compared with
//! it; a job's result is compared with the processor's before it is measured; a job that did not run where
//! it was to be measured is a fault, not a figure.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use ashlar_codec::{Code, CodeKind};

use crate::cuda::{Device, Link};
use crate::{
    Accelerator, Choice, Clock, Coding, Digests, Fault, Form, Function, Input, Job, Of, Pending,
    Ran, Region,
};

/// What to measure.
#[derive(Clone)]
pub struct Options {
    /// Number of the GPU.
    pub number: u16,
    /// K and M of what is encoded.
    pub shapes: Vec<(usize, usize)>,
    /// Strips lost of K+M, for each shape that is decoded.
    pub losses: Vec<(usize, usize, usize)>,
    /// Digests of data and parity taken with what is encoded; `None` for none.
    pub with: Vec<Option<Function>>,
    /// Digests alone.
    pub functions: Vec<Function>,
    /// Bytes of a message.
    pub blocks: Vec<usize>,
    /// Bytes of a strip.
    pub strip: usize,
    /// Bytes of input of a job from host to host.
    pub batch_bytes: usize,
    /// Jobs under way at a time.
    pub slots: usize,
    /// Bytes of input for the kernels alone: more than the device's caches.
    pub memory_bytes: usize,
    /// Nanoseconds for each figure.
    pub nanos: u64,
    /// Nanoseconds on the wall.
    pub clock: Clock,
    /// Nanoseconds of processor time of this process.
    pub processor_clock: Clock,
}

/// What a figure is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The link alone, pinned memory.
    Link,
    /// Kernels on data in the device's memory.
    Memory,
    /// Jobs from host memory to host memory.
    EndToEnd,
    /// The same jobs on one core.
    Processor,
}

impl Part {
    /// One word.
    pub const fn name(self) -> &'static str {
        match self {
            Part::Link => "link",
            Part::Memory => "device memory",
            Part::EndToEnd => "host to host",
            Part::Processor => "one core",
        }
    }
}

/// One figure.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// Of what.
    pub part: Part,
    /// `copy in`, `copy out`, `copy both ways`, `encode`, `decode` or `digest`.
    pub operation: &'static str,
    /// Strips read and strips written of a stripe; 0 where nothing is coded.
    pub k: usize,
    /// See `k`.
    pub rows: usize,
    /// The digest taken, if one is.
    pub function: Option<Function>,
    /// Bytes of a message.
    pub block: usize,
    /// Bytes of input a second.
    pub bytes_per_second: f64,
    /// Of what the link alone would take for the same bytes, in its busier direction.
    pub link_fraction: Option<f64>,
    /// Seconds of processor time for each 10^9 bytes of input.
    pub processor_seconds_per_gb: Option<f64>,
}

/// A run.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The device and its link, as in [`crate::Status`].
    pub device: String,
    /// The figures.
    pub rows: Vec<Row>,
}

/// One operation, ready to be made into jobs.
struct Task {
    operation: &'static str,
    coding: Option<Arc<Coding>>,
    function: Option<Function>,
    block: usize,
    strip: usize,
    strips: usize,
}

/// A region that several jobs read.
struct Shared(Arc<Region>);

impl Deref for Shared {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Task {
    fn rows(&self) -> usize {
        self.coding.as_ref().map_or(0, |coding| coding.rows())
    }

    fn k(&self) -> usize {
        self.coding.as_ref().map_or(0, |coding| coding.k())
    }

    fn bytes_in(&self) -> usize {
        self.strips * self.strip
    }

    fn written(&self) -> usize {
        self.coding.as_ref().map_or(0, |coding| {
            self.strips / coding.k() * coding.rows() * self.strip
        })
    }

    fn bytes_out(&self) -> usize {
        let messages = (self.bytes_in() + self.written()) / self.block;
        self.written() + self.function.map_or(0, |f| f.bytes() * messages)
    }

    fn job(&self, read: &Arc<Region>, write: Region) -> Result<Job<Region>, Fault> {
        let digests = self.function.map(|function| Digests {
            function,
            block: self.block,
            of: Of::Both,
            form: Form::Plain,
            tree: None,
        });
        let input: Vec<Input> = vec![Box::new(Shared(read.clone()))];
        let coding = self.coding.clone();
        let job = Job::new(
            self.strip,
            input,
            vec![write],
            Region::heap,
            coding,
            digests,
        );
        job.map_err(|_| Fault::Wrong("shape of the measurement"))
    }

    fn row(&self, part: Part, bytes_per_second: f64) -> Row {
        Row {
            part,
            operation: self.operation,
            k: self.k(),
            rows: self.rows(),
            function: self.function,
            block: self.function.map_or(0, |_| self.block),
            bytes_per_second,
            link_fraction: None,
            processor_seconds_per_gb: None,
        }
    }
}

/// Measures.
///
/// # Errors
/// Why the device cannot be used, or [`Fault::Wrong`] if it does not do what the processor does.
pub fn run(options: &Options) -> Result<Report, Fault> {
    let mut rows = in_memory(options)?;
    let device = Device::open(options.number, &limits(options))?;
    let link = device.link(options.nanos, &options.clock)?;
    drop(device);
    let copies = [
        ("copy in", link.into),
        ("copy out", link.out),
        ("copy both ways", link.both),
    ];
    for (operation, rate) in copies {
        let mut row = task(options, operation, None, None, 0).row(Part::Link, rate);
        row.block = 0;
        rows.push(row);
    }
    let accelerator = Accelerator::new(Choice::Cuda(options.number), limits(options));
    if !accelerator.wait_until_open(Duration::from_secs(120)) {
        let fault = accelerator.status().fault;
        return Err(fault.unwrap_or(Fault::Timeout { seconds: 120 }));
    }
    for task in tasks(options)? {
        rows.push(end_to_end(options, &accelerator, &task, &link)?);
        rows.push(on_one_core(options, &task)?);
    }
    Ok(Report {
        device: without_counters(&accelerator),
        rows,
    })
}

/// The same jobs on one core, without a device.
///
/// # Errors
/// [`Fault::Wrong`] if a shape is none.
pub fn run_on_one_core(options: &Options) -> Result<Report, Fault> {
    let rows: Result<Vec<Row>, Fault> = tasks(options)?
        .iter()
        .map(|task| on_one_core(options, task))
        .collect();
    let device = without_counters(&Accelerator::cpu());
    Ok(Report {
        device,
        rows: rows?,
    })
}

/// The status less what has been done, which is known here.
fn without_counters(accelerator: &Accelerator) -> String {
    let status = accelerator.status();
    let rates = status.rates_text();
    let chosen = if status.is_on_device() {
        status.chosen() + " "
    } else {
        String::new()
    };
    format!("{chosen}{}{rates}", status.reason())
}

/// The limits of the accelerator that is measured.
fn limits(options: &Options) -> crate::Options {
    crate::Options {
        slots: options.slots,
        slot_bytes: options.batch_bytes,
        queue: options.slots + 1,
        // An input that all jobs read, and an output for each.
        pinned_bytes: options.batch_bytes * (2 * options.slots + 3),
        deadline_ms: 60_000,
        check_one_in: 0, // a result is compared before it is measured
        calibrate_bytes: options.batch_bytes,
        clock: Some(options.clock.clone()),
    }
}

fn task(
    options: &Options,
    operation: &'static str,
    coding: Option<Arc<Coding>>,
    function: Option<Function>,
    block: usize,
) -> Task {
    let k = coding.as_ref().map_or(1, |coding| coding.k());
    let widest = coding
        .as_ref()
        .map_or(1, |coding| coding.k().max(coding.rows()));
    let strip = options
        .strip
        .min(options.batch_bytes / widest / 16 * 16)
        .max(16);
    let stripes = (options.batch_bytes / (strip * widest)).max(1);
    let block = block.clamp(1, strip);
    Task {
        operation,
        coding,
        function,
        block,
        strip,
        strips: stripes * k,
    }
}

fn tasks(options: &Options) -> Result<Vec<Task>, Fault> {
    let shape = |_| Fault::Wrong("shape of the measurement");
    let block = options.blocks.first().copied().unwrap_or(4096);
    let mut tasks = Vec::new();
    for &(k, m) in &options.shapes {
        let code = Code::new(CodeKind::IsalCauchy, k, m).map_err(shape)?;
        let coding = Arc::new(Coding::encode(&code));
        for &function in &options.with {
            tasks.push(task(
                options,
                "encode",
                Some(coding.clone()),
                function,
                block,
            ));
        }
    }
    for &(k, m, lost) in &options.losses {
        let code = Code::new(CodeKind::IsalCauchy, k, m).map_err(shape)?;
        let lost: Vec<usize> = (0..lost.min(m)).collect();
        let present: Vec<bool> = (0..k + m).map(|strip| !lost.contains(&strip)).collect();
        let decoder = code.decoder(&present, &lost).map_err(shape)?;
        let coding = Arc::new(Coding::decode(&code, &decoder));
        tasks.push(task(options, "decode", Some(coding), None, block));
    }
    for &function in &options.functions {
        for &block in &options.blocks {
            tasks.push(task(options, "digest", None, Some(function), block));
        }
    }
    Ok(tasks)
}

/// Kernels alone.
fn in_memory(options: &Options) -> Result<Vec<Row>, Fault> {
    let limits = crate::Options {
        slots: 1,
        slot_bytes: options.memory_bytes,
        pinned_bytes: 0,
        ..limits(options)
    };
    let device = Device::open(options.number, &limits)?;
    let mut rows = Vec::new();
    for task in tasks(options)? {
        let rate = match (&task.coding, task.function) {
            (Some(coding), None) => device.product_rate(coding, task.strip)?,
            (None, Some(function)) => device.digest_rate(function, task.block)?,
            _ => continue,
        };
        rows.push(task.row(Part::Memory, rate));
    }
    Ok(rows)
}

/// Jobs one after the other, as many under way as there are slots and one more.
#[expect(clippy::cast_precision_loss, reason = "rates")]
fn end_to_end(
    options: &Options,
    accelerator: &Accelerator,
    task: &Task,
    link: &Link,
) -> Result<Row, Fault> {
    let read = Arc::new(filled(accelerator.region(task.bytes_in())));
    check(accelerator, task, &read)?;
    let mut under_way: VecDeque<Pending<Region>> = VecDeque::new();
    let (clock, processor) = (&options.clock, &options.processor_clock);
    let (mut from, mut spent, mut bytes, mut jobs) = (clock(), processor(), 0, 0);
    let warm = 2 * options.slots;
    loop {
        let write = if under_way.len() > options.slots {
            let done = under_way.pop_front().ok_or(Fault::Closed)?.wait();
            on_device(&done)?;
            jobs += 1;
            bytes += task.bytes_in();
            if jobs == warm {
                (from, spent, bytes) = (clock(), processor(), 0);
            }
            let over = clock().saturating_sub(from) >= options.nanos;
            if jobs > warm && over {
                break;
            }
            done.write.into_iter().next().ok_or(Fault::Closed)?
        } else {
            accelerator.region(task.written())
        };
        under_way.push_back(accelerator.submit(task.job(&read, write)?));
    }
    let took = clock().saturating_sub(from).max(1) as f64;
    let spent = processor().saturating_sub(spent) as f64;
    for job in under_way {
        on_device(&job.wait())?;
    }
    let rate = bytes as f64 / took * 1e9;
    let out = rate * task.bytes_out() as f64 / task.bytes_in() as f64;
    let mut row = task.row(Part::EndToEnd, rate);
    row.link_fraction = Some((rate / link.into).max(out / link.out));
    row.processor_seconds_per_gb = Some(spent / bytes as f64);
    Ok(row)
}

fn on_device(done: &crate::Done<Region>) -> Result<(), Fault> {
    match (done.fault, done.ran) {
        (Some(fault), _) => Err(fault),
        (None, Ran::Cpu) => Err(Fault::Wrong(
            "size of the measurement: it does not fit a slot",
        )),
        (None, Ran::Cuda(_)) => Ok(()),
    }
}

/// One job here and there.
fn check(accelerator: &Accelerator, task: &Task, read: &Arc<Region>) -> Result<(), Fault> {
    let there = accelerator
        .submit(task.job(read, accelerator.region(task.written()))?)
        .wait();
    on_device(&there)?;
    let here = Accelerator::cpu()
        .submit(task.job(read, Region::heap(task.written()))?)
        .wait();
    let same = there.write.iter().zip(&here.write).all(|(a, b)| **a == **b);
    if same && there.digests == here.digests {
        Ok(())
    } else {
        Err(Fault::Wrong(task.operation))
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates")]
fn on_one_core(options: &Options, task: &Task) -> Result<Row, Fault> {
    let accelerator = Accelerator::cpu();
    let read = Arc::new(filled(Region::heap(task.bytes_in())));
    let mut write = Region::heap(task.written());
    let (clock, processor) = (&options.clock, &options.processor_clock);
    let (from, spent) = (clock(), processor());
    let mut bytes = 0;
    loop {
        let done = accelerator.submit(task.job(&read, write)?).wait();
        bytes += task.bytes_in();
        if clock().saturating_sub(from) >= options.nanos {
            break;
        }
        write = done.write.into_iter().next().ok_or(Fault::Closed)?;
    }
    let took = clock().saturating_sub(from).max(1) as f64;
    let spent = processor().saturating_sub(spent) as f64;
    let mut row = task.row(Part::Processor, bytes as f64 / took * 1e9);
    row.processor_seconds_per_gb = Some(spent / bytes as f64);
    Ok(row)
}

/// Bytes that are not all the same.
fn filled(mut region: Region) -> Region {
    let mut x = 1u64;
    for bytes in region.chunks_mut(8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes.copy_from_slice(&x.to_le_bytes()[..bytes.len()]);
    }
    region
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("number", &self.number)
            .field("shapes", &self.shapes)
            .field("batch_bytes", &self.batch_bytes)
            .finish_non_exhaustive()
    }
}
