//! Other libraries measured by the same harness, in the same process, on strips laid out the same way.
//!
//! **Invariants.** As for our own figures: what a rival decodes has been compared with the original
//! before its speed is reported, and the limits are sampled between its batches.

use std::sync::Barrier;

use super::{Buffers, Meter, Operation, Options, Stripes};
use crate::{CodeError, kernel};

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

/// One figure of a rival.
#[derive(Clone, Copy, Debug)]
pub struct RivalRow {
    /// [`Operation::Encode`] or [`Operation::Decode`].
    pub operation: Operation,
    /// Strips lost; 0 for encoding.
    pub lost: usize,
    /// Bytes of data per second, the median of the batches.
    pub bytes_per_second: f64,
}

/// Measures a rival at K+M strips of `strip` bytes, as `options` say.
///
/// # Errors
/// [`CodeError::NoKernel`] never in practice: the limits need a kernel, and every processor has one.
///
/// # Panics
/// If the rival decodes wrongly.
pub fn measure_rival(
    options: &Options,
    (k, m): (usize, usize),
    strip: usize,
    rival: &mut dyn Rival,
) -> Result<Vec<RivalRow>, CodeError> {
    let kernel = kernel::by_name(kernel::fastest().name).ok_or(CodeError::NoKernel)?;
    let start = Barrier::new(1);
    let mut meter = Meter::new(options, kernel, &start);
    let mut stripes = Stripes::new(options, k + m + 2, strip);
    let mut rows = Vec::new();
    let parity = |number| number >= k && number < k + m;
    let mut all = Buffers::new(&mut stripes, parity);
    all.each()
        .for_each(|(read, _, write)| rival.encode(&read[..k], &mut write[..m]));
    let encoded = all.in_turn(&mut meter, k * strip, |read, _, write| {
        rival.encode(&read[..k], write);
    });
    rows.push(RivalRow {
        operation: Operation::Encode,
        lost: 0,
        bytes_per_second: encoded.median,
    });
    let mut counts: Vec<usize> = options.lost.iter().map(|&l| l.min(m).min(k)).collect();
    counts.dedup();
    for lost in counts.into_iter().filter(|&lost| lost > 0) {
        if !rival.lose(lost) {
            continue;
        }
        let mut all = Buffers::new(&mut stripes, |number| number < lost);
        let before: Vec<Vec<u8>> = all.write[..lost].iter().map(|s| s.to_vec()).collect();
        all.write[..lost].iter_mut().for_each(|strip| strip.fill(0));
        let decoded = all.in_turn(&mut meter, k * strip, |read, _, write| {
            rival.decode(&read[..k + m - lost], write);
        });
        assert!(all.write.iter().zip(&before).all(|(s, b)| **s == **b));
        rows.push(RivalRow {
            operation: Operation::Decode,
            lost,
            bytes_per_second: decoded.median,
        });
    }
    Ok(rows)
}
