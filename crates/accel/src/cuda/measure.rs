//! A device is tested and measured before it is used.
//!
//! **Invariants**: slots are used here only while no job is under way.

#![expect(unsafe_code, reason = "copies between parts of a slot")]

use std::sync::Arc;

use super::device::{Device, Shared};
use super::kernels::{Messages, TILES};
use super::launch::count;
use super::slot::{Common, Slot};
use crate::cost::DeviceRates;
use crate::cpu;
use crate::flight::{Flight, lock};
use crate::job::{Coding, Digests, Form, Job, Of, Piece};
use crate::{Clock, Fault, Function, Options};

impl Slot {
    /// Nanoseconds of one thing alone on the stream, after once without looking.
    fn time(&self, mut act: impl FnMut() -> Result<(), Fault>) -> Result<f64, Fault> {
        act()?;
        self.stream.record(0)?;
        act()?;
        self.stream.record(1)?;
        self.stream.wait()?;
        Ok(self.stream.elapsed()?.max(1.0))
    }

    /// Nanoseconds to copy so many bytes (at most a slot's) in, and out.
    pub(super) fn time_copies(&self, bytes: usize) -> Result<[f64; 2], Fault> {
        let bytes = bytes.min(self.sizes.data);
        // SAFETY: the slot's own memory, whose content does not matter.
        let into = self.time(|| unsafe {
            self.stream
                .copy_in(self.input.address(), self.staged(0), bytes)
        })?;
        let out = self.staged(self.sizes.data);
        // SAFETY: as above.
        let back =
            self.time(|| unsafe { self.stream.copy_out(out, self.output.address(), bytes) })?;
        Ok([into, back])
    }

    /// Nanoseconds of the product kernel on stripes that fill `bytes` of input.
    pub(super) fn time_product(
        &self,
        common: &Common,
        coding: &Coding,
        strip: usize,
        stripes: usize,
    ) -> Result<f64, Fault> {
        let tables = [
            self.extra.address(),
            self.extra.address() + coding.low.len() as u64,
        ];
        self.time(|| self.multiply(common, coding, strip, stripes, tables))
    }

    /// Nanoseconds of a digest kernel on messages of `len` bytes in the input.
    pub(super) fn time_digest(
        &self,
        common: &Common,
        function: Function,
        number: usize,
        len: usize,
    ) -> Result<f64, Fault> {
        let messages = Messages {
            base0: self.input.address(),
            base1: self.input.address(),
            count0: number as u64,
            count: number as u64,
            strip: (number * len) as u64,
            suffix: self.extra.address(),
            block: count(len),
            per_strip: count(number),
            suffix_len: 0,
            suffix_stride: 0,
        };
        self.time(|| self.hash(common, function, None, messages, self.level(0)))
    }
}

impl Shared {
    /// One job on the first slot, here and now.
    fn run_alone(&self, job: Job<Vec<u8>>) -> Result<(Arc<Flight>, cpu::Found), Fault> {
        let write = job
            .write
            .into_iter()
            .map(|w| Box::new(w) as Box<dyn Piece>)
            .collect();
        let flight = Flight::new(job.plan, write, 0);
        self.slots[0].start(&self.common, &flight)?;
        let (found, _) = self.slots[0].finish(&self.common, &flight)?;
        Ok((flight, found))
    }

    /// Compares the kernels with the processor once, so that a device that computes wrong things or a
    /// driver that compiles wrong things is not used.
    pub(super) fn test(&self) -> Result<(), Fault> {
        for (function, (rows, _)) in Function::ON_DEVICE.into_iter().zip(TILES) {
            // Another tile with each function. Whole and odd strips; rows for every lane of CRC32C; for BLAKE3 more than one chunk.
            let tree = function == Function::Blake3;
            let long = if tree { 2064 } else { 272 };
            for (strip, block) in [(272, 200), (33, 33), (long, long)] {
                let job = || sample(function, strip, block, rows);
                let (Some(mine), Some(theirs)) = (job(), job()) else {
                    return Err(Fault::Wrong("test"));
                };
                let mut pieces: Vec<Box<dyn Piece>> = mine
                    .write
                    .into_iter()
                    .map(|w| Box::new(w) as Box<dyn Piece>)
                    .collect();
                let expected = cpu::run(&mine.plan, &mut pieces);
                let (flight, found) = self.run_alone(theirs)?;
                let mut made = lock(&flight.write);
                let same = made
                    .iter_mut()
                    .zip(&mut pieces)
                    .all(|(a, b)| a.bytes() == b.bytes());
                if !same {
                    return Err(Fault::Wrong("product"));
                }
                if found != expected {
                    return Err(Fault::Wrong(function.name()));
                }
            }
        }
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "rates")]
    pub(super) fn measure(&self, options: &Options) -> Result<DeviceRates, Fault> {
        const K: usize = 8;
        const ROWS: usize = 4;
        let slot = &self.slots[0];
        let message = (options.calibrate_bytes / 2).clamp(256, 4096);
        let bytes = options
            .calibrate_bytes
            .clamp(2 * message, slot.sizes().data());
        let [into, back] = slot.time_copies(bytes)?;
        let matrix = ashlar_codec::Code::new(ashlar_codec::CodeKind::IsalCauchy, K, ROWS);
        let matrix = matrix.map_err(|_| Fault::Wrong("test"))?;
        let coding = Coding::encode(&matrix);
        let strip = bytes / K / 16 * 16;
        let product = slot.time_product(&self.common, &coding, strip, 1)?;
        let mut rates = DeviceRates {
            fixed_nanos: 25_000.0,
            link_in: bytes as f64 / into * 1e9,
            link_out: bytes as f64 / back * 1e9,
            products: (strip * K * ROWS) as f64 / product * 1e9,
            digests: [0.0; 6],
            chain_nanos: [0.0; 6],
        };
        for function in Function::ON_DEVICE {
            let number = slot
                .sizes()
                .messages(message, function.bytes())
                .min(bytes / message);
            let many = slot.time_digest(&self.common, function, number, message)?;
            let one = slot.time_digest(&self.common, function, 1, message)?;
            rates.digests[function.index()] = (number * message) as f64 / many * 1e9;
            rates.chain_nanos[function.index()] = one / message as f64;
        }
        if let Some(clock) = &options.clock {
            let mut least = f64::INFINITY;
            for _ in 0..3 {
                let Some(job) = sample(Function::Crc32c, 272, 272, 2) else {
                    break;
                };
                let from = clock();
                self.run_alone(job)?;
                least = least.min(clock().saturating_sub(from) as f64);
            }
            if least.is_finite() {
                rates.fixed_nanos = least;
            }
        }
        Ok(rates)
    }
}

