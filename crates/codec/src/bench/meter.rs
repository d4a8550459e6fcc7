//! The meter: how fast calls are, and between them what the machine can do.
//!
//! **Invariants**: a sample of the limit follows every batch.

use std::hint::black_box;
use std::sync::Barrier;

use super::options::{COLD_BYTES, Options};
use crate::kernel::{Kernel, SPIN_BYTES};

/// Stripes begin at a multiple of this.
pub(super) const LARGE_PAGE: usize = 2 << 20;

/// Memory with `bytes` from its first whole [`LARGE_PAGE`] on, all in whole ones, advised as `options` say.
pub(super) fn paged(options: &Options, bytes: usize) -> Vec<u8> {
    if bytes == 0 {
        return Vec::new();
    }
    let mut memory = vec![0u8; bytes.next_multiple_of(LARGE_PAGE) + LARGE_PAGE];
    (options.advise)(&mut memory);
    memory
}

/// What came of measuring one call.
#[derive(Clone, Copy)]
pub(super) struct Rate {
    pub(super) median: f64,
    pub(super) best: f64,
    /// The median of the samples of the limit taken between the batches.
    pub(super) limit: f64,
}

pub(super) fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Measures calls, and between them what the machine can do.
pub(super) struct Meter<'a> {
    pub(super) options: &'a Options,
    pub(super) kernel: &'static Kernel,
    /// To be read from memory; empty unless stripes are cold.
    memory: Vec<u8>,
    /// Where in it the next sample begins, in eighths.
    turn: usize,
    /// Where the threads wait for each other before each figure.
    start: &'a Barrier,
}

impl<'a> Meter<'a> {
    pub(super) fn new(
        options: &'a Options,
        kernel: &'static Kernel,
        start: &'a Barrier,
    ) -> Meter<'a> {
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
    pub(super) fn rate(&mut self, bytes: usize, mut call: impl FnMut()) -> Rate {
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
    pub(super) fn multiply(&self) -> f64 {
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
    pub(super) fn read(&mut self) -> f64 {
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
