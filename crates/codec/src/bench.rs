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

mod meter;
mod options;
mod rival;
mod stripes;

pub use options::{COLD_BYTES, Operation, Options};
pub use rival::{Rival, RivalRow, measure_rival};

use std::sync::Barrier;

use crate::kernel;
use crate::{Code, CodeError, CodeKind};

use meter::{Meter, Rate, median};
use stripes::{Buffers, Stripes};

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
