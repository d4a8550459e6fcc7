//! Many jobs at once through slots and streams, whose work is put off and mixed.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ashlar_accel::bench::{self, Part};
use ashlar_accel::{
    Accelerator, Choice, Coding, Digests, Fault, Form, Function, Input, Job, Of, Options, Ran,
    Region,
};
use ashlar_codec::{Code, CodeKind};
use ashlar_rt::Rt;

use crate::standin::{self, Random, Recipe, calls, device, fresh, small, until_nothing_is_left};

/// Those that need nothing of the stand-in.
pub const ON_ANY: &[crate::Scenario] = &[
    ("pipeline::pieces_of_all_kinds", pieces_of_all_kinds),
    ("pipeline::many_at_once", many_at_once),
    ("pipeline::awaited_on_an_executor", awaited_on_an_executor),
    ("pipeline::regions_do_not_overlap", regions_do_not_overlap),
    ("pipeline::anything", anything),
];

pub const ALL: &[crate::Scenario] = &[
    ON_ANY[0],
    ON_ANY[1],
    ON_ANY[2],
    ON_ANY[3],
    ON_ANY[4],
    (
        "pipeline::the_link_is_crossed_once",
        the_link_is_crossed_once,
    ),
    (
        "pipeline::a_dropped_job_ends_by_itself",
        a_dropped_job_ends_by_itself,
    ),
    (
        "pipeline::auto_goes_by_what_it_measures",
        auto_goes_by_what_it_measures,
    ),
    (
        "pipeline::until_it_is_open_the_processor_works",
        until_it_is_open_the_processor_works,
    ),
    ("pipeline::the_measurement_runs", the_measurement_runs),
    (
        "pipeline::a_piece_that_grows_is_refused",
        a_piece_that_grows_is_refused,
    ),
];

/// Encode with digests of data and parity, and a root for each strip.
pub fn everything(random: &mut Random, k: usize, m: usize, strip: usize, stripes: usize) -> Recipe {
    let code = Code::new(CodeKind::IsalCauchy, k, m).unwrap();
    let function = Function::ON_DEVICE[random.below(6)];
    let tree = [None, Some(2), Some(16)][random.below(3)];
    let digests = Digests {
        function,
        block: 512,
        of: Of::Both,
        form: Form::Plain,
        tree,
    };
    Recipe {
        strip,
        read: random.bytes(k * strip * stripes).into(),
        written: m * stripes,
        coding: Some(Arc::new(Coding::encode(&code))),
        digests: Some(digests),
    }
}

/// Lost strips from the others, with digests of what was read and what was made: reconstruct.
fn reconstruct(random: &mut Random, strip: usize) -> Recipe {
    let code = Code::new(CodeKind::IsalCauchy, 6, 3).unwrap();
    let present = [true, false, true, true, true, false, true, true, true];
    let decoder = code.decoder(&present, &[1, 5]).unwrap();
    let mut recipe = everything(random, 6, 2, strip, 2);
    recipe.coding = Some(Arc::new(Coding::decode(&code, &decoder)));
    recipe
}

/// Digests alone: scrub.
fn scrub(random: &mut Random, strip: usize) -> Recipe {
    let mut recipe = everything(random, 5, 1, strip, 2);
    (recipe.coding, recipe.written) = (None, 0);
    recipe.digests.as_mut().unwrap().of = Of::Read;
    recipe
}

fn mixed(random: &mut Random) -> Recipe {
    let strip = 512 * (1 + random.below(4));
    match random.below(3) {
        0 => everything(random, 4, 3, strip, 2),
        1 => reconstruct(random, strip),
        _ => scrub(random, strip),
    }
}

/// A part of shared bytes.
struct Stretch<T>(Arc<T>, std::ops::Range<usize>);

impl<T: Deref<Target = [u8]>> Deref for Stretch<T> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0[self.1.clone()]
    }
}

