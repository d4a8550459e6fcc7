//! Another library measured beside a code of ours: in the same process, on the same buffers and pages.
//!
//! **Invariants.**
//! - Batches of the two alternate, who begins too, and go on with the stripe at which the other stopped: what
//!   disturbs one disturbs the other, and cold stripes are cold for both.
//! - What either decodes has been compared with the original before its speed is reported.

use super::meter::median;
use super::options::{Operation, Options};
use super::stripes::{Buffers, Stripes};
use crate::{Code, Decoder};

/// Another library's code of fixed K and M, made ready for strips of one length.
pub trait Rival {
    /// Computes all parity strips.
    fn encode(&mut self, data: &[&[u8]], parity: &mut [&mut [u8]]);

    /// Makes decoding of the first `lost` data strips ready; it is not measured. Returns whether the
    /// library can.
    fn lose(&mut self, lost: usize) -> bool;

    /// Computes the strips that [`Rival::lose`] named from all others, data first.
    fn decode(&mut self, read: &[&[u8]], write: &mut [&mut [u8]]);
}

/// What came of one operation: bytes of data per second, medians of the batches.
#[derive(Clone, Copy, Debug)]
pub struct RivalRow {
    /// [`Operation::Encode`] or [`Operation::Decoder`]: a rival's inversion is not measured, nor is ours.
    pub operation: Operation,
    /// Strips lost; 0 for encoding.
    pub lost: usize,
    /// Of our code.
    pub ours: f64,
    /// Of the rival.
    pub theirs: f64,
    /// The median of the ratios of neighbouring batches, ours over theirs.
    pub ratio: f64,
}

/// Measures a rival beside a code, strips of `strip` bytes, as `options` say.
///
/// # Panics
/// If either decodes wrongly.
pub fn measure_rival(
    options: &Options,
    code: &Code,
    strip: usize,
    rival: &mut dyn Rival,
) -> Vec<RivalRow> {
    let code = &if options.cold {
        code.streamed()
    } else {
        code.clone()
    };
    let (k, m) = (code.k(), code.m());
    let mut stripes = Stripes::new(options, k + m, strip);
    let mut all = Buffers::new(&mut stripes, |number| number >= k);
    let rates = alternate(
        options,
        &mut all,
        k * strip,
        &mut |read, write| code.encode(read, write),
        &mut |read, write| rival.encode(read, write),
    );
    let mut rows = vec![rates.row(Operation::Encode, 0)];
    let mut counts: Vec<usize> = options.lost.iter().map(|&l| l.min(m).min(k)).collect();
    counts.dedup();
    for lost in counts.into_iter().filter(|&lost| lost > 0) {
        let wanted: Vec<usize> = (0..lost).collect();
        let present: Vec<bool> = (0..k + m).map(|number| number >= lost).collect();
        let Ok(decoder) = code.decoder(&present, &wanted) else {
            continue;
        };
        if rival.lose(lost) {
            both_decode(&mut stripes, code, &decoder, rival, lost);
            let mut all = Buffers::new(&mut stripes, |number| number < lost);
            let rates = alternate(
                options,
                &mut all,
                k * strip,
                &mut |read, write| decoder.decode(&read[..k], write),
                &mut |read, write| rival.decode(read, write),
            );
            rows.push(rates.row(Operation::Decoder, lost));
        }
    }
    rows
}

/// Checks that each gets the first strips of the first stripe back from its own parity.
fn both_decode(
    stripes: &mut Stripes,
    code: &Code,
    decoder: &Decoder,
    rival: &mut dyn Rival,
    lost: usize,
) {
    let (k, m) = (code.k(), code.m());
    for ours in [true, false] {
        let mut all = Buffers::new(stripes, |number| number >= k);
        let before: Vec<Vec<u8>> = all.read[..lost].iter().map(|s| s.to_vec()).collect();
        let (read, write) = (&all.read[..k], &mut all.write[..m]);
        if ours {
            code.encode(read, write);
        } else {
            rival.encode(read, write);
        }
        let mut all = Buffers::new(stripes, |number| number < lost);
        let (read, write) = (&all.read[..k + m - lost], &mut all.write[..lost]);
        write.iter_mut().for_each(|strip| strip.fill(0));
        if ours {
            decoder.decode(&read[..k], write);
        } else {
            rival.decode(read, write);
        }
        assert!(write.iter().zip(&before).all(|(s, b)| **s == **b));
    }
}

/// The rates of the two, batch by batch.
struct Rates([Vec<f64>; 2]);

impl Rates {
    fn row(mut self, operation: Operation, lost: usize) -> RivalRow {
        let [ours, theirs] = &mut self.0;
        let mut ratios: Vec<f64> = ours.iter().zip(&*theirs).map(|(o, t)| o / t).collect();
        RivalRow {
            operation,
            lost,
            ours: median(ours),
            theirs: median(theirs),
            ratio: median(&mut ratios),
        }
    }
}

/// A call on what is read and what is written of one stripe.
type Call<'c, 'a> = &'c mut dyn FnMut(&[&'a [u8]], &mut [&'a mut [u8]]);

/// The rates of two calls that take one stripe after the other, in batches by turns.
fn alternate<'a>(
    options: &Options,
    all: &mut Buffers<'a>,
    bytes: usize,
    ours: Call<'_, 'a>,
    theirs: Call<'_, 'a>,
) -> Rates {
    let stripes = all.stripes;
    let (reads, writes) = (all.read.len() / stripes, all.write.len() / stripes);
    let mut turn = 0;
    let mut seconds = |call: Call<'_, 'a>, calls: u32| {
        let start = (options.clock)();
        for _ in 0..calls {
            call(
                &all.read[turn * reads..(turn + 1) * reads],
                &mut all.write[turn * writes..(turn + 1) * writes],
            );
            turn = if turn + 1 == stripes { 0 } else { turn + 1 };
        }
        ((options.clock)() - start).as_secs_f64().max(1e-9)
    };
    let batch = options.batch.as_secs_f64();
    let mut calls = [1u32; 2];
    for which in 0..2 {
        loop {
            let taken = match which {
                0 => seconds(&mut *ours, calls[0]),
                _ => seconds(&mut *theirs, calls[1]),
            };
            if taken * 1.1 >= batch {
                break;
            }
            let more = (batch / taken * 1.1).clamp(2.0, 1000.0);
            calls[which] = calls[which].saturating_mul(more as u32);
        }
    }
    let mut rates = Rates([Vec::new(), Vec::new()]);
    for round in 0..options.batches.max(1) {
        for which in [round % 2, (round + 1) % 2] {
            let taken = match which {
                0 => seconds(&mut *ours, calls[0]),
                _ => seconds(&mut *theirs, calls[1]),
            };
            rates.0[which].push(bytes as f64 * f64::from(calls[which]) / taken);
        }
    }
    rates
}
