//! What a job costs here and there: measured when the accelerator starts, corrected by what is seen.
//!
//! A class is "coded or not" times "which digest or none". For each class the ratio between what was seen
//! and what the rates say is kept as a moving average, for the processor and for the device.
//!
//! **Invariants**: costs are finite and positive; a class that is not tried on the device drifts back to
//! what the rates say, so that a device that was busy once is tried again.

use crate::function::Function;
use crate::job::Plan;

const CLASSES: usize = 16;
/// What is seen counts for an eighth.
const WEIGHT: f64 = 0.125;
/// How far a class that is not tried drifts back towards the rates.
const DRIFT: f64 = 1.0 / 256.0;
/// The side that was chosen last must be beaten by so much.
const HYSTERESIS: f64 = 0.9;

/// What the processor does on one core. A rate that was not measured is infinite.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rates {
    /// Bytes of input times rows of the matrix, a second.
    pub products: f64,
    /// Bytes a second of each of [`Function::ALL`].
    pub digests: [f64; 7],
}

/// What a device does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DeviceRates {
    /// A small batch, from being submitted to its end, in nanoseconds.
    pub fixed_nanos: f64,
    /// Bytes a second from pinned memory to the device.
    pub link_in: f64,
    /// Bytes a second from the device to pinned memory.
    pub link_out: f64,
    /// Bytes of input times rows of the matrix, a second.
    pub products: f64,
    /// Bytes a second of each of [`Function::ON_DEVICE`], many messages side by side.
    pub digests: [f64; 6],
    /// Nanoseconds that one byte of a message takes when it is alone: a message is one serial chain.
    pub chain_nanos: [f64; 6],
}

/// What a job moves and computes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    class: usize,
    bytes_in: f64,
    bytes_out: f64,
    products: f64,
    hashed: f64,
    message: f64,
    function: Option<Function>,
}

impl Work {
    #[expect(clippy::cast_precision_loss, reason = "costs are estimates")]
    pub(crate) fn of(plan: &Plan) -> Work {
        let shape = &plan.shape;
        let rows = plan.coding.as_ref().map_or(0, |coding| coding.rows());
        let function = plan.digests.as_ref().map(|digests| digests.function);
        let bytes_in = (shape.read * shape.strip) as f64;
        let digest_bytes = function.map_or(0, |f| f.bytes() * shape.messages) as f64;
        let block = plan
            .digests
            .as_ref()
            .map_or(0, |d| d.block.min(shape.strip));
        Work {
            class: usize::from(rows > 0) * 8 + function.map_or(7, Function::index),
            bytes_in,
            bytes_out: (shape.written * shape.strip) as f64 + digest_bytes,
            products: bytes_in * rows as f64,
            hashed: shape.hashed as f64,
            message: block as f64,
            function,
        }
    }

    /// Nanoseconds on the processor.
    fn on_cpu(&self, rates: &Rates) -> f64 {
        let hashing = self
            .function
            .map_or(0.0, |f| self.hashed / rates.digests[f.index()]);
        (self.products / rates.products + hashing) * 1e9
    }

    /// Nanoseconds of the device from the first copy to the last: in all, and in what is busy longest.
    fn on_device(&self, rates: &DeviceRates) -> (f64, f64) {
        let copies = [
            self.bytes_in / rates.link_in * 1e9,
            self.bytes_out / rates.link_out * 1e9,
        ];
        let mut kernels = self.products / rates.products * 1e9;
        if let Some(index) = self.function.map(Function::index)
            && let (Some(rate), Some(chain)) =
                (rates.digests.get(index), rates.chain_nanos.get(index))
        {
            kernels += (self.hashed / rate * 1e9).max(self.message * chain);
        }
        let sum = copies[0] + kernels + copies[1];
        (sum, copies[0].max(kernels).max(copies[1]))
    }
}

/// What has been seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    cpu: [f64; CLASSES],
    device: [f64; CLASSES],
    last_on_device: [bool; CLASSES],
}

impl Default for Seen {
    fn default() -> Seen {
        Seen {
            cpu: [1.0; CLASSES],
            device: [1.0; CLASSES],
            last_on_device: [false; CLASSES],
        }
    }
}

fn mix(average: &mut f64, seen: f64, expected: f64) {
    if expected > 0.0 && expected.is_finite() && seen.is_finite() {
        let ratio = (seen / expected).clamp(1.0 / 16.0, 16.0);
        *average += (ratio - *average) * WEIGHT;
    }
}