fn pieces_of_all_kinds() {
    standin::reset(1);
    let device = device(small(256 << 10));
    let mut random = Random::new(1);
    for round in 0..6 {
        let recipe = everything(&mut random, 6, 4, 1024, 2);
        let mut pinned = device.region(recipe.read.len());
        assert!(pinned.is_pinned());
        pinned.copy_from_slice(&recipe.read);
        let pinned = Arc::new(pinned);
        let read: Vec<Input> = (0..12)
            .map(|strip| {
                let range = strip * 1024..(strip + 1) * 1024;
                match (strip + round) % 3 {
                    0 => Box::new(recipe.read[range].to_vec()) as Input,
                    1 => Box::new(Stretch(Arc::new(recipe.read.to_vec()), range)),
                    _ => Box::new(Stretch(pinned.clone(), range)),
                }
            })
            .collect();
        // Output of 8 strips: some pinned, some not, some of several strips, one empty.
        let write: Vec<Region> = [2, 1, 0, 3, 2]
            .iter()
            .enumerate()
            .map(|(i, strips)| match (i + round) % 2 {
                0 => device.region(strips * 1024),
                _ => Region::heap(strips * 1024),
            })
            .collect();
        let (coding, digests) = (recipe.coding.clone(), recipe.digests.clone());
        let job = Job::new(1024, read, write, Region::heap, coding, digests).unwrap();
        let done = device.submit(job).wait();
        assert_eq!(done.ran, Ran::Cuda(0));
        let expected = recipe.expected();
        let made: Vec<u8> = done
            .write
            .iter()
            .flat_map(|region| region.to_vec())
            .collect();
        assert!(made == expected.write.concat());
        assert_eq!(
            (done.digests, done.roots),
            (expected.digests, expected.roots)
        );
    }
}

