//! Faults at every call of the driver: what was asked for is done all the same, and the fault is told.

use std::time::Duration;

use ashlar_accel::{Accelerator, Choice, Done, Fault, Options, Ran, Status};

use crate::pipeline::everything;
use crate::standin::{
    self, Mode, Random, Recipe, calls, device, failed, small, until_nothing_is_left,
};

pub const ALL: &[crate::Scenario] = &[
    ("faults::a_call_fails_once", a_call_fails_once),
    ("faults::the_context_is_lost", the_context_is_lost),
    ("faults::work_on_a_stream_fails", work_on_a_stream_fails),
    ("faults::an_allocation_fails", an_allocation_fails),
    ("faults::memory_is_short", memory_is_short),
    ("faults::there_is_no_device", there_is_no_device),
    ("faults::the_device_hangs", the_device_hangs),
    (
        "faults::a_wrong_result_is_noticed",
        a_wrong_result_is_noticed,
    ),
    (
        "faults::the_device_hangs_while_it_is_opened",
        the_device_hangs_while_it_is_opened,
    ),
    (
        "faults::a_lost_device_is_opened_again",
        a_lost_device_is_opened_again,
    ),
];

const OUT_OF_MEMORY: i32 = 2;
const LAUNCH_FAILED: i32 = 719;

/// What may fail without a word: giving back (for which the context is made current), and a wish about
/// scheduling.
fn does_not_matter(call: &str) -> bool {
    ["Free", "Destroy", "Release", "Unload"]
        .iter()
        .any(|word| call.contains(word))
        || [
            "cuDevicePrimaryCtxSetFlags_v2",
            "cuCtxSynchronize",
            "cuCtxSetCurrent",
        ]
        .contains(&call)
}

fn recipes() -> Vec<Recipe> {
    let mut random = Random::new(11);
    (0..3)
        .map(|_| everything(&mut random, 3, 2, 512, 1))
        .collect()
}

fn options() -> Options {
    Options {
        slots: 2,
        ..small(64 << 10)
    }
}

/// What came of a session: what was said, the jobs, and the call that failed.
type Session = (Status, Vec<Done<Vec<u8>>>, String);

/// Opens a device, has three jobs done, closes it. Checks results.
fn session(recipes: &[Recipe]) -> Session {
    let accelerator = Accelerator::new(Choice::Cuda(0), options());
    accelerator.wait_until_open(Duration::from_secs(60));
    let pending: Vec<_> = recipes
        .iter()
        .map(|recipe| accelerator.submit(recipe.job()))
        .collect();
    let done: Vec<_> = pending.into_iter().map(|job| job.wait()).collect();
    for (recipe, done) in recipes.iter().zip(&done) {
        recipe.check(done);
    }
    let status = accelerator.status();
    let failed = failed();
    drop(accelerator);
    (status, done, failed)
}

/// A session with a fault at each call in turn.
fn at_every_call(mode: Mode) {
    let recipes = recipes();
    standin::reset(1);
    let (status, ..) = session(&recipes);
    assert!(status.is_on_device());
    let all = calls("");
    assert!(all > 100, "{all}");
    let mut names = std::collections::BTreeSet::new();
    let (mut while_opening, mut while_working) = (0, 0);
    for at in 1..=all {
        standin::reset(at as u64);
        standin::fault("", at, LAUNCH_FAILED, mode);
        let (status, done, failed) = session(&recipes);
        let context = format!("{mode:?} at call {at} {failed}: {status}");
        until_nothing_is_left();
        for done in &done {
            assert_eq!(
                done.fault.is_some(),
                done.fault == status.fault && status.device.is_some() && done.ran == Ran::Cpu,
                "{context}"
            );
        }
        if !failed.is_empty()
            && !does_not_matter(&failed)
            && mode == Mode::Once
            && failed != "cuMemHostAlloc"
        {
            assert!(status.fault.is_some(), "{context}");
            let told = match status.fault {
                Some(Fault::Call { call, code }) => (call.to_string(), code),
                other => panic!("{other:?}, {context}"),
            };
            assert_eq!(told, (failed.clone(), LAUNCH_FAILED as u32), "{context}");
        }
        if status.device.is_none() {
            while_opening += 1;
        } else if done.iter().any(|done| done.fault.is_some()) {
            while_working += 1;
            assert!(status.counters.redone > 0, "{context}");
        }
        names.insert(failed);
    }
    println!(
        "{mode:?}: {all} calls, {while_opening} faults while opening, {while_working} while working"
    );
    assert!(
        while_opening > 50 && while_working > 15,
        "{while_opening} {while_working}"
    );
    let functions = if mode == Mode::Once { 20 } else { 10 };
    assert!(names.len() > functions, "{names:?}");
}