impl Seen {
    /// What the job keeps the device from doing others, in nanoseconds.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped"
    )]
    pub(crate) fn occupancy(&self, work: &Work, device: &DeviceRates) -> u64 {
        (work.on_device(device).1 * self.device[work.class]).clamp(0.0, 1e12) as u64
    }

    /// Whether the device, with `backlog` nanoseconds of work before it, has the job done first.
    #[expect(clippy::cast_precision_loss, reason = "costs are estimates")]
    pub(crate) fn prefers_device(
        &mut self,
        work: &Work,
        cpu: &Rates,
        device: &DeviceRates,
        backlog: u64,
    ) -> bool {
        let class = work.class;
        let here = work.on_cpu(cpu) * self.cpu[class];
        let there =
            device.fixed_nanos + backlog as f64 + work.on_device(device).0 * self.device[class];
        let chosen = if self.last_on_device[class] {
            there * HYSTERESIS < here
        } else {
            there < here * HYSTERESIS
        };
        self.last_on_device[class] = chosen;
        if !chosen {
            self.device[class] += (1.0 - self.device[class]) * DRIFT;
        }
        chosen
    }

    /// The processor took so many nanoseconds.
    pub(crate) fn cpu_took(&mut self, work: &Work, rates: &Rates, nanos: f64) {
        mix(&mut self.cpu[work.class], nanos, work.on_cpu(rates));
    }

    /// The device, with nothing else to do, took so many nanoseconds.
    pub(crate) fn device_took(&mut self, work: &Work, rates: &DeviceRates, nanos: f64) {
        mix(&mut self.device[work.class], nanos, work.on_device(rates).0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: Rates = Rates {
        products: 40e9,
        digests: [4e9, 1.7e9, 0.8e9, 0.5e9, 0.27e9, 20e9, 30e9],
    };
    const H200: DeviceRates = DeviceRates {
        fixed_nanos: 25e3,
        link_in: 55e9,
        link_out: 55e9,
        products: 1e13,
        digests: [1e12, 7e11, 5e11, 4e11, 2e11, 2e12],
        chain_nanos: [20.0, 32.0, 49.0, 52.0, 95.0, 1.0],
    };

    fn work(bytes: f64, rows: f64, function: Option<Function>) -> Work {
        Work {
            class: function.map_or(7, Function::index) + if rows > 0.0 { 8 } else { 0 },
            bytes_in: bytes,
            bytes_out: bytes * rows / 20.0,
            products: bytes * rows,
            hashed: if function.is_some() { bytes } else { 0.0 },
            message: 4096.0,
            function,
        }
    }

    #[test]
    fn hashing_goes_to_the_device_and_small_jobs_do_not() {
        let mut seen = Seen::default();
        let sha3 = Some(Function::Sha3_512);
        assert!(seen.prefers_device(&work(4e6, 4.0, sha3), &CPU, &H200, 0));
        assert!(!seen.prefers_device(&work(64e3, 4.0, sha3), &CPU, &H200, 0));
        assert!(!seen.prefers_device(&work(4e6, 1.0, None), &CPU, &H200, 0));
        // With a long queue the processor is sooner.
        assert!(!seen.prefers_device(&work(4e6, 4.0, sha3), &CPU, &H200, 60_000_000));
    }

    #[test]
    fn a_device_that_is_slow_is_left_and_tried_again() {
        let mut seen = Seen::default();
        let job = work(4e6, 4.0, Some(Function::Sha3_512));
        for _ in 0..100 {
            seen.device_took(&job, &H200, 1e9);
        }
        for _ in 0..10 {
            seen.cpu_took(&job, &CPU, job.on_cpu(&CPU) / 8.0);
        }
        assert!(!seen.prefers_device(&job, &CPU, &H200, 0));
        let tried = (0..2000).any(|_| seen.prefers_device(&job, &CPU, &H200, 0));
        assert!(tried, "what is not tried drifts back");
    }

    #[test]
    fn an_unmeasured_processor_keeps_everything() {
        let nothing = Rates {
            products: f64::INFINITY,
            digests: [f64::INFINITY; 7],
        };
        let mut seen = Seen::default();
        let job = work(64e6, 20.0, Some(Function::Sha3_512));
        assert!(!seen.prefers_device(&job, &nothing, &H200, 0));
        seen.cpu_took(&job, &nothing, 5.0);
        assert!(seen.cpu.iter().all(|r| r.is_finite()));
    }
}
