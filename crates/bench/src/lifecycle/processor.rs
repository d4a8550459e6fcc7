//! The same cases for the processor's sake: devices in memory, real time, one thread. What is counted is processor time of the
//! whole process while the workload runs, on the devices raw and on an array of them, by one load generator.
//!
//! **Invariants**: rates are for each second of processor time, evidence *processor*: nothing of a device is in them; one array;
//! nothing else may run in this process.

use std::cell::Cell;
use std::rc::Rc;

use ashlar_device::{DeviceRef, MemDevice};
use ashlar_engine::{Array, DigestKind};
use ashlar_rt::Rt;
use rustix::time::{ClockId, clock_gettime};

use super::cases::{Case, Options, shape};
use super::load::{Amount, Figure, Order, Work, run, units};
use super::rig::{create, device_bytes, take_out};
use super::suite::State;
use crate::load::Target;
use crate::report::{Evidence, Sample};

/// Bytes of each device raw.
const RAW_BYTES: u64 = 256 << 20;
/// Operations measured at least.
const LEAST: u64 = 4096;

/// Processor time of this process, in seconds.
fn spent() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Why a case cannot be measured so, if it cannot.
pub fn unfit(case: &Case) -> Option<&'static str> {
    let once = matches!(case.work.order, Order::Part(..));
    if case.state == State::Rebuild {
        return Some("a rebuild works beside its clients: its processor time is not theirs");
    }
    let other = once || case.work.is_checked() || case.work.figure != Figure::Clients;
    other.then_some("it is about devices")
}

/// Runs one case. What goes wrong is told by the sample.
///
/// # Errors
/// If the options are none, for people.
pub fn measure_processor(options: &Options, case: &Case) -> Result<Sample, String> {
    let mut sample = Sample {
        suite: case.suite.name().to_string(),
        state: case.state.name().to_string(),
        workload: case.work.label(),
        target: case.target().to_string(),
        devices: u32::try_from(case.columns).unwrap_or(0),
        run: case.run,
        seed: case.seed(options.seed),
        evidence: Evidence::Processor,
        limit: "one processor".to_string(),
        ..Sample::default()
    };
    match rate(options, case, sample.seed) {
        Ok(rate) => {
            let bytes = case.work.bytes as f64;
            sample.operations_per_second = case.work.is_small().then_some(rate);
            sample.bytes_per_second = Some(rate * bytes);
            sample.cpu_percent = Some(100.0);
        }
        Err(reason) => sample.invalid.push(reason),
    }
    Ok(sample)
}

/// Operations for each second of processor time.
fn rate(options: &Options, case: &Case, seed: u64) -> Result<f64, String> {
    let rt = Rt::real(seed);
    let bench = Bench::new(&rt, options, case)?;
    let depth = if case.work.is_small() {
        options.depth
    } else {
        options.large_depth()
    };
    let one = Case {
        arrays: 1,
        ..case.clone()
    };
    let amount = options.amount(&one, depth);
    let amount = Amount {
        warm: 0,
        count: amount.count.max(LEAST),
        ..amount
    };
    // Not counted: memory that the kernel has to find for the first time.
    bench.load(
        &rt,
        case.work,
        Amount {
            count: LEAST,
            ..amount
        },
    )?;
    let before = spent();
    let done = bench.load(&rt, case.work, amount)?;
    let seconds = spent() - before;
    bench.end(&rt)?;
    Ok(done as f64 / seconds.max(1e-9))
}

struct Bench {
    target: Target,
    array: Option<Array>,
}