fn a_call_fails_once() {
    at_every_call(Mode::Once);
}

fn the_context_is_lost() {
    at_every_call(Mode::Sticky);
}

fn work_on_a_stream_fails() {
    at_every_call(Mode::Later);
}

fn an_allocation_fails() {
    let recipes = recipes();
    for name in ["cuMemAlloc_v2", "cuMemHostAlloc"] {
        standin::reset(1);
        session(&recipes);
        for at in 1..=calls(name) {
            standin::reset(1);
            standin::fault(name, at, OUT_OF_MEMORY, Mode::Once);
            let (status, ..) = session(&recipes);
            until_nothing_is_left();
            // The slots are already as small as they may be; the tables are needed.
            let told = matches!(status.fault, Some(Fault::Memory { call }) if call == name);
            assert!(told || status.is_on_device(), "{status}");
        }
    }
}

fn memory_is_short() {
    // Slots are made smaller until they fit.
    standin::reset(1);
    standin::machine(1, 4 << 20);
    let accelerator = device(small(2 << 20));
    assert!(accelerator.job_bytes() < 2 << 20 && accelerator.job_bytes() >= 64 << 10);
    let recipe = everything(&mut Random::new(1), 3, 2, 512, 1);
    let done = accelerator.submit(recipe.job()).wait();
    assert_eq!(done.ran, Ran::Cuda(0));
    recipe.check(&done);
    drop(accelerator);
    until_nothing_is_left();
    // Not even the smallest fit.
    standin::machine(1, 300 << 10);
    let accelerator = Accelerator::new(Choice::Auto, small(2 << 20));
    assert!(!accelerator.wait_until_open(Duration::from_secs(60)));
    let status = accelerator.status();
    assert!(
        matches!(status.fault, Some(Fault::Memory { .. })),
        "{status}"
    );
    assert!(status.to_string().contains("even for small batches"));
    recipe.check(&accelerator.submit(recipe.job()).wait());
    drop(accelerator);
    until_nothing_is_left();
}

fn there_is_no_device() {
    standin::reset(1);
    let accelerator = Accelerator::new(Choice::Cuda(3), options());
    assert!(!accelerator.wait_until_open(Duration::from_secs(60)));
    assert_eq!(
        accelerator.status().fault,
        Some(Fault::NoDevice {
            wanted: 3,
            present: 1
        })
    );
    standin::machine(0, 1 << 30);
    let accelerator = Accelerator::new(Choice::Auto, options());
    assert!(!accelerator.wait_until_open(Duration::from_secs(60)));
    let status = accelerator.status();
    assert_eq!(
        status.fault,
        Some(Fault::Call {
            call: "cuInit",
            code: 100
        })
    );
    let recipe = everything(&mut Random::new(1), 3, 2, 512, 1);
    recipe.check(&accelerator.submit(recipe.job()).wait());
    until_nothing_is_left();
}