/// Seeds of `many_at_once`; more with `ACCEL_SEEDS`.
fn seeds() -> u64 {
    std::env::var("ACCEL_SEEDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(12)
}

fn many_at_once() {
    for seed in 0..seeds() {
        standin::reset(seed);
        let accelerator = device(Options {
            slots: 1 + (seed % 4) as usize,
            ..small(64 << 10)
        });
        let mut random = Random::new(seed);
        let recipes: Vec<Recipe> = (0..24).map(|_| mixed(&mut random)).collect();
        let mut pending = Vec::new();
        for recipe in &recipes {
            pending.push((recipe, accelerator.submit(recipe.job())));
            if random.below(3) == 0 {
                let (recipe, job) = pending.swap_remove(random.below(pending.len()));
                recipe.check(&job.wait());
            }
        }
        for (recipe, job) in pending {
            recipe.check(&job.wait());
        }
        let counters = accelerator.status().counters;
        assert_eq!(counters.device_jobs + counters.cpu_jobs, 24);
        assert_eq!((counters.redone, counters.cpu_jobs), (0, counters.full));
        // However slow the device is, the first ones find room.
        assert!(counters.device_jobs >= 4, "{counters:?}");
        if standin::is_here() {
            drop(accelerator);
            until_nothing_is_left();
        }
    }
}

fn awaited_on_an_executor() {
    standin::reset(3);
    let accelerator = device(small(64 << 10));
    let rt = Rt::start().unwrap();
    let handle = rt.clone();
    let checked = rt.block_on(async move {
        let tasks: Vec<_> = (0..16)
            .map(|seed| {
                let accelerator = accelerator.clone();
                let rt = handle.clone();
                handle.spawn(async move {
                    let mut random = Random::new(seed);
                    let recipe = mixed(&mut random);
                    rt.sleep(1000 * random.below(100) as u64).await;
                    // A buffer of the executor's kind goes in, and one comes back.
                    let mut bytes = ashlar_rt::Buf::zeroed(recipe.read.len());
                    bytes.copy_from_slice(&recipe.read);
                    let read: Vec<Input> = vec![Box::new(bytes.freeze())];
                    let write = vec![ashlar_rt::Buf::zeroed(recipe.written * recipe.strip)];
                    let zeroed = ashlar_rt::Buf::zeroed;
                    let (coding, digests) = (recipe.coding.clone(), recipe.digests.clone());
                    let job = Job::new(recipe.strip, read, write, zeroed, coding, digests).unwrap();
                    let done = accelerator.submit(job).await;
                    let expected = recipe.expected();
                    assert!(*done.write[0] == expected.write.concat());
                    assert_eq!(
                        (done.digests, done.roots),
                        (expected.digests, expected.roots)
                    );
                    1
                })
            })
            .collect();
        let mut checked = 0;
        for task in tasks {
            checked += task.await;
        }
        checked
    });
    assert_eq!(checked, 16);
}

fn regions_do_not_overlap() {
    standin::reset(4);
    let accelerator = device(small(64 << 10));
    let mut random = Random::new(4);
    let mut held: Vec<(u8, Region)> = Vec::new();
    let mut pinned = 0;
    for round in 0..400 {
        if held.len() > 12 || random.below(3) == 0 {
            if !held.is_empty() {
                let (mark, region) = held.swap_remove(random.below(held.len()));
                assert!(region.iter().all(|b| *b == mark));
            }
            continue;
        }
        let mut region = accelerator.region(random.below(60_000));
        let mark = (round % 251) as u8;
        region.fill(mark);
        pinned += usize::from(region.is_pinned());
        held.push((mark, region));
    }
    assert!(
        held.iter()
            .all(|(mark, region)| region.iter().all(|b| b == mark))
    );
    assert!(pinned > 100);
    drop(held);
    // All of it has come together again, and a region outlives its accelerator.
    let all = accelerator.region(256 << 10);
    assert!(all.is_pinned());
    drop(accelerator);
    assert_eq!(all.len(), 256 << 10);
    assert!(all.iter().any(|b| *b != 1));
}

fn the_link_is_crossed_once() {
    standin::reset(5);
    let accelerator = device(small(64 << 10));
    let recipe = everything(&mut Random::new(5), 4, 2, 2048, 2);
    let mut input = accelerator.region(recipe.read.len());
    input.copy_from_slice(&recipe.read);
    let output = accelerator.region(recipe.written * recipe.strip);
    let digests = Digests {
        tree: None,
        ..recipe.digests.clone().unwrap()
    };
    let read: Vec<Input> = vec![Box::new(input)];
    let coding = recipe.coding.clone();
    let job = Job::new(
        2048,
        read,
        vec![output],
        Region::heap,
        coding,
        Some(digests),
    )
    .unwrap();
    let names = [
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuLaunchKernel",
        "cuMemAlloc_v2",
    ];
    let before = names.map(calls);
    let done = accelerator.submit(job).wait();
    assert_eq!(done.ran, Ran::Cuda(0));
    let after = names.map(calls);
    let made: Vec<i64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
    // In: the strips, and coefficients. Out: parity, and digests. Nothing allocated.
    assert_eq!(made, [2, 2, 2, 0]);
}

fn a_dropped_job_ends_by_itself() {
    standin::reset(6);
    let accelerator = device(small(64 << 10));
    let mut random = Random::new(6);
    for _ in 0..3 {
        let recipe = mixed(&mut random);
        drop(accelerator.submit(recipe.job()));
    }
    let recipe = mixed(&mut random);
    recipe.check(&accelerator.submit(recipe.job()).wait());
    drop(accelerator);
    until_nothing_is_left();
}

/// Bytes that grow when they are looked at a second time.
struct Growing(AtomicU64, Vec<u8>);

impl Deref for Growing {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let looks = self.0.fetch_add(1, Ordering::Relaxed);
        &self.1[..if looks == 0 { 512 } else { 1 << 20 }]
    }
}

