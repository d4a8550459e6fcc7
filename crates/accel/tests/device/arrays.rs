//! Arrays that compute with the device: written, reconstructed, and read by an engine without it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ashlar_accel::{Accelerator, Choice, Options, Status};
use ashlar_device::{Device, DeviceRef, MemDevice};
use ashlar_engine::status::ArrayState;
use ashlar_engine::{
    Accelerators, Array, Create, DigestKind, Import, Settings, Volume, VolumeOptions,
};
use ashlar_rt::{Buf, Rt};

use crate::standin::{self, Mode, Random, calls, failed, launches};

/// Those that need nothing of the stand-in.
pub const ON_ANY: &[crate::Scenario] = &[(
    "arrays::what_the_device_writes_the_processor_reads",
    what_the_device_writes_the_processor_reads,
)];

pub const ALL: &[crate::Scenario] = &[
    ON_ANY[0],
    (
        "arrays::a_stripe_crosses_the_link_once",
        a_stripe_crosses_the_link_once,
    ),
    (
        "arrays::a_fault_in_the_middle_costs_nothing",
        a_fault_in_the_middle_costs_nothing,
    ),
    (
        "arrays::a_device_that_hangs_is_given_up",
        a_device_that_hangs_is_given_up,
    ),
];

const SIZE: usize = 512 << 10;
const DEVICES: usize = 8;
const LAUNCH_FAILED: i32 = 719;

/// A device with room for all that an array asks of it at once.
fn options() -> Options {
    Options {
        queue: 100,
        ..standin::small(256 << 10)
    }
}

fn disks() -> Vec<Rc<MemDevice>> {
    let disk = |i| Rc::new(MemDevice::new(&format!("mem{i}"), 8 << 20));
    (0..DEVICES).map(disk).collect()
}

fn refs(disks: &[Rc<MemDevice>], gone: &[usize]) -> Vec<DeviceRef> {
    let here = disks.iter().enumerate().filter(|(i, _)| !gone.contains(i));
    here.map(|(_, disk)| disk.clone() as DeviceRef).collect()
}

/// Accelerators that are open before they are used; the last one can be asked.
struct Opened {
    options: Options,
    last: Rc<RefCell<Option<Accelerator>>>,
}

impl Opened {
    fn new(options: Options) -> Opened {
        let last = Rc::default();
        Opened { options, last }
    }

    fn settings(&self) -> Settings {
        let (options, last) = (self.options.clone(), self.last.clone());
        Settings {
            accelerators: Accelerators(Rc::new(move |choice| {
                let choice = match choice {
                    Choice::Auto => Choice::Cpu, // until the test says otherwise
                    choice => choice,
                };
                let accelerator = Accelerator::new(choice, options.clone());
                if choice != Choice::Cpu {
                    accelerator.wait_until_open(Duration::from_secs(60));
                }
                *last.borrow_mut() = Some(accelerator.clone());
                Rc::new(accelerator)
            })),
            ..Settings::default()
        }
    }

    fn status(&self) -> Status {
        self.last.borrow().as_ref().unwrap().status()
    }
}

async fn create(rt: &Rt, disks: &[Rc<MemDevice>], opened: &Opened) -> Array {
    let options = Create {
        name: "tank".into(),
        layout: "ec4+2".parse().unwrap(),
        strip_bytes: Some(8192),
        slot_bytes: Some(64 << 10),
        spare: 0,
        domains: Vec::new(),
        settings: opened.settings(),
    };
    let array = Array::create(rt, refs(disks, &[]), options).await.unwrap();
    for (name, digest) in [("a", DigestKind::Blake3), ("b", DigestKind::Xxh3)] {
        let options = VolumeOptions {
            size_bytes: SIZE as u64,
            digest,
            ..VolumeOptions::default()
        };
        array.volume_create(name, options).await.unwrap();
    }
    array.set("accelerator", "cuda:0").await.unwrap();
    array
}

