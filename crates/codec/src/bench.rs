//! Measures the codes on this machine, on one core or several, beside what the machine itself can do.
//!
//! **Invariants.**
//! - Every figure is the median of batches, in bytes of **data** (K strips) per second; for
//!   `update`, bytes of the changed strip.
//! - The limits are measured in the same run as the figures they are compared with, a sample of
//!   them after every batch, so that what disturbs one disturbs the other.
//! - Time is what [`Options::clock`] says: with a thread's processor time, others on the same core
//!   cost cache and memory but do not count.
//! - *Hot*: one stripe, again and again. *Cold*: stripes in turn, together [`COLD_BYTES`] or more
//!   (at least two), so that each comes from memory.
//! - What decoding gives has been compared with the original (in the first stripe) before its speed
//!   is reported.

mod rival;
mod stripes;

pub use rival::{Rival, RivalRow, measure_rival};

use std::hint::black_box;
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use crate::kernel::{self, Kernel, SPIN_BYTES};
use crate::{Code, CodeError, CodeKind};

use stripes::{Buffers, Stripes, paged};

/// Bytes that cold stripes go through in turn.
pub const COLD_BYTES: usize = 320 << 20;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Codes; those that refuse a shape are left out of it.
    pub codes: Vec<CodeKind>,
    /// K and M.
    pub shapes: Vec<(usize, usize)>,
    /// Bytes of a strip.
    pub strips: Vec<usize>,
    /// Kernels by name; empty for the fastest.
    pub kernels: Vec<String>,
    /// How many strips, data first, are lost in decoding; more than min(M, K) counts as that.
    pub lost: Vec<usize>,
    /// Stripes from memory instead of one in the caches.
    pub cold: bool,
    /// Let each strip begin 320 bytes further into its page than the one before. Without it all
    /// strips begin at multiples of 4096 and, if longer, at powers of two, and share cache sets.
    pub staggered: bool,
    /// For cold stripes, measure the batch forms too.
    pub batch_forms: bool,
    /// Least time of a batch.
    pub batch: Duration,
    /// Batches for each figure.
    pub batches: usize,
    /// Threads that each do all of it at the same time, with stripes of their own; figures are their
    /// sums.
    pub threads: usize,
    /// Called with the stripes' memory before it is used: to ask for large pages.
    pub advise: fn(&mut [u8]),
    /// Time so far: of this thread on a processor, or of the wall clock.
    pub clock: fn() -> Duration,
}

/// Time since the first call, by the wall clock.
fn wall() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

impl Default for Options {
    fn default() -> Options {
        Options {
            codes: vec![CodeKind::IsalCauchy],
            shapes: vec![(8, 2), (8, 3), (17, 3), (10, 4), (92, 8), (80, 20)],
            strips: vec![4 << 10, 64 << 10, 1 << 20],
            kernels: Vec::new(),
            lost: vec![1, usize::MAX],
            cold: false,
            staggered: true,
            batch_forms: false,
            batch: Duration::from_millis(20),
            batches: 7,
            threads: 1,
            advise: |_| {},
            clock: wall,
        }
    }
}

/// The verb measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// All parity from all data.
    Encode,
    /// Lost data strips from what is left.
    Decode,
    /// The same by a [`crate::Decoder`], which looks nothing up.
    Decoder,
    /// All parity after one data strip has changed.
    Update,
    /// Encoding of batches of stripes.
    EncodeBatch,
    /// Decoding of batches of stripes.
    DecodeBatch,
}

impl Operation {
    /// The name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Encode => "encode",
            Operation::Decode => "decode",
            Operation::Decoder => "decoder",
            Operation::Update => "update",
            Operation::EncodeBatch => "encode_batch",
            Operation::DecodeBatch => "decode_batch",
        }
    }
}