fn a_piece_that_grows_is_refused() {
    standin::reset(10);
    let accelerator = device(small(64 << 10));
    let recipe = mixed(&mut Random::new(10));
    let digests = Digests {
        of: Of::Read,
        tree: None,
        ..recipe.digests.unwrap()
    };
    let read: Vec<Input> = vec![Box::new(Growing(AtomicU64::new(0), vec![1; 1 << 20]))];
    let job = Job::new(512, read, vec![], fresh, None, Some(digests)).unwrap();
    let pending = accelerator.submit(job);
    // The processor cannot do it again either, but nothing is written where it should not be.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pending.wait()));
    assert!(outcome.is_err() || outcome.unwrap().fault == Some(Fault::Piece));
    assert_eq!(accelerator.status().fault, Some(Fault::Piece));
    drop(accelerator);
    until_nothing_is_left();
}

/// A job of any kind: code or loss, strip, blocks, digest, form, tree.
fn any_job(random: &mut Random) -> Recipe {
    let strip = match random.below(3) {
        0 => 16 * (1 + random.below(64)),
        1 => 512 * (1 + random.below(4)),
        _ => 1 + random.below(700),
    };
    let (k, m) = (1 + random.below(9), 1 + random.below(5));
    let stripes = 1 + random.below(3);
    let code = Code::new(CodeKind::IsalCauchy, k, m).unwrap();
    let mut written = m * stripes;
    let coding = match random.below(3) {
        0 => None,
        1 => Some(Coding::encode(&code)),
        _ => {
            let mut present = vec![true; k + m];
            (0..m).for_each(|_| present[random.below(k + m)] = false);
            let lost: Vec<usize> = (0..k + m).filter(|strip| !present[*strip]).collect();
            written = lost.len() * stripes;
            Some(Coding::decode(
                &code,
                &code.decoder(&present, &lost).unwrap(),
            ))
        }
    };
    if coding.is_none() {
        written = 0;
    }
    let function = Function::ON_DEVICE[random.below(6)];
    let block = 1 + random.below(strip).max(strip / 12);
    let of = if coding.is_none() {
        Of::Read
    } else {
        [Of::Read, Of::Written, Of::Both][random.below(3)]
    };
    let strips = match of {
        Of::Read => k * stripes,
        Of::Written => written,
        Of::Both => k * stripes + written,
    };
    let each = random.below(90);
    let suffixes = random.bytes(strips * strip.div_ceil(block) * each);
    let form = match random.below(3) {
        0 => Form::Plain,
        1 if function.is_keyed() => {
            let messages = strips * strip.div_ceil(block);
            let lengths = (0..messages).map(|_| random.below(each + 1) as u8);
            let lengths: Vec<u8> = lengths.collect();
            Form::Keyed {
                key: [9; 32],
                contexts: suffixes,
                each,
                lengths: (random.below(2) == 0).then_some(lengths),
            }
        }
        _ => Form::Suffixed { suffixes, each },
    };
    let tree = [None, Some(2 + random.below(9))][random.below(2)];
    let digests = Digests {
        function,
        block,
        of,
        form,
        tree,
    };
    let digests = (coding.is_none() || random.below(4) > 0).then_some(digests);
    let read = random.bytes(k * strip * stripes).into();
    Recipe {
        strip,
        read,
        written,
        coding: coding.map(Arc::new),
        digests,
    }
}

fn anything() {
    standin::reset(11);
    let accelerator = device(small(128 << 10));
    let mut random = Random::new(11);
    for _ in 0..150 {
        any_job(&mut random).compare(&accelerator);
    }
}

/// A clock that goes on by so much each time it is asked.
fn stepping(step: u64) -> ashlar_accel::Clock {
    let now = AtomicU64::new(0);
    Arc::new(move || now.fetch_add(step, Ordering::Relaxed))
}