fn losses_told(array: &Array) -> usize {
    let events = array.events(0);
    let lost = events.iter().filter(|e| e.kind == "accelerator-lost");
    lost.count()
}

fn contents(seed: u64) -> [Vec<u8>; 2] {
    let mut random = Random::new(seed);
    [random.bytes(SIZE), random.bytes(SIZE)]
}

fn volumes(array: &Array) -> [Volume; 2] {
    ["a", "b"].map(|name| array.volume(name).unwrap())
}

async fn fill(array: &Array, contents: &[Vec<u8>; 2]) {
    for (volume, bytes) in volumes(array).iter().zip(contents) {
        for (at, piece) in bytes.chunks(64 << 10).enumerate() {
            let offset = (at * (64 << 10)) as u64;
            let piece = Buf::copy_of(piece).freeze();
            volume.write(offset, piece, false).await.unwrap();
        }
        volume.flush().await.unwrap();
    }
}

async fn check(array: &Array, contents: &[Vec<u8>; 2], context: &str) {
    for (volume, bytes) in volumes(array).iter().zip(contents) {
        for (at, piece) in bytes.chunks(64 << 10).enumerate() {
            let read = volume.read((at * (64 << 10)) as u64, piece.len()).await;
            assert!(*read.unwrap() == *piece, "{context}: piece {at}");
        }
    }
}

/// What an engine that has no accelerator reads of the array without the devices `gone`.
fn check_with_losses(
    disks: &[Rc<MemDevice>],
    gone: &[usize],
    contents: &[Vec<u8>; 2],
    context: &str,
) {
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    let copies: Vec<Rc<MemDevice>> = disks.iter().map(|disk| copy(disk)).collect();
    let (contents, context, gone) = (contents.clone(), context.to_string(), gone.to_vec());
    rt.block_on(async move {
        let options = Import {
            degraded: true,
            read_only: true,
            ..Import::default()
        };
        let devices = refs(&copies, &gone);
        let array = Array::import(&handle, devices, options).await.unwrap();
        check(&array, &contents, &format!("{context}, without {gone:?}")).await;
    });
}

fn copy(disk: &MemDevice) -> Rc<MemDevice> {
    let mut bytes = vec![0; usize::try_from(disk.info().size_bytes).unwrap()];
    disk.peek(0, &mut bytes);
    let copy = MemDevice::new("copy", bytes.len() as u64);
    copy.poke(0, &bytes);
    Rc::new(copy)
}

fn what_the_device_writes_the_processor_reads() {
    standin::reset(31);
    let (disks, opened) = (disks(), Opened::new(options()));
    let contents = contents(31);
    let rt = Rt::start().unwrap();
    let (handle, expected, on) = (rt.clone(), contents.clone(), disks.clone());
    rt.block_on(async move {
        let array = create(&handle, &on, &opened).await;
        assert_eq!(array.status().await.accelerator.chosen, "cuda:0");
        fill(&array, &expected).await;
        let written = opened.status().counters;
        assert!(
            written.device_jobs > 10 && written.redone == 0,
            "{written:?}"
        );
        array.fail(3, false).await.unwrap();
        array.wait_idle(&[]).await;
        let status = array.status().await;
        assert_eq!(status.state, ArrayState::Optimal);
        let rebuilt = opened.status().counters;
        assert!(rebuilt.device_jobs > written.device_jobs, "{rebuilt:?}");
        assert_eq!((rebuilt.redone, rebuilt.cpu_jobs), (0, written.cpu_jobs));
        check(&array, &expected, "reconstructed").await;
        array.export().await.unwrap();
        assert_eq!(losses_told(&array), 0);
    });
    for other in (0..DEVICES).filter(|d| *d != 3) {
        let gone = [3, other, (other + 1) % DEVICES];
        check_with_losses(&disks, &gone, &contents, "exported");
    }
}