/// One figure.
#[derive(Clone, Debug)]
pub struct Row {
    /// The code.
    pub code: CodeKind,
    /// Data strips.
    pub k: usize,
    /// Parity strips.
    pub m: usize,
    /// Bytes of a strip.
    pub strip_bytes: usize,
    /// The kernel's name.
    pub kernel: &'static str,
    /// The verb.
    pub operation: Operation,
    /// Strips lost; 0 except for decode.
    pub lost: usize,
    /// Whether the stripes came from memory.
    pub cold: bool,
    /// Bytes of data per second, the median of the batches.
    pub bytes_per_second: f64,
    /// The same, of the best batch.
    pub best_bytes_per_second: f64,
    /// What the machine could do while this was measured, in bytes per second: of
    /// [`Limits::read`] for cold stripes, else of [`Limits::multiply`].
    pub limit_bytes_per_second: f64,
    /// For hot stripes, the share of [`Limits::multiply`] that this used: products made per second
    /// over products that the kernel could make if memory were free.
    pub gf_limit_fraction: Option<f64>,
    /// For cold stripes, the share of [`Limits::read`] that this used: bytes of the sources per
    /// second over what one core reads from memory.
    pub read_limit_fraction: Option<f64>,
}

impl Row {
    /// Adds what another thread did at the same time.
    fn add(&mut self, other: &Row) {
        let before = self.bytes_per_second / self.limit_bytes_per_second;
        self.bytes_per_second += other.bytes_per_second;
        self.best_bytes_per_second += other.best_bytes_per_second;
        self.limit_bytes_per_second += other.limit_bytes_per_second;
        let change = self.bytes_per_second / self.limit_bytes_per_second / before;
        self.gf_limit_fraction = self.gf_limit_fraction.map(|f| f * change);
        self.read_limit_fraction = self.read_limit_fraction.map(|f| f * change);
    }
}

/// What the machine could do at best, on one core.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes that a kernel multiplies by constants in registers per second.
    pub multiply: f64,
    /// Bytes read from memory per second.
    pub read: f64,
}

/// What came of measuring one call.
#[derive(Clone, Copy)]
struct Rate {
    median: f64,
    best: f64,
    /// The median of the samples of the limit taken between the batches.
    limit: f64,
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Measures calls, and between them what the machine can do.
struct Meter<'a> {
    options: &'a Options,
    kernel: &'static Kernel,
    /// To be read from memory; empty unless stripes are cold.
    memory: Vec<u8>,
    /// Where in it the next sample begins, in eighths.
    turn: usize,
    /// Where the threads wait for each other before each figure.
    start: &'a Barrier,
}

impl<'a> Meter<'a> {
    fn new(options: &'a Options, kernel: &'static Kernel, start: &'a Barrier) -> Meter<'a> {
        let bytes = if options.cold { COLD_BYTES } else { 0 };
        let mut memory = paged(options, bytes);
        memory.fill(1);
        Meter {
            options,
            kernel,
            memory,
            turn: 0,
            start,
        }
    }

    /// Seconds that `calls` calls take.
    fn time(&self, calls: u32, mut call: impl FnMut()) -> f64 {
        let start = (self.options.clock)();
        for _ in 0..calls {
            call();
        }
        ((self.options.clock)() - start).as_secs_f64().max(1e-9)
    }

    /// The median and the best of the batches of `bytes` per call, in bytes per second.
    fn rate(&mut self, bytes: usize, mut call: impl FnMut()) -> Rate {
        call();
        self.start.wait();
        let (batch, batches) = (
            self.options.batch.as_secs_f64(),
            self.options.batches.max(1),
        );
        let mut calls = 1u32;
        let mut rates = Vec::with_capacity(batches);
        let mut limits = Vec::with_capacity(batches);
        while rates.len() < batches {
            let taken = self.time(calls, &mut call);
            if taken < batch && rates.is_empty() {
                let short = batch / taken;
                if short > 1.1 {
                    calls = calls.saturating_mul((short * 1.1).clamp(2.0, 1000.0) as u32);
                    continue;
                }
            }
            rates.push(bytes as f64 * f64::from(calls) / taken);
            limits.push(if self.options.cold {
                self.read()
            } else {
                self.multiply()
            });
        }
        let limit = median(&mut limits);
        Rate {
            median: median(&mut rates),
            best: rates[rates.len() - 1],
            limit,
        }
    }

    /// Bytes multiplied in registers per second, now.
    fn multiply(&self) -> f64 {
        let kernel = self.kernel;
        let mut rounds = 64;
        loop {
            let taken = self.time(1, || {
                black_box(kernel.spin(black_box(rounds)));
            });
            if taken > 200e-6 {
                return (rounds * SPIN_BYTES) as f64 / taken;
            }
            rounds *= 4;
        }
    }

    /// Bytes read from memory per second, now: the next eighth of what there is, as four streams.
    fn read(&mut self) -> f64 {
        let eighth = self.memory.len() / 8;
        let part = &self.memory[self.turn * eighth..(self.turn + 1) * eighth];
        let (words, _) = part.as_chunks::<8>();
        let (lines, _) = words.as_chunks::<8>();
        let quarter = lines.len() / 4;
        let taken = self.time(1, || {
            let mut sums = [0u64; 8];
            let (a, rest) = lines.split_at(quarter);
            let (b, rest) = rest.split_at(quarter);
            let (c, d) = rest.split_at(quarter);
            for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
                for i in 0..8 {
                    let word = |line: &[[u8; 8]; 8]| u64::from_le_bytes(line[i]);
                    sums[i] ^= word(a) ^ word(b) ^ word(c) ^ word(d);
                }
            }
            black_box(sums);
        });
        self.turn = (self.turn + 1) % 8;
        eighth as f64 / taken
    }
}