/// A small job that uses everything.
fn sample(function: Function, strip: usize, block: usize, rows: usize) -> Option<Job<Vec<u8>>> {
    const K: usize = 3;
    let code = ashlar_codec::Code::new(ashlar_codec::CodeKind::IsalCauchy, K, rows).ok()?;
    let bytes: Vec<u8> = (0..K * strip * 2)
        .scan(1u32, |x, _| {
            *x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            x.to_le_bytes().last().copied()
        })
        .collect();
    let digests = Digests {
        function,
        block,
        of: Of::Both,
        form: Form::Plain,
        tree: Some(2),
    };
    let fresh = |n| vec![0; n];
    Job::new(
        strip,
        vec![Box::new(bytes)],
        vec![fresh(2 * rows * strip)],
        fresh,
        Some(Arc::new(Coding::encode(&code))),
        Some(digests),
    )
    .ok()
}

/// The link's own rates, in bytes a second, all slots copying.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) into: f64,
    pub(crate) out: f64,
    /// In while as much goes out.
    pub(crate) both: f64,
}

/// For `bench`: what a device does that nobody else uses meanwhile.
impl Device {
    /// Copies between pinned memory and the device for so many nanoseconds each.
    pub(crate) fn link(&self, nanos: u64, clock: &Clock) -> Result<Link, Fault> {
        let into = self.copies(nanos, clock, [true, false])?;
        let out = self.copies(nanos, clock, [false, true])?;
        let both = self.copies(nanos, clock, [true, true])?;
        Ok(Link { into, out, both })
    }

    #[expect(clippy::cast_precision_loss, reason = "rates")]
    fn copies(&self, nanos: u64, clock: &Clock, [into, out]: [bool; 2]) -> Result<f64, Fault> {
        let slots = &self.shared.slots;
        self.shared.context.make_current()?;
        let bytes = self.sizes.data;
        let (from, mut rounds) = (clock(), 0);
        loop {
            for slot in slots {
                if rounds > 0 {
                    slot.stream.wait()?;
                }
                // SAFETY: the slot's own memory, whose content does not matter.
                unsafe {
                    if into {
                        let (to, from) = (slot.input.address(), slot.staged(0));
                        slot.stream.copy_in(to, from, bytes)?;
                    }
                    if out {
                        let (to, from) = (slot.staged(bytes), slot.output.address());
                        slot.stream.copy_out(to, from, bytes)?;
                    }
                }
                slot.stream.record(1)?;
            }
            rounds += 1;
            if clock().saturating_sub(from) >= nanos {
                break;
            }
        }
        for slot in slots {
            slot.stream.wait()?;
        }
        let took = clock().saturating_sub(from).max(1);
        Ok((rounds * slots.len() * bytes) as f64 / took as f64 * 1e9)
    }

    /// Bytes of input a second of the product kernels, from and to memory of the device.
    #[expect(clippy::cast_precision_loss, reason = "rates")]
    pub(crate) fn product_rate(&self, coding: &Coding, strip: usize) -> Result<f64, Fault> {
        let slot = &self.shared.slots[0];
        self.shared.context.make_current()?;
        let stripe = coding.k().max(coding.rows()) * strip;
        let stripes = (self.sizes.data / stripe).max(1);
        let nanos = median(|| slot.time_product(&self.shared.common, coding, strip, stripes))?;
        Ok((stripes * coding.k() * strip) as f64 / nanos * 1e9)
    }

    /// Bytes a second of a digest kernel on messages of `len` bytes in memory of the device.
    #[expect(clippy::cast_precision_loss, reason = "rates")]
    pub(crate) fn digest_rate(&self, function: Function, len: usize) -> Result<f64, Fault> {
        let slot = &self.shared.slots[0];
        self.shared.context.make_current()?;
        let number = self.sizes.messages(len, function.bytes());
        let nanos = median(|| slot.time_digest(&self.shared.common, function, number, len))?;
        Ok((number * len) as f64 / nanos * 1e9)
    }
}

/// The middle of seven.
fn median(mut act: impl FnMut() -> Result<f64, Fault>) -> Result<f64, Fault> {
    let mut times = [0.0; 7];
    for time in &mut times {
        *time = act()?;
    }
    times.sort_by(f64::total_cmp);
    Ok(times[3])
}