fn a_stripe_crosses_the_link_once() {
    standin::reset(32);
    let opened = Opened::new(options());
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    rt.block_on(async move {
        let array = create(&handle, &disks(), &opened).await;
        let (jobs, crossed) = (opened.status().counters, calls("cuMemcpyHtoDAsync_v2"));
        let (products, digests) = (launches("gf_product_2"), launches("blake3_messages"));
        fill(&array, &contents(32)).await;
        let now = opened.status().counters;
        let bytes = now.device_bytes - jobs.device_bytes;
        let jobs = i64::try_from(now.device_jobs - jobs.device_jobs).unwrap();
        // Several stripes a job, and nothing twice but what a flush had to take out of an open stripe.
        let data = 2 * SIZE as u64;
        assert!((data..data * 5 / 4).contains(&bytes), "{bytes}");
        assert!((2..24).contains(&jobs), "{jobs}");
        // Data, and coefficients with contexts; one product; one launch for all digests.
        assert_eq!(calls("cuMemcpyHtoDAsync_v2") - crossed, 2 * jobs);
        assert_eq!(launches("gf_product_2") - products, jobs);
        assert_eq!(launches("blake3_messages") - digests, jobs);
    });
}

/// Writes, loses a device and reconstructs, with a fault at call `after` from the first write on. What failed.
fn with_fault(seed: u64, after: i64, mode: Mode, options: Options) -> String {
    standin::reset(seed);
    let (disks, opened) = (disks(), Opened::new(options));
    let contents = contents(seed);
    let rt = Rt::start().unwrap();
    let (handle, expected, on) = (rt.clone(), contents.clone(), disks.clone());
    let context = format!("{mode:?} after {after} calls");
    let what = context.clone();
    let failed = rt.block_on(async move {
        let array = create(&handle, &on, &opened).await;
        assert!(opened.status().is_on_device(), "{what}");
        standin::fault("", calls("") + after, LAUNCH_FAILED, mode);
        fill(&array, &expected).await;
        array.fail(3, false).await.unwrap();
        array.wait_idle(&[]).await;
        assert_eq!(array.status().await.state, ArrayState::Optimal, "{what}");
        check(&array, &expected, &what).await;
        let (status, failed) = (opened.status(), failed());
        let lost = status.fault.is_some();
        let reason = array.status().await.accelerator.reason;
        let says = reason.starts_with("processor only");
        assert_eq!(lost, says, "{what}: {reason}; {status}");
        let redone = usize::from(status.counters.redone > 0);
        assert_eq!(losses_told(&array), redone, "{what}: {status}");
        if lost {
            standin::release();
            standin::fault("", -1, 0, Mode::Once);
            array.set("accelerator", "cuda:0").await.unwrap();
            let again = opened.status();
            // After some errors CUDA wants a new process; the array goes on either way.
            assert!(
                again.is_on_device() || mode != Mode::Once,
                "{what}: {again}"
            );
            fill(&array, &expected).await;
        }
        array.export().await.unwrap();
        failed
    });
    check_with_losses(&disks, &[3, 5, 6], &contents, &context);
    failed
}

fn a_fault_in_the_middle_costs_nothing() {
    let mut failures = std::collections::BTreeSet::new();
    for mode in [Mode::Once, Mode::Sticky, Mode::Later] {
        for (seed, after) in (40..).zip([1, 2, 3, 4, 5, 6, 7, 40, 150, 400, 900]) {
            failures.insert(with_fault(seed, after, mode, options()));
        }
    }
    assert!(failures.len() > 4, "{failures:?}");
    println!("calls that failed: {failures:?}");
}

fn a_device_that_hangs_is_given_up() {
    let options = Options {
        deadline_ms: 300,
        ..options()
    };
    for (seed, after) in [(60, 3), (61, 60)] {
        with_fault(seed, after, Mode::Hang, options.clone());
    }
}