/// Measures the limits for a kernel.
///
/// # Errors
/// [`CodeError::NoKernel`] if this processor has no kernel of that name.
pub fn limits(options: &Options, kernel: &str) -> Result<Limits, CodeError> {
    let kernel = kernel::by_name(kernel).ok_or(CodeError::NoKernel)?;
    let cold = Options {
        cold: true,
        ..options.clone()
    };
    let start = Barrier::new(1);
    let mut meter = Meter::new(&cold, kernel, &start);
    let mut multiplied: Vec<f64> = (0..16).map(|_| meter.multiply()).collect();
    let mut read: Vec<f64> = (0..16).map(|_| meter.read()).collect();
    Ok(Limits {
        multiply: median(&mut multiplied),
        read: median(&mut read),
    })
}

/// Measures everything asked for.
///
/// # Errors
/// [`CodeError::NoKernel`] if this processor has no kernel of a name asked for;
/// [`CodeError::Shape`] for a shape that no code has. A code that is not MDS for a shape is left
/// out of it.
pub fn run(options: &Options) -> Result<Vec<Row>, CodeError> {
    let threads = options.threads.max(1);
    let start = Barrier::new(threads);
    let each: Vec<Result<Vec<Row>, CodeError>> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map(|_| scope.spawn(|| run_one(options, &start)))
            .collect();
        let mut each = vec![run_one(options, &start)];
        for other in others {
            match other.join() {
                Ok(rows) => each.push(rows),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        each
    });
    let mut sums: Vec<Row> = Vec::new();
    for rows in each {
        let rows = rows?;
        if sums.is_empty() {
            sums = rows;
            continue;
        }
        for (sum, row) in sums.iter_mut().zip(rows) {
            sum.add(&row);
        }
    }
    Ok(sums)
}

/// What one thread measures.
fn run_one(options: &Options, start: &Barrier) -> Result<Vec<Row>, CodeError> {
    let named: Vec<&str> = match &options.kernels[..] {
        [] => vec![kernel::fastest().name],
        names => names.iter().map(String::as_str).collect(),
    };
    let mut rows = Vec::new();
    for name in named {
        let kernel = kernel::by_name(name).ok_or(CodeError::NoKernel)?;
        let mut meter = Meter::new(options, kernel, start);
        for &code in &options.codes {
            for &(k, m) in &options.shapes {
                let code = match Code::with_kernel(code, k, m, name) {
                    Err(CodeError::NotMds { .. }) => continue,
                    other => other?,
                };
                for &strip in &options.strips {
                    measure(&mut meter, &code, strip, &mut rows);
                }
            }
        }
    }
    Ok(rows)
}