fn auto_goes_by_what_it_measures() {
    let open = |clock| {
        standin::reset(7);
        let options = Options {
            clock,
            ..small(256 << 10)
        };
        let accelerator = Accelerator::new(Choice::Auto, options);
        assert!(accelerator.wait_until_open(Duration::from_secs(60)));
        accelerator
    };
    let large = everything(&mut Random::new(7), 16, 2, 8192, 1);
    let small = everything(&mut Random::new(8), 4, 2, 512, 1);
    // A processor that takes a second for everything.
    let accelerator = open(Some(stepping(1_000_000_000)));
    for (recipe, ran) in [(&large, Ran::Cuda(0)), (&small, Ran::Cpu)] {
        let done = accelerator.submit(recipe.job()).wait();
        assert_eq!(done.ran, ran);
        recipe.check(&done);
    }
    let status = accelerator.status();
    assert!(
        status
            .to_string()
            .contains("for batches that are measured to be cheaper there"),
        "{status}"
    );
    assert!(status.cpu_rates.products.is_finite());
    assert_eq!(status.chosen(), "cuda:0");
    // One that takes no time, and one that was not measured.
    for clock in [Some(stepping(1)), None] {
        let accelerator = open(clock);
        assert_eq!(accelerator.submit(large.job()).wait().ran, Ran::Cpu);
        assert_eq!(accelerator.status().counters.cpu_jobs, 1);
    }
}

fn until_it_is_open_the_processor_works() {
    standin::reset(8);
    // Opening asks for the time and waits there until it is let on.
    let gate = Arc::new(Mutex::new(()));
    let held = gate.lock().unwrap();
    let asked = gate.clone();
    let clock: ashlar_accel::Clock = Arc::new(move || {
        drop(asked.lock());
        0
    });
    let options = Options {
        clock: Some(clock),
        ..small(64 << 10)
    };
    let accelerator = Accelerator::new(Choice::Cuda(0), options);
    assert!(!accelerator.wait_until_open(Duration::from_millis(1)));
    let recipe = mixed(&mut Random::new(8));
    let done = accelerator.submit(recipe.job()).wait();
    assert_eq!((done.ran, done.fault), (Ran::Cpu, None));
    recipe.check(&done);
    let text = accelerator.status().to_string();
    assert!(text.contains("while cuda:0 is being opened"), "{text}");
    drop(held);
    assert!(accelerator.wait_until_open(Duration::from_secs(60)));
    assert_eq!(accelerator.submit(recipe.job()).wait().ran, Ran::Cuda(0));
    assert_eq!(fresh(1), [0xee]);
}

/// Not for its figures: that every part of it runs, checks its results and gives a row.
fn the_measurement_runs() {
    standin::reset(9);
    let options = bench::Options {
        number: 0,
        shapes: vec![(4, 2)],
        losses: vec![(6, 3, 2)],
        with: vec![None, Some(Function::Sha256)],
        functions: vec![Function::Crc32c],
        blocks: vec![512],
        strip: 1024,
        batch_bytes: 64 << 10,
        slots: 2,
        memory_bytes: 64 << 10,
        nanos: 5_000_000,
        clock: stepping(1_000_000),
        processor_clock: stepping(10),
    };
    let report = bench::run(&options).unwrap();
    assert!(report.device.contains("stand-in"));
    let count = |part| report.rows.iter().filter(|row| row.part == part).count();
    let parts = [Part::Memory, Part::Link, Part::EndToEnd, Part::Processor];
    assert_eq!(parts.map(count), [3, 3, 4, 4]);
    for row in &report.rows {
        assert!(
            row.bytes_per_second > 0.0 && row.bytes_per_second.is_finite(),
            "{row:?}"
        );
        assert_eq!(row.link_fraction.is_some(), row.part == Part::EndToEnd);
    }
    until_nothing_is_left();
    standin::reset(9);
    standin::machine(0, 1 << 30);
    assert!(bench::run(&options).is_err());
}