fn the_device_hangs() {
    let recipes = recipes();
    for at in 0..12 {
        standin::reset(at as u64);
        let accelerator = device(Options {
            deadline_ms: 160,
            ..options()
        });
        standin::fault("", calls("") + 1 + at * 3, 0, Mode::Hang);
        let mut timeouts = 0;
        for _ in 0..8 {
            let pending: Vec<_> = recipes
                .iter()
                .map(|r| accelerator.submit(r.job()))
                .collect();
            for (recipe, job) in recipes.iter().zip(pending) {
                let done = job.wait();
                recipe.check(&done);
                timeouts += u32::from(matches!(done.fault, Some(Fault::Timeout { .. })));
            }
        }
        assert!(timeouts > 0, "{}", accelerator.status());
        let status = accelerator.status();
        assert!(
            status.to_string().contains("did not finish a batch"),
            "{status}"
        );
        // Closing does not wait for it either; what it holds goes when it lets go.
        drop(accelerator);
        standin::release();
        until_nothing_is_left();
    }
}

fn the_device_hangs_while_it_is_opened() {
    standin::reset(1);
    standin::fault("cuEventSynchronize", 2, 0, Mode::Hang);
    let accelerator = Accelerator::new(Choice::Auto, options());
    assert!(!accelerator.wait_until_open(Duration::from_millis(200)));
    let recipe = everything(&mut Random::new(1), 3, 2, 512, 1);
    recipe.check(&accelerator.submit(recipe.job()).wait());
    assert!(accelerator.status().to_string().contains("being opened"));
    drop(accelerator);
    standin::release();
    until_nothing_is_left();
}

/// Of the jobs that are done again, one whose output or digests are not the processor's gives the device up.
fn a_wrong_result_is_noticed() {
    let recipes = recipes();
    let copies = |recipe: &Recipe| {
        let before = calls("cuMemcpyDtoHAsync_v2");
        let device = device(options());
        let from = calls("cuMemcpyDtoHAsync_v2");
        recipe.compare(&device);
        (from - before, calls("cuMemcpyDtoHAsync_v2") - from)
    };
    for recipe in &recipes {
        standin::reset(2);
        let (opening, of_a_job) = copies(recipe);
        assert!(of_a_job > 1, "{of_a_job}");
        for copy in 1..=of_a_job {
            standin::reset(2);
            let device = device(Options {
                check_one_in: 2,
                ..options()
            });
            recipe.compare(&device); // the first is not looked at
            let at = opening + of_a_job + copy;
            standin::fault("cuMemcpyDtoHAsync_v2", at, 0, Mode::Wrong);
            let done = device.submit(recipe.job()).wait();
            recipe.check(&done);
            assert_eq!((done.ran, done.fault), (Ran::Cpu, Some(Fault::Unequal)));
            let status = device.status();
            assert_eq!(status.fault, Some(Fault::Unequal), "{status}");
            assert_eq!(status.counters.checked, 1, "{status}");
            assert_eq!(device.submit(recipe.job()).wait().ran, Ran::Cpu);
        }
    }
    until_nothing_is_left();
}

fn a_lost_device_is_opened_again() {
    let recipes = recipes();
    standin::reset(1);
    let accelerator = device(options());
    let pinned = accelerator.region(4096);
    standin::fault(
        "cuLaunchKernel",
        calls("cuLaunchKernel") + 2,
        LAUNCH_FAILED,
        Mode::Once,
    );
    let done = accelerator.submit(recipes[0].job()).wait();
    recipes[0].check(&done);
    let fault = Fault::Call {
        call: "cuLaunchKernel",
        code: 719,
    };
    assert_eq!((done.ran, done.fault), (Ran::Cpu, Some(fault)));
    let text = accelerator.status().to_string();
    assert!(
        text.contains("cuLaunchKernel failed with CUDA error 719"),
        "{text}"
    );
    assert!(
        !accelerator.region(4096).is_pinned(),
        "a lost device's memory is not handed out"
    );
    assert_eq!(accelerator.submit(recipes[1].job()).wait().ran, Ran::Cpu);
    accelerator.reopen();
    assert!(
        accelerator.wait_until_open(Duration::from_secs(60)),
        "{}",
        accelerator.status()
    );
    let done = accelerator.submit(recipes[2].job()).wait();
    assert_eq!((done.ran, done.fault), (Ran::Cuda(0), None));
    recipes[2].check(&done);
    drop(accelerator);
    assert!(pinned.is_pinned());
    drop(pinned);
    until_nothing_is_left();
}