/// Every figure of one code with strips of one length.
fn measure(meter: &mut Meter<'_>, code: &Code, strip: usize, rows: &mut Vec<Row>) {
    let options = meter.options;
    let code = &if options.cold {
        code.streamed()
    } else {
        code.clone()
    };
    let (k, m) = (code.k(), code.m());
    // Two spare strips in each stripe: the old and the new content in updates.
    let mut stripes = Stripes::new(options, k + m + 2, strip);
    let mut push = |operation, lost, outputs: usize, rate: Rate| {
        let of_limit = rate.median / rate.limit;
        rows.push(Row {
            code: code.kind(),
            k,
            m,
            strip_bytes: strip,
            kernel: code.kernel(),
            operation,
            lost,
            cold: options.cold,
            bytes_per_second: rate.median,
            best_bytes_per_second: rate.best,
            limit_bytes_per_second: rate.limit,
            gf_limit_fraction: (!options.cold).then_some(of_limit * outputs as f64),
            read_limit_fraction: options.cold.then_some(of_limit),
        });
    };
    let parity = |number| number >= k && number < k + m;
    let mut all = Buffers::new(&mut stripes, parity);
    all.each()
        .for_each(|(read, _, write)| code.encode(&read[..k], &mut write[..m]));
    let encoded = all.in_turn(meter, k * strip, |read, _, write| {
        code.encode(&read[..k], write)
    });
    push(Operation::Encode, 0, m, encoded);
    if options.cold && options.batch_forms {
        let batched = all.in_batches(meter, k * strip, k, |batch| code.encode_batch(batch));
        push(Operation::EncodeBatch, 0, m, batched);
    }
    let mut counts: Vec<usize> = options
        .lost
        .iter()
        .map(|&lost| lost.min(m).min(k))
        .collect();
    counts.dedup();
    for lost in counts.into_iter().filter(|&lost| lost > 0) {
        measure_decode(meter, code, &mut stripes, lost, &mut push);
    }
    if m > 0 {
        let mut all = Buffers::new(&mut stripes, parity);
        let updated = all.in_turn(meter, strip, |read, _, write| {
            code.update(0, read[k], read[k + 1], write);
        });
        push(Operation::Update, 0, m, updated);
    }
}

/// Decoding of the first `lost` strips: by a call that looks up what is needed each time, and by a
/// [`crate::Decoder`] made once.
fn measure_decode(
    meter: &mut Meter<'_>,
    code: &Code,
    stripes: &mut Stripes,
    lost: usize,
    push: &mut impl FnMut(Operation, usize, usize, Rate),
) {
    let (k, m, strip) = (code.k(), code.m(), stripes.strip);
    let wanted: Vec<usize> = (0..lost).collect();
    let mut all = Buffers::new(stripes, |number| number < lost);
    let before: Vec<Vec<u8>> = all.write[..lost]
        .iter()
        .map(|strip| strip.to_vec())
        .collect();
    all.write[..lost].iter_mut().for_each(|strip| strip.fill(0));
    let decoded = all.in_turn(meter, k * strip, |_, strips, write| {
        let done = code.decode(&strips[..k + m], &wanted, write);
        assert!(done.is_ok(), "{done:?}");
    });
    push(Operation::Decode, lost, lost, decoded);
    let same = |all: &Buffers<'_>| all.write.iter().zip(&before).all(|(s, b)| **s == **b);
    assert!(same(&all));
    let present: Vec<bool> = (0..k + m).map(|number| number >= lost).collect();
    let Ok(decoder) = code.decoder(&present, &wanted) else {
        return;
    };
    all.write[..lost].iter_mut().for_each(|strip| strip.fill(0));
    let planned = all.in_turn(meter, k * strip, |read, _, write| {
        decoder.decode(&read[..k], write);
    });
    push(Operation::Decoder, lost, lost, planned);
    assert!(same(&all));
    if meter.options.cold && meter.options.batch_forms {
        let batched = all.in_batches(meter, k * strip, k, |b| decoder.decode_batch(b));
        push(Operation::DecodeBatch, lost, lost, batched);
    }
}