impl Bench {
    fn new(rt: &Rt, options: &Options, case: &Case) -> Result<Bench, String> {
        let device =
            |bytes: u64| move |i| Rc::new(MemDevice::new(&format!("mem{i}"), bytes)) as DeviceRef;
        let Some(layout) = case.layout_alone() else {
            let devices: Vec<DeviceRef> = (0..case.columns).map(device(RAW_BYTES)).collect();
            let bench = Bench {
                target: Target::Raw(devices),
                array: None,
            };
            bench.fill(rt)?;
            return Ok(bench);
        };
        let shape = shape(layout)?;
        let bed = options.bed()?;
        let sizes = options.sizes(&bed, case.work, shape.k);
        let bytes = device_bytes(options.volume_bytes, options.fill, &shape, sizes);
        let members: Vec<DeviceRef> = (0..case.columns).map(device(bytes)).collect();
        let parsed = layout
            .parse()
            .map_err(|error| format!("'{layout}': {error}"))?;
        let (handle, volume_bytes) = (rt.clone(), options.volume_bytes);
        let array = rt.block_on(async move {
            create(
                &handle,
                members,
                parsed,
                sizes,
                volume_bytes,
                DigestKind::Blake3,
            )
            .await
        })?;
        let volume = array.volume("bench").ok_or("the volume is gone")?;
        let bench = Bench {
            target: Target::Volume(volume),
            array: Some(array.clone()),
        };
        bench.fill(rt)?;
        if case.state == State::Down {
            let lost = options.down.devices(&shape);
            rt.block_on(async move { take_out(&array, &lost, "never").await })?;
        }
        Ok(bench)
    }

    fn fill(&self, rt: &Rt) -> Result<(), String> {
        let count = units(&self.target, Work::FILL.bytes as u64);
        let amount = Amount {
            depth: 8,
            warm: 0,
            count,
            in_flight: 8,
        };
        self.load(rt, Work::FILL, amount).map(drop)
    }

    /// Runs a workload until what it wrote is durable. Operations done.
    fn load(&self, rt: &Rt, work: Work, amount: Amount) -> Result<u64, String> {
        let (handle, target) = (rt.clone(), self.target.clone());
        let over = Rc::new(Cell::new(false));
        rt.block_on(async move {
            let series = run(&handle, vec![target.clone()], work, amount, over, || {}).await;
            let series = series.map_err(|stop| stop.to_string())?;
            if let (Target::Volume(volume), true) = (&target, work.reads < 100) {
                volume.flush().await.map_err(|e| format!("flush: {e:?}"))?;
            }
            Ok(series.ends.len() as u64)
        })
    }

    fn end(self, rt: &Rt) -> Result<(), String> {
        if let Some(array) = self.array {
            rt.block_on(async move { array.export().await })
                .map_err(|error| error.to_string())?;
        }
        rt.shutdown();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::suite::Suite;
    use super::*;

    #[test]
    fn an_array_takes_more_processor_time_than_its_devices_and_less_than_the_sky() {
        let options = Options {
            suites: vec![Suite::Ssr],
            states: vec![State::Normal, State::Down, State::Rebuild],
            layouts: vec!["ec3+1".to_string()],
            arrays: Some(1),
            repeat: 1,
            volume_bytes: 16 << 20,
            ..Options::default()
        };
        let cases = options.cases().unwrap();
        let of = |state: State, layout: Option<&str>| {
            let mut found = cases.iter().filter(|case| {
                case.work.name == "RR" && case.state == state && case.layout.as_deref() == layout
            });
            found.next().unwrap().clone()
        };
        let rate = |case: &Case| {
            let sample = measure_processor(&options, case).unwrap();
            assert_eq!(sample.evidence, Evidence::Processor);
            sample
                .operations_per_second
                .unwrap_or_else(|| panic!("{sample:?}"))
        };
        // The best of some, in turn: others use the processor as well.
        let asked = [
            of(State::Normal, None),
            of(State::Normal, Some("ec3+1")),
            of(State::Down, Some("ec3+1")),
        ];
        let mut best = [0f64; 3];
        for _ in 0..4 {
            for (best, case) in best.iter_mut().zip(&asked) {
                *best = best.max(rate(case));
            }
        }
        let [raw, normal, down] = best;
        assert!(raw > normal, "{raw} and {normal}");
        assert!(normal > down, "{normal} and {down}");
        assert!(down > 1e3, "{down}");
        assert!(unfit(&of(State::Rebuild, Some("ec3+1"))).is_some());
        assert_eq!(unfit(&of(State::Down, Some("ec3+1"))), None);
    }
}
